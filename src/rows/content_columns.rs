//! The Arrow columns of the content of rows: `scale` and `embedding` or `embeddings`, `rank` and `score`,
//! `labels`, `masks`, or `indices` and `values`; of several outputs, those of each. Those of entities and
//! answers are in `span_columns`.

use std::slice::IterMut;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::ArrayRef;
use arrow_array::builder::{
    ArrayBuilder, FixedSizeListBuilder, Float16Builder, Float32Builder, Int8Builder, Int32Builder,
    Int64Builder, ListBuilder, PrimitiveBuilder, StringBuilder, StructBuilder, UInt8Builder, make_builder,
};
use arrow_array::types::{ArrowPrimitiveType, Float32Type, Int32Type};
use arrow_schema::{DataType, Field, Fields};

use super::columns::{EMBEDDING, EMBEDDINGS, INDICES, LABELS, MASKS, RANK, SCALE, SCORE, VALUES};
use super::content::{Content, ContentType, LabelScore, TokenScore, VectorType, other_content};
use super::dtype::{OutputDtype, StoredVector, VectorValues};
use super::span_columns;

/// The fields of the content: vectors are a fixed-size list, or a list of those with one vector per token;
/// labels are a list of structs, masks a list of such lists, sparse vectors two lists.
pub(crate) fn fields(content: &ContentType) -> Vec<Field> {
    let field = |name: &str, data_type| Field::new(name, data_type, false);
    match content {
        ContentType::Vectors(vectors) => {
            let scale = (vectors.dtype == OutputDtype::Int8).then_some((SCALE, DataType::Float32));
            let vector = vector_type(vectors);
            let vector = if vectors.per_token { (EMBEDDINGS, list_of(vector)) } else { (EMBEDDING, vector) };
            let columns = scale.into_iter().chain([vector]);
            columns.map(|(name, data_type)| Field::new(name, data_type, vectors.nullable)).collect()
        }
        ContentType::Scores { ranked } => {
            let rank = ranked.then(|| field(RANK, DataType::Int64));
            rank.into_iter().chain([field(SCORE, DataType::Float32)]).collect()
        }
        ContentType::Labels => {
            let label = DataType::Struct(label_fields());
            vec![field(LABELS, list_of(label))]
        }
        ContentType::Masks => {
            vec![field(MASKS, list_of(list_of(DataType::Struct(token_fields()))))]
        }
        ContentType::Sparse { .. } => {
            vec![field(INDICES, list_of(DataType::Int32)), field(VALUES, list_of(DataType::Float32))]
        }
        ContentType::Spans(kind) => span_columns::fields(*kind, list_of),
        ContentType::Outputs(outputs) => outputs.parts().flat_map(|part| fields(&part)).collect(),
    }
}

/// The Arrow type of one vector.
fn vector_type(vectors: &VectorType) -> DataType {
    let element = match vectors.dtype {
        OutputDtype::F32 => DataType::Float32,
        OutputDtype::F16 => DataType::Float16,
        OutputDtype::Int8 | OutputDtype::Binary => DataType::Int8,
        OutputDtype::Ubinary => DataType::UInt8,
    };
    DataType::FixedSizeList(Arc::new(item_field(element)), vectors.width() as i32)
}

/// The type of a list.
fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(item_field(item)))
}

/// The fields of a token with its score.
fn token_fields() -> Fields {
    let fields = [("token", DataType::Utf8), ("id", DataType::Int32), ("score", DataType::Float32)];
    fields.map(|(name, data_type)| Field::new(name, data_type, false)).into_iter().collect()
}

/// The fields of a label.
fn label_fields() -> Fields {
    let fields = [("label", DataType::Utf8), ("score", DataType::Float32)];
    fields.map(|(name, data_type)| Field::new(name, data_type, false)).into_iter().collect()
}

/// The non-nullable item field of a list.
fn item_field(data_type: DataType) -> Field {
    Field::new_list_field(data_type, false)
}

/// Builds the columns of the content row by row.
pub(super) struct ContentBuilder {
    content: ContentType,
    /// One for each of the [`fields`].
    columns: Vec<Box<dyn ArrayBuilder>>,
}

impl ContentBuilder {
    /// An empty builder.
    pub(super) fn new(content: &ContentType) -> Self {
        let columns = fields(content).iter().map(|field| make_builder(field.data_type(), 0)).collect();
        ContentBuilder { content: *content, columns }
    }

    /// Adds the content of a row, and returns its approximate size in bytes.
    pub(super) fn push(&mut self, content: &Content) -> Result<usize> {
        push(&self.content, content, &mut self.columns.iter_mut())
    }

    /// The columns.
    pub(super) fn finish(mut self) -> Vec<ArrayRef> {
        self.columns.iter_mut().map(|column| column.finish()).collect()
    }
}

/// The builders of columns, in the order of [`fields`].
pub(super) type Columns<'a> = IterMut<'a, Box<dyn ArrayBuilder>>;

/// A builder of lists.
pub(super) type Lists = ListBuilder<Box<dyn ArrayBuilder>>;

/// The builder of the next column.
pub(super) fn next<'a, B: ArrayBuilder>(columns: &mut Columns<'a>) -> &'a mut B {
    typed(columns.next().expect("each field has a column"))
}

