//! Lines in bounded memory, because a damaged file may have a line of any length; and the units in which
//! threads read files of rows.

use std::io::{self, BufRead, Read};
use std::ops::{ControlFlow, Range};

use anyhow::Result;

/// Maximum size of a row that Sconce wrote, in bytes: enough for thousands of vectors of tokens.
pub(super) const MAX_ROW_BYTES: u64 = 256 << 20;
/// Maximum size of a row of a file of vectors, in bytes.
pub(super) const MAX_RECORD_BYTES: u64 = 64 << 20;
/// Size in bytes at which a unit of rows ends.
const UNIT_BYTES: u64 = 1 << 19;

/// The error for a row of more than `max_bytes`.
pub(super) fn too_long(max_bytes: u64) -> io::Error {
    io::Error::other(format!("it has a row longer than {} MiB", max_bytes >> 20))
}

/// Reads the next line with its end into `line`; false at the end of the file.
pub fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = reader.take(MAX_ROW_BYTES + 1).read_until(b'\n', line)?;
    if read as u64 > MAX_ROW_BYTES { Err(too_long(MAX_ROW_BYTES)) } else { Ok(read > 0) }
}

/// Appends the next line, with its end, to `line`, and returns its length in the input. Of a line longer than
/// `limit` bytes, only `limit + 1` bytes are appended; the rest is skipped.
pub fn take_line(reader: &mut dyn BufRead, line: &mut Vec<u8>, limit: u64) -> io::Result<u64> {
    let mut read = reader.take(limit + 1).read_until(b'\n', line)? as u64;
    if read > limit && line.last() != Some(&b'\n') {
        read += reader.skip_until(b'\n')? as u64;
    }
    Ok(read)
}

/// Removes a final `\n` or `\r\n`.
pub fn strip_line_end(line: &mut Vec<u8>) {
    if line.pop_if(|byte| *byte == b'\n').is_some() {
        line.pop_if(|byte| *byte == b'\r');
    }
}

/// Called with the number of a row and the row. Break ends the reading.
pub type VisitRow<'a, R> = dyn FnMut(usize, &R) -> Result<ControlFlow<()>> + 'a;

/// Where the units of a file of rows are.
#[derive(Debug, Default)]
pub(super) struct RowUnits {
    /// The rows of each unit.
    pub rows: Vec<Range<usize>>,
    /// Offset of each unit, in bytes.
    pub(super) offsets: Vec<u64>,
}

impl RowUnits {
    /// Ends the last unit after `rows` rows of the file, at the offset `end`, if it is large or the end of
    /// the file. `start` is the offset of the unit, which moves to the next one.
    pub(super) fn end_row(&mut self, rows: usize, start: &mut u64, end: u64, is_end: bool) {
        let first = self.rows.last().map_or(0, |unit| unit.end);
        if rows > first && (is_end || end - *start >= UNIT_BYTES) {
            self.rows.push(first..rows);
            self.offsets.push(*start);
            *start = end;
        }
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
