//! Tokenizing a record: the work of the tokenizer threads.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::messages::{ChunkTexts, Outcome, PreparedRecord, RawRecord, RecordMeta};
use super::queries::Queries;
use crate::engine::{Item, Prepared, PreparedText, Preparer, RowOptions, Task, TaskInput, TokenizeError};
use crate::input::{Entry, Record};
use crate::rows::{FieldValue, Span};

/// Texts of at least this many bytes are tokenized one at a time.
const LONG_TEXT_BYTES: usize = 1 << 20;

/// What the tokenizer threads share.
pub(super) struct Tokenizing<T> {
    /// What tokenizes texts.
    pub preparer: Preparer<T>,
    /// What records are read for.
    pub queries: Queries,
    /// The indices of the carried-through fields that are the text.
    pub kept_texts: Vec<usize>,
    /// Maximum tokens of a part of a text of many chunks.
    pub part_tokens: usize,
    /// Held while a long text is tokenized, because tokenizing takes many times the memory of the text.
    pub long_text: Mutex<()>,
}

impl<T: Task> Tokenizing<T> {
    /// Tokenizes a record. A text of many chunks is returned in parts, and a text with several queries in a
    /// part for each.
    pub(super) fn prepare(&self, record: RawRecord) -> Vec<PreparedRecord> {
        let RawRecord { entry, is_selected, hash, is_unchanged, query: own_query, end, ends_batch } = record;
        let meta = |location, outcome| RecordMeta {
            location,
            id: None,
            kept: Arc::default(),
            chunk_texts: ChunkTexts::default(),
            hash,
            is_empty: false,
            outcome,
            query: 0,
            end: end.clone(),
            is_last: true,
            ends_batch,
        };
        let record = match entry {
            Entry::Record(record) => record,
            Entry::Unreadable(bad) => {
                return vec![item(meta(bad.location, Outcome::Failed(bad.reason)), None)];
            }
        };
        let is_empty = record.is_empty();
        if !is_selected || is_unchanged {
            let outcome = if is_selected { Outcome::Unchanged } else { Outcome::SkippedEmpty };
            let is_empty = is_empty && !is_unchanged;
            return vec![item(RecordMeta { is_empty, ..meta(record.location, outcome) }, None)];
        }
        if record.is_null {
            let Record { location, id, kept, .. } = record;
            let kept = Arc::new(kept);
            return vec![item(RecordMeta { id, kept, ends_batch, ..meta(location, Outcome::Null) }, None)];
        }
        let guard = (record.text.len() > LONG_TEXT_BYTES)
            .then(|| self.long_text.lock().unwrap_or_else(PoisonError::into_inner));
        let parts: Vec<_> =
            (0..self.queries.count()).flat_map(|query| self.tokenize(query, &record)).collect();
        drop(guard);
        let chunk_texts = self.chunk_texts(&record, &parts);
        let Record { location, id, mut kept, .. } = record;
        chunk_texts.iter().flat_map(|texts| &*texts.fields).for_each(|i| kept[*i] = FieldValue::default());
        let (kept, last) = (Arc::new(kept), parts.len().saturating_sub(1));
        let parts = parts.into_iter().zip(chunk_texts).enumerate();
        let parts = parts.map(|(i, (RecordPart { query, outcome, prepared, .. }, chunk_texts))| {
            let is_last = i == last;
            let meta = RecordMeta {
                id: id.clone(),
                kept: kept.clone(),
                chunk_texts,
                is_empty,
                query: own_query.unwrap_or(query),
                is_last,
                ends_batch: ends_batch && is_last,
                ..meta(location.clone(), outcome)
            };
            item(meta, prepared)
        });
        parts.collect()
    }

    /// Tokenizes a record with one of the queries.
    fn tokenize(&self, query: usize, record: &Record) -> Vec<RecordPart> {
        let Tokenizing { preparer, queries, part_tokens, .. } = self;
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
        let outcome = match preparer.prepare(&input, *part_tokens) {
            Ok(parts) => {
                let part = |PreparedText { tokens, truncated_tokens, sequences, chunks, prepared }| {
                    let has_chunks = !chunks.is_empty();
                    let outcome = Outcome::Encoded { tokens, truncated_tokens, sequences, has_chunks };
                    RecordPart { query, outcome, chunks, prepared: Some(prepared) }
                };
                return parts.into_iter().map(part).collect();
            }
            Err(TokenizeError::Failed(reason)) => Outcome::Failed(of_query(reason)),
            Err(TokenizeError::NoTokens) => Outcome::NoTokens,
            Err(TokenizeError::TooLong { tokens, reason }) => {
                Outcome::TooLong { tokens, reason: of_query(reason) }
            }
        };
        vec![RecordPart { query, outcome, chunks: Vec::new(), prepared: None }]
    }

