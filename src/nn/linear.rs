//! Linear layers.

use anyhow::Result;
use candle_core::Tensor;

use super::{Activation, WeightSource};
use crate::ops::linear::{LinearWeights, feed_forward};

/// `y = x Wᵀ + b`, as `torch.nn.Linear`.
pub(super) struct Linear {
    weights: LinearWeights,
}

impl Linear {
    /// Loads `NAME.weight` of `(out_features, in_features)` and, if the layer has one, `NAME.bias` of
    /// `(out_features)`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        in_features: usize,
        out_features: usize,
        bias: bool,
    ) -> Result<Self> {
        let matrix = source.matrix(&format!("{name}.weight"), out_features, in_features)?;
        let bias = bias.then(|| source.tensor(&format!("{name}.bias"), &[out_features])).transpose()?;
        Ok(Linear { weights: LinearWeights::new(matrix, bias)? })
    }

    /// `f(x Wᵀ + b)`: `(T, in_features)` → `(T, out_features)`.
    pub(super) fn forward(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        self.forward_residual(x, activation, None)
    }

    /// `f(x Wᵀ + b)`, plus the residual of `(T, out_features)` if there is one.
    pub(super) fn forward_residual(
        &self,
        x: &Tensor,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        Ok(self.weights.forward(x, activation, residual)?)
    }

    /// `down(f(self(x)))`, plus the residual if there is one: `(T, in_features)` → `(T, out_features)` of `down`.
    pub(super) fn forward_then(
        &self,
        down: &Linear,
        x: &Tensor,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        Ok(feed_forward(&self.weights, &down.weights, x, activation, residual)?)
    }

    /// The outputs of several layers for the same input of `(T, in_features)`, each `(T, out_features)`.
    pub(super) fn forward_each<const N: usize>(layers: [&Linear; N], x: &Tensor) -> Result<[Tensor; N]> {
        Ok(LinearWeights::forward_each(layers.map(|layer| &layer.weights), x)?)
    }
}
