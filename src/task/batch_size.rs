//! The batch size and the memory of a task.

use std::sync::Arc;

use anyhow::Result;

use super::ModelTask;
use crate::engine::{Engine, MemoryBudget, Workload};
use crate::load::{Parts, count_parameters};
use crate::model::modules::PostPoolingModule;
use crate::nn::cost::encoder_parameters;
use crate::nn::{
    Backend, Encoder, EncoderSpec, GemmType, Isa, Pooling, QUERY_BLOCK, ScoreBias, TalkingHeads,
};
use crate::sys::memory::current_memory;

/// Tokens per batch on the CPU for f32 with FMA. With smaller batches, the weights of a large model are read
/// more often.
pub const CPU_F32_TOKENS: usize = 1024;
/// Tokens per batch on the CPU for the other GEMM types, which are faster if the hidden states fit in L2.
pub const CPU_TOKENS: usize = 256;
/// Tokens per batch on the CPU with AMX. Those processors have an L2 of 2 MiB.
pub const AMX_TOKENS: usize = 512;
/// Tokens per batch on the CPU with a causal mask: the more texts a batch has, the more of them share a
/// prefix, such as a prompt or a chat template with its query, which is computed once.
pub const CAUSAL_TOKENS: usize = 1024;
/// Tokens per batch of static embeddings, whose rows are looked up at little cost beside that of handing over
/// a batch.
const STATIC_TOKENS: usize = 1 << 14;
/// Maximum tokens per batch on a GPU. Larger batches are not faster.
pub const MAX_GPU_TOKENS: usize = 1 << 15;

/// Maximum bytes of rows that are kept for later texts that are equal.
const MAX_REPEAT_BYTES: usize = 256 << 20;

/// Batches in flight per GPU: while one is computed, the next is copied to the GPU and the previous one back.
fn batches_per_gpu(encoder: &Encoder) -> usize {
    if encoder.may_overlap() { 2 } else { 1 }
}

/// The fastest number of tokens per batch for the devices of `encoders`.
fn default_batch_tokens(encoders: &[Encoder]) -> usize {
    let tokens =
        |encoder: &Encoder| batch_tokens(encoder.backend(), encoder.spec(), batches_per_gpu(encoder));
    encoders.iter().map(tokens).min().unwrap_or(CPU_TOKENS)
}

/// The fastest number of tokens per batch on a backend, for as many batches in flight on a GPU.
fn batch_tokens(backend: &Backend, spec: &EncoderSpec, batches_per_gpu: usize) -> usize {
    match (backend.free_memory(), backend) {
        (None, _) if spec.is_static() => STATIC_TOKENS,
        // Several texts fit in a smaller batch if the model takes short ones only.
        (None, _) if spec.mask.causal && spec.max_length() > CPU_TOKENS => CAUSAL_TOKENS,
        (None, _) if Isa::selected().tile_unit().is_some() => AMX_TOKENS,
        (None, Backend::Cpu(GemmType::F32)) => CPU_F32_TOKENS,
        (None, _) => CPU_TOKENS,
        // Half of the memory is left for attention scores and other processes.
        (Some(free), _) => (free / 2 / batches_per_gpu / token_bytes(spec)).clamp(1, MAX_GPU_TOKENS),
    }
}

/// The memory of an encoder in one compute type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryUse {
    /// The compute type.
    pub dtype: &'static str,
    /// Weights as they are packed for this type, in bytes, without embedding tables.
    pub weights: usize,
    /// Tokens of a batch.
    pub batch_tokens: usize,
    /// Activations and attention of one batch, in bytes.
    pub batch: usize,
}

/// The memory of an encoder with `pooling` and post-pooling `modules` in every compute type of `backend`'s
/// device: its weights, stored with `significand_bits` significant bits, and a batch of texts of up to
/// `tokens` tokens.
pub fn memory_use(
    backend: &Backend,
    spec: &EncoderSpec,
    pooling: &Pooling,
    modules: &[PostPoolingModule],
    significand_bits: u32,
    tokens: usize,
) -> Result<Vec<MemoryUse>> {
    let of_type = |backend: Backend| {
        let batch_tokens = batch_tokens(&backend, spec, 1).max(tokens);
        let batch =
            batch_tokens.saturating_mul(token_bytes(spec)).saturating_add(attention_bytes(spec, tokens));
        let dtype = backend.dtype();
        let parts = Parts::without_head(spec, pooling);
        let weights = count_parameters(backend, significand_bits, &parts, modules)?.held_bytes;
        Ok(MemoryUse { dtype, weights, batch_tokens, batch })
    };
    backend.each_dtype().into_iter().map(of_type).collect()
}

