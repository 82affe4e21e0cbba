//! The records that an output already has rows of (`--append`).

use std::collections::{HashMap, HashSet};
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::input::Record;
use crate::output::{OutputFormat, for_each_record_hash};
use crate::sys::digest_cache::first_bits;

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
    /// Reads the hashes of a file that a run with `--append` wrote.
    pub fn read(path: &Path, format: OutputFormat) -> Result<Self> {
        let (mut records, mut digest) =
            (FileRecords { name: path.display().to_string(), ..FileRecords::default() }, Sha256::new());
        for_each_record_hash(path, format, |id, hash| {
            digest.update(hash.as_bytes());
            let Some(hash) =
                (hash.len() == HASH_DIGITS).then(|| u128::from_str_radix(hash, 16).ok()).flatten()
            else {
                bail!(
                    "{} has the hash {hash:?}, which sconce does not write; write the file again",
                    path.display()
                );
            };
            *records.hashes.entry(hash).or_default() += 1;
            records.ids.extend(id.map(|id| first_bits(Sha256::new_with_prefix(id))));
            Ok(())
        })?;
        records.digest = format!("{:x}", digest.finalize());
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

    /// The hash of a record: of its texts, its id and its carried-through fields.
    pub(super) fn hash(&self, record: &Record) -> u128 {
        let mut hash = Sha256::new();
        let mut update = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        update(record.text.as_bytes());
        update(record.pair.as_deref().unwrap_or("\0").as_bytes());
        update(record.id.as_ref().map_or("\0".into(), Value::to_string).as_bytes());
        record.kept.iter().for_each(|value| update(value.json().to_string().as_bytes()));
        self.choices << RECORD_BITS | first_bits(hash) & ((1 << RECORD_BITS) - 1)
    }

    /// Whether the file has rows of a record with this hash. Each record of the file is found once.
    pub(super) fn take(&mut self, record: &Record, hash: u128) -> Result<bool> {
        let Some(count) = self.file.hashes.get_mut(&hash) else {
            let id = record.id.as_ref().map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
            if let Some(id) = id.filter(|id| self.file.ids.contains(&first_bits(Sha256::new_with_prefix(id))))
            {
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
