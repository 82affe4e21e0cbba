//! A vector file of any format.

use std::fs::File;
use std::io::Read;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};

use super::buffer::BlockBuffer;
use super::choice::VectorField;
use super::error::{PASS_VECTORS, has_several, no_vector};
use super::source::{Blocks, Opened};
use super::sparse::TokenNumbers;
use super::{arrays, columnar, jsonl};
use crate::error::UsageError;
use crate::formats::safetensors::header_length;
use crate::formats::{Kind, rows_by_unit, sniff};
use crate::named::Named;
use crate::neighbours::{Block, Nearest, Representation, Similarity};
use crate::rows::metadata::Key;
use crate::rows::{FieldValue, FileMetadata, KeptColumn, OutputDtype};
use crate::sys::regular_file;

/// Rows that are read at a time to find single rows.
const GATHERED_ROWS: usize = 64;

/// A file of vectors, one per row, with the columns beside them.
pub struct VectorFile {
    name: Arc<str>,
    opened: Opened,
    /// Whether each row is searched; `None` if all are.
    searched: Option<Arc<[bool]>>,
}

impl VectorFile {
    /// Opens a file: npy, npz, safetensors, Arrow, Parquet, jsonl or csv, as its first bytes tell.
    pub fn open(path: &Path, field: VectorField) -> Result<VectorFile> {
        let file = Self::open_any(path, field)?;
        let held = match file.representation() {
            Representation::Dense => return Ok(file),
            Representation::Sparse => "sparse vectors",
            Representation::PerToken => "one vector per token, as of a multi-vector model",
        };
        bail!("{} has {held}; pass a file with one dense vector per row", file.name)
    }

    /// Opens a file as [`VectorFile::open`] does, or one with sparse vectors or one vector per token: Arrow,
    /// Parquet or jsonl.
    pub fn open_any(path: &Path, field: VectorField) -> Result<VectorFile> {
        let name: Arc<str> = path.display().to_string().into();
        let unread = |error| anyhow!("cannot read {name} ({error}); check the path");
        let file = regular_file::open(path).map_err(unread)?;
        let size = file.metadata().map_err(unread)?.len();
        let mut start = Vec::new();
        (&file).take(16).read_to_end(&mut start).map_err(unread)?;
        let opened = open_format(path, &name, (file, size), &start, field)?;
        if opened.dimensions == 0 && opened.representation != Representation::Sparse {
            bail!("{name} has no row with a vector; {PASS_VECTORS}");
        }
        Ok(VectorFile { name, opened, searched: None })
    }

    /// A file of this name.
    pub(super) fn new(name: &str, opened: Opened) -> VectorFile {
        VectorFile { name: name.into(), opened, searched: None }
    }

    /// Makes a search find no other rows than those that `rows` has `true` for.
    pub fn search_only(&mut self, rows: Vec<bool>) {
        self.searched = Some(rows.into());
    }

    /// What takes the nearest neighbours of this many queries: at most `k` of each, with scores of at least
    /// `threshold`, among the rows that are searched.
    pub(super) fn sink(&self, queries: usize, k: usize, threshold: Option<f32>) -> Nearest {
        let nearest = Nearest::new(queries, k, threshold);
        self.searched.iter().fold(nearest, |nearest, rows| nearest.among(rows.clone()))
    }

