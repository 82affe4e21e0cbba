//! `sconce cache`: what the caches have, and what is removed from them; `sconce models`: the models that run
//! without the network.

use std::fs;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};
use bytesize::ByteSize;
use serde_json::json;

use super::print_table;
use crate::formats::TableFormat;
use crate::hub::cached_models;
use crate::named::{Named, names};
use crate::rows::{ColumnType, FieldValue, KeptColumn};
use crate::store::digest_cache::{Usage, cache_directory, usage};
use crate::sys::console::counted;

/// What an entry of a cache is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheKind {
    /// A model of the hub, with all of its revisions.
    Models,
    /// Packed weights of a checkpoint.
    Weights,
    /// Chunks of texts with their vectors, of `search`.
    Texts,
    /// Digests of large files.
    Digests,
    /// Outcomes of the check of the CUDA kernels.
    Kernels,
    /// Outcomes of the comparison of int8 with f32.
    Types,
}

names!(CacheKind {
    Models => "models",
    Weights => "weights",
    Texts => "texts",
    Digests => "digests",
    Kernels => "kernels",
    Types => "types",
});

impl CacheKind {
    /// The kinds that Sconce makes itself, in folders of their names.
    pub const OWN: [CacheKind; 5] =
        [CacheKind::Weights, CacheKind::Texts, CacheKind::Digests, CacheKind::Kernels, CacheKind::Types];
}

/// The options of `sconce cache`.
pub struct CacheOptions {
    /// The kinds of entries to remove. `None`: entries of all kinds are listed.
    pub clear: Option<Vec<CacheKind>>,
    /// Only entries that were not used for so long.
    pub unused_for: Duration,
    /// How entries are printed.
    pub format: TableFormat,
}

/// An entry of a cache.
struct Entry {
    kind: CacheKind,
    name: String,
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

/// Lists the entries of the caches, or removes some of them and lists those.
///
/// # Errors
/// If a cache cannot be read, or an entry cannot be removed.
pub fn cache(options: &CacheOptions) -> Result<()> {
    let now = SystemTime::now();
    let mut entries = entries()?;
    entries.retain(|entry| {
        let is_chosen = options.clear.as_ref().is_none_or(|kinds| kinds.contains(&entry.kind));
        is_chosen && idle(entry, now) >= options.unused_for
    });
    if options.clear.is_some() {
        entries.iter().try_for_each(remove)?;
    }
    print(&entries, options.format, now)
}

/// The entries of all caches: a model each; of what Sconce has made, one for each file of packed weights, and
/// one for all other files of a kind.
fn entries() -> Result<Vec<Entry>> {
    let models = cached_models()?.into_iter().map(|model| entry(CacheKind::Models, model.id, model.folder));
    let mut entries: Vec<Entry> = models.collect();
    let Some(directory) = cache_directory() else { return Ok(entries) };
    for kind in CacheKind::OWN {
        let folder = directory.join(kind.name());
        match kind {
            CacheKind::Weights => {
                let mut files: Vec<PathBuf> =
                    fs::read_dir(&folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
                files.sort();
                entries.extend(files.into_iter().map(|file| {
                    let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    entry(kind, name, file)
                }));
            }
            _ if folder.is_dir() => entries.push(entry(kind, folder.display().to_string(), folder)),
            _ => {}
        }
    }
    Ok(entries)
}

/// An entry with the size of its files, and the last time that one was used.
fn entry(kind: CacheKind, name: String, path: PathBuf) -> Entry {
    let Usage { bytes, used } = usage(&path);
    Entry { kind, name, path, bytes, used: used.unwrap_or(SystemTime::UNIX_EPOCH) }
}

/// How long an entry was not used.
fn idle(entry: &Entry, now: SystemTime) -> Duration {
    now.duration_since(entry.used).unwrap_or_default()
}

fn remove(entry: &Entry) -> Result<()> {
    let removed =
        if entry.path.is_dir() { fs::remove_dir_all(&entry.path) } else { fs::remove_file(&entry.path) };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(anyhow!("cannot remove {} ({error}); remove it by hand", entry.path.display()))
        }
        _ => Ok(()),
    }
}

/// Prints entries: for people with sizes and times in words.
fn print(entries: &[Entry], format: TableFormat, now: SystemTime) -> Result<()> {
    let is_text = format == TableFormat::Text;
    let number = if is_text { ColumnType::Text } else { ColumnType::Integer };
    let columns = vec![
        KeptColumn::new("kind", ColumnType::Text),
        KeptColumn::new(if is_text { "size" } else { "bytes" }, number.clone()),
        KeptColumn::new(if is_text { "used" } else { "days_unused" }, number),
        KeptColumn::new("name", ColumnType::Text),
    ];
    let row = |entry: &Entry| {
        let days = idle(entry, now).as_secs() / (24 * 60 * 60);
        let (size, used) = match (is_text, days) {
            (false, days) => (json!(entry.bytes), json!(days)),
            (true, 0) => (json!(in_words(entry.bytes)), json!("today")),
            (true, days) => (json!(in_words(entry.bytes)), json!(format!("{} ago", counted(days, "day")))),
        };
        [json!(entry.kind.name()), size, used, json!(entry.name)].map(FieldValue::from).to_vec()
    };
    print_table(format, columns, || entries.iter().map(row))
}

fn in_words(bytes: u64) -> String {
    ByteSize(bytes).display().si().to_string()
}

/// Prints the models of the cache whose files are complete, with their revisions and commits.
///
/// # Errors
/// If the cache cannot be read.
pub fn models(format: TableFormat) -> Result<()> {
    let text = |name: &str| KeptColumn::new(name, ColumnType::Text);
    let mut rows = Vec::new();
    for model in cached_models()? {
        for (revision, commit) in model.revisions() {
            rows.push([json!(model.id), json!(revision), json!(commit)].map(FieldValue::from).to_vec());
        }
    }
    print_table(format, ["model", "revision", "commit"].map(text).to_vec(), || rows.iter().cloned())
}
