//! A safetensors file with a tensor `embeddings` `(N, D)`. If rows are chunks of texts, int64 tensors `(N)`,
//! `index` and those of [`Span`], locate the chunk of each row.

use std::io::{SeekFrom, Write};

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use crate::formats::array::ArrayEncoder;
use crate::formats::encoder::RowEncoder;
use crate::named::Named;
use crate::rows::columns::{EMBEDDINGS, OF_CHUNKS};
use crate::rows::metadata::Key;
use crate::rows::{FileMetadata, OutputDtype, OutputSchema, Row, VectorType};
use crate::store::{Access, Destination, ReadSeek};

/// The size of a header in bytes is a multiple of this one, so that the tensors are aligned.
const HEADER_BLOCK_BYTES: usize = 4096;
/// Size of the length of the header in bytes.
const LENGTH_BYTES: usize = 8;
/// Room in bytes for what is not known when the first row is written: the number of rows, and the metadata in
/// [`LATE_KEYS`].
const LATE_BYTES: usize = 1024;
/// The keys of metadata that is added at the end of a run, or that only a shard has: the header of a shard
/// has the size that the header of all rows has.
const LATE_KEYS: [Key; 3] = [Key::WeightsSha256, Key::Shard, Key::ShardRecords];

/// An encoder for a file with the tensor `embeddings`.
pub(crate) fn encoder(schema: &OutputSchema) -> Result<ArrayEncoder> {
    let bytes = header_bytes(schema, &schema.vectors()?);
    ArrayEncoder::new(schema, bytes, |schema, vectors, rows, bytes| {
        tensors(schema, vectors, rows).header(schema, bytes)
    })
}

/// A file with an f32 tensor of this name and shape, and metadata.
pub(crate) fn file(name: &str, shape: &[usize], values: &[f32], metadata: &FileMetadata) -> Vec<u8> {
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

/// Number of int64 columns of a chunk.
const COLUMNS: usize = OF_CHUNKS.len();
/// Size in bytes of an element of such a column.
const COLUMN_BYTES: usize = size_of::<i64>();

/// Encodes rows that are chunks of texts. A row of the partial file is its columns and then its vector, so
/// that the file can be truncated after any row; [`RowEncoder::finish`] copies the tensors out of it one by
/// one.
pub(crate) struct ChunkEncoder {
    schema: OutputSchema,
    vectors: VectorType,
}

impl ChunkEncoder {
    /// An encoder for rows of `schema`.
    pub(crate) fn new(schema: &OutputSchema) -> Result<Self> {
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

    fn set_metadata(&mut self, metadata: &FileMetadata) {
        self.schema.metadata.clone_from(metadata);
    }

    fn finish(self: Box<Self>, destination: Destination, rows: u64) -> Result<()> {
        let ChunkEncoder { schema, vectors } = *self;
        let bytes = header_bytes(&schema, &vectors);
        let header = tensors(&schema, &vectors, rows).header(&schema, bytes)?;
        let (columns_bytes, vector_bytes) = (COLUMNS * COLUMN_BYTES, vectors.vector_bytes());
        let row_bytes = columns_bytes + vector_bytes;
        destination.convert(|partial, sink| {
            sink.write_all(&header)?;
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

/// The tensors of a file with `rows` rows.
fn tensors(schema: &OutputSchema, vectors: &VectorType, rows: u64) -> TensorIndex {
    let mut tensors = TensorIndex::default();
    // In order of decreasing element size, as the safetensors library writes them, so that all are aligned.
    if schema.chunks {
        for name in OF_CHUNKS {
            tensors.add(name, "I64", &[rows], COLUMN_BYTES);
        }
    }
    tensors.add_embeddings(rows, vectors);
    tensors
}

/// The metadata of a file, with what it says about itself.
fn metadata(schema: &OutputSchema) -> FileMetadata {
    let mut metadata = schema.metadata.clone();
    metadata.insert(Key::Format, "sconce");
    metadata.insert(Key::OutputDtype, schema.content.dtype().name());
    metadata
}

/// Size of the header of a file in bytes: room for any number of rows and for the metadata. It is the same at
/// the beginning and at the end of a run.
fn header_bytes(schema: &OutputSchema, vectors: &VectorType) -> usize {
    let mut metadata = metadata(schema);
    LATE_KEYS.iter().for_each(|key| metadata.remove(*key));
    let json = tensors(schema, vectors, 0).json(&metadata);
    let bytes = LENGTH_BYTES + json.len() + LATE_BYTES;
    bytes.next_multiple_of(HEADER_BLOCK_BYTES)
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
            OutputDtype::Ubinary => "U8",
        };
        self.add(EMBEDDINGS, dtype, &[rows, vectors.width() as u64], vectors.dtype.element_bytes());
    }

    /// The JSON of the header.
    fn json(&self, metadata: &FileMetadata) -> String {
        let mut fields = Map::from_iter([("__metadata__".to_owned(), json!(metadata))]);
        fields.extend(self.entries.clone());
        Value::Object(fields).to_string()
    }

    /// The header in `bytes` bytes: the length of the JSON in 8 bytes, then the JSON, padded with spaces.
    fn header(&self, schema: &OutputSchema, bytes: usize) -> Result<Vec<u8>> {
        let json = self.json(&metadata(schema));
        let mut header = (bytes as u64 - LENGTH_BYTES as u64).to_le_bytes().to_vec();
        header.extend_from_slice(json.as_bytes());
        if header.len() > bytes {
            bail!(
                "the metadata of a safetensors file takes more than {bytes} bytes; write another --output-format"
            );
        }
        header.resize(bytes, b' ');
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::rows::{ContentType, OutputFormat};

    #[test]
    fn a_field_is_copied_out_of_every_row() {
        let (mut partial, mut sink) = (Cursor::new(b"a12b34c56".to_vec()), Vec::new());
        copy_field(&mut partial, &mut sink, 3, 3, 1, 2).unwrap();
        copy_field(&mut partial, &mut sink, 3, 3, 0, 1).unwrap();
        assert_eq!(sink, b"123456abc");
    }

    #[test]
    fn the_header_has_room_for_all_metadata() {
        let vectors = VectorType {
            dtype: OutputDtype::F32,
            dimensions: 4,
            per_token: false,
            normalized: true,
            nullable: false,
        };
        for chunks in [false, true] {
            for length in [10, 3000, 4000, 20_000] {
                let mut schema = OutputSchema {
                    chunks,
                    metadata: [("prompt".to_owned(), "x".repeat(length))].into_iter().collect(),
                    ..OutputSchema::new(OutputFormat::Safetensors, ContentType::Vectors(vectors))
                };
                let bytes = header_bytes(&schema, &vectors);
                assert_eq!(bytes % 8, 0);
                assert_eq!(bytes == 4096, length < 3000, "{length}");
                for key in LATE_KEYS {
                    schema.metadata.insert(key, "y".repeat(64));
                }
                let all = tensors(&schema, &vectors, 1 << 40);
                assert_eq!(header_bytes(&schema, &vectors), bytes);
                let header = all.header(&schema, bytes).unwrap();
                assert_eq!(header.len(), bytes);
                let json: Value = serde_json::from_slice(&header[8..]).unwrap();
                let found: FileMetadata = serde_json::from_value(json["__metadata__"].clone()).unwrap();
                assert_eq!(found, metadata(&schema));
            }
        }
    }
}
