//! Arrow IPC files and streams.

mod frame;
mod index;
mod parts;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use arrow::array::ArrayRef;
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::MessageHeader;
use arrow::ipc::reader::{read_dictionary, read_record_batch};

use super::bytes::{Bytes, unreadable};
use super::columns::{Columns, Rows};
use super::{Compression, Entry, Fields, Place, ReadLimit, Source, said};
use crate::guard::guard;
use frame::{Broken, message, schema};
use index::Index;
use parts::Parts;
use stream::Stream;

/// The mark that a file begins with, and ends with but for its last two bytes.
const MARK: &[u8; 8] = b"ARROW1\0\0";

/// The rows of an input.
pub struct ArrowRows {
    shown: Arc<str>,
    packed: bool,
    frames: Frames,
    schema: SchemaRef,
    columns: Columns,
    limit: ReadLimit,
    dictionaries: HashMap<i64, ArrayRef>,
    rows: Option<Rows>,
    row: u64,
    /// Bytes behind the rows of the batches before this one.
    before: u64,
}

/// The messages of an input: as they follow one another, or as the index at the end of a file has them. Some writers
/// make files whose messages cannot be read without the index.
enum Frames {
    Stream(Stream),
    Index(Index),
}

impl Frames {
    /// The description of the next message, and the bytes of its body; none at the end.
    fn next(&mut self) -> Result<Option<(Vec<u8>, u64)>, Broken> {
        match self {
            Frames::Stream(stream) => stream.next(),
            Frames::Index(index) => index.next(),
        }
    }

    /// Reads parts of the body of the last message, one after another.
    fn body(&mut self, parts: &Parts) -> Result<Buffer, Broken> {
        let mut body = vec![0; parts.bytes() as usize];
        let mut rest = &mut body[..];
        for range in &parts.ranges {
            let length = (range.end - range.start) as usize;
            let part;
            (part, rest) = rest.split_at_mut(length.next_multiple_of(parts::ALIGNMENT as usize));
            match self {
                Frames::Stream(stream) => stream.read_body(range.start, &mut part[..length])?,
                Frames::Index(index) => index.read_body(range.start, &mut part[..length])?,
            }
        }
        Ok(body.into())
    }

    fn behind(&self) -> u64 {
        match self {
            Frames::Stream(stream) => stream.behind(),
            Frames::Index(index) => index.behind(),
        }
    }

    /// Reads what an input begins with; from a file that can be read in any order, its index.
    fn open(bytes: Bytes, source: &Source) -> Result<(Self, Schema), Broken> {
        let (mut stream, start) = Stream::new(bytes.reader)?;
        if start.starts_with(b"FEA1") {
            return Err(
                "it is Feather of version 1, which is not supported: write it as version 2, which is Arrow"
                    .into(),
            );
        }
        if start == MARK
            && let (Place::File(path), Compression::None) = (&source.place, source.compression)
            && let Some(size) = source.size()
        {
            let (index, schema) = Index::open(path, size)?;
            return Ok((Frames::Index(index), schema));
        }
        let first = match stream.next() {
            Ok(Some((header, _))) => first_schema(&header),
            Ok(None) => Err("it begins with no schema".into()),
            Err(Broken::Said(why)) => Err(why),
            Err(broken) => return Err(broken),
        };
        match first {
            Ok(schema) => Ok((Frames::Stream(stream), schema)),
            Err(why) if start == MARK => Err(format!(
                "{why}; it may be one of the files that are read by the index at their end: give it unpacked, by its name"
            )
            .into()),
            Err(why) => Err(why.into()),
        }
    }
}

/// The schema that a message is.
fn first_schema(header: &[u8]) -> Result<Schema, String> {
    schema(message(header)?.header_as_schema().ok_or("it begins with no schema")?)
}

impl ArrowRows {
    /// Reads the schema of an input.
    ///
    /// # Errors
    /// If it has none, or that lacks a column.
    pub fn open(bytes: Bytes, source: &Source, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let (shown, packed) = (bytes.shown.clone(), bytes.packed.is_some());
        let (frames, schema) = Frames::open(bytes, source).map_err(|broken| match broken {
            Broken::Bytes(error) => unreadable(&shown, "at its start", packed, &error),
            Broken::Said(why) | Broken::Large(why) => anyhow!(
                "cannot read {shown} as arrow ({why}); fetch or write it again, or say with --input-format what it is"
            ),
        })?;
        let columns = Columns::new(&shown, &schema, fields, limit)?;
        let before = frames.behind();
        let (schema, dictionaries) = (schema.into(), HashMap::new());
        Ok(ArrowRows {
            shown,
            packed,
            frames,
            schema,
            columns,
            limit,
            dictionaries,
            rows: None,
            row: 0,
            before,
        })
    }

