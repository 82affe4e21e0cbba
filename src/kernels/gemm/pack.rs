//! Packing of weights into panels.

use std::ops::Range;

use super::blocking::{MAX_PARTS, TILE_NR, TILES_PER_PANEL};
use super::convert::{
    BF16_PER_TILE_ROW, TILE_ROWS_PER_GROUP, TileRow, bf16_row, quantize_weights, split_bf16, split_bf16_pairs,
};
use super::layout::{INT8_TILE_GROUP, OperandFormat, PackedLayout};
use crate::isa::{Isa, Kernel, define_runners};
use crate::simd::{INT8_PER_LANE, MAX_INT8_GROUP, Simd};
use crate::tiles::TILE_ROWS;

/// A strided weight matrix to pack: `(outputs, inputs)`, or `(inputs, outputs)` if transposed.
#[derive(Debug, Clone, Copy)]
pub struct MatrixView<'a> {
    /// The values, from the first row on.
    pub data: &'a [f32],
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
    /// Whether rows are inputs: the matrix is `(inputs, outputs)`.
    pub transposed: bool,
}

impl MatrixView<'_> {
    /// The outputs of a panel, of `inputs` inputs.
    pub(super) fn panel(&self, outputs: Range<usize>, inputs: usize) -> Self {
        assert!(self.transposed || self.stride >= inputs || outputs.len() == 1, "rows do not overlap");
        let (start, end) = if self.transposed {
            (outputs.start, (inputs - 1) * self.stride + outputs.end)
        } else {
            (outputs.start * self.stride, (outputs.end - 1) * self.stride + inputs)
        };
        MatrixView { data: &self.data[start..end], ..*self }
    }
}

/// Packs one panel: `from` are its outputs, fewer than NR in the last one.
pub(super) fn pack_panel(isa: Isa, layout: PackedLayout, from: MatrixView, to: &mut [u32]) {
    if layout.format.is_tiles() {
        isa.run(PackPanel::<true> { layout, from, to });
    } else {
        isa.run(PackPanel::<false> { layout, from, to });
    }
}

/// Why weights of an int8 format are not transposed.
const NOT_TRANSPOSED: &str = "int8 groups are packed from rows of consecutive inputs";

/// The kernel of [`pack_panel`], for formats of tiles or for all others.
struct PackPanel<'a, const TILES: bool> {
    layout: PackedLayout,
    from: MatrixView<'a>,
    to: &'a mut [u32],
}

impl<const TILES: bool> Kernel for PackPanel<'_, TILES> {
    type Output = ();

    const TILES_ONLY: bool = TILES;

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackPanel { layout, from, to } = self;
        if TILES {
            return match (layout.format, from.transposed) {
                (OperandFormat::Bf16Tiles { weight_parts: 1, .. }, _) => {
                    pack_bf16_tiles::<S, 1>(s, layout, from, to)
                }
                (OperandFormat::Bf16Tiles { weight_parts: 2, .. }, _) => {
                    pack_bf16_tiles::<S, 2>(s, layout, from, to)
                }
                (OperandFormat::Bf16Tiles { .. }, _) => pack_bf16_tiles::<S, MAX_PARTS>(s, layout, from, to),
                (OperandFormat::Int8Tiles, false) => pack_int8_tiles(s, layout, from, to),
                (OperandFormat::Int8Tiles, true) => unreachable!("{NOT_TRANSPOSED}"),
                (OperandFormat::F32 { .. } | OperandFormat::Bf16 | OperandFormat::Int8, _) => {
                    unreachable!("not a format of tiles")
                }
            };
        }
        match (layout.format, from.transposed) {
            (OperandFormat::Bf16, false) => pack_bf16(s, layout, from, to),
            (OperandFormat::Bf16, true) => pack_bf16_transposed(s, layout, from, to),
            (OperandFormat::F32 { bf16_weights }, _) => pack_f32(s, layout, from, bf16_weights, to),
            (OperandFormat::Int8, false) => pack_int8(s, layout, from, to),
            (OperandFormat::Int8, true) => unreachable!("{NOT_TRANSPOSED}"),
            (OperandFormat::Bf16Tiles { .. } | OperandFormat::Int8Tiles, _) => {
                unreachable!("a format of tiles")
            }
        }
    }
}

