//! The ledger: one JSON object a line about a row that is not as the user may expect.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Serialize;

use super::fault::explain;
use super::place::{beside_output, remove, rename};
use super::{Digest, Hasher, Target};

/// What is said of a row; what is none is left out.
#[derive(Debug, Clone, Serialize)]
pub struct LedgerEntry<'a> {
    /// The row's number in the input, from 0.
    pub index: u64,
    /// The file that it is from.
    pub file: &'a str,
    /// Its line there, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Its row there, from 1, in files without lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// What happened to it.
    pub event: Event,
    /// Why, as a sentence.
    pub reason: Cow<'a, str>,
    /// Tokens that were encoded, specials included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Tokens that were cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut: Option<usize>,
}

/// What happened to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It could not be read, and has no vector.
    Failed,
    /// It has its vector, but a field did not fit its column, and null stands there.
    Nulled,
    /// It has its vector, but with NaN or infinite values.
    #[serde(rename = "not_finite")]
    NotFinite,
    /// It was too long, and has no vector.
    Skipped,
    /// It was too long, and lost an end.
    Truncated,
    /// It was too long, and its vector is the mean over its parts.
    Chunked,
}

/// A ledger that is being written. Its file is made with the first entry.
pub struct Ledger {
    path: PathBuf,
    output: PathBuf,
    hasher: Hasher,
    file: Option<BufWriter<File>>,
}

impl Ledger {
    /// Refuses to take the place of a file that is no ledger of an earlier run.
    ///
    /// # Errors
    /// If there is such a file.
    pub fn check(final_path: &Path) -> Result<()> {
        let Ok(there) = File::open(final_path) else { return Ok(()) };
        let mut line = String::new();
        let read = BufReader::new(there.take(1 << 16)).read_line(&mut line);
        let entry: Option<serde_json::Map<_, _>> = serde_json::from_str(&line).ok();
        let is_ledger =
            entry.is_some_and(|entry| ["index", "file", "event"].iter().all(|key| entry.contains_key(*key)));
        if read.is_ok() && is_ledger {
            return Ok(());
        }
        bail!(
            "{} is in the way of the ledger, and is no ledger of an earlier run; move it, or choose another --output",
            final_path.display()
        )
    }

    /// A ledger at `path`: empty, in place of what is there, or cut to the `durable` bytes of an interrupted run and
    /// written on. It is as private as `output`, where that is there.
    ///
    /// # Errors
    /// If the file cannot be written, or has fewer bytes.
    pub fn open(path: &Path, output: &Path, durable: Option<u64>) -> Result<Self> {
        let bytes = durable.unwrap_or(0);
        if bytes == 0 {
            remove(path)?;
            let (path, output, hasher) = (path.to_owned(), output.to_owned(), Hasher::default());
            return Ok(Ledger { path, output, hasher, file: None });
        }
        let fault = |error| explain(&Target::File(path.to_owned()), true, error);
        let there = path.metadata().map_or(0, |there| there.len());
        if there < bytes {
            bail!(
                "cannot resume: {} has {there} bytes, but {bytes} were written; pass --restart to start over",
                path.display()
            );
        }
        let mut file = OpenOptions::new().read(true).write(true).open(path).map_err(fault)?;
        let mut hasher = Hasher::default();
        hasher.add_all(BufReader::new((&file).take(bytes))).map_err(fault)?;
        file.set_len(bytes).and_then(|()| file.seek(SeekFrom::Start(bytes))).map_err(fault)?;
        let (path, output) = (path.to_owned(), output.to_owned());
        Ok(Ledger { path, output, hasher, file: Some(BufWriter::new(file)) })
    }

    /// The digest of all entries so far.
    pub fn digest(&self) -> Digest {
        self.hasher.digest()
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&mut self, entry: &LedgerEntry) -> Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.hasher.add(&line);
        let result = match &mut self.file {
            Some(file) => file.write_all(&line),
            None => beside_output(&self.output)
                .open(&self.path)
                .and_then(|file| self.file.insert(BufWriter::new(file)).write_all(&line)),
        };
        result.map_err(|error| self.fault(error))
    }

    /// Makes all entries so far durable, and returns how many bytes hold them.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn checkpoint(&mut self) -> Result<u64> {
        let Some(file) = &mut self.file else { return Ok(0) };
        let mut checkpoint = || {
            file.flush()?;
            file.get_ref().sync_data()?;
            file.stream_position()
        };
        checkpoint().map_err(|error| self.fault(error))
    }

    /// Gives the ledger its final name. One without entries is none at all, and takes the one of an earlier run away.
    ///
    /// # Errors
    /// If it cannot be written or moved.
    pub fn finish(mut self, final_path: &Path) -> Result<()> {
        self.checkpoint()?;
        match self.file {
            Some(_) => rename(&self.path, final_path)
                .map_err(|error| explain(&Target::File(final_path.to_owned()), true, error)),
            None => remove(final_path),
        }
    }

    fn fault(&self, error: io::Error) -> anyhow::Error {
        explain(&Target::File(self.path.clone()), true, error)
    }
}
