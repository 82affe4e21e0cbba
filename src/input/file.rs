//! Files that are one text each.

use std::io::Read;

use super::error::one_line;
use super::limit::ReadLimit;
use super::mismatch;
use super::reader::InputReader;
use super::record::{Entry, KeptName, Location, Position};
use super::source::{InputPath, Source};

/// Reads a file as one record, with its path, as errors name it, as the id and the built-in fields in `keep`.
/// A byte order mark at the start is not part of the text.
///
/// A file that cannot be read is an unreadable entry, not an error: the files after it can still be read.
pub(super) fn read(source: &Source, keep: &[KeptName], limit: ReadLimit) -> Entry {
    let location = Location { source: source.path.to_string().into(), position: Position::File };
    let id = match &source.path {
        InputPath::Stdin => "-".to_owned(),
        InputPath::File(_) => source.path.to_string(),
    };
    match read_text(source, limit) {
        Ok(text) => Entry::plain_text(location, Some(id.into()), text, keep),
        Err(reason) => Entry::unreadable(location, reason),
    }
}

/// The text of a file, or why it cannot be read.
fn read_text(source: &Source, limit: ReadLimit) -> Result<String, String> {
    let unread = |error| format!("cannot be read ({}); check the file", one_line(&error));
    let input = InputReader::open(source).map_err(unread)?;
    if let Some(fault) = input.fault {
        return Err(fault);
    }
    let mut bytes = Vec::new();
    input.reader.take(limit.line_bytes() + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > limit.line_bytes() {
        return Err(limit.too_long("split the file: it is read as one text"));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        mismatch::not_text_file(error.as_bytes(), error.utf8_error().valid_up_to(), input.is_utf16)
    })
}
