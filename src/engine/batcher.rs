//! The batcher: gathers items into waves and groups their texts into batches.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::batches::balanced_batches;
use super::budget::MemoryBudget;
use super::prepared::Prepared;
use super::repeats::Repeats;
use super::row_cache::key;
use super::task::Task;
use super::wave::{Incoming, Item, Outgoing, SharedRows, Wave};
use super::workers::{Batch, Place, PlannedText, Workers};
use crate::sys::threads::thread_panicked;

/// Maximum time that the batcher waits for more items of a stream while the workers are busy.
const BUSY_WAIT: Duration = Duration::from_millis(100);
/// Maximum time that it waits while they are idle, so that items that arrive together are encoded together.
const IDLE_WAIT: Duration = Duration::from_millis(1);

/// Gathers items into waves.
pub(super) struct Batcher<T, M> {
    budget: MemoryBudget,
    workers: Arc<Workers<T>>,
    is_interactive: bool,
    to_caller: Sender<Result<Outgoing<M>>>,
    /// The next wave.
    next: NextWave<M>,
    /// The rows of texts that were planned.
    repeats: Repeats,
    /// Rows that are not encoded, because an equal text is.
    repeated: Arc<AtomicU64>,
}

/// The items of the next wave, the texts that have to be encoded for them, and its size.
struct NextWave<M> {
    items: Vec<(M, Option<SharedRows>)>,
    texts: Vec<PlannedText>,
    /// Tokens of these texts.
    tokens: usize,
    rows: usize,
    /// Bytes of what the caller carries.
    carried_bytes: usize,
}

impl<M> Default for NextWave<M> {
    fn default() -> Self {
        NextWave { items: Vec::new(), texts: Vec::new(), tokens: 0, rows: 0, carried_bytes: 0 }
    }
}

impl<M> NextWave<M> {
    fn is_full(&self, budget: &MemoryBudget) -> bool {
        self.tokens >= budget.wave_tokens
            || self.rows >= budget.wave_rows
            || self.carried_bytes >= budget.wave_carried_bytes
    }
}

impl<T: Task, M> Batcher<T, M> {
    /// A batcher that sends waves to its caller and batches to the workers.
    pub(super) fn new(
        budget: MemoryBudget,
        workers: Arc<Workers<T>>,
        repeated: Arc<AtomicU64>,
        is_interactive: bool,
        to_caller: Sender<Result<Outgoing<M>>>,
    ) -> Self {
        let repeats = Repeats::new(budget.repeat_bytes);
        Batcher { budget, workers, is_interactive, to_caller, next: NextWave::default(), repeats, repeated }
    }

    /// Plans all items, then sends the caller the end or the error.
    pub(super) fn run(&mut self, items: &Receiver<Incoming<M>>) {
        let last = match self.plan(items) {
            Ok(true) => Ok(Outgoing::End),
            // The caller has ended the run.
            Ok(false) => return,
            Err(error) => Err(error),
        };
        let _ = self.to_caller.send(last);
    }

    /// Plans all items. Returns false if the caller has ended the run.
    fn plan(&mut self, items: &Receiver<Incoming<M>>) -> Result<bool> {
        loop {
            let Some(message) = self.wait(items)? else {
                if !self.send_wave()? {
                    return Ok(false);
                }
                continue;
            };
            let Incoming::Group(group) = message else { return self.send_wave() };
            let group = match group.recv().map_err(thread_panicked)? {
                Ok(group) => group,
                // The rows of the items before the error are returned first.
                Err(error) => return if self.send_wave()? { Err(error) } else { Ok(false) },
            };
            for item in group {
                if !self.add(item)? {
                    return Ok(false);
                }
            }
        }
    }

    /// Adds an item to the next wave, which is sent if it is full. Returns false if the caller has ended the
    /// run.
    pub(super) fn add(&mut self, item: Item<M>) -> Result<bool> {
        let Item { carried, prepared, options, carried_bytes, ends_batch } = item;
        let rows = prepared.map(|prepared| {
            let text = match prepared {
                Prepared::Tokens(text) => text,
                Prepared::Rows(rows) => {
                    self.next.rows += rows.len();
                    return SharedRows::new(OnceLock::from(rows));
                }
            };
            let rows = text.row_count();
            self.next.rows += rows;
            let key = key(&text, &options);
            if let Some(shared) = self.repeats.find(key) {
                self.repeated.fetch_add(rows as u64, Ordering::Relaxed);
                return shared;
            }
            let shared = SharedRows::default();
            let row_bytes = self.budget.row_bytes(&text);
            self.repeats.add(key, shared.clone(), row_bytes);
            self.next.tokens += text.token_count();
            let place = Place { options, key, rows: shared.clone() };
            self.next.texts.push(PlannedText { text, place });
            shared
        });
        self.next.rows += usize::from(rows.is_none());
        self.next.carried_bytes += carried_bytes;
        self.next.items.push((carried, rows));
        // No more items have to come until the caller has the rows of this one. Busy workers would not start
        // with them yet.
        let is_awaited = ends_batch && self.is_interactive && self.workers.is_idle();
        if is_awaited || self.next.is_full(&self.budget) { self.send_wave() } else { Ok(true) }
    }

    /// The next message, or `None` if the gathered items should not wait for it any longer.
    fn wait(&self, items: &Receiver<Incoming<M>>) -> Result<Option<Incoming<M>>> {
        if self.next.items.is_empty() {
            return items.recv().map(Some).map_err(thread_panicked);
        }
        let since = Instant::now();
        let timeout = if self.is_interactive { IDLE_WAIT } else { BUSY_WAIT };
        loop {
            match items.recv_timeout(timeout) {
                Ok(message) => return Ok(Some(message)),
                Err(RecvTimeoutError::Timeout) => {
                    if since.elapsed() >= BUSY_WAIT || self.is_interactive && self.workers.is_idle() {
                        return Ok(None);
                    }
                }
                Err(error) => return Err(thread_panicked(error)),
            }
        }
    }

    /// Sends the gathered items to the caller and their batches to the workers. Returns false if the caller
    /// has ended the run.
    pub(super) fn send_wave(&mut self) -> Result<bool> {
        let NextWave { items, texts, .. } = mem::take(&mut self.next);
        self.repeats.end_wave();
        if items.is_empty() {
            return Ok(true);
        }
        let lengths: Vec<usize> = texts.iter().map(|planned| planned.text.token_count()).collect();
        let batches = balanced_batches(&lengths, self.budget.batch_tokens, self.budget.threads);
        let (to_wave, done) = bounded(batches.len());
        // With fewer batches than workers, the batches run one after another, each on all CPU threads.
        let is_shared = batches.len() < self.budget.threads && self.budget.can_share_batches;
        if !is_shared && !batches.is_empty() {
            // If the system refuses threads, the caller gets that error, and not a wave without results.
            self.workers.start()?;
        }
        let wave = Wave { items, batches: batches.len(), done };
        if self.to_caller.send(Ok(Outgoing::Wave(wave))).is_err() {
            return Ok(false);
        }
        let mut texts: Vec<Option<PlannedText>> = texts.into_iter().map(Some).collect();
        for batch in batches {
            let texts = batch.into_iter().filter_map(|text| texts[text].take()).collect();
            let batch = Batch { texts, done: to_wave.clone() };
            if is_shared {
                self.workers.run_shared(batch)?;
            } else {
                self.workers.send(batch)?;
            }
        }
        Ok(true)
    }
}
