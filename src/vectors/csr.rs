//! A sparse matrix `(N, V)` in CSR form in an npz file without compression, as `scipy.sparse.save_npz` writes
//! it. Its arrays are read where they are in the file.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::{Result, bail};

use super::columns::ChunkCounts;
use super::source::{Blocks, Opened, Vectors, split};
use super::width::MAX_SPARSE_DIMENSIONS;
use crate::formats::StoredArray;
use crate::formats::error::unread;
use crate::formats::npz::malformed;
use crate::neighbours::Representation;
use crate::rows::OutputDtype;
use crate::sys::regular_file::read_exact_at;

/// The matrix.
struct SparseMatrix {
    name: Arc<str>,
    file: File,
    rows: usize,
    dimensions: usize,
    /// Ends of the rows among the elements, after a 0.
    indptr: StoredArray,
    indices: StoredArray,
    data: StoredArray,
}

/// The names of the arrays of a matrix.
pub(super) const ARRAYS: [&str; 5] = ["indptr", "indices", "data", "shape", "format"];

/// Opens the matrix with these [`ARRAYS`] in a file of `size` bytes.
pub(super) fn open(
    name: &Arc<str>,
    file: File,
    size: u64,
    arrays: [Result<StoredArray>; 5],
) -> Result<Opened> {
    let arrays = arrays.map(|array| {
        let array = array?;
        // Buffers have the size of parts of an array.
        if length(&array) as u64 > size {
            return Err(malformed(name, "one of its arrays is longer than the file"));
        }
        Ok(array)
    });
    let [indptr, indices, data, shape, format] = arrays;
    let (indptr, indices, data, shape, format) = (indptr?, indices?, data?, shape?, format?);
    let matrix = SparseMatrix { name: name.clone(), file, rows: 0, dimensions: 0, indptr, indices, data };
    let mut kind = [0; 3];
    let read = read_exact_at(&matrix.file, &mut kind, format.offset);
    if read.is_err() || kind != *b"csr" {
        bail!("{name} is no CSR matrix; write it with scipy.sparse.save_npz(…, matrix.tocsr())");
    }
    let sizes = matrix.integers(&shape, 0..2)?;
    let (rows, dimensions) = (sizes[0], sizes[1]);
    let is_whole = length(&matrix.indptr).checked_sub(1) == Some(rows)
        && length(&matrix.indices) == length(&matrix.data)
        && (1..=MAX_SPARSE_DIMENSIONS).contains(&dimensions);
    if !is_whole {
        return Err(malformed(name, "its arrays are not those of one matrix"));
    }
    let columns = Box::new(ChunkCounts::new(name, None, rows)?);
    let vectors = Box::new(SparseMatrix { rows, dimensions, ..matrix });
    Ok(Opened::new(rows, Representation::Sparse, (OutputDtype::F32, dimensions), vectors, columns))
}

/// The number of elements of an array.
fn length(array: &StoredArray) -> usize {
    array.shape.iter().product()
}

impl SparseMatrix {
    /// The bytes of elements of an array.
    fn bytes(&self, array: &StoredArray, elements: &Range<usize>, element_bytes: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; elements.len() * element_bytes];
        let offset = array.offset + (elements.start * element_bytes) as u64;
        read_exact_at(&self.file, &mut bytes, offset).map_err(|error| unread(&self.name, &error))?;
        Ok(bytes)
    }

    /// Elements of an array of integers from 0.
    fn integers(&self, array: &StoredArray, elements: Range<usize>) -> Result<Vec<usize>> {
        if elements.end > length(array) {
            return Err(malformed(&self.name, "an array is too short"));
        }
        let integers: Vec<Option<usize>> = match &*array.type_name {
            "<i4" => {
                let bytes = self.bytes(array, &elements, 4)?;
                bytes
                    .as_chunks::<4>()
                    .0
                    .iter()
                    .map(|x| usize::try_from(i32::from_le_bytes(*x)).ok())
                    .collect()
            }
            "<i8" => {
                let bytes = self.bytes(array, &elements, 8)?;
                bytes
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|x| usize::try_from(i64::from_le_bytes(*x)).ok())
                    .collect()
            }
            other => {
                return Err(malformed(
                    &self.name,
                    format_args!("it has indices of type {other}, expected <i4 or <i8"),
                ));
            }
        };
        let integers: Option<Vec<usize>> = integers.into_iter().collect();
        integers.ok_or_else(|| malformed(&self.name, "it has a negative index"))
    }

    /// Elements of the values.
    fn values(&self, elements: &Range<usize>) -> Result<Vec<f32>> {
        match &*self.data.type_name {
            "<f4" => {
                let bytes = self.bytes(&self.data, elements, 4)?;
                Ok(bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
            }
            "<f8" => {
                let bytes = self.bytes(&self.data, elements, 8)?;
                Ok(bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x) as f32).collect())
            }
            other => {
                Err(malformed(&self.name, format_args!("it has values of type {other}, expected <f4 or <f8")))
            }
        }
    }
}

impl Vectors for SparseMatrix {
    fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        split(0..self.rows, max_rows).collect()
    }

    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>> {
        let Blocks { max_rows, buffer, visit } = blocks;
        for part in split(rows, max_rows) {
            let ends = self.integers(&self.indptr, part.start..part.end + 1)?;
            let elements = ends[0]..ends[part.len()];
            if !ends.is_sorted() || elements.end > length(&self.indices) {
                return Err(malformed(&self.name, "indptr does not ascend to the number of elements"));
            }
            let indices = self.integers(&self.indices, elements.clone())?;
            if let Some(index) = indices.iter().find(|index| **index >= self.dimensions) {
                let dimensions = self.dimensions;
                return Err(malformed(&self.name, format_args!("index {index} is not below {dimensions}")));
            }
            buffer.clear();
            buffer.extend_sparse(indices.iter().map(|index| *index as u32), &self.values(&elements)?);
            buffer.lengths.extend(ends.windows(2).map(|bounds| bounds[1] - bounds[0]));
            if visit(&buffer.sparse_block(part.start, self.dimensions))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
