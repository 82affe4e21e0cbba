//! Parquet files: the columns that are needed, decoded a few rows at a time.

mod footer;
mod pages;
mod thrift;

use std::fs::File;
use std::iter;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
    RowSelection,
};
use parquet::errors;
use parquet::file::metadata::ParquetMetaData;

use self::pages::{BoundedFile, PageMemory};
use super::uuid::with_uuids;
use crate::error::one_line;
use crate::formats::columnar::{ColumnarFile, RecordBatches, consecutive};
use crate::formats::error::{Format, MAX_BATCH_BYTES, ReadError};
use crate::sys::catch_panic::catch_panic;

/// Single rows that are decoded at a time.
const SINGLE_ROWS: usize = 1024;

/// Opens a regular file and reads its footer. `name` is the file in messages, and `remedy` what to do if it
/// is malformed, as a clause.
pub fn open(name: &str, file: File, remedy: &'static str) -> Result<ParquetSource> {
    let read = || {
        let size = file.metadata()?.len();
        footer::check(&file, size)?;
        let file = BoundedFile { file: file.into(), size, pages: None };
        let metadata = catch(|| ArrowReaderMetadata::load(&file, ArrowReaderOptions::default()))?;
        let name = name.into();
        Ok(ParquetSource { name, remedy, file: file.file, size, metadata, max_bytes: MAX_BATCH_BYTES })
    };
    read().map_err(|error: ReadError| error.of_file(name, Format::PARQUET, remedy))
}

/// An open file whose footer has been checked.
pub struct ParquetSource {
    name: Arc<str>,
    /// What to do if the file is malformed, as a clause.
    remedy: &'static str,
    file: Arc<File>,
    /// The size of the file, in bytes.
    size: u64,
    metadata: ArrowReaderMetadata,
    /// Memory of the pages that are decoded at a time, in bytes.
    max_bytes: u64,
}

impl ParquetSource {
    /// Decodes pages of at most `max_bytes` bytes at a time, of all columns, in place of [`MAX_BATCH_BYTES`].
    #[must_use]
    pub fn with_max_bytes(self, max_bytes: u64) -> Self {
        ParquetSource { max_bytes, ..self }
    }

    /// The Arrow schema of the file, in which columns of UUIDs have the extension type of UUIDs, also without
    /// an Arrow schema of the writer.
    pub fn schema_with_uuids(&self) -> Schema {
        with_uuids(self.schema(), self.footer().file_metadata().schema_descr().root_schema())
    }

    /// The metadata of the file, row groups and columns.
    pub fn footer(&self) -> &ParquetMetaData {
        self.metadata.metadata()
    }

    /// The size of the file, in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// A reader of top-level columns, given by their indices, in batches of at most `batch_rows` rows.
    pub fn read(&self, columns: &[usize], rows: RowChoice, batch_rows: usize) -> Result<ParquetBatches> {
        let reader = self.reader(columns, rows, batch_rows);
        let (pages, reader) = reader.map_err(|error| self.unreadable(error))?;
        Ok(ParquetBatches { name: self.name.clone(), remedy: self.remedy, pages, reader })
    }

