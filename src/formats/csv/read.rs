//! Reads the rows of csv files in bounded memory: a damaged file may have a row of any length. Unlike [`Row`](super::Row), these readers are
//! those of the `csv` crate, which takes any bytes for rows.

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

use crate::formats::lines::{MAX_RECORD_BYTES, MAX_ROW_BYTES, RowUnits, too_long};
use crate::sys::regular_file;

/// What the `csv` crate holds for each field beside its bytes.
const CSV_FIELD_BYTES: u64 = 16;

/// The rows of a csv file.
pub(crate) struct CsvRows {
    reader: csv::Reader<RowLimit>,
    left: Rc<Cell<u64>>,
}

impl CsvRows {
    /// Opens a file.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let left = Rc::new(Cell::new(MAX_ROW_BYTES));
        let limit = RowLimit { file: regular_file::open(path)?, left: left.clone() };
        Ok(CsvRows { reader: csv::Reader::from_reader(limit), left })
    }

    /// The header, and the bytes of the file up to its end.
    pub(crate) fn header(&mut self) -> csv::Result<(StringRecord, u64)> {
        let header = self.reader.headers()?.clone();
        Ok((header, self.reader.position().byte()))
    }

    /// Reads the next row; false at the end.
    pub(crate) fn read(&mut self, row: &mut StringRecord) -> csv::Result<bool> {
        self.left.set(MAX_ROW_BYTES);
        self.reader.read_record(row)
    }
}

/// The bytes of a file, up to a limit that is set anew for each row.
struct RowLimit {
    file: File,
    /// Bytes that the current row may still take.
    left: Rc<Cell<u64>>,
}

impl Read for RowLimit {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(bytes)?;
        let fields = bytes[..read].iter().filter(|byte| **byte == b',').count() as u64;
        let left = self.left.get().checked_sub(read as u64 + CSV_FIELD_BYTES * fields);
        self.left.set(left.ok_or_else(too_long)?);
        Ok(read)
    }
}

/// The header and the first row of a file.
pub struct CsvStart {
    path: PathBuf,
    reader: Reader<LimitedLines>,
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
        let file = LimitedLines { file: File::open(path)?, bytes: 0 };
        let mut reader = ReaderBuilder::new().flexible(true).from_reader(file);
        let Ok(header) = reader.headers().cloned() else { return Ok(None) };
        let (position, mut first) = (reader.position().clone(), ByteRecord::new());
        let is_text = reader.read_byte_record(&mut first).is_ok();
        Ok(is_text.then_some(CsvStart { path: path.to_owned(), reader, position, header, first }))
    }

    /// Finds the rows of the file `name`, and calls `visit` with each one and its number.
    pub fn index(
        mut self,
        name: &Arc<str>,
        mut visit: impl FnMut(usize, &ByteRecord),
    ) -> csv::Result<CsvFile> {
        let mut start = self.position.byte();
        self.reader.seek(self.position)?;
        let (mut units, mut record, mut row) = (RowUnits::default(), ByteRecord::new(), 0);
        loop {
            let is_end = !self.reader.read_byte_record(&mut record)?;
            if !is_end {
                visit(row, &record);
                row += 1;
            }
            units.end_row(row, &mut start, self.reader.position().byte(), is_end);
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
    pub fn for_each_row(
        &self,
        unit: usize,
        visit: &mut dyn FnMut(usize, &ByteRecord) -> Result<ControlFlow<()>>,
    ) -> Result<ControlFlow<()>> {
        let unread = |error: &dyn Display| anyhow!("cannot read {} ({error}); check the file", self.name);
        let mut file = File::open(&self.path).map_err(|error| unread(&error))?;
        file.seek(SeekFrom::Start(self.units.offsets[unit])).map_err(|error| unread(&error))?;
        let mut reader = ReaderBuilder::new().has_headers(false).flexible(true).from_reader(file);
        let mut record = ByteRecord::new();
        for row in self.units.rows[unit].clone() {
            if !reader.read_byte_record(&mut record).map_err(|error| unread(&error))? {
                bail!("{} was changed while it was read; run the command again", self.name);
            }
            if visit(row, &record)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// A file whose lines have at most [`MAX_RECORD_BYTES`]: the `csv` crate holds a whole record, and takes any file for one.
struct LimitedLines {
    file: File,
    /// Bytes since the last line end.
    bytes: u64,
}

impl Read for LimitedLines {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.bytes = match memchr::memrchr(b'\n', &buffer[..read]) {
            Some(end) => (read - end - 1) as u64,
            None => self.bytes + read as u64,
        };
        if self.bytes > MAX_RECORD_BYTES {
            let max_mib = MAX_RECORD_BYTES >> 20;
            return Err(io::Error::other(format!("it has a line longer than {max_mib} MiB")));
        }
        Ok(read)
    }
}

impl Seek for LimitedLines {
    fn seek(&mut self, position: SeekFrom) -> io::Result<u64> {
        self.bytes = 0;
        self.file.seek(position)
    }
}
