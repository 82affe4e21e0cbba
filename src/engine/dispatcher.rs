//! Hands to each worker thread what it runs next, in the order that an [`Order`] says.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use rayon::ThreadPool;

use crate::sys::threads::{panic_to_error, single_thread_pool};

/// What waits, and what a free worker runs next. Pure: times are given.
pub(super) trait Order: Send {
    /// What a worker runs at a time.
    type Run: Send;

    /// The number of workers.
    fn workers(&self) -> usize;

    /// Whether a worker is idle and there is something for it.
    fn has_run_for(&self, worker: usize) -> bool;

    /// What a worker that is idle runs from now on, if there is something for it.
    fn take(&mut self, now: Duration, worker: usize) -> Option<Self::Run>;

    /// A worker has run what it took, or has failed to.
    fn done(&mut self, now: Duration, worker: usize);
}

/// Short work beside the runs. Each worker does it and runs in turn.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// What waits, and the workers that sleep until there is something for them.
pub(super) struct Dispatcher<O> {
    state: Mutex<State<O>>,
    /// What wakes each worker.
    wakers: Vec<Condvar>,
    /// Tells that a worker has taken something.
    taken: Condvar,
    start: Instant,
}

struct State<O> {
    order: O,
    work: VecDeque<Work>,
    /// Which workers wait to be woken.
    sleeping: Vec<bool>,
    is_stopped: bool,
}

impl<O: Order> Dispatcher<O> {
    /// Nothing waits but what is in `order`, and no worker runs yet.
    pub(super) fn new(order: O) -> Self {
        let workers = order.workers();
        let state = State { order, work: VecDeque::new(), sleeping: vec![false; workers], is_stopped: false };
        Dispatcher {
            state: Mutex::new(state),
            wakers: (0..workers).map(|_| Condvar::new()).collect(),
            taken: Condvar::new(),
            start: Instant::now(),
        }
    }

    /// The time since the start.
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Reads the order.
    pub(super) fn read<R>(&self, read: impl FnOnce(&O) -> R) -> R {
        read(&self.lock().order)
    }

    /// Changes what waits.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut O) -> R) -> R {
        self.change_when(|_| true, change)
    }

    /// Changes what waits, as soon as workers have taken so much that it `is_ready`.
    pub(super) fn change_when<R>(
        &self,
        is_ready: impl Fn(&O) -> bool,
        change: impl FnOnce(&mut O) -> R,
    ) -> R {
        let mut state = self.lock();
        while !is_ready(&state.order) {
            state = self.taken.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let changed = change(&mut state.order);
        self.wake(&mut state);
        changed
    }

    /// Changes what waits, in work on a worker: it looks for something to run afterwards, and wakes others
    /// for the rest.
    pub(super) fn change_in_work<R>(&self, change: impl FnOnce(&mut O) -> R) -> R {
        change(&mut self.lock().order)
    }

    /// Adds short work.
    pub(super) fn add_work(&self, work: Work) {
        let mut state = self.lock();
        state.work.push_back(work);
        self.wake(&mut state);
    }

    /// The workers end when nothing waits any longer.
    pub(super) fn stop(&self) {
        self.lock().is_stopped = true;
        self.wakers.iter().for_each(Condvar::notify_one);
    }

    /// The loop of a worker.
    pub(super) fn work(&self, worker: usize, run: impl Fn(O::Run)) {
        let mut state = self.lock();
        // Work and runs take turns, so that a caller with much work does not stop the runs of others.
        let mut has_worked = false;
        loop {
            let is_run_next = has_worked || state.work.is_empty();
            let next = if is_run_next { state.order.take(self.now(), worker) } else { None };
            has_worked = false;
            if let Some(next) = next {
                self.taken.notify_all();
                self.wake(&mut state);
                drop(state);
                let _ = panic_to_error(|| {
                    run(next);
                    Ok(())
                });
                state = self.lock();
                state.order.done(self.now(), worker);
            } else if let Some(work) = state.work.pop_front() {
                has_worked = true;
                self.wake(&mut state);
                drop(state);
                // The caller of work that panics is told so by the channel that it waits for.
                let _ = panic_to_error(|| {
                    work();
                    Ok(())
                });
                state = self.lock();
            } else if state.is_stopped {
                return;
            } else {
                self.wake(&mut state);
                state.sleeping[worker] = true;
                state = self.wakers[worker].wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping[worker] = false;
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes a worker for which there is something to do, if one sleeps. It wakes the next one.
    fn wake(&self, state: &mut State<O>) {
        let has_work = !state.work.is_empty();
        let mut workers = 0..self.wakers.len();
        let next =
            workers.find(|&worker| state.sleeping[worker] && (has_work || state.order.has_run_for(worker)));
        if let Some(worker) = next {
            state.sleeping[worker] = false;
            self.wakers[worker].notify_one();
        }
    }
}

/// Starts a worker on a thread of each pool, on whose threads its parallel operations run.
pub(super) fn start_workers(pools: Vec<ThreadPool>, work: impl Fn(usize) + Clone + Send + 'static) {
    for (worker, pool) in pools.into_iter().enumerate() {
        let work = work.clone();
        // The pool is dropped here; its threads end after this closure returns.
        pool.spawn(move || work(worker));
    }
}

/// A pool of one thread for each worker, so that none waits for another. If the system refuses a thread, none
/// is started.
pub(super) fn own_pools(workers: usize, name: &str) -> Result<Vec<ThreadPool>> {
    (0..workers).map(|worker| single_thread_pool(format!("{name}-{worker}"))).collect()
}
