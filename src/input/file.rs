//! Files that are one text each.

use std::io::Read;

use super::binary;
use super::bytes::Bytes;
use super::record::own_field;
use super::{At, Entry, Fields, MOST_BYTES, MOST_MIB, Place, Record, Source, Spot, said};

/// The text of a file, with its name for an id. A byte order mark at the start is not part of it. A file that cannot be
/// read is one record among others that can.
pub fn read(source: &Source, fields: &Fields) -> Entry {
    let place = Spot { source: source.place.to_string().into(), at: At::Whole };
    let id = match &source.place {
        Place::Stdin => "-".to_owned(),
        Place::File(path) => path.display().to_string(),
    };
    match text(source) {
        Ok(text) => {
            let kept = fields.keep.iter().map(|name| own_field(name, &place, &text).unwrap_or_default());
            let kept = kept.collect();
            Entry::Record(Record { place, id: Some(id.into()), text, pair: None, kept })
        }
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
    // PDF begins with text.
    if let Some(reason) = binary::reason(&bytes) {
        return Err(reason);
    }
    String::from_utf8(bytes)
        .map_err(|error| binary::reason_not_utf8(error.as_bytes(), error.utf8_error().valid_up_to(), "file"))
}
