//! Text files with one text per line.

use std::io::{self, BufRead, Read};

use anyhow::Result;

use super::limit::ReadLimit;
use super::mismatch;
use super::reader::InputReader;
use super::record::{Entry, KeptName, Location, Position};

/// The lines of an input. A line ends in `\n` or `\r\n`; an empty line is an empty text; a byte order mark at the start
/// of the input is not part of the first text.
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
                let valid = error.utf8_error().valid_up_to();
                Entry::unreadable(location, mismatch::not_utf8(error.as_bytes(), valid, "line"))
            }
        }))
    }

    fn location(&self, position: Position) -> Location {
        Location { source: self.input.name.clone(), position }
    }
}

/// Appends the next line, with its end, to `line`, and returns its length in the input. Of a line longer than `limit`
/// bytes, only `limit + 1` bytes are appended; the rest is skipped.
fn take_line(reader: &mut dyn BufRead, line: &mut Vec<u8>, limit: u64) -> io::Result<u64> {
    let mut read = reader.take(limit + 1).read_until(b'\n', line)? as u64;
    if read > limit && line.last() != Some(&b'\n') {
        read += reader.skip_until(b'\n')? as u64;
    }
    Ok(read)
}

/// Removes a final `\n` or `\r\n`.
fn strip_line_end(line: &mut Vec<u8>) {
    if line.pop_if(|byte| *byte == b'\n').is_some() {
        line.pop_if(|byte| *byte == b'\r');
    }
}

#[cfg(test)]
mod tests {
    use super::{strip_line_end, take_line};

    #[test]
    fn a_line_over_the_limit_is_skipped() {
        let mut reader = &b"abc\nabcdefgh\nx"[..];
        let mut take = || {
            let mut line = Vec::new();
            let read = take_line(&mut reader, &mut line, 4).unwrap();
            (line, read)
        };
        assert_eq!(take(), (b"abc\n".to_vec(), 4));
        assert_eq!(take(), (b"abcde".to_vec(), 9));
        assert_eq!(take(), (b"x".to_vec(), 1));
        assert_eq!(take(), (Vec::new(), 0));
    }

    #[test]
    fn line_ends_are_stripped_once() {
        for (line, stripped) in [("a\n", "a"), ("a\r\n", "a"), ("a\r", "a\r"), ("\n\n", "\n"), ("", "")] {
            let mut bytes = line.as_bytes().to_vec();
            strip_line_end(&mut bytes);
            assert_eq!(bytes, stripped.as_bytes(), "{line:?}");
        }
    }
}
