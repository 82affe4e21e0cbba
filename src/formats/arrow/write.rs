//! Encodes rows as an Arrow IPC stream: the output itself on standard output, pipes and devices, whose readers get rows as they come and
//! have no use for a footer; and otherwise the partial file. A Parquet or Arrow file ends in a footer, so a killed run would leave nothing
//! readable; a stream can be cut and continued after any record batch, and is converted to the file in the end. The conversion regroups the
//! rows, so that the file does not depend on where a run was interrupted.

use std::collections::VecDeque;
use std::io::{self, BufReader, Write};
use std::iter;

use anyhow::{Result, anyhow, bail};
use arrow_array::RecordBatch;
use arrow_ipc::writer::{DictionaryTracker, FileWriter, IpcDataGenerator, IpcWriteOptions, write_message};
use arrow_schema::{ArrowError, SchemaRef};

use super::read::ArrowReader;
use crate::formats::ReadError;
use crate::formats::encoder::RowEncoder;
use crate::rows::{BatchBuilder, OutputMetadata, OutputSchema, Row, arrow_schema, for_each_row};
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
            generator: IpcDataGenerator::default(),
            options: IpcWriteOptions::default(),
            dictionaries: DictionaryTracker::new(true),
        }
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

    fn flush(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        if self.rows.rows() > 0 { self.end_batch(bytes) } else { Ok(()) }
    }

    fn end_batch(&mut self, bytes: &mut Vec<u8>) -> Result<()> {
        let batch = self.rows.take()?;
        // No column is dictionary-encoded, so there are no dictionary messages.
        let (_, message) =
            self.generator.encode(&batch, &mut self.dictionaries, &self.options, &mut Default::default())?;
        Ok(write_message(bytes, message, &self.options).map(drop)?)
    }

    fn set_metadata(&mut self, metadata: &OutputMetadata) {
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

/// Regroups the rows of a stream. Where a group ends depends on the rows only, not on the batches of the stream.
fn row_groups<'a>(
    batches: &'a mut ArrowReader<'_>,
    schema: &'a OutputSchema,
) -> impl Iterator<Item = Result<RecordBatch>> + 'a {
    let mut rows = BatchBuilder::new(schema);
    let mut complete = VecDeque::new();
    iter::from_fn(move || {
        loop {
            if let Some(group) = complete.pop_front() {
                return Some(Ok(group));
            }
            let added = match batches.next_batch() {
                Ok(None) if rows.rows() == 0 => return None,
                Ok(None) => rows
                    .take()
                    .map(|group| complete.push_back(group))
                    .map_err(|error| unreadable(error.to_string().into())),
                Err(error) => Err(unreadable(error)),
                Ok(Some(batch)) => for_each_row(&batch, schema, |row| {
                    rows.push(row)?;
                    if rows.bytes() >= MAX_GROUP_BYTES {
                        complete.push_back(rows.take()?);
                    }
                    Ok(())
                }),
            };
            if let Err(error) = added {
                return Some(Err(error));
            }
        }
    })
}

/// The message for a stream that cannot be decoded.
fn unreadable(error: ReadError) -> anyhow::Error {
    anyhow!("cannot read back the rows written so far ({error}); pass --restart to start over")
}
