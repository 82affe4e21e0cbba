//! Activation functions.

use std::f32::consts::{FRAC_1_SQRT_2, PI};
use std::fmt;
use std::mem::discriminant;

use super::isa::{Isa, Kernel, define_runners};
use super::math::{erf, exp, gelu, sigmoid, tanh};
use super::simd::{MAX_LANES, Simd, map};

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x`.
    Identity,
    /// GELU, `x Φ(x)`: the exact form with the error function (Hendrycks & Gimpel 2016).
    Gelu,
    /// The tanh form of GELU: `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// GELU, clamped to [−10, 10].
    GeluClipped,
    /// `x σ(1.702 x)`, the sigmoid form of GELU.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al. 2021).
    ReluSquared,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` for `x ≥ 0`, else `0.01 x`.
    LeakyRelu,
    /// `x σ(x)`, also called swish.
    Silu,
    /// `x · min(max(x + 3, 0), 6) / 6`, a piecewise linear approximation of SiLU (Howard et al. 2019).
    HardSwish,
    /// `x tanh(ln(1 + eˣ))` (Misra 2019).
    Mish,
    /// The cumulative distribution function of a normal variable with mean √½ and variance 1 / 4π (Ma et al.
    /// 2022).
    Laplace,
    /// `√ln(1 + eˣ)`.
    SqrtSoftplus,
    /// `σ(x) = 1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `x` for `x ≥ 0`, else `slope · x` with a learned slope (He et al. 2015).
    Prelu {
        /// The learned slope.
        slope: f32,
    },
    /// xIELU (Huang & Schlag 2024) with the learned parameters `[positive, negative, beta, eps]`:
    /// `positive · x² + beta · x` for `x > 0`, else `negative · (e^min(x, eps) − 1 − x) + beta · x`.
    Xielu([f32; 4]),
}

/// The names in Hugging Face configs. Functions with learned parameters have their initial values here.
pub const NAMES: &[(&str, Activation)] = &[
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("gelu_10", Activation::GeluClipped),
    ("quick_gelu", Activation::QuickGelu),
    ("relu", Activation::Relu),
    ("relu2", Activation::ReluSquared),
    ("relu6", Activation::Relu6),
    ("leaky_relu", Activation::LeakyRelu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("hardswish", Activation::HardSwish),
    ("mish", Activation::Mish),
    ("sqrtsoftplus", Activation::SqrtSoftplus),
    ("laplace", Activation::Laplace),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("linear", Activation::Identity),
    ("prelu", Activation::Prelu { slope: 0.25 }),
    ("xielu", Activation::Xielu([0.8, 0.8, 0.5, -1e-6])),
];

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let same = |(_, other): &&(&str, Activation)| discriminant(other) == discriminant(self);
        f.write_str(NAMES.iter().find(same).map_or("unnamed activation", |(name, _)| name))
    }
}

/// Names and initial values of the checkpoint tensors of [`Activation::Xielu`]: `positive` is
/// `softplus(alpha_p)`, `negative` is `beta + softplus(alpha_n)` ([`softplus`]).
pub const XIELU_INIT: [(&str, f32); 4] =
    [("alpha_p", 0.20338232), ("alpha_n", -1.0502256), ("beta", 0.5), ("eps", -1e-6)];

/// Mean of [`Activation::Laplace`]: √½ with the rounding of `transformers`.
#[allow(clippy::approx_constant, reason = "the rounding is the reference's")]
pub const LAPLACE_MU: f64 = 0.707107;
/// Standard deviation of [`Activation::Laplace`]: 1 / √(4π) with the rounding of `transformers`.
pub const LAPLACE_SIGMA: f64 = 0.282095;

impl Activation {
    /// The activation with this name in a config.
    pub fn from_name(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation)
    }

    /// Applies the function to every value of a row, in place.
    pub fn apply(self, isa: Isa, row: &mut [f32]) {
        isa.run(Apply { activation: self, row });
    }
}

struct Apply<'a> {
    activation: Activation,
    row: &'a mut [f32],
}

impl Kernel for Apply<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map!(s, self.row, |x| self.activation.eval(s, x));
    }
}

