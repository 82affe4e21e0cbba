//! Left operands: rows of words.

use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use super::pack::int8_scale;
use super::{Compute, GROUP, Layout, PackedMatrix};
use crate::kernels::isa::Kernel;
use crate::kernels::simd::{MAX_LANES, Simd};

/// Rows of the left operand, as words.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub(super) words: &'a [u32],
    /// From the beginning of a row to that of the next.
    pub(super) stride: usize,
    pub(super) count: usize,
    /// For every row those of its groups; none but for int8.
    pub(super) scales: &'a [f32],
}

impl<'a> Rows<'a> {
    /// Rows of f32: `count` of them, whose beginnings lie `stride` apart in `x`.
    pub fn f32(x: &'a [f32], stride: usize, count: usize) -> Self {
        // SAFETY: a word has the size and the alignment of an f32, and takes any bits.
        let words = unsafe { slice::from_raw_parts(x.as_ptr().cast(), x.len()) };
        Rows { words, stride, count, scales: &[] }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Some of them.
    pub fn part(&self, rows: Range<usize>) -> Self {
        let scales = self.scales.len() / self.count.max(1);
        Rows {
            words: &self.words[rows.start * self.stride..],
            stride: self.stride,
            count: rows.len(),
            scales: &self.scales[rows.start * scales..rows.end * scales],
        }
    }
}

/// Rows that were brought to another type than f32; the memory is used again.
#[derive(Debug, Default)]
pub struct Converted {
    words: Vec<u32>,
    scales: Vec<f32>,
}

/// Rows that one task converts.
const ROWS_PER_TASK: usize = 32;

impl Converted {
    /// Brings `count` rows of `x`, whose beginnings lie `stride` apart, to the type that a matrix is to be multiplied with.
    /// Rows of f32 stay where they are.
    pub fn rows<'a>(
        &'a mut self,
        weights: &PackedMatrix,
        x: &'a [f32],
        stride: usize,
        count: usize,
    ) -> Rows<'a> {
        let (isa, compute, layout) = (weights.isa, weights.compute, weights.layout);
        if compute == Compute::F32 {
            return Rows::f32(x, stride, count);
        }
        let (row, scales) = (layout.row, layout.scales(compute));
        self.words.resize(count * row, 0);
        self.scales.resize(count * scales, 0.0);
        let convert = |task: usize, words: &mut [u32], scales: &mut [f32]| {
            let x = &x[task * ROWS_PER_TASK * stride..];
            isa.run(Convert { layout, compute, x, stride, words, scales });
        };
        let words = self.words.par_chunks_mut(ROWS_PER_TASK * row).enumerate();
        match compute {
            Compute::Int8 => words
                .zip(self.scales.par_chunks_mut(ROWS_PER_TASK * scales))
                .for_each(|((task, words), scales)| convert(task, words, scales)),
            _ => words.for_each(|(task, words)| convert(task, words, &mut [])),
        }
        Rows { words: &self.words, stride: row, count, scales: &self.scales }
    }
}

struct Convert<'a> {
    layout: Layout,
    compute: Compute,
    x: &'a [f32],
    stride: usize,
    words: &'a mut [u32],
    scales: &'a mut [f32],
}

impl Kernel for Convert<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layout { row, inputs, .. } = self.layout;
        let groups = inputs.div_ceil(GROUP);
        for (i, words) in self.words.chunks_exact_mut(row).enumerate() {
            let x = &self.x[i * self.stride..][..inputs];
            match self.compute {
                Compute::F32 => unreachable!("rows of f32 stay where they are"),
                Compute::Bf16 => {
                    for start in (0..inputs).step_by(S::LANES) {
                        let mut halves = [0u16; MAX_LANES];
                        // SAFETY: there is room for the halves of any register.
                        unsafe { s.store_bf16(halves.as_mut_ptr(), s.load_at(x, start, 0.0)) };
                        let halves = &halves[..S::LANES];
                        if S::FAST_BF16 {
                            for (word, pair) in words[start / 2..].iter_mut().zip(halves.chunks_exact(2)) {
                                *word = u32::from(pair[0]) | u32::from(pair[1]) << 16;
                            }
                        } else {
                            for (word, half) in words[start..].iter_mut().zip(halves) {
                                *word = u32::from(*half) << 16;
                            }
                        }
                    }
                }
                Compute::Int8 => {
                    let scales = &mut self.scales[i * groups..][..groups];
                    let words = words.chunks_exact_mut(GROUP / S::BYTES_PER_WORD);
                    for ((group, words), to) in x.chunks(GROUP).zip(words).zip(scales) {
                        let (scale, factor) = int8_scale(s, group);
                        *to = scale;
                        // What lies past the last input meets weights of 0.
                        for start in (0..group.len()).step_by(S::LANES) {
                            let x = s.mul(s.load_at(group, start, 0.0), s.splat(factor));
                            let words =
                                &mut words[start / S::BYTES_PER_WORD..][..S::LANES / S::BYTES_PER_WORD];
                            // SAFETY: the words have room for a register's numbers.
                            unsafe { s.store_int8(words.as_mut_ptr().cast(), x) };
                        }
                    }
                }
            }
        }
    }
}
