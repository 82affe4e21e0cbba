//! Reads the rows of csv files in bounded memory: a damaged file may have a row of any length.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::rc::Rc;

use csv::StringRecord;

use crate::formats::lines::{MAX_ROW_BYTES, too_long};
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
