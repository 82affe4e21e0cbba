//! Reads the rows of a Parquet or Arrow file that Sconce wrote.

use std::iter::Peekable;
use std::path::Path;
use std::slice::Iter;

use anyhow::{Result, anyhow, bail};
use arrow_array::RecordBatch;
use arrow_schema::{DataType, FieldRef, Schema};
use arrow_select::filter::filter_record_batch;

use super::Kind;
use super::columnar::{ColumnarFile, open_columnar};
use crate::rows::columns::{
    CHUNK, EMBEDDING, EMBEDDINGS, END, END_LINE, ENTITIES, INDEX, INDICES, LABELS, LINE, MASKS, NO_ANSWER,
    RANK, SCORE, START, TOKENS, TRUNCATED, VALUES,
};
use crate::rows::field::convert::exact;
use crate::rows::metadata::Key;
use crate::rows::{
    ColumnType, ContentType, FieldValue, FileMetadata, KeptColumn, OutputDtype, OutputFormat, OutputSchema,
    OutputTypes, Span, SpanKind, VectorType, arrow_schema, content_fields, field_value,
};
use crate::sys::regular_file;

/// Maximum number of rows of a Parquet file that are decoded at a time.
const MAX_ROWS: usize = 1024;
/// Maximum size of these rows in bytes, unless one row is larger: that of a row group that Sconce writes.
const MAX_BYTES: u64 = 16 << 20;
const REMEDY: &str = "write or copy it again";

/// An open Parquet or Arrow file that Sconce wrote.
pub struct RowFile {
    name: String,
    schema: OutputSchema,
    file: Box<dyn ColumnarFile>,
}

impl RowFile {
    /// Opens a file of this format, Parquet or Arrow.
    pub fn open(path: &Path, format: OutputFormat) -> Result<Self> {
        let name = path.display().to_string();
        let file = regular_file::open(path)
            .map_err(|error| anyhow!("cannot read {name} ({error}); check the path"))?;
        let kind = if format == OutputFormat::Parquet { Kind::Parquet } else { Kind::Arrow };
        let file = open_columnar(&name, file, kind, REMEDY)?;
        let Some(schema) = output_schema(file.schema(), format) else {
            let has = |name: &&str| file.schema().column_with_name(name).is_some();
            if [CHUNK, START, END].iter().all(has) && !has(&END_LINE) {
                bail!(has_no_lines(&name));
            }
            bail!("{name} has other columns than sconce writes; pass files that sconce wrote");
        };
        Ok(RowFile { name, schema, file })
    }

    /// What its rows have in common.
    pub fn schema(&self) -> &OutputSchema {
        &self.schema
    }

    /// Whether the file has any rows.
    pub(super) fn has_rows(&self) -> Result<bool> {
        Ok(self.file.units()?.iter().any(|rows| !rows.is_empty()))
    }

    /// Whether the type of a column holds all values that the file has of it.
    pub fn fits(&self, kept: &KeptColumn) -> Result<bool> {
        let column = self.file.schema().fields().iter().position(|field| *field.name() == kept.name);
        let (data_type, mut fits) = (kept.column_type.data_type(), true);
        self.for_each_batch_of(column.as_slice(), |batch| {
            fits = fits && batch.columns().iter().all(|column| exact(column, &data_type).is_some());
            Ok(())
        })?;
        Ok(fits)
    }

    /// Calls `f` with record batches of all rows, with all columns. If `kept` is there, rows that it has
    /// `false` for are left out.
    pub fn for_each_batch(
        &self,
        mut kept: Option<&[bool]>,
        mut f: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        let columns: Vec<usize> = (0..self.file.schema().fields().len()).collect();
        self.for_each_batch_of(&columns, |batch| {
            let Some(rows) = kept else { return f(batch) };
            let Some((of_batch, rest)) = rows.split_at_checked(batch.num_rows()) else {
                bail!("{} was changed while it was read; run the command again", self.name);
            };
            kept = Some(rest);
            f(&filter_record_batch(batch, &of_batch.to_vec().into())?)
        })
    }

    /// Calls `f` with the values of columns, given by their names, in each row; null where the file does not
    /// have the column. No other column is read.
    pub(super) fn for_each_value<const N: usize>(
        &self,
        names: [&str; N],
        mut f: impl FnMut([FieldValue; N]) -> Result<()>,
    ) -> Result<()> {
        let fields = self.file.schema().fields();
        let found = names.map(|name| fields.iter().position(|field| field.name() == name));
        let mut columns: Vec<usize> = found.into_iter().flatten().collect();
        columns.sort_unstable();
        let types: Vec<ColumnType> =
            columns.iter().map(|column| ColumnType::of_arrow(fields[*column].data_type())).collect();
        let positions = found.map(|column| columns.iter().position(|other| Some(*other) == column));
        self.for_each_batch_of(&columns, |batch| {
            for row in 0..batch.num_rows() {
                let mut values = [(); N].map(|()| FieldValue::default());
                for (value, position) in values.iter_mut().zip(positions) {
                    if let Some(i) = position {
                        *value = field_value(&types[i], batch.column(i), row)?;
                    }
                }
                f(values)?;
            }
            Ok(())
        })
    }

    /// Calls `f` with the record batches of columns, given by their indices in ascending order.
    fn for_each_batch_of(
        &self,
        columns: &[usize],
        mut f: impl FnMut(&RecordBatch) -> Result<()>,
    ) -> Result<()> {
        for batch in self.file.batches(columns, MAX_ROWS, MAX_BYTES)? {
            let batch = batch?;
            let fields = columns.iter().map(|column| self.file.schema().field(*column));
            // The `parquet` and `arrow` crates do not check this in all damaged files.
            if fields.zip(batch.columns()).any(|(field, array)| field.data_type() != array.data_type()) {
                let name = &self.name;
                bail!(
                    "cannot read {name} (a column does not have the type that its schema declares); {REMEDY}"
                );
            }
            f(&batch)?;
        }
        Ok(())
    }
}

