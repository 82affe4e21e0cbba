//! A row of the output: its content, with the columns beside it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::columns::{CHUNK, END, END_LINE, LINE, START};
use super::content::Content;
use super::field::FieldValue;

/// A row of the output.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Index of the input record, from 0.
    pub index: u64,
    /// The record's id: a string or an integer.
    pub id: Option<&'a Value>,
    /// The chunk that the row is of; present where [`OutputSchema::chunks`](super::OutputSchema::chunks) is
    /// set.
    pub chunk: Option<Span>,
    /// Number of encoded tokens, including special tokens.
    pub tokens: usize,
    /// Whether the text was truncated.
    pub truncated: bool,
    /// Values of the kept columns, in the order of [`OutputSchema::kept`](super::OutputSchema::kept).
    pub kept: &'a [FieldValue],
    /// The content, of the type [`OutputSchema::content`](super::OutputSchema::content).
    pub content: &'a Content,
}

/// The part of a text that a chunk covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Span {
    /// Index of the chunk in its text, from 0.
    pub chunk: u64,
    /// Offset of its first character in the text.
    pub start: u64,
    /// Offset after its last character.
    pub end: u64,
    /// The line of the text that it begins in, from 1.
    pub line: u64,
    /// The line of its last character.
    pub end_line: u64,
}

impl Span {
    /// Names of its columns.
    pub(crate) const NAMES: [&'static str; 5] = [CHUNK, START, END, LINE, END_LINE];

    /// Values of its columns, in the order of [`Span::NAMES`].
    pub(crate) fn values(self) -> [u64; Span::NAMES.len()] {
        [self.chunk, self.start, self.end, self.line, self.end_line]
    }
}
