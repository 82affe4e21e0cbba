//! Arrow IPC files and streams.

mod frame;
mod index;
mod stream;

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use arrow::array::ArrayRef;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::{read_dictionary, read_record_batch};
use arrow::ipc::{MessageHeader, RecordBatch};

use super::bytes::{Bytes, unreadable};
use super::columns::{Columns, Rows};
use super::{Compression, Entry, Fields, Place, Source, said};
use crate::guard::guard;
use frame::{Broken, Frame};
use index::Index;
use stream::Stream;

/// Unpacked lengths up to here are believed.
const SMALL: u64 = 64 << 20;
/// The mark that a file begins with, and ends with but for its last two bytes.
const MARK: &[u8; 8] = b"ARROW1\0\0";

/// The rows of an input.
pub struct ArrowRows {
    shown: Arc<str>,
    packed: bool,
    frames: Frames,
    schema: SchemaRef,
    columns: Columns,
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
    fn next(&mut self) -> Result<Option<Frame>, Broken> {
        match self {
            Frames::Stream(stream) => stream.next(),
            Frames::Index(index) => index.next(),
        }
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
            Ok(Some(first)) => first.schema(),
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

impl ArrowRows {
    /// Reads the schema of an input.
    ///
    /// # Errors
    /// If it has none, or that lacks a column.
    pub fn open(bytes: Bytes, source: &Source, fields: &Fields) -> Result<Self> {
        let (shown, packed) = (bytes.shown.clone(), bytes.packed.is_some());
        let (frames, schema) = Frames::open(bytes, source).map_err(|broken| match broken {
            Broken::Bytes(error) => unreadable(&shown, "at its start", packed, &error),
            Broken::Said(why) => anyhow!(
                "cannot read {shown} as arrow ({why}); fetch or write it again, or say with --input-format what it is"
            ),
        })?;
        let columns = Columns::new(&shown, &schema, fields)?;
        let before = frames.behind();
        let (schema, dictionaries) = (schema.into(), HashMap::new());
        Ok(ArrowRows { shown, packed, frames, schema, columns, dictionaries, rows: None, row: 0, before })
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
                Ok(Some(frame)) => match guard(|| self.frame(&frame)) {
                    Some(Ok(())) => continue,
                    Some(Err(why)) => Broken::Said(why),
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
            }
        }
    }

    /// Takes in a message: a batch of rows, or a dictionary for those that follow.
    fn frame(&mut self, frame: &Frame) -> Result<(), String> {
        let message = frame.message()?;
        let version = message.version();
        let arrow = |error: ArrowError| said(&error);
        match message.header_type() {
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or("a batch without contents")?;
                check_lengths(&batch, &frame.body)?;
                let projection = Some(&self.columns.projection[..]);
                let (schema, dictionaries) = (self.schema.clone(), &self.dictionaries);
                let batch = read_record_batch(&frame.body, batch, schema, dictionaries, projection, &version)
                    .map_err(arrow)?;
                self.rows = Some(Rows::new(&batch, &self.columns)?);
                Ok(())
            }
            MessageHeader::DictionaryBatch => {
                let batch = message.header_as_dictionary_batch().ok_or("a dictionary without contents")?;
                check_lengths(&batch.data().ok_or("a dictionary without contents")?, &frame.body)?;
                read_dictionary(&frame.body, batch, &self.schema, &mut self.dictionaries, &version)
                    .map_err(arrow)
            }
            MessageHeader::NONE => Ok(()),
            MessageHeader::Schema => Err("a second schema follows".into()),
            _ => Err("a message follows that is neither rows nor a dictionary".into()),
        }
    }
}

/// Refuses a batch with a packed buffer that says it is larger than the memory there is. The library makes room for
/// what a buffer says before it unpacks it, and for want of room the process would end.
fn check_lengths(batch: &RecordBatch, body: &[u8]) -> Result<(), String> {
    if batch.compression().is_none() {
        return Ok(());
    }
    for buffer in batch.buffers().into_iter().flatten() {
        let start = usize::try_from(buffer.offset()).ok();
        let said =
            start.and_then(|start| body.get(start..)?.first_chunk()).map(|said| i64::from_le_bytes(*said));
        // Below zero stands for a buffer that is not packed.
        let Some(said) = said.and_then(|said| u64::try_from(said).ok()) else { continue };
        let fits = |said: u64| {
            usize::try_from(said).is_ok_and(|said| Vec::<u8>::new().try_reserve_exact(said).is_ok())
        };
        if buffer.length() > 0 && said > SMALL && !fits(said) {
            return Err(format!(
                "a packed column says that it has {said} bytes, for which there is no memory"
            ));
        }
    }
    Ok(())
}
