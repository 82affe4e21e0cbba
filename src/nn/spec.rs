//! What the maths of a stack is, in plain numbers.

use anyhow::{Result, ensure};

use super::Activation;

/// An encoder: token, segment and learned position embeddings, then post-norm layers of multi-head attention
/// and a feed-forward network.
#[derive(Debug, Clone, PartialEq)]
pub struct EncoderSpec {
    /// Rows of the token embedding table.
    pub vocab_size: usize,
    /// Rows of the learned position table: the longest text in tokens.
    pub max_positions: usize,
    /// Rows of the segment table.
    pub token_types: usize,
    /// Width `H` of the hidden states.
    pub hidden_size: usize,
    /// Number of layers.
    pub layers: usize,
    /// Attention heads; they divide `hidden_size`.
    pub heads: usize,
    /// Width of the feed-forward network between its two linear layers.
    pub intermediate_size: usize,
    /// Activation of the feed-forward network.
    pub activation: Activation,
    /// What LayerNorm adds to the variance.
    pub norm_eps: f64,
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
