//! A convolution beside the first layer: DeBERTa's n-gram induced input encoding (nGiE, He et al. 2021).

use anyhow::Result;
use candle_core::Tensor;

use super::norm::Norm;
use super::rows::unfold;
use super::{Activation, ConvolutionSpec, EncoderSpec, RaggedBatch, WeightSource};
use crate::ops::linear::LinearWeights;

/// `norm(y + f(W * x + b))`: the embeddings `x`, convolved along each sequence, are added to the output `y`
/// of the first layer.
pub(super) struct Convolution {
    /// Unfolded kernel, `(H, kernel_size · H)`: a convolution is a matmul over the tokens under the kernel.
    weights: LinearWeights,
    kernel_size: usize,
    activation: Activation,
    norm: Norm,
}

impl Convolution {
    /// Loads `convolution.weight` of `(H, H, kernel_size)`, `convolution.bias` of `(H)` and
    /// `convolution_norm` if the spec has a convolution.
    pub(super) fn load(source: &mut dyn WeightSource, spec: &EncoderSpec) -> Result<Option<Self>> {
        let Some(ConvolutionSpec { kernel_size, activation }) = spec.convolution else { return Ok(None) };
        let hidden_size = spec.hidden_size;
        let kernel = source.kernel("convolution.weight", hidden_size, kernel_size)?;
        let bias = source.tensor("convolution.bias", &[hidden_size])?;
        Ok(Some(Convolution {
            weights: LinearWeights::new(kernel, Some(bias))?,
            kernel_size,
            activation,
            norm: Norm::load(source, "convolution_norm", hidden_size, spec.norm)?,
        }))
    }

    /// `x` and `y` of `(T, H)` → `(T, H)`; each sequence is padded with zeros at both ends.
    pub(super) fn forward(&self, x: &Tensor, y: &Tensor, batch: &RaggedBatch) -> Result<Tensor> {
        let padding = (self.kernel_size / 2) as isize;
        let unfolded = unfold(x, batch, -padding..=padding)?;
        self.norm.forward_residual(self.weights.forward(&unfolded, self.activation, None)?, y)
    }
}
