//! The worker threads, which run batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use crossbeam_channel::{Sender, bounded};

use super::budget::MemoryBudget;
use super::messages::{BatchRows, panic_to_error, thread_panicked};
use super::row_cache::RowCache;
use super::task::Task;
use super::utilization::Utilization;
use crate::sys::threads::single_thread_pool;
use crate::text::TokenizedText;

/// A batch and the channel for its rows.
pub(super) struct Job {
    /// The index of each text's record in its wave.
    pub slots: Vec<usize>,
    /// The texts of the batch.
    pub texts: Vec<TokenizedText>,
    /// The channel to the collector.
    pub results: Sender<Result<BatchRows>>,
}

impl Job {
    /// Runs the batch with `threads` threads and sends its rows.
    fn run<T: Task>(
        self,
        task: &T,
        batch_tokens: usize,
        worker: usize,
        threads: usize,
        utilization: &Utilization,
        cache: Option<&RowCache>,
    ) {
        let busy = utilization.enter(threads);
        let run = || match cache {
            Some(cache) => cache.run(task, &self.texts, batch_tokens, worker),
            None => task.run(&self.texts, batch_tokens, worker),
        };
        let result = panic_to_error(run).map(|rows| self.slots.into_iter().zip(rows).collect());
        // Dropped first, because the run can end as soon as it has the rows, and then the utilization is read.
        drop(busy);
        let _ = self.results.send(result);
    }
}

/// Threads that run one batch each. They share only the weights, so that no worker waits for another.
pub(super) struct Workers<T> {
    task: Arc<T>,
    utilization: Arc<Utilization>,
    /// The rows of earlier runs.
    cache: Option<Arc<RowCache>>,
    threads: usize,
    batch_tokens: usize,
    /// The queue of the workers, once they are started.
    jobs: Option<Sender<Job>>,
    /// Batches that are queued or running.
    pending: Arc<AtomicUsize>,
}

impl<T: Task> Workers<T> {
    /// Workers that start with the first batch.
    pub(super) fn new(
        task: Arc<T>,
        utilization: Arc<Utilization>,
        cache: Option<Arc<RowCache>>,
        budget: &MemoryBudget,
    ) -> Self {
        let (threads, batch_tokens) = (budget.threads, budget.batch_tokens);
        Workers { task, utilization, cache, threads, batch_tokens, jobs: None, pending: Arc::default() }
    }

    /// Whether no batch is queued or running.
    pub(super) fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    /// Starts the workers, if they have not been started yet, and returns their queue.
    ///
    /// # Errors
    /// If the system refuses threads.
    pub(super) fn start(&mut self) -> Result<Sender<Job>> {
        let jobs = match &self.jobs {
            Some(jobs) => jobs,
            None => self.jobs.insert(self.start_threads()?),
        };
        Ok(jobs.clone())
    }

    /// Queues a batch.
    ///
    /// # Errors
    /// If the workers cannot be started, or have panicked.
    pub(super) fn send(&mut self, job: Job) -> Result<()> {
        let jobs = self.start()?;
        self.pending.fetch_add(1, Ordering::AcqRel);
        jobs.send(job).map_err(thread_panicked)
    }

    fn start_threads(&self) -> Result<Sender<Job>> {
        self.task.on_workers_start();
        let (jobs, queue) = bounded::<Job>(self.threads);
        for worker in 0..self.threads {
            // Parallel operations inside of a worker run on its own thread.
            let pool = single_thread_pool(format!("encode-{worker}"))?;
            let (queue, task, utilization) = (queue.clone(), self.task.clone(), self.utilization.clone());
            let (cache, pending, batch_tokens) =
                (self.cache.clone(), self.pending.clone(), self.batch_tokens);
            // The pool is dropped here; its thread ends after this closure returns.
            pool.spawn(move || {
                queue.into_iter().for_each(|job| {
                    job.run(&*task, batch_tokens, worker, 1, &utilization, cache.as_deref());
                    pending.fetch_sub(1, Ordering::AcqRel);
                });
            });
        }
        Ok(jobs)
    }

    /// Runs a batch now, on all threads of the global pool.
    pub(super) fn run_shared(&self, job: Job) {
        let cache = self.cache.as_deref();
        rayon::scope(|_| {
            job.run(&*self.task, self.batch_tokens, 0, self.threads, &self.utilization, cache);
        });
    }
}
