//! Splits delimited text into rows and fields, as [RFC 4180](https://www.rfc-editor.org/rfc/rfc4180)
//! describes csv.
//!
//! A quote that closes has to be followed by a delimiter or the end of the row. The `csv` crate reads any
//! other text there, and so joins rows between two stray quotes. Here, a row with such a field is malformed,
//! and reading goes on in the line after the one in which the field begins, so that the rows that it would
//! join are read.

use std::io::{self, BufRead};
use std::ops::Index;

use memchr::{memchr, memchr_iter, memchr2, memchr3};

/// How fields are delimited and quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FieldSyntax {
    /// The byte between two fields.
    pub delimiter: u8,
    /// The byte before and after a quoted field, written twice inside it. `None`: quotes are plain text.
    pub quote: Option<u8>,
}

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What [`Row::advance`] has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Advance {
    /// A row, which starts in this line.
    Row(u64),
    /// A row with a field that cannot be read, which begins in this line.
    Malformed(u64, Malformation),
    /// The end of the input.
    End,
}

/// Why a field cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformation {
    /// It is quoted and does not end.
    OpenQuote,
    /// Its closing quote is followed by other text than a delimiter or the end of the row.
    TextAfterQuote,
    /// As [`Malformation::TextAfterQuote`], after a backslash, which some writers put before a quote.
    QuoteAfterBackslash,
    /// The row up to its end is longer than the limit.
    TooLong {
        /// Whether the field is quoted.
        is_quoted: bool,
    },
}

/// A row of an input, with the bytes that were read ahead.
pub struct Row {
    syntax: FieldSyntax,
    /// Maximum size of a row, in bytes.
    max_bytes: usize,
    /// Maximum number of fields that are stored.
    max_fields: usize,
    bytes: Vec<u8>,
    /// Bytes of the input that are no longer in `bytes`.
    dropped: u64,
    /// The start of the row in `bytes`.
    start: usize,
    /// The start of the field that is being read.
    field_start: usize,
    /// The position in `bytes` up to which the input is split.
    at: usize,
    /// Whether `bytes` reaches to the end of the input.
    is_end: bool,
    state: State,
    /// The stored fields, without quotes: their start and end after `start`.
    fields: Vec<(u32, u32)>,
    /// The number of fields, stored or not.
    len: usize,
    /// The line at `start`.
    line: u64,
    /// Line feeds inside the fields of the row.
    inner_lines: u64,
}

/// Where in a row the next byte is.
#[derive(Clone, Copy)]
enum State {
    /// At the start of the input, where a byte order mark may be.
    Input,
    /// Before a row. `after_return`: a line feed belongs to the carriage return before it.
    Row { after_return: bool },
    /// At the start of a field.
    Field,
    /// In a field without quotes.
    Unquoted,
    /// In a field between two `quote`s. `has_doubled`: one inside it was written twice.
    Quoted { quote: u8, has_doubled: bool },
    /// In the line where a malformed field begins.
    MalformedLine,
}

impl Row {
    /// No row yet. Rows may have `max_bytes` bytes; the first `max_fields` fields of a row are stored.
    pub fn new(syntax: FieldSyntax, max_bytes: u64, max_fields: usize) -> Self {
        Row {
            syntax,
            max_bytes: max_bytes as usize,
            max_fields,
            bytes: Vec::new(),
            dropped: 0,
            start: 0,
            field_start: 0,
            at: 0,
            is_end: false,
            state: State::Input,
            fields: Vec::new(),
            len: 0,
            line: 1,
            inner_lines: 0,
        }
    }

    /// Stores only the first `max_fields` fields of the rows that follow.
    pub fn store_fields(&mut self, max_fields: usize) {
        self.max_fields = max_fields;
    }

    /// The bytes of a field; `None` if the row has no such field, or it is not stored.
    pub fn get(&self, field: usize) -> Option<&[u8]> {
        (field < self.fields.len()).then(|| &self[field])
    }

