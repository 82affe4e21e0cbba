//! Elementary functions of a vector. Error bounds are in units in the last place (ULP) and hold with and without FMA.

#![allow(clippy::excessive_precision, reason = "coefficients are copied as published")]

use super::simd::Simd;

/// Maximum error of [`exp`] in ULP, for normal results.
pub const EXP_MAX_ULP: f64 = 1.0;
/// Maximum error of [`erf`] in ULP.
pub const ERF_MAX_ULP: f64 = 6.0;
/// Maximum error of [`tanh`] in ULP.
pub const TANH_MAX_ULP: f64 = 1.5;
/// Maximum error of [`sigmoid`] in ULP, for normal results.
pub const SIGMOID_MAX_ULP: f64 = 2.0;

/// The accuracy that a caller needs of `exp` and GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accuracy {
    /// A few ULP of f32.
    F32,
    /// Better than the rounding error of bf16: enough after a GEMM whose operands are rounded to bf16 or int8.
    Bf16,
}

/// Evaluates a polynomial by Horner's scheme; the coefficient of the highest power comes first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: S::F, coefficients: [f32; N]) -> S::F {
    horner(s, x, &splat_all(s, coefficients))
}

#[inline(always)]
fn horner<S: Simd, const N: usize>(s: S, x: S::F, coefficients: &[S::F; N]) -> S::F {
    let mut sum = coefficients[0];
    for c in &coefficients[1..] {
        sum = s.fma(sum, x, *c);
    }
    sum
}

/// A vector of each value. A closure in its place might be compiled without the target features of the ISA.
#[inline(always)]
fn splat_all<S: Simd, const N: usize>(s: S, values: [f32; N]) -> [S::F; N] {
    let mut vectors = [s.splat(0.0); N];
    for (vector, x) in vectors.iter_mut().zip(values) {
        *vector = s.splat(x);
    }
    vectors
}

/// `eˣ`; 0 on underflow, ∞ on overflow. The error is at most [`EXP_MAX_ULP`].
///
/// Range reduction `x = n ln 2 + r`, then the polynomial of `expf` in the Cephes library.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // Above 89 the result is ∞, below −104 it is 0. This order of operands propagates NaN.
    let x = s.select_less(s.splat(89.0), x, s.splat(89.0), x);
    let x = s.max(s.splat(-104.0), x);
    // Adding and subtracting 1.5 · 2²³ rounds to an integer.
    let shift = s.splat(12_582_912.0);
    let n = s.sub(s.fma(x, s.splat(std::f32::consts::LOG2_E), shift), shift);
    let r = s.fma(n, s.splat(-0.693_359_375), x);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let p = polynomial(
        s,
        r,
        [
            1.987_569_15e-4,
            1.398_199_950_7e-3,
            8.333_451_907_3e-3,
            4.166_579_589_4e-2,
            1.666_666_545_9e-1,
            5.000_000_120_1e-1,
        ],
    );
    let p = s.fma(s.mul(r, r), p, r);
    s.scale_exp2(s.add(p, s.splat(1.0)), n)
}

/// Maximum relative error of [`exp2`], for normal results.
pub const EXP2_MAX_ERROR: f64 = 1.4e-7;

/// `2ˣ` for `x ≤ 127`; 0 on underflow, and 1 for 0. The relative error is at most [`EXP2_MAX_ERROR`].
///
/// Range reduction `x = n + f`; the polynomial is a fit of `2ᶠ` on [0, 1].
#[inline(always)]
pub fn exp2<S: Simd>(s: S, x: S::F) -> S::F {
    exp2_with(s, x, &exp2_coefficients(s))
}

/// [`exp2`] with the [`exp2_coefficients`].
#[inline(always)]
pub(super) fn exp2_with<S: Simd>(s: S, x: S::F, coefficients: &[S::F; 7]) -> S::F {
    let (f, n) = s.split_exp2(x);
    s.multiply_exp2(horner(s, f, coefficients), n)
}

/// The coefficients of [`exp2`]; that of the highest power comes first.
#[inline(always)]
pub(super) fn exp2_coefficients<S: Simd>(s: S) -> [S::F; 7] {
    splat_all(
        s,
        [
            2.161_291_670e-4,
            1.246_784_599e-3,
            9.675_451_611e-3,
            5.548_528_060e-2,
            2.402_293_056e-1,
            6.931_470_444e-1,
            1.0,
        ],
    )
}

/// Maximum relative error of [`exp2_bf16`], for normal results.
pub const EXP2_BF16_MAX_ERROR: f64 = 3e-6;

