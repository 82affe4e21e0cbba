//! One JSON object a line: `{"index":0,"id":"…","tokens":12,"truncated":false,"embedding":[…]}`.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use super::destination::Destination;
use super::{Row, Shape, Target, Writer};

/// Writes rows as JSON lines.
pub struct JsonlWriter {
    destination: Destination,
    shape: Shape,
    line: Vec<u8>,
}

/// Numbers are written with the fewest digits that read back as the same `f32`.
#[derive(Serialize)]
struct Line<'a> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    tokens: usize,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<Vec<&'a [f32]>>,
}

impl JsonlWriter {
    /// Opens a target for rows of `shape`.
    pub fn open(target: &Target, shape: Shape) -> Result<Self> {
        Ok(JsonlWriter { destination: Destination::sequential(target)?, shape, line: Vec::new() })
    }
}

impl Writer for JsonlWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        let Shape { dimensions, per_token } = self.shape;
        let line = Line {
            index: row.index,
            id: row.id,
            tokens: row.tokens,
            truncated: row.truncated,
            embedding: (!per_token).then_some(row.values),
            embeddings: per_token.then(|| row.values.chunks(dimensions).collect()),
        };
        self.line.clear();
        serde_json::to_writer(&mut self.line, &line)?;
        self.line.push(b'\n');
        self.destination.write_all(&self.line).map_err(|error| self.destination.fault(error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.destination.commit()
    }
}
