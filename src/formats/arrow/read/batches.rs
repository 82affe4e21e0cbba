//! Random access to the record batches of an Arrow IPC file or stream on disk.

use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use arrow_array::{ArrayRef, RecordBatch};
use arrow_ipc::MessageHeader;
use arrow_ipc::reader::read_dictionary;
use arrow_schema::{Schema, SchemaRef};

use super::decode::{NO_BATCH, NO_DICTIONARY, decode_batch, malformed, projection};
use super::file::MessageFile;
use super::message::{MAGIC, Message, decode, schema};
use super::projection::column_nodes;
use crate::formats::MAX_METADATA_BYTES;
use crate::formats::columnar::{ColumnarFile, RecordBatches, consecutive, rows_by_unit};
use crate::formats::error::{Format, MAX_BATCH_BYTES, ReadError, check_memory};
use crate::sys::catch_panic::catch_panic;
use crate::sys::regular_file::read_exact_at;

/// The record batches of a file, whose columns can be read one by one. Only their metadata is in memory.
pub struct ArrowBatches {
    name: Arc<str>,
    /// What to do if the file is malformed, as a clause.
    remedy: &'static str,
    file: File,
    schema: SchemaRef,
    batches: Vec<Batch>,
    dictionaries: HashMap<i64, ArrayRef>,
}

/// A record batch.
struct Batch {
    metadata: Vec<u8>,
    /// The bytes of the file that are its body.
    body: Range<u64>,
    rows: usize,
}

/// Reads the metadata of all record batches of a regular file, and its dictionaries. `name` is the file in
/// messages, and `remedy` what to do if it is malformed, as a clause.
pub fn open(name: &str, file: File, remedy: &'static str) -> Result<ArrowBatches> {
    let opened = catch_panic(|| ArrowBatches::read_metadata(name.into(), file, remedy));
    let opened = opened.unwrap_or_else(|| Err("its metadata is damaged".into()));
    opened.map_err(|error| error.of_file(name, Format::ARROW, remedy))
}

impl ArrowBatches {
    fn read_metadata(name: Arc<str>, file: File, remedy: &'static str) -> Result<Self, ReadError> {
        let size = file.metadata()?.len();
        let mut magic = [0; MAGIC.len()];
        let is_file = size >= MAGIC.len() as u64 && {
            read_exact_at(&file, &mut magic, 0)?;
            magic == *MAGIC
        };
        let (schema, messages) =
            if is_file { file_messages(file.try_clone()?, size)? } else { stream_messages(&file, size)? };
        let mut batches = ArrowBatches {
            name,
            remedy,
            file,
            schema: schema.into(),
            batches: Vec::new(),
            dictionaries: HashMap::new(),
        };
        for (message, body) in messages {
            let decoded = decode(&message.metadata)?;
            match decoded.header_type() {
                MessageHeader::DictionaryBatch => batches.read_dictionary(&message, &body)?,
                MessageHeader::RecordBatch => {
                    let length = decoded.header_as_record_batch().ok_or(NO_BATCH)?.length();
                    let rows = usize::try_from(length).map_err(|_| NO_BATCH)?;
                    batches.batches.push(Batch { metadata: message.metadata, body, rows });
                }
                _ => return Err("one of its messages is neither a record batch nor a dictionary".into()),
            }
        }
        Ok(batches)
    }

    fn read_dictionary(&mut self, message: &Message, body: &Range<u64>) -> Result<(), ReadError> {
        let decoded = decode(&message.metadata)?;
        let dictionary = decoded.header_as_dictionary_batch().ok_or(NO_DICTIONARY)?;
        check_memory(message.body_length, 0, MAX_BATCH_BYTES)?;
        let mut bytes = vec![0; message.body_length as usize];
        read_exact_at(&self.file, &mut bytes, body.start)?;
        let (schema, version) = (self.schema.clone(), decoded.version());
        read_dictionary(&bytes.into(), dictionary, &schema, &mut self.dictionaries, &version)
            .map_err(malformed)
    }

    /// Reads columns of a record batch, given by their indices in ascending order.
    fn read(&self, batch: usize, columns: &[usize]) -> Result<RecordBatch> {
        // The `arrow` crate panics on buffers whose length is not a multiple of the size of their elements.
        let read = catch_panic(|| self.read_columns(&self.batches[batch], columns));
        read.unwrap_or_else(|| Err("one of its record batches is damaged".into()))
            .map_err(|error| self.unreadable(error))
    }

    fn read_columns(&self, batch: &Batch, columns: &[usize]) -> Result<RecordBatch, ReadError> {
        let body_length = batch.body.end - batch.body.start;
        let projection = projection(&batch.metadata, &self.schema, columns, body_length)?;
        let body = projection.read_body(0, MAX_BATCH_BYTES, |start, part| {
            Ok(read_exact_at(&self.file, part, batch.body.start + start)?)
        })?;
        decode_batch(batch.metadata.clone(), &projection, &body, &self.schema, &self.dictionaries, columns)
    }

