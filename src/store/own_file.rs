//! Opens files that Sconce has made: caches, locks, partial rows, manifests. Others may be able to write to
//! their directory, so that their name may be that of a link, a pipe or the file of somebody else. Such a
//! file is neither followed, read nor written. Files of the user (inputs, models, outputs) are opened by
//! [`regular_file`](crate::sys::regular_file).

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

use super::target::parent_dir;
use crate::sys::regular_file::{check_is_regular, read_limited};

/// Permissions of a file that only this user may read and write.
pub const PRIVATE: u32 = 0o600;
/// Permissions of a file whose readers the umask decides.
pub const SHARED: u32 = 0o666;
/// Attempts to open or create a file that other processes create and remove meanwhile.
const MAX_ATTEMPTS: usize = 10;

/// What a file must be, beside a regular file that is no link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A lock, which is never read or written: of any user.
    Lock,
    /// Of this user, without other hard links.
    Own,
    /// As [`Kind::Own`], and no other user may write to it.
    Trusted,
}

/// Opens a file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true), Kind::Own)
}

/// [`open`], and refuses a file that other users may write to: its content is used without a check.
pub fn open_trusted(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true), Kind::Trusted)
}

/// Opens an existing file for reading and writing.
pub fn open_to_write(path: &Path) -> io::Result<File> {
    open_with(path, OpenOptions::new().read(true).write(true), Kind::Own)
}

/// Opens a file for reading and writing, and creates it with permissions `mode`, less the umask, if it does
/// not exist.
///
/// # Errors
/// As [`open`], and if it cannot be created.
pub fn open_or_create(path: &Path, mode: u32) -> io::Result<File> {
    open_or_create_with(path, mode, Kind::Own)
}

/// Opens or creates a file that is only locked, never read or written.
pub fn open_lock(path: &Path) -> io::Result<File> {
    open_or_create_with(path, SHARED, Kind::Lock)
}

/// Reads a file of at most `max_bytes` bytes.
///
/// # Errors
/// As [`open`], and if the file is larger.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_limited(open(path)?, max_bytes)
}

/// Reads a text of at most `max_bytes` bytes from a file that no other user may write to.
///
/// # Errors
/// As [`open_trusted`], and if the file is larger or no UTF-8.
pub fn read_trusted(path: &Path, max_bytes: u64) -> io::Result<String> {
    let bytes = read_limited(open_trusted(path)?, max_bytes)?;
    String::from_utf8(bytes).map_err(|_| io::Error::other("it is not UTF-8"))
}

/// Creates a file that does not exist.
pub fn create_new(path: &Path, mode: u32) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, mode);
    #[cfg(not(unix))]
    let _ = mode;
    options.open(path)
}

/// Checks that a path is that of a file which [`open`] would open.
pub fn check(path: &Path) -> io::Result<()> {
    check_kind(&fs::symlink_metadata(path)?, path, Kind::Own)
}

fn open_or_create_with(path: &Path, mode: u32, kind: Kind) -> io::Result<File> {
    for _ in 0..MAX_ATTEMPTS {
        match open_with(path, OpenOptions::new().read(true).write(true), kind) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            opened => return opened,
        }
        match create_new(path, mode) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created,
        }
    }
    Err(io::Error::other("other processes create and remove it all the time"))
}

fn open_with(path: &Path, options: &mut OpenOptions, kind: Kind) -> io::Result<File> {
    // Before the file is opened, too: opening a device may have effects.
    check_kind(&fs::symlink_metadata(path)?, path, kind)?;
    // What replaces it meanwhile is not followed, and does not block if it is a pipe.
    #[cfg(unix)]
    {
        use rustix::fs::OFlags;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        std::os::unix::fs::OpenOptionsExt::custom_flags(options, flags.bits() as i32);
    }
    let file = options.open(path)?;
    check_kind(&file.metadata()?, path, kind)?;
    Ok(file)
}

fn check_kind(file: &Metadata, path: &Path, kind: Kind) -> io::Result<()> {
    if file.is_symlink() {
        return Err(io::Error::other("it is a symbolic link, not a file that sconce has made"));
    }
    check_is_regular(file)?;
    if kind == Kind::Lock {
        return Ok(());
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if !is_own(file, path) {
            return Err(io::Error::other("it belongs to another user"));
        }
        if file.nlink() > 1 {
            return Err(io::Error::other("it has several hard links"));
        }
        if kind == Kind::Trusted && file.mode() & 0o022 != 0 {
            return Err(io::Error::other("other users may write to it"));
        }
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

/// Whether a file belongs to this user, or to the one that new files of its directory belong to: file systems
/// without owners, and those of other machines, may give all files to one user.
#[cfg(unix)]
fn is_own(file: &Metadata, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let new_file = || tempfile::tempfile_in(parent_dir(path))?.metadata();
    file.uid() == rustix::process::geteuid().as_raw() || new_file().is_ok_and(|new| new.uid() == file.uid())
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::process::Command;

    use super::*;

    /// Opens a path in each way; whether each succeeds.
    fn opens(path: &Path) -> [bool; 6] {
        [
            open_lock(path).is_ok(),
            open(path).is_ok(),
            open_to_write(path).is_ok(),
            open_or_create(path, PRIVATE).is_ok(),
            read(path, 10).is_ok(),
            open_trusted(path).is_ok(),
        ]
    }

    #[test]
    fn a_file_of_this_user_is_opened_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let file = |name: &str, mode| {
            fs::write(at(name), "content").unwrap();
            fs::set_permissions(at(name), PermissionsExt::from_mode(mode)).unwrap();
            at(name)
        };
        assert_eq!(opens(&file("own", 0o644)), [true; 6]);
        assert_eq!(opens(&file("writable", 0o664)), [true, true, true, true, true, false]);
        symlink(at("own"), at("link")).unwrap();
        symlink(at("missing"), at("dangling")).unwrap();
        symlink("/dev/zero", at("device")).unwrap();
        assert!(Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        for name in ["link", "dangling", "device", "pipe", "."] {
            assert_eq!(opens(&at(name)), [false; 6], "{name}");
        }
        assert!(!at("missing").exists(), "a dangling link is not followed");
        fs::hard_link(file("two", 0o644), at("names")).unwrap();
        assert_eq!(opens(&at("names")), [true, false, false, false, false, false]);
        // Only root can give a file away.
        if chown(file("foreign", 0o666), Some(12_345), None).is_ok() {
            assert_eq!(opens(&at("foreign")), [true, false, false, false, false, false]);
        }
    }

    #[test]
    fn a_missing_file_is_created_with_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        assert_eq!(open(&path).unwrap_err().kind(), ErrorKind::NotFound);
        open_or_create(&path, PRIVATE).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(create_new(&path, PRIVATE).is_err());
    }
}
