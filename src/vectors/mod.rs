//! Vectors in blocks, over the readers of [`formats`](crate::formats): what `sconce embed` writes, and arrays
//! of other software.
//!
//! ```text
//! VectorFile ──► units ──► read into a BlockBuffer ──► Block
//! header,        ranges    by one thread each,          rows in f32, f16,
//! metadata       of rows   mapped or decoded            int8 or signs
//! ```
//!
//! A file is never in memory as a whole. Elements of npy, safetensors and uncompressed Arrow files are read
//! where they are in the file; rows of parquet, jsonl, csv and compressed Arrow files are decoded. The
//! columns beside the vectors are read for single rows.

mod array;
mod arrays;
mod batch;
mod buffer;
mod choice;
mod columnar;
mod columns;
mod converted;
mod csr;
mod csv;
mod error;
mod file;
mod find;
mod in_memory;
mod joined;
mod jsonl;
mod lists;
mod nearest;
mod records;
mod scan;
mod source;
mod sparse;
mod width;

pub use buffer::BlockBuffer;
pub use choice::VectorField;
pub use file::VectorFile;
pub use find::{SearchPaths, find_files, has_vectors, is_of_vectors, is_vector_file};
pub use in_memory::RowsInMemory;
pub use nearest::{Found, UnusableQuery};
pub use sparse::TokenNumbers;
