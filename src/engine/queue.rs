//! Texts of many callers at once, for a server: each caller hands over a call and gets an answer, whatever
//! the others do.
//!
//! ```text
//! calls ──► tokenize ──► schedule ──batches──► encode, finish ──► answers
//! ```
//!
//! Everything but the caller's own work happens on the workers: the tokenizing of a call, its batches, and
//! what becomes of its rows. A call whose [`Ticket`] is dropped has no caller any more: its texts are left
//! out of batches.
//!
//! * `call`: calls and their answers. `task`: what encodes them. `pending`: a call without an answer.
//!   `shared`: what the workers do.

mod call;
mod pending;
mod shared;
mod task;
#[cfg(test)]
mod tests;

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::dispatcher::{Dispatcher, Order, own_pools, start_workers};
use super::schedule::{Capacity, SHARING_WORKER, Schedule};
use crate::sys::threads::thread_pool;
use pending::Pending;
use shared::Shared;

pub use call::{Answer, Answered, Call, CallTimes, OwnedInput};
pub use task::{QueueTask, QueuedTask};

/// The place of a call in the queue. Dropping it tells that the caller has gone, unless it has the answer.
pub struct Ticket {
    call: Arc<Pending>,
    queue: Arc<Shared>,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.call.take_reply().is_some() {
            let _ = self.call.gone_at.set(Instant::now());
            let texts = self.queue.cancel(&self.call);
            self.queue.cancelled.fetch_add(texts as u64, Ordering::Relaxed);
        }
    }
}

/// What is in the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueLength {
    /// Texts that wait for a batch.
    pub texts: usize,
    /// Their tokens.
    pub tokens: usize,
}

/// Counters since the start of the queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct QueueCounters {
    /// Batches.
    pub batches: u64,
    /// Texts in batches.
    pub texts: u64,
    /// Tokens in batches.
    pub tokens: u64,
    /// Texts that were left out because their caller had gone.
    pub cancelled: u64,
    /// Tokens that were encoded after their caller had gone: of the tokens of a batch, the part of its time
    /// that was left then.
    pub unclaimed: u64,
    /// Busy time, summed over cores.
    pub busy: Duration,
}

/// Workers and what waits for them.
pub struct Queue {
    shared: Arc<Shared>,
}

impl Queue {
    /// Starts the workers, and `threads` threads that share the batch of a single text.
    pub fn start(capacity: Capacity, threads: usize) -> Result<Self> {
        let dispatcher = Dispatcher::new(Schedule::new(capacity));
        let workers = dispatcher.read(Schedule::workers);
        let mut pools = own_pools(workers, "serve")?;
        let alone = match capacity.can_share {
            true => Some(mem::replace(&mut pools[SHARING_WORKER], thread_pool(threads, "share")?)),
            false => None,
        };
        let shared = Arc::new(Shared::new(dispatcher, alone, capacity.workers));
        let queue = Queue { shared: shared.clone() };
        start_workers(pools, move |worker| {
            shared.dispatcher.work(worker, |run| shared.run(run, worker));
        });
        Ok(queue)
    }

    /// Hands over a call. `reply` is called once, on a worker, unless the ticket is dropped before.
    pub fn submit(&self, call: Call, reply: impl FnOnce(Answer) + Send + 'static) -> Ticket {
        let now = self.shared.dispatcher.now();
        let request = self.shared.dispatcher.change(|schedule| schedule.arrive(now));
        let call = Arc::new(Pending::new(call, request, Box::new(reply)));
        self.shared.tokenize_later(call.clone());
        Ticket { call, queue: self.shared.clone() }
    }

    /// Runs short work on a worker, which does work and batches in turn.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.dispatcher.add_work(Box::new(work));
    }

    /// What waits now.
    pub fn length(&self) -> QueueLength {
        self.shared.dispatcher.read(|schedule| QueueLength {
            texts: schedule.waiting_texts(),
            tokens: schedule.waiting_tokens(),
        })
    }

    /// The time in which the texts that wait are encoded.
    pub fn waiting_time(&self) -> Duration {
        self.shared.dispatcher.read(Schedule::waiting_time)
    }

    /// What was done so far.
    pub fn counters(&self) -> QueueCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueCounters {
            batches: read(&self.shared.batches),
            texts: read(&self.shared.texts),
            tokens: read(&self.shared.tokens),
            cancelled: read(&self.shared.cancelled),
            unclaimed: read(&self.shared.unclaimed),
            busy: self.shared.utilization.busy(),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.dispatcher.stop();
    }
}
