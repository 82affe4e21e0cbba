//! Parquet and Arrow files alike: record batches of the columns that are needed.

use std::fs::File;
use std::ops::Range;

use anyhow::Result;
use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use super::{Kind, arrow, parquet};

/// A file whose columns can be read one by one, in units: the row groups of a Parquet file, the record
/// batches of an Arrow file. Columns are given by their indices in ascending order.
pub trait ColumnarFile: Send + Sync {
    /// The schema, with all columns and the metadata of the file.
    fn schema(&self) -> &SchemaRef;

    /// The rows of each unit.
    fn units(&self) -> Result<Vec<Range<usize>>>;

    /// The rows of a unit, at most `max_rows` at a time where the format allows it. There are as many as the
    /// file declares.
    fn unit(&self, unit: usize, columns: &[usize], max_rows: usize) -> Result<RecordBatches<'_>>;

    /// All rows, in batches of at most `max_rows` rows and about `max_bytes` bytes where the format allows
    /// it.
    fn batches(&self, columns: &[usize], max_rows: usize, max_bytes: u64) -> Result<RecordBatches<'_>>;

    /// Calls `visit` with each of `rows`, which are ascending and distinct: a batch, and the index of the row
    /// in it.
    fn for_each_row(
        &self,
        rows: &[usize],
        columns: &[usize],
        visit: &mut dyn FnMut(&RecordBatch, usize) -> Result<()>,
    ) -> Result<()>;

    /// Where the values of a column without nulls are in the file, in a unit: the offset of its last buffer,
    /// which has `bytes` bytes. `None` if they are encoded or compressed, or the buffer has another size.
    fn values_offset(&self, _unit: usize, _column: usize, _bytes: u64) -> Result<Option<u64>> {
        Ok(None)
    }
}

/// Record batches, in the order of their rows.
pub type RecordBatches<'a> = Box<dyn Iterator<Item = Result<RecordBatch>> + 'a>;

/// Opens a regular file of this kind, Parquet or Arrow. `name` is the file in messages, and `remedy` what to
/// do if it is malformed, as a clause.
pub fn open_columnar(
    name: &str,
    file: File,
    kind: Kind,
    remedy: &'static str,
) -> Result<Box<dyn ColumnarFile>> {
    Ok(match kind {
        Kind::Parquet => Box::new(parquet::open(name, file, remedy)?),
        _ => Box::new(arrow::open(name, file, remedy)?),
    })
}

/// The rows of units that have these numbers of rows, one after another; `None` if a number is missing, or
/// their sum is too large.
pub(super) fn consecutive(rows: impl Iterator<Item = Option<usize>>) -> Option<Vec<Range<usize>>> {
    let mut next = 0usize;
    rows.map(|rows| {
        let start = next;
        next = start.checked_add(rows?)?;
        Some(start..next)
    })
    .collect()
}

/// The wanted rows of each unit: the index of the unit and a part of `rows`, which are ascending.
pub fn rows_by_unit<'a>(
    rows: &'a [usize],
    units: &'a [Range<usize>],
) -> impl Iterator<Item = (usize, &'a [usize])> {
    let part = |unit: &Range<usize>| {
        let first = rows.partition_point(|row| *row < unit.start);
        let end = rows.partition_point(|row| *row < unit.end);
        &rows[first..end]
    };
    units.iter().enumerate().map(move |(i, unit)| (i, part(unit))).filter(|(_, part)| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::rows_by_unit;

    #[test]
    fn rows_are_found_in_their_units() {
        let found: Vec<_> = rows_by_unit(&[0, 4, 5, 11], &[0..5, 5..5, 5..10, 10..12]).collect();
        assert_eq!(found, [(0, &[0, 4][..]), (2, &[5][..]), (3, &[11][..])]);
    }
}
