//! Calls and their answers.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;

use super::task::QueuedTask;
use crate::engine::task::{RowOptions, TaskInput};
use crate::engine::wave::EncodedText;
use crate::text::{OnLong, Role, TruncationSide};

/// A [`TaskInput`] that outlives its caller's request.
#[derive(Debug, Clone, Default)]
pub struct OwnedInput {
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
    /// The query or the question that the text is read for.
    pub query: Option<Arc<str>>,
    /// What the text is.
    pub role: Option<Role>,
    /// What is put before the text.
    pub prompt: Option<Arc<str>>,
    /// What becomes of the text if it is over the limit.
    pub on_long: Option<OnLong>,
    /// The end at which it is truncated then.
    pub truncation_side: Option<TruncationSide>,
    /// Whether it has a vector for each token.
    pub per_token: bool,
}

impl OwnedInput {
    pub(super) fn input(&self) -> TaskInput<'_> {
        TaskInput {
            text: &self.text,
            pair: self.pair.as_deref(),
            query: self.query.as_deref(),
            role: self.role,
            prompt: self.prompt.as_deref(),
            on_long: self.on_long,
            truncation_side: self.truncation_side,
            per_token: self.per_token,
        }
    }

    /// Bytes of the text and its pair.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.pair.as_ref().map_or(0, String::len)
    }
}

/// Texts for a task.
pub struct Call {
    /// What encodes them.
    pub task: Arc<dyn QueuedTask>,
    /// The texts, one or more.
    pub inputs: Vec<OwnedInput>,
    /// What the caller asks of the rows: options that the task has.
    pub options: RowOptions,
}

/// What a call becomes: a result for each text in order, or the error of the first one that has none.
pub type Answer = Result<Answered>;

/// The texts of a call.
pub struct Answered {
    /// The texts with their rows.
    pub texts: Vec<EncodedText>,
    /// Where the time has gone.
    pub times: CallTimes,
}

/// The time of a call by stage, since it was handed over. Tokenizing is the sum over its texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// From the call to the first batch.
    pub queue: Duration,
    /// In the tokenizer.
    pub tokenize: Duration,
    /// From the first batch to the end of the last one.
    pub encode: Duration,
}
