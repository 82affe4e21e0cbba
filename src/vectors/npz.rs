//! npz files without compression: a sparse matrix `(N, V)` in CSR form, as `scipy.sparse.save_npz` writes it, or dense arrays, as
//! `numpy.savez` does. They are read where they are in the file.

use std::fs::File;
use std::io::BufReader;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::{Error, Result, bail};
use zip::{CompressionMethod, ZipArchive};

use super::choice::{Candidate, Held, VectorField};
use super::columns::ChunkCounts;
use super::converted::ElementType;
use super::error::{malformed, unread};
use super::npy::Header;
use super::source::{Blocks, Columns, Opened, Vectors, split};
use super::width::MAX_SPARSE_DIMENSIONS;
use crate::neighbours::Representation;
use crate::rows::columns::{EMBEDDING, EMBEDDINGS};
use crate::rows::{OutputDtype, OutputMetadata};
use crate::sys::regular_file::read_exact_at;

/// The maximum number of arrays whose headers are read.
const MAX_ARRAYS: usize = 4096;

/// An array in the archive.
struct NpyArray {
    /// Type of the elements, as NumPy names it.
    descr: String,
    /// Elements.
    length: usize,
    /// Offset of the first element in the file, in bytes.
    offset: u64,
}

/// The matrix.
struct SparseMatrix {
    name: Arc<str>,
    file: File,
    rows: usize,
    dimensions: usize,
    /// Ends of the rows among the elements, after a 0.
    indptr: NpyArray,
    indices: NpyArray,
    data: NpyArray,
}

/// Reads the headers of the arrays of a file, which has `size` bytes.
pub(super) fn open(name: &Arc<str>, file: File, size: u64, field: VectorField) -> Result<Opened> {
    let unread = |error: &dyn std::fmt::Display| malformed(name, "npz", error);
    let reader = file.try_clone().map_err(|error| unread(&error))?;
    let mut archive = ZipArchive::new(BufReader::new(reader)).map_err(|error| unread(&error))?;
    let names = archive.file_names().filter_map(|name| Some(name.ok()?.strip_suffix(".npy")?.to_owned()));
    let names: Vec<String> = names.collect();
    if names.len() > MAX_ARRAYS {
        return Err(unread(&format_args!("it has {} arrays", names.len())));
    }
    let mut header = |array: &str| -> Result<Header> {
        let index = archive.index_for_name(&format!("{array}.npy"));
        let index = index.ok_or_else(|| unread(&format_args!("it has no array {array} of a CSR matrix")))?;
        let entry = archive.by_index_raw(index).map_err(|error| unread(&error))?;
        if entry.compression() != CompressionMethod::Stored {
            bail!(
                "{name} is compressed; write it with scipy.sparse.save_npz(…, compressed=False), or numpy.savez"
            );
        }
        let start = entry.data_start().ok_or_else(|| unread(&"it has an array without data"))?;
        Header::read(&file, start).map_err(|reason| unread(&reason))
    };
    let is_sparse = names.iter().any(|name| name == "indptr" || name == "format");
    if is_sparse && !matches!(field, VectorField::Named(_)) {
        let headers = ["indptr", "indices", "data", "shape", "format"].map(&mut header);
        return open_sparse(name, file, size, headers);
    }
    let mut headers = names.iter().map(|name| header(name)).collect::<Result<Vec<_>>>()?;
    let candidates: Vec<Candidate> = names.into_iter().zip(&headers).map(candidate).collect();
    let found = field.find(name, "array", &[EMBEDDINGS, EMBEDDING], &candidates)?;
    let columns = |rows| Ok(Box::new(ChunkCounts::new(name, None, rows)?) as Box<dyn Columns>);
    let array = headers.swap_remove(found).dense_array(name)?;
    array.open(name, (file.into(), size), OutputMetadata::new(), columns)
}

/// An array, and whether it can be that of dense vectors.
fn candidate((name, header): (String, &Header)) -> Candidate {
    let held = match header.element() {
        Some(_) if header.shape.len() == 1 => Held::Ambiguous,
        _ if header.shape.len() != 2 => Held::Other,
        Some((ElementType::I8, _)) => Held::Ambiguous,
        Some(_) => Held::Vectors,
        None => Held::Other,
    };
    Candidate { name, type_name: format!("{} {:?}", header.descr, header.shape), held }
}

/// Opens a sparse matrix with arrays of these headers: `indptr`, `indices`, `data`, `shape` and `format`.
fn open_sparse(name: &Arc<str>, file: File, size: u64, headers: [Result<Header>; 5]) -> Result<Opened> {
    let unread = |error: &dyn std::fmt::Display| malformed(name, "npz", error);
    let arrays = headers.map(|header| {
        let Header { descr, shape, end: offset, .. } = header?;
        let length: usize = shape.iter().product();
        // Buffers have the size of parts of an array.
        if length as u64 > size {
            return Err(unread(&"one of its arrays is longer than the file"));
        }
        Ok(NpyArray { descr, length, offset })
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
    let is_whole = matrix.indptr.length.checked_sub(1) == Some(rows)
        && matrix.indices.length == matrix.data.length
        && (1..=MAX_SPARSE_DIMENSIONS).contains(&dimensions);
    if !is_whole {
        return Err(unread(&"its arrays are not those of one matrix"));
    }
    let columns = Box::new(ChunkCounts::new(name, None, rows)?);
    let vectors = Box::new(SparseMatrix { rows, dimensions, ..matrix });
    Ok(Opened::new(rows, Representation::Sparse, (OutputDtype::F32, dimensions), vectors, columns))
}

impl SparseMatrix {
    fn malformed(&self, reason: &str) -> Error {
        malformed(&self.name, "npz", reason)
    }

    /// The bytes of elements of an array.
    fn bytes(&self, array: &NpyArray, elements: &Range<usize>, element_bytes: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; elements.len() * element_bytes];
        let offset = array.offset + (elements.start * element_bytes) as u64;
        read_exact_at(&self.file, &mut bytes, offset).map_err(|error| unread(&self.name, &error))?;
        Ok(bytes)
    }

    /// Elements of an array of integers from 0.
    fn integers(&self, array: &NpyArray, elements: Range<usize>) -> Result<Vec<usize>> {
        if elements.end > array.length {
            return Err(self.malformed("an array is too short"));
        }
        let integers: Vec<Option<usize>> = match &*array.descr {
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
                return Err(self.malformed(&format!("it has indices of type {other}, expected <i4 or <i8")));
            }
        };
        let integers: Option<Vec<usize>> = integers.into_iter().collect();
        integers.ok_or_else(|| self.malformed("it has a negative index"))
    }

    /// Elements of the values.
    fn values(&self, elements: &Range<usize>) -> Result<Vec<f32>> {
        match &*self.data.descr {
            "<f4" => {
                let bytes = self.bytes(&self.data, elements, 4)?;
                Ok(bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect())
            }
            "<f8" => {
                let bytes = self.bytes(&self.data, elements, 8)?;
                Ok(bytes.as_chunks::<8>().0.iter().map(|x| f64::from_le_bytes(*x) as f32).collect())
            }
            other => Err(self.malformed(&format!("it has values of type {other}, expected <f4 or <f8"))),
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
            if !ends.is_sorted() || elements.end > self.indices.length {
                return Err(self.malformed("indptr does not ascend to the number of elements"));
            }
            let indices = self.integers(&self.indices, elements.clone())?;
            if let Some(index) = indices.iter().find(|index| **index >= self.dimensions) {
                let dimensions = self.dimensions;
                return Err(self.malformed(&format!("index {index} is not below {dimensions}")));
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
