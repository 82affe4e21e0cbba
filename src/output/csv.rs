//! Comma-separated values: `index,tokens,truncated,e0,e1,…`, one row a text, with an `id` after the index where the input
//! has ids.

use std::io;

use anyhow::{Result, bail};

use super::destination::Destination;
use super::{Row, Shape, Target, Writer};

/// Writes rows as CSV with a header.
pub struct CsvWriter {
    csv: csv::Writer<Destination>,
    dimensions: usize,
    /// Whether there is a column of ids, once the first row has shown it.
    ids: Option<bool>,
}

impl CsvWriter {
    /// Opens a target for rows of `shape`.
    ///
    /// # Errors
    /// If the shape has a vector a token, for which a row has no room.
    pub fn open(target: &Target, shape: Shape) -> Result<Self> {
        if shape.per_token {
            bail!("csv has one vector a row; write --pooling none as jsonl (--output-format jsonl)");
        }
        let csv = csv::Writer::from_writer(Destination::sequential(target)?);
        Ok(CsvWriter { csv, dimensions: shape.dimensions, ids: None })
    }

    /// Writes the header if it is not written yet; whether there is a column of ids.
    fn header(&mut self, ids: bool) -> Result<bool> {
        if let Some(ids) = self.ids {
            return Ok(ids);
        }
        self.ids = Some(ids);
        let id = ids.then_some("id");
        let names = ["index"].into_iter().chain(id).chain(["tokens", "truncated"]).map(String::from);
        let header = names.chain((0..self.dimensions).map(|i| format!("e{i}")));
        self.csv.write_record(header).map_err(|error| fault(&self.csv, error))?;
        Ok(ids)
    }
}

impl Writer for CsvWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        let ids = self.header(row.id.is_some())?;
        let id = ids.then(|| row.id.unwrap_or_default().to_owned());
        let fields = [row.index.to_string()].into_iter().chain(id);
        let fields = fields.chain([row.tokens.to_string(), row.truncated.to_string()]);
        // Rust prints an f32 with the fewest digits that read back as the same number.
        let fields = fields.chain(row.values.iter().map(f32::to_string));
        self.csv.write_record(fields).map_err(|error| fault(&self.csv, error))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.header(false)?;
        self.csv.flush().map_err(|error| self.csv.get_ref().fault(error))?;
        match self.csv.into_inner() {
            Ok(destination) => destination.commit(),
            Err(error) => Err(error.into_error().into()),
        }
    }
}

fn fault(csv: &csv::Writer<Destination>, error: csv::Error) -> anyhow::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => csv.get_ref().fault(error),
        other => csv.get_ref().fault(io::Error::other(format!("{other:?}"))),
    }
}
