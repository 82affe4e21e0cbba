//! Conversion of f32 values to bf16 parts and to int8, one 64-byte tile row at a time.

use super::blocking::MAX_PARTS;
use crate::simd::{INT8_PER_LANE, MAX_INT8_GROUP, MAX_LANES, MAX_QUAD_SUM, ROUNDING_SHIFT, Simd};
use crate::tiles::{TILE_ROW_BYTES, TILE_ROWS};

/// A tile row as packed elements.
pub(super) type TileRow = [u32; TILE_ROW_BYTES / 4];
/// bf16 values of a tile row.
pub(super) const BF16_PER_TILE_ROW: usize = TILE_ROW_BYTES / 2;

/// Converts a row to packed elements of two bf16. Whole vectors are stored: `to` has `LANES` elements for
/// every `2 · LANES` values or fewer, and those past the last value are 0.
#[inline(always)]
pub(super) fn bf16_row<S: Simd>(s: S, x: &[f32], to: &mut [u32]) {
    let to = &mut to[..x.len().div_ceil(2 * S::LANES) * S::LANES];
    let whole = x.len() / (2 * S::LANES) * S::LANES;
    for start in (0..whole).step_by(S::LANES) {
        // SAFETY: `x` has `2 · LANES` values from `2 · start` on, and `to` is valid for writes of `LANES`
        // u32, the size of as many pairs of u16.
        unsafe {
            let x = x.as_ptr().add(2 * start);
            let vectors = [s.load(x), s.load(x.add(S::LANES))];
            s.store_bf16_each(to.as_mut_ptr().add(start).cast(), vectors);
        }
    }
    if whole < to.len() {
        let vectors = [s.load_at(x, 2 * whole, 0.0), s.load_at(x, 2 * whole + S::LANES, 0.0)];
        // SAFETY: `to` has `LANES` u32 from `whole` on.
        unsafe { s.store_bf16_each(to.as_mut_ptr().add(whole).cast(), vectors) };
    }
}

/// Splits up to 32 values into `P` bf16 parts, one tile row per part: the first part is the rounded value,
/// each further part the rounded remainder. Elements past the last value are 0.
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
            // SAFETY: `row` holds 32 bf16, and `start` is a multiple of `LANES` below 32, so `LANES` u16 can
            // be written at `start`.
            unsafe { s.store_bf16(row.as_mut_ptr().cast::<u16>().add(start), remainder) };
            if part + 1 < P {
                remainder = s.sub(remainder, s.round_bf16(remainder));
            }
        }
    }
}

/// Splits two inputs of up to 16 outputs into `P` bf16 parts, one tile row per part: `low` in the lower 16
/// bits of the packed elements, `high` in the upper.
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

/// Tile rows of an int8 group.
pub(super) const TILE_ROWS_PER_GROUP: usize = MAX_INT8_GROUP / TILE_ROW_BYTES;

/// An int8 group after its rotation: a value for each input of the group; the rest is unspecified.
pub(super) type RotatedGroup = [f32; MAX_INT8_GROUP];

