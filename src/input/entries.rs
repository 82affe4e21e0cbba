//! Reads all inputs, one after another.

use std::cmp::Ordering;
use std::fs::{File, Metadata};
use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicU64};
use std::vec;

use anyhow::{Error, Result, anyhow, bail};

use super::batches::BatchRows;
use super::columns::FieldMetadata;
use super::csv::CsvRecords;
use super::error::cannot_open;
use super::fasta::Fasta;
use super::file;
use super::json::{self, JsonLines};
use super::limit::ReadLimit;
use super::lines::Lines;
use super::partitions::Partitions;
use super::reader::InputReader;
use super::record::{Entry, Fields, KeptName, Location, Position, Record, TEXT};
use super::source::{Format, InputPath, Source};
use crate::rows::FieldValue;

/// The entries of all inputs, in their order. An error means that an input cannot be read further; it is the
/// last item.
pub struct Entries {
    /// The inputs that are still to be opened.
    sources: vec::IntoIter<Source>,
    fields: Fields,
    /// The fields in the names of the directories of the inputs.
    partitions: Partitions,
    limit: ReadLimit,
    open: Option<OpenInput>,
    total_bytes: Option<u64>,
    /// Bytes of the inputs before the open one.
    bytes_before: u64,
    /// The metadata of the carried-through fields of the first input.
    kept_metadata: Option<Vec<FieldMetadata>>,
}

/// The input that is being read.
struct OpenInput {
    reader: FormatReader,
    /// The carried-through fields that are in the names of its directories, with their indices.
    constants: Vec<(usize, FieldValue)>,
    /// Compressed bytes read so far; `None` if the input is not compressed.
    compressed_bytes_read: Option<Arc<AtomicU64>>,
    /// Whether the input is UTF-16.
    is_utf16: bool,
    /// The size of the input in bytes, if it is known.
    size: Option<u64>,
    /// The name of the input, if it [is lenient](Source::is_lenient).
    lenient_name: Option<Arc<str>>,
    /// The file of an input that is not lenient.
    watched: Option<Watched>,
}

/// A file as it was before it was read.
struct Watched {
    file: File,
    name: String,
    before: Metadata,
}

/// The reader of a format.
enum FormatReader {
    Lines(Lines),
    Fasta(Fasta),
    Json(JsonLines),
    Csv(Box<CsvRecords>),
    Batches(Box<BatchRows>),
    File(Option<Box<Entry>>),
    Arguments(Arguments),
}

impl Entries {
    /// Opens the inputs that are not lenient, and reads their headers, so that a wrong path or column name is
    /// an error before the first record is read. The inputs are opened again, one by one, to be read.
    pub fn open(sources: Vec<Source>, fields: Fields) -> Result<Self> {
        let strict = || sources.iter().filter(|source| !source.is_lenient);
        strict().try_for_each(Source::check)?;
        let partitions = Partitions::of(&sources);
        for source in strict().filter(|source| source.format.has_header() && source.size().is_some()) {
            OpenInput::new(source, &fields, &partitions, ReadLimit::default())?;
        }
        let in_records = |kept: &&KeptName| !partitions.has(&kept.field);
        let keep = fields.keep.iter().filter(in_records).cloned().collect();
        json::check_optional_fields(&sources, &Fields { keep, ..fields.clone() })?;
        let total_bytes = sources.iter().map(Source::size).sum();
        Ok(Entries {
            sources: sources.into_iter(),
            fields,
            partitions,
            limit: ReadLimit::default(),
            open: None,
            total_bytes,
            bytes_before: 0,
            kept_metadata: None,
        })
    }

    /// The texts of the command line as records.
    pub fn arguments(texts: Vec<String>) -> Self {
        let total_bytes = Some(texts.iter().map(|text| text.len() as u64 + 1).sum());
        let arguments = Arguments { texts: texts.into_iter(), arguments_read: 0, bytes_read: 0 };
        let open = OpenInput {
            reader: FormatReader::Arguments(arguments),
            constants: Vec::new(),
            compressed_bytes_read: None,
            is_utf16: false,
            size: total_bytes,
            lenient_name: None,
            watched: None,
        };
        Entries {
            sources: Vec::new().into_iter(),
            fields: Fields::default(),
            partitions: Partitions::default(),
            limit: ReadLimit::default(),
            open: Some(open),
            total_bytes,
            bytes_before: 0,
            kept_metadata: None,
        }
    }

    /// Sets the memory limit of the inputs that are not open yet: of all inputs, if no entry has been read.
    pub fn set_limit(&mut self, limit: ReadLimit) {
        self.limit = limit;
    }

    /// The size of all inputs in bytes, before decompression; `None` if the size of one is not known. A text
    /// of the command line counts as its length plus one.
    pub fn total_bytes(&self) -> Option<u64> {
        self.total_bytes
    }

