//! FASTA: a header line for each sequence of a protein or nucleic acid, `>ID DESCRIPTION`, and its letters in
//! the lines after it.

use std::mem;

use anyhow::Result;

use super::limit::ReadLimit;
use super::lines::Lines;
use super::reader::InputReader;
use super::record::{Entry, HEADER, KeptName, Record, built_in_field};

/// Why the lines before the first header are no sequence.
const NO_HEADER: &str =
    "is before the first header; begin each sequence with a line >ID, or pass --input-format lines";

/// The sequences of an input. White space and blank lines are no part of one; lines that begin with `;` are
/// comments, and a header without words gives no id.
pub(super) struct Fasta {
    lines: Lines,
    keep: Vec<KeptName>,
    limit: ReadLimit,
    /// The line of the next sequence that is read already: its header, or why a line is none.
    next: Option<Entry>,
}

impl Fasta {
    /// The sequences of `input`, each with the built-in fields in `keep`.
    pub(super) fn new(input: InputReader, keep: Vec<KeptName>, limit: ReadLimit) -> Self {
        Fasta { lines: Lines::new(input, Vec::new(), limit), keep, limit, next: None }
    }

    /// Bytes of the lines read so far, after decompression.
    pub(super) fn bytes_read(&self) -> u64 {
        self.lines.bytes_read()
    }

    /// Reads the next sequence; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        let first = match self.next.take() {
            Some(entry) => Some(entry),
            None => self.line()?,
        };
        let header = match first {
            Some(Entry::Record(line)) if line.text.starts_with('>') => line,
            // One entry for all lines up to the next header.
            Some(Entry::Record(line)) => {
                let unreadable = Entry::unreadable(line.location, NO_HEADER);
                self.sequence(&mut String::new())?;
                return Ok(Some(unreadable));
            }
            other => return Ok(other),
        };
        let mut text = String::new();
        Ok(Some(match self.sequence(&mut text)? {
            None => self.record(header, text),
            Some(reason) => Entry::unreadable(header.location, reason),
        }))
    }

    /// Reads the lines up to the next header into `text`. Returns why they are no sequence, if they are none.
    fn sequence(&mut self, text: &mut String) -> Result<Option<String>> {
        let mut reason = None;
        loop {
            match self.line()? {
                Some(Entry::Record(line)) if !line.text.starts_with('>') => {
                    text.extend(line.text.split_whitespace());
                    if text.len() as u64 > self.limit.line_bytes() {
                        let split = "split the sequence";
                        reason.get_or_insert_with(|| self.limit.too_long(split));
                        mem::take(text);
                    }
                }
                Some(Entry::Unreadable(line)) => {
                    let of_line =
                        format!("has a line that cannot be used: {} {}", line.location, line.reason);
                    reason.get_or_insert(of_line);
                }
                next => {
                    self.next = next;
                    return Ok(reason);
                }
            }
        }
    }

    /// The next line that is neither blank nor a comment.
    fn line(&mut self) -> Result<Option<Entry>> {
        while let Some(entry) = self.lines.read()? {
            match entry {
                Entry::Record(line) if line.text.trim().is_empty() || line.text.starts_with(';') => {}
                entry => return Ok(Some(entry)),
            }
        }
        Ok(None)
    }

    /// The record of a header and a sequence.
    fn record(&self, header: Record, text: String) -> Entry {
        let Record { location, text: line, .. } = header;
        let header = line[1..].trim();
        let id = header.split_whitespace().next().map(Into::into);
        let kept = self.keep.iter().map(|kept| match kept.field.as_str() {
            HEADER => serde_json::Value::from(header).into(),
            name => built_in_field(name, &location, &text).unwrap_or_default(),
        });
        let kept = kept.collect();
        Entry::Record(Record { location, id, text, pair: None, is_null: false, kept })
    }
}
