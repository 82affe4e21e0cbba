//! Wording that the errors of several formats share. A file may be of any software.

use std::fmt::Display;

use anyhow::{Error, anyhow};

use crate::error::one_line;

/// What to do about a malformed file, as a clause.
pub(super) const REMEDY: &str = "copy it again, or write it again with the program that made it";

/// The formats of vector files, as a clause that says what to pass.
pub(super) const PASS_VECTORS: &str =
    "pass a file of vectors: npy, npz, safetensors, arrow, parquet, jsonl or csv";

/// The error for a file that is malformed; `reason` is a clause.
pub(super) fn malformed(name: &str, format: &str, reason: impl Display) -> Error {
    anyhow!("cannot read {name} as {format} ({}); {REMEDY}", one_line(&reason))
}

/// The error for a file that cannot be read at an offset that it had before.
pub(super) fn unread(name: &str, error: &std::io::Error) -> Error {
    anyhow!("cannot read {name} ({}); check the file, or copy it again", one_line(error))
}

/// The error for a file that is shorter than its header declares.
pub(super) fn truncated(name: &str, expected: u64, found: u64) -> Error {
    anyhow!("{name} is truncated: its header declares {expected} bytes, but it has {found}; {REMEDY}")
}

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
