//! Conversion of f32 values to bf16 parts and to int8, one 64-byte tile row at a time.

use super::blocking::MAX_PARTS;
use crate::simd::{Simd, fold};
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

/// Quantises a group of up to 64 values to i8 and returns its scale. Elements past the last value are 0.
#[inline(always)]
pub(super) fn quantize_i8<S: Simd>(s: S, x: &[f32], row: &mut TileRow) -> f32 {
    let (scale, factor) = int8_scale(s, x);
    for start in (0..TILE_ROW_BYTES).step_by(S::LANES) {
        let x = s.mul(s.load_at(x, start, 0.0), s.splat(factor));
        // SAFETY: `row` holds 64 bytes, and `start` is a multiple of `LANES` below 64, so `LANES` bytes can be written
        // at `start`.
        unsafe { s.store_i8(row.as_mut_ptr().cast::<i8>().add(start), x) };
    }
    scale
}

/// The scale of a group and its reciprocal factor: `x ≈ scale · round(factor · x)` with `|factor · x| ≤ 127`. A NaN or
/// infinite value makes the scale NaN.
#[inline(always)]
pub(super) fn int8_scale<S: Simd>(s: S, group: &[f32]) -> (f32, f32) {
    let [a, b, c, d] = fold!(s, group, 0.0, 0.0, |max, x| s.max_magnitude(max, x));
    let max = s.reduce_max_magnitude(s.max_magnitude(s.max_magnitude(a, b), s.max_magnitude(c, d)));
    match max {
        // The factor of a smaller maximum could overflow.
        max if max < 1e-30 => (0.0, 0.0),
        max if max.is_finite() => (max / 127.0, 127.0 / max),
        _ => (f32::NAN, 0.0),
    }
}
