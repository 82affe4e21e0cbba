//! An input: where its bytes are, their format and their compression.

use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::error::cannot_open;
use crate::formats::Compression;
use crate::formats::csv::FieldSyntax;
use crate::named::names;

/// The format of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One text per line.
    Lines,
    /// JSON lines: one object per line, with the text in a field.
    Jsonl,
    /// Comma-separated values with a header row.
    Csv,
    /// Tab-separated values with a header row.
    Tsv,
    /// A Parquet file.
    Parquet,
    /// An Arrow IPC file or stream.
    Arrow,
    /// Sequences of proteins or nucleic acids, each below a header.
    Fasta,
    /// One text per file.
    Files,
}

names!(Format {
    Lines => "lines",
    Jsonl => "jsonl",
    Csv => "csv",
    Tsv => "tsv",
    Parquet => "parquet",
    Arrow => "arrow",
    Fasta => "fasta",
    Files => "files",
});

impl Format {
    /// Whether the format has bytes that are not text.
    pub fn is_binary(self) -> bool {
        match self {
            Format::Parquet | Format::Arrow => true,
            Format::Lines | Format::Jsonl | Format::Csv | Format::Tsv | Format::Fasta | Format::Files => {
                false
            }
        }
    }

    /// Whether the fields of a record are separated by a delimiter.
    pub fn is_delimited(self) -> bool {
        matches!(self, Format::Csv | Format::Tsv)
    }

    /// How fields are delimited and quoted in csv and tsv. TSV has no quotes, as
    /// [registered](https://www.iana.org/assignments/media-types/text/tab-separated-values).
    pub fn syntax(self) -> FieldSyntax {
        match self {
            Format::Tsv => FieldSyntax { delimiter: b'\t', quote: None },
            _ => FieldSyntax { delimiter: b',', quote: Some(b'"') },
        }
    }

    /// Whether a file names its columns before its first row.
    pub(super) fn has_header(self) -> bool {
        match self {
            Format::Csv | Format::Tsv | Format::Parquet | Format::Arrow => true,
            Format::Lines | Format::Jsonl | Format::Fasta | Format::Files => false,
        }
    }

    /// Whether records have named fields.
    pub fn has_fields(self) -> bool {
        match self {
            Format::Jsonl | Format::Csv | Format::Tsv | Format::Parquet | Format::Arrow => true,
            Format::Lines | Format::Fasta | Format::Files => false,
        }
    }

    /// Whether a file of this format is meant to be read by software: plain texts beside such a file are
    /// about it.
    pub(super) fn is_data(self) -> bool {
        self.has_fields() || self == Format::Fasta
    }

    /// Whether each record of the format has an id.
    pub fn has_ids(self) -> bool {
        match self {
            Format::Fasta | Format::Files => true,
            Format::Lines | Format::Jsonl | Format::Csv | Format::Tsv | Format::Parquet | Format::Arrow => {
                false
            }
        }
    }

    /// The format of files with this extension (in lower case, without the extension of the compression).
    /// `None` for `json`: such a file is one value over many lines, which is not supported.
    pub(super) fn from_extension(extension: &str) -> Option<Self> {
        Some(match extension {
            "json" => return None,
            "jsonl" | "ndjson" => Format::Jsonl,
            "csv" => Format::Csv,
            "tsv" => Format::Tsv,
            "parquet" | "pq" => Format::Parquet,
            "arrow" | "arrows" | "feather" | "ipc" => Format::Arrow,
            "fasta" | "fa" | "faa" | "fna" => Format::Fasta,
            _ => Format::Lines,
        })
    }
}

/// Where the bytes of an input are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputPath {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
}

impl InputPath {
    /// The name of the file, without its directory.
    pub(super) fn file_name(&self) -> String {
        match self {
            InputPath::File(path) => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            InputPath::Stdin => self.to_string(),
        }
    }

    /// The last extension of the file.
    pub(super) fn extension(&self) -> String {
        match self {
            InputPath::File(path) => path.extension().unwrap_or_default().to_string_lossy().into_owned(),
            InputPath::Stdin => String::new(),
        }
    }
}

impl Display for InputPath {
    /// The path of a file; each byte that is not UTF-8 as `\xff`, so that two paths do not become one.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            InputPath::File(path) => {
                for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
                    f.write_str(chunk.valid())?;
                    chunk.invalid().iter().try_for_each(|byte| write!(f, "\\x{byte:02x}"))?;
                }
                Ok(())
            }
            InputPath::Stdin => write!(f, "standard input"),
        }
    }
}

/// An input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Where the bytes are.
    pub path: InputPath,
    /// The format.
    pub format: Format,
    /// The compression.
    pub compression: Option<Compression>,
    /// How fields are delimited and quoted, if the format is csv or tsv.
    pub syntax: FieldSyntax,
    /// Whether the run goes on if the input cannot be read, with one [`Unreadable`](super::Unreadable) entry
    /// for it: it was found in a directory or by a glob, and `--on-error skip` is given.
    pub is_lenient: bool,
    /// Why the input cannot be read, if its path already shows that.
    pub fault: Option<String>,
}

impl Source {
    /// Checks that the input exists and can be opened, without reading from it.
    pub(super) fn check(&self) -> Result<()> {
        self.check_format()?;
        let InputPath::File(path) = &self.path else { return Ok(()) };
        let metadata = fs::metadata(path).map_err(|error| cannot_open(path, &error))?;
        if metadata.is_dir() {
            bail!("--input {} is a directory; pass the text files in it", path.display());
        }
        match self.format {
            Format::Parquet if !metadata.is_file() => {
                bail!(
                    "--input {} is not a regular file, and reading Parquet needs seeking; copy it to a file",
                    path.display()
                )
            }
            // A file that cannot be opened becomes an unreadable record; the other files are still read.
            Format::Files => Ok(()),
            // Opening a named pipe blocks until another process writes to it.
            _ if !metadata.is_file() => Ok(()),
            _ => File::open(path).map(drop).map_err(|error| cannot_open(path, &error)),
        }
    }

    /// Checks that the format can be read from this kind of input and compression.
    pub(super) fn check_format(&self) -> Result<()> {
        match (self.format, self.compression, &self.path) {
            (Format::Parquet, _, InputPath::Stdin) => {
                bail!(
                    "standard input cannot be Parquet, because reading Parquet needs seeking; save it to a file and pass \
                     that"
                )
            }
            (Format::Parquet, Some(_), path) => {
                bail!(
                    "--input {path} is a compressed Parquet file, which cannot be read in place; decompress it first"
                )
            }
            _ => Ok(()),
        }
    }

    /// Whether the input can be read only once: standard input, a pipe or a device.
    pub fn is_stream(&self) -> bool {
        match &self.path {
            InputPath::Stdin => true,
            InputPath::File(path) => fs::metadata(path).is_ok_and(|file| !file.is_file()),
        }
    }

    /// The path and size of an input that is read at any offset. `None` for a stream and a compressed file.
    pub(super) fn uncompressed_file(&self) -> Option<(&Path, u64)> {
        match (&self.path, self.compression) {
            (InputPath::File(path), None) => Some(path.as_path()).zip(self.size()),
            _ => None,
        }
    }

    /// The size of the input in bytes, before decompression. `None` for anything but a regular file.
    pub(super) fn size(&self) -> Option<u64> {
        let InputPath::File(path) = &self.path else { return None };
        fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|file| file.len())
    }
}
