//! The Arrow columns of rows with spans of a text: `entities`, or `answers` and `no_answer`. Spans are a list
//! of structs.

use anyhow::Result;
use arrow_array::builder::Float32Builder;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_schema::{DataType, Field, Fields};

use super::columns::{ANSWERS, ENTITIES, NO_ANSWER};
use super::content::{Answer, Content, Entity, SpanKind, other_content};
use super::content_columns::{Columns, next, push_number, push_structs, push_text};

/// The fields of the content.
pub(super) fn fields(kind: SpanKind, list: impl Fn(DataType) -> DataType) -> Vec<Field> {
    let spans = list(DataType::Struct(span_fields(kind)));
    match kind {
        SpanKind::Entities => vec![Field::new(ENTITIES, spans, false)],
        SpanKind::Answers => {
            vec![Field::new(ANSWERS, spans, false), Field::new(NO_ANSWER, DataType::Float32, false)]
        }
    }
}

/// The fields of a span, in the order of its JSON.
fn span_fields(kind: SpanKind) -> Fields {
    let types = |name| match name {
        "label" | "text" => DataType::Utf8,
        "score" => DataType::Float32,
        _ => DataType::Int64,
    };
    let names: &[&str] = match kind {
        SpanKind::Entities => &["label", "score", "start", "end", "text"],
        SpanKind::Answers => &["text", "start", "end", "score"],
    };
    names.iter().map(|name| Field::new(*name, types(name), false)).collect()
}

/// Adds the content of a row to its columns, and returns its approximate size in bytes.
pub(super) fn push(kind: SpanKind, content: &Content, columns: &mut Columns) -> Result<usize> {
    let (count, strings) = match (kind, content) {
        (SpanKind::Entities, Content::Entities(entities)) => {
            push_structs(next(columns), entities, |structs, Entity { label, score, start, end, text }| {
                push_text(structs, 0, label);
                push_number::<Float32Type>(structs, 1, *score);
                push_number::<Int64Type>(structs, 2, *start as i64);
                push_number::<Int64Type>(structs, 3, *end as i64);
                push_text(structs, 4, text);
            });
            let strings = entities.iter().map(|entity| entity.label.len() + entity.text.len());
            (entities.len(), strings.sum::<usize>())
        }
        (SpanKind::Answers, Content::Answers { answers, no_answer }) => {
            push_structs(next(columns), answers, |structs, Answer { text, start, end, score }| {
                push_text(structs, 0, text);
                push_number::<Int64Type>(structs, 1, *start as i64);
                push_number::<Int64Type>(structs, 2, *end as i64);
                push_number::<Float32Type>(structs, 3, *score);
            });
            next::<Float32Builder>(columns).append_value(*no_answer);
            (answers.len(), answers.iter().map(|answer| answer.text.len()).sum())
        }
        _ => return other_content(),
    };
    Ok(size_of::<i32>() + count * (2 * size_of::<i64>() + size_of::<f32>()) + strings)
}
