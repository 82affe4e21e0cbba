//! The files that a run reads, none of which its outputs may replace.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::sidecars::SidecarPaths;
use super::target::parent_dir;
use crate::error::UsageError;
use crate::sys::regular_file::is_same_file;

/// The files that a run reads. Opening an output takes them
/// ([`UncheckedOutput::check`](super::UncheckedOutput::check), [`write`](super::write())).
#[derive(Debug, Clone, Default)]
pub struct ReadFiles {
    /// Files, with what they are.
    files: Vec<(PathBuf, &'static str)>,
    folders: Vec<Folder>,
}

/// A directory of which files are read, or would be if they existed.
#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    /// Whether a file of this name is read.
    is_read: fn(&str) -> bool,
    /// What such a file is.
    what: &'static str,
}

impl ReadFiles {
    /// Files that are all `what`, such as `an input`.
    pub fn new<P: Into<PathBuf>>(paths: impl IntoIterator<Item = P>, what: &'static str) -> Self {
        let files = paths.into_iter().map(|path| (path.into(), what)).collect();
        ReadFiles { files, folders: Vec::new() }
    }

    /// Adds a directory in which files whose names `is_read` accepts are `what`.
    pub fn add_folder(&mut self, path: PathBuf, is_read: fn(&str) -> bool, what: &'static str) {
        self.folders.push(Folder { path, is_read, what });
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
        let folder = self.folders.iter().find(|folder| {
            let of_folder = || is_same_file(&folder.path, parent_dir(path));
            (folder.is_read)(&name) && (of_folder() || is_same_file(&folder.path.join(&*name), path))
        });
        let file = || self.files.iter().find(|(file, _)| path.exists() && is_same_file(file, path));
        match folder.map(|folder| folder.what).or_else(|| file().map(|(_, what)| *what)) {
            Some(what) => refuse(option, path, what),
            None => Ok(()),
        }
    }

    /// Refuses an output, given by `option`, that would replace one of the files: as the output, its ledger
    /// or its metadata.
    ///
    /// # Errors
    /// If it would: a usage error.
    pub fn refuse_output(&self, option: &str, sidecars: &SidecarPaths) -> Result<()> {
        let SidecarPaths { output, final_ledger, meta, .. } = sidecars;
        self.refuse(option, output)?;
        self.refuse("the ledger of the output,", final_ledger)?;
        self.refuse("the metadata of the output,", meta)
    }
}

/// The error for a path that has two uses.
///
/// # Errors
/// Always: a usage error.
pub fn refuse(option: &str, path: &Path, what: &str) -> Result<()> {
    bail!(UsageError(format!("{option} {} is also {what}; choose another path", path.display())))
}