/// The workload of a task, with `batch_tokens` tokens per batch or the default of its devices.
pub fn workload(task: &impl ModelTask, batch_tokens: Option<usize>) -> Workload {
    let encoders = &task.model().encoders;
    let encoder = &encoders[0];
    let spec = encoder.spec();
    let max_length = task.model().tokenizer.max_length();
    let head = task.head_memory();
    let resident_bytes = Workload::round_up(current_memory().unwrap_or(0) as usize);
    Workload {
        encoders: encoders.len(),
        is_gpu: encoder.backend().is_gpu(),
        batches_per_gpu: batches_per_gpu(encoder),
        cpu_threads: rayon::current_num_threads(),
        batch_tokens: batch_tokens.unwrap_or_else(|| default_batch_tokens(encoders)),
        max_length,
        model_bytes: resident_bytes + encoder.stored_bytes(),
        token_bytes: token_bytes(spec).saturating_add(head.token_bytes),
        attention_bytes: attention_bytes(spec, max_length).saturating_add(head.batch_bytes),
        vector_bytes: task.vector_bytes(),
        is_per_token: task.content().is_per_token(),
        repeat_bytes: repeat_bytes(spec),
    }
}

/// Bytes of rows that are kept for later texts that are equal: twice the parameters in f32. The larger a
/// model, the longer a text takes, and the more rows it pays to keep; those of all-MiniLM-L6-v2 are 100,000.
fn repeat_bytes(spec: &EncoderSpec) -> usize {
    if spec.is_static() {
        return 0;
    }
    let parameters = encoder_parameters(spec);
    let parameters = parameters.iter().map(|part| part.each.value().saturating_mul(part.copies));
    let parameters = parameters.fold(0, usize::saturating_add);
    parameters.saturating_mul(2 * size_of::<f32>()).min(MAX_REPEAT_BYTES)
}

/// An engine for texts that are in memory.
pub fn engine<T: ModelTask>(task: T) -> Result<Engine<T>> {
    let budget = MemoryBudget::new(&workload(&task, None), None)?;
    Ok(Engine::new(Arc::new(task), budget, None))
}

/// Activations per token in one layer, in bytes: hidden states before and after the layer, queries, keys and
/// values, and the inner states of the feed-forward network, which are also split into three bf16 parts for
/// tiles.
fn token_bytes(spec: &EncoderSpec) -> usize {
    // Static embeddings have no hidden states.
    if spec.is_static() {
        return 2 * size_of::<u32>();
    }
    let heads = (spec.heads + spec.key_value_heads) * (spec.qk_head_dim + spec.v_head_dim);
    let inner = spec.intermediate_size * if spec.gated { 3 } else { 2 };
    const PARTS: usize = 3;
    let parts = PARTS * size_of::<u16>() * spec.intermediate_size;
    size_of::<f32>() * (6 * spec.hidden_size + heads + inner) + parts
}

/// Memory of attention for one sequence, in bytes: packed keys and values of one head, their products with
/// relative positions, and the scores of a block of queries. Talking heads need all heads at once.
fn attention_bytes(spec: &EncoderSpec, max_length: usize) -> usize {
    if spec.is_static() {
        return 0;
    }
    let heads = match spec.talking_heads {
        TalkingHeads { pre_softmax: None, post_softmax: None } => 1,
        TalkingHeads { pre_softmax, post_softmax } => {
            spec.heads.max(pre_softmax.unwrap_or(0)).max(post_softmax.unwrap_or(0))
        }
    };
    let relative_positions = match &spec.score_bias {
        ScoreBias::Disentangled(bias) => 2 * bias.relative_positions,
        _ => 0,
    };
    let token = spec.qk_head_dim + spec.v_head_dim + relative_positions + 2 * QUERY_BLOCK;
    (size_of::<f32>() * token).saturating_mul(max_length).saturating_mul(heads)
}