    /// The number of fields.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The stored fields.
    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.fields.len()).map(|field| &self[field])
    }

    /// Lines of the row, if the last one ends with it.
    pub fn lines(&self) -> u64 {
        self.inner_lines + 1
    }

    /// The line after the row.
    pub fn next_line(&self) -> u64 {
        self.line
    }

    /// Bytes of the input up to the end of the row.
    pub fn bytes_read(&self) -> u64 {
        self.dropped + self.at as u64
    }

    /// Reads the next row. Blank lines are skipped.
    pub fn advance(&mut self, reader: &mut dyn BufRead) -> io::Result<Advance> {
        loop {
            if let Some(advance) = self.split() {
                return Ok(advance);
            }
            if self.at - self.start > self.max_bytes {
                let is_quoted = matches!(self.state, State::Quoted { .. });
                return Ok(self.malformed(Malformation::TooLong { is_quoted }));
            }
            self.fill(reader)?;
        }
    }

    /// Reads more bytes after those of the row.
    fn fill(&mut self, reader: &mut dyn BufRead) -> io::Result<()> {
        let available = reader.fill_buf()?;
        self.bytes.drain(..self.start);
        self.dropped += self.start as u64;
        self.field_start -= self.start;
        self.at -= self.start;
        self.start = 0;
        self.bytes.extend_from_slice(available);
        let read = available.len();
        reader.consume(read);
        self.is_end = read == 0;
        Ok(())
    }

    /// Splits the bytes that were read; `None` if they end before the row does.
    fn split(&mut self) -> Option<Advance> {
        loop {
            let rest = &self.bytes[self.at..];
            match self.state {
                State::Input if !self.is_end && BYTE_ORDER_MARK.starts_with(rest) && rest.len() < 3 => {
                    return None;
                }
                State::Input => {
                    self.at += if rest.starts_with(BYTE_ORDER_MARK) { 3 } else { 0 };
                    self.state = State::Row { after_return: false };
                }
                State::Row { after_return } => {
                    self.start_row();
                    match self.bytes.get(self.at) {
                        None => return self.is_end.then_some(Advance::End),
                        Some(b'\n') if after_return => {
                            self.at += 1;
                            self.state = State::Row { after_return: false };
                        }
                        Some(end @ (b'\n' | b'\r')) => self.end_line(*end),
                        Some(_) => self.state = State::Field,
                    }
                }
                State::Field => {
                    self.field_start = self.at;
                    match (rest.first(), self.syntax.quote) {
                        (None, _) if !self.is_end => return None,
                        (Some(first), Some(quote)) if *first == quote => {
                            self.at += 1;
                            self.state = State::Quoted { quote, has_doubled: false };
                        }
                        _ => self.state = State::Unquoted,
                    }
                }
                State::Unquoted => {
                    let end = memchr3(self.syntax.delimiter, b'\n', b'\r', rest);
                    if end.is_none() && !self.is_end {
                        self.at = self.bytes.len();
                        return None;
                    }
                    let end = self.at + end.unwrap_or(rest.len());
                    self.push_field(self.field_start, end);
                    if let Some(row) = self.end_field(end) {
                        return Some(row);
                    }
                }
                State::Quoted { quote, has_doubled } => {
                    let Some(close) = memchr(quote, rest) else {
                        self.at = self.bytes.len();
                        return self.is_end.then(|| self.malformed(Malformation::OpenQuote));
                    };
                    match rest.get(close + 1) {
                        None if !self.is_end => {
                            self.at += close;
                            return None;
                        }
                        Some(next) if *next == quote => {
                            self.at += close + 2;
                            self.state = State::Quoted { quote, has_doubled: true };
                        }
                        Some(next) if ![self.syntax.delimiter, b'\n', b'\r'].contains(next) => {
                            let is_escaped = self.bytes[self.at + close - 1] == b'\\';
                            return Some(self.malformed(match is_escaped {
                                true => Malformation::QuoteAfterBackslash,
                                false => Malformation::TextAfterQuote,
                            }));
                        }
                        _ => {
                            let close = self.at + close;
                            self.push_quoted_field(close, quote, has_doubled);
                            if let Some(row) = self.end_field(close + 1) {
                                return Some(row);
                            }
                        }
                    }
                }
                State::MalformedLine => match memchr2(b'\n', b'\r', rest) {
                    Some(end) => {
                        self.at += end;
                        self.end_line(self.bytes[self.at]);
                    }
                    None => {
                        self.at = self.bytes.len();
                        self.start_row();
                        return self.is_end.then_some(Advance::End);
                    }
                },
            }
        }
    }

    /// Starts a row at the current position.
    fn start_row(&mut self) {
        self.start = self.at;
        self.field_start = self.at;
        self.fields.clear();
        (self.len, self.inner_lines) = (0, 0);
    }

    /// Ends a line at the line feed or carriage return `end`, which is the next byte.
    fn end_line(&mut self, end: u8) {
        self.at += 1;
        self.line += 1;
        self.state = State::Row { after_return: end == b'\r' };
    }

    /// Adds a field.
    fn push_field(&mut self, start: usize, end: usize) {
        if self.len < self.max_fields {
            self.fields.push(((start - self.start) as u32, (end - self.start) as u32));
        }
        self.len += 1;
    }

    /// Adds the field up to its closing quote.
    fn push_quoted_field(&mut self, close: usize, quote: u8, has_doubled: bool) {
        let start = self.field_start + 1;
        let field = &mut self.bytes[start..close];
        self.inner_lines += memchr_iter(b'\n', field).count() as u64;
        let length = if has_doubled { halve_quotes(field, quote) } else { field.len() };
        self.push_field(start, start + length);
    }

    /// Ends a field at `end`. Returns the row if it ends there, too.
    fn end_field(&mut self, end: usize) -> Option<Advance> {
        let line = self.line;
        self.at = end;
        match self.bytes.get(end) {
            Some(byte) if *byte == self.syntax.delimiter => {
                self.at += 1;
                self.state = State::Field;
                return None;
            }
            Some(byte) => {
                self.line += self.inner_lines;
                self.end_line(*byte);
            }
            None => self.state = State::Row { after_return: false },
        }
        Some(Advance::Row(line))
    }

    /// Leaves the row, and goes back to the line in which the field begins.
    fn malformed(&mut self, malformation: Malformation) -> Advance {
        self.line += self.inner_lines;
        self.at = self.field_start;
        self.state = State::MalformedLine;
        Advance::Malformed(self.line, malformation)
    }
}

