//! Parquet files.

mod read;
pub(super) mod write;

pub use read::{ParquetBatches, ParquetSource, RowChoice, open};
