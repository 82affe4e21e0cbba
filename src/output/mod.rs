//! Where vectors go: one writer a format.

mod csv;
mod destination;
mod jsonl;
mod npy;

use anyhow::Result;

pub use destination::{ClosedPipe, Target, print};

/// One text's result.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its number in the input, from 0.
    pub index: usize,
    /// The input's own name for it.
    pub id: Option<&'a str>,
    /// How many tokens were encoded, specials included.
    pub tokens: usize,
    /// Whether tokens were cut off.
    pub truncated: bool,
    /// One vector, or one a token, one after another.
    pub values: &'a [f32],
}

/// What is the same for every row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Dimensions of a vector.
    pub dimensions: usize,
    /// Whether a row has one vector a token.
    pub per_token: bool,
}

/// How vectors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One JSON object a line.
    Jsonl,
    /// Comma-separated values with a header.
    Csv,
    /// A NumPy array of `(N, D)`.
    Npy,
}

/// A writer of rows. Dropped before [`Writer::finish`], it leaves nothing under the final name.
pub trait Writer {
    /// Takes the next row, in input order.
    fn write(&mut self, row: &Row) -> Result<()>;

    /// Makes the output whole and puts it in its place.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Opens `target` for rows of `shape`.
///
/// # Errors
/// If the place cannot be written to.
pub fn open(target: &Target, format: Format, shape: Shape) -> Result<Box<dyn Writer>> {
    Ok(match format {
        Format::Jsonl => Box::new(jsonl::JsonlWriter::open(target, shape)?),
        Format::Csv => Box::new(csv::CsvWriter::open(target, shape)?),
        Format::Npy => Box::new(npy::NpyWriter::open(target, shape)?),
    })
}
