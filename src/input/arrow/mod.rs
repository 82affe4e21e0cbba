//! Arrow IPC files and streams: the columns that are needed, one record batch at a time.

mod batches;
mod file;
mod message;
mod projection;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::MessageHeader;
use arrow_ipc::reader::{read_dictionary, read_record_batch};
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema, SchemaRef};

pub use batches::ArrowBatches;

use super::columns::{Columns, Rows};
use super::error::one_line;
use super::limit::ReadLimit;
use super::reader::{InputReader, read_error};
use super::record::{Entry, Fields};
use super::source::{Compression, InputPath, Source};
use crate::sys::catch_panic::catch_panic;
use file::MessageFile;
use message::{MAGIC, Message, ReadError, decode, schema};
use projection::{ALIGNMENT, BodyProjection, check_memory};
use stream::MessageStream;

const NO_BATCH: &str = "a record batch message has no record batch";
const NO_DICTIONARY: &str = "a dictionary message has no dictionary";

/// The rows of an input.
pub(super) struct ArrowRows {
    name: Arc<str>,
    is_compressed: bool,
    messages: Messages,
    schema: SchemaRef,
    columns: Columns,
    limit: ReadLimit,
    /// The values of the dictionaries read so far, by id.
    dictionaries: HashMap<i64, ArrayRef>,
    /// The rows of the current record batch.
    rows: Option<Rows>,
    /// Rows read so far.
    row: u64,
    /// Bytes of the input before the current record batch.
    batch_start: u64,
}

/// The messages of an input.
enum Messages {
    /// In the order of the input.
    Stream(MessageStream),
    /// In the order of the footer of a file.
    File(MessageFile),
}

impl Messages {
    /// Opens an input, and reads its schema: a file by its footer, unless it is compressed or a pipe; anything else
    /// from its start.
    fn open(input: InputReader, source: &Source) -> Result<(Self, Schema), ReadError> {
        let (mut stream, start) = MessageStream::new(input.reader)?;
        if start.starts_with(b"FEA1") {
            return Err(
                "it is a Feather file of version 1, which is not supported; write it as version 2".into()
            );
        }
        if start == MAGIC
            && let (InputPath::File(path), Compression::None) = (&source.path, source.compression)
            && let Some(size) = source.size()
        {
            let (file, schema) = MessageFile::open(path, size)?;
            return Ok((Messages::File(file), schema));
        }
        let first = match stream.next() {
            Ok(Some(message)) => first_schema(&message),
            Ok(None) => Err("it does not start with a schema".into()),
            Err(ReadError::Malformed(reason)) => Err(reason),
            Err(error) => return Err(error),
        };
        match first {
            Ok(schema) => Ok((Messages::Stream(stream), schema)),
            Err(reason) if start == MAGIC => Err(format!(
                "{reason}; it may be a file that can only be read by its footer: pass it uncompressed, by its path"
            )
            .into()),
            Err(reason) => Err(reason.into()),
        }
    }

    /// Reads the metadata of the next message; `None` at the end.
    fn next(&mut self) -> Result<Option<Message>, ReadError> {
        match self {
            Messages::Stream(stream) => stream.next(),
            Messages::File(file) => file.next(),
        }
    }

    /// Reads the compact body of the last message.
    fn read_body(&mut self, projection: &BodyProjection) -> Result<Buffer, ReadError> {
        let mut body = vec![0; projection.bytes() as usize];
        let mut rest = &mut body[..];
        for range in &projection.ranges {
            let length = (range.end - range.start) as usize;
            let part;
            (part, rest) = rest.split_at_mut(length.next_multiple_of(ALIGNMENT as usize));
            match self {
                Messages::Stream(stream) => stream.read_body(range.start, &mut part[..length])?,
                Messages::File(file) => file.read_body(range.start, &mut part[..length])?,
            }
        }
        Ok(body.into())
    }

    /// Bytes of the input read so far.
    fn bytes_read(&self) -> u64 {
        match self {
            Messages::Stream(stream) => stream.bytes_read(),
            Messages::File(file) => file.bytes_read(),
        }
    }
}

/// The schema in the first message of a stream.
fn first_schema(message: &Message) -> Result<Schema, String> {
    schema(decode(&message.metadata)?.header_as_schema().ok_or("it does not start with a schema")?)
}

impl ArrowRows {
    /// Reads the schema of an input.
    ///
    /// # Errors
    /// If reading fails, the input is not Arrow IPC, or it does not have one of the columns.
    pub(super) fn open(
        input: InputReader,
        source: &Source,
        fields: &Fields,
        limit: ReadLimit,
    ) -> Result<Self> {
        let (name, is_compressed) = (input.name.clone(), input.compressed_bytes_read.is_some());
        let (messages, schema) = Messages::open(input, source).map_err(|error| match error {
            ReadError::Io(error) => read_error(&name, "at its start", is_compressed, &error),
            ReadError::Malformed(reason) | ReadError::TooLarge(reason) => {
                anyhow!(
                    "cannot read {name} as Arrow ({reason}); write the file again, or pass --input-format"
                )
            }
        })?;
        let columns = Columns::new(&name, &schema, fields, limit)?;
        let batch_start = messages.bytes_read();
        Ok(ArrowRows {
            name,
            is_compressed,
            messages,
            schema: schema.into(),
            columns,
            limit,
            dictionaries: HashMap::new(),
            rows: None,
            row: 0,
            batch_start,
        })
    }