/// Outputs of a transposed view: its last row ends with the panel.
fn transposed_outputs(layout: PackedLayout, from: MatrixView) -> usize {
    from.data.len() - (layout.inputs - 1) * from.stride
}

/// Consecutive packed elements of each of 16 outputs. If there are fewer outputs, the last rows are 0.
type SixteenRows = [TileRow; 16];

/// Transposes `rows` and writes `count` packed elements of each output: element `i` of all outputs goes to
/// row `i` of `to`, from column `column` on. `to` has rows of `nr` packed elements.
#[inline(always)]
fn write_transposed<S: Simd>(
    s: S,
    rows: &mut SixteenRows,
    count: usize,
    column: usize,
    nr: usize,
    to: &mut [u32],
) {
    s.transpose_u32(rows);
    let width = (nr - column).min(16);
    for (row, to) in rows.iter().zip(to.chunks_exact_mut(nr)).take(count) {
        to[column..][..width].copy_from_slice(&row[..width]);
    }
}

/// Packs a panel of f32, rounded to bf16 if `bf16_weights`. If there are fewer outputs than columns, the
/// others are arbitrary.
#[inline(always)]
pub(super) fn pack_f32<S: Simd>(
    s: S,
    layout: PackedLayout,
    from: MatrixView,
    bf16_weights: bool,
    to: &mut [u32],
) {
    let PackedLayout { nr, inputs, .. } = layout;
    let MatrixView { data, stride, transposed } = from;
    let to = &mut to[..inputs * nr];
    if transposed {
        let outputs = transposed_outputs(layout, from);
        for (to, row) in to.chunks_exact_mut(nr).zip(data.chunks(stride)) {
            for column in (0..nr).step_by(S::LANES) {
                let x = s.load_at(&row[..outputs], column, 0.0);
                // SAFETY: `to` holds NR u32, the size of NR f32, and `column` is a multiple of `LANES` below
                // NR, itself a multiple of `LANES`.
                unsafe { s.store(to.as_mut_ptr().cast::<f32>().add(column), x) };
            }
        }
    } else {
        let outputs = data.len().div_ceil(stride);
        for column in (0..outputs).step_by(S::LANES) {
            let height = (outputs - column).min(S::LANES);
            let rows = &data[column * stride..][..(height - 1) * stride + inputs];
            let whole = inputs / S::LANES * S::LANES;
            for input in (0..whole).step_by(S::LANES) {
                // SAFETY: f32 has the size of u32, and all bits are valid. There are `LANES` inputs from
                // `input` on in each of `height ≤ LANES` rows, and `to` has NR columns for each of them, of
                // which `LANES` from `column` on.
                unsafe {
                    let to = to.as_mut_ptr().add(input * nr + column);
                    s.interleave(rows.as_ptr().cast::<u32>().add(input), stride, height, to, nr);
                }
            }
            for input in whole..inputs {
                for r in 0..height {
                    to[input * nr + column + r] = rows[r * stride + input].to_bits();
                }
            }
        }
    }
    if bf16_weights {
        for to in to.chunks_exact_mut(S::LANES) {
            // SAFETY: `to` holds `LANES` u32, the size of `LANES` f32, and all bits are valid f32.
            unsafe {
                let x = s.load(to.as_ptr().cast());
                s.store(to.as_mut_ptr().cast(), s.round_bf16(x));
            }
        }
    }
}