impl Activation {
    /// Applies the function to a vector. NaN propagates.
    #[inline(always)]
    pub(super) fn eval<S: Simd>(self, s: S, x: S::F) -> S::F {
        let zero = s.splat(0.0);
        match self {
            Activation::Identity => x,
            Activation::Gelu => gelu(s, x),
            // tanh(u) = 2 σ(2 u) − 1
            Activation::GeluTanh => {
                let cube = s.mul(s.mul(x, x), x);
                let inner = s.fma(s.splat(0.044715), cube, x);
                gated(s, x, s.mul(s.splat(2.0 * (2.0 / PI).sqrt()), inner))
            }
            Activation::GeluClipped => {
                let y = clamp_max(s, gelu(s, x), 10.0);
                s.select_less(y, s.splat(-10.0), s.splat(-10.0), y)
            }
            Activation::QuickGelu => gated(s, x, s.mul(x, s.splat(1.702))),
            Activation::Relu => relu(s, x),
            Activation::ReluSquared => s.mul(relu(s, x), relu(s, x)),
            Activation::Relu6 => clamp_max(s, relu(s, x), 6.0),
            Activation::LeakyRelu => s.select_less(x, zero, s.mul(x, s.splat(0.01)), x),
            Activation::Silu => gated(s, x, x),
            Activation::HardSwish => {
                let gate = clamp_max(s, relu(s, s.add(x, s.splat(3.0))), 6.0);
                s.div(s.mul(x, gate), s.splat(6.0))
            }
            // tanh(ln(1 + e)) = (e² + 2 e) / (e² + 2 e + 2) with e = eˣ. The ratio is 1 for x > 20, where e²
            // could overflow.
            Activation::Mish => {
                let e = exp(s, clamp_max(s, x, 20.0));
                let n = s.mul(e, s.add(e, s.splat(2.0)));
                s.mul(x, s.div(n, s.add(n, s.splat(2.0))))
            }
            Activation::Laplace => {
                let x = s.div(s.sub(x, s.splat(LAPLACE_MU as f32)), s.splat(LAPLACE_SIGMA as f32));
                let half = s.splat(0.5);
                s.fma(half, erf(s, s.mul(x, s.splat(FRAC_1_SQRT_2))), half)
            }
            Activation::SqrtSoftplus => lane_by_lane(s, x, |x| softplus(x).sqrt()),
            Activation::Sigmoid => sigmoid(s, x),
            Activation::Tanh => tanh(s, x),
            Activation::Prelu { slope } => s.select_less(x, zero, s.mul(x, s.splat(slope)), x),
            Activation::Xielu([positive, negative, beta, eps]) => lane_by_lane(s, x, |x| {
                if x > 0.0 {
                    positive * x * x + beta * x
                } else {
                    (x.min(eps).exp_m1() - x) * negative + beta * x
                }
            }),
        }
    }
}

/// Applies a scalar function to every lane: for functions that are too rare for a vector version.
#[inline(always)]
fn lane_by_lane<S: Simd>(s: S, x: S::F, f: impl Fn(f32) -> f32) -> S::F {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: `lanes` has `MAX_LANES` values, so it is valid for reads and writes of `LANES`.
    unsafe {
        s.store(lanes.as_mut_ptr(), x);
        for x in &mut lanes[..S::LANES] {
            *x = f(*x);
        }
        s.load(lanes.as_ptr())
    }
}

/// `max(x, 0)`.
#[inline(always)]
fn relu<S: Simd>(s: S, x: S::F) -> S::F {
    s.select_less(x, s.splat(0.0), s.splat(0.0), x)
}

/// `min(x, max)`.
#[inline(always)]
fn clamp_max<S: Simd>(s: S, x: S::F, max: f32) -> S::F {
    s.select_less(s.splat(max), x, s.splat(max), x)
}

/// `x σ(y)`.
#[inline(always)]
fn gated<S: Simd>(s: S, x: S::F, y: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), y))))
}

/// `ln(1 + eˣ)` without overflow. NaN propagates.
pub fn softplus(x: f32) -> f32 {
    // Not `x.max(0.0)`, which drops NaN.
    let relu = if x < 0.0 { 0.0 } else { x };
    relu + (-x.abs()).exp().ln_1p()
}