    /// The offset of the last buffer of a column: see [`ColumnarFile::values_offset`].
    fn find_values(&self, batch: &Batch, column: usize, bytes: u64) -> Result<Option<u64>, ReadError> {
        let decoded = decode(&batch.metadata)?;
        let header = decoded.header_as_record_batch().ok_or(NO_BATCH)?;
        let nodes = |column: usize| column_nodes(self.schema.field(column).data_type());
        let first: usize = (0..column).map(nodes).sum();
        let mut column_nodes = header.nodes().into_iter().flatten().skip(first).take(nodes(column));
        let is_plain = header.compression().is_none() && column_nodes.all(|node| node.null_count() == 0);
        let body_length = batch.body.end - batch.body.start;
        let projection = projection(&batch.metadata, &self.schema, &[column], body_length)?;
        // Elements follow their validity bitmaps.
        let values = projection.ranges.last().filter(|range| range.end - range.start == bytes);
        Ok(values.filter(|_| is_plain).map(|range| batch.body.start + range.start))
    }

    /// The error for a file that cannot be read.
    fn unreadable(&self, error: ReadError) -> anyhow::Error {
        error.of_file(&self.name, Format::ARROW, self.remedy)
    }
}

impl ColumnarFile for ArrowBatches {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn units(&self) -> Result<Vec<Range<usize>>> {
        let units = consecutive(self.batches.iter().map(|batch| Some(batch.rows)));
        units.ok_or_else(|| self.unreadable("it declares too many rows".into()))
    }

    fn unit(&self, unit: usize, columns: &[usize], _max_rows: usize) -> Result<RecordBatches<'_>> {
        Ok(Box::new(std::iter::once(self.read(unit, columns))))
    }

    fn batches(&self, columns: &[usize], _max_rows: usize, _max_bytes: u64) -> Result<RecordBatches<'_>> {
        let columns = columns.to_vec();
        Ok(Box::new((0..self.batches.len()).map(move |batch| self.read(batch, &columns))))
    }

    fn for_each_row(
        &self,
        rows: &[usize],
        columns: &[usize],
        visit: &mut dyn FnMut(&RecordBatch, usize) -> Result<()>,
    ) -> Result<()> {
        let units = self.units()?;
        for (i, wanted) in rows_by_unit(rows, &units) {
            let batch = self.read(i, columns)?;
            wanted.iter().try_for_each(|row| visit(&batch, row - units[i].start))?;
        }
        Ok(())
    }

    fn values_offset(&self, unit: usize, column: usize, bytes: u64) -> Result<Option<u64>> {
        let found = catch_panic(|| self.find_values(&self.batches[unit], column, bytes));
        found.unwrap_or_else(|| Err("its metadata is damaged".into())).map_err(|error| self.unreadable(error))
    }
}

/// The messages of a file by its footer, each with the range of its body.
type Messages = (Schema, Vec<(Message, Range<u64>)>);

fn file_messages(file: File, size: u64) -> Result<Messages, ReadError> {
    let (mut file, schema) = MessageFile::new(file, size)?;
    let mut messages = Vec::new();
    while let Some(message) = file.next()? {
        messages.push((message, file.body()));
    }
    Ok((schema, messages))
}

/// The messages of a stream.
fn stream_messages(file: &File, size: u64) -> Result<Messages, ReadError> {
    const TRUNCATED: &str = "it is truncated";
    let (mut offset, mut found, mut messages) = (0, None, Vec::new());
    while offset < size {
        let mut prefix = [0; 8];
        let prefix_bytes = prefix.len() as u64;
        if size - offset < prefix_bytes {
            return Err(TRUNCATED.into());
        }
        read_exact_at(file, &mut prefix, offset)?;
        if prefix[..4] != [0xff; 4] {
            return Err("a message does not start with its marker".into());
        }
        let length = u64::from(u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]));
        if length == 0 {
            break;
        }
        let start = offset + prefix_bytes;
        let body_start = start.checked_add(length).filter(|end| *end <= size).ok_or(TRUNCATED)?;
        if length > MAX_METADATA_BYTES {
            return Err(format!("the metadata of a message has a length of {length} bytes").into());
        }
        let mut metadata = vec![0; length as usize];
        read_exact_at(file, &mut metadata, start)?;
        let decoded = decode(&metadata)?;
        let body_length =
            u64::try_from(decoded.bodyLength()).map_err(|_| "the length of a body is negative")?;
        offset = body_start.checked_add(body_length).filter(|end| *end <= size).ok_or(TRUNCATED)?;
        match decoded.header_as_schema() {
            Some(header) if found.is_none() => found = Some(schema(header)?),
            Some(_) => return Err("a second schema follows".into()),
            None => messages.push((Message { metadata, body_length }, body_start..offset)),
        }
    }
    Ok((found.ok_or("it does not start with a schema")?, messages))
}
