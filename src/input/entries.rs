//! All of the inputs, one after another.

use std::iter::FusedIterator;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec;

use anyhow::{Error, Result, bail};

use super::arrow::ArrowRows;
use super::bytes::Bytes;
use super::json::{self, JsonLines};
use super::lines::Lines;
use super::parquet::ParquetRows;
use super::sources::unopened;
use super::table::Table;
use super::{At, Entry, Fields, Format, Place, ReadLimit, Record, Source, Spot, file};

/// What stands in all of the inputs, in their order. After an error, which says that an input cannot be read on, there
/// is nothing more.
pub struct Entries {
    sources: vec::IntoIter<Source>,
    fields: Fields,
    limit: ReadLimit,
    open: Option<Open>,
    size: Option<u64>,
    /// Bytes of the inputs before the open one.
    behind: u64,
}

/// The input that is being read.
struct Open {
    reader: Reader,
    /// Bytes that have been read of a packed file.
    packed: Option<Arc<AtomicU64>>,
    size: Option<u64>,
    /// Its name, if what cannot be read of it does not end the run.
    lenient: Option<Arc<str>>,
}

/// An input that cannot be read, or not be read on, as one record among others.
fn whole(source: Arc<str>, error: &Error) -> Entry {
    Entry::unreadable(Spot { source, at: At::Whole }, format!("is left out: {error}"))
}

/// One input in its format.
enum Reader {
    Lines(Lines),
    Json(JsonLines),
    Table(Box<Table>),
    Parquet(Box<ParquetRows>),
    Arrow(Box<ArrowRows>),
    File(Option<Box<Entry>>),
    Arguments(Arguments),
}

impl Entries {
    /// What stands in these sources. Each is tried now, since a name that is wrong should not be found out after
    /// hours, and opened when it has its turn.
    ///
    /// # Errors
    /// If a source is no file that can be read in its format.
    pub fn open(sources: Vec<Source>, fields: Fields) -> Result<Self> {
        // What is wrong with the others is said when they have their turn.
        let strict = || sources.iter().filter(|source| !source.is_lenient);
        strict().try_for_each(Source::check)?;
        // A header that lacks a column should not be found out after hours either.
        for source in strict().filter(|source| source.format.has_header() && source.size().is_some()) {
            Open::new(source, &fields, ReadLimit::default())?;
        }
        json::check_kept(&sources, &fields)?;
        let size = sources.iter().map(Source::size).sum();
        let limit = ReadLimit::default();
        Ok(Entries { sources: sources.into_iter(), fields, limit, open: None, size, behind: 0 })
    }

    /// Texts that stand on the command line.
    pub fn arguments(texts: Vec<String>) -> Self {
        let size = Some(texts.iter().map(|text| text.len() as u64 + 1).sum());
        let reader = Reader::Arguments(Arguments { texts: texts.into_iter(), given: 0, behind: 0 });
        let fields = Fields { text: String::new(), pair: None, id: None, keep: Vec::new() };
        let open = Some(Open { reader, packed: None, size, lenient: None });
        let limit = ReadLimit::default();
        Entries { sources: Vec::new().into_iter(), fields, limit, open, size, behind: 0 }
    }

    /// Sets how much memory reading may take, for the inputs that are not open yet: all of them before the first entry.
    pub fn set_limit(&mut self, limit: ReadLimit) {
        self.limit = limit;
    }

    /// Bytes of all inputs, packed ones as they are, and one more than its length for each text of the command line;
    /// none if one of them cannot be known.
    pub fn size(&self) -> Option<u64> {
        self.size
    }

    /// Bytes of input behind what was given so far, of the packed file where it is one: at the end, the size.
    pub fn position(&self) -> u64 {
        self.behind + self.open.as_ref().map_or(0, Open::position)
    }

    /// One sentence on a kept field that no record of the open input has had so far, if there is one. Files are checked
    /// when they are opened; this is for streams, whose first records have to be read first.
    pub fn absent_field(&self) -> Option<anyhow::Error> {
        match &self.open.as_ref()?.reader {
            Reader::Json(lines) => lines.absent(),
            _ => None,
        }
    }

