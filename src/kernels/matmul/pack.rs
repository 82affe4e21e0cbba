//! How weights are laid out in panels.

use half::bf16;

use super::format::{Format, Layout};
use super::lines::{BF16S, Line, MAX_PARTS, bf16_lines, int8_line};
use super::{GROUP, tiles};
use crate::kernels::isa::Kernel;
use crate::kernels::simd::Simd;
use crate::kernels::tiles::ROWS;

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
    pub(super) from: Source<'a>,
    pub(super) to: &'a mut [u32],
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Layout { format, width, inputs, .. } = self.layout;
        let Source { x, stride, turned } = self.from;
        let to = self.to;
        // The last row ends with the panel.
        let columns = if turned { x.len() - (inputs - 1) * stride } else { 0 };
        match (format, turned) {
            (Format::Bf16Tiles { parts: 1 }, _) => bf16_tiles::<S, 1>(s, self.layout, self.from, to),
            (Format::Bf16Tiles { parts: 2 }, _) => bf16_tiles::<S, 2>(s, self.layout, self.from, to),
            (Format::Bf16Tiles { .. }, _) => bf16_tiles::<S, MAX_PARTS>(s, self.layout, self.from, to),
            (Format::Int8Tiles, false) => int8_tiles(s, self.layout, self.from, to),
            (Format::Bf16, false) => bf16_words(s, self.layout, self.from, to),
            (Format::Bf16, true) => {
                let mut rows = x.chunks(stride).map(|row| &row[..columns]);
                for to in to.chunks_exact_mut(width).take(inputs.div_ceil(2)) {
                    let (low, high) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
                    for start in (0..width).step_by(S::LANES) {
                        let (low, high) = (s.load_at(low, start, 0.0), s.load_at(high, start, 0.0));
                        // SAFETY: `to` is valid for writes of `width` words, a whole number of registers.
                        unsafe { s.store_bf16_pairs(to.as_mut_ptr().add(start), low, high) };
                    }
                }
            }
            (Format::F32 { rounded }, false) => f32_words(s, self.layout, self.from, rounded, to),
            (Format::F32 { rounded }, true) => {
                for (to, row) in to.chunks_exact_mut(width).zip(x.chunks(stride)) {
                    for (to, x) in to.iter_mut().zip(&row[..columns]) {
                        *to = if rounded { bf16_bits(*x) << 16 } else { x.to_bits() };
                    }
                }
            }
            (Format::Int8, false) => int8_words(s, self.layout, self.from, to),
            (Format::Int8 | Format::Int8Tiles, true) => {
                unreachable!("groups run along the rows that are packed")
            }
        }
    }
}

/// A number as bf16, in the lower half of a word.
fn bf16_bits(x: f32) -> u32 {
    bf16::from_f32(x).to_bits().into()
}

/// One line of inputs of each of 16 outputs; where there are fewer outputs, the last lines are zero.
type Lines = [Line; 16];

/// Writes `words` words of each of 16 outputs, the first of which is column `column` of the panel: word `i` of a line goes to row `i` of
/// `to`, which has rows of `width` words.
#[inline(always)]
fn write_columns<S: Simd>(
    s: S,
    lines: &mut Lines,
    words: usize,
    column: usize,
    width: usize,
    to: &mut [u32],
) {
    s.transpose_words(lines);
    let count = (width - column).min(16);
    for (line, to) in lines.iter().zip(to.chunks_exact_mut(width)).take(words) {
        to[column..][..count].copy_from_slice(&line[..count]);
    }
}

/// Packs a panel of f32, rounded to bf16 or as they are.
#[inline(always)]
fn f32_words<S: Simd>(s: S, layout: Layout, from: Source, rounded: bool, to: &mut [u32]) {
    let Layout { width, inputs, .. } = layout;
    let Source { x, stride, .. } = from;
    for column in (0..width).step_by(16) {
        for first in (0..inputs).step_by(16) {
            let mut lines: Lines = [[0; 16]; 16];
            let words = (inputs - first).min(16);
            for (row, line) in x.chunks(stride).skip(column).zip(&mut lines) {
                let row = &row[first..first + words];
                for start in (0..16).step_by(S::LANES) {
                    let x = s.load_at(row, start, 0.0);
                    let x = if rounded { s.round_bf16(x) } else { x };
                    // SAFETY: a line is valid for writes of 16 words, a whole number of registers, and a word may be an f32.
                    unsafe { s.store(line.as_mut_ptr().cast::<f32>().add(start), x) };
                }
            }
            write_columns(s, &mut lines, words, column, width, &mut to[first * width..]);
        }
    }
}

/// Packs a panel of bf16, two neighbouring inputs a word.
#[inline(always)]
fn bf16_words<S: Simd>(s: S, layout: Layout, from: Source, to: &mut [u32]) {
    let Layout { width, inputs, .. } = layout;
    let Source { x, stride, .. } = from;
    for column in (0..width).step_by(16) {
        for first in (0..inputs).step_by(BF16S) {
            let mut lines: Lines = [[0; 16]; 16];
            let count = (inputs - first).min(BF16S);
            for (row, line) in x.chunks(stride).skip(column).zip(&mut lines) {
                bf16_lines(s, &row[first..first + count], [line]);
            }
            write_columns(s, &mut lines, count.div_ceil(2), column, width, &mut to[first / 2 * width..]);
        }
    }
}

