//! The layers of a task head before its last one: a dense layer, an activation and a norm.

use anyhow::Result;
use candle_core::{DType, Device, Tensor};

use super::linear::Linear;
use super::norm::Norm;
use super::{Activation, NormSpec, WeightSource};

/// A dense layer, its activation, and a norm.
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
    /// Loads the modules `dense` of `(outputs, inputs)` and, if there is a norm, `norm` of `(outputs)`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        [dense, norm]: [&str; 2],
        spec: &TransformSpec,
        inputs: usize,
        outputs: usize,
    ) -> Result<Self> {
        let dense = Linear::load(source, dense, inputs, outputs, spec.bias)?;
        let norm = spec.norm.map(|spec| Norm::load(source, norm, outputs, spec)).transpose()?;
        let activation = spec.activation;
        Ok(HeadTransform { dense, activation, norm })
    }

    /// `(N, inputs)` → `(N, outputs)`.
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
