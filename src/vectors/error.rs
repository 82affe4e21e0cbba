//! Wording that the errors of several formats share. A file may be of any software.

use anyhow::{Error, anyhow};

/// The formats of vector files, as a clause that says what to pass.
pub(super) const PASS_VECTORS: &str =
    "pass a file of vectors: npy, npz, safetensors, arrow, parquet, jsonl or csv";

/// The error for a file with integers, such as signs, in place of the vectors of tokens.
pub(super) fn token_integers(name: &str) -> Error {
    anyhow!(
        "{name} holds the vectors of tokens as integers, which MaxSim does not compare; write them as floats (embed: --output-dtype f32 or f16)"
    )
}

/// The error for a row without a vector, where each row needs one.
pub(super) fn no_vector(name: &str, row: usize) -> Error {
    anyhow!("{name}: row {row} has no vector; remove the row, or add its vector")
}

/// The error for a vector of another length than the first one.
pub(super) fn wrong_width(name: &str, row: usize, found: usize, expected: usize) -> Error {
    anyhow!(
        "{name}: the vector of row {row} has {found} elements, expected {expected} as in the first one; remove the row, or \
         correct it"
    )
}

/// The error for a field that a file has more than once; `option` chooses another.
pub(super) fn has_several(name: &str, noun: &str, field: &str, count: usize, option: &str) -> Error {
    anyhow!("{name} has {count} {noun}s {field:?}; rename one of them, or choose another with {option}")
}
