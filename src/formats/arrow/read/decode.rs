//! Decodes record batches from the parts of their bodies that are read.

use std::collections::HashMap;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::reader::read_record_batch;
use arrow_schema::{ArrowError, Schema, SchemaRef};

use super::message::decode;
use super::projection::BodyProjection;
use crate::error::one_line;
use crate::formats::error::ReadError;

pub(super) const NO_BATCH: &str = "a record batch message has no record batch";
pub(super) const NO_DICTIONARY: &str = "a dictionary message has no dictionary";

/// The parts of the body of a record batch that the columns with these indices are in.
pub(super) fn projection(
    metadata: &[u8],
    schema: &Schema,
    columns: &[usize],
    body_length: u64,
) -> Result<BodyProjection, ReadError> {
    let decoded = decode(metadata)?;
    let batch = decoded.header_as_record_batch().ok_or(NO_BATCH)?;
    let is_read = |column| columns.contains(&column);
    BodyProjection::new(metadata, &batch, schema.fields(), is_read, decoded.version(), body_length)
}

/// Decodes columns of a record batch from its compact body.
pub(super) fn decode_batch(
    metadata: Vec<u8>,
    projection: &BodyProjection,
    body: &Buffer,
    schema: &SchemaRef,
    dictionaries: &HashMap<i64, ArrayRef>,
    columns: &[usize],
) -> Result<RecordBatch, ReadError> {
    let metadata = projection.patch(metadata);
    let decoded = decode(&metadata)?;
    let batch = decoded.header_as_record_batch().ok_or(NO_BATCH)?;
    let version = decoded.version();
    read_record_batch(body, batch, schema.clone(), dictionaries, Some(columns), &version).map_err(malformed)
}

/// An error of the `arrow` crate as a reason.
pub(super) fn malformed(error: ArrowError) -> ReadError {
    ReadError::Malformed(one_line(&error))
}
