//! Activation functions on one number.

use std::f32::consts::{FRAC_1_SQRT_2, PI};

use libm::erff;

/// `x Φ(x)`, the exact form over the error function (Hendrycks & Gimpel 2016).
pub fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erff(x * FRAC_1_SQRT_2))
}

/// The tanh form of GELU: `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
pub fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + ((2.0 / PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// GELU, kept within −10 and 10.
pub fn gelu_clipped(x: f32) -> f32 {
    gelu(x).clamp(-10.0, 10.0)
}

/// `x σ(1.702 x)`.
pub fn quick_gelu(x: f32) -> f32 {
    x * sigmoid(1.702 * x)
}

/// `max(x, 0)`; NaN stays NaN.
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `max(x, 0)²`.
pub fn relu_squared(x: f32) -> f32 {
    relu(x) * relu(x)
}

/// `min(max(x, 0), 6)`; NaN stays NaN.
pub fn relu6(x: f32) -> f32 {
    x.clamp(0.0, 6.0)
}

/// `x`, or `0.01 x` below 0.
pub fn leaky_relu(x: f32) -> f32 {
    prelu(x, 0.01)
}

/// `x`, or `slope · x` below 0.
pub fn prelu(x: f32, slope: f32) -> f32 {
    if x < 0.0 { slope * x } else { x }
}

/// The weights of [`xielu`] as they begin; the first two stand behind a [`softplus`], and the second is counted from
/// beta.
pub const XIELU: [(&str, f32); 4] =
    [("alpha_p", 0.20338232), ("alpha_n", -1.0502256), ("beta", 0.5), ("eps", -1e-6)];

/// `positive · x² + beta · x`, or `negative · (e^min(x, eps) − 1 − x) + beta · x` where x is not above 0 (Huang &
/// Schlag 2024).
pub fn xielu(x: f32, [positive, negative, beta, eps]: [f32; 4]) -> f32 {
    match x > 0.0 {
        true => positive * x * x + beta * x,
        false => (x.min(eps).exp_m1() - x) * negative + beta * x,
    }
}

/// `x σ(x)`, also called swish.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

/// `x tanh(ln(1 + eˣ))`.
pub fn mish(x: f32) -> f32 {
    x * softplus(x).tanh()
}

/// `√ln(1 + eˣ)`.
pub fn sqrt_softplus(x: f32) -> f32 {
    softplus(x).sqrt()
}

/// `ln(1 + eˣ)` without overflow.
pub fn softplus(x: f32) -> f32 {
    relu(x) + (-x.abs()).exp().ln_1p()
}

/// `x · min(max(x + 3, 0), 6) / 6`.
pub fn hard_swish(x: f32) -> f32 {
    x * relu6(x + 3.0) / 6.0
}

/// The mean of [`laplace`], √½ as `transformers` rounds it.
#[allow(clippy::approx_constant, reason = "the rounding is the reference's")]
pub const LAPLACE_MU: f64 = 0.707107;
/// The standard deviation of [`laplace`], 1 / √(4π) as `transformers` rounds it.
pub const LAPLACE_SIGMA: f64 = 0.282095;

/// `½ (1 + erf((x − μ) / (σ √2)))` (Ma et al. 2022).
pub fn laplace(x: f32) -> f32 {
    0.5 * (1.0 + erff((x - LAPLACE_MU as f32) / LAPLACE_SIGMA as f32 * FRAC_1_SQRT_2))
}

/// `1 / (1 + e⁻ˣ)`.
pub fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
