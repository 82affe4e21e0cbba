//! Gated short convolutions in the place of attention (Liquid AI 2025, arXiv:2511.23404).

use anyhow::Result;
use candle_core::Tensor;

use super::attention::AttentionContext;
use super::linear::Linear;
use super::rows::Selection;
use super::{Activation, EncoderSpec, ShortConvolutionSpec, WeightSource};
use crate::ops::short_convolution::ShortConvolution;

/// Input projection, convolution between two gates, and output projection.
pub(super) struct GatedConvolution {
    /// To the gate of the input, the gate of the output, and the input, `(3 H, H)`.
    input: Linear,
    convolution: ShortConvolution,
    output: Linear,
}

impl GatedConvolution {
    /// Loads `NAME.{input,output}` and `NAME.taps.weight` of `(H, 1, k)`, all with a bias if the spec says
    /// so.
    pub(super) fn load(
        source: &mut dyn WeightSource,
        name: &str,
        spec: &EncoderSpec,
        convolution: &ShortConvolutionSpec,
    ) -> Result<Self> {
        let (width, kernel_size, bias) = (spec.hidden_size, convolution.kernel_size, convolution.bias);
        let taps = source.tensor(&format!("{name}.taps.weight"), &[width, 1, kernel_size])?;
        let taps_bias = bias.then(|| source.tensor(&format!("{name}.taps.bias"), &[width])).transpose()?;
        let mut linear =
            |module: &str, outputs| Linear::load(source, &format!("{name}.{module}"), width, outputs, bias);
        Ok(GatedConvolution {
            input: linear("input", 3 * width)?,
            output: linear("output", width)?,
            convolution: ShortConvolution {
                taps: taps.squeeze(1)?.t()?.contiguous()?,
                bias: taps_bias,
                ahead: if spec.mask.causal { 0 } else { kernel_size / 2 },
            },
        })
    }

    /// `(T, H)` → `(T, H)`, or `(R, H)` for selected tokens, plus the residual if there is one. Tokens that
    /// are no keys are zeros here.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        context: &AttentionContext,
        selection: Option<&Selection>,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let masked =
            context.key_lengths.map(|lengths| only_keys(x, context.cu_seqlens, lengths)).transpose()?;
        let projected = self.input.forward(masked.as_ref().unwrap_or(x), Activation::Identity)?;
        let mut convolved = self.convolution.forward(&projected, context.cu_seqlens)?;
        if let Some(selection) = selection {
            convolved = selection.hidden.select(&convolved)?;
        }
        self.output.forward_residual(&convolved, Activation::Identity, residual)
    }
}

/// `x` of `(T, H)` with zeros in the rows of tokens that are no keys.
fn only_keys(x: &Tensor, cu_seqlens: &[usize], key_lengths: &[usize]) -> Result<Tensor> {
    let is_key = |(bounds, keys): (&[usize], &usize)| {
        let keys = bounds[0] + keys;
        (bounds[0]..bounds[1]).map(move |token| if token < keys { 1f32 } else { 0.0 })
    };
    let mask: Vec<f32> = cu_seqlens.windows(2).zip(key_lengths).flat_map(is_key).collect();
    let mask = Tensor::from_vec(mask, (x.dim(0)?, 1), x.device())?.to_dtype(x.dtype())?;
    Ok(x.broadcast_mul(&mask)?)
}
