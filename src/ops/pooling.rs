//! Pooling: from the hidden states of a sequence to one vector (Reimers & Gurevych 2019, §3).

use candle_core::{DType, Result, Tensor};

use super::check::check_cu_seqlens;
use super::gpu::{self, Launch, LaunchOutput};
use super::host::{host_slice, is_host_f32};
use crate::kernels::isa::Isa;
use crate::kernels::softmax::axpy;

/// A pooling mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The hidden state of the first token, `[CLS]`.
    Cls,
    /// The maximum of each dimension over all tokens.
    Max,
    /// The mean over all tokens.
    Mean,
    /// The sum over all tokens, divided by the square root of their number.
    MeanSqrtLen,
    /// The mean over all tokens with the weights 1, 2, … in their order (Muennighoff 2022).
    WeightedMean,
    /// The hidden state of the last token.
    Last,
    /// The hidden state of the first token, the input of the model's own pooler.
    Pooler,
}

/// Pools every sequence: `(T, H)` → `(N, pools · H)` in f32, the vectors of all pooling modes concatenated.
/// The first `prompt_tokens` tokens of each sequence are not pooled.
///
/// # Errors
/// If `cu_seqlens` does not divide T tokens into sequences, a sequence is empty, or there is no sequence or
/// no pooling mode.
pub fn pool(hidden: &Tensor, cu_seqlens: &[usize], pools: &[Pool], prompt_tokens: usize) -> Result<Tensor> {
    if !hidden.device().is_cuda() {
        return reference(hidden, cu_seqlens, pools, prompt_tokens);
    }
    check(hidden, cu_seqlens)?;
    let on_device = Tensor::from_iter(cu_seqlens.iter().map(|offset| *offset as u32), hidden.device())?;
    let pooled = pools.iter().map(|pool| {
        let launch = pool.launch(hidden, &on_device, prompt_tokens)?;
        launch.run_or(hidden, || reference(hidden, cu_seqlens, &[*pool], prompt_tokens))
    });
    concatenate(&pooled.collect::<Result<Vec<_>>>()?)
}

fn check(hidden: &Tensor, cu_seqlens: &[usize]) -> Result<()> {
    let (tokens, _) = hidden.dims2()?;
    check_cu_seqlens(cu_seqlens, tokens)?;
    if let Some(sequence) = cu_seqlens.windows(2).position(|bounds| bounds[0] == bounds[1]) {
        candle_core::bail!("sequence {sequence} has no tokens to pool");
    }
    Ok(())
}

/// The hidden state of one token of each sequence, `(T, H)` → `(N, H)`; `tokens` are rows of the batch.
///
/// # Errors
/// Those of [`pool`], and if the batch does not have one of the tokens.
pub fn select(hidden: &Tensor, cu_seqlens: &[usize], tokens: &[u32]) -> Result<Tensor> {
    check(hidden, cu_seqlens)?;
    hidden.index_select(&Tensor::new(tokens, hidden.device())?, 0)
}

/// [`pool`] in plain candle operations.
///
/// # Errors
/// Those of [`pool`].
pub fn reference(
    hidden: &Tensor,
    cu_seqlens: &[usize],
    pools: &[Pool],
    prompt_tokens: usize,
) -> Result<Tensor> {
    check(hidden, cu_seqlens)?;
    let vectors = cu_seqlens
        .windows(2)
        .map(|bounds| {
            let sequence = hidden.narrow(0, bounds[0], bounds[1] - bounds[0])?.to_dtype(DType::F32)?;
            let pooled = pools.iter().map(|pool| pool.pool_sequence(&sequence, prompt_tokens));
            concatenate(&pooled.collect::<Result<Vec<_>>>()?)
        })
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&vectors, 0)
}

/// The sum of the rows of `(n, H)`, `(1, H)`, added up in their order: on the CPU by vectors, as candle's sum
/// over the first dimension is a loop over single values.
fn sum_rows(rows: &Tensor) -> Result<Tensor> {
    if !is_host_f32(rows) {
        return rows.sum_keepdim(0);
    }
    let width = rows.dim(1)?;
    let mut sum = vec![0.0; width];
    for row in host_slice(rows)?.chunks_exact(width) {
        axpy(Isa::selected(), 1.0, row, &mut sum);
    }
    Tensor::from_vec(sum, (1, width), rows.device())
}

