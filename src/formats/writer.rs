//! Writes rows in a format to a destination.

use anyhow::Result;
use arrow_array::RecordBatch;

use super::encoder::{RowEncoder, check_row_size};
use super::{arrow, csv, jsonl, npy, npz, parquet, safetensors};
use crate::rows::{FileMetadata, OutputFormat, OutputSchema, Row};
use crate::store::{Destination, DurableRows, HashedBlock, OutputLock};

/// Capacity above which the buffer of encoded rows is freed after it is written.
const MAX_BUFFER_BYTES: usize = 1 << 20;

/// Rows of a batch that are encoded at a time.
const SLICE_ROWS: usize = 1024;

/// Writes the rows of an output. If it is dropped before [`Writer::finish`], a regular file has no final
/// name, and its partial file stays.
pub struct Writer {
    destination: Destination,
    encoder: Box<dyn RowEncoder>,
    /// Number of rows written, by earlier runs too.
    rows: u64,
    /// Encoded rows on their way to the destination.
    buffer: Vec<u8>,
}

/// The encoder of a format: the one place that lists them. `is_file` is false for standard output, pipes and
/// devices.
fn encoder(schema: &OutputSchema, is_file: bool) -> Result<Box<dyn RowEncoder>> {
    Ok(match schema.format {
        OutputFormat::Jsonl => Box::new(jsonl::write::JsonlEncoder::new(schema)),
        OutputFormat::Csv => Box::new(csv::write::CsvEncoder::new(schema)),
        OutputFormat::Npy => Box::new(npy::write::encoder(schema)?),
        OutputFormat::Npz => Box::new(npz::write::NpzEncoder::new(schema)?),
        OutputFormat::Safetensors if schema.chunks => {
            Box::new(safetensors::write::ChunkEncoder::new(schema)?)
        }
        OutputFormat::Safetensors => Box::new(safetensors::write::encoder(schema)?),
        OutputFormat::Arrow if is_file => Box::new(arrow::write::file_encoder(schema)),
        OutputFormat::Arrow => Box::new(arrow::write::stream_encoder(schema)),
        OutputFormat::Parquet => Box::new(parquet::write::file_encoder(schema)),
    })
}

impl Writer {
    /// Opens a locked output for rows of `schema`, which [`check`](super::check()) has accepted: from the
    /// beginning, or after the durable rows of an interrupted run, whose partial file is truncated to them.
    pub fn open(lock: &OutputLock, schema: &OutputSchema, durable: Option<DurableRows>) -> Result<Self> {
        // A run that was interrupted before its first checkpoint has written nothing that could be resumed.
        let durable = durable.filter(|durable| durable.bytes > 0);
        let encoder = encoder(schema, lock.sidecars().is_some())?;
        if let Some(durable) = &durable {
            check_row_size(&*encoder, lock.target(), durable)?;
        }
        let (rows, is_new) = (durable.as_ref().map_or(0, |durable| durable.rows), durable.is_none());
        let destination = Destination::open(lock, durable, encoder.access())?;
        let mut writer = Writer { destination, encoder, rows, buffer: Vec::new() };
        if is_new {
            writer.encoder.begin(&mut writer.buffer)?;
            writer.write_buffer()?;
        }
        Ok(writer)
    }

    /// Writes the next row, in input order.
    ///
    /// # Errors
    /// If it cannot be written; [`ClosedPipe`](crate::store::ClosedPipe) if the output is a pipe whose reader
    /// closed it.
    pub fn write(&mut self, row: &Row) -> Result<()> {
        self.encoder.encode(row, &mut self.buffer)?;
        self.rows += 1;
        self.write_buffer()
    }

    /// Writes the next rows: a record batch with the columns of the schema. Only for Parquet and Arrow.
    pub fn write_batch(&mut self, batch: &RecordBatch) -> Result<()> {
        for start in (0..batch.num_rows()).step_by(SLICE_ROWS) {
            let slice = batch.slice(start, SLICE_ROWS.min(batch.num_rows() - start));
            self.encoder.encode_batch(&slice, &mut self.buffer)?;
            self.write_buffer()?;
        }
        self.rows += batch.num_rows() as u64;
        Ok(())
    }

    /// Makes all rows so far durable and returns the length of the partial file in bytes. On any other
    /// target, the rows are flushed as far as the format allows, and the result is 0.
    pub fn checkpoint(&mut self) -> Result<u64> {
        self.encoder.flush(&mut self.buffer)?;
        self.write_buffer()?;
        self.destination.checkpoint()
    }

    /// Ends a record batch of an output that [follows the batches](OutputSchema::follows_batches) of its
    /// input, and flushes it. A batch may be without rows.
    pub fn end_batch(&mut self) -> Result<()> {
        self.encoder.end_batch(&mut self.buffer)?;
        self.write_buffer()?;
        self.destination.checkpoint().map(drop)
    }

    /// Digests of the partial file, which holds `rows` rows; none for any other target.
    pub fn blocks(&mut self, rows: u64) -> Vec<HashedBlock> {
        self.destination.blocks(rows)
    }

    /// Replaces the metadata of the schema, for formats that write it last.
    pub fn set_metadata(&mut self, metadata: &FileMetadata) {
        self.encoder.set_metadata(metadata);
    }

    /// Completes the output and renames it to its final name.
    pub fn finish(mut self) -> Result<()> {
        self.encoder.flush(&mut self.buffer)?;
        self.write_buffer()?;
        self.encoder.finish(self.destination, self.rows)
    }

    fn write_buffer(&mut self) -> Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.destination.append(&self.buffer)?;
        self.buffer.clear();
        if self.buffer.capacity() > MAX_BUFFER_BYTES {
            self.buffer = Vec::new();
        }
        Ok(())
    }
}
