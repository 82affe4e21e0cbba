//! The task head for sequence classification: a pooled hidden state, a dense layer, and a linear layer with a logit for each
//! label (Devlin et al. 2019, §4.1; Liu et al. 2019).

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, NormSpec, Pool, WeightSource};
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
    /// Whether the dense layer has a bias.
    pub dense_bias: bool,
    /// Activation of the dense layer.
    pub activation: Activation,
    /// The norm after the activation.
    pub norm: Option<NormSpec>,
    /// Number of labels: logits per sequence.
    pub labels: usize,
}

/// A sequence-classification head with its weights. Each sequence is computed from itself alone, so that its logits do not depend
/// on its batch.
pub struct ClassificationHead {
    spec: ClassificationSpec,
    dense: Linear,
    norm: Option<Norm>,
    classifier: Linear,
}

impl ClassificationHead {
    /// Loads `head.dense`, or `pooler`, of `(H, H)`, `head.norm` of `(H)`, and `head.classifier` of `(labels, H)`.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load(
        source: &mut dyn WeightSource,
        spec: &ClassificationSpec,
        hidden_size: usize,
    ) -> Result<Self> {
        let dense = if spec.dense_is_pooler { "pooler" } else { "head.dense" };
        let norm = spec.norm.map(|norm| Norm::load(source, "head.norm", hidden_size, norm));
        Ok(ClassificationHead {
            spec: *spec,
            dense: Linear::load(source, dense, hidden_size, hidden_size, spec.dense_bias)?,
            norm: norm.transpose()?,
            classifier: Linear::load(source, "head.classifier", hidden_size, spec.labels, true)?,
        })
    }

    /// Number of labels.
    pub fn labels(&self) -> usize {
        self.spec.labels
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
        let x = self.dense.forward(x, self.spec.activation)?;
        let x = match &self.norm {
            Some(norm) => norm.forward(x)?,
            None => x,
        };
        self.classifier.forward(&x, Activation::Identity)
    }
}

fn on_cpu(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
}
