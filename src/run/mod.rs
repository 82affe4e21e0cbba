//! One file per subcommand: prepare, run, report. `records`: what the commands share that turn records into
//! rows. `query_texts`: the queries of `search` and `rerank`.

pub mod answer;
mod append;
pub mod attend;
pub mod cache;
pub mod classify;
pub mod download;
pub mod embed;
pub mod fill;
pub mod inspect;
pub mod merge;
pub mod pairs;
mod query_texts;
pub mod records;
pub mod rerank;
pub mod search;
pub mod similarity;
pub mod tag;
pub mod verify;

use anyhow::Result;

use crate::formats::{TableFormat, TableWriter};
use crate::rows::{FieldValue, KeptColumn};
use crate::store::{OutputLock, ReadFiles, Target};

/// Prints a table. `rows` is called once or twice: text needs the widths of the columns first.
fn print_table<I: Iterator<Item = Vec<FieldValue>>>(
    format: TableFormat,
    columns: Vec<KeptColumn>,
    rows: impl Fn() -> I,
) -> Result<()> {
    let lock = OutputLock::acquire(&Target::Stdout)?.check("--output", &ReadFiles::default())?;
    let mut table = TableWriter::open(&lock, format, columns)?;
    table.write_all(rows)?;
    table.finish()
}

/// A flag as `inspect` prints it and manifests store it.
fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}
