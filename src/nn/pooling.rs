//! From the hidden states of a text to one vector (Reimers & Gurevych 2019, §3).

use std::fmt;

use anyhow::Result;
use candle_core::Tensor;

use super::RaggedBatch;

/// How the tokens of a text become its vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The hidden state of the first token, `[CLS]`.
    Cls,
    /// The mean over all tokens.
    Mean,
    /// The largest value of each dimension over all tokens.
    Max,
    /// No pooling: every token keeps its own vector.
    None,
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pooling::Cls => "cls",
            Pooling::Mean => "mean",
            Pooling::Max => "max",
            Pooling::None => "none",
        })
    }
}

impl Pooling {
    /// `(T, H)` → `(N, H)` for a batch of `N` texts; [`Pooling::None`] gives `(T, H)` back.
    pub fn forward(self, hidden: &Tensor, batch: &RaggedBatch) -> Result<Tensor> {
        if self == Pooling::None {
            return Ok(hidden.clone());
        }
        let texts = batch
            .offsets()
            .windows(2)
            .map(|bounds| {
                let text = hidden.narrow(0, bounds[0], bounds[1] - bounds[0])?;
                match self {
                    Pooling::Cls => text.narrow(0, 0, 1),
                    Pooling::Mean => text.mean_keepdim(0),
                    Pooling::Max => text.max_keepdim(0),
                    Pooling::None => Ok(text),
                }
            })
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&texts, 0)?)
    }
}
