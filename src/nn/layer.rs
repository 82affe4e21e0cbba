//! One encoder layer.

use std::sync::Arc;

use anyhow::Result;
use candle_core::Tensor;

use super::attention::{Context, SelfAttention};
use super::distance::DistanceEmbeddings;
use super::feed_forward::FeedForward;
use super::norm::Norm;
use super::{EncoderSpec, NormPlacement, Parameters};

/// Attention, then the feed-forward network, each with a residual connection around it.
pub struct Layer {
    attention: SelfAttention,
    around_attention: Residual,
    feed_forward: FeedForward,
    around_feed_forward: Residual,
}

/// A residual connection with its norm: after the sum (post-norm, Vaswani et al. 2017) or before the sublayer
/// (pre-norm, Xiong et al. 2020).
struct Residual {
    norm: Option<Norm>,
    norm_after: bool,
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
        let mut residual = |part: &str, has_norm: bool| -> Result<Residual> {
            let norm = has_norm
                .then(|| Norm::load(parameters, &format!("{name}.{part}_norm"), spec.hidden_size, spec.norm));
            let norm_after = spec.norm_placement == NormPlacement::After;
            Ok(Residual { norm: norm.transpose()?, norm_after })
        };
        let around_attention = residual("attention", !(first && spec.skip_first_norm))?;
        let around_feed_forward = residual("feed_forward", true)?;
        Ok(Layer {
            attention: SelfAttention::load(parameters, &format!("{name}.attention"), spec, distances)?,
            around_attention,
            feed_forward: FeedForward::load(parameters, &format!("{name}.feed_forward"), spec)?,
            around_feed_forward,
        })
    }

    /// `(T, H)` → `(T, H)`.
    pub fn forward(&self, x: &Tensor, context: &Context) -> Result<Tensor> {
        let x =
            self.around_attention.forward(x, |x, residual| self.attention.forward(x, context, residual))?;
        self.around_feed_forward.forward(&x, |x, residual| self.feed_forward.forward(x, residual))
    }
}

impl Residual {
    /// `(T, H)` → `(T, H)`, as the sublayer does it for its input and for what it is to add to its output.
    fn forward(
        &self,
        x: &Tensor,
        sublayer: impl FnOnce(&Tensor, Option<&Tensor>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        match &self.norm {
            // The norm goes over the sum anyway.
            Some(norm) if self.norm_after => norm.forward_residual(sublayer(x, None)?, x),
            Some(norm) => sublayer(&norm.forward(x.copy()?)?, Some(x)),
            None => sublayer(x, Some(x)),
        }
    }
}
