//! npy files: an array `(N, D)`, or `(D,)` for one vector ([NEP 1](https://numpy.org/neps/nep-0001-npy-format.html)). What is known about the vectors is in the
//! file `NAME.meta.json` beside it, if there is one.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use super::choice::VectorField;
use super::columns::ChunkCounts;
use super::converted::{DenseArray, ElementType};
use super::error::malformed;
use super::source::{Columns, Opened};
use crate::rows::OutputMetadata;
use crate::store;
use crate::sys::regular_file;

/// Maximum size of the header in bytes; numpy's own limit is 10,000.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Reads the header of a file, which has `size` bytes.
pub(super) fn open(
    path: &Path,
    name: &Arc<str>,
    (file, size): (File, u64),
    field: VectorField,
) -> Result<Opened> {
    field.check_unnamed(name, "npy")?;
    let header = Header::read(&file, 0).map_err(|reason| malformed(name, "npy", reason))?;
    let (metadata, chunks) = sidecar(path)?;
    let columns = |rows| Ok(Box::new(ChunkCounts::new(name, chunks, rows)?) as Box<dyn Columns>);
    header.dense_array(name)?.open(name, (file.into(), size), metadata, columns)
}

/// The header of an array.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Type of the elements, as NumPy names it.
    pub descr: String,
    is_column_major: bool,
    pub shape: Vec<usize>,
    /// Offset of the first element in the file, in bytes.
    pub end: u64,
}

impl Header {
    /// Reads the header of an array that begins at `start`.
    ///
    /// # Errors
    /// Why it is malformed, as a clause.
    pub(super) fn read(file: &File, start: u64) -> Result<Self, String> {
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
        regular_file::read_exact_at(file, &mut header, start + prefix)
            .map_err(|_| "it ends in its header")?;
        Self::parse(&String::from_utf8_lossy(&header), start + prefix + length as u64)
    }

    /// Parses a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
    fn parse(header: &str, end: u64) -> Result<Self, String> {
        let value = |key: &str| {
            let (_, rest) = header.split_once(&format!("'{key}':"))?;
            Some(rest.trim_start())
        };
        let descr =
            value("descr").and_then(|rest| rest.strip_prefix('\'')).and_then(|rest| rest.split_once('\''));
        let (descr, _) = descr.ok_or("its header names no single element type")?;
        let order =
            value("fortran_order").ok_or("its header does not say in which order its elements are")?;
        let shape =
            value("shape").and_then(|rest| rest.strip_prefix('(')).and_then(|rest| rest.split_once(')'));
        let (shape, _) = shape.ok_or("its header has no shape")?;
        let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
        let sizes: Option<Vec<usize>> = sizes.map(|size| size.parse().ok()).collect();
        let sizes = sizes.filter(|sizes| sizes.iter().try_fold(1usize, |a, b| a.checked_mul(*b)).is_some());
        let shape = sizes.ok_or_else(|| format!("its shape is ({shape})"))?;
        Ok(Header { descr: descr.into(), is_column_major: order.starts_with("True"), shape, end })
    }

    /// The type of the elements, if they can be those of vectors, and whether they are big-endian.
    pub(super) fn element(&self) -> Option<(ElementType, bool)> {
        let (order, element) = self.descr.split_at_checked(1)?;
        let element = match element {
            "f2" => ElementType::F16,
            "f4" => ElementType::F32,
            "f8" => ElementType::F64,
            "i1" => ElementType::I8,
            _ => return None,
        };
        Some((element, order == ">"))
    }

    /// The array of the header.
    pub(super) fn dense_array(self, name: &str) -> Result<DenseArray> {
        let Some((element, is_big_endian)) = self.element() else {
            bail!(
                "{name} holds elements of type {}, expected f2, f4, f8 or i1; convert the array, for example with \
                 .astype(\"float32\")",
                self.descr
            )
        };
        let Header { shape, is_column_major, end: offset, .. } = self;
        Ok(DenseArray { shape, element, is_big_endian, is_column_major, offset })
    }
}

/// The metadata of `NAME.meta.json`, and the number of chunks of each record.
fn sidecar(path: &Path) -> Result<(OutputMetadata, Option<Vec<u64>>)> {
    let mut meta = path.as_os_str().to_owned();
    meta.push(".meta.json");
    let path = Path::new(&meta);
    let Some(fields) = store::manifest::load_metadata(path)? else {
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
    use super::{ElementType, Header};

    #[test]
    fn headers_of_numpy() {
        let parsed = |descr: &str, order: &str, shape: &str| {
            let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}   \n");
            Header::parse(&header, 128)
        };
        let header = |descr: &str, is_column_major, shape: &[usize]| {
            Ok(Header { descr: descr.into(), is_column_major, shape: shape.into(), end: 128 })
        };
        assert_eq!(parsed("'<f4'", "False", "(3, 4)"), header("<f4", false, &[3, 4]));
        assert_eq!(parsed("'>f8'", "True", "(3,)"), header(">f8", true, &[3]));
        let big_endian = parsed("'>f2'", "False", "(3, 4)").unwrap();
        assert_eq!(big_endian.element(), Some((ElementType::F16, true)));
        assert_eq!(parsed("'|O'", "False", "(3, 4)").unwrap().element(), None);
        for (descr, shape) in
            [("'<f4'", "(3, -1)"), ("'<f4'", "(99999999999, 99999999999)"), ("[('a', '<f4')]", "(3, 4)")]
        {
            assert!(parsed(descr, "False", shape).is_err(), "{descr} {shape}");
        }
        for header in ["{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'shape': (3, 4)}", ""] {
            assert!(Header::parse(header, 128).is_err(), "{header}");
        }
    }
}
