//! What commands and batch sizes need to know of a task that runs an encoder.

use super::options::OnLong;
use crate::nn::Encoder;
use crate::output::ContentType;
use crate::pipeline::Task;
use crate::text::Tokenizer;

/// A task that runs an encoder over tokenized texts.
pub trait ModelTask: Task {
    /// Text → token ids.
    fn tokenizer(&self) -> &Tokenizer;

    /// Token ids → hidden states: the same encoder on each device.
    fn encoders(&self) -> &[Encoder];

    /// What to do with texts over the limit.
    fn on_long(&self) -> OnLong;

    /// The type of what a row holds.
    fn content(&self) -> ContentType;

    /// Size in bytes of what a row holds, or of what it holds for one token if it grows with the tokens of its text.
    fn vector_bytes(&self) -> usize;
}
