//! How weights are laid out in panels.

use half::bf16;

use super::format::{Format, Layout};
use super::lines::{BF16S, Line, MAX_PARTS, bf16_lines, int8_line};
use super::rows::int8_scale;
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
        let bf16 = format == Format::F32 { rounded: true };
        let word = |x: f32| if bf16 { bf16_bits(x) << 16 } else { x.to_bits() };
        match (format, turned) {
            (Format::Bf16Tiles { parts: 1 }, _) => bf16_tiles::<S, 1>(s, self.layout, self.from, to),
            (Format::Bf16Tiles { parts: 2 }, _) => bf16_tiles::<S, 2>(s, self.layout, self.from, to),
            (Format::Bf16Tiles { .. }, _) => bf16_tiles::<S, MAX_PARTS>(s, self.layout, self.from, to),
            (Format::Int8Tiles, false) => int8_tiles(s, self.layout, self.from, to),
            (Format::Bf16, false) => {
                for (column, row) in x.chunks(stride).enumerate() {
                    for (to, pair) in to.chunks_exact_mut(width).zip(row[..inputs].chunks(2)) {
                        to[column] =
                            bf16_bits(pair[0]) | bf16_bits(pair.get(1).copied().unwrap_or(0.0)) << 16;
                    }
                }
            }
            (Format::Bf16, true) => {
                let mut rows = x.chunks(stride).map(|row| &row[..columns]);
                for to in to.chunks_exact_mut(width).take(inputs.div_ceil(2)) {
                    let (Some(first), second) = (rows.next(), rows.next()) else { break };
                    for (i, (to, x)) in to.iter_mut().zip(first).enumerate() {
                        *to = bf16_bits(*x) | bf16_bits(second.map_or(0.0, |row| row[i])) << 16;
                    }
                }
            }
            (Format::F32 { .. }, false) => {
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
            (Format::F32 { .. }, true) => {
                for (to, row) in to.chunks_exact_mut(width).zip(x.chunks(stride)) {
                    for (to, x) in to.iter_mut().zip(&row[..columns]) {
                        *to = word(*x);
                    }
                }
            }
            (Format::Int8, false) => {
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
