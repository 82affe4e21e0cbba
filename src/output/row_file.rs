//! Reads the rows of a Parquet or Arrow file that Sconce wrote.

use std::fs::File;
use std::io::{BufReader, Read};
use std::iter::Peekable;
use std::path::Path;
use std::slice::Iter;

use anyhow::{Result, anyhow, bail};
use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, DataType, FieldRef, Schema};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::column_type::{ColumnType, KeptColumn};
use super::columns::{arrow_schema, for_each_row};
use super::content::{ContentType, SpanKind, VectorType};
use super::content_columns;
use super::dtype::OutputDtype;
use super::format::OutputFormat;
use super::row::{Row, Span};
use super::schema::{OutputMetadata, OutputSchema};
use crate::named::Named;

/// The prefix of Sconce's metadata.
const PREFIX: &str = "sconce.";
/// The first bytes of an Arrow IPC file; a stream starts with other bytes.
const ARROW_MAGIC: &[u8] = b"ARROW1";

/// The batches of a file, in order.
type Batches = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>>>;

/// An open Parquet or Arrow file that Sconce wrote.
pub struct RowFile {
    name: String,
    schema: OutputSchema,
    batches: Batches,
}

impl RowFile {
    /// Opens a file of this format, Parquet or Arrow.
    ///
    /// # Errors
    /// If it cannot be read, or has columns that Sconce does not write.
    pub fn open(path: &Path, format: OutputFormat) -> Result<Self> {
        let name = path.display().to_string();
        let (arrow, batches) = batches(path, format).map_err(|error| unread(&name, &error))?;
        let Some(schema) = output_schema(&arrow, format) else {
            bail!("{name} has other columns than sconce writes; pass files that sconce wrote");
        };
        Ok(RowFile { name, schema, batches })
    }

    /// What its rows have in common.
    pub fn schema(&self) -> &OutputSchema {
        &self.schema
    }

    /// Calls `f` with each row.
    ///
    /// # Errors
    /// If the file cannot be read, or `f` fails.
    pub fn for_each_row(self, mut f: impl FnMut(&Row) -> Result<()>) -> Result<()> {
        for batch in self.batches {
            let batch = batch.map_err(|error| unread(&self.name, &error))?;
            for_each_row(&batch, &self.schema, &mut f)?;
        }
        Ok(())
    }
}

fn unread(name: &str, error: &dyn std::fmt::Display) -> anyhow::Error {
    let reason = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
    anyhow!("cannot read {name} ({reason}); write or copy it again")
}

/// The schema and the batches of a file.
fn batches(path: &Path, format: OutputFormat) -> Result<(Schema, Batches)> {
    let file = File::open(path)?;
    if format == OutputFormat::Parquet {
        let reader = ParquetRecordBatchReaderBuilder::try_new(file)?;
        let schema = reader.schema().as_ref().clone();
        return Ok((schema, Box::new(reader.build()?)));
    }
    let mut start = Vec::new();
    (&file).take(ARROW_MAGIC.len() as u64).read_to_end(&mut start)?;
    let file = BufReader::new(File::open(path)?);
    if start == ARROW_MAGIC {
        let reader = FileReader::try_new(file, None)?;
        return Ok((reader.schema().as_ref().clone(), Box::new(reader)));
    }
    let reader = StreamReader::try_new(file, None)?;
    Ok((reader.schema().as_ref().clone(), Box::new(reader)))
}

/// The schema of an output with these Arrow columns, the reverse of [`arrow_schema`]; `None` if Sconce writes no such columns.
fn output_schema(arrow: &Schema, format: OutputFormat) -> Option<OutputSchema> {
    let metadata: OutputMetadata = arrow
        .metadata()
        .iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?.to_owned(), value.clone())))
        .collect();
    let mut fields = arrow.fields().iter().peekable();
    next_named(&mut fields, "index")?;
    let ids = next_named(&mut fields, "id").map(column_type);
    let chunks = fields.peek().is_some_and(|field| field.name() == Span::NAMES[0]);
    if chunks {
        for name in Span::NAMES {
            next_named(&mut fields, name)?;
        }
    }
    for name in ["tokens", "truncated"] {
        next_named(&mut fields, name)?;
    }
    let rest: Vec<&FieldRef> = fields.collect();
    let content = content_type(&rest, &metadata)?;
    let kept = rest.len().checked_sub(content_columns::fields(&content).len())?;
    let kept = rest[..kept].iter();
    let kept = kept.map(|field| KeptColumn { name: field.name().clone(), column_type: column_type(field) });
    let schema =
        OutputSchema { format, content, chunks, ids, kept: kept.collect(), metadata, follows_batches: false };
    (arrow_schema(&schema).fields() == arrow.fields()).then_some(schema)
}

/// The next field, if it has this name.
fn next_named<'a>(fields: &mut Peekable<Iter<'a, FieldRef>>, name: &str) -> Option<&'a FieldRef> {
    fields.next_if(|field| field.name() == name)
}

/// The type of the `id` column or a kept column.
fn column_type(field: &FieldRef) -> ColumnType {
    match field.data_type() {
        DataType::Boolean => ColumnType::Boolean,
        DataType::Int64 => ColumnType::Integer,
        DataType::Float64 => ColumnType::Float,
        DataType::Utf8 => ColumnType::Text,
        other => ColumnType::Arrow(other.clone()),
    }
}

/// The content whose columns are the last of `fields`.
fn content_type(fields: &[&FieldRef], metadata: &OutputMetadata) -> Option<ContentType> {
    let (last, before) = fields.split_last()?;
    let follows = |name: &str| before.last().is_some_and(|field| field.name() == name);
    Some(match last.name().as_str() {
        "embedding" => ContentType::Vectors(vector_type(last.data_type(), false, metadata)?),
        "embeddings" => match last.data_type() {
            DataType::List(vector) => ContentType::Vectors(vector_type(vector.data_type(), true, metadata)?),
            _ => return None,
        },
        "score" => ContentType::Scores { ranked: follows("rank") },
        "labels" => ContentType::Labels,
        "masks" => ContentType::Masks,
        "values" => {
            let dimensions = metadata.get("dimensions").and_then(|number| number.parse().ok());
            ContentType::Sparse { dimensions: dimensions.unwrap_or_default() }
        }
        "entities" => ContentType::Spans(SpanKind::Entities),
        "no_answer" => ContentType::Spans(SpanKind::Answers),
        _ => return None,
    })
}

/// The type of vectors that are a fixed-size list.
fn vector_type(list: &DataType, per_token: bool, metadata: &OutputMetadata) -> Option<VectorType> {
    let DataType::FixedSizeList(element, width) = list else { return None };
    let is_binary = metadata.get("output_dtype").is_some_and(|name| name == OutputDtype::Binary.name());
    let dtype = match element.data_type() {
        DataType::Float32 => OutputDtype::F32,
        DataType::Float16 => OutputDtype::F16,
        DataType::Int8 if is_binary => OutputDtype::Binary,
        DataType::Int8 => OutputDtype::Int8,
        _ => return None,
    };
    let width = usize::try_from(*width).ok()?;
    let dimensions = if is_binary { 8 * width } else { width };
    let normalized = metadata.get("normalized").is_some_and(|value| value == "true");
    Some(VectorType { dtype, dimensions, per_token, normalized })
}
