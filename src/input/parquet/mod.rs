//! Parquet files: the columns that are needed, decoded a few hundred rows at a time.

mod footer;
mod thrift;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use ::bytes::Bytes;
use anyhow::{Error, Result, anyhow, bail};
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
    RowSelection,
};
use parquet::errors::{self, ParquetError};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::columns::{Columns, Rows};
use super::error::{cannot_open, one_line};
use super::limit::ReadLimit;
use super::record::{Entry, Fields};
use super::uuid::with_uuids;
use crate::sys::catch_panic::catch_panic;
use crate::sys::regular_file::read_exact_at;

/// Maximum number of rows that are decoded at a time.
const MAX_ROWS: usize = 256;
/// Maximum size of the rows that are decoded at a time, in bytes, unless one row is larger.
const MAX_BATCH_BYTES: u64 = 16 << 20;

/// An open file whose footer has been checked.
pub struct ParquetSource {
    name: Arc<str>,
    file: Arc<File>,
    size: u64,
    metadata: ArrowReaderMetadata,
}

impl ParquetSource {
    /// Opens a file and reads its footer.
    ///
    /// # Errors
    /// If the file is not a Parquet file, or is damaged.
    pub fn open(path: &Path) -> Result<Self> {
        let name: Arc<str> = path.display().to_string().into();
        let unread = |error: io::Error| anyhow!("cannot read {name} ({}); check the file", one_line(&error));
        let file = Arc::new(File::open(path).map_err(|error| cannot_open(path, &error))?);
        let size = file.metadata().map_err(unread)?.len();
        footer::check(&file, size).map_err(|reason| malformed(&name, &reason))?;
        let bounded = BoundedFile { file: file.clone(), size };
        let metadata = catch(&name, || ArrowReaderMetadata::load(&bounded, ArrowReaderOptions::default()))?;
        Ok(ParquetSource { name, file, size, metadata })
    }

    /// The Arrow schema of the file.
    pub fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    /// The metadata of the file, row groups and columns.
    pub fn metadata(&self) -> &ParquetMetaData {
        self.metadata.metadata()
    }

    /// A reader of top-level columns, given by their indices, in batches of at most `batch_rows` rows.
    ///
    /// # Errors
    /// If the metadata of the file is damaged.
    pub fn batches(&self, columns: &[usize], rows: RowChoice, batch_rows: usize) -> Result<ParquetBatches> {
        let builder = self.builder();
        let mask = ProjectionMask::roots(builder.parquet_schema(), columns.iter().copied());
        let builder = builder.with_projection(mask).with_batch_size(batch_rows);
        let builder = match rows {
            RowChoice::Group(group) => builder.with_row_groups(vec![group]),
            RowChoice::Rows(selection) => builder.with_row_selection(selection),
        };
        let reader = catch(&self.name, || builder.build())?;
        Ok(ParquetBatches { name: self.name.clone(), reader })
    }

    fn builder(&self) -> ParquetRecordBatchReaderBuilder<BoundedFile> {
        let bounded = BoundedFile { file: self.file.clone(), size: self.size };
        ParquetRecordBatchReaderBuilder::new_with_metadata(bounded, self.metadata.clone())
    }
}

/// The rows that [`ParquetSource::batches`] reads.
pub enum RowChoice {
    /// All rows of a row group.
    Group(usize),
    /// Selected rows of the file.
    Rows(RowSelection),
}

impl RowChoice {
    /// Single rows of a file with `total` rows; `rows` are ascending and distinct.
    pub fn single(rows: &[usize], total: usize) -> Self {
        let ranges = rows.iter().map(|row| *row..row + 1);
        RowChoice::Rows(RowSelection::from_consecutive_ranges(ranges, total))
    }
}

/// Record batches of a Parquet file, in the order of their rows.
pub struct ParquetBatches {
    name: Arc<str>,
    reader: ParquetRecordBatchReader,
}

impl Iterator for ParquetBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        // The `parquet` crate panics on some damaged pages, for example with a division by zero.
        let reason = match catch_panic(|| self.reader.next()) {
            Some(None) => return None,
            Some(Some(Ok(batch))) => return Some(Ok(batch)),
            Some(Some(Err(error))) => one_line(&error),
            None => "its pages are damaged".into(),
        };
        Some(Err(malformed(&self.name, &reason)))
    }
}

/// The rows of a file.
pub(super) struct ParquetRows {
    name: Arc<str>,
    columns: Columns,
    reader: ParquetRecordBatchReader,
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
    ///
    /// # Errors
    /// If the file is not a Parquet file, is damaged, or does not have one of the columns.
    pub(super) fn open(path: &Path, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let source = ParquetSource::open(path)?;
        let (name, size, builder) = (source.name.clone(), source.size, source.builder());
        let total = builder.metadata().file_metadata().num_rows();
        let total = u64::try_from(total)
            .map_err(|_| malformed(&name, &format!("its footer declares {total} rows")))?;
        let schema = with_uuids(builder.schema(), builder.parquet_schema().root_schema());
        let columns = Columns::new(&name, &schema, fields, limit)?;
        let mask = ProjectionMask::roots(builder.parquet_schema(), columns.projection.iter().copied());
        let max_bytes = MAX_BATCH_BYTES.min(limit.batch_bytes());
        let rows = batch_rows(&source.file, builder.metadata(), &mask, max_bytes);
        let reader = catch(&name, || builder.with_projection(mask).with_batch_size(rows).build())?;
        Ok(ParquetRows { name, columns, reader, rows: None, row: 0, total, size })
    }

