//! Files that are a header and then one array `(N, D)`, little-endian, in C order: npy and safetensors.

use anyhow::Result;

use super::encoder::RowEncoder;
use crate::rows::{FileMetadata, OutputSchema, Row, VectorType};
use crate::store::{Access, Destination};

/// Encodes rows as the array of a file. The header holds the number of rows, so it is written last.
pub(super) struct ArrayEncoder {
    schema: OutputSchema,
    vectors: VectorType,
    header_bytes: usize,
    header: Header,
}

/// The header of a file with `rows` rows, in `bytes` bytes.
pub(super) type Header =
    fn(schema: &OutputSchema, vectors: &VectorType, rows: u64, bytes: usize) -> Result<Vec<u8>>;

impl ArrayEncoder {
    /// An encoder for rows of `schema` after a header of `header_bytes` bytes.
    pub(super) fn new(schema: &OutputSchema, header_bytes: usize, header: Header) -> Result<Self> {
        Ok(ArrayEncoder { schema: schema.clone(), vectors: schema.vectors()?, header_bytes, header })
    }
}

impl RowEncoder for ArrayEncoder {
    fn access(&self) -> Access {
        Access::Header(self.header_bytes)
    }

    fn row_bytes(&self) -> Option<usize> {
        Some(self.vectors.vector_bytes())
    }

    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()> {
        row.content.vector()?.values.write_le_bytes(bytes);
        Ok(())
    }

    fn set_metadata(&mut self, metadata: &FileMetadata) {
        self.schema.metadata.clone_from(metadata);
    }

    fn finish(self: Box<Self>, destination: Destination, rows: u64) -> Result<()> {
        let header = (self.header)(&self.schema, &self.vectors, rows, self.header_bytes)?;
        destination.commit_with_header(&header)
    }
}

/// An f32 array in C order.
pub struct Array<'a> {
    /// The name of the tensor in safetensors.
    pub name: &'a str,
    /// The size of each axis, up to four.
    pub shape: &'a [usize],
    /// All values.
    pub values: &'a [f32],
}

impl Array<'_> {
    /// The bytes of an npy file.
    pub fn npy(&self) -> Vec<u8> {
        super::npy::write::file(self.shape, self.values)
    }

    /// The bytes of a safetensors file with this metadata.
    pub fn safetensors(&self, metadata: &FileMetadata) -> Vec<u8> {
        super::safetensors::write::file(self.name, self.shape, self.values, metadata)
    }
}
