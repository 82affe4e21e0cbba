//! The number of elements of a vector that a file declares.

use anyhow::{Result, bail};

use crate::formats::error::REMEDY;
use crate::named::Named;
use crate::rows::metadata::Key;
use crate::rows::{FileMetadata, OutputDtype};

/// Maximum stored elements of a dense vector: some hundred of them fit into memory.
const MAX_WIDTH: usize = 1 << 20;
/// What the dimensions of sparse vectors are below.
pub(super) const MAX_SPARSE_DIMENSIONS: usize = 1 << 24;

/// Checks the stored elements of a vector that a header declares, or the first vector has.
pub(super) fn checked_width(name: &str, width: u64) -> Result<usize> {
    match usize::try_from(width) {
        Ok(width @ 1..=MAX_WIDTH) => Ok(width),
        Ok(0) => bail!("{name} holds vectors of 0 elements; {REMEDY}"),
        _ => bail!(
            "{name} declares vectors of {width} elements, more than {MAX_WIDTH}; check that its rows are vectors"
        ),
    }
}

/// The type and the dimensions of vectors with `width` int8 elements: `int8`, or signs if the metadata says
/// so. Without metadata, they are signs if `is_sign`.
pub(super) fn dimensions_of_int8(
    metadata: &FileMetadata,
    width: usize,
    is_sign: bool,
) -> (OutputDtype, usize) {
    let is_sign = match metadata.get(Key::OutputDtype) {
        Some(dtype) => dtype == OutputDtype::Binary.name(),
        None => is_sign,
    };
    if is_sign { (OutputDtype::Binary, 8 * width) } else { (OutputDtype::Int8, width) }
}
