//! The task head for sequence classification: a pooled hidden state, a dense layer, and a linear layer with a logit for each
//! label (Devlin et al. 2019, §4.1; Liu et al. 2019).

use anyhow::Result;
use candle_core::Tensor;

use super::head_transform::{HeadTransform, TransformSpec, on_cpu};
use super::linear::Linear;
use super::{Activation, Pool, WeightSource};
use crate::ops::pooling::pool;

/// The computation of a sequence-classification head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClassificationSpec {
    /// The pooling of hidden states.
    pub pool: Pool,
    /// Whether logits are computed for each token and pooled after that.
    pub pools_logits: bool,
    /// Whether the dense layer is the encoder's own pooler.
    pub dense_is_pooler: bool,
    /// The layers before the last one.
    pub transform: Option<TransformSpec>,
    /// Whether the last layer has a bias.
    pub bias: bool,
    /// Number of labels: logits per sequence.
    pub labels: usize,
}

/// A sequence-classification head with its weights. Each sequence is computed from itself alone, so that its logits do not depend
/// on its batch.
pub struct ClassificationHead {
    spec: ClassificationSpec,
    transform: Option<HeadTransform>,
    classifier: Linear,
}

impl ClassificationHead {
    /// Loads `head.dense`, or `pooler`, of `(H, H)` and `head.norm` of `(H)` if the spec has them, and the module `last` of `(labels, H)`.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load(
        source: &mut dyn WeightSource,
        last: &str,
        spec: &ClassificationSpec,
        hidden_size: usize,
    ) -> Result<Self> {
        let dense = if spec.dense_is_pooler { "pooler" } else { "head.dense" };
        let transform = spec.transform.map(|transform| {
            HeadTransform::load(source, [dense, "head.norm"], &transform, hidden_size, hidden_size)
        });
        Ok(ClassificationHead {
            spec: *spec,
            transform: transform.transpose()?,
            classifier: Linear::load(source, last, hidden_size, spec.labels, spec.bias)?,
        })
    }

    /// The logits of `N` sequences from their hidden states: `(T, H)` and `cu_seqlens` of `(N + 1)` → `(N, labels)`, in f32 on the
    /// CPU.
    ///
    /// # Errors
    /// If `cu_seqlens` does not divide the `T` tokens into sequences.
    pub fn forward(&self, hidden: &Tensor, cu_seqlens: &[usize]) -> Result<Tensor> {
        let pooled = |x: &Tensor| pool(x, cu_seqlens, &[self.spec.pool], 0);
        if self.spec.pools_logits {
            return Ok(pooled(&self.logits(&on_cpu(hidden)?)?)?);
        }
        self.logits(&on_cpu(&pooled(hidden)?)?)
    }

    /// `(N, H)` → `(N, labels)`.
    fn logits(&self, x: &Tensor) -> Result<Tensor> {
        match &self.transform {
            Some(transform) => self.classifier.forward(&transform.forward(x)?, Activation::Identity),
            None => self.classifier.forward(x, Activation::Identity),
        }
    }
}
