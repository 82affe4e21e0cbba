//! The approximate size of rows in record batches: what [`BatchBuilder`](super::BatchBuilder) counts for the
//! same rows, computed by columns.

use std::borrow::Cow;

use anyhow::Result;
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, ListArray, RecordBatch};
use arrow_data::ArrayData;
use arrow_schema::DataType;

use super::column_type::ColumnType;
use super::content::{ContentType, SpanKind};
use super::dtype::OutputDtype;
use super::field::FieldValue;
use super::row::Span;
use super::schema::OutputSchema;

/// The size of each row of a batch with the columns of `schema`, in bytes.
pub(crate) fn row_bytes(batch: &RecordBatch, schema: &OutputSchema) -> Result<Vec<usize>> {
    let spans = if schema.chunks { Span::NAMES.len() } else { 0 };
    // The number of tokens and whether the text was truncated, and the span.
    let mut bytes = vec![(2 + spans) * size_of::<i64>(); batch.num_rows()];
    let mut columns = batch.columns()[1..].iter();
    let mut next = || columns.next().expect("the batch has the columns of its schema");
    if let Some(ids) = &schema.ids {
        add_values(&mut bytes, ids, next())?;
    }
    (0..spans + 2).for_each(|_| {
        next();
    });
    for column in &schema.kept {
        add_values(&mut bytes, &column.column_type, next())?;
    }
    add_content(&mut bytes, &schema.content, &mut next);
    Ok(bytes)
}

/// Adds the sizes of the values of the `id` column or a kept column.
fn add_values(bytes: &mut [usize], column_type: &ColumnType, column: &ArrayRef) -> Result<()> {
    // A file that is read again does not tell types of JSON values from those of Arrow columns.
    let column_type = match column_type {
        ColumnType::Arrow(data_type) => Cow::Owned(ColumnType::of_arrow(data_type)),
        other => Cow::Borrowed(other),
    };
    let fixed = match &*column_type {
        ColumnType::Boolean => Some(1),
        ColumnType::Integer | ColumnType::Float => Some(size_of::<i64>()),
        ColumnType::Text => {
            let texts = column.as_string::<i32>();
            bytes.iter_mut().zip(texts).for_each(|(bytes, text)| {
                *bytes += text.map_or(0, str::len) + size_of::<i32>();
            });
            None
        }
        ColumnType::Arrow(data_type) => match data_type.primitive_width() {
            Some(width) => Some(size_of::<ArrayData>() + width),
            None => {
                for (row, bytes) in bytes.iter_mut().enumerate() {
                    *bytes += arrow_bytes(column, row, data_type)?;
                }
                None
            }
        },
    };
    bytes.iter_mut().for_each(|bytes| *bytes += fixed.unwrap_or(0));
    Ok(())
}

/// The size of the value of an array of length 1 in a kept column.
pub(super) fn value_bytes(value: &ArrayRef) -> Result<usize> {
    let mut bytes = [0];
    add_values(&mut bytes, &ColumnType::of_arrow(value.data_type()), value)?;
    Ok(bytes[0])
}

/// The size of a value of a kept column as [`FieldValue::bytes`] tells it.
fn arrow_bytes(column: &ArrayRef, row: usize, data_type: &DataType) -> Result<usize> {
    Ok(FieldValue::from_row(column, row, data_type)?.bytes())
}

