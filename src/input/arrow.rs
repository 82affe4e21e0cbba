//! Arrow IPC files and streams: the columns that are needed, one record batch at a time.

use std::sync::Arc;

use anyhow::{Error, Result, anyhow};

use super::columns::{Columns, Rows};
use super::limit::ReadLimit;
use super::reader::{InputReader, read_error};
use super::record::{Entry, Fields};
use super::source::{InputPath, Source};
use crate::formats::ReadError;
use crate::formats::arrow::ArrowReader;
use crate::sys::catch_panic::catch_panic;

/// The rows of an input.
pub(super) struct ArrowRows {
    name: Arc<str>,
    is_compressed: bool,
    reader: ArrowReader<'static>,
    columns: Columns,
    limit: ReadLimit,
    /// The rows of the current record batch.
    rows: Option<Rows>,
    /// Rows read so far.
    row: u64,
}

impl ArrowRows {
    /// Reads the schema of an input.
    pub(super) fn open(
        input: InputReader,
        source: &Source,
        fields: &Fields,
        limit: ReadLimit,
    ) -> Result<Self> {
        let (name, is_compressed) = (input.name.clone(), input.compressed_bytes_read.is_some());
        let file = match (&source.path, source.compression) {
            (InputPath::File(path), None) => Some(path.as_path()).zip(source.size()),
            _ => None,
        };
        let reader = ArrowReader::open(input.reader, file, limit.batch_bytes()).map_err(|error| {
            let reason = match error {
                ReadError::Io(error) => return read_error(&name, "at its start", is_compressed, &error),
                ReadError::Malformed(reason) => reason,
                ReadError::TooLarge { bytes, .. } => limit.too_large(bytes, "record batches"),
                ReadError::NoMemory(bytes) => ReadLimit::no_memory(bytes, "record batches"),
            };
            anyhow!("cannot read {name} as Arrow ({reason}); write the file again, or pass --input-format")
        })?;
        let columns = Columns::new(&name, reader.schema(), fields, limit)?;
        let reader = reader.with_columns(columns.projection.clone());
        Ok(ArrowRows { name, is_compressed, reader, columns, limit, rows: None, row: 0 })
    }

    /// Bytes of the input read so far, after decompression; the bytes of a record batch are divided evenly among its
    /// rows.
    pub(super) fn bytes_read(&self) -> u64 {
        let start = self.reader.batch_start();
        let Some(rows) = &self.rows else { return start };
        let batch = u128::from(self.reader.bytes_read() - start);
        start + (batch * rows.rows_read() as u128 / rows.len().max(1) as u128) as u64
    }

    /// Whether the last row was the last one of a record batch that comes through a stream, so that reading the next row may wait
    /// for the writer.
    pub(super) fn ends_stream_batch(&self) -> bool {
        self.reader.is_stream() && self.rows.as_ref().is_some_and(|rows| rows.rows_read() == rows.len())
    }

    /// Reads the next row; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.rows.as_mut().and_then(|rows| rows.read(&self.name, self.row + 1)) {
                self.row += 1;
                return Ok(Some(entry));
            }
            self.rows = None;
            match self.next_rows() {
                Ok(Some(rows)) => self.rows = Some(rows),
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.error(error)),
            }
        }
    }

    /// Reads the next record batch; `None` at the end of the input.
    fn next_rows(&mut self) -> Result<Option<Rows>, ReadError> {
        let Some(batch) = self.reader.next_batch()? else { return Ok(None) };
        let rows = catch_panic(|| Rows::new(&batch, &self.columns));
        Ok(Some(rows.unwrap_or_else(|| Err("the next record batch is damaged".into()))?))
    }

    /// The error for the next record batch, which cannot be read.
    fn error(&self, error: ReadError) -> Error {
        let (name, after) = (&self.name, format!("after row {}", self.row));
        let reason = match error {
            ReadError::Io(error) => return read_error(name, &after, self.is_compressed, &error),
            ReadError::Malformed(reason) => {
                return anyhow!("cannot read {name} {after} ({reason}); write the file again");
            }
            ReadError::TooLarge { bytes, .. } => self.limit.too_large(bytes, "record batches"),
            ReadError::NoMemory(bytes) => ReadLimit::no_memory(bytes, "record batches"),
        };
        anyhow!("{name}: the record batch {after} {reason}")
    }
}
