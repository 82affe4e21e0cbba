//! Converts rows to Arrow record batches. The same rows give the same arrays, bit for bit, however they were
//! batched before.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use anyhow::{Result, bail};
use arrow_array::builder::{BooleanBuilder, Float64Builder, Int64Builder, StringBuilder};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type};
use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, new_empty_array, new_null_array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef};
use arrow_select::concat::concat;
use serde_json::Value;

use super::column_type::{ColumnType, exact_f64, to_text};
use super::columns::{EMBEDDING, EMBEDDINGS, INDEX, TOKENS, TRUNCATED};
use super::content_columns::{self, ContentBuilder};
use super::field::FieldValue;
use super::row::{Row, Span};
use super::row_bytes::value_bytes;
use super::schema::OutputSchema;

/// The Arrow schema of an output: `index`, the ids if rows have any, the columns of [`Span`] if rows are
/// chunks, `tokens`, `truncated`, the kept columns, and those of the content.
pub(crate) fn arrow_schema(schema: &OutputSchema) -> SchemaRef {
    let mut fields = vec![Field::new(INDEX, DataType::Int64, false)];
    fields.extend(
        schema.ids.as_ref().map(|id_type| Field::new(schema.metadata.id_column(), id_type.data_type(), true)),
    );
    if schema.chunks {
        fields.extend(Span::NAMES.map(|name| Field::new(name, DataType::Int64, false)));
    }
    fields.push(Field::new(TOKENS, DataType::Int64, false));
    fields.push(Field::new(TRUNCATED, DataType::Boolean, false));
    for column in &schema.kept {
        fields.push(column.field());
    }
    fields.extend(content_columns::fields(&schema.content).into_iter().map(|field| {
        match schema.vector_column() {
            Some(name) if [EMBEDDING, EMBEDDINGS].contains(&field.name().as_str()) => field.with_name(name),
            _ => field,
        }
    }));
    Arc::new(Schema::new_with_metadata(fields, schema.metadata.to_arrow().collect::<BTreeMap<_, _>>()))
}

/// Builds record batches row by row.
pub(crate) struct BatchBuilder {
    schema: OutputSchema,
    arrow_schema: SchemaRef,
    index: Vec<i64>,
    id: Option<ColumnBuilder>,
    /// The columns of [`Span::NAMES`].
    chunk: [Vec<i64>; Span::NAMES.len()],
    tokens: Vec<i64>,
    truncated: BooleanBuilder,
    kept: Vec<ColumnBuilder>,
    content: ContentBuilder,
    /// Approximate size in bytes.
    bytes: usize,
}

impl BatchBuilder {
    /// An empty builder.
    pub(crate) fn new(schema: &OutputSchema) -> Self {
        BatchBuilder {
            arrow_schema: arrow_schema(schema),
            index: Vec::new(),
            id: schema.ids.as_ref().map(ColumnBuilder::new),
            chunk: Default::default(),
            tokens: Vec::new(),
            truncated: BooleanBuilder::new(),
            kept: schema.kept.iter().map(|column| ColumnBuilder::new(&column.column_type)).collect(),
            content: ContentBuilder::new(&schema.content),
            bytes: 0,
            schema: schema.clone(),
        }
    }

    /// Adds a row.
    pub(crate) fn push(&mut self, row: &Row) -> Result<()> {
        for ((builder, column), value) in self.kept.iter_mut().zip(&self.schema.kept).zip(row.kept) {
            if !column.column_type.accepts(value) {
                bail!(
                    "row {}: {:?} is {}, but the first records have {}; give the field one type in all records, or leave it out \
                     of --keep",
                    row.index,
                    column.name,
                    value.json(),
                    column.column_type
                );
            }
            self.bytes += builder.push(value)?;
        }
        self.index.push(row.index as i64);
        if let Some(ids) = &mut self.id {
            self.bytes += ids.push(&row.id.cloned().unwrap_or_default().into())?;
        }
        if let Some(chunk) = row.chunk {
            for (column, value) in self.chunk.iter_mut().zip(chunk.values()) {
                column.push(value as i64);
                self.bytes += size_of::<i64>();
            }
        }
        self.tokens.push(row.tokens as i64);
        self.truncated.append_value(row.truncated);
        self.bytes += 2 * size_of::<i64>();
        self.bytes += self.content.push(row.content)?;
        Ok(())
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.index.len()
    }