/// Adds the sizes of the content, whose columns `next` returns.
fn add_content<'a>(bytes: &mut [usize], content: &ContentType, next: &mut dyn FnMut() -> &'a ArrayRef) {
    match *content {
        ContentType::Vectors(vectors) => {
            if vectors.dtype == OutputDtype::Int8 {
                next();
            }
            let column = next();
            let each = vectors.vector_bytes();
            match column.as_list_opt::<i32>() {
                Some(lists) => add_lists(bytes, lists, each, |_| 0),
                None => bytes.iter_mut().for_each(|bytes| *bytes += each),
            }
        }
        ContentType::Scores { ranked } => {
            (0..usize::from(ranked) + 1).for_each(|_| {
                next();
            });
            bytes.iter_mut().for_each(|bytes| *bytes += size_of::<f32>());
        }
        ContentType::Labels => {
            let lists = next().as_list::<i32>();
            add_lists(bytes, lists, 2 * size_of::<i32>(), |items| text_bytes(lists.values(), &[0], items));
        }
        ContentType::Masks => {
            let masks = next().as_list::<i32>();
            let lists = masks.values().as_list::<i32>();
            add_lists(bytes, masks, 0, |masks| {
                let ends = lists.value_offsets();
                let tokens = ends[masks.start] as usize..ends[masks.end] as usize;
                3 * size_of::<i32>() * tokens.len() + text_bytes(lists.values(), &[0], tokens)
            });
        }
        ContentType::Sparse { .. } => {
            let (indices, _) = (next().as_list::<i32>(), next());
            add_lists(bytes, indices, size_of::<i32>() + size_of::<f32>(), |_| 0);
        }
        ContentType::Spans(kind) => {
            let lists = next().as_list::<i32>();
            let texts: &[usize] = match kind {
                SpanKind::Entities => &[0, 4],
                SpanKind::Answers => {
                    next();
                    &[0]
                }
            };
            let each = 2 * size_of::<i64>() + size_of::<f32>();
            add_lists(bytes, lists, each, |items| {
                size_of::<i32>() + text_bytes(lists.values(), texts, items)
            });
        }
        ContentType::Outputs(outputs) => outputs.parts().for_each(|part| add_content(bytes, &part, next)),
    }
}

/// Adds the sizes of lists: `each` for each item, and what `more` returns for the items of a row.
fn add_lists(
    bytes: &mut [usize],
    lists: &ListArray,
    each: usize,
    more: impl Fn(std::ops::Range<usize>) -> usize,
) {
    for (bytes, ends) in bytes.iter_mut().zip(lists.value_offsets().windows(2)) {
        let items = ends[0] as usize..ends[1] as usize;
        *bytes += each * items.len() + more(items);
    }
}

