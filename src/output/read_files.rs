//! The files that a run reads, none of which its outputs may replace.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::target::parent_dir;
use crate::error::UsageError;
use crate::sys::regular_file::is_same_file;

/// The files that a run reads. Opening an output takes them ([`UncheckedOutput::check`](super::UncheckedOutput::check), [`write`](super::write())).
#[derive(Debug, Clone, Default)]
pub struct ReadFiles {
    /// Files, with what they are.
    files: Vec<(PathBuf, &'static str)>,
    /// Directories, with the names that belong to them, whether such a file exists or not, and what such a file is.
    folders: Vec<(PathBuf, fn(&str) -> bool, &'static str)>,
}

impl ReadFiles {
    /// Files that are all `what`, such as `an input`.
    pub fn new<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>, what: &'static str) -> Self {
        let files = paths.into_iter().map(|path| (path.into(), what)).collect();
        ReadFiles { files, folders: Vec::new() }
    }

    /// Adds a directory in which files whose names `is_read` accepts are `what`.
    pub fn add_folder(&mut self, folder: PathBuf, is_read: fn(&str) -> bool, what: &'static str) {
        self.folders.push((folder, is_read, what));
    }

    /// Adds other files.
    pub fn extend(&mut self, other: ReadFiles) {
        self.files.extend(other.files);
        self.folders.extend(other.folders);
    }

    /// Refuses a path, which `option` gives, that is one of the files.
    ///
    /// # Errors
    /// If it is: a usage error.
    pub fn refuse(&self, option: &str, path: &Path) -> Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = self.folders.iter().find(|(folder, is_read, _)| {
            is_read(&name)
                && (is_same_file(folder, parent_dir(path)) || is_same_file(&folder.join(&*name), path))
        });
        let file = || self.files.iter().find(|(file, _)| path.exists() && is_same_file(file, path));
        match folder.map(|(_, _, what)| what).or_else(|| file().map(|(_, what)| what)) {
            Some(what) => refuse(option, path, what),
            None => Ok(()),
        }
    }
}

/// The error for a path that has two uses.
///
/// # Errors
/// Always: a usage error.
pub fn refuse(option: &str, path: &Path, what: &str) -> Result<()> {
    bail!(UsageError(format!("{option} {} is also {what}; choose another path", path.display())))
}