/// The error for a file of chunks that an earlier release wrote.
pub(crate) fn has_no_lines(name: &str) -> String {
    format!(
        "{name} has chunks without their lines ({LINE}, {END_LINE}), as earlier releases wrote them; embed the texts again into a \
         new file"
    )
}

/// The schema of an output with these Arrow columns, the reverse of [`arrow_schema`]; `None` if Sconce writes
/// no such columns.
fn output_schema(arrow: &Schema, format: OutputFormat) -> Option<OutputSchema> {
    let metadata = FileMetadata::of_arrow(arrow);
    let mut fields = arrow.fields().iter().peekable();
    next_named(&mut fields, INDEX)?;
    let ids =
        next_named(&mut fields, metadata.id_column()).map(|field| ColumnType::of_arrow(field.data_type()));
    let chunks = fields.peek().is_some_and(|field| field.name() == Span::NAMES[0]);
    if chunks {
        for name in Span::NAMES {
            next_named(&mut fields, name)?;
        }
    }
    for name in [TOKENS, TRUNCATED] {
        next_named(&mut fields, name)?;
    }
    let rest: Vec<&FieldRef> = fields.collect();
    let content = content_type(&rest, &metadata)?;
    let kept = rest.len().checked_sub(content_fields(&content).len())?;
    let kept = rest[..kept].iter().map(|field| KeptColumn::of_arrow(field)).collect();
    let schema = OutputSchema { chunks, ids, kept, metadata, ..OutputSchema::new(format, content) };
    (arrow_schema(&schema).fields() == arrow.fields()).then_some(schema)
}

/// The next field, if it has this name.
fn next_named<'a>(fields: &mut Peekable<Iter<'a, FieldRef>>, name: &str) -> Option<&'a FieldRef> {
    fields.next_if(|field| field.name() == name)
}

/// The content whose columns are the last of `fields`.
fn content_type(fields: &[&FieldRef], metadata: &FileMetadata) -> Option<ContentType> {
    if metadata.has(Key::Outputs) {
        return Some(ContentType::Outputs(output_types(fields, metadata)));
    }
    let (last, before) = fields.split_last()?;
    let follows = |name: &str| before.last().is_some_and(|field| field.name() == name);
    let name = match metadata.get(Key::VectorColumn) {
        Some(name) if name == last.name() => match last.data_type() {
            DataType::FixedSizeList(..) => EMBEDDING,
            _ => EMBEDDINGS,
        },
        _ => last.name(),
    };
    Some(match name {
        EMBEDDING => {
            let vectors = vector_type(last.data_type(), false, metadata)?;
            ContentType::Vectors(VectorType { nullable: last.is_nullable(), ..vectors })
        }
        EMBEDDINGS => ContentType::Vectors(token_vectors(last, metadata)?),
        SCORE => ContentType::Scores { ranked: follows(RANK) },
        LABELS => ContentType::Labels,
        MASKS => ContentType::Masks,
        VALUES => ContentType::Sparse { dimensions: metadata.dimensions() },
        ENTITIES => ContentType::Spans(SpanKind::Entities),
        NO_ANSWER => ContentType::Spans(SpanKind::Answers),
        _ => return None,
    })
}

/// The types of the outputs whose columns are the last of `fields`; a kept column does not have their names.
fn output_types(fields: &[&FieldRef], metadata: &FileMetadata) -> OutputTypes {
    let mut last = fields.iter().rev().peekable();
    let mut next = |name: &str| last.next_if(|field| field.name() == name);
    // Columns of other types are none that Sconce writes, which the comparison with its schema shows.
    let tokens = next(EMBEDDINGS).and_then(|field| token_vectors(field, metadata));
    let sparse = next(VALUES).and_then(|_| next(INDICES)).map(|_| metadata.dimensions());
    let dense = next(EMBEDDING).and_then(|field| vector_type(field.data_type(), false, metadata));
    OutputTypes { dense, sparse, tokens }
}

/// The type of the vectors of tokens, which are a list in each row.
fn token_vectors(field: &FieldRef, metadata: &FileMetadata) -> Option<VectorType> {
    match field.data_type() {
        DataType::List(vector) => vector_type(vector.data_type(), true, metadata),
        _ => None,
    }
}

/// The type of vectors that are a fixed-size list.
fn vector_type(list: &DataType, per_token: bool, metadata: &FileMetadata) -> Option<VectorType> {
    let DataType::FixedSizeList(element, width) = list else { return None };
    let is_binary = matches!(metadata.output_dtype(), Some(OutputDtype::Binary | OutputDtype::Ubinary));
    let dtype = match element.data_type() {
        DataType::Float32 => OutputDtype::F32,
        DataType::Float16 => OutputDtype::F16,
        DataType::Int8 if is_binary => OutputDtype::Binary,
        DataType::Int8 => OutputDtype::Int8,
        DataType::UInt8 if is_binary => OutputDtype::Ubinary,
        _ => return None,
    };
    let width = usize::try_from(*width).ok().filter(|width| *width > 0)?;
    let dimensions = if is_binary { 8 * width } else { width };
    let normalized = metadata.get(Key::Normalized) == Some("true");
    Some(VectorType { dtype, dimensions, per_token, normalized, nullable: false })
}
