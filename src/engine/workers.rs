//! The workers of items in order: they run batches as these arrive.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use crossbeam_channel::Sender;
use rayon::ThreadPool;

use super::budget::MemoryBudget;
use super::dispatcher::{Dispatcher, Order, own_pools, start_workers};
use super::row_cache::RowCache;
use super::task::{RowOptions, Task, TaskRow};
use super::utilization::Utilization;
use super::wave::SharedRows;
use crate::sys::threads::{panic_to_error, thread_pool};
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
}

impl<T: Task> Runner<T> {
    /// Runs a batch with `threads` threads, and tells its wave.
    fn run(&self, batch: Batch, worker: usize, threads: usize) {
        let Batch { texts, done } = batch;
        let busy = self.utilization.enter(threads);
        let result = panic_to_error(|| self.encode(texts, worker));
        // Dropped first, because the run can end as soon as it has the rows, and then the utilization is
        // read.
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

/// Batches in the order of their arrival.
pub(super) struct ArrivalOrder {
    waiting: VecDeque<Batch>,
    running: usize,
    workers: usize,
}

impl Order for ArrivalOrder {
    type Run = Batch;

    fn workers(&self) -> usize {
        self.workers
    }

    fn has_run_for(&self, _: usize) -> bool {
        !self.waiting.is_empty()
    }

    fn take(&mut self, _: Duration, _: usize) -> Option<Batch> {
        let batch = self.waiting.pop_front()?;
        self.running += 1;
        Some(batch)
    }

    fn done(&mut self, _: Duration, _: usize) {
        self.running -= 1;
    }
}

/// Threads that run one batch each. They share only the weights, so that no worker waits for another.
pub(super) struct Workers<T> {
    pub runner: Arc<Runner<T>>,
    dispatcher: Arc<Dispatcher<ArrivalOrder>>,
    threads: usize,
    are_started: Mutex<bool>,
    /// The threads that share a batch, once there was one.
    pool: OnceLock<ThreadPool>,
}

impl<T: Task> Workers<T> {
    /// Workers that start with the first batch.
    pub(super) fn new(task: Arc<T>, cache: Option<RowCache>, budget: &MemoryBudget) -> Self {
        let (threads, batch_tokens) = (budget.threads, budget.batch_tokens);
        let runner = Arc::new(Runner { task, utilization: Utilization::new(threads), cache, batch_tokens });
        let order = ArrivalOrder { waiting: VecDeque::new(), running: 0, workers: threads };
        let dispatcher = Arc::new(Dispatcher::new(order));
        Workers { runner, dispatcher, threads, are_started: Mutex::new(false), pool: OnceLock::new() }
    }

    /// Whether no batch waits or runs.
    pub(super) fn is_idle(&self) -> bool {
        self.dispatcher.read(|order| order.waiting.is_empty() && order.running == 0)
    }

    /// Starts the workers, if they have not been started yet.
    pub(super) fn start(&self) -> Result<()> {
        let mut are_started = self.are_started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*are_started {
            self.runner.task.on_workers_start();
            let (dispatcher, runner) = (self.dispatcher.clone(), self.runner.clone());
            start_workers(own_pools(self.threads, "encode")?, move |worker| {
                dispatcher.work(worker, |batch| runner.run(batch, worker, 1));
            });
            *are_started = true;
        }
        Ok(())
    }

    /// Hands a batch to the workers, as soon as fewer batches wait than there are workers.
    pub(super) fn send(&self, batch: Batch) -> Result<()> {
        self.start()?;
        let has_place = |order: &ArrivalOrder| order.waiting.len() < order.workers;
        self.dispatcher.change_when(has_place, |order| order.waiting.push_back(batch));
        Ok(())
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

impl<T> Drop for Workers<T> {
    fn drop(&mut self) {
        self.dispatcher.stop();
    }
}
