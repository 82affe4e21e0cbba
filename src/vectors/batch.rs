//! Vectors and columns in Arrow record batches, for Arrow and Parquet files.

use std::ops::{ControlFlow, Range};

use anyhow::{Result, anyhow, bail};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Int8Type, UInt8Type};
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_schema::{DataType, FieldRef, Schema};

use super::buffer::BlockBuffer;
use super::choice::{Candidate, Held, VectorField};
use super::error::{token_integers, wrong_width};
use super::lists::{first_null, list_items, list_values};
use super::source::Blocks;
use super::sparse;
use super::width::{checked_width, dimensions_of_int8};
use crate::error::one_line;
use crate::formats::error::REMEDY;
use crate::neighbours::{Block, Representation};
use crate::rows::columns::{EMBEDDING, EMBEDDINGS, INDICES, SCALE, TOKENS, TRUNCATED, VALUES, WEIGHTS};
use crate::rows::field::{FieldValue, carried_type, convert, to_json, type_noun};
use crate::rows::metadata::Key;
use crate::rows::{ColumnType, FileMetadata, KeptColumn, OutputDtype};

/// Columns that are not shown beside a vector.
const HIDDEN: &[&str] = &[TOKENS, TRUNCATED, SCALE, EMBEDDING, EMBEDDINGS];
/// Columns of a sparse vector, which are not shown beside it, nor beside another output of the same row.
const HIDDEN_SPARSE: &[&str] = &[INDICES, VALUES, WEIGHTS];

/// Whether a column is shown beside what rows hold; `has_sparse`: a sparse vector, alone or beside other
/// outputs.
pub(super) fn is_shown(name: &str, has_sparse: bool) -> bool {
    !(HIDDEN.contains(&name) || has_sparse && HIDDEN_SPARSE.contains(&name))
}

/// What a schema says about the vectors of a file.
pub(super) struct VectorSchema {
    /// The indices of the columns that are decoded, ascending: the vectors and the scales, or indices and
    /// values.
    pub decoded: Vec<usize>,
    /// The index of the column of the vectors, or of the indices of sparse ones.
    pub vectors: usize,
    /// The index of the column of the values of sparse vectors.
    pub values: Option<usize>,
    /// The index of the column of the scales.
    pub scale: Option<usize>,
    /// What a row holds.
    pub kind: Representation,
    /// Type of the elements.
    pub dtype: OutputDtype,
    /// Stored elements of a vector, if the type of the column says it.
    pub width: Option<usize>,
    /// The metadata, without the prefix of the keys.
    pub metadata: FileMetadata,
    /// The columns that are shown, and their indices.
    pub columns: Vec<KeptColumn>,
    pub indices: Vec<usize>,
}

impl VectorSchema {
    /// The columns of the file that `columns`, given by their indices in [`VectorSchema::columns`], are,
    /// ascending and distinct; and the position of each of `columns` among them.
    pub(super) fn projection(&self, columns: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let indices: Vec<usize> = columns.iter().map(|column| self.indices[*column]).collect();
        let mut projection = indices.clone();
        projection.sort_unstable();
        projection.dedup();
        let position = |index: &usize| projection.partition_point(|other| other < index);
        let positions = indices.iter().map(position).collect();
        (projection, positions)
    }