    /// Approximate size of the rows in bytes. It depends on the rows only, so that it can decide where a
    /// batch ends.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the rows as a batch and empties the builder.
    pub(crate) fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let schema = self.schema.clone();
        let mut rows = mem::replace(self, BatchBuilder::new(&schema));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(rows.index))];
        columns.extend(rows.id.map(ColumnBuilder::finish).transpose()?);
        if schema.chunks {
            columns.extend(rows.chunk.map(|column| Arc::new(Int64Array::from(column)) as ArrayRef));
        }
        columns.push(Arc::new(Int64Array::from(rows.tokens)));
        columns.push(Arc::new(rows.truncated.finish()));
        columns.extend(rows.kept.into_iter().map(ColumnBuilder::finish).collect::<Result<Vec<_>, _>>()?);
        columns.extend(rows.content.finish());
        RecordBatch::try_new(rows.arrow_schema, columns)
    }
}

/// Builds the `id` column, a kept column or a column of a table.
pub(crate) enum ColumnBuilder {
    Boolean(BooleanBuilder),
    Integer(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
    /// Arrays with one element each, of this type.
    Arrow(DataType, Vec<ArrayRef>),
}

impl ColumnBuilder {
    /// An empty builder.
    pub(crate) fn new(column_type: &ColumnType) -> Self {
        match column_type {
            ColumnType::Boolean => ColumnBuilder::Boolean(BooleanBuilder::new()),
            ColumnType::Integer => ColumnBuilder::Integer(Int64Builder::new()),
            ColumnType::Float => ColumnBuilder::Float(Float64Builder::new()),
            ColumnType::Text => ColumnBuilder::Text(StringBuilder::new()),
            ColumnType::Arrow(data_type) => ColumnBuilder::Arrow(data_type.clone(), Vec::new()),
        }
    }

    /// Adds a value that [`ColumnType::accepts`] accepted, and returns its approximate size in bytes.
    pub(crate) fn push(&mut self, field: &FieldValue) -> Result<usize> {
        let value = match self {
            ColumnBuilder::Arrow(..) => Cow::Owned(Value::Null),
            _ => field.json(),
        };
        let value = &*value;
        Ok(match self {
            ColumnBuilder::Boolean(column) => {
                column.append_option(value.as_bool());
                1
            }
            ColumnBuilder::Integer(column) => {
                column.append_option(value.as_i64());
                size_of::<i64>()
            }
            ColumnBuilder::Float(column) => {
                column.append_option(field.not_finite().or_else(|| exact_f64(value)));
                size_of::<f64>()
            }
            ColumnBuilder::Text(column) => {
                let text = to_text(value);
                column.append_option(text.as_deref());
                text.map_or(0, |text| text.len()) + size_of::<i32>()
            }
            ColumnBuilder::Arrow(data_type, values) => {
                let value = field.array(data_type).unwrap_or_else(|| new_null_array(data_type, 1));
                let bytes = value_bytes(&value)?;
                values.push(value);
                bytes
            }
        })
    }

    /// The column.
    pub(crate) fn finish(self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            ColumnBuilder::Arrow(data_type, values) if values.is_empty() => new_empty_array(&data_type),
            ColumnBuilder::Arrow(_, values) => {
                return concat(&values.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>());
            }
            ColumnBuilder::Boolean(mut column) => Arc::new(column.finish()),
            ColumnBuilder::Integer(mut column) => Arc::new(column.finish()),
            ColumnBuilder::Float(mut column) => Arc::new(column.finish()),
            ColumnBuilder::Text(mut column) => Arc::new(column.finish()),
        })
    }
}

/// The value of row `i` of the `id` column or a kept column.
pub(crate) fn field_value(column_type: &ColumnType, column: &ArrayRef, i: usize) -> Result<FieldValue> {
    if let ColumnType::Arrow(data_type) = column_type {
        return Ok(FieldValue::from_row(column, i, data_type)?);
    }
    if column.is_null(i) {
        return Ok(FieldValue::default());
    }
    let value: Value = match column_type {
        ColumnType::Boolean => column.as_boolean().value(i).into(),
        ColumnType::Integer => column.as_primitive::<Int64Type>().value(i).into(),
        ColumnType::Float => match column.as_primitive::<Float64Type>().value(i) {
            float if float.is_finite() => float.into(),
            float => return Ok(float.into()),
        },
        ColumnType::Text | ColumnType::Arrow(_) => column.as_string::<i32>().value(i).into(),
    };
    Ok(value.into())
}
