//! Layer normalisation.

use anyhow::Result;
use candle_core::Tensor;

use super::Parameters;
use crate::ops::add_norm::add_layer_norm;

/// LayerNorm with weight and bias (Ba et al. 2016).
pub struct Norm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl Norm {
    /// Loads `NAME.weight` and `NAME.bias`, both of `(width)`.
    pub fn load(parameters: &mut dyn Parameters, name: &str, width: usize, eps: f64) -> Result<Self> {
        Ok(Norm {
            weight: parameters.tensor(&format!("{name}.weight"), &[width])?,
            bias: parameters.tensor(&format!("{name}.bias"), &[width])?,
            eps,
        })
    }

    /// `LayerNorm(x)` for `(T, width)`.
    pub fn forward(&self, x: Tensor) -> Result<Tensor> {
        Ok(add_layer_norm(x, None, &self.weight, &self.bias, self.eps)?)
    }

    /// `LayerNorm(x + residual)`, both of `(T, width)`: the end of a post-norm sublayer.
    pub fn forward_residual(&self, x: Tensor, residual: &Tensor) -> Result<Tensor> {
        Ok(add_layer_norm(x, Some(residual), &self.weight, &self.bias, self.eps)?)
    }
}
