//! Errors of GPUs that callers handle.

use std::error::Error;
use std::fmt;

/// A GPU does not have enough free memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the GPU is out of memory")
    }
}

impl Error for OutOfMemory {}
