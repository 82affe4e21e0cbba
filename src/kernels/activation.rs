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

/// `max(x, 0)`; NaN stays NaN.
pub fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `x σ(x)`, also called swish.
pub fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}
