//! Limits on the items, tokens and bytes in flight, so that memory stays within `--max-memory`. Pure
//! functions of numbers.

use anyhow::{Result, bail};
use bytesize::ByteSize;

use crate::error::UsageError;
use crate::text::TokenizedText;

/// The figures of the task and the machine that determine a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Workload {
    /// Encoders, one per device.
    pub encoders: usize,
    /// Whether the encoders run on GPUs. Their activations are not in the memory of the process.
    pub is_gpu: bool,
    /// Batches in flight per GPU: 2 if one is copied while another is computed.
    pub batches_per_gpu: usize,
    /// CPU threads.
    pub cpu_threads: usize,
    /// Preferred tokens per batch.
    pub batch_tokens: usize,
    /// Maximum tokens of a sequence.
    pub max_length: usize,
    /// Memory of the process now, plus weights that are not in memory yet, in bytes.
    pub model_bytes: usize,
    /// Activations and logits per token of a batch, in bytes.
    pub token_bytes: usize,
    /// Attention scores, packed keys and packed values of one sequence of `max_length` tokens, and logits
    /// that are computed for a fixed number of tokens, in bytes.
    pub attention_bytes: usize,
    /// Size of a vector, in bytes.
    pub vector_bytes: usize,
    /// Whether the output has one vector per token instead of one per text.
    pub is_per_token: bool,
    /// Bytes of rows that it pays to keep for later texts that are equal.
    pub repeat_bytes: usize,
}

/// The number of threads, and limits on the records, tokens and bytes in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Worker threads.
    pub threads: usize,
    /// Whether all CPU threads can share one batch.
    pub can_share_batches: bool,
    /// Tokenizer threads.
    pub tokenizers: usize,
    /// Tokens per batch.
    pub batch_tokens: usize,
    /// Tokens per wave.
    pub wave_tokens: usize,
    /// Rows per wave.
    pub wave_rows: usize,
    /// Bytes of what callers carry beside the texts of a wave.
    pub wave_carried_bytes: usize,
    /// Maximum size of a record, in bytes.
    pub record_bytes: usize,
    /// Memory limit of the readers in bytes, if there is one.
    pub reading_bytes: Option<u64>,
    /// Maximum bytes of rows that are kept for later texts that are equal.
    pub repeat_bytes: usize,
    /// Size of a row in bytes, or of a token's part of it.
    row_bytes: usize,
    /// Whether a row grows with the tokens of its text.
    is_per_token: bool,
}

/// Bytes of text of a group. Longer texts are groups of their own.
pub const GROUP_BYTES: usize = 1 << 18;

/// Batches per wave and worker: enough to balance the workers. Workers take batches of the next wave without
/// waiting, and a checkpoint covers whole waves, so larger waves would only lose more work at an
/// interruption.
const BATCHES_PER_WORKER: usize = 2;
/// Maximum rows per wave.
const MAX_WAVE_ROWS: usize = 8192;
/// Maximum bytes of vectors per wave.
const MAX_WAVE_VECTOR_BYTES: usize = 16 << 20;
/// Maximum bytes of what callers carry beside the texts of a wave, such as the fields of records.
const MAX_WAVE_CARRIED_BYTES: usize = 2 << 20;
/// Waves in flight: one in the collector, one queued, one being planned.
const WAVES_IN_FLIGHT: usize = 3;

/// Bytes that the tokenizer allocates per byte of text: normalized forms, offsets and pieces (135 measured on
/// English).
pub const TOKENIZER_BYTES_PER_TEXT_BYTE: usize = 160;
/// Minimum record size that a budget has to allow, in bytes.
const MIN_RECORD_BYTES: usize = 1 << 15;
/// Minimum memory of the readers, in bytes.
const MIN_READING_BYTES: usize = 4 * MIN_RECORD_BYTES;
/// Bytes for everything that is not counted: queues, stacks, buffers, allocator overhead.
const OVERHEAD_BYTES: usize = 16 << 20;