    /// Bytes behind the rows so far, those of a batch in even parts.
    pub fn behind(&self) -> u64 {
        let Some(rows) = &self.rows else { return self.before };
        let batch = u128::from(self.frames.behind() - self.before);
        self.before + (batch * rows.given() as u128 / rows.len().max(1) as u128) as u64
    }

    /// The next row; none at the end.
    ///
    /// # Errors
    /// If the input cannot be read on.
    pub fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.rows.as_mut().and_then(|rows| rows.read(&self.shown, self.row + 1)) {
                self.row += 1;
                return Ok(Some(entry));
            }
            self.before = self.frames.behind();
            self.rows = None;
            let broken = match self.frames.next() {
                Ok(None) => return Ok(None),
                Ok(Some((header, length))) => match guard(|| self.take(header, length)) {
                    Some(Ok(())) => continue,
                    Some(Err(broken)) => broken,
                    None => "what follows is damaged".into(),
                },
                Err(broken) => broken,
            };
            let after = format!("after row {}", self.row);
            match broken {
                Broken::Bytes(error) => return Err(unreadable(&self.shown, &after, self.packed, &error)),
                Broken::Said(why) => {
                    bail!("cannot read {} {after} ({why}); fetch or write it again", self.shown)
                }
                Broken::Large(why) => bail!("{}: the record batch {after} {why}", self.shown),
            }
        }
    }

    /// Takes in a message with a body of so many bytes: a batch of rows, or a dictionary for those that follow.
    fn take(&mut self, header: Vec<u8>, length: u64) -> Result<(), Broken> {
        let arrow = |error: ArrowError| Broken::Said(said(&error));
        let found = message(&header)?;
        let version = found.version();
        match found.header_type() {
            MessageHeader::RecordBatch => {
                let batch = found.header_as_record_batch().ok_or("a batch without contents")?;
                let is_read = |column| self.columns.projection.contains(&column);
                let parts = Parts::new(&header, &batch, self.schema.fields(), is_read, version, length)?;
                let body = self.body(&parts)?;
                let header = parts.describe(header);
                let batch = message(&header)?.header_as_record_batch().ok_or("a batch without contents")?;
                let projection = Some(&self.columns.projection[..]);
                let (schema, dictionaries) = (self.schema.clone(), &self.dictionaries);
                let batch = read_record_batch(&body, batch, schema, dictionaries, projection, &version);
                self.rows = Some(Rows::new(&batch.map_err(arrow)?, &self.columns)?);
                Ok(())
            }
            MessageHeader::DictionaryBatch => {
                let dictionary = found.header_as_dictionary_batch().ok_or("a dictionary without contents")?;
                let Some(values) = self.dictionary_values(dictionary.id()) else { return Ok(()) };
                let batch = dictionary.data().ok_or("a dictionary without contents")?;
                let parts = Parts::new(&header, &batch, &[values], |_| true, version, length)?;
                let body = self.body(&parts)?;
                let header = parts.describe(header);
                let batch =
                    message(&header)?.header_as_dictionary_batch().ok_or("a dictionary without contents")?;
                read_dictionary(&body, batch, &self.schema, &mut self.dictionaries, &version).map_err(arrow)
            }
            MessageHeader::NONE => Ok(()),
            MessageHeader::Schema => Err("a second schema follows".into()),
            _ => Err("a message follows that is neither rows nor a dictionary".into()),
        }
    }

    /// The parts of the body of the last message, if they are not too large.
    fn body(&mut self, parts: &Parts) -> Result<Buffer, Broken> {
        let held = self.dictionaries.values().map(|values| values.get_buffer_memory_size() as u64).sum();
        parts::check(parts.bytes(), held, self.limit)?;
        let body = self.frames.body(parts)?;
        parts::check(parts.unpacked_bytes(&body), held + body.len() as u64, self.limit)?;
        Ok(body)
    }

    /// The values of a dictionary as a column; none if no column that is read has it.
    fn dictionary_values(&self, id: i64) -> Option<FieldRef> {
        // The ids of a file are nowhere else.
        #[expect(deprecated, reason = "the library itself reads dictionaries by it")]
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
