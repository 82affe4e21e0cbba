//! JSON Lines: `{"index":0,"id":"…","tokens":12,"truncated":false,…,"embedding":[…]}` per row. After `truncated` come
//! the kept columns and, for `int8`, `scale`; a chunk of a text has `"chunk":0,"start":0,"end":812` before `tokens`.

use anyhow::Result;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::encoder::RowEncoder;
use super::row::{Row, Span};
use super::schema::OutputSchema;

/// Encodes rows as JSON Lines.
pub(super) struct JsonlEncoder {
    schema: OutputSchema,
}

impl JsonlEncoder {
    /// An encoder for rows of `schema`.
    pub(super) fn new(schema: &OutputSchema) -> Self {
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

/// A row as a JSON object. Elements have the fewest digits that read back as the same `f32`; NaN and infinite ones are
/// null.
struct JsonRow<'a> {
    row: &'a Row<'a>,
    schema: &'a OutputSchema,
}

impl Serialize for JsonRow<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let JsonRow { row, schema } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("index", &row.index)?;
        if let Some(id) = row.id {
            map.serialize_entry("id", id)?;
        }
        for (name, value) in Span::NAMES.iter().zip(row.chunk.iter().flat_map(|chunk| chunk.values())) {
            map.serialize_entry(name, &value)?;
        }
        map.serialize_entry("tokens", &row.tokens)?;
        map.serialize_entry("truncated", &row.truncated)?;
        for (column, value) in schema.kept.iter().zip(row.kept) {
            map.serialize_entry(&column.name, &*value.json())?;
        }
        if let Some(scale) = row.vector.scale {
            map.serialize_entry("scale", &scale)?;
        }
        let (values, width) = (&row.vector.values, schema.width());
        if schema.per_token {
            let vectors = 0..values.len() / width;
            let vectors: Vec<_> = vectors.map(|i| values.slice(i * width..(i + 1) * width)).collect();
            map.serialize_entry("embeddings", &vectors)?;
        } else {
            map.serialize_entry("embedding", &values.slice(0..values.len()))?;
        }
        map.end()
    }
}
