//! CSV and TSV: a header, then a row a text.

use std::io::{self, BufRead, Read};
use std::str;
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use csv::{ByteRecord, Reader, ReaderBuilder};
use serde_json::Value;

use super::bytes::Bytes;
use super::columns::missing;
use super::record::own_field;
use super::{At, Entry, Fields, ReadLimit, Record, Spot};

/// What the reader puts behind the last byte: a row of its own, unless a quoted field is still open there. The `csv`
/// crate takes such a field as it stands, and with it all rows that it has swallowed.
const END: &[u8] = b"\n\x1a";

/// A field that goes along: a column, or one that every record has.
enum Kept {
    Column(usize),
    Own(String),
}

/// The rows of an input.
pub struct Table {
    shown: Arc<str>,
    reader: Reader<Bounded>,
    row: ByteRecord,
    limit: ReadLimit,
    /// The line in which the next row begins, blank lines aside.
    line: u64,
    header: usize,
    text: usize,
    pair: Option<usize>,
    id: Option<usize>,
    keep: Vec<Kept>,
}

impl Table {
    /// Reads the header of these bytes.
    ///
    /// # Errors
    /// If the bytes cannot be read, or the header lacks a column.
    pub fn open(bytes: Bytes, delimiter: u8, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let shown = bytes.shown.clone();
        let bounded = Bounded { bytes, delimiter, left: 0, fields: 0, chunk: Vec::new(), read: 0, end: None };
        let reader = ReaderBuilder::new()
            .delimiter(delimiter)
            .has_headers(false)
            .flexible(true)
            .buffer_capacity(CHUNK)
            .from_reader(bounded);
        let (row, keep) = (ByteRecord::new(), Vec::new());
        let mut table =
            Table { shown, reader, row, limit, line: 1, header: 0, text: 0, pair: None, id: None, keep };
        match table.advance()? {
            Some(line) if table.row.iter().any(|name| str::from_utf8(name).is_err()) => {
                bail!("{} line {line} {NOT_UTF8}", table.shown);
            }
            Some(_) => {}
            // What is there is the mark at the end.
            None => table.row.clear(),
        }
        let names = || table.row.iter().filter_map(|name| str::from_utf8(name).ok());
        // A byte order mark is not part of the first name.
        let column = |name: &str| names().position(|column| column.trim_start_matches('\u{feff}') == name);
        let wanted = |name: &str, option: &str| {
            column(name).ok_or_else(|| missing(&table.shown, name, names(), option))
        };
        let text = wanted(&fields.text, "--text-field")?;
        let pair = fields.pair.as_ref().map(|name| wanted(name, "--pair-field")).transpose()?;
        let id = match &fields.id {
            Some(name) => Some(wanted(name, "--id-field")?),
            None => column(fields.id()),
        };
        let keep = fields.keep.iter().map(|name| match column(name) {
            None if Fields::is_own(name) => Ok(Kept::Own(name.clone())),
            _ => wanted(name, "--keep").map(Kept::Column),
        });
        let keep = keep.collect::<Result<_>>()?;
        let header = table.row.len();
        Ok(Table { text, pair, id, keep, header, ..table })
    }

    /// Bytes behind the rows so far.
    pub fn behind(&self) -> u64 {
        let byte = self.reader.position().byte();
        self.reader.get_ref().end.map_or(byte, |end| byte.min(end))
    }

    /// The next row; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on, or a quoted field does not end.
    pub fn read(&mut self) -> Result<Option<Entry>> {
        let Some(line) = self.advance()? else { return Ok(None) };
        let place = Spot { source: self.shown.clone(), at: At::Line(line) };
        if self.row.len() != self.header {
            let reason = format!(
                "has {} fields, but the header has {}; mend the row, or put what holds delimiters in quotes",
                self.row.len(),
                self.header
            );
            return Ok(Some(Entry::unreadable(place, reason)));
        }
        let field = |column: usize| str::from_utf8(&self.row[column]).map(str::to_owned);
        let record = || {
            let text = field(self.text)?;
            let kept = self.keep.iter().map(|kept| match kept {
                Kept::Column(column) => field(*column).map(|value| Value::String(value).into()),
                Kept::Own(name) => Ok(own_field(name, &place, &text).unwrap_or_default()),
            });
            let kept = kept.collect::<Result<_, _>>()?;
            Ok::<_, str::Utf8Error>(Record {
                place: place.clone(),
                id: self.id.map(field).transpose()?.map(Value::String),
                text,
                pair: self.pair.map(field).transpose()?,
                kept,
            })
        };
        Ok(Some(match record() {
            Ok(record) => Entry::Record(record),
            Err(_) => Entry::unreadable(place, NOT_UTF8),
        }))
    }

