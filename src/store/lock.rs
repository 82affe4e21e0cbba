//! The lock on an output file.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use super::manifest;
use super::own_file;
use super::read_files::ReadFiles;
use super::replace::refuse_non_file;
use super::sidecars::SidecarPaths;
use super::target::{Target, parent_dir};
use super::write::check_stdout;
use super::write_error::write_error;

/// Attempts to lock a lock file that its previous owner removes between opening and locking.
const MAX_ATTEMPTS: usize = 10;

/// A locked output that is not written to before it is compared with the files that the run reads.
pub struct UncheckedOutput(OutputLock);

impl UncheckedOutput {
    /// The locked target.
    pub fn target(&self) -> &Target {
        self.0.target()
    }

    /// [`OutputLock::sidecars`].
    pub fn sidecars(&self) -> Option<&SidecarPaths> {
        self.0.sidecars()
    }

    /// [`ReadFiles::refuse_output`] for this output.
    ///
    /// # Errors
    /// If it would replace a file that the run reads: a usage error.
    pub fn refuse(&self, option: &str, read: &ReadFiles) -> Result<()> {
        self.sidecars().map_or(Ok(()), |sidecars| read.refuse_output(option, sidecars))
    }

    /// The output, which can be written to, after [`UncheckedOutput::refuse`].
    pub fn check(self, option: &str, read: &ReadFiles) -> Result<OutputLock> {
        self.refuse(option, read)?;
        Ok(self.0)
    }
}

/// An exclusive lock on an output file and its sidecar files, released on drop. Standard output, pipes and
/// devices are not locked. It is made by [`UncheckedOutput::check`], so that every output is compared with
/// the files that are read.
pub struct OutputLock {
    target: Target,
    sidecars: Option<SidecarPaths>,
    /// Locked for as long as it is open.
    _lock: Option<File>,
}

impl OutputLock {
    /// Locks an output, whose directory is made if there is none. It must also be
    /// [checked](UncheckedOutput::check).
    pub fn acquire(target: &Target) -> Result<UncheckedOutput> {
        match target {
            Target::Stdout => check_stdout()?,
            Target::File(path) => make_directory(parent_dir(path), target)?,
        }
        let sidecars = SidecarPaths::of(target)?;
        sidecars.as_ref().map_or(Ok(()), |sidecars| check_name_length(sidecars, target))?;
        let lock = sidecars.as_ref().map(|sidecars| lock(&sidecars.lock, target)).transpose()?;
        Ok(UncheckedOutput(OutputLock { target: target.clone(), sidecars, _lock: lock }))
    }

    /// The locked target.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The paths beside the output; `None` for standard output, a pipe or a device, to which nothing can be
    /// resumed.
    pub fn sidecars(&self) -> Option<&SidecarPaths> {
        self.sidecars.as_ref()
    }

    /// Removes the sidecar files of an unfinished run. Drop its [`Destination`](super::Destination) first.
    pub fn discard(&self) -> Result<()> {
        self.sidecars().map_or(Ok(()), SidecarPaths::remove_unfinished)
    }
}

impl Drop for OutputLock {
    fn drop(&mut self) {
        // Removed while it is still locked, so that a process that opened it in the meantime sees that its
        // file is gone.
        if let Some(sidecars) = &self.sidecars {
            let _ = fs::remove_file(&sidecars.lock);
        }
    }
}

/// Makes the directory of an output, and those that it is in.
fn make_directory(directory: &Path, target: &Target) -> Result<()> {
    if directory.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(directory).map_err(|error| {
        anyhow!(
            "cannot write {target}: directory {} cannot be made ({error}); choose another --output",
            directory.display()
        )
    })
}

/// Checks that the file system has names that are long enough for the files beside an output.
fn check_name_length(sidecars: &SidecarPaths, target: &Target) -> Result<()> {
    let directory = parent_dir(&sidecars.output);
    #[cfg(unix)]
    let limit = rustix::fs::statvfs(directory).map_or(u64::MAX, |system| system.f_namemax);
    #[cfg(not(unix))]
    let (limit, _) = (255, directory);
    let length = |path: &Path| path.file_name().map_or(0, |name| name.len() as u64);
    // The longest of the names.
    let (longest, own) = (length(&manifest::temporary_path(&sidecars.manifest)), length(&sidecars.output));
    if longest > limit {
        bail!(
            "cannot write {target}: its name has {own} bytes, and the files beside it, up to {} bytes longer, would exceed the {limit} \
             bytes of the file system; choose a shorter name",
            longest - own
        );
    }
    Ok(())
}

/// Creates a lock file and locks it.
fn lock(path: &Path, target: &Target) -> Result<File> {
    let failed = |error| write_error(target, false, error);
    let locked =
        || anyhow!("{target} is being written by another sconce; wait for it or choose another --output");
    for _ in 0..MAX_ATTEMPTS {
        refuse_non_file(path, target)?;
        let file = own_file::open_lock(path).map_err(failed)?;
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