    /// Finds the columns of the file `name`.
    pub(super) fn new(name: &str, field: VectorField, schema: &Schema) -> Result<Self> {
        let find = |name: &str| schema.fields().iter().position(|field| field.name() == name);
        let metadata = FileMetadata::of_arrow(schema);
        let own: Vec<&str> =
            metadata.get(Key::VectorColumn).into_iter().chain([EMBEDDING, EMBEDDINGS]).collect();
        let is_dense = match field {
            VectorField::Named(_) => true,
            _ => field.name().into_iter().chain(own.iter().copied()).any(|name| find(name).is_some()),
        };
        if !is_dense && let (Some(indices), Some(values)) = (find(INDICES), find(VALUES)) {
            return Ok(Self::sparse(schema, metadata, indices, values));
        }
        let candidates: Vec<Candidate> = schema.fields().iter().map(candidate).collect();
        let vectors = field.find(name, "column", &own, &candidates)?;
        let (column, data_type) = (schema.field(vectors).name(), schema.field(vectors).data_type());
        let Some((mut item, mut width)) = list_items(data_type) else {
            bail!(
                "{name}: column {column:?} has the type {}, expected lists; write it as lists of numbers",
                one_line(data_type)
            )
        };
        let mut kind = Representation::Dense;
        if let Some(of_token) = list_items(item.data_type()) {
            kind = Representation::PerToken;
            (item, width) = of_token;
        }
        let width = width.map(|width| checked_width(name, width.try_into().unwrap_or(0))).transpose()?;
        let scale = find(SCALE).filter(|_| *item.data_type() == DataType::Int8);
        let dtype = match item.data_type() {
            DataType::Float32 | DataType::Float64 => OutputDtype::F32,
            DataType::Float16 => OutputDtype::F16,
            DataType::Int8 => dimensions_of_int8(&metadata, 0, scale.is_none()).0,
            DataType::UInt8 => OutputDtype::Ubinary,
            other => bail!(
                "{name}: the elements of column {column:?} have the type {}; convert them to f32, f16, int8 or uint8",
                one_line(other)
            ),
        };
        if kind == Representation::PerToken && !matches!(dtype, OutputDtype::F32 | OutputDtype::F16) {
            return Err(token_integers(name));
        }
        let mut decoded: Vec<usize> = [vectors].into_iter().chain(scale).collect();
        decoded.sort_unstable();
        let (indices, columns) = shown_columns(schema, vectors, metadata.has(Key::Outputs));
        let values = None;
        Ok(VectorSchema { decoded, vectors, values, scale, kind, dtype, width, metadata, columns, indices })
    }

    /// The schema of a file with sparse vectors in these columns.
    fn sparse(schema: &Schema, metadata: FileMetadata, indices: usize, values: usize) -> Self {
        let kind = Representation::Sparse;
        let decoded = vec![indices.min(values), indices.max(values)];
        let (vectors, values, dtype) = (indices, Some(values), OutputDtype::F32);
        let (indices, columns) = shown_columns(schema, vectors, true);
        // Rows have any number of elements.
        let width = Some(0);
        VectorSchema { decoded, vectors, values, scale: None, kind, dtype, width, metadata, columns, indices }
    }

    /// The stored elements of a vector: those that the type of the column says, else those of the first
    /// vector, which `first` finds; 0 if no row has one.
    pub(super) fn stored_width(
        &self,
        name: &str,
        first: impl FnOnce() -> Result<Option<usize>>,
    ) -> Result<usize> {
        match self.width {
            Some(width) => Ok(width),
            None => first()?.map_or(Ok(0), |width| checked_width(name, width as u64)),
        }
    }

    /// The stored elements of the first vector of a batch that has the column of the vectors alone; `None` if
    /// no row has one.
    pub(super) fn width_in(&self, batch: &RecordBatch) -> Option<usize> {
        let column = batch.column(0);
        let (values, offsets) = list_values(column)?;
        let mut rows = (0..column.len()).filter(|row| column.is_valid(*row));
        if self.kind != Representation::PerToken {
            return rows.next().map(|row| offsets[row + 1] - offsets[row]);
        }
        let row = rows.find(|row| offsets[row + 1] > offsets[*row])?;
        let (_, ends) = list_values(&values)?;
        Some(ends[offsets[row] + 1] - ends[offsets[row]])
    }

    /// Dimensions of a vector with `width` stored elements; those of a sparse vector by the metadata, else 0.
    pub(super) fn dimensions(&self, width: usize) -> usize {
        if self.kind == Representation::Sparse {
            return self.metadata.dimensions();
        }
        if matches!(self.dtype, OutputDtype::Binary | OutputDtype::Ubinary) { 8 * width } else { width }
    }

