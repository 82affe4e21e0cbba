//! The records that an output already has rows of (`--append`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail};

use super::cursor::add_record;
use crate::formats::{FileColumns, HashedRow, HashedRows, for_each_record_hash};
use crate::input::Record;
use crate::rows::OutputFormat;
use crate::store::{Digest, Hasher};

/// The low bits of a hash, which stand for the record; the others stand for the options.
const RECORD_BITS: u32 = 96;
/// Hexadecimal digits of a hash.
const HASH_DIGITS: usize = 32;

/// The rest of the error for an empty id.
const NO_ID_IN_CSV: &str = "which csv cannot tell from none, but --update and --delete compare records by id; give every record an \
                            id that is not empty, or write jsonl, parquet or arrow";

/// A hash as the rows of a file have it.
pub(super) fn hash_text(hash: u128) -> String {
    format!("{hash:0width$x}", width = HASH_DIGITS)
}

/// Which rows of the file are replaced or removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Changes {
    /// Those of a record that the input has with another text or other kept fields (`--update`).
    pub update: bool,
    /// Those of a record whose id is not in the input (`--delete`).
    pub delete: bool,
}

impl Changes {
    /// Whether any row is, so that every record needs an id.
    pub fn any(self) -> bool {
        self.update || self.delete
    }
}

/// The records of the rows of a file, and what the input has of them.
#[derive(Debug, Default)]
pub struct FileRecords {
    /// The file, for messages.
    name: String,
    /// SHA-256 of the hashes of all records, in the order of the rows.
    digest: String,
    /// Which of its rows are replaced or removed.
    pub changes: Changes,
    /// Its columns, if it has any rows and its format has the same ones in all of them.
    pub(super) columns: Option<FileColumns>,
    found: Mutex<Found>,
}

/// The records of a file that have been found in the input so far.
#[derive(Debug, Default)]
struct Found {
    /// By their hashes.
    hashes: HashMap<u128, Counts>,
    /// By the first 128 bits of the SHA-256 of their ids.
    ids: HashMap<u128, Id>,
}

/// Records with the same hash.
#[derive(Debug, Default)]
struct Counts {
    in_file: u64,
    /// Those of the input, at most as many as the file has.
    in_input: u64,
}

/// Records with the same id.
#[derive(Debug, Default)]
struct Id {
    in_file: u64,
    is_in_input: bool,
}

/// The key of an id.
fn id_key(id: &str) -> u128 {
    Digest::of(id).first_bits()
}

impl FileRecords {
    /// The records of no file: all records of the input are new.
    pub fn none(changes: Changes) -> Self {
        FileRecords { changes, ..FileRecords::default() }
    }

    /// Reads the hashes of a file that a run with `--append` wrote.
    pub fn read(path: &Path, rows: HashedRows, changes: Changes) -> Result<Self> {
        let name = path.display().to_string();
        let (mut found, mut hasher) = (Found::default(), Hasher::default());
        for_each_record_hash(path, rows, |HashedRow { id, hash, is_first }| {
            if !is_first {
                return Ok(());
            }
            hasher.add(hash);
            found.hashes.entry(hash_of(&name, hash)?).or_default().in_file += 1;
            match id {
                Some(id) => found.ids.entry(id_key(id)).or_default().in_file += 1,
                None if changes.any() && rows.format == OutputFormat::Csv => {
                    bail!("{name} has a row with an empty id, {NO_ID_IN_CSV}")
                }
                None if changes.any() => bail!(
                    "{name} has a row without an id, but --update and --delete compare records by id; write the file again from \
                     an input whose records have ids"
                ),
                None => {}
            }
            Ok(())
        })?;
        let is_empty = found.hashes.is_empty();
        let columns = if is_empty { None } else { FileColumns::read(path, rows.format)? };
        Ok(FileRecords { name, digest: hasher.digest().to_string(), changes, columns, found: found.into() })
    }

    /// Whether the file has no rows.
    pub fn is_empty(&self) -> bool {
        self.found().hashes.is_empty()
    }

    /// SHA-256 of the hashes of all records, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Whether the file has rows of a record with this id.
    pub fn has_id(&self, id: &str) -> bool {
        self.found().ids.contains_key(&id_key(id))
    }

