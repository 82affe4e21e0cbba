//! The messages between the stages of the pipeline.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use anyhow::{Error, Result, anyhow};
use crossbeam_channel::{Receiver, Sender};
use serde_json::Value;

use super::cursor::Cursor;
use super::task::TaskRow;
use crate::field::FieldValue;
use crate::input::{Entry, Location};
use crate::text::TokenizedText;

/// A record as it was read.
pub(super) struct RawRecord {
    /// The record, or why it cannot be read.
    pub entry: Entry,
    /// Whether the record is selected; others have no row.
    pub is_selected: bool,
    /// Whether the output has its rows already.
    pub is_known: bool,
    /// The cursor after the record.
    pub end: Cursor,
    /// Whether the record is the last row of a record batch of an Arrow stream.
    pub ends_batch: bool,
}

/// Records for a tokenizer thread, and the channel for its answer.
pub(super) type RecordGroup = (Vec<RawRecord>, Sender<Result<Vec<PreparedRecord>>>);

/// A tokenized record. The second value is `None` if the record has no row.
pub(super) type PreparedRecord = (RecordMeta, Option<TokenizedText>);

/// From the reader to the planner, in the order of input.
pub(super) enum ReaderMessage {
    /// The channel on which a tokenizer thread will answer.
    Group(Receiver<Result<Vec<PreparedRecord>>>),
    /// End of input.
    End,
}

/// From the planner to the collector, in the order of input.
pub enum CollectorMessage {
    /// The next records.
    Wave(Wave),
    /// End of input. If the channel closes without it, a thread has panicked.
    End,
}

/// Records that are planned and encoded together.
pub struct Wave {
    /// The records, in the order of input.
    pub records: Vec<RecordMeta>,
    /// The number of batches.
    pub batches: usize,
    /// The rows of each batch, in any order.
    pub results: Receiver<Result<BatchRows>>,
}

/// The rows of a batch: for each text, the index of its record in [`Wave::records`].
pub(super) type BatchRows = Vec<(usize, Vec<TaskRow>)>;

/// A record without its text. A record of many chunks or queries is carried in several parts, one `RecordMeta` each.
pub struct RecordMeta {
    /// File and line or row.
    pub location: Location,
    /// The id from the input.
    pub id: Option<Value>,
    /// The values of the carried-through fields (`--keep`).
    pub kept: Arc<Vec<FieldValue>>,
    /// Whether the text is empty or white space.
    pub is_empty: bool,
    /// The result of tokenizing.
    pub outcome: Outcome,
    /// The index of the query of the first row of this part; each further row belongs to the next query.
    pub query: usize,
    /// The cursor after the record.
    pub end: Cursor,
    /// Whether this is the last part of the record.
    pub is_last: bool,
    /// Whether this is the last part of the last row of a record batch of an Arrow stream.
    pub ends_batch: bool,
}

/// The result of tokenizing a record.
pub enum Outcome {
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
    /// The record cannot be read or tokenized. The string is the predicate of a sentence whose subject is the record.
    Failed(String),
    /// The output has the rows of the record already (`--append`).
    Unchanged,
    /// The text is empty, and `--skip-empty` is set.
    SkippedEmpty,
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

/// The error for a channel whose other end is closed: the thread there has panicked, and the panic hook has printed why.
pub(super) fn thread_panicked<E>(_: E) -> Error {
    anyhow!("a thread has panicked; please report this as a bug")
}

/// Calls `work` and turns a panic into an error. Without this, threads that wait for the rest of a queue would wait forever.
pub(super) fn panic_to_error<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(thread_panicked(())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_error() {
        let error = panic_to_error::<()>(|| panic!("on purpose")).unwrap_err().to_string();
        assert_eq!(error, thread_panicked(()).to_string());
        assert_eq!(panic_to_error(|| Ok(1)).unwrap(), 1);
    }
}
