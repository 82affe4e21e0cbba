//! Writes an Arrow IPC stream. On standard output, pipes and devices, the stream is the output. For files,
//! the stream is the partial file: it can be cut and continued after any record batch, where a Parquet or
//! Arrow file needs its footer, and is converted in the end. The conversion regroups the rows, so that the
//! file does not depend on where a run was interrupted.

use std::collections::VecDeque;
use std::io::{self, BufReader, Write};
use std::{iter, mem};

use anyhow::{Result, anyhow, bail};
use arrow_array::RecordBatch;
use arrow_ipc::writer::{DictionaryTracker, FileWriter, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::concat::concat_batches;

use super::read::ArrowReader;
use crate::formats::ReadError;
use crate::formats::encoder::RowEncoder;
use crate::rows::{
    BatchBuilder, ContentType, FileMetadata, OutputFormat, OutputSchema, Row, arrow_schema, row_bytes,
};
use crate::store::{Access, Destination};

/// Approximate size in bytes at which a record batch of the stream ends.
const MAX_BATCH_BYTES: usize = 4 << 20;
/// Number of rows at which a record batch of the stream ends.
const MAX_BATCH_ROWS: usize = 4096;
/// Approximate size in bytes at which a row group of a file ends.
const MAX_GROUP_BYTES: usize = 16 << 20;
/// The end-of-stream marker: a message of length 0.
const END_OF_STREAM: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

/// The row groups of a file, in order.
pub(crate) type RowGroups<'a> = dyn Iterator<Item = Result<RecordBatch>> + 'a;

/// Writes row groups as a file. An [`std::io::Error`] in the result is a failed write to the sink.
pub(crate) type WriteFile =
    fn(groups: &mut RowGroups, arrow_schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()>;

/// Encodes rows as an Arrow IPC stream.
pub(crate) struct IpcStreamEncoder {
    schema: OutputSchema,
    /// Converts the stream to the output; `None` if the stream is the output.
    write_file: Option<WriteFile>,
    rows: BatchBuilder,
    /// Rows that came in batches, if the stream is the output.
    group: Group,
    generator: IpcDataGenerator,
    options: IpcWriteOptions,
    dictionaries: DictionaryTracker,
}

/// An encoder for an Arrow IPC file.
pub(crate) fn file_encoder(schema: &OutputSchema) -> IpcStreamEncoder {
    IpcStreamEncoder::new(schema, Some(write_file))
}

/// An encoder for an Arrow IPC stream.
pub(crate) fn stream_encoder(schema: &OutputSchema) -> IpcStreamEncoder {
    IpcStreamEncoder::new(schema, None)
}

impl IpcStreamEncoder {
    /// An encoder for rows of `schema`, whose stream `write_file` converts to the output.
    pub(crate) fn new(schema: &OutputSchema, write_file: Option<WriteFile>) -> Self {
        IpcStreamEncoder {
            schema: schema.clone(),
            write_file,
            rows: BatchBuilder::new(schema),
            group: Group::new(schema, MAX_BATCH_ROWS, MAX_BATCH_BYTES),
            generator: IpcDataGenerator::default(),
            options: IpcWriteOptions::default(),
            dictionaries: DictionaryTracker::new(true),
        }
    }

    /// Appends a record batch to `bytes`.
    fn write_message(&mut self, batch: &RecordBatch, bytes: &mut Vec<u8>) -> Result<()> {
        // No column is dictionary-encoded, so there are no dictionary messages.
        let (_, message) =
            self.generator.encode(batch, &mut self.dictionaries, &self.options, &mut Default::default())?;
        Ok(write_message(bytes, message, &self.options).map(drop)?)
    }
}

impl RowEncoder for IpcStreamEncoder {
    fn access(&self) -> Access {
        if self.write_file.is_some() { Access::Convert } else { Access::Sequential }
    }

    /// The schema message.
    fn begin(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let message = self.generator.schema_to_bytes_with_dictionary_tracker(
            &arrow_schema(&self.schema),
            &mut self.dictionaries,
            &self.options,
        );
        write_message(bytes, message, &self.options)?;
        Ok(())
    }

    fn encode(&mut self, row: &Row, bytes: &mut Vec<u8>) -> Result<()> {
        self.rows.push(row)?;
        let is_full = self.rows.rows() >= MAX_BATCH_ROWS || self.rows.bytes() >= MAX_BATCH_BYTES;
        if is_full && !self.schema.follows_batches { self.end_batch(bytes) } else { Ok(()) }
    }

    fn encode_batch(&mut self, batch: &RecordBatch, bytes: &mut Vec<u8>) -> Result<()> {
        // The conversion to the output regroups the rows, and a slice keeps all of its batch in memory.
        if self.write_file.is_some() {
            return self.write_message(batch, bytes);
        }
        let mut complete = VecDeque::new();
        self.group.push(batch, &mut complete)?;
        complete.iter().try_for_each(|group| self.write_message(group, bytes))
    }

    fn flush(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if let Some(group) = self.group.take()? {
            self.write_message(&group, bytes)?;
        }
        if self.rows.rows() > 0 { self.end_batch(bytes) } else { Ok(()) }
    }

    fn end_batch(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let batch = self.rows.take()?;
        self.write_message(&batch, bytes)
    }

    fn set_metadata(&mut self, metadata: &FileMetadata) {
        self.schema.metadata.clone_from(metadata);
    }

    fn finish(self: Box<Self>, mut destination: Destination, _rows: u64) -> Result<()> {
        let Some(write_file) = self.write_file else {
            destination.append(&END_OF_STREAM)?;
            return destination.commit();
        };
        let (schema, arrow_schema) = (self.schema.clone(), arrow_schema(&self.schema));
        drop(self);
        destination.convert(|stream, sink| {
            // A row may have any size.
            let stream = Box::new(BufReader::new(stream));
            let mut batches = ArrowReader::open(stream, None, u64::MAX).map_err(unreadable)?;
            if batches.schema().fields() != arrow_schema.fields() {
                bail!("the rows of the interrupted run have other columns; pass --restart to start over");
            }
            write_file(&mut row_groups(&mut batches, &schema), arrow_schema, sink)
        })
    }
}

/// Writes rows as a complete Arrow IPC stream.
///
/// # Errors
/// If the rows do not have this content.
pub fn write_arrow_rows(rows: &[Row], content: &ContentType, bytes: &mut Vec<u8>) -> Result<()> {
    let schema = OutputSchema::new(OutputFormat::Arrow, *content);
    let mut encoder = stream_encoder(&schema);
    encoder.begin(bytes)?;
    rows.iter().try_for_each(|row| encoder.encode(row, bytes))?;
    encoder.flush(bytes)?;
    bytes.extend_from_slice(&END_OF_STREAM);
    Ok(())
}

/// Writes row groups as an Arrow IPC file.
fn write_file(groups: &mut RowGroups, arrow_schema: SchemaRef, sink: &mut (dyn Write + Send)) -> Result<()> {
    let mut file = FileWriter::try_new(sink, &arrow_schema).map_err(into_io_error)?;
    for group in groups {
        file.write(&group?).map_err(into_io_error)?;
    }
    Ok(file.finish().map_err(into_io_error)?)
}

/// The [`io::Error`] of a failed write; any other error wrapped in one.
fn into_io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, error) => error,
        other => io::Error::other(other),
    }
}

