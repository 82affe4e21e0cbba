//! Reads the lines of a file in units, each by a thread of its own, and their vectors.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::marker::PhantomData;
use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, bail};
use serde::de::{DeserializeSeed, Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::formats::error::unread;
use crate::formats::lines::{MAX_RECORD_BYTES, RowUnits, VisitRow};
use crate::rows::columns::SCALE;
use crate::sys::regular_file;

const BUFFER_BYTES: usize = 1 << 16;
/// The length of the longest line without a row: an object takes more than a line end.
const EMPTY_BYTES: usize = 2;

/// The first lines of a file.
pub struct JsonlStart {
    path: PathBuf,
    reader: BufReader<File>,
}

impl JsonlStart {
    /// Opens a file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let reader = BufReader::with_capacity(BUFFER_BYTES, regular_file::open(path)?);
        Ok(JsonlStart { path: path.to_owned(), reader })
    }

    /// Reads the next line with its end into `line`, and returns its length; 0 at the end of the file.
    pub fn read_line(&mut self, line: &mut String) -> io::Result<usize> {
        line.clear();
        (&mut self.reader).take(MAX_RECORD_BYTES).read_line(line)
    }

    /// Finds the lines of the file `name`. Empty ones are no rows.
    pub fn index(mut self, name: &Arc<str>) -> io::Result<JsonlFile> {
        self.reader.rewind()?;
        Ok(JsonlFile { name: name.clone(), path: self.path, units: index(&mut self.reader)? })
    }
}

fn index(reader: &mut impl BufRead) -> io::Result<RowUnits> {
    let (mut units, mut start, mut offset, mut row) = (RowUnits::default(), 0, 0, 0);
    loop {
        let bytes = reader.skip_until(b'\n')?;
        offset += bytes as u64;
        row += usize::from(bytes > EMPTY_BYTES);
        units.end_row(row, &mut start, offset, bytes == 0);
        if bytes == 0 {
            return Ok(units);
        }
    }
}

/// A file whose lines are read in units.
pub struct JsonlFile {
    name: Arc<str>,
    path: PathBuf,
    units: RowUnits,
}

impl JsonlFile {
    /// The rows of each unit.
    pub fn units(&self) -> &[Range<usize>] {
        &self.units.rows
    }

    /// Calls `visit` with the lines of a unit and their rows. Break ends the reading.
    pub fn for_each_line(&self, unit: usize, visit: &mut VisitRow<[u8]>) -> Result<ControlFlow<()>> {
        let unread = |error| unread(&self.name, error);
        let mut file = regular_file::open(&self.path).map_err(unread)?;
        file.seek(SeekFrom::Start(self.units.offsets[unit])).map_err(unread)?;
        let mut reader = BufReader::with_capacity(BUFFER_BYTES, file);
        let Range { start: mut row, end } = self.units.rows[unit];
        let mut line = Vec::new();
        while row < end {
            line.clear();
            if (&mut reader).take(MAX_RECORD_BYTES).read_until(b'\n', &mut line).map_err(unread)? == 0 {
                bail!("{} was changed while it was read; run the command again", self.name);
            }
            if line.len() > EMPTY_BYTES {
                if visit(row, &line)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                row += 1;
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// The fields of a line that are read: a vector, and its scale if it has int8 elements. All others are
/// skipped.
pub struct VectorLine<T> {
    /// The vector, or the vectors of tokens; `None` if it is null or absent.
    pub vector: Option<T>,
    /// The scale, if it is read and the line has one.
    pub scale: Option<f32>,
}

/// Reads a [`VectorLine`] whose vector is in this field.
struct LineReader<'a, T> {
    field: &'a str,
    reads_scale: bool,
    vector: PhantomData<T>,
}

/// The key of an object.
enum Key {
    Vector,
    Scale,
    Other,
}

/// Compares a key with the name of the field of the vectors.
struct KeyReader<'a>(&'a str);

impl<'de> DeserializeSeed<'de> for KeyReader<'_> {
    type Value = Key;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Key, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyReader<'_> {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(match key {
            key if key == self.0 => Key::Vector,
            SCALE => Key::Scale,
            _ => Key::Other,
        })
    }
}

impl<'de, T: Deserialize<'de>> VectorLine<T> {
    /// Reads a line whose vector is in this field.
    pub fn read(line: &'de [u8], field: &str, reads_scale: bool) -> serde_json::Result<Self> {
        let mut deserializer = serde_json::Deserializer::from_slice(line);
        let reader = LineReader { field, reads_scale, vector: PhantomData };
        let found = deserializer.deserialize_map(reader)?;
        deserializer.end()?;
        Ok(found)
    }
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for LineReader<'_, T> {
    type Value = VectorLine<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VectorLine<T>, A::Error> {
        let mut line = VectorLine { vector: None, scale: None };
        while let Some(key) = map.next_key_seed(KeyReader(self.field))? {
            match key {
                Key::Vector if line.vector.is_some() => {
                    return Err(A::Error::custom(format_args!("duplicate field `{}`", self.field)));
                }
                Key::Vector => line.vector = map.next_value()?,
                Key::Scale if self.reads_scale => line.scale = map.next_value()?,
                Key::Scale | Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::index;

    #[test]
    fn empty_lines_are_no_rows() {
        let found = index(&mut &b"\n{\"a\":1}\n\r\n{\"a\":2}"[..]).unwrap();
        assert_eq!((found.rows.len(), found.rows[0].clone(), found.offsets), (1, 0..2, vec![0]));
        assert!(index(&mut &b"\n\n"[..]).unwrap().rows.is_empty());
    }
}
