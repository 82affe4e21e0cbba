//! The way of texts through the process: reading, tokenizing, planning and encoding run at once, in threads of their
//! own with short queues between them, so that the encoder never waits and memory does not grow with the input.
//!
//! ```text
//! read ──chunks──► tokenize ──chunks, in order──► plan ──batches──► encode ──► whoever takes the windows, in order
//! ```
//!
//! A window is what is planned at once: some batches of texts. Its results may come in any order; windows
//! themselves are handed over in the order of input, and no more than three are on their way.

use std::iter;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use serde_json::Value;

use super::Limits;
use super::records::Records;
use super::resume::Mark;
use crate::field::FieldValue;
use crate::input::{Entry, Record, Spot};
use crate::nn::{Encoder, keep_memory};
use crate::run::threads::{single, spawn};
use crate::run::{Chunk, Embedded, Embedder, Tokens, Unfit};
use crate::text::plan;

/// Records that are tokenized at once.
const CHUNK_RECORDS: usize = 64;
/// The same in bytes of text: long texts are tokenized one by one.
pub const CHUNK_BYTES: usize = 1 << 18;
/// A text of so many bytes is tokenized while no other of its kind is.
const LONG_TEXT: usize = 1 << 20;
/// How long the planner waits for more texts of a stream before it sends off those that it has, while the encoder is busy.
const PATIENCE: Duration = Duration::from_millis(100);
/// The same while the encoder is idle: long enough for texts that come all at once to be encoded together.
const IDLE_PATIENCE: Duration = Duration::from_millis(1);

/// A thread of the run has panicked, and has said on standard error over what.
pub fn died<E>(_: E) -> Error {
    anyhow!("a thread has died; please report this as a bug")
}

/// What work gives, or an error where it panics: those who wait for the rest of a queue would wait forever if its thread died.
fn caught<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(died(())))
}

/// What comes out of the flow.
pub enum Step {
    /// The next records.
    Window(Window),
    /// There are no more. A flow that ends without it has lost a thread.
    End,
}

/// Records that are planned and encoded together.
pub struct Window {
    /// In the order of input.
    pub items: Vec<Item>,
    /// How many batches its texts make.
    pub batches: usize,
    /// What each batch becomes, in any order.
    pub results: Receiver<Result<BatchRows>>,
}

/// What a batch becomes: the places of its texts in [`Window::items`], and their rows.
pub type BatchRows = Vec<(usize, Vec<Embedded>)>;

/// A record without its text, or where it has many chunks, a part of it.
pub struct Item {
    /// Where it stands.
    pub place: Spot,
    /// The input's own id.
    pub id: Option<Value>,
    /// The fields that are carried through.
    pub kept: Arc<Vec<FieldValue>>,
    /// Whether there is nothing in its text but white space.
    pub is_empty: bool,
    /// What became of its text.
    pub fate: Fate,
    /// Where in the input the record ends.
    pub end: Mark,
    /// Whether nothing of the record comes after it.
    pub is_last: bool,
}

/// What becomes of a record.
pub enum Fate {
    /// It is encoded.
    Encoded {
        /// Tokens that are encoded.
        tokens: usize,
        /// Tokens that the limit cut off.
        cut: usize,
        /// Sequences that it is encoded in.
        windows: usize,
        /// Its chunks, a row each; none: it is one row.
        chunks: Vec<Chunk>,
    },
    /// It cannot be read, or not be tokenized.
    Failed(String),
    /// It is empty, and such records are not wanted.
    Empty,
    /// It has so many tokens, which are more than is wanted.
    TooLong(usize, String),
    /// It has no tokens, so there is nothing to encode.
    NoTokens,
}

/// A record that has been read, with the position in the input after it.
struct Read {
    entry: Entry,
    is_taken: bool,
    end: Mark,
}

/// A record that has been tokenized.
type Prepared = (Item, Option<Tokens>);
/// Records on their way to a tokenizer, and where it puts them.
type Bundle = (Vec<Read>, Sender<Result<Vec<Prepared>>>);

/// What the reader hands to the planner: where the next chunk will be once it is tokenized, or that there is none.
enum Turn {
    Chunk(Receiver<Result<Vec<Prepared>>>),
    End,
}

/// Texts that are encoded together.
struct Job {
    /// Their places in the window.
    slots: Vec<usize>,
    texts: Vec<Tokens>,
    results: Sender<Result<BatchRows>>,
}

