//! The Arrow columns of rows with spans of a text: `entities`, or `answers` and `no_answer`. Spans are a list of structs.

use std::sync::Arc;

use anyhow::Result;
use arrow_array::builder::StringBuilder;
use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Int64Type};
use arrow_array::{Array, ArrayRef, Float32Array, Int64Array, ListArray, StringArray, StructArray};
use arrow_schema::{ArrowError, DataType, Field, Fields};

use super::content::{Answer, Content, Entity, SpanKind, other_content};

/// The fields of the content.
pub(super) fn fields(kind: SpanKind, list: impl Fn(DataType) -> DataType) -> Vec<Field> {
    let spans = list(DataType::Struct(span_fields(kind)));
    match kind {
        SpanKind::Entities => vec![Field::new("entities", spans, false)],
        SpanKind::Answers => {
            vec![Field::new("answers", spans, false), Field::new("no_answer", DataType::Float32, false)]
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

/// Builds the columns row by row.
pub(super) struct SpanBuilder {
    kind: SpanKind,
    /// Number of spans of each row.
    counts: Vec<usize>,
    labels: StringBuilder,
    texts: StringBuilder,
    starts: Vec<i64>,
    ends: Vec<i64>,
    scores: Vec<f32>,
    no_answer: Vec<f32>,
}

impl SpanBuilder {
    /// An empty builder.
    pub(super) fn new(kind: SpanKind) -> Self {
        SpanBuilder {
            kind,
            counts: Vec::new(),
            labels: StringBuilder::new(),
            texts: StringBuilder::new(),
            starts: Vec::new(),
            ends: Vec::new(),
            scores: Vec::new(),
            no_answer: Vec::new(),
        }
    }

    /// Adds the content of a row, and returns its approximate size in bytes.
    pub(super) fn push(&mut self, content: &Content) -> Result<usize> {
        let strings = match (self.kind, content) {
            (SpanKind::Entities, Content::Entities(entities)) => {
                self.counts.push(entities.len());
                for Entity { label, score, start, end, text } in entities {
                    self.labels.append_value(label);
                    self.push_span(text, *start, *end, *score);
                }
                entities.iter().map(|entity| entity.label.len() + entity.text.len()).sum::<usize>()
            }
            (SpanKind::Answers, Content::Answers { answers, no_answer }) => {
                self.counts.push(answers.len());
                self.no_answer.push(*no_answer);
                for Answer { text, start, end, score } in answers {
                    self.push_span(text, *start, *end, *score);
                }
                answers.iter().map(|answer| answer.text.len()).sum()
            }
            _ => return other_content(),
        };
        let numbers = self.counts.last().unwrap_or(&0) * (2 * size_of::<i64>() + size_of::<f32>());
        Ok(size_of::<i32>() + numbers + strings)
    }

    fn push_span(&mut self, text: &str, start: u64, end: u64, score: f32) {
        self.texts.append_value(text);
        self.starts.push(start as i64);
        self.ends.push(end as i64);
        self.scores.push(score);
    }

    /// The columns; `list` makes a column of lists from their items and counts.
    pub(super) fn finish(
        mut self,
        list: impl Fn(ArrayRef, Vec<usize>) -> Result<ArrayRef, ArrowError>,
    ) -> Result<Vec<ArrayRef>, ArrowError> {
        let labels: ArrayRef = Arc::new(self.labels.finish());
        let texts: ArrayRef = Arc::new(self.texts.finish());
        let starts: ArrayRef = Arc::new(Int64Array::from(self.starts));
        let ends: ArrayRef = Arc::new(Int64Array::from(self.ends));
        let scores: ArrayRef = Arc::new(Float32Array::from(self.scores));
        let columns = match self.kind {
            SpanKind::Entities => vec![labels, scores, starts, ends, texts],
            SpanKind::Answers => vec![texts, starts, ends, scores],
        };
        let spans = StructArray::try_new(span_fields(self.kind), columns, None)?;
        let spans = list(Arc::new(spans), self.counts)?;
        Ok(match self.kind {
            SpanKind::Entities => vec![spans],
            SpanKind::Answers => vec![spans, Arc::new(Float32Array::from(self.no_answer))],
        })
    }
}

/// The columns in a record batch.
pub(super) struct SpanColumns<'a> {
    spans: &'a ListArray,
    /// Present for answers.
    no_answer: Option<&'a Float32Array>,
}

impl<'a> SpanColumns<'a> {
    /// The columns, which `next` returns in the order of [`fields`].
    pub(super) fn new(kind: SpanKind, mut next: impl FnMut() -> &'a ArrayRef) -> Self {
        let spans = next().as_list::<i32>();
        let no_answer = (kind == SpanKind::Answers).then(|| next().as_primitive::<Float32Type>());
        SpanColumns { spans, no_answer }
    }

    /// The content of row `i`.
    pub(super) fn content(&self, i: usize) -> Content {
        let row = self.spans.value(i);
        let row = row.as_struct();
        let strings = |column: usize| -> &StringArray { row.column(column).as_string::<i32>() };
        let offset = |column: usize, j: usize| row.column(column).as_primitive::<Int64Type>().value(j) as u64;
        let score = |column: usize, j: usize| row.column(column).as_primitive::<Float32Type>().value(j);
        match self.no_answer {
            None => Content::Entities(
                (0..row.len())
                    .map(|j| Entity {
                        label: strings(0).value(j).into(),
                        score: score(1, j),
                        start: offset(2, j),
                        end: offset(3, j),
                        text: strings(4).value(j).into(),
                    })
                    .collect(),
            ),
            Some(no_answer) => Content::Answers {
                answers: (0..row.len())
                    .map(|j| Answer {
                        text: strings(0).value(j).into(),
                        start: offset(1, j),
                        end: offset(2, j),
                        score: score(3, j),
                    })
                    .collect(),
                no_answer: no_answer.value(i),
            },
        }
    }
}
