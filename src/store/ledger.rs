//! The ledger: one JSON object per line about each skipped, failed, truncated or otherwise unusual record.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use serde::Serialize;

use super::digest::{Digest, Hasher};
use super::own_file;
use super::replace::{create_sidecar, remove, rename};
use super::target::Target;
use super::write_error::write_error;
use crate::sys::regular_file;

/// Maximum number of bytes of a file that are read to recognise a ledger by its first line.
const MAX_FIRST_LINE_BYTES: u64 = 1 << 16;

/// An entry of the ledger. A field that is `None` is omitted.
#[derive(Debug, Clone, Serialize)]
pub struct LedgerEntry<'a> {
    /// Index of the input record, from 0.
    pub index: u64,
    /// Path of the input file.
    pub file: &'a str,
    /// Line in the file, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u64>,
    /// Row in the file, from 1, for files that have no lines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<u64>,
    /// What happened to the record.
    pub event: Event,
    /// The reason, as a sentence without its subject.
    pub reason: Cow<'a, str>,
    /// Number of encoded tokens, including special tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<usize>,
    /// Number of truncated tokens.
    #[serde(skip_serializing_if = "Option::is_none", rename = "cut")]
    pub truncated_tokens: Option<usize>,
}

/// What happened to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Event {
    /// It could not be read or tokenized, and has no row.
    Failed,
    /// It has a row, but a field did not have its column's type and is null.
    Nulled,
    /// Its vector has NaN or infinite elements.
    #[serde(rename = "not_finite")]
    NotFinite,
    /// Its text exceeds the token limit, and it has no row.
    Skipped,
    /// Its text exceeds the token limit, and was truncated.
    Truncated,
    /// Its text exceeds the token limit, and its vector is the mean over several parts of the text.
    Chunked,
}

/// Writes a ledger. The file is created with the first entry.
pub struct Ledger {
    path: PathBuf,
    output: PathBuf,
    hasher: Hasher,
    file: Option<BufWriter<File>>,
}

impl Ledger {
    /// Refuses to replace an existing file that is not a ledger.
    pub fn check_replaceable(final_path: &Path) -> Result<()> {
        if !regular_file::has_dir_entry(final_path) {
            return Ok(());
        }
        let mut line = String::new();
        let first_line = |file: File| BufReader::new(file.take(MAX_FIRST_LINE_BYTES)).read_line(&mut line);
        let is_read = !final_path.is_symlink() && regular_file::open(final_path).and_then(first_line).is_ok();
        if is_read && is_entry(&line) {
            return Ok(());
        }
        bail!(
            "{} would be overwritten by the ledger, but is not one; move it, or choose another --output",
            final_path.display()
        )
    }

    /// Opens a ledger at `path`. With `durable`, the length in bytes of an interrupted run's ledger, the file
    /// is truncated to that and continued; otherwise an existing file is removed. A new file has the
    /// permissions of `output`.
    pub fn open(path: &Path, output: &Path, durable: Option<u64>) -> Result<Self> {
        let bytes = durable.unwrap_or(0);
        if bytes == 0 {
            remove(path)?;
            let (path, output, hasher) = (path.to_owned(), output.to_owned(), Hasher::default());
            return Ok(Ledger { path, output, hasher, file: None });
        }
        let failed = |error| write_error(&Target::File(path.to_owned()), true, error);
        let length = path.metadata().map_or(0, |metadata| metadata.len());
        if length < bytes {
            bail!(
                "cannot resume: {} has {length} bytes, but {bytes} were written; pass --restart to start over",
                path.display()
            );
        }
        let mut file = own_file::open_to_write(path).map_err(failed)?;
        let mut hasher = Hasher::default();
        hasher.add_all(BufReader::new((&file).take(bytes))).map_err(failed)?;
        file.set_len(bytes).and_then(|()| file.seek(SeekFrom::Start(bytes))).map_err(failed)?;
        let (path, output) = (path.to_owned(), output.to_owned());
        Ok(Ledger { path, output, hasher, file: Some(BufWriter::new(file)) })
    }

    /// The digest of all entries so far.
    pub fn digest(&self) -> Digest {
        self.hasher.digest()
    }

    /// Appends an entry.
    pub fn write(&mut self, entry: &LedgerEntry) -> Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.write_line(&line)
    }

    fn write_line(&mut self, line: &[u8]) -> Result<()> {
        self.hasher.add(line);
        let result = match &mut self.file {
            Some(file) => file.write_all(line),
            None => create_sidecar(&self.path, &self.output)
                .and_then(|file| self.file.insert(BufWriter::new(file)).write_all(line)),
        };
        result.map_err(|error| self.error(error))
    }

    /// Appends the entries of the ledger at `path` that are not in `seen`, to which it adds them. `read_line`
    /// reads its next line, and returns false at the end.
    pub fn append(
        &mut self,
        path: &Path,
        mut read_line: impl FnMut(&mut Vec<u8>) -> io::Result<bool>,
        seen: &mut HashSet<Digest>,
    ) -> Result<()> {
        let mut line = Vec::new();
        let unread =
            |error| anyhow!("cannot read the ledger {} ({error}); restore or remove it", path.display());
        while read_line(&mut line).map_err(unread)? {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            if seen.insert(Digest::of(&line)) {
                self.write_line(&line)?;
            }
        }
        Ok(())
    }

    /// Makes all entries so far durable and returns the length of the file in bytes.
    pub fn checkpoint(&mut self) -> Result<u64> {
        let Some(file) = &mut self.file else { return Ok(0) };
        let mut checkpoint = || {
            file.flush()?;
            file.get_ref().sync_data()?;
            file.stream_position()
        };
        checkpoint().map_err(|error| self.error(error))
    }

    /// Renames the ledger to `final_path`. If it has no entries, the file of an earlier run there is removed.
    pub fn finish(mut self, final_path: &Path) -> Result<()> {
        self.checkpoint()?;
        match self.file {
            Some(_) => rename(&self.path, final_path)
                .map_err(|error| write_error(&Target::File(final_path.to_owned()), true, error)),
            None => remove(final_path),
        }
    }

    fn error(&self, error: io::Error) -> anyhow::Error {
        write_error(&Target::File(self.path.clone()), true, error)
    }
}

/// Whether a line has the fields that every ledger entry has.
fn is_entry(line: &str) -> bool {
    let fields: Option<serde_json::Map<_, _>> = serde_json::from_str(line).ok();
    fields.is_some_and(|fields| ["index", "file", "event"].iter().all(|key| fields.contains_key(*key)))
}

#[cfg(test)]
mod tests {
    use super::is_entry;

    #[test]
    fn an_entry_is_recognised_by_its_fields() {
        assert!(is_entry("{\"index\":0,\"file\":\"a\",\"event\":\"failed\",\"reason\":\"\"}\n"));
        for line in ["", "[]", "{}", "{\"index\":0,\"file\":\"a\"}", "{\"index\":0,\"file\":\"a\",\"event\""]
        {
            assert!(!is_entry(line), "{line}");
        }
    }
}
