//! Arrow IPC files and streams.

mod read;
pub(super) mod write;

pub use read::{ArrowBatches, ArrowReader, open};
