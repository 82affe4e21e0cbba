//! Comma-separated values.

mod delimited;
mod read;
pub(super) mod write;

pub use delimited::{Advance, FieldSyntax, Malformation, Row};
pub(super) use read::CsvRows;
pub use read::{CsvFile, CsvStart};
