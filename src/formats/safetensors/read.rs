//! Reads the header of a safetensors file.

use std::fs::File;

use anyhow::Result;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};

use crate::formats::error::{malformed, truncated};
use crate::formats::{ElementType, StoredArray};
use crate::rows::FileMetadata;
use crate::sys::regular_file::read_exact_at;

/// Size of the length of the header in bytes.
const LENGTH_BYTES: u64 = 8;
/// Maximum size of the header in bytes, as in the safetensors library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The length of the header of a file of `size` bytes that starts with these, if they are those of a
/// safetensors file.
pub fn header_length(start: &[u8], size: u64) -> Option<u64> {
    let (length, rest) = start.split_first_chunk()?;
    let length = u64::from_le_bytes(*length);
    (rest.first() == Some(&b'{') && length <= MAX_HEADER_BYTES.min(size)).then_some(length)
}

/// Reads the tensors and the metadata of a file of `size` bytes, which has all of their elements.
/// `header_length` is that of [`header_length`].
pub fn read_tensors(
    name: &str,
    (file, size): (&File, u64),
    header_length: u64,
) -> Result<(Vec<StoredArray>, FileMetadata)> {
    let mut header = vec![0; header_length as usize];
    if read_exact_at(file, &mut header, LENGTH_BYTES).is_err() {
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
    let tensor = |(name, tensor): (&String, &&TensorInfo)| StoredArray {
        name: name.clone(),
        shape: tensor.shape.clone(),
        type_name: format!("{:?}", tensor.dtype),
        element: element(tensor.dtype),
        is_big_endian: false,
        is_column_major: false,
        offset: data + tensor.data_offsets.0 as u64,
    };
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    Ok((tensors.iter().map(tensor).collect(), metadata))
}

/// The type of elements of vectors.
fn element(dtype: Dtype) -> Option<ElementType> {
    Some(match dtype {
        Dtype::F16 => ElementType::F16,
        Dtype::BF16 => ElementType::Bf16,
        Dtype::F32 => ElementType::F32,
        Dtype::F64 => ElementType::F64,
        Dtype::I8 => ElementType::I8,
        Dtype::U8 => ElementType::U8,
        _ => return None,
    })
}
