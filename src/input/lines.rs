//! Text files of one text a line.

use std::io::{self, BufRead, BufReader, Read};

use anyhow::{Result, bail};

use super::{Place, Record};

/// The longest line that is taken for a text and not for a file without lines.
const MOST_BYTES: u64 = 16 << 20;

/// The lines of a file or of standard input. A line ends in `\n` or `\r\n`; an empty line is a text like any
/// other; a byte order mark at the start is not part of the first text.
pub struct Lines {
    place: Place,
    reader: Box<dyn BufRead>,
    line: usize,
}

impl Lines {
    /// Opens a place for reading.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(place: Place) -> Result<Self> {
        let reader: Box<dyn BufRead> = match &place {
            Place::Stdin => Box::new(io::stdin().lock()),
            Place::File(path) => Box::new(BufReader::with_capacity(1 << 16, place.open(path)?)),
        };
        Ok(Lines { place, reader, line: 0 })
    }

    /// The next line; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on, or a line is no text.
    pub fn read(&mut self) -> Result<Option<Record>> {
        let mut bytes = Vec::new();
        if let Err(error) = (&mut self.reader).take(MOST_BYTES + 1).read_until(b'\n', &mut bytes) {
            bail!("cannot read {} after line {} ({error}); check the file", self.place, self.line);
        }
        if bytes.len() as u64 > MOST_BYTES {
            bail!(
                "{} line {} is longer than {} MiB; texts have to stand one a line",
                self.place,
                self.line + 1,
                MOST_BYTES >> 20
            );
        }
        if bytes.is_empty() {
            return Ok(None);
        }
        self.line += 1;
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if self.line == 1 && bytes.starts_with(b"\xef\xbb\xbf") {
            bytes.drain(..3);
        }
        let place = format!("{} line {}", self.place, self.line);
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Some(Record { place, id: None, text, pair: None })),
            Err(error) => bail!(
                "{place} is not valid UTF-8 (byte {} of the line); convert the file to UTF-8, for example with \
                 iconv",
                error.utf8_error().valid_up_to() + 1
            ),
        }
    }
}