/// Regroups the rows of a stream. Where a group ends depends on the rows only, not on the batches of the
/// stream.
fn row_groups<'a>(
    batches: &'a mut ArrowReader<'_>,
    schema: &'a OutputSchema,
) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
    let mut group = Group::new(schema, usize::MAX, MAX_GROUP_BYTES);
    let mut complete = VecDeque::new();
    iter::from_fn(move || {
        loop {
            if let Some(group) = complete.pop_front() {
                return Some(Ok(group));
            }
            let added = match batches.next_batch() {
                Ok(None) => return group.take().transpose(),
                Ok(Some(batch)) => group.push(&batch, &mut complete),
                Err(error) => Err(unreadable(error)),
            };
            if let Err(error) = added {
                return Some(Err(error));
            }
        }
    })
}

/// Rows of several batches that become one as soon as there are `max_rows` or they have `max_bytes`.
struct Group {
    schema: OutputSchema,
    max_rows: usize,
    max_bytes: usize,
    /// The rows, in slices of the batches.
    parts: Vec<RecordBatch>,
    rows: usize,
    bytes: usize,
}

impl Group {
    fn new(schema: &OutputSchema, max_rows: usize, max_bytes: usize) -> Self {
        Group { schema: schema.clone(), max_rows, max_bytes, parts: Vec::new(), rows: 0, bytes: 0 }
    }

    /// Adds the rows of a batch. Groups that are complete are appended to `complete`.
    fn push(&mut self, batch: &RecordBatch, complete: &mut VecDeque<RecordBatch>) -> Result<()> {
        let mut start = 0;
        for (row, bytes) in row_bytes(batch, &self.schema)?.into_iter().enumerate() {
            self.rows += 1;
            self.bytes += bytes;
            if self.rows >= self.max_rows || self.bytes >= self.max_bytes {
                self.parts.push(batch.slice(start, row + 1 - start));
                start = row + 1;
                complete.extend(self.take()?);
            }
        }
        if start < batch.num_rows() {
            self.parts.push(batch.slice(start, batch.num_rows() - start));
        }
        Ok(())
    }

    /// The rows so far as a batch; `None` if there are none.
    fn take(&mut self) -> Result<Option<RecordBatch>> {
        (self.rows, self.bytes) = (0, 0);
        let (mut parts, schema) = (mem::take(&mut self.parts), arrow_schema(&self.schema));
        match parts.len() {
            0 => return Ok(None),
            // A single slice would not be copied, and the bits after those of its rows would be written, too.
            1 => parts.push(RecordBatch::new_empty(schema.clone())),
            _ => {}
        }
        Ok(Some(concat_batches(&schema, &parts)?))
    }
}

/// The message for a stream that cannot be decoded.
fn unreadable(error: ReadError) -> anyhow::Error {
    anyhow!("cannot read back the rows written so far ({error}); pass --restart to start over")
}
