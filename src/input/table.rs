//! CSV and TSV: a header, then a row a text.

use std::io::{self, BufReader, Read};

use anyhow::{Result, anyhow, bail};
use csv::{Reader, ReaderBuilder, StringRecord};

use super::{Fields, Place, Record};

/// The rows of a file or of standard input.
pub struct Table {
    place: Place,
    reader: Reader<Box<dyn Read>>,
    text: usize,
    pair: Option<usize>,
    id: Option<usize>,
}

impl Table {
    /// Opens a place for reading, and its header.
    ///
    /// # Errors
    /// If the file cannot be opened, or its header lacks a column.
    pub fn open(place: Place, delimiter: u8, fields: &Fields) -> Result<Self> {
        let input: Box<dyn Read> = match &place {
            Place::Stdin => Box::new(io::stdin().lock()),
            Place::File(path) => Box::new(BufReader::with_capacity(1 << 16, place.open(path)?)),
        };
        let mut reader = ReaderBuilder::new().delimiter(delimiter).from_reader(input);
        let header = reader.headers().map_err(|error| broken(&place, &error))?.clone();
        let column = |name: &str| {
            // A byte order mark is not part of the first name.
            header.iter().position(|column| column.trim_start_matches('\u{feff}') == name)
        };
        let wanted = |name: &str, option: &str| {
            column(name).ok_or_else(|| {
                let names: Vec<&str> = header.iter().collect();
                anyhow!("{place} has no column {name:?} but {}; name another with {option}", names.join(", "))
            })
        };
        Ok(Table {
            text: wanted(&fields.text, "--text-field")?,
            pair: fields.pair.as_ref().map(|name| wanted(name, "--pair-field")).transpose()?,
            id: match &fields.id {
                Some(name) => Some(wanted(name, "--id-field")?),
                None => column(fields.id()),
            },
            place,
            reader,
        })
    }

    /// The next row; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on, or a row does not fit the header.
    pub fn read(&mut self) -> Result<Option<Record>> {
        let mut row = StringRecord::new();
        match self.reader.read_record(&mut row) {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(error) => bail!(broken(&self.place, &error)),
        }
        let line = row.position().map_or(0, csv::Position::line);
        Ok(Some(Record {
            place: format!("{} line {line}", self.place),
            id: self.id.map(|column| row[column].to_owned()),
            text: row[self.text].to_owned(),
            pair: self.pair.map(|column| row[column].to_owned()),
        }))
    }
}

/// One sentence on a table that cannot be read.
fn broken(place: &Place, error: &csv::Error) -> anyhow::Error {
    let line = error.position().map(|position| format!(" line {}", position.line())).unwrap_or_default();
    let why = match error.kind() {
        csv::ErrorKind::Utf8 { .. } => {
            "is not valid UTF-8; convert the file to UTF-8, for example with iconv".into()
        }
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => format!(
            "has {len} fields, but the header has {expected_len}; mend the row, or put what holds delimiters in quotes"
        ),
        csv::ErrorKind::Io(error) => format!("cannot be read ({error}); check the file"),
        _ => "is no row of a table; mend it".into(),
    };
    anyhow!("{place}{line} {why}")
}
