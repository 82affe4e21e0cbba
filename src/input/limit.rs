//! The memory limit of readers.

use bytesize::ByteSize;

/// Maximum size of a text, line or row, in MiB. Longer ones are a sign of a file in another format, and would
/// take the memory that the model needs.
pub(super) const MAX_TEXT_MIB: u64 = 16;
/// Maximum size of a text, line or row, in bytes.
pub(super) const MAX_TEXT_BYTES: u64 = MAX_TEXT_MIB << 20;

/// Bytes of memory per byte of a line or row: its buffer, which grows by doubling, and the fields that are
/// copied out of it.
const MEMORY_PER_BYTE: u64 = 4;

/// The memory that a reader may use at a time, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimit(u64);

impl Default for ReadLimit {
    /// 1 GiB, enough for record batches of common writers.
    fn default() -> Self {
        ReadLimit(1 << 30)
    }
}

impl ReadLimit {
    /// A limit of `bytes` bytes.
    pub fn new(bytes: u64) -> Self {
        ReadLimit(bytes)
    }

    /// Maximum size of a record batch in memory, in bytes.
    pub(super) fn batch_bytes(self) -> u64 {
        self.0
    }

    /// Maximum size of a line, of a row, or of a file that is one text, in bytes.
    pub(super) fn line_bytes(self) -> u64 {
        MAX_TEXT_BYTES.min(self.0 / MEMORY_PER_BYTE)
    }

    /// Maximum size of a carried-through JSON value in memory, in bytes.
    pub(super) fn value_bytes(self) -> u64 {
        MEMORY_PER_BYTE * self.line_bytes()
    }

    /// Maximum size of a carried-through Arrow list or struct, in bytes. Written as JSON it takes many times
    /// the memory of the column.
    pub(super) fn nested_bytes(self) -> u64 {
        self.line_bytes() / 4
    }

    /// The predicate of an error about a text, line or row over [`Self::line_bytes`], with a remedy.
    pub(super) fn too_long(self, remedy: &str) -> String {
        match self.line_bytes() {
            MAX_TEXT_BYTES => format!("is longer than {MAX_TEXT_MIB} MiB; {remedy}"),
            bytes => format!(
                "is longer than {bytes} bytes, the maximum that fits into --max-memory; {remedy}, or pass a larger \
                 --max-memory"
            ),
        }
    }

    /// Maximum size of a page of a Parquet file in memory, in bytes. Without `--max-memory` it may have any
    /// size.
    pub(super) fn page_bytes(self) -> u64 {
        if self == Self::default() { u64::MAX } else { self.0 }
    }

    /// The predicate of an error about rows that take `bytes` bytes, over the limit; `units` are what the
    /// file has them in.
    pub(super) fn too_large(self, bytes: u64, units: &str) -> String {
        let si = |bytes| ByteSize(bytes).display().si();
        format!(
            "takes {}, but --max-memory leaves {} for reading; write the file in smaller {units}, or pass a larger \
             --max-memory",
            si(bytes),
            si(self.0)
        )
    }

    /// The predicate of an error about rows of `bytes` bytes that the system has no memory for.
    pub(super) fn no_memory(bytes: u64, units: &str) -> String {
        let bytes = ByteSize(bytes).display().si();
        format!("takes {bytes}, more than the free memory; write the file in smaller {units}")
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_TEXT_BYTES, ReadLimit};

    #[test]
    fn lines_get_a_quarter_of_the_limit_up_to_16_mib() {
        assert_eq!(ReadLimit::new(1000).line_bytes(), 250);
        assert_eq!(ReadLimit::default().line_bytes(), MAX_TEXT_BYTES);
        assert!(ReadLimit::new(1000).too_long("split it").contains("250 bytes"));
        assert!(ReadLimit::default().too_long("split it").starts_with("is longer than 16 MiB; split it"));
    }

    #[test]
    fn batches_over_the_limit_are_named_with_both_sizes() {
        let error = ReadLimit::new(2_000_000).too_large(3_000_000, "record batches");
        assert!(error.starts_with("takes 3.0 MB, but --max-memory leaves 2.0 MB for reading"), "{error}");
    }
}
