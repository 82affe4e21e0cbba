//! The records that an output already has rows of (`--append`).

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Result, anyhow, bail};

use super::cursor::add_record;
use crate::formats::{FileColumns, HashedRow, HashedRows, first_names, for_each_record_hash};
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
    /// How the file changes, once the rows of new records are written.
    counts: OnceLock<ChangeCounts>,
}

/// Numbers of records of a file, several of which may have one id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChangeCounts {
    /// New ones in addition to those of the file.
    pub added: u64,
    /// New ones that each take the place of one with the same id.
    pub updated: u64,
    /// Those whose rows go without another in their place.
    pub deleted: u64,
}

/// The records of a file that have been found in the input so far.
#[derive(Debug, Default)]
struct Found {
    /// By their hashes.
    hashes: HashMap<u128, Counts>,
    /// Whether the input has their id, by the first 128 bits of the SHA-256 of the id.
    ids: HashMap<u128, bool>,
}

/// Records with the same hash.
#[derive(Debug, Default)]
struct Counts {
    in_file: u64,
    /// Those of the input, at most as many as the file has.
    in_input: u64,
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
                Some(id) => drop(found.ids.insert(id_key(id), false)),
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
        let digest = hasher.digest().to_string();
        Ok(FileRecords { name, digest, changes, columns, found: found.into(), counts: OnceLock::new() })
    }

    /// Whether the input has any of the ids.
    pub fn are_in_input(&self) -> bool {
        self.found().ids.values().any(|is_in_input| *is_in_input)
    }

    /// The names of the columns of the file, which is at `path`; of a format without columns those of the
    /// fields of its first row.
    pub fn names(&self, path: &Path) -> Result<Vec<String>> {
        match &self.columns {
            Some(columns) => Ok(columns.names.clone()),
            None if self.is_empty() => Ok(Vec::new()),
            None => first_names(path),
        }
    }

    /// Whether the file has no rows.
    pub fn is_empty(&self) -> bool {
        self.found().hashes.is_empty()
    }

    /// SHA-256 of the hashes of all records, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// How the file changes; `None` before [`FileRecords::change`].
    pub fn counts(&self) -> Option<ChangeCounts> {
        self.counts.get().copied()
    }

    /// Which rows of the file `path` stay, if any may go, after the whole input was read, and how it changes
    /// by the rows of the file `added`.
    pub fn change(&self, path: &Path, added: &Path, rows: HashedRows) -> Result<(Vec<bool>, ChangeCounts)> {
        let (found, mut seen) = (self.found(), HashMap::<u128, u64>::new());
        let (mut kept, mut is_kept) = (Vec::new(), true);
        let (mut counts, mut gone) = (ChangeCounts::default(), HashMap::<u128, u64>::new());
        let mut visit = |HashedRow { id, hash, is_first }: HashedRow| {
            if is_first {
                let (hash, id) = (hash_of(&self.name, hash)?, id.map(id_key));
                is_kept = if id.and_then(|id| found.ids.get(&id)).is_some_and(|is_in_input| *is_in_input) {
                    let seen = seen.entry(hash).or_default();
                    *seen += 1;
                    !self.changes.update
                        || found.hashes.get(&hash).is_some_and(|counts| *seen <= counts.in_input)
                } else {
                    !self.changes.delete
                };
                if let Some(id) = id.filter(|_| !is_kept) {
                    *gone.entry(id).or_default() += 1;
                    counts.deleted += 1;
                }
            }
            kept.push(is_kept);
            Ok(())
        };
        if self.changes.any() {
            for_each_record_hash(path, rows, &mut visit)?;
        }
        for_each_record_hash(added, rows, |HashedRow { id, is_first, .. }| {
            if is_first {
                match id.and_then(|id| gone.get_mut(&id_key(id))).filter(|left| **left > 0) {
                    Some(left) => {
                        *left -= 1;
                        counts.deleted -= 1;
                        counts.updated += 1;
                    }
                    None => counts.added += 1,
                }
            }
            Ok(())
        })?;
        Ok((kept, *self.counts.get_or_init(|| counts)))
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
        let hash = self.hash(record);
        self.file.found().hashes.contains_key(&hash)
    }

    /// Forgets what was found: the input is read from its beginning.
    pub(super) fn start_over(&self) {
        let mut found = self.file.found();
        found.hashes.values_mut().for_each(|counts| counts.in_input = 0);
        found.ids.values_mut().for_each(|is_in_input| *is_in_input = false);
    }

    /// The hash of a record, which the file does not have if it has none with these values. The text of the
    /// same value may be another one in the type that the file has: 1.50 and 1.500.
    fn hash(&self, record: &Record) -> u128 {
        let of = |record: &Record| {
            let mut hasher = Hasher::default();
            add_record(&mut hasher, record);
            self.choices << RECORD_BITS | hasher.digest().first_bits() & ((1 << RECORD_BITS) - 1)
        };
        let hash = of(record);
        let schema = self.file.columns.as_ref().and_then(|columns| columns.schema.as_ref());
        let Some(schema) = schema.filter(|_| !self.file.found().hashes.contains_key(&hash)) else {
            return hash;
        };
        let kept = record.kept.iter().zip(&schema.kept);
        let kept: Vec<_> =
            kept.map(|(value, column)| value.retyped(&column.column_type.data_type())).collect();
        if kept == record.kept { hash } else { of(&Record { kept, ..record.clone() }) }
    }

    /// The hash of a record, and whether the file has its rows. Each record of the file is found once.
    pub(super) fn look_up(&self, record: &Record) -> Result<(u128, bool)> {
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
            return Ok((hash, is_unchanged));
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
            return Ok((hash, false));
        };
        if id.is_empty() && changes.any() && self.is_csv {
            bail!("{} has an empty id, {NO_ID_IN_CSV}", record.location);
        }
        let Some(is_in_input) = found.ids.get_mut(&id_key(&id)) else {
            return Ok((hash, false));
        };
        *is_in_input = true;
        if !is_known && !changes.update {
            bail!(
                "{} has the id {id:?}, for which {} has rows of another text or other --keep fields; --append only adds records: \
                 pass --update to replace the rows, or give the record another id",
                record.location,
                self.file.name
            );
        }
        Ok((hash, is_unchanged))
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

    /// Which records of `input` are unchanged, which rows stay of a file with a row for each record of
    /// `file`, and how many records are added, updated and deleted.
    fn run(changes: Changes, file: &[Record], input: &[Record]) -> Result<(Vec<bool>, Vec<bool>, [u64; 3])> {
        let folder = tempfile::tempdir().unwrap();
        let [path, added] = ["a.jsonl", "b.jsonl"].map(|name| folder.path().join(name));
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
        let new = input.iter().zip(&first).filter(|(_, is_unchanged)| !**is_unchanged);
        fs::write(&added, new.map(|(record, _)| row(record)).collect::<String>()).unwrap();
        let (kept, ChangeCounts { added, updated, deleted }) = records.change(&path, &added, ROWS)?;
        Ok((first, kept, [added, updated, deleted]))
    }

    #[test]
    fn rows_of_changed_and_missing_records_go() {
        let file = [record(Some(1), "a"), record(Some(2), "b"), record(Some(2), "b"), record(Some(3), "c")];
        let input = [record(Some(2), "b"), record(Some(1), "x"), record(Some(4), "a")];
        let both = Changes { update: true, delete: true };
        let update = Changes { delete: false, ..both };
        let known = vec![true, false, false];
        let expected = (known.clone(), vec![false, true, false, false], [1, 1, 2]);
        assert_eq!(run(both, &file, &input).unwrap(), expected);
        assert_eq!(run(update, &file, &input).unwrap(), (known, vec![false, true, false, true], [1, 1, 1]));
        let delete = Changes { update: false, ..both };
        let same = run(delete, &file, &input[..1]).unwrap();
        assert_eq!(same, (vec![true], vec![false, true, true, false], [0, 0, 2]));
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
        assert_eq!(run(Changes::default(), &without, &without).unwrap().0, [true]);
    }
}
