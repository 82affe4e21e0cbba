//! A position between two records of the input.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::input::{Entry, Record};
use crate::store::Hasher;

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
    /// The cursor after one more record, which ends at byte `position` of the input, without a digest: no run
    /// can be resumed there.
    pub fn without_digest(&self, position: u64) -> Self {
        Cursor { entries: self.entries + 1, position, digest: String::new() }
    }

    /// The cursor after one more record, which ends at byte `position` of the input.
    pub fn after(&self, entry: &Entry, position: u64) -> Self {
        let mut hasher = Hasher::default();
        hasher.add_part(&self.digest);
        match entry {
            Entry::Record(record) => add_record(&mut hasher, record),
            Entry::Unreadable(bad) => hasher.add_part(&bad.reason),
        }
        Cursor { entries: self.entries + 1, position, digest: hasher.digest().to_string() }
    }
}

/// Adds what a record holds: its texts, its id and its kept fields.
pub(super) fn add_record(hasher: &mut Hasher, record: &Record) {
    hasher.add_part(&record.text);
    hasher.add_part(record.pair.as_deref().unwrap_or("\0"));
    hasher.add_part(record.id.as_ref().map_or("\0".into(), Value::to_string));
    if record.is_null {
        hasher.add_part("\0null");
    }
    record.kept.iter().for_each(|value| hasher.add_part(value.json().to_string()));
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
            Entry::Record(Record { location, id: Some(id), text: text.into(), pair, is_null: false, kept })
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
