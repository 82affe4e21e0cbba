//! Columns beside the vectors of formats without columns: those that locate chunks.

use std::fs::File;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::source::Columns;
use crate::formats::error::unread;
use crate::rows::columns::OF_CHUNKS;
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::sys::regular_file::read_exact_at;

/// A column of 64-bit integers.
fn integers(name: &str) -> KeptColumn {
    KeptColumn::new(name, ColumnType::Integer)
}

/// The columns `index` and `chunk` of an npy file, from the number of chunks of each record; no columns if
/// rows are not chunks.
pub(super) struct ChunkCounts {
    columns: Vec<KeptColumn>,
    /// The first row of each record.
    first_rows: Vec<usize>,
}

impl ChunkCounts {
    pub(super) fn new(name: &str, counts: Option<Vec<u64>>, rows: usize) -> Result<Self> {
        let Some(counts) = counts else {
            return Ok(ChunkCounts { columns: Vec::new(), first_rows: Vec::new() });
        };
        let mut first_rows = Vec::with_capacity(counts.len());
        let mut next = 0usize;
        for count in counts {
            first_rows.push(next);
            next = next.saturating_add(count as usize);
        }
        if next != rows {
            bail!(
                "{name}.meta.json counts {next} chunks, but {name} has {rows} rows; remove the former, or copy both again"
            );
        }
        Ok(ChunkCounts { columns: OF_CHUNKS[..2].iter().map(|name| integers(name)).collect(), first_rows })
    }
}

impl Columns for ChunkCounts {
    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let value = |row: usize, column: usize| {
            let record = self.first_rows.partition_point(|first| *first <= row) - 1;
            let value = if column == 0 { record } else { row - self.first_rows[record] };
            serde_json::Value::from(value).into()
        };
        Ok(rows.iter().map(|row| columns.iter().map(|column| value(*row, *column)).collect()).collect())
    }
}

/// int64 tensors `(N)` of a safetensors file.
pub(super) struct IntegerTensors {
    name: Arc<str>,
    file: Arc<File>,
    columns: Vec<KeptColumn>,
    /// Offset of each tensor in the file, in bytes.
    offsets: Vec<u64>,
}

impl IntegerTensors {
    /// The columns with these names and offsets.
    pub(super) fn new(name: Arc<str>, file: Arc<File>, mut columns: Vec<(String, u64)>) -> Self {
        let order = |name: &str| OF_CHUNKS.iter().position(|column| *column == name).unwrap_or(usize::MAX);
        columns.sort_by(|(a, _), (b, _)| order(a).cmp(&order(b)).then(a.cmp(b)));
        let (columns, offsets) = columns.into_iter().map(|(name, offset)| (integers(&name), offset)).unzip();
        IntegerTensors { name, file, columns, offsets }
    }
}

impl Columns for IntegerTensors {
    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let value = |row: usize, column: usize| {
            let mut bytes = [0; size_of::<i64>()];
            let offset = self.offsets[column] + row as u64 * bytes.len() as u64;
            let read = read_exact_at(&self.file, &mut bytes, offset);
            read.map_err(|error| unread(&self.name, &error))?;
            Ok(serde_json::Value::from(i64::from_le_bytes(bytes)).into())
        };
        rows.iter().map(|row| columns.iter().map(|column| value(*row, *column)).collect()).collect()
    }
}
