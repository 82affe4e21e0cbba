//! The worker threads, which run batches.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail};
use crossbeam_channel::{Sender, bounded};
use rayon::ThreadPool;

use super::budget::MemoryBudget;
use super::row_cache::RowCache;
use super::task::{RowOptions, Task, TaskRow};
use super::utilization::Utilization;
use super::wave::SharedRows;
use crate::sys::threads::{panic_to_error, single_thread_pool, thread_panicked, thread_pool};
use crate::text::TokenizedText;

/// A text that is to be encoded.
pub(super) struct PlannedText {
    pub text: TokenizedText,
    pub place: Place,
}

/// Where the rows of a text go.
pub(super) struct Place {
    /// What its caller asks of its rows.
    pub options: RowOptions,
    /// The same for equal texts with equal options only.
    pub key: u128,
    pub rows: SharedRows,
}

impl Place {
    /// Puts the rows there. Each place belongs to one planned text.
    pub(super) fn set(&self, rows: Vec<TaskRow>) {
        let _ = self.rows.set(rows);
    }
}

/// Texts that are encoded together.
pub(super) struct Batch {
    pub texts: Vec<PlannedText>,
    /// The channel of their wave.
    pub done: Sender<Result<()>>,
}

/// What runs a batch, whatever thread it runs on.
pub(super) struct Runner<T> {
    pub task: Arc<T>,
    pub utilization: Utilization,
    /// The rows of earlier processes.
    pub cache: Option<RowCache>,
    batch_tokens: usize,
    /// Batches that are queued or running.
    pending: AtomicUsize,
}

impl<T: Task> Runner<T> {
    /// Runs a batch with `threads` threads, and tells its wave.
    fn run(&self, batch: Batch, worker: usize, threads: usize) {
        let Batch { texts, done } = batch;
        let busy = self.utilization.enter(threads);
        let result = panic_to_error(|| self.encode(texts, worker));
        // Dropped first, because the run can end as soon as it has the rows, and then the utilization is read.
        drop(busy);
        let _ = done.send(result);
    }

    /// Puts the rows of each text into their place.
    fn encode(&self, texts: Vec<PlannedText>, worker: usize) -> Result<()> {
        let texts = match &self.cache {
            Some(cache) => cache.place_found(texts),
            None => texts,
        };
        if texts.is_empty() {
            return Ok(());
        }
        let (tokens, places): (Vec<TokenizedText>, Vec<Place>) =
            texts.into_iter().map(|planned| (planned.text, planned.place)).unzip();
        let options = places.iter().map(|place| &place.options);
        let rows = run(&*self.task, &tokens, options, self.batch_tokens, worker)?;
        for (place, rows) in places.into_iter().zip(rows) {
            if let Some(cache) = &self.cache {
                cache.add(place.key, &rows)?;
            }
            place.set(rows);
        }
        Ok(())
    }
}

/// The rows of each text of a batch.
pub(super) fn run<'a, T: Task>(
    task: &T,
    texts: &[TokenizedText],
    options: impl Iterator<Item = &'a RowOptions>,
    batch_tokens: usize,
    worker: usize,
) -> Result<Vec<Vec<TaskRow>>> {
    let outputs = task.encode(texts, batch_tokens, worker)?;
    if outputs.len() != texts.len() {
        bail!("a text has no rows; please report this as a bug");
    }
    let texts = texts.iter().zip(options).zip(outputs);
    Ok(texts.map(|((text, options), output)| task.finish(text, output, options)).collect())
}

/// Threads that run one batch each. They share only the weights, so that no worker waits for another.
pub(super) struct Workers<T> {
    pub runner: Arc<Runner<T>>,
    threads: usize,
    /// The queue of the workers, once they are started. They end when it is dropped.
    queue: Mutex<Option<Sender<Batch>>>,
    /// The threads that share a batch, once there was one.
    pool: OnceLock<ThreadPool>,
}

impl<T: Task> Workers<T> {
    /// Workers that start with the first batch.
    pub(super) fn new(task: Arc<T>, cache: Option<RowCache>, budget: &MemoryBudget) -> Self {
        let (threads, batch_tokens) = (budget.threads, budget.batch_tokens);
        let (utilization, pending) = (Utilization::new(threads), AtomicUsize::new(0));
        let runner = Arc::new(Runner { task, utilization, cache, batch_tokens, pending });
        Workers { runner, threads, queue: Mutex::new(None), pool: OnceLock::new() }
    }

    /// Whether no batch is queued or running.
    pub(super) fn is_idle(&self) -> bool {
        self.runner.pending.load(Ordering::Acquire) == 0
    }

    /// Starts the workers, if they have not been started yet, and returns their queue.
    pub(super) fn start(&self) -> Result<Sender<Batch>> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = match &mut *queue {
            Some(sender) => sender,
            queue => queue.insert(self.start_threads()?),
        };
        Ok(sender.clone())
    }

    /// Queues a batch.
    pub(super) fn send(&self, batch: Batch) -> Result<()> {
        let queue = self.start()?;
        self.runner.pending.fetch_add(1, Ordering::AcqRel);
        queue.send(batch).map_err(thread_panicked)
    }

    fn start_threads(&self) -> Result<Sender<Batch>> {
        self.runner.task.on_workers_start();
        let (sender, queue) = bounded::<Batch>(self.threads);
        for worker in 0..self.threads {
            // Parallel operations inside of a worker run on its own thread.
            let pool = single_thread_pool(format!("encode-{worker}"))?;
            let (queue, runner) = (queue.clone(), self.runner.clone());
            // The pool is dropped here; its thread ends after this closure returns.
            pool.spawn(move || {
                queue.into_iter().for_each(|batch| {
                    runner.run(batch, worker, 1);
                    runner.pending.fetch_sub(1, Ordering::AcqRel);
                });
            });
        }
        Ok(sender)
    }

    /// Runs a batch now, on all threads of the shared pool.
    pub(super) fn run_shared(&self, batch: Batch) -> Result<()> {
        self.pool()?.install(|| self.runner.run(batch, 0, self.threads));
        Ok(())
    }

    /// The threads that share a batch.
    pub(super) fn pool(&self) -> Result<&ThreadPool> {
        if let Some(pool) = self.pool.get() {
            return Ok(pool);
        }
        let pool = thread_pool(self.threads, "share")?;
        Ok(self.pool.get_or_init(|| pool))
    }
}
