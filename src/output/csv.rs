//! Comma-separated values: `index,tokens,truncated,e0,e1,…`, one row a text.

use std::io;

use anyhow::{Result, bail};

use super::destination::Destination;
use super::{Row, Shape, Target, Writer};

/// Writes rows as CSV with a header.
pub struct CsvWriter {
    csv: csv::Writer<Destination>,
}

impl CsvWriter {
    /// Opens a target for rows of `shape`, and writes the header.
    ///
    /// # Errors
    /// If the shape has a vector a token, for which a row has no room.
    pub fn open(target: &Target, shape: Shape) -> Result<Self> {
        if shape.per_token {
            bail!("csv has one vector a row; write --pooling none as jsonl (--output-format jsonl)");
        }
        let mut csv = csv::Writer::from_writer(Destination::sequential(target)?);
        let names = ["index", "tokens", "truncated"].map(String::from);
        let header = names.into_iter().chain((0..shape.dimensions).map(|i| format!("e{i}")));
        csv.write_record(header).map_err(|error| fault(&csv, error))?;
        Ok(CsvWriter { csv })
    }
}

impl Writer for CsvWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        let fields = [row.index.to_string(), row.tokens.to_string(), row.truncated.to_string()];
        // Rust prints an f32 with the fewest digits that read back as the same number.
        let fields = fields.into_iter().chain(row.values.iter().map(f32::to_string));
        self.csv.write_record(fields).map_err(|error| fault(&self.csv, error))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
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