impl MemoryBudget {
    /// The budget with the highest throughput that keeps the process below `max_memory` bytes. `None`: no
    /// limit.
    ///
    /// # Errors
    /// If the model and the smallest batch do not fit: a usage error.
    pub fn new(workload: &Workload, max_memory: Option<u64>) -> Result<Self> {
        let threads =
            if workload.is_gpu { workload.batches_per_gpu * workload.encoders } else { workload.cpu_threads };
        match max_memory {
            None => Ok(Self::unbounded(workload, threads, workload.batch_tokens)),
            Some(max_bytes) => Self::bounded(workload, threads, max_bytes as usize),
        }
    }

    /// Groups in the queue between reader and planner.
    pub fn queued_groups(&self) -> usize {
        2 * self.tokenizers
    }

    /// The size in bytes of what the rows of a text hold.
    pub(super) fn row_bytes(&self, text: &TokenizedText) -> usize {
        self.row_bytes * if self.is_per_token { text.token_count() } else { text.row_count() }
    }

    /// The budget without a memory limit, for `threads` workers and `batch_tokens` tokens per batch.
    fn unbounded(workload: &Workload, threads: usize, batch_tokens: usize) -> Self {
        let max_vectors = (MAX_WAVE_VECTOR_BYTES / workload.vector_bytes.max(1)).max(threads);
        // The last text of a wave ends past `wave_tokens`. Without the margin it would need one more batch
        // per worker.
        let margin = workload.max_length.min(batch_tokens / 4);
        let wave_tokens = batch_tokens * BATCHES_PER_WORKER * threads - margin;
        let (wave_tokens, wave_rows) = if workload.is_per_token {
            (wave_tokens.min(max_vectors), MAX_WAVE_ROWS)
        } else {
            (wave_tokens, MAX_WAVE_ROWS.min(max_vectors))
        };
        MemoryBudget {
            threads,
            can_share_batches: threads == workload.cpu_threads && !workload.is_gpu,
            tokenizers: workload.cpu_threads,
            batch_tokens,
            wave_tokens,
            wave_rows,
            wave_carried_bytes: MAX_WAVE_CARRIED_BYTES,
            record_bytes: usize::MAX,
            reading_bytes: None,
            repeat_bytes: workload.repeat_bytes,
            row_bytes: workload.vector_bytes,
            is_per_token: workload.is_per_token,
        }
    }

    /// The budget with the most workers, and then the largest batches, that fits into `max_bytes`.
    fn bounded(workload: &Workload, threads: usize, max_bytes: usize) -> Result<Self> {
        let model_bytes = workload.model_bytes;
        let mut min_bytes = usize::MAX;
        // Each GPU has at least one worker.
        for threads in (workload.encoders..=threads).rev() {
            let mut batch_tokens = workload.batch_tokens;
            loop {
                let mut budget =
                    MemoryBudget { tokenizers: 1, ..Self::unbounded(workload, threads, batch_tokens) };
                // Copies of a record's bytes: one long record in the tokenizer, and others in the queues.
                let copies = TOKENIZER_BYTES_PER_TEXT_BYTE + budget.queued_groups() + WAVES_IN_FLIGHT + 2;
                let needed = model_bytes + OVERHEAD_BYTES + budget.in_flight_bytes(workload);
                let needed = needed + MIN_RECORD_BYTES * copies + MIN_READING_BYTES;
                min_bytes = min_bytes.min(needed);
                if let Some(rest) = max_bytes.checked_sub(needed) {
                    let (reading, repeats) = (rest / 4, (rest / 4).min(workload.repeat_bytes));
                    budget.record_bytes = MIN_RECORD_BYTES + (rest - reading - repeats) / copies;
                    budget.reading_bytes = Some((MIN_READING_BYTES + reading) as u64);
                    budget.repeat_bytes = repeats;
                    return Ok(budget);
                }
                if batch_tokens <= workload.max_length.min(64) {
                    break;
                }
                batch_tokens /= 2;
            }
        }
        bail!(UsageError(format!(
            "--max-memory {}: the model needs {}, and {} in all to encode one text of {} tokens at a time; pass a larger \
             --max-memory, or a smaller --max-length",
            with_unit(max_bytes),
            with_unit(model_bytes),
            with_unit(min_bytes),
            workload.max_length
        )))
    }

