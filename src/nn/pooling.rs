//! From the hidden states of a text to one vector (Reimers & Gurevych 2019, §3).

use std::fmt;

use anyhow::Result;
use candle_core::Tensor;

use super::RaggedBatch;

/// How the tokens of a text become its vector: one way, or several whose vectors are joined end to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pooling {
    /// One vector a text.
    Text(Vec<Pool>),
    /// No pooling: every token keeps its own vector.
    None,
}

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
    /// ([`Head::load_pooler`](super::Head::load_pooler)).
    Pooler,
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pool::Cls => "cls",
            Pool::Max => "max",
            Pool::Mean => "mean",
            Pool::MeanSqrtLen => "mean-sqrt-len",
            Pool::WeightedMean => "weighted-mean",
            Pool::Last => "last",
            Pool::Pooler => "pooler",
        })
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pooling::Text(pools) => {
                f.write_str(&pools.iter().map(Pool::to_string).collect::<Vec<_>>().join(" + "))
            }
            Pooling::None => f.write_str("none"),
        }
    }
}

impl Pooling {
    /// Dimensions of a vector for hidden states of this width.
    pub fn dimensions(&self, hidden_size: usize) -> usize {
        match self {
            Pooling::Text(pools) => pools.len() * hidden_size,
            Pooling::None => hidden_size,
        }
    }

    /// `(T, H)` → `(N, D)` for a batch of `N` texts; [`Pooling::None`] gives `(T, H)` back. The first `prompt`
    /// tokens of each text are left out.
    pub fn forward(&self, hidden: &Tensor, batch: &RaggedBatch, prompt: usize) -> Result<Tensor> {
        let Pooling::Text(pools) = self else { return Ok(hidden.clone()) };
        let texts = batch
            .offsets()
            .windows(2)
            .map(|bounds| {
                let text = hidden.narrow(0, bounds[0], bounds[1] - bounds[0])?;
                let parts = pools
                    .iter()
                    .map(|pool| pool.forward(&text, prompt))
                    .collect::<candle_core::Result<Vec<_>>>()?;
                Tensor::cat(&parts, 1)
            })
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&texts, 0)?)
    }

    /// `(S, D)`, in parts one after another, → `(N, D)`: the vectors of texts from those of the windows that they were encoded
    /// in, `windows` of them for each text, as their mean weighted by each window's number of pooled tokens, `lengths` of `(S)`. Of
    /// pooled means this is the mean over all tokens. Without pooling, tokens stay what they are.
    pub fn join(&self, parts: &[Tensor], windows: &[usize], lengths: &[usize]) -> Result<Tensor> {
        let pooled = Tensor::cat(parts, 0)?;
        if *self == Pooling::None || windows.iter().all(|&count| count == 1) {
            return Ok(pooled);
        }
        let mut start = 0;
        let texts = windows
            .iter()
            .map(|&count| {
                let (text, lengths) = (pooled.narrow(0, start, count)?, &lengths[start..start + count]);
                start += count;
                let total = lengths.iter().sum::<usize>() as f64;
                let weights = lengths.iter().map(|&length| (length as f64 / total) as f32).collect();
                let weights = Tensor::from_vec(weights, (count, 1), pooled.device())?;
                text.broadcast_mul(&weights)?.sum_keepdim(0)
            })
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&texts, 0)?)
    }
}

impl Pool {
    /// The tokens of one text, `(n, H)` → `(1, H)`, without the first `prompt` of them.
    fn forward(self, text: &Tensor, prompt: usize) -> candle_core::Result<Tensor> {
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
    fn of_nothing(self, text: &Tensor) -> candle_core::Result<Tensor> {
        let first = text.narrow(0, 0, 1)?;
        match self {
            Pool::Cls | Pool::Pooler => Ok(first),
            Pool::Max => first.zeros_like()? + f64::NEG_INFINITY,
            Pool::Mean | Pool::MeanSqrtLen | Pool::WeightedMean | Pool::Last => first.zeros_like(),
        }
    }
}
