//! safetensors files.

pub(super) mod write;
