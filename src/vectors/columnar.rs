//! Parquet and Arrow files, decoded by row groups and record batches. Vectors of uncompressed record batches
//! of Arrow are read where they are in the file.

use std::fs::File;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::Result;
use arrow_schema::DataType;

use super::array::{ArrayVectors, Segment};
use super::batch::{VectorSchema, values};
use super::choice::VectorField;
use super::source::{Blocks, Columns, Opened, Vectors, split};
use crate::formats::error::{REMEDY, unread};
use crate::formats::{ColumnarFile, Kind, open_columnar};
use crate::neighbours::Representation;
use crate::rows::{FieldValue, KeptColumn};

/// Rows that are decoded at a time to find the first vector.
const FIRST_ROWS: usize = 16;

/// An open file.
struct ColumnarVectors {
    name: Arc<str>,
    columnar: Box<dyn ColumnarFile>,
    schema: VectorSchema,
    /// The rows of each unit.
    units: Vec<Range<usize>>,
    /// Stored elements of a vector.
    width: usize,
}

/// Reads the schema of a file of this kind, Parquet or Arrow.
pub(super) fn open(name: &Arc<str>, file: File, kind: Kind, field: VectorField) -> Result<Opened> {
    let copy = file.try_clone().map_err(|error| unread(name, &error))?;
    let columnar = open_columnar(name, copy, kind, REMEDY)?;
    let schema = VectorSchema::new(name, field, columnar.schema())?;
    let units = columnar.units()?;
    let width = schema.stored_width(name, || first_width(&*columnar, &schema, &units))?;
    let (rows, kind) = (units.last().map_or(0, |unit| unit.end), schema.kind);
    let (dtype, dimensions) = (schema.dtype, schema.dimensions(width));
    let metadata = schema.metadata.clone();
    let segments = segments(&*columnar, &schema, &units, width)?;
    let columnar = Arc::new(ColumnarVectors { name: name.clone(), columnar, schema, units, width });
    let vectors: Box<dyn Vectors> = match segments {
        Some(segments) => Box::new(ArrayVectors::new(name.clone(), file.into(), segments, dtype, dimensions)),
        None => Box::new(columnar.clone()),
    };
    Ok(Opened { metadata, ..Opened::new(rows, kind, (dtype, dimensions), vectors, Box::new(columnar)) })
}

/// The stored elements of the first vector; `None` if no row has one.
fn first_width(
    columnar: &dyn ColumnarFile,
    schema: &VectorSchema,
    units: &[Range<usize>],
) -> Result<Option<usize>> {
    for unit in (0..units.len()).filter(|unit| !units[*unit].is_empty()) {
        for batch in columnar.unit(unit, &[schema.vectors], FIRST_ROWS)? {
            if let Some(width) = schema.width_in(&batch?) {
                return Ok(Some(width));
            }
        }
    }
    Ok(None)
}

/// Where the elements are in the file; `None` if a unit has to be decoded.
fn segments(
    columnar: &dyn ColumnarFile,
    schema: &VectorSchema,
    units: &[Range<usize>],
    width: usize,
) -> Result<Option<Vec<Segment>>> {
    let is_stored = match columnar.schema().field(schema.vectors).data_type() {
        DataType::FixedSizeList(item, _) => {
            schema.kind == Representation::Dense
                && ![DataType::Float64, DataType::UInt8].contains(item.data_type())
        }
        _ => false,
    };
    if !is_stored {
        return Ok(None);
    }
    let mut segments = Vec::new();
    for (i, rows) in units.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let bytes = (rows.len() as u64).checked_mul((width * schema.dtype.element_bytes()) as u64);
        let offset = bytes.map(|bytes| columnar.values_offset(i, schema.vectors, bytes)).transpose()?;
        let Some(offset) = offset.flatten() else { return Ok(None) };
        let scales = match schema.scale {
            Some(column) => match columnar.values_offset(i, column, 4 * rows.len() as u64)? {
                Some(offset) => Some(offset),
                None => return Ok(None),
            },
            None => None,
        };
        segments.push(Segment { rows: rows.clone(), offset, scales });
    }
    Ok(Some(segments))
}

/// Vectors that have to be decoded.
impl Vectors for Arc<ColumnarVectors> {
    fn units(&self, _max_rows: usize) -> Vec<Range<usize>> {
        self.units.iter().filter(|unit| !unit.is_empty()).cloned().collect()
    }

    fn read(&self, rows: Range<usize>, mut blocks: Blocks) -> Result<ControlFlow<()>> {
        let ColumnarVectors { name, columnar, schema, units, width } = &**self;
        let unit = units.partition_point(|unit| unit.end <= rows.start);
        let (mut next, max_rows) = (units[unit].start, blocks.max_rows);
        for batch in columnar.unit(unit, &schema.decoded, max_rows)? {
            let batch = batch?;
            let inside = next.max(rows.start)..(next + batch.num_rows()).min(rows.end);
            for part in split(inside, max_rows) {
                let slice = batch.slice(part.start - next, part.len());
                if schema.visit_batch(name, &slice, part.start, *width, &mut blocks)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            next += batch.num_rows();
            if next >= rows.end {
                break;
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Columns for Arc<ColumnarVectors> {
    fn columns(&self) -> &[KeptColumn] {
        &self.schema.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let (projection, positions) = self.schema.projection(columns);
        let mut found = Vec::with_capacity(rows.len());
        self.columnar.for_each_row(rows, &projection, &mut |batch, row| {
            found.push(values(&self.name, batch, &positions, row)?);
            Ok(())
        })?;
        Ok(found)
    }
}
