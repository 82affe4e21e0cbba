//! Registers: what a kernel asks of an instruction set.

#[cfg(target_arch = "x86_64")]
pub mod avx2;
#[cfg(target_arch = "x86_64")]
pub mod avx512;
#[cfg(target_arch = "aarch64")]
pub mod neon;
pub mod portable;

use half::bf16;

/// The most numbers that any register holds.
pub const MAX_LANES: usize = 16;

/// An instruction set. Its one value exists only where the processor has the instructions, which is what makes the
/// methods safe to call; those that read or write memory ask for valid pointers.
///
/// Where an operand is NaN, so is the result, but for `max` and `select_less`.
pub trait Simd: Copy + Send + Sync {
    /// Numbers in a register.
    const LANES: usize;
    /// Rows of a tile: with two registers of sums each, one row leaves enough registers for operands.
    const ROWS: usize;
    /// Bytes in a word of 8-bit products: 4 where they are multiplied as bytes, 2 where as 16-bit numbers.
    const BYTES_PER_WORD: usize;
    /// Whether products of bf16 take fewer instructions than those of f32.
    const FAST_BF16: bool;
    /// A register of `f32`.
    type F: Copy;
    /// A register of 32-bit integers or words.
    type I: Copy;

    /// `x` in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// `LANES` numbers.
    ///
    /// # Safety
    /// The pointer is good for reading them.
    unsafe fn load(self, from: *const f32) -> Self::F;
    /// The reverse.
    ///
    /// # Safety
    /// The pointer is good for writing them.
    unsafe fn store(self, to: *mut f32, x: Self::F);
    /// Some numbers, fewer than `LANES`, and `pad` in the lanes past the last.
    fn load_part(self, from: &[f32], pad: f32) -> Self::F;
    /// The first lanes, as many as there is room for, which is less than all.
    fn store_part(self, to: &mut [f32], x: Self::F);
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b` within one unit in the last place, for normal `a`, `b` and quotients.
    #[inline(always)]
    fn div_normal(self, a: Self::F, b: Self::F) -> Self::F {
        self.div(a, b)
    }
    /// `a · b + c`, rounded once where the set can.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The larger one; `b` if either is NaN, or else `a` or NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The smaller one; `b` if either is NaN, or else `a` or NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// `yes` where `a < b`, `no` elsewhere and where either is NaN.
    fn select_less(self, a: Self::F, b: Self::F, yes: Self::F, no: Self::F) -> Self::F;
    /// `|x|`.
    fn abs(self, x: Self::F) -> Self::F;
    /// The larger of `a`, not below 0, and `|b|`; NaN counts as larger than anything.
    fn max_magnitude(self, a: Self::F, b: Self::F) -> Self::F;
    /// The sum of all lanes.
    fn sum_lanes(self, x: Self::F) -> f32;
    /// The sum of all lanes in f64.
    #[inline(always)]
    fn sum_lanes_f64(self, x: Self::F) -> f64 {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` is valid for writes of the `LANES` values of any register.
        unsafe { self.store(lanes.as_mut_ptr(), x) };
        lanes.iter().map(|x| f64::from(*x)).sum()
    }
    /// The largest of all lanes, as [`Simd::max`].
    fn max_lanes(self, x: Self::F) -> f32;
    /// The largest of all lanes, as [`Simd::max_magnitude`].
    fn max_magnitude_lanes(self, x: Self::F) -> f32;
    /// `x`, not below 0, with the sign of `of`.
    fn with_sign(self, x: Self::F, of: Self::F) -> Self::F;
    /// `x · 2ⁿ`, for whole `n` from −252 to 252.
    fn scale_exp2(self, x: Self::F, n: Self::F) -> Self::F;

    /// Begins to bring a cache line into the first cache, if it can be read.
    #[inline(always)]
    fn prefetch(self, _line: *const u32) {}

    /// Begins to bring a cache line into the second cache, if it can be read.
    #[inline(always)]
    fn prefetch_to_l2(self, _line: *const u32) {}

    /// `word` in every lane.
    fn splat_word(self, word: u32) -> Self::I;
    /// `LANES` words.
    ///
    /// # Safety
    /// The pointer is good for reading them.
    unsafe fn load_words(self, from: *const u32) -> Self::I;
    /// Integers as `f32`.
    fn to_f32(self, x: Self::I) -> Self::F;

    /// `sum + a₀ b₀ + a₁ b₁` for the two bf16 of every word, where [`Simd::FAST_BF16`].
    fn dot_bf16(self, _sum: Self::F, _a: Self::I, _b: Self::I) -> Self::F {
        unreachable!("a set without such products")
    }

    /// The nearest values that bf16 has, ties to even; subnormal numbers may become 0.
    #[inline(always)]
    fn round_bf16(self, x: Self::F) -> Self::F {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` is valid for writes and reads of any register's values.
        unsafe {
            self.store(lanes.as_mut_ptr(), x);
            lanes = lanes.map(|x| bf16::from_f32(x).to_f32());
            self.load(lanes.as_ptr())
        }
    }

    /// Writes `LANES` words of two bf16 each: a value of `low` in the lower half, one of `high` in the upper.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` words.
    #[inline(always)]
    unsafe fn store_bf16_pairs(self, to: *mut u32, low: Self::F, high: Self::F) {
        let (mut lows, mut highs) = ([0u16; MAX_LANES], [0u16; MAX_LANES]);
        // SAFETY: both arrays are valid for writes of any register's values, and the caller's pointer for `LANES` words.
        unsafe {
            self.store_bf16(lows.as_mut_ptr(), low);
            self.store_bf16(highs.as_mut_ptr(), high);
            for (lane, (low, high)) in lows.into_iter().zip(highs).enumerate().take(Self::LANES) {
                to.add(lane).write(u32::from(low) | u32::from(high) << 16);
            }
        }
    }

    /// Writes `LANES` values from −127 to 127 as bytes with sign, rounded to whole numbers, ties to even.
    ///
    /// # Safety
    /// `to` is valid for writes of `LANES` bytes.
    #[inline(always)]
    unsafe fn store_i8(self, to: *mut i8, x: Self::F) {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: `lanes` is valid for writes of any register's values, and the caller's pointer for `LANES` bytes.
        unsafe {
            self.store(lanes.as_mut_ptr(), x);
            for (lane, x) in lanes.iter().enumerate().take(Self::LANES) {
                to.add(lane).write(x.round_ties_even() as i8);
            }
        }
    }

    /// Swaps rows and columns of 16 × 16 words.
    #[inline(always)]
    fn transpose_words(self, words: &mut [[u32; 16]; 16]) {
        let from = *words;
        for (column, row) in words.iter_mut().enumerate() {
            for (word, from) in row.iter_mut().zip(&from) {
                *word = from[column];
            }
        }
    }

    /// Writes `LANES` numbers as bf16, rounded to nearest, ties to even.
    ///
    /// # Safety
    /// The pointer is good for writing them.
    unsafe fn store_bf16(self, to: *mut u16, x: Self::F);

    /// `sum + Σ aᵢ bᵢ` for the [`Simd::BYTES_PER_WORD`] numbers of every word; `a` as [`Simd::store_int8`] writes them,
    /// `b` with sign.
    fn dot_int8(self, sum: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Writes `LANES` numbers from −127 to 127, rounded to whole ones, as left operands of [`Simd::dot_int8`].
    ///
    /// # Safety
    /// The pointer is good for writing them, 4 / [`Simd::BYTES_PER_WORD`] bytes each.
    unsafe fn store_int8(self, to: *mut u8, x: Self::F);
    /// What left operands are too large by.
    const INT8_OFFSET: i32;

    /// The first `count` values that lie at `from`, as far as a register holds them, and 0 in the lanes past the last.
    ///
    /// # Safety
    /// `from` is valid for reads of `count` values, which is above 0.
    #[inline(always)]
    unsafe fn load_first(self, from: *const f32, count: usize) -> Self::F {
        if count >= Self::LANES {
            // SAFETY: the caller's pointer is valid for reads of `LANES` values.
            unsafe { self.load(from) }
        } else {
            // SAFETY: the caller's pointer is valid for reads of `count` values.
            self.load_part(unsafe { std::slice::from_raw_parts(from, count) }, 0.0)
        }
    }

    /// Writes the first `count` lanes, or all where a register has fewer.
    ///
    /// # Safety
    /// `to` is valid for writes of `count` values, which is above 0.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, x: Self::F, count: usize) {
        if count >= Self::LANES {
            // SAFETY: the caller's pointer is valid for writes of `LANES` values.
            unsafe { self.store(to, x) };
        } else {
            let mut lanes = [0.0; MAX_LANES];
            // SAFETY: `lanes` is valid for writes of any register's values, and the caller's pointer for `count`, fewer than those.
            unsafe {
                self.store(lanes.as_mut_ptr(), x);
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count);
            }
        }
    }

    /// The register of a row that begins at `start`; `pad` stands for the numbers past the last.
    #[inline(always)]
    fn load_at(self, row: &[f32], start: usize, pad: f32) -> Self::F {
        match row.len().checked_sub(start) {
            // SAFETY: so many numbers lie there.
            Some(left) if left >= Self::LANES => unsafe { self.load(row.as_ptr().add(start)) },
            Some(left) if left > 0 => self.load_part(&row[start..], pad),
            _ => self.splat(pad),
        }
    }

    /// The reverse, as far as the row goes.
    #[inline(always)]
    fn store_at(self, row: &mut [f32], start: usize, x: Self::F) {
        let row = &mut row[start..];
        if row.len() >= Self::LANES {
            // SAFETY: so many numbers lie there.
            unsafe { self.store(row.as_mut_ptr(), x) };
        } else {
            self.store_part(row, x);
        }
    }
}

