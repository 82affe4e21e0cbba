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

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use rayon::ThreadPool;

use super::schedule::{Capacity, Request, Run, Schedule};
use super::task::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TextError, TokenizeError};
use super::wave::EncodedText;
use super::workers::run;
use crate::sys::threads::{panic_to_error, single_thread_pool, thread_pool};
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
    /// Busy time of all workers, in microseconds.
    pub busy_micros: u64,
}

type Reply = Box<dyn FnOnce(Answer) + Send>;
type Work = Box<dyn FnOnce() + Send>;

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
}

struct Progress {
    request: Request,
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

    /// Puts the rows of a text into their place, and answers after the last one.
    fn place(&self, index: usize, rows: Vec<TaskRow>) {
        let _ = self.progress().texts[index].rows.set(rows);
        if self.missing.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        self.answer(|| {
            let mut progress = self.progress();
            Ok(Answered { texts: mem::take(&mut progress.texts), times: progress.times })
        });
    }
}

/// A text that waits for a batch.
struct Waiting {
    call: Arc<Pending>,
    index: usize,
    text: TokenizedText,
}

struct State {
    schedule: Schedule<Waiting>,
    /// Calls to tokenize, and other short work. Each worker does it and batches in turn.
    work: VecDeque<Work>,
    /// Which workers wait to be woken.
    sleeping: Vec<bool>,
    is_stopped: bool,
}

struct Shared {
    state: Mutex<State>,
    /// What wakes each worker.
    wakers: Vec<Condvar>,
    start: Instant,
    /// The threads that share a batch.
    pool: ThreadPool,
    batches: AtomicU64,
    texts: AtomicU64,
    tokens: AtomicU64,
    cancelled: AtomicU64,
    busy_micros: AtomicU64,
}

/// Workers and what waits for them.
pub struct Queue {
    shared: Arc<Shared>,
}

