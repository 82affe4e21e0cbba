//! NumPy arrays.

pub(super) mod write;
