//! The planner thread: gathers records into waves and groups their texts into batches.

use std::mem;
use std::time::{Duration, Instant};

use anyhow::Result;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::budget::MemoryBudget;
use super::messages::{CollectorMessage, PreparedRecord, ReaderMessage, RecordMeta, Wave, thread_panicked};
use super::task::Task;
use super::workers::{Job, Workers};
use crate::field::FieldValue;
use crate::text::{TokenizedText, balanced_batches};

/// Maximum time that the planner waits for more records of a stream while the workers are busy.
const BUSY_WAIT: Duration = Duration::from_millis(100);
/// Maximum time that it waits while they are idle, so that records that arrive together are encoded together.
const IDLE_WAIT: Duration = Duration::from_millis(1);

/// Gathers records into waves.
pub(super) struct Planner<T> {
    budget: MemoryBudget,
    workers: Workers<T>,
    is_interactive: bool,
    to_collector: Sender<Result<CollectorMessage>>,
    /// The records of the next wave.
    next: Vec<PreparedRecord>,
}

/// The size of the next wave.
#[derive(Default)]
struct WaveSize {
    tokens: usize,
    rows: usize,
    /// Bytes of carried-through fields.
    field_bytes: usize,
}

impl WaveSize {
    fn add(&mut self, (meta, text): &PreparedRecord) {
        self.tokens += text.as_ref().map_or(0, TokenizedText::token_count);
        self.rows += text.as_ref().map_or(1, TokenizedText::row_count);
        self.field_bytes += meta.kept.iter().map(FieldValue::bytes).sum::<usize>();
    }

    fn is_full(&self, budget: &MemoryBudget) -> bool {
        self.tokens >= budget.wave_tokens
            || self.rows >= budget.wave_rows
            || self.field_bytes >= budget.wave_field_bytes
    }
}

impl<T: Task> Planner<T> {
    /// A planner that sends waves to the collector and batches to the workers.
    pub(super) fn new(
        budget: MemoryBudget,
        workers: Workers<T>,
        is_interactive: bool,
        to_collector: Sender<Result<CollectorMessage>>,
    ) -> Self {
        Planner { budget, workers, is_interactive, to_collector, next: Vec::new() }
    }

    /// Plans until the end of the input, then sends the collector the end or the error.
    pub(super) fn run(&mut self, from_tokenizers: &Receiver<ReaderMessage>) {
        let last = match self.plan(from_tokenizers) {
            Ok(true) => Ok(CollectorMessage::End),
            // The collector has ended the run.
            Ok(false) => return,
            Err(error) => Err(error),
        };
        let _ = self.to_collector.send(last);
    }

    /// Plans the whole input. Returns false if the collector has ended the run.
    fn plan(&mut self, from_tokenizers: &Receiver<ReaderMessage>) -> Result<bool> {
        let mut size = WaveSize::default();
        loop {
            let Some(message) = self.wait(from_tokenizers)? else {
                size = WaveSize::default();
                if !self.send_wave()? {
                    return Ok(false);
                }
                continue;
            };
            let ReaderMessage::Group(prepared) = message else { return self.send_wave() };
            let prepared = match prepared.recv().map_err(thread_panicked)? {
                Ok(prepared) => prepared,
                // The rows of the records before the error are written first.
                Err(error) => return if self.send_wave()? { Err(error) } else { Ok(false) },
            };
            for record in prepared {
                size.add(&record);
                // No more records have to come until the writer has the rows of this batch. Busy workers would not start with them yet.
                let is_awaited = record.0.ends_batch && self.is_interactive && self.workers.is_idle();
                self.next.push(record);
                if is_awaited || size.is_full(&self.budget) {
                    size = WaveSize::default();
                    if !self.send_wave()? {
                        return Ok(false);
                    }
                }
            }
        }
    }

    /// The next message, or `None` if the gathered records should not wait for it any longer.
    fn wait(&self, from_tokenizers: &Receiver<ReaderMessage>) -> Result<Option<ReaderMessage>> {
        if self.next.is_empty() {
            return from_tokenizers.recv().map(Some).map_err(thread_panicked);
        }
        let since = Instant::now();
        let timeout = if self.is_interactive { IDLE_WAIT } else { BUSY_WAIT };
        loop {
            match from_tokenizers.recv_timeout(timeout) {
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

    /// Sends the gathered records to the collector and their batches to the workers. Returns false if the collector has ended the
    /// run.
    fn send_wave(&mut self) -> Result<bool> {
        let prepared = mem::take(&mut self.next);
        if prepared.is_empty() {
            return Ok(true);
        }
        let (records, texts): (Vec<RecordMeta>, Vec<Option<TokenizedText>>) = prepared.into_iter().unzip();
        let (slots, mut texts): (Vec<usize>, Vec<Option<TokenizedText>>) =
            texts.into_iter().enumerate().filter(|(_, text)| text.is_some()).unzip();
        let lengths: Vec<usize> = texts.iter().flatten().map(TokenizedText::token_count).collect();
        let batches = balanced_batches(&lengths, self.budget.batch_tokens, self.budget.threads);
        let (done, results) = bounded(batches.len());
        // With fewer batches than workers, the batches run one after another, each on all CPU threads.
        let is_shared = batches.len() < self.budget.threads && self.budget.can_share_batches;
        if !is_shared && !batches.is_empty() {
            // If the system refuses threads, the collector gets that error, and not a wave without results.
            self.workers.start()?;
        }
        let wave = Wave { records, batches: batches.len(), results };
        if self.to_collector.send(Ok(CollectorMessage::Wave(wave))).is_err() {
            return Ok(false);
        }
        for batch in batches {
            let job = Job {
                slots: batch.iter().map(|&text| slots[text]).collect(),
                texts: batch.iter().filter_map(|&text| texts[text].take()).collect(),
                results: done.clone(),
            };
            if is_shared {
                self.workers.run_shared(job);
            } else {
                self.workers.send(job)?;
            }
        }
        Ok(true)
    }
}
