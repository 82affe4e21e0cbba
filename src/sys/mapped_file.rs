//! Files mapped into memory.

use std::fs::{self, File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Result, bail};
use memmap2::Mmap;

/// A file that is mapped into memory.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: Mmap,
    /// Modification time when the file was mapped.
    modified: Option<SystemTime>,
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl MappedFile {
    /// Maps `file`, a regular file opened at `path`. Its bytes are valid as long as
    /// [`MappedFile::check_unchanged`] succeeds: call it after each use.
    pub fn new(path: &Path, file: File) -> io::Result<Self> {
        let modified = file.metadata().and_then(|metadata| metadata.modified()).ok();
        // SAFETY: `Mmap::map` requires an unchanged file. This process never writes to it; another one might.
        // Then the map, which is read as bytes and numbers, of which every value is valid, has other values,
        // and `check_unchanged`, called after each use, reports it; and if the file is truncated, an access
        // past its end raises SIGBUS, which ends this process.
        let map = unsafe { Mmap::map(&file)? };
        Ok(MappedFile { path: path.to_owned(), file, map, modified })
    }

    /// The path that the file was opened at.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still leads to this file, and not to another one that was renamed to it.
    #[cfg(unix)]
    pub fn is_at_path(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        let id = |file: Metadata| (file.dev(), file.ino());
        self.file.metadata().map(id).ok() == fs::metadata(&self.path).map(id).ok()
    }

    /// Whether the path still leads to this file: unknown here.
    #[cfg(not(unix))]
    pub fn is_at_path(&self) -> bool {
        false
    }

    /// Fails if the content of the opened file has changed. Another file renamed to its path is no change:
    /// the map still has the old one.
    pub fn check_unchanged(&self) -> Result<()> {
        let shown = self.path.display();
        match self.file.metadata() {
            Ok(now) if now.len() != self.map.len() as u64 || now.modified().ok() != self.modified => bail!(
                "{shown} was modified while it was in use; run the command again, and update files by renaming new ones over \
                 them"
            ),
            Ok(_) => Ok(()),
            Err(error) => bail!("cannot read {shown} any more ({error})"),
        }
    }

    /// Fills `into` with the bytes from offset `start` on: reading once costs less than page faults in the
    /// map.
    #[cfg(unix)]
    pub fn read(&self, start: usize, into: &mut [u8]) -> Result<()> {
        match std::os::unix::fs::FileExt::read_exact_at(&self.file, into, start as u64) {
            Ok(()) => Ok(()),
            Err(error) => bail!("cannot read {} ({error})", self.path.display()),
        }
    }

    /// Fills `into` with the bytes from offset `start` on.
    #[cfg(not(unix))]
    pub fn read(&self, start: usize, into: &mut [u8]) -> Result<()> {
        match self.map.get(start..start + into.len()) {
            Some(bytes) => Ok(into.copy_from_slice(bytes)),
            None => bail!("cannot read {}: it is shorter than its header describes", self.path.display()),
        }
    }
}
