//! The left operand of a GEMM: rows of `x` as packed elements.

use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use super::blocking::MAX_PARTS;
use super::cache_line::{CacheLine, LINE_ELEMENTS, at_least, elements, elements_mut};
use super::convert::{
    BF16_PER_TILE_ROW, GROUPS_IN_FLIGHT, GroupScale, Quantization, TILE_ROWS_PER_GROUP, bf16_row, split_bf16,
};
use super::layout::{OperandFormat, PackedLayout};
use super::packed_matrix::PackedMatrix;
use crate::isa::{Kernel, define_runners};
use crate::simd::{INT8_PER_LANE, MAX_INT8_GROUP, MAX_LANES, Simd};
use crate::tiles::{TILE_ROW_BYTES, TILE_ROWS};

/// Rows of `x` in an operand format.
///
/// For the tile micro-kernel the rows are packed in groups of 16, one tile after the other: the tile of the
/// first inputs of the 16 rows (for bf16 the tiles of all parts of those inputs), then that of the next
/// inputs. Loading a tile from unpacked rows would miss L1 16 times.
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

/// The stride at which rows of `length` f32 or packed elements are stored for a GEMM. Where it is a multiple
/// of the 4 KiB that the sets of L1 cover, the rows of a micro-tile would compete for the lines of one set;
/// two lines more, and they do not.
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
        let elements = layout.format.padded_rows(rows) * lhs_stride(layout);
        let lines = elements.div_ceil(LINE_ELEMENTS);
        &mut elements_mut(at_least(&mut self.lines, lines))[..elements]
    }

    /// The rows whose inputs have all been written for `weights`, by [`super::gemm_into_lhs`] or
    /// [`LhsBuffer::convert_inputs`].
    ///
    /// # Panics
    /// If the buffer has never held as many rows.
    pub fn converted(&self, weights: &PackedMatrix, rows: usize) -> Lhs<'_> {
        let layout = weights.layout;
        let (stride, padded_rows) = (lhs_stride(layout), layout.format.padded_rows(rows));
        let elements = &elements(&self.lines)[..padded_rows * stride];
        let scales = &self.scales[..padded_rows * layout.groups];
        Lhs { elements, stride, rows, scales, groups: layout.groups }
    }

    /// Converts `rows` rows, which begin every `stride` values of `x`, to the operand format of `weights`:
    /// f32 stays where it is, other formats without tiles get the stride [`row_stride`].
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
        if rows == 0 || !weights.converts_lhs() {
            return Lhs { groups: weights.layout.groups, ..Lhs::f32(x, stride, rows) };
        }
        self.convert_inputs(weights, 0..weights.inputs(), x, stride, rows);
        self.converted(weights, rows)
    }

    /// Converts the columns `inputs` of `rows` rows; other columns of the buffer stay as they are. `x` has
    /// only these columns, and a row begins every `stride` values. The columns begin and end at multiples of
    /// [`PackedMatrix::lhs_step`], or end with the last input.
    ///
    /// # Panics
    /// If `x` does not contain all rows, the inputs begin or end elsewhere, or `weights` take f32
    /// ([`PackedMatrix::converts_lhs`]).
    pub fn convert_inputs(
        &mut self,
        weights: &PackedMatrix,
        inputs: Range<usize>,
        x: &[f32],
        stride: usize,
        rows: usize,
    ) {
        assert!(weights.converts_lhs(), "the operand format is not f32");
        assert!(inputs.end <= weights.inputs(), "the matrix has these inputs");
        let is_boundary =
            |input: usize| input.is_multiple_of(weights.lhs_step()) || input == weights.inputs();
        assert!(is_boundary(inputs.start) && is_boundary(inputs.end), "other inputs stay as they are");
        let values =
            rows.checked_sub(1).map_or(0, |last| last.saturating_mul(stride).saturating_add(inputs.len()));
        assert!(values <= x.len() && inputs.len() <= stride, "x has all rows");
        let (isa, layout) = (weights.isa, weights.layout);
        let (row, groups) = (lhs_stride(layout), layout.groups);
        let padded_rows = layout.format.padded_rows(rows);
        if self.scales.len() < padded_rows * groups {
            self.scales.resize(padded_rows * groups, GroupScale::default());
        }
        self.reserve(layout, rows);
        let packed = &mut elements_mut(&mut self.lines)[..padded_rows * row];
        let convert = |task: usize, to: &mut [u32], scales: &mut [GroupScale]| {
            let x = &x[task * ROWS_PER_TASK * stride..];
            let rows = ROWS_PER_TASK.min(rows - task * ROWS_PER_TASK);
            let inputs = inputs.clone();
            if layout.format.is_tiles() {
                isa.run(ConvertRows::<true> { layout, inputs, x, stride, rows, to, to_stride: row, scales });
            } else {
                isa.run(ConvertRows::<false> { layout, inputs, x, stride, rows, to, to_stride: row, scales });
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
    }
}

/// Packed elements from the start of one converted row to the start of the next. Rows of bf16 are whole
/// vectors.
fn lhs_stride(layout: PackedLayout) -> usize {
    match layout.format {
        OperandFormat::Bf16Tiles { .. } | OperandFormat::Int8Tiles => layout.lhs_row,
        OperandFormat::Bf16 => row_stride(layout.lhs_row.next_multiple_of(MAX_LANES)),
        OperandFormat::F32 { .. } | OperandFormat::Int8 => row_stride(layout.lhs_row),
    }
}

/// The kernel that converts some inputs of rows of f32 to an operand format, one of tiles or another.
struct ConvertRows<'a, const TILES: bool> {
    layout: PackedLayout,
    /// The inputs, which are all values of the rows of `x`.
    inputs: Range<usize>,
    x: &'a [f32],
    stride: usize,
    rows: usize,
    to: &'a mut [u32],
    /// Packed elements from the start of one row to the start of the next.
    to_stride: usize,
    scales: &'a mut [GroupScale],
}

