//! The manifest: the identity and the progress of a run, saved beside its output.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::cursor::Cursor;
use super::stats::Stats;
use crate::rows::metadata::Key;
use crate::rows::{ColumnType, FileMetadata, KeptColumn, Span};
use crate::store::{self, Digest, DurableRows, SidecarPaths, Target};

/// What two runs must have in common for one to resume the other: options, inputs and files, each with its
/// value or digest.
pub type RunIdentity = BTreeMap<String, String>;

/// The state of an interrupted run, saved beside its output.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Manifest {
    /// The identity of the run.
    pub identity: RunIdentity,
    /// The type of ids, if rows have any.
    pub ids: Option<ColumnType>,
    /// The columns of carried-through fields.
    pub kept: Vec<KeptColumn>,
    /// The position after the last record whose rows are all written.
    pub cursor: Cursor,
    /// The counts so far.
    pub stats: Stats,
    /// Rows per record, for formats whose rows have no record index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_per_record: Option<Vec<u64>>,
    /// The durable part of the output.
    pub output: DurableRows,
    /// The durable part of the ledger, in bytes.
    pub ledger: u64,
    /// SHA-256 of the durable part of the ledger.
    pub ledger_sha256: Option<Digest>,
    /// The best rows so far, if rows are sorted by their scores; none of them is in the output yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ranking: Vec<SavedScore>,
    /// Whether all rows are written and only the rename of the output is left.
    pub complete: bool,
}

/// A row that is sorted by its score: what cannot be read from the input again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedScore {
    /// The index of its query.
    pub query: usize,
    /// The index of its record.
    pub index: u64,
    /// Its chunk, if rows are chunks.
    pub chunk: Option<Span>,
    /// The bits of its score, which JSON would not hold if it is NaN.
    pub score: u32,
    /// Its tokens.
    pub tokens: usize,
    /// Whether the text was truncated.
    pub truncated: bool,
}

/// The record of a complete run, saved beside its output, so that `--resume` can tell whether the output is
/// up to date.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CompletedRun {
    /// The manifest of the run.
    run: Manifest,
    /// The output file at the end of the run.
    output: FileStamp,
    /// The shard of the run and its records, as in the metadata of formats that have any; absent without
    /// `--shard`.
    #[serde(default, skip_serializing_if = "FileMetadata::is_empty")]
    shard: FileMetadata,
}

/// Length and modification time of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileStamp {
    bytes: u64,
    modified: Option<Duration>,
}

impl FileStamp {
    fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let modified = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Some(FileStamp { bytes: metadata.len(), modified })
    }
}

impl CompletedRun {
    /// Saves the manifest of a complete run beside its output, which has this metadata.
    pub(super) fn save(run: Manifest, metadata: &FileMetadata, sidecars: &SidecarPaths) -> Result<()> {
        let shard = metadata.only(&Key::OF_SHARD);
        match FileStamp::of(&sidecars.output) {
            Some(output) => {
                store::manifest::save(&sidecars.done, &sidecars.output, &CompletedRun { run, output, shard })
            }
            None => Ok(()),
        }
    }

    /// The run that wrote the current output, or `None` if there is none or the output has changed since.
    fn load(sidecars: &SidecarPaths) -> Option<Self> {
        // If it cannot be read, the run starts from the beginning.
        store::manifest::load::<CompletedRun>(&sidecars.done).ok()??.of_current(sidecars)
    }

    /// The run, unless the output has changed since.
    fn of_current(self, sidecars: &SidecarPaths) -> Option<Self> {
        (Some(&self.output) == FileStamp::of(&sidecars.output).as_ref()).then_some(self)
    }

    /// The manifest of the run that wrote the current output, or `None` if there is none or the output has
    /// changed since.
    pub(super) fn find(sidecars: &SidecarPaths) -> Option<Manifest> {
        Self::load(sidecars).map(|found| found.run)
    }
}

/// The shard (`--shard`) of the run that wrote a file and its records, under the keys that they have in the
/// metadata of an output; empty if the run had all records, `None` if the record of the run is not beside the
/// file.
///
/// # Errors
/// If the file is a shard that is shorter than its run wrote it.
pub fn shard_of_run(output: &Path) -> Result<Option<FileMetadata>> {
    let sidecars = SidecarPaths::of(&Target::File(output.to_owned()))?;
    let Some(sidecars) = sidecars else { return Ok(None) };
    let found = store::manifest::load_beside_input::<CompletedRun>(&sidecars.done).ok().flatten();
    let Some(found) = found else { return Ok(None) };
    let (written, is_shard) = (found.output.bytes, found.run.identity.contains_key("--shard"));
    let shorter = FileStamp::of(&sidecars.output).filter(|file| is_shard && file.bytes < written);
    if let Some(FileStamp { bytes, .. }) = shorter {
        bail!(
            "{} is truncated: it has {bytes} bytes, but {written} when it was written; write or copy it again",
            output.display()
        );
    }
    let Some(CompletedRun { mut run, mut shard, .. }) = found.of_current(&sidecars) else { return Ok(None) };
    // Runs of earlier releases have saved the shard without its records.
    if let Some(number) = run.identity.remove("--shard") {
        shard.insert(Key::Shard, number);
    }
    Ok(Some(shard))
}

/// Checks that a run of `identity` can resume the run of a manifest.
///
/// # Errors
/// What has changed, as the start of a sentence: the first change in full and the names of the others.
pub(super) fn check_same_run(manifest: &Manifest, identity: &RunIdentity) -> Result<(), String> {
    let mut before = manifest.identity.clone();
    if manifest.stats.long_texts() == 0 {
        // The treatment of long texts has not affected any row so far.
        for key in ["--on-long", "--truncation-side"] {
            if let Some(value) = identity.get(key) {
                before.insert(key.into(), value.clone());
            }
        }
    }
    if manifest.stats.skipped_null + manifest.stats.null_rows == 0 {
        // Nor has that of null texts; but the columns of a file tell whether vectors may be null.
        let format = before.get("--output-format").map(String::as_str);
        let has_types = matches!(format, Some("parquet" | "arrow"));
        match identity.get("--on-null").filter(|value| *value == "skip" || !has_types) {
            Some(value) => drop(before.insert("--on-null".into(), value.clone())),
            None if before.get("--on-null").is_some_and(|value| value == "skip") => {
                before.remove("--on-null");
            }
            None => {}
        }
    }
    let keys = before.keys().chain(identity.keys().filter(|key| !before.contains_key(*key)));
    let mut changed: Vec<&String> = keys.filter(|key| before.get(*key) != identity.get(*key)).collect();
    // Options that depend on the model change with it: files come first.
    changed.sort_by_key(|key| key.starts_with("--"));
    let Some((first, rest)) = changed.split_first() else { return Ok(()) };
    let value = |identity: &RunIdentity| match identity.get(*first).map(String::as_str) {
        None => "absent".to_owned(),
        Some("") => "empty".to_owned(),
        Some(value) => value.to_owned(),
    };
    let rest: Vec<&str> = rest.iter().map(|key| key.as_str()).collect();
    let more = match rest.len() {
        0 => String::new(),
        1..=3 => format!(" (also changed: {})", rest.join(", ")),
        n => format!(" (and {n} other changes)"),
    };
    Err(format!("{first} has changed since that run, from {} to {}{more}", value(&before), value(identity)))
}
