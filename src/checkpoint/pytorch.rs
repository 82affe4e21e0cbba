//! PyTorch checkpoints, `pytorch_model.bin`: a zip archive with the pickle of a state dict, `NAME/data.pkl`,
//! and a file for each storage, `NAME/data/KEY`, neither of them compressed
//! ([torch.save](https://docs.pytorch.org/docs/stable/notes/serialization.html)). Before PyTorch 1.6: pickles
//! of a number, a version, the machine, the state dict and the names of the storages, then the storages.

use std::collections::{BTreeMap, HashMap};
use std::io::Cursor;
use std::ops::Range;

use safetensors::Dtype;
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{
    PickleError, PickledTensor, StateDict, is_legacy, read_legacy_header, read_state_dict, read_texts,
};

/// Maximum size of the pickle in bytes: 100 bytes of it are enough for a tensor.
const MAX_PICKLE_BYTES: usize = 8 << 20;
/// Values of the pickle that a file of any size may have, and bytes of the file for each further one: a
/// tensor takes about 35 values, and in the file more than 500 bytes with its name, its entry in the archive
/// and its elements.
const MIN_VALUES: usize = 1 << 16;
const BYTES_PER_VALUE: usize = 16;

/// A tensor in a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TorchTensor {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The distance of consecutive elements along each axis, in elements; `None` for row-major order without
    /// gaps.
    pub strides: Option<Vec<usize>>,
    /// The bytes in the file from its first element to its last one.
    pub bytes: Range<usize>,
}

/// The tensors of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct TorchFile {
    /// The tensors by name.
    pub tensors: BTreeMap<String, TorchTensor>,
    /// The byte ranges of the storages with their CRC-32, if the file has checksums.
    pub checksums: Vec<(Range<usize>, u32)>,
}

/// Reads where the tensors of a checkpoint are.
pub(super) fn read_tensors(file: &[u8]) -> Result<TorchFile, PickleError> {
    use PickleError::{Corrupt, Unsupported};
    if is_legacy(file) {
        return read_legacy(file);
    }
    if !file.starts_with(b"PK") {
        return Err(Corrupt("is not a PyTorch checkpoint".into()));
    }
    let files = entries(file)?;
    let mut pickles = files.iter().filter_map(|(name, file)| {
        Some((name.strip_suffix("data.pkl").filter(|folder| folder.ends_with('/'))?, &file.bytes))
    });
    let (Some((folder, pickle)), None) = (pickles.next(), pickles.next()) else {
        return Err(Corrupt("is not a PyTorch checkpoint: it has no data.pkl, or several".into()));
    };
    if pickle.len() > MAX_PICKLE_BYTES {
        let mib = pickle.len() >> 20;
        return Err(Unsupported(format!("has a pickle of {mib} MiB, too large for the names of tensors")));
    }
    if files.get(&format!("{folder}byteorder")).is_some_and(|order| file[order.bytes.clone()] != *b"little") {
        return Err(Unsupported("is big-endian, which is not read".into()));
    }
    let StateDict { tensors, .. } = read_state_dict(&file[pickle.clone()], max_values(file))?;
    let located =
        locate_all(tensors, |storage| Some(files.get(&format!("{folder}data/{storage}"))?.bytes.clone()))?;
    // torch.save writes 0 if it is told to leave checksums out.
    let checksums = files.into_values().filter(|file| file.crc32 != 0);
    Ok(TorchFile { tensors: located, checksums: checksums.map(|file| (file.bytes, file.crc32)).collect() })
}

/// The values that the pickles of a file may have.
fn max_values(file: &[u8]) -> usize {
    MIN_VALUES + file.len() / BYTES_PER_VALUE
}