/// Starts the threads, and gives the windows in the order of input, and then the end or an error. `start` is where `records`
/// stand; `meter` is told how busy the encoder is.
///
/// # Errors
/// If the system grants no threads.
pub fn start(
    records: Records,
    start: Mark,
    embedder: Arc<Embedder>,
    limits: Limits,
    meter: Arc<Meter>,
) -> Result<Receiver<Result<Step>>> {
    let (to_tokenizers, from_reader) = bounded::<Bundle>(limits.tokenizers);
    let (to_planner, in_order) = bounded(limits.queue());
    let (to_taker, windows) = bounded(1);
    let is_live = records.is_live();
    spawn("read", move || read(records, start, &limits, &to_tokenizers, &to_planner))?;
    let alone = Arc::new(Mutex::new(()));
    for _ in 0..limits.tokenizers {
        let (chunks, embedder, alone) = (from_reader.clone(), embedder.clone(), alone.clone());
        spawn("tokenize", move || {
            for (chunk, done) in chunks {
                let prepare = |read| prepare(&embedder, read, &alone, limits.batch_tokens);
                // Whoever has hung up wants no more.
                let _ = done.send(caught(|| Ok(chunk.into_iter().flat_map(prepare).collect())));
            }
        })?;
    }
    let pending = Arc::new(AtomicUsize::new(0));
    let encoder = Workers { embedder, meter, threads: limits.threads, jobs: None, pending };
    let next = Vec::new();
    spawn("plan", move || Planner { limits, encoder, is_live, to_taker, next }.run(&in_order))?;
    Ok(windows)
}

/// Reads records and hands them to the tokenizers chunk by chunk, and the tokenizers' answers to the planner in order.
fn read(
    mut records: Records,
    mut mark: Mark,
    limits: &Limits,
    to_tokenizers: &Sender<Bundle>,
    to_planner: &Sender<Turn>,
) {
    let send = |chunk: Vec<Read>| {
        let (done, prepared) = bounded(1);
        to_planner.send(Turn::Chunk(prepared)).is_ok() && to_tokenizers.send((chunk, done)).is_ok()
    };
    let most = if records.is_stream() { 1 } else { CHUNK_RECORDS };
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    loop {
        match records.next() {
            Some(Ok((entry, position))) => {
                mark = mark.after(&entry, position);
                let is_taken = records.takes(&entry);
                let (entry, size) = limits.within(entry);
                bytes += size;
                chunk.push(Read { entry, is_taken, end: mark.clone() });
                if chunk.len() >= most || bytes >= CHUNK_BYTES {
                    bytes = 0;
                    if !send(mem::take(&mut chunk)) {
                        return;
                    }
                }
            }
            Some(Err(error)) => {
                let (failed, prepared) = bounded(1);
                let _ = failed.send(Err(error));
                // What was read before the failure comes first.
                if send(chunk) {
                    let _ = to_planner.send(Turn::Chunk(prepared));
                }
                return;
            }
            None => {
                if send(chunk) {
                    let _ = to_planner.send(Turn::End);
                }
                return;
            }
        }
    }
}

/// Tokenizes a record. One of many chunks is given in parts of at most `part_tokens` tokens.
fn prepare(
    embedder: &Embedder,
    Read { entry, is_taken, end }: Read,
    alone: &Mutex<()>,
    part_tokens: usize,
) -> Vec<Prepared> {
    let item = |place, fate| {
        let (id, kept, end) = (None, Arc::default(), end.clone());
        Item { place, id, kept, is_empty: false, fate, end, is_last: true }
    };
    let record = match entry {
        Entry::Record(record) => record,
        Entry::Unreadable(bad) => return vec![(item(bad.place, Fate::Failed(bad.reason)), None)],
    };
    let is_empty = record.is_empty();
    if !is_taken {
        return vec![(Item { is_empty, ..item(record.place, Fate::Empty) }, None)];
    }
    // A tokenizer takes many times the memory of a long text: one at a time.
    let alone = (record.text.len() > LONG_TEXT).then(|| alone.lock().unwrap_or_else(PoisonError::into_inner));
    let tokenized = embedder.tokenize(&record);
    drop(alone);
    let Record { place, id, kept, .. } = record;
    let fate = match tokenized {
        Ok(tokens) => {
            let (mut parts, kept) = (tokens.parts(part_tokens).into_iter().peekable(), Arc::new(kept));
            return iter::from_fn(|| {
                let part = parts.next()?;
                let (tokens, cut, windows) = (part.count(), part.cut(), part.windows.len());
                let fate = Fate::Encoded { tokens, cut, windows, chunks: part.chunks().cloned().collect() };
                let (place, id, kept, end) = (place.clone(), id.clone(), kept.clone(), end.clone());
                let is_last = parts.peek().is_none();
                Some((Item { place, id, kept, is_empty, fate, end, is_last }, Some(part)))
            })
            .collect();
        }
        Err(Unfit::Tokens(reason)) => Fate::Failed(reason),
        Err(Unfit::Empty) => Fate::NoTokens,
        Err(Unfit::Long { tokens, reason }) => Fate::TooLong(tokens, reason),
    };
    vec![(Item { id, kept: Arc::new(kept), is_empty, ..item(place, fate) }, None)]
}

