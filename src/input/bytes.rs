//! The bytes of an input, unpacked on the way.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::anyhow;
use flate2::bufread::MultiGzDecoder;

use super::{Compression, Place, Source, said};

/// Bytes that are read at a time.
const CHUNK: usize = 1 << 16;

/// An open input.
pub struct Bytes {
    /// Its name in sentences.
    pub shown: Arc<str>,
    /// What is in it.
    pub reader: Box<dyn BufRead + Send>,
    /// Bytes of the packed file that have been read; none for a file that is not packed.
    pub packed: Option<Arc<AtomicU64>>,
}

impl Bytes {
    /// Opens an input.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(source: &Source) -> io::Result<Self> {
        let reader: Box<dyn Read + Send> = match &source.place {
            Place::Stdin => Box::new(io::stdin()),
            Place::File(path) => Box::new(File::open(path)?),
        };
        let count = Arc::new(AtomicU64::new(0));
        let counted = |reader| BufReader::with_capacity(CHUNK, Counted { reader, count: count.clone() });
        let (reader, packed): (Box<dyn BufRead + Send>, _) = match source.compression {
            Compression::None => (Box::new(BufReader::with_capacity(CHUNK, reader)), None),
            Compression::Gzip => {
                let reader = MultiGzDecoder::new(counted(reader));
                (Box::new(BufReader::with_capacity(CHUNK, reader)), Some(count))
            }
            Compression::Zstd => {
                let reader = zstd::Decoder::with_buffer(counted(reader))?;
                (Box::new(BufReader::with_capacity(CHUNK, reader)), Some(count))
            }
        };
        Ok(Bytes { shown: source.place.to_string().into(), reader, packed })
    }

    /// One sentence on bytes that cannot be read; `after` says behind what.
    pub fn unreadable(&self, after: &str, error: &io::Error) -> anyhow::Error {
        unreadable(&self.shown, after, self.packed.is_some(), error)
    }
}

/// One sentence on an input that cannot be read; `after` says behind what.
pub fn unreadable(shown: &str, after: &str, packed: bool, error: &io::Error) -> anyhow::Error {
    // What the unpacking libraries say of their own has no number; what the system says has one.
    let remedy = match packed && error.raw_os_error().is_none() {
        true => "the packed file is damaged or ends early; fetch or pack it again",
        false => "check the file",
    };
    anyhow!("cannot read {shown} {after} ({}); {remedy}", said(error))
}

/// A reader that counts.
struct Counted<R> {
    reader: R,
    count: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.reader.read(buffer)?;
        self.count.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
