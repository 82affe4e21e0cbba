//! Records, their locations in the input, and the fields that they are made of.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use serde_json::Value;
use thiserror::Error;

use crate::rows::FieldValue;

/// The built-in field of the text.
pub(super) const TEXT: &str = "text";

/// The built-in field of FASTA that is the header of a sequence, without its `>`.
pub const HEADER: &str = "header";
/// 2⁵³: every integer up to this magnitude is exact as an `f64`.
pub(super) const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// The location of a record: an input and a position in it. Displayed as `notes.txt line 7`,
/// `rows.parquet row 7`, `docs/a.txt`, `standard input line 3` or `argument 2`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// The name of the input.
    pub source: Arc<str>,
    /// The position in the input.
    pub position: Position,
}

/// A position in an input. Numbers start at 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// A line; for a row of a CSV file, the line that it starts in.
    Line(u64),
    /// A row of a Parquet or Arrow file.
    Row(u64),
    /// A text on the command line.
    Argument(u64),
    /// The whole file.
    File,
}

impl Display for Location {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let source = &self.source;
        match self.position {
            Position::Line(line) => write!(f, "{source} line {line}"),
            Position::Row(row) => write!(f, "{source} row {row}"),
            Position::Argument(argument) => write!(f, "argument {argument}"),
            Position::File => write!(f, "{source}"),
        }
    }
}

/// One record of the input: a text, or a pair of texts, with its id and its carried-through fields.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The location in the input.
    pub location: Location,
    /// The id that the input gives the record: an integer or a string. Values of other types are ids as text.
    pub id: Option<Value>,
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
    /// Whether the text or the second one is null, and empty here; only with [`Fields::null_texts`].
    pub is_null: bool,
    /// The values of [`Fields::keep`] in the same order; null if the record does not have the field.
    pub kept: Vec<FieldValue>,
}

impl Record {
    /// Whether the texts are empty or only white space.
    pub fn is_empty(&self) -> bool {
        self.text.trim().is_empty() && self.pair.as_ref().is_none_or(|pair| pair.trim().is_empty())
    }
}

/// A record that cannot be read. The records after it can.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{location} {reason}")]
pub struct Unreadable {
    /// The location in the input.
    pub location: Location,
    /// What is wrong and what to do about it: the predicate of a sentence whose subject is the location.
    pub reason: String,
}

/// One entry of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A record.
    Record(Record),
    /// A record that cannot be read.
    Unreadable(Unreadable),
}

impl Entry {
    /// An entry for a record that cannot be read.
    pub(super) fn unreadable(location: Location, reason: impl Into<String>) -> Self {
        Entry::Unreadable(Unreadable { location, reason: reason.into() })
    }

    /// A record of an input without columns: a text, and the built-in ones of the fields in `keep`.
    pub(super) fn plain_text(location: Location, id: Option<Value>, text: String, keep: &[KeptName]) -> Self {
        let kept = keep.iter().map(|kept| built_in_field(&kept.field, &location, &text).unwrap_or_default());
        let kept = kept.collect();
        Entry::Record(Record { location, id, text, pair: None, is_null: false, kept })
    }
}

/// Which fields of the input become which parts of a record.
///
/// A name with dots is that of a nested field, `meta.text` of the field `text` in the object or struct
/// `meta`, unless the input has a field of the whole name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Fields {
    /// The fields of the text.
    pub text: TextFields,
    /// The field of the second text of a pair.
    pub pair: Option<String>,
    /// The field of the id; by default `id`, if the input has it.
    pub id: Option<String>,
    /// Whether the input must have the field of the id, because `--keep` names it.
    pub keeps_id: bool,
    /// Whether a record may have a text that is null; otherwise it cannot be read.
    pub null_texts: bool,
    /// Fields that are carried through to the output.
    pub keep: Vec<KeptName>,
    /// The options that errors name.
    pub options: FieldOptions,
}

/// The options of a command for the fields of its input, where commands differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldOptions {
    /// The one that names the field of the second text.
    pub pair: &'static str,
    /// Whether there is `--on-null`.
    pub has_on_null: bool,
}

impl Default for FieldOptions {
    fn default() -> Self {
        FieldOptions { pair: "--pair-field", has_on_null: false }
    }
}

impl FieldOptions {
    /// The predicate of an error about a record whose text, the field `name`, is null.
    pub(super) fn null_text(self, name: &str) -> String {
        let remedy = if self.has_on_null {
            "pass --on-null skip or --on-null null, or write an empty string"
        } else {
            "write an empty string, or remove the row"
        };
        format!("cannot be used: field {name:?} is null, expected a string; {remedy}")
    }

    /// The predicate of an error about a record that has no value in any of the several fields of its text.
    pub(super) fn no_text(self, text: &TextFields) -> String {
        let names: Vec<String> = text.names.iter().map(|name| format!("{name:?}")).collect();
        let or = if self.has_on_null { ", or pass --on-null skip or --on-null null" } else { "" };
        format!(
            "has a string in none of the fields {}; choose others with --text-field{or}",
            names.join(", ")
        )
    }
}

/// The fields whose values are the text of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextFields {
    /// The names of the fields, in the order of their values.
    pub names: Vec<String>,
    /// What is put between the values of several fields.
    pub separator: String,
}

impl Default for TextFields {
    fn default() -> Self {
        "text".into()
    }
}