    /// The block of the `rows` rows that a buffer holds, of vectors with `width` stored elements.
    fn block<'a>(&self, buffer: &'a BlockBuffer, first_row: usize, rows: usize, width: usize) -> Block<'a> {
        let dimensions = self.dimensions(width);
        match self.kind {
            Representation::Sparse => buffer.sparse_block(first_row, dimensions),
            _ => buffer.block(self.dtype, first_row, rows, dimensions),
        }
    }

    /// Calls `visit` with the vectors of a batch with the columns [`VectorSchema::decoded`], whose first row
    /// is row `first_row` of the file: a block for each run of rows that have a vector.
    pub(super) fn visit_batch(
        &self,
        name: &str,
        batch: &RecordBatch,
        first_row: usize,
        width: usize,
        Blocks { buffer, visit, .. }: &mut Blocks,
    ) -> Result<ControlFlow<()>> {
        let vectors = self.decoded.iter().position(|index| *index == self.vectors);
        let column = vectors.and_then(|i| batch.columns().get(i));
        let whole = std::iter::once(0..batch.num_rows()).collect();
        for run in column.map_or(whole, valid_runs) {
            let part = batch.slice(run.start, run.len());
            let first = first_row + run.start;
            buffer.clear();
            self.append(name, part.columns(), first, width, buffer)?;
            if visit(&self.block(buffer, first, run.len(), width))?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Appends the vectors of a batch with the columns [`VectorSchema::decoded`], whose first row is row
    /// `first_row` of the file, to a buffer. `width`: the stored elements that each must have.
    fn append(
        &self,
        name: &str,
        columns: &[ArrayRef],
        first_row: usize,
        width: usize,
        buffer: &mut BlockBuffer,
    ) -> Result<()> {
        let column =
            |index: usize| self.decoded.iter().position(|i| *i == index).and_then(|i| columns.get(i));
        let vectors =
            column(self.vectors).ok_or_else(|| anyhow!("{name} has no column of vectors; {REMEDY}"))?;
        if let Some(values) = self.values.and_then(column) {
            return sparse::append(name, [vectors, values], first_row, buffer);
        }
        let (vectors, counts) = self.token_vectors(name, vectors)?;
        let values = elements(&vectors, width).map_err(|(vector, defect)| {
            let row = first_row + row_of_vector(vector, &counts);
            let reason = match defect {
                Defect::Width(found) => return wrong_width(name, row, found, width),
                Defect::Null => "is null",
                Defect::NullElement => "has an element that is null",
                Defect::NoList => "is no list",
            };
            anyhow!("{name}: the vector of row {row} {reason}; remove the row, or correct it")
        })?;
        let wrong_type =
            || anyhow!("{name}: the vectors do not have the type that the schema declares; {REMEDY}");
        match self.dtype {
            OutputDtype::F32 => {
                buffer.extend_f32(convert::rounded_to_f32(&values).ok_or_else(wrong_type)?.values());
            }
            OutputDtype::F16 => {
                buffer.extend_f16(values.as_primitive_opt::<Float16Type>().ok_or_else(wrong_type)?.values());
            }
            OutputDtype::Int8 | OutputDtype::Binary => {
                buffer.extend_int8(values.as_primitive_opt::<Int8Type>().ok_or_else(wrong_type)?.values());
            }
            OutputDtype::Ubinary => {
                buffer
                    .extend_ubinary(values.as_primitive_opt::<UInt8Type>().ok_or_else(wrong_type)?.values());
            }
        }
        match self.scale.and_then(column) {
            Some(scales) => {
                let scales = scales.as_primitive_opt::<Float32Type>().ok_or_else(wrong_type)?;
                buffer.scales.extend_from_slice(scales.values());
            }
            None if self.dtype == OutputDtype::Int8 => buffer.set_unit_scales(width),
            None => {}
        }
        buffer.lengths.extend(counts);
        Ok(())
    }

    /// The vectors of a column, and with one vector per token those of all rows and their number in each row.
    fn token_vectors(&self, name: &str, column: &ArrayRef) -> Result<(ArrayRef, Vec<usize>)> {
        if self.kind != Representation::PerToken {
            return Ok((column.clone(), Vec::new()));
        }
        let Some((values, offsets)) = list_values(column) else {
            bail!("{name}: the column of the vectors has other values than lists of vectors; {REMEDY}");
        };
        let (first, end) = (offsets[0], offsets[offsets.len() - 1]);
        let counts = offsets.windows(2).map(|bounds| bounds[1] - bounds[0]).collect();
        Ok((values.slice(first, end - first), counts))
    }
}

/// The row of a vector, if rows have these numbers of vectors; without numbers, one each.
fn row_of_vector(vector: usize, counts: &[usize]) -> usize {
    if counts.is_empty() {
        return vector;
    }
    let ends = counts.iter().scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    ends.take_while(|end| *end <= vector).count()
}

/// The runs of rows that are not null.
fn valid_runs(column: &ArrayRef) -> Vec<Range<usize>> {
    let Some(nulls) = column.nulls() else { return std::iter::once(0..column.len()).collect() };
    nulls.valid_slices().map(|(start, end)| start..end).collect()
}

/// What is wrong with a vector.
enum Defect {
    Null,
    NullElement,
    NoList,
    /// It has this number of elements.
    Width(usize),
}

/// The elements of the lists of a column, each of `width` elements without nulls.
fn elements(lists: &ArrayRef, width: usize) -> Result<ArrayRef, (usize, Defect)> {
    let rows = lists.len();
    if let Some(row) = (0..rows).find(|row| lists.null_count() > 0 && lists.is_null(*row)) {
        return Err((row, Defect::Null));
    }
    let (values, offsets) = list_values(lists).ok_or((0, Defect::NoList))?;
    if let Some(row) = offsets.windows(2).position(|pair| pair[1] - pair[0] != width) {
        return Err((row, Defect::Width(offsets[row + 1] - offsets[row])));
    }
    let values = values.slice(offsets[0], offsets[rows] - offsets[0]);
    match first_null(&values) {
        Some(element) => Err((element / width.max(1), Defect::NullElement)),
        None => Ok(values),
    }
}

/// A column, and whether it can be that of the vectors.
fn candidate(field: &FieldRef) -> Candidate {
    let item = list_items(field.data_type()).map(|(item, _)| item.data_type());
    let element = item.map(|item| list_items(item).map_or(item, |(item, _)| item.data_type()));
    let held = match element {
        Some(element) if element.is_floating() => Held::Vectors,
        Some(element) if element.is_integer() => Held::Ambiguous,
        _ => Held::Other,
    };
    Candidate { name: field.name().clone(), type_name: type_noun(field.data_type()), held }
}

/// The columns of a file that are shown beside what rows hold, which is in column `vectors`, with their
/// indices in the schema.
fn shown_columns(schema: &Schema, vectors: usize, has_sparse: bool) -> (Vec<usize>, Vec<KeptColumn>) {
    let is_shown = |i: usize, field: &FieldRef| i != vectors && is_shown(field.name(), has_sparse);
    let shown = schema.fields().iter().enumerate().filter(|(i, field)| is_shown(*i, field));
    let column = |(i, field): (usize, &FieldRef)| {
        let column_type = carried_type(field.data_type()).map_or(ColumnType::Text, ColumnType::Arrow);
        (i, KeptColumn { column_type, ..KeptColumn::of_arrow(field) })
    };
    shown.map(column).unzip()
}

/// The values of the columns at `positions` in a row of a record batch of the file `name`.
pub(super) fn values(
    name: &str,
    batch: &RecordBatch,
    positions: &[usize],
    row: usize,
) -> Result<Vec<FieldValue>> {
    positions.iter().map(|position| value(name, batch.column(*position), row)).collect()
}

/// The value of a column in a row of a batch.
fn value(name: &str, column: &ArrayRef, row: usize) -> Result<FieldValue> {
    let failed = |reason: &dyn std::fmt::Display| {
        anyhow!("{name}: a value cannot be converted ({reason}); leave its column out of --keep")
    };
    match carried_type(column.data_type()) {
        Some(data_type) => FieldValue::from_row(column, row, &data_type).map_err(|error| failed(&error)),
        None => Ok(to_json(column, row).map_err(|error| failed(&error))?.into()),
    }
}
