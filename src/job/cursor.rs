//! A position between two records of the input.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::input::Entry;

/// A position between two records, with a digest of all records before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Cursor {
    /// Records before the cursor, including unreadable ones.
    pub entries: u64,
    /// Bytes of input before the cursor, as [`crate::input::Entries::bytes_read`] counts them.
    pub position: u64,
    /// SHA-256 over the contents of those records, in hexadecimal.
    pub digest: String,
}

impl Cursor {
    /// The cursor after one more record, which ends at byte `position` of the input, without a digest: no run can be
    /// resumed there.
    pub fn without_digest(&self, position: u64) -> Self {
        Cursor { entries: self.entries + 1, position, digest: String::new() }
    }

    /// The cursor after one more record, which ends at byte `position` of the input.
    pub fn after(&self, entry: &Entry, position: u64) -> Self {
        let mut hash = Sha256::new();
        let mut update = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        update(self.digest.as_bytes());
        match entry {
            Entry::Record(record) => {
                update(record.text.as_bytes());
                update(record.pair.as_deref().unwrap_or("\0").as_bytes());
                update(record.id.as_ref().map_or("\0".into(), Value::to_string).as_bytes());
                record.kept.iter().for_each(|value| update(value.json().to_string().as_bytes()));
            }
            Entry::Unreadable(bad) => update(bad.reason.as_bytes()),
        }
        Cursor { entries: self.entries + 1, position, digest: format!("{:x}", hash.finalize()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::input::{Entries, Location, Position, Record, Unreadable};

    #[test]
    fn the_digest_depends_on_the_text_of_every_record() {
        let after = |texts: &[&str]| {
            let entries = Entries::arguments(texts.iter().map(|text| text.to_string()).collect());
            entries
                .zip(1..)
                .fold(Cursor::default(), |cursor, (entry, position)| cursor.after(&entry.unwrap(), position))
        };
        assert_eq!(after(&["a", "b"]), after(&["a", "b"]));
        assert_ne!(after(&["a", "b"]).digest, after(&["b", "a"]).digest);
        assert_ne!(after(&["ab"]).digest, after(&["a", "b"]).digest);
        assert_ne!(after(&["a", "b"]).digest, after(&["a", "c"]).digest);
        assert_ne!(after(&["a", "b"]).digest, after(&["c", "b"]).digest);
        assert_eq!((after(&["a", "b"]).entries, after(&["a", "b"]).position), (2, 2));
    }

    #[test]
    fn the_digest_depends_on_every_part_of_a_record() {
        let location = Location { source: "a.jsonl".into(), position: Position::Line(1) };
        let record = |text: &str, pair: Option<&str>, id: Value, kept: Value| {
            let (location, pair, kept) = (location.clone(), pair.map(String::from), vec![kept.into()]);
            Entry::Record(Record { location, id: Some(id), text: text.into(), pair, kept })
        };
        let unreadable = |reason: &str| {
            Entry::Unreadable(Unreadable { location: location.clone(), reason: reason.into() })
        };
        let entries = [
            record("a", None, json!(1), json!("x")),
            record("b", None, json!(1), json!("x")),
            record("a", Some(""), json!(1), json!("x")),
            record("a", Some("b"), json!(1), json!("x")),
            record("a", None, json!("1"), json!("x")),
            record("a", None, json!(1), json!("y")),
            unreadable("has no field \"text\""),
            unreadable("is not valid JSON"),
        ];
        let digests: HashSet<_> =
            entries.iter().map(|entry| Cursor::default().after(entry, 1).digest).collect();
        assert_eq!(digests.len(), entries.len());
    }
}
