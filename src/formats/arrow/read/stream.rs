//! Messages of an IPC stream, or of an IPC file that is read through a pipe, in the order of the input.
//!
//! The readers of the `arrow` crate read the body of a message whole. This one reads the parts of it that are
//! needed, in ascending order, and skips the others.

use std::io::{self, BufRead, ErrorKind, Read};
use std::mem;

use super::message::{MAGIC, Message, decode};
use crate::formats::error::ReadError;

/// Maximum length of the metadata of a message, in bytes. An input in another format may start with any
/// length.
const MAX_METADATA_BYTES: u32 = 64 << 20;
/// The marker before the length of the metadata, since version 0.15 of the format.
const CONTINUATION: [u8; 4] = [0xff; 4];

const TRUNCATED: &str = "it is truncated";

/// The messages of an input that is read from start to end.
pub(super) struct MessageStream<'a> {
    reader: Box<dyn BufRead + Send + 'a>,
    /// Bytes that were read ahead to recognise the format.
    peeked: Vec<u8>,
    /// Whether the input is an IPC file: a footer follows its messages.
    is_file: bool,
    bytes_read: u64,
    /// The length of the body of the last message, and the number of its bytes that have been read or
    /// skipped.
    body: (u64, u64),
}

impl<'a> MessageStream<'a> {
    /// The messages of `reader`, and the first 8 bytes of the input, or all of a shorter one.
    pub(super) fn new(reader: Box<dyn BufRead + Send + 'a>) -> io::Result<(Self, Vec<u8>)> {
        let mut stream =
            MessageStream { reader, peeked: Vec::new(), is_file: false, bytes_read: 0, body: (0, 0) };
        let start = stream.take(MAGIC.len() as u64)?;
        stream.is_file = start == MAGIC;
        if !stream.is_file {
            stream.bytes_read = 0;
            stream.peeked = start.clone();
        }
        Ok((stream, start))
    }

    /// Bytes of the input read so far.
    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next `length` bytes, or fewer at the end of the input. Memory grows with the bytes that there are,
    /// not with `length`.
    fn take(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let mut taken = mem::take(&mut self.peeked);
        self.peeked = taken.split_off(taken.len().min(length as usize));
        let left = length - taken.len() as u64;
        (&mut self.reader).take(left).read_to_end(&mut taken)?;
        self.bytes_read += taken.len() as u64;
        Ok(taken)
    }

    /// Reads the rest of the input after the last message: the footer of a file, or nothing.
    fn read_end(&mut self) -> Result<(), ReadError> {
        let rest = self.peeked.len() as u64 + io::copy(&mut self.reader, &mut io::sink())?;
        self.peeked.clear();
        self.bytes_read += rest;
        if self.is_file || rest == 0 {
            return Ok(());
        }
        Err(format!("{rest} bytes follow its end-of-stream marker; pass one stream per file").into())
    }

    /// Skips the body of the last message up to offset `to`.
    fn skip_body(&mut self, to: u64) -> Result<(), ReadError> {
        let left = to.checked_sub(self.body.1).ok_or("the metadata of a message is malformed")?;
        let peeked = self.peeked.len().min(left as usize);
        self.peeked.drain(..peeked);
        let left = left - peeked as u64;
        if io::copy(&mut (&mut self.reader).take(left), &mut io::sink())? < left {
            return Err(TRUNCATED.into());
        }
        self.bytes_read += left + peeked as u64;
        self.body.1 = to;
        Ok(())
    }

    /// Fills `part` with the body of the last message from offset `start` on. Offsets ascend from call to
    /// call.
    pub(super) fn read_body(&mut self, start: u64, part: &mut [u8]) -> Result<(), ReadError> {
        self.skip_body(start)?;
        let peeked = self.peeked.len().min(part.len());
        let (first, rest) = part.split_at_mut(peeked);
        first.copy_from_slice(&self.peeked[..peeked]);
        self.peeked.drain(..peeked);
        self.reader.read_exact(rest).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => ReadError::from(TRUNCATED),
            _ => error.into(),
        })?;
        self.bytes_read += part.len() as u64;
        self.body.1 += part.len() as u64;
        Ok(())
    }

    /// Reads the metadata of the next message; `None` at the end. A stream may end without an end-of-stream
    /// marker.
    ///
    /// # Errors
    /// If reading fails, or the next bytes are not a message.
    pub(super) fn next(&mut self) -> Result<Option<Message>, ReadError> {
        self.skip_body(self.body.0)?;
        let mut start = self.take(4)?;
        if start.is_empty() && !self.is_file {
            return Ok(None);
        }
        if start == CONTINUATION {
            start = self.take(4)?;
        }
        let length = u32::from_le_bytes(start.try_into().map_err(|_| TRUNCATED)?);
        if length == 0 {
            return self.read_end().map(|()| None);
        }
        if length > MAX_METADATA_BYTES {
            return Err(format!("the metadata of a message has a length of {length} bytes").into());
        }
        let metadata = self.take(length.into())?;
        if metadata.len() < length as usize {
            return Err(TRUNCATED.into());
        }
        let body_length = decode(&metadata)?.bodyLength();
        let body_length = u64::try_from(body_length)
            .map_err(|_| format!("the body of a message has a length of {body_length} bytes"))?;
        self.body = (body_length, 0);
        Ok(Some(Message { metadata, body_length }))
    }
}
