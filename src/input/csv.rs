//! CSV and TSV: a header row, then one record per row.

use std::io::{self, BufRead, Read};
use std::str;
use std::sync::Arc;

use anyhow::{Error, Result, anyhow, bail};
use csv::{ByteRecord, Reader, ReaderBuilder};
use serde_json::Value;

use super::error::missing_column;
use super::limit::ReadLimit;
use super::reader::InputReader;
use super::record::{
    Entry, Fields, KeptField, KeptName, Location, Position, Record, TextFields, built_in_field,
};

/// What the reader appends to the input: an extra row, or, if a quoted field is still open at the end of the input, the
/// end of that field. The `csv` crate would accept the open field, with all following rows in it.
const END_MARK: &[u8] = b"\n\x1a";

/// Bytes of a row for each field that it may have. The `csv` crate holds the end of each field, in twice as many bytes.
const BYTES_PER_FIELD: u64 = 4;
/// Bytes that are passed to the `csv` crate at a time.
const BUFFER_BYTES: usize = 1 << 16;

const NOT_UTF8: &str = "is not valid UTF-8; convert the file to UTF-8, for example with iconv";
const CLOSE_QUOTE: &str = "close the open quote, and write a quote inside a quoted field twice";

/// The rows of an input.
pub(super) struct CsvRows {
    name: Arc<str>,
    reader: Reader<BoundedReader>,
    /// The last row that was read.
    row: ByteRecord,
    limit: ReadLimit,
    /// The line after the last row: the next row starts in it, or after blank lines.
    line: u64,
    /// The number of columns in the header.
    columns: usize,
    text: TextFields,
    /// The columns of the text.
    text_columns: Vec<usize>,
    pair: Option<usize>,
    id: Option<usize>,
    keep: Vec<KeptField<usize>>,
}

impl CsvRows {
    /// Reads the header.
    ///
    /// # Errors
    /// If reading fails, the header is not UTF-8, or it does not have one of the columns.
    pub(super) fn open(input: InputReader, delimiter: u8, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let name = input.name.clone();
        let reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(BUFFER_BYTES)
            .from_reader(BoundedReader::new(input, delimiter));
        let mut rows = CsvRows {
            name,
            reader,
            row: ByteRecord::new(),
            limit,
            line: 1,
            columns: 0,
            text: fields.text.clone(),
            text_columns: Vec::new(),
            pair: None,
            id: None,
            keep: Vec::new(),
        };
        match rows.advance()? {
            Some(line) if rows.row.iter().any(|name| str::from_utf8(name).is_err()) => {
                bail!("{} line {line} {NOT_UTF8}", rows.name);
            }
            Some(_) => {}
            // The input is empty, and the row is the end mark.
            None => rows.row.clear(),
        }
        rows.find_columns(fields)?;
        Ok(rows)
    }

    /// Finds the columns of the fields in the header, which is the last row that was read.
    fn find_columns(&mut self, fields: &Fields) -> Result<()> {
        let names = || self.row.iter().filter_map(|name| str::from_utf8(name).ok());
        // A byte order mark is not part of the first name.
        let find = |name: &str| names().position(|column| column.trim_start_matches('\u{feff}') == name);
        let require = |name: &str, option: &str| {
            find(name).ok_or_else(|| missing_column(&self.name, name, names(), option))
        };
        let text = fields.text.names.iter().map(|name| require(name, "--text-field"));
        let text = text.collect::<Result<_>>()?;
        let pair = fields.pair.as_ref().map(|name| require(name, "--pair-field")).transpose()?;
        let id = match fields.id_option() {
            Some(option) => Some(require(fields.id_name(), option)?),
            None => find(fields.id_name()),
        };
        let keep = fields.keep.iter().map(|KeptName { field, .. }| match find(field) {
            None if Fields::is_built_in(field) => Ok(KeptField::BuiltIn(field.clone())),
            _ => require(field, "--keep").map(KeptField::Column),
        });
        let keep = keep.collect::<Result<_>>()?;
        (self.text_columns, self.pair, self.id, self.keep) = (text, pair, id, keep);
        self.columns = self.row.len();
        Ok(())
    }

    /// Bytes of the rows read so far, after decompression.
    pub(super) fn bytes_read(&self) -> u64 {
        let byte = self.reader.position().byte();
        self.reader.get_ref().end.map_or(byte, |end| byte.min(end))
    }

