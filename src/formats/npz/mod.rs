//! ZIP archives of NumPy arrays.

mod read;
pub(super) mod write;

pub use read::{NpzArchive, malformed};
