//! Lines: the 64 bytes of a row that one row of a tile takes.

use super::rows::int8_scale;
use crate::kernels::simd::Simd;
use crate::kernels::tiles::ROW_BYTES;

/// A line, as words.
pub(super) type Line = [u32; ROW_BYTES / 4];
/// bf16 of a line.
pub(super) const BF16S: usize = ROW_BYTES / 2;

/// The most bf16 parts of a value.
pub(super) const MAX_PARTS: usize = 3;

/// Splits up to 32 values into `P` bf16 parts, a line each: the first is the value rounded, the next what that leaves, rounded, and so on.
/// Past the last value are zeros.
#[inline(always)]
pub(super) fn bf16_lines<S: Simd, const P: usize>(s: S, x: &[f32], mut lines: [&mut Line; P]) {
    for start in (0..BF16S).step_by(S::LANES) {
        let mut rest = s.load_at(x, start, 0.0);
        for (part, line) in lines.iter_mut().enumerate() {
            // SAFETY: a line is valid for writes of 32 bf16, and `start` is a whole number of registers.
            unsafe { s.store_bf16(line.as_mut_ptr().cast::<u16>().add(start), rest) };
            if part + 1 < P {
                rest = s.sub(rest, s.round_bf16(rest));
            }
        }
    }
}

/// Brings a group of up to 64 values to integers; returns their scale. Past the last value are zeros.
#[inline(always)]
pub(super) fn int8_line<S: Simd>(s: S, x: &[f32], line: &mut Line) -> f32 {
    let (scale, factor) = int8_scale(s, x);
    for start in (0..ROW_BYTES).step_by(S::LANES) {
        let x = s.mul(s.load_at(x, start, 0.0), s.splat(factor));
        // SAFETY: a line is valid for writes of 64 bytes, and `start` is a whole number of registers.
        unsafe { s.store_i8(line.as_mut_ptr().cast::<i8>().add(start), x) };
    }
    scale
}