    /// Bytes of the entries read so far, on the scale of [`Self::total_bytes`], which it reaches at the end.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_before + self.open.as_ref().map_or(0, OpenInput::bytes_read)
    }

    /// The indices of the fields in [`Fields::keep`] that are the text, unless an input has another field of
    /// this name.
    pub fn kept_texts(&self) -> Vec<usize> {
        let is_text = |kept: &KeptName| kept.field == TEXT;
        self.fields.keep.iter().enumerate().filter(|(_, kept)| is_text(kept)).map(|(i, _)| i).collect()
    }

    /// The metadata of the Arrow fields of the first input that are carried through, in the order of
    /// [`Fields::keep`]; none before the first entry is read.
    pub fn kept_metadata(&self) -> &[FieldMetadata] {
        self.kept_metadata.as_deref().unwrap_or_default()
    }

    /// Whether the input of the last entry is UTF-16.
    pub fn is_utf16(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_utf16)
    }

    /// Whether the last entry was the last row of a record batch of an Arrow stream.
    pub fn ends_stream_batch(&self) -> bool {
        matches!(&self.open, Some(OpenInput { reader: FormatReader::Batches(rows), .. }) if rows.ends_stream_batch())
    }

    /// The error for a field of [`Fields::keep`] that none of the records of the open input has had so far,
    /// if there is one. The fields of files are checked when they are opened; streams have to be read first.
    pub fn missing_field_error(&self) -> Option<Error> {
        match &self.open.as_ref()?.reader {
            FormatReader::Json(lines) => lines.missing_field_error(),
            _ => None,
        }
    }

    /// Reads the next entry; `None` at the end of the last input.
    fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(open) = &mut self.open {
                match open.read() {
                    Ok(Some(entry)) => return Ok(Some(entry)),
                    Ok(None) => {
                        let changed = open.watched.as_ref().and_then(Watched::change);
                        self.close();
                        changed.map_or(Ok(()), Err)?;
                    }
                    Err(error) => {
                        let Some(name) = open.lenient_name.clone() else { return Err(error) };
                        self.close();
                        return Ok(Some(skipped_input(name, &error)));
                    }
                }
            }
            let Some(source) = self.sources.next() else { return Ok(None) };
            match OpenInput::new(&source, &self.fields, &self.partitions, self.limit) {
                Ok(open) => {
                    self.kept_metadata.get_or_insert_with(|| open.kept_metadata());
                    self.open = Some(open);
                }
                Err(error) if source.is_lenient => {
                    self.bytes_before += source.size().unwrap_or(0);
                    return Ok(Some(skipped_input(source.path.to_string().into(), &error)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Closes the open input, even if it has not been read to its end.
    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.bytes_before += open.size.unwrap_or_else(|| open.bytes_read());
        }
    }
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.read();
        if entry.is_err() {
            self.sources = Vec::new().into_iter();
            self.bytes_before = self.bytes_read();
            self.open = None;
        }
        entry.transpose()
    }
}

impl FusedIterator for Entries {}

/// The entry for a lenient input that cannot be opened, or not be read further.
fn skipped_input(name: Arc<str>, error: &Error) -> Entry {
    Entry::unreadable(Location { source: name, position: Position::File }, format!("was skipped: {error}"))
}

impl OpenInput {
    fn new(source: &Source, fields: &Fields, partitions: &Partitions, limit: ReadLimit) -> Result<Self> {
        if let Some(fault) = &source.fault {
            bail!("{fault}");
        }
        let constants = partitions.values(&source.path, &fields.keep);
        let mut fields = fields.clone();
        for (i, _) in constants.iter().rev() {
            fields.keep.remove(*i);
        }
        let watched = if source.is_lenient { None } else { Watched::of(source) };
        let (mut compressed_bytes_read, mut is_utf16) = (None, false);
        let mut input = || -> Result<InputReader> {
            let input =
                InputReader::open(source).map_err(|error| cannot_open(source.path.to_string(), &error))?;
            compressed_bytes_read.clone_from(&input.compressed_bytes_read);
            is_utf16 = input.is_utf16;
            Ok(input)
        };
        let reader = match (source.format, &source.path) {
            (Format::Lines, _) => FormatReader::Lines(Lines::new(input()?, fields.keep, limit)),
            (Format::Fasta, _) => FormatReader::Fasta(Fasta::new(input()?, fields.keep, limit)),
            (Format::Jsonl, _) => FormatReader::Json(JsonLines::new(input()?, fields, limit)),
            (Format::Csv | Format::Tsv, _) => {
                let records = CsvRecords::open(input()?.checked()?, source.syntax, &fields, limit)?;
                FormatReader::Csv(Box::new(records))
            }
            (Format::Arrow, _) => {
                let input = input()?.checked()?;
                FormatReader::Batches(Box::new(BatchRows::open_arrow(input, source, &fields, limit)?))
            }
            (Format::Parquet, InputPath::File(path)) => {
                input()?.checked()?;
                FormatReader::Batches(Box::new(BatchRows::open_parquet(path, &fields, limit)?))
            }
            (Format::Parquet, InputPath::Stdin) => unreachable!("Source::check_format rejects it"),
            (Format::Files, _) => FormatReader::File(Some(Box::new(file::read(source, &fields.keep, limit)))),
        };
        let lenient_name = source.is_lenient.then(|| source.path.to_string().into());
        let size = source.size();
        Ok(OpenInput { reader, constants, compressed_bytes_read, is_utf16, size, lenient_name, watched })
    }

