//! Arrow IPC files and streams. Vectors of uncompressed record batches are read where they are in the file.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::Result;
use arrow_schema::DataType;

use super::array::{ArrayVectors, Segment};
use super::batch::{VectorSchema, values};
use super::choice::VectorField;
use super::error::{REMEDY, malformed, unread};
use super::source::{Blocks, Columns, Opened, Vectors, rows_by_unit};
use crate::formats;
use crate::formats::arrow::ArrowBatches;
use crate::neighbours::Representation;
use crate::rows::FieldValue;
use crate::rows::KeptColumn;

/// A file whose record batches are decoded.
struct ArrowFile {
    name: Arc<str>,
    batches: ArrowBatches,
    schema: VectorSchema,
    /// The rows of each batch.
    units: Vec<Range<usize>>,
    /// Stored elements of a vector.
    width: usize,
}

/// Reads the metadata of a file.
pub(super) fn open(name: &Arc<str>, file: File, field: VectorField) -> Result<Opened> {
    let copy = file.try_clone().map_err(|error| unread(name, &error))?;
    let batches = formats::arrow::open(name, copy, REMEDY)?;
    let arrow_schema = batches.schema().clone();
    let metadata = arrow_schema.metadata().iter().map(|(key, value)| (key.as_str(), value.as_str()));
    let schema = VectorSchema::new(name, field, &arrow_schema, metadata)?;
    let mut next = 0usize;
    let mut units = Vec::new();
    for rows in batches.rows() {
        let end =
            next.checked_add(rows).ok_or_else(|| malformed(name, "Arrow", "it declares too many rows"))?;
        units.push(next..end);
        next = end;
    }
    let width = schema.stored_width(name, || first_width(&batches, units.len(), &schema))?;
    let (kind, dtype, dimensions) = (schema.kind, schema.dtype, schema.dimensions(width));
    let metadata = schema.metadata.clone();
    let segments = segments(&batches, &schema, &units, width)?;
    let arrow = Arc::new(ArrowFile { name: name.clone(), batches, schema, units, width });
    let vectors: Box<dyn Vectors> = match segments {
        Some(segments) => Box::new(ArrayVectors::new(name.clone(), file.into(), segments, dtype, dimensions)),
        None => Box::new(arrow.clone()),
    };
    Ok(Opened { metadata, ..Opened::new(next, kind, (dtype, dimensions), vectors, Box::new(arrow)) })
}

/// The stored elements of the first vector; `None` if no row has one.
fn first_width(batches: &ArrowBatches, count: usize, schema: &VectorSchema) -> Result<Option<usize>> {
    for batch in 0..count {
        if let Some(width) = schema.width_in(&batches.read(batch, &[schema.vectors])?) {
            return Ok(Some(width));
        }
    }
    Ok(None)
}

/// Where the elements are in the file; `None` if a batch has to be decoded.
fn segments(
    batches: &ArrowBatches,
    schema: &VectorSchema,
    units: &[Range<usize>],
    width: usize,
) -> Result<Option<Vec<Segment>>> {
    let is_stored = match batches.schema().field(schema.vectors).data_type() {
        DataType::FixedSizeList(item, _) => {
            schema.kind == Representation::Dense && *item.data_type() != DataType::Float64
        }
        _ => false,
    };
    if !is_stored {
        return Ok(None);
    }
    let mut segments = Vec::new();
    for (i, rows) in units.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let bytes = (rows.len() as u64).checked_mul((width * schema.dtype.element_bytes()) as u64);
        let offset = bytes.map(|bytes| batches.values_offset(i, schema.vectors, bytes)).transpose()?;
        let Some(offset) = offset.flatten() else { return Ok(None) };
        let scales = match schema.scale {
            Some(column) => match batches.values_offset(i, column, 4 * rows.len() as u64)? {
                Some(offset) => Some(offset),
                None => return Ok(None),
            },
            None => None,
        };
        segments.push(Segment { rows: rows.clone(), offset, scales });
    }
    Ok(Some(segments))
}

/// Vectors of record batches that have to be decoded.
impl Vectors for Arc<ArrowFile> {
    fn units(&self, _max_rows: usize) -> Vec<Range<usize>> {
        self.units.iter().filter(|unit| !unit.is_empty()).cloned().collect()
    }

    fn read(&self, rows: Range<usize>, mut blocks: Blocks) -> Result<ControlFlow<()>> {
        let ArrowFile { name, batches, schema, units, width } = &**self;
        let batch = units.partition_point(|unit| unit.end <= rows.start);
        let first = units[batch].start;
        let columns = batches.read(batch, &schema.decoded)?;
        for part in super::source::split(rows, blocks.max_rows) {
            let slice = columns.slice(part.start - first, part.len());
            if schema.visit_batch(name, &slice, part.start, *width, &mut blocks)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Columns for Arc<ArrowFile> {
    fn columns(&self) -> &[KeptColumn] {
        &self.schema.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let ArrowFile { name, batches, schema, units, .. } = &**self;
        let (projection, positions) = schema.projection(columns);
        let mut found = Vec::with_capacity(rows.len());
        for (i, wanted) in rows_by_unit(rows, units) {
            let batch = batches.read(i, &projection)?;
            for row in wanted {
                found.push(values(name, &batch, &positions, row - units[i].start)?);
            }
        }
        Ok(found)
    }
}
