//! The rows of an interrupted run that are known to be on disk, and the digests that tell whether they still
//! are what it wrote.

use std::io::{self, Read};
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::digest::{Digest, Hasher};

/// Minimum size of a block in bytes; the last one may be smaller.
const MIN_BLOCK_BYTES: u64 = 1 << 20;
/// A block also covers at least 1/`BLOCK_FRACTION` of the file up to its end, so that the number of blocks
/// grows with the logarithm of the file's length.
const BLOCK_FRACTION: u64 = 1024;

/// The rows of an interrupted run that are known to be on disk, as the manifest records them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableRows {
    /// Number of rows.
    pub rows: u64,
    /// Length in bytes of the partial file up to the end of those rows.
    pub bytes: u64,
    /// Digests of those bytes; a resumed run verifies them. Empty in manifests of releases that had no
    /// digests.
    #[serde(default)]
    pub blocks: Vec<HashedBlock>,
}

/// The digest of a range of the partial file that ends at a row boundary. It starts where the previous block
/// ends.
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

    /// Adds the bytes of an existing file up to the offset `length`, and verifies them against `blocks`; with
    /// no blocks, nothing is verified. `reader` starts at the offset of the first block. Returns the first
    /// block that differs.
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
    use super::{BlockHasher, DigestMismatch};
    use crate::store::Digest;

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
