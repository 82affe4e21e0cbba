//! Softmax of rows of scores.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::isa::{Isa, Kernel};
use super::math::{Accuracy, exp_below_overflow, exp2_bf16};
use super::simd::{Simd, fold, map, map_with};

/// `scale · x + bias` in place; an empty bias is none.
///
/// # Panics
/// If there is a bias that is shorter than the row.
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

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        match self.bias {
            [] => map!(s, self.row, |x| s.mul(x, scale)),
            bias => map_with!(s, self.row, bias, |x, b| s.fma(x, scale, b)),
        }
    }
}

/// The numerators of `softmax(scale · x)`, in place, and the sum of each row, which is what they are to be divided by.
/// Rows lie `stride` apart; row `i` has the scores `visible(i)`, and 0 elsewhere. `scale` is above 0.
///
/// # Panics
/// If there are fewer rows than sums, or a row is to see past its end or nothing.
pub fn exponentials(
    isa: Isa,
    rows: &mut [f32],
    stride: usize,
    scale: f32,
    visible: impl Fn(usize) -> Range<usize>,
    sums: &mut [f32],
    accuracy: Accuracy,
) {
    assert!(rows.len() >= sums.len() * stride, "there is a row for every sum");
    isa.run(Exponentials { rows, stride, scale, visible, sums, accuracy });
}

struct Exponentials<'a, V> {
    rows: &'a mut [f32],
    stride: usize,
    scale: f32,
    visible: V,
    sums: &'a mut [f32],
    accuracy: Accuracy,
}

impl<V: Fn(usize) -> Range<usize>> Kernel for Exponentials<'_, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(match self.accuracy {
            Accuracy::F32 => self.scale,
            Accuracy::Bf16 => self.scale * LOG2_E,
        });
        for (i, (row, sum)) in self.rows.chunks_exact_mut(self.stride).zip(self.sums).enumerate() {
            let visible = (self.visible)(i);
            assert!(!visible.is_empty(), "a query sees a key");
            row[..visible.start].fill(0.0);
            row[visible.end..].fill(0.0);
            let row = &mut row[visible];
            let [a, b, c, d] = fold!(s, row, f32::NEG_INFINITY, f32::NEG_INFINITY, |max, x| s.max(max, x));
            let max = s.splat(s.max_lanes(s.max(s.max(a, b), s.max(c, d))));
            let mut total = s.splat(0.0);
            for start in (0..row.len()).step_by(S::LANES) {
                let x = s.load_at(row, start, f32::NEG_INFINITY);
                let x = s.mul(s.sub(x, max), scale);
                let e = match self.accuracy {
                    Accuracy::F32 => exp_below_overflow(s, x),
                    Accuracy::Bf16 => exp2_bf16(s, x),
                };
                s.store_at(row, start, e);
                total = s.add(total, e);
            }
            *sum = s.sum_lanes(total);
        }
    }
}

/// `y + factor · x` in place of `y`.
///
/// # Panics
/// If `x` is shorter.
pub fn add_scaled(isa: Isa, y: &mut [f32], factor: f32, x: &[f32]) {
    isa.run(AddScaled { y, factor, x });
}

struct AddScaled<'a> {
    y: &'a mut [f32],
    factor: f32,
    x: &'a [f32],
}

impl Kernel for AddScaled<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        map_with!(s, self.y, self.x, |y, x| s.fma(factor, x, y));
    }
}
