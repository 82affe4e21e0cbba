//! What the maths of a stack is, in plain numbers.

use anyhow::{Result, ensure};

use super::{Activation, NormKind};

/// An encoder: token, segment and position embeddings, then post-norm layers of multi-head attention and a
/// feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// Rows of the token embedding table.
    pub vocab_size: usize,
    /// Width of the embedding tables. Where it is not `hidden_size`, a linear layer leads from one to the other
    /// (Lan et al. 2020, §3.1).
    pub embedding_size: usize,
    /// How tokens are told where they stand.
    pub positions: Positions,
    /// Rows of the segment table; without one, segments make no difference.
    pub token_types: Option<usize>,
    /// Rows of the task table, of which every token gets the first (Sun et al. 2020).
    pub task_types: Option<usize>,
    /// Width `H` of the hidden states.
    pub hidden_size: usize,
    /// Number of layers that a text passes.
    pub layers: usize,
    /// Which of them share weights.
    pub layer_sharing: LayerSharing,
    /// Attention heads; they divide `hidden_size`.
    pub heads: usize,
    /// What is added to the scores of queries and keys.
    pub score_bias: ScoreBias,
    /// Width of the feed-forward network between its two linear layers.
    pub intermediate_size: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// The norms.
    pub norm: NormSpec,
}

/// What a norm computes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NormSpec {
    /// LayerNorm or RMSNorm.
    pub kind: NormKind,
    /// Whether a bias is added.
    pub bias: bool,
    /// What is added to the variance, or to the mean square.
    pub eps: f64,
}

/// A learned position table (Devlin et al. 2019).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Positions {
    /// Rows of the table.
    pub rows: usize,
    /// Which row the first token gets, and the rest after it.
    pub numbering: Numbering,
}

/// How the tokens of a text are numbered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Numbering {
    /// 0, 1, 2, …
    FromZero,
    /// From the padding id + 1 on; a padding token inside of a text has the number of its id and is not counted
    /// (Liu et al. 2019, as fairseq does it).
    AfterPadding(u32),
}

impl Positions {
    /// The longest text in tokens.
    pub fn longest(&self) -> usize {
        match self.numbering {
            Numbering::FromZero => self.rows,
            Numbering::AfterPadding(padding) => self.rows.saturating_sub(padding as usize + 1),
        }
    }
}

/// A bias on attention scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreBias {
    /// None.
    None,
    /// A learned number for each head and bucket of distances, the same in every layer (Raffel et al. 2020, §2.1;
    /// Song et al. 2020).
    Bucketed {
        /// Rows of the table.
        rows: usize,
        /// Buckets in use, half of them for either direction.
        buckets: usize,
        /// The distance from which on all share the last bucket.
        max_distance: usize,
    },
}

/// Which layers share weights: ALBERT's groups (Lan et al. 2020, §3.1). Each of the `layers` belongs to one of
/// `groups`, the first ones to the first group and so on, and runs the `inner` layers of that group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerSharing {
    /// Sets of weights.
    pub groups: usize,
    /// Layers in each set.
    pub inner: usize,
}

impl LayerSharing {
    /// The group of a layer, with the rounding of `transformers`.
    pub fn group(&self, layer: usize, layers: usize) -> usize {
        (layer as f64 / (layers as f64 / self.groups as f64)) as usize
    }
}

impl EncoderSpec {
    /// Columns of one head.
    ///
    /// # Errors
    /// If the heads do not divide the hidden size.
    pub fn head_size(&self) -> Result<usize> {
        ensure!(
            self.heads > 0 && self.hidden_size.is_multiple_of(self.heads),
            "a hidden size of {} is not divisible by {} attention heads",
            self.hidden_size,
            self.heads
        );
        Ok(self.hidden_size / self.heads)
    }
}
