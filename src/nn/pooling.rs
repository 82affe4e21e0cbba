//! Pooling: from the hidden states of a sequence to one vector (Reimers & Gurevych 2019, §3).

use std::fmt;
use std::ops::Range;

use anyhow::{Result, bail};
use candle_core::Tensor;

use super::head_transform::on_cpu;
use super::{PooledToken, PoolerSpec, RaggedBatch};
use crate::named::{Named, names};
pub use crate::ops::pooling::Pool;
use crate::ops::pooling::{pool, select};

/// The name of [`Pooling::Splade`].
pub const SPLADE: &str = "splade";
/// The name of [`Pooling::MultiVector`].
pub const MULTI_VECTOR: &str = "multi-vector";
/// The name of [`Pooling::Lexical`].
pub const LEXICAL: &str = "lexical";

/// The reduction of the hidden states of a sequence to vectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pooling {
    /// One vector per sequence: the results of these poolings, concatenated.
    Text(Vec<Pool>),
    /// One vector per token, which the modules of a multi-vector model project (Khattab & Zaharia 2020, §3).
    MultiVector,
    /// No pooling: one hidden state per token.
    None,
    /// SPLADE: weights of the vocabulary, from the logits of the masked-LM head (Formal et al. 2021).
    Splade,
    /// Lexical weights: one of each token of the text, from a head with one logit per token (Chen et al.
    /// 2024, "BGE M3-Embedding", §3.2).
    Lexical,
}

impl Pooling {
    /// Whether there is a sparse vector per text.
    pub fn is_sparse(&self) -> bool {
        matches!(self, Pooling::Splade | Pooling::Lexical)
    }
}

/// Outputs that one forward pass of a model like BGE-M3 gives together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum OutputKind {
    /// One vector per text.
    Dense,
    /// Lexical weights: [`Pooling::Lexical`].
    Lexical,
    /// One projected vector per token: [`Pooling::MultiVector`].
    MultiVector,
}

names!(OutputKind { Dense => "dense", Lexical => LEXICAL, MultiVector => MULTI_VECTOR });

names!(Pool {
    Cls => "cls",
    Mean => "mean",
    Max => "max",
    MeanSqrtLen => "mean-sqrt-len",
    WeightedMean => "weighted-mean",
    Last => "last",
    Pooler => "pooler",
});

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Pooling::Text(pools) => {
                f.write_str(&pools.iter().map(Pool::to_string).collect::<Vec<_>>().join(" + "))
            }
            Pooling::MultiVector => f.write_str(MULTI_VECTOR),
            Pooling::None => f.write_str("none"),
            Pooling::Splade => f.write_str(SPLADE),
            Pooling::Lexical => f.write_str(LEXICAL),
        }
    }
}

impl Pooling {
    /// Dimensions of a vector for hidden states of `hidden_size`, after the pooler if the pooling needs it.
    pub fn dimensions(&self, hidden_size: usize, pooler: &PoolerSpec) -> usize {
        match self {
            Pooling::Text(_) if self.needs_pooler() => pooler.outputs(hidden_size),
            Pooling::Text(pools) => pools.len() * hidden_size,
            Pooling::MultiVector | Pooling::None | Pooling::Splade | Pooling::Lexical => hidden_size,
        }
    }

    /// Whether there is one vector per token.
    pub fn is_per_token(&self) -> bool {
        matches!(self, Pooling::MultiVector | Pooling::None)
    }

    /// Whether the pooling needs the encoder's own pooler.
    pub fn needs_pooler(&self) -> bool {
        matches!(self, Pooling::Text(pools) if pools.contains(&Pool::Pooler))
    }

    /// `(T, H)` → `(N, D)` for a batch of `N` sequences, in f32 on the CPU; with one vector per token, all
    /// `T` rows. The first `prompt_tokens` tokens of each sequence are not pooled. The pooler takes its
    /// `token`.
    ///
    /// # Errors
    /// If `hidden` has not as many rows as the batch has tokens.
    pub fn forward(
        &self,
        hidden: &Tensor,
        batch: &RaggedBatch,
        prompt_tokens: usize,
        token: PooledToken,
    ) -> Result<Tensor> {
        let Some(tokens) = self.pooled_tokens(batch, prompt_tokens, token) else {
            return self.vectors(hidden, batch.cu_seqlens(), prompt_tokens);
        };
        on_cpu(&select(hidden, batch.cu_seqlens(), &tokens)?)
    }

