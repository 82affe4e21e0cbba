//! How weights are laid out in panels.

use half::bf16;

use super::{Compute, GROUP, Layout};
use crate::kernels::isa::Kernel;
use crate::kernels::simd::{Simd, fold};

/// What is packed: a matrix whose rows lie `stride` apart. They are the outputs, or, turned, the inputs.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// From the first row on.
    pub x: &'a [f32],
    /// From the beginning of a row to that of the next.
    pub stride: usize,
    /// Whether it is `(inputs, outputs)`.
    pub turned: bool,
}

/// Packs the outputs of one panel.
pub(super) struct Pack<'a> {
    pub(super) layout: Layout,
    pub(super) compute: Compute,
    pub(super) from: Source<'a>,
    pub(super) to: &'a mut [u32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layout { width, inputs, .. } = self.layout;
        let Source { x, stride, turned } = self.from;
        let to = self.to;
        // The last row ends with the panel.
        let columns = if turned { x.len() - (inputs - 1) * stride } else { 0 };
        let bf16 = self.compute == Compute::Bf16;
        let word = |x: f32| if bf16 { bf16_bits(x) << 16 } else { x.to_bits() };
        match (self.compute, turned) {
            (Compute::Bf16, false) if S::FAST_BF16 => {
                for (column, row) in x.chunks(stride).enumerate() {
                    for (to, pair) in to.chunks_exact_mut(width).zip(row[..inputs].chunks(2)) {
                        to[column] =
                            bf16_bits(pair[0]) | bf16_bits(pair.get(1).copied().unwrap_or(0.0)) << 16;
                    }
                }
            }
            (Compute::Bf16, true) if S::FAST_BF16 => {
                let mut rows = x.chunks(stride).map(|row| &row[..columns]);
                for to in to.chunks_exact_mut(width).take(inputs.div_ceil(2)) {
                    let (Some(first), second) = (rows.next(), rows.next()) else { break };
                    for (i, (to, x)) in to.iter_mut().zip(first).enumerate() {
                        *to = bf16_bits(*x) | bf16_bits(second.map_or(0.0, |row| row[i])) << 16;
                    }
                }
            }
            (Compute::F32 | Compute::Bf16, false) => {
                // A line of every row at a time, which stay in the cache while they are turned.
                let columns = x.len().div_ceil(stride);
                assert!((columns - 1) * stride + inputs <= x.len() && columns <= width, "rows are whole");
                for first in (0..inputs).step_by(16) {
                    for i in first..inputs.min(first + 16) {
                        let to = &mut to[i * width..][..columns];
                        for (column, to) in to.iter_mut().enumerate() {
                            // SAFETY: it is in one of the rows, which are whole.
                            *to = word(unsafe { *x.get_unchecked(column * stride + i) });
                        }
                    }
                }
            }
            (Compute::F32 | Compute::Bf16, true) => {
                for (to, row) in to.chunks_exact_mut(width).zip(x.chunks(stride)) {
                    for (to, x) in to.iter_mut().zip(&row[..columns]) {
                        *to = word(*x);
                    }
                }
            }
            (Compute::Int8, false) => {
                let words = GROUP / S::BYTES_PER_WORD;
                let bits = u32::BITS as usize / S::BYTES_PER_WORD;
                for (column, row) in x.chunks(stride).enumerate() {
                    let groups = to.chunks_exact_mut((2 + words) * width);
                    for (to, group) in groups.zip(row[..inputs].chunks(GROUP)) {
                        let (scale, factor) = int8_scale(s, group);
                        to[column] = scale.to_bits();
                        let mut sum = 0;
                        let parts =
                            to[2 * width..].chunks_exact_mut(width).zip(group.chunks(S::BYTES_PER_WORD));
                        for (to, part) in parts {
                            let mut word = 0;
                            for (i, x) in part.iter().enumerate() {
                                let x = (x * factor).round_ties_even() as i32;
                                sum += x;
                                word |= (x as u32 & (u32::MAX >> (32 - bits))) << (i * bits);
                            }
                            to[column] = word;
                        }
                        // What is too large about the left operands comes off beforehand.
                        to[width + column] = (-S::INT8_OFFSET * sum) as u32;
                    }
                }
            }
            (Compute::Int8, true) => unreachable!("groups run along the rows that are packed"),
        }
    }
}

/// A number as bf16, in the lower half of a word.
fn bf16_bits(x: f32) -> u32 {
    bf16::from_f32(x).to_bits().into()
}

/// The scale of a group, and what its numbers are multiplied by to become whole. Numbers that are NaN or infinite make
/// the scale NaN.
#[inline(always)]
pub(super) fn int8_scale<S: Simd>(s: S, group: &[f32]) -> (f32, f32) {
    let [a, b, c, d] = fold!(s, group, 0.0, 0.0, |largest, x| s.max_magnitude(largest, x));
    let largest = s.max_magnitude_lanes(s.max_magnitude(s.max_magnitude(a, b), s.max_magnitude(c, d)));
    match largest {
        // The factor of anything smaller might not fit.
        largest if largest < 1e-30 => (0.0, 0.0),
        largest if largest.is_finite() => (largest / 127.0, 127.0 / largest),
        _ => (f32::NAN, 0.0),
    }
}
