//! Several files as one: the shards of a run, or a corpus in parts.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};

use super::choice::VectorField;
use super::file::VectorFile;
use super::source::{Blocks, Columns, Opened, Vectors};
use crate::formats::rows_by_unit;
use crate::named::Named;
use crate::neighbours::Block;
use crate::rows::columns::FILE;
use crate::rows::metadata::Key;
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::sys::console::counted;

/// What the metadata of all files has to agree on: it makes vectors comparable.
const SHARED: [Key; 5] = [Key::WeightsSha256, Key::Pooling, Key::Normalized, Key::Prompt, Key::Role];

/// The parts, and the rows of each.
struct Parts {
    files: Vec<VectorFile>,
    rows: Vec<Range<usize>>,
    /// The columns that all parts have, and [`FILE`] unless they have a column of that name.
    columns: Vec<KeptColumn>,
}

impl VectorFile {
    /// Opens files as [`VectorFile::open_any`] does, the rows of one after those of another; with the column
    /// `file` if there are several.
    ///
    /// # Errors
    /// As [`VectorFile::open_any`], and if their vectors cannot be compared with the same query.
    ///
    /// # Panics
    /// If there is no path.
    pub fn open_all<P: AsRef<Path>>(paths: &[P], field: VectorField) -> Result<VectorFile> {
        let mut files =
            paths.iter().map(|path| Self::open_any(path.as_ref(), field)).collect::<Result<Vec<_>>>()?;
        if files.len() == 1 {
            return Ok(files.remove(0));
        }
        let name = format!("{} and {} more", files[0].name(), counted(files.len() as u64 - 1, "file"));
        Ok(VectorFile::new(&name, join(files)?))
    }
}

/// The files, one after another, as one.
fn join(files: Vec<VectorFile>) -> Result<Opened> {
    for other in &files[1..] {
        check_alike(&files[0], other)?;
    }
    let (mut rows, mut next) = (Vec::new(), 0);
    for file in &files {
        rows.push(next..next + file.rows());
        next += file.rows();
    }
    let in_all = |column: &&KeptColumn| {
        files.iter().all(|file| file.columns().iter().any(|other| other.name == column.name))
    };
    let mut columns: Vec<KeptColumn> = files[0].columns().iter().filter(in_all).cloned().collect();
    if columns.iter().all(|column| column.name != FILE) {
        columns.push(KeptColumn::new(FILE, ColumnType::Text));
    }
    let first = &files[0];
    let (representation, elements) = (first.representation(), (first.dtype(), first.dimensions()));
    let metadata = first.metadata().clone();
    let is_rounded = files.iter().any(VectorFile::is_rounded);
    let has_types = files.iter().all(VectorFile::has_types);
    let parts = Arc::new(Parts { files, rows, columns });
    let (vectors, columns) = (Box::new(parts.clone()), Box::new(parts));
    Ok(Opened {
        metadata,
        is_rounded,
        has_types,
        ..Opened::new(next, representation, elements, vectors, columns)
    })
}

/// Checks that vectors of two files can be compared with one query.
fn check_alike(file: &VectorFile, other: &VectorFile) -> Result<()> {
    let (a, b) = (file.name(), other.name());
    if file.token_numbers().is_some() || other.token_numbers().is_some() {
        bail!("{a} and {b}: sparse vectors in jsonl are searched one file at a time; merge the files first");
    }
    let describe = |file: &VectorFile| {
        format!("{} of {} dimensions in {}", file.noun(), file.dimensions(), file.dtype())
    };
    if describe(file) != describe(other) {
        bail!("{a} holds {}, but {b} {}; search them one by one", describe(file), describe(other));
    }
    if let Some((key, [of_a, of_b])) = file.metadata().conflict(other.metadata(), SHARED) {
        let key = key.name();
        bail!("{a} was made with {key} {of_a:?}, but {b} with {of_b:?}; search them one by one");
    }
    Ok(())
}

impl Vectors for Arc<Parts> {
    fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        let Parts { files, rows, .. } = &**self;
        let units = |(file, rows): (&VectorFile, &Range<usize>)| {
            let start = rows.start;
            file.units(max_rows).into_iter().map(move |unit| unit.start + start..unit.end + start)
        };
        files.iter().zip(rows).flat_map(units).collect()
    }

    fn read(&self, rows: Range<usize>, blocks: Blocks) -> Result<ControlFlow<()>> {
        let Parts { files, rows: parts, .. } = &**self;
        let part = parts.partition_point(|part| part.end <= rows.start);
        let start = parts[part].start;
        files[part].read_unit(rows.start - start..rows.end - start, blocks.max_rows, blocks.buffer, |block| {
            (blocks.visit)(&Block { first_row: block.first_row + start, ..*block })
        })
    }
}

impl Columns for Arc<Parts> {
    fn columns(&self) -> &[KeptColumn] {
        &self.columns
    }

    fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        let mut found = Vec::with_capacity(rows.len());
        for (i, wanted) in rows_by_unit(rows, &self.rows) {
            let file = &self.files[i];
            let own: Vec<usize> = wanted.iter().map(|row| row - self.rows[i].start).collect();
            let position = |column: &usize| {
                let name = &self.columns[*column].name;
                file.columns().iter().position(|other| other.name == *name)
            };
            let positions: Vec<Option<usize>> = columns.iter().map(position).collect();
            let read: Vec<usize> = positions.iter().flatten().copied().collect();
            for values in file.values(&own, &read)? {
                let mut values = values.into_iter();
                let value = |position: &Option<usize>| match position {
                    Some(_) => values.next().unwrap_or_default(),
                    // The only column that a part may not have.
                    None => serde_json::Value::from(file.name()).into(),
                };
                found.push(positions.iter().map(value).collect());
            }
        }
        Ok(found)
    }
}
