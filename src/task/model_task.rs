//! What commands and batch sizes need to know of a task that runs an encoder.

use super::text_model::TextModel;
use crate::engine::Task;
use crate::rows::ContentType;

/// Memory of the logits of a batch, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HeadMemory {
    /// Bytes per token of the batch.
    pub token_bytes: usize,
    /// Bytes beside those, whatever the size of the batch.
    pub batch_bytes: usize,
}

/// A task that runs an encoder over tokenized texts.
pub trait ModelTask: Task {
    /// The tokenizer and the encoder.
    fn model(&self) -> &TextModel;

    /// The type of what a row holds.
    fn content(&self) -> ContentType;

    /// Size in bytes of what a row holds, or of what it holds for one token if it grows with the tokens of
    /// its text.
    fn vector_bytes(&self) -> usize;

    /// The memory of the task head beside that of the encoder.
    fn head_memory(&self) -> HeadMemory {
        HeadMemory::default()
    }
}
