//! Dense arrays as other software stores them. Where the elements are not in the file as they are in memory
//! (f64, bf16, signs in u8, big-endian, column-major), rows are read and converted.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::{Result, bail};

use super::array::{ArrayVectors, Segment};
use super::buffer::BlockBuffer;
use super::source::{Blocks, Columns, Opened, Vectors, split};
use super::width::{checked_width, dimensions_of_int8};
use crate::formats::error::{truncated, unread};
use crate::formats::{ElementType, StoredArray};
use crate::neighbours::Representation;
use crate::rows::{FileMetadata, OutputDtype};
use crate::sys::regular_file::read_exact_at;

/// Maximum size in bytes of the rows that are read at a time, unless one row is larger.
const READ_BYTES: usize = 8 << 20;

/// The vectors of an array in `file`, which has `size` bytes, with elements of the type `element`, beside the
/// columns that `columns` makes for their number. An array is `(N, D)`, or `(D,)` for one vector.
pub(super) fn open(
    name: &Arc<str>,
    (file, size): (Arc<File>, u64),
    (array, element): (StoredArray, ElementType),
    metadata: FileMetadata,
    columns: impl FnOnce(usize) -> Result<Box<dyn Columns>>,
) -> Result<Opened> {
    let (rows, width) = match array.shape[..] {
        [width] => (1, width),
        [rows, width] => (rows, width),
        _ => {
            let sizes: Vec<String> = array.shape.iter().map(usize::to_string).collect();
            bail!(
                "{name} has an array of shape ({}), expected (N, D): one vector per row; reshape it",
                sizes.join(", ")
            )
        }
    };
    let width = checked_width(name, width as u64)?;
    let (dtype, dimensions) = match element {
        ElementType::F16 if !array.is_big_endian && !array.is_column_major => (OutputDtype::F16, width),
        ElementType::I8 => dimensions_of_int8(&metadata, width, false),
        ElementType::U8 => (OutputDtype::Ubinary, 8 * width),
        _ => (OutputDtype::F32, width),
    };
    let bytes = (rows as u64).checked_mul((width * element.bytes()) as u64);
    let expected = bytes.and_then(|bytes| bytes.checked_add(array.offset)).unwrap_or(u64::MAX);
    if size < expected {
        return Err(truncated(name, expected, size));
    }
    let is_rounded = element == ElementType::F64;
    let is_plain = match element {
        ElementType::I8 => true,
        ElementType::F16 | ElementType::F32 => !array.is_big_endian,
        ElementType::Bf16 | ElementType::F64 | ElementType::U8 => false,
    };
    let vectors: Box<dyn Vectors> = if is_plain && !array.is_column_major {
        let segments = vec![Segment { rows: 0..rows, offset: array.offset, scales: None }];
        Box::new(ArrayVectors::new(name.clone(), file, segments, dtype, dimensions))
    } else {
        let name = name.clone();
        Box::new(ConvertedVectors { name, file, array, element, rows, width, dtype, dimensions })
    };
    let opened = Opened::new(rows, Representation::Dense, (dtype, dimensions), vectors, columns(rows)?);
    Ok(Opened { metadata, is_rounded, ..opened })
}

/// Vectors that are converted.
struct ConvertedVectors {
    name: Arc<str>,
    file: Arc<File>,
    array: StoredArray,
    element: ElementType,
    rows: usize,
    /// Stored elements of a vector.
    width: usize,
    dtype: OutputDtype,
    dimensions: usize,
}

impl ConvertedVectors {
    /// Reads rows into `buffer`; `bytes` is scratch memory.
    fn fill(
        &self,
        rows: &Range<usize>,
        bytes: &mut Vec<u8>,
        buffer: &mut BlockBuffer,
    ) -> std::io::Result<()> {
        let StoredArray { is_big_endian, is_column_major, offset, .. } = self.array;
        let element = self.element;
        let (size, count) = (element.bytes(), rows.len());
        bytes.resize(count * self.width * size, 0);
        let start_of = |element: usize| offset + (element * size) as u64;
        // A column-major array is the row-major one of its dimensions.
        let (row_step, column_step) = if is_column_major { (1, count) } else { (self.width, 1) };
        if is_column_major {
            for (column, part) in bytes.chunks_exact_mut(count * size).enumerate() {
                read_exact_at(&self.file, part, start_of(column * self.rows + rows.start))?;
            }
        } else {
            read_exact_at(&self.file, bytes, start_of(rows.start * self.width))?;
        }
        buffer.clear();
        let mut vector = Vec::with_capacity(self.width);
        for row in 0..count {
            let starts = (0..self.width).map(|column| (row * row_step + column * column_step) * size);
            vector.clear();
            vector.extend(starts.map(|start| element.read(is_big_endian, &bytes[start..start + size])));
            match element {
                ElementType::I8 => {
                    buffer.extend_int8(&vector.iter().map(|x| *x as i8).collect::<Vec<_>>());
                }
                ElementType::U8 => {
                    buffer.extend_ubinary(&vector.iter().map(|x| *x as u8).collect::<Vec<_>>());
                }
                _ => buffer.extend_f32(&vector),
            }
        }
        if self.dtype == OutputDtype::Int8 {
            buffer.set_unit_scales(self.width);
        }
        Ok(())
    }
}

impl Vectors for ConvertedVectors {
    fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        split(0..self.rows, max_rows).collect()
    }

    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>> {
        let Blocks { max_rows, buffer, visit } = blocks;
        let mut bytes = Vec::new();
        let fitting = READ_BYTES / (self.width * self.element.bytes());
        for part in split(rows, max_rows.min(fitting)) {
            self.fill(&part, &mut bytes, buffer).map_err(|error| unread(&self.name, &error))?;
            if visit(&buffer.block(self.dtype, part.start, part.len(), self.dimensions))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
