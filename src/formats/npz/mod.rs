//! ZIP archives of NumPy arrays.

pub(super) mod write;