/// Multiplies a group by the Hadamard matrix of order [`Int8Format::rotation`], whose elements are 1 and −1,
/// and returns the range of the result. Inputs past the last value are 0. The dot product of two rotated
/// groups is that of the groups times the order. Rotating before quantising is what QuaRot does (Ashkboos et
/// al. 2024, <https://arxiv.org/abs/2404.00456>).
///
/// [`Int8Format::rotation`]: crate::simd::Int8Format::rotation
#[inline(always)]
fn rotate<S: Simd>(s: S, x: &[f32], to: &mut RotatedGroup) -> [f32; 2] {
    const { assert!(S::INT8.group.is_multiple_of(S::INT8.rotation * S::LANES)) };
    let part = S::INT8.group / S::INT8.rotation;
    let is_whole = x.len() >= S::INT8.group;
    if !is_whole {
        to[..x.len()].copy_from_slice(x);
        to[x.len()..].fill(0.0);
    }
    let to = to.as_mut_ptr();
    let from = if is_whole { x.as_ptr() } else { to };
    let mut range = [s.splat(0.0); 2];
    for start in (0..part).step_by(S::LANES) {
        let mut vectors = [s.splat(0.0); 8];
        for (i, vector) in vectors.iter_mut().enumerate().take(S::INT8.rotation) {
            // SAFETY: `from` has all values of the group, and `start` is a multiple of `LANES` below `part`,
            // itself a multiple of `LANES`.
            *vector = unsafe { s.load(from.add(i * part + start)) };
        }
        // Not loops: the vectors have to stay in registers.
        macro_rules! sums_and_differences {
            ($($a:literal $b:literal),*) => {
                $((vectors[$a], vectors[$b]) =
                    (s.add(vectors[$a], vectors[$b]), s.sub(vectors[$a], vectors[$b]));)*
            };
        }
        if S::INT8.rotation == 8 {
            sums_and_differences!(0 4, 1 5, 2 6, 3 7, 4 6, 5 7, 4 5, 6 7);
        }
        sums_and_differences!(0 2, 1 3, 0 1, 2 3);
        for (i, vector) in vectors.into_iter().enumerate().take(S::INT8.rotation) {
            range = s.extend_range(range, vector);
            // SAFETY: `to` has place for all values of the group, so for `LANES` here, as above.
            unsafe { s.store(to.add(i * part + start), vector) };
        }
    }
    s.reduce_range(range)
}

/// Quantises a group of weights to i8 and returns its scale. Elements past the group are 0.
#[inline(always)]
pub(super) fn quantize_weights<S: Simd>(s: S, x: &[f32], rows: [&mut TileRow; TILE_ROWS_PER_GROUP]) -> f32 {
    const MAX: f32 = i8::MAX as f32;
    let mut rotated = [0.0; MAX_INT8_GROUP];
    let [min, max] = rotate(s, x, &mut rotated);
    let x = &rotated[..S::INT8.group];
    // Not `max`, which drops NaN.
    let mut max = if min.is_nan() || -min > max { -min } else { max };
    if S::INT8.adds_in_i16 && max.is_finite() {
        max = max.max(max_quad_sum(x) * (MAX / MAX_QUAD_SUM));
    }
    let (scale, factor) = int8_scale(max, MAX);
    for (i, row) in rows.into_iter().enumerate() {
        for start in (0..TILE_ROW_BYTES).step_by(S::LANES) {
            let x = s.mul(s.load_at(x, i * TILE_ROW_BYTES + start, 0.0), s.splat(factor));
            // SAFETY: `row` holds 64 bytes, and `start` is a multiple of `LANES` below 64, so `LANES` bytes
            // can be written at `start`.
            unsafe { s.store_i8(row.as_mut_ptr().cast::<i8>().add(start), x) };
        }
    }
    // Rotating both operands has multiplied their dot product by the order.
    scale / S::INT8.rotation as f32
}

/// What the bytes `u` of a rotated int8 group of `x` stand for: `scale · (u − zero_point)`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct GroupScale {
    pub(super) scale: f32,
    /// An integer of 16 bits, with zeros above.
    pub(super) zero_point: u32,
}

/// Groups that are quantised together: the reduction and the divisions of a group take longer than all its
/// other operations, and those of different groups overlap.
pub(super) const GROUPS_IN_FLIGHT: usize = MAX_LANES;

/// How some int8 groups of `x` become bytes, and what those stand for.
pub(super) struct Quantization {
    factors: [f32; GROUPS_IN_FLIGHT],
    zero_points: [f32; GROUPS_IN_FLIGHT],
    scales: [f32; GROUPS_IN_FLIGHT],
}

