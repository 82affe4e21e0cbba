//! Opens and reads regular files only: a pipe or a device may block or never end. A missing file is
//! distinguished from one that exists but cannot be opened, such as a dangling symbolic link.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use anyhow::{anyhow, bail};

/// Maximum size of a model's configuration file, list or index.
pub const MAX_CONFIG_BYTES: u64 = 64 << 20;
/// Maximum size of a tokenizer or vocabulary file.
pub const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// Whether the directory of `path` has an entry of that name. Symbolic links are not followed, so a dangling
/// one counts.
pub fn has_dir_entry(path: &Path) -> bool {
    use ErrorKind::{InvalidFilename, InvalidInput, NotADirectory, NotFound};
    let missing = [NotFound, NotADirectory, InvalidFilename, InvalidInput];
    !fs::symlink_metadata(path).is_err_and(|error| missing.contains(&error.kind()))
}

/// Opens a regular file for reading.
pub fn open(path: &Path) -> io::Result<File> {
    // Checked before the file is opened, too: opening a pipe blocks until it has a writer.
    check_is_regular(&fs::metadata(path).map_err(|error| explain_dangling_link(path, error))?)?;
    let file = File::open(path)?;
    check_is_regular(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `max_bytes` bytes.
pub fn read(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    read_limited(open(path)?, max_bytes)
}

/// Reads a file of a model of at most `max_bytes` bytes.
///
/// # Errors
/// One sentence that names the file.
pub fn read_model_file(path: &Path, max_bytes: u64) -> anyhow::Result<Vec<u8>> {
    let bytes = read(path, max_bytes)
        .map_err(|error| anyhow!("cannot read {} ({error}); download the model again", path.display()))?;
    check_not_lfs_pointer(path, &bytes, "the file itself")?;
    Ok(bytes)
}

/// Refuses the bytes of a file that are a pointer to it, which Git LFS has not fetched. `kind` is what the
/// file should be.
pub fn check_not_lfs_pointer(path: &Path, bytes: &[u8], kind: &str) -> anyhow::Result<()> {
    if bytes.starts_with(b"version https://git-lfs") {
        let shown = path.display();
        bail!("{shown} is a Git LFS pointer, not {kind}; run git lfs pull in its directory");
    }
    Ok(())
}

/// Reads the rest of an open file, which may have at most `max_bytes` bytes.
pub fn read_limited(file: File, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(max_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        let limit = max_bytes >> 20;
        return Err(io::Error::other(format!("it is larger than {limit} MiB, the limit for such a file")));
    }
    Ok(bytes)
}

/// Fills `bytes` with the contents of a file from `offset` on. Threads may read one file at the same time.
pub fn read_exact_at(file: &File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
    }
    #[cfg(windows)]
    {
        let (mut bytes, mut offset) = (bytes, offset);
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(file, bytes, offset)? {
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                read => {
                    bytes = &mut bytes[read..];
                    offset += read as u64;
                }
            }
        }
        Ok(())
    }
}

/// Whether two paths refer to the same file, through hard or symbolic links or not.
pub fn is_same_file(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    if let (Ok(a), Ok(b)) = (fs::metadata(a), fs::metadata(b)) {
        use std::os::unix::fs::MetadataExt;
        return (a.dev(), a.ino()) == (b.dev(), b.ino());
    }
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// Refuses what is not a regular file.
pub fn check_is_regular(metadata: &fs::Metadata) -> io::Result<()> {
    match metadata.file_type() {
        kind if kind.is_file() => Ok(()),
        kind if kind.is_dir() => Err(io::Error::other("it is a directory, not a file")),
        _ => Err(io::Error::other("it is a pipe or a device, not a regular file")),
    }
}

/// For a dangling symbolic link, an error that names its target; any other error unchanged.
fn explain_dangling_link(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!("it is a link to {}, which does not exist", target.display()),
        ),
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{has_dir_entry, is_same_file, open, read};

    #[test]
    fn a_file_over_the_limit_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vocab.txt");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, 5).unwrap(), b"12345");
        assert!(read(&path, 4).unwrap_err().to_string().contains("larger than 0 MiB"));
    }

    #[test]
    fn a_directory_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        assert!(open(folder.path()).unwrap_err().to_string().contains("it is a directory"));
    }

    #[test]
    #[cfg(unix)]
    fn a_dangling_link_is_an_entry_and_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("config.json");
        assert!(!has_dir_entry(&link));
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert!(has_dir_entry(&link));
        assert!(open(&link).unwrap_err().to_string().contains("a link to nowhere, which does not exist"));
    }

    #[test]
    #[cfg(unix)]
    fn a_link_is_the_same_file_as_its_target() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link, other] = ["file", "link", "other"].map(|name| folder.path().join(name));
        fs::write(&file, "").unwrap();
        fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(is_same_file(&file, &link) && !is_same_file(&file, &other));
    }
}
