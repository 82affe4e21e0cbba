//! JSON Lines: `{"index":0,"id":"…","tokens":12,"truncated":false,…,"embedding":[…]}` per row. After
//! `truncated` come the kept columns and, for `int8`, `scale`; a chunk of a text has
//! `"chunk":0,"start":0,"end":812` before `tokens`. Instead of `embedding`, a row may end in `"score":0.97`,
//! after `"rank":0` if rows are sorted, or in `"labels":[{"label":"positive","score":0.98},…]`,
//! `"masks":[[{"token":"lamp","id":10437,"score":0.61},…]]`, `"weights":{"lamp":1.31,…}`, in
//! `"entities":[{"label":"PER",…},…]`, or in `"answers":[{"text":"…",…},…],"no_answer":0.02`; or with
//! several outputs in `"embedding"`, `"weights"` and `"embeddings"`.

use anyhow::Result;
use serde::ser::{Error, SerializeMap};
use serde::{Serialize, Serializer};

use crate::formats::encoder::RowEncoder;
use crate::neighbours::SparseVector;
use crate::rows::columns::{
    ANSWERS, EMBEDDING, EMBEDDINGS, ENTITIES, INDEX, LABELS, MASKS, NO_ANSWER, RANK, SCALE, SCORE, TOKENS,
    TRUNCATED, WEIGHTS,
};
use crate::rows::{
    Content, ContentType, FieldValue, KeptColumn, OutputFormat, OutputSchema, Row, Span, StoredVector,
};

/// Encodes rows as JSON Lines.
pub(crate) struct JsonlEncoder {
    schema: OutputSchema,
}

impl JsonlEncoder {
    /// An encoder for rows of `schema`.
    pub(crate) fn new(schema: &OutputSchema) -> Self {
        JsonlEncoder { schema: schema.clone() }
    }
}

impl RowEncoder for JsonlEncoder {
    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()> {
        serde_json::to_writer(&mut *bytes, &JsonRow { row, schema: &self.schema })?;
        bytes.push(b'\n');
        Ok(())
    }
}

/// Appends a line with these values of the columns of a table.
pub(crate) fn append_object(bytes: &mut Vec<u8>, columns: &[KeptColumn], row: &[FieldValue]) -> Result<()> {
    let mut json = serde_json::Serializer::new(&mut *bytes);
    let mut object = json.serialize_map(Some(columns.len()))?;
    for (column, value) in columns.iter().zip(row) {
        object.serialize_entry(&column.name, &*value.json())?;
    }
    object.end()?;
    bytes.push(b'\n');
    Ok(())
}

/// Writes rows as a JSON array of the objects that JSON Lines has.
pub fn write_json_rows(rows: &[Row], content: &ContentType, bytes: &mut Vec<u8>) {
    let schema = OutputSchema::new(OutputFormat::Jsonl, *content);
    let rows: Vec<JsonRow> = rows.iter().map(|row| JsonRow { row, schema: &schema }).collect();
    serde_json::to_writer(bytes, &rows).expect("writing to memory does not fail, and keys are strings")
}

/// A row as a JSON object. Elements have the fewest digits that read back as the same `f32`; NaN and infinite
/// ones are null.
struct JsonRow<'a> {
    row: &'a Row<'a>,
    schema: &'a OutputSchema,
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let JsonRow { row, schema } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(INDEX, &row.index)?;
        if let Some(id) = row.id {
            map.serialize_entry(schema.metadata.id_column(), id)?;
        }
        for (name, value) in Span::NAMES.iter().zip(row.chunk.iter().flat_map(|chunk| chunk.values())) {
            map.serialize_entry(name, &value)?;
        }
        map.serialize_entry(TOKENS, &row.tokens)?;
        map.serialize_entry(TRUNCATED, &row.truncated)?;
        for (column, value) in schema.kept.iter().zip(row.kept) {
            map.serialize_entry(&column.name, &*value.json())?;
        }
        serialize_content(&mut map, row.content, &schema.content, schema.vector_column())?;
        map.end()
    }
}

/// Adds the content of a row. `name` is that of the vector, if it is not the usual one.
fn serialize_content<M: SerializeMap>(
    map: &mut M,
    content: &Content,
    content_type: &ContentType,
    name: Option<&str>,
) -> Result<(), M::Error> {
    match content {
        Content::Vector(vector) => serialize_vector(map, vector, content_type, name),
        Content::Null => map.serialize_entry(name.unwrap_or(EMBEDDING), &()),
        Content::Score { score, rank } => {
            if let Some(rank) = rank {
                map.serialize_entry(RANK, rank)?;
            }
            map.serialize_entry(SCORE, score)
        }
        Content::Labels(labels) => map.serialize_entry(LABELS, labels),
        Content::Masks(masks) => map.serialize_entry(MASKS, masks),
        Content::Sparse(vector) => map.serialize_entry(WEIGHTS, &Weights(vector)),
        Content::Entities(entities) => map.serialize_entry(ENTITIES, entities),
        Content::Answers { answers, no_answer } => {
            map.serialize_entry(ANSWERS, answers)?;
            map.serialize_entry(NO_ANSWER, no_answer)
        }
        Content::Outputs(outputs) => match content_type {
            ContentType::Outputs(types) => {
                let mut outputs = types.parts().zip(outputs);
                outputs.try_for_each(|(part, output)| serialize_content(map, output, &part, None))
            }
            _ => Err(M::Error::custom("a row has several outputs, but the schema has one")),
        },
    }
}

/// A sparse vector as an object from tokens to weights, by descending weight.
pub(crate) struct Weights<'a>(pub &'a SparseVector);

impl Serialize for Weights<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.by_weight())
    }
}

/// Adds a vector, or the vectors of the tokens of a text.
fn serialize_vector<M: SerializeMap>(
    map: &mut M,
    vector: &StoredVector,
    content: &ContentType,
    name: Option<&str>,
) -> Result<(), M::Error> {
    if let Some(scale) = vector.scale {
        map.serialize_entry(SCALE, &scale)?;
    }
    let values = &vector.values;
    match content {
        ContentType::Vectors(vectors) if vectors.per_token => {
            let width = vectors.width();
            let vectors = 0..values.len() / width;
            let vectors: Vec<_> = vectors.map(|i| values.slice(i * width..(i + 1) * width)).collect();
            map.serialize_entry(name.unwrap_or(EMBEDDINGS), &vectors)
        }
        _ => map.serialize_entry(name.unwrap_or(EMBEDDING), &values.slice(0..values.len())),
    }
}
