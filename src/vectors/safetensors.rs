//! safetensors files: the tensor `embeddings` `(N, D)`, and int64 tensors `(N)` that locate chunks.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Result, bail};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use super::array::{ArrayVectors, Segment};
use super::columns::IntegerTensors;
use super::error::{malformed, no_vectors, truncated};
use super::source::{Opened, RowKind};
use super::width::{checked_width, dimensions_of_int8};
use crate::output::{OutputDtype, OutputMetadata};
use crate::sys::regular_file::read_exact_at;

/// Size of the length of the header in bytes.
const LENGTH_BYTES: u64 = 8;
/// Maximum size of the header in bytes, as in the safetensors library.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const VECTORS: &str = "embeddings";

/// The length of the header of a file that starts with these bytes, if they are those of a safetensors file.
pub(super) fn header_length(start: &[u8], size: u64) -> Option<u64> {
    let (length, rest) = start.split_first_chunk()?;
    let length = u64::from_le_bytes(*length);
    (rest.first() == Some(&b'{') && length <= MAX_HEADER_BYTES.min(size)).then_some(length)
}

/// Reads the header of a file of `size` bytes.
pub(super) fn open(name: &Arc<str>, file: File, size: u64, header_length: u64) -> Result<Opened> {
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
    let only = tensors.values().next().filter(|_| tensors.len() == 1);
    let Some(tensor) = tensors.get(VECTORS).or(only) else {
        return Err(no_vectors(name, "tensor \"embeddings\""));
    };
    let &[rows, width] = &tensor.shape[..] else {
        bail!(
            "{name}: the tensor of the vectors has the shape {:?}, expected (N, D); write one vector per row",
            tensor.shape
        );
    };
    let width = checked_width(name, width as u64)?;
    let metadata: OutputMetadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let (dtype, dimensions) = match tensor.dtype {
        Dtype::F32 => (OutputDtype::F32, width),
        Dtype::F16 => (OutputDtype::F16, width),
        Dtype::I8 => dimensions_of_int8(&metadata, width, false),
        other => {
            bail!("{name}: the tensor of the vectors has the type {other:?}; convert it to F32, F16 or I8")
        }
    };
    let file = Arc::new(file);
    let is_column = |tensor: &TensorInfo| tensor.dtype == Dtype::I64 && tensor.shape == [rows];
    let columns = tensors.iter().filter(|(_, tensor)| is_column(tensor));
    let columns =
        columns.map(|(column, tensor)| (column.clone(), data + tensor.data_offsets.0 as u64)).collect();
    let offset = data + tensor.data_offsets.0 as u64;
    let segments = vec![Segment { rows: 0..rows, offset, scales: None }];
    let columns = IntegerTensors::new(name.clone(), file.clone(), columns);
    let vectors = ArrayVectors::new(name.clone(), file, segments, dtype, dimensions);
    Ok(Opened {
        rows,
        dimensions,
        kind: RowKind::Dense,
        token_numbers: None,
        dtype,
        metadata,
        vectors: Box::new(vectors),
        columns: Box::new(columns),
    })
}
