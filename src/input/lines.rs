//! Text files of one text a line.

use std::io::{self, BufRead, Read};

use anyhow::Result;

use super::binary;
use super::bytes::Bytes;
use super::record::own_field;
use super::{At, Entry, ReadLimit, Record, Spot};

/// The lines of an input. A line ends in `\n` or `\r\n`; an empty line is a text like any other; a byte order mark at
/// the start is not part of the first text.
pub struct Lines {
    bytes: Bytes,
    keep: Vec<String>,
    limit: ReadLimit,
    line: u64,
    behind: u64,
}

impl Lines {
    /// Lines of these bytes, each with the fields to keep, of which a line has those of any record.
    pub fn new(bytes: Bytes, keep: Vec<String>, limit: ReadLimit) -> Self {
        Lines { bytes, keep, limit, line: 0, behind: 0 }
    }

    /// The name of the input in sentences.
    pub fn shown(&self) -> &str {
        &self.bytes.shown
    }

    /// Bytes behind the lines so far.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// The next line; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on.
    pub fn read(&mut self) -> Result<Option<Entry>> {
        let first = if self.line == 0 { self.bytes.reader.fill_buf() } else { Ok(&[][..]) };
        let binary = first.map(binary::reason);
        let binary = binary.map_err(|error| self.bytes.unreadable("after line 0", &error))?;
        if let Some(reason) = binary {
            // One word on all of it; the rest is not read.
            self.bytes.reader = Box::new(io::empty());
            self.line = 1;
            let place = Spot { source: self.bytes.shown.clone(), at: At::Whole };
            return Ok(Some(Entry::unreadable(place, reason)));
        }
        let mut line = Vec::new();
        let taken = take_line(&mut self.bytes.reader, &mut line, self.limit.line_bytes());
        let taken =
            taken.map_err(|error| self.bytes.unreadable(&format!("after line {}", self.line), &error))?;
        if taken == 0 {
            return Ok(None);
        }
        self.behind += taken;
        self.line += 1;
        let place = Spot { source: self.bytes.shown.clone(), at: At::Line(self.line) };
        if taken > self.limit.line_bytes() {
            return Ok(Some(Entry::unreadable(
                place,
                self.limit.too_long("split the text: there is one per line"),
            )));
        }
        if line.last() == Some(&b'\n') {
            line.pop();
            if line.last() == Some(&b'\r') {
                line.pop();
            }
        }
        if self.line == 1 && line.starts_with(b"\xef\xbb\xbf") {
            line.drain(..3);
        }
        Ok(Some(match String::from_utf8(line) {
            Ok(text) => {
                let kept = self.keep.iter().map(|name| own_field(name, &place, &text).unwrap_or_default());
                let kept = kept.collect();
                Entry::Record(Record { place, id: None, text, pair: None, kept })
            }
            Err(error) => Entry::unreadable(
                place,
                format!(
                    "is not valid UTF-8 (byte {} of the line); convert the file to UTF-8, for example with iconv",
                    error.utf8_error().valid_up_to() + 1
                ),
            ),
        }))
    }
}

/// Reads a line, of one that is too long not more than shows that; gives its length in the file.
fn take_line(reader: &mut dyn BufRead, line: &mut Vec<u8>, limit: u64) -> io::Result<u64> {
    let mut taken = reader.take(limit + 1).read_until(b'\n', line)? as u64;
    if taken > limit && line.last() != Some(&b'\n') {
        taken += reader.skip_until(b'\n')? as u64;
    }
    Ok(taken)
}
