//! The utilization of the worker threads.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Measures the share of time in which the worker threads encode.
pub struct Utilization {
    threads: usize,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    first: Option<Instant>,
    last: Instant,
    busy_threads: usize,
    /// Seconds, summed over threads.
    busy: f64,
}

impl Utilization {
    /// A measurement of `threads` threads, all of them idle.
    pub fn new(threads: usize) -> Self {
        let state = State { first: None, last: Instant::now(), busy_threads: 0, busy: 0.0 };
        Utilization { threads, state: Mutex::new(state) }
    }

    /// Counts `threads` threads as busy until the guard is dropped.
    pub fn enter(&self, threads: usize) -> Busy<'_> {
        self.change(|busy| busy + threads);
        Busy(self, threads)
    }

    /// The busy time until the last change, summed over threads.
    pub fn busy(&self) -> Duration {
        Duration::from_secs_f64(self.lock().busy)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.lock();
        let now = Instant::now();
        state.first.get_or_insert(now);
        state.busy += (now - state.last).as_secs_f64() * state.busy_threads.min(self.threads) as f64;
        state.last = now;
        state.busy_threads = change(state.busy_threads);
    }

    /// Seconds from the start of the first batch to the end of the last, and the idle share of the threads'
    /// time, from 0 to 1.
    pub fn read(&self) -> (f64, f64) {
        let state = *self.lock();
        let seconds = state.first.map_or(0.0, |first| (state.last - first).as_secs_f64());
        let available = seconds * self.threads as f64;
        (seconds, if available > 0.0 { 1.0 - state.busy / available } else { 0.0 })
    }
}

/// Marks threads as idle again when it is dropped.
pub struct Busy<'a>(&'a Utilization, usize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.change(|busy| busy - self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_threads_count_as_idle() {
        let utilization = Utilization::new(2);
        assert_eq!(utilization.read(), (0.0, 0.0));
        let busy = utilization.enter(1);
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(busy);
        let (seconds, idle) = utilization.read();
        assert!(seconds >= 0.02 && (idle - 0.5).abs() < 1e-6, "{seconds} s, {idle} idle");
    }
}
