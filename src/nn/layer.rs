//! One encoder layer.

use anyhow::Result;
use candle_core::Tensor;

use super::attention::SelfAttention;
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::{EncoderSpec, Parameters, RaggedBatch};

/// Attention, then the feed-forward network, each with a residual connection and the norm after it (post-norm,
/// as in Vaswani et al. 2017).
pub struct Layer {
    attention: SelfAttention,
    attention_norm: Norm,
    feed_forward: FeedForward,
    feed_forward_norm: Norm,
}

impl Layer {
    /// Loads `NAME.{attention,attention_norm,feed_forward,feed_forward_norm}`.
    pub fn load(parameters: &mut dyn Parameters, name: &str, spec: &EncoderSpec) -> Result<Self> {
        let (width, norm) = (spec.hidden_size, spec.norm);
        Ok(Layer {
            attention: SelfAttention::load(parameters, &format!("{name}.attention"), spec)?,
            attention_norm: Norm::load(parameters, &format!("{name}.attention_norm"), width, norm)?,
            feed_forward: FeedForward::load(parameters, &format!("{name}.feed_forward"), spec)?,
            feed_forward_norm: Norm::load(parameters, &format!("{name}.feed_forward_norm"), width, norm)?,
        })
    }

    /// `(T, H)` → `(T, H)`; `bias` is added to the scores of attention.
    pub fn forward(&self, x: &Tensor, batch: &RaggedBatch, bias: Option<&Tensor>) -> Result<Tensor> {
        let x = self.attention_norm.forward_residual(self.attention.forward(x, batch, bias)?, x)?;
        self.feed_forward_norm.forward_residual(self.feed_forward.forward(&x)?, &x)
    }
}
