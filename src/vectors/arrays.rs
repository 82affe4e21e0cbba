//! Vectors in arrays: npy files, npz files without compression, and safetensors files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::choice::{Candidate, Held, VectorField};
use super::columns::{ChunkCounts, IntegerTensors};
use super::source::{Columns, Opened};
use super::{converted, csr};
use crate::formats::error::malformed;
use crate::formats::npz::NpzArchive;
use crate::formats::safetensors::read_tensors;
use crate::formats::{ElementType, StoredArray, npy};
use crate::rows::FileMetadata;
use crate::rows::columns::{EMBEDDING, EMBEDDINGS};
use crate::store::META_SUFFIX;

/// Opens an npy file of `size` bytes. What is known about the vectors is in the file `NAME.meta.json` beside
/// it, if there is one.
pub(super) fn open_npy(
    path: &Path,
    name: &Arc<str>,
    (file, size): (File, u64),
    field: VectorField,
) -> Result<Opened> {
    field.check_unnamed(name, "npy")?;
    let array = npy::read_array(&file, "", 0).map_err(|reason| malformed(name, "npy", reason))?;
    let mut meta = path.as_os_str().to_owned();
    meta.push(META_SUFFIX);
    let (metadata, chunks) = npy::read_metadata(Path::new(&meta))?;
    let columns = |rows| Ok(Box::new(ChunkCounts::new(name, chunks, rows)?) as Box<dyn Columns>);
    converted::open(name, (file.into(), size), of_numpy(name, array)?, metadata, columns)
}

/// Opens an npz file of `size` bytes: a sparse matrix, or dense arrays as `numpy.savez` writes them.
pub(super) fn open_npz(name: &Arc<str>, file: File, size: u64, field: VectorField) -> Result<Opened> {
    let mut archive = NpzArchive::open(name, &file)?;
    let is_sparse = archive.names.iter().any(|name| name == "indptr" || name == "format");
    if is_sparse && !matches!(field, VectorField::Named(_)) {
        let arrays = csr::ARRAYS.map(|array| archive.array(array));
        return csr::open(name, file, size, arrays);
    }
    let names = archive.names.clone();
    let mut arrays = names.iter().map(|array| archive.array(array)).collect::<Result<Vec<_>>>()?;
    let array = arrays.swap_remove(find(name, field, "array", &[EMBEDDINGS, EMBEDDING], &arrays)?);
    let columns = |rows| Ok(Box::new(ChunkCounts::new(name, None, rows)?) as Box<dyn Columns>);
    converted::open(name, (file.into(), size), of_numpy(name, array)?, FileMetadata::default(), columns)
}

/// Opens a safetensors file of `size` bytes: the tensor `embeddings`, or another, and int64 tensors `(N)`
/// that locate chunks.
pub(super) fn open_safetensors(
    name: &Arc<str>,
    (file, size): (File, u64),
    header_length: u64,
    field: VectorField,
) -> Result<Opened> {
    let (tensors, metadata) = read_tensors(name, (&file, size), header_length)?;
    let tensor = &tensors[find(name, field, "tensor", &[EMBEDDINGS], &tensors)?];
    let Some(element) = tensor.element else {
        let (column, found) = (&tensor.name, &tensor.type_name);
        bail!("{name}: tensor {column:?} has the type {found}; convert it to F32, F16, I8 or U8")
    };
    let file = Arc::new(file);
    let columns = |rows: usize| {
        let is_column = |tensor: &&StoredArray| tensor.type_name == "I64" && tensor.shape == [rows];
        let columns = tensors.iter().filter(is_column);
        let columns = columns.map(|tensor| (tensor.name.clone(), tensor.offset)).collect();
        Ok(Box::new(IntegerTensors::new(name.clone(), file.clone(), columns)) as Box<dyn Columns>)
    };
    converted::open(name, (file.clone(), size), (tensor.clone(), element), metadata, columns)
}

/// The index of the array of the vectors.
fn find(name: &str, field: VectorField, noun: &str, own: &[&str], arrays: &[StoredArray]) -> Result<usize> {
    let candidates: Vec<Candidate> = arrays.iter().map(candidate).collect();
    field.find(name, noun, own, &candidates)
}

/// An array, and whether it can be that of dense vectors.
fn candidate(array: &StoredArray) -> Candidate {
    let held = match array.element {
        Some(_) if array.shape.len() == 1 => Held::Ambiguous,
        _ if array.shape.len() != 2 => Held::Other,
        Some(ElementType::I8 | ElementType::U8) => Held::Ambiguous,
        Some(_) => Held::Vectors,
        None => Held::Other,
    };
    Candidate { name: array.name.clone(), type_name: format!("{} {:?}", array.type_name, array.shape), held }
}

/// An array of NumPy with the type of its elements, which has to be one of vectors.
fn of_numpy(name: &str, array: StoredArray) -> Result<(StoredArray, ElementType)> {
    match array.element {
        Some(element) => Ok((array, element)),
        None => bail!(
            "{name} holds elements of type {}, expected f2, f4, f8, i1 or u1; convert the array, for example with \
             .astype(\"float32\")",
            array.type_name
        ),
    }
}
