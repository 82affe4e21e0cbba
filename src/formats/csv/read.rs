//! Reads the rows of csv files in bounded memory: a damaged file may have a row of any length. Unlike
//! [`Row`](super::Row), these readers are those of the `csv` crate, which takes any bytes for rows.

use std::cell::Cell;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
pub use csv::{ByteRecord, StringRecord};
use csv::{Position, Reader, ReaderBuilder};
use memchr::memchr_iter;

use crate::formats::lines::{MAX_RECORD_BYTES, MAX_ROW_BYTES, RowUnits, VisitRow, too_long};
use crate::sys::regular_file;

/// What the `csv` crate holds for each field beside its bytes.
const CSV_FIELD_BYTES: u64 = 16;

/// The rows of a csv file.
pub(crate) struct CsvRows {
    reader: Reader<LimitedRows>,
    /// Bytes that the current row may still take, and the maximum.
    left: Rc<Cell<u64>>,
    max_bytes: u64,
}

impl CsvRows {
    /// Opens a file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Self::new(path, 0, MAX_ROW_BYTES, &ReaderBuilder::new())
    }

    /// The rows of a file from an offset on, of at most `max_bytes` each.
    fn new(path: &Path, start: u64, max_bytes: u64, builder: &ReaderBuilder) -> io::Result<Self> {
        let mut file = regular_file::open(path)?;
        file.seek(SeekFrom::Start(start))?;
        let left = Rc::new(Cell::new(max_bytes));
        let rows = LimitedRows { file, max_bytes, left: left.clone() };
        Ok(CsvRows { reader: builder.from_reader(rows), left, max_bytes })
    }

    /// The header, and the bytes of the file up to its end.
    pub(crate) fn header(&mut self) -> csv::Result<(StringRecord, u64)> {
        let header = self.reader.headers()?.clone();
        Ok((header, self.reader.position().byte()))
    }

    /// Reads the next row; false at the end.
    pub(crate) fn read(&mut self, row: &mut StringRecord) -> csv::Result<bool> {
        self.left.set(self.max_bytes);
        self.reader.read_record(row)
    }

    /// Reads the next row, whose fields may be any bytes; false at the end.
    fn read_bytes(&mut self, row: &mut ByteRecord) -> csv::Result<bool> {
        self.left.set(self.max_bytes);
        self.reader.read_byte_record(row)
    }
}

/// The bytes of a file, up to a limit that is set anew for each row: the `csv` crate holds a whole row, and
/// takes any file for one.
struct LimitedRows {
    file: File,
    max_bytes: u64,
    left: Rc<Cell<u64>>,
}

impl Read for LimitedRows {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        let fields = memchr_iter(b',', &bytes[..read]).count() as u64;
        let left = self.left.get().checked_sub(read as u64 + CSV_FIELD_BYTES * fields);
        self.left.set(left.ok_or_else(|| too_long(self.max_bytes))?);
        Ok(read)
    }
}

impl Seek for LimitedRows {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.file.seek(position)
    }
}

/// The header and the first row of a file.
pub struct CsvStart {
    path: PathBuf,
    rows: CsvRows,
    /// The position of the first row.
    position: Position,
    /// The header.
    pub header: StringRecord,
    /// The first row; empty if there is none.
    pub first: ByteRecord,
}

impl CsvStart {
    /// Reads the start of a file; `None` if it is no text.
    pub fn read(path: &Path) -> io::Result<Option<Self>> {
        let mut rows = CsvRows::new(path, 0, MAX_RECORD_BYTES, ReaderBuilder::new().flexible(true))?;
        let Ok((header, _)) = rows.header() else { return Ok(None) };
        let (position, mut first) = (rows.reader.position().clone(), ByteRecord::new());
        let is_text = rows.read_bytes(&mut first).is_ok();
        Ok(is_text.then_some(CsvStart { path: path.to_owned(), rows, position, header, first }))
    }

    /// Finds the rows of the file `name`, and calls `visit` with each one and its number.
    pub fn index(
        mut self,
        name: &Arc<str>,
        mut visit: impl FnMut(usize, &ByteRecord),
    ) -> csv::Result<CsvFile> {
        let mut start = self.position.byte();
        self.rows.reader.seek(self.position)?;
        let (mut units, mut record, mut row) = (RowUnits::default(), ByteRecord::new(), 0);
        loop {
            let is_end = !self.rows.read_bytes(&mut record)?;
            if !is_end {
                visit(row, &record);
                row += 1;
            }
            units.end_row(row, &mut start, self.rows.reader.position().byte(), is_end);
            if is_end {
                return Ok(CsvFile { name: name.clone(), path: self.path, units });
            }
        }
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
    pub fn for_each_row(&self, unit: usize, visit: &mut VisitRow<ByteRecord>) -> Result<ControlFlow<()>> {
        let unread = |error: &dyn Display| anyhow!("cannot read {} ({error}); check the file", self.name);
        let mut builder = ReaderBuilder::new();
        builder.has_headers(false).flexible(true);
        let rows = CsvRows::new(&self.path, self.units.offsets[unit], MAX_RECORD_BYTES, &builder);
        let mut rows = rows.map_err(|error| unread(&error))?;
        let mut record = ByteRecord::new();
        for row in self.units.rows[unit].clone() {
            if !rows.read_bytes(&mut record).map_err(|error| unread(&error))? {
                bail!("{} was changed while it was read; run the command again", self.name);
            }
            if visit(row, &record)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
