//! Linear layers.

use anyhow::Result;
use candle_core::Tensor;

use super::{Activation, Matrix, WeightSource};
use crate::ops::linear::LinearWeights;

/// `y = x Wᵀ + b`, as `torch.nn.Linear`.
pub(super) struct Linear {
    pub(super) weights: LinearWeights,
}

impl Linear {
    /// A layer of a matrix `(out_features, in_features)`, without a bias.
    pub(super) fn new(matrix: Matrix) -> Result<Self> {
        Self::with_bias(matrix, None)
    }

    /// A layer of a matrix `(out_features, in_features)` and a bias of `(out_features)`, if it has one.
    pub(super) fn with_bias(matrix: Matrix, bias: Option<Tensor>) -> Result<Self> {
        Ok(Linear { weights: LinearWeights::new(matrix, bias)? })
    }

    /// Loads `NAME.weight` of `(out_features, in_features)` and, if the layer has one, `NAME.bias` of
    /// `(out_features)`.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        in_features: usize,
        out_features: usize,
        bias: bool,
    ) -> Result<Self> {
        let bias = bias.then(|| format!("{name}.bias"));
        Self::load_tensors(source, &format!("{name}.weight"), bias.as_deref(), in_features, out_features)
    }

    /// [`Linear::load`] of tensors with these names.
    pub(super) fn load_tensors(
        source: &mut dyn WeightSource,
        weight: &str,
        bias: Option<&str>,
        in_features: usize,
        out_features: usize,
    ) -> Result<Self> {
        let matrix = source.matrix(weight, out_features, in_features)?;
        let bias = bias.map(|bias| source.tensor(bias, &[out_features])).transpose()?;
        Self::with_bias(matrix, bias)
    }

    /// Applies `reduce` to the outputs `x Wᵀ + b` in blocks of columns, of which each thread holds one at a
    /// time: to the index of a block's first column, and its values of `(T, columns)`. Returns the results in
    /// the order of the columns.
    pub(super) fn forward_by_columns<R: Send>(
        &self,
        x: &Tensor,
        reduce: impl Fn(usize, &[f32]) -> R + Sync,
    ) -> Result<Vec<R>> {
        Ok(self.weights.forward_by_columns(x, reduce)?)
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

    /// The outputs of several layers for the same input of `(T, in_features)`, each `(T, out_features)`.
    pub(super) fn forward_each<const N: usize>(layers: [&Linear; N], x: &Tensor) -> Result<[Tensor; N]> {
        Ok(LinearWeights::forward_each(layers.map(|layer| &layer.weights), x)?)
    }
}
