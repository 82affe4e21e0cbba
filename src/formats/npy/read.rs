//! Reads the header of an array, and the metadata beside it.

use std::fs::File;
use std::path::Path;

use anyhow::{Result, anyhow};
use serde_json::Value;

use crate::formats::{ElementType, StoredArray};
use crate::rows::FileMetadata;
use crate::store;
use crate::sys::regular_file::read_exact_at;

/// Maximum size of the header in bytes; numpy's own limit is 10,000.
const MAX_HEADER_BYTES: usize = 1 << 16;

/// Reads the header of the array `name`, which begins at offset `start` of a file.
///
/// # Errors
/// Why it is malformed, as a clause.
pub fn read_array(file: &File, name: &str, start: u64) -> Result<StoredArray, String> {
    let mut first = [0; 12];
    read_exact_at(file, &mut first, start).map_err(|_| "it ends in its header")?;
    let (prefix, length) = match first[6] {
        1 => (10, usize::from(u16::from_le_bytes([first[8], first[9]]))),
        2 | 3 => (12, u32::from_le_bytes([first[8], first[9], first[10], first[11]]) as usize),
        version => return Err(format!("version {version} of the format is not known")),
    };
    if length > MAX_HEADER_BYTES {
        return Err(format!("its header has a length of {length} bytes"));
    }
    let mut header = vec![0; length];
    read_exact_at(file, &mut header, start + prefix).map_err(|_| "it ends in its header")?;
    parse(&String::from_utf8_lossy(&header), name, start + prefix + length as u64)
}

/// Parses a header such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`, which ends at
/// offset `end`.
fn parse(header: &str, name: &str, end: u64) -> Result<StoredArray, String> {
    let value = |key: &str| {
        let (_, rest) = header.split_once(&format!("'{key}':"))?;
        Some(rest.trim_start())
    };
    let descr =
        value("descr").and_then(|rest| rest.strip_prefix('\'')).and_then(|rest| rest.split_once('\''));
    let (descr, _) = descr.ok_or("its header names no single element type")?;
    let order = value("fortran_order").ok_or("its header does not say in which order its elements are")?;
    let shape = value("shape").and_then(|rest| rest.strip_prefix('(')).and_then(|rest| rest.split_once(')'));
    let (shape, _) = shape.ok_or("its header has no shape")?;
    let sizes = shape.split(',').map(str::trim).filter(|size| !size.is_empty());
    let sizes: Option<Vec<usize>> = sizes.map(|size| size.parse().ok()).collect();
    let sizes = sizes.filter(|sizes| sizes.iter().try_fold(1usize, |a, b| a.checked_mul(*b)).is_some());
    let shape = sizes.ok_or_else(|| format!("its shape is ({shape})"))?;
    let (element, is_big_endian) = element(descr);
    Ok(StoredArray {
        name: name.into(),
        shape,
        type_name: descr.into(),
        element,
        is_big_endian,
        is_column_major: order.starts_with("True"),
        offset: end,
    })
}

/// The type of the elements that NumPy names, if they can be those of vectors, and whether they are
/// big-endian.
fn element(descr: &str) -> (Option<ElementType>, bool) {
    let Some((order, element)) = descr.split_at_checked(1) else { return (None, false) };
    let element = match element {
        "f2" => ElementType::F16,
        "f4" => ElementType::F32,
        "f8" => ElementType::F64,
        "i1" => ElementType::I8,
        "u1" => ElementType::U8,
        _ => return (None, false),
    };
    (Some(element), order == ">")
}

/// Reads the metadata of a file `NAME.meta.json`, and the number of chunks of each record if rows are chunks;
/// empty if there is no file.
pub fn read_metadata(path: &Path) -> Result<(FileMetadata, Option<Vec<u64>>)> {
    let fields = store::manifest::load_metadata(path)?.unwrap_or_default();
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
    use super::{ElementType, parse};

    #[test]
    fn headers_of_numpy() {
        let parsed = |descr: &str, order: &str, shape: &str| {
            let header = format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}   \n");
            parse(&header, "a", 128)
        };
        for (descr, order, shape, element, is_big_endian, is_column_major, sizes) in [
            ("'<f4'", "False", "(3, 4)", Some(ElementType::F32), false, false, &[3, 4][..]),
            ("'>f8'", "True", "(3,)", Some(ElementType::F64), true, true, &[3]),
            ("'>f2'", "False", "(3, 4)", Some(ElementType::F16), true, false, &[3, 4]),
            ("'|O'", "False", "(3, 4)", None, false, false, &[3, 4]),
        ] {
            let found = parsed(descr, order, shape).unwrap();
            assert_eq!((found.name.as_str(), found.shape.as_slice(), found.offset), ("a", sizes, 128));
            assert_eq!((found.element, found.is_big_endian), (element, is_big_endian), "{descr}");
            assert_eq!(
                (found.is_column_major, found.type_name.as_str()),
                (is_column_major, descr.trim_matches('\''))
            );
        }
        for (descr, shape) in
            [("'<f4'", "(3, -1)"), ("'<f4'", "(99999999999, 99999999999)"), ("[('a', '<f4')]", "(3, 4)")]
        {
            assert!(parsed(descr, "False", shape).is_err(), "{descr} {shape}");
        }
        for header in ["{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'shape': (3, 4)}", ""] {
            assert!(parse(header, "a", 128).is_err(), "{header}");
        }
    }
}
