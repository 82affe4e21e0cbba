//! Records over the readers of [`formats`](crate::formats), and [`Entries`], which reads all inputs one after
//! another.
//!
//! A reader gives [`Entry`]s: a [`Record`], or the [`Location`] of a record that cannot be read and the
//! reason. Readers hold at most as much of an input in memory as [`ReadLimit`] allows, even if the input
//! declares other sizes.

mod batches;
mod columns;
mod csv;
mod entries;
mod error;
mod fasta;
mod field_names;
mod file;
mod find;
mod json;
mod limit;
mod lines;
mod mismatch;
mod partitions;
mod reader;
mod record;
mod source;
mod utf16;

pub use entries::Entries;
pub use field_names::{ALL_FIELDS, expand_kept};
pub use find::{Filter, Inputs, expand_globs, find};
pub use limit::ReadLimit;
pub use partitions::Partitions;
pub use record::{
    Entry, FieldOptions, Fields, HEADER, KeptName, Location, Position, Record, TextFields, Unreadable,
};
pub use source::{Format, InputPath, Source};
