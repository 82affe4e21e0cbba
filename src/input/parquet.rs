//! Parquet files: a column of texts, read a few hundred rows at a time.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Take};
use std::path::Path;
use std::sync::Arc;

use ::bytes::Bytes;
use anyhow::{Result, anyhow, bail};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::{self, ParquetError};
use parquet::file::metadata::ParquetMetaData;
use parquet::file::reader::{ChunkReader, Length};

use super::columns::{Columns, Rows};
use super::sources::unopened;
use super::{Entry, Fields, ReadLimit, footer, said};
use crate::guard::guard;

/// Rows that are unpacked at a time.
const ROWS: usize = 256;
/// Bytes that rows unpacked at a time should not take; one row is always unpacked.
const BATCH_BYTES: u64 = 16 << 20;

/// The rows of a file.
pub struct ParquetRows {
    shown: Arc<str>,
    columns: Columns,
    reader: ParquetRecordBatchReader,
    rows: Option<Rows>,
    row: u64,
    total: u64,
    size: u64,
}

impl ParquetRows {
    /// Reads what a file says of itself.
    ///
    /// # Errors
    /// If it is no Parquet file, or lacks a column.
    pub fn open(path: &Path, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let shown: Arc<str> = path.display().to_string().into();
        let unread = |error: io::Error| anyhow!("cannot read {shown} ({}); check the file", said(&error));
        let file = File::open(path).map_err(|error| unopened(path, &error))?;
        let size = file.metadata().map_err(unread)?.len();
        let ranges = Ranges { file: file.try_clone().map_err(unread)?, size };
        footer::check(&file, size).map_err(|why| no_parquet(&shown, &why))?;
        let builder = match guard(|| ParquetRecordBatchReaderBuilder::try_new(ranges)) {
            Some(Ok(builder)) => builder,
            Some(Err(error)) => return Err(no_parquet(&shown, &said(&error))),
            None => return Err(no_parquet(&shown, "what it says of itself is damaged")),
        };
        let total = builder.metadata().file_metadata().num_rows();
        let Ok(total) = u64::try_from(total) else {
            return Err(no_parquet(&shown, &format!("it says that it has {total} rows")));
        };
        let columns = Columns::new(&shown, builder.schema(), fields, limit)?;
        let roots = columns.projection.iter().copied();
        let mask = ProjectionMask::roots(builder.parquet_schema(), roots);
        let rows = rows_at_a_time(&file, builder.metadata(), &mask, BATCH_BYTES.min(limit.batch_bytes()));
        let built = guard(|| builder.with_projection(mask).with_batch_size(rows).build());
        let reader = match built {
            Some(Ok(reader)) => reader,
            Some(Err(error)) => return Err(no_parquet(&shown, &said(&error))),
            None => return Err(no_parquet(&shown, "what it says of itself is damaged")),
        };
        Ok(ParquetRows { shown, columns, reader, rows: None, row: 0, total, size })
    }

    /// The part of the file that the rows so far are, in bytes.
    pub fn behind(&self) -> u64 {
        let part = u128::from(self.size) * u128::from(self.row) / u128::from(self.total.max(1));
        part.min(self.size.into()) as u64
    }

    /// The next row; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on.
    pub fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.rows.as_mut().and_then(|rows| rows.read(&self.shown, self.row + 1)) {
                self.row += 1;
                return Ok(Some(entry));
            }
            let why = match guard(|| self.batch()) {
                Some(Ok(Some(rows))) => {
                    self.rows = Some(rows);
                    continue;
                }
                Some(Ok(None)) if self.row == self.total => return Ok(None),
                Some(Ok(None)) => format!("it ends here, but says that it has {} rows", self.total),
                Some(Err(why)) => why,
                None => "what follows is damaged".into(),
            };
            bail!("cannot read {} after row {} ({why}); fetch or write the file again", self.shown, self.row);
        }
    }

    /// The rows that are unpacked next; none at the end.
    fn batch(&mut self) -> Result<Option<Rows>, String> {
        let Some(batch) = self.reader.next() else { return Ok(None) };
        Rows::new(&batch.map_err(|error| said(&error))?, &self.columns).map(Some)
    }
}

/// How many rows are unpacked at a time so that they take few bytes: each may repeat the longest text of a dictionary,
/// however short it is in the file.
fn rows_at_a_time(file: &File, metadata: &ParquetMetaData, mask: &ProjectionMask, bytes: u64) -> usize {
    let mut rows = ROWS as u64;
    for group in metadata.row_groups() {
        let columns = group.columns().iter().enumerate().filter(|(i, _)| mask.leaf_included(*i));
        for (_, column) in columns {
            let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
            let dictionary =
                u64::try_from(start).ok().and_then(|start| footer::dictionary_bytes(file, start));
            let unpacked = u64::try_from(column.uncompressed_size()).unwrap_or(u64::MAX);
            let dictionary = dictionary.unwrap_or(unpacked).max(1);
            rows = rows.min(bytes / dictionary);
            if unpacked > bytes {
                // Without a dictionary, the rows of a group share these bytes.
                let count = u64::try_from(group.num_rows()).unwrap_or(0).max(ROWS as u64);
                rows = rows.min((u128::from(count) * u128::from(bytes) / u128::from(unpacked)) as u64);
            }
        }
    }
    rows.clamp(1, ROWS as u64) as usize
}

fn no_parquet(shown: &str, why: &str) -> anyhow::Error {
    anyhow!(
        "cannot read {shown} as parquet ({why}); fetch or write it again, or say with --input-format what it is"
    )
}

/// A file that is only asked for what it has: lengths in a damaged one would ask for memory that is not there.
struct Ranges {
    file: File,
    size: u64,
}

impl Ranges {
    /// What stands from a place on.
    fn from(&self, start: u64) -> errors::Result<Take<File>> {
        let Some(left) = self.size.checked_sub(start) else {
            return Err(ParquetError::EOF(format!("byte {start} of {} is asked for", self.size)));
        };
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(start))?;
        Ok(file.take(left))
    }
}

impl Length for Ranges {
    fn len(&self) -> u64 {
        self.size
    }
}

impl ChunkReader for Ranges {
    type T = BufReader<Take<File>>;

    fn get_read(&self, start: u64) -> errors::Result<Self::T> {
        Ok(BufReader::new(self.from(start)?))
    }

    fn get_bytes(&self, start: u64, length: usize) -> errors::Result<Bytes> {
        let mut from = self.from(start)?;
        if length as u64 > from.limit() {
            return Err(ParquetError::EOF(format!(
                "{length} bytes from byte {start} on of {} are asked for",
                self.size
            )));
        }
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}
