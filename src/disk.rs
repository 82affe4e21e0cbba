//! Files of a model. A file is absent only if its folder does not list it: a name that is there but cannot be reached,
//! such as a dangling link, is an error. Pipes and devices, which may never end, are not read.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The largest configuration file, list or index that is read.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;
/// The largest tokenizer or vocabulary that is read.
pub const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// Whether a folder has an entry of this name, whatever is behind it.
pub fn is_listed(path: &Path) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    let absent = [NotFound, NotADirectory, InvalidFilename, InvalidInput];
    !fs::symlink_metadata(path).is_err_and(|error| absent.contains(&error.kind()))
}

/// Opens a regular file.
///
/// # Errors
/// If it cannot be opened, or is a folder, a pipe or a device.
pub fn open(path: &Path) -> io::Result<File> {
    // Opening a pipe would wait for whoever writes to it.
    check_kind(&fs::metadata(path).map_err(|error| unreachable(path, error))?)?;
    let file = File::open(path)?;
    check_kind(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `max_bytes`.
///
/// # Errors
/// As [`open`], or if the file is larger.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let limit = max_bytes >> 20;
        return Err(io::Error::other(format!("it is larger than {limit} MiB, which no such file is")));
    }
    Ok(bytes)
}

/// Whether two paths lead to the same file, by whatever links.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    if let (Ok(a), Ok(b)) = (fs::metadata(a), fs::metadata(b)) {
        use std::os::unix::fs::MetadataExt;
        return (a.dev(), a.ino()) == (b.dev(), b.ino());
    }
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

fn check_kind(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(io::Error::other("it is a directory, not a file")),
        _ => Err(io::Error::other("it is a pipe or a device, not a regular file")),
    }
}

/// The error for a path, which says where a dangling link leads.
fn unreachable(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!("it is a link to {}, which does not exist", target.display()),
        ),
        _ => error,
    }
}
