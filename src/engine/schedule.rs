//! What waits on a server, what runs, and what a free worker runs next. Pure: events in, decisions out, no
//! threads. Times are given.
//!
//! * A text has a *deadline*: [`SLACK_FACTOR`] times the time that an idle server takes for its request up to
//!   this text, after the arrival of the request. The earliest deadline runs first: short texts before long
//!   ones, and single texts before most of a large request. Texts that arrive later have later deadlines, so
//!   that every text is the first one at some time.
//! * A free worker takes texts at once and never waits for more of them: up to [`BATCH_TIME`], less if little
//!   waits.
//! * A text that is longer than a batch is *long*, and runs alone. Beside long texts, workers in addition run
//!   short ones, and the operating system divides the cores among them.
//! * An idle CPU shares a text among all threads.
//!
//! `schedule/simulation.rs` simulates a server, and `schedule/loads.rs` has its loads and limits. The
//! constants are from there: S are requests with one text of 18 tokens each, at 5,300 tokens per second and
//! core.

#[cfg(test)]
mod loads;
mod running;
#[cfg(test)]
mod simulation;
mod waiting;

use std::time::Duration;

use self::running::{Running, Workers};
use self::waiting::{Waiting, WaitingText};
use super::dispatcher::Order;

/// A text is before those that arrive this many times its time on an idle server later. With 64, the
/// throughput of two cores that are always busy with texts of 18 and 512 tokens is 6 % lower: short texts
/// never wait, and run in small batches. With 4 to 16, it is that of arrival order.
const SLACK_FACTOR: f64 = 16.0;
/// Maximum time of a batch of several texts. The 99th percentile of S at 30 % of two cores, beside requests
/// with 512 texts, is 37 ms with 25 ms, 51 ms with 35, and 72 ms with 50. Requests with 32 texts have 0.943,
/// 0.963 and 0.973 of a core's peak.
const BATCH_TIME: Duration = Duration::from_millis(35);
/// Tokens with which a core is at nine tenths of its peak. A batch may have them whatever their time, and
/// urgent texts wait for as many others: with 128, the median of S beside requests with 512 texts is 29 ms
/// instead of 17; with 18, those requests have 1 % less.
const EFFICIENT_TOKENS: usize = 64;
/// Maximum time that a request is thought to take: a year, so that no sum of times overflows.
const MAX_IDLE_TIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// The worker that shares texts: its thread is one of those that share, and is awake already when they begin.
pub(super) const SHARING_WORKER: usize = 0;
/// The weight of a run in the measured time per token.
const RUN_WEIGHT: f64 = 1.0 / 16.0;

/// What runs batches, and their limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Capacity {
    /// The number of batches that run at a time: threads of a CPU, or batches in flight on GPUs.
    pub workers: usize,
    /// Workers in addition, which share the cores of long texts to run short ones: none on a GPU; on a CPU
    /// one per four workers, and at least one. With one per worker, the throughput of cores that are always
    /// busy is up to 10 % lower.
    pub short_workers: usize,
    /// Whether all threads can share a text.
    pub can_share: bool,
    /// Maximum tokens of a batch of several texts.
    pub max_batch_tokens: usize,
    /// Tokens per second of one worker, before any batch is measured.
    pub tokens_per_second: f64,
}

/// A request: its texts have one deadline after another, and can be cancelled together.
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

/// What waits and what runs.
///
/// Its [`Order`] is that of the deadlines.
pub(super) struct Schedule<T> {
    capacity: Capacity,
    waiting: Waiting<T>,
    workers: Workers,
    /// The time of a token on one worker, in seconds: a moving average.
    token_seconds: f64,
    requests: u64,
    /// The time of the last call.
    now: Duration,
    /// The clock of arrivals and deadlines at that time: slower while there are many large requests.
    clock: Duration,
}

impl<T: Send> Schedule<T> {
    /// A schedule in which nothing waits and nothing runs.
    pub(super) fn new(capacity: Capacity) -> Self {
        Schedule {
            capacity,
            waiting: Waiting::new(),
            workers: Workers::new(capacity.workers, capacity.short_workers),
            token_seconds: 1.0 / capacity.tokens_per_second,
            requests: 0,
            now: Duration::ZERO,
            clock: Duration::ZERO,
        }
    }

    /// The number of texts that wait.
    pub(super) fn waiting_texts(&self) -> usize {
        self.waiting.len()
    }

