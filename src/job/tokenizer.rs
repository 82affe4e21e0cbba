//! Tokenizing a record: the work of the tokenizer threads.

use std::sync::{Arc, Mutex, PoisonError};

use super::messages::{Outcome, PreparedRecord, RawRecord, RecordMeta};
use super::queries::Queries;
use crate::engine::{Item, RowOptions, Task, TaskInput, TokenizeError};
use crate::input::{Entry, Record};
use crate::rows::FieldValue;
use crate::text::TokenizedText;

/// Texts of at least this many bytes are tokenized one at a time.
const LONG_TEXT_BYTES: usize = 1 << 20;

/// Tokenizes a record. A text of many chunks is returned in parts of at most `part_tokens` tokens, and a text
/// with several queries in a part for each. `long_text` is held while a long text is tokenized, because
/// tokenizing takes many times the memory of the text.
pub(super) fn prepare<T: Task>(
    task: &T,
    queries: &Queries,
    RawRecord { entry, is_selected, is_known, hash, end, ends_batch }: RawRecord,
    long_text: &Mutex<()>,
    part_tokens: usize,
) -> Vec<PreparedRecord> {
    let meta = |location, outcome| {
        let (id, kept, end) = (None, Arc::default(), end.clone());
        RecordMeta {
            location,
            id,
            kept,
            hash,
            is_empty: false,
            outcome,
            query: 0,
            end,
            is_last: true,
            ends_batch,
        }
    };
    let record = match entry {
        Entry::Record(record) => record,
        Entry::Unreadable(bad) => return vec![item(meta(bad.location, Outcome::Failed(bad.reason)), None)],
    };
    let is_empty = record.is_empty();
    if !is_selected {
        return vec![item(RecordMeta { is_empty, ..meta(record.location, Outcome::SkippedEmpty) }, None)];
    }
    if is_known {
        return vec![item(RecordMeta { is_empty, ..meta(record.location, Outcome::Unchanged) }, None)];
    }
    if record.is_null {
        let Record { location, id, kept, .. } = record;
        let (id, kept) = (id, Arc::new(kept));
        return vec![item(RecordMeta { id, kept, ends_batch, ..meta(location, Outcome::Null) }, None)];
    }
    let guard = (record.text.len() > LONG_TEXT_BYTES)
        .then(|| long_text.lock().unwrap_or_else(PoisonError::into_inner));
    let parts: Vec<_> =
        (0..queries.count()).flat_map(|query| tokenize(task, queries, query, &record, part_tokens)).collect();
    drop(guard);
    let Record { location, id, kept, .. } = record;
    let (kept, last) = (Arc::new(kept), parts.len().saturating_sub(1));
    let parts = parts.into_iter().enumerate().map(|(i, (query, outcome, text))| {
        let (location, id, kept, end) = (location.clone(), id.clone(), kept.clone(), end.clone());
        let is_last = i == last;
        let ends_batch = ends_batch && is_last;
        item(
            RecordMeta { location, id, kept, hash, is_empty, outcome, query, end, is_last, ends_batch },
            text,
        )
    });
    parts.collect()
}

/// A record with its tokens, on its way through the engine.
fn item(meta: RecordMeta, text: Option<TokenizedText>) -> PreparedRecord {
    let carried_bytes = meta.kept.iter().map(FieldValue::bytes).sum();
    let ends_batch = meta.ends_batch;
    Item { carried: meta, text, options: RowOptions::default(), carried_bytes, ends_batch }
}

/// The index of a query, the outcome of tokenizing a part of a record with it, and the tokens.
type Part = (usize, Outcome, Option<TokenizedText>);

/// Tokenizes a record with one of the queries.
fn tokenize<T: Task>(
    task: &T,
    queries: &Queries,
    query: usize,
    record: &Record,
    part_tokens: usize,
) -> Vec<Part> {
    let of_query = |reason: String| match queries.count() {
        1 => reason,
        _ => format!("with query {query} {reason}"),
    };
    let second = record.pair.as_deref();
    let own = second.filter(|_| queries.of_records);
    let input = TaskInput {
        pair: second.filter(|_| !queries.of_records),
        query: own.or(queries.texts.get(query).map(String::as_str)),
        ..TaskInput::new(&record.text)
    };
    let outcome = match task.tokenize(&input) {
        Ok(text) => {
            let parts = text.split(part_tokens).into_iter().map(|part| {
                let outcome = Outcome::Encoded {
                    tokens: part.token_count(),
                    truncated_tokens: part.truncated_tokens(),
                    sequences: part.sequences.len(),
                    has_chunks: part.chunks().next().is_some(),
                };
                (query, outcome, Some(part))
            });
            return parts.collect();
        }
        Err(TokenizeError::Failed(reason)) => Outcome::Failed(of_query(reason)),
        Err(TokenizeError::NoTokens) => Outcome::NoTokens,
        Err(TokenizeError::TooLong { tokens, reason }) => {
            Outcome::TooLong { tokens, reason: of_query(reason) }
        }
    };
    vec![(query, outcome, None)]
}
