//! Rows in memory, which are searched as those of a file.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use anyhow::Result;

use super::file::VectorFile;
use super::source::{Blocks, Columns, Opened, Vectors, split};
use crate::neighbours::{Block, Elements, Representation};
use crate::rows::{FieldValue, FileMetadata, KeptColumn, OutputDtype};

/// Vectors in f32, with the columns beside them.
pub struct RowsInMemory {
    representation: Representation,
    dimensions: usize,
    /// The vectors of all rows.
    values: Vec<f32>,
    /// The number of vectors of the rows before each row, and of all rows.
    offsets: Vec<usize>,
    columns: Vec<KeptColumn>,
    fields: Vec<Vec<FieldValue>>,
}

impl RowsInMemory {
    /// No rows yet, with vectors of so many dimensions, one per row or per token, and these columns.
    pub fn new(representation: Representation, dimensions: usize, columns: Vec<KeptColumn>) -> Self {
        let (values, offsets, fields) = (Vec::new(), vec![0], Vec::new());
        RowsInMemory { representation, dimensions, values, offsets, columns, fields }
    }

    /// Adds a row: its vector, or one per token, and a value for each column.
    pub fn push(&mut self, vectors: &[f32], fields: Vec<FieldValue>) {
        self.values.extend_from_slice(vectors);
        self.offsets.push(self.values.len() / self.dimensions.max(1));
        self.fields.push(fields);
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.fields.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }
}

impl VectorFile {
    /// Rows in memory under a name, made as `metadata` says.
    pub fn in_memory(name: &str, rows: RowsInMemory, metadata: FileMetadata) -> VectorFile {
        let (count, elements) = (rows.len(), (OutputDtype::F32, rows.dimensions));
        let (representation, rows) = (rows.representation, Arc::new(rows));
        let (vectors, columns) = (Box::new(rows.clone()), Box::new(rows));
        let opened = Opened::new(count, representation, elements, vectors, columns);
        VectorFile::new(name, Opened { metadata, ..opened })
    }
}

impl Vectors for Arc<RowsInMemory> {
    fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        split(0..self.len(), max_rows).collect()
    }

    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>> {
        let RowsInMemory { dimensions, representation, values, offsets, .. } = &**self;
        for rows in split(rows, blocks.max_rows) {
            let offsets = &offsets[rows.start..=rows.end];
            let vectors = offsets[0]..offsets[rows.len()];
            let lengths: Vec<usize> = match representation {
                Representation::PerToken => offsets.windows(2).map(|ends| ends[1] - ends[0]).collect(),
                Representation::Dense | Representation::Sparse => Vec::new(),
            };
            let block = Block {
                first_row: rows.start,
                rows: vectors.len(),
                lengths: &lengths,
                dimensions: *dimensions,
                elements: Elements::F32(&values[vectors.start * dimensions..vectors.end * dimensions]),
            };
            if (blocks.visit)(&block)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Columns for Arc<RowsInMemory> {
    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let fields = |row: &usize| columns.iter().map(|column| self.fields[*row][*column].clone()).collect();
        Ok(rows.iter().map(fields).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::neighbours::Metric;
    use crate::rows::ColumnType;

    #[test]
    fn rows_in_memory_are_searched_as_those_of_a_file() {
        let columns = vec![KeptColumn::new("name", ColumnType::Text)];
        let mut rows = RowsInMemory::new(Representation::Dense, 2, columns);
        for i in 0..300 {
            rows.push(&[i as f32, 100.0], vec![serde_json::json!(format!("row {i}")).into()]);
        }
        let file = VectorFile::in_memory("rows", rows, FileMetadata::default());
        let found = file.nearest(Metric::Euclidean, &[122.0, 100.0], 3, None).unwrap();
        let indices: Vec<usize> = found.neighbours[0].iter().map(|neighbour| neighbour.index).collect();
        assert_eq!((indices, found.scored), (vec![122, 121, 123], 300));
        assert_eq!(file.values(&[121], &[0]).unwrap()[0][0].json().as_ref(), "row 121");
    }

    #[test]
    fn a_row_may_have_a_vector_per_token_or_none() {
        let mut rows = RowsInMemory::new(Representation::PerToken, 1, Vec::new());
        [&[0.5, 0.25][..], &[], &[0.5, 1.0, 0.25]].iter().for_each(|vectors| rows.push(vectors, Vec::new()));
        let file = VectorFile::in_memory("rows", rows, FileMetadata::default());
        let found = file.nearest_by_tokens(false, &[&[1.0, 2.0]], 3, None).unwrap();
        let found: Vec<(usize, f32)> =
            found.neighbours[0].iter().map(|neighbour| (neighbour.index, neighbour.score)).collect();
        assert_eq!(found, [(2, 3.0), (0, 1.5)]);
    }
}
