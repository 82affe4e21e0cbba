//! Linear layers.

use anyhow::Result;
use candle_core::Tensor;

use super::{Activation, Parameters};
use crate::ops::linear::LinearWeights;

/// `y = x Wᵀ + b`.
pub struct Linear {
    weights: LinearWeights,
}

impl Linear {
    /// Loads `NAME.weight` of `(out_features, in_features)` and, if the layer has one, `NAME.bias` of
    /// `(out_features)`.
    pub fn load(
        parameters: &mut dyn Parameters,
        name: &str,
        in_features: usize,
        out_features: usize,
        bias: bool,
    ) -> Result<Self> {
        let matrix = parameters.matrix(&format!("{name}.weight"), out_features, in_features)?;
        let bias = bias.then(|| parameters.tensor(&format!("{name}.bias"), &[out_features])).transpose()?;
        Ok(Linear { weights: LinearWeights::new(matrix, bias)? })
    }

    /// `(T, in_features)` → `(T, out_features)`, the activation applied.
    pub fn forward(&self, x: &Tensor, activation: Activation) -> Result<Tensor> {
        self.forward_residual(x, activation, None)
    }

    /// The same, plus a residual of `(T, out_features)` if there is one.
    pub fn forward_residual(
        &self,
        x: &Tensor,
        activation: Activation,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        Ok(self.weights.forward(x, activation, residual)?)
    }

    /// What several layers make of the same `(T, in_features)`, each `(T, out_features)`.
    pub fn forward_each<const N: usize>(layers: [&Linear; N], x: &Tensor) -> Result<[Tensor; N]> {
        Ok(LinearWeights::forward_each(layers.map(|layer| &layer.weights), x)?)
    }
}
