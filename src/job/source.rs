//! The records of a run, the first of which can be inspected before they are processed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::cursor::Cursor;
use super::known_records::{FileRecords, KnownRecords};
use super::shard::Shard;
use crate::error::UsageError;
use crate::input::{Entries, Entry, ReadLimit, Record};
use crate::named::names;
use crate::rows::field::{FieldValue, json_bytes};
use crate::store::Digest;

/// What to do with a record whose text is null.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnNull {
    /// It cannot be read.
    #[default]
    Error,
    /// List it in the ledger; it has no row.
    Skip,
    /// Write a row with null in place of its content.
    Null,
}

names!(OnNull { Error => "error", Skip => "skip", Null => "null" });

/// Which records are processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Selection {
    /// Skip records whose text is empty or white space (`--skip-empty`).
    pub skip_empty: bool,
    /// Process at most this many records, not counting skipped ones (`--limit`).
    pub limit: Option<u64>,
    /// Process only this part of those records (`--shard`).
    pub shard: Option<Shard>,
    /// Number the second texts of records: those of equal ones are ranked together.
    pub numbers_queries: bool,
}

/// How fast records arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// From files, without waiting.
    Files,
    /// From a pipe, one by one.
    Stream,
    /// From a pipe, and the writer may wait for the row of a record before it sends the next one.
    Interactive,
    /// Record batches of an Arrow stream from a pipe, and the writer may wait for the rows of a batch before
    /// it sends the next one.
    InteractiveBatches,
}

/// A record as it was read.
pub struct SourceEntry {
    /// The record, or why it cannot be read.
    pub entry: Entry,
    /// The byte position after it.
    pub position: u64,
    /// Whether it is the last row of a record batch of an Arrow stream.
    pub ends_batch: bool,
    /// The hash of the record, if rows have a column for it (`--append`).
    pub hash: Option<u128>,
    /// Whether the output has the rows of the record already.
    pub(super) is_unchanged: bool,
    /// The number of its second text, counted in the order in which they first occur, if they are numbered.
    pub(super) query: Option<usize>,
}

/// The input of a run, which is open but not read.
pub struct OpenInput {
    entries: Entries,
    pace: Pace,
    selection: Selection,
    /// The records of the shard, among all records of the input; unreadable ones count.
    range: Range<u64>,
}

impl OpenInput {
    /// Opens an input with `open`. That of a shard is opened a second time and read to its end, to count its
    /// records.
    pub fn new(open: impl Fn() -> Result<Entries>, pace: Pace, selection: Selection) -> Result<Self> {
        let whole =
            || -> Result<Self> { Ok(OpenInput { entries: open()?, pace, selection, range: 0..u64::MAX }) };
        let input = whole()?;
        let Some(shard) = selection.shard else { return Ok(input) };
        if input.is_stream() {
            bail!(UsageError(
                "--shard reads its input twice, first to count the records, but a pipe can be read only once; pass --input FILE"
                    .into()
            ));
        }
        let mut counted = whole()?.read(ReadLimit::default(), None);
        let total = counted.try_fold(0, |total, entry| entry.map(|_| total + 1))?;
        Ok(OpenInput { range: shard.range(total), ..input })
    }

    /// The records that are processed, as a range of all records of the input.
    pub fn range(&self) -> &Range<u64> {
        &self.range
    }

    /// Whether reading may wait for a writer.
    pub fn is_stream(&self) -> bool {
        self.pace != Pace::Files
    }

    /// Whether a writer may wait for the rows of each record batch, but not for those of a part of it.
    pub fn has_batches(&self) -> bool {
        self.pace == Pace::InteractiveBatches
    }

    /// The records, with readers whose memory is limited. Each record gets its hash and is looked up in
    /// `known`, if there is one.
    pub fn read(mut self, limit: ReadLimit, known: Option<KnownRecords>) -> RecordSource {
        self.entries.set_limit(limit);
        known.iter().for_each(KnownRecords::start_over);
        RecordSource {
            input: self,
            selected: 0,
            peeked: VecDeque::new(),
            start: Cursor::default(),
            entries_read: 0,
            known,
            queries: HashMap::new(),
        }
    }
}

