//! Tasks whose texts a queue encodes.

use std::sync::Arc;

use anyhow::Result;

use crate::engine::task::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::engine::workers::run;
use crate::text::TokenizedText;

/// A task in a queue, whatever its outputs.
pub trait QueuedTask: Send + Sync {
    /// Tokenizes a text.
    ///
    /// # Errors
    /// [`TokenizeError`] if the text cannot be encoded.
    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError>;

    /// Refuses options that the task does not have.
    ///
    /// # Errors
    /// The first such option.
    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError>;

    /// The rows of texts, in order.
    fn rows(
        &self,
        texts: &[TokenizedText],
        options: &[RowOptions],
        worker: usize,
    ) -> Result<Vec<Vec<TaskRow>>>;

    /// The time that a token takes, as a multiple of what it takes in the fastest task of the queue.
    fn cost(&self) -> f64;
}

/// A task with the tokens of its forward passes.
pub struct QueueTask<T> {
    task: Arc<T>,
    batch_tokens: usize,
    cost: f64,
}

impl<T: Task> QueueTask<T> {
    /// A task whose forward passes have at most `batch_tokens` tokens, unless a single sequence has more.
    /// `cost`: see [`QueuedTask::cost`].
    pub fn new(task: Arc<T>, batch_tokens: usize, cost: f64) -> Self {
        task.on_workers_start();
        QueueTask { task, batch_tokens, cost }
    }
}

impl<T: Task> QueuedTask for QueueTask<T> {
    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        self.task.tokenize(input)
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        self.task.check(options)
    }

    fn rows(
        &self,
        texts: &[TokenizedText],
        options: &[RowOptions],
        worker: usize,
    ) -> Result<Vec<Vec<TaskRow>>> {
        run(&*self.task, texts, options.iter(), self.batch_tokens, worker)
    }

    fn cost(&self) -> f64 {
        self.cost
    }
}