    /// The tokens of the texts that wait.
    pub(super) fn waiting_tokens(&self) -> usize {
        self.waiting.tokens()
    }

    /// The time in which all workers run the texts that wait.
    pub(super) fn waiting_time(&self) -> Duration {
        self.idle_time(self.waiting.tokens())
    }

    /// A request arrives. Its texts are to be added.
    pub(super) fn arrive(&mut self, now: Duration) -> Request {
        self.advance(now);
        self.requests += 1;
        Request { id: self.requests, arrived: self.clock, tokens: 0 }
    }

    /// Adds a text of a request. `tokens`: its work.
    pub(super) fn add(&mut self, request: &mut Request, tokens: usize, text: T) {
        let tokens = tokens.max(1);
        let batch_tokens = self.batch_tokens();
        // A batch has texts of one request, rather than one text of each: the requests are then done one
        // after another, and not all at the same time.
        let before = request.tokens.next_multiple_of(batch_tokens);
        let is_large = request.tokens > 0 && request.tokens + tokens > batch_tokens;
        request.tokens += tokens;
        let slack = self.idle_time(before + tokens).mul_f64(SLACK_FACTOR);
        let text = WaitingText { request: request.id, tokens, text };
        self.waiting.add(request.arrived + slack, text, tokens > batch_tokens, is_large);
    }

    /// Removes the texts of a request that wait, and returns them.
    pub(super) fn cancel(&mut self, request: &Request) -> Vec<T> {
        self.waiting.cancel(request.id)
    }

    /// Advances the clock. Large requests that take turns, with half of the machine, need twice their number
    /// times the time on an idle server. The clock is so slow that their deadlines allow it: if all of them
    /// were overdue, they would be before every text that arrives.
    fn advance(&mut self, now: Duration) {
        let speed = SLACK_FACTOR / (2 * self.waiting.large_requests()) as f64;
        self.clock += now.saturating_sub(self.now).mul_f64(speed.min(1.0));
        self.now = self.now.max(now);
    }

    /// The time that an idle server takes for as many tokens.
    fn idle_time(&self, tokens: usize) -> Duration {
        let seconds = tokens as f64 * self.token_seconds / self.capacity.workers as f64;
        Duration::try_from_secs_f64(seconds).unwrap_or(MAX_IDLE_TIME).min(MAX_IDLE_TIME)
    }

    /// Maximum tokens of a batch of several texts.
    fn batch_tokens(&self) -> usize {
        let tokens = (BATCH_TIME.as_secs_f64() / self.token_seconds) as usize;
        tokens.max(EFFICIENT_TOKENS).min(self.capacity.max_batch_tokens).max(1)
    }

    /// Whether all threads are to share the first text: while they do, no other one of the waiting texts
    /// runs.
    fn is_to_be_shared(&self, is_long: bool) -> bool {
        let (waiting, workers) = (self.waiting.len(), self.capacity.workers);
        // Long texts gain by it even if the threads that share one are at half of their rate.
        let max_waiting = if is_long { (workers / 2).max(1) } else { 1 };
        self.capacity.can_share && workers > 1 && self.workers.are_idle() && waiting <= max_waiting
    }