/// Reads where the tensors are in a file of PyTorch before 1.6, which has no checksums.
fn read_legacy(file: &[u8]) -> Result<TorchFile, PickleError> {
    let header = read_legacy_header(file)?;
    if !header.is_little_endian {
        return Err(PickleError::Unsupported("is big-endian, which is not read".into()));
    }
    // The sizes of the pickles are not in the file.
    let start_of = |bytes: &[u8]| file.len() - bytes.len();
    let pickle = |bytes: &'_ [u8]| -> Range<usize> {
        let start = start_of(bytes);
        start..file.len().min(start + MAX_PICKLE_BYTES)
    };
    let whole = |after: &[u8], range: Range<usize>| &file[range.end - after.len()..];
    let range = pickle(header.rest);
    let StateDict { tensors, storages, rest } = read_state_dict(&file[range.clone()], max_values(file))?;
    let range = pickle(whole(rest, range));
    let (names, rest) = read_texts(&file[range.clone()], max_values(file))?;
    let mut rest = whole(rest, range);
    let truncated = || PickleError::Corrupt("is truncated: a storage ends behind it".into());
    let mut found = HashMap::with_capacity(names.len());
    for name in names {
        let Some((size, elements)) = storages.get(name) else {
            return Err(PickleError::Corrupt(format!(
                "is corrupt: the storage {:?} is of no tensor",
                name.chars().take(60).collect::<String>()
            )));
        };
        let (count, data) = rest.split_first_chunk().ok_or_else(truncated)?;
        if u64::from_le_bytes(*count) != *elements as u64 {
            return Err(PickleError::Corrupt(
                "is corrupt: a storage has another size than its tensors say".into(),
            ));
        }
        let length =
            elements.checked_mul(*size).filter(|length| *length <= data.len()).ok_or_else(truncated)?;
        let start = start_of(data);
        found.insert(name, start..start + length);
        rest = &data[length..];
    }
    let tensors = locate_all(tensors, |storage| found.get(storage).cloned())?;
    Ok(TorchFile { tensors, checksums: Vec::new() })
}

/// A file in a zip archive.
struct ZippedFile {
    bytes: Range<usize>,
    crc32: u32,
}

/// The files in the archive.
fn entries(file: &[u8]) -> Result<HashMap<String, ZippedFile>, PickleError> {
    let damaged = |_| PickleError::Corrupt("is truncated or corrupt: it is not a whole zip archive".into());
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(damaged)?;
    if archive.has_duplicate_names() {
        return Err(PickleError::Corrupt("is corrupt: its zip archive has two files of one name".into()));
    }
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
            Some((start, end)) if end <= file.len() => {
                found.insert(name, ZippedFile { bytes: start..end, crc32: entry.crc32() })
            }
            _ => {
                return Err(PickleError::Corrupt(
                    "is truncated: a file in its zip archive ends behind it".into(),
                ));
            }
        };
    }
    Ok(found)
}

/// Finds tensors in their storages, by the byte range of each.
fn locate_all(
    tensors: BTreeMap<&str, PickledTensor<'_>>,
    storage: impl Fn(&str) -> Option<Range<usize>>,
) -> Result<BTreeMap<String, TorchTensor>, PickleError> {
    let located = tensors.into_iter().map(|(name, tensor)| {
        match storage(tensor.storage).and_then(|storage| locate(&tensor, storage)) {
            Some(bytes) => {
                let PickledTensor { dtype, shape, strides, .. } = tensor;
                Ok((name.to_owned(), TorchTensor { dtype, shape, strides, bytes }))
            }
            None => Err(PickleError::Corrupt(format!(
                "is corrupt: the storage of tensor {} is missing or too short",
                name.escape_debug()
            ))),
        }
    });
    located.collect()
}

/// The bytes of a tensor in the file; `None` if its storage is too short.
fn locate(tensor: &PickledTensor<'_>, storage: Range<usize>) -> Option<Range<usize>> {
    let size = tensor.dtype.bitsize() / 8;
    let start = storage.start.checked_add(tensor.offset.checked_mul(size)?)?;
    let end = start.checked_add(tensor.span.checked_mul(size)?)?;
    (end <= storage.end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_dtype_is_read() {
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
        for file in ["dtypes.bin", "legacy-dtypes.bin"] {
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/pytorch/");
            let file = std::fs::read(format!("{path}{file}")).unwrap();
            let tensors = read_tensors(&file).unwrap().tensors;
            assert_eq!(tensors.len(), expected.len());
            for (name, dtype, bytes) in &expected {
                let tensor = &tensors[*name];
                assert_eq!((tensor.dtype, &tensor.shape[..]), (*dtype, &[1, 3][..]), "{name}");
                assert_eq!(file[tensor.bytes.clone()], **bytes, "{name}");
            }
        }
    }
}
