//! One JSON object a line: `{"index":0,"id":"…","tokens":12,"truncated":false,…,"embedding":[…]}`, where `…` are the kept
//! fields by name and, for `int8`, the `scale`. A chunk of a text has `"chunk":0,"start":0,"end":812` before `tokens`.

use std::io::Write;

use anyhow::Result;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::destination::Destination;
use super::{Block, Claim, Durable, Layout, Row, Span, Writer};

/// Writes rows as JSON lines.
pub struct JsonlWriter {
    destination: Destination,
    layout: Layout,
    line: Vec<u8>,
}

impl JsonlWriter {
    /// Opens a target for rows of `layout`.
    pub fn open(claim: &Claim, layout: &Layout, durable: Option<Durable>) -> Result<Self> {
        let destination = Destination::sequential(claim, durable)?;
        Ok(JsonlWriter { destination, layout: layout.clone(), line: Vec::new() })
    }
}

impl Writer for JsonlWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, &Line { row, layout: &self.layout })?;
        self.line.push(b'\n');
        self.destination.write_all(&self.line).map_err(|error| self.destination.fault(error))
    }

    fn checkpoint(&mut self) -> Result<u64> {
        self.destination.checkpoint()
    }

    fn blocks(&mut self, rows: u64) -> Vec<Block> {
        self.destination.blocks(rows)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.destination.commit()
    }
}

struct Line<'a> {
    row: &'a Row<'a>,
    layout: &'a Layout,
}

/// Numbers are written with the fewest digits that read back as the same `f32`; what is not finite is null.
impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Line { row, layout } = self;
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
        for (column, value) in layout.kept.iter().zip(row.kept) {
            map.serialize_entry(&column.name, &*value.json())?;
        }
        if let Some(scale) = row.vector.scale {
            map.serialize_entry("scale", &scale)?;
        }
        let (numbers, width) = (&row.vector.numbers, layout.width());
        if layout.per_token {
            let vectors = 0..numbers.len() / width;
            let vectors: Vec<_> = vectors.map(|i| numbers.part(i * width..(i + 1) * width)).collect();
            map.serialize_entry("embeddings", &vectors)?;
        } else {
            map.serialize_entry("embedding", &numbers.part(0..numbers.len()))?;
        }
        map.end()
    }
}