/// A builder as that of its type.
pub(super) fn typed<B: ArrayBuilder>(builder: &mut Box<dyn ArrayBuilder>) -> &mut B {
    builder.as_any_mut().downcast_mut().expect("the builder is that of the type of its field")
}

/// Adds a list of structs: `push` adds the fields of each item.
pub(super) fn push_structs<T>(lists: &mut Lists, items: &[T], push: impl Fn(&mut StructBuilder, &T)) {
    for item in items {
        let structs: &mut StructBuilder = typed(lists.values());
        push(structs, item);
        structs.append(true);
    }
    lists.append(true);
}

/// Adds a string to a field of a struct.
pub(super) fn push_text(structs: &mut StructBuilder, field: usize, text: &str) {
    let strings = structs.field_builder::<StringBuilder>(field);
    strings.expect("the field holds strings").append_value(text);
}

/// Adds a number to a field of a struct.
pub(super) fn push_number<T: ArrowPrimitiveType>(
    structs: &mut StructBuilder,
    field: usize,
    number: T::Native,
) {
    let numbers = structs.field_builder::<PrimitiveBuilder<T>>(field);
    numbers.expect("the field holds such numbers").append_value(number);
}

/// Adds the content of a row to its columns, and returns its approximate size in bytes.
fn push(content_type: &ContentType, content: &Content, columns: &mut Columns) -> Result<usize> {
    match (content_type, content) {
        (ContentType::Vectors(vectors), Content::Vector(StoredVector { values, scale })) => {
            if vectors.dtype == OutputDtype::Int8 {
                next::<Float32Builder>(columns).append_option(*scale);
            }
            if vectors.per_token {
                let lists: &mut Lists = next(columns);
                push_vectors(typed(lists.values()), vectors.width(), values);
                lists.append(true);
            } else {
                push_vectors(next(columns), vectors.width(), values);
            }
            Ok(values.len() * vectors.dtype.element_bytes())
        }
        (ContentType::Vectors(vectors), Content::Null) => {
            if vectors.dtype == OutputDtype::Int8 {
                next::<Float32Builder>(columns).append_null();
            }
            let lists: &mut FixedSizeListBuilder<_> = next(columns);
            let zeros = vectors.dtype.quantize(vec![0.0; vectors.dimensions], vectors.dimensions);
            push_elements(lists, &zeros.values);
            lists.append(false);
            Ok(vectors.vector_bytes())
        }
        (ContentType::Scores { ranked }, Content::Score { score, rank }) => {
            if *ranked {
                next::<Int64Builder>(columns).append_value(rank.unwrap_or_default() as i64);
            }
            next::<Float32Builder>(columns).append_value(*score);
            Ok(size_of::<f32>())
        }
        (ContentType::Labels, Content::Labels(labels)) => {
            push_structs(next(columns), labels, |structs, LabelScore { label, score }| {
                push_text(structs, 0, label);
                push_number::<Float32Type>(structs, 1, *score);
            });
            let bytes = labels.iter().map(|label| label.label.len() + size_of::<i32>() + size_of::<f32>());
            Ok(bytes.sum())
        }
        (ContentType::Masks, Content::Masks(masks)) => {
            let lists: &mut Lists = next(columns);
            for mask in masks {
                push_structs(typed(lists.values()), mask, |structs, TokenScore { token, id, score }| {
                    push_text(structs, 0, token);
                    push_number::<Int32Type>(structs, 1, *id as i32);
                    push_number::<Float32Type>(structs, 2, *score);
                });
            }
            lists.append(true);
            let bytes = masks.iter().flatten().map(|token| token.token.len() + 3 * size_of::<i32>());
            Ok(bytes.sum())
        }
        (ContentType::Sparse { .. }, Content::Sparse(vector)) => {
            let (indices, values): (&mut Lists, &mut Lists) = (next(columns), next(columns));
            let ids: Vec<i32> = vector.indices.iter().map(|&index| index as i32).collect();
            typed::<Int32Builder>(indices.values()).append_slice(&ids);
            typed::<Float32Builder>(values.values()).append_slice(&vector.values);
            indices.append(true);
            values.append(true);
            Ok(ids.len() * (size_of::<i32>() + size_of::<f32>()))
        }
        (ContentType::Outputs(types), Content::Outputs(outputs)) => {
            types.parts().zip(outputs).map(|(part, output)| push(&part, output, columns)).sum()
        }
        (ContentType::Spans(kind), content) => span_columns::push(*kind, content, columns),
        _ => other_content(),
    }
}

/// Adds vectors of `width` elements.
fn push_vectors(
    vectors: &mut FixedSizeListBuilder<Box<dyn ArrayBuilder>>,
    width: usize,
    values: &VectorValues,
) {
    push_elements(vectors, values);
    (0..values.len() / width).for_each(|_| vectors.append(true));
}

/// Adds the elements of vectors.
fn push_elements(vectors: &mut FixedSizeListBuilder<Box<dyn ArrayBuilder>>, values: &VectorValues) {
    match values {
        VectorValues::F32(values) => typed::<Float32Builder>(vectors.values()).append_slice(values),
        VectorValues::F16(values) => typed::<Float16Builder>(vectors.values()).append_slice(values),
        VectorValues::Int8(values) => typed::<Int8Builder>(vectors.values()).append_slice(values),
        VectorValues::Uint8(values) => typed::<UInt8Builder>(vectors.values()).append_slice(values),
    }
}
