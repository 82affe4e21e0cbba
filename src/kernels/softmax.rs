//! Softmax over rows of attention scores.

use std::f32::consts::LOG2_E;
use std::hint::black_box;
use std::ops::Range;

use super::isa::{Isa, Kernel, define_runners};
use super::math::{Accuracy, exp2_bf16, exp2_coefficients, exp2_with, tanh};
use super::simd::{Simd, fold, map, map_with};

/// `x = scale · x + bias`, in place; an empty bias means none.
///
/// # Panics
/// If the bias is not empty and shorter than the row.
pub fn scale_and_bias(isa: Isa, row: &mut [f32], scale: f32, bias: &[f32]) {
    isa.run(ScaleAndBias { row, scale, bias });
}

struct ScaleAndBias<'a> {
    row: &'a mut [f32],
    scale: f32,
    bias: &'a [f32],
}

impl Kernel for ScaleAndBias<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        match self.bias {
            [] => map!(s, self.row, |x| s.mul(x, scale)),
            bias => map_with!(s, self.row, bias, |x, b| s.fma(x, scale, b)),
        }
    }
}

/// `x = cap · tanh(scale · x / cap)`, in place: scores with a bound (Riviere et al. 2024, §2).
pub fn scale_and_cap(isa: Isa, row: &mut [f32], scale: f32, cap: f32) {
    isa.run(ScaleAndCap { row, scale: scale / cap, cap });
}

struct ScaleAndCap<'a> {
    row: &'a mut [f32],
    /// That of the scores over the bound.
    scale: f32,
    cap: f32,
}

impl Kernel for ScaleAndCap<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (scale, cap) = (s.splat(self.scale), s.splat(self.cap));
        map!(s, self.row, |x| s.mul(tanh(s, s.mul(x, scale)), cap));
    }
}

/// Unnormalised softmax: replaces every row by the numerators of `softmax(scale · x)` and writes their sum,
/// the denominator, to `sums`.
///
/// Rows begin every `stride` values. Row `i` has scores in the columns `visible(i)`; all other columns are
/// set to 0. `scale` is positive.
///
/// # Panics
/// If `rows` has fewer than `sums.len()` rows, or a range `visible(i)` is empty or exceeds the row.
pub fn softmax_unnormalized(
    isa: Isa,
    rows: &mut [f32],
    stride: usize,
    scale: f32,
    visible: &dyn Fn(usize) -> Range<usize>,
    sums: &mut [f32],
    accuracy: Accuracy,
) {
    assert!(rows.len() >= sums.len() * stride, "rows has one row per sum");
    isa.run(SoftmaxUnnormalized { rows, stride, scale, visible, sums, accuracy });
}

struct SoftmaxUnnormalized<'a> {
    rows: &'a mut [f32],
    stride: usize,
    scale: f32,
    visible: &'a dyn Fn(usize) -> Range<usize>,
    sums: &'a mut [f32],
    accuracy: Accuracy,
}

impl Kernel for SoftmaxUnnormalized<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.accuracy {
            Accuracy::F32 => self.rows::<S, false>(s),
            Accuracy::Bf16 => self.rows::<S, true>(s),
        }
    }
}

impl SoftmaxUnnormalized<'_> {
    #[inline(always)]
    fn rows<S: Simd, const BF16: bool>(self, s: S) {
        let scale = s.splat(self.scale * LOG2_E);
        // If the compiler knew these constants, it would load each of them again for every vector.
        let coefficients = black_box(exp2_coefficients(s));
        for (i, (row, sum)) in self.rows.chunks_exact_mut(self.stride).zip(self.sums).enumerate() {
            *sum = softmax_row::<S, BF16>(s, row, (self.visible)(i), scale, &coefficients);
        }
    }
}

/// One row of [`softmax_unnormalized`]: returns the denominator. `scale` is that of the scores times log₂ e.
///
/// # Panics
/// If no score is visible, or the range exceeds the row.
#[inline(always)]
pub(crate) fn softmax_row<S: Simd, const BF16: bool>(
    s: S,
    row: &mut [f32],
    visible: Range<usize>,
    scale: S::F,
    coefficients: &[S::F; 7],
) -> f32 {
    assert!(!visible.is_empty(), "every query has a visible key");
    // Whole vectors are stored, the last one with zeros: a load of what several smaller stores have written
    // would wait for them.
    let end = row.len().min(visible.start + visible.len().next_multiple_of(S::LANES));
    row[..visible.start].fill(0.0);
    row[end..].fill(0.0);
    let (length, row) = (visible.len(), &mut row[visible.start..end]);
    let [a, b, c, d] = fold!(s, &row[..length], f32::NEG_INFINITY, f32::NEG_INFINITY, |max, x| s.max(max, x));
    let max = s.splat(s.reduce_max(s.max(s.max(a, b), s.max(c, d))));
    let mut total = s.splat(0.0);
    for start in (0..length).step_by(S::LANES) {
        let x = s.load_at(&row[..length], start, f32::NEG_INFINITY);
        let e = exp2_to::<S, BF16>(s, s.mul(s.sub(x, max), scale), coefficients);
        s.store_at(row, start, e);
        total = s.add(total, e);
    }
    s.reduce_sum(total)
}

/// `2ˣ` with the accuracy of f32, for which it takes the [`exp2_coefficients`], or of bf16.
#[inline(always)]
pub(crate) fn exp2_to<S: Simd, const BF16: bool>(s: S, x: S::F, coefficients: &[S::F; 7]) -> S::F {
    if BF16 { exp2_bf16(s, x) } else { exp2_with(s, x, coefficients) }
}

/// `y = alpha · x + y`, in place.
///
/// # Panics
/// If `x` is shorter than `y`.
pub fn axpy(isa: Isa, alpha: f32, x: &[f32], y: &mut [f32]) {
    isa.run(Axpy { alpha, x, y });
}

struct Axpy<'a> {
    alpha: f32,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Kernel for Axpy<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let alpha = s.splat(self.alpha);
        map_with!(s, self.y, self.x, |y, x| s.fma(alpha, x, y));
    }
}
