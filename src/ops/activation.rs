//! Activation functions: their codes in CUDA kernels and their candle reference.

use candle_core::{DType, Result, Tensor};

pub use crate::kernels::activation::{Activation, NAMES};
use crate::kernels::activation::{LAPLACE_MU, LAPLACE_SIGMA};

/// The `ActivationCode` of a function in `kernels/cuda/linear.cu`, and its learned parameters.
pub(super) fn code(activation: Activation) -> (usize, [f32; 4]) {
    let plain = |code| (code, [0.0; 4]);
    match activation {
        Activation::Identity => plain(0),
        Activation::Gelu => plain(1),
        Activation::GeluTanh => plain(2),
        Activation::GeluClipped => plain(3),
        Activation::QuickGelu => plain(4),
        Activation::Relu => plain(5),
        Activation::ReluSquared => plain(6),
        Activation::Relu6 => plain(7),
        Activation::LeakyRelu => plain(8),
        Activation::Silu => plain(9),
        Activation::HardSwish => plain(10),
        Activation::Mish => plain(11),
        Activation::Laplace => plain(12),
        Activation::SqrtSoftplus => plain(13),
        Activation::Sigmoid => plain(14),
        Activation::Tanh => plain(15),
        Activation::Prelu { slope } => (16, [slope, 0.0, 0.0, 0.0]),
        Activation::Xielu(weights) => (17, weights),
    }
}

/// Applies a function to every element, in plain candle operations.
pub(super) fn reference(activation: Activation, x: &Tensor) -> Result<Tensor> {
    match activation {
        Activation::Identity => Ok(x.clone()),
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::GeluClipped => x.gelu_erf()?.clamp(-10f32, 10f32),
        Activation::QuickGelu => x * candle_nn::ops::sigmoid(&(x * 1.702)?)?,
        Activation::Relu => x.relu(),
        Activation::ReluSquared => x.relu()?.sqr(),
        Activation::Relu6 => x.clamp(0f32, 6f32),
        Activation::LeakyRelu => candle_nn::ops::leaky_relu(x, 0.01),
        Activation::Silu => candle_nn::ops::silu(x),
        Activation::HardSwish => x * ((x + 3.0)?.clamp(0f32, 6f32)? / 6.0)?,
        Activation::Mish => x * softplus(x)?.tanh()?,
        Activation::SqrtSoftplus => softplus(x)?.sqrt(),
        Activation::Laplace => {
            let scale = 1.0 / (LAPLACE_SIGMA * std::f64::consts::SQRT_2);
            (((x - LAPLACE_MU)? * scale)?.erf()? + 1.0)? * 0.5
        }
        Activation::Sigmoid => candle_nn::ops::sigmoid(x),
        Activation::Tanh => x.tanh(),
        Activation::Prelu { slope } => candle_nn::ops::leaky_relu(x, slope.into()),
        Activation::Xielu([positive, negative, beta, eps]) => {
            let above = (x.sqr()? * f64::from(positive))?;
            // In f64: candle has no `expm1`.
            let small = (x.minimum(eps)?.to_dtype(DType::F64)?.exp()? - 1.0)?.to_dtype(x.dtype())?;
            let below = ((small - x)? * f64::from(negative))?;
            x.gt(0f32)?.where_cond(&above, &below)? + (x * f64::from(beta))?
        }
    }
}

/// `ln(1 + eˣ)` without overflow. In f64: candle has no `log1p`.
fn softplus(x: &Tensor) -> Result<Tensor> {
    let wide = x.to_dtype(DType::F64)?;
    (wide.relu()? + (wide.abs()?.neg()?.exp()? + 1.0)?.log()?)?.to_dtype(x.dtype())
}
