//! Messages of an IPC file, in the order of the footer.
//!
//! Some writers, polars among them, write files whose messages cannot be read without the footer. The reader
//! of the `arrow` crate allocates the lengths that the footer and its blocks declare, and reads bodies whole.
//! This one checks each offset and length against the size of the file, and reads the parts of a body that
//! are needed.

use std::fs::File;
use std::ops::Range;
use std::vec;

use arrow_ipc::reader::read_footer_length;
use arrow_ipc::{Block, root_as_footer};
use arrow_schema::Schema;

use super::message::{Message, schema};
use crate::error::one_line;
use crate::formats::MAX_METADATA_BYTES;
use crate::formats::error::ReadError;
use crate::sys::regular_file::read_exact_at;

/// The length of the end of a file: the length of the footer, and the magic number.
const TAIL_BYTES: u64 = 10;

const MALFORMED: &str = "its footer is malformed";

/// The messages of a file: first the dictionaries, then the record batches.
pub(super) struct MessageFile {
    file: File,
    /// The size of the file, in bytes.
    size: u64,
    /// The messages that are still to be read.
    blocks: vec::IntoIter<Block>,
    /// The bytes of the file that are the body of the last message.
    body: Range<u64>,
    bytes_read: u64,
}

impl MessageFile {
    /// Reads the footer of a file of `size` bytes, and the schema in it.
    pub(super) fn new(file: File, size: u64) -> Result<(Self, Schema), ReadError> {
        let blocks = Vec::new().into_iter();
        let mut messages = MessageFile { file, size, blocks, body: 0..0, bytes_read: 0 };
        let tail_start = size.checked_sub(TAIL_BYTES).ok_or("it is truncated")?;
        let mut tail = [0; TAIL_BYTES as usize];
        read_exact_at(&messages.file, &mut tail, tail_start)?;
        let length =
            read_footer_length(tail).map_err(|_| "it does not end with a footer, and may be truncated")?;
        let start = tail_start.checked_sub(length as u64);
        let start = start
            .filter(|_| length as u64 <= MAX_METADATA_BYTES)
            .ok_or_else(|| format!("its footer has a length of {length} bytes, but the file has {size}"))?;
        let mut footer = vec![0; length];
        read_exact_at(&messages.file, &mut footer, start)?;
        let footer = root_as_footer(&footer).map_err(|error| format!("{MALFORMED}: {}", one_line(&error)))?;
        let schema = schema(footer.schema().ok_or("its footer has no schema")?)?;
        let dictionaries = footer.dictionaries().into_iter().flatten();
        let batches = footer.recordBatches().into_iter().flatten();
        messages.blocks = dictionaries.chain(batches).copied().collect::<Vec<_>>().into_iter();
        Ok((messages, schema))
    }

    /// The size of the messages read so far, in bytes.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// Reads the metadata of the next message; `None` at the end.
    ///
    /// # Errors
    /// If reading fails, or the block of the message is not in the file.
    pub(super) fn next(&mut self) -> Result<Option<Message>, ReadError> {
        let Some(block) = self.blocks.next() else { return Ok(None) };
        let start = u64::try_from(block.offset()).map_err(|_| MALFORMED)?;
        let metadata_length = u64::try_from(block.metaDataLength()).map_err(|_| MALFORMED)?;
        let body_length = u64::try_from(block.bodyLength()).map_err(|_| MALFORMED)?;
        let length = metadata_length.checked_add(body_length).ok_or(MALFORMED)?;
        let end = start.checked_add(length).filter(|end| *end <= self.size).ok_or(MALFORMED)?;
        if metadata_length > MAX_METADATA_BYTES {
            return Err(MALFORMED.into());
        }
        let mut metadata = vec![0; metadata_length as usize];
        read_exact_at(&self.file, &mut metadata, start)?;
        // The length of the metadata comes first: four bytes, after four of a marker since version 0.15 of
        // the format.
        let prefix = if metadata.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let metadata = metadata.get(prefix..).ok_or(MALFORMED)?.to_vec();
        self.body = start + metadata_length..end;
        self.bytes_read += length;
        Ok(Some(Message { metadata, body_length }))
    }

    /// The bytes of the file that are the body of the last message.
    pub(super) fn body(&self) -> Range<u64> {
        self.body.clone()
    }

    /// Fills `part` with the body of the last message from offset `start` on.
    pub(super) fn read_body(&mut self, start: u64, part: &mut [u8]) -> Result<(), ReadError> {
        Ok(read_exact_at(&self.file, part, self.body.start + start)?)
    }
}