/// Gathers records into windows and deals their texts out to batches.
struct Planner {
    limits: Limits,
    encoder: Workers,
    /// Whether each text is to be answered before the next may come.
    is_live: bool,
    to_taker: Sender<Result<Step>>,
    next: Vec<Prepared>,
}

impl Planner {
    /// Plans until the input ends, and says how it ended.
    fn run(&mut self, in_order: &Receiver<Turn>) {
        let last = match self.plan(in_order) {
            Ok(true) => Ok(Step::End),
            // Nobody takes the windows any more.
            Ok(false) => return,
            Err(error) => Err(error),
        };
        let _ = self.to_taker.send(last);
    }

    /// Plans all there is; false if nobody takes it.
    fn plan(&mut self, in_order: &Receiver<Turn>) -> Result<bool> {
        let (mut tokens, mut rows, mut bytes) = (0, 0, 0);
        loop {
            let Some(turn) = self.wait(in_order)? else {
                (tokens, rows, bytes) = (0, 0, 0);
                if !self.send()? {
                    return Ok(false);
                }
                continue;
            };
            let Turn::Chunk(prepared) = turn else { return self.send() };
            let prepared = match prepared.recv().map_err(died)? {
                Ok(prepared) => prepared,
                // What came before it first.
                Err(error) => return if self.send()? { Err(error) } else { Ok(false) },
            };
            for (item, text) in prepared {
                tokens += text.as_ref().map_or(0, Tokens::count);
                rows += text.as_ref().map_or(1, Tokens::rows);
                bytes += item.kept.iter().map(FieldValue::bytes).sum::<usize>();
                self.next.push((item, text));
                let full = tokens >= self.limits.window_tokens || rows >= self.limits.window_rows;
                if full || bytes >= self.limits.window_bytes {
                    (tokens, rows, bytes) = (0, 0, 0);
                    if !self.send()? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// What comes next; none if the texts that are there are not to wait for it.
    fn wait(&self, in_order: &Receiver<Turn>) -> Result<Option<Turn>> {
        if self.next.is_empty() {
            return in_order.recv().map(Some).map_err(died);
        }
        let since = Instant::now();
        let slice = if self.is_live { IDLE_PATIENCE } else { PATIENCE };
        loop {
            match in_order.recv_timeout(slice) {
                Ok(turn) => return Ok(Some(turn)),
                Err(RecvTimeoutError::Timeout) => {
                    if since.elapsed() >= PATIENCE || self.is_live && self.encoder.is_idle() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(died(error)),
            }
        }
    }

    /// Sends the window off and has its texts encoded; false if nobody takes it.
    fn send(&mut self) -> Result<bool> {
        let prepared = mem::take(&mut self.next);
        if prepared.is_empty() {
            return Ok(true);
        }
        let (items, texts): (Vec<Item>, Vec<Option<Tokens>>) = prepared.into_iter().unzip();
        let (slots, mut texts): (Vec<usize>, Vec<Option<Tokens>>) =
            texts.into_iter().enumerate().filter(|(_, text)| text.is_some()).unzip();
        let lengths: Vec<usize> = texts.iter().flatten().map(Tokens::count).collect();
        let threads = self.limits.threads;
        let batches = plan(&lengths, self.limits.batch_tokens, threads);
        let (done, results) = bounded(batches.len());
        // Too few texts for the workers: each is encoded by all of them.
        let wide = batches.len() < threads && self.limits.may_share;
        let count = batches.len();
        if self.to_taker.send(Ok(Step::Window(Window { items, batches: count, results }))).is_err() {
            return Ok(false);
        }
        for batch in batches {
            let job = Job {
                slots: batch.iter().map(|&text| slots[text]).collect(),
                texts: batch.iter().filter_map(|&text| texts[text].take()).collect(),
                results: done.clone(),
            };
            if wide {
                self.encoder.run_wide(job);
            } else {
                self.encoder.send(job)?;
            }
        }
        Ok(true)
    }
}

/// Threads that encode, one batch each: they share nothing but the weights and wait for nobody.
struct Workers {
    embedder: Arc<Embedder>,
    meter: Arc<Meter>,
    threads: usize,
    /// The queue before the workers, once there are any.
    jobs: Option<Sender<Job>>,
    /// Batches that are on their way to the workers or with them.
    pending: Arc<AtomicUsize>,
}

impl Workers {
    /// Whether nothing is encoded now, nor waits for it.
    fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    fn send(&mut self, job: Job) -> Result<()> {
        let jobs = match &self.jobs {
            Some(jobs) => jobs,
            None => self.jobs.insert(self.start()?),
        };
        self.pending.fetch_add(1, Ordering::AcqRel);
        jobs.send(job).map_err(died)
    }

    fn start(&self) -> Result<Sender<Job>> {
        keep_memory();
        let (jobs, queue) = bounded::<Job>(self.threads);
        for index in 0..self.threads {
            let worker = single()?;
            let (queue, embedder, meter) = (queue.clone(), self.embedder.clone(), self.meter.clone());
            let pending = self.pending.clone();
            // A pool that is dropped lives on until its work is done.
            worker.spawn(move || {
                let encoder = &embedder.encoders[index % embedder.encoders.len()];
                queue.into_iter().for_each(|job| {
                    job.run(&embedder, encoder, &meter, 1);
                    pending.fetch_sub(1, Ordering::AcqRel);
                });
            });
        }
        Ok(jobs)
    }

    /// Encodes a batch with all threads.
    fn run_wide(&self, job: Job) {
        rayon::scope(|_| job.run(&self.embedder, &self.embedder.encoders[0], &self.meter, self.threads));
    }
}

impl Job {
    fn run(self, embedder: &Embedder, encoder: &Encoder, meter: &Meter, threads: usize) {
        let at_work = meter.enter(threads);
        let result = caught(|| embedder.embed(&self.texts, encoder))
            .map(|rows| self.slots.into_iter().zip(rows).collect());
        drop(at_work);
        let _ = self.results.send(result);
    }
}

/// Measures how many of the encoder's threads are at work.
pub struct Meter {
    threads: usize,
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    first: Option<Instant>,
    last: Instant,
    at_work: usize,
    busy: f64,
}

impl Meter {
    /// A meter of so many threads, none of which is at work.
    pub fn new(threads: usize) -> Self {
        let state = State { first: None, last: Instant::now(), at_work: 0, busy: 0.0 };
        Meter { threads, state: Mutex::new(state) }
    }

    /// Counts threads as at work until the value is dropped.
    fn enter(&self, threads: usize) -> AtWork<'_> {
        self.change(|at_work| at_work + threads);
        AtWork(self, threads)
    }

    fn change(&self, change: impl FnOnce(usize) -> usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.first.get_or_insert(now);
        state.busy += (now - state.last).as_secs_f64() * state.at_work.min(self.threads) as f64;
        state.last = now;
        state.at_work = change(state.at_work);
    }

    /// Seconds from the beginning of the first batch to the end of the last, and the part of them in which threads had
    /// nothing to do, from 0 to 1.
    pub fn read(&self) -> (f64, f64) {
        let state = *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = state.first.map_or(0.0, |first| (state.last - first).as_secs_f64());
        let most = seconds * self.threads as f64;
        (seconds, if most > 0.0 { 1.0 - state.busy / most } else { 0.0 })
    }
}

struct AtWork<'a>(&'a Meter, usize);

impl Drop for AtWork<'_> {
    fn drop(&mut self) {
        self.0.change(|at_work| at_work - self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_for_those_who_wait() {
        let error = caught::<()>(|| panic!("on purpose")).unwrap_err().to_string();
        assert_eq!(error, died(()).to_string());
        assert_eq!(caught(|| Ok(1)).unwrap(), 1);
    }
}