    /// Records whose rows are removed, after the whole input was read.
    pub fn deleted(&self) -> u64 {
        let found = self.found();
        let gone = found.ids.values().filter(|id| self.changes.delete && !id.is_in_input);
        gone.map(|id| id.in_file).sum()
    }

    /// Which rows of the file stay, after the whole input was read.
    pub fn kept_rows(&self, path: &Path, rows: HashedRows) -> Result<Vec<bool>> {
        let (found, mut seen) = (self.found(), HashMap::<u128, u64>::new());
        let (mut kept, mut is_kept) = (Vec::new(), true);
        for_each_record_hash(path, rows, |HashedRow { id, hash, is_first }| {
            if is_first {
                let hash = hash_of(&self.name, hash)?;
                let is_in_input =
                    id.and_then(|id| found.ids.get(&id_key(id))).is_some_and(|id| id.is_in_input);
                is_kept = if is_in_input {
                    let seen = seen.entry(hash).or_default();
                    *seen += 1;
                    !self.changes.update
                        || found.hashes.get(&hash).is_some_and(|counts| *seen <= counts.in_input)
                } else {
                    !self.changes.delete
                };
            }
            kept.push(is_kept);
            Ok(())
        })?;
        Ok(kept)
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hash of a row of the file `name`.
fn hash_of(name: &str, hash: &str) -> Result<u128> {
    let digits = (hash.len() == HASH_DIGITS).then(|| u128::from_str_radix(hash, 16).ok());
    digits.flatten().ok_or_else(|| {
        anyhow!("{name} has the hash {hash:?}, which sconce does not write; write the file again")
    })
}

/// What a file has of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// Nothing.
    New,
    /// Rows of another record with its id, which its own replace.
    Changed,
    /// Its rows.
    Unchanged,
}

/// Hashes records, and finds those that a file already has rows of.
#[derive(Debug, Clone)]
pub struct KnownRecords {
    /// The high bits of all hashes: a digest of the options that affect rows.
    choices: u128,
    /// The records of the file that the run appends to.
    file: Arc<FileRecords>,
    /// Whether the file cannot tell an id that is an empty text from none.
    is_csv: bool,
}

impl KnownRecords {
    /// The records of `file`, a file of this format, if rows are made with the options of this digest.
    pub fn new(choices: u128, file: Arc<FileRecords>, format: OutputFormat) -> Result<Self> {
        let choices = choices >> RECORD_BITS;
        if file.found().hashes.keys().any(|hash| hash >> RECORD_BITS != choices) {
            bail!(
                "--append: {} was written with another model or other options; use the same ones, or write to another file",
                file.name
            );
        }
        Ok(KnownRecords { choices, file, is_csv: format == OutputFormat::Csv })
    }

    /// The records of the file.
    pub(super) fn file(&self) -> &Arc<FileRecords> {
        &self.file
    }

    /// Whether the file has rows of a record.
    pub(super) fn has(&self, record: &Record) -> bool {
        self.file.found().hashes.contains_key(&self.hash(record))
    }

    /// Forgets what was found: the input is read from its beginning.
    pub(super) fn start_over(&self) {
        let mut found = self.file.found();
        found.hashes.values_mut().for_each(|counts| counts.in_input = 0);
        found.ids.values_mut().for_each(|id| id.is_in_input = false);
    }

    /// The hash of a record.
    fn hash(&self, record: &Record) -> u128 {
        let mut hasher = Hasher::default();
        add_record(&mut hasher, record);
        self.choices << RECORD_BITS | hasher.digest().first_bits() & ((1 << RECORD_BITS) - 1)
    }

