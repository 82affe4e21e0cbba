//! Tokenizing a record: the work of the tokenizer threads.

use std::iter;
use std::sync::{Arc, Mutex, PoisonError};

use super::messages::{Outcome, PreparedRecord, RawRecord, RecordMeta};
use super::task::{Task, TokenizeError};
use crate::input::{Entry, Record};

/// Texts of at least this many bytes are tokenized one at a time.
const LONG_TEXT_BYTES: usize = 1 << 20;

/// Tokenizes a record. A text of many chunks is returned in parts of at most `part_tokens` tokens. `long_text` is held while a
/// long text is tokenized, because tokenizing takes many times the memory of the text.
pub(super) fn prepare<T: Task>(
    task: &T,
    RawRecord { entry, is_selected, end }: RawRecord,
    long_text: &Mutex<()>,
    part_tokens: usize,
) -> Vec<PreparedRecord> {
    let meta = |location, outcome| {
        let (id, kept, end) = (None, Arc::default(), end.clone());
        RecordMeta { location, id, kept, is_empty: false, outcome, end, is_last: true }
    };
    let record = match entry {
        Entry::Record(record) => record,
        Entry::Unreadable(bad) => return vec![(meta(bad.location, Outcome::Failed(bad.reason)), None)],
    };
    let is_empty = record.is_empty();
    if !is_selected {
        return vec![(RecordMeta { is_empty, ..meta(record.location, Outcome::SkippedEmpty) }, None)];
    }
    let guard = (record.text.len() > LONG_TEXT_BYTES)
        .then(|| long_text.lock().unwrap_or_else(PoisonError::into_inner));
    let tokenized = task.tokenize(&record.text, record.pair.as_deref());
    drop(guard);
    let Record { location, id, kept, .. } = record;
    let outcome = match tokenized {
        Ok(text) => {
            let (mut parts, kept) = (text.split(part_tokens).into_iter().peekable(), Arc::new(kept));
            return iter::from_fn(|| {
                let part = parts.next()?;
                let outcome = Outcome::Encoded {
                    tokens: part.token_count(),
                    truncated_tokens: part.truncated_tokens(),
                    sequences: part.sequences.len(),
                    has_chunks: part.chunks().next().is_some(),
                };
                let (location, id, kept, end) = (location.clone(), id.clone(), kept.clone(), end.clone());
                let is_last = parts.peek().is_none();
                Some((RecordMeta { location, id, kept, is_empty, outcome, end, is_last }, Some(part)))
            })
            .collect();
        }
        Err(TokenizeError::Failed(reason)) => Outcome::Failed(reason),
        Err(TokenizeError::NoTokens) => Outcome::NoTokens,
        Err(TokenizeError::TooLong { tokens, reason }) => Outcome::TooLong { tokens, reason },
    };
    vec![(RecordMeta { id, kept: Arc::new(kept), is_empty, ..meta(location, outcome) }, None)]
}
