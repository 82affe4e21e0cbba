//! The inner loop of the vector micro-kernel: dot products of `R` rows of `x` and a panel, for one operand
//! format.

use std::hint::black_box;
use std::ops::Range;

use super::prefetch::Prefetch;
use crate::simd::Simd;

/// The elements of `R` rows of `x`.
pub(super) trait LhsTile<const R: usize>: Copy {
    /// Element `k` of each row.
    ///
    /// # Safety
    /// The rows have this element.
    unsafe fn element(self, k: usize) -> [*const u32; R];
}

/// A micro-panel: element `k` of all `R` rows, then element `k + 1`.
#[derive(Clone, Copy)]
pub(super) struct MicroPanel<const R: usize>(pub *const u32);

impl<const R: usize> LhsTile<R> for MicroPanel<R> {
    #[inline(always)]
    unsafe fn element(self, k: usize) -> [*const u32; R] {
        // SAFETY: the micro-panel has `R` elements for each K step up to `k` by the contract of this method.
        std::array::from_fn(|r| unsafe { self.0.add(k * R + r) })
    }
}

/// Pointers to rows.
#[derive(Clone, Copy)]
pub(super) struct RowPointers<const R: usize>([*const u32; R]);

impl<const R: usize> RowPointers<R> {
    /// Rows that begin every `stride` elements.
    ///
    /// # Safety
    /// There are `R` rows.
    #[inline(always)]
    pub(super) unsafe fn new(elements: *const u32, stride: usize) -> Self {
        // SAFETY: there is a row `r < R` by the contract of this function, so the offset is inside the rows.
        let pointers = std::array::from_fn(|r| unsafe { elements.add(r * stride) });
        // If the compiler knew how the pointers relate, it would recompute them in every K step, with half as
        // many instructions as the products take.
        RowPointers(black_box(pointers))
    }
}

impl<const R: usize> LhsTile<R> for RowPointers<R> {
    #[inline(always)]
    unsafe fn element(self, k: usize) -> [*const u32; R] {
        // SAFETY: every row has this element by the contract of this method.
        std::array::from_fn(|r| unsafe { self.0[r].add(k) })
    }
}

/// A dot product of packed elements.
pub(super) trait DotProduct<S: Simd> {
    type Operand: Copy;
    type Accumulator: Copy;
    /// Packed elements of an operand.
    const ELEMENTS: usize = 1;
    /// Operands per iteration of the unrolled loop. Fewer would cost loop overhead, more would need too many
    /// registers.
    const UNROLL: usize;
    /// Broadcasts packed elements of `x` to every lane.
    ///
    /// # Safety
    /// `from` is valid for reads of `ELEMENTS` u32.
    unsafe fn splat(s: S, from: *const u32) -> Self::Operand;
    /// Loads the packed elements of `LANES` outputs, from rows of a panel.
    ///
    /// # Safety
    /// `from` is valid for reads of `LANES` u32, and so are the next `ELEMENTS − 1` rows of 2 · `LANES` u32.
    unsafe fn load(s: S, from: *const u32) -> Self::Operand;
    /// `sum + a · b`, over all values of the packed elements.
    fn accumulate(s: S, sum: Self::Accumulator, a: Self::Operand, b: Self::Operand) -> Self::Accumulator;
}

