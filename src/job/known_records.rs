//! The records that an output already has rows of (`--append`).

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Result, bail};

use super::cursor::add_record;
use crate::formats::for_each_record_hash;
use crate::input::Record;
use crate::rows::OutputFormat;
use crate::store::{Digest, Hasher};

/// The low bits of a hash, which stand for the record; the others stand for the options.
const RECORD_BITS: u32 = 96;
/// Hexadecimal digits of a hash.
const HASH_DIGITS: usize = 32;

/// A hash as the rows of a file have it.
pub(super) fn hash_text(hash: u128) -> String {
    format!("{hash:0width$x}", width = HASH_DIGITS)
}

/// The records of the rows of a file.
#[derive(Debug, Clone, Default)]
pub struct FileRecords {
    /// The file, for messages.
    name: String,
    /// The number of records of each hash.
    hashes: HashMap<u128, u64>,
    /// The first 128 bits of the SHA-256 of each id.
    ids: HashSet<u128>,
    /// SHA-256 of all hashes, in the order of the rows.
    digest: String,
}

impl FileRecords {
    /// Reads the hashes of a file that a run with `--append` wrote. `chunks`: the rows to append are chunks.
    pub fn read(path: &Path, format: OutputFormat, chunks: bool) -> Result<Self> {
        let mut records = FileRecords { name: path.display().to_string(), ..FileRecords::default() };
        let mut hasher = Hasher::default();
        for_each_record_hash(path, format, chunks, |id, hash| {
            hasher.add(hash);
            let Some(hash) =
                (hash.len() == HASH_DIGITS).then(|| u128::from_str_radix(hash, 16).ok()).flatten()
            else {
                bail!(
                    "{} has the hash {hash:?}, which sconce does not write; write the file again",
                    path.display()
                );
            };
            *records.hashes.entry(hash).or_default() += 1;
            records.ids.extend(id.map(|id| Digest::of(id).first_bits()));
            Ok(())
        })?;
        records.digest = hasher.digest().to_string();
        Ok(records)
    }

    /// SHA-256 of the hashes of all rows, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

/// Hashes records, and finds those that a file already has rows of.
#[derive(Debug, Clone)]
pub struct KnownRecords {
    /// The high bits of all hashes: a digest of the options that affect rows.
    choices: u128,
    /// The records of the file that the run appends to.
    file: FileRecords,
}

impl KnownRecords {
    /// The records of `file`, if rows are made with the options of this digest.
    pub fn new(choices: u128, file: FileRecords) -> Result<Self> {
        let choices = choices >> RECORD_BITS;
        if file.hashes.keys().any(|hash| hash >> RECORD_BITS != choices) {
            bail!(
                "--append: {} was written with another model or other options; use the same ones, or write to another file",
                file.name
            );
        }
        Ok(KnownRecords { choices, file })
    }

    /// The hash of a record.
    pub(super) fn hash(&self, record: &Record) -> u128 {
        let mut hasher = Hasher::default();
        add_record(&mut hasher, record);
        self.choices << RECORD_BITS | hasher.digest().first_bits() & ((1 << RECORD_BITS) - 1)
    }

    /// Whether the file has rows of a record with this hash. Each record of the file is found once.
    pub(super) fn take(&mut self, record: &Record, hash: u128) -> Result<bool> {
        let Some(count) = self.file.hashes.get_mut(&hash) else {
            let id = record.id.as_ref().map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
            if let Some(id) = id.filter(|id| self.file.ids.contains(&Digest::of(id).first_bits())) {
                bail!(
                    "{} has the id {id:?}, for which {} has rows of another text or other --keep fields; --append only adds records: \
                     give the record another id, or write the file again without --append",
                    record.location,
                    self.file.name
                );
            }
            return Ok(false);
        };
        let is_known = *count > 0;
        *count = count.saturating_sub(1);
        Ok(is_known)
    }
}
