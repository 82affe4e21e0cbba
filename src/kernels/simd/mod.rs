//! SIMD vectors: the operations that a kernel needs of an ISA.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod portable;

use half::bf16;

/// 1.5 · 2²³. Adding it to a small number leaves the nearest integer in the low bits; subtracting it again
/// gives that integer.
pub(crate) const ROUNDING_SHIFT: f32 = 12_582_912.0;

/// Maximum [`Simd::LANES`] of any ISA.
pub const MAX_LANES: usize = 16;

/// 8-bit integers in a u32 lane.
pub const INT8_PER_LANE: usize = size_of::<u32>();

/// How an ISA multiplies 8-bit integers. A byte `u` of a left operand stands for `scale · (u − zero_point)`,
/// a byte `q` of the weights for `scale · q`. Both operands are rotated before: a value that is much larger
/// than the others of its group would leave few steps to them.
#[derive(Debug, Clone, Copy)]
pub struct Int8Format {
    /// Consecutive inputs that share a scale and a zero point.
    pub group: usize,
    /// Order of the Hadamard matrix that rotates a group: 4 or 8. It combines the inputs at the same place of
    /// as many parts of the group, so a rotation takes only sums and differences of whole vectors.
    pub rotation: usize,
    /// Steps from the smallest left operand of a group to the greatest.
    pub lhs_steps: u8,
    /// The smallest left operand: what [`Simd::store_int8_lhs`] subtracts from every value.
    pub lhs_offset: u8,
    /// Whether the products of two packed elements are added in 16 bits: [`Simd::dot_int8`] takes two of
    /// them, and [`MAX_QUAD_SUM`] limits the weights.
    pub adds_in_i16: bool,
}

/// Maximum [`Int8Format::group`] of any ISA. The sum over a group and the part of its zero point are below
/// 2²⁴, so that f32 has both of them exactly.
pub const MAX_INT8_GROUP: usize = 128;

/// With [`Int8Format::adds_in_i16`]: maximum sum of the weights of one sign among four that are multiplied
/// for the same 16 bits, before they are rounded. Those are the weights 0, 1, 4 and 5, and 2, 3, 6 and 7, of
/// any eight. Rounding adds 2 at most, so a sum of their products with left operands from 0 to 200, or 201 by
/// rounding, is at most 201 · 163 < 2¹⁵.
pub const MAX_QUAD_SUM: f32 = 161.0;

impl Int8Format {
    /// Unsigned bytes, as `vpdpbusd` takes them. The greatest may be rounded to 255.
    pub const UNSIGNED_LHS: Int8Format =
        Int8Format { group: MAX_INT8_GROUP, rotation: 8, lhs_steps: 254, lhs_offset: 0, adds_in_i16: false };
    /// The same integers as signed bytes.
    pub const SIGNED_LHS: Int8Format = Int8Format { lhs_offset: 128, ..Self::UNSIGNED_LHS };
    /// `vpmaddubsw` adds two products in 16 bits; adding two of its results there saves a quarter of the
    /// multiplications. Left operands of 200 steps and limited weights keep the sums exact. What that takes
    /// from the precision, smaller groups give back.
    pub const SUMS_IN_I16: Int8Format =
        Int8Format { group: 64, rotation: 8, lhs_steps: 200, lhs_offset: 0, adds_in_i16: true };
}

/// The vector operations of one ISA.
///
/// A value of an implementing type exists only if the processor supports the ISA. That makes the arithmetic
/// methods safe to call; methods that read or write memory through a pointer are `unsafe` and require a valid
/// pointer.
///
/// A NaN operand gives a NaN result, except for `max`, `min` and `select_less`.
pub trait Simd: Copy + Send + Sync {
    /// f32 values in a vector.
    const LANES: usize;
    /// MR of the GEMM micro-kernel: with two accumulators per row, MR rows leave enough registers for the
    /// operands.
    const MR: usize;
    /// The format of 8-bit integers.
    const INT8: Int8Format;
    /// Whether bf16 dot products take fewer instructions than f32 FMAs.
    const FAST_BF16: bool;
    /// Whether [`Simd::lookup`] is one instruction.
    const FAST_LOOKUP: bool = false;
    /// A vector of f32.
    type F: Copy;
    /// A vector of u32 lanes: 32-bit integers or packed elements.
    type I: Copy;

