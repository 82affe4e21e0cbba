//! The Arrow columns of the content of rows: `scale` and `embedding` or `embeddings`, `rank` and `score`, `labels`, `masks`, or
//! `indices` and `values`; of several outputs, those of each. Those of entities and answers are in `span_columns`.

use std::sync::Arc;

use anyhow::Result;
use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float16Type, Float32Type, Int8Type, Int32Type, Int64Type};
use arrow_array::{
    Array, ArrayRef, FixedSizeListArray, Float16Array, Float32Array, Int8Array, Int32Array, Int64Array,
    ListArray, StructArray,
};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType, Field, Fields};

use super::content::{Content, ContentType, LabelScore, SparseVector, TokenScore, VectorType, other_content};
use super::dtype::{OutputDtype, StoredVector, VectorValues};
use super::span_columns::{self, SpanBuilder, SpanColumns};

/// The fields of the content: vectors are a fixed-size list, or a list of those with one vector per token; labels are a list of
/// structs, masks a list of such lists, sparse vectors two lists.
pub(super) fn fields(content: &ContentType) -> Vec<Field> {
    let field = |name: &str, data_type| Field::new(name, data_type, false);
    match content {
        ContentType::Vectors(vectors) => {
            let scale = (vectors.dtype == OutputDtype::Int8).then(|| field("scale", DataType::Float32));
            let vector = vector_type(vectors);
            let vector = if vectors.per_token {
                field("embeddings", list_of(vector))
            } else {
                field("embedding", vector)
            };
            scale.into_iter().chain([vector]).collect()
        }
        ContentType::Scores { ranked } => {
            let rank = ranked.then(|| field("rank", DataType::Int64));
            rank.into_iter().chain([field("score", DataType::Float32)]).collect()
        }
        ContentType::Labels => {
            let label = DataType::Struct(label_fields());
            vec![field("labels", list_of(label))]
        }
        ContentType::Masks => {
            vec![field("masks", list_of(list_of(DataType::Struct(token_fields()))))]
        }
        ContentType::Sparse { .. } => {
            vec![field("indices", list_of(DataType::Int32)), field("values", list_of(DataType::Float32))]
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
pub(super) enum ContentBuilder {
    Vectors {
        vector_type: VectorType,
        scale: Vec<f32>,
        /// Number of vectors of each row.
        counts: Vec<usize>,
        values: VectorValues,
    },
    Scores {
        ranks: Option<Vec<i64>>,
        scores: Vec<f32>,
    },
    Labels {
        /// Number of labels of each row.
        counts: Vec<usize>,
        labels: StringBuilder,
        scores: Vec<f32>,
    },
    Masks {
        /// Number of masks of each row.
        counts: Vec<usize>,
        /// Number of tokens of each mask.
        token_counts: Vec<usize>,
        tokens: StringBuilder,
        ids: Vec<i32>,
        scores: Vec<f32>,
    },
    Sparse {
        /// Number of elements of each row.
        counts: Vec<usize>,
        indices: Vec<i32>,
        values: Vec<f32>,
    },
    Spans(SpanBuilder),
    Outputs(Vec<ContentBuilder>),
}

impl ContentBuilder {
    /// An empty builder.
    pub(super) fn new(content: &ContentType) -> Self {
        match *content {
            ContentType::Vectors(vector_type) => ContentBuilder::Vectors {
                vector_type,
                scale: Vec::new(),
                counts: Vec::new(),
                values: VectorValues::empty(vector_type.dtype),
            },
            ContentType::Scores { ranked } => {
                ContentBuilder::Scores { ranks: ranked.then(Vec::new), scores: Vec::new() }
            }
            ContentType::Labels => ContentBuilder::Labels {
                counts: Vec::new(),
                labels: StringBuilder::new(),
                scores: Vec::new(),
            },
            ContentType::Masks => ContentBuilder::Masks {
                counts: Vec::new(),
                token_counts: Vec::new(),
                tokens: StringBuilder::new(),
                ids: Vec::new(),
                scores: Vec::new(),
            },
            ContentType::Sparse { .. } => {
                ContentBuilder::Sparse { counts: Vec::new(), indices: Vec::new(), values: Vec::new() }
            }
            ContentType::Spans(kind) => ContentBuilder::Spans(SpanBuilder::new(kind)),
            ContentType::Outputs(outputs) => {
                ContentBuilder::Outputs(outputs.parts().map(|part| ContentBuilder::new(&part)).collect())
            }
        }
    }

    /// Adds the content of a row, and returns its approximate size in bytes.
    pub(super) fn push(&mut self, content: &Content) -> Result<usize> {
        match (self, content) {
            (ContentBuilder::Vectors { vector_type, scale, counts, values }, Content::Vector(vector)) => {
                scale.extend(vector.scale);
                counts.push(vector.values.len() / vector_type.width());
                values.extend(&vector.values);
                Ok(vector.values.len() * vector_type.dtype.element_bytes())
            }
            (ContentBuilder::Scores { ranks, scores }, Content::Score { score, rank }) => {
                scores.push(*score);
                if let Some(ranks) = ranks {
                    ranks.push(rank.unwrap_or_default() as i64);
                }
                Ok(size_of::<f32>())
            }
            (ContentBuilder::Labels { counts, labels, scores }, Content::Labels(row)) => {
                counts.push(row.len());
                for LabelScore { label, score } in row {
                    labels.append_value(label);
                    scores.push(*score);
                }
                let bytes = row.iter().map(|label| label.label.len() + size_of::<i32>() + size_of::<f32>());
                Ok(bytes.sum())
            }
            (ContentBuilder::Masks { counts, token_counts, tokens, ids, scores }, Content::Masks(row)) => {
                counts.push(row.len());
                token_counts.extend(row.iter().map(Vec::len));
                for TokenScore { token, id, score } in row.iter().flatten() {
                    tokens.append_value(token);
                    ids.push(*id as i32);
                    scores.push(*score);
                }
                let bytes = row.iter().flatten().map(|token| token.token.len() + 3 * size_of::<i32>());
                Ok(bytes.sum())
            }
            (ContentBuilder::Sparse { counts, indices, values }, Content::Sparse(row)) => {
                counts.push(row.indices.len());
                indices.extend(row.indices.iter().map(|&index| index as i32));
                values.extend(&row.values);
                Ok(row.indices.len() * (size_of::<i32>() + size_of::<f32>()))
            }
            (ContentBuilder::Outputs(builders), Content::Outputs(outputs)) => {
                builders.iter_mut().zip(outputs).map(|(builder, output)| builder.push(output)).sum()
            }
            (ContentBuilder::Spans(spans), content) => spans.push(content),
            _ => other_content(),
        }
    }

    /// The columns.
    pub(super) fn finish(self) -> Result<Vec<ArrayRef>, ArrowError> {
        match self {
            ContentBuilder::Vectors { vector_type, scale, counts, values } => {
                let scale = (vector_type.dtype == OutputDtype::Int8)
                    .then(|| Arc::new(Float32Array::from(scale)) as ArrayRef);
                Ok(scale.into_iter().chain([vectors(&vector_type, values, counts)?]).collect())
            }
            ContentBuilder::Scores { ranks, scores } => {
                let ranks = ranks.map(|ranks| Arc::new(Int64Array::from(ranks)) as ArrayRef);
                Ok(ranks.into_iter().chain([Arc::new(Float32Array::from(scores)) as ArrayRef]).collect())
            }
            ContentBuilder::Labels { counts, mut labels, scores } => {
                let columns: Vec<ArrayRef> =
                    vec![Arc::new(labels.finish()), Arc::new(Float32Array::from(scores))];
                Ok(vec![list(Arc::new(StructArray::try_new(label_fields(), columns, None)?), counts)?])
            }
            ContentBuilder::Masks { counts, token_counts, mut tokens, ids, scores } => {
                let columns: Vec<ArrayRef> = vec![
                    Arc::new(tokens.finish()),
                    Arc::new(Int32Array::from(ids)),
                    Arc::new(Float32Array::from(scores)),
                ];
                let tokens = Arc::new(StructArray::try_new(token_fields(), columns, None)?);
                Ok(vec![list(list(tokens, token_counts)?, counts)?])
            }
            ContentBuilder::Sparse { counts, indices, values } => Ok(vec![
                list(Arc::new(Int32Array::from(indices)), counts.clone())?,
                list(Arc::new(Float32Array::from(values)), counts)?,
            ]),
            ContentBuilder::Spans(spans) => spans.finish(list),
            ContentBuilder::Outputs(builders) => {
                let columns =
                    builders.into_iter().map(ContentBuilder::finish).collect::<Result<Vec<_>, _>>()?;
                Ok(columns.into_iter().flatten().collect())
            }
        }
    }
}

/// The column of vectors, `counts` in each row.
fn vectors(
    vector_type: &VectorType,
    values: VectorValues,
    counts: Vec<usize>,
) -> Result<ArrayRef, ArrowError> {
    let values: ArrayRef = match values {
        VectorValues::F32(values) => Arc::new(Float32Array::from(values)),
        VectorValues::F16(values) => Arc::new(Float16Array::from(values)),
        VectorValues::Int8(values) => Arc::new(Int8Array::from(values)),
    };
    let field = Arc::new(item_field(values.data_type().clone()));
    let vectors = Arc::new(FixedSizeListArray::try_new(field, vector_type.width() as i32, values, None)?);
    if vector_type.per_token { list(vectors, counts) } else { Ok(vectors) }
}

/// A column of lists of `items`, `counts` in each row.
fn list(items: ArrayRef, counts: Vec<usize>) -> Result<ArrayRef, ArrowError> {
    let field = Arc::new(item_field(items.data_type().clone()));
    Ok(Arc::new(ListArray::try_new(field, OffsetBuffer::from_lengths(counts), items, None)?))
}

/// The columns of the content in a record batch.
pub(super) enum ContentColumns<'a> {
    Vectors {
        vector_type: VectorType,
        scale: Option<&'a Float32Array>,
        /// The vectors of each row, if a row has several.
        lists: Option<&'a ListArray>,
        vectors: &'a FixedSizeListArray,
    },
    Scores {
        ranks: Option<&'a Int64Array>,
        scores: &'a Float32Array,
    },
    Labels(&'a ListArray),
    Masks(&'a ListArray),
    Sparse {
        indices: &'a ListArray,
        values: &'a ListArray,
    },
    Spans(SpanColumns<'a>),
    Outputs(Vec<ContentColumns<'a>>),
}

impl<'a> ContentColumns<'a> {
    /// The columns, which `next` returns in the order of [`fields`].
    pub(super) fn new(content: &ContentType, next: &mut dyn FnMut() -> &'a ArrayRef) -> Self {
        match *content {
            ContentType::Vectors(vector_type) => {
                let is_int8 = vector_type.dtype == OutputDtype::Int8;
                let scale = is_int8.then(|| next().as_primitive::<Float32Type>());
                let embedding = next();
                let lists = vector_type.per_token.then(|| embedding.as_list::<i32>());
                let vectors = lists.map_or(embedding, ListArray::values).as_fixed_size_list();
                ContentColumns::Vectors { vector_type, scale, lists, vectors }
            }
            ContentType::Scores { ranked } => ContentColumns::Scores {
                ranks: ranked.then(|| next().as_primitive::<Int64Type>()),
                scores: next().as_primitive::<Float32Type>(),
            },
            ContentType::Labels => ContentColumns::Labels(next().as_list::<i32>()),
            ContentType::Masks => ContentColumns::Masks(next().as_list::<i32>()),
            ContentType::Sparse { .. } => {
                ContentColumns::Sparse { indices: next().as_list::<i32>(), values: next().as_list::<i32>() }
            }
            ContentType::Spans(kind) => ContentColumns::Spans(SpanColumns::new(kind, next)),
            ContentType::Outputs(outputs) => {
                ContentColumns::Outputs(outputs.parts().map(|part| Self::new(&part, &mut *next)).collect())
            }
        }
    }

    /// The content of row `i`.
    pub(super) fn content(&self, i: usize) -> Content {
        match self {
            ContentColumns::Vectors { vector_type, scale, lists, vectors } => {
                let range = match lists {
                    Some(lists) => lists.value_offsets()[i] as usize..lists.value_offsets()[i + 1] as usize,
                    None => i..i + 1,
                };
                let width = vector_type.width();
                let values =
                    elements(vectors.values(), vector_type.dtype, range.start * width..range.end * width);
                Content::Vector(StoredVector { values, scale: scale.map(|scale| scale.value(i)) })
            }
            ContentColumns::Scores { ranks, scores } => {
                Content::Score { score: scores.value(i), rank: ranks.map(|ranks| ranks.value(i) as u64) }
            }
            ContentColumns::Labels(lists) => {
                let row = lists.value(i);
                let row = row.as_struct();
                let labels = row.column(0).as_string::<i32>().iter().flatten();
                let scores = row.column(1).as_primitive::<Float32Type>().values();
                let labels = labels.zip(scores);
                Content::Labels(
                    labels.map(|(label, score)| LabelScore { label: label.into(), score: *score }).collect(),
                )
            }
            ContentColumns::Masks(lists) => {
                let row = lists.value(i);
                Content::Masks(row.as_list::<i32>().iter().flatten().map(|mask| tokens(&mask)).collect())
            }
            ContentColumns::Sparse { indices, values } => {
                let (indices, values) = (indices.value(i), values.value(i));
                let indices = indices.as_primitive::<Int32Type>().values().iter().map(|&index| index as u32);
                Content::Sparse(Box::new(SparseVector {
                    indices: indices.collect(),
                    values: values.as_primitive::<Float32Type>().values().to_vec(),
                    tokens: Vec::new(),
                }))
            }
            ContentColumns::Spans(spans) => spans.content(i),
            ContentColumns::Outputs(outputs) => {
                Content::Outputs(outputs.iter().map(|output| output.content(i)).collect())
            }
        }
    }
}

/// The tokens of a mask.
fn tokens(mask: &ArrayRef) -> Vec<TokenScore> {
    let mask = mask.as_struct();
    let ids = mask.column(1).as_primitive::<Int32Type>().values();
    let scores = mask.column(2).as_primitive::<Float32Type>().values();
    let tokens = mask.column(0).as_string::<i32>().iter().flatten().zip(ids.iter().zip(scores));
    tokens.map(|(token, (&id, &score))| TokenScore { token: token.into(), id: id as u32, score }).collect()
}

/// A range of the elements of vectors.
fn elements(values: &ArrayRef, dtype: OutputDtype, range: std::ops::Range<usize>) -> VectorValues {
    match dtype {
        OutputDtype::F32 => VectorValues::F32(values.as_primitive::<Float32Type>().values()[range].to_vec()),
        OutputDtype::F16 => VectorValues::F16(values.as_primitive::<Float16Type>().values()[range].to_vec()),
        OutputDtype::Int8 | OutputDtype::Binary => {
            VectorValues::Int8(values.as_primitive::<Int8Type>().values()[range].to_vec())
        }
    }
}
