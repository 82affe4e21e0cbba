//! One file of a checkpoint, and the index of several.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use safetensors::tensor::TensorInfo;
use safetensors::{SafeTensorError, SafeTensors};
use serde_json::Value;

use super::Checkpoint;
use super::entry::Entry;
use super::pickle::PickleError;
use super::pytorch::{TorchFile, TorchTensor, read_tensors};
use crate::sys::mapped_file::MappedFile;
use crate::sys::model_json::read_json_object;
use crate::sys::regular_file;

/// The remedy for PyTorch checkpoints that are not read.
const CONVERT: &str = "if you trust it, convert the model once with transformers (AutoModel.from_pretrained(DIR).save_pretrained(OUT))";
/// Bytes whose checksum is computed at a time.
const CHECKED_BYTES: usize = 1 << 17;

/// Maps one file.
pub(super) fn map_file(path: &Path) -> Result<Checkpoint> {
    let shown = path.display();
    let file = match regular_file::open(path) {
        Ok(file) => file,
        Err(error) => bail!("cannot read {shown} ({error})"),
    };
    let file = match MappedFile::new(path, file) {
        Ok(file) => Arc::new(file),
        Err(error) => bail!("cannot map {shown} into memory ({error})"),
    };
    let bytes = file.as_ref().as_ref();
    let is_pickled = path.extension().is_some_and(|suffix| suffix == "bin" || suffix == "pt");
    let kind = if is_pickled { "a PyTorch checkpoint" } else { "a safetensors file" };
    regular_file::check_not_lfs_pointer(path, bytes, kind)?;
    if is_pickled {
        let entry = |tensor: TorchTensor| Entry {
            dtype: tensor.dtype,
            shape: tensor.shape,
            strides: tensor.strides.map(Arc::from),
            file: file.clone(),
            bytes: tensor.bytes,
        };
        return match read_tensors(bytes) {
            Ok(TorchFile { tensors, checksums }) => Ok(Checkpoint {
                path: path.to_owned(),
                tensors: tensors.into_iter().map(|(name, tensor)| (name, entry(tensor))).collect(),
                checksums: checksums.into_iter().map(|(bytes, crc32)| (file.clone(), bytes, crc32)).collect(),
            }),
            Err(PickleError::Corrupt(reason)) => bail!("{shown} {reason}; download the file again"),
            Err(PickleError::Unsupported(reason)) => bail!("{shown} {reason}; {CONVERT}"),
        };
    }
    let (header, metadata) = match SafeTensors::read_metadata(bytes) {
        Ok(parsed) => parsed,
        Err(error) => bail!("{shown} {}; download the file again", describe(&error, bytes.len())),
    };
    let data = header + size_of::<u64>();
    let entry = |info: &TensorInfo| {
        let (start, end) = info.data_offsets;
        let (shape, bytes) = (info.shape.clone(), data + start..data + end);
        Entry { dtype: info.dtype, shape, strides: None, file: file.clone(), bytes }
    };
    let tensors = metadata.tensors().into_iter().map(|(name, info)| (name, entry(info))).collect();
    Ok(Checkpoint { path: path.to_owned(), tensors, checksums: Vec::new() })
}

/// The shard of each tensor: the `weight_map` of an index.
pub fn read_index(path: &Path) -> Result<BTreeMap<String, String>> {
    let fields = read_json_object(path)?;
    let shard = |(name, shard): (&String, &Value)| {
        let shard = shard.as_str().filter(|shard| !shard.is_empty() && !shard.contains(['/', '\\']))?;
        Some((name.clone(), shard.to_owned()))
    };
    let map = fields.get("weight_map").and_then(Value::as_object);
    match map.and_then(|map| map.iter().map(shard).collect()) {
        Some(index) => Ok(index),
        None => bail!("{} has no \"weight_map\" from tensors to files; fix the file", path.display()),
    }
}

/// Checks that a range of a file has this CRC-32.
pub(super) fn check_sum(file: &MappedFile, bytes: Range<usize>, expected: u32) -> Result<()> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; CHECKED_BYTES.min(bytes.len())];
    for start in bytes.clone().step_by(CHECKED_BYTES) {
        let part = &mut buffer[..CHECKED_BYTES.min(bytes.end - start)];
        file.read(start, part)?;
        hasher.update(part);
    }
    if hasher.finalize() != expected {
        bail!(
            "{} is corrupt: the {} bytes at offset {} do not have the checksum of its zip archive; download the file again",
            file.path().display(),
            bytes.len(),
            bytes.start
        )
    }
    Ok(())
}

/// Why a file is no valid safetensors file: the end of a sentence that begins with its name.
fn describe(error: &SafeTensorError, length: usize) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall => {
            format!("is not a safetensors file: {length} bytes are too few for a header")
        }
        E::HeaderTooLarge => "is not a safetensors file: its header would be over 100 MB long".into(),
        E::InvalidHeaderLength => {
            format!("is truncated: its header is longer than the {length} bytes of the file")
        }
        E::InvalidHeader(_) | E::InvalidHeaderDeserialization(_) | E::JsonError(_) => {
            "is corrupt: its header is not valid JSON".into()
        }
        E::MetadataIncompleteBuffer => {
            format!("is truncated or corrupt: its header describes more or less data than its {length} bytes")
        }
        E::InvalidOffset(name) => {
            format!("is corrupt: tensor {name} does not begin where the one before ends")
        }
        E::TensorInvalidInfo | E::ValidationOverflow | E::MisalignedSlice => {
            "is corrupt: the shape of a tensor does not fit its size in bytes".into()
        }
        _ => "is corrupt: its header is invalid".into(),
    }
}
