//! Opens an input, decompresses it and decodes UTF-16.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, anyhow, bail};
use flate2::bufread::MultiGzDecoder;

use super::error::one_line;
use super::mismatch;
use super::source::{InputPath, Source};
use super::utf16::Utf16Reader;
use crate::formats::{self, Compression, Kind};

/// Size of read buffers, in bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// An open input.
pub(super) struct InputReader {
    /// The name of the input in messages.
    pub name: Arc<str>,
    /// The bytes of the input, decompressed; text in UTF-16 as UTF-8.
    pub reader: Box<dyn BufRead + Send>,
    /// Bytes of the input read so far; `None` if they are those of `reader`.
    pub compressed_bytes_read: Option<Arc<AtomicU64>>,
    /// Whether the input is UTF-16.
    pub is_utf16: bool,
    /// Why the input cannot be read in its format, if its first bytes show that, as the predicate of an
    /// error. There is nothing to read then.
    pub fault: Option<String>,
}

impl InputReader {
    /// Opens an input, and recognises its kind by its first bytes.
    pub(super) fn open(source: &Source) -> io::Result<Self> {
        let reader: Box<dyn Read + Send> = match &source.path {
            InputPath::Stdin => Box::new(io::stdin()),
            InputPath::File(path) => Box::new(File::open(path)?),
        };
        let count = Arc::new(AtomicU64::new(0));
        let mut reader = buffered(CountingReader { reader, count: count.clone() });
        let compression = source.compression;
        let name = source.path.to_string().into();
        let mut input = InputReader {
            name,
            reader: Box::new(io::empty()),
            compressed_bytes_read: None,
            is_utf16: false,
            fault: None,
        };
        input.compressed_bytes_read = compression.map(|_| count.clone());
        let recognise = || -> io::Result<Box<dyn BufRead + Send>> {
            if let Some(compression) = compression {
                input.fault = mismatch::not_compressed(source, compression, reader.fill_buf()?);
            }
            let mut reader: Box<dyn BufRead + Send> = match compression {
                _ if input.fault.is_some() => return Ok(Box::new(io::empty())),
                None => Box::new(reader),
                Some(Compression::Gzip) => Box::new(buffered(MultiGzDecoder::new(reader))),
                Some(Compression::Zstd) => Box::new(buffered(zstd::Decoder::with_buffer(reader)?)),
            };
            let start = reader.fill_buf()?;
            input.fault = mismatch::mismatch(source, start);
            match (formats::sniff(start), &input.fault) {
                (_, Some(_)) => Ok(Box::new(io::empty())),
                (Some(Kind::Utf16(order)), None) => {
                    input.compressed_bytes_read = Some(count.clone());
                    input.is_utf16 = true;
                    Ok(Box::new(buffered(Utf16Reader::new(reader, order))))
                }
                _ => Ok(reader),
            }
        };
        input.reader = recognise().unwrap_or_else(|error| Box::new(buffered(FailedReader(Some(error)))));
        Ok(input)
    }

    /// The input, if it can be read in its format.
    pub(super) fn checked(self) -> Result<Self> {
        match &self.fault {
            Some(fault) => bail!("{} {fault}", self.name),
            None => Ok(self),
        }
    }

    /// The error for a read that failed; `after` names the last position that was read, such as
    /// `after line 7`.
    pub(super) fn read_error(&self, after: &str, error: &io::Error) -> anyhow::Error {
        read_error(&self.name, after, self.compressed_bytes_read.is_some(), error)
    }
}

/// The error for a read of the input `name` that failed; `after` names the last position that was read.
pub(super) fn read_error(name: &str, after: &str, is_compressed: bool, error: &io::Error) -> anyhow::Error {
    // Errors of the system have a number; those of the decompression libraries do not.
    let remedy = if is_compressed && error.raw_os_error().is_none() {
        "the compressed file is damaged or truncated; write it again"
    } else {
        "check the file"
    };
    anyhow!("cannot read {name} {after} ({}); {remedy}", one_line(error))
}

fn buffered<R: Read>(reader: R) -> BufReader<R> {
    BufReader::with_capacity(BUFFER_BYTES, reader)
}

/// A reader that fails with an error, and then ends.
struct FailedReader(Option<io::Error>);

impl Read for FailedReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        self.0.take().map_or(Ok(0), Err)
    }
}

/// A reader that counts the bytes read.
struct CountingReader<R> {
    reader: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
