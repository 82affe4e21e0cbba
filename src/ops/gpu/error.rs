//! Errors of GPUs that callers handle.

use thiserror::Error;

/// A GPU does not have enough free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the GPU is out of memory")]
pub struct OutOfMemory;