impl<S: Into<String>> From<S> for TextFields {
    fn from(name: S) -> Self {
        TextFields { names: vec![name.into()], separator: "\n".into() }
    }
}

impl TextFields {
    /// Whether the text is made of several fields. A record need not have all of them.
    pub(super) fn is_several(&self) -> bool {
        self.names.len() > 1
    }

    /// The text of a record: the value of the only field, or the values of several fields that are not blank,
    /// with the separator between them. `value` returns the value of the field of an index, and `None` if it
    /// is null, or a record does not have this one of several. `None` if there is no value.
    ///
    /// # Errors
    /// If `value` fails.
    pub(super) fn join(
        &self,
        mut value: impl FnMut(usize) -> Result<Option<String>, String>,
    ) -> Result<Option<String>, String> {
        let mut text: Option<String> = None;
        for i in 0..self.names.len() {
            let Some(value) = value(i)? else { continue };
            match &mut text {
                Some(_) if value.trim().is_empty() => {}
                Some(text) if !text.trim().is_empty() => {
                    text.push_str(&self.separator);
                    text.push_str(&value);
                }
                _ => text = Some(value),
            }
        }
        Ok(text)
    }
}

/// A field that is carried through to the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptName {
    /// The name in the input.
    pub field: String,
    /// The name in the output.
    pub output: String,
}

impl<S: Into<String>> From<S> for KeptName {
    fn from(name: S) -> Self {
        let field = name.into();
        KeptName { output: field.clone(), field }
    }
}

impl Display for KeptName {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let KeptName { field, output } = self;
        if field == output { write!(f, "{field}") } else { write!(f, "{field}={output}") }
    }
}

impl Fields {
    /// Whether `name` is a built-in field: every record has `text`, `file` and `line`, unless the input has a
    /// field of the same name.
    pub fn is_built_in(name: &str) -> bool {
        [TEXT, "file", "line"].contains(&name)
    }

    /// The name of the id field, whether or not it has to exist.
    pub(super) fn id_name(&self) -> &str {
        self.id.as_deref().unwrap_or("id")
    }

    /// The option that requires an input to have the field of the id, if one does.
    pub(super) fn id_option(&self) -> Option<&'static str> {
        match &self.id {
            Some(_) => Some("--id-field"),
            None => self.keeps_id.then_some("--keep"),
        }
    }
}

/// A carried-through field of a table: a column, by its number, or a built-in field, by its name.
#[derive(Clone)]
pub(super) enum KeptField<C> {
    /// A column of the table.
    Column(C),
    /// A built-in field.
    BuiltIn(String),
}

/// The value of a built-in field: `text`, `file` (the input) or `line` (the line, row or argument number;
/// null for a file that is one text). `None` for any other name.
pub(super) fn built_in_field(name: &str, location: &Location, text: &str) -> Option<FieldValue> {
    let value: Value = match name {
        TEXT => text.into(),
        "file" => location.source.to_string().into(),
        "line" => match location.position {
            Position::Line(number) | Position::Row(number) | Position::Argument(number) => number.into(),
            Position::File => Value::Null,
        },
        _ => return None,
    };
    Some(value.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{FieldOptions, Fields, Location, Position, TextFields, built_in_field};

    #[test]
    fn locations_name_the_input_and_the_position() {
        let shown = |position| Location { source: "a.csv".into(), position }.to_string();
        assert_eq!(shown(Position::Line(7)), "a.csv line 7");
        assert_eq!(shown(Position::Row(7)), "a.csv row 7");
        assert_eq!(shown(Position::Argument(2)), "argument 2");
        assert_eq!(shown(Position::File), "a.csv");
    }

    #[test]
    fn the_values_of_several_fields_are_joined() {
        let fields = TextFields { names: ["a", "b", "c"].map(String::from).into(), separator: ": ".into() };
        let joined = |values: [Option<&str>; 3]| fields.join(|i| Ok(values[i].map(String::from)));
        let text = |text: &str| Ok(Some(text.to_owned()));
        assert_eq!(joined([Some("x"), Some("y"), Some("z")]), text("x: y: z"));
        assert_eq!(joined([Some(""), Some("y"), Some(" \n")]), text("y"));
        assert_eq!(joined([None, Some(" y"), None]), text(" y"));
        assert_eq!(joined([Some("x"), None, Some("z")]), text("x: z"));
        assert_eq!(joined([None, Some(""), None]), text(""));
        assert_eq!(joined([None, None, None]), Ok(None));
        let missing =
            "has a string in none of the fields \"a\", \"b\", \"c\"; choose others with --text-field";
        assert_eq!(FieldOptions::default().no_text(&fields), missing);
        assert_eq!(TextFields::default().join(|_| text(" ")), text(" "));
    }

    #[test]
    fn every_record_has_the_built_in_fields() {
        let location = Location { source: "a.txt".into(), position: Position::Line(3) };
        let value = |name| built_in_field(name, &location, "a lamp").map(|value| value.json().into_owned());
        assert_eq!(value("text"), Some(json!("a lamp")));
        assert_eq!(value("file"), Some(json!("a.txt")));
        assert_eq!(value("line"), Some(json!(3)));
        assert_eq!(value("id"), None);
        assert!(Fields::is_built_in("line") && !Fields::is_built_in("id"));
    }
}
