//! Comma-separated values with a header, one row a text: `index`, `id` where the input has ids, `chunk`, `start` and
//! `end` for chunks, `tokens`, `truncated`, the
//! kept columns, `scale` for `int8`, and `e0`, `e1` and so on. What is null is an empty field.

use std::borrow::Cow;
use std::io::Write;

use anyhow::Result;

use super::destination::Destination;
use super::kind::text;
use super::{Block, Claim, Dtype, Durable, Layout, Row, Span, Writer};

/// Writes rows as CSV with a header.
pub struct CsvWriter {
    destination: Destination,
    ids: bool,
}

impl CsvWriter {
    /// Opens a target for rows of `layout`.
    pub fn open(claim: &Claim, layout: &Layout, durable: Option<Durable>) -> Result<Self> {
        let is_new = durable.is_none();
        let mut writer =
            CsvWriter { destination: Destination::sequential(claim, durable)?, ids: layout.ids.is_some() };
        if is_new {
            let id = layout.ids.as_ref().map(|_| "id");
            let scale = (layout.dtype == Dtype::Int8).then_some("scale");
            let chunk = Span::NAMES.into_iter().filter(|_| layout.chunks);
            let names = ["index"].into_iter().chain(id).chain(chunk).chain(["tokens", "truncated"]);
            let names = names.chain(layout.kept.iter().map(|column| column.name.as_str())).chain(scale);
            let numbers = (0..layout.width()).map(|i| Cow::Owned(format!("e{i}")));
            writer.record(names.map(Cow::Borrowed).chain(numbers))?;
        }
        Ok(writer)
    }

    fn record<'a>(&mut self, fields: impl Iterator<Item = Cow<'a, str>>) -> Result<()> {
        let mut line = csv::Writer::from_writer(Vec::new());
        line.write_record(fields.map(|field| field.into_owned().into_bytes()))?;
        let line = line.into_inner()?;
        self.destination.write_all(&line).map_err(|error| self.destination.fault(error))
    }
}

impl Writer for CsvWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        let id = self.ids.then(|| row.id.and_then(text).unwrap_or_default());
        let [index, tokens, truncated] =
            [row.index.to_string(), row.tokens.to_string(), row.truncated.to_string()].map(Cow::Owned);
        let kept =
            row.kept.iter().map(|value| Cow::Owned(text(&value.json()).unwrap_or_default().into_owned()));
        let scale = row.vector.scale.map(|scale| Cow::Owned(scale.to_string()));
        let chunk =
            row.chunk.iter().flat_map(|chunk| chunk.values()).map(|value| Cow::Owned(value.to_string()));
        let fields =
            [index].into_iter().chain(id).chain(chunk).chain([tokens, truncated]).chain(kept).chain(scale);
        self.record(fields.chain(row.vector.numbers.to_strings().into_iter().map(Cow::Owned)))
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