    /// Hashes a record, and looks it up in the file. Each record of the file is found once.
    pub(super) fn look_up(&self, record: &Record) -> Result<(u128, Known)> {
        let (hash, changes) = (self.hash(record), self.file.changes);
        let found = &mut *self.file.found();
        let counts = found.hashes.get_mut(&hash);
        let is_known = counts.is_some();
        let is_unchanged = counts.is_some_and(|counts| {
            let is_left = counts.in_input < counts.in_file;
            counts.in_input += u64::from(is_left);
            is_left
        });
        if is_known && !changes.any() {
            return Ok((hash, if is_unchanged { Known::Unchanged } else { Known::New }));
        }
        let id = record.id.as_ref().map(|id| id.as_str().map_or_else(|| id.to_string(), str::to_owned));
        let Some(id) = id else {
            if changes.any() {
                bail!(
                    "{} has no id, by which --update and --delete compare records; choose the field of the id with --id-field, \
                     or give the record an id",
                    record.location
                );
            }
            return Ok((hash, Known::New));
        };
        if id.is_empty() && changes.any() && self.is_csv {
            bail!("{} has an empty id, {NO_ID_IN_CSV}", record.location);
        }
        let Some(of_file) = found.ids.get_mut(&id_key(&id)) else {
            return Ok((hash, Known::New));
        };
        of_file.is_in_input = true;
        let known = match (is_unchanged, changes.update) {
            (true, _) => Known::Unchanged,
            (false, true) => Known::Changed,
            (false, false) if is_known => Known::New,
            (false, false) => bail!(
                "{} has the id {id:?}, for which {} has rows of another text or other --keep fields; --append only adds records: \
                 pass --update to replace the rows, or give the record another id",
                record.location,
                self.file.name
            ),
        };
        Ok((hash, known))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::input::{Location, Position};

    const ROWS: HashedRows = HashedRows { format: OutputFormat::Jsonl, chunks: false, id_column: "id" };

    fn record(id: Option<u64>, text: &str) -> Record {
        let location = Location { source: "a.jsonl".into(), position: Position::Line(3) };
        let id = id.map(|id| id.into());
        Record { location, id, text: text.into(), pair: None, is_null: false, kept: Vec::new() }
    }

    /// A file with a row for each record, and the changes applied to it after `input` was read.
    fn run(changes: Changes, file: &[Record], input: &[Record]) -> Result<(Vec<Known>, Vec<bool>, u64)> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.jsonl");
        let hasher = KnownRecords::new(0, Arc::default(), ROWS.format).unwrap();
        let row = |record: &Record| {
            format!("{}\n", json!({"id": record.id, "record_hash": hash_text(hasher.hash(record))}))
        };
        fs::write(&path, file.iter().map(row).collect::<String>()).unwrap();
        let records = Arc::new(FileRecords::read(&path, ROWS, changes)?);
        let known = KnownRecords::new(0, records.clone(), ROWS.format)?;
        let look_up = || input.iter().map(|record| Ok(known.look_up(record)?.1)).collect::<Result<Vec<_>>>();
        let first = look_up()?;
        known.start_over();
        assert_eq!(look_up()?, first, "the input is read again");
        Ok((first, records.kept_rows(&path, ROWS)?, records.deleted()))
    }

    #[test]
    fn rows_of_changed_and_missing_records_go() {
        use Known::{Changed, New, Unchanged};
        let file = [record(Some(1), "a"), record(Some(2), "b"), record(Some(2), "b"), record(Some(3), "c")];
        let input = [record(Some(2), "b"), record(Some(1), "x"), record(Some(4), "a")];
        let both = Changes { update: true, delete: true };
        let update = Changes { delete: false, ..both };
        let known = vec![Unchanged, Changed, New];
        assert_eq!(run(both, &file, &input).unwrap(), (known.clone(), vec![false, true, false, false], 1));
        assert_eq!(run(update, &file, &input).unwrap(), (known, vec![false, true, false, true], 0));
        let delete = Changes { update: false, ..both };
        let same = run(delete, &file, &input[..1]).unwrap();
        assert_eq!(same, (vec![Unchanged], vec![false, true, true, false], 2));
        for changes in [delete, Changes::default()] {
            let error = run(changes, &file, &input).unwrap_err().to_string();
            assert!(
                error.starts_with("a.jsonl line 3 has the id \"1\"") && error.contains("--update"),
                "{error}"
            );
        }
    }

    #[test]
    fn changes_need_ids() {
        let (with, without) = ([record(Some(1), "a")], [record(None, "a")]);
        let changes = Changes { update: true, delete: false };
        for (file, input) in [(&with, &without), (&without, &with)] {
            let error = run(changes, file, input).unwrap_err().to_string();
            assert!(error.contains("--update and --delete compare records"), "{error}");
        }
        assert_eq!(run(Changes::default(), &without, &without).unwrap().0, [Known::Unchanged]);
    }
}
