//! Texts of many callers at once, for a server: each caller hands over a call and gets an answer, whatever the others do.
//!
//! ```text
//! calls ──► tokenize ──► schedule ──batches──► encode, finish ──► answers
//! ```
//!
//! Everything but the caller's own work happens on the workers: the tokenizing of a call, its batches, and what becomes of its rows.
//! A call whose [`Ticket`] is dropped has no caller any more: its texts are left out of batches.

#[cfg(test)]
mod tests;

use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use rayon::ThreadPool;

use super::dispatcher::{Dispatcher, Order, own_pools, start_workers};
use super::schedule::{Capacity, Request, Run, SHARING_WORKER, Schedule};
use super::task::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TextError, TokenizeError};
use super::utilization::Utilization;
use super::wave::EncodedText;
use super::workers::run;
use crate::sys::threads::{panic_to_error, thread_pool};
use crate::text::{OnLong, Role, TokenizedText, TruncationSide};

/// Bytes of texts that are tokenized at once, so that a large call does not keep a worker from the batches of others.
const TOKENIZED_BYTES: usize = 1 << 15;
/// Bytes that a shorter text counts as there: it takes no less time.
const MIN_TEXT_BYTES: usize = 32;

/// A task in a queue, whatever its outputs.
pub trait QueuedTask: Send + Sync {
    /// Tokenizes a text.
    ///
    /// # Errors
    /// [`TokenizeError`] if the text cannot be encoded.
    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError>;

    /// Refuses options that the task does not have.
    ///
    /// # Errors
    /// The first such option.
    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError>;

    /// The rows of texts, in order.
    fn rows(
        &self,
        texts: &[TokenizedText],
        options: &[RowOptions],
        worker: usize,
    ) -> Result<Vec<Vec<TaskRow>>>;

    /// The time that a token takes, as a multiple of what it takes in the fastest task of the queue.
    fn cost(&self) -> f64;
}

/// A task with the tokens of its forward passes.
pub struct QueueTask<T> {
    task: Arc<T>,
    batch_tokens: usize,
    cost: f64,
}

impl<T: Task> QueueTask<T> {
    /// A task whose forward passes have at most `batch_tokens` tokens, unless a single sequence has more. `cost`: see
    /// [`QueuedTask::cost`].
    pub fn new(task: Arc<T>, batch_tokens: usize, cost: f64) -> Self {
        task.on_workers_start();
        QueueTask { task, batch_tokens, cost }
    }
}

impl<T: Task> QueuedTask for QueueTask<T> {
    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        self.task.tokenize(input)
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        self.task.check(options)
    }

    fn rows(
        &self,
        texts: &[TokenizedText],
        options: &[RowOptions],
        worker: usize,
    ) -> Result<Vec<Vec<TaskRow>>> {
        run(&*self.task, texts, options.iter(), self.batch_tokens, worker)
    }

    fn cost(&self) -> f64 {
        self.cost
    }
}

/// A [`TaskInput`] that outlives its caller's request.
#[derive(Debug, Clone, Default)]
pub struct OwnedInput {
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
    /// The query or the question that the text is read for.
    pub query: Option<Arc<str>>,
    /// What the text is.
    pub role: Option<Role>,
    /// What is put before the text.
    pub prompt: Option<Arc<str>>,
    /// What becomes of the text if it is over the limit.
    pub on_long: Option<OnLong>,
    /// The end at which it is truncated then.
    pub truncation_side: Option<TruncationSide>,
    /// Whether it has a vector for each token.
    pub per_token: bool,
}

impl OwnedInput {
    fn input(&self) -> TaskInput<'_> {
        TaskInput {
            text: &self.text,
            pair: self.pair.as_deref(),
            query: self.query.as_deref(),
            role: self.role,
            prompt: self.prompt.as_deref(),
            on_long: self.on_long,
            truncation_side: self.truncation_side,
            per_token: self.per_token,
        }
    }

    /// Bytes of the text and its pair.
    pub fn bytes(&self) -> usize {
        self.text.len() + self.pair.as_ref().map_or(0, String::len)
    }
}