    /// Bytes of the file read so far, estimated from the number of rows.
    pub(super) fn bytes_read(&self) -> u64 {
        let part = u128::from(self.size) * u128::from(self.row) / u128::from(self.total.max(1));
        part.min(self.size.into()) as u64
    }

    /// Reads the next row; `None` at the end of the file.
    ///
    /// # Errors
    /// If the file is damaged.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.rows.as_mut().and_then(|rows| rows.read(&self.name, self.row + 1)) {
                self.row += 1;
                return Ok(Some(entry));
            }
            // The `parquet` crate panics on some damaged pages, for example with a division by zero.
            let reason = match catch_panic(|| self.next_batch()) {
                Some(Ok(Some(rows))) => {
                    self.rows = Some(rows);
                    continue;
                }
                Some(Ok(None)) if self.row == self.total => return Ok(None),
                Some(Ok(None)) => format!("it ends here, but its footer declares {} rows", self.total),
                Some(Err(reason)) => reason,
                None => "the next rows are damaged".into(),
            };
            bail!("cannot read {} after row {} ({reason}); write the file again", self.name, self.row);
        }
    }

    /// Decodes the next rows; `None` at the end of the file.
    fn next_batch(&mut self) -> Result<Option<Rows>, String> {
        let Some(batch) = self.reader.next() else { return Ok(None) };
        Rows::new(&batch.map_err(|error| one_line(&error))?, &self.columns).map(Some)
    }
}

/// Calls the `parquet` crate, which panics on some malformed files: in version 60.1, on one whose root is annotated as
/// a list.
fn catch<T>(name: &str, call: impl FnOnce() -> errors::Result<T>) -> Result<T> {
    match catch_panic(call) {
        Some(Ok(result)) => Ok(result),
        Some(Err(error)) => Err(malformed(name, &one_line(&error))),
        None => Err(malformed(name, "its metadata is damaged")),
    }
}

/// The number of rows to decode at a time so that they take at most `max_bytes` bytes, but at least one row: each row
/// may repeat the longest string of a dictionary, however small it is in the file.
fn batch_rows(file: &File, metadata: &ParquetMetaData, mask: &ProjectionMask, max_bytes: u64) -> usize {
    let mut rows = MAX_ROWS as u64;
    for group in metadata.row_groups() {
        let columns = group.columns().iter().enumerate().filter(|(i, _)| mask.leaf_included(*i));
        for (_, column) in columns {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let dictionary =
                u64::try_from(start).ok().and_then(|start| footer::dictionary_bytes(file, start));
            let uncompressed = u64::try_from(column.uncompressed_size()).unwrap_or(u64::MAX);
            let dictionary = dictionary.unwrap_or(uncompressed).max(1);
            rows = rows.min(max_bytes / dictionary);
            if uncompressed > max_bytes {
                // Values that are not in a dictionary: the rows of the group share these bytes.
                let count = u64::try_from(group.num_rows()).unwrap_or(0).max(MAX_ROWS as u64);
                rows =
                    rows.min((u128::from(count) * u128::from(max_bytes) / u128::from(uncompressed)) as u64);
            }
        }
    }
    rows.clamp(1, MAX_ROWS as u64) as usize
}

/// The error for a file that is not valid Parquet.
fn malformed(name: &str, reason: &str) -> Error {
    anyhow!("cannot read {name} as Parquet ({reason}); write the file again, or pass --input-format")
}

/// A file in which only ranges inside it can be read. The reader of the `parquet` crate allocates the length that a
/// page header declares before it reads; a damaged one would make it abort the process for want of memory.
struct BoundedFile {
    file: Arc<File>,
    size: u64,
}

impl BoundedFile {
    /// The bytes from offset `start` to the end of the file.
    fn from(&self, start: u64) -> errors::Result<FileRange> {
        if start > self.size {
            return Err(ParquetError::EOF(format!(
                "offset {start} is past the end of the file at {}",
                self.size
            )));
        }
        Ok(FileRange { file: self.file.clone(), range: start..self.size })
    }
}

/// A range of a file, with a position of its own: several may be read at the same time.
struct FileRange {
    file: Arc<File>,
    range: Range<u64>,
}

impl Read for FileRange {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let length = (bytes.len() as u64).min(self.range.end - self.range.start) as usize;
        read_exact_at(&self.file, &mut bytes[..length], self.range.start)?;
        self.range.start += length as u64;
        Ok(length)
    }
}

impl Length for BoundedFile {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for BoundedFile {
    type T = BufReader<FileRange>;

    fn get_read(&self, start: u64) -> errors::Result<Self::T> {
        Ok(BufReader::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> errors::Result<Bytes> {
        let mut from = self.from(start)?;
        if length as u64 > self.size - start {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at offset {start} are past the end of the file at {}",
                self.size
            )));
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}
