//! Texts in, rows out, in bounded memory, for every task and every caller alike. It knows no file, no
//! subcommand and no protocol.
//!
//! ```text
//! items, in order ──► batcher ──waves, in order──► the caller
//!                        └──batches──► workers ──rows──┘
//! ```
//!
//! An *item* is a text with what its caller carries beside it. A *wave* is the items that are planned
//! together: some batches for each worker. The batches of a wave finish in any order; the caller waits for
//! all of them, and takes the waves in the order of the items. As no bit of a row depends on its batch, equal
//! texts are encoded once.
//!
//! A task implements the trait [`Task`]: the tokens of a text, the outputs of a batch, and the rows of an
//! output. [`Engine::encode`] takes texts that are in memory, [`Engine::start`] a stream of items.
//!
//! * `task`: the contract with a task.
//! * `budget`: how many items, tokens and bytes are in flight, as pure functions.
//! * `batcher`: items → waves; `batches`: which texts share a batch; `repeats`: the rows of texts that were
//!   planned before.
//! * `dispatcher`: the worker threads, and the order in which they take what waits. There are two:
//!   * `workers`: the batches of waves as they arrive; `wave`: what the threads send to one another.
//!   * `queue`: the texts of many callers at once, as on a server, by deadlines; `schedule`: this order, as a
//!     pure module.
//! * `prepared`: the tokens of a text, or rows of earlier processes; `row_cache`, `row_store`: those rows.
//! * `utilization`: how busy the workers are.

mod batcher;
mod batches;
mod budget;
mod dispatcher;
mod prepared;
mod queue;
mod repeats;
mod row_cache;
mod row_store;
mod schedule;
mod task;
mod utilization;
mod wave;
mod workers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Error, Result};
use crossbeam_channel::{Receiver, bounded, unbounded};
use rayon::prelude::*;

use self::batcher::Batcher;
pub use self::batches::balanced_batches;
pub use self::budget::{GROUP_BYTES, MemoryBudget, TOKENIZER_BYTES_PER_TEXT_BYTE, Workload};
pub use self::prepared::{Prepared, PreparedText, Preparer};
pub use self::queue::{
    Answer, Answered, Call, CallTimes, OwnedInput, Queue, QueueCounters, QueueLength, QueueTask, QueuedTask,
    Ticket,
};
pub use self::row_cache::RowCache;
pub use self::schedule::Capacity;
pub use self::task::{
    NO_TOKENS, RowOptionError, RowOptions, Task, TaskInput, TaskRow, TextError, TextFault, TokenizeError,
};
pub use self::utilization::Utilization;
pub use self::wave::{EncodedText, Incoming, Item, Outgoing, SharedRows, Wave};
use self::workers::Workers;
use crate::sys::threads::{spawn, thread_panicked};
use crate::text::TokenizedText;

/// A task with the threads and the memory that it runs in.
pub struct Engine<T> {
    workers: Arc<Workers<T>>,
    budget: MemoryBudget,
    /// Rows that were not encoded, because an equal text was.
    repeated: Arc<AtomicU64>,
}

impl<T: Task> Engine<T> {
    /// An engine, whose threads start with the first batch. Rows that are in `cache` are not made again.
    pub fn new(task: Arc<T>, budget: MemoryBudget, cache: Option<RowCache>) -> Self {
        Engine { workers: Arc::new(Workers::new(task, cache, &budget)), budget, repeated: Arc::default() }
    }

    /// The task.
    pub fn task(&self) -> &Arc<T> {
        &self.workers.runner.task
    }

    /// What prepares texts for [`Engine::start`].
    pub fn preparer(&self) -> Preparer<T> {
        Preparer(self.workers.runner.clone())
    }

    /// The limits on what is in flight.
    pub fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// How busy the workers are.
    pub fn utilization(&self) -> &Utilization {
        &self.workers.runner.utilization
    }

    /// The number of rows that were found in the cache.
    pub fn cached(&self) -> u64 {
        self.workers.runner.cache.as_ref().map_or(0, RowCache::found)
    }

    /// The number of rows that were not encoded, because an equal text was.
    pub fn repeated(&self) -> u64 {
        self.repeated.load(Ordering::Relaxed)
    }

    /// Starts a batcher, and returns the channel for its caller: waves in the order of the items, then the
    /// end or an error. `is_interactive`: someone may wait for the row of an item before the next item comes.
    pub fn start<M: Send + 'static>(
        &self,
        items: Receiver<Incoming<M>>,
        is_interactive: bool,
    ) -> Result<Receiver<Result<Outgoing<M>>>> {
        let (to_caller, waves) = bounded(1);
        let (workers, budget, repeated) = (self.workers.clone(), self.budget, self.repeated.clone());
        spawn("batch", move || {
            Batcher::new(budget, workers, repeated, is_interactive, to_caller).run(&items);
        })?;
        Ok(waves)
    }

    /// Encodes texts that are in memory. Rows have the same bits as in any other order and number of texts.
    ///
    /// # Errors
    /// [`RowOptionError`] if the task does not have the options; [`TextError`] for the first text that cannot
    /// be tokenized; if the encoder fails.
    pub fn encode(&self, texts: &[TaskInput], options: &RowOptions) -> Result<Vec<EncodedText>> {
        self.task().check(options)?;
        let (to_caller, waves) = unbounded();
        let mut batcher =
            Batcher::new(self.budget, self.workers.clone(), self.repeated.clone(), false, to_caller);
        for (index, text) in self.tokenize(texts)?.into_iter().enumerate() {
            let text = text.map_err(|error| Error::new(TextError::new(index, error)))?;
            let carried = EncodedText::new(&text);
            let (prepared, options) = (Some(Prepared::Tokens(text)), *options);
            batcher.add(Item { carried, prepared, options, carried_bytes: 0, ends_batch: false })?;
        }
        batcher.send_wave()?;
        drop(batcher);
        let mut encoded = Vec::with_capacity(texts.len());
        for wave in waves {
            let Outgoing::Wave(wave) = wave? else { continue };
            for _ in 0..wave.batches {
                wave.done.recv().map_err(thread_panicked)??;
            }
            let texts = wave.items.into_iter();
            encoded.extend(texts.map(|(text, rows)| EncodedText { rows: rows.unwrap_or_default(), ..text }));
        }
        Ok(encoded)
    }

    /// Tokenizes texts, on all threads if there are several.
    fn tokenize(&self, texts: &[TaskInput]) -> Result<Vec<Result<TokenizedText, TokenizeError>>> {
        let tokenize = |text: &TaskInput| self.task().tokenize(text);
        match texts {
            [text] => Ok(vec![tokenize(text)]),
            texts => Ok(self.workers.pool()?.install(|| texts.par_iter().map(tokenize).collect())),
        }
    }
}
