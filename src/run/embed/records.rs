//! The records of the input, the first of which can be looked at before they are taken.

use std::collections::VecDeque;

use anyhow::Result;
use serde_json::Value;

use crate::input::{Entries, Entry, Record};

/// Records in the order of input, each with the position in the input behind it.
pub struct Records {
    entries: Entries,
    is_stream: bool,
    head_records: usize,
    head: VecDeque<Result<(Entry, u64)>>,
}

/// How many records are looked at, at most: what they show does not depend on how a run divides its work.
const HEAD: usize = 1000;
/// The same in bytes.
const HEAD_BYTES: usize = 4 << 20;

impl Records {
    /// The records of `entries`; those of a stream may come one by one, with time between them. Where each is to be answered
    /// before the next comes (`is_live`), only the first can be looked at.
    pub fn new(entries: Entries, is_stream: bool, is_live: bool) -> Self {
        Records { entries, is_stream, head_records: if is_live { 1 } else { HEAD }, head: VecDeque::new() }
    }

    /// Whether records may be long in coming.
    pub fn is_stream(&self) -> bool {
        self.is_stream
    }

    /// Refuses a kept field that the first records of a stream do not have.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_kept(&mut self) -> Result<()> {
        if self.is_stream {
            self.head().for_each(drop);
            return self.entries.absent_field().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// The first records that can be read.
    pub fn head(&mut self) -> impl Iterator<Item = &Record> {
        let mut bytes = 0;
        while self.head.len() < self.head_records && bytes < HEAD_BYTES {
            let Some(entry) = self.read() else { break };
            bytes += entry.as_ref().map_or(0, |(entry, _)| entry_bytes(entry));
            self.head.push_back(entry);
        }
        self.head.iter().filter_map(|entry| match entry {
            Ok((Entry::Record(record), _)) => Some(record),
            _ => None,
        })
    }

    fn read(&mut self) -> Option<Result<(Entry, u64)>> {
        Some(self.entries.next()?.map(|entry| (entry, self.entries.position())))
    }
}

impl Iterator for Records {
    type Item = Result<(Entry, u64)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.head.pop_front().or_else(|| self.read())
    }
}

/// Bytes that an entry takes, roughly.
pub fn entry_bytes(entry: &Entry) -> usize {
    let Entry::Record(Record { id, text, pair, kept, .. }) = entry else { return 0 };
    let texts = [Some(text), pair.as_ref()].into_iter().flatten().map(String::len).sum::<usize>();
    texts + id.iter().chain(kept).map(value_bytes).sum::<usize>()
}

/// Bytes that a value takes, roughly.
pub fn value_bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(value_bytes).sum(),
            Value::Object(map) => map.iter().map(|(key, value)| key.len() + value_bytes(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}
