//! Where texts come from: one reader a format, and [`Entries`], which walks through all of the inputs.

mod arrow;
mod binary;
mod bytes;
mod columns;
mod entries;
mod file;
mod footer;
mod json;
mod limit;
mod lines;
mod parquet;
mod record;
mod sources;
mod table;

pub use entries::Entries;
pub use limit::ReadLimit;
pub use record::{At, Entry, Fields, Record, Spot, Unreadable};
pub use sources::{Compression, Filter, Format, Place, Source, filtered_sources, sources};

/// The longest text, line or row that is taken for one, in MiB: more is a sign of a file that is something else, and
/// would take the memory that the rest needs.
const MOST_MIB: u64 = 16;
/// The same in bytes.
const MOST_BYTES: u64 = MOST_MIB << 20;

/// The whole numbers that are exact as floating point of 64 bits: up to 2⁵³.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// What a library says of an error, as a part of a sentence.
fn said(error: &dyn std::fmt::Display) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}