    /// The texts of the chunks in each part of a record, for the carried-through fields that are its text.
    fn chunk_texts(&self, record: &Record, parts: &[RecordPart]) -> Vec<ChunkTexts> {
        let fields = self.kept_texts.iter().copied().filter(|field| is_text_of(record, *field));
        let fields: Vec<usize> = fields.collect();
        let Some(whole) = fields.first().map(|field| &record.kept[*field]) else {
            return parts.iter().map(|_| ChunkTexts::default()).collect();
        };
        let (fields, mut rest) = (Arc::new(fields), TextParts { text: &record.text, byte: 0, character: 0 });
        let of_part = |part: &RecordPart| {
            let texts = part.chunks.iter().map(|range| value_like(whole, rest.take(range.clone())));
            let texts: Vec<_> = texts.collect();
            let fields = if texts.is_empty() { Arc::default() } else { fields.clone() };
            ChunkTexts { fields, texts }
        };
        parts.iter().map(of_part).collect()
    }
}

/// A record with its tokens or its rows, on its way through the engine.
fn item(meta: RecordMeta, prepared: Option<Prepared>) -> PreparedRecord {
    let carried_bytes = meta.kept.iter().chain(&meta.chunk_texts.texts).map(FieldValue::bytes).sum();
    let ends_batch = meta.ends_batch;
    Item { carried: meta, prepared, options: RowOptions::default(), carried_bytes, ends_batch }
}

/// A part of a record, tokenized with one of the queries.
struct RecordPart {
    query: usize,
    outcome: Outcome,
    /// The characters of each chunk in the text.
    chunks: Vec<Range<u64>>,
    prepared: Option<Prepared>,
}

/// Whether the value of a carried-through field is the text of its record.
pub(super) fn is_text_of(record: &Record, field: usize) -> bool {
    record.kept[field].json().as_str() == Some(&record.text)
}

/// The text of a chunk, as a value of the type of `whole`, which is that of its text.
pub(super) fn chunk_text(whole: &FieldValue, text: &str, chunk: Span) -> FieldValue {
    value_like(whole, TextParts { text, byte: 0, character: 0 }.take(chunk.start..chunk.end))
}

/// A text as a value of the type of another value, which is a text, too.
fn value_like(other: &FieldValue, text: &str) -> FieldValue {
    let value = FieldValue::Json(text.into());
    match other {
        FieldValue::Json(_) => value,
        FieldValue::Arrow(array) => value.array(array.data_type()).map_or(value, FieldValue::Arrow),
    }
}

/// Takes parts out of a text, which begin faster after the part before them.
struct TextParts<'a> {
    text: &'a str,
    /// The position, in bytes and in characters.
    byte: usize,
    character: u64,
}

impl<'a> TextParts<'a> {
    /// The part of these characters, to the start of which the position moves.
    fn take(&mut self, Range { start, end }: Range<u64>) -> &'a str {
        if start < self.character {
            (self.byte, self.character) = (0, 0);
        }
        self.byte += bytes_of(&self.text[self.byte..], start - self.character);
        self.character = start;
        let rest = &self.text[self.byte..];
        &rest[..bytes_of(rest, end - start)]
    }
}

/// The size of the first characters of a text in bytes.
fn bytes_of(text: &str, characters: u64) -> usize {
    text.char_indices().nth(characters as usize).map_or(text.len(), |(byte, _)| byte)
}

#[cfg(test)]
mod tests {
    use super::TextParts;

    #[test]
    fn parts_are_taken_by_characters_and_may_overlap() {
        let mut parts = TextParts { text: "ä灯b😀c", byte: 0, character: 0 };
        let taken = [0..2, 1..4, 3..3, 3..5, 5..5, 0..1].map(|range| parts.take(range));
        assert_eq!(taken, ["ä灯", "灯b😀", "", "😀c", "", "ä"]);
    }
}
