//! Messages one after another: a stream, or a file that comes through a pipe. Every length in it is held against what
//! is there.

use std::io::{self, BufRead, ErrorKind, Read};
use std::mem;

use super::MARK;
use super::frame::{Broken, message};

/// The most bytes that are taken for the description of a message: what is no Arrow may begin with any number.
const MOST_HEADER: u32 = 64 << 20;

const EARLY: &str = "it ends early";

/// The messages of an input that is read from its front.
pub struct Stream {
    reader: Box<dyn BufRead + Send>,
    /// Bytes that were read to see what the input is.
    ahead: Vec<u8>,
    /// Whether the input is a file and not a stream, and so has an end mark.
    is_file: bool,
    behind: u64,
    /// The length of the last message's body, and how much of it has been read.
    body: (u64, u64),
}

impl Stream {
    /// Messages of these bytes, and the first eight of those.
    ///
    /// # Errors
    /// If the bytes cannot be read.
    pub fn new(reader: Box<dyn BufRead + Send>) -> io::Result<(Self, Vec<u8>)> {
        let mut stream = Stream { reader, ahead: Vec::new(), is_file: false, behind: 0, body: (0, 0) };
        let start = stream.take(8)?;
        stream.is_file = start == MARK;
        if !stream.is_file {
            stream.behind = 0;
            stream.ahead = start.clone();
        }
        Ok((stream, start))
    }

    /// Bytes behind the messages so far.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// The next `length` bytes, or as many as there are.
    fn take(&mut self, length: u64) -> io::Result<Vec<u8>> {
        let mut taken = mem::take(&mut self.ahead);
        self.ahead = taken.split_off(taken.len().min(length as usize));
        let left = length - taken.len() as u64;
        (&mut self.reader).take(left).read_to_end(&mut taken)?;
        self.behind += taken.len() as u64;
        Ok(taken)
    }

    /// Reads to the end: an index may follow the messages of a file, nothing those of a stream.
    fn end<T>(&mut self) -> Result<Option<T>, Broken> {
        let rest = self.ahead.len() as u64 + io::copy(&mut self.reader, &mut io::sink())?;
        self.ahead.clear();
        self.behind += rest;
        match self.is_file || rest == 0 {
            true => Ok(None),
            false => {
                Err(format!("{rest} bytes follow after its end mark; give streams as files of their own")
                    .into())
            }
        }
    }

    /// Passes over a part of the body of the last message.
    fn skip(&mut self, to: u64) -> Result<(), Broken> {
        let left = to.checked_sub(self.body.1).ok_or("the description of a message is damaged")?;
        let ahead = self.ahead.len().min(left as usize);
        self.ahead.drain(..ahead);
        let left = left - ahead as u64;
        if io::copy(&mut (&mut self.reader).take(left), &mut io::sink())? < left {
            return Err(EARLY.into());
        }
        self.behind += left + ahead as u64;
        self.body.1 = to;
        Ok(())
    }

    /// Reads a part of the body of the last message into all of `part`; the parts ascend.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read_body(&mut self, start: u64, part: &mut [u8]) -> Result<(), Broken> {
        self.skip(start)?;
        let ahead = self.ahead.len().min(part.len());
        let (first, rest) = part.split_at_mut(ahead);
        first.copy_from_slice(&self.ahead[..ahead]);
        self.ahead.drain(..ahead);
        self.reader.read_exact(rest).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Broken::from(EARLY),
            _ => error.into(),
        })?;
        self.behind += part.len() as u64;
        self.body.1 += part.len() as u64;
        Ok(())
    }

    /// The description of the next message, and the bytes of its body; none at the end, which for a stream may be the end of
    /// the input.
    ///
    /// # Errors
    /// If there is something else.
    pub fn next(&mut self) -> Result<Option<(Vec<u8>, u64)>, Broken> {
        self.skip(self.body.0)?;
        let mut start = self.take(4)?;
        if start.is_empty() && !self.is_file {
            return self.end();
        }
        // Before version 0.15 there was no mark before the length.
        if start == [0xff; 4] {
            start = self.take(4)?;
        }
        let length = u32::from_le_bytes(start.try_into().map_err(|_| EARLY)?);
        if length == 0 {
            return self.end();
        }
        if length > MOST_HEADER {
            return Err(format!("a message says that its description has {length} bytes").into());
        }
        let header = self.take(length.into())?;
        if header.len() < length as usize {
            return Err(EARLY.into());
        }
        let said = message(&header)?.bodyLength();
        let Ok(length) = u64::try_from(said) else {
            return Err(format!("a message says that it has {said} bytes").into());
        };
        self.body = (length, 0);
        Ok(Some((header, length)))
    }
}
