//! SHA-256 digests of written bytes: an interrupted run is resumed only if the files still hold what it wrote.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest; 64 hexadecimal digits as text and in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of `bytes`.
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

/// Computes the digest of bytes that arrive in parts.
#[derive(Debug, Clone, Default)]
pub struct Hasher(Sha256);

impl Hasher {
    /// Adds bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Adds all bytes of a reader, and returns their number.
    pub fn add_all(&mut self, mut reader: impl Read) -> io::Result<u64> {
        io::copy(&mut reader, &mut self.0)
    }

    /// The digest of all bytes so far.
    pub fn digest(&self) -> Digest {
        Digest(self.0.clone().finalize().into())
    }
}

/// Minimum size of a block in bytes; the last one may be smaller.
const MIN_BLOCK_BYTES: u64 = 1 << 20;
/// A block also covers at least 1/`BLOCK_FRACTION` of the file up to its end, so that the number of blocks grows with
/// the logarithm of the file's length.
const BLOCK_FRACTION: u64 = 1024;

/// The digest of a range of the partial file that ends at a row boundary. It starts where the previous block ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HashedBlock {
    /// Number of rows in the file up to the end of the block.
    pub rows: u64,
    /// Offset of the end of the block in the file, in bytes.
    pub bytes: u64,
    /// SHA-256 of the bytes of the block.
    pub sha256: Digest,
}

/// A block whose bytes do not have the digest that was recorded for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DigestMismatch {
    /// Rows of the block, from 0.
    pub rows: Range<u64>,
    /// Offsets of the block in the file, in bytes.
    pub bytes: Range<u64>,
}

/// Digests of a file that is being written, block by block.
#[derive(Debug, Clone)]
pub(super) struct BlockHasher {
    /// Blocks of full size.
    finished: Vec<HashedBlock>,
    /// Hashes the bytes from `start` to `end`.
    hasher: Hasher,
    /// Offset of the end of the last finished block.
    start: u64,
    /// Offset of the end of all bytes added so far.
    end: u64,
}

impl BlockHasher {
    /// A hasher for a file whose first block starts at the offset `start`.
    pub(super) fn new(start: u64) -> Self {
        BlockHasher { finished: Vec::new(), hasher: Hasher::default(), start, end: start }
    }

    /// Adds bytes that were written.
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.hasher.add(bytes);
        self.end += bytes.len() as u64;
    }

    /// The digests of all bytes so far, which hold `rows` rows.
    pub(super) fn blocks(&mut self, rows: u64) -> Vec<HashedBlock> {
        let mut blocks = self.finished.clone();
        if self.end > self.start {
            let block = HashedBlock { rows, bytes: self.end, sha256: self.hasher.digest() };
            blocks.push(block.clone());
            self.finish_if_full(block);
        }
        blocks
    }

    /// Ends the current block, which is `block`, if it has its full size.
    fn finish_if_full(&mut self, block: HashedBlock) {
        if self.end - self.start >= MIN_BLOCK_BYTES.max(self.end / BLOCK_FRACTION) {
            self.finished.push(block);
            (self.hasher, self.start) = (Hasher::default(), self.end);
        }
    }

    /// Adds the bytes of an existing file up to the offset `length`, and verifies them against `blocks`; with no
    /// blocks, nothing is verified. `reader` starts at the offset of the first block. Returns the first block that
    /// differs.
    pub(super) fn add_verified(
        &mut self,
        mut reader: impl Read,
        length: u64,
        blocks: &[HashedBlock],
    ) -> io::Result<Option<DigestMismatch>> {
        let mut rows = 0;
        for (i, block) in blocks.iter().enumerate() {
            let bytes = self.end..block.bytes;
            let size = block.bytes.saturating_sub(self.end);
            (self.hasher, self.start) = (Hasher::default(), self.end);
            let read = self.hasher.add_all((&mut reader).take(size))?;
            let is_last = i + 1 == blocks.len();
            if read != size || self.hasher.digest() != block.sha256 || is_last && block.bytes != length {
                return Ok(Some(DigestMismatch { rows: rows..block.rows, bytes }));
            }
            (self.end, rows) = (block.bytes, block.rows);
            if is_last {
                self.finish_if_full(block.clone());
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

#[cfg(test)]
mod tests {
    use super::{BlockHasher, Digest, DigestMismatch, Hasher};

    #[test]
    fn a_digest_is_hexadecimal_in_json() {
        let digest = Digest::of(b"abc");
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, "\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"");
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        for wrong in [json.replace("ba", "bg"), json.replace("ad\"", "\""), "\"ä\"".into()] {
            assert!(serde_json::from_str::<Digest>(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_have_the_digest_of_the_whole() {
        let mut hasher = Hasher::default();
        hasher.add(b"a");
        assert_eq!(hasher.add_all(&b"bc"[..]).unwrap(), 2);
        assert_eq!(hasher.digest(), Digest::of(b"abc"));
    }

    #[test]
    fn small_writes_share_a_block() {
        let mut hasher = BlockHasher::new(0);
        hasher.add(b"first");
        assert_eq!(hasher.blocks(1).len(), 1);
        hasher.add(b"second");
        let blocks = hasher.blocks(2);
        assert_eq!((blocks.len(), blocks[0].rows, blocks[0].bytes), (1, 2, 11));
        assert_eq!(blocks[0].sha256, Digest::of(b"firstsecond"));
    }

    #[test]
    fn a_changed_block_is_found() {
        let mut hasher = BlockHasher::new(8);
        let mut file = vec![7; 3 << 20];
        for rows in 1..=3 {
            hasher.add(&file[(rows - 1) << 20..rows << 20]);
            hasher.blocks(rows as u64);
        }
        let (blocks, length) = (hasher.blocks(3), 8 + (3 << 20));
        assert_eq!(blocks.len(), 3);
        let verify = |file: &[u8]| BlockHasher::new(8).add_verified(file, length, &blocks).unwrap();
        assert_eq!(verify(&file), None);
        file[(1 << 20) + 5] = 8;
        let bytes = 8 + (1 << 20)..8 + (2 << 20);
        assert_eq!(verify(&file), Some(DigestMismatch { rows: 1..2, bytes }));
    }
}
