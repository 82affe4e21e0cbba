//! NumPy arrays ([NEP 1](https://numpy.org/neps/nep-0001-npy-format.html)). What is known about their rows is
//! in the file `NAME.meta.json` beside them.

mod read;
pub(super) mod write;

pub use read::{read_array, read_metadata};