    /// Broadcasts `x` to every lane.
    fn splat(self, x: f32) -> Self::F;
    /// Loads `LANES` values.
    ///
    /// # Safety
    /// `from` is valid for reads of `LANES` values. It need not be aligned.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// Stores `LANES` values.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` values. It need not be aligned.
    unsafe fn store(self, to: *mut f32, x: Self::F);
    /// Loads a slice of fewer than `LANES` values; the remaining lanes are `pad`.
    fn load_partial(self, from: &[f32], pad: f32) -> Self::F;
    /// Stores the first `to.len()` lanes, fewer than `LANES`.
    fn store_partial(self, to: &mut [f32], x: Self::F);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a − b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b` within 1 ULP, if `a`, `b` and the quotient are normal numbers.
    #[inline(always)]
    fn div_normal(self, a: Self::F, b: Self::F) -> Self::F {
        self.div(a, b)
    }
    /// `a · b + c`, rounded once if the ISA has FMA.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Maximum. If an operand is NaN: `b`, or on NEON NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Minimum. If an operand is NaN: `b`, or on NEON NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `yes` in lanes where `a < b`, `no` in all others, including those where an operand is NaN.
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `|x|`.
    fn abs(self, x: Self::F) -> Self::F;
    /// Extends the range of each lane by `x`. A range begins with two zeros, and only [`Simd::reduce_range`]
    /// reads it.
    fn extend_range(self, range: [Self::F; 2], x: Self::F) -> [Self::F; 2];
    /// Minimum and maximum of the ranges of all lanes; one of them is NaN if a range was extended by NaN.
    fn reduce_range(self, range: [Self::F; 2]) -> [f32; 2];
    /// Sum of all lanes.
    fn reduce_sum(self, x: Self::F) -> f32;
    /// Sum of all lanes of four vectors, accumulated in f64.
    #[inline(always)]
    fn reduce_sums_f64(self, vectors: [Self::F; 4]) -> f64 {
        let mut sums = [0.0; 4];
        for (sum, x) in sums.iter_mut().zip(vectors) {
            let mut lanes = [0.0; MAX_LANES];
            // SAFETY: `lanes` has `MAX_LANES` values, so it is valid for writes of `LANES`.
            unsafe { self.store(lanes.as_mut_ptr(), x) };
            *sum = lanes.iter().map(|x| f64::from(*x)).sum();
        }
        (sums[0] + sums[1]) + (sums[2] + sums[3])
    }
    /// `table[i]` in each lane, for the `i` in the lowest 5 bits of the lane of `index`.
    ///
    /// # Panics
    /// If the ISA has no [`Simd::FAST_LOOKUP`].
    fn lookup(self, _table: &[f32; 32], _index: Self::F) -> Self::F {
        unreachable!("this ISA has no fast lookup")
    }
    /// Maximum of all lanes, with the NaN rule of [`Simd::max`].
    fn reduce_max(self, x: Self::F) -> f32;
    /// The magnitude of `x ≥ 0` with the sign of `sign`.
    fn copysign(self, x: Self::F, sign: Self::F) -> Self::F;
    /// `x · 2ⁿ` for integral `n` from −252 to 252.
    fn scale_exp2(self, x: Self::F, n: Self::F) -> Self::F;
    /// For `x ≤ 127`: a fraction `f` from 0 to 1 and an `n`, so that `2ˣ` is `scale_exp2(2ᶠ, n)`. Below −252
    /// `2ˣ` becomes 0.
    #[inline(always)]
    fn split_exp2(self, x: Self::F) -> (Self::F, Self::F) {
        // This order of operands propagates NaN.
        let x = self.max(self.splat(-252.0), x);
        let shift = self.splat(ROUNDING_SHIFT);
        let nearest = self.sub(self.add(x, shift), shift);
        let floor = self.select_less(x, nearest, self.sub(nearest, self.splat(1.0)), nearest);
        (self.sub(x, floor), floor)
    }

    /// [`Simd::scale_exp2`] for the `n` of [`Simd::split_exp2`]. If `2ⁿ` is below 2⁻¹²⁶, the result may be 0.
    #[inline(always)]
    fn scale_exp2_or_zero(self, x: Self::F, n: Self::F) -> Self::F {
        self.scale_exp2(x, n)
    }

    /// [`Simd::scale_exp2_or_zero`] for `x` from 1 to 2. A result below 2⁻¹²⁶ may be 0.
    #[inline(always)]
    fn multiply_exp2(self, x: Self::F, n: Self::F) -> Self::F {
        self.scale_exp2_or_zero(x, n)
    }

    /// Prefetches a cache line into L1; ignored if the address is not readable.
    #[inline(always)]
    fn prefetch_l1(self, _line: *const u32) {}

    /// Prefetches a cache line into L2; ignored if the address is not readable.
    #[inline(always)]
    fn prefetch_l2(self, _line: *const u32) {}

    /// Broadcasts `element` to every u32 lane.
    fn splat_u32(self, element: u32) -> Self::I;
    /// Loads `LANES` packed elements.
    ///
    /// # Safety
    /// `from` is valid for reads of `LANES` u32. It need not be aligned.
    unsafe fn load_u32(self, from: *const u32) -> Self::I;
    /// Converts i32 lanes to f32.
    fn i32_to_f32(self, x: Self::I) -> Self::F;

    /// `sum + a₀ b₀ + a₁ b₁` for the two bf16 values of every lane.
    ///
    /// # Panics
    /// If the ISA has no [`Simd::FAST_BF16`].
    fn dot_bf16(self, _sum: Self::F, _a: Self::I, _b: Self::I) -> Self::F {
        unreachable!("this ISA has no bf16 dot product")
    }

    /// Rounds to bf16, to nearest, ties to even; the result is f32. Subnormal numbers may be flushed to 0.
    #[inline(always)]
    fn round_bf16(self, x: Self::F) -> Self::F {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` has `MAX_LANES` values, so it is valid for reads and writes of `LANES`.
        unsafe {
            self.store(lanes.as_mut_ptr(), x);
            lanes = lanes.map(|x| bf16::from_f32(x).to_f32());
            self.load(lanes.as_ptr())
        }
    }

    /// Stores `LANES` packed elements of two bf16 each: `low` in the lower 16 bits, `high` in the upper.
    /// Returns the rounded values.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` u32.
    #[inline(always)]
    unsafe fn store_bf16_pairs(self, to: *mut u32, low: Self::F, high: Self::F) -> [Self::F; 2] {
        let (mut lows, mut highs) = ([0u16; MAX_LANES], [0u16; MAX_LANES]);
        // SAFETY: `lows` and `highs` have `MAX_LANES` values, so they are valid for writes of `LANES`. `to`
        // is valid for writes of `LANES` u32 by the contract of this method, and `lane < LANES`.
        unsafe {
            self.store_bf16(lows.as_mut_ptr(), low);
            self.store_bf16(highs.as_mut_ptr(), high);
            for (lane, (low, high)) in lows.into_iter().zip(highs).enumerate().take(Self::LANES) {
                to.add(lane).write(u32::from(low) | u32::from(high) << 16);
            }
        }
        [self.round_bf16(low), self.round_bf16(high)]
    }

    /// Stores `LANES` values from −127 to 127 as i8, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` bytes.
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, x: Self::F) {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` has `MAX_LANES` values, so it is valid for writes of `LANES`. `to` is valid for
        // writes of `LANES` bytes by the contract of this method, and `lane < LANES`.
        unsafe {
            self.store(lanes.as_mut_ptr(), x);
            for (lane, x) in lanes.iter().enumerate().take(Self::LANES) {
                to.add(lane).write(x.round_ties_even() as i8);
            }
        }
    }

    /// Transposes a 16 × 16 matrix of u32 in place.
    #[inline(always)]
    fn transpose_u32(self, matrix: &mut [[u32; 16]; 16]) {
        let from = *matrix;
        for (column, row) in matrix.iter_mut().enumerate() {
            for (element, from) in row.iter_mut().zip(&from) {
                *element = from[column];
            }
        }
    }

    /// Transposes `LANES` elements of each of `height` rows, which begin every `stride` elements of `x`:
    /// element `k` of all rows is written to `to` from `k · to_stride` on. What follows it is arbitrary, up
    /// to `LANES` elements in all.
    ///
    /// # Safety
    /// `x` is valid for reads of `LANES` u32 in each row. `height` is from 1 to the greater of `LANES` and
    /// [`Simd::MR`], and at most `to_stride`. From every `k · to_stride` on, `to` is valid for writes of
    /// `LANES`, and of `height` u32.
    #[inline(always)]
    unsafe fn interleave(self, x: *const u32, stride: usize, height: usize, to: *mut u32, to_stride: usize) {
        for k in 0..Self::LANES {
            for r in 0..height {
                // SAFETY: row `r` has an element `k`, and `to` has place for it, by the contract of this
                // method.
                unsafe { to.add(k * to_stride + r).write(x.add(r * stride + k).read()) };
            }
        }
    }

    /// Stores `LANES` values as bf16, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` u16.
    unsafe fn store_bf16(self, to: *mut u16, x: Self::F);

    /// Stores the values of several vectors, one after the other, as bf16, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writes of `N · LANES` u16.
    #[inline(always)]
    unsafe fn store_bf16_each<const N: usize>(self, to: *mut u16, vectors: [Self::F; N]) {
        for (i, x) in vectors.into_iter().enumerate() {
            // SAFETY: `to` is valid for writes of `N · LANES` u16 by the contract of this method.
            unsafe { self.store_bf16(to.add(i * Self::LANES), x) };
        }
    }

    /// `sum + a · b` of integers in every lane. Those of `a` and `b` are the lower 16 bits, and above those
    /// of `a` are zeros.
    fn add_product_i16(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// `sum + Σ aᵢ bᵢ` over the four values of every lane of `N` packed elements, one or two; `a` is in the
    /// format of [`Simd::store_int8_lhs`], `b` is signed, within the limits of [`Simd::INT8`].
    fn dot_int8<const N: usize>(self, sum: Self::I, a: [Self::I; N], b: [Self::I; N]) -> Self::I;
    /// Stores `LANES` values from 0 to 255, rounded to nearest, ties to even, as left operands of
    /// [`Simd::dot_int8`]: minus [`Int8Format::lhs_offset`].
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` bytes.
    unsafe fn store_int8_lhs(self, to: *mut u8, x: Self::F);

    /// [`Simd::store_int8_lhs`] of four vectors, one after the other.
    ///
    /// # Safety
    /// `to` is valid for writes of `4 · LANES` bytes.
    #[inline(always)]
    unsafe fn store_int8_lhs_four(self, to: *mut u8, vectors: [Self::F; 4]) {
        for (i, x) in vectors.into_iter().enumerate() {
            // SAFETY: `to` is valid for writes of `4 · LANES` bytes by the contract of this method.
            unsafe { self.store_int8_lhs(to.add(i * Self::LANES), x) };
        }
    }

    /// Loads `min(count, LANES)` values; the remaining lanes are 0.
    ///
    /// # Safety
    /// `count > 0`, and `from` is valid for reads of `min(count, LANES)` values.
    #[inline(always)]
    unsafe fn load_up_to(self, from: *const f32, count: usize) -> Self::F {
        if count >= Self::LANES {
            // SAFETY: `from` is valid for reads of `LANES` values by the contract of this method.
            unsafe { self.load(from) }
        } else {
            // SAFETY: `from` is valid for reads of `count` initialised values by the contract of this method.
            self.load_partial(unsafe { std::slice::from_raw_parts(from, count) }, 0.0)
        }
    }

    /// Stores the first `min(count, LANES)` lanes. The memory may be uninitialised.
    ///
    /// # Safety
    /// `count > 0`, and `to` is valid for writes of `min(count, LANES)` values.
    #[inline(always)]
    unsafe fn store_up_to(self, to: *mut f32, x: Self::F, count: usize) {
        if count >= Self::LANES {
            // SAFETY: `to` is valid for writes of `LANES` values by the contract of this method.
            unsafe { self.store(to, x) };
        } else {
            let mut lanes = [0.0; MAX_LANES];
            // SAFETY: `lanes` has `MAX_LANES` values, so it is valid for writes of `LANES` and for reads of
            // `count < LANES`. `to` is valid for writes of `count` values by the contract of this method, and
            // does not overlap the local array.
            unsafe {
                self.store(lanes.as_mut_ptr(), x);
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
            }
        }
    }

    /// Loads `row[start..]`, up to `LANES` values; lanes past the end of the row are `pad`.
    #[inline(always)]
    fn load_at(self, row: &[f32], start: usize, pad: f32) -> Self::F {
        match row.len().checked_sub(start) {
            // SAFETY: `row` has at least `LANES` values from `start` on.
            Some(left) if left >= Self::LANES => unsafe { self.load(row.as_ptr().add(start)) },
            Some(left) if left > 0 => self.load_partial(&row[start..], pad),
            _ => self.splat(pad),
        }
    }

    /// Stores to `row[start..]`; lanes past the end of the row are dropped.
    #[inline(always)]
    fn store_at(self, row: &mut [f32], start: usize, x: Self::F) {
        let row = &mut row[start..];
        if row.len() >= Self::LANES {
            // SAFETY: `row` has at least `LANES` values.
            unsafe { self.store(row.as_mut_ptr(), x) };
        } else {
            self.store_partial(row, x);
        }
    }
}

/// Minimum and maximum of 0 and some values, from the greatest of their bits as u32, which belongs to the
/// smallest negative value if there is one, and as i32, which belongs to the greatest positive one. NaN is
/// beyond all other values of its sign.
#[inline(always)]
fn range_of_bits(as_u32: u32, as_i32: i32) -> [f32; 2] {
    let min = if as_u32.cast_signed() < 0 { as_u32 } else { 0 };
    [f32::from_bits(min), f32::from_bits(as_i32.cast_unsigned())]
}

/// Defines methods of [`Simd`] that are one expression of intrinsics each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty { $body:expr })*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            // SAFETY: `self` exists only if the processor supports the ISA. The intrinsics access no memory
            // (prefetching any address is allowed).
            unsafe { $body }
        })*
    };
}

// Loops over the vectors of a row. They are macros, not functions with a closure: the body has to be compiled
// with the target features of the ISA, and a closure is only if the compiler decides to inline it.

/// `row[i] = f(row[i])`.
macro_rules! map {
    ($s:ident, $row:expr, |$x:ident| $f:expr) => {{
        let row: &mut [f32] = $row;
        for start in (0..row.len()).step_by(S::LANES) {
            let $x = $s.load_at(row, start, 0.0);
            let y = $f;
            $s.store_at(row, start, y);
        }
    }};
}

/// `row[i] = f(row[i], other[i])`. Panics if `other` is shorter than `row`.
macro_rules! map_with {
    ($s:ident, $row:expr, $other:expr, |$x:ident, $y:ident| $f:expr) => {{
        let row: &mut [f32] = $row;
        let other: &[f32] = &$other[..row.len()];
        for start in (0..row.len()).step_by(S::LANES) {
            let ($x, $y) = ($s.load_at(row, start, 0.0), $s.load_at(other, start, 0.0));
            let z = $f;
            $s.store_at(row, start, z);
        }
    }};
}

/// Folds a row into four accumulators in round-robin order, starting from `begin`; lanes past the end of the
/// row are `pad`. The order depends only on the length of the row.
macro_rules! fold {
    ($s:ident, $row:expr, $begin:expr, $pad:expr, |$fold:ident, $x:ident| $f:expr) => {{
        let row: &[f32] = $row;
        let mut folds = [$s.splat($begin); 4];
        // Loads from a chunk of known length need no check.
        let mut chunks = row.chunks_exact(4 * S::LANES);
        for chunk in &mut chunks {
            for (i, fold) in folds.iter_mut().enumerate() {
                let ($fold, $x) = (*fold, $s.load_at(chunk, i * S::LANES, $pad));
                *fold = $f;
            }
        }
        let rest = chunks.remainder();
        for (start, fold) in (0..rest.len()).step_by(S::LANES).zip(&mut folds) {
            let ($fold, $x) = (*fold, $s.load_at(rest, start, $pad));
            *fold = $f;
        }
        folds
    }};
}

/// Sum over a row in f64: `f` adds a vector to a partial sum; for `pad` it must add 0. Partial sums are f32,
/// one per lane; they are added in f64, so that the error of a statistic that all values of a row share is
/// about one rounding.
macro_rules! sum {
    ($s:ident, $row:expr, $pad:expr, |$sum:ident, $x:ident| $f:expr) => {{ $s.reduce_sums_f64($crate::simd::fold!($s, $row, 0.0, $pad, |$sum, $x| $f)) }};
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use methods;
pub(super) use {fold, map, map_with, sum};
