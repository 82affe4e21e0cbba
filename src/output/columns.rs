//! Rows as columns of Arrow, and back. The same rows give the same columns, bit for bit, whatever batches they came in.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use anyhow::{Result, bail};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanBuilder, FixedSizeListArray, Float16Array, Float32Array, Float64Builder,
    Int8Array, Int64Array, Int64Builder, ListArray, RecordBatch, StringBuilder, new_empty_array,
    new_null_array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::concat;
use arrow::datatypes::{
    DataType, Field, Float16Type, Float32Type, Float64Type, Int8Type, Int64Type, Schema, SchemaRef,
};
use arrow::error::ArrowError;
use serde_json::Value;

use super::kind::{float, text};
use super::{Dtype, Kind, Layout, Numbers, Row, Span, Vector};
use crate::field::FieldValue;

/// The columns of a layout: `index`, `id` where rows may have ids, `chunk`, `start` and `end` for chunks, `tokens`, `truncated`, what is kept, `scale` for
/// `int8`, and `embedding`, a list of fixed size, or `embeddings`, a list of such lists. Its metadata is what the output says of
/// itself.
pub fn schema(layout: &Layout) -> SchemaRef {
    let mut fields = vec![Field::new("index", DataType::Int64, false)];
    fields.extend(layout.ids.as_ref().map(|kind| Field::new("id", kind.column_type(), true)));
    if layout.chunks {
        fields.extend(Span::NAMES.map(|name| Field::new(name, DataType::Int64, false)));
    }
    fields.push(Field::new("tokens", DataType::Int64, false));
    fields.push(Field::new("truncated", DataType::Boolean, false));
    for column in &layout.kept {
        fields.push(Field::new(&column.name, column.kind.column_type(), true));
    }
    if layout.dtype == Dtype::Int8 {
        fields.push(Field::new("scale", DataType::Float32, false));
    }
    let vector = vector_type(layout);
    fields.push(match layout.per_token {
        true => Field::new("embeddings", DataType::List(Arc::new(item(vector))), false),
        false => Field::new("embedding", vector, false),
    });
    let about = layout.about.iter().map(|(key, value)| (format!("sconce.{key}"), value.clone()));
    Arc::new(Schema::new_with_metadata(fields, about.collect::<BTreeMap<_, _>>()))
}

/// The type of one vector.
fn vector_type(layout: &Layout) -> DataType {
    let number = match layout.dtype {
        Dtype::F32 => DataType::Float32,
        Dtype::F16 => DataType::Float16,
        Dtype::Int8 | Dtype::Binary => DataType::Int8,
    };
    DataType::FixedSizeList(Arc::new(item(number)), layout.width() as i32)
}

/// What a list holds; never null.
fn item(kind: DataType) -> Field {
    Field::new_list_field(kind, false)
}

/// Groups of rows, one after another.
pub type Groups<'a> = dyn Iterator<Item = Result<RecordBatch>> + 'a;

/// Rows on their way to a batch.
pub struct Columns {
    layout: Layout,
    schema: SchemaRef,
    index: Vec<i64>,
    id: Option<Kept>,
    /// The columns of [`Span::NAMES`].
    chunk: [Vec<i64>; 3],
    tokens: Vec<i64>,
    truncated: BooleanBuilder,
    kept: Vec<Kept>,
    scale: Vec<f32>,
    /// Vectors of each row.
    vectors: Vec<usize>,
    numbers: Numbers,
    bytes: usize,
}

/// The values of a kept column.
enum Kept {
    Boolean(BooleanBuilder),
    Integer(Int64Builder),
    Float(Float64Builder),
    Text(StringBuilder),
    /// Arrays of one element, of this type.
    Arrow(DataType, Vec<ArrayRef>),
}

impl Kept {
    /// No values yet.
    fn new(kind: &Kind) -> Self {
        match kind {
            Kind::Boolean => Kept::Boolean(BooleanBuilder::new()),
            Kind::Integer => Kept::Integer(Int64Builder::new()),
            Kind::Float => Kept::Float(Float64Builder::new()),
            Kind::Text => Kept::Text(StringBuilder::new()),
            Kind::Arrow(kind) => Kept::Arrow(kind.clone(), Vec::new()),
        }
    }

