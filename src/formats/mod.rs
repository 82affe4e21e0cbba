//! What kind of file the first bytes tell; and Parquet and Arrow files, read so that a damaged one does no harm: the one way in which
//! `input`, `output` and `vectors` open them.
//!
//! The readers of the `parquet` and `arrow` crates trust the sizes that a file declares: they allocate them before they read, recurse
//! once per level of a schema, and panic on some malformed pages and messages. Here, sizes and depths are checked before a crate sees
//! them, only ranges inside a file are read, rows are decoded within a limit of memory, and panics become errors.

pub mod arrow;
mod error;
pub mod parquet;
mod sniff;

pub use error::{MAX_BATCH_BYTES, ReadError};
pub use sniff::{ByteOrder, Compression, Kind, sniff};

/// Maximum length of the metadata of a file or of a message, in bytes. A damaged file may declare any length.
const MAX_METADATA_BYTES: u64 = 256 << 20;
