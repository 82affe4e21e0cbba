//! Parquet files.

mod read;
mod uuid;
pub(super) mod write;

pub use read::{ParquetBatches, ParquetSource, RowChoice, open};
