//! A convolution beside the first layer, which tells it about the neighbours of a token (He et al. 2021, nGiE).

use anyhow::Result;
use candle_core::Tensor;

use super::norm::Norm;
use super::{Activation, ConvolutionSpec, EncoderSpec, Parameters, RaggedBatch};
use crate::ops::linear::{LinearWeights, Matrix};

/// `norm(y + f(W * x + b))`: the embeddings `x`, convolved along each text, join the output `y` of the first layer.
pub struct Convolution {
    /// From the tokens under the kernel, side by side, to one.
    weights: LinearWeights,
    width: usize,
    activation: Activation,
    norm: Norm,
}

impl Convolution {
    /// Loads `convolution.weight` of `(H, H, width)`, `convolution.bias` of `(H)` and `convolution_norm` if the spec
    /// has a convolution.
    pub fn load(parameters: &mut dyn Parameters, spec: &EncoderSpec) -> Result<Option<Self>> {
        let Some(ConvolutionSpec { width, activation }) = spec.convolution else { return Ok(None) };
        let hidden_size = spec.hidden_size;
        let weight = parameters.tensor("convolution.weight", &[hidden_size, hidden_size, width])?;
        let bias = parameters.tensor("convolution.bias", &[hidden_size])?;
        let weight = weight.transpose(1, 2)?.contiguous()?.flatten_from(1)?;
        Ok(Some(Convolution {
            weights: LinearWeights::new(Matrix::new(weight, parameters.engine())?, Some(bias))?,
            width,
            activation,
            norm: Norm::load(parameters, "convolution_norm", hidden_size, spec.norm)?,
        }))
    }

    /// `(T, H)` and `(T, H)` → `(T, H)`; beside a text there are zeros.
    pub fn forward(&self, x: &Tensor, y: &Tensor, batch: &RaggedBatch) -> Result<Tensor> {
        let (tokens, hidden_size) = x.dims2()?;
        let zeros = Tensor::zeros((1, hidden_size), x.dtype(), x.device())?;
        let x = Tensor::cat(&[x, &zeros], 0)?;
        let before = self.width / 2;
        let mut rows = Vec::with_capacity(tokens * self.width);
        for bounds in batch.offsets().windows(2) {
            for token in bounds[0]..bounds[1] {
                rows.extend((0..self.width).map(|column| match token + column {
                    row if (bounds[0] + before..bounds[1] + before).contains(&row) => (row - before) as u32,
                    _ => tokens as u32,
                }));
            }
        }
        let windows = x.index_select(&Tensor::new(rows, x.device())?, 0)?.reshape((tokens, ()))?;
        self.norm.forward_residual(self.weights.forward(&windows, self.activation, None)?, y)
    }
}
