//! Files: one folder a format, each with `read` and `write`, and what all formats share. Every reader of the
//! crate opens files here.
//!
//! A file may be damaged or hostile. The readers of the `parquet` and `arrow` crates trust the sizes that a
//! file declares: they allocate them before they read, recurse once per level of a schema, and panic on some
//! malformed pages and messages. Here, sizes and depths are checked before a crate sees them, only ranges
//! inside a file are read, lines and rows are read within a limit of memory, and panics become errors.
//!
//! ```text
//! Row ──► RowEncoder ──► Destination ──► .out.partial ──► out
//!         one per        BufWriter,      cut and          final form,
//!         format         digests         continued by     renamed
//!                                        --resume
//! ```
//!
//! [`Writer::finish`] gives the complete file its final name, and [`Writer::checkpoint`] makes the rows so
//! far durable; how, and what is beside the file, is in [`store`](crate::store).
//!
//! To add a format: see CONTRIBUTING.md.

mod array;
pub mod arrow;
mod check;
mod columnar;
mod concatenate;
pub mod csv;
mod encoder;
pub mod error;
mod file_columns;
mod join_tables;
pub mod jsonl;
mod lines;
pub mod npy;
pub mod npz;
pub mod parquet;
mod record_hashes;
mod row_file;
pub mod safetensors;
mod sniff;
mod stored_array;
mod table;
mod writer;

pub use array::Array;
pub use arrow::write::write_arrow_rows;
pub use check::{already_a_column, check};
pub use columnar::{ColumnarFile, RecordBatches, open_columnar, rows_by_unit};
pub use concatenate::{JoinedFile, concatenate};
pub use error::ReadError;
pub use file_columns::{FileColumns, column_names, first_names};
pub use join_tables::join_tables;
pub use jsonl::write::write_json_rows;
pub use lines::{VisitRow, read_line, strip_line_end, take_line};
pub use record_hashes::{HashedRow, HashedRows, for_each_record_hash};
pub use row_file::RowFile;
pub(crate) use row_file::has_no_lines;
pub use sniff::{ByteOrder, Compression, Kind, sniff};
pub use stored_array::{ElementType, StoredArray};
pub use table::{MAX_CELL_CHARS, TableFormat, TableWriter, cell, on_one_line};
pub use writer::Writer;

/// Maximum length of the metadata of a file or of a message, in bytes. A damaged file may declare any length.
const MAX_METADATA_BYTES: u64 = 256 << 20;
