//! The left operand of a GEMM: rows of `x` as packed elements.

use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use super::blocking::MAX_PARTS;
use super::cache_line::{CacheLine, LINE_ELEMENTS, elements, elements_mut};
use super::convert::{BF16_PER_TILE_ROW, GroupScale, bf16_row, quantize_lhs, split_bf16};
use super::layout::{OperandFormat, PackedLayout};
use super::packed_matrix::PackedMatrix;
use crate::isa::{Kernel, define_runners};
use crate::simd::{INT8_PER_LANE, MAX_INT8_GROUP, Simd};
use crate::tiles::TILE_ROWS;

/// Rows of `x` in an operand format.
///
/// For the tile micro-kernel the rows are packed in groups of 16, one tile after the other: the tile of the first
/// inputs of the 16 rows (for bf16 the tiles of all parts of those inputs), then that of the next inputs. Loading a
/// tile from unpacked rows would miss L1 16 times.
#[derive(Debug, Clone, Copy)]
pub struct Lhs<'a> {
    pub(super) elements: &'a [u32],
    /// Packed elements from the start of one row to the start of the next.
    pub(super) stride: usize,
    pub(super) rows: usize,
    /// `(rows, groups)`: the scales of the int8 groups; empty in all other formats.
    pub(super) scales: &'a [GroupScale],
    /// Int8 groups per row; 0 in all other formats.
    pub(super) groups: usize,
}

impl<'a> Lhs<'a> {
    /// `rows` rows of f32 that begin every `stride` values of `x`.
    fn f32(x: &'a [f32], stride: usize, rows: usize) -> Self {
        // SAFETY: u32 has the size and alignment of f32, and every bit pattern is a valid u32.
        let elements = unsafe { slice::from_raw_parts(x.as_ptr().cast(), x.len()) };
        Lhs { elements, stride, rows, scales: &[], groups: 0 }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// A range of the rows. For the tile micro-kernel it begins at a multiple of 16.
    pub fn slice(&self, rows: Range<usize>) -> Self {
        Lhs {
            elements: &self.elements[rows.start * self.stride..],
            rows: rows.len(),
            scales: &self.scales[rows.start * self.groups..],
            ..*self
        }
    }
}

/// The stride at which rows of `length` f32 or packed elements are stored for a GEMM. Where it is a multiple of the 4 KiB that the sets of
/// L1 cover, the rows of a micro-tile would compete for the lines of one set; two lines more, and they do not.
pub fn row_stride(length: usize) -> usize {
    const SETS: usize = (4 << 10) / size_of::<f32>();
    if length.is_multiple_of(SETS) { length + 2 * LINE_ELEMENTS } else { length }
}

/// Memory for rows of `x` in another operand format, reused from call to call.
#[derive(Debug, Default)]
pub struct LhsBuffer {
    /// Cache lines, so that tile rows are aligned.
    lines: Vec<CacheLine>,
    scales: Vec<GroupScale>,
}

/// Rows that one rayon task converts.
const ROWS_PER_TASK: usize = 32;

impl LhsBuffer {
    /// The packed elements of `rows` rows, padded to whole tiles, in a layout other than f32.
    pub(super) fn reserve(&mut self, layout: PackedLayout, rows: usize) -> &mut [u32] {
        let elements = layout.format.padded_rows(rows) * layout.lhs_row;
        let lines = elements.div_ceil(LINE_ELEMENTS);
        if self.lines.len() < lines {
            self.lines.resize(lines, CacheLine([0; LINE_ELEMENTS]));
        }
        &mut elements_mut(&mut self.lines)[..elements]
    }

    /// The rows that [`super::gemm_into_lhs`] has written for `weights`.
    ///
    /// # Panics
    /// If the buffer has never held as many rows, or `weights` are int8.
    pub fn converted(&self, weights: &PackedMatrix, rows: usize) -> Lhs<'_> {
        let layout = weights.layout;
        assert_eq!(layout.groups, 0, "the left operand has no scales");
        let elements = &elements(&self.lines)[..layout.format.padded_rows(rows) * layout.lhs_row];
        Lhs { elements, stride: layout.lhs_row, rows, scales: &[], groups: 0 }
    }

    /// Converts `rows` rows, which begin every `stride` values of `x`, to the operand format of `weights`: f32 stays where it is, other
    /// formats without tiles get the stride [`row_stride`].
    ///
    /// # Panics
    /// If `x` does not contain all rows.
    pub fn convert<'a>(
        &'a mut self,
        weights: &PackedMatrix,
        x: &'a [f32],
        stride: usize,
        rows: usize,
    ) -> Lhs<'a> {
        let (isa, layout) = (weights.isa, weights.layout);
        if rows == 0 || matches!(layout.format, OperandFormat::F32 { .. }) {
            return Lhs { groups: layout.groups, ..Lhs::f32(x, stride, rows) };
        }
        let row = if layout.format.is_tiles() { layout.lhs_row } else { row_stride(layout.lhs_row) };
        let groups = layout.groups;
        let padded_rows = layout.format.padded_rows(rows);
        if self.scales.len() < padded_rows * groups {
            self.scales.resize(padded_rows * groups, GroupScale::default());
        }
        self.reserve(PackedLayout { lhs_row: row, ..layout }, rows);
        let packed = &mut elements_mut(&mut self.lines)[..padded_rows * row];
        let convert = |task: usize, to: &mut [u32], scales: &mut [GroupScale]| {
            let x = &x[task * ROWS_PER_TASK * stride..];
            let rows = ROWS_PER_TASK.min(rows - task * ROWS_PER_TASK);
            if layout.format.is_tiles() {
                isa.run(ConvertRows::<true> { layout, x, stride, rows, to, to_stride: row, scales });
            } else {
                isa.run(ConvertRows::<false> { layout, x, stride, rows, to, to_stride: row, scales });
            }
        };
        if rows <= ROWS_PER_TASK {
            convert(0, packed, &mut self.scales[..rows * groups]);
        } else if groups == 0 {
            let tasks = packed.par_chunks_mut(ROWS_PER_TASK * row).enumerate();
            tasks.for_each(|(task, to)| convert(task, to, &mut []));
        } else {
            packed
                .par_chunks_mut(ROWS_PER_TASK * row)
                .zip(self.scales[..rows * groups].par_chunks_mut(ROWS_PER_TASK * groups))
                .enumerate()
                .for_each(|(task, (to, scales))| convert(task, to, scales));
        }
        let elements = &elements(&self.lines)[..padded_rows * row];
        Lhs { elements, stride: row, rows, scales: &self.scales[..padded_rows * groups], groups }
    }
}

