//! Opens an input and decompresses it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::anyhow;
use flate2::bufread::MultiGzDecoder;

use super::error::one_line;
use super::source::{Compression, InputPath, Source};

/// Size of read buffers, in bytes.
const BUFFER_BYTES: usize = 1 << 16;

/// An open input.
pub(super) struct InputReader {
    /// The name of the input in messages.
    pub name: Arc<str>,
    /// The bytes of the input, decompressed.
    pub reader: Box<dyn BufRead + Send>,
    /// Compressed bytes read so far; `None` if the input is not compressed.
    pub compressed_bytes_read: Option<Arc<AtomicU64>>,
}

impl InputReader {
    /// Opens an input.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn open(source: &Source) -> io::Result<Self> {
        let reader: Box<dyn Read + Send> = match &source.path {
            InputPath::Stdin => Box::new(io::stdin()),
            InputPath::File(path) => Box::new(File::open(path)?),
        };
        let count = Arc::new(AtomicU64::new(0));
        let counted =
            |reader| BufReader::with_capacity(BUFFER_BYTES, CountingReader { reader, count: count.clone() });
        let (reader, compressed_bytes_read): (Box<dyn BufRead + Send>, _) = match source.compression {
            Compression::None => (Box::new(BufReader::with_capacity(BUFFER_BYTES, reader)), None),
            Compression::Gzip => {
                let reader = MultiGzDecoder::new(counted(reader));
                (Box::new(BufReader::with_capacity(BUFFER_BYTES, reader)), Some(count))
            }
            Compression::Zstd => {
                let reader = zstd::Decoder::with_buffer(counted(reader))?;
                (Box::new(BufReader::with_capacity(BUFFER_BYTES, reader)), Some(count))
            }
        };
        Ok(InputReader { name: source.path.to_string().into(), reader, compressed_bytes_read })
    }

    /// The error for a read that failed; `after` names the last position that was read, such as `after line 7`.
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
