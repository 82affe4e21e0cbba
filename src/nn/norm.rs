//! Normalisation layers.

use anyhow::Result;
use candle_core::Tensor;

use super::{NormSpec, WeightSource};
use crate::ops::add_norm::{NormWeights, add_norm};

/// LayerNorm (Ba et al. 2016), with or without a bias, RMSNorm (Zhang & Sennrich 2019) or NoNorm (Sun et
/// al. 2020).
pub struct Norm {
    weights: NormWeights,
}

impl Norm {
    /// Loads `NAME.weight` and, if the norm has one, `NAME.bias`, both of `(width)`.
    pub fn load(source: &mut dyn WeightSource, name: &str, width: usize, spec: NormSpec) -> Result<Self> {
        let NormSpec { kind, bias, unit_offset, eps } = spec;
        let weight = source.tensor(&format!("{name}.weight"), &[width])?;
        let weight = if unit_offset { (weight + 1.0)? } else { weight };
        let bias = bias.then(|| source.tensor(&format!("{name}.bias"), &[width])).transpose()?;
        Ok(Norm { weights: NormWeights { kind, weight, bias, eps } })
    }

    /// The parameters, for operations that fuse this norm.
    pub fn weights(&self) -> &NormWeights {
        &self.weights
    }

    /// `norm(x)` for `(T, width)`.
    pub fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(add_norm(x, None, &self.weights)?)
    }

    /// `norm(x)` of every head, or of all heads if the norm is as wide: `(T, heads · head dim)` →
    /// `(T, heads · head dim)`.
    pub fn forward_heads(&self, x: Tensor) -> Result<Tensor> {
        let (tokens, columns) = x.dims2()?;
        let heads = x.reshape(((), self.weights.weight.dim(0)?))?;
        Ok(self.forward(heads)?.reshape((tokens, columns))?)
    }

    /// `norm(x + residual)`, both of `(T, width)`: the end of a post-norm sublayer.
    pub fn forward_residual(&self, x: Tensor, residual: &Tensor) -> Result<Tensor> {
        Ok(add_norm(x, Some(residual), &self.weights)?)
    }
}
