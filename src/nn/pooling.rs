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

    /// `(T, H)` → `(N, D)` for a batch of `N` texts; [`Pooling::None`] gives `(T, H)` back.
    pub fn forward(&self, hidden: &Tensor, batch: &RaggedBatch) -> Result<Tensor> {
        let Pooling::Text(pools) = self else { return Ok(hidden.clone()) };
        let texts = batch
            .offsets()
            .windows(2)
            .map(|bounds| {
                let text = hidden.narrow(0, bounds[0], bounds[1] - bounds[0])?;
                let parts =
                    pools.iter().map(|pool| pool.forward(&text)).collect::<candle_core::Result<Vec<_>>>()?;
                Tensor::cat(&parts, 1)
            })
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&texts, 0)?)
    }
}

impl Pool {
    /// The tokens of one text, `(n, H)` → `(1, H)`.
    fn forward(self, text: &Tensor) -> candle_core::Result<Tensor> {
        let tokens = text.dim(0)?;
        match self {
            Pool::Cls => text.narrow(0, 0, 1),
            Pool::Max => text.max_keepdim(0),
            Pool::Mean => text.mean_keepdim(0),
            Pool::MeanSqrtLen => text.sum_keepdim(0)? / (tokens as f64).sqrt(),
            Pool::WeightedMean => {
                let weights = Tensor::arange(1u32, tokens as u32 + 1, text.device())?;
                let weights = weights.to_dtype(text.dtype())?.reshape((tokens, 1))?;
                text.broadcast_mul(&weights)?.sum_keepdim(0)? / (tokens * (tokens + 1) / 2) as f64
            }
            Pool::Last => text.narrow(0, tokens - 1, 1),
        }
    }
}
