//! safetensors files.

mod read;
pub(super) mod write;

pub use read::{header_length, read_tensors};
