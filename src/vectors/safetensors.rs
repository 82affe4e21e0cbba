//! safetensors files: the tensor `embeddings` `(N, D)`, or another, and int64 tensors `(N)` that locate chunks.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Result, bail};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::choice::{Candidate, Held, VectorField};
use super::columns::IntegerTensors;
use super::converted::{DenseArray, ElementType};
use super::error::{malformed, truncated};
use super::source::{Columns, Opened};
use crate::rows::OutputMetadata;
use crate::rows::columns::EMBEDDINGS;
use crate::sys::regular_file::read_exact_at;

/// Size of the length of the header in bytes.
const LENGTH_BYTES: u64 = 8;
/// Maximum size of the header in bytes, as in the safetensors library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The length of the header of a file that starts with these bytes, if they are those of a safetensors file.
pub(super) fn header_length(start: &[u8], size: u64) -> Option<u64> {
    let (length, rest) = start.split_first_chunk()?;
    let length = u64::from_le_bytes(*length);
    (rest.first() == Some(&b'{') && length <= MAX_HEADER_BYTES.min(size)).then_some(length)
}

/// Reads the header of a file, which has `size` bytes.
pub(super) fn open(
    name: &Arc<str>,
    (file, size): (File, u64),
    header_length: u64,
    field: VectorField,
) -> Result<Opened> {
    let mut header = vec![0; header_length as usize];
    if read_exact_at(&file, &mut header, LENGTH_BYTES).is_err() {
        return Err(truncated(name, LENGTH_BYTES + header_length, size));
    }
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| malformed(name, "safetensors", error))?;
    let tensors = header.tensors();
    let end = tensors.values().map(|tensor| tensor.data_offsets.1).max().unwrap_or(0) as u64;
    let data = LENGTH_BYTES + header_length;
    if size - data.min(size) < end {
        return Err(truncated(name, data + end, size));
    }
    let tensors: Vec<(&String, &TensorInfo)> = tensors.iter().map(|(name, tensor)| (name, *tensor)).collect();
    let candidates: Vec<Candidate> = tensors.iter().map(|(name, tensor)| candidate(name, tensor)).collect();
    let (column, tensor) = tensors[field.find(name, "tensor", &[EMBEDDINGS], &candidates)?];
    let Some(element) = element(tensor.dtype) else {
        bail!("{name}: tensor {column:?} has the type {:?}; convert it to F32, F16 or I8", tensor.dtype)
    };
    let metadata: OutputMetadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let offset_of = |tensor: &TensorInfo| data + tensor.data_offsets.0 as u64;
    let file = Arc::new(file);
    let columns = |rows: usize| {
        let is_column = |tensor: &TensorInfo| tensor.dtype == Dtype::I64 && tensor.shape == [rows];
        let columns = tensors.iter().filter(|(_, tensor)| is_column(tensor));
        let columns = columns.map(|(column, tensor)| ((*column).clone(), offset_of(tensor))).collect();
        let columns = IntegerTensors::new(name.clone(), file.clone(), columns);
        Ok(Box::new(columns) as Box<dyn Columns>)
    };
    let (shape, offset) = (tensor.shape.clone(), offset_of(tensor));
    let array = DenseArray { shape, element, is_big_endian: false, is_column_major: false, offset };
    array.open(name, (file.clone(), size), metadata, columns)
}

/// The type of elements of vectors.
fn element(dtype: Dtype) -> Option<ElementType> {
    Some(match dtype {
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::Bf16,
        Dtype::F32 => ElementType::F32,
        Dtype::F64 => ElementType::F64,
        Dtype::I8 => ElementType::I8,
        _ => return None,
    })
}

/// A tensor, and whether it can be that of vectors.
fn candidate(name: &str, tensor: &TensorInfo) -> Candidate {
    let held = match element(tensor.dtype) {
        Some(_) if tensor.shape.len() == 1 => Held::Ambiguous,
        _ if tensor.shape.len() != 2 => Held::Other,
        Some(ElementType::I8) => Held::Ambiguous,
        Some(_) => Held::Vectors,
        None => Held::Other,
    };
    Candidate { name: name.into(), type_name: format!("{:?} {:?}", tensor.dtype, tensor.shape), held }
}