/// Packs a panel of bf16, two consecutive inputs per packed element. If there are fewer outputs than columns,
/// the others are arbitrary.
#[inline(always)]
pub(super) fn pack_bf16<S: Simd>(s: S, layout: PackedLayout, from: MatrixView, to: &mut [u32]) {
    let PackedLayout { nr, inputs, .. } = layout;
    let MatrixView { data, stride, .. } = from;
    for column in (0..nr).step_by(16) {
        let outputs = data.len().div_ceil(stride).saturating_sub(column).min(16);
        if outputs == 0 {
            break;
        }
        for first in (0..inputs).step_by(BF16_PER_TILE_ROW) {
            let mut rows: SixteenRows = [[0; 16]; 16];
            let count = (inputs - first).min(BF16_PER_TILE_ROW);
            for (from, row) in data.chunks(stride).skip(column).zip(&mut rows) {
                bf16_row(s, &from[first..first + count], row);
            }
            let to = &mut to[first / 2 * nr..];
            if S::LANES == 16 && count == BF16_PER_TILE_ROW {
                assert!(to.len() >= 16 * nr, "the panel has these K steps");
                // SAFETY: `rows` has 16 = `LANES` elements in each of `outputs` rows, at most 16. `to` has NR
                // columns in each of 16 rows by the assertion, of which 16 from `column` on: NR is a multiple
                // of `LANES`.
                unsafe {
                    let rows = rows.as_flattened().as_ptr();
                    s.interleave(rows, 16, outputs, to.as_mut_ptr().add(column), nr);
                }
            } else {
                write_transposed(s, &mut rows, count.div_ceil(2), column, nr, to);
            }
        }
    }
}

/// [`pack_bf16`] from a transposed view.
#[inline(always)]
pub(super) fn pack_bf16_transposed<S: Simd>(s: S, layout: PackedLayout, from: MatrixView, to: &mut [u32]) {
    let PackedLayout { nr, inputs, .. } = layout;
    let outputs = transposed_outputs(layout, from);
    let mut rows = from.data.chunks(from.stride).map(|row| &row[..outputs]);
    for to in to.chunks_exact_mut(nr).take(inputs.div_ceil(2)) {
        let (low, high) = (rows.next().unwrap_or_default(), rows.next().unwrap_or_default());
        for start in (0..nr).step_by(S::LANES) {
            let (low, high) = (s.load_at(low, start, 0.0), s.load_at(high, start, 0.0));
            // SAFETY: `to` holds NR u32, and `start` is a multiple of `LANES` below NR, itself a multiple of
            // `LANES`.
            unsafe { s.store_bf16_pairs(to.as_mut_ptr().add(start), low, high) };
        }
    }
}

/// The negated sum of a group of weights, which is multiplied with the zero point of the left operands.
fn negated_sum(rows: [&TileRow; TILE_ROWS_PER_GROUP]) -> i32 {
    let sum = |row: &TileRow| -> i32 {
        row.map(u32::to_ne_bytes).as_flattened().iter().map(|x| i32::from(x.cast_signed())).sum()
    };
    -rows.map(sum).iter().sum::<i32>()
}

/// Quantises a group of up to 16 outputs, and writes their scales and [`negated_sum`]s. Tile row `k` of all
/// outputs is in element `k` of the result.
#[inline(always)]
fn quantize_outputs<'a, S: Simd>(
    s: S,
    outputs: impl Iterator<Item = &'a [f32]>,
    scales: &mut [u32],
    sums: &mut [u32],
) -> [SixteenRows; TILE_ROWS_PER_GROUP] {
    let mut bytes: [SixteenRows; TILE_ROWS_PER_GROUP] = [[[0; 16]; 16]; TILE_ROWS_PER_GROUP];
    for (i, output) in outputs.enumerate() {
        scales[i] = quantize_weights(s, output, bytes.each_mut().map(|rows| &mut rows[i])).to_bits();
        sums[i] = negated_sum(bytes.each_ref().map(|rows| &rows[i])).cast_unsigned();
    }
    bytes
}

/// Packs a panel of int8. For every group: the scales of its outputs, the negated sums of their weights, and
/// their packed elements.
#[inline(always)]
fn pack_int8<S: Simd>(s: S, layout: PackedLayout, from: MatrixView, to: &mut [u32]) {
    let PackedLayout { nr, inputs, .. } = layout;
    let MatrixView { data, stride, .. } = from;
    let length = S::INT8.group;
    let elements = length / INT8_PER_LANE;
    for (group, to) in to.chunks_exact_mut((2 + elements) * nr).enumerate() {
        let inputs = group * length..inputs.min((group + 1) * length);
        let (scales, to) = to.split_at_mut(nr);
        let (sums, to) = to.split_at_mut(nr);
        for column in (0..nr).step_by(16) {
            let outputs = data.chunks(stride).skip(column).take((nr - column).min(16));
            let outputs = outputs.map(|output| &output[inputs.clone()]);
            let mut bytes = quantize_outputs(s, outputs, &mut scales[column..], &mut sums[column..]);
            for (rows, to) in bytes.iter_mut().zip(to.chunks_mut(16 * nr)) {
                write_transposed(s, rows, 16, column, nr, to);
            }
        }
    }
}