/// `2ˣ` for `x ≤ 127`, more accurate than bf16; 0 on underflow. The relative error is at most [`EXP2_BF16_MAX_ERROR`].
///
/// Range reduction `x = n + f`; the polynomial is a fit of `2ᶠ` on [−½, ½].
#[inline(always)]
pub fn exp2_bf16<S: Simd>(s: S, x: S::F) -> S::F {
    // This order of operands propagates NaN.
    let x = s.max(s.splat(-150.0), x);
    let shift = s.splat(12_582_912.0);
    let n = s.sub(s.add(x, shift), shift);
    let coefficients =
        [9.570_096_619e-3, 5.591_786_280e-2, 2.402_474_433e-1, 6.931_217_909e-1, 9.999_992_847e-1];
    s.scale_exp2(polynomial(s, s.sub(x, n), coefficients), n)
}

/// Maximum relative error of [`exp2_weight`], for normal results.
pub const EXP2_WEIGHT_MAX_ERROR: f64 = 8e-5;

/// `2ˣ` for `x ≤ 127`, accurate enough for a weight that is rounded to bf16, by a relative error of up to 2e-3; 0 on
/// underflow. The relative error is at most [`EXP2_WEIGHT_MAX_ERROR`].
///
/// Range reduction `x = n + f`; the polynomial is a fit of `2ᶠ` on [0, 1].
#[inline(always)]
pub fn exp2_weight<S: Simd>(s: S, x: S::F) -> S::F {
    let (f, n) = s.split_exp2(x);
    let coefficients = [7.802_452_264e-2, 2.260_671_554e-1, 6.958_335_405e-1, 9.999_252_186e-1];
    s.scale_exp2_or_zero(polynomial(s, f, coefficients), n)
}

/// The error function. The error is at most [`ERF_MAX_ULP`].
///
/// The rational approximation of Eigen's `erf` on [−4, 4]; outside this range erf is ±1 in f32.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.select_less(s.splat(4.0), x, s.splat(4.0), x);
    let x = s.select_less(x, s.splat(-4.0), s.splat(-4.0), x);
    let z = s.mul(x, x);
    let numerator = polynomial(
        s,
        z,
        [
            -2.726_142_258_013_06e-10,
            2.770_681_424_959_02e-8,
            -2.101_024_020_825_08e-6,
            -5.692_506_394_623_46e-5,
            -7.349_906_303_268_55e-4,
            -2.954_599_808_540_25e-3,
            -1.609_603_332_624_15e-2,
        ],
    );
    let denominator = polynomial(
        s,
        z,
        [
            -1.456_607_184_649_96e-5,
            -2.133_740_552_789_05e-4,
            -1.682_826_974_382_03e-3,
            -7.373_329_167_204_68e-3,
            -1.426_473_905_141_89e-2,
        ],
    );
    s.mul(x, s.div_normal(numerator, denominator))
}

/// Maximum error of [`gelu_bf16`]: absolute, and relative for results above 1.
pub const GELU_BF16_MAX_ERROR: f64 = 7e-5;

/// GELU, `x Φ(x)`, more accurate than bf16. The error is at most [`GELU_BF16_MAX_ERROR`].
#[inline(always)]
pub fn gelu_bf16<S: Simd>(s: S, x: S::F) -> S::F {
    if S::FAST_LOOKUP { gelu_by_intervals(s, x) } else { gelu_by_polynomial(s, x) }
}

/// [`gelu_bf16`] by a polynomial in `x²`: a fit of `erf(x / √2) / x` on [−4.2, 4.2]. Outside this range Φ is 0 or 1 to this accuracy.
#[inline(always)]
fn gelu_by_polynomial<S: Simd>(s: S, x: S::F) -> S::F {
    // This order of operands propagates NaN.
    let x = s.max(s.splat(-4.2), x);
    let clamped = s.min(s.splat(4.2), x);
    let coefficients = [
        1.630_088_564e-10,
        -1.474_557_898e-8,
        5.860_838_996e-7,
        -1.365_973_185e-5,
        2.118_851_116e-4,
        -2.370_311_180e-3,
        2.015_641_890e-2,
        -1.335_724_592e-1,
        7.983_272_076e-1,
    ];
    let p = polynomial(s, s.mul(clamped, clamped), coefficients);
    let half = s.mul(x, s.splat(0.5));
    s.fma(half, s.mul(clamped, p), half)
}

/// Intervals of [`PHI`] per unit of `x`.
const PHI_INTERVALS: f32 = 3.75;

