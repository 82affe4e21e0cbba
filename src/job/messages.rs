//! The messages between the stages of a job.

use std::sync::Arc;

use anyhow::Result;
use crossbeam_channel::Sender;
use serde_json::Value;

use super::collector::Policy;
use super::cursor::Cursor;
use super::source::OnNull;
use crate::engine::{Item, NO_TOKENS};
use crate::input::{Entry, Location};
use crate::rows::FieldValue;

/// Why a record with a text that is null has no row.
const NULL_TEXT: &str =
    "has a text that is null; pass --on-null null for a row without a vector, or write an empty string";

/// A record as it was read.
pub(super) struct RawRecord {
    /// The record, or why it cannot be read.
    pub entry: Entry,
    /// Whether the record is selected; others have no row.
    pub is_selected: bool,
    /// The hash of the record, if rows have a column for it.
    pub hash: Option<u128>,
    /// Whether the output has the rows of the record already.
    pub is_unchanged: bool,
    /// The number of its own query, if those are numbered.
    pub query: Option<usize>,
    /// The cursor after the record.
    pub end: Cursor,
    /// Whether the record is the last row of a record batch of an Arrow stream.
    pub ends_batch: bool,
}

/// A record on its way through the engine.
pub(super) type PreparedRecord = Item<RecordMeta>;

/// Records for a tokenizer thread, and the channel for its answer.
pub(super) type RecordGroup = (Vec<RawRecord>, Sender<Result<Vec<PreparedRecord>>>);

/// A record without its text. A record of many chunks or queries is carried in several parts, one
/// `RecordMeta` each.
pub(super) struct RecordMeta {
    /// File and line or row.
    pub location: Location,
    /// The id from the input.
    pub id: Option<Value>,
    /// The values of the carried-through fields (`--keep`).
    pub kept: Arc<Vec<FieldValue>>,
    /// The text of each chunk, in place of that of the record.
    pub chunk_texts: ChunkTexts,
    /// The hash of the record, if rows have a column for it (`--append`).
    pub hash: Option<u128>,
    /// Whether the text is empty or white space.
    pub is_empty: bool,
    /// The result of tokenizing.
    pub outcome: Outcome,
    /// The index of the query that the text was tokenized with, or the number of the record's own.
    /// [`TaskRow::query`](crate::engine::TaskRow::query) takes precedence.
    pub query: usize,
    /// The cursor after the record.
    pub end: Cursor,
    /// Whether this is the last part of the record.
    pub is_last: bool,
    /// Whether this is the last part of the last row of a record batch of an Arrow stream.
    pub ends_batch: bool,
}

/// The texts of the chunks of a record, or of a part of it.
#[derive(Default)]
pub(super) struct ChunkTexts {
    /// The indices of the carried-through fields that are the text.
    pub fields: Arc<Vec<usize>>,
    /// The text of each chunk; empty if no field is the text, or rows are no chunks.
    pub texts: Vec<FieldValue>,
}

/// The result of tokenizing a record.
pub(super) enum Outcome {
    /// The record is encoded.
    Encoded {
        /// Encoded tokens, including special tokens.
        tokens: usize,
        /// Tokens that truncation removed.
        truncated_tokens: usize,
        /// Sequences that the text is encoded in.
        sequences: usize,
        /// Whether each chunk of the text has a row of its own.
        has_chunks: bool,
    },
    /// The record cannot be read or tokenized. The string is the predicate of a sentence whose subject is the
    /// record.
    Failed(String),
    /// The output has the rows of the record already (`--append`).
    Unchanged,
    /// The text is empty, and `--skip-empty` is set.
    SkippedEmpty,
    /// The text is null, which `--on-null` decides about.
    Null,
    /// The text has more tokens than the limit, and `--on-long` is `skip` or `error`.
    TooLong {
        /// Tokens of the whole text.
        tokens: usize,
        /// The reason, as the predicate of a sentence whose subject is the record.
        reason: String,
    },
    /// The text has no tokens, not even special tokens.
    NoTokens,
}

impl Outcome {
    /// Why the record has no row, as the predicate of a sentence whose subject is the record. `None` if it
    /// has one, or is left out because the user said so.
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Outcome::Failed(reason) | Outcome::TooLong { reason, .. } => Some(reason),
            Outcome::NoTokens => Some(NO_TOKENS),
            Outcome::Null => Some(NULL_TEXT),
            Outcome::Encoded { .. } | Outcome::Unchanged | Outcome::SkippedEmpty => None,
        }
    }

    /// Whether the record ends the run.
    pub(super) fn is_fatal(&self, policy: &Policy) -> bool {
        match self {
            Outcome::Failed(_) => !policy.skip_unreadable,
            Outcome::TooLong { .. } => policy.stop_at_long,
            Outcome::Null => policy.on_null == OnNull::Error,
            Outcome::Encoded { .. } | Outcome::Unchanged | Outcome::SkippedEmpty | Outcome::NoTokens => false,
        }
    }
}