impl Quantization {
    /// Rotates at most [`GROUPS_IN_FLIGHT`] groups into `rotated`, whose quantisation uses all steps. A group
    /// with NaN or infinity has a scale of NaN.
    #[inline(always)]
    pub(super) fn of<S: Simd>(s: S, groups: &[&[f32]], rotated: &mut [RotatedGroup]) -> Self {
        let (mut min, mut max) = ([0.0; GROUPS_IN_FLIGHT], [0.0; GROUPS_IN_FLIGHT]);
        for (((min, max), x), rotated) in min.iter_mut().zip(&mut max).zip(groups).zip(rotated) {
            [*min, *max] = rotate(s, x, rotated);
        }
        let [mut factors, mut zero_points, mut scales] = [[0.0; GROUPS_IN_FLIGHT]; 3];
        let [zero, half, limit] = [0.0, 0.5, 0.5 * f32::from(S::INT8.lhs_steps)].map(|x| s.splat(x));
        let (tiny, infinity) = (s.splat(MIN_INT8_MAXIMUM), s.splat(f32::INFINITY));
        let shift = s.splat(ROUNDING_SHIFT);
        for start in (0..GROUPS_IN_FLIGHT).step_by(S::LANES) {
            let (min, max) = (s.load_at(&min, start, 0.0), s.load_at(&max, start, 0.0));
            // The range itself could overflow.
            let half_range = s.sub(s.mul(half, max), s.mul(half, min));
            let scale = s.select_less(half_range, infinity, s.div(half_range, limit), s.splat(f32::NAN));
            let factor = s.select_less(half_range, infinity, s.div(limit, half_range), zero);
            let scale = s.select_less(half_range, tiny, zero, scale);
            let factor = s.select_less(half_range, tiny, zero, factor);
            let zero_point = s.mul(s.sub(zero, min), factor);
            s.store_at(&mut zero_points, start, s.sub(s.add(zero_point, shift), shift));
            s.store_at(&mut factors, start, factor);
            s.store_at(&mut scales, start, scale);
        }
        Quantization { factors, zero_points, scales }
    }

    /// Quantises group `group`, whose rotated values are `x`, to packed elements, and returns its scale.
    #[inline(always)]
    pub(super) fn quantize<S: Simd>(
        &self,
        s: S,
        group: usize,
        x: &RotatedGroup,
        to: &mut [u32],
    ) -> GroupScale {
        let zero_point = self.zero_points[group];
        let x = &x[..S::INT8.group];
        quantize_group(s, x, s.splat(self.factors[group]), s.splat(zero_point), to);
        let integer = zero_point as i16 - i16::from(S::INT8.lhs_offset);
        GroupScale { scale: self.scales[group], zero_point: u32::from(integer.cast_unsigned()) }
    }
}

/// Stores `factor · x + zero_point` as left operands.
#[inline(always)]
fn quantize_group<S: Simd>(s: S, x: &[f32], factor: S::F, zero_point: S::F, to: &mut [u32]) {
    for (x, to) in x.chunks_exact(4 * S::LANES).zip(to.chunks_exact_mut(4 * S::LANES / INT8_PER_LANE)) {
        let mut vectors = [factor; 4];
        for (i, vector) in vectors.iter_mut().enumerate() {
            *vector = s.fma(s.load_at(x, i * S::LANES, 0.0), factor, zero_point);
        }
        // SAFETY: `to` is valid for writes of `4 · LANES / INT8_PER_LANE` u32, the size of `4 · LANES` bytes.
        unsafe { s.store_int8_lhs_four(to.as_mut_ptr().cast(), vectors) };
    }
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

/// A group whose maximum magnitude is smaller is quantised to zeros: the factor could overflow.
const MIN_INT8_MAXIMUM: f32 = 1e-30;

/// The scale of a group of weights with the maximum magnitude `max`, and its reciprocal factor:
/// `x ≈ scale · round(factor · x)` with `|factor · x| ≤ limit`. A NaN or infinite maximum makes the scale
/// NaN.
#[inline(always)]
fn int8_scale(max: f32, limit: f32) -> (f32, f32) {
    match max {
        max if max < MIN_INT8_MAXIMUM => (0.0, 0.0),
        max if max.is_finite() => (max / limit, limit / max),
        _ => (f32::NAN, 0.0),
    }
}