/// Packs a panel of bf16 tiles: for every 32 inputs and every part the two tiles of the panel. Row `r` of a
/// tile holds inputs `2 r` and `2 r + 1` of its 16 outputs.
#[inline(always)]
fn pack_bf16_tiles<S: Simd, const P: usize>(s: S, layout: PackedLayout, from: MatrixView, to: &mut [u32]) {
    let PackedLayout { inputs, .. } = layout;
    let MatrixView { data, stride, transposed } = from;
    let columns = if transposed { transposed_outputs(layout, from) } else { data.len().div_ceil(stride) };
    let (tiles, _) = to.as_chunks_mut::<{ 16 * TILE_ROWS }>();
    for (step, tiles) in tiles.chunks_exact_mut(P * TILES_PER_PANEL).enumerate() {
        let first = step * BF16_PER_TILE_ROW;
        for tile in 0..TILES_PER_PANEL {
            let mut parts = [[[0; 16]; TILE_ROWS]; P];
            let outputs = tile * TILE_ROWS..columns.clamp(tile * TILE_ROWS, (tile + 1) * TILE_ROWS);
            if transposed {
                for pair in 0..BF16_PER_TILE_ROW / 2 {
                    let row = |input: usize| -> &[f32] {
                        if input < inputs && !outputs.is_empty() {
                            &data[input * stride..][..columns][outputs.clone()]
                        } else {
                            &[]
                        }
                    };
                    let (low, high) = (row(first + 2 * pair), row(first + 2 * pair + 1));
                    split_bf16_pairs(s, low, high, parts.each_mut().map(|part| &mut part[pair]));
                }
            } else {
                for output in outputs {
                    let row = &data[output * stride..][..inputs];
                    let rows = parts.each_mut().map(|part| &mut part[output - tile * TILE_ROWS]);
                    split_bf16(s, &row[first..inputs.min(first + BF16_PER_TILE_ROW)], rows);
                }
                for part in &mut parts {
                    s.transpose_u32(part);
                }
            }
            for (part, rows) in parts.iter().enumerate() {
                tiles[part * TILES_PER_PANEL + tile].copy_from_slice(rows.as_flattened());
            }
        }
    }
}

/// Packs a panel of int8 tiles: for every group the scales of its outputs, the negated sums of their weights,
/// and for every 64 inputs two tiles. Row `r` of a tile holds inputs `4 r` to `4 r + 3` of its 16 outputs.
#[inline(always)]
fn pack_int8_tiles<S: Simd>(s: S, layout: PackedLayout, from: MatrixView, to: &mut [u32]) {
    let MatrixView { data, stride, .. } = from;
    for (group, to) in to.chunks_exact_mut(INT8_TILE_GROUP).enumerate() {
        let inputs = group * MAX_INT8_GROUP..layout.inputs.min((group + 1) * MAX_INT8_GROUP);
        let (scales, to) = to.split_at_mut(TILE_NR);
        let (sums, to) = to.split_at_mut(TILE_NR);
        scales.fill(0);
        sums.fill(0);
        for column in (0..TILE_NR).step_by(TILE_ROWS) {
            let outputs = data.chunks(stride).skip(column).take(TILE_ROWS);
            let outputs = outputs.map(|output| &output[inputs.clone()]);
            let mut bytes = quantize_outputs(s, outputs, &mut scales[column..], &mut sums[column..]);
            for (rows, to) in bytes.iter_mut().zip(to.chunks_exact_mut(TILES_PER_PANEL * 16 * TILE_ROWS)) {
                s.transpose_u32(rows);
                to[column * 16..][..16 * TILE_ROWS].copy_from_slice(rows.as_flattened());
            }
        }
    }
}
