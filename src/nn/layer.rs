//! One encoder layer.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;

use super::attention::{Context, SelfAttention};
use super::distance::DistanceEmbeddings;
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::{EncoderSpec, NormPlacement, Parameters};

/// Attention, then the feed-forward network, each with a residual connection. The norm stands after each
/// connection (post-norm, Vaswani et al. 2017) or before each of the two (pre-norm, Xiong et al. 2020).
pub struct Layer {
    attention: SelfAttention,
    attention_norm: Option<Norm>,
    feed_forward: FeedForward,
    feed_forward_norm: Norm,
    post_norm: bool,
}

impl Layer {
    /// Loads `NAME.{attention,attention_norm,feed_forward,feed_forward_norm}`; the `first` layer may go without its
    /// first norm.
    pub fn load(
        parameters: &mut dyn Parameters,
        name: &str,
        spec: &EncoderSpec,
        distances: Option<&Arc<DistanceEmbeddings>>,
        first: bool,
    ) -> Result<Self> {
        let (width, norm) = (spec.hidden_size, spec.norm);
        let has_norm = !(first && spec.skip_first_norm);
        Ok(Layer {
            attention: SelfAttention::load(parameters, &format!("{name}.attention"), spec, distances)?,
            attention_norm: has_norm
                .then(|| Norm::load(parameters, &format!("{name}.attention_norm"), width, norm))
                .transpose()?,
            feed_forward: FeedForward::load(parameters, &format!("{name}.feed_forward"), spec)?,
            feed_forward_norm: Norm::load(parameters, &format!("{name}.feed_forward_norm"), width, norm)?,
            post_norm: spec.norm_placement == NormPlacement::After,
        })
    }

    /// `(T, H)` → `(T, H)`.
    pub fn forward(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        if self.post_norm {
            let attended = self.attention.forward(x, context)?;
            let x = match &self.attention_norm {
                Some(norm) => norm.forward_residual(attended, x)?,
                None => (attended + x)?,
            };
            return self.feed_forward_norm.forward_residual(self.feed_forward.forward(&x)?, &x);
        }
        let attended = match &self.attention_norm {
            Some(norm) => self.attention.forward(&norm.forward(x.copy()?)?, context)?,
            None => self.attention.forward(x, context)?,
        };
        let x = (attended + x)?;
        Ok((self.feed_forward.forward(&self.feed_forward_norm.forward(x.copy()?)?)? + x)?)
    }
}