/// The length of all strings in these fields of a range of structs.
fn text_bytes(structs: &ArrayRef, fields: &[usize], items: std::ops::Range<usize>) -> usize {
    let length = |field: &usize| {
        let ends = structs.as_struct().column(*field).as_string::<i32>().value_offsets();
        (ends[items.end] - ends[items.start]) as usize
    };
    fields.iter().map(length).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int32Type;
    use arrow_array::{BooleanArray, Float64Array, Int16Array, Int64Array, StringArray};
    use serde_json::{Value, json};

    use super::*;
    use crate::neighbours::SparseVector;
    use crate::rows::{
        Answer, BatchBuilder, Content, Entity, KeptColumn, LabelScore, OutputFormat, OutputTypes, Row,
        TokenScore, VectorType,
    };

    fn vectors(dtype: OutputDtype, per_token: bool) -> VectorType {
        VectorType { dtype, dimensions: 8, per_token, normalized: true, nullable: false }
    }

    /// Contents of each type, of two rows.
    fn contents() -> Vec<(ContentType, [Content; 2])> {
        let vector = |dtype: OutputDtype, count| Content::Vector(dtype.quantize(vec![0.5; 8 * count], 8));
        let label = |label: &str| LabelScore { label: label.into(), score: 0.5 };
        let token = |token: &str| TokenScore { token: token.into(), id: 7, score: 0.5 };
        let entity =
            |text: &str| Entity { label: "PER".into(), score: 0.5, start: 0, end: 1, text: text.into() };
        let answer = |text: &str| Answer { text: text.into(), start: 0, end: 1, score: 0.5 };
        let sparse = |count: u32| {
            let (indices, values) = ((0..count).collect(), vec![0.5; count as usize]);
            Content::Sparse(Box::new(SparseVector { indices, values, tokens: Vec::new() }))
        };
        let score = |rank| Content::Score { score: 0.5, rank };
        let answers = |answers| Content::Answers { answers, no_answer: 0.5 };
        let (dense, tokens) = (vectors(OutputDtype::F16, false), vectors(OutputDtype::F16, true));
        let outputs = |count: usize| {
            let parts = [vector(OutputDtype::F16, 1), sparse(3), vector(OutputDtype::F16, count)];
            Content::Outputs(parts.to_vec())
        };
        let types = OutputTypes { dense: Some(dense), sparse: Some(100), tokens: Some(tokens) };
        let int8 = OutputDtype::Int8;
        vec![
            (ContentType::Vectors(vectors(int8, false)), [vector(int8, 1), vector(int8, 1)]),
            (ContentType::Vectors(tokens), [vector(OutputDtype::F16, 3), vector(OutputDtype::F16, 0)]),
            (ContentType::Scores { ranked: true }, [score(Some(1)), score(Some(0))]),
            (ContentType::Labels, [Content::Labels(vec![label("a"), label("bc")]), Content::Labels(vec![])]),
            (
                ContentType::Masks,
                [
                    Content::Masks(vec![vec![token("a"), token("bc")], vec![], vec![token("d")]]),
                    Content::Masks(vec![]),
                ],
            ),
            (ContentType::Sparse { dimensions: 100 }, [sparse(4), sparse(0)]),
            (
                ContentType::Spans(SpanKind::Entities),
                [Content::Entities(vec![entity("a"), entity("bcd")]), Content::Entities(vec![])],
            ),
            (
                ContentType::Spans(SpanKind::Answers),
                [answers(vec![]), answers(vec![answer("ab"), answer("")])],
            ),
            (ContentType::Outputs(types), [outputs(2), outputs(1)]),
        ]
    }

    #[test]
    fn rows_of_a_batch_have_the_size_that_they_had_when_it_was_built() {
        let list = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None])]);
        let arrays: [ArrayRef; 6] = [
            Arc::new(Int16Array::from(vec![3])),
            Arc::new(Int64Array::from(vec![3])),
            Arc::new(Float64Array::from(vec![0.5])),
            Arc::new(BooleanArray::from(vec![true])),
            Arc::new(StringArray::from(vec!["text"])),
            Arc::new(list),
        ];
        let json_types = [ColumnType::Boolean, ColumnType::Integer, ColumnType::Float, ColumnType::Text];
        let types =
            json_types.into_iter().chain(arrays.iter().map(|a| ColumnType::Arrow(a.data_type().clone())));
        let kept = types.map(|column_type| KeptColumn::new("a", column_type));
        let kept: Vec<KeptColumn> = kept.collect();
        let json = [json!(true), json!(7), json!(0.5), json!({"a": "b"})].map(FieldValue::Json);
        let values: Vec<FieldValue> = json.into_iter().chain(arrays.map(FieldValue::Arrow)).collect();
        let nulls = vec![FieldValue::default(); 4];
        for (content, contents) in contents() {
            for chunks in [false, true] {
                let schema = OutputSchema {
                    chunks,
                    ids: Some(ColumnType::Text),
                    kept: kept.clone(),
                    ..OutputSchema::new(OutputFormat::Arrow, content)
                };
                let (mut rows, mut expected) = (BatchBuilder::new(&schema), Vec::new());
                let with_nulls = [&nulls[..], &values[4..]].concat();
                for (content, (kept, id)) in
                    contents.iter().zip([(&values, Value::from("an id")), (&with_nulls, Value::Null)])
                {
                    let chunk = chunks.then(Span::default);
                    let before = rows.bytes();
                    let row =
                        Row { index: 0, id: Some(&id), chunk, tokens: 1, truncated: false, kept, content };
                    rows.push(&row).unwrap();
                    expected.push(rows.bytes() - before);
                }
                let batch = rows.take().unwrap();
                assert_eq!(row_bytes(&batch, &schema).unwrap(), expected, "{content:?}");
                // The file that is read again has other types for the same columns.
                let mut read = schema.clone();
                for column in &mut read.kept {
                    column.column_type = ColumnType::of_arrow(&column.column_type.data_type());
                }
                assert_eq!(row_bytes(&batch, &read).unwrap(), expected, "{content:?}");
                // A slice has the offsets of the whole batch.
                assert_eq!(row_bytes(&batch.slice(1, 1), &schema).unwrap(), expected[1..], "{content:?}");
            }
        }
    }
}
