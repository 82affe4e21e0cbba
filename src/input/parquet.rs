//! Parquet files: the columns that are needed, decoded a few hundred rows at a time.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Error, Result, anyhow};

use super::columns::{Columns, Rows};
use super::error::cannot_open;
use super::limit::ReadLimit;
use super::record::{Entry, Fields};
use crate::formats::parquet::{ParquetBatches, RowChoice};
use crate::formats::{self, ReadError};
use crate::sys::catch_panic::catch_panic;

/// Maximum number of rows that are decoded at a time.
const MAX_ROWS: usize = 256;
/// Maximum size of the rows that are decoded at a time, in bytes, unless one row is larger.
const MAX_BATCH_BYTES: u64 = 16 << 20;
const REMEDY: &str = "write the file again, or pass --input-format";

/// The rows of a file.
pub(super) struct ParquetRows {
    name: Arc<str>,
    columns: Columns,
    batches: ParquetBatches,
    limit: ReadLimit,
    rows: Option<Rows>,
    /// Rows read so far.
    row: u64,
    /// Rows of the file.
    total: u64,
    /// The size of the file, in bytes.
    size: u64,
}

impl ParquetRows {
    /// Reads the metadata of a file.
    pub(super) fn open(path: &Path, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let file = File::open(path).map_err(|error| cannot_open(path, &error))?;
        let source = formats::parquet::open(&name, file, REMEDY)?.with_max_bytes(limit.page_bytes());
        let total = source.metadata().file_metadata().num_rows();
        let total = u64::try_from(total).map_err(|_| {
            anyhow!("cannot read {name} as Parquet (its footer declares {total} rows); {REMEDY}")
        })?;
        let columns = Columns::new(&name, &source.schema_with_uuids(), fields, limit)?;
        let max_bytes = MAX_BATCH_BYTES.min(limit.batch_bytes());
        let rows = source.batch_rows(&columns.projection, MAX_ROWS, max_bytes);
        let batches = source.batches(&columns.projection, RowChoice::All, rows)?;
        Ok(ParquetRows { name, columns, batches, limit, rows: None, row: 0, total, size: source.size() })
    }

    /// Bytes of the file read so far, estimated from the number of rows.
    pub(super) fn bytes_read(&self) -> u64 {
        let part = u128::from(self.size) * u128::from(self.row) / u128::from(self.total.max(1));
        part.min(self.size.into()) as u64
    }

    /// Reads the next row; `None` at the end of the file.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.rows.as_mut().and_then(|rows| rows.read(&self.name, self.row + 1)) {
                self.row += 1;
                return Ok(Some(entry));
            }
            self.rows = None;
            let error = match self.next_rows() {
                Ok(Some(rows)) => {
                    self.rows = Some(rows);
                    continue;
                }
                Ok(None) if self.row == self.total => return Ok(None),
                Ok(None) => format!("it ends here, but its footer declares {} rows", self.total).into(),
                Err(error) => error,
            };
            return Err(self.error(error));
        }
    }

    /// The error for the next rows, which cannot be read.
    fn error(&self, error: ReadError) -> Error {
        let (name, after) = (&self.name, format!("after row {}", self.row));
        let reason = match error {
            ReadError::Io(error) => return anyhow!("cannot read {name} {after} ({error}); check the file"),
            ReadError::Malformed(reason) => {
                return anyhow!("cannot read {name} {after} ({reason}); write the file again");
            }
            ReadError::TooLarge { bytes, .. } => self.limit.too_large(bytes, "row groups"),
            ReadError::NoMemory(bytes) => ReadLimit::no_memory(bytes, "row groups"),
        };
        anyhow!("{name}: the page {after} {reason}")
    }

    /// Decodes the next rows; `None` at the end of the file.
    fn next_rows(&mut self) -> Result<Option<Rows>, ReadError> {
        let Some(batch) = self.batches.next_batch()? else { return Ok(None) };
        let rows = catch_panic(|| Rows::new(&batch, &self.columns));
        Ok(Some(rows.unwrap_or_else(|| Err("the next rows are damaged".into()))?))
    }
}