/// An iterator over records in the order of input.
pub struct RecordSource {
    input: OpenInput,
    /// Selected records so far.
    selected: u64,
    /// Records that were read by [`RecordSource::peek`] but not yet returned.
    peeked: VecDeque<Result<SourceEntry>>,
    /// The cursor before the first record of the shard, or as far as the records before it are read.
    start: Cursor,
    /// Records read so far, without those that are only peeked at.
    entries_read: u64,
    /// The records that the output has rows of already (`--append`).
    known: Option<KnownRecords>,
    /// The numbers of second texts, by the first 128 bits of their SHA-256.
    queries: HashMap<u128, usize>,
}

/// Maximum number of records to peek at. Fixed, so that the inferred columns do not depend on how a run is
/// divided into waves.
const MAX_PEEKED_RECORDS: usize = 1000;
/// Maximum size of the records to peek at, in bytes.
const MAX_PEEKED_BYTES: usize = 4 << 20;

impl RecordSource {
    /// The cursor before the first record that is processed: after the records of the shards before this one.
    pub fn start(&mut self) -> Result<&Cursor> {
        while self.entries_read < self.input.range.start {
            let Some(SourceEntry { position, .. }) = self.advance().transpose()? else { break };
            self.start = Cursor { entries: self.entries_read, position, ..Cursor::default() };
        }
        Ok(&self.start)
    }

    /// Whether a record is selected. A record that is not selected has no row.
    pub fn selects(&self, entry: &Entry) -> bool {
        !matches!(entry, Entry::Record(record) if self.input.selection.skip_empty && record.is_empty())
    }

    /// The size of the whole input in bytes; `None` for a stream.
    pub fn size(&self) -> Option<u64> {
        self.input.entries.total_bytes()
    }

    /// [`OpenInput::is_stream`].
    pub fn is_stream(&self) -> bool {
        self.input.is_stream()
    }

    /// [`OpenInput::has_batches`].
    pub fn has_batches(&self) -> bool {
        self.input.has_batches()
    }

    /// Whether a writer may wait for the row of each record.
    pub fn is_interactive(&self) -> bool {
        matches!(self.input.pace, Pace::Interactive | Pace::InteractiveBatches)
    }

    /// The text of the first record, without consuming the record.
    pub fn first_text(&mut self) -> Option<String> {
        if self.peeked.is_empty() {
            let first = self.read()?;
            self.peeked.push_back(first);
        }
        match self.peeked.front() {
            Some(Ok(SourceEntry { entry: Entry::Record(record), .. })) => Some(record.text.clone()),
            _ => None,
        }
    }

    /// [`Entries::kept_texts`].
    pub(super) fn kept_texts(&self) -> Vec<usize> {
        self.input.entries.kept_texts()
    }

    /// Whether the input of the last record that was read is UTF-16.
    pub fn is_utf16(&self) -> bool {
        self.input.entries.is_utf16()
    }

    /// Checks the fields of `--keep` against the first records of a stream.
    pub fn check_kept(&mut self) -> Result<()> {
        if self.is_stream() {
            self.peek().for_each(drop);
            return self.input.entries.missing_field_error().map_or(Ok(()), Err);
        }
        Ok(())
    }

    /// The first records, without consuming them. Records that cannot be read are left out.
    pub fn peek(&mut self) -> impl Iterator<Item = &Record> {
        let mut bytes = 0;
        // An interactive writer does not send a second record, or a second batch, before it has the rows of
        // the first.
        let max_records = if self.input.pace == Pace::Interactive { 1 } else { MAX_PEEKED_RECORDS };
        let ends_first = |peeked: &VecDeque<Result<SourceEntry>>, has_batches: bool| {
            has_batches && peeked.back().is_some_and(|last| last.as_ref().is_ok_and(|last| last.ends_batch))
        };
        let max_records =
            self.input.selection.limit.map_or(max_records, |limit| max_records.min(limit as usize));
        while self.peeked.len() < max_records
            && bytes < MAX_PEEKED_BYTES
            && !ends_first(&self.peeked, self.has_batches())
        {
            let Some(entry) = self.read() else { break };
            bytes += entry.as_ref().map_or(0, |read| entry_bytes(&read.entry));
            self.peeked.push_back(entry);
        }
        self.peeked.iter().filter_map(|entry| match entry {
            Ok(SourceEntry { entry: Entry::Record(record), .. }) => Some(record),
            _ => None,
        })
    }

