//! The reader thread, and the start of all stages.

use std::mem;
use std::sync::{Arc, Mutex};

use anyhow::Result;
use crossbeam_channel::{Receiver, Sender, bounded};

use super::cursor::Cursor;
use super::messages::{RawRecord, RecordGroup, RecordMeta};
use super::queries::Queries;
use super::source::{RecordSource, SourceEntry, entry_bytes};
use super::tokenizer::Tokenizing;
use crate::engine::{Engine, GROUP_BYTES, Incoming, MemoryBudget, Outgoing, Task};
use crate::input::{Entry, Record, Unreadable};
use crate::sys::threads::{panic_to_error, spawn};

/// Maximum records of a group.
const GROUP_RECORDS: usize = 64;

/// Starts all stages but the collector, and returns the channel for the collector: waves in the order of
/// input, then the end or an error. `start` is the cursor of `source`. Cursors have a digest if
/// `is_resumable`.
pub(super) fn start_stages<T: Task>(
    source: RecordSource,
    start: Cursor,
    is_resumable: bool,
    queries: Queries,
    engine: &Engine<T>,
) -> Result<Receiver<Result<Outgoing<RecordMeta>>>> {
    let is_interactive = source.is_interactive();
    engine.start(start_tokenizers(source, start, is_resumable, queries, engine)?, is_interactive)
}

/// Starts the reader and the tokenizers, and returns the channel with the tokenized records, in the order of
/// input.
pub(super) fn start_tokenizers<T: Task>(
    source: RecordSource,
    start: Cursor,
    is_resumable: bool,
    queries: Queries,
    engine: &Engine<T>,
) -> Result<Receiver<Incoming<RecordMeta>>> {
    let budget = *engine.budget();
    let (to_tokenizers, from_reader) = bounded::<RecordGroup>(budget.tokenizers);
    let (to_batcher, from_tokenizers) = bounded(budget.queued_groups());
    // A record with many queries is as large as many records.
    let waits_for_records = source.is_stream() && !source.has_batches();
    let group_records = if waits_for_records { 1 } else { (GROUP_RECORDS / queries.count()).max(1) };
    let tokenizing = Arc::new(Tokenizing {
        preparer: engine.preparer(),
        queries,
        kept_texts: source.kept_texts(),
        part_tokens: budget.batch_tokens,
        long_text: Mutex::new(()),
    });
    spawn("read", move || {
        read(source, start, is_resumable, &budget, group_records, &to_tokenizers, &to_batcher);
    })?;
    for index in 0..budget.tokenizers {
        let (groups, tokenizing) = (from_reader.clone(), tokenizing.clone());
        spawn(format!("tokenize-{index}"), move || {
            for (group, answer) in groups {
                let prepare = |record| tokenizing.prepare(record);
                // A closed channel means that the run has ended.
                let _ = answer.send(panic_to_error(|| Ok(group.into_iter().flat_map(prepare).collect())));
            }
        })?;
    }
    Ok(from_tokenizers)
}

/// Reads records, sends them to the tokenizers in groups of at most `max_records`, and sends the channels of
/// the tokenizers' answers to the batcher in order. Cursors have a digest if `is_resumable`.
fn read(
    mut source: RecordSource,
    mut cursor: Cursor,
    is_resumable: bool,
    budget: &MemoryBudget,
    max_records: usize,
    to_tokenizers: &Sender<RecordGroup>,
    to_batcher: &Sender<Incoming<RecordMeta>>,
) {
    let send = |group: Vec<RawRecord>| {
        let (answer, prepared) = bounded(1);
        to_batcher.send(Incoming::Group(prepared)).is_ok() && to_tokenizers.send((group, answer)).is_ok()
    };
    let (mut group, mut bytes) = (Vec::new(), 0);
    loop {
        match source.next() {
            Some(Ok(SourceEntry { entry, position, ends_batch, hash, is_unchanged, query })) => {
                cursor = if is_resumable {
                    cursor.after(&entry, position)
                } else {
                    cursor.without_digest(position)
                };
                let is_selected = source.selects(&entry);
                let (entry, size) = refuse_large(entry, budget.record_bytes);
                bytes += size;
                let end = cursor.clone();
                group.push(RawRecord { entry, is_selected, hash, is_unchanged, query, end, ends_batch });
                if group.len() >= max_records || bytes >= GROUP_BYTES || ends_batch {
                    bytes = 0;
                    if !send(mem::take(&mut group)) {
                        return;
                    }
                }
            }
            Some(Err(error)) => {
                let (answer, prepared) = bounded(1);
                let _ = answer.send(Err(error));
                // The rows of the records before the error are written first.
                if send(group) {
                    let _ = to_batcher.send(Incoming::Group(prepared));
                }
                return;
            }
            None => {
                if send(group) {
                    let _ = to_batcher.send(Incoming::End);
                }
                return;
            }
        }
    }
}

/// A record and its size in bytes. A record of more than `max_bytes` becomes unreadable.
fn refuse_large(entry: Entry, max_bytes: usize) -> (Entry, usize) {
    let bytes = entry_bytes(&entry);
    match entry {
        Entry::Record(Record { location, .. }) if bytes > max_bytes => {
            let reason = format!(
                "has {bytes} bytes, but --max-memory leaves room for records of {max_bytes}; split the text, or pass a larger \
                 --max-memory"
            );
            (Entry::Unreadable(Unreadable { location, reason }), 0)
        }
        entry => (entry, bytes),
    }
}

#[cfg(test)]
mod tests {
    use crossbeam_channel::unbounded;

    use super::*;
    use crate::engine::Workload;
    use crate::input::{Entries, ReadLimit};
    use crate::job::{OpenInput, Pace, Selection};

    /// Only a run that can be resumed hashes its records.
    #[test]
    fn cursors_have_a_digest_if_the_run_can_be_resumed() {
        let entries = || Entries::arguments(vec!["a lamp".into(), "light".into()]);
        let workload = Workload { cpu_threads: 1, batch_tokens: 512, ..Workload::default() };
        let budget = MemoryBudget::new(&workload, None).unwrap();
        let ends = |is_resumable| {
            let input = OpenInput::new(|| Ok(entries()), Pace::Files, Selection::default()).unwrap();
            let source = input.read(ReadLimit::default(), None);
            let ((to_tokenizers, groups), (to_batcher, _answers)) = (unbounded(), unbounded());
            read(source, Cursor::default(), is_resumable, &budget, 1, &to_tokenizers, &to_batcher);
            drop(to_tokenizers);
            groups.iter().flat_map(|(group, _)| group).map(|record| record.end).collect::<Vec<_>>()
        };
        let mut after = Cursor::default();
        let with_digest = entries().zip([7, 13]).map(|(entry, position)| {
            after = after.after(&entry.unwrap(), position);
            after.clone()
        });
        let with_digest: Vec<Cursor> = with_digest.collect();
        assert_eq!(ends(true), with_digest);
        let without = |cursor: Cursor| Cursor { digest: String::new(), ..cursor };
        assert_eq!(ends(false), with_digest.into_iter().map(without).collect::<Vec<_>>());
    }
}