    fn reader(
        &self,
        columns: &[usize],
        rows: RowChoice,
        batch_rows: usize,
    ) -> Result<(Arc<PageMemory>, ParquetRecordBatchReader), ReadError> {
        let mask = self.mask(columns);
        // The crate allocates a list of a fixed size that is null, whatever its size.
        let row_bytes = columns.iter().map(|column| fixed_bytes(self.schema().field(*column).data_type()));
        let row_bytes = row_bytes.fold(0, u64::saturating_add);
        if row_bytes > self.max_bytes {
            return Err(ReadError::TooLarge { bytes: row_bytes, max_bytes: self.max_bytes });
        }
        let fitting = usize::try_from(self.max_bytes / row_bytes.max(1)).unwrap_or(usize::MAX);
        let (groups, all_rows) = match rows {
            RowChoice::All => (0..self.footer().num_row_groups(), true),
            RowChoice::Group(group) => (group..group + 1, true),
            RowChoice::Rows(_) => (0..self.footer().num_row_groups(), false),
        };
        let pages = Arc::new(PageMemory::new(self.footer(), groups, &mask, all_rows, self.max_bytes));
        let file = BoundedFile { file: self.file.clone(), size: self.size, pages: Some(pages.clone()) };
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata.clone());
        let builder = builder.with_projection(mask).with_batch_size(batch_rows.min(fitting));
        let builder = match rows {
            RowChoice::All => builder,
            RowChoice::Group(group) => builder.with_row_groups(vec![group]),
            RowChoice::Rows(selection) => builder.with_row_selection(selection),
        };
        Ok((pages, catch(|| builder.build())?))
    }

    /// These batches, and then an error if they do not have the `declared` number of rows: `reason` says it
    /// of the number that they have.
    fn complete<'a>(
        &'a self,
        mut batches: ParquetBatches,
        declared: i64,
        reason: impl Fn(i64) -> String + 'a,
    ) -> RecordBatches<'a> {
        let (mut rows, mut is_end) = (0, false);
        Box::new(iter::from_fn(move || {
            let batch = if is_end { return None } else { batches.next() };
            is_end = !matches!(batch, Some(Ok(_)));
            match &batch {
                None if rows != declared => Some(Err(self.unreadable(reason(rows).into()))),
                None | Some(Err(_)) => batch,
                Some(Ok(found)) => {
                    rows += found.num_rows() as i64;
                    batch
                }
            }
        }))
    }

    /// The error for a file that cannot be read.
    fn unreadable(&self, error: ReadError) -> anyhow::Error {
        error.of_file(&self.name, Format::PARQUET, self.remedy)
    }

    /// The leaves of top-level columns.
    fn mask(&self, columns: &[usize]) -> ProjectionMask {
        let schema = self.footer().file_metadata().schema_descr();
        ProjectionMask::roots(schema, columns.iter().copied())
    }

    /// The number of rows to decode at a time so that these columns take at most `max_bytes` bytes, but at
    /// least one row and at most `max_rows`: each row may repeat the longest string of a dictionary, however
    /// small it is in the file.
    pub fn batch_rows(&self, columns: &[usize], max_rows: usize, max_bytes: u64) -> usize {
        let (mask, max_rows) = (self.mask(columns), max_rows as u64);
        let mut rows = max_rows;
        for group in self.footer().row_groups() {
            let columns = group.columns().iter().enumerate().filter(|(i, _)| mask.leaf_included(*i));
            for (_, column) in columns {
                let start = column.dictionary_page_offset().unwrap_or(column.data_page_offset());
                let dictionary = u64::try_from(start)
                    .ok()
                    .and_then(|start| pages::dictionary_bytes(&self.file, self.size, start));
                let uncompressed = u64::try_from(column.uncompressed_size()).unwrap_or(u64::MAX);
                let dictionary = dictionary.unwrap_or(uncompressed).max(1);
                rows = rows.min(max_bytes / dictionary);
                if uncompressed > max_bytes {
                    // Values that are not in a dictionary: the rows of the group share these bytes.
                    let count = u64::try_from(group.num_rows()).unwrap_or(0).max(max_rows);
                    let fitting = u128::from(count) * u128::from(max_bytes) / u128::from(uncompressed);
                    rows = rows.min(fitting as u64);
                }
            }
        }
        rows.clamp(1, max_rows) as usize
    }
}

impl ColumnarFile for ParquetSource {
    fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    fn units(&self) -> Result<Vec<Range<usize>>> {
        let groups = self.footer().row_groups().iter();
        let units = consecutive(groups.map(|group| usize::try_from(group.num_rows()).ok()));
        units.ok_or_else(|| self.unreadable("a row group has an impossible number of rows".into()))
    }

