//! File operations that survive a crash: a rename or a removal is followed by an fsync of the directory.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use super::target::{Target, parent_dir};
use crate::sys::own_file::{self, SHARED};

/// Refuses a path that exists and is not a regular file, before it is replaced.
pub(super) fn refuse_non_file(path: &Path, target: &Target) -> Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        bail!("cannot write {target}: {} exists and is not a regular file; remove it", path.display());
    }
    Ok(())
}

/// Creates a file with the permissions of `output`, plus read and write for its owner; default permissions where `output` does not
/// exist. Sidecar files hold texts and vectors, too, so they are as private as the output.
pub(super) fn create_sidecar(path: &Path, output: &Path) -> io::Result<File> {
    #[cfg(unix)]
    let mode = {
        use std::os::unix::fs::PermissionsExt;
        fs::metadata(output).map_or(SHARED, |metadata| metadata.permissions().mode() & 0o777 | 0o600)
    };
    #[cfg(not(unix))]
    let (mode, _) = (SHARED, output);
    own_file::create_new(path, mode)
}

/// Removes a file durably; a missing file is not an error.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| sync_parent_dir(path)),
    };
    removed.map_err(|error| anyhow!("cannot remove {} ({error}); remove it by hand", path.display()))
}

/// Renames a synced file durably, replacing `to`.
pub(super) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent_dir(to)
}

/// Syncs the directory of a file, on systems and filesystems where a directory can be synced.
#[cfg_attr(not(unix), expect(unused_variables, reason = "directories cannot be opened there"))]
fn sync_parent_dir(path: &Path) -> io::Result<()> {
    #[cfg(unix)]
    if let Ok(dir) = File::open(parent_dir(path)) {
        match dir.sync_all() {
            Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {}
            result => result?,
        }
    }
    Ok(())
}
