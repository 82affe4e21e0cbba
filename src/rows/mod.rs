//! What a row is: its content, the columns beside it and their names, the values of kept columns, and what
//! all rows of a file have in common.
//!
//! To add a column: see CONTRIBUTING.md. To add a content: a variant of [`Content`] and of [`ContentType`],
//! for which the compiler asks each format for its columns.

mod batch;
mod column_type;
pub mod columns;
mod content;
mod content_columns;
mod dtype;
pub mod field;
mod format;
pub mod metadata;
mod row;
mod row_bytes;
mod schema;
mod span_columns;

pub(crate) use batch::{BatchBuilder, ColumnBuilder, arrow_schema, field_value};
pub use column_type::{ColumnType, KeptColumn};
pub(crate) use column_type::{abbreviated, to_text};
pub(crate) use content::other_content;
pub use content::{
    Answer, Content, ContentType, Entity, LabelScore, OutputTypes, SpanKind, TokenScore, VectorType,
};
pub(crate) use content_columns::fields as content_fields;
pub(crate) use dtype::offset_signs;
pub use dtype::{OutputDtype, StoredVector, VectorValues};
pub use field::FieldValue;
pub use format::OutputFormat;
pub use metadata::FileMetadata;
pub use row::{Row, Span};
pub(crate) use row_bytes::row_bytes;
pub use schema::OutputSchema;
