//! Text files with one text per line.

use anyhow::Result;

use super::limit::ReadLimit;
use super::mismatch;
use super::reader::InputReader;
use super::record::{Entry, KeptName, Location, Position};
use crate::formats::{strip_line_end, take_line};

/// The lines of an input. A line ends in `\n` or `\r\n`; an empty line is an empty text; a byte order mark at
/// the start of the input is not part of the first text.
pub(super) struct Lines {
    input: InputReader,
    keep: Vec<KeptName>,
    limit: ReadLimit,
    /// Lines read so far.
    line: u64,
    bytes_read: u64,
}

impl Lines {
    /// The lines of `input`, each with the built-in fields in `keep`.
    pub(super) fn new(input: InputReader, keep: Vec<KeptName>, limit: ReadLimit) -> Self {
        Lines { input, keep, limit, line: 0, bytes_read: 0 }
    }

    /// The name of the input in messages.
    pub(super) fn name(&self) -> &str {
        &self.input.name
    }

    /// Bytes of the lines read so far, after decompression.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads the next line; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        if let Some(reason) = self.input.fault.take() {
            self.line = 1;
            return Ok(Some(Entry::unreadable(self.location(Position::File), reason)));
        }
        let mut line = Vec::new();
        let read = take_line(&mut self.input.reader, &mut line, self.limit.line_bytes())
            .map_err(|error| self.input.read_error(&format!("after line {}", self.line), &error))?;
        if read == 0 {
            return Ok(None);
        }
        self.bytes_read += read;
        self.line += 1;
        let location = self.location(Position::Line(self.line));
        if read > self.limit.line_bytes() {
            let reason = self.limit.too_long("split the text into several lines");
            return Ok(Some(Entry::unreadable(location, reason)));
        }
        strip_line_end(&mut line);
        if self.line == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        Ok(Some(match String::from_utf8(line) {
            Ok(text) => Entry::plain_text(location, None, text, &self.keep),
            Err(error) => {
                let (valid, is_utf16) = (error.utf8_error().valid_up_to(), self.input.is_utf16);
                Entry::unreadable(location, mismatch::not_utf8(error.as_bytes(), valid, "line", is_utf16))
            }
        }))
    }

    fn location(&self, position: Position) -> Location {
        Location { source: self.input.name.clone(), position }
    }
}
