//! What an input is made of: records, and what could not become one.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use serde_json::Value;

use crate::field::FieldValue;

/// Where a record stands. Shown as a person would say it: `notes.txt line 7`, `rows.parquet row 7`, `docs/a.txt`,
/// `standard input line 3`, `argument 2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spot {
    /// The input, by its name.
    pub source: Arc<str>,
    /// Where in it.
    pub at: At,
}

/// A place inside of an input; all counts begin at one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// The line, or that in which a row of a table begins.
    Line(u64),
    /// The row of a file that has no lines.
    Row(u64),
    /// The text on the command line.
    Argument(u64),
    /// All of the file.
    Whole,
}

impl Display for Spot {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match self.at {
            At::Line(line) => write!(f, "{source} line {line}"),
            At::Row(row) => write!(f, "{source} row {row}"),
            At::Argument(argument) => write!(f, "argument {argument}"),
            At::Whole => write!(f, "{source}"),
        }
    }
}

/// One text on its way.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// Its place in the input.
    pub place: Spot,
    /// The input's own id: an integer where the input has one, else a string.
    pub id: Option<Value>,
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
    /// The fields of [`Fields::keep`] in their order; null where the record has none.
    pub kept: Vec<FieldValue>,
}

impl Record {
    /// Whether there is nothing in it but white space.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.pair.as_ref().is_none_or(|pair| pair.trim().is_empty())
    }
}

/// A record that cannot be had, though those after it can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable {
    /// Its place in the input.
    pub place: Spot,
    /// What is wrong and what to do, as the rest of a sentence that begins with the place.
    pub reason: String,
}

impl Display for Unreadable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.place, self.reason)
    }
}

/// What stands at one place of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A text.
    Record(Record),
    /// Something that is none.
    Unreadable(Unreadable),
}

impl Entry {
    /// An entry that cannot be read.
    pub(super) fn unreadable(place: Spot, reason: impl Into<String>) -> Self {
        Entry::Unreadable(Unreadable { place, reason: reason.into() })
    }
}

/// Which fields of a record are what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// The text.
    pub text: String,
    /// The second text of a pair, if there is one.
    pub pair: Option<String>,
    /// The id; without a name, `id` where there is such a field.
    pub id: Option<String>,
    /// Fields that go along with the text as they are.
    pub keep: Vec<String>,
}

/// A field that every record has, whatever its input has: its text, the file that it is from, and its line there, which is
/// the row in files without lines.
pub(super) fn own_field(name: &str, place: &Spot, text: &str) -> Option<FieldValue> {
    let value: Value = match name {
        "text" => text.into(),
        "file" => place.source.to_string().into(),
        "line" => match place.at {
            At::Line(number) | At::Row(number) | At::Argument(number) => number.into(),
            At::Whole => Value::Null,
        },
        _ => return None,
    };
    Some(value.into())
}

impl Fields {
    /// Whether every record has a field of this name, if its input has no other of the same name.
    pub fn is_own(name: &str) -> bool {
        ["text", "file", "line"].contains(&name)
    }

    /// The name of the field that may hold an id.
    pub(super) fn id(&self) -> &str {
        self.id.as_deref().unwrap_or("id")
    }
}
