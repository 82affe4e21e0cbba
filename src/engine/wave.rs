//! What callers, batcher and workers send to one another.

use std::sync::{Arc, OnceLock};

use anyhow::Result;
use crossbeam_channel::Receiver;

use super::prepared::Prepared;
use super::task::{RowOptions, TaskRow};
use crate::text::TokenizedText;

/// A text on its way to its rows, with what its caller carries beside it.
pub struct Item<M> {
    /// What the caller carries.
    pub carried: M,
    /// The tokens or the rows. `None`: the item has no rows, and only keeps its place.
    pub prepared: Option<Prepared>,
    /// What the caller asks of the rows.
    pub options: RowOptions,
    /// Size in bytes of what the caller carries, which counts against the limit of a wave.
    pub carried_bytes: usize,
    /// Whether no more items may come before the caller has the rows of this one.
    pub ends_batch: bool,
}

/// From a caller to a batcher, in order.
pub enum Incoming<M> {
    /// The channel on which the next items will come.
    Group(Receiver<Result<Vec<Item<M>>>>),
    /// The end of the items. If the channel closes without it, a thread has panicked.
    End,
}

/// From a batcher to its caller, in the order of the items.
pub enum Outgoing<M> {
    /// The next items.
    Wave(Wave<M>),
    /// The end of the items. If the channel closes without it, a thread has panicked.
    End,
}

/// Items that are planned and encoded together.
pub struct Wave<M> {
    /// What the caller carries of each item, and the rows of those with a text. They are there when all
    /// batches of this wave and of those before it are done.
    pub items: Vec<(M, Option<SharedRows>)>,
    /// The number of batches.
    pub batches: usize,
    /// A message for each batch that is done, in any order.
    pub done: Receiver<Result<()>>,
}

/// The rows of a text, once its batch is done. Equal texts share them.
pub type SharedRows = Arc<OnceLock<Vec<TaskRow>>>;

/// A text that was in memory, and its rows.
#[derive(Debug, Clone)]
pub struct EncodedText {
    /// Encoded tokens, including special tokens.
    pub tokens: usize,
    /// Tokens that truncation removed.
    pub truncated_tokens: usize,
    /// Sequences that the text was encoded in: several for a long text with `--on-long mean`.
    pub sequences: usize,
    /// The rows, which equal texts share.
    pub rows: SharedRows,
}

impl EncodedText {
    /// A text that has no rows yet.
    pub(super) fn new(text: &TokenizedText) -> Self {
        EncodedText {
            tokens: text.token_count(),
            truncated_tokens: text.truncated_tokens(),
            sequences: text.sequences.len(),
            rows: SharedRows::default(),
        }
    }

    /// The rows of the text.
    pub fn rows(&self) -> &[TaskRow] {
        self.rows.get().map_or(&[], Vec::as_slice)
    }
}