/// Texts for a task.
pub struct Call {
    /// What encodes them.
    pub task: Arc<dyn QueuedTask>,
    /// The texts, one or more.
    pub inputs: Vec<OwnedInput>,
    /// What the caller asks of the rows: options that the task has.
    pub options: RowOptions,
}

/// What a call becomes: a result for each text in order, or the error of the first one that has none.
pub type Answer = Result<Answered>;

/// The texts of a call.
pub struct Answered {
    /// The texts with their rows.
    pub texts: Vec<EncodedText>,
    /// Where the time has gone.
    pub times: CallTimes,
}

/// The time of a call by stage, since it was handed over. Tokenizing and encoding are sums over its texts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTimes {
    /// From the call to the first batch.
    pub queue: Duration,
    /// In the tokenizer.
    pub tokenize: Duration,
    /// In batches: of each batch, the part that the call has of its tokens.
    pub encode: Duration,
}

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
    /// Tokens that were encoded after their caller had gone: of the tokens of a batch, the part of its time that was left then.
    pub unclaimed: u64,
    /// Busy time, summed over cores.
    pub busy: Duration,
}

type Reply = Box<dyn FnOnce(Answer) + Send>;

/// A call that has no answer yet.
struct Pending {
    task: Arc<dyn QueuedTask>,
    inputs: Vec<OwnedInput>,
    options: RowOptions,
    since: Instant,
    /// Texts without rows.
    missing: AtomicUsize,
    progress: Mutex<Progress>,
    /// `None`: the caller has its answer, or has gone.
    reply: Mutex<Option<Reply>>,
    /// When the caller has gone without an answer.
    gone_at: OnceLock<Instant>,
}

struct Progress {
    request: Request,
    /// The number of texts that were tokenized.
    tokenized: usize,
    /// The first text that is too long, with the number of those after it.
    too_long: Option<TextError>,
    /// The texts that were tokenized, unless one is too long.
    texts: Vec<EncodedText>,
    times: CallTimes,
}

