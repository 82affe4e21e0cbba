//! The snapshot of a model in the cache, downloaded if it is not complete there.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result};
use hf_hub::Cache;

use super::client::Client;
use super::completeness::{Completeness, completeness};
use super::settings::{self, Settings, read_text};
use super::{NoSuchModel, NotDownloaded, Source, ids, is_revision};

/// The state of a model in the cache.
pub(super) enum Cached {
    /// Without these required files; none are named if it is unknown which ones there are.
    Incomplete(Vec<String>),
    /// All required files; this optional file, which would change vectors, may be missing.
    Unknown(PathBuf, &'static str),
    /// All files.
    Complete(PathBuf),
}

/// The directory of a model's snapshot: from the cache if it is complete there, otherwise from the hub. If
/// the cache may lack an optional file, or one of those `wanted`, and the hub cannot be asked whether it
/// exists, a warning is returned with the directory.
pub(super) fn snapshot(source: &Source, wanted: &[&'static str]) -> Result<(PathBuf, Option<String>)> {
    let cache = source.cache.clone().map_or_else(settings::cache_directory, Ok)?;
    let mut meanings = ids::meanings(&source.model, &cache);
    if source.offline {
        meanings.truncate(1);
    }
    let last = meanings.len() - 1;
    let source_of = |model: &String| Source { model: model.clone(), ..source.clone() };
    for meaning in &meanings[..last] {
        match snapshot_of(&source_of(meaning), &cache, wanted) {
            Err(error) if error.is::<NoSuchModel>() => {}
            result => return result,
        }
    }
    snapshot_of(&source_of(&meanings[last]), &cache, wanted)
}

/// [`snapshot`] of the model with this id.
fn snapshot_of(source: &Source, cache: &Path, wanted: &[&'static str]) -> Result<(PathBuf, Option<String>)> {
    let hub = Hub::new(source, cache, wanted);
    let (folder, file) = match hub.cached() {
        Cached::Complete(folder) => return Ok((folder, None)),
        Cached::Unknown(folder, file) => (folder, file),
        Cached::Incomplete(missing) if source.offline => return Err(hub.forbidden(&missing)),
        Cached::Incomplete(_) => return hub.download().map(|folder| (folder, None)).map_err(not_downloaded),
    };
    let reason = if source.offline {
        Error::msg("offline mode forbids a request")
    } else {
        match hub.download() {
            Ok(folder) => return Ok((folder, None)),
            Err(error) => error,
        }
    };
    let consequence = match wanted.contains(&file) {
        true => "",
        false => "; the maximum length, casing or prompt may differ from those of the model",
    };
    let warning = format!(
        "the cache has {} without {file}, and it is unknown whether the hub has that file: {reason:#}{consequence}",
        source.model
    );
    Ok((folder, Some(warning)))
}

/// The error of a download, whose kind can be told.
fn not_downloaded(error: Error) -> Error {
    if error.is::<NoSuchModel>() { error } else { NotDownloaded(error.to_string()).into() }
}

/// A model, its directory in the cache, and the hub that has it.
pub(super) struct Hub<'a> {
    pub(super) source: &'a Source,
    /// Files beside those that every model may have.
    pub(super) wanted: &'a [&'static str],
    pub(super) cache: Cache,
    /// The model's directory in the cache.
    pub(super) folder: PathBuf,
    pub(super) client: Client,
    pub(super) settings: Settings,
}

impl<'a> Hub<'a> {
    fn new(source: &'a Source, cache: &Path, wanted: &'a [&'static str]) -> Self {
        let settings = Settings::read();
        Hub {
            source,
            wanted,
            folder: cache.join(ids::folder_name(&source.model)),
            cache: Cache::new(cache.to_owned()),
            client: Client::new(&settings.endpoint, settings.token.clone(), settings.timeout),
            settings,
        }
    }

    /// The state of the model in the cache.
    fn cached(&self) -> Cached {
        let revision = &self.source.revision;
        let commit = read_text(&self.folder.join("refs").join(revision));
        let commit = commit.as_ref().map_or(revision.as_str(), |commit| commit.trim());
        if !is_revision(commit) {
            return Cached::Incomplete(Vec::new());
        }
        self.cached_commit(commit)
    }

    /// The state of a commit of the model in the cache.
    pub(super) fn cached_commit(&self, commit: &str) -> Cached {
        let snapshot = self.folder.join("snapshots").join(commit);
        // Another tool may have downloaded a part of the model: a file is absent only if the cache notes
        // that.
        let is_absent = |name: &str| self.folder.join(".no_exist").join(commit).join(name).exists();
        match completeness(&snapshot, self.source.dimensions, &is_absent) {
            Completeness::Incomplete(missing) => Cached::Incomplete(missing),
            _ if has_dangling_link(&snapshot) => Cached::Incomplete(Vec::new()),
            Completeness::Unknown(file) => Cached::Unknown(snapshot, file),
            Completeness::Complete => {
                let is_known = |name: &&&str| snapshot.join(name).exists() || is_absent(name);
                match self.wanted.iter().find(|name| !is_known(name)) {
                    Some(file) => Cached::Unknown(snapshot, file),
                    None => Cached::Complete(snapshot),
                }
            }
        }
    }
}

/// Whether a snapshot has a dangling link among the files that Sconce reads: a pruned cache may lack optional
/// files without which the model gives other vectors.
fn has_dangling_link(snapshot: &Path) -> bool {
    let entries =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_module = |path: &Path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        path.is_dir() && name.first().is_some_and(u8::is_ascii_digit)
    };
    let modules = entries(snapshot).filter(|path| is_module(path)).flat_map(|folder| entries(&folder));
    entries(snapshot).chain(modules).any(|path| {
        let suffix = path.extension().unwrap_or_default();
        ["json", "txt", "safetensors"].iter().any(|read| suffix == *read) && !path.exists()
    })
}