impl<const TILES: bool> Kernel for ConvertRows<'_, TILES> {
    type Output = ();

    const TILES_ONLY: bool = TILES;

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.layout.format {
            OperandFormat::Bf16Tiles { parts: 1, .. } if TILES => self.bf16_tiles::<S, 1>(s),
            OperandFormat::Bf16Tiles { parts: 2, .. } if TILES => self.bf16_tiles::<S, 2>(s),
            OperandFormat::Bf16Tiles { .. } if TILES => self.bf16_tiles::<S, MAX_PARTS>(s),
            OperandFormat::Int8Tiles if TILES => self.int8(s),
            OperandFormat::Bf16 if !TILES => self.bf16(s),
            OperandFormat::Int8 if !TILES => self.int8(s),
            format => unreachable!("{format:?} is not a format of this kernel"),
        }
    }
}

impl<const TILES: bool> ConvertRows<'_, TILES> {
    /// Converts the rows to bf16.
    #[inline(always)]
    fn bf16<S: Simd>(self, s: S) {
        let elements = self.inputs.start / 2..self.inputs.end.div_ceil(2).next_multiple_of(S::LANES);
        for (x, to) in self.x.chunks(self.stride).zip(self.to.chunks_mut(self.to_stride)).take(self.rows) {
            bf16_row(s, &x[..self.inputs.len()], &mut to[elements.clone()]);
        }
    }

    /// Converts the rows to 8-bit integers and writes the scales of their groups.
    #[inline(always)]
    fn int8<S: Simd>(self, s: S) {
        let group = if TILES { MAX_INT8_GROUP } else { S::INT8.group };
        let first_group = self.inputs.start / group;
        let rows = self.x.chunks(self.stride).take(self.rows).enumerate();
        let mut groups = rows.flat_map(|(row, x)| {
            let x = x[..self.inputs.len()].chunks(group).enumerate();
            x.map(move |(i, x)| (row, first_group + i, x))
        });
        let mut rotated = [[0.0; MAX_INT8_GROUP]; GROUPS_IN_FLIGHT];
        loop {
            let mut batch = [(0, 0); GROUPS_IN_FLIGHT];
            let mut x: [&[f32]; GROUPS_IN_FLIGHT] = [&[]; GROUPS_IN_FLIGHT];
            let mut count = 0;
            for (row, group, values) in groups.by_ref().take(GROUPS_IN_FLIGHT) {
                (batch[count], x[count]) = ((row, group), values);
                count += 1;
            }
            if count == 0 {
                return;
            }
            let quantization = Quantization::of(s, &x[..count], &mut rotated);
            for (i, (x, &(row, group))) in rotated.iter().zip(&batch[..count]).enumerate() {
                let scale = &mut self.scales[row * self.layout.groups + group];
                if TILES {
                    let mut bytes = [0; MAX_INT8_GROUP / INT8_PER_LANE];
                    *scale = quantization.quantize(s, i, x, &mut bytes);
                    // Each tile row of a row of `x` is in another tile.
                    let tiles = &mut self.to[row / TILE_ROWS * TILE_ROWS * self.to_stride..];
                    let (tile_rows, _) = tiles.as_chunks_mut::<{ TILE_ROW_BYTES / INT8_PER_LANE }>();
                    let tile_rows =
                        tile_rows.iter_mut().skip(group * TILE_ROWS_PER_GROUP * TILE_ROWS + row % TILE_ROWS);
                    for (bytes, to) in bytes.as_chunks().0.iter().zip(tile_rows.step_by(TILE_ROWS)) {
                        *to = *bytes;
                    }
                } else {
                    let elements = S::INT8.group / INT8_PER_LANE;
                    let to = &mut self.to[row * self.to_stride + group * elements..][..elements];
                    *scale = quantization.quantize(s, i, x, to);
                }
            }
        }
    }

    /// Converts the rows to tiles of `P` bf16 parts, in the order in which the tiles are stored.
    #[inline(always)]
    fn bf16_tiles<S: Simd, const P: usize>(self, s: S) {
        let PackedLayout { lhs_row, .. } = self.layout;
        let rows = self.x.chunks(self.stride).take(self.rows);
        let rows: Vec<&[f32]> = rows.map(|row| &row[..self.inputs.len()]).collect();
        let first = self.inputs.start / BF16_PER_TILE_ROW * P * TILE_ROWS;
        for (rows, to) in rows.chunks(TILE_ROWS).zip(self.to.chunks_mut(TILE_ROWS * lhs_row)) {
            let (tile_rows, _) = to.as_chunks_mut::<16>();
            let tiles = tile_rows[first..].chunks_exact_mut(P * TILE_ROWS);
            for (tiles, start) in tiles.zip((0..self.inputs.len()).step_by(BF16_PER_TILE_ROW)) {
                let inputs = start..self.inputs.len().min(start + BF16_PER_TILE_ROW);
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