    /// Takes the next row into `row` and gives the line in which it begins; none at the end.
    fn advance(&mut self) -> Result<Option<u64>> {
        // What is in the reader's own buffer was counted for the row before.
        let most_fields = self.limit.line_bytes() / FIELD_BYTES;
        let bounded = self.reader.get_mut();
        (bounded.left, bounded.fields) = (self.limit.line_bytes() + CHUNK as u64, most_fields + CHUNK as u64);
        match self.reader.read_byte_record(&mut self.row) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => {
                let bounded = self.reader.get_ref();
                bail!(match error.into_kind() {
                    csv::ErrorKind::Io(_) if bounded.left == 0 => anyhow!(
                        "{} line {}: the row that begins here {}",
                        self.shown,
                        self.line,
                        self.limit.too_long(CLOSE)
                    ),
                    csv::ErrorKind::Io(_) if bounded.fields == 0 => anyhow!(
                        "{} line {}: the row that begins here has more than {most_fields} fields, the most that fit into \
                         memory; check the delimiter, or leave columns out",
                        self.shown,
                        self.line
                    ),
                    csv::ErrorKind::Io(error) => {
                        bounded.bytes.unreadable(&format!("after line {}", self.line - 1), &error)
                    }
                    _ => anyhow!("{} line {} is no row of a table; mend it", self.shown, self.line),
                });
            }
        }
        let position = self.reader.position();
        let (byte, line) = (position.byte(), position.line());
        // The reader counts line feeds; it leaves that of `\r\n` to the next row.
        let inside = self.row.as_slice().iter().filter(|byte| **byte == b'\n').count() as u64;
        let ended = u64::from(self.reader.get_ref().at(byte - 1) == Some(b'\n'));
        let begin = line.saturating_sub(inside + ended);
        self.line = begin + inside + 1;
        if self.reader.get_ref().end.is_some_and(|end| byte > end + 1) {
            if self.row.len() == 1 && self.row[0] == END[1..] {
                return Ok(None);
            }
            bail!(
                "{} line {begin}: a quoted field of the row that begins here does not end; {CLOSE}",
                self.shown
            );
        }
        Ok(Some(begin))
    }
}

const NOT_UTF8: &str = "is not valid UTF-8; convert the file to UTF-8, for example with iconv";
const CLOSE: &str = "close the quote that was left open, and write a quote inside of a quoted field twice";

/// Bytes of a row for each field that it may have: the `csv` crate holds the end of every field, in twice as many.
const FIELD_BYTES: u64 = 4;
/// Bytes that are handed to the `csv` crate at a time.
const CHUNK: usize = 1 << 16;

/// The bytes of a table, up to limits that are set anew for each row.
struct Bounded {
    bytes: Bytes,
    delimiter: u8,
    /// Bytes that may still be handed out.
    left: u64,
    /// Delimiters that may still be handed out: the `csv` crate holds the end of every field.
    fields: u64,
    /// What was handed out last, and all that was handed out before it and with it, in bytes.
    chunk: Vec<u8>,
    read: u64,
    /// The length of the input, once it is known.
    end: Option<u64>,
}

impl Bounded {
    /// A byte of what was handed out last, by its place in the input.
    fn at(&self, place: u64) -> Option<u8> {
        let before = self.read - self.chunk.len() as u64;
        place.checked_sub(before).and_then(|i| self.chunk.get(i as usize)).copied()
    }
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 || self.fields == 0 {
            return Err(io::Error::other("the row is too long"));
        }
        if self.end.is_some() {
            return Ok(0);
        }
        let most = buffer.len().min(self.left as usize);
        let ahead = self.bytes.reader.fill_buf()?;
        let taken = ahead.len().min(most);
        let chunk = if taken == 0 { END } else { &ahead[..taken] };
        buffer[..chunk.len()].copy_from_slice(chunk);
        self.chunk.clear();
        self.chunk.extend_from_slice(chunk);
        if taken == 0 {
            self.end = Some(self.read);
        }
        self.read += self.chunk.len() as u64;
        self.left -= taken as u64;
        let fields = self.chunk.iter().filter(|byte| **byte == self.delimiter).count();
        self.fields = self.fields.saturating_sub(fields as u64);
        self.bytes.reader.consume(taken);
        Ok(self.chunk.len())
    }
}
