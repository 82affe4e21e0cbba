//! Elementary functions of a vector. Error bounds are in units in the last place (ULP) and hold with and
//! without FMA.

#![allow(clippy::excessive_precision, reason = "coefficients are copied as published")]

use std::f32::consts::FRAC_1_SQRT_2;

use super::simd::{ROUNDING_SHIFT, Simd};

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
    /// Better than the rounding error of bf16: enough after a GEMM whose operands are rounded to bf16 or
    /// int8.
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
    let shift = s.splat(ROUNDING_SHIFT);
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

/// `2ˣ` for `x ≤ 127`, more accurate than bf16; 0 on underflow. The relative error is at most
/// [`EXP2_BF16_MAX_ERROR`].
///
/// Range reduction `x = n + f`; the polynomial is a fit of `2ᶠ` on [−½, ½].
#[inline(always)]
pub fn exp2_bf16<S: Simd>(s: S, x: S::F) -> S::F {
    // This order of operands propagates NaN.
    let x = s.max(s.splat(-150.0), x);
    let shift = s.splat(ROUNDING_SHIFT);
    let n = s.sub(s.add(x, shift), shift);
    let coefficients =
        [9.570_096_619e-3, 5.591_786_280e-2, 2.402_474_433e-1, 6.931_217_909e-1, 9.999_992_847e-1];
    s.scale_exp2(polynomial(s, s.sub(x, n), coefficients), n)
}

/// Maximum relative error of [`exp2_weight`], for normal results.
pub const EXP2_WEIGHT_MAX_ERROR: f64 = 8e-5;

/// `2ˣ` for `x ≤ 127`, accurate enough for a weight that is rounded to bf16, by a relative error of up to
/// 2e-3; 0 on underflow. The relative error is at most [`EXP2_WEIGHT_MAX_ERROR`].
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

/// Maximum error of [`gelu`] with [`Simd::FAST_LOOKUP`]: absolute, and relative for results above 1.
pub const GELU_MAX_ERROR: f64 = 1e-7;
/// The same on other ISAs: [`ERF_MAX_ULP`] for an erf next to 1, times half of the largest `|x|` for which
/// erf is not ±1 yet, and the rounding error of that product.
pub const GELU_BY_ERF_MAX_ERROR: f64 = 1.2e-6;

/// GELU, `x Φ(x)`. The error is at most [`GELU_MAX_ERROR`], or [`GELU_BY_ERF_MAX_ERROR`].
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    if S::FAST_LOOKUP {
        return gelu_by_tail(s, x);
    }
    let half = s.mul(x, s.splat(0.5));
    s.fma(half, erf(s, s.mul(x, s.splat(FRAC_1_SQRT_2))), half)
}

/// Width of the intervals of [`NEGATIVE_TAIL`].
const TAIL_INTERVAL: f32 = 3.0 / 16.0;

