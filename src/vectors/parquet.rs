//! Parquet files, decoded by row groups.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::Result;

use super::batch::{VectorSchema, values};
use super::choice::VectorField;
use super::error::{REMEDY, malformed};
use super::source::{Blocks, Columns, Opened, Vectors};
use crate::formats;
use crate::formats::parquet::{ParquetSource, RowChoice};
use crate::rows::FieldValue;
use crate::rows::KeptColumn;

/// Rows of columns that are decoded at a time.
const COLUMN_ROWS: usize = 1024;
/// Rows that are decoded at a time to find the first vector.
const FIRST_ROWS: usize = 16;

/// An open file.
struct ParquetFile {
    name: Arc<str>,
    source: ParquetSource,
    schema: VectorSchema,
    /// The rows of each row group.
    units: Vec<Range<usize>>,
    /// Stored elements of a vector.
    width: usize,
}

/// Reads the footer of a file.
pub(super) fn open(name: &Arc<str>, file: File, field: VectorField) -> Result<Opened> {
    let source = formats::parquet::open(name, file, REMEDY)?;
    let pairs = source.metadata().file_metadata().key_value_metadata().into_iter().flatten();
    let pairs = pairs.filter_map(|pair| Some((pair.key.as_str(), pair.value.as_deref()?)));
    let schema = VectorSchema::new(name, field, source.schema(), pairs)?;
    let mut next = 0usize;
    let mut units = Vec::new();
    for group in source.metadata().row_groups() {
        let rows = usize::try_from(group.num_rows()).ok().and_then(|rows| next.checked_add(rows));
        let end =
            rows.ok_or_else(|| malformed(name, "Parquet", "a row group has an impossible number of rows"))?;
        units.push(next..end);
        next = end;
    }
    let width = schema.stored_width(name, || first_width(&source, &schema, &units))?;
    let (kind, elements) = (schema.kind, (schema.dtype, schema.dimensions(width)));
    let metadata = schema.metadata.clone();
    let file = Arc::new(ParquetFile { name: name.clone(), source, schema, units, width });
    Ok(Opened { metadata, ..Opened::new(next, kind, elements, Box::new(file.clone()), Box::new(file)) })
}

/// The stored elements of the first vector; `None` if no row has one.
fn first_width(
    source: &ParquetSource,
    schema: &VectorSchema,
    units: &[Range<usize>],
) -> Result<Option<usize>> {
    for group in (0..units.len()).filter(|group| !units[*group].is_empty()) {
        for batch in source.batches(&[schema.vectors], RowChoice::Group(group), FIRST_ROWS)? {
            if let Some(width) = schema.width_in(&batch?) {
                return Ok(Some(width));
            }
        }
    }
    Ok(None)
}

impl Vectors for Arc<ParquetFile> {
    fn units(&self, _max_rows: usize) -> Vec<Range<usize>> {
        self.units.iter().filter(|unit| !unit.is_empty()).cloned().collect()
    }

    fn read(&self, rows: Range<usize>, mut blocks: Blocks) -> Result<ControlFlow<()>> {
        let ParquetFile { name, source, schema, units, width } = &**self;
        let group = units.partition_point(|unit| unit.end <= rows.start);
        let mut next = units[group].start;
        for batch in source.batches(&schema.decoded, RowChoice::Group(group), blocks.max_rows)? {
            let batch = batch?;
            let start = next.max(rows.start);
            let end = (next + batch.num_rows()).min(rows.end);
            if start < end {
                let slice = batch.slice(start - next, end - start);
                if schema.visit_batch(name, &slice, start, *width, &mut blocks)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            next += batch.num_rows();
            if next >= rows.end {
                return Ok(ControlFlow::Continue(()));
            }
        }
        Err(malformed(name, "Parquet", format_args!("it ends after row {next}, but declares more")))
    }
}

impl Columns for Arc<ParquetFile> {
    fn columns(&self) -> &[KeptColumn] {
        &self.schema.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let ParquetFile { name, source, schema, units, .. } = &**self;
        let (projection, positions) = schema.projection(columns);
        let total = units.last().map_or(0, |unit| unit.end);
        let choice = RowChoice::single(rows, total);
        let mut found = Vec::with_capacity(rows.len());
        for batch in source.batches(&projection, choice, COLUMN_ROWS)? {
            let batch = batch?;
            for row in 0..batch.num_rows() {
                found.push(values(name, &batch, &positions, row)?);
            }
        }
        if found.len() != rows.len() {
            return Err(malformed(name, "Parquet", "it has fewer rows than its footer declares"));
        }
        Ok(found)
    }
}
