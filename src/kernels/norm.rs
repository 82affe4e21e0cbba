//! Normalisation of rows.

use super::isa::{Isa, Kernel};
use super::simd::{Simd, map, map_with, sum};

/// What a row is brought to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NormKind {
    /// Mean 0 and variance 1 (Ba et al. 2016).
    Layer,
    /// A root mean square of 1 (Zhang & Sennrich 2019).
    RootMeanSquare,
}

/// A norm with its weights.
#[derive(Debug, Clone, Copy)]
pub struct Norm<'a> {
    /// What it does.
    pub kind: NormKind,
    /// One number a column.
    pub weight: &'a [f32],
    /// One number a column, or none at all.
    pub bias: &'a [f32],
    /// What is added to the variance, or to the mean square.
    pub eps: f32,
}

impl Norm<'_> {
    /// `norm(x + residual)` of every row of `x`, in place; an empty residual is none. The variance is taken in a second
    /// pass, so that a large mean costs no digits.
    ///
    /// # Panics
    /// If `x` is not whole rows, or the residual or the bias has another length.
    pub fn forward(&self, isa: Isa, x: &mut [f32], residual: &[f32]) {
        let width = self.weight.len();
        assert!(x.len().is_multiple_of(width), "rows are whole");
        assert!(residual.is_empty() || residual.len() == x.len(), "the residual has the shape of x");
        assert!(self.bias.is_empty() || self.bias.len() == width, "there is a bias a column");
        isa.run(Rows { norm: self, x, residual });
    }
}

struct Rows<'a> {
    norm: &'a Norm<'a>,
    x: &'a mut [f32],
    residual: &'a [f32],
}

impl Kernel for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Norm { kind, weight, bias, eps } = *self.norm;
        let columns = weight.len() as f64;
        for (i, row) in self.x.chunks_exact_mut(weight.len()).enumerate() {
            if !self.residual.is_empty() {
                map_with!(s, row, self.residual[i * weight.len()..], |x, y| s.add(x, y));
            }
            let mean = match kind {
                NormKind::Layer => (sum!(s, row, 0.0, |sum, x| s.add(sum, x)) / columns) as f32,
                NormKind::RootMeanSquare => 0.0,
            };
            let middle = s.splat(mean);
            let square = sum!(s, row, mean, |sum, x| {
                let x = s.sub(x, middle);
                s.fma(x, x, sum)
            });
            let scale = s.splat((1.0 / (square / columns + f64::from(eps)).sqrt()) as f32);
            map_with!(s, row, weight, |x, w| s.mul(s.mul(s.sub(x, middle), scale), w));
            if !bias.is_empty() {
                map_with!(s, row, bias, |x, b| s.add(x, b));
            }
        }
    }
}

/// Scales a row to unit length in place; a row shorter than 1e-12 is divided by 1e-12, as
/// `torch.nn.functional.normalize` does.
pub fn l2_normalize(isa: Isa, row: &mut [f32]) {
    isa.run(L2(row));
}

struct L2<'a>(&'a mut [f32]);

impl Kernel for L2<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let length = sum!(s, self.0, 0.0, |sum, x| s.fma(x, x, sum)).sqrt() as f32;
        // Not `max`, which would lose a NaN.
        let length = s.splat(if length < 1e-12 { 1e-12 } else { length });
        map!(s, self.0, |x| s.div(x, length));
    }
}
