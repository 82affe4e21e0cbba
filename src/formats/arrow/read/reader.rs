//! The record batches of an input, in its order.

use std::collections::HashMap;
use std::io::BufRead;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::MessageHeader;
use arrow_ipc::reader::read_dictionary;
use arrow_schema::{DataType, Field, FieldRef, Schema, SchemaRef};

use super::decode::{NO_DICTIONARY, decode_batch, malformed, projection};
use super::file::MessageFile;
use super::message::{MAGIC, Message, decode, schema};
use super::projection::BodyProjection;
use super::stream::MessageStream;
use crate::formats::error::ReadError;
use crate::sys::catch_panic::catch_panic;
use crate::sys::regular_file;

/// Reads the record batches of an input one after another.
pub struct ArrowReader<'a> {
    messages: Messages<'a>,
    schema: SchemaRef,
    /// The indices of the columns that are read, ascending.
    columns: Vec<usize>,
    /// Memory of a record batch and the dictionaries, in bytes.
    max_bytes: u64,
    /// The values of the dictionaries read so far, by id.
    dictionaries: HashMap<i64, ArrayRef>,
    /// Bytes of the input before the last record batch.
    batch_start: u64,
}

/// The messages of an input.
enum Messages<'a> {
    /// In the order of the input.
    Stream(MessageStream<'a>),
    /// In the order of the footer of a file.
    File(MessageFile),
}

impl<'a> Messages<'a> {
    /// Opens an input, and reads its schema: a `file`, a path and its size in bytes, by its footer; anything
    /// else from its start.
    fn open(
        reader: Box<dyn BufRead + Send + 'a>,
        file: Option<(&Path, u64)>,
    ) -> Result<(Self, Schema), ReadError> {
        let (mut stream, start) = MessageStream::new(reader)?;
        if start.starts_with(b"FEA1") {
            return Err(
                "it is a Feather file of version 1, which is not supported; write it as version 2".into()
            );
        }
        if start == MAGIC
            && let Some((path, size)) = file
        {
            let (file, schema) = MessageFile::new(regular_file::open(path)?, size)?;
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

    /// Fills `part` with the body of the last message from offset `start` on. Offsets ascend from call to
    /// call.
    fn read_body(&mut self, start: u64, part: &mut [u8]) -> Result<(), ReadError> {
        match self {
            Messages::Stream(stream) => stream.read_body(start, part),
            Messages::File(file) => file.read_body(start, part),
        }
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

impl<'a> ArrowReader<'a> {
    /// Reads the schema of an input. If it is an uncompressed regular file, `file` has its path and its size
    /// in bytes, and it is read by its footer. All columns are read, in batches of at most `max_bytes` bytes.
    pub fn open(
        reader: Box<dyn BufRead + Send + 'a>,
        file: Option<(&Path, u64)>,
        max_bytes: u64,
    ) -> Result<Self, ReadError> {
        let (messages, schema) = Messages::open(reader, file)?;
        let (columns, batch_start) = ((0..schema.fields().len()).collect(), messages.bytes_read());
        let dictionaries = HashMap::new();
        Ok(ArrowReader { messages, schema: schema.into(), columns, max_bytes, dictionaries, batch_start })
    }

    /// Reads these columns only, given by their indices in ascending order.
    #[must_use]
    pub fn with_columns(self, columns: Vec<usize>) -> Self {
        ArrowReader { columns, ..self }
    }

    /// The schema of the input, with all columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Whether the record batches come through a stream, so that reading the next one may wait for the
    /// writer.
    pub fn is_stream(&self) -> bool {
        matches!(self.messages, Messages::Stream(_))
    }

    /// Bytes of the input before the last record batch.
    pub fn batch_start(&self) -> u64 {
        self.batch_start
    }

    /// Bytes of the input read so far.
    pub fn bytes_read(&self) -> u64 {
        self.messages.bytes_read()
    }

    /// Reads the next record batch; `None` at the end of the input.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>, ReadError> {
        loop {
            self.batch_start = self.messages.bytes_read();
            let Some(message) = self.messages.next()? else { return Ok(None) };
            // The `arrow` crate panics on buffers whose length is not a multiple of the size of their
            // elements.
            let read = catch_panic(|| self.read_message(message));
            let batch = read.unwrap_or_else(|| Err("the next record batch is damaged".into()))?;
            if batch.is_some() {
                return Ok(batch);
            }
        }
    }

    /// Reads the body of a message: the rows of a record batch, or a dictionary.
    fn read_message(&mut self, message: Message) -> Result<Option<RecordBatch>, ReadError> {
        match decode(&message.metadata)?.header_type() {
            MessageHeader::RecordBatch => self.read_batch(message).map(Some),
            MessageHeader::DictionaryBatch => self.read_dictionary(message).map(|()| None),
            MessageHeader::NONE => Ok(None),
            MessageHeader::Schema => Err("a second schema follows".into()),
            _ => Err("the next message is neither a record batch nor a dictionary".into()),
        }
    }

    fn read_batch(&mut self, message: Message) -> Result<RecordBatch, ReadError> {
        let projection = projection(&message.metadata, &self.schema, &self.columns, message.body_length)?;
        let body = self.read_body(&projection)?;
        let ArrowReader { schema, dictionaries, columns, .. } = self;
        decode_batch(message.metadata, &projection, &body, schema, dictionaries, columns)
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

    /// Reads the compact body of the last message, if that and its decompressed buffers are within the memory
    /// limit.
    fn read_body(&mut self, projection: &BodyProjection) -> Result<Buffer, ReadError> {
        let held = self.dictionaries.values().map(|values| values.get_buffer_memory_size() as u64).sum();
        projection.read_body(held, self.max_bytes, |start, part| self.messages.read_body(start, part))
    }

    /// The values of dictionary `id` as a column; `None` if no column that is read has this dictionary.
    fn dictionary_values(&self, id: i64) -> Option<FieldRef> {
        #[expect(deprecated, reason = "the arrow crate itself finds dictionaries by the id in the field")]
        let field = self.columns.iter().find_map(|column| {
            let column = Schema::new(vec![self.schema.field(*column).clone()]);
            column.fields_with_dict_id(id).first().map(|field| (*field).clone())
        })?;
        match field.data_type() {
            DataType::Dictionary(_, values) => Some(Arc::new(Field::new("", (**values).clone(), true))),
            _ => None,
        }
    }
}
