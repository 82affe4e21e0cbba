//! Where texts come from: one reader a format, each an iterator over records.

mod json;
mod lines;
mod table;

use std::fs::File;
use std::iter;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use json::JsonLines;
use lines::Lines;
use table::Table;

/// One text on its way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its place in the input as a person would say it: `notes.txt line 7`.
    pub place: String,
    /// The input's own name for it.
    pub id: Option<String>,
    /// The text.
    pub text: String,
    /// The second text of a pair.
    pub pair: Option<String>,
}

/// Records in input order.
pub type Records = Box<dyn Iterator<Item = Result<Record>>>;

/// How texts stand in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One a line.
    Lines,
    /// In a field of an object, one a line.
    Jsonl,
    /// In a column of comma-separated values.
    Csv,
    /// In a column of tab-separated values.
    Tsv,
}

/// Which fields of a record are what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fields {
    /// The text.
    pub text: String,
    /// The second text of a pair, if there is one.
    pub pair: Option<String>,
    /// The id; without a name, `id` where there is such a field.
    pub id: Option<String>,
}

impl Fields {
    /// The name of the field that may hold an id.
    fn id(&self) -> &str {
        self.id.as_deref().unwrap_or("id")
    }
}

/// The records of a place.
///
/// # Errors
/// If it cannot be opened, or has a header that lacks a field.
pub fn open(place: Place, format: Format, fields: &Fields) -> Result<Records> {
    Ok(match format {
        Format::Lines => {
            let mut lines = Lines::open(place)?;
            records(move || lines.read())
        }
        Format::Jsonl => {
            let mut lines = JsonLines::open(place, fields.clone())?;
            records(move || lines.read())
        }
        Format::Csv | Format::Tsv => {
            let delimiter = if format == Format::Csv { b',' } else { b'\t' };
            let mut table = Table::open(place, delimiter, fields)?;
            records(move || table.read())
        }
    })
}

/// What a reader gives, up to its end or its first failure.
fn records(mut read: impl FnMut() -> Result<Option<Record>> + 'static) -> Records {
    let mut failed = false;
    Box::new(iter::from_fn(move || {
        if failed {
            return None;
        }
        let record = read().transpose();
        failed = matches!(record, Some(Err(_)));
        record
    }))
}

/// Something to read lines from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl Place {
    /// Tries to open a place.
    ///
    /// # Errors
    /// If it is no file that can be read.
    pub fn check(&self) -> Result<()> {
        let Place::File(path) = self else { return Ok(()) };
        if path.is_dir() {
            bail!("--input {self} is a directory; name the text files in it");
        }
        match std::fs::metadata(path) {
            // Opening a pipe would wait for whoever writes to it.
            Ok(there) if !there.is_file() => Ok(()),
            _ => self.open(path).map(drop),
        }
    }

    fn open(&self, path: &Path) -> Result<File> {
        match File::open(path) {
            Ok(file) => Ok(file),
            Err(error) => bail!("cannot read --input {self} ({error}); check the name"),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::File(path) => write!(f, "{}", path.display()),
            Place::Stdin => write!(f, "standard input"),
        }
    }
}

/// Texts that stand on the command line.
pub fn arguments(texts: Vec<String>) -> Records {
    Box::new(
        texts
            .into_iter()
            .enumerate()
            .map(|(i, text)| Ok(Record { place: format!("argument {}", i + 1), id: None, text, pair: None })),
    )
}
