//! LayerNorm, RMSNorm and L2 normalisation of rows.

use super::isa::{Isa, Kernel, define_runners};
use super::simd::{Simd, map, map_with, sum};

/// The kind of a norm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// LayerNorm: mean 0 and variance 1 (Ba et al. 2016).
    Layer,
    /// RMSNorm: root mean square 1 (Zhang & Sennrich 2019).
    RootMeanSquare,
    /// NoNorm: weights and biases alone, without statistics of the row (Sun et al. 2020, §3.3).
    Affine,
}

/// A norm with its weights.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// What is normalised.
    pub kind: NormKind,
    /// `(H)`.
    pub weight: &'a [f32],
    /// `(H)`, or empty for a norm without bias.
    pub bias: &'a [f32],
    /// Added to the variance (LayerNorm) or the mean square (RMSNorm).
    pub eps: f32,
}

impl Norm<'_> {
    /// `norm(x + residual)` of every row of `x` `(T, H)`, in place. The residual has the shape of `x`, or is
    /// empty for none. The variance is computed in a second pass, so that a large mean does not cancel its
    /// digits.
    ///
    /// # Panics
    /// If the length of `x` is not a multiple of H, or the residual or the bias has a wrong length.
    pub fn forward(&self, isa: Isa, x: &mut [f32], residual: &[f32]) {
        let width = self.weight.len();
        assert!(x.len().is_multiple_of(width), "the length of x is a multiple of the width");
        assert!(residual.is_empty() || residual.len() == x.len(), "the residual has the shape of x");
        assert!(self.bias.is_empty() || self.bias.len() == width, "the bias has one value per column");
        isa.run(NormRows { norm: self, x, residual });
    }
}

/// Rows whose statistics are computed together: reductions and divisions of one row take longer than its
/// sums, and those of different rows overlap.
const ROWS_IN_FLIGHT: usize = 4;

struct NormRows<'a> {
    norm: &'a Norm<'a>,
    x: &'a mut [f32],
    residual: &'a [f32],
}

impl Kernel for NormRows<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { kind, weight, bias, eps } = *self.norm;
        let columns = weight.len();
        let count = columns as f64;
        for (block, rows) in self.x.chunks_mut(ROWS_IN_FLIGHT * weight.len()).enumerate() {
            let first = block * ROWS_IN_FLIGHT * weight.len();
            let residual = self.residual.get(first..first + rows.len()).unwrap_or_default();
            let (mut centers, mut scales) = ([s.splat(0.0); ROWS_IN_FLIGHT], [s.splat(0.0); ROWS_IN_FLIGHT]);
            let mut means = [0.0; ROWS_IN_FLIGHT];
            for (i, row) in rows.chunks_exact_mut(weight.len()).enumerate() {
                let residual = residual.get(i * row.len()..(i + 1) * row.len()).unwrap_or_default();
                let sum = add_and_sum(s, row, residual);
                means[i] = match kind {
                    NormKind::Layer => (sum / count) as f32,
                    NormKind::RootMeanSquare | NormKind::Affine => 0.0,
                };
                centers[i] = s.splat(means[i]);
            }
            for (i, row) in rows.chunks_exact(weight.len()).enumerate() {
                if kind == NormKind::Affine {
                    scales[i] = s.splat(1.0);
                    continue;
                }
                let center = centers[i];
                let square = sum!(s, row, means[i], |sum, x| {
                    let x = s.sub(x, center);
                    s.fma(x, x, sum)
                });
                scales[i] = s.splat((1.0 / (square / count + f64::from(eps)).sqrt()) as f32);
            }
            for (row, (center, scale)) in
                rows.chunks_exact_mut(weight.len()).zip(centers.into_iter().zip(scales))
            {
                if bias.is_empty() {
                    map_with!(s, row, weight, |x, w| s.mul(s.mul(s.sub(x, center), scale), w));
                } else {
                    // Equal lengths, so that one check does for all loads.
                    let (row, weight, bias) = (&mut row[..columns], &weight[..columns], &bias[..columns]);
                    for start in (0..columns).step_by(S::LANES) {
                        let (x, w) = (s.load_at(row, start, 0.0), s.load_at(weight, start, 0.0));
                        let y = s.mul(s.mul(s.sub(x, center), scale), w);
                        s.store_at(row, start, s.add(y, s.load_at(bias, start, 0.0)));
                    }
                }
            }
        }
    }
}

/// Adds the residual, if it is not empty, to a row, in place. Returns the sum of the row.
#[inline(always)]
fn add_and_sum<S: Simd>(s: S, row: &mut [f32], residual: &[f32]) -> f64 {
    if residual.is_empty() {
        return sum!(s, row, 0.0, |sum, x| s.add(sum, x));
    }
    // In the order of `sum!`.
    let mut sums = [s.splat(0.0); 4];
    for start in (0..row.len()).step_by(4 * S::LANES) {
        for (i, sum) in sums.iter_mut().enumerate() {
            let start = start + i * S::LANES;
            if start < row.len() {
                let x = s.add(s.load_at(row, start, 0.0), s.load_at(residual, start, 0.0));
                s.store_at(row, start, x);
                *sum = s.add(*sum, x);
            }
        }
    }
    s.reduce_sums_f64(sums)
}

/// Scales a row to unit L2 norm, in place. As in `torch.nn.functional.normalize`, the divisor is at least
/// 1e-12.
pub fn l2_normalize(isa: Isa, row: &mut [f32]) {
    isa.run(L2Normalize { row });
}

struct L2Normalize<'a> {
    row: &'a mut [f32],
}

impl Kernel for L2Normalize<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let length = sum!(s, self.row, 0.0, |sum, x| s.fma(x, x, sum)).sqrt() as f32;
        // Not `max`, which drops NaN.
        let length = s.splat(if length < 1e-12 { 1e-12 } else { length });
        map!(s, self.row, |x| s.div(x, length));
    }
}
