//! npy files: an array `(N, D)` ([NEP 1](https://numpy.org/neps/nep-0001-npy-format.html)). What is known about the vectors is in the
//! file `NAME.meta.json` beside it, if there is one.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::array::{ArrayVectors, Segment};
use super::columns::ChunkCounts;
use super::error::{malformed, truncated};
use super::source::{Opened, RowKind};
use super::width::{checked_width, dimensions_of_int8};
use crate::output::{self, OutputDtype, OutputMetadata};
use crate::sys::regular_file;

/// The magic number of the format.
pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
/// Maximum size of the header in bytes; numpy's own limit is 10,000.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Reads the header of a file of `size` bytes.
pub(super) fn open(path: &Path, name: &Arc<str>, file: File, size: u64) -> Result<Opened> {
    let malformed = |reason: &str| malformed(name, "npy", reason);
    let (descr, shape, offset) = read_header(&file, 0).map_err(|reason| malformed(&reason))?;
    let [rows, width] = shape[..] else {
        let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
        let sizes = if let [size] = &sizes[..] { format!("{size},") } else { sizes.join(", ") };
        return Err(malformed(&format!("its shape is ({sizes}), expected (N, D): one vector per row")));
    };
    let width = checked_width(name, width as u64)?;
    let (metadata, chunks) = sidecar(path)?;
    let (dtype, dimensions) = match &*descr {
        "<f4" => (OutputDtype::F32, width),
        "<f2" => (OutputDtype::F16, width),
        "|i1" => dimensions_of_int8(&metadata, width, false),
        other => bail!(
            "{name} holds elements of type {other}, expected <f4, <f2 or |i1; convert the array, for example with .astype(\"float32\")"
        ),
    };
    let bytes = (rows as u64).checked_mul((width * dtype.element_bytes()) as u64);
    let expected = bytes.and_then(|bytes| bytes.checked_add(offset)).unwrap_or(u64::MAX);
    if size < expected {
        return Err(truncated(name, expected, size));
    }
    let segments = vec![Segment { rows: 0..rows, offset, scales: None }];
    let vectors = ArrayVectors::new(name.clone(), file.into(), segments, dtype, dimensions);
    let columns = ChunkCounts::new(name, chunks, rows)?;
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

/// The element type, the shape and the size in bytes of the header of an array that begins at `start`.
pub(super) fn read_header(file: &File, start: u64) -> Result<(String, Vec<usize>, u64), String> {
    let mut first = [0; 12];
    regular_file::read_exact_at(file, &mut first, start).map_err(|_| "it ends in its header")?;
    let (prefix, length) = match first[6] {
        1 => (10, usize::from(u16::from_le_bytes([first[8], first[9]]))),
        2 | 3 => (12, u32::from_le_bytes([first[8], first[9], first[10], first[11]]) as usize),
        version => return Err(format!("version {version} of the format is not known")),
    };
    if length > MAX_HEADER_BYTES {
        return Err(format!("its header has a length of {length} bytes"));
    }
    let mut header = vec![0; length];
    regular_file::read_exact_at(file, &mut header, start + prefix).map_err(|_| "it ends in its header")?;
    let (descr, shape) = parse_header(&String::from_utf8_lossy(&header))?;
    Ok((descr, shape, prefix + length as u64))
}

/// The element type and the shape in a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn parse_header(header: &str) -> Result<(String, Vec<usize>), String> {
    let value = |key: &str| {
        let (_, rest) = header.split_once(&format!("'{key}':"))?;
        Some(rest.trim_start())
    };
    let descr =
        value("descr").and_then(|rest| rest.strip_prefix('\'')).and_then(|rest| rest.split_once('\''));
    let (descr, _) = descr.ok_or("its header names no single element type")?;
    if !value("fortran_order").is_some_and(|rest| rest.starts_with("False")) {
        return Err("its rows are not consecutive: it is in Fortran order".into());
    }
    let shape = value("shape").and_then(|rest| rest.strip_prefix('(')).and_then(|rest| rest.split_once(')'));
    let (shape, _) = shape.ok_or("its header has no shape")?;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let sizes: Option<Vec<usize>> = sizes.map(|size| size.parse().ok()).collect();
    let sizes = sizes.filter(|sizes| sizes.iter().try_fold(1usize, |a, b| a.checked_mul(*b)).is_some());
    Ok((descr.into(), sizes.ok_or_else(|| format!("its shape is ({shape})"))?))
}

/// The metadata of `NAME.meta.json`, and the number of chunks of each record.
fn sidecar(path: &Path) -> Result<(OutputMetadata, Option<Vec<u64>>)> {
    let mut meta = path.as_os_str().to_owned();
    meta.push(".meta.json");
    let path = Path::new(&meta);
    let Some(fields) = output::manifest::load_metadata(path)? else {
        return Ok((OutputMetadata::new(), None));
    };
    let chunks = fields.get("chunks").map(|chunks| serde_json::from_value(chunks.clone())).transpose();
    let chunks = chunks.map_err(|error| {
        anyhow!("cannot read {} (its chunks are no counts: {error}); remove or restore it", path.display())
    })?;
    let strings = fields.into_iter().filter_map(|(key, value)| match value {
        Value::String(value) => Some((key, value)),
        _ => None,
    });
    Ok((strings.collect(), chunks))
}

#[cfg(test)]
mod tests {
    use super::parse_header;

    #[test]
    fn headers_of_numpy() {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }   \n";
        assert_eq!(parse_header(header), Ok(("<f4".into(), vec![3, 4])));
        let one = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        assert_eq!(parse_header(one), Ok(("<f4".into(), vec![3])));
        let refused = [
            "{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (3, -1), }",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999, 99999999999), }",
            "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3, 4), }",
            "{'descr': '<f4', 'fortran_order': False}",
            "",
        ];
        for header in refused {
            assert!(parse_header(header).is_err(), "{header}");
        }
    }
}