    /// The metadata of the carried-through fields; those of formats other than Parquet and Arrow have none.
    fn kept_metadata(&self) -> Vec<FieldMetadata> {
        let FormatReader::Batches(rows) = &self.reader else { return Vec::new() };
        let mut metadata = rows.kept_metadata();
        self.constants.iter().for_each(|(i, _)| metadata.insert(*i, FieldMetadata::new()));
        metadata
    }

    /// Reads the next entry; `None` at the end.
    fn read(&mut self) -> Result<Option<Entry>> {
        let mut entry = self.reader.read()?;
        if let Some(Entry::Record(record)) = &mut entry {
            self.constants.iter().for_each(|(i, value)| record.kept.insert(*i, value.clone()));
        }
        Ok(entry)
    }

    /// Bytes of the entries read so far, before decompression.
    fn bytes_read(&self) -> u64 {
        let compressed = self.compressed_bytes_read.as_ref().map(|read| read.load(atomic::Ordering::Relaxed));
        let bytes_read = compressed.unwrap_or_else(|| match &self.reader {
            FormatReader::Lines(lines) => lines.bytes_read(),
            FormatReader::Fasta(sequences) => sequences.bytes_read(),
            FormatReader::Json(lines) => lines.bytes_read(),
            FormatReader::Csv(rows) => rows.bytes_read(),
            FormatReader::Batches(rows) => rows.bytes_read(),
            FormatReader::File(Some(_)) => 0,
            FormatReader::File(None) => self.size.unwrap_or(0),
            FormatReader::Arguments(arguments) => arguments.bytes_read,
        });
        // A file may grow while it is read.
        self.size.map_or(bytes_read, |size| bytes_read.min(size))
    }
}

impl Watched {
    /// The file of a source, if it is one.
    fn of(source: &Source) -> Option<Self> {
        let InputPath::File(path) = &source.path else { return None };
        source.size()?;
        let file = File::open(path).ok()?;
        let before = file.metadata().ok()?;
        Some(Watched { file, name: source.path.to_string(), before })
    }

    /// The error for a file that was cut off or written over since. One that has only grown has the same
    /// records and more.
    fn change(&self) -> Option<Error> {
        let (now, before) = (self.file.metadata().ok()?, &self.before);
        let is_changed = match now.len().cmp(&before.len()) {
            Ordering::Less => true,
            Ordering::Equal => now.modified().ok() != before.modified().ok(),
            Ordering::Greater => false,
        };
        is_changed.then(|| {
            anyhow!(
                "{} changed while it was read, so some of its records may be missing; rerun when it is complete",
                self.name
            )
        })
    }
}

impl FormatReader {
    fn read(&mut self) -> Result<Option<Entry>> {
        match self {
            FormatReader::Lines(lines) => lines.read(),
            FormatReader::Fasta(sequences) => sequences.read(),
            FormatReader::Json(lines) => lines.read(),
            FormatReader::Csv(rows) => rows.read(),
            FormatReader::Batches(rows) => rows.read(),
            FormatReader::File(entry) => Ok(entry.take().map(|entry| *entry)),
            FormatReader::Arguments(arguments) => Ok(arguments.read()),
        }
    }
}

/// The texts of the command line.
struct Arguments {
    texts: vec::IntoIter<String>,
    arguments_read: u64,
    bytes_read: u64,
}

impl Arguments {
    fn read(&mut self) -> Option<Entry> {
        let text = self.texts.next()?;
        self.arguments_read += 1;
        self.bytes_read += text.len() as u64 + 1;
        let position = Position::Argument(self.arguments_read);
        let location = Location { source: "the command line".into(), position };
        Some(Entry::Record(Record { location, id: None, text, pair: None, is_null: false, kept: Vec::new() }))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;
    use std::path::Path;

    use super::{Entries, Fields};
    use crate::input::{Filter, find};

    /// The error of an input, if reading it ends in one; `change` is called after its first record.
    fn error_after(change: impl FnOnce(&Path)) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.txt");
        fs::write(&path, "the wick burns\n".repeat(100_000)).unwrap();
        let inputs = find(std::slice::from_ref(&path), None, &Filter::default()).unwrap();
        let mut entries = Entries::open(inputs.sources, Fields::default()).unwrap();
        entries.next().unwrap().unwrap();
        change(&path);
        entries.find_map(Result::err).map(|error| error.to_string())
    }

    #[test]
    fn a_file_that_loses_records_while_it_is_read_is_an_error() {
        let cut =
            |path: &Path| OpenOptions::new().write(true).open(path).unwrap().set_len(1_350_000).unwrap();
        let error = error_after(cut).expect("an error");
        assert!(error.contains("a.txt changed while it was read"), "{error}");
        let append = |path: &Path| {
            OpenOptions::new().append(true).open(path).unwrap().write_all(b"more\n").unwrap();
        };
        assert_eq!(error_after(append), None, "the first records are the same");
        assert_eq!(error_after(|path| fs::remove_file(path).unwrap()), None, "it stays readable");
        assert_eq!(error_after(|_| ()), None);
    }
}