impl Pending {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_reply(&self) -> Option<Reply> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether a caller waits for the answer.
    fn is_awaited(&self) -> bool {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    fn fail(&self, error: Error) {
        self.answer(|| Err(error));
    }

    /// Answers, if a caller waits for it. A caller whose reply panics is told so by the channel that it waits for; the worker goes on.
    fn answer(&self, answer: impl FnOnce() -> Answer) {
        if let Some(reply) = self.take_reply() {
            let _ = panic_to_error(|| {
                reply(answer());
                Ok(())
            });
        }
    }

    /// Puts the rows of a text into their place, and returns whether they were the last ones.
    fn place(&self, index: usize, rows: Vec<TaskRow>) -> bool {
        let _ = self.progress().texts[index].rows.set(rows);
        self.missing.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Answers with the rows of all texts.
    fn complete(&self) {
        self.answer(|| {
            let mut progress = self.progress();
            Ok(Answered { texts: mem::take(&mut progress.texts), times: progress.times })
        });
    }
}

/// Some texts of a call.
struct Tokenized {
    /// Those that are not too long.
    texts: Vec<TokenizedText>,
    /// The number of all.
    count: usize,
    /// The first one that is too long, with the number of those after it.
    too_long: Option<TextError>,
}

impl Tokenized {
    /// Tokenizes texts of a call from the one with the index `first` on.
    ///
    /// # Errors
    /// [`TextError`] for the first text that cannot be tokenized, whatever its length.
    fn some(call: &Pending, first: usize) -> Result<Self> {
        let (mut bytes, mut some) = (0, Tokenized { texts: Vec::new(), count: 0, too_long: None });
        for (index, input) in call.inputs.iter().enumerate().skip(first) {
            match panic_to_error(|| Ok(call.task.tokenize(&input.input())))? {
                Ok(text) => some.texts.push(text),
                Err(error @ TokenizeError::TooLong { .. }) => {
                    let error = TextError::new(index, error);
                    some.too_long = Some(some.too_long.map_or(error.clone(), |first| first.with(&error)));
                }
                Err(error) => return Err(TextError::new(index, error).into()),
            }
            some.count += 1;
            bytes += input.bytes().max(MIN_TEXT_BYTES);
            if bytes >= TOKENIZED_BYTES {
                break;
            }
        }
        Ok(some)
    }
}

/// A text that waits for a batch.
struct Waiting {
    call: Arc<Pending>,
    index: usize,
    text: TokenizedText,
}

struct Shared {
    dispatcher: Dispatcher<Schedule<Waiting>>,
    /// The thread on which the worker that shares batches runs the others. Its own is one of those that share.
    alone: Option<ThreadPool>,
    utilization: Utilization,
    batches: AtomicU64,
    texts: AtomicU64,
    tokens: AtomicU64,
    cancelled: AtomicU64,
    unclaimed: AtomicU64,
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
        let mut pools = own_pools(0..workers, "serve")?;
        let alone = match capacity.can_share {
            true => Some(mem::replace(&mut pools[SHARING_WORKER], thread_pool(threads, "share")?)),
            false => None,
        };
        let shared = Arc::new(Shared {
            dispatcher,
            alone,
            utilization: Utilization::new(capacity.workers),
            batches: AtomicU64::new(0),
            texts: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            unclaimed: AtomicU64::new(0),
        });
        let queue = Queue { shared: shared.clone() };
        start_workers(pools, move |worker| {
            shared.dispatcher.work(worker, |run| shared.run(run, worker));
        });
        Ok(queue)
    }

    /// Hands over a call. `reply` is called once, on a worker, unless the ticket is dropped before.
    pub fn submit(&self, call: Call, reply: impl FnOnce(Answer) + Send + 'static) -> Ticket {
        let Call { task, inputs, options } = call;
        let now = self.shared.dispatcher.now();
        let progress = Progress {
            request: self.shared.dispatcher.change(|schedule| schedule.arrive(now)),
            tokenized: 0,
            too_long: None,
            texts: Vec::with_capacity(inputs.len()),
            times: CallTimes::default(),
        };
        let call = Arc::new(Pending {
            task,
            missing: AtomicUsize::new(inputs.len()),
            inputs,
            options,
            since: Instant::now(),
            progress: Mutex::new(progress),
            reply: Mutex::new(Some(Box::new(reply))),
            gone_at: OnceLock::new(),
        });
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

impl Shared {
    fn tokenize_later(self: &Arc<Self>, call: Arc<Pending>) {
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

    /// Removes the texts of a call that wait, and returns their number, with those that are not tokenized yet.
    fn cancel(&self, call: &Pending) -> usize {
        let progress = call.progress();
        let waiting = self.dispatcher.change(|schedule| schedule.cancel(&progress.request));
        waiting.len() + call.inputs.len() - progress.tokenized
    }

    /// Encodes the texts of a run whose callers wait.
    fn run(&self, run: Run<Waiting>, worker: usize) {
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
        let seconds = start.elapsed().as_secs_f64();
        let since_gone = |call: &Pending| call.gone_at.get().map_or(0.0, |at| at.elapsed().as_secs_f64());
        match rows {
            Ok(rows) => {
                let tokens: usize = texts.iter().map(TokenizedText::token_count).sum();
                self.batches.fetch_add(1, Ordering::Relaxed);
                self.texts.fetch_add(texts.len() as u64, Ordering::Relaxed);
                self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
                let mut complete = Vec::new();
                for (waiting, rows) in waiting.iter().zip(rows) {
                    let call = &waiting.call;
                    let mut progress = call.progress();
                    if progress.times.encode.is_zero() {
                        progress.times.queue = since.saturating_duration_since(call.since);
                    }
                    let part = waiting.text.token_count() as f64 / tokens.max(1) as f64;
                    progress.times.encode += Duration::from_secs_f64(seconds * part);
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
            // Alone, so that only the call at fault fails.
            Err(_) if waiting.len() > 1 => {
                let awaited = waiting.chunks(1).filter(|one| one[0].call.is_awaited());
                awaited.for_each(|one| self.encode(one, is_shared, worker, since));
            }
            Err(error) => self.fail(&waiting[0].call, error),
        }
    }
}
