//! The number of elements of a vector that a file declares.

use anyhow::{Result, bail};

use crate::named::Named;
use crate::output::{OutputDtype, OutputMetadata};

/// Maximum stored elements of a vector: the sizes of a few vectors in bytes are far from overflowing.
pub(super) const MAX_WIDTH: usize = 1 << 24;

/// Checks the stored elements of a vector that a header declares.
pub(super) fn checked_width(name: &str, width: u64) -> Result<usize> {
    match usize::try_from(width) {
        Ok(width @ 1..=MAX_WIDTH) => Ok(width),
        _ => bail!("{name} declares vectors of {width} elements; write the file again"),
    }
}

/// The type and the dimensions of vectors with `width` int8 elements: `int8`, or signs if the metadata says so. Without metadata, they
/// are signs if `is_sign`.
pub(super) fn dimensions_of_int8(
    metadata: &OutputMetadata,
    width: usize,
    is_sign: bool,
) -> (OutputDtype, usize) {
    let is_sign = match metadata.get("output_dtype") {
        Some(dtype) => dtype == OutputDtype::Binary.name(),
        None => is_sign,
    };
    if is_sign { (OutputDtype::Binary, 8 * width) } else { (OutputDtype::Int8, width) }
}
