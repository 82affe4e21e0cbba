//! Conversion of f32 values to bf16 parts and to int8, one 64-byte tile row at a time.

use super::blocking::MAX_PARTS;
use crate::simd::{MAX_QUAD_SUM, Simd, fold};
use crate::tiles::{TILE_ROW_BYTES, TILE_ROWS};

/// A tile row as packed elements.
pub(super) type TileRow = [u32; TILE_ROW_BYTES / 4];
/// bf16 values of a tile row.
pub(super) const BF16_PER_TILE_ROW: usize = TILE_ROW_BYTES / 2;

/// Splits up to 32 values into `P` bf16 parts, one tile row per part: the first part is the rounded value, each further
/// part the rounded remainder. Elements past the last value are 0.
#[inline(always)]
pub(super) fn split_bf16<S: Simd, const P: usize>(s: S, x: &[f32], mut parts: [&mut TileRow; P]) {
    const { assert!(P <= MAX_PARTS) };
    for start in (0..BF16_PER_TILE_ROW).step_by(S::LANES) {
        let mut remainder = match x.first_chunk::<BF16_PER_TILE_ROW>() {
            // SAFETY: `x` has `LANES` values at `start`, a multiple of `LANES` below 32.
            Some(x) => unsafe { s.load(x.as_ptr().add(start)) },
            None => s.load_at(x, start, 0.0),
        };
        for (part, row) in parts.iter_mut().enumerate() {
            // SAFETY: `row` holds 32 bf16, and `start` is a multiple of `LANES` below 32, so `LANES` u16 can be written
            // at `start`.
            unsafe { s.store_bf16(row.as_mut_ptr().cast::<u16>().add(start), remainder) };
            if part + 1 < P {
                remainder = s.sub(remainder, s.round_bf16(remainder));
            }
        }
    }
}

/// Splits two inputs of up to 16 outputs into `P` bf16 parts, one tile row per part: `low` in the lower 16 bits of the
/// packed elements, `high` in the upper.
#[inline(always)]
pub(super) fn split_bf16_pairs<S: Simd, const P: usize>(
    s: S,
    low: &[f32],
    high: &[f32],
    mut parts: [&mut TileRow; P],
) {
    for start in (0..TILE_ROWS).step_by(S::LANES) {
        let mut remainder = [s.load_at(low, start, 0.0), s.load_at(high, start, 0.0)];
        for (i, part) in parts.iter_mut().enumerate() {
            // SAFETY: `part` holds 16 u32, and `start` is a multiple of `LANES` below 16.
            let [low, high] =
                unsafe { s.store_bf16_pairs(part.as_mut_ptr().add(start), remainder[0], remainder[1]) };
            if i + 1 < P {
                remainder = [s.sub(remainder[0], low), s.sub(remainder[1], high)];
            }
        }
    }
}

/// Quantises a group of up to 64 values to i8 and returns its scale. Elements past the last value are 0. With `adds_in_i16` the integers
/// keep to [`MAX_QUAD_SUM`].
#[inline(always)]
pub(super) fn quantize_i8<S: Simd>(s: S, x: &[f32], adds_in_i16: bool, row: &mut TileRow) -> f32 {
    const MAX: f32 = i8::MAX as f32;
    let mut max = max_magnitude(s, x);
    if adds_in_i16 && max.is_finite() {
        max = max.max(max_quad_sum(x) * (MAX / MAX_QUAD_SUM));
    }
    let (scale, factor) = int8_scale(max, MAX);
    for start in (0..TILE_ROW_BYTES).step_by(S::LANES) {
        let x = s.mul(s.load_at(x, start, 0.0), s.splat(factor));
        // SAFETY: `row` holds 64 bytes, and `start` is a multiple of `LANES` below 64, so `LANES` bytes can be written
        // at `start`.
        unsafe { s.store_i8(row.as_mut_ptr().cast::<i8>().add(start), x) };
    }
    scale
}

/// Maximum sum of the values of one sign among four that [`MAX_QUAD_SUM`] is about.
#[inline(always)]
fn max_quad_sum(x: &[f32]) -> f32 {
    let mut group = [0.0; TILE_ROW_BYTES];
    group[..x.len()].copy_from_slice(x);
    let mut max = [0f32; 2];
    for eight in group.as_chunks::<8>().0 {
        for sign in [1.0, -1.0] {
            let mut sums = [0.0; 4];
            for i in 0..4 {
                sums[i] = (sign * eight[i]).max(0.0) + (sign * eight[i + 4]).max(0.0);
            }
            max[0] = max[0].max(sums[0] + sums[1]);
            max[1] = max[1].max(sums[2] + sums[3]);
        }
    }
    max[0].max(max[1])
}

/// Maximum magnitude of the values; NaN if one of them is NaN.
#[inline(always)]
pub(super) fn max_magnitude<S: Simd>(s: S, x: &[f32]) -> f32 {
    let [a, b, c, d] = fold!(s, x, 0.0, 0.0, |max, x| s.max_magnitude(max, x));
    s.reduce_max_magnitude(s.max_magnitude(s.max_magnitude(a, b), s.max_magnitude(c, d)))
}

/// The minimum of 0 and the values, and half the range of both, which is NaN if a value is NaN or infinite.
#[inline(always)]
pub(super) fn minimum_and_half_range<S: Simd>(s: S, x: &[f32]) -> (f32, f32) {
    let (mut min, mut max, mut zero) = (s.splat(0.0), s.splat(0.0), s.splat(0.0));
    for start in (0..x.len()).step_by(S::LANES) {
        let x = s.load_at(x, start, 0.0);
        (min, max) = (s.min(min, x), s.max(max, x));
        // 0 times a value that is not finite is NaN.
        zero = s.fma(x, s.splat(0.0), zero);
    }
    let min = -s.reduce_max(s.sub(s.splat(0.0), min));
    // The range itself could overflow.
    (min, 0.5 * s.reduce_max(max) - 0.5 * min + s.reduce_sum(zero))
}

/// The scale of a group with the maximum magnitude `max`, and its reciprocal factor: `x ≈ scale · round(factor · x)` with `|factor · x| ≤
/// limit`. A NaN or infinite maximum makes the scale NaN.
#[inline(always)]
pub(super) fn int8_scale(max: f32, limit: f32) -> (f32, f32) {
    match max {
        // The factor of a smaller maximum could overflow.
        max if max < 1e-30 => (0.0, 0.0),
        max if max.is_finite() => (max / limit, limit / max),
        _ => (f32::NAN, 0.0),
    }
}