    /// Adds a value that fits, and returns how many bytes it takes, about.
    fn push(&mut self, field: &FieldValue) -> usize {
        let value = match self {
            Kept::Arrow(..) => Cow::Owned(Value::Null),
            _ => field.json(),
        };
        let value = &*value;
        match self {
            Kept::Boolean(column) => {
                column.append_option(value.as_bool());
                1
            }
            Kept::Integer(column) => {
                column.append_option(value.as_i64());
                size_of::<i64>()
            }
            Kept::Float(column) => {
                column.append_option(float(value));
                size_of::<f64>()
            }
            Kept::Text(column) => {
                let text = text(value);
                column.append_option(text.as_deref());
                text.map_or(0, |text| text.len()) + size_of::<i32>()
            }
            Kept::Arrow(kind, values) => {
                values.push(field.array(kind).unwrap_or_else(|| new_null_array(kind, 1)));
                field.bytes()
            }
        }
    }

    fn finish(self) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Kept::Arrow(kind, values) if values.is_empty() => new_empty_array(&kind),
            Kept::Arrow(_, values) => {
                return concat(&values.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>());
            }
            Kept::Boolean(mut column) => Arc::new(column.finish()),
            Kept::Integer(mut column) => Arc::new(column.finish()),
            Kept::Float(mut column) => Arc::new(column.finish()),
            Kept::Text(mut column) => Arc::new(column.finish()),
        })
    }
}

impl Columns {
    /// None yet.
    pub fn new(layout: &Layout) -> Self {
        Columns {
            schema: schema(layout),
            index: Vec::new(),
            id: layout.ids.as_ref().map(Kept::new),
            chunk: Default::default(),
            tokens: Vec::new(),
            truncated: BooleanBuilder::new(),
            kept: layout.kept.iter().map(|column| Kept::new(&column.kind)).collect(),
            scale: Vec::new(),
            vectors: Vec::new(),
            numbers: Numbers::none(layout.dtype),
            bytes: 0,
            layout: layout.clone(),
        }
    }

    /// Adds a row.
    ///
    /// # Errors
    /// If a kept value is not of its column's kind.
    pub fn push(&mut self, row: &Row) -> Result<()> {
        for ((kept, column), value) in self.kept.iter_mut().zip(&self.layout.kept).zip(row.kept) {
            if !column.kind.holds(value) {
                bail!(
                    "row {}: {:?} is {}, but the column was found to hold {}; make the field alike in all rows, or \
                     leave it out of --keep",
                    row.index,
                    column.name,
                    value.json(),
                    column.kind
                );
            }
            self.bytes += kept.push(value);
        }
        let Vector { numbers, scale } = row.vector;
        self.index.push(row.index as i64);
        if let Some(ids) = &mut self.id {
            self.bytes += ids.push(&row.id.cloned().unwrap_or_default().into());
        }
        if let Some(chunk) = row.chunk {
            for (column, value) in self.chunk.iter_mut().zip(chunk.values()) {
                column.push(value as i64);
                self.bytes += size_of::<i64>();
            }
        }
        self.tokens.push(row.tokens as i64);
        self.truncated.append_value(row.truncated);
        self.scale.extend(scale);
        self.vectors.push(numbers.len() / self.layout.width());
        self.numbers.append(numbers);
        self.bytes += 2 * size_of::<i64>();
        self.bytes += numbers.len() * self.layout.dtype.size();
        Ok(())
    }

    /// Rows so far.
    pub fn rows(&self) -> usize {
        self.index.len()
    }

    /// What they take, about; it follows from the rows alone.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The rows as a batch, and none from here on.
    ///
    /// # Errors
    /// If the library finds columns of unlike length.
    pub fn take(&mut self) -> Result<RecordBatch, ArrowError> {
        let layout = self.layout.clone();
        let mut rows = mem::replace(self, Columns::new(&layout));
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(rows.index))];
        columns.extend(rows.id.map(Kept::finish).transpose()?);
        if layout.chunks {
            columns.extend(rows.chunk.map(|column| Arc::new(Int64Array::from(column)) as ArrayRef));
        }
        columns.push(Arc::new(Int64Array::from(rows.tokens)));
        columns.push(Arc::new(rows.truncated.finish()));
        columns.extend(rows.kept.into_iter().map(Kept::finish).collect::<Result<Vec<_>, _>>()?);
        if layout.dtype == Dtype::Int8 {
            columns.push(Arc::new(Float32Array::from(rows.scale)));
        }
        let numbers: ArrayRef = match rows.numbers {
            Numbers::F32(numbers) => Arc::new(Float32Array::from(numbers)),
            Numbers::F16(numbers) => Arc::new(Float16Array::from(numbers)),
            Numbers::Int8(numbers) => Arc::new(Int8Array::from(numbers)),
        };
        let field = Arc::new(item(numbers.data_type().clone()));
        let vectors = FixedSizeListArray::try_new(field, layout.width() as i32, numbers, None)?;
        columns.push(match layout.per_token {
            true => {
                let field = Arc::new(item(vectors.data_type().clone()));
                let offsets = OffsetBuffer::from_lengths(rows.vectors);
                Arc::new(ListArray::try_new(field, offsets, Arc::new(vectors), None)?)
            }
            false => Arc::new(vectors),
        });
        RecordBatch::try_new(rows.schema, columns)
    }
}