    /// The token of each sequence whose hidden state is its vector, as a row of the batch, `(N)`; `None` if
    /// [`Pooling::forward`] pools several.
    pub fn pooled_tokens(
        &self,
        batch: &RaggedBatch,
        prompt_tokens: usize,
        token: PooledToken,
    ) -> Option<Vec<u32>> {
        let row = |bounds: &[usize]| (bounds[0] + token.index(&batch.ids()[bounds[0]..bounds[1]])) as u32;
        match self {
            _ if self.needs_pooler() => Some(batch.cu_seqlens().windows(2).map(row).collect()),
            // A prompt that is not pooled can be all of a text.
            Pooling::Text(pools) if pools.len() == 1 && prompt_tokens == 0 => {
                pools[0].tokens(batch.cu_seqlens())
            }
            _ => None,
        }
    }

    fn vectors(&self, hidden: &Tensor, cu_seqlens: &[usize], prompt_tokens: usize) -> Result<Tensor> {
        let vectors = match self {
            Pooling::Text(pools) => pool(hidden, cu_seqlens, pools, prompt_tokens)?,
            Pooling::MultiVector | Pooling::None => hidden.clone(),
            Pooling::Splade | Pooling::Lexical => {
                bail!("--pooling {self} pools logits, not hidden states; please report this as a bug")
            }
        };
        on_cpu(&vectors)
    }

    /// `(T, H)` → `(S, D)` for `S` spans of tokens, each pooled like a sequence of its own, in f32 on the
    /// CPU.
    ///
    /// # Errors
    /// If a span is empty or ends past the rows of `hidden`.
    pub fn forward_spans(&self, hidden: &Tensor, spans: &[Range<usize>]) -> Result<Tensor> {
        let rows = spans.iter().map(|span| hidden.narrow(0, span.start, span.len()));
        let hidden = Tensor::cat(&rows.collect::<candle_core::Result<Vec<_>>>()?, 0)?;
        let mut cu_seqlens = vec![0];
        cu_seqlens.extend(spans.iter().scan(0, |end, span| {
            *end += span.len();
            Some(*end)
        }));
        self.vectors(&hidden, &cu_seqlens, 0)
    }

    /// The vectors of `N` texts from those of their sequences, `(S, D)` → `(N, D)`: the mean over the
    /// sequences of a text, weighted by the pooled tokens of each. With mean pooling this is the mean over
    /// all tokens.
    ///
    /// `vectors` are concatenated to `(S, D)`; `counts`, `(N)`, is the number of sequences of each text,
    /// `tokens`, `(S)`, the number of pooled tokens of each sequence. The vectors of the tokens are returned
    /// as they are.
    ///
    /// # Errors
    /// If `counts` do not add up to the rows of `vectors`.
    pub fn average_sequences(
        &self,
        vectors: &[Tensor],
        counts: &[usize],
        tokens: &[usize],
    ) -> Result<Tensor> {
        let vectors = Tensor::cat(vectors, 0)?;
        if self.is_per_token() || counts.iter().all(|&count| count == 1) {
            return Ok(vectors);
        }
        let mut start = 0;
        let texts = counts
            .iter()
            .map(|&count| {
                let (text, lengths) = (vectors.narrow(0, start, count)?, &tokens[start..start + count]);
                start += count;
                let total = lengths.iter().sum::<usize>() as f64;
                let weights = lengths.iter().map(|&length| (length as f64 / total) as f32).collect();
                let weights = Tensor::from_vec(weights, (count, 1), vectors.device())?;
                text.broadcast_mul(&weights)?.sum_keepdim(0)
            })
            .collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&texts, 0)?)
    }
}
