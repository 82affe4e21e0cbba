//! PyTorch checkpoints, `pytorch_model.bin`: a zip archive with the pickle of a state dict, `NAME/data.pkl`, and a file for each
//! storage, `NAME/data/KEY`, neither of them compressed ([torch.save](https://docs.pytorch.org/docs/stable/notes/serialization.html)).

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::ops::Range;

use safetensors::Dtype;
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{PickleError, PickledTensor, read_state_dict};

/// Maximum size of the pickle in bytes: 100 bytes of it are enough for a tensor.
const MAX_PICKLE_BYTES: usize = 8 << 20;

/// A tensor in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TorchTensor {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Its shape, row-major.
    pub shape: Vec<usize>,
    /// The bytes of its elements in the file.
    pub bytes: Range<usize>,
}

/// The tensors of a checkpoint by name.
///
/// # Errors
/// If the file is damaged, holds more than tensors, or has a form that is not read.
pub(super) fn read_tensors(file: &[u8]) -> Result<BTreeMap<String, TorchTensor>, PickleError> {
    use PickleError::{Corrupt, Unsupported};
    if !file.starts_with(b"PK") {
        // The pickle of a magic number, before PyTorch 1.6; with protocol 2.
        return Err(if file.starts_with(&[0x80, 2]) {
            Unsupported("has the format of PyTorch before 1.6, which is not read".into())
        } else {
            Corrupt("is not a PyTorch checkpoint".into())
        });
    }
    let files = entries(file)?;
    let mut pickles = files.iter().filter_map(|(name, bytes)| {
        Some((name.strip_suffix("data.pkl").filter(|folder| folder.ends_with('/'))?, bytes))
    });
    let (Some((folder, pickle)), None) = (pickles.next(), pickles.next()) else {
        return Err(Corrupt("is not a PyTorch checkpoint: it has no data.pkl, or several".into()));
    };
    if pickle.len() > MAX_PICKLE_BYTES {
        let mib = pickle.len() >> 20;
        return Err(Unsupported(format!("has a pickle of {mib} MiB, too large for the names of tensors")));
    }
    if files.get(&format!("{folder}byteorder")).is_some_and(|order| file[order.clone()] != *b"little") {
        return Err(Unsupported("is big-endian, which is not read".into()));
    }
    let tensors = read_state_dict(&file[pickle.clone()])?.into_iter();
    let located = tensors.map(|(name, tensor)| match locate(&tensor, &files, folder) {
        Some(bytes) => Ok((name.to_owned(), TorchTensor { dtype: tensor.dtype, shape: tensor.shape, bytes })),
        None => Err(Corrupt(format!(
            "is corrupt: the storage of tensor {} is missing or too short",
            name.escape_debug()
        ))),
    });
    located.collect()
}

/// The byte range of each file in the archive.
fn entries(file: &[u8]) -> Result<HashMap<String, Range<usize>>, PickleError> {
    let damaged = |_| PickleError::Corrupt("is truncated or corrupt: it is not a whole zip archive".into());
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(damaged)?;
    if archive.has_overlapping_entries().map_err(damaged)? {
        return Err(PickleError::Corrupt("is corrupt: files in its zip archive overlap".into()));
    }
    let mut found = HashMap::with_capacity(archive.len());
    for i in 0..archive.len() {
        let entry = archive.by_index_raw(i).map_err(damaged)?;
        let name = entry.name().map_err(damaged)?.into_owned();
        if entry.compression() != CompressionMethod::Stored || entry.encrypted() {
            return Err(PickleError::Unsupported(format!(
                "has {name:?} compressed or encrypted in its zip archive, as PyTorch does not write it"
            )));
        }
        let start = entry.data_start().and_then(|start| usize::try_from(start).ok());
        let end =
            start.zip(usize::try_from(entry.size()).ok()).and_then(|(start, size)| start.checked_add(size));
        match start.zip(end) {
            Some((start, end)) if end <= file.len() => found.insert(name, start..end),
            _ => {
                return Err(PickleError::Corrupt(
                    "is truncated: a file in its zip archive ends behind it".into(),
                ));
            }
        };
    }
    Ok(found)
}

/// The bytes of a tensor in the file; `None` if its storage is missing or too short.
fn locate(
    tensor: &PickledTensor<'_>,
    files: &HashMap<String, Range<usize>>,
    folder: &str,
) -> Option<Range<usize>> {
    let storage = files.get(&format!("{folder}data/{}", tensor.storage))?;
    let size = tensor.dtype.bitsize() / 8;
    let start = storage.start.checked_add(tensor.offset.checked_mul(size)?)?;
    let end = start.checked_add(tensor.elements.checked_mul(size)?)?;
    (end <= storage.end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_read() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pytorch/dtypes.bin");
        let file = std::fs::read(path).unwrap();
        let tensors = read_tensors(&file).unwrap();
        // The second row of [[0, 1, 2], [3, 4, 5]].
        let expected: [(&str, Dtype, Vec<u8>); 10] = [
            ("float32", Dtype::F32, [3f32, 4.0, 5.0].map(f32::to_le_bytes).concat()),
            ("float64", Dtype::F64, [3f64, 4.0, 5.0].map(f64::to_le_bytes).concat()),
            ("float16", Dtype::F16, [3f32, 4.0, 5.0].map(|x| half::f16::from_f32(x).to_le_bytes()).concat()),
            (
                "bfloat16",
                Dtype::BF16,
                [3f32, 4.0, 5.0].map(|x| half::bf16::from_f32(x).to_le_bytes()).concat(),
            ),
            ("int64", Dtype::I64, [3i64, 4, 5].map(i64::to_le_bytes).concat()),
            ("int32", Dtype::I32, [3i32, 4, 5].map(i32::to_le_bytes).concat()),
            ("int16", Dtype::I16, [3i16, 4, 5].map(i16::to_le_bytes).concat()),
            ("int8", Dtype::I8, vec![3, 4, 5]),
            ("uint8", Dtype::U8, vec![3, 4, 5]),
            ("bool", Dtype::BOOL, vec![1, 1, 1]),
        ];
        assert_eq!(tensors.len(), expected.len());
        for (name, dtype, bytes) in expected {
            let tensor = &tensors[name];
            assert_eq!((tensor.dtype, &tensor.shape[..]), (dtype, &[1, 3][..]), "{name}");
            assert_eq!(file[tensor.bytes.clone()], bytes, "{name}");
        }
    }
}