    /// The next batch of short texts.
    fn take_batch(&mut self) -> Vec<WaitingText<T>> {
        // The other idle workers take long texts, and their part of the short ones.
        let idle = self.workers.idle_cores().saturating_sub(self.waiting.long.len()).max(1);
        let tokens = self.waiting.short.tokens();
        let batch_tokens = self.batch_tokens();
        let efficient_tokens = (batch_tokens / 4).max(EFFICIENT_TOKENS);
        // At the end of a large request, smaller batches keep all workers busy until it is done.
        let max_tokens = batch_tokens
            .min((2 * tokens / self.capacity.workers).max(efficient_tokens))
            .min(tokens.div_ceil(idle));
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

impl<T: Send> Order for Schedule<T> {
    type Run = Run<T>;

    /// The last ones are those for short texts.
    fn workers(&self) -> usize {
        self.workers.len()
    }

    fn has_run_for(&self, worker: usize) -> bool {
        if self.waiting.len() == 0 || !self.workers.is_idle(worker) {
            return false;
        }
        if worker != SHARING_WORKER && self.is_to_be_shared(self.waiting.is_long_first()) {
            return false;
        }
        self.workers.has_core(worker) || self.waiting.short.len() > 0 && self.workers.may_run_beside_long()
    }

    fn take(&mut self, now: Duration, worker: usize) -> Option<Run<T>> {
        if !self.has_run_for(worker) {
            return None;
        }
        self.advance(now);
        let is_beside_long = !self.workers.has_core(worker);
        let is_long = !is_beside_long && self.waiting.is_long_first();
        let is_shared = self.is_to_be_shared(is_long);
        let texts = if is_long { self.waiting.take_long().into_iter().collect() } else { self.take_batch() };
        let tokens = texts.iter().map(|text| text.tokens).sum();
        self.workers.start(worker, Running { since: now, tokens, is_long, is_shared, is_beside_long });
        Some(Run { texts: texts.into_iter().map(|text| text.text).collect(), is_shared })
    }

    fn done(&mut self, now: Duration, worker: usize) {
        self.advance(now);
        let Some(running) = self.workers.end(worker) else { return };
        if !running.is_shared && !running.is_beside_long {
            let seconds = now.saturating_sub(running.since).as_secs_f64() / running.tokens as f64;
            self.token_seconds += RUN_WEIGHT * (seconds - self.token_seconds);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A worker runs 10,000 tokens per second: 350 per batch.
    fn schedule(workers: usize, short_workers: usize, can_share: bool) -> Schedule<&'static str> {
        let (max_batch_tokens, tokens_per_second) = (1000, 1e4);
        Schedule::new(Capacity { workers, short_workers, can_share, max_batch_tokens, tokens_per_second })
    }

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// A request with texts of these tokens.
    fn add(schedule: &mut Schedule<&'static str>, at: u64, tokens: &[usize], text: &'static str) -> Request {
        let mut request = schedule.arrive(ms(at));
        tokens.iter().for_each(|&tokens| schedule.add(&mut request, tokens, text));
        request
    }

    /// What the next workers take, until there is nothing for any of them.
    fn take_all(schedule: &mut Schedule<&'static str>, at: u64) -> Vec<(usize, Vec<&'static str>, bool)> {
        std::iter::from_fn(|| {
            let worker = (0..schedule.workers()).find(|&worker| schedule.has_run_for(worker))?;
            schedule.take(ms(at), worker).map(|run| (worker, run.texts, run.is_shared))
        })
        .collect()
    }

    #[test]
    fn an_idle_cpu_shares_a_text() {
        for (workers, can_share, tokens, is_shared) in [
            (2, true, vec![18], true),
            (2, false, vec![18], false),
            (1, true, vec![18], false),
            (2, true, vec![18; 2], false),
            (8, true, vec![18; 2], false),
            (8, true, vec![600; 4], true),
            (8, true, vec![600; 5], false),
        ] {
            let mut schedule = schedule(workers, 1, can_share);
            add(&mut schedule, 0, &tokens, "a");
            let runs = take_all(&mut schedule, 0);
            assert_eq!(runs[0].2, is_shared, "{workers} {can_share} {tokens:?}");
            assert_eq!(
                runs.len(),
                if is_shared { 1 } else { tokens.len() },
                "{workers} {can_share} {tokens:?}"
            );
        }
    }

    #[test]
    fn one_worker_alone_runs_what_all_threads_share() {
        for (can_share, has_run) in [(true, [true, false]), (false, [true, true])] {
            let mut schedule = schedule(2, 0, can_share);
            add(&mut schedule, 0, &[18], "a");
            assert_eq!([0, 1].map(|worker| schedule.has_run_for(worker)), has_run, "{can_share}");
            assert_eq!(schedule.take(ms(0), 1).is_some(), has_run[1], "{can_share}");
        }
    }

    #[test]
    fn while_threads_share_a_text_only_a_long_one_has_short_ones_beside_it() {
        for (tokens, beside) in [(18, vec![]), (600, vec![(1, vec!["b"], false)])] {
            let mut schedule = schedule(2, 1, true);
            add(&mut schedule, 0, &[tokens], "a");
            assert_eq!(take_all(&mut schedule, 0), [(0, vec!["a"], true)]);
            add(&mut schedule, 1, &[18], "b");
            add(&mut schedule, 1, &[700], "c");
            assert_eq!(take_all(&mut schedule, 1), beside);
        }
    }

    #[test]
    fn idle_workers_divide_what_waits() {
        for (tokens, sizes) in
            [(vec![18; 6], [2, 2, 2]), (vec![18, 18, 600, 18, 18], [2, 2, 1]), (vec![18; 90], [19; 3])]
        {
            let mut schedule = schedule(3, 0, true);
            add(&mut schedule, 0, &tokens, "a");
            let runs = take_all(&mut schedule, 0);
            assert!(runs.iter().map(|(_, texts, _)| texts.len()).eq(sizes), "{runs:?}");
        }
    }

    #[test]
    fn batches_are_limited_by_the_measured_time_and_by_tokens() {
        for (max_batch_tokens, milliseconds, size) in
            [(1000, 35, 19), (1000, 70, 9), (1000, 350, 3), (100, 35, 5)]
        {
            let mut schedule = schedule(1, 0, false);
            schedule.capacity.max_batch_tokens = max_batch_tokens;
            add(&mut schedule, 0, &[18; 2000], "a");
            let mut at = 0;
            for _ in 0..100 {
                let run = schedule.take(ms(at), 0).unwrap();
                // 350 tokens take this time.
                at += milliseconds * 18 * run.texts.len() as u64 / 350;
                schedule.done(ms(at), 0);
            }
            assert_eq!(
                schedule.take(ms(at), 0).unwrap().texts.len(),
                size,
                "{max_batch_tokens} {milliseconds}"
            );
        }
    }

    #[test]
    fn long_texts_run_after_those_that_arrive_soon_after_them() {
        // 16 times 60 ms.
        for (at, first) in [(900, "short"), (1000, "long")] {
            let mut schedule = schedule(1, 0, true);
            add(&mut schedule, 0, &[600], "long");
            add(&mut schedule, at, &[18], "short");
            assert_eq!(take_all(&mut schedule, at), [(0, vec![first], false)]);
        }
    }

    #[test]
    fn a_single_text_is_before_most_of_a_large_request() {
        let mut schedule = schedule(1, 0, true);
        add(&mut schedule, 0, &[18; 100], "large");
        assert_eq!(take_all(&mut schedule, 0), [(0, vec!["large"; 19], false)]);
        add(&mut schedule, 20, &[18], "single");
        schedule.done(ms(35), 0);
        // It waits for as many others as make an efficient batch: a quarter of 350 tokens.
        assert_eq!(take_all(&mut schedule, 35), [(0, vec!["single", "large", "large", "large"], false)]);
    }

    #[test]
    fn workers_for_short_texts_share_the_cores_of_long_ones() {
        let mut schedule = schedule(2, 2, false);
        add(&mut schedule, 0, &[18], "a");
        add(&mut schedule, 0, &[600], "b");
        assert_eq!(take_all(&mut schedule, 0), [(0, vec!["a"], false), (1, vec!["b"], false)]);
        add(&mut schedule, 1, &[600], "c");
        assert_eq!(take_all(&mut schedule, 1), []);
        add(&mut schedule, 1, &[18], "d");
        assert_eq!(take_all(&mut schedule, 1), [(2, vec!["d"], false)]);
        // One core runs a long text, and has a second worker already.
        add(&mut schedule, 1, &[18], "e");
        assert_eq!(take_all(&mut schedule, 1), []);
        schedule.done(ms(2), 0);
        assert_eq!(take_all(&mut schedule, 2), [(0, vec!["e"], false)]);
        schedule.done(ms(4), 0);
        assert_eq!(take_all(&mut schedule, 4), [(0, vec!["c"], false)]);
    }

    #[test]
    fn the_texts_of_a_cancelled_request_do_not_run() {
        let mut schedule = schedule(1, 0, false);
        let large = add(&mut schedule, 0, &[18, 600, 18], "large");
        add(&mut schedule, 0, &[18], "single");
        assert_eq!((schedule.waiting_texts(), schedule.waiting_tokens()), (4, 654));
        assert_eq!(schedule.waiting_time(), Duration::from_micros(65_400));
        assert_eq!(schedule.cancel(&large), ["large"; 3]);
        assert!(schedule.cancel(&large).is_empty());
        assert_eq!((schedule.waiting_texts(), schedule.waiting_tokens()), (1, 18));
        assert_eq!(take_all(&mut schedule, 0), [(0, vec!["single"], false)]);
    }
}