    /// Bytes of the input read so far, after decompression; the bytes of a record batch are divided evenly among its
    /// rows.
    pub(super) fn bytes_read(&self) -> u64 {
        let Some(rows) = &self.rows else { return self.batch_start };
        let batch = u128::from(self.messages.bytes_read() - self.batch_start);
        self.batch_start + (batch * rows.rows_read() as u128 / rows.len().max(1) as u128) as u64
    }

    /// Whether the last row was the last one of a record batch that comes through a stream, so that reading the next row may wait
    /// for the writer.
    pub(super) fn ends_stream_batch(&self) -> bool {
        let is_stream = matches!(self.messages, Messages::Stream(_));
        is_stream && self.rows.as_ref().is_some_and(|rows| rows.rows_read() == rows.len())
    }

    /// Reads the next row; `None` at the end of the input.
    ///
    /// # Errors
    /// If reading fails, the input is malformed, or a record batch takes too much memory.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.rows.as_mut().and_then(|rows| rows.read(&self.name, self.row + 1)) {
                self.row += 1;
                return Ok(Some(entry));
            }
            self.batch_start = self.messages.bytes_read();
            self.rows = None;
            let error = match self.messages.next() {
                Ok(None) => return Ok(None),
                // The `arrow` crate panics on buffers whose length is not a multiple of the size of their elements.
                Ok(Some(message)) => match catch_panic(|| self.read_message(message)) {
                    Some(Ok(())) => continue,
                    Some(Err(error)) => error,
                    None => "the next record batch is damaged".into(),
                },
                Err(error) => error,
            };
            let after = format!("after row {}", self.row);
            match error {
                ReadError::Io(error) => {
                    return Err(read_error(&self.name, &after, self.is_compressed, &error));
                }
                ReadError::Malformed(reason) => {
                    bail!("cannot read {} {after} ({reason}); write the file again", self.name)
                }
                ReadError::TooLarge(reason) => bail!("{}: the record batch {after} {reason}", self.name),
            }
        }
    }

    /// Reads the body of a message: the rows of a record batch, or a dictionary.
    fn read_message(&mut self, message: Message) -> Result<(), ReadError> {
        match decode(&message.metadata)?.header_type() {
            MessageHeader::RecordBatch => self.read_batch(message),
            MessageHeader::DictionaryBatch => self.read_dictionary(message),
            MessageHeader::NONE => Ok(()),
            MessageHeader::Schema => Err("a second schema follows".into()),
            _ => Err("the next message is neither a record batch nor a dictionary".into()),
        }
    }

    fn read_batch(&mut self, message: Message) -> Result<(), ReadError> {
        let columns = &self.columns.projection;
        let projection = projection(&message.metadata, &self.schema, columns, message.body_length)?;
        let body = self.read_body(&projection)?;
        let columns = &self.columns.projection;
        let batch =
            decode_batch(message.metadata, &projection, &body, &self.schema, &self.dictionaries, columns)?;
        self.rows = Some(Rows::new(&batch, &self.columns)?);
        Ok(())
    }

    fn read_dictionary(&mut self, message: Message) -> Result<(), ReadError> {
        let decoded = decode(&message.metadata)?;
        let version = decoded.version();
        let dictionary = decoded.header_as_dictionary_batch().ok_or(NO_DICTIONARY)?;
        let Some(values) = self.dictionary_values(dictionary.id()) else { return Ok(()) };
        let batch = dictionary.data().ok_or(NO_DICTIONARY)?;
        let projection = BodyProjection::new(
            &message.metadata,
            &batch,
            &[values],
            |_| true,
            version,
            message.body_length,
        )?;
        let body = self.read_body(&projection)?;
        let metadata = projection.patch(message.metadata);
        let dictionary = decode(&metadata)?.header_as_dictionary_batch().ok_or(NO_DICTIONARY)?;
        read_dictionary(&body, dictionary, &self.schema, &mut self.dictionaries, &version).map_err(malformed)
    }

    /// Reads the compact body of the last message, if that and its decompressed buffers are within the memory limit.
    fn read_body(&mut self, projection: &BodyProjection) -> Result<Buffer, ReadError> {
        let held = self.dictionaries.values().map(|values| values.get_buffer_memory_size() as u64).sum();
        check_memory(projection.bytes(), held, self.limit)?;
        let body = self.messages.read_body(projection)?;
        check_memory(projection.decompressed_bytes(&body), held + body.len() as u64, self.limit)?;
        Ok(body)
    }

    /// The values of dictionary `id` as a column; `None` if no column that is read has this dictionary.
    fn dictionary_values(&self, id: i64) -> Option<FieldRef> {
        #[expect(deprecated, reason = "the arrow crate itself finds dictionaries by the id in the field")]
        let field = self.columns.projection.iter().find_map(|column| {
            let column = Schema::new(vec![self.schema.field(*column).clone()]);
            column.fields_with_dict_id(id).first().map(|field| (*field).clone())
        })?;
        match field.data_type() {
            DataType::Dictionary(_, values) => Some(Arc::new(Field::new("", (**values).clone(), true))),
            _ => None,
        }
    }
}

/// The parts of the body of a record batch that the columns with these indices are in.
fn projection(
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
fn decode_batch(
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
fn malformed(error: ArrowError) -> ReadError {
    ReadError::Malformed(one_line(&error))
}