/// Gives every row of a batch that [`Columns::take`] made to `each`.
///
/// # Errors
/// Those of `each`.
pub fn each_row(
    batch: &RecordBatch,
    layout: &Layout,
    mut each: impl FnMut(&Row) -> Result<()>,
) -> Result<()> {
    let mut columns = batch.columns().iter();
    let mut next = || columns.next().expect("the batch has the columns of its schema");
    let index = next().as_primitive::<Int64Type>();
    let id = layout.ids.as_ref().map(|kind| (kind, next()));
    let chunk = layout.chunks.then(|| [(); 3].map(|()| next().as_primitive::<Int64Type>()));
    let tokens = next().as_primitive::<Int64Type>();
    let truncated = next().as_boolean();
    let kept: Vec<_> = layout.kept.iter().map(|column| (&column.kind, next())).collect();
    let scale = (layout.dtype == Dtype::Int8).then(|| next().as_primitive::<Float32Type>());
    let embedding = next();
    let (lists, vectors) = match layout.per_token {
        true => (Some(embedding.as_list::<i32>()), embedding.as_list::<i32>().values().as_fixed_size_list()),
        false => (None, embedding.as_fixed_size_list()),
    };
    let (numbers, width) = (vectors.values(), layout.width());
    for i in 0..batch.num_rows() {
        let vectors = match lists {
            Some(lists) => lists.value_offsets()[i] as usize..lists.value_offsets()[i + 1] as usize,
            None => i..i + 1,
        };
        let range = vectors.start * width..vectors.end * width;
        let numbers = match layout.dtype {
            Dtype::F32 => Numbers::F32(numbers.as_primitive::<Float32Type>().values()[range].to_vec()),
            Dtype::F16 => Numbers::F16(numbers.as_primitive::<Float16Type>().values()[range].to_vec()),
            Dtype::Int8 | Dtype::Binary => {
                Numbers::Int8(numbers.as_primitive::<Int8Type>().values()[range].to_vec())
            }
        };
        let kept = kept.iter().map(|(kind, column)| value(kind, column, i)).collect::<Result<Vec<_>>>()?;
        let id = id.map(|(kind, column)| value(kind, column, i)).transpose()?;
        let id = id.map(|id| id.json().into_owned()).filter(|id| !id.is_null());
        each(&Row {
            index: index.value(i) as u64,
            id: id.as_ref(),
            chunk: chunk.map(|columns| {
                let [chunk, start, end] = columns.map(|column| column.value(i) as u64);
                Span { chunk, start, end }
            }),
            tokens: tokens.value(i) as usize,
            truncated: truncated.value(i),
            kept: &kept,
            vector: &Vector { numbers, scale: scale.map(|scale| scale.value(i)) },
        })?;
    }
    Ok(())
}

fn value(kind: &Kind, column: &ArrayRef, i: usize) -> Result<FieldValue> {
    if let Kind::Arrow(kind) = kind {
        return Ok(FieldValue::of_row(column, i, kind)?);
    }
    if column.is_null(i) {
        return Ok(FieldValue::default());
    }
    let value: Value = match kind {
        Kind::Boolean => column.as_boolean().value(i).into(),
        Kind::Integer => column.as_primitive::<Int64Type>().value(i).into(),
        Kind::Float => column.as_primitive::<Float64Type>().value(i).into(),
        Kind::Text | Kind::Arrow(_) => column.as_string::<i32>().value(i).into(),
    };
    Ok(value.into())
}