    /// The path, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.opened.rows
    }

    /// What represents a text in a row.
    pub fn representation(&self) -> Representation {
        self.opened.representation
    }

    /// What a row has, for messages.
    pub fn noun(&self) -> &'static str {
        match (self.representation(), self.token_numbers()) {
            (Representation::Sparse, Some(_)) => "a sparse vector with tokens",
            (Representation::Sparse, None) => "a sparse vector with indices",
            (representation, _) => representation.noun(),
        }
    }

    /// How its texts are compared, if it says so by a name that is known.
    pub fn similarity(&self) -> Option<Similarity> {
        Similarity::from_name(self.metadata().get(Key::Similarity)?)
    }

    /// The numbers that stand for tokens in place of dimensions, in a file of sparse vectors by token.
    pub fn token_numbers(&self) -> Option<&TokenNumbers> {
        self.opened.token_numbers.as_deref()
    }

    /// Dimensions of a vector; 0 if a file of sparse vectors does not say it.
    pub fn dimensions(&self) -> usize {
        self.opened.dimensions
    }

    /// Whether the file has elements of more bits than those of [`VectorFile::dtype`], to which they are
    /// rounded.
    pub fn is_rounded(&self) -> bool {
        self.opened.is_rounded
    }

    /// Type of the stored elements.
    pub fn dtype(&self) -> OutputDtype {
        self.opened.dtype
    }

    /// Whether the values beside the vectors have types: those of csv are texts.
    pub fn has_types(&self) -> bool {
        self.opened.has_types
    }

    /// How the vectors were made: model, digest of the weights, prompt and so on, as in [`FileMetadata`]
    /// without prefix. Empty if the file does not say.
    pub fn metadata(&self) -> &FileMetadata {
        &self.opened.metadata
    }

    /// The rows of the file in ranges that threads can read on their own, of about `max_rows` rows unless the
    /// format has units of its own, such as row groups.
    pub fn units(&self, max_rows: usize) -> Vec<Range<usize>> {
        self.opened.vectors.units(max_rows)
    }

    /// Reads the rows of one of the [`VectorFile::units`] into `buffer`, at most `max_rows` at a time, and
    /// calls `visit` with each block, in order. Break ends the reading. Rows without a vector (null) are in
    /// no block.
    pub fn read_unit(
        &self,
        unit: Range<usize>,
        max_rows: usize,
        buffer: &mut BlockBuffer,
        mut visit: impl FnMut(&Block) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        self.opened.vectors.read(unit, Blocks { max_rows, buffer, visit: &mut visit })
    }

    /// Calls `visit` with blocks of at most `max_rows` rows, in order, from row `first_row` on. Break ends
    /// the reading. Rows without a vector (null) are in no block.
    pub fn for_each_block(
        &self,
        first_row: usize,
        max_rows: usize,
        mut visit: impl FnMut(&Block) -> Result<ControlFlow<()>>,
    ) -> Result<()> {
        let mut buffer = BlockBuffer::default();
        for unit in self.units(max_rows) {
            let unit = unit.start.max(first_row)..unit.end;
            if !unit.is_empty() && self.read_unit(unit, max_rows, &mut buffer, &mut visit)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Calls `visit` with one block of these rows, ascending and distinct. [`Block::first_row`] is 0: row `i`
    /// of the block is row `rows[i]` of the file.
    pub fn read_rows<T>(&self, rows: &[usize], visit: impl FnOnce(&Block) -> Result<T>) -> Result<T> {
        let (mut buffer, mut gathered) = (BlockBuffer::default(), BlockBuffer::default());
        gathered.clear();
        let units = self.units(GATHERED_ROWS);
        for (_, wanted) in rows_by_unit(rows, &units) {
            let range = wanted[0]..wanted[wanted.len() - 1] + 1;
            let mut wanted = wanted.iter().peekable();
            let _ = self.read_unit(range, GATHERED_ROWS, &mut buffer, |block| {
                while let Some(row) = wanted.next_if(|row| **row < block.first_row + block.rows) {
                    if *row < block.first_row {
                        return Err(no_vector(&self.name, *row));
                    }
                    gathered.push_row(block, row - block.first_row);
                }
                Ok(ControlFlow::Continue(()))
            })?;
            if let Some(row) = wanted.next() {
                return Err(no_vector(&self.name, *row));
            }
        }
        visit(&gathered.block(self.dtype(), 0, rows.len(), self.dimensions()))
    }

    /// The columns beside the vectors: `index`, `id`, `chunk`, `start`, `end` and kept columns, as far as the
    /// file has them.
    pub fn columns(&self) -> &[KeptColumn] {
        self.opened.columns.columns()
    }

    /// The index of the column of ids, if the file has one.
    pub fn id_column(&self) -> Option<usize> {
        let name = self.metadata().id_column();
        self.columns().iter().position(|column| column.name == name)
    }

    /// The index of the column of this name, which `option` names.
    ///
    /// # Errors
    /// If the file has no such column, or several: a usage error.
    pub fn column(&self, name: &str, option: &str) -> Result<usize> {
        let columns = self.columns().iter().map(|column| column.name.as_str());
        let found: Vec<usize> =
            columns.clone().enumerate().filter(|(_, column)| *column == name).map(|(i, _)| i).collect();
        match found[..] {
            [found] => Ok(found),
            [] => {
                let names: Vec<&str> = columns.collect();
                let names = if names.is_empty() { "none".into() } else { names.join(", ") };
                bail!(UsageError(format!(
                    "{option} {name}: {} has no such column (columns: {names}); choose one of these",
                    self.name
                )))
            }
            _ => Err(has_several(&self.name, "column", name, found.len(), option)),
        }
    }

    /// The values of columns, given by their indices in [`VectorFile::columns`], in rows that are ascending
    /// and distinct: one list per row.
    pub fn values(&self, rows: &[usize], columns: &[usize]) -> Result<Vec<Vec<FieldValue>>> {
        if columns.is_empty() || rows.is_empty() {
            return Ok(vec![Vec::new(); rows.len()]);
        }
        self.opened.columns.values(rows, columns)
    }
}

fn open_format(
    path: &Path,
    name: &Arc<str>,
    (file, size): (File, u64),
    start: &[u8],
    field: VectorField,
) -> Result<Opened> {
    if start.is_empty() {
        bail!("{name} is empty; {PASS_VECTORS}");
    }
    match sniff(start) {
        Some(Kind::Npy) => return arrays::open_npy(path, name, (file, size), field),
        Some(Kind::Zip) => return arrays::open_npz(name, file, size, field),
        Some(kind @ (Kind::Parquet | Kind::Arrow)) => return columnar::open(name, file, kind, field),
        Some(Kind::Compressed(_) | Kind::Unsupported(..)) => {
            bail!("{name} is compressed; decompress it first")
        }
        _ => {}
    }
    // A header may be longer than the first bytes tell.
    if let Some(length) = header_length(start, size) {
        return arrays::open_safetensors(name, (file, size), length, field);
    }
    if start.trim_ascii_start().starts_with(b"{") {
        return jsonl::open(path, name, field);
    }
    super::csv::open(path, name, field)?.ok_or_else(|| anyhow!("{name} is not a vector file; {PASS_VECTORS}"))
}