    /// The file that has rows of some records already, if there is one.
    pub(super) fn file(&self) -> Option<Arc<FileRecords>> {
        self.known.as_ref().map(|known| known.file().clone())
    }

    /// Those of the first records that this file has no rows of, without consuming them.
    pub(super) fn peek_new(&mut self) -> Vec<&Record> {
        let known = self.known.clone();
        self.peek().filter(|record| known.as_ref().is_none_or(|known| !known.has(record))).collect()
    }

    /// [`Entries::kept_metadata`], of the first records.
    pub(super) fn kept_metadata(&self) -> &[BTreeMap<String, String>] {
        self.input.entries.kept_metadata()
    }

    /// Skips the records before a cursor. `visit` gets each of them with its index.
    pub fn skip_to(&mut self, cursor: &Cursor, mut visit: impl FnMut(u64, Record)) -> Result<()> {
        let mut current = self.start()?.clone();
        while current.entries < cursor.entries {
            let Some(SourceEntry { entry, position, .. }) = self.next().transpose()? else { break };
            let index = current.entries;
            current = current.after(&entry, position);
            if let Entry::Record(record) = entry {
                visit(index, record);
            }
        }
        if current.digest != cursor.digest {
            bail!(UsageError(format!(
                "--resume: the first {} records of the input differ from those of the interrupted run; pass --restart to \
                 start over",
                cursor.entries
            )));
        }
        Ok(())
    }

    /// The next record of the whole input.
    fn advance(&mut self) -> Option<Result<SourceEntry>> {
        if self.input.selection.limit.is_some_and(|limit| self.selected >= limit) {
            return None;
        }
        let mut next = self.peeked.pop_front().or_else(|| self.read())?;
        self.selected += u64::from(next.as_ref().is_ok_and(|next| self.selects(&next.entry)));
        self.entries_read += 1;
        if let (Some(known), Ok(next)) = (&self.known, &mut next)
            && let Entry::Record(record) = &next.entry
        {
            match known.look_up(record) {
                Ok((hash, is_unchanged)) => (next.hash, next.is_unchanged) = (Some(hash), is_unchanged),
                Err(error) => return Some(Err(error)),
            }
        }
        if let Ok(next) = &mut next
            && let Entry::Record(Record { pair: Some(query), .. }) = &next.entry
            && self.input.selection.numbers_queries
        {
            let number = self.queries.len();
            next.query = Some(*self.queries.entry(Digest::of(query).first_bits()).or_insert(number));
        }
        Some(next)
    }

    fn read(&mut self) -> Option<Result<SourceEntry>> {
        let entries = &mut self.input.entries;
        let entry = entries.next()?;
        let (position, ends_batch) = (entries.bytes_read(), entries.ends_stream_batch());
        let of_entry =
            |entry| SourceEntry { entry, position, ends_batch, hash: None, is_unchanged: false, query: None };
        Some(entry.map(of_entry))
    }
}

impl Iterator for RecordSource {
    type Item = Result<SourceEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.start() {
            return Some(Err(error));
        }
        if self.entries_read < self.input.range.end { self.advance() } else { None }
    }
}

/// The approximate size of a record in memory, in bytes.
pub(super) fn entry_bytes(entry: &Entry) -> usize {
    let Entry::Record(Record { id, text, pair, kept, .. }) = entry else { return 0 };
    let texts = [Some(text), pair.as_ref()].into_iter().flatten().map(String::len).sum::<usize>();
    texts + id.as_ref().map_or(0, json_bytes) + kept.iter().map(FieldValue::bytes).sum::<usize>()
}
