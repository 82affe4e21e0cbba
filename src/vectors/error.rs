//! Wording that the errors of several formats share.

use std::fmt::Display;

use anyhow::{Error, anyhow};

use super::source::RowKind;
use crate::error::one_line;

/// What to do about a malformed file, as a clause.
pub(super) const REMEDY: &str = "write the file again with sconce embed";

/// The error for a file that is malformed; `reason` is a clause.
pub(super) fn malformed(name: &str, format: &str, reason: impl Display) -> Error {
    anyhow!("cannot read {name} as {format} ({}); {REMEDY}", one_line(&reason))
}

/// The error for a file that is shorter than its header declares.
pub(super) fn truncated(name: &str, expected: u64, found: u64) -> Error {
    anyhow!(
        "{name} is truncated: its header declares {expected} bytes, but it has {found}; write or copy it again"
    )
}

/// The error for a file whose rows are not one dense vector.
pub(super) fn not_dense(name: &str, kind: RowKind) -> Error {
    let (held, pooling) = if kind.is_sparse() {
        ("sparse vectors", "splade or lexical")
    } else {
        (kind.noun(), "multi-vector or none")
    };
    anyhow!("{name} has {held} (--pooling {pooling}); pass a file with one dense vector per row")
}

/// The error for a file with integers, such as signs, in place of the vectors of tokens.
pub(super) fn token_integers(name: &str) -> Error {
    anyhow!(
        "{name} holds the vectors of tokens as integers, which MaxSim does not compare; embed with --output-dtype f32 or f16"
    )
}

/// The error for a row without a vector, where each row needs one.
pub(super) fn no_vector(name: &str, row: usize) -> Error {
    anyhow!("{name}: row {row} has no vector; remove the row, or embed its text")
}

/// The error for a file without vectors.
pub(super) fn no_vectors(name: &str, what: &str) -> Error {
    anyhow!("{name} has no {what}; pass a file that sconce embed wrote")
}
