//! What waits on a server, what runs, and what a free worker runs next. Pure: events in, decisions out, no thread and no clock. Times
//! are those since any start.
//!
//! * A text is *due* when [`SLACK_FACTOR`] times the time has passed that an idle server takes for its request up to this text. What
//!   is due first runs first: short texts before long ones, and single texts before most of a large request. Texts that
//!   arrive later are due later, so that every text is the first one at some time.
//! * A free worker takes texts at once, never waiting for more of them: up to [`BATCH_TIME`], less if little waits.
//! * A text that is longer than a batch is *long*, and runs alone. While the cores run long texts, one worker more runs short ones,
//!   and the operating system divides the cores among them.
//! * An idle CPU shares a text among all threads.
//!
//! The constants come from the simulation in `schedule/simulation.rs`, whose loads and limits are in `schedule/loads.rs`.

#[cfg(test)]
mod loads;
#[cfg(test)]
mod simulation;
mod waiting;

use std::time::Duration;

use self::waiting::{Waiting, WaitingText};

/// How many times its time on an idle server a text waits until it is before a text that arrives then. One more client that sends
/// large requests without pause gets its part of the machine only, as long as there are fewer than half as many.
const SLACK_FACTOR: f64 = 16.0;
/// Maximum time of a batch of several texts.
const BATCH_TIME: Duration = Duration::from_millis(35);
/// Tokens with which a core is at nine tenths of its rate. A batch may have them whatever their time.
const EFFICIENT_TOKENS: usize = 64;
/// The weight of a run in the measured time per token.
const RUN_WEIGHT: f64 = 1.0 / 16.0;

/// What runs batches, and their limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// The number of batches that run at a time: threads of a CPU, or batches in flight on GPUs.
    pub workers: usize,
    /// Whether the workers are all threads of a CPU: they can share a text, and one worker more takes short texts.
    pub are_cpu_threads: bool,
    /// Maximum tokens of a batch of several texts.
    pub max_batch_tokens: usize,
    /// Tokens per second of one worker, before any batch is measured.
    pub tokens_per_second: f64,
}

/// A request: its texts are due one after another, and can be cancelled together.
#[derive(Debug)]
pub(super) struct Request {
    id: u64,
    /// On the clock of [`Schedule`].
    arrived: Duration,
    /// Tokens of the texts that were added.
    tokens: usize,
}

/// Texts that a worker runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run<T> {
    /// The texts, one or more.
    pub texts: Vec<T>,
    /// Whether all threads share them. Else they run on the thread of the worker.
    pub is_shared: bool,
}

/// What a worker runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    since: Duration,
    tokens: usize,
    is_long: bool,
    is_shared: bool,
    /// Whether its time is that of one core.
    is_measured: bool,
}

/// What waits and what runs.
///
/// After each call that changes it, [`Schedule::next_worker`] is the worker to wake, if there is one; that worker calls [`Schedule::take`],
/// after which there may be another one.
pub(super) struct Schedule<T> {
    capacity: Capacity,
    waiting: Waiting<T>,
    /// What each worker runs; the last worker of a CPU is the one for short texts.
    running: Vec<Option<Running>>,
    /// The time of a token on one worker, in seconds: a moving average.
    token_seconds: f64,
    requests: u64,
    /// The time of the last call, and the clock of arrivals and deadlines at that time, which is slower while there are many large
    /// requests.
    now: Duration,
    clock: Duration,
}

impl<T> Schedule<T> {
    /// A schedule in which nothing waits and nothing runs.
    pub(super) fn new(capacity: Capacity) -> Self {
        Schedule {
            capacity,
            waiting: Waiting::new(),
            running: vec![None; capacity.workers + usize::from(capacity.are_cpu_threads)],
            token_seconds: 1.0 / capacity.tokens_per_second,
            requests: 0,
            now: Duration::ZERO,
            clock: Duration::ZERO,
        }
    }

    /// The number of workers: those of the capacity, and on a CPU one more, the last one, which takes short texts only.
    pub(super) fn workers(&self) -> usize {
        self.running.len()
    }

    /// The number of texts that wait.
    pub(super) fn waiting_texts(&self) -> usize {
        self.waiting.len()
    }

    /// The tokens of the texts that wait.
    pub(super) fn waiting_tokens(&self) -> usize {
        self.waiting.tokens()
    }

    /// A request arrives. Its texts are to be added.
    pub(super) fn arrive(&mut self, now: Duration) -> Request {
        self.advance(now);
        self.requests += 1;
        Request { id: self.requests, arrived: self.clock, tokens: 0 }
    }

    /// Adds a text of a request. `tokens`: its work.
    pub(super) fn add(&mut self, request: &mut Request, tokens: usize, text: T) {
        let batch_tokens = self.batch_tokens();
        // A batch has texts of one request, rather than one text of each: the requests are then done one after another, and not all at
        // the same time.
        let before = request.tokens.next_multiple_of(batch_tokens);
        let is_large = request.tokens > 0 && request.tokens + tokens > batch_tokens;
        request.tokens += tokens;
        let idle_seconds = (before + tokens) as f64 * self.token_seconds / self.capacity.workers as f64;
        let slack = Duration::try_from_secs_f64(SLACK_FACTOR * idle_seconds).unwrap_or(Duration::MAX);
        let deadline = request.arrived.saturating_add(slack);
        let text = WaitingText { request: request.id, tokens, text };
        self.waiting.add(deadline, text, tokens > batch_tokens, is_large);
    }