    /// Reads the next row; `None` at the end of the input.
    ///
    /// # Errors
    /// If reading fails, a row is too long, or a quoted field does not end.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        let Some(line) = self.advance()? else { return Ok(None) };
        let location = Location { source: self.name.clone(), position: Position::Line(line) };
        if self.row.len() != self.columns {
            let reason = format!(
                "has {} fields, but the header has {}; fix the row, or quote fields that contain the delimiter",
                self.row.len(),
                self.columns
            );
            return Ok(Some(Entry::unreadable(location, reason)));
        }
        Ok(Some(match self.record(location.clone()) {
            Ok(record) => Entry::Record(record),
            Err(reason) => Entry::unreadable(location, reason),
        }))
    }

    /// The record of the last row, or why it cannot be read.
    fn record(&self, location: Location) -> Result<Record, String> {
        let field = |column: usize| {
            str::from_utf8(&self.row[column]).map(str::to_owned).map_err(|_| NOT_UTF8.to_owned())
        };
        let text = self.text.join(|i| field(self.text_columns[i]).map(Some))?;
        let kept = self.keep.iter().map(|kept| match kept {
            KeptField::Column(column) => field(*column).map(|value| Value::String(value).into()),
            KeptField::BuiltIn(name) => Ok(built_in_field(name, &location, &text).unwrap_or_default()),
        });
        let kept = kept.collect::<Result<_, _>>()?;
        let id = self.id.map(field).transpose()?.map(Value::String);
        let pair = self.pair.map(field).transpose()?;
        Ok(Record { location, id, text, pair, kept })
    }

    /// Reads the next row into `row` and returns the line that it starts in; `None` at the end of the input.
    fn advance(&mut self) -> Result<Option<u64>> {
        // The bytes in the buffer of the `csv` crate were counted for the row before.
        let max_fields = self.limit.line_bytes() / BYTES_PER_FIELD;
        let bounded = self.reader.get_mut();
        bounded.bytes_left = self.limit.line_bytes() + BUFFER_BYTES as u64;
        bounded.fields_left = max_fields + BUFFER_BYTES as u64;
        match self.reader.read_byte_record(&mut self.row) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => return Err(self.row_error(error, max_fields)),
        }
        let position = self.reader.position();
        let (byte, line) = (position.byte(), position.line());
        // The `csv` crate counts line feeds, and leaves the line feed of `\r\n` to the next row.
        let inside = self.row.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
        let ended = u64::from(self.reader.get_ref().byte_at(byte - 1) == Some(b'\n'));
        let start = line.saturating_sub(inside + ended);
        self.line = start + inside + 1;
        if self.reader.get_ref().end.is_some_and(|end| byte > end + 1) {
            if self.row.len() == 1 && self.row[0] == END_MARK[1..] {
                return Ok(None);
            }
            bail!("{} line {start}: a quoted field of this row does not end; {CLOSE_QUOTE}", self.name);
        }
        Ok(Some(start))
    }

    /// The error for a row that the `csv` crate could not read.
    fn row_error(&self, error: csv::Error, max_fields: u64) -> Error {
        let bounded = self.reader.get_ref();
        match error.into_kind() {
            csv::ErrorKind::Io(_) if bounded.bytes_left == 0 => {
                let reason = self.limit.too_long(CLOSE_QUOTE);
                anyhow!("{} line {}: the row that starts here {reason}", self.name, self.line)
            }
            csv::ErrorKind::Io(_) if bounded.fields_left == 0 => anyhow!(
                "{} line {}: the row that starts here has more than {max_fields} fields, the maximum that fits into \
                 memory; check the delimiter, or remove columns",
                self.name,
                self.line
            ),
            csv::ErrorKind::Io(error) => {
                bounded.input.read_error(&format!("after line {}", self.line - 1), &error)
            }
            _ => anyhow!("{} line {} is not a CSV row; fix it", self.name, self.line),
        }
    }
}

/// The bytes of an input, up to limits that are reset for each row, and then [`END_MARK`].
struct BoundedReader {
    input: InputReader,
    delimiter: u8,
    /// Bytes that the next row may still have.
    bytes_left: u64,
    /// Fields that the next row may still have: the `csv` crate holds the end of each one in memory.
    fields_left: u64,
    /// The bytes of the last read.
    last: Vec<u8>,
    /// Bytes read in all.
    read: u64,
    /// The length of the input, once it is known.
    end: Option<u64>,
}

impl BoundedReader {
    fn new(input: InputReader, delimiter: u8) -> Self {
        BoundedReader {
            input,
            delimiter,
            bytes_left: 0,
            fields_left: 0,
            last: Vec::new(),
            read: 0,
            end: None,
        }
    }

    /// The byte at `offset` in the input, if it is one of the last read.
    fn byte_at(&self, offset: u64) -> Option<u8> {
        let start = self.read - self.last.len() as u64;
        offset.checked_sub(start).and_then(|i| self.last.get(i as usize)).copied()
    }
}

impl Read for BoundedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.bytes_left == 0 || self.fields_left == 0 {
            return Err(io::Error::other("the row is too long"));
        }
        if self.end.is_some() {
            return Ok(0);
        }
        let available = self.input.reader.fill_buf()?;
        let taken = available.len().min(buffer.len()).min(self.bytes_left as usize);
        let bytes = if taken == 0 { END_MARK } else { &available[..taken] };
        buffer[..bytes.len()].copy_from_slice(bytes);
        self.last.clear();
        self.last.extend_from_slice(bytes);
        if taken == 0 {
            self.end = Some(self.read);
        }
        self.read += self.last.len() as u64;
        self.bytes_left -= taken as u64;
        let fields = self.last.iter().filter(|byte| **byte == self.delimiter).count();
        self.fields_left = self.fields_left.saturating_sub(fields as u64);
        self.input.reader.consume(taken);
        Ok(self.last.len())
    }
}
