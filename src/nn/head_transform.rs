//! The layers of a task head before its last one: a dense layer, an activation and a norm.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, NormSpec, WeightSource};

/// A dense layer from the hidden size to the hidden size, its activation, and a norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TransformSpec {
    /// Whether the dense layer has a bias.
    pub bias: bool,
    /// Activation of the dense layer.
    pub activation: Activation,
    /// The norm after the activation.
    pub norm: Option<NormSpec>,
}

/// The layers of a [`TransformSpec`] with their weights.
pub(super) struct HeadTransform {
    dense: Linear,
    activation: Activation,
    norm: Option<Norm>,
}

impl HeadTransform {
    /// Loads the module `dense` of `(H, H)` and, if there is a norm, `head.norm` of `(H)`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        dense: &str,
        spec: &TransformSpec,
        hidden_size: usize,
    ) -> Result<Self> {
        let TransformSpec { bias, activation, norm } = *spec;
        let dense = Linear::load(source, dense, hidden_size, hidden_size, bias)?;
        let norm = norm.map(|norm| Norm::load(source, "head.norm", hidden_size, norm)).transpose()?;
        Ok(HeadTransform { dense, activation, norm })
    }

    /// `(N, H)` → `(N, H)`.
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.dense.forward(x, self.activation)?;
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => Ok(x),
        }
    }
}

/// Task heads run in f32 on the CPU.
pub(super) fn on_cpu(x: &Tensor) -> Result<Tensor> {
    Ok(x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
}
