//! The hashes of the records that the rows of a file were made of, in the column that `--append` reads again.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use serde_json::Value;

use super::column_type::to_text;
use super::format::OutputFormat;
use super::row::Span;
use super::row_file::RowFile;

/// The name of the column.
pub const HASH_COLUMN: &str = "record_hash";

/// The fields of a jsonl row.
#[derive(Deserialize)]
struct JsonRow {
    id: Option<Value>,
    chunk: Option<u64>,
    record_hash: Option<String>,
}

/// Calls `visit` with the id, as text, and the hash of the record of each row; of a text with several chunks, for the first one.
///
/// # Errors
/// If the file cannot be read, or has no such column.
pub fn for_each_record_hash(
    path: &Path,
    format: OutputFormat,
    mut visit: impl FnMut(Option<&str>, &str) -> Result<()>,
) -> Result<()> {
    let missing = || {
        anyhow!(
            "{} has no column {HASH_COLUMN}, because it was written without --append; write it again with --append from the \
             beginning, into a new file",
            path.display()
        )
    };
    match format {
        OutputFormat::Jsonl => {
            for line in BufReader::new(File::open(path)?).lines() {
                let JsonRow { id, chunk, record_hash } =
                    serde_json::from_str(&line?).map_err(|error| malformed(path, &error))?;
                if chunk.unwrap_or(0) == 0 {
                    let hash = record_hash.ok_or_else(missing)?;
                    visit(id.as_ref().and_then(to_text).as_deref(), &hash)?;
                }
            }
        }
        OutputFormat::Csv => {
            let mut rows = csv::Reader::from_path(path).map_err(|error| malformed(path, &error))?;
            let names = rows.headers().map_err(|error| malformed(path, &error))?.clone();
            let column = |name: &str| names.iter().position(|column| column == name);
            let (id, chunk) = (column("id"), column(Span::NAMES[0]));
            let hash = column(HASH_COLUMN).ok_or_else(missing)?;
            for row in rows.records() {
                let row = row.map_err(|error| malformed(path, &error))?;
                if chunk.is_none_or(|chunk| &row[chunk] == "0") {
                    visit(id.map(|id| &row[id]).filter(|id| !id.is_empty()), &row[hash])?;
                }
            }
        }
        _ => {
            let file = RowFile::open(path, format)?;
            let column = file.schema().kept.iter().position(|column| column.name == HASH_COLUMN);
            let column = column.ok_or_else(missing)?;
            file.for_each_row(|row| {
                if row.chunk.is_some_and(|span| span.chunk > 0) {
                    return Ok(());
                }
                let hash = row.kept[column].json();
                visit(row.id.and_then(to_text).as_deref(), hash.as_str().ok_or_else(missing)?)
            })?;
        }
    }
    Ok(())
}

fn malformed(path: &Path, error: &dyn std::fmt::Display) -> anyhow::Error {
    anyhow!("cannot read the rows of {} ({error}); write the file again", path.display())
}
