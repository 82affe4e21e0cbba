//! Writes vectors, scores or labels and the columns beside them: jsonl, csv, npy, parquet, arrow and safetensors.
//!
//! ```text
//! Row ──► RowEncoder ──► Destination ──► .out.partial ──► out
//!         one per        BufWriter,      cut and          final form,
//!         format         digests         continued by     renamed
//!                                        --resume
//! ```
//!
//! A file is written atomically: rows go to a partial file beside it, and [`Writer::finish`] renames the complete file
//! to its final name. [`Writer::checkpoint`] makes the rows so far durable ([`DurableRows`]); a [`manifest`] saves that
//! state, so that an interrupted run can be resumed. A [`Ledger`] lists the skipped, failed and truncated records.
//! [`SidecarPaths`] names all of these files, and an [`OutputLock`] keeps two processes from writing the same ones.
//! Standard output, pipes and devices are written to directly and cannot be resumed.
//!
//! To add a format: a file with a `RowEncoder`, a variant of [`OutputFormat`], and an arm in
//! `writer.rs`.

mod array;
mod arrow;
mod bounded_rows;
mod check;
mod column_type;
mod columns;
mod concatenate;
mod content;
mod content_columns;
mod csv;
mod destination;
mod digest;
mod dtype;
mod durable_fs;
mod durable_rows;
mod encoder;
mod format;
mod ipc_stream;
mod jsonl;
mod ledger;
mod lock;
pub mod manifest;
mod npy;
mod npz;
mod parquet;
mod read_files;
mod record_hashes;
mod row;
mod row_file;
mod safetensors;
mod schema;
mod sidecars;
mod single_write;
mod span_columns;
mod stdout;
mod table;
mod target;
mod write_error;
mod writer;

pub use check::{already_a_column, check};
pub use column_type::{ColumnType, KeptColumn};
pub use concatenate::concatenate;
pub use content::{
    Answer, Content, ContentType, Entity, LabelScore, OutputTypes, SpanKind, SparseVector, TokenScore,
    VectorType,
};
pub use digest::{Digest, HashedBlock, Hasher};
pub use dtype::{OutputDtype, StoredVector, VectorValues};
pub use durable_rows::DurableRows;
pub use format::OutputFormat;
pub use jsonl::write_json_rows;
pub use ledger::{Event, Ledger, LedgerEntry};
pub use lock::{OutputLock, UncheckedOutput};
pub use read_files::{ReadFiles, refuse};
pub use record_hashes::{HASH_COLUMN, for_each_record_hash};
pub use row::{Row, Span};
pub use row_file::RowFile;
pub use schema::{OutputMetadata, OutputSchema};
pub use sidecars::{LEDGER_SUFFIX, SidecarPaths, regular_file, remove_sidecars};
pub use single_write::{Array, write, write_file};
pub use stdout::{print, print_with};
pub use table::{TableFormat, TableWriter};
pub use target::{Target, parent_dir};
pub use write_error::ClosedPipe;
pub use writer::Writer;