    /// Removes the texts of a request that wait, and returns them.
    pub(super) fn cancel(&mut self, request: &Request) -> Vec<T> {
        self.waiting.cancel(request.id)
    }

    /// An idle worker for which there are texts.
    pub(super) fn next_worker(&self) -> Option<usize> {
        (0..self.running.len()).find(|&worker| self.has_texts_for(worker))
    }

    /// What a worker that is idle runs from now on, if there is something for it.
    pub(super) fn take(&mut self, now: Duration, worker: usize) -> Option<Run<T>> {
        if !self.has_texts_for(worker) {
            return None;
        }
        self.advance(now);
        let has_core = self.has_core(worker);
        let is_long = has_core && self.waiting.is_long_first();
        let is_shared = self.is_to_be_shared(is_long);
        let texts = if is_long { self.waiting.take_long().into_iter().collect() } else { self.take_batch() };
        let tokens = texts.iter().map(|text| text.tokens).sum();
        let is_measured = has_core && !is_shared;
        self.running[worker] = Some(Running { since: now, tokens, is_long, is_shared, is_measured });
        Some(Run { texts: texts.into_iter().map(|text| text.text).collect(), is_shared })
    }

    /// A worker has run what it took.
    pub(super) fn done(&mut self, now: Duration, worker: usize) {
        self.advance(now);
        let Some(running) = self.running[worker].take() else { return };
        if running.is_measured {
            let seconds = now.saturating_sub(running.since).as_secs_f64() / running.tokens.max(1) as f64;
            self.token_seconds += RUN_WEIGHT * (seconds - self.token_seconds);
        }
    }

    /// Advances the clock. With many large requests, it is so slow that what is not due yet is enough for them to wait in turn: if all
    /// of them were due, a text that arrives would wait for all of them.
    fn advance(&mut self, now: Duration) {
        let speed = SLACK_FACTOR / (2 * self.waiting.large_requests()) as f64;
        self.clock += now.saturating_sub(self.now).mul_f64(speed.min(1.0));
        self.now = self.now.max(now);
    }

    /// Maximum tokens of a batch of several texts.
    fn batch_tokens(&self) -> usize {
        let tokens = (BATCH_TIME.as_secs_f64() / self.token_seconds) as usize;
        tokens.max(EFFICIENT_TOKENS).min(self.capacity.max_batch_tokens).max(1)
    }

    fn shared_run(&self) -> Option<&Running> {
        self.running.iter().flatten().find(|running| running.is_shared)
    }

    /// Whether a core is free if this worker is idle.
    fn has_core(&self, worker: usize) -> bool {
        worker < self.capacity.workers && self.shared_run().is_none()
    }

    fn has_texts_for(&self, worker: usize) -> bool {
        let is_idle = self.running[worker].is_none();
        let has_texts = match self.has_core(worker) {
            true => self.waiting.len() > 0,
            false => self.waiting.short.len() > 0 && self.run_cores_long_texts(),
        };
        is_idle && has_texts
    }

    /// Whether all cores run long texts.
    fn run_cores_long_texts(&self) -> bool {
        match self.shared_run() {
            Some(shared) => shared.is_long,
            None => {
                let mut workers = self.running[..self.capacity.workers].iter();
                workers.all(|running| running.is_some_and(|running| running.is_long))
            }
        }
    }

    /// Whether all threads are to share the first text: while they do, no other one of the waiting texts runs.
    fn is_to_be_shared(&self, is_long: bool) -> bool {
        let (waiting, workers) = (self.waiting.len(), self.capacity.workers);
        // Long texts gain by it even if the threads that share one are at half of their rate.
        let max_waiting = if is_long { (workers / 2).max(1) } else { 1 };
        let is_idle = self.running.iter().all(Option::is_none);
        self.capacity.are_cpu_threads && workers > 1 && is_idle && waiting <= max_waiting
    }

    /// The next batch of short texts.
    fn take_batch(&mut self) -> Vec<WaitingText<T>> {
        let workers = &self.running[..self.capacity.workers];
        let idle = workers.iter().filter(|running| running.is_none()).count();
        // The other idle workers take long texts, and their part of the short ones.
        let idle = idle.saturating_sub(self.waiting.long.len()).max(1);
        let tokens = self.waiting.short.tokens();
        let batch_tokens = self.batch_tokens();
        let efficient_tokens = (batch_tokens / 4).max(EFFICIENT_TOKENS);
        // At the end of a large request, smaller batches keep all workers busy until it is done.
        let max_tokens =
            batch_tokens.min((2 * tokens / workers.len()).max(efficient_tokens)).min(tokens.div_ceil(idle));
        // Urgent texts wait only for as many others as make an efficient batch.
        let last =
            self.waiting.short.first().map(|(deadline, _)| deadline + BATCH_TIME.mul_f64(SLACK_FACTOR));
        let (mut batch, mut tokens) = (Vec::new(), 0);
        while let Some((deadline, next)) = self.waiting.short.first() {
            let max_tokens =
                if Some(deadline) > last { max_tokens.min(efficient_tokens) } else { max_tokens };
            if !batch.is_empty() && tokens + next > max_tokens {
                break;
            }
            tokens += next;
            batch.extend(self.waiting.take_short());
        }
        batch
    }
}