/// Methods of one expression each, for the one value of a set.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! methods {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty { $body:expr })*) => {
        $(#[inline(always)]
        fn $name(self, $($argument: $type),*) -> $result {
            // SAFETY: `self` exists only where the processor has the instructions.
            unsafe { $body }
        })*
    };
}

// Loops over the registers of rows. They are macros because what stands in their bodies has to be compiled with the
// instructions of the set, and a closure is so only if the compiler chooses to inline it.

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

/// `row[i] = f(row[i], other[i])`; panics if the other row is shorter.
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

/// Folds a row into four registers, in turns, which begin as `begin`; `pad` stands for the numbers past the last. The order
/// hangs on the length of the row alone.
macro_rules! fold {
    ($s:ident, $row:expr, $begin:expr, $pad:expr, |$fold:ident, $x:ident| $f:expr) => {{
        let row: &[f32] = $row;
        let mut folds = [$s.splat($begin); 4];
        for start in (0..row.len()).step_by(4 * S::LANES) {
            for (i, fold) in folds.iter_mut().enumerate() {
                let ($fold, $x) = (*fold, $s.load_at(row, start + i * S::LANES, $pad));
                *fold = $f;
            }
        }
        folds
    }};
}

/// The sum of a row in f64: `f` adds to a partial sum, and adds nothing for `pad`. Partial sums are f32, a lane of a register
/// each; they are added in f64, so that the error of a statistic, which all values of a row share, is that of its last rounding.
macro_rules! sum {
    ($s:ident, $row:expr, $pad:expr, |$sum:ident, $x:ident| $f:expr) => {{
        let [a, b, c, d] = $crate::kernels::simd::fold!($s, $row, 0.0, $pad, |$sum, $x| $f);
        ($s.sum_lanes_f64(a) + $s.sum_lanes_f64(b)) + ($s.sum_lanes_f64(c) + $s.sum_lanes_f64(d))
    }};
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use methods;
pub(super) use {fold, map, map_with, sum};