    /// Bytes of batches, waves and queued groups.
    fn in_flight_bytes(&self, workload: &Workload) -> usize {
        let max_length = workload.max_length;
        let worker = workload.batch_bytes(self.batch_tokens);
        let vectors = if workload.is_per_token {
            self.wave_tokens + max_length
        } else {
            self.wave_rows.min(self.wave_tokens)
        };
        let token_ids = (self.wave_tokens + max_length) * 2 * size_of::<u32>();
        let wave = vectors * workload.vector_bytes + token_ids + self.wave_carried_bytes;
        self.threads * worker + WAVES_IN_FLIGHT * wave + self.queued_groups() * GROUP_BYTES
    }
}

impl Workload {
    /// Memory of the process for a batch of `batch_tokens` tokens, or of one sequence of the maximum length,
    /// in bytes.
    pub fn batch_bytes(&self, batch_tokens: usize) -> usize {
        if self.is_gpu {
            return 0;
        }
        batch_tokens.max(self.max_length) * self.token_bytes + self.attention_bytes
    }

    /// Rounds a measured memory size up, so that its small differences between runs do not change the budget.
    pub fn round_up(measured_bytes: usize) -> usize {
        measured_bytes.next_multiple_of(OVERHEAD_BYTES)
    }
}

/// A number of bytes in kB, MB or GB (powers of 1000).
fn with_unit(bytes: usize) -> String {
    ByteSize(bytes as u64).display().si().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            encoders: 1,
            is_gpu: false,
            batches_per_gpu: 1,
            cpu_threads: 2,
            batch_tokens: 512,
            max_length: 256,
            model_bytes: 100 << 20,
            token_bytes: 20_000,
            attention_bytes: 1 << 20,
            vector_bytes: 4 * 384,
            is_per_token: false,
            repeat_bytes: 0,
        }
    }

    #[test]
    fn without_a_limit_all_threads_are_workers() {
        let budget = MemoryBudget::new(&workload(), None).unwrap();
        assert_eq!((budget.threads, budget.tokenizers, budget.batch_tokens), (2, 2, 512));
        assert!(budget.can_share_batches);
        assert_eq!(budget.wave_tokens, 512 * 2 * 2 - 128);
    }

    #[test]
    fn a_smaller_limit_never_gives_a_larger_budget() {
        let mut last: Option<MemoryBudget> = None;
        for megabytes in 150..400 {
            let Ok(budget) = MemoryBudget::new(&workload(), Some(megabytes << 20)) else {
                assert!(last.is_none(), "{megabytes} MB do not fit, but less memory did");
                continue;
            };
            assert!(budget.in_flight_bytes(&workload()) + (100 << 20) <= (megabytes as usize) << 20);
            if let Some(last) = last {
                let size = |budget: &MemoryBudget| (budget.threads, budget.batch_tokens);
                assert!(size(&last) <= size(&budget), "{megabytes} MB");
            }
            last = Some(budget);
        }
        assert_eq!(last.map(|budget| (budget.threads, budget.batch_tokens)), Some((2, 512)));
    }

    #[test]
    fn a_limit_below_the_model_names_what_is_needed() {
        let error = MemoryBudget::new(&workload(), Some(50 << 20)).unwrap_err().to_string();
        assert!(error.starts_with("--max-memory 52.4 MB: the model needs 104.9 MB, and "), "{error}");
    }
}
