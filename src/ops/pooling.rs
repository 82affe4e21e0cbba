//! From the hidden states of texts to one vector each (Reimers & Gurevych 2019, §3).

use candle_core::{DType, Result, Tensor};

use super::check_offsets;
use super::gpu::{self, Launch, Written};

/// One way to pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The hidden state of the first token, `[CLS]`.
    Cls,
    /// The largest value of each dimension over all tokens.
    Max,
    /// The mean over all tokens.
    Mean,
    /// The sum over all tokens, divided by the root of their number.
    MeanSqrtLen,
    /// The mean over all tokens, the first weighted 1, the second 2, … (Muennighoff 2022).
    WeightedMean,
    /// The hidden state of the last token.
    Last,
    /// The hidden state of the first token, for the model's own pooler to take it from there
    /// (`Head::load_pooler`).
    Pooler,
}

/// `(T, H)` → `(N, pools · H)` in f32: the pooled vectors of each text, end to end; text `i` has the rows
/// `offsets[i]..offsets[i + 1]`, and its first `prompt` ones are left out.
///
/// # Errors
/// If `offsets` do not begin with 0, decrease, or do not end with T, a text has no tokens, or there is no text or no way to pool.
pub fn pool(hidden: &Tensor, offsets: &[usize], pools: &[Pool], prompt: usize) -> Result<Tensor> {
    if !hidden.device().is_cuda() {
        return reference(hidden, offsets, pools, prompt);
    }
    check(hidden, offsets)?;
    let offsets = Tensor::from_iter(offsets.iter().map(|offset| *offset as u32), hidden.device())?;
    let parts = pools
        .iter()
        .map(|pool| pool.launch(hidden, &offsets, prompt)?.run(hidden))
        .collect::<Result<Vec<_>>>()?;
    joined(&parts)
}

fn check(hidden: &Tensor, offsets: &[usize]) -> Result<()> {
    let (tokens, _) = hidden.dims2()?;
    check_offsets(offsets, tokens)?;
    if let Some(text) = offsets.windows(2).position(|bounds| bounds[0] == bounds[1]) {
        candle_core::bail!("text {text} has no tokens to pool");
    }
    Ok(())
}

/// [`pool`] in plain candle operations.
///
/// # Errors
/// Those of [`pool`].
pub fn reference(hidden: &Tensor, offsets: &[usize], pools: &[Pool], prompt: usize) -> Result<Tensor> {
    check(hidden, offsets)?;
    let texts = offsets
        .windows(2)
        .map(|bounds| {
            let text = hidden.narrow(0, bounds[0], bounds[1] - bounds[0])?.to_dtype(DType::F32)?;
            joined(&pools.iter().map(|pool| pool.of(&text, prompt)).collect::<Result<Vec<_>>>()?)
        })
        .collect::<Result<Vec<_>>>()?;
    Tensor::cat(&texts, 0)
}

/// Vectors of the same texts, end to end.
fn joined(parts: &[Tensor]) -> Result<Tensor> {
    match parts {
        [one] => Ok(one.clone()),
        parts => Tensor::cat(parts, 1),
    }
}

impl Pool {
    /// One way to pool on a GPU, `(T, H)` → `(N, H)`, for `offsets` of `(N + 1)`: some columns of a text a block.
    pub fn launch<'a>(self, hidden: &'a Tensor, offsets: &'a Tensor, prompt: usize) -> Result<Launch<'a>> {
        const COLUMNS: usize = 128;
        let (texts, width) = (offsets.dim(0)?.saturating_sub(1), hidden.dim(1)?);
        let code: usize = match self {
            Pool::Cls => 0,
            Pool::Max => 1,
            Pool::Mean => 2,
            Pool::MeanSqrtLen => 3,
            Pool::WeightedMean => 4,
            Pool::Last => 5,
            Pool::Pooler => 6,
        };
        gpu::expect(offsets, DType::U32, &[texts + 1])?;
        Ok(Launch {
            kernel: format!("pool_{}", gpu::suffix(hidden.dtype())?),
            grid: [texts, width.div_ceil(COLUMNS), 1],
            block: COLUMNS,
            to: Written::New(vec![texts, width], DType::F32),
            args: vec![hidden.into(), offsets.into(), width.into(), prompt.into(), code.into()],
        })
    }

    /// The tokens of one text, `(n, H)` → `(1, H)`, without the first `prompt` of them.
    fn of(self, text: &Tensor, prompt: usize) -> Result<Tensor> {
        let tokens = text.dim(0)?;
        if tokens <= prompt {
            return self.of_nothing(text);
        }
        let rest = text.narrow(0, prompt, tokens - prompt)?;
        match self {
            Pool::Cls => rest.narrow(0, 0, 1),
            Pool::Max => rest.max_keepdim(0),
            Pool::Mean => rest.mean_keepdim(0),
            Pool::MeanSqrtLen => rest.sum_keepdim(0)? / ((tokens - prompt) as f64).sqrt(),
            Pool::WeightedMean => {
                // Tokens keep the weights that they have with the prompt before them.
                let weights = Tensor::arange(prompt as u32 + 1, tokens as u32 + 1, text.device())?;
                let weights = weights.to_dtype(text.dtype())?.reshape((tokens - prompt, 1))?;
                let sum = (tokens * (tokens + 1) - prompt * (prompt + 1)) / 2;
                rest.broadcast_mul(&weights)?.sum_keepdim(0)? / sum as f64
            }
            Pool::Last => text.narrow(0, tokens - 1, 1),
            Pool::Pooler => text.narrow(0, 0, 1),
        }
    }

    /// The vector of a text that is all prompt, as sentence-transformers computes it: its tokens merge with those of
    /// the prompt, and the tokenizer adds no special ones.
    fn of_nothing(self, text: &Tensor) -> Result<Tensor> {
        let first = text.narrow(0, 0, 1)?;
        match self {
            Pool::Cls | Pool::Pooler => Ok(first),
            Pool::Max => first.zeros_like()? + f64::NEG_INFINITY,
            Pool::Mean | Pool::MeanSqrtLen | Pool::WeightedMean | Pool::Last => first.zeros_like(),
        }
    }
}
