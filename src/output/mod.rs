//! Writes vectors, scores or labels and the columns beside them: jsonl, csv, npy, parquet, arrow and safetensors.
//!
//! ```text
//! Row ──► RowEncoder ──► Destination ──► .out.partial ──► out
//!         one per        BufWriter,      cut and          final form,
//!         format         digests         continued by     renamed
//!                                        --resume
//! ```
//!
//! [`Writer::finish`] gives the complete file its final name, and [`Writer::checkpoint`] makes the rows so far durable; how, and what is
//! beside the file, is in [`store`](crate::store).
//!
//! To add a format: a file with a `RowEncoder`, a variant of [`OutputFormat`](crate::rows::OutputFormat), and an arm in
//! `writer.rs`.

mod array;
mod arrow;
mod bounded_rows;
mod check;
mod concatenate;
mod csv;
mod encoder;
mod ipc_stream;
mod jsonl;
mod npy;
mod npz;
mod parquet;
mod record_hashes;
mod row_file;
mod safetensors;
mod table;
mod writer;

pub use array::Array;
pub use bounded_rows::read_line;
pub use check::{already_a_column, check};
pub use concatenate::concatenate;
pub use jsonl::write_json_rows;
pub use record_hashes::for_each_record_hash;
pub use row_file::RowFile;
pub use table::{TableFormat, TableWriter};
pub use writer::Writer;
