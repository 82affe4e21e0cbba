//! The lock on an output file.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Result, anyhow};

use super::durable_fs::{refuse_non_file, remove};
use super::manifest;
use super::sidecars::SidecarPaths;
use super::stdout::check_stdout;
use super::target::Target;
use super::write_error::write_error;

/// Attempts to lock a lock file that its previous owner removes between opening and locking.
const MAX_ATTEMPTS: usize = 10;

/// An exclusive lock on an output file and its sidecar files, released on drop. Standard output, pipes and devices are
/// not locked.
pub struct OutputLock {
    target: Target,
    sidecars: Option<SidecarPaths>,
    /// Locked for as long as it is open.
    _lock: Option<File>,
}

impl OutputLock {
    /// Locks an output.
    ///
    /// # Errors
    /// If another process holds the lock, the target is a directory, its directory cannot be written to, or standard
    /// output is closed.
    pub fn acquire(target: &Target) -> Result<Self> {
        if *target == Target::Stdout {
            check_stdout()?;
        }
        let sidecars = SidecarPaths::of(target)?;
        let lock = sidecars.as_ref().map(|sidecars| lock(&sidecars.lock, target)).transpose()?;
        Ok(OutputLock { target: target.clone(), sidecars, _lock: lock })
    }

    /// The locked target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The paths beside the output; `None` for standard output, a pipe or a device, to which nothing can be resumed.
    pub fn sidecars(&self) -> Option<&SidecarPaths> {
        self.sidecars.as_ref()
    }

    /// Removes the sidecar files of an unfinished run. Drop its [`Writer`](super::Writer) first.
    ///
    /// # Errors
    /// If a file cannot be removed.
    pub fn discard(&self) -> Result<()> {
        let Some(SidecarPaths { partial, converted, manifest, ledger, .. }) = self.sidecars() else {
            return Ok(());
        };
        // The manifest first: it must not outlive the rows that it describes.
        for path in [manifest, &manifest::temporary_path(manifest), ledger, converted, partial] {
            remove(path)?;
        }
        Ok(())
    }
}

impl Drop for OutputLock {
    fn drop(&mut self) {
        // Removed while it is still locked, so that a process that opened it in the meantime sees that its file is
        // gone.
        if let Some(sidecars) = &self.sidecars {
            let _ = fs::remove_file(&sidecars.lock);
        }
    }
}

/// Creates a lock file and locks it.
fn lock(path: &Path, target: &Target) -> Result<File> {
    let failed = |error| write_error(target, false, error);
    let locked =
        || anyhow!("{target} is being written by another sconce; wait for it or choose another --output");
    for _ in 0..MAX_ATTEMPTS {
        refuse_non_file(path, target)?;
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(locked()),
            // Some filesystems have no locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {}
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // The previous owner of the lock removes the file; a lock on a removed file protects nothing.
        if is_file_at(&file, path).map_err(failed)? {
            return Ok(file);
        }
    }
    Err(locked())
}

/// Whether `path` still names the open file.
#[cfg(unix)]
fn is_file_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let file = file.metadata()?;
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok((metadata.dev(), metadata.ino()) == (file.dev(), file.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Always true: an open file cannot be removed there.
#[cfg(not(unix))]
fn is_file_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}
