//! Parquet and Arrow inputs: the columns that are needed, a few hundred rows or one record batch at a time.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Error, Result, anyhow};
use arrow_array::RecordBatch;

use super::columns::{Columns, FieldMetadata, Rows};
use super::error::cannot_open;
use super::limit::ReadLimit;
use super::reader::{InputReader, read_error};
use super::record::{Entry, Fields};
use super::source::Source;
use crate::formats::ReadError;
use crate::formats::arrow::ArrowReader;
use crate::formats::parquet::{ParquetBatches, RowChoice, open};
use crate::sys::catch_panic::catch_panic;
use crate::sys::regular_file;

/// Maximum number of rows of a Parquet file that are decoded at a time.
const MAX_ROWS: usize = 256;
/// Maximum size of these rows, in bytes, unless one row is larger.
const MAX_BATCH_BYTES: u64 = 16 << 20;
const REMEDY: &str = "write the file again, or pass --input-format";

/// The rows of an input.
pub(super) struct BatchRows {
    name: Arc<str>,
    is_compressed: bool,
    batches: Batches,
    columns: Columns,
    limit: ReadLimit,
    /// The rows of the current batch.
    rows: Option<Rows>,
    /// Rows read so far.
    row: u64,
}

/// The batches of an input.
enum Batches {
    Parquet {
        batches: Box<ParquetBatches>,
        /// Rows of the file.
        total: u64,
        /// The size of the file, in bytes.
        size: u64,
    },
    Arrow(Box<ArrowReader<'static>>),
}

impl Batches {
    /// Reads the next batch; `None` at the end. `row`: the rows before it.
    fn next(&mut self, row: u64) -> Result<Option<RecordBatch>, ReadError> {
        match self {
            Batches::Parquet { batches, total, .. } => match batches.next_batch()? {
                None if row != *total => {
                    Err(format!("it ends here, but its footer declares {total} rows").into())
                }
                batch => Ok(batch),
            },
            Batches::Arrow(reader) => reader.next_batch(),
        }
    }

    fn nouns(&self) -> &'static Nouns {
        match self {
            Batches::Parquet { .. } => &PARQUET,
            Batches::Arrow(_) => &ARROW,
        }
    }
}

/// What messages call the rows of a format.
struct Nouns {
    /// What is read at a time.
    part: &'static str,
    /// The units that a file is written in.
    units: &'static str,
    /// The next rows, with a verb.
    next_are: &'static str,
}

const PARQUET: Nouns = Nouns { part: "page", units: "row groups", next_are: "rows are" };
const ARROW: Nouns = Nouns { part: "record batch", units: "record batches", next_are: "record batch is" };

impl BatchRows {
    /// Reads the metadata of a Parquet file.
    pub(super) fn open_parquet(path: &Path, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let file = regular_file::open(path).map_err(|error| cannot_open(path, &error))?;
        let source = open(&name, file, REMEDY)?.with_max_bytes(limit.page_bytes());
        let total = source.footer().file_metadata().num_rows();
        let total = u64::try_from(total).map_err(|_| {
            anyhow!("cannot read {name} as Parquet (its footer declares {total} rows); {REMEDY}")
        })?;
        let columns = Columns::new(&name, &source.schema_with_uuids(), fields, limit)?;
        let max_bytes = MAX_BATCH_BYTES.min(limit.batch_bytes());
        let rows = source.batch_rows(&columns.projection, MAX_ROWS, max_bytes);
        let batches = Box::new(source.read(&columns.projection, RowChoice::All, rows)?);
        let batches = Batches::Parquet { batches, total, size: source.size() };
        Ok(BatchRows { name, is_compressed: false, batches, columns, limit, rows: None, row: 0 })
    }

    /// Reads the schema of an Arrow file or stream.
    pub(super) fn open_arrow(
        input: InputReader,
        source: &Source,
        fields: &Fields,
        limit: ReadLimit,
    ) -> Result<Self> {
        let (name, is_compressed) = (input.name.clone(), input.compressed_bytes_read.is_some());
        let file = source.uncompressed_file();
        let reader =
            ArrowReader::open(input.reader, file, limit.batch_bytes()).map_err(|error| match error {
                ReadError::Malformed(reason) => anyhow!("cannot read {name} as Arrow ({reason}); {REMEDY}"),
                error => unreadable(&name, "at its start", is_compressed, limit, &ARROW, error),
            })?;
        let columns = Columns::new(&name, reader.schema(), fields, limit)?;
        let batches = Batches::Arrow(Box::new(reader.with_columns(columns.projection.clone())));
        Ok(BatchRows { name, is_compressed, batches, columns, limit, rows: None, row: 0 })
    }

    /// [`Columns::kept_metadata`].
    pub(super) fn kept_metadata(&self) -> Vec<FieldMetadata> {
        self.columns.kept_metadata()
    }

    /// Bytes of the input read so far, after decompression; the bytes of a batch are divided evenly among its
    /// rows, those of a Parquet file among all rows.
    pub(super) fn bytes_read(&self) -> u64 {
        match &self.batches {
            Batches::Parquet { total, size, .. } => {
                let part = u128::from(*size) * u128::from(self.row) / u128::from((*total).max(1));
                part.min((*size).into()) as u64
            }
            Batches::Arrow(reader) => {
                let start = reader.batch_start();
                let Some(rows) = &self.rows else { return start };
                let batch = u128::from(reader.bytes_read() - start);
                start + (batch * rows.rows_read() as u128 / rows.len().max(1) as u128) as u64
            }
        }
    }

    /// Whether the last row was the last one of a record batch that comes through a stream, so that reading
    /// the next row may wait for the writer.
    pub(super) fn ends_stream_batch(&self) -> bool {
        let is_stream = matches!(&self.batches, Batches::Arrow(reader) if reader.is_stream());
        is_stream && self.rows.as_ref().is_some_and(|rows| rows.rows_read() == rows.len())
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

    /// Reads the rows of the next batch; `None` at the end of the input.
    fn next_rows(&mut self) -> Result<Option<Rows>, ReadError> {
        let Some(batch) = self.batches.next(self.row)? else { return Ok(None) };
        let rows = catch_panic(|| Rows::new(&batch, &self.columns));
        let next_are = self.batches.nouns().next_are;
        Ok(Some(rows.unwrap_or_else(|| Err(format!("the next {next_are} damaged")))?))
    }

    /// The error for the next rows, which cannot be read.
    fn error(&self, error: ReadError) -> Error {
        let (after, nouns) = (format!("after row {}", self.row), self.batches.nouns());
        unreadable(&self.name, &after, self.is_compressed, self.limit, nouns, error)
    }
}

/// The error for rows of the input `name` that cannot be read; `after` names the last position that was read.
fn unreadable(
    name: &str,
    after: &str,
    is_compressed: bool,
    limit: ReadLimit,
    nouns: &Nouns,
    error: ReadError,
) -> Error {
    let Nouns { part, units, .. } = nouns;
    let reason = match error {
        ReadError::Io(error) => return read_error(name, after, is_compressed, &error),
        ReadError::Malformed(reason) => {
            return anyhow!("cannot read {name} {after} ({reason}); write the file again");
        }
        ReadError::TooLarge { bytes, .. } => limit.too_large(bytes, units),
        ReadError::NoMemory(bytes) => ReadLimit::no_memory(bytes, units),
    };
    anyhow!("{name}: the {part} {after} {reason}")
}
