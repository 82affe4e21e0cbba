//! How much is on its way at once, so that memory stays within bounds.

use anyhow::{Result, bail};
use bytesize::ByteSize;

use super::flow::CHUNK_BYTES;
use super::records::entry_bytes;
use super::tally::current_memory;
use crate::input::{Entry, ReadLimit, Record, Unreadable};
use crate::nn::{Compute, Encoder, EncoderSpec, Engine, HeadMixing, Isa, Pooling, QUERIES, ScoreBias};
use crate::run::{Embedder, WrongUsage};

/// How much is on its way at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Threads that encode, or that keep GPUs busy.
    pub threads: usize,
    /// Whether all of them may encode one batch together.
    pub may_share: bool,
    /// Threads that tokenize.
    pub tokenizers: usize,
    /// Tokens a batch.
    pub batch_tokens: usize,
    /// Tokens of all texts of a window.
    pub window_tokens: usize,
    /// Rows of a window.
    pub window_rows: usize,
    /// Bytes of the fields that records of a window carry through.
    pub window_bytes: usize,
    /// The longest record that is taken, in bytes.
    pub record_bytes: usize,
    /// How much memory reading may take.
    pub reading: ReadLimit,
}

/// Batches of a window for each thread: enough to deal texts out evenly. Workers go on to the next window without waiting,
/// and what is done becomes durable window by window, so that more would only lose more.
const BATCHES_PER_THREAD: usize = 2;
/// Rows of a window, however short they are.
const WINDOW_ROWS: usize = 8192;
/// Bytes of the vectors of a window.
const WINDOW_VECTORS: usize = 16 << 20;
/// Bytes of the fields that records of a window carry through.
const WINDOW_FIELDS: usize = 2 << 20;
/// Windows that are on their way at once: one that is written, one that waits, one that is planned.
const WINDOWS: usize = 3;

/// Bytes that the tokenizer takes for a byte of text: normalised forms, offsets and pieces (135 measured on English).
const TOKENIZING: usize = 160;
/// The least record that has to fit, in bytes.
const LEAST_RECORD: usize = 1 << 15;
/// The least memory that reading has to have, in bytes.
const LEAST_READING: usize = 4 * LEAST_RECORD;
/// Bytes that are kept for all that is not counted: queues, stacks, buffers, what the allocator does not give back.
const SLACK: usize = 16 << 20;

/// Batches that are on their way at once on a GPU: while it computes one, the next is handed over and the last is fetched.
fn per_gpu(encoder: &Encoder) -> usize {
    if encoder.may_overlap() { 2 } else { 1 }
}

/// Tokens of a batch on the CPU where f32 is multiplied as it is: with fewer, the weights of a large model are read more often.
const IN_F32: usize = 1024;
/// The same where products are so much faster than those of f32 that it shows when hidden states do not fit in L2.
const IN_LESS: usize = 512;
/// The same on a GPU, if its memory lets it: more do not make it faster.
const ON_GPU: usize = 1 << 15;

/// Tokens a batch that suit the encoders' devices.
pub fn usual_batch_tokens(encoders: &[Encoder]) -> usize {
    let usual = |encoder: &Encoder| match encoder.engine().free_memory() {
        None => match encoder.engine() {
            Engine::Cpu(Compute::F32) if Isa::best().tile_unit().is_none() => IN_F32,
            _ => IN_LESS,
        },
        // A half is left for attention and for what others take.
        Some(free) => (free / 2 / per_gpu(encoder) / token_bytes(encoder.spec())).clamp(1, ON_GPU),
    };
    encoders.iter().map(usual).min().unwrap_or(IN_LESS)
}

impl Limits {
    /// Limits that keep the process below `max_memory` bytes, weights included, or those that are fast where there is no
    /// such bound. The embedder's batches follow them.
    ///
    /// # Errors
    /// If the model and the smallest batch do not fit: wrong usage.
    pub fn new(embedder: &mut Embedder, max_memory: Option<u64>) -> Result<Self> {
        let threads = match embedder.encoders[0].engine().is_gpu() {
            true => per_gpu(&embedder.encoders[0]) * embedder.encoders.len(),
            false => rayon::current_num_threads(),
        };
        let mut limits = Self::of(embedder, threads, embedder.batch_tokens);
        if let Some(most) = max_memory {
            limits = Self::below(most as usize, embedder, threads)?;
        }
        embedder.batch_tokens = limits.batch_tokens;
        Ok(limits)
    }

    /// Chunks of records that wait for the planner.
    pub fn queue(&self) -> usize {
        2 * self.tokenizers
    }

    /// A record, if it is not too long for the memory that there is, and its bytes.
    pub fn within(&self, entry: Entry) -> (Entry, usize) {
        let bytes = entry_bytes(&entry);
        match entry {
            Entry::Record(Record { place, .. }) if bytes > self.record_bytes => {
                let reason = format!(
                    "has {bytes} bytes, more than fit into --max-memory ({}); split the text, or pass more",
                    self.record_bytes
                );
                (Entry::Unreadable(Unreadable { place, reason }), 0)
            }
            entry => (entry, bytes),
        }
    }