    /// The next entry; none at the end.
    fn read(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(open) = &mut self.open {
                match open.reader.read() {
                    Ok(Some(entry)) => return Ok(Some(entry)),
                    Ok(None) => self.pass(),
                    Err(error) => match open.lenient.clone() {
                        Some(source) => {
                            self.pass();
                            return Ok(Some(whole(source, &error)));
                        }
                        None => return Err(error),
                    },
                }
            }
            let Some(source) = self.sources.next() else { return Ok(None) };
            match Open::new(&source, &self.fields, self.limit) {
                Ok(open) => self.open = Some(open),
                Err(error) if source.is_lenient => {
                    self.behind += source.size().unwrap_or(0);
                    return Ok(Some(whole(source.place.to_string().into(), &error)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Leaves the open input, read to its end or not.
    fn pass(&mut self) {
        if let Some(open) = self.open.take() {
            self.behind += open.size.unwrap_or_else(|| open.position());
        }
    }
}

impl Iterator for Entries {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.read();
        if entry.is_err() {
            self.sources = Vec::new().into_iter();
            self.behind = Entries::position(self);
            self.open = None;
        }
        entry.transpose()
    }
}

impl FusedIterator for Entries {}

impl Open {
    fn new(source: &Source, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let mut packed = None;
        let mut bytes = || {
            let bytes = Bytes::open(source).map_err(|error| unopened(source.place.to_string(), &error))?;
            packed.clone_from(&bytes.packed);
            Ok::<_, anyhow::Error>(bytes)
        };
        if let Some(fault) = &source.fault {
            bail!("{fault}");
        }
        let keep = || fields.keep.clone();
        let reader = match (source.format, &source.place) {
            (Format::Lines, _) => Reader::Lines(Lines::new(bytes()?, keep(), limit)),
            (Format::Jsonl, _) => Reader::Json(JsonLines::new(bytes()?, fields.clone(), limit)),
            (Format::Csv, _) => Reader::Table(Box::new(Table::open(bytes()?, b',', fields, limit)?)),
            (Format::Tsv, _) => Reader::Table(Box::new(Table::open(bytes()?, b'\t', fields, limit)?)),
            (Format::Arrow, _) => Reader::Arrow(Box::new(ArrowRows::open(bytes()?, source, fields, limit)?)),
            (Format::Parquet, Place::File(path)) => {
                Reader::Parquet(Box::new(ParquetRows::open(path, fields, limit)?))
            }
            (Format::Parquet, Place::Stdin) => unreachable!("refused by Source::check"),
            (Format::Files, _) => Reader::File(Some(Box::new(file::read(source, fields, limit)))),
        };
        let lenient = source.is_lenient.then(|| source.place.to_string().into());
        Ok(Open { reader, packed, size: source.size(), lenient })
    }

    fn position(&self) -> u64 {
        let read = self.packed.as_ref().map(|read| read.load(Ordering::Relaxed));
        let position = read.unwrap_or_else(|| match &self.reader {
            Reader::Lines(lines) => lines.behind(),
            Reader::Json(lines) => lines.behind(),
            Reader::Table(table) => table.behind(),
            Reader::Parquet(rows) => rows.behind(),
            Reader::Arrow(rows) => rows.behind(),
            Reader::File(Some(_)) => 0,
            Reader::File(None) => self.size.unwrap_or(0),
            Reader::Arguments(arguments) => arguments.behind,
        });
        // A file may grow while it is read.
        self.size.map_or(position, |size| position.min(size))
    }
}

impl Reader {
    fn read(&mut self) -> Result<Option<Entry>> {
        match self {
            Reader::Lines(lines) => lines.read(),
            Reader::Json(lines) => lines.read(),
            Reader::Table(table) => table.read(),
            Reader::Parquet(rows) => rows.read(),
            Reader::Arrow(rows) => rows.read(),
            Reader::File(entry) => Ok(entry.take().map(|entry| *entry)),
            Reader::Arguments(arguments) => Ok(arguments.read()),
        }
    }
}

/// Texts of the command line.
struct Arguments {
    texts: vec::IntoIter<String>,
    given: u64,
    behind: u64,
}

impl Arguments {
    fn read(&mut self) -> Option<Entry> {
        let text = self.texts.next()?;
        self.given += 1;
        self.behind += text.len() as u64 + 1;
        let place = Spot { source: "the command line".into(), at: At::Argument(self.given) };
        Some(Entry::Record(Record { place, id: None, text, pair: None, kept: Vec::new() }))
    }
}
