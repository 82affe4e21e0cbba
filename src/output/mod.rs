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
//! To add a format: a file with a `RowEncoder`, a variant of [`OutputFormat`], and an arm in
//! `writer.rs`.

mod array;
mod arrow;
mod bounded_rows;
mod check;
pub mod column_names;
mod column_type;
mod columns;
mod concatenate;
mod content;
mod content_columns;
mod csv;
mod dtype;
mod encoder;
mod format;
mod ipc_stream;
mod jsonl;
mod npy;
mod npz;
mod parquet;
mod record_hashes;
mod row;
mod row_file;
mod safetensors;
mod schema;
mod span_columns;
mod table;
mod writer;

pub use array::Array;
pub use bounded_rows::read_line;
pub use check::{already_a_column, check};
pub use column_type::{ColumnType, KeptColumn};
pub use concatenate::concatenate;
pub use content::{
    Answer, Content, ContentType, Entity, LabelScore, OutputTypes, SpanKind, TokenScore, VectorType,
};
pub use dtype::{OutputDtype, StoredVector, VectorValues};
pub use format::OutputFormat;
pub use jsonl::write_json_rows;
pub use record_hashes::{HASH_COLUMN, for_each_record_hash};
pub use row::{Row, Span};
pub use row_file::RowFile;
pub use schema::{OutputMetadata, OutputSchema};
pub use table::{TableFormat, TableWriter};
pub use writer::Writer;
