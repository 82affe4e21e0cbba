//! What jsonl and CSV have in common: records that are decoded one after another.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::Result;

use super::buffer::BlockBuffer;
use super::source::{Blocks, Columns, Vectors};
use crate::formats::{VisitRow, rows_by_unit};
use crate::neighbours::Block;
use crate::rows::{FieldValue, KeptColumn};

/// An indexed file of records, one per row.
pub(super) trait Records: Send + Sync {
    /// A record as it is in the file.
    type Record: ?Sized;

    /// The rows of each unit.
    fn units(&self) -> &[Range<usize>];

    /// The columns beside the vectors.
    fn columns(&self) -> &[KeptColumn];

    /// Calls `visit` with the rows of a unit and their records. Break ends the reading.
    fn for_each(&self, unit: usize, visit: &mut VisitRow<Self::Record>) -> Result<ControlFlow<()>>;

    /// Appends the vector of a record to a buffer. Returns whether it has one.
    fn append(&self, row: usize, record: &Self::Record, buffer: &mut BlockBuffer) -> Result<bool>;

    /// The block of the `rows` rows that a buffer holds.
    fn block<'a>(&self, buffer: &'a BlockBuffer, first_row: usize, rows: usize) -> Block<'a>;

    /// The values of columns, given by their indices, in a record.
    fn values(&self, row: usize, record: &Self::Record, columns: &[usize]) -> Result<Vec<FieldValue>>;
}

impl<T: Records> Vectors for Arc<T> {
    fn units(&self, _max_rows: usize) -> Vec<Range<usize>> {
        Records::units(&**self).to_vec()
    }

    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>> {
        let Blocks { max_rows, buffer, visit } = blocks;
        let file = &**self;
        let unit = file.units().partition_point(|unit| unit.end <= rows.start);
        buffer.clear();
        let (mut first, mut flow) = (rows.start, ControlFlow::Continue(()));
        let _ = file.for_each(unit, &mut |row, record| {
            if row < rows.start {
                return Ok(ControlFlow::Continue(()));
            }
            let has_vector = file.append(row, record, buffer)?;
            let held = row + usize::from(has_vector) - first;
            if has_vector && held < max_rows && row + 1 < rows.end {
                return Ok(ControlFlow::Continue(()));
            }
            if held > 0 {
                flow = visit(&file.block(buffer, first, held))?;
                buffer.clear();
            }
            first = row + 1;
            Ok(if first == rows.end { ControlFlow::Break(()) } else { flow })
        })?;
        Ok(flow)
    }
}

impl<T: Records> Columns for Arc<T> {
    fn columns(&self) -> &[KeptColumn] {
        Records::columns(&**self)
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let mut found = Vec::with_capacity(rows.len());
        let file = &**self;
        for (unit, wanted) in rows_by_unit(rows, file.units()) {
            let mut wanted = wanted.iter().peekable();
            let _ = file.for_each(unit, &mut |row, record| {
                if wanted.next_if(|next| **next == row).is_some() {
                    found.push(file.values(row, record, columns)?);
                }
                Ok(if wanted.peek().is_some() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
            })?;
        }
        Ok(found)
    }
}
