//! Dot products of stored vectors: in f32 at the speed of memory, and in f64 with the same bits on every ISA.

use std::marker::PhantomData;

use super::isa::{Isa, Kernel, define_runners};
use super::simd::{Simd, fold};

/// `dots[r] = x_r · query` and `squares[r] = ‖x_r‖²` for the rows of `x`, a row-major
/// `(dots.len(), query.len())` matrix. Each sum is within `query.len() · 2⁻²⁴` of the sum of the magnitudes
/// of its terms.
///
/// # Panics
/// If `x` or `squares` does not have as many rows as `dots`.
pub fn dot_rows(isa: Isa, x: &[f32], query: &[f32], dots: &mut [f32], squares: &mut [f32]) {
    assert_eq!(x.len(), dots.len() * query.len(), "x has a row for every dot product");
    assert_eq!(squares.len(), dots.len(), "there is a square for every dot product");
    isa.run(DotRows { x, query, dots, squares });
}

/// Distance of the software prefetch in elements: one page, at whose end hardware prefetchers stop.
const PREFETCH_DISTANCE: usize = 1024;

/// The sum of all lanes.
#[inline(always)]
fn sum_lanes<S: Simd>(s: S, [a, b, c, d]: [S::F; 4]) -> f32 {
    s.reduce_sum(s.add(s.add(a, b), s.add(c, d)))
}

struct DotRows<'a> {
    x: &'a [f32],
    query: &'a [f32],
    dots: &'a mut [f32],
    squares: &'a mut [f32],
}

impl Kernel for DotRows<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { x, query, dots, squares } = self;
        for ((row, dot), square) in x.chunks_exact(query.len()).zip(dots).zip(squares) {
            let (mut products, mut norms) = ([s.splat(0.0); 4], [s.splat(0.0); 4]);
            for start in (0..row.len()).step_by(4 * S::LANES) {
                for i in 0..4 {
                    let at = start + i * S::LANES;
                    s.prefetch_l1(row.as_ptr().wrapping_add(at + PREFETCH_DISTANCE).cast());
                    let (x, q) = (s.load_at(row, at, 0.0), s.load_at(query, at, 0.0));
                    products[i] = s.fma(x, q, products[i]);
                    norms[i] = s.fma(x, x, norms[i]);
                }
            }
            *dot = sum_lanes(s, products);
            *square = sum_lanes(s, norms);
        }
    }
}

/// `squares[r] = ‖x_r‖²` for the rows of `x`, a row-major `(squares.len(), dimensions)` matrix; as exact as
/// [`dot_rows`].
///
/// # Panics
/// If `x` does not have as many rows as `squares`.
pub fn squared_norms(isa: Isa, x: &[f32], dimensions: usize, squares: &mut [f32]) {
    assert_eq!(x.len(), squares.len() * dimensions, "x has a row for every square");
    isa.run(SquaredNorms { x, dimensions, squares });
}

struct SquaredNorms<'a> {
    x: &'a [f32],
    dimensions: usize,
    squares: &'a mut [f32],
}

impl Kernel for SquaredNorms<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (row, square) in self.x.chunks_exact(self.dimensions).zip(self.squares) {
            *square = sum_lanes(s, fold!(s, row, 0.0, 0.0, |sum, x| s.fma(x, x, sum)));
        }
    }
}

/// `Σ a b` in f64. The product of two f32 is exact in f64, and the order of the sums is fixed: the result has
/// the same bits on every ISA, and whichever operand comes first.
///
/// # Panics
/// If `a` and `b` differ in length.
pub fn dot_f64(isa: Isa, a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "the vectors have the same length");
    isa.run(SumF64::<Product> { a, b, term: PhantomData })
}

/// `Σ (a − b)²` in f64, with the same bits on every ISA, and whichever operand comes first.
///
/// # Panics
/// If `a` and `b` differ in length.
pub fn squared_distance_f64(isa: Isa, a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len(), "the vectors have the same length");
    isa.run(SumF64::<SquaredDifference> { a, b, term: PhantomData })
}

/// The term that a pair of elements adds to a sum in f64.
trait Term {
    fn of(a: f64, b: f64) -> f64;
}

struct Product;

impl Term for Product {
    #[inline(always)]
    fn of(a: f64, b: f64) -> f64 {
        a * b
    }
}

struct SquaredDifference;

impl Term for SquaredDifference {
    #[inline(always)]
    fn of(a: f64, b: f64) -> f64 {
        (a - b) * (a - b)
    }
}

struct SumF64<'a, T> {
    a: &'a [f32],
    b: &'a [f32],
    term: PhantomData<T>,
}

/// Number of partial sums of a sum in f64, the same on every ISA: it fixes the order of additions.
const PARTIAL_SUMS: usize = 16;

impl<T: Term> Kernel for SumF64<'_, T> {
    type Output = f64;

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let (a, last_a) = self.a.as_chunks::<PARTIAL_SUMS>();
        let (b, last_b) = self.b.as_chunks::<PARTIAL_SUMS>();
        let mut sums = [0.0; PARTIAL_SUMS];
        for (a, b) in a.iter().zip(b) {
            for i in 0..PARTIAL_SUMS {
                sums[i] += T::of(f64::from(a[i]), f64::from(b[i]));
            }
        }
        for (sum, (a, b)) in sums.iter_mut().zip(last_a.iter().zip(last_b)) {
            *sum += T::of(f64::from(*a), f64::from(*b));
        }
        let mut width = PARTIAL_SUMS / 2;
        while width > 0 {
            for i in 0..width {
                sums[i] += sums[i + width];
            }
            width /= 2;
        }
        sums[0]
    }
}
