//! Reads the rows of csv files in bounded memory: a damaged file may have a row of any length.

use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};

use super::delimited::{Advance, FieldSyntax, Malformation, Row};
use crate::formats::error::unread;
use crate::formats::lines::{MAX_RECORD_BYTES, MAX_ROW_BYTES, RowUnits, VisitRow, too_long};
use crate::sys::regular_file;

const SYNTAX: FieldSyntax = FieldSyntax { delimiter: b',', quote: Some(b'"') };
const BUFFER_BYTES: usize = 1 << 16;
/// Bytes of a row for each field that it may have: the reader holds the position of each.
const BYTES_PER_FIELD: u64 = 16;

/// The rows of a csv file.
pub(crate) struct CsvRows {
    file: BufReader<File>,
    max_bytes: u64,
    max_fields: usize,
    /// The last row that was read.
    row: Row,
}

impl CsvRows {
    /// Opens a file that Sconce wrote.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::new(path, 0, MAX_ROW_BYTES)
    }

    /// The rows of a file from an offset on, of at most `max_bytes` each.
    fn new(path: &Path, start: u64, max_bytes: u64) -> io::Result<Self> {
        let mut file = regular_file::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        let file = BufReader::with_capacity(BUFFER_BYTES, file);
        let max_fields = (max_bytes / BYTES_PER_FIELD) as usize;
        Ok(CsvRows { file, max_bytes, max_fields, row: Row::new(SYNTAX, max_bytes, max_fields) })
    }

    /// The header, and the bytes of the file up to its end.
    pub(crate) fn header(&mut self) -> io::Result<(Vec<String>, u64)> {
        self.advance()?;
        let names = self.row.iter().map(|name| String::from_utf8(name.to_vec()));
        Ok((names.collect::<Result<_, _>>().map_err(io::Error::other)?, self.row.bytes_read()))
    }

    /// Reads the next row; `None` at the end.
    pub(crate) fn read(&mut self) -> io::Result<Option<&Row>> {
        Ok(if self.advance()? { Some(&self.row) } else { None })
    }

    /// Reads the next row into `row`; false at the end, where it is empty.
    fn advance(&mut self) -> io::Result<bool> {
        match self.row.advance(&mut self.file)? {
            Advance::Row(_) if self.row.len() <= self.max_fields => Ok(true),
            Advance::End => Ok(false),
            Advance::Row(_) | Advance::Malformed(_, Malformation::TooLong { .. }) => {
                Err(too_long(self.max_bytes))
            }
            Advance::Malformed(_, Malformation::OpenQuote) => {
                Err(io::Error::other("it has a quoted field that does not end"))
            }
            Advance::Malformed(_, Malformation::TextAfterQuote | Malformation::QuoteAfterBackslash) => {
                Err(io::Error::other("it has a quoted field with text after its closing quote"))
            }
        }
    }
}

/// The header and the first row of a file.
pub struct CsvStart {
    path: PathBuf,
    rows: CsvRows,
    /// The header.
    pub header: Vec<String>,
    /// Bytes of the file up to the end of the header.
    header_bytes: u64,
    /// Whether there is a first row.
    has_rows: bool,
}

impl CsvStart {
    /// Reads the start of a file; `None` if it is no text.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut rows = CsvRows::new(path, 0, MAX_RECORD_BYTES)?;
        let Ok((header, header_bytes)) = rows.header() else { return Ok(None) };
        let Ok(has_rows) = rows.advance() else { return Ok(None) };
        Ok(Some(CsvStart { path: path.to_owned(), rows, header, header_bytes, has_rows }))
    }

    /// The first row; empty if there is none.
    pub fn first(&self) -> &Row {
        &self.rows.row
    }

    /// The first row that `is_wanted` accepts.
    pub fn find_row(&self, is_wanted: impl Fn(&Row) -> bool) -> io::Result<Option<Row>> {
        let mut rows = CsvRows::new(&self.path, self.header_bytes, MAX_RECORD_BYTES)?;
        while rows.advance()? {
            if is_wanted(&rows.row) {
                return Ok(Some(rows.row));
            }
        }
        Ok(None)
    }

    /// Finds the rows of the file `name`, and calls `visit` with each one and its number.
    pub fn index(mut self, name: &Arc<str>, mut visit: impl FnMut(usize, &Row)) -> io::Result<CsvFile> {
        let (mut units, mut start, mut rows) = (RowUnits::default(), self.header_bytes, 0);
        while self.has_rows {
            visit(rows, &self.rows.row);
            rows += 1;
            let end = self.rows.row.bytes_read();
            self.has_rows = self.rows.advance()?;
            units.end_row(rows, &mut start, end, !self.has_rows);
        }
        Ok(CsvFile { name: name.clone(), path: self.path, units })
    }
}

/// A file whose rows are read in units. A row may have any number of fields.
pub struct CsvFile {
    name: Arc<str>,
    path: PathBuf,
    units: RowUnits,
}

impl CsvFile {
    /// The rows of each unit.
    pub fn units(&self) -> &[Range<usize>] {
        &self.units.rows
    }

    /// Calls `visit` with the rows of a unit and their numbers. Break ends the reading.
    pub fn for_each_row(&self, unit: usize, visit: &mut VisitRow<Row>) -> Result<ControlFlow<()>> {
        let rows = CsvRows::new(&self.path, self.units.offsets[unit], MAX_RECORD_BYTES);
        let mut rows = rows.map_err(|error| unread(&self.name, error))?;
        for number in self.units.rows[unit].clone() {
            let Some(row) = rows.read().map_err(|error| unread(&self.name, error))? else {
                bail!("{} was changed while it was read; run the command again", self.name);
            };
            if visit(number, row)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
