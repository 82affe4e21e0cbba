//! The records of the input, the first of which can be looked at before they are taken.

use std::collections::VecDeque;

use crate::field::{FieldValue, json_bytes};
use crate::input::{Entries, Entry, ReadLimit, Record};
use anyhow::Result;

/// Which records of the input are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Whether those are left out that have nothing but white space.
    pub skip_empty: bool,
    /// How many at most, not counting those that are left out.
    pub limit: Option<u64>,
}

/// How records come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// From files: there is no wait between them.
    Files,
    /// One by one, with time between them.
    Stream,
    /// The same, and each is to be answered before the next may come.
    Live,
}

/// Records in the order of input, each with the position in the input behind it.
pub struct Records {
    entries: Entries,
    flow: Flow,
    selection: Selection,
    /// How many have been given that count for the limit.
    taken: u64,
    head: VecDeque<Result<(Entry, u64)>>,
}

/// How many records are looked at, at most: what they show does not depend on how a run divides its work.
const HEAD: usize = 1000;
/// The same in bytes.
const HEAD_BYTES: usize = 4 << 20;

impl Records {
    /// Those of `entries` that are selected.
    pub fn new(entries: Entries, flow: Flow, selection: Selection) -> Self {
        Records { entries, flow, selection, taken: 0, head: VecDeque::new() }
    }

    /// Sets how much memory reading may take, before the first record is read.
    pub fn set_limit(&mut self, limit: ReadLimit) {
        self.entries.set_limit(limit);
    }

    /// Whether a record is to be embedded.
    pub fn takes(&self, entry: &Entry) -> bool {
        !matches!(entry, Entry::Record(record) if self.selection.skip_empty && record.is_empty())
    }

    /// Bytes of all of the input, where that is known.
    pub fn size(&self) -> Option<u64> {
        self.entries.size()
    }

    /// Whether records may be long in coming.
    pub fn is_stream(&self) -> bool {
        self.flow != Flow::Files
    }

    /// Whether each is to be answered before the next may come.
    pub fn is_live(&self) -> bool {
        self.flow == Flow::Live
    }

    /// The text of the first record, which is still to come.
    pub fn first_text(&mut self) -> Option<String> {
        if self.head.is_empty() {
            let first = self.read()?;
            self.head.push_back(first);
        }
        match self.head.front() {
            Some(Ok((Entry::Record(record), _))) => Some(record.text.clone()),
            _ => None,
        }
    }

    /// Refuses a kept field that the first records of a stream do not have.
    ///
    /// # Errors
    /// If there is one.
    pub fn check_kept(&mut self) -> Result<()> {
        if self.is_stream() {
            self.head().for_each(drop);
            return self.entries.absent_field().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// The first records that can be read.
    pub fn head(&mut self) -> impl Iterator<Item = &Record> {
        let mut bytes = 0;
        // Whoever waits for an answer does not send a second one before.
        let most = if self.is_live() { 1 } else { HEAD };
        let most = self.selection.limit.map_or(most, |limit| most.min(limit as usize));
        while self.head.len() < most && bytes < HEAD_BYTES {
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
        if self.selection.limit.is_some_and(|limit| self.taken >= limit) {
            return None;
        }
        let next = self.head.pop_front().or_else(|| self.read())?;
        self.taken += u64::from(next.as_ref().is_ok_and(|(entry, _)| self.takes(entry)));
        Some(next)
    }
}

/// Bytes that an entry takes, roughly.
pub fn entry_bytes(entry: &Entry) -> usize {
    let Entry::Record(Record { id, text, pair, kept, .. }) = entry else { return 0 };
    let texts = [Some(text), pair.as_ref()].into_iter().flatten().map(String::len).sum::<usize>();
    texts + id.as_ref().map_or(0, json_bytes) + kept.iter().map(FieldValue::bytes).sum::<usize>()
}
