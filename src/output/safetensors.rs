//! A safetensors file with the tensor `embeddings` of `(N, D)`. For chunks of texts, the tensors `index`, `chunk`, `start` and `end` of
//! `(N)`, int64, say which chunk each row is.

use std::io::{SeekFrom, Write};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::array::{Header, durable_rows};
use super::destination::{Destination, ReadSeek};
use super::{About, Block, Claim, Dtype, Durable, Layout, Row, Span, Writer};

/// Room for any number of rows and for what the file says of itself, and a multiple of 8 as the numbers after it ask.
const SIZE: usize = 4096;

/// The header of a file whose rows are vectors only.
pub static HEADER: Header = Header { size: SIZE, text: header };

fn header(rows: u64, width: usize, dtype: Dtype, about: &About) -> Vec<u8> {
    let mut tensors = Tensors::default();
    tensors.add_embeddings(rows, width, dtype);
    tensors.header(dtype, about)
}

/// The tensors of a file, one after another.
#[derive(Default)]
struct Tensors {
    fields: Map<String, Value>,
    end: u64,
}

impl Tensors {
    fn add(&mut self, name: &str, dtype: &str, shape: &[u64], value_bytes: usize) {
        let start = self.end;
        self.end += shape.iter().product::<u64>() * value_bytes as u64;
        let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, self.end]});
        self.fields.insert(name.into(), tensor);
    }

    fn add_embeddings(&mut self, rows: u64, width: usize, dtype: Dtype) {
        let name = match dtype {
            Dtype::F32 => "F32",
            Dtype::F16 => "F16",
            Dtype::Int8 | Dtype::Binary => "I8",
        };
        self.add("embeddings", name, &[rows, width as u64], dtype.size());
    }

    /// The header: its length in 8 bytes, then JSON that spaces fill up.
    fn header(&self, dtype: Dtype, about: &About) -> Vec<u8> {
        let mut metadata = about.clone();
        metadata.extend(
            [("format", "sconce"), ("output_dtype", dtype.name())]
                .map(|(key, value)| (key.into(), value.into())),
        );
        let mut text = String::new();
        // Values that are too long for the header, as a long prompt, are left out, the longest first.
        while text.is_empty() || text.len() > SIZE - 8 {
            let longest = metadata.iter().max_by_key(|(_, value)| value.len()).map(|(key, _)| key.clone());
            if let Some(key) = longest.filter(|_| !text.is_empty()) {
                metadata.remove(&key);
            }
            let mut fields = Map::from_iter([("__metadata__".to_owned(), json!(metadata))]);
            fields.extend(self.fields.clone());
            text = Value::Object(fields).to_string();
        }
        let mut header = (SIZE as u64 - 8).to_le_bytes().to_vec();
        header.extend_from_slice(text.as_bytes());
        header.resize(SIZE, b' ');
        header
    }
}

/// The columns of int64: the number of the text and those of [`Span`].
const COLUMNS: usize = 1 + Span::NAMES.len();
const COLUMN_BYTES: usize = size_of::<i64>();

/// Writes rows that are chunks of texts. The partial file has all of a row together, its columns and then its vector, so that it can be
/// cut after any row; in the end the tensors are made from it, one after another.
pub struct ChunkWriter {
    destination: Destination,
    dtype: Dtype,
    width: usize,
    rows: u64,
    about: About,
    bytes: Vec<u8>,
}

impl ChunkWriter {
    /// Opens a target for rows of `layout`.
    ///
    /// # Errors
    /// If the place cannot be written to, or what is durable is no whole number of rows.
    pub fn open(claim: &Claim, layout: &Layout, durable: Option<Durable>) -> Result<Self> {
        let (dtype, width) = (layout.dtype, layout.width());
        let row = (COLUMNS * COLUMN_BYTES + width * dtype.size()) as u64;
        let rows = durable_rows(claim, durable.as_ref(), 0, row)?;
        let destination = Destination::seekable(claim, durable)?;
        Ok(ChunkWriter { destination, dtype, width, rows, about: layout.about.clone(), bytes: Vec::new() })
    }
}

impl Writer for ChunkWriter {
    fn write(&mut self, row: &Row) -> Result<()> {
        self.bytes.clear();
        let columns = [row.index].into_iter().chain(row.chunk.unwrap_or_default().values());
        self.bytes.extend(columns.flat_map(|value| (value as i64).to_le_bytes()));
        row.vector.numbers.write_to(&mut self.bytes);
        self.rows += 1;
        self.destination.write_all(&self.bytes).map_err(|error| self.destination.fault(error))
    }

    fn checkpoint(&mut self) -> Result<u64> {
        self.destination.checkpoint()
    }

    fn blocks(&mut self, rows: u64) -> Vec<Block> {
        self.destination.blocks(rows)
    }

    fn describe(&mut self, about: &About) {
        self.about.clone_from(about);
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let ChunkWriter { destination, dtype, width, rows, about, .. } = *self;
        let mut tensors = Tensors::default();
        // The widest values come first, as the library writes them, so that all are aligned.
        for name in ["index"].into_iter().chain(Span::NAMES) {
            tensors.add(name, "I64", &[rows], COLUMN_BYTES);
        }
        tensors.add_embeddings(rows, width, dtype);
        let (columns, vector) = (COLUMNS * COLUMN_BYTES, width * dtype.size());
        destination.convert(|partial, sink| {
            sink.write_all(&tensors.header(dtype, &about))?;
            let mut copy =
                |from: usize, bytes: usize| part_of_rows(partial, sink, rows, columns + vector, from, bytes);
            (0..COLUMNS).try_for_each(|column| copy(column * COLUMN_BYTES, COLUMN_BYTES))?;
            copy(columns, vector)
        })
    }
}

/// Copies the same part, `bytes` from `from` on, of all rows, each of which has `row` bytes.
fn part_of_rows(
    partial: &mut dyn ReadSeek,
    sink: &mut dyn Write,
    rows: u64,
    row: usize,
    from: usize,
    bytes: usize,
) -> Result<()> {
    partial.seek(SeekFrom::Start(0))?;
    let mut buffer = vec![0; row];
    for _ in 0..rows {
        partial.read_exact(&mut buffer)?;
        sink.write_all(&buffer[from..from + bytes])?;
    }
    Ok(())
}
