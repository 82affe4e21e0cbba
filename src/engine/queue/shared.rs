//! What the workers of a queue do: they tokenize calls and encode batches.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Error;
use rayon::ThreadPool;

use super::pending::{Pending, Tokenized};
use crate::engine::dispatcher::Dispatcher;
use crate::engine::schedule::{Run, SHARING_WORKER, Schedule};
use crate::engine::task::{RowOptions, TaskRow};
use crate::engine::utilization::Utilization;
use crate::engine::wave::EncodedText;
use crate::sys::threads::panic_to_error;
use crate::text::TokenizedText;

/// A text that waits for a batch.
pub(super) struct Waiting {
    pub call: Arc<Pending>,
    pub index: usize,
    pub text: TokenizedText,
}

/// What the workers of a queue share.
pub(super) struct Shared {
    pub dispatcher: Dispatcher<Schedule<Waiting>>,
    /// The thread on which the worker that shares batches runs the others. Its own is one of those that
    /// share.
    alone: Option<ThreadPool>,
    pub utilization: Utilization,
    pub batches: AtomicU64,
    pub texts: AtomicU64,
    pub tokens: AtomicU64,
    pub cancelled: AtomicU64,
    pub unclaimed: AtomicU64,
}

impl Shared {
    pub(super) fn new(
        dispatcher: Dispatcher<Schedule<Waiting>>,
        alone: Option<ThreadPool>,
        cores: usize,
    ) -> Self {
        Shared {
            dispatcher,
            alone,
            utilization: Utilization::new(cores),
            batches: AtomicU64::new(0),
            texts: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            unclaimed: AtomicU64::new(0),
        }
    }

    pub(super) fn tokenize_later(self: &Arc<Self>, call: Arc<Pending>) {
        let shared = self.clone();
        self.dispatcher.add_work(Box::new(move || shared.tokenize(call)));
    }

    /// Tokenizes some texts of a call. The others wait behind the work of other calls.
    fn tokenize(self: &Arc<Self>, call: Arc<Pending>) {
        if !call.is_awaited() {
            return;
        }
        let since = Instant::now();
        let first = call.progress().tokenized;
        let some = match Tokenized::some(&call, first) {
            Ok(some) => some,
            Err(error) => return self.fail(&call, error),
        };
        let mut progress = call.progress();
        if !call.is_awaited() {
            return;
        }
        progress.times.tokenize += since.elapsed();
        progress.tokenized += some.count;
        let is_last = progress.tokenized == call.inputs.len();
        progress.too_long = match (progress.too_long.take(), some.too_long) {
            (Some(first), Some(next)) => Some(first.with(&next)),
            (first, next) => first.or(next),
        };
        match &progress.too_long {
            // The others are counted, but not encoded.
            Some(_) => {
                self.dispatcher.change(|schedule| schedule.cancel(&progress.request));
            }
            None => {
                progress.texts.extend(some.texts.iter().map(EncodedText::new));
                self.dispatcher.change_in_work(|schedule| {
                    for (index, text) in (first..).zip(some.texts) {
                        let tokens = (text.token_count() as f64 * call.task.cost()) as usize;
                        let waiting = Waiting { call: call.clone(), index, text };
                        schedule.add(&mut progress.request, tokens, waiting);
                    }
                });
            }
        }
        let error = progress.too_long.take_if(|_| is_last);
        drop(progress);
        match error {
            Some(error) => self.fail(&call, error.into()),
            None if is_last => {}
            None => self.tokenize_later(call),
        }
    }

    /// Answers a call with an error, and forgets its texts.
    fn fail(&self, call: &Pending, error: Error) {
        self.cancel(call);
        call.fail(error);
    }

    /// Removes the texts of a call that wait, and returns their number, with those that are not tokenized
    /// yet.
    pub(super) fn cancel(&self, call: &Pending) -> usize {
        let progress = call.progress();
        let waiting = self.dispatcher.change(|schedule| schedule.cancel(&progress.request));
        waiting.len() + call.inputs.len() - progress.tokenized
    }

    /// Encodes the texts of a run whose callers wait.
    pub(super) fn run(&self, run: Run<Waiting>, worker: usize) {
        let since = Instant::now();
        let (texts, gone): (Vec<_>, Vec<_>) =
            run.texts.into_iter().partition(|waiting| waiting.call.is_awaited());
        self.cancelled.fetch_add(gone.len() as u64, Ordering::Relaxed);
        let threads = if run.is_shared { rayon::current_num_threads() } else { 1 };
        let _busy = self.utilization.enter(threads);
        for texts in texts.chunk_by(|a, b| Arc::ptr_eq(&a.call.task, &b.call.task)) {
            self.encode(texts, run.is_shared, worker, since);
        }
    }

    /// Encodes texts of one task.
    fn encode(&self, waiting: &[Waiting], is_shared: bool, worker: usize, since: Instant) {
        let texts: Vec<TokenizedText> = waiting.iter().map(|waiting| waiting.text.clone()).collect();
        let options: Vec<RowOptions> = waiting.iter().map(|waiting| waiting.call.options).collect();
        let task = &waiting[0].call.task;
        let encode = || panic_to_error(|| task.rows(&texts, &options, worker));
        let start = Instant::now();
        let rows = match &self.alone {
            Some(alone) if worker == SHARING_WORKER && !is_shared => alone.install(encode),
            _ => encode(),
        };
        let duration = start.elapsed();
        match rows {
            Ok(rows) => self.place(waiting, rows, since, duration),
            // Alone, so that only the call at fault fails.
            Err(_) if waiting.len() > 1 => {
                let awaited = waiting.chunks(1).filter(|one| one[0].call.is_awaited());
                awaited.for_each(|one| self.encode(one, is_shared, worker, since));
            }
            Err(error) => self.fail(&waiting[0].call, error),
        }
    }
    /// Counts a batch that was encoded in `duration`, and answers the calls that it completes.
    fn place(&self, waiting: &[Waiting], rows: Vec<Vec<TaskRow>>, since: Instant, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let since_gone = |call: &Pending| call.gone_at.get().map_or(0.0, |at| at.elapsed().as_secs_f64());
        let tokens: usize = waiting.iter().map(|waiting| waiting.text.token_count()).sum();
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.texts.fetch_add(waiting.len() as u64, Ordering::Relaxed);
        self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
        let mut complete = Vec::new();
        for (waiting, rows) in waiting.iter().zip(rows) {
            let call = &waiting.call;
            let mut progress = call.progress();
            let (times, waited) = (&mut progress.times, since.saturating_duration_since(call.since));
            times.queue = if times.encode.is_zero() { waited } else { times.queue.min(waited) };
            times.encode = call.since.elapsed().saturating_sub(times.queue);
            drop(progress);
            let gone_part = (since_gone(call) / seconds).min(1.0);
            let unclaimed = (waiting.text.token_count() as f64 * gone_part).round();
            self.unclaimed.fetch_add(unclaimed as u64, Ordering::Relaxed);
            if call.place(waiting.index, rows) {
                complete.push(call);
            }
        }
        // Those with many texts take the longest to write.
        complete.sort_by_key(|call| call.inputs.len());
        complete.into_iter().for_each(|call| call.complete());
    }
}