/// Φ as a polynomial of degree 2 on each of 32 intervals, the highest power first: interval `i` is centred at
/// `(i − 16) / PHI_INTERVALS`. The polynomials interpolate Φ at the Chebyshev nodes of their interval.
const PHI: [[f32; 32]; 3] = [
    [
        9.643_489_466e-5,
        2.715_413_284e-4,
        7.090_679_719e-4,
        1.715_943_799e-3,
        3.845_259_780e-3,
        7.970_889_099e-3,
        1.526_401_378e-2,
        2.695_572_376e-2,
        4.379_487_783e-2,
        6.524_412_334e-2,
        8.869_311_213e-2,
        1.091_915_816e-1,
        1.202_112_213e-1,
        1.155_732_796e-1,
        9.200_315_922e-2,
        5.116_755_515e-2,
        0.0,
        -5.116_755_515e-2,
        -9.200_315_922e-2,
        -1.155_732_796e-1,
        -1.202_112_213e-1,
        -1.091_915_816e-1,
        -8.869_311_213e-2,
        -6.524_412_334e-2,
        -4.379_487_783e-2,
        -2.695_572_376e-2,
        -1.526_401_378e-2,
        -7.970_889_099e-3,
        -3.845_259_780e-3,
        -1.715_943_799e-3,
        -7.090_679_719e-4,
        -2.715_413_284e-4,
    ],
    [
        8.690_747_200e-4,
        2.310_654_381e-3,
        5.680_510_774e-3,
        1.290_144_492e-2,
        2.704_286_762e-2,
        5.225_508_288e-2,
        9.295_900_166e-2,
        1.520_189_345e-1,
        2.281_686_217e-1,
        3.138_302_863e-1,
        3.951_223_493e-1,
        4.554_700_255e-1,
        4.823_817_313e-1,
        4.743_768_573e-1,
        4.436_410_367e-1,
        4.115_029_871e-1,
        3.980_575_204e-1,
        4.115_029_871e-1,
        4.436_410_367e-1,
        4.743_768_573e-1,
        4.823_817_313e-1,
        4.554_700_255e-1,
        3.951_223_493e-1,
        3.138_302_863e-1,
        2.281_686_217e-1,
        1.520_189_345e-1,
        9.295_900_166e-2,
        5.225_508_288e-2,
        2.704_286_762e-2,
        1.290_144_492e-2,
        5.680_510_774e-3,
        2.310_654_381e-3,
    ],
    [
        1.962_429_145e-3,
        4.929_627_292e-3,
        1.141_889_021e-2,
        2.436_665_632e-2,
        4.784_885_421e-2,
        8.637_321_740e-2,
        1.431_769_580e-1,
        2.177_780_271e-1,
        3.038_930_893e-1,
        3.894_510_567e-1,
        4.599_407_017e-1,
        5.043_861_866e-1,
        5.208_280_683e-1,
        5.173_900_127e-1,
        5.073_401_928e-1,
        5.009_584_427e-1,
        5.000_000_000e-1,
        4.990_415_573e-1,
        4.926_598_072e-1,
        4.826_100_171e-1,
        4.791_719_317e-1,
        4.956_138_134e-1,
        5.400_593_281e-1,
        6.105_489_135e-1,
        6.961_069_107e-1,
        7.822_219_729e-1,
        8.568_230_271e-1,
        9.136_267_900e-1,
        9.521_511_197e-1,
        9.756_333_232e-1,
        9.885_811_210e-1,
        9.950_703_979e-1,
    ],
];

/// [`gelu_bf16`] by an interpolation of Φ, with half the operations of the polynomial.
#[inline(always)]
fn gelu_by_intervals<S: Simd>(s: S, x: S::F) -> S::F {
    // The range of the table; outside Φ is 0 or 1 to this accuracy. This order of operands propagates NaN.
    let x = s.max(s.splat(-16.4 / PHI_INTERVALS), x);
    let clamped = s.min(s.splat(15.4 / PHI_INTERVALS), x);
    // Adding 1.5 · 2²³ leaves the nearest integer in the low bits.
    let interval = s.fma(clamped, s.splat(PHI_INTERVALS), s.splat(12_582_912.0 + 16.0));
    let [a, b, c] = [s.lookup(&PHI[0], interval), s.lookup(&PHI[1], interval), s.lookup(&PHI[2], interval)];
    s.mul(x, s.fma(s.fma(a, clamped, b), clamped, c))
}

/// The hyperbolic tangent. The error is at most [`TANH_MAX_ULP`].
///
/// For small `x` the polynomial of `tanhf` in the Cephes library, else `1 − 2 / (e²ˣ + 1)`.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let t = s.abs(x);
    let z = s.mul(x, x);
    let small = polynomial(
        s,
        z,
        [
            -5.704_988_727_45e-3,
            2.063_908_879_54e-2,
            -5.373_971_555_31e-2,
            1.333_144_220_36e-1,
            -3.333_328_194_22e-1,
        ],
    );
    let small = s.fma(s.mul(small, z), x, x);
    let denominator = s.add(exp(s, s.add(t, t)), s.splat(1.0));
    let large = s.copysign(s.sub(s.splat(1.0), s.div(s.splat(2.0), denominator)), x);
    s.select_less(t, s.splat(0.625), small, large)
}

/// `1 / (1 + e⁻ˣ)`. The error is at most [`SIGMOID_MAX_ULP`].
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}