/// Concatenates the vectors of all pooling modes.
fn concatenate(pooled: &[Tensor]) -> Result<Tensor> {
    match pooled {
        [one] => Ok(one.clone()),
        pooled => Tensor::cat(pooled, 1),
    }
}

impl Pool {
    /// The token whose hidden state is the vector of a sequence, as a row of the batch: one of each sequence,
    /// `(N)`; `None` if several tokens are pooled. No sequence is empty.
    pub fn tokens(self, cu_seqlens: &[usize]) -> Option<Vec<u32>> {
        let token = |bounds: &[usize]| match self {
            Pool::Cls | Pool::Pooler => Some(bounds[0] as u32),
            Pool::Last => Some((bounds[1] - 1) as u32),
            Pool::Max | Pool::Mean | Pool::MeanSqrtLen | Pool::WeightedMean => None,
        };
        cu_seqlens.windows(2).map(token).collect()
    }

    /// The launch of this mode on a GPU, `(T, H)` → `(N, H)`, for `cu_seqlens` of `(N + 1)`: one block per
    /// sequence and 128 columns.
    ///
    /// # Errors
    /// If `cu_seqlens` is not u32, or there is no kernel for the dtype.
    pub fn launch<'a>(
        self,
        hidden: &'a Tensor,
        cu_seqlens: &'a Tensor,
        prompt_tokens: usize,
    ) -> Result<Launch<'a>> {
        const COLUMNS: usize = 128;
        let (sequences, width) = (cu_seqlens.dim(0)?.saturating_sub(1), hidden.dim(1)?);
        let code: usize = match self {
            Pool::Cls => 0,
            Pool::Max => 1,
            Pool::Mean => 2,
            Pool::MeanSqrtLen => 3,
            Pool::WeightedMean => 4,
            Pool::Last => 5,
            Pool::Pooler => 6,
        };
        gpu::expect(cu_seqlens, DType::U32, &[sequences + 1])?;
        Ok(Launch {
            kernel: format!("pool_{}", gpu::suffix(hidden.dtype())?),
            grid: [sequences, width.div_ceil(COLUMNS), 1],
            block: COLUMNS,
            output: LaunchOutput::New(vec![sequences, width], DType::F32),
            args: vec![hidden.into(), cu_seqlens.into(), width.into(), prompt_tokens.into(), code.into()],
        })
    }

    /// Pools one sequence, `(n, H)` → `(1, H)`, without its first `prompt_tokens` tokens.
    fn pool_sequence(self, sequence: &Tensor, prompt_tokens: usize) -> Result<Tensor> {
        let tokens = sequence.dim(0)?;
        if tokens <= prompt_tokens {
            return self.pool_empty(sequence);
        }
        let rest = sequence.narrow(0, prompt_tokens, tokens - prompt_tokens)?;
        match self {
            Pool::Cls => rest.narrow(0, 0, 1),
            Pool::Max => rest.max_keepdim(0),
            Pool::Mean => sum_rows(&rest)? * (1.0 / (tokens - prompt_tokens) as f64),
            Pool::MeanSqrtLen => sum_rows(&rest)? / ((tokens - prompt_tokens) as f64).sqrt(),
            Pool::WeightedMean => {
                // Weights count from the start of the prompt.
                let weights = Tensor::arange(prompt_tokens as u32 + 1, tokens as u32 + 1, sequence.device())?;
                let weights = weights.to_dtype(sequence.dtype())?.reshape((tokens - prompt_tokens, 1))?;
                let sum = (tokens * (tokens + 1) - prompt_tokens * (prompt_tokens + 1)) / 2;
                rest.broadcast_mul(&weights)?.sum_keepdim(0)? / sum as f64
            }
            Pool::Last => sequence.narrow(0, tokens - 1, 1),
            Pool::Pooler => sequence.narrow(0, 0, 1),
        }
    }

    /// The vector of a sequence that has only prompt tokens, as sentence-transformers computes it. That
    /// happens if the text merges with the prompt and the tokenizer adds no special tokens.
    fn pool_empty(self, sequence: &Tensor) -> Result<Tensor> {
        let first = sequence.narrow(0, 0, 1)?;
        match self {
            Pool::Cls | Pool::Pooler => Ok(first),
            Pool::Max => first.zeros_like()? + f64::NEG_INFINITY,
            Pool::Mean | Pool::MeanSqrtLen | Pool::WeightedMean | Pool::Last => first.zeros_like(),
        }
    }
}