    /// Limits for so many threads and tokens a batch.
    fn of(embedder: &Embedder, threads: usize, batch_tokens: usize) -> Self {
        let vector = size_of::<f32>() * embedder.dimensions;
        let vectors = (WINDOW_VECTORS / vector).max(threads);
        // The last text of a window ends past this: without the margin it would take one more batch for each thread.
        let margin = embedder.tokenizer.max_length().min(batch_tokens / 4);
        let window_tokens = batch_tokens * BATCHES_PER_THREAD * threads - margin;
        let (window_tokens, window_rows) = match embedder.pooling {
            Pooling::Text(_) => (window_tokens, WINDOW_ROWS.min(vectors)),
            Pooling::None => (window_tokens.min(vectors), WINDOW_ROWS),
        };
        let (window_bytes, record_bytes, reading) = (WINDOW_FIELDS, usize::MAX, ReadLimit::default());
        let tokenizers = rayon::current_num_threads();
        let may_share = threads == tokenizers && !embedder.encoders[0].engine().is_gpu();
        Limits {
            threads,
            may_share,
            tokenizers,
            batch_tokens,
            window_tokens,
            window_rows,
            window_bytes,
            record_bytes,
            reading,
        }
    }

    /// The most threads, and then the largest batches, that fit into so many bytes.
    fn below(most: usize, embedder: &Embedder, threads: usize) -> Result<Self> {
        let spec = embedder.spec();
        // Rounded up, so that what fits is the same from run to run.
        let model = (current_memory().unwrap_or(0) as usize).next_multiple_of(SLACK);
        let model = model + embedder.encoders[0].stored_bytes();
        let longest = embedder.tokenizer.max_length();
        let mut least = usize::MAX;
        // Each GPU keeps a thread.
        for threads in (embedder.encoders.len()..=threads).rev() {
            let mut batch_tokens = embedder.batch_tokens;
            loop {
                let mut limits = Limits { tokenizers: 1, ..Self::of(embedder, threads, batch_tokens) };
                // A long record is tokenized by itself, while others wait in the queues.
                let record = TOKENIZING + limits.queue() + WINDOWS + 2;
                let need = model + SLACK + limits.bytes(embedder, spec, longest);
                let need = need + LEAST_RECORD * record + LEAST_READING;
                least = least.min(need);
                if let Some(rest) = most.checked_sub(need) {
                    let reading = rest / 4;
                    limits.record_bytes = LEAST_RECORD + (rest - reading) / record;
                    limits.reading = ReadLimit::new((LEAST_READING + reading) as u64);
                    return Ok(limits);
                }
                if batch_tokens <= longest.min(64) {
                    break;
                }
                batch_tokens /= 2;
            }
        }
        bail!(WrongUsage(format!(
            "--max-memory {}: the model takes {}, and the least that it can work with, one text of {longest} tokens at a \
             time, {} in all; pass at least that, or a smaller --max-length",
            shown(most),
            shown(model),
            shown(least)
        )))
    }

    /// Bytes of all that is on its way.
    fn bytes(&self, embedder: &Embedder, spec: &EncoderSpec, longest: usize) -> usize {
        let batch = self.batch_tokens.max(longest);
        let encoding = match embedder.encoders[0].engine().is_gpu() {
            // It lies there.
            true => 0,
            false => batch * token_bytes(spec) + score_bytes(spec, longest),
        };
        let vectors = match embedder.pooling {
            Pooling::Text(_) => self.window_rows.min(self.window_tokens),
            Pooling::None => self.window_tokens + longest,
        };
        let ids = (self.window_tokens + longest) * 2 * size_of::<u32>();
        let window = vectors * embedder.dimensions * size_of::<f32>() + ids + self.window_bytes;
        self.threads * encoding + WINDOWS * window + self.queue() * CHUNK_BYTES
    }
}

fn shown(bytes: usize) -> String {
    ByteSize(bytes as u64).display().si().to_string()
}

/// Bytes that a token takes on its way through a layer: its hidden states before and after, queries, keys and values, and the
/// feed-forward layer inside, which is also split into the parts that tiles multiply.
fn token_bytes(spec: &EncoderSpec) -> usize {
    let heads = spec.heads * (2 * spec.qk_head_size + 2 * spec.v_head_size);
    let inner = spec.intermediate_size * if spec.gated { 3 } else { 2 };
    const PARTS: usize = 3;
    let parts = PARTS * size_of::<u16>() * spec.intermediate_size;
    size_of::<f32>() * (6 * spec.hidden_size + heads + inner) + parts
}

/// Bytes that attention takes at a time: the packed keys and values of a head of the longest text, their products with
/// distances, and the scores of some queries; of all heads, where those are mixed.
fn score_bytes(spec: &EncoderSpec, longest: usize) -> usize {
    let heads = match spec.head_mixing {
        HeadMixing { before: None, after: None } => 1,
        HeadMixing { before, after } => spec.heads.max(before.unwrap_or(0)).max(after.unwrap_or(0)),
    };
    let distances = match &spec.score_bias {
        ScoreBias::Disentangled(distances) => 2 * distances.span,
        _ => 0,
    };
    let token = spec.qk_head_size + spec.v_head_size + distances + 2 * QUERIES;
    size_of::<f32>() * longest * token * heads
}
