//! Left operands: rows of words.

use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use super::format::{Format, Layout};
use super::lines::{BF16S, MAX_PARTS, bf16_lines, int8_line};
use super::{GROUP, PackedMatrix};
use crate::kernels::isa::Kernel;
use crate::kernels::simd::{MAX_LANES, Simd, fold};
use crate::kernels::tiles::ROWS;

/// Rows of the left operand, as words. For tiles they lie in groups of 16, tile after tile: a tile of the first inputs of 16 rows (and for bf16
/// of their first part, then of the next), then those of the next inputs. Loads from rows would miss L1 16 times a tile.
#[derive(Debug, Clone, Copy)]
pub struct Rows<'a> {
    pub(super) words: &'a [u32],
    /// From the beginning of a row to that of the next.
    pub(super) stride: usize,
    pub(super) count: usize,
    /// For every row those of its groups; none but for int8.
    pub(super) scales: &'a [f32],
    /// Scales of a row.
    pub(super) groups: usize,
}

impl<'a> Rows<'a> {
    /// Rows of f32: `count` of them, whose beginnings lie `stride` apart in `x`.
    fn f32(x: &'a [f32], stride: usize, count: usize) -> Self {
        // SAFETY: a word has the size and the alignment of an f32, and takes any bits.
        let words = unsafe { slice::from_raw_parts(x.as_ptr().cast(), x.len()) };
        Rows { words, stride, count, scales: &[], groups: 0 }
    }

    /// How many.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Some of them; over tiles a part begins with a multiple of 16.
    pub fn part(&self, rows: Range<usize>) -> Self {
        Rows {
            words: &self.words[rows.start * self.stride..],
            count: rows.len(),
            scales: &self.scales[rows.start * self.groups..],
            ..*self
        }
    }
}

/// Rows that were brought to another type than f32; the memory is used again.
#[derive(Debug, Default)]
pub struct Converted {
    /// Lines of 64 bytes, so that those of tiles are aligned.
    lines: Vec<super::Line>,
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
        let (isa, layout) = (weights.isa, weights.layout);
        if matches!(layout.format, Format::F32 { .. }) || count == 0 {
            return Rows { groups: layout.groups(), ..Rows::f32(x, stride, count) };
        }
        let (row, groups) = (layout.row, layout.groups());
        let whole = layout.format.whole_rows(count);
        let lines = (whole * row).div_ceil(16);
        if self.lines.len() < lines {
            self.lines.resize(lines, super::Line([0; 16]));
        }
        if self.scales.len() < whole * groups {
            self.scales.resize(whole * groups, 0.0);
        }
        let words = &mut super::words_mut(&mut self.lines)[..whole * row];
        let convert = |task: usize, words: &mut [u32], scales: &mut [f32]| {
            let x = &x[task * ROWS_PER_TASK * stride..];
            let count = ROWS_PER_TASK.min(count - task * ROWS_PER_TASK);
            isa.run(Convert { layout, x, stride, count, words, scales });
        };
        if count <= ROWS_PER_TASK {
            convert(0, words, &mut self.scales[..count * groups]);
        } else if groups == 0 {
            let tasks = words.par_chunks_mut(ROWS_PER_TASK * row).enumerate();
            tasks.for_each(|(task, words)| convert(task, words, &mut []));
        } else {
            words
                .par_chunks_mut(ROWS_PER_TASK * row)
                .zip(self.scales[..count * groups].par_chunks_mut(ROWS_PER_TASK * groups))
                .enumerate()
                .for_each(|(task, (words, scales))| convert(task, words, scales));
        }
        let words = &super::words(&self.lines)[..whole * row];
        Rows { words, stride: row, count, scales: &self.scales[..whole * groups], groups }
    }
}

struct Convert<'a> {
    layout: Layout,
    x: &'a [f32],
    stride: usize,
    count: usize,
    words: &'a mut [u32],
    scales: &'a mut [f32],
}

impl Kernel for Convert<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layout { format, row, inputs, .. } = self.layout;
        let groups = inputs.div_ceil(GROUP);
        // Of a row on tiles every line is in another tile.
        let rows_together = format.whole_rows(1);
        for i in 0..self.count {
            let words = &mut self.words[i / rows_together * rows_together * row..][..rows_together * row];
            let x = &self.x[i * self.stride..][..inputs];
            match format {
                Format::F32 { .. } => unreachable!("rows of f32 stay where they are"),
                Format::Bf16Tiles { parts: 1 } => bf16_row::<S, 1>(s, x, i % ROWS, words),
                Format::Bf16Tiles { parts: 2 } => bf16_row::<S, 2>(s, x, i % ROWS, words),
                Format::Bf16Tiles { .. } => bf16_row::<S, MAX_PARTS>(s, x, i % ROWS, words),
                Format::Int8Tiles => {
                    let (lines, _) = words.as_chunks_mut::<16>();
                    let lines = lines.iter_mut().skip(i % ROWS).step_by(ROWS);
                    let scales = &mut self.scales[i * groups..][..groups];
                    for ((group, line), scale) in x.chunks(GROUP).zip(lines).zip(scales) {
                        *scale = int8_line(s, group, line);
                    }
                }
                Format::Bf16 => {
                    for start in (0..inputs).step_by(S::LANES) {
                        let (x, words) = (s.load_at(x, start, 0.0), &mut words[start / 2..]);
                        if let Some(words) = words.get_mut(..S::LANES / 2) {
                            // SAFETY: the words are valid for writes of a register's values, two bytes each.
                            unsafe { s.store_bf16(words.as_mut_ptr().cast(), x) };
                        } else {
                            let mut last = [0u32; MAX_LANES / 2];
                            // SAFETY: `last` is valid for writes of any register's values, two bytes each.
                            unsafe { s.store_bf16(last.as_mut_ptr().cast(), x) };
                            words.copy_from_slice(&last[..words.len()]);
                        }
                    }
                }
                Format::Int8 => {
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
                            // SAFETY: the words are valid for writes of a register's values, 4 / `BYTES_PER_WORD` bytes each.
                            unsafe { s.store_int8(words.as_mut_ptr().cast(), x) };
                        }
                    }
                }
            }
        }
    }
}

/// The lines of row number `i` of 16, each in a tile of its own.
#[inline(always)]
fn bf16_row<S: Simd, const P: usize>(s: S, x: &[f32], i: usize, words: &mut [u32]) {
    let (lines, _) = words.as_chunks_mut::<16>();
    for (x, tiles) in x.chunks(BF16S).zip(lines.chunks_exact_mut(P * ROWS)) {
        let mut tiles = tiles.chunks_exact_mut(ROWS);
        let lines = std::array::from_fn(|_| &mut tiles.next().expect("a step has a tile for every part")[i]);
        bf16_lines::<S, P>(s, x, lines);
    }
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