/// Packs a panel of 8-bit integers: for every group the scales of its outputs, what their accumulators begin with, and their words.
#[inline(always)]
fn int8_words<S: Simd>(s: S, layout: Layout, from: Source, to: &mut [u32]) {
    let Layout { width, inputs, .. } = layout;
    let Source { x, stride, .. } = from;
    let words = GROUP / S::BYTES_PER_WORD;
    for (group, to) in to.chunks_exact_mut((2 + words) * width).enumerate() {
        let inputs = group * GROUP..inputs.min((group + 1) * GROUP);
        let (scales, to) = to.split_at_mut(width);
        let (begins, to) = to.split_at_mut(width);
        for column in (0..width).step_by(16) {
            let mut bytes: Lines = [[0; 16]; 16];
            let rows = x.chunks(stride).skip(column).take((width - column).min(16));
            for (i, (row, line)) in rows.zip(&mut bytes).enumerate() {
                scales[column + i] = int8_line(s, &row[inputs.clone()], line).to_bits();
                let sum: i32 =
                    line.map(u32::to_ne_bytes).as_flattened().iter().map(|x| i32::from(*x as i8)).sum();
                // What is too large about the left operands comes off beforehand.
                begins[column + i] = (-S::INT8_OFFSET * sum) as u32;
            }
            if S::BYTES_PER_WORD == 4 {
                write_columns(s, &mut bytes, words, column, width, to);
                continue;
            }
            for half in 0..2 {
                let mut lines = bytes.map(|line| {
                    std::array::from_fn(|i| {
                        let [a, b, c, d] =
                            line[half * 8 + i / 2].to_le_bytes().map(|x| i16::from(x as i8) as u16);
                        let (low, high) = if i % 2 == 0 { (a, b) } else { (c, d) };
                        u32::from(low) | u32::from(high) << 16
                    })
                });
                write_columns(s, &mut lines, 16, column, width, &mut to[half * 16 * width..]);
            }
        }
    }
}

/// Packs a panel of tiles of bf16: for every 32 inputs and every part the two tiles of the panel. Row `r` of a tile has inputs `2 r` and
/// `2 r + 1` of its 16 outputs.
#[inline(always)]
fn bf16_tiles<S: Simd, const P: usize>(s: S, layout: Layout, from: Source, to: &mut [u32]) {
    let Layout { inputs, .. } = layout;
    let Source { x, stride, turned } = from;
    let columns = if turned { x.len() - (inputs - 1) * stride } else { x.len().div_ceil(stride) };
    let (tiles, _) = to.as_chunks_mut::<{ 16 * ROWS }>();
    for (step, tiles) in tiles.chunks_exact_mut(P * tiles::TILES).enumerate() {
        let first = step * BF16S;
        for tile in 0..tiles::TILES {
            let mut parts = [[[0; 16]; ROWS]; P];
            let outputs = tile * ROWS..columns.clamp(tile * ROWS, (tile + 1) * ROWS);
            if turned {
                for pair in 0..BF16S / 2 {
                    let row = |i: usize| match i < inputs && !outputs.is_empty() {
                        true => &x[i * stride..][..columns][outputs.clone()],
                        false => &[],
                    };
                    let (low, high) = (row(first + 2 * pair), row(first + 2 * pair + 1));
                    for start in (0..ROWS).step_by(S::LANES) {
                        let mut rest = [s.load_at(low, start, 0.0), s.load_at(high, start, 0.0)];
                        for part in &mut parts {
                            // SAFETY: a row of a part is valid for writes of 16 words, and `start` is a whole number of registers.
                            unsafe {
                                s.store_bf16_pairs(part[pair].as_mut_ptr().add(start), rest[0], rest[1])
                            };
                            rest = [
                                s.sub(rest[0], s.round_bf16(rest[0])),
                                s.sub(rest[1], s.round_bf16(rest[1])),
                            ];
                        }
                    }
                }
            } else {
                for output in outputs {
                    let row = &x[output * stride..][..inputs];
                    let lines = parts.each_mut().map(|part| &mut part[output - tile * ROWS]);
                    bf16_lines(s, &row[first..inputs.min(first + BF16S)], lines);
                }
                for part in &mut parts {
                    s.transpose_words(part);
                }
            }
            for (part, words) in parts.iter().enumerate() {
                tiles[part * tiles::TILES + tile].copy_from_slice(words.as_flattened());
            }
        }
    }
}

/// Packs a panel of tiles of 8-bit integers: for every group the scales of its outputs and its two tiles. Row `r` of a tile has inputs `4 r` to
/// `4 r + 3` of its 16 outputs.
#[inline(always)]
fn int8_tiles<S: Simd>(s: S, layout: Layout, from: Source, to: &mut [u32]) {
    let Source { x, stride, .. } = from;
    let words = tiles::NR + tiles::TILES * 16 * ROWS;
    for (group, to) in to.chunks_exact_mut(words).enumerate() {
        let inputs = group * GROUP..layout.inputs.min((group + 1) * GROUP);
        let (scales, to) = to.split_at_mut(tiles::NR);
        scales.fill(0);
        for (tile, to) in to.chunks_exact_mut(16 * ROWS).enumerate() {
            let mut lines: [Line; ROWS] = [[0; 16]; ROWS];
            let rows = x.chunks(stride).skip(tile * ROWS);
            let scales = &mut scales[tile * ROWS..];
            for ((row, line), scale) in rows.zip(&mut lines).zip(scales) {
                *scale = int8_line(s, &row[inputs.clone()], line).to_bits();
            }
            s.transpose_words(&mut lines);
            to.copy_from_slice(lines.as_flattened());
        }
    }
}
