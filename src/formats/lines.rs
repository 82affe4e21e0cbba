//! Reads lines in bounded memory: a damaged file may have a line of any length.

use std::io::{self, BufRead, Read};

/// Maximum size of a row, in MiB: enough for thousands of vectors of tokens.
const MAX_ROW_MIB: u64 = 256;
/// [`MAX_ROW_MIB`] in bytes.
pub(super) const MAX_ROW_BYTES: u64 = MAX_ROW_MIB << 20;

/// The error for a row that is too long.
pub(super) fn too_long() -> io::Error {
    io::Error::other(format!("it has a row longer than {MAX_ROW_MIB} MiB"))
}

/// Reads the next line with its end into `line`; false at the end.
pub fn read_line(reader: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let read = reader.take(MAX_ROW_BYTES + 1).read_until(b'\n', line)?;
    if read as u64 > MAX_ROW_BYTES { Err(too_long()) } else { Ok(read > 0) }
}
