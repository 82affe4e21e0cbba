//! Activation functions.

use std::f32::consts::{FRAC_1_SQRT_2, PI};

use super::isa::{Isa, Kernel};
use super::math::{erf, exp, sigmoid, tanh};
use super::simd::{MAX_LANES, Simd, map};

/// An activation function.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x`.
    Identity,
    /// GELU, `x Φ(x)`, the exact form over the error function (Hendrycks & Gimpel 2016).
    Gelu,
    /// The tanh form of GELU: `0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    GeluTanh,
    /// GELU, kept within −10 and 10.
    GeluClipped,
    /// `x σ(1.702 x)`, the sigmoid form of GELU.
    QuickGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al. 2021).
    ReluSquared,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x`, or `0.01 x` below 0.
    LeakyRelu,
    /// `x σ(x)`, also called swish.
    Silu,
    /// `x · min(max(x + 3, 0), 6) / 6`, SiLU in straight lines (Howard et al. 2019).
    HardSwish,
    /// `x tanh(ln(1 + eˣ))` (Misra 2019).
    Mish,
    /// The distribution function of a normal variable of mean √½ and variance 1 / 4π (Ma et al. 2022).
    Laplace,
    /// `√ln(1 + eˣ)`.
    SqrtSoftplus,
    /// `σ(x) = 1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `x`, or `slope · x` below 0, the slope learned (He et al. 2015).
    Prelu { slope: f32 },
    /// A parabola above 0 and an exponential below, both learned (Huang & Schlag 2024): positive, negative, beta, eps.
    /// `positive · x² + beta · x`, or `negative · (e^min(x, eps) − 1 − x) + beta · x` where x is not above 0.
    Xielu([f32; 4]),
}

/// The weights of [`Activation::Xielu`] as they begin; the first two stand behind a [`softplus`], and the second is
/// counted from beta.
pub const XIELU: [(&str, f32); 4] =
    [("alpha_p", 0.20338232), ("alpha_n", -1.0502256), ("beta", 0.5), ("eps", -1e-6)];

/// The mean of [`Activation::Laplace`], √½ as `transformers` rounds it.
#[allow(clippy::approx_constant, reason = "the rounding is the reference's")]
pub const LAPLACE_MU: f64 = 0.707107;
/// The standard deviation of [`Activation::Laplace`], 1 / √(4π) as `transformers` rounds it.
pub const LAPLACE_SIGMA: f64 = 0.282095;

impl Activation {
    /// Applies it to every value of a row, in place.
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

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map!(s, self.row, |x| self.activation.of(s, x));
    }
}

impl Activation {
    /// The values of a register.
    #[inline(always)]
    pub(super) fn of<S: Simd>(self, s: S, x: S::F) -> S::F {
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
                let y = at_most(s, gelu(s, x), 10.0);
                s.select_less(y, s.splat(-10.0), s.splat(-10.0), y)
            }
            Activation::QuickGelu => gated(s, x, s.mul(x, s.splat(1.702))),
            Activation::Relu => relu(s, x),
            Activation::ReluSquared => s.mul(relu(s, x), relu(s, x)),
            Activation::Relu6 => at_most(s, relu(s, x), 6.0),
            Activation::LeakyRelu => s.select_less(x, zero, s.mul(x, s.splat(0.01)), x),
            Activation::Silu => gated(s, x, x),
            Activation::HardSwish => {
                let gate = at_most(s, relu(s, s.add(x, s.splat(3.0))), 6.0);
                s.div(s.mul(x, gate), s.splat(6.0))
            }
            // tanh(ln(1 + e)) = (e² + 2 e) / (e² + 2 e + 2), and 1 where e² does not fit.
            Activation::Mish => {
                let e = exp(s, at_most(s, x, 20.0));
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
            Activation::Xielu([positive, negative, beta, eps]) => lane_by_lane(s, x, |x| match x > 0.0 {
                true => positive * x * x + beta * x,
                false => (x.min(eps).exp_m1() - x) * negative + beta * x,
            }),
        }
    }
}

/// For functions that are too rare to be worth more.
#[inline(always)]
fn lane_by_lane<S: Simd>(s: S, x: S::F, f: impl Fn(f32) -> f32) -> S::F {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: `lanes` is valid for writes and reads of any register's values.
    unsafe {
        s.store(lanes.as_mut_ptr(), x);
        for x in &mut lanes[..S::LANES] {
            *x = f(*x);
        }
        s.load(lanes.as_ptr())
    }
}

// NaN stays NaN in all of them.

#[inline(always)]
pub(super) fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let half = s.mul(x, s.splat(0.5));
    s.fma(half, erf(s, s.mul(x, s.splat(FRAC_1_SQRT_2))), half)
}

#[inline(always)]
fn relu<S: Simd>(s: S, x: S::F) -> S::F {
    s.select_less(x, s.splat(0.0), s.splat(0.0), x)
}

#[inline(always)]
fn at_most<S: Simd>(s: S, x: S::F, most: f32) -> S::F {
    s.select_less(s.splat(most), x, s.splat(most), x)
}

/// `x σ(y)`.
#[inline(always)]
fn gated<S: Simd>(s: S, x: S::F, y: S::F) -> S::F {
    s.div(x, s.add(s.splat(1.0), exp(s, s.sub(s.splat(0.0), y))))
}

/// `ln(1 + eˣ)` without overflow.
pub fn softplus(x: f32) -> f32 {
    // NaN stays NaN.
    let above = if x < 0.0 { 0.0 } else { x };
    above + (-x.abs()).exp().ln_1p()
}
