//! Files that are one text each.

use std::io::Read;

use super::bytes::Bytes;
use super::{At, Entry, MOST_BYTES, MOST_MIB, Place, Record, Source, Spot, said};
use serde_json::Value;

/// The text of a file, with its name for an id and `keep` kept fields, which a file has none of. A byte order mark at
/// the start is not part of it. A file that cannot be read is one record among others that can.
pub fn read(source: &Source, keep: usize) -> Entry {
    let place = Spot { source: source.place.to_string().into(), at: At::Whole };
    let id = match &source.place {
        Place::Stdin => "-".to_owned(),
        Place::File(path) => path.display().to_string(),
    };
    match text(source) {
        Ok(text) => Entry::Record(Record {
            place,
            id: Some(id.into()),
            text,
            pair: None,
            kept: vec![Value::Null; keep],
        }),
        Err(reason) => Entry::unreadable(place, reason),
    }
}

fn text(source: &Source) -> Result<String, String> {
    let mut bytes = Vec::new();
    Bytes::open(source)
        .and_then(|file| file.reader.take(MOST_BYTES + 1).read_to_end(&mut bytes))
        .map_err(|error| format!("cannot be read ({}); check the file", said(&error)))?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("is longer than {MOST_MIB} MiB; a file has to be one text"));
    }
    if bytes.starts_with(b"\xef\xbb\xbf") {
        bytes.drain(..3);
    }
    String::from_utf8(bytes).map_err(|error| {
        format!(
            "is not valid UTF-8 (byte {} of the file); convert the file to UTF-8, for example with iconv",
            error.utf8_error().valid_up_to() + 1
        )
    })
}