/// The kernel that converts rows of f32 to an operand format, one of tiles or another.
struct ConvertRows<'a, const TILES: bool> {
    layout: PackedLayout,
    x: &'a [f32],
    stride: usize,
    rows: usize,
    to: &'a mut [u32],
    /// Packed elements from the start of one row to the start of the next, in formats without tiles.
    to_stride: usize,
    scales: &'a mut [GroupScale],
}

impl<const TILES: bool> Kernel for ConvertRows<'_, TILES> {
    type Output = ();

    const TILES_ONLY: bool = TILES;

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackedLayout { format, lhs_row, inputs, groups, .. } = self.layout;
        if TILES {
            return match format {
                OperandFormat::Bf16Tiles { parts: 1, .. } => self.bf16_tiles::<S, 1>(s),
                OperandFormat::Bf16Tiles { parts: 2, .. } => self.bf16_tiles::<S, 2>(s),
                OperandFormat::Bf16Tiles { .. } => self.bf16_tiles::<S, MAX_PARTS>(s),
                OperandFormat::Int8Tiles => self.int8_tiles(s),
                OperandFormat::F32 { .. } | OperandFormat::Bf16 | OperandFormat::Int8 => {
                    unreachable!("not a format of tiles")
                }
            };
        }
        for i in 0..self.rows {
            let to = &mut self.to[i * self.to_stride..][..lhs_row];
            let x = &self.x[i * self.stride..][..inputs];
            match format {
                OperandFormat::Bf16 => bf16_row(s, x, to),
                OperandFormat::Int8 => {
                    let scales = &mut self.scales[i * groups..][..groups];
                    quantize_lhs(s, x, to, scales);
                }
                format => unreachable!("{format:?} is not converted to rows"),
            }
        }
    }
}

impl<const TILES: bool> ConvertRows<'_, TILES> {
    /// Converts the rows to tiles of 8-bit integers and writes the scales of their groups.
    #[inline(always)]
    fn int8_tiles<S: Simd>(self, s: S) {
        let PackedLayout { lhs_row, inputs, groups, .. } = self.layout;
        for i in 0..self.rows {
            // Each tile row of a row of `x` is in another tile.
            let (tile_rows, _) = self.to[i / TILE_ROWS * TILE_ROWS * lhs_row..].as_chunks_mut::<16>();
            let mut tile_rows = tile_rows.iter_mut().skip(i % TILE_ROWS).step_by(TILE_ROWS);
            let x = &self.x[i * self.stride..][..inputs];
            let scales = &mut self.scales[i * groups..][..groups];
            let mut bytes = [0; MAX_INT8_GROUP / INT8_PER_LANE];
            for (group, scale) in x.chunks(MAX_INT8_GROUP).zip(scales) {
                quantize_lhs(s, group, &mut bytes, slice::from_mut(scale));
                for (bytes, row) in bytes.as_chunks().0.iter().zip(&mut tile_rows) {
                    *row = *bytes;
                }
            }
        }
    }

    /// Converts the rows to tiles of `P` bf16 parts, in the order in which the tiles are stored.
    #[inline(always)]
    fn bf16_tiles<S: Simd, const P: usize>(self, s: S) {
        let PackedLayout { lhs_row, inputs, .. } = self.layout;
        let rows = self.x.chunks(self.stride).take(self.rows);
        let rows: Vec<&[f32]> = rows.map(|row| &row[..inputs]).collect();
        for (rows, to) in rows.chunks(TILE_ROWS).zip(self.to.chunks_mut(TILE_ROWS * lhs_row)) {
            let (tile_rows, _) = to.as_chunks_mut::<16>();
            for (step, tiles) in tile_rows.chunks_exact_mut(P * TILE_ROWS).enumerate() {
                let inputs = step * BF16_PER_TILE_ROW..inputs.min((step + 1) * BF16_PER_TILE_ROW);
                for (i, row) in rows.iter().enumerate() {
                    let mut parts = tiles.chunks_exact_mut(TILE_ROWS);
                    let parts = std::array::from_fn(|_| {
                        &mut parts.next().expect("there is a tile for every part")[i]
                    });
                    split_bf16::<S, P>(s, &row[inputs.clone()], parts);
                }
            }
        }
    }
}
