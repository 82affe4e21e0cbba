//! Files that are one text each.

use std::io::Read;

use super::binary;
use super::bytes::Bytes;
use super::record::own_field;
use super::{At, Entry, Fields, Place, ReadLimit, Record, Source, Spot, said};

/// The text of a file, with its name for an id. A byte order mark at the start is not part of it. A file that cannot be
/// read is one record among others that can.
pub fn read(source: &Source, fields: &Fields, limit: ReadLimit) -> Entry {
    let place = Spot { source: source.place.to_string().into(), at: At::Whole };
    let id = match &source.place {
        Place::Stdin => "-".to_owned(),
        Place::File(path) => path.display().to_string(),
    };
    match text(source, limit) {
        Ok(text) => {
            let kept = fields.keep.iter().map(|name| own_field(name, &place, &text).unwrap_or_default());
            let kept = kept.collect();
            Entry::Record(Record { place, id: Some(id.into()), text, pair: None, kept })
        }
        Err(reason) => Entry::unreadable(place, reason),
    }
}

fn text(source: &Source, limit: ReadLimit) -> Result<String, String> {
    let mut bytes = Vec::new();
    Bytes::open(source)
        .and_then(|file| file.reader.take(limit.line_bytes() + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read ({}); check the file", said(&error)))?;
    if bytes.len() as u64 > limit.line_bytes() {
        return Err(limit.too_long("split the text: it is all of the file"));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    // PDF begins with text.
    if let Some(reason) = binary::reason(&bytes) {
        return Err(reason);
    }
    String::from_utf8(bytes)
        .map_err(|error| binary::reason_not_utf8(error.as_bytes(), error.utf8_error().valid_up_to(), "file"))
}
