//! A safetensors file with a tensor `embeddings` `(N, D)`. If rows are chunks of texts, int64 tensors `index`, `chunk`,
//! `start` and `end` `(N)` locate the chunk of each row.

use std::io::{SeekFrom, Write};

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::array::ArrayEncoder;
use super::content::VectorType;
use super::destination::{Access, Destination, ReadSeek};
use super::dtype::OutputDtype;
use super::encoder::RowEncoder;
use super::row::{Row, Span};
use super::schema::{OutputMetadata, OutputSchema};
use crate::named::Named;

/// Size of the header in bytes: room for any number of rows and for the metadata, and a multiple of 8, so that the
/// tensors are aligned.
const HEADER_BYTES: usize = 4096;

/// An encoder for a file with the tensor `embeddings`.
///
/// # Errors
/// If rows are no vectors.
pub(super) fn encoder(schema: &OutputSchema) -> Result<ArrayEncoder> {
    ArrayEncoder::new(schema, HEADER_BYTES, |schema, vectors, rows| {
        let mut tensors = TensorIndex::default();
        tensors.add_embeddings(rows, vectors);
        tensors.header(schema, vectors)
    })
}

/// A file with an f32 tensor of this name and shape, and metadata.
pub(super) fn file(name: &str, shape: &[usize], values: &[f32], metadata: &OutputMetadata) -> Vec<u8> {
    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
    let mut tensors = TensorIndex::default();
    tensors.add(name, "F32", &shape, size_of::<f32>());
    let json = tensors.json(metadata);
    // Padded so that the tensor is aligned.
    let padded = json.len().next_multiple_of(8);
    let mut bytes = (padded as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(8 + padded, b' ');
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// Number of int64 columns of a chunk: `index` and those of [`Span`].
const COLUMNS: usize = 1 + Span::NAMES.len();
/// Size in bytes of an element of such a column.
const COLUMN_BYTES: usize = size_of::<i64>();

/// Encodes rows that are chunks of texts. A row of the partial file is its columns and then its vector, so that the
/// file can be truncated after any row; [`RowEncoder::finish`] copies the tensors out of it one by one.
pub(super) struct ChunkEncoder {
    schema: OutputSchema,
    vectors: VectorType,
}

impl ChunkEncoder {
    /// An encoder for rows of `schema`.
    ///
    /// # Errors
    /// If rows are no vectors.
    pub(super) fn new(schema: &OutputSchema) -> Result<Self> {
        Ok(ChunkEncoder { schema: schema.clone(), vectors: schema.vectors()? })
    }
}

impl RowEncoder for ChunkEncoder {
    fn access(&self) -> Access {
        Access::Convert
    }

    fn row_bytes(&self) -> Option<usize> {
        Some(COLUMNS * COLUMN_BYTES + self.vectors.vector_bytes())
    }

    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()> {
        let columns = [row.index].into_iter().chain(row.chunk.unwrap_or_default().values());
        bytes.extend(columns.flat_map(|value| (value as i64).to_le_bytes()));
        row.content.vector()?.values.write_le_bytes(bytes);
        Ok(())
    }

    fn set_metadata(&mut self, metadata: &OutputMetadata) {
        self.schema.metadata.clone_from(metadata);
    }

    fn finish(self: Box<Self>, destination: Destination, rows: u64) -> Result<()> {
        let ChunkEncoder { schema, vectors } = *self;
        let mut tensors = TensorIndex::default();
        // Tensors in order of decreasing element size, as the safetensors library writes them, so that all are aligned.
        for name in ["index"].into_iter().chain(Span::NAMES) {
            tensors.add(name, "I64", &[rows], COLUMN_BYTES);
        }
        tensors.add_embeddings(rows, &vectors);
        let (columns_bytes, vector_bytes) = (COLUMNS * COLUMN_BYTES, vectors.vector_bytes());
        let row_bytes = columns_bytes + vector_bytes;
        destination.convert(|partial, sink| {
            sink.write_all(&tensors.header(&schema, &vectors))?;
            let mut copy = |offset, bytes| copy_field(partial, sink, rows, row_bytes, offset, bytes);
            (0..COLUMNS).try_for_each(|column| copy(column * COLUMN_BYTES, COLUMN_BYTES))?;
            copy(columns_bytes, vector_bytes)
        })
    }
}

/// Copies the `bytes` bytes at `offset` of each of `rows` rows of `row_bytes` bytes.
fn copy_field(
    partial: &mut dyn ReadSeek,
    sink: &mut dyn Write,
    rows: u64,
    row_bytes: usize,
    offset: usize,
    bytes: usize,
) -> Result<()> {
    partial.seek(SeekFrom::Start(0))?;
    let mut row = vec![0; row_bytes];
    for _ in 0..rows {
        partial.read_exact(&mut row)?;
        sink.write_all(&row[offset..offset + bytes])?;
    }
    Ok(())
}

/// The tensors of a file and their offsets, in the order of their data.
#[derive(Default)]
struct TensorIndex {
    /// Name of each tensor, and its entry in the header.
    entries: Map<String, Value>,
    /// Offset of the end of the last tensor, from the end of the header.
    end: u64,
}

impl TensorIndex {
    fn add(&mut self, name: &str, dtype: &str, shape: &[u64], element_bytes: usize) {
        let start = self.end;
        self.end += shape.iter().product::<u64>() * element_bytes as u64;
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [start, self.end]});
        self.entries.insert(name.into(), entry);
    }

    fn add_embeddings(&mut self, rows: u64, vectors: &VectorType) {
        let dtype = match vectors.dtype {
            OutputDtype::F32 => "F32",
            OutputDtype::F16 => "F16",
            OutputDtype::Int8 | OutputDtype::Binary => "I8",
        };
        self.add("embeddings", dtype, &[rows, vectors.width() as u64], vectors.dtype.element_bytes());
    }

    /// The JSON of the header.
    fn json(&self, metadata: &OutputMetadata) -> String {
        let mut fields = Map::from_iter([("__metadata__".to_owned(), json!(metadata))]);
        fields.extend(self.entries.clone());
        Value::Object(fields).to_string()
    }

    /// The header: the length of the JSON in 8 bytes, then the JSON, padded with spaces. Metadata that does not fit,
    /// such as a long prompt, is omitted, longest value first.
    fn header(&self, schema: &OutputSchema, vectors: &VectorType) -> Vec<u8> {
        let mut metadata = schema.metadata.clone();
        metadata.extend(
            [("format", "sconce"), ("output_dtype", vectors.dtype.name())]
                .map(|(key, value)| (key.into(), value.into())),
        );
        let json = loop {
            let json = self.json(&metadata);
            let longest = metadata.iter().max_by_key(|(_, value)| value.len()).map(|(key, _)| key.clone());
            match longest {
                Some(key) if json.len() > HEADER_BYTES - 8 => metadata.remove(&key),
                _ => break json,
            };
        };
        let mut header = (HEADER_BYTES as u64 - 8).to_le_bytes().to_vec();
        header.extend_from_slice(json.as_bytes());
        header.resize(HEADER_BYTES, b' ');
        header
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::{HEADER_BYTES, copy_field};

    #[test]
    fn a_field_is_copied_out_of_every_row() {
        let (mut partial, mut sink) = (Cursor::new(b"a12b34c56".to_vec()), Vec::new());
        copy_field(&mut partial, &mut sink, 3, 3, 1, 2).unwrap();
        copy_field(&mut partial, &mut sink, 3, 3, 0, 1).unwrap();
        assert_eq!(sink, b"123456abc");
    }

    #[test]
    fn the_header_keeps_tensors_aligned() {
        assert_eq!(HEADER_BYTES % 8, 0);
    }
}
