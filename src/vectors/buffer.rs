//! The memory of a block, which is reused from block to block.

use half::f16;
use half::slice::HalfBitsSliceExt;

use crate::neighbours::{Block, Elements};
use crate::rows::{OutputDtype, offset_signs};

/// The memory of one block.
#[derive(Default)]
pub struct BlockBuffer {
    f32s: Vec<f32>,
    /// Bits of f16.
    f16s: Vec<u16>,
    /// Elements of `int8`, and signs of `binary`.
    int8s: Vec<i8>,
    /// For `int8`, one per row.
    pub(super) scales: Vec<f32>,
    /// The dimensions of the elements of sparse rows.
    indices: Vec<u32>,
    /// The vectors of each row, if a row has one per token; the elements of each row, if rows are sparse.
    pub(super) lengths: Vec<usize>,
}

impl BlockBuffer {
    /// Makes room for `rows` rows of `dtype` with `width` stored elements, and returns their bytes.
    pub(super) fn bytes_mut(&mut self, dtype: OutputDtype, rows: usize, width: usize) -> &mut [u8] {
        let elements = rows * width;
        match dtype {
            OutputDtype::F32 => {
                self.f32s.resize(elements, 0.0);
                bytemuck::cast_slice_mut(&mut self.f32s)
            }
            OutputDtype::F16 => {
                self.f16s.resize(elements, 0);
                bytemuck::cast_slice_mut(&mut self.f16s)
            }
            OutputDtype::Int8 | OutputDtype::Binary | OutputDtype::Ubinary => {
                self.int8s.resize(elements, 0);
                bytemuck::cast_slice_mut(&mut self.int8s)
            }
        }
    }

    /// Removes all rows.
    pub(super) fn clear(&mut self) {
        self.f32s.clear();
        self.f16s.clear();
        self.int8s.clear();
        self.scales.clear();
        self.indices.clear();
        self.lengths.clear();
    }

    /// Appends elements in f32.
    pub(super) fn extend_f32(&mut self, elements: &[f32]) {
        self.f32s.extend_from_slice(elements);
    }

    /// Appends elements in f16.
    pub(super) fn extend_f16(&mut self, elements: &[f16]) {
        self.f16s.extend(elements.iter().map(|x| x.to_bits()));
    }

    /// Appends elements of `int8`, or signs of `binary`.
    pub(super) fn extend_int8(&mut self, elements: &[i8]) {
        self.int8s.extend_from_slice(elements);
    }

    /// Appends elements of `ubinary`, as those of `binary`.
    pub(super) fn extend_ubinary(&mut self, elements: &[u8]) {
        self.int8s.extend(elements.iter().map(|byte| offset_signs(*byte).cast_signed()));
    }

    /// Appends a part of the elements of sparse rows.
    pub(super) fn extend_sparse(&mut self, indices: impl IntoIterator<Item = u32>, values: &[f32]) {
        self.indices.extend(indices);
        self.f32s.extend_from_slice(values);
    }

    /// Appends row `row` of a block.
    pub(super) fn push_row(&mut self, block: &Block, row: usize) {
        let width = |elements: usize| elements / block.rows.max(1);
        match block.elements {
            Elements::F32(values) => {
                let width = width(values.len());
                self.extend_f32(&values[row * width..(row + 1) * width]);
            }
            Elements::F16(values) => {
                let width = width(values.len());
                self.extend_f16(&values[row * width..(row + 1) * width]);
            }
            Elements::Int8 { values, scales } => {
                let width = width(values.len());
                self.extend_int8(&values[row * width..(row + 1) * width]);
                self.scales.push(scales[row]);
            }
            Elements::Binary(values) => {
                let width = width(values.len());
                self.extend_int8(&values[row * width..(row + 1) * width]);
            }
            Elements::Sparse { indices, values } => {
                let start: usize = block.lengths[..row].iter().sum();
                let elements = start..start + block.lengths[row];
                self.extend_sparse(indices[elements.clone()].iter().copied(), &values[elements]);
                self.lengths.push(block.lengths[row]);
            }
        }
    }

    /// Sets the [`unit_scales`] of the int8 rows.
    pub(super) fn set_unit_scales(&mut self, width: usize) {
        unit_scales(&self.int8s, width, &mut self.scales);
    }

    /// The block that the buffer holds, of `rows` rows of the file.
    pub(super) fn block(
        &self,
        dtype: OutputDtype,
        first_row: usize,
        rows: usize,
        dimensions: usize,
    ) -> Block<'_> {
        let elements = match dtype {
            OutputDtype::F32 => Elements::F32(&self.f32s),
            OutputDtype::F16 => Elements::F16(self.f16s.reinterpret_cast()),
            OutputDtype::Int8 => Elements::Int8 { values: &self.int8s, scales: &self.scales },
            OutputDtype::Binary | OutputDtype::Ubinary => Elements::Binary(&self.int8s),
        };
        let lengths = &self.lengths[..];
        let rows = if lengths.is_empty() { rows } else { lengths.iter().sum() };
        Block { first_row, rows, lengths, dimensions, elements }
    }

    /// The block of sparse rows that the buffer holds.
    pub(super) fn sparse_block(&self, first_row: usize, dimensions: usize) -> Block<'_> {
        let elements = Elements::Sparse { indices: &self.indices, values: &self.f32s };
        Block { first_row, rows: self.lengths.len(), lengths: &self.lengths, dimensions, elements }
    }
}

/// The scale of each int8 row with which its vector has unit length, for formats that store no scales: 1 /
/// ‖q‖, or 0 for a row of zeros.
pub(super) fn unit_scales(values: &[i8], width: usize, scales: &mut Vec<f32>) {
    let scale = |row: &[i8]| {
        let squares: i64 = row.iter().map(|x| i64::from(i32::from(*x).pow(2))).sum();
        if squares == 0 { 0.0 } else { (1.0 / (squares as f64).sqrt()) as f32 }
    };
    scales.clear();
    scales.extend(values.chunks_exact(width.max(1)).map(scale));
}

#[cfg(test)]
mod tests {
    use super::BlockBuffer;

    #[test]
    fn int8_rows_without_scales_have_unit_length() {
        let mut buffer = BlockBuffer::default();
        buffer.extend_int8(&[3, -4, 0, 0, -128, 0]);
        buffer.set_unit_scales(2);
        assert_eq!(buffer.scales, [0.2, 0.0, 1.0 / 128.0]);
    }
}
