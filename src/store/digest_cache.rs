//! Digests of large files that have not changed since an earlier run: hashing a model takes as long as
//! embedding some hundred short texts.

use std::env;
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::digest::Digest;
use super::own_file::{self, PRIVATE};
use super::replace::replace_cached;
use crate::sys::{environment, regular_file};

/// Smaller files are hashed anew.
const MIN_BYTES: u64 = 8 << 20;
/// A file that changed this recently may change again without a new time of change: file systems store some
/// times only to the second or two.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Maximum size of an entry.
const MAX_ENTRY_BYTES: u64 = 1 << 12;

/// The directory of all caches: `SCONCE_CACHE`, or after the XDG Base Directory Specification; `None` where a
/// file does not tell when it was changed.
pub fn cache_directory() -> Option<PathBuf> {
    let given = environment::path("SCONCE_CACHE").filter(|_| cfg!(unix));
    if given.is_some() {
        return given;
    }
    let absolute = |path: PathBuf| Some(path).filter(|path| path.is_absolute());
    let cache = environment::path("XDG_CACHE_HOME").and_then(absolute);
    let cache = cache.or_else(|| absolute(env::home_dir()?.join(".cache")));
    cache.filter(|_| cfg!(unix)).map(|cache| cache.join("sconce"))
}

/// When a file of a cache was last used: when it was read or mapped, or where the file system does not store
/// this, when it was written.
pub fn last_used(metadata: &Metadata) -> Option<SystemTime> {
    [metadata.accessed(), metadata.modified()].into_iter().flatten().max()
}

/// What the files of a part of a cache take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of all files.
    pub bytes: u64,
    /// When one of them was [last used](last_used). `None` if there is none.
    pub used: Option<SystemTime>,
}

/// What the file of this path takes, or all files below it. Links are not followed, and what cannot be read
/// does not count.
pub fn usage(path: &Path) -> Usage {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Usage::default() };
    if metadata.is_file() {
        return Usage { bytes: metadata.len(), used: last_used(&metadata) };
    }
    let files = metadata.is_dir().then(|| fs::read_dir(path).into_iter().flatten().flatten());
    files.into_iter().flatten().map(|file| usage(&file.path())).fold(Usage::default(), |all, file| Usage {
        bytes: all.bytes + file.bytes,
        used: all.used.max(file.used),
    })
}

/// The digest of a file: that of an earlier run if the file is the same and has not changed since. A cache
/// that cannot be read or written is no error.
pub fn sha256(path: &Path) -> io::Result<Digest> {
    digest(path, || Digest::of_reader(regular_file::open(path)?))
}

/// [`sha256`] of a file whose digest is computed by `hash`.
pub fn digest(path: &Path, hash: impl FnOnce() -> io::Result<Digest>) -> io::Result<Digest> {
    let directory = cache_directory().map(|cache| cache.join("digests"));
    digest_in(directory.as_deref(), path, SystemTime::now(), hash)
}

fn digest_in(
    directory: Option<&Path>,
    path: &Path,
    now: SystemTime,
    hash: impl FnOnce() -> io::Result<Digest>,
) -> io::Result<Digest> {
    let before = fs::metadata(path)?;
    let (Some(directory), Some(state)) = (directory, state(&before)) else { return hash() };
    if before.len() < MIN_BYTES {
        return hash();
    }
    let full_path = fs::canonicalize(path)?;
    let entry = directory.join(Digest::of(full_path.as_os_str().as_encoded_bytes()).to_string());
    if let Some(digest) = read(&entry, &state) {
        return Ok(digest);
    }
    let digest = hash()?;
    let is_settled = changed(&before).is_some_and(|changed| changed + SETTLED_AFTER <= now);
    if is_settled && fs::metadata(path).is_ok_and(|after| self::state(&after).as_ref() == Some(&state)) {
        let _ = replace_cached(&entry, PRIVATE, format!("{state}\n{digest}\n").as_bytes());
    }
    Ok(digest)
}

/// What changes with the content of a file: its device, inode, size and times. Programs can set the time of
/// modification, but not that of the change (ctime).
#[cfg(unix)]
fn state(file: &Metadata) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let (modified, changed) = ((file.mtime(), file.mtime_nsec()), (file.ctime(), file.ctime_nsec()));
    Some(format!("{} {} {} {modified:?} {changed:?}", file.dev(), file.ino(), file.len()))
}

#[cfg(not(unix))]
fn state(_file: &Metadata) -> Option<String> {
    None
}

/// When the file was changed.
#[cfg(unix)]
fn changed(file: &Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(u64::try_from(file.ctime()).ok()?))
}

#[cfg(not(unix))]
fn changed(_file: &Metadata) -> Option<SystemTime> {
    None
}

/// The digest of an entry, if it is that of a file in this state.
fn read(entry: &Path, state: &str) -> Option<Digest> {
    let found = own_file::read_trusted(entry, MAX_ENTRY_BYTES).ok()?;
    found.strip_prefix(state)?.strip_prefix('\n')?.strip_suffix('\n')?.parse().ok()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// Calls [`digest_in`] with a hash of its own for every call; whether it was called, and the result.
    fn call(directory: &Path, path: &Path, age: Duration, hash: char) -> (bool, Digest) {
        let mut is_hashed = false;
        let now = changed(&fs::metadata(path).unwrap()).unwrap() + age;
        let digest = digest_in(Some(directory), path, now, || {
            is_hashed = true;
            Ok(digest_of(hash))
        });
        (is_hashed, digest.unwrap())
    }

    fn digest_of(hash: char) -> Digest {
        hash.to_string().repeat(64).parse().unwrap()
    }

    #[test]
    fn a_file_is_hashed_again_only_after_a_change_and_kept_only_once_it_is_settled() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, path) = (folder.path().join("cache"), folder.path().join("weights"));
        fs::write(&path, vec![1; MIN_BYTES as usize]).unwrap();
        assert_eq!(call(&cache, &path, Duration::from_secs(1), 'a'), (true, digest_of('a')));
        assert_eq!(call(&cache, &path, SETTLED_AFTER, 'b'), (true, digest_of('b')));
        assert_eq!(call(&cache, &path, SETTLED_AFTER, 'c'), (false, digest_of('b')));
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(&path, vec![2; MIN_BYTES as usize]).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert_eq!(call(&cache, &path, SETTLED_AFTER, 'd'), (true, digest_of('d')));
        fs::write(fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path(), "damaged").unwrap();
        assert_eq!(call(&cache, &path, SETTLED_AFTER, 'e'), (true, digest_of('e')));
        fs::write(&path, "small").unwrap();
        assert_eq!(call(&cache, &path, SETTLED_AFTER, 'f'), (true, digest_of('f')));
        assert_eq!(call(&cache, &path, SETTLED_AFTER, 'a'), (true, digest_of('a')));
    }
}