    fn unit(&self, unit: usize, columns: &[usize], max_rows: usize) -> Result<RecordBatches<'_>> {
        let groups = self.footer().row_groups();
        let batches = self.read(columns, RowChoice::Group(unit), max_rows)?;
        Ok(self.complete(batches, groups[unit].num_rows(), move |rows| {
            let before: i64 = groups[..unit].iter().map(|group| group.num_rows()).sum();
            format!("it ends after row {}, but declares more", before + rows)
        }))
    }

    fn batches(&self, columns: &[usize], max_rows: usize, max_bytes: u64) -> Result<RecordBatches<'_>> {
        let batches = self.read(columns, RowChoice::All, self.batch_rows(columns, max_rows, max_bytes))?;
        let declared = self.footer().file_metadata().num_rows();
        Ok(self.complete(batches, declared, move |rows| {
            format!("it has {rows} rows, but its footer declares {declared}")
        }))
    }

    fn for_each_row(
        &self,
        rows: &[usize],
        columns: &[usize],
        visit: &mut dyn FnMut(&RecordBatch, usize) -> Result<()>,
    ) -> Result<()> {
        let total = self.units()?.last().map_or(0, |unit| unit.end);
        let mut found = 0;
        for batch in self.read(columns, RowChoice::single(rows, total), SINGLE_ROWS)? {
            let batch = batch?;
            (0..batch.num_rows()).try_for_each(|row| visit(&batch, row))?;
            found += batch.num_rows();
        }
        if found == rows.len() {
            return Ok(());
        }
        Err(self.unreadable("it has fewer rows than its footer declares".into()))
    }
}

/// The size in bytes of a value of this type that does not depend on the value.
fn fixed_bytes(data_type: &DataType) -> u64 {
    match data_type {
        DataType::FixedSizeList(item, count) => {
            u64::try_from(*count).unwrap_or(0).saturating_mul(fixed_bytes(item.data_type()).max(1))
        }
        DataType::FixedSizeBinary(bytes) => u64::try_from(*bytes).unwrap_or(0),
        DataType::Struct(fields) => {
            fields.iter().map(|field| fixed_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

/// The rows that [`ParquetSource::read`] reads.
pub enum RowChoice {
    /// All rows of the file.
    All,
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
    remedy: &'static str,
    pages: Arc<PageMemory>,
    reader: ParquetRecordBatchReader,
}

impl ParquetBatches {
    /// Decodes the next rows; `None` at the end.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, ReadError> {
        self.pages.begin_batch();
        // The `parquet` crate panics on some damaged pages, for example with a division by zero.
        let error = match catch_panic(|| self.reader.next()) {
            Some(None) => return Ok(None),
            Some(Some(Ok(batch))) => return Ok(Some(batch)),
            Some(Some(Err(error))) => one_line(&error).into(),
            None => "its pages are damaged".into(),
        };
        Err(self.pages.take_refused().unwrap_or(error))
    }
}

impl Iterator for ParquetBatches {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Result<RecordBatch>> {
        let batch = self.next_batch().transpose()?;
        Some(batch.map_err(|error| error.of_file(&self.name, Format::PARQUET, self.remedy)))
    }
}

/// Calls the `parquet` crate, which panics on some malformed files: in version 60.1, on one whose root is
/// annotated as a list.
fn catch<T>(call: impl FnOnce() -> errors::Result<T>) -> Result<T, ReadError> {
    match catch_panic(call) {
        Some(result) => result.map_err(|error| one_line(&error).into()),
        None => Err("its metadata is damaged".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_schema::{DataType, Field};

    use super::fixed_bytes;

    #[test]
    fn a_null_list_of_a_fixed_size_takes_memory() {
        let list = |item: DataType, count| {
            DataType::FixedSizeList(Arc::new(Field::new_list_field(item, true)), count)
        };
        assert_eq!(fixed_bytes(&list(DataType::Float32, 1 << 20)), 4 << 20);
        assert_eq!(fixed_bytes(&list(list(DataType::Utf8, 1 << 20), i32::MAX)), (i32::MAX as u64) << 20);
        let deep = list(list(list(DataType::Float64, i32::MAX), i32::MAX), i32::MAX);
        assert_eq!(fixed_bytes(&deep), u64::MAX);
        assert_eq!(fixed_bytes(&list(DataType::Float32, -1)), 0);
        let fields = [("a", DataType::Int8), ("b", DataType::FixedSizeBinary(7)), ("c", DataType::Utf8)];
        let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true));
        assert_eq!(fixed_bytes(&DataType::Struct(fields.to_vec().into())), 8);
    }
}
