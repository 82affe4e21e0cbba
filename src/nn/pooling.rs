//! From the hidden states of a text to one vector (Reimers & Gurevych 2019, §3).

use std::fmt;
use std::ops::Range;

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::RaggedBatch;
pub use crate::ops::pooling::Pool;
use crate::ops::pooling::pool;

/// How the tokens of a text become its vector: one way, or several whose vectors are joined end to end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pooling {
    /// One vector a text.
    Text(Vec<Pool>),
    /// No pooling: every token keeps its own vector.
    None,
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

    /// `(T, H)` → `(N, D)` for a batch of `N` texts, in f32 on the CPU; [`Pooling::None`] gives all `T` rows back. The first
    /// `prompt` tokens of each text are left out.
    pub fn forward(&self, hidden: &Tensor, batch: &RaggedBatch, prompt: usize) -> Result<Tensor> {
        self.vectors(hidden, batch.offsets(), prompt)
    }

    fn vectors(&self, hidden: &Tensor, offsets: &[usize], prompt: usize) -> Result<Tensor> {
        let vectors = match self {
            Pooling::Text(pools) => pool(hidden, offsets, pools, prompt)?,
            Pooling::None => hidden.clone(),
        };
        Ok(vectors.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
    }

    /// `(T, H)` → `(S, D)`: the vectors of parts of sequences, each given by its tokens, in f32 on the CPU. A pooling of one kind takes
    /// a part as it takes a whole text.
    pub fn forward_spans(&self, hidden: &Tensor, spans: &[Range<usize>]) -> Result<Tensor> {
        let parts = spans.iter().map(|span| hidden.narrow(0, span.start, span.len()));
        let hidden = Tensor::cat(&parts.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
        let mut offsets = vec![0];
        offsets.extend(spans.iter().scan(0, |end, span| {
            *end += span.len();
            Some(*end)
        }));
        self.vectors(&hidden, &offsets, 0)
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