/// `−Φ(−t)` for `t ≥ 0` as a polynomial of degree 4 in `t − i · TAIL_INTERVAL` on each of 32 intervals, the
/// highest power first: interval `i` is centred at `i · TAIL_INTERVAL`. The polynomials interpolate at the
/// Chebyshev nodes of their interval; the last, where Φ is below 6e-9, is 0.
const NEGATIVE_TAIL: [[f32; 32]; 5] = [
    [
        -1.595_842_273e-12,
        9.063_211_270e-3,
        1.658_470_742e-2,
        2.138_573_118e-2,
        2.290_483_192e-2,
        2.127_425_186e-2,
        1.721_097_529e-2,
        1.177_452_039e-2,
        6.078_346_167e-3,
        1.042_237_272e-3,
        -2.755_602_589e-3,
        -5.110_167_898e-3,
        -6.126_269_698e-3,
        -6.103_027_146e-3,
        -5.411_332_473e-3,
        -4.397_116_601e-3,
        -3.325_099_358e-3,
        -2.361_512_510e-3,
        -1.584_556_885e-3,
        -1.008_654_246e-3,
        -6.109_224_050e-4,
        -3.528_656_089e-4,
        -1.946_983_684e-4,
        -1.027_634_935e-4,
        -5.194_197_365e-5,
        -2.516_487_802e-5,
        -1.169_488_405e-5,
        -5.216_727_914e-6,
        -2.234_792_646e-6,
        -9.198_474_231e-7,
        -3.639_231_920e-7,
        0.0,
    ],
    [
        -6.638_092_548e-2,
        -6.293_495_744e-2,
        -5.318_647_623e-2,
        -3.876_419_365e-2,
        -2.195_952_088e-2,
        -5.223_599_728e-3,
        9.321_998_805e-3,
        2.023_846_842e-2,
        2.691_840_939e-2,
        2.952_890_098e-2,
        2.880_397_066e-2,
        2.577_002_347e-2,
        2.148_528_956e-2,
        1.684_910_059e-2,
        1.250_285_283e-2,
        8.814_590_052e-3,
        5.921_295_378e-3,
        3.798_296_209e-3,
        2.330_418_909e-3,
        1.369_345_002e-3,
        7.713_899_249e-4,
        4.169_481_399e-4,
        2.163_905_592e-4,
        1.078_933_492e-4,
        5.170_876_466e-5,
        2.383_025_094e-5,
        1.056_439_669e-5,
        4.506_594_451e-6,
        1.850_370_722e-6,
        7.314_424_693e-7,
        2.784_230_730e-7,
        0.0,
    ],
    [
        1.268_659_775e-14,
        -3.674_910_963e-2,
        -6.972_276_419e-2,
        -9.578_455_985e-2,
        -1.129_264_608e-1,
        -1.205_033_362e-1,
        -1.191_805_825e-1,
        -1.106_392_741e-1,
        -9.713_821_113e-2,
        -8.105_192_333e-2,
        -6.448_716_670e-2,
        -4.903_998_226e-2,
        -3.570_713_103e-2,
        -2.492_671_087e-2,
        -1.670_049_503e-2,
        -1.074_741_594e-2,
        -6.647_769_827e-3,
        -3.954_393_324e-3,
        -2.263_133_414e-3,
        -1.246_607_280e-3,
        -6.611_137_069e-4,
        -3.376_503_882e-4,
        -1.661_131_828e-4,
        -7.873_617_869e-5,
        -3.596_287_934e-5,
        -1.583_111_771e-5,
        -6.717_455_562e-6,
        -2.747_809_958e-6,
        -1.083_687_266e-6,
        -4.120_960_568e-7,
        -1.511_150_458e-7,
        0.0,
    ],
    [
        3.989_420_533e-1,
        3.919_906_914e-1,
        3.718_549_311e-1,
        3.405_674_994e-1,
        3.011_374_474e-1,
        2.570_739_985e-1,
        2.118_767_798e-1,
        1.685_933_322e-1,
        1.295_177_341e-1,
        9.606_161_714e-2,
        6.878_635_287e-2,
        4.755_393_416e-2,
        3.173_966_333e-2,
        2.045_266_330e-2,
        1.272_415_835e-2,
        7.642_577_868e-3,
        4.431_821_872e-3,
        2.481_168_136e-3,
        1.341_101_481e-3,
        6.998_396_129e-4,
        3.525_874_054e-4,
        1.715_009_130e-4,
        8.053_735_655e-5,
        3.651_401_130e-5,
        1.598_280_141e-5,
        6.754_253_718e-6,
        2.755_705_964e-6,
        1.085_473_855e-6,
        4.127_972_488e-7,
        1.515_601_582e-7,
        5.372_347_189e-8,
        0.0,
    ],
    [
        -5.000_000_000e-1,
        -4.256_343_246e-1,
        -3.538_302_481e-1,
        -2.868_877_053e-1,
        -2.266_273_499e-1,
        -1.742_507_070e-1,
        -1.302_945_167e-1,
        -9.467_574_209e-2,
        -6.680_720_299e-2,
        -4.575_362_429e-2,
        -3.039_636_090e-2,
        -1.958_007_924e-2,
        -1.222_447_306e-2,
        -7.394_607_179e-3,
        -4.332_448_356e-3,
        -2.457_901_137e-3,
        -1.349_898_055e-3,
        -7.175_423_088e-4,
        -3.690_784_506e-4,
        -1.836_699_521e-4,
        -8.841_728_413e-5,
        -4.116_746_641e-5,
        -1.853_673_712e-5,
        -8.070_944_205e-6,
        -3.397_673_026e-6,
        -1.382_813_480e-6,
        -5.440_422_797e-7,
        -2.068_970_275e-7,
        -7.604_960_217e-8,
        -2.701_667_512e-8,
        -9.275_399_115e-9,
        0.0,
    ],
];

/// [`gelu`] as `max(x, 0) − |x| Φ(−|x|)`, by an interpolation of Φ, without a division.
#[inline(always)]
fn gelu_by_tail<S: Simd>(s: S, x: S::F) -> S::F {
    // This order of operands propagates NaN.
    let t = s.min(s.splat(31.0 * TAIL_INTERVAL), s.abs(x));
    let shift = s.splat(ROUNDING_SHIFT);
    let interval = s.fma(t, s.splat(1.0 / TAIL_INTERVAL), shift);
    let centre = s.sub(interval, shift);
    let offset = s.fma(centre, s.splat(-TAIL_INTERVAL), t);
    let [highest, powers @ ..] = &NEGATIVE_TAIL;
    let mut tail = s.lookup(highest, interval);
    for coefficients in powers {
        tail = s.fma(tail, offset, s.lookup(coefficients, interval));
    }
    s.fma(t, tail, s.max(s.splat(0.0), x))
}

/// Maximum error of [`gelu_bf16`]: absolute, and relative for results above 1.
pub const GELU_BF16_MAX_ERROR: f64 = 7e-5;

/// GELU, `x Φ(x)`, more accurate than bf16. The error is at most [`GELU_BF16_MAX_ERROR`].
#[inline(always)]
pub fn gelu_bf16<S: Simd>(s: S, x: S::F) -> S::F {
    if S::FAST_LOOKUP { gelu_by_intervals(s, x) } else { gelu_by_polynomial(s, x) }
}

/// [`gelu_bf16`] by a polynomial in `x²`: a fit of `erf(x / √2) / x` on [−4.2, 4.2]. Outside this range Φ is
/// 0 or 1 to this accuracy.
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
    let interval = s.fma(clamped, s.splat(PHI_INTERVALS), s.splat(ROUNDING_SHIFT + 16.0));
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
