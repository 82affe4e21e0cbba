//! Why a file cannot be read.

use std::fmt::Display;
use std::io;

use anyhow::{Error, anyhow};
use bytesize::ByteSize;
use thiserror::Error;

use crate::error::one_line;
use crate::sys::memory;

/// Memory of the rows that are decoded at a time, in bytes, where no option sets it: enough for the record
/// batches and row groups of common writers.
pub const MAX_BATCH_BYTES: u64 = 1 << 30;

/// Why the next rows cannot be read, as a clause.
#[derive(Debug, Error)]
pub enum ReadError {
    /// Reading the file failed.
    #[error("{}", one_line(.0))]
    Io(#[from] io::Error),
    /// The file is malformed.
    #[error("{0}")]
    Malformed(String),
    /// They take `bytes` bytes of memory, more than the limit of `max_bytes`.
    #[error("its next rows take {} of memory, more than {}", si(*.bytes), si(*.max_bytes))]
    TooLarge {
        /// What they take.
        bytes: u64,
        /// The limit.
        max_bytes: u64,
    },
    /// They take this many bytes of memory, more than is free.
    #[error("its next rows take {} of memory, more than is free", si(*.0))]
    NoMemory(u64),
}

impl ReadError {
    /// The error as a sentence about the file `name` of this format, with a remedy for a malformed one.
    pub(super) fn of_file(self, name: &str, format: Format, remedy: &str) -> Error {
        let Format { name: format, unit, units } = format;
        match self {
            ReadError::Io(error) => anyhow!("cannot read {name} ({}); check the file", one_line(&error)),
            ReadError::Malformed(reason) => anyhow!("cannot read {name} as {format} ({reason}); {remedy}"),
            ReadError::TooLarge { bytes, max_bytes } => anyhow!(
                "{name}: a {unit} takes {} of memory, more than the {} that are read at a time; write the file in smaller {units}",
                si(bytes),
                si(max_bytes)
            ),
            ReadError::NoMemory(bytes) => anyhow!(
                "{name}: a {unit} takes {}, more than the free memory; write the file in smaller {units}",
                si(bytes)
            ),
        }
    }
}

/// What to do about a malformed file of any software, as a clause.
pub const REMEDY: &str = "copy it again, or write it again with the program that made it";

/// The error for a file that is malformed; `reason` is a clause.
pub fn malformed(name: &str, format: &str, reason: impl Display) -> Error {
    anyhow!("cannot read {name} as {format} ({}); {REMEDY}", one_line(&reason))
}

/// The error for a file that was recognised, and then cannot be read.
pub fn unread(name: &str, error: impl Display) -> Error {
    anyhow!("cannot read {name} ({}); check the file, or copy it again", one_line(&error))
}

/// The error for a file that is shorter than its header declares.
pub fn truncated(name: &str, expected: u64, found: u64) -> Error {
    anyhow!("{name} is truncated: its header declares {expected} bytes, but it has {found}; {REMEDY}")
}

/// A size as messages show it.
fn si(bytes: u64) -> bytesize::Display {
    ByteSize(bytes).display().si()
}

/// A format, and the unit that its files are written in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    name: &'static str,
    unit: &'static str,
    units: &'static str,
}

impl Format {
    pub(super) const PARQUET: Format = Format { name: "Parquet", unit: "row group", units: "row groups" };
    pub(super) const ARROW: Format = Format { name: "Arrow", unit: "record batch", units: "record batches" };
}

impl From<String> for ReadError {
    fn from(reason: String) -> Self {
        ReadError::Malformed(reason)
    }
}

impl From<&str> for ReadError {
    fn from(reason: &str) -> Self {
        ReadError::Malformed(reason.into())
    }
}

/// Checks that `bytes` bytes in addition to the `held` bytes are within a limit of `max_bytes` bytes, and
/// that there is memory for them. Where the `arrow` and `parquet` crates allocate a length that a file
/// declares and there is no memory for it, the process aborts.
///
/// # Errors
/// If they are not: [`ReadError::TooLarge`] or [`ReadError::NoMemory`].
pub(super) fn check_memory(bytes: u64, held: u64, max_bytes: u64) -> Result<(), ReadError> {
    let all = bytes.saturating_add(held);
    if all > max_bytes {
        return Err(ReadError::TooLarge { bytes: all, max_bytes });
    }
    let is_free = usize::try_from(bytes).is_ok_and(memory::is_free);
    if is_free { Ok(()) } else { Err(ReadError::NoMemory(all)) }
}