/// The bytes of a field. Panics if it is not stored.
impl Index<usize> for Row {
    type Output = [u8];

    fn index(&self, field: usize) -> &[u8] {
        let (start, end) = self.fields[field];
        &self.bytes[self.start + start as usize..self.start + end as usize]
    }
}

/// Replaces each two quotes by one, and returns the length that is left.
fn halve_quotes(field: &mut [u8], quote: u8) -> usize {
    let (mut from, mut to) = (0, 0);
    while let Some(next) = memchr(quote, &field[from..]) {
        // Up to and including the first quote of the two.
        field.copy_within(from..from + next + 1, to);
        to += next + 1;
        from += next + 2;
    }
    field.copy_within(from.., to);
    to + field.len() - from
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::{Advance, FieldSyntax, Malformation, Row, halve_quotes};

    const CSV: FieldSyntax = FieldSyntax { delimiter: b',', quote: Some(b'"') };

    /// The rows of an input that is read `capacity` bytes at a time: their line and fields, or what is
    /// malformed.
    fn split(content: &[u8], syntax: FieldSyntax, capacity: usize) -> Vec<String> {
        let mut reader = BufReader::with_capacity(capacity, content);
        let (mut row, mut found, mut last) = (Row::new(syntax, 1 << 20, usize::MAX), Vec::new(), 0);
        loop {
            let advance = row.advance(&mut reader).unwrap();
            assert!(row.bytes_read() >= last);
            last = row.bytes_read();
            match advance {
                Advance::End => break,
                Advance::Row(line) => {
                    let fields: Vec<_> = row.iter().map(String::from_utf8_lossy).collect();
                    assert_eq!(fields.len(), row.len());
                    found.push(format!("{line} {}", fields.join("|")));
                }
                Advance::Malformed(line, malformation) => found.push(format!("{line} {malformation:?}")),
            }
        }
        assert_eq!(row.bytes_read(), content.len() as u64);
        found
    }

    /// Rows and fields are the same however many bytes come at a time.
    #[test]
    fn rows_are_split_across_reads() {
        let long = "x,\"y\"\"\n\"\n".repeat(100);
        for (content, expected) in [
            ("a,b\nc,d\n", &["1 a|b", "2 c|d"][..]),
            ("a,b\r\n\r\n\n,\r\n", &["1 a|b", "4 |"]),
            ("a\rb\r\rc", &["1 a", "2 b", "4 c"]),
            ("\u{feff}\"a\",b", &["1 a|b"]),
            ("\u{feff}", &[]),
            ("\"a,\"\"b\"\"\n\",\"\"\nc,\"\"\"\"", &["1 a,\"b\"\n|", "3 c|\""]),
            ("a\"b\",c \"d\ne", &["1 a\"b\"|c \"d", "2 e"]),
            ("a,\"b\nc\nd", &["1 OpenQuote", "2 c", "3 d"]),
            ("\"a\nb\"x\nc", &["1 TextAfterQuote", "2 b\"x", "3 c"]),
            ("\"a\nb\",\"c\\\"d\"\ne", &["2 QuoteAfterBackslash", "3 e"]),
            ("\"\"x\r\n\"\"\r\n", &["1 TextAfterQuote", "2 "]),
        ] {
            for capacity in [1, 2, 3, 7, 4096] {
                assert_eq!(split(content.as_bytes(), CSV, capacity), expected, "{content:?} {capacity}");
            }
        }
        let rows = split(long.as_bytes(), CSV, 50);
        assert_eq!((rows.len(), rows[99].as_str()), (100, "199 x|y\"\n"));
        let plain = FieldSyntax { delimiter: b'\t', quote: None };
        assert_eq!(split(b"\"a\t,b\"\n\"", plain, 3), ["1 \"a|,b\"", "2 \""]);
    }

    /// Of a row that is too long, only so much is held; of one with too many fields, the first are stored.
    #[test]
    fn rows_are_bounded() {
        let mut row = Row::new(CSV, 10, 2);
        let content = b"a,b,c\nxxxxxxxxxxxxxxxxxxxxxxxxx,y\n\"xxxxxxxxx\nyyyy\nc\n";
        let mut reader = BufReader::with_capacity(4, &content[..]);
        let mut advance = || {
            let advance = row.advance(&mut reader).unwrap();
            assert!(row.bytes.len() <= 16, "{}", row.bytes.len());
            (advance, row.len(), row.iter().count())
        };
        assert_eq!(advance(), (Advance::Row(1), 3, 2));
        assert_eq!(advance().0, Advance::Malformed(2, Malformation::TooLong { is_quoted: false }));
        assert_eq!(advance().0, Advance::Malformed(3, Malformation::TooLong { is_quoted: true }));
        assert_eq!(advance(), (Advance::Row(4), 1, 1));
        assert_eq!(advance(), (Advance::Row(5), 1, 1));
        assert_eq!(advance().0, Advance::End);
    }

    #[test]
    fn doubled_quotes_are_halved() {
        for (field, expected) in
            [("a\"\"b", "a\"b"), ("\"\"", "\""), ("\"\"\"\"x", "\"\"x"), ("x\"\"", "x\"")]
        {
            let mut bytes = field.as_bytes().to_vec();
            let length = halve_quotes(&mut bytes, b'"');
            assert_eq!(&bytes[..length], expected.as_bytes());
        }
    }
}
