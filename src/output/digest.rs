//! SHA-256 of what was written, so that an interrupted run is continued only after the bytes that it wrote.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// A SHA-256; as text, hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Digest(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut digest = [0; 32];
        if text.len() != 2 * digest.len() || !text.is_ascii() {
            return Err(de::Error::custom("a SHA-256 has 64 hexadecimal digits"));
        }
        for (byte, digits) in digest.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(de::Error::custom)?;
            *byte = u8::from_str_radix(digits, 16).map_err(de::Error::custom)?;
        }
        Ok(Digest(digest))
    }
}

/// The digest of bytes that are written one after another.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds all that a reader has, and returns how many bytes those are.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn add_all(&mut self, mut reader: impl Read) -> io::Result<u64> {
        io::copy(&mut reader, &mut self.0)
    }

    /// The digest of the bytes so far.
    pub fn digest(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }
}

/// Bytes of a block at least; the last one may have fewer.
const MIN_BLOCK_BYTES: u64 = 1 << 20;
/// A block also has at least one part in so many of all bytes before its end, so that the number of blocks grows with the logarithm
/// of the file's length.
const BLOCKS: u64 = 1024;

/// Rows of a file that follow one another, with the digest of their bytes. A block begins where the one before it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// Rows up to its end.
    pub rows: u64,
    /// Bytes of the file up to its end.
    pub bytes: u64,
    /// The digest of its own bytes.
    pub sha256: Digest,
}

/// Rows whose bytes are not those that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// From 0.
    pub rows: Range<u64>,
    /// In the file.
    pub bytes: Range<u64>,
}

/// The digests of what is written to a file, block by block.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    /// Blocks that have as many bytes as a block is to have.
    finished: Vec<Block>,
    /// Over the bytes after them.
    hasher: Hasher,
    start: u64,
    end: u64,
}

impl BlockHasher {
    /// For a file whose first block begins at this byte.
    pub fn new(start: u64) -> Self {
        BlockHasher { finished: Vec::new(), hasher: Hasher::default(), start, end: start }
    }

    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.hasher.add(bytes);
        self.end += bytes.len() as u64;
    }

    /// The blocks so far, the last of which ends here, after this many rows.
    pub fn blocks(&mut self, rows: u64) -> Vec<Block> {
        let mut blocks = self.finished.clone();
        if self.end > self.start {
            let block = Block { rows, bytes: self.end, sha256: self.hasher.digest() };
            blocks.push(block.clone());
            self.finish_if_large(block);
        }
        blocks
    }

    /// Begins another block if this one, which ends here, is large enough.
    fn finish_if_large(&mut self, block: Block) {
        if self.end - self.start >= MIN_BLOCK_BYTES.max(self.end / BLOCKS) {
            self.finished.push(block);
            (self.hasher, self.start) = (Hasher::default(), self.end);
        }
    }

    /// Adds the first `length` bytes of a file, which `reader` has from the first block on, and compares them with `blocks`;
    /// without any, they are taken as they are.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn add_all(
        &mut self,
        mut reader: impl Read,
        length: u64,
        blocks: &[Block],
    ) -> io::Result<Option<Damage>> {
        let mut rows = 0;
        for (i, block) in blocks.iter().enumerate() {
            let bytes = self.end..block.bytes;
            let size = block.bytes.saturating_sub(self.end);
            (self.hasher, self.start) = (Hasher::default(), self.end);
            let read = self.hasher.add_all((&mut reader).take(size))?;
            let is_last = i + 1 == blocks.len();
            if read != size || self.hasher.digest() != block.sha256 || is_last && block.bytes != length {
                return Ok(Some(Damage { rows: rows..block.rows, bytes }));
            }
            (self.end, rows) = (block.bytes, block.rows);
            if is_last {
                self.finish_if_large(block.clone());
            } else {
                self.finished.push(block.clone());
            }
        }
        if blocks.is_empty() {
            self.end += self.hasher.add_all(reader.take(length.saturating_sub(self.end)))?;
        }
        Ok(None)
    }
}
