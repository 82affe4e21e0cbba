//! The hashes of the records that the rows of a file were made of, in the column that `--append` reads again.

use std::fmt::Display;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;
use serde_json::value::RawValue;

use super::csv::CsvRows;
use super::jsonl::find_fields;
use super::lines::read_line;
use super::row_file::{RowFile, has_no_lines};
use crate::error::one_line;
use crate::rows::columns::{CHUNK, END_LINE, RECORD_HASH};
use crate::rows::{OutputFormat, to_text};
use crate::sys::regular_file;

/// What a row tells of the record that it was made of.
#[derive(Debug, Clone, Copy)]
pub struct HashedRow<'a> {
    /// The id of the record, as text.
    pub id: Option<&'a str>,
    /// The hash of the record.
    pub hash: &'a str,
    /// Whether the row is the first one of the record; the others are further chunks.
    pub is_first: bool,
}

/// Where rows have the records that they are made of.
#[derive(Debug, Clone, Copy)]
pub struct HashedRows<'a> {
    /// The format of the file.
    pub format: OutputFormat,
    /// Whether rows are to be added that are chunks.
    pub chunks: bool,
    /// The name of the column of ids.
    pub id_column: &'a str,
}

/// Calls `visit` with each row of a file. One without rows needs no hashes.
pub fn for_each_record_hash(
    path: &Path,
    rows: HashedRows,
    mut visit: impl FnMut(HashedRow) -> Result<()>,
) -> Result<()> {
    let HashedRows { format, chunks, id_column } = rows;
    match format {
        OutputFormat::Jsonl => visit_lines(path, rows, &mut visit)?,
        OutputFormat::Csv => {
            let mut rows = CsvRows::open(path).map_err(|error| malformed(path, &error))?;
            let (names, _) = rows.header().map_err(|error| malformed(path, &error))?;
            let column = |name: &str| names.iter().position(|column| column == name);
            let (id, chunk) = (column(id_column), column(CHUNK).filter(|_| chunks));
            let hash = column(RECORD_HASH);
            check_lines(path, chunk.is_some(), column(END_LINE).is_some())?;
            while let Some(row) = rows.read().map_err(|error| malformed(path, &error))? {
                if row.len() != names.len() {
                    return Err(malformed(path, &"a row has more or fewer fields than the header"));
                }
                let text =
                    |column: usize| str::from_utf8(&row[column]).map_err(|error| malformed(path, &error));
                let id = id.map(text).transpose()?.filter(|id| !id.is_empty());
                let is_first = chunk.is_none_or(|chunk| &row[chunk] == b"0");
                visit(HashedRow { id, hash: text(hash.ok_or_else(|| missing(path))?)?, is_first })?;
            }
        }
        _ => {
            let file = RowFile::open(path, format)?;
            let schema = file.schema();
            // Without chunks or ids, a kept column may have the name.
            let chunk = if schema.chunks { CHUNK } else { "" };
            let id = if schema.ids.is_some() { schema.metadata.id_column() } else { "" };
            file.for_each_value([id, chunk, RECORD_HASH], |[id, chunk, hash]| {
                let (id, hash) = (id.json(), hash.json());
                let id = to_text(&id);
                let is_first = chunk.json().as_u64().unwrap_or(0) == 0;
                visit(HashedRow {
                    id: id.as_deref(),
                    hash: hash.as_str().ok_or_else(|| missing(path))?,
                    is_first,
                })
            })?;
        }
    }
    Ok(())
}

/// Calls `visit` with each row of a jsonl file.
fn visit_lines(
    path: &Path,
    HashedRows { chunks, id_column, .. }: HashedRows,
    visit: &mut impl FnMut(HashedRow) -> Result<()>,
) -> Result<()> {
    let file = regular_file::open(path).map_err(|error| malformed(path, &error))?;
    let (mut reader, mut line) = (BufReader::new(file), Vec::new());
    while read_line(&mut reader, &mut line).map_err(|error| malformed(path, &error))? {
        let line = str::from_utf8(&line).map_err(|error| malformed(path, &error))?;
        let fields = find_fields(line, &mut |_| {}, &[id_column, CHUNK, END_LINE, RECORD_HASH])
            .and_then(|fields| fields.into_iter().map(value).collect::<Result<Vec<_>, _>>())
            .map_err(|error| malformed(path, &error))?;
        let [id, chunk, end_line, hash] = &fields[..] else { unreachable!("four fields are wanted") };
        // Without chunks, a kept field may have the name.
        let chunk = chunk.as_u64().filter(|_| chunks);
        check_lines(path, chunk.is_some(), !end_line.is_null())?;
        let (id, hash) = (to_text(id), hash.as_str().ok_or_else(|| missing(path))?);
        visit(HashedRow { id: id.as_deref(), hash, is_first: chunk.unwrap_or(0) == 0 })?;
    }
    Ok(())
}

/// The error for a file without hashes.
fn missing(path: &Path) -> anyhow::Error {
    anyhow!(
        "{} has no column {RECORD_HASH}, because it was written without --append; write it again with --append from the \
         beginning, into a new file",
        path.display()
    )
}

/// The value of a field; null if the row does not have it.
fn value(field: Option<&RawValue>) -> serde_json::Result<Value> {
    field.map_or(Ok(Value::Null), |field| serde_json::from_str(field.get()))
}

/// Refuses a file of chunks that an earlier release wrote.
fn check_lines(path: &Path, has_chunks: bool, has_lines: bool) -> Result<()> {
    if has_chunks && !has_lines {
        bail!(has_no_lines(&path.display().to_string()));
    }
    Ok(())
}

fn malformed(path: &Path, error: &dyn Display) -> anyhow::Error {
    anyhow!("cannot read the rows of {} ({}); write the file again", path.display(), one_line(error))
}
