//! Where vectors go: one writer a format, over a destination that appears whole or not at all and can be continued
//! after an interruption; beside it a manifest of the run and a ledger of the rows that are not as expected.

mod array;
mod arrow;
mod check;
mod columns;
mod csv;
mod destination;
mod digest;
mod dtype;
mod fault;
mod jsonl;
mod kind;
mod ledger;
pub mod manifest;
mod npy;
mod parquet;
mod place;
mod rows;
mod safetensors;
mod stdout;
mod target;

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::field::FieldValue;

pub use check::check;
pub use digest::{Block, Digest, Hasher};
pub use dtype::{Dtype, Numbers, Vector};
pub use fault::ClosedPipe;
pub use kind::{Column, Kind};
pub use ledger::{Event, Ledger, LedgerEntry};
pub use place::{Beside, Claim};
pub use stdout::{print, stdout_is_file};
pub use target::Target;

/// One text's result.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// Its number in the input, from 0.
    pub index: u64,
    /// The input's own id: a string or an integer.
    pub id: Option<&'a Value>,
    /// Which chunk of its text it is; present if [`Layout::chunks`].
    pub chunk: Option<Span>,
    /// How many tokens were encoded, specials included.
    pub tokens: usize,
    /// Whether tokens were cut off.
    pub truncated: bool,
    /// The values of [`Layout::kept`], in their order.
    pub kept: &'a [FieldValue],
    /// One vector, or one a token, one after another.
    pub vector: &'a Vector,
}

/// A chunk of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// Its number in the text, from 0.
    pub chunk: u64,
    /// Its first character in the text.
    pub start: u64,
    /// The character after its last one.
    pub end: u64,
}

impl Span {
    /// The columns of a chunk.
    const NAMES: [&'static str; 3] = ["chunk", "start", "end"];

    /// The values of its columns.
    fn values(self) -> [u64; 3] {
        [self.chunk, self.start, self.end]
    }
}

/// What is the same for every row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// How rows are written.
    pub format: Format,
    /// How numbers are stored.
    pub dtype: Dtype,
    /// Dimensions of a vector before it is stored.
    pub dimensions: usize,
    /// Whether a row has one vector a token.
    pub per_token: bool,
    /// Whether vectors have unit length.
    pub normalized: bool,
    /// Whether a row is a chunk of a text.
    pub chunks: bool,
    /// What ids are, if rows may have any: text, or integers. Formats without types write an id as it is.
    pub ids: Option<Kind>,
    /// Columns that are carried through from the input.
    pub kept: Vec<Column>,
    /// What the output says of itself, where its format has room for that.
    pub about: About,
}

/// How vectors were made, by name: the model, its revision, pooling, prompt and so on.
pub type About = BTreeMap<String, String>;

impl Layout {
    /// Whether a stored vector shows that it held NaN or infinite values: as such values, or by its scale.
    pub fn shows_not_finite(&self) -> bool {
        match self.dtype {
            Dtype::F32 | Dtype::F16 => true,
            Dtype::Int8 => self.format.holds_columns(),
            Dtype::Binary => false,
        }
    }

    /// Numbers that a vector is stored in.
    fn width(&self) -> usize {
        self.dtype.width(self.dimensions)
    }
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
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC file.
    Arrow,
    /// A safetensors file with the tensor `embeddings` of `(N, D)`; for chunks with others that say which chunk a row is.
    Safetensors,
}

impl Format {
    /// Its name, as typed.
    pub fn name(self) -> &'static str {
        match self {
            Format::Jsonl => "jsonl",
            Format::Csv => "csv",
            Format::Npy => "npy",
            Format::Parquet => "parquet",
            Format::Arrow => "arrow",
            Format::Safetensors => "safetensors",
        }
    }

    /// Whether a row has room for more than its vector: ids, kept columns, scales.
    pub fn holds_columns(self) -> bool {
        match self {
            Format::Jsonl | Format::Csv | Format::Parquet | Format::Arrow => true,
            Format::Npy | Format::Safetensors => false,
        }
    }

    /// Whether the first rows settle what columns there are.
    pub fn has_fixed_columns(self) -> bool {
        matches!(self, Format::Csv | Format::Parquet | Format::Arrow)
    }

    /// Whether they settle what the columns hold, too.
    pub fn has_typed_columns(self) -> bool {
        matches!(self, Format::Parquet | Format::Arrow)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an interrupted run left that is sure to be on the disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Durable {
    /// Rows that were written.
    pub rows: u64,
    /// Bytes of the partial file that hold them.
    pub bytes: u64,
    /// The digests of those bytes, which are not taken for them otherwise.
    #[serde(default)]
    pub blocks: Vec<Block>,
}

/// A writer of rows. Dropped before [`Writer::finish`], it leaves nothing under the final name, and the partial file
/// as far as it came.
pub trait Writer: Send {
    /// Takes the next row, in input order.
    ///
    /// # Errors
    /// If it cannot be written; [`ClosedPipe`] if its reader has gone.
    fn write(&mut self, row: &Row) -> Result<()>;

    /// Makes all rows so far durable, and returns how many bytes of the partial file hold them. Where there is none,
    /// rows go on to their reader as far as the format allows, and the answer is 0.
    ///
    /// # Errors
    /// If they cannot be written.
    fn checkpoint(&mut self) -> Result<u64>;

    /// The digests of all that was written to the partial file, where there is one; `rows` were written so far.
    fn blocks(&mut self, rows: u64) -> Vec<Block>;

    /// Sets what the output says of itself, in place of [`Layout::about`], for formats that write it in the end.
    fn describe(&mut self, _about: &About) {}

    /// Makes the output whole and puts it in its place.
    ///
    /// # Errors
    /// If it cannot be written; the partial file stays then, and can be continued.
    fn finish(self: Box<Self>) -> Result<()>;
}

/// Opens what is claimed for rows of `layout`, which [`check`] has passed: from the beginning, or after what is `durable` of
/// an interrupted run, whose partial file is cut to that and written on.
///
/// # Errors
/// If the place cannot be written to, another run is writing there, or the partial file does not hold what is said
/// to be durable.
pub fn open(claim: &Claim, layout: &Layout, durable: Option<Durable>) -> Result<Box<dyn Writer>> {
    // A run that was interrupted before anything was durable has nothing to be continued.
    let durable = durable.filter(|durable| durable.bytes > 0);
    Ok(match layout.format {
        Format::Jsonl => Box::new(jsonl::JsonlWriter::open(claim, layout, durable)?),
        Format::Csv => Box::new(csv::CsvWriter::open(claim, layout, durable)?),
        Format::Npy => Box::new(array::ArrayWriter::open(claim, layout, durable, &npy::HEADER)?),
        Format::Safetensors if layout.chunks => {
            Box::new(self::safetensors::ChunkWriter::open(claim, layout, durable)?)
        }
        Format::Safetensors => {
            Box::new(array::ArrayWriter::open(claim, layout, durable, &self::safetensors::HEADER)?)
        }
        Format::Arrow => {
            // A reader of a pipe waits for rows, and cannot go back to an index: it is given the stream.
            let make = claim.beside().map(|_| self::arrow::write as rows::Make);
            Box::new(rows::RowsWriter::open(claim, layout, durable, make)?)
        }
        Format::Parquet => {
            Box::new(rows::RowsWriter::open(claim, layout, durable, Some(self::parquet::write))?)
        }
    })
}
