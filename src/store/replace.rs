//! How a file takes the place of another: it is written beside it and renamed, so that at each moment a
//! reader finds all of the old bytes or all of the new ones.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use tempfile::NamedTempFile;

use super::own_file::{self, SHARED};
use super::target::{Target, parent_dir};

/// The beginning of the names of temporary files.
const TEMPORARY: &str = ".sconce-";

/// What a crash of the machine may leave. A process that is killed leaves the old file or the new one in
/// either case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The old file or the new one: file and directory are synced.
    Synced,
    /// A damaged file: for caches, whose readers check what they find, and which do not wait for the disk.
    Unsynced,
}

/// Replaces whatever has this path by a file with permissions `mode`, less the umask, and the bytes that
/// `write` writes. A link is replaced, not followed.
pub(super) fn replace(
    path: &Path,
    mode: u32,
    durability: Durability,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = temporary_file(path, TEMPORARY, mode)?;
    write(file.as_file_mut())?;
    put(file, path, durability)
}

/// Replaces a file of a cache, whose directory is made if it does not exist.
pub fn replace_cached(path: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(parent_dir(path))?;
    replace(path, mode, Durability::Unsynced, |file| file.write_all(bytes))
}

/// Creates a file beside `path` under a name that begins with `prefix`. It is removed on drop, unless it is
/// [`put`] in its place.
pub fn temporary_file(path: &Path, prefix: &str, mode: u32) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(prefix).make_in(parent_dir(path), |path| own_file::create_new(path, mode))
}

/// Gives a complete file its name, replacing whatever has it.
pub fn put(mut file: NamedTempFile, path: &Path, durability: Durability) -> io::Result<()> {
    match durability {
        Durability::Synced => commit(file.as_file(), file.path(), path)?,
        Durability::Unsynced => fs::rename(file.path(), path)?,
    }
    file.disable_cleanup(true);
    Ok(())
}

/// Syncs the complete file `from`, which is open, and renames it durably, replacing `to`.
pub(super) fn commit(file: &File, from: &Path, to: &Path) -> io::Result<()> {
    file.sync_all()?;
    rename(from, to)
}

/// Renames a synced file durably, replacing `to`.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_parent_dir(to)
}

/// Removes a file durably; a missing file is not an error.
pub fn remove(path: &Path) -> Result<()> {
    let removed = match fs::remove_file(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        removed => removed.and_then(|()| sync_parent_dir(path)),
    };
    removed.map_err(|error| anyhow!("cannot remove {} ({error}); remove it by hand", path.display()))
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

/// Refuses a path that exists and is not a regular file, before it is replaced.
pub(super) fn refuse_non_file(path: &Path, target: &Target) -> Result<()> {
    if fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        bail!("cannot write {target}: {} exists and is not a regular file; remove it", path.display());
    }
    Ok(())
}

/// The permissions of a new file beside `output`: those of `output`, plus read and write for its owner;
/// default permissions where it does not exist. Sidecar files hold texts and vectors, too, so they are as
/// private as the output.
pub(super) fn mode_beside(output: &Path) -> u32 {
    #[cfg(unix)]
    let mode = |metadata: fs::Metadata| {
        std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o777 | 0o600
    };
    #[cfg(not(unix))]
    let mode = |_| SHARED;
    fs::metadata(output).map_or(SHARED, mode)
}

/// Creates a file with the permissions of [`mode_beside`].
pub(super) fn create_sidecar(path: &Path, output: &Path) -> io::Result<File> {
    own_file::create_new(path, mode_beside(output))
}

/// Gives `file` the permissions of the existing output that it replaces, if there is one.
pub(super) fn copy_permissions(output: &Path, file: &File) -> io::Result<()> {
    match fs::metadata(output) {
        Ok(metadata) => file.set_permissions(metadata.permissions()),
        Err(_) => Ok(()),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::store::own_file::PRIVATE;

    #[test]
    fn a_link_is_replaced_and_its_target_is_not_written() {
        for durability in [Durability::Synced, Durability::Unsynced] {
            let folder = tempfile::tempdir().unwrap();
            let [link, target] = ["link", "target"].map(|name| folder.path().join(name));
            fs::write(&target, "old").unwrap();
            symlink(&target, &link).unwrap();
            let failed = replace(&link, PRIVATE, durability, |_| Err(ErrorKind::StorageFull.into()));
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::StorageFull);
            assert!(link.is_symlink(), "a file that is not complete replaces nothing");
            replace(&link, PRIVATE, durability, |file| file.write_all(b"new")).unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), "old");
            assert!(fs::symlink_metadata(&link).unwrap().is_file());
            assert_eq!(own_file::read(&link, 3).unwrap(), b"new");
            assert!(own_file::read(&link, 2).is_err());
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file is left");
        }
    }
}