/// Accumulates the products of the packed elements `elements` of `R` rows and as many rows of a panel, and
/// advances `prefetch` in each iteration of the unrolled loop.
///
/// # Safety
/// `x` has these elements. `panel`, which points to the element `elements.start`, is valid for reads of
/// `elements.len() · 2 · LANES` u32. `elements.len()` is a multiple of `D::ELEMENTS`.
#[inline(always)]
pub(super) unsafe fn dot_products<S: Simd, D: DotProduct<S>, const R: usize>(
    s: S,
    x: impl LhsTile<R>,
    elements: Range<usize>,
    mut panel: *const u32,
    mut accumulators: [[D::Accumulator; 2]; R],
    mut prefetch: Option<&mut Prefetch>,
) -> [[D::Accumulator; 2]; R] {
    let mut element = elements.start;
    let left = if D::UNROLL == 1 { 0 } else { elements.len() % (D::UNROLL * D::ELEMENTS) };
    let unrolled_end = elements.end - left;
    macro_rules! loop_until {
        ($end:expr, $unroll:expr) => {
            while element < $end {
                if let Some(prefetch) = &mut prefetch {
                    prefetch.advance(s);
                }
                for step in (0..$unroll * D::ELEMENTS).step_by(D::ELEMENTS) {
                    // SAFETY: `element + step + ELEMENTS <= elements.end`, so `x` has these elements; the
                    // panel has 2 · `LANES` u32 for each by the contract of this function.
                    unsafe {
                        let weights = panel.add(step * 2 * S::LANES);
                        let weights = [D::load(s, weights), D::load(s, weights.add(S::LANES))];
                        for (x, sums) in x.element(element + step).into_iter().zip(&mut accumulators) {
                            let x = D::splat(s, x);
                            *sums = [
                                D::accumulate(s, sums[0], x, weights[0]),
                                D::accumulate(s, sums[1], x, weights[1]),
                            ];
                        }
                    }
                }
                panel = panel.wrapping_add($unroll * D::ELEMENTS * 2 * S::LANES);
                element += $unroll * D::ELEMENTS;
            }
        };
    }
    loop_until!(unrolled_end, D::UNROLL);
    if D::UNROLL > 1 {
        loop_until!(elements.end, 1);
    }
    accumulators
}

/// FMA of f32.
pub(super) struct F32Dot;

impl<S: Simd> DotProduct<S> for F32Dot {
    type Operand = S::F;
    type Accumulator = S::F;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(s: S, from: *const u32) -> S::F {
        // SAFETY: `from` is valid for reads of a u32 by the contract of this method.
        s.splat(f32::from_bits(unsafe { *from }))
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> S::F {
        // SAFETY: `from` is valid for reads of `LANES` u32 by the contract of this method; f32 has the same
        // size and every bit pattern is a valid f32.
        unsafe { s.load(from.cast()) }
    }

    #[inline(always)]
    fn accumulate(s: S, sum: S::F, a: S::F, b: S::F) -> S::F {
        s.fma(a, b, sum)
    }
}

/// Dot product of two bf16, accumulated in f32.
pub(super) struct Bf16Dot;

impl<S: Simd> DotProduct<S> for Bf16Dot {
    type Operand = S::I;
    type Accumulator = S::F;
    const UNROLL: usize = 4;

    #[inline(always)]
    unsafe fn splat(s: S, from: *const u32) -> S::I {
        // SAFETY: `from` is valid for reads of a u32 by the contract of this method.
        s.splat_u32(unsafe { *from })
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> S::I {
        // SAFETY: `from` is valid for reads of `LANES` u32 by the contract of this method.
        unsafe { s.load_u32(from) }
    }

    #[inline(always)]
    fn accumulate(s: S, sum: S::F, a: S::I, b: S::I) -> S::F {
        s.dot_bf16(sum, a, b)
    }
}

/// Dot product of the 8-bit integers of `N` packed elements, accumulated in i32.
pub(super) struct Int8Dot<const N: usize>;

impl<S: Simd, const N: usize> DotProduct<S> for Int8Dot<N> {
    type Operand = [S::I; N];
    type Accumulator = S::I;
    const ELEMENTS: usize = N;
    const UNROLL: usize = 2 / N;

    #[inline(always)]
    unsafe fn splat(s: S, from: *const u32) -> [S::I; N] {
        let mut elements = [s.splat_u32(0); N];
        for (i, element) in elements.iter_mut().enumerate() {
            // SAFETY: `from` is valid for reads of `N` u32 by the contract of this method.
            *element = s.splat_u32(unsafe { *from.add(i) });
        }
        elements
    }

    #[inline(always)]
    unsafe fn load(s: S, from: *const u32) -> [S::I; N] {
        let mut elements = [s.splat_u32(0); N];
        for (i, element) in elements.iter_mut().enumerate() {
            // SAFETY: `LANES` u32 can be read in each of `N` rows of 2 · `LANES` u32 by the contract of this
            // method.
            *element = unsafe { s.load_u32(from.add(i * 2 * S::LANES)) };
        }
        elements
    }

    #[inline(always)]
    fn accumulate(s: S, sum: S::I, a: [S::I; N], b: [S::I; N]) -> S::I {
        s.dot_int8(sum, a, b)
    }
}
