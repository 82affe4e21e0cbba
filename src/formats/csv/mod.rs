//! Comma-separated values.

pub(super) mod read;
pub(super) mod write;
