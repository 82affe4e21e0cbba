//! The models in the cache.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};

use super::ids::id_of_folder;
use super::settings::{cache_directory, read_text};
use super::{ModelDir, Source};

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedModel {
    /// Its id on the hub.
    pub id: String,
    /// The directory with its files of all revisions.
    pub folder: PathBuf,
}

impl CachedModel {
    /// The branches and tags whose files are all in the cache, with their commits: those that run without the
    /// network.
    pub fn revisions(&self) -> Vec<(String, String)> {
        let references = self.folder.join("refs");
        let mut revisions = Vec::new();
        add_references(&references, &references, &mut revisions);
        revisions.retain(|(revision, _)| {
            let source = Source {
                model: self.id.clone(),
                revision: revision.clone(),
                cache: self.folder.parent().map(Path::to_owned),
                dimensions: None,
                offline: true,
                progress: false,
                silent: true,
            };
            ModelDir::locate(&source, &[]).is_ok_and(|files| files.missing_files().is_empty())
        });
        revisions.sort();
        revisions
    }
}

/// Adds the references in a folder: the name of one may have a `/`.
fn add_references(root: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            add_references(root, &path, found);
        } else if let (Some(name), Some(commit)) =
            (path.strip_prefix(root).ok().and_then(Path::to_str), read_text(&path))
        {
            found.push((name.to_owned(), commit.trim().to_owned()));
        }
    }
}

/// The models in the cache, by their ids. None where there is no cache.
///
/// # Errors
/// If the cache cannot be read.
pub fn cached_models() -> Result<Vec<CachedModel>> {
    let cache = cache_directory()?;
    if !cache.is_dir() {
        return Ok(Vec::new());
    }
    let failed = |error| anyhow!("cannot read the cache {} ({error}); check HF_HOME", cache.display());
    let mut models = Vec::new();
    for entry in fs::read_dir(&cache).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if let Some(id) = entry.file_name().to_str().and_then(id_of_folder) {
            models.push(CachedModel { id, folder: entry.path() });
        }
    }
    models.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(models)
}
