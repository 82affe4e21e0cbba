//! The task heads with logits for each token: token classification (Devlin et al. 2019, §5.3) and extractive
//! question answering (§4.2), whose two logits are those of the start and the end of an answer.

use anyhow::Result;
use candle_core::Tensor;

use super::head_transform::{HeadTransform, TransformSpec, on_cpu};
use super::linear::Linear;
use super::{Activation, WeightSource};

/// The computation of a head with logits for each token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenHeadSpec {
    /// The layers before the last one.
    pub transform: Option<TransformSpec>,
    /// Logits per token.
    pub outputs: usize,
}

/// A head with logits for each token, with its weights.
pub struct TokenHead {
    transform: Option<HeadTransform>,
    last: Linear,
}

impl TokenHead {
    /// Loads `head.dense` of `(H, H)` and `head.norm` of `(H)` if the spec has them, and the module `last` of
    /// `(outputs, H)`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        last: &str,
        spec: &TokenHeadSpec,
        hidden_size: usize,
    ) -> Result<Self> {
        let names = ["head.dense", "head.norm"];
        let transform = spec
            .transform
            .map(|transform| HeadTransform::load(source, names, &transform, hidden_size, hidden_size));
        Ok(TokenHead {
            transform: transform.transpose()?,
            last: Linear::load(source, last, hidden_size, spec.outputs, true)?,
        })
    }

    /// The logits of tokens from their hidden states: `(T, H)` → `(T, outputs)`, in f32 on the CPU.
    ///
    /// # Errors
    /// If `hidden` has another shape.
    pub fn forward(&self, hidden: &Tensor) -> Result<Tensor> {
        let x = on_cpu(hidden)?;
        match &self.transform {
            Some(transform) => self.last.forward(&transform.forward(&x)?, Activation::Identity),
            None => self.last.forward(&x, Activation::Identity),
        }
    }
}