impl Queue {
    /// Starts the workers, and `threads` threads that share the batch of a single text.
    pub fn start(capacity: Capacity, threads: usize) -> Result<Self> {
        let schedule = Schedule::new(capacity);
        let workers = schedule.workers();
        let sleeping = vec![false; workers];
        let state = State { schedule, work: VecDeque::new(), sleeping, is_stopped: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            wakers: (0..workers).map(|_| Condvar::new()).collect(),
            start: Instant::now(),
            pool: thread_pool(threads, "share")?,
            batches: AtomicU64::new(0),
            texts: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            cancelled: AtomicU64::new(0),
            busy_micros: AtomicU64::new(0),
        });
        let queue = Queue { shared };
        for worker in 0..workers {
            // Parallel operations inside of a worker run on its own thread.
            let pool = single_thread_pool(format!("serve-{worker}"))?;
            let shared = queue.shared.clone();
            pool.spawn(move || shared.work(worker));
        }
        Ok(queue)
    }

    /// Hands over a call. `reply` is called once, on a worker, unless the ticket is dropped before.
    pub fn submit(&self, call: Call, reply: impl FnOnce(Answer) + Send + 'static) -> Ticket {
        let Call { task, inputs, options } = call;
        let progress = Progress {
            request: self.shared.lock().schedule.arrive(self.shared.now()),
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
        });
        self.shared.tokenize_later(call.clone());
        Ticket { call, queue: self.shared.clone() }
    }

    /// Runs short work on a worker, which does work and batches in turn.
    pub fn run(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.add_work(Box::new(work));
    }

    /// What waits now.
    pub fn length(&self) -> QueueLength {
        let state = self.shared.lock();
        QueueLength { texts: state.schedule.waiting_texts(), tokens: state.schedule.waiting_tokens() }
    }

    /// The time in which the texts that wait are encoded.
    pub fn waiting_time(&self) -> Duration {
        self.shared.lock().schedule.waiting_time()
    }

    /// What was done so far.
    pub fn counters(&self) -> QueueCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        QueueCounters {
            batches: read(&self.shared.batches),
            texts: read(&self.shared.texts),
            tokens: read(&self.shared.tokens),
            cancelled: read(&self.shared.cancelled),
            busy_micros: read(&self.shared.busy_micros),
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.lock().is_stopped = true;
        self.shared.wakers.iter().for_each(Condvar::notify_one);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn add_work(&self, work: Work) {
        let mut state = self.lock();
        state.work.push_back(work);
        self.wake(&mut state);
    }

    /// Wakes a worker for which there is something to do, if one sleeps. It wakes the next one.
    fn wake(&self, state: &mut State) {
        let has_work = !state.work.is_empty();
        let mut workers = 0..self.wakers.len();
        let next = workers
            .find(|&worker| state.sleeping[worker] && (has_work || state.schedule.has_texts_for(worker)));
        if let Some(worker) = next {
            state.sleeping[worker] = false;
            self.wakers[worker].notify_one();
        }
    }

    fn tokenize_later(self: &Arc<Self>, call: Arc<Pending>) {
        let shared = self.clone();
        self.add_work(Box::new(move || shared.tokenize(call)));
    }

    /// Tokenizes some texts of a call. The others wait behind the work of other calls.
    fn tokenize(self: &Arc<Self>, call: Arc<Pending>) {
        if !call.is_awaited() {
            return;
        }
        let since = Instant::now();
        let first = call.progress().texts.len();
        let (mut bytes, mut tokenized) = (0, Vec::new());
        for (index, input) in call.inputs.iter().enumerate().skip(first) {
            match panic_to_error(|| Ok(call.task.tokenize(&input.input()))) {
                Ok(Ok(text)) => tokenized.push(text),
                Ok(Err(error)) => return self.fail(&call, TextError::new(index, error).into()),
                Err(error) => return self.fail(&call, error),
            }
            bytes += input.bytes().max(MIN_TEXT_BYTES);
            if bytes >= TOKENIZED_BYTES {
                break;
            }
        }
        let last = first + tokenized.len();
        let mut progress = call.progress();
        if !call.is_awaited() {
            return;
        }
        progress.times.tokenize += since.elapsed();
        progress.texts.extend(tokenized.iter().map(EncodedText::new));
        let mut state = self.lock();
        for (index, text) in (first..).zip(tokenized) {
            let tokens = (text.token_count() as f64 * call.task.cost()) as usize;
            let waiting = Waiting { call: call.clone(), index, text };
            state.schedule.add(&mut progress.request, tokens.max(1), waiting);
        }
        self.wake(&mut state);
        drop((state, progress));
        if last < call.inputs.len() {
            self.tokenize_later(call);
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
        let waiting = self.lock().schedule.cancel(&progress.request);
        waiting.len() + call.inputs.len() - progress.texts.len()
    }

    /// The loop of a worker.
    fn work(&self, worker: usize) {
        let mut state = self.lock();
        // Work and batches take turns, so that a call with much to tokenize does not stop the batches of others.
        let mut has_worked = false;
        loop {
            if state.is_stopped {
                return;
            }
            let is_batch_next = has_worked || state.work.is_empty();
            let run = if is_batch_next { state.schedule.take(self.now(), worker) } else { None };
            has_worked = false;
            if let Some(run) = run {
                self.wake(&mut state);
                drop(state);
                let _ = panic_to_error(|| {
                    self.run(run, worker);
                    Ok(())
                });
                state = self.lock();
                state.schedule.done(self.now(), worker);
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
            } else {
                state.sleeping[worker] = true;
                state = self.wakers[worker].wait(state).unwrap_or_else(PoisonError::into_inner);
                state.sleeping[worker] = false;
            }
        }
    }

    /// Encodes the texts of a run whose callers wait.
    fn run(&self, run: Run<Waiting>, worker: usize) {
        let since = Instant::now();
        let (texts, gone): (Vec<_>, Vec<_>) =
            run.texts.into_iter().partition(|waiting| waiting.call.is_awaited());
        self.cancelled.fetch_add(gone.len() as u64, Ordering::Relaxed);
        for texts in texts.chunk_by(|a, b| Arc::ptr_eq(&a.call.task, &b.call.task)) {
            self.encode(texts, run.is_shared, worker, since);
        }
        let threads = if run.is_shared { self.pool.current_num_threads() } else { 1 };
        let micros = since.elapsed().as_micros() as u64 * threads as u64;
        self.busy_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// Encodes texts of one task.
    fn encode(&self, waiting: &[Waiting], is_shared: bool, worker: usize, since: Instant) {
        let texts: Vec<TokenizedText> = waiting.iter().map(|waiting| waiting.text.clone()).collect();
        let options: Vec<RowOptions> = waiting.iter().map(|waiting| waiting.call.options).collect();
        let task = &waiting[0].call.task;
        let encode = || panic_to_error(|| task.rows(&texts, &options, worker));
        let start = Instant::now();
        let rows = if is_shared { self.pool.install(encode) } else { encode() };
        let seconds = start.elapsed().as_secs_f64();
        match rows {
            Ok(rows) => {
                let tokens: usize = texts.iter().map(TokenizedText::token_count).sum();
                self.batches.fetch_add(1, Ordering::Relaxed);
                self.texts.fetch_add(texts.len() as u64, Ordering::Relaxed);
                self.tokens.fetch_add(tokens as u64, Ordering::Relaxed);
                for (waiting, rows) in waiting.iter().zip(rows) {
                    let call = &waiting.call;
                    let mut progress = call.progress();
                    if progress.times.encode.is_zero() {
                        progress.times.queue = since.saturating_duration_since(call.since);
                    }
                    let part = waiting.text.token_count() as f64 / tokens.max(1) as f64;
                    progress.times.encode += Duration::from_secs_f64(seconds * part);
                    drop(progress);
                    call.place(waiting.index, rows);
                }
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
