//! How much memory reading may take.

use bytesize::ByteSize;

use super::{MOST_BYTES, MOST_MIB};

/// The memory that reading may take at a time, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimit(u64);

/// Memory for each byte of a line or row: its buffer, which grows by doubling, and the fields that are made of it.
const PER_BYTE: u64 = 4;

impl Default for ReadLimit {
    /// Enough for record batches as common writers make them.
    fn default() -> Self {
        ReadLimit(1 << 30)
    }
}

impl ReadLimit {
    /// At most this many bytes.
    pub fn new(bytes: u64) -> Self {
        ReadLimit(bytes)
    }

    /// Bytes of a record batch.
    pub(super) fn batch_bytes(self) -> u64 {
        self.0
    }

    /// Bytes of a line, row or file that is one text.
    pub(super) fn line_bytes(self) -> u64 {
        MOST_BYTES.min(self.0 / PER_BYTE)
    }

    /// Bytes of a value that is carried through, once it is built from the text of a line.
    pub(super) fn value_bytes(self) -> u64 {
        PER_BYTE * self.line_bytes()
    }

    /// Bytes of a list or struct that is carried through: as JSON it takes many times its memory as a column.
    pub(super) fn nested_bytes(self) -> u64 {
        self.line_bytes() / 4
    }

    /// What is wrong with a longer one, as a part of a sentence with its remedy.
    pub(super) fn too_long(self, remedy: &str) -> String {
        match self.line_bytes() {
            MOST_BYTES => format!("is longer than {MOST_MIB} MiB; {remedy}"),
            bytes => format!(
                "is longer than {bytes} bytes, the most that fits into --max-memory; {remedy}, or pass a larger \
                 --max-memory"
            ),
        }
    }

    /// What is wrong with a record batch of this many bytes, as a part of a sentence with its remedy.
    pub(super) fn too_large(self, bytes: u64) -> String {
        let shown = |bytes| ByteSize(bytes).display().si();
        format!(
            "takes {}, but {} is all that --max-memory leaves for reading; write the file in smaller record batches, or \
             pass a larger --max-memory",
            shown(bytes),
            shown(self.0)
        )
    }

    /// What is wrong with a record batch of this many bytes where the system has no room for it.
    pub(super) fn no_memory(bytes: u64) -> String {
        let shown = ByteSize(bytes).display().si();
        format!("takes {shown}, for which there is no memory; write the file in smaller record batches")
    }
}
