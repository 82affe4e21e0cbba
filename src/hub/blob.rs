//! A blob of the cache: the content of a file under its ETag, the part downloaded so far, and the link from a
//! snapshot.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sha1::{Digest as _, Sha1};

use super::client::FileInfo;
use super::file_names::is_plain;
use crate::store::Digest;
use crate::store::own_file::{self, SHARED};
use crate::sys::{regular_file, terminal};

/// Another process that downloads the same file counts as stalled after this multiple of the timeout for a
/// silent server, because it makes several attempts.
const STALLED_TIMEOUTS: u32 = 4;
/// Interval between attempts to take a lock.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);
/// Size in bytes of the buffer for hashing.
const BUFFER: usize = 1 << 16;

/// A blob of the cache, downloaded or not.
pub(super) struct Blob {
    /// The path of its content once it is complete.
    pub path: PathBuf,
    /// Its file name.
    name: String,
    etag: String,
    /// Size in bytes.
    pub size: u64,
}

/// Why a blob cannot be locked.
#[derive(Debug)]
pub(super) enum LockError {
    /// Another process holds this lock file, and its download has stalled.
    Held(PathBuf),
    /// The lock file cannot be created or locked.
    Disk(io::Error),
}

impl Blob {
    /// The blob of a file, `url_path` on the hub, in a model's directory of the cache; `None` if its ETag
    /// cannot be a file name. An ETag that is no checksum identifies a content among those of one URL only,
    /// so that its blob is for that URL.
    pub(super) fn new(folder: &Path, url_path: &str, info: FileInfo) -> Option<Self> {
        let FileInfo { etag, size } = info;
        let is_name = is_plain(&etag) && etag.len() <= 128;
        is_name.then(|| {
            let name = match checksum(&etag) {
                Some(_) => etag.clone(),
                None => format!("{etag}-{}", &Digest::of(url_path).to_string()[..16]),
            };
            Blob { path: folder.join("blobs").join(&name), name, etag, size }
        })
    }

    /// The path of the part downloaded so far.
    pub(super) fn part(&self) -> PathBuf {
        self.path.with_extension("part")
    }

    /// Opens the part downloaded so far, or an empty one in place of a file that Sconce did not make.
    pub(super) fn open_part(&self) -> io::Result<File> {
        let part = self.part();
        own_file::open_or_create(&part, SHARED).or_else(|error| {
            // A partial file holds nothing that the hub does not have. What it links to is not touched.
            fs::remove_file(&part).map_err(|_| error)?;
            own_file::create_new(&part, SHARED)
        })
    }

    /// Locks the blob against other processes until the returned file is dropped; `None` on file systems
    /// without locks. Waits for another process for as long as its part of the file grows, and says so unless
    /// `silent`.
    pub(super) fn lock(
        &self,
        name: &str,
        timeout: Duration,
        silent: bool,
    ) -> Result<Option<File>, LockError> {
        let path = self.path.with_extension("lock");
        let file = own_file::open_lock(&path).map_err(LockError::Disk)?;
        let part_size = || fs::metadata(self.part()).map_or(0, |part| part.len());
        let (mut since, mut previous_size, mut has_warned) = (Instant::now(), part_size(), false);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                // Without locks, the checksum detects that two processes wrote to one file.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(LockError::Disk(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !has_warned && !silent {
                let shown = path.display();
                terminal::eprint_message(&format!(
                    "warning: waiting for another process to download {name} (lock {shown})"
                ));
                has_warned = true;
            }
            let size = part_size();
            if size != previous_size {
                (since, previous_size) = (Instant::now(), size);
            } else if since.elapsed() > STALLED_TIMEOUTS * timeout {
                return Err(LockError::Held(path));
            }
            thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Whether the file at `path` has the size of the blob, and its checksum if the ETag is one: the SHA-256
    /// of large files (LFS), the SHA-1 of small ones as git stores them, or on some mirrors that of the
    /// content itself.
    pub(super) fn is_valid(&self, path: &Path) -> io::Result<bool> {
        let mut file = match regular_file::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        if file.metadata()?.len() != self.size {
            return Ok(false);
        }
        let etag = self.etag.to_lowercase();
        match self.checksum() {
            Some("SHA-256") => Ok(Digest::of_reader(file)?.to_string() == etag),
            Some(_) => {
                let mut git = Sha1::new_with_prefix(format!("blob {}\0", self.size));
                let mut plain = Sha1::new();
                let mut buffer = vec![0; BUFFER];
                loop {
                    let part = match file.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(count) => &buffer[..count],
                        Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                        Err(error) => return Err(error),
                    };
                    git.update(part);
                    plain.update(part);
                }
                Ok([git, plain].into_iter().any(|hash| format!("{:x}", hash.finalize()) == etag))
            }
            None => Ok(true),
        }
    }

    /// The name of the checksum that the ETag is; `None` if it is none.
    pub(super) fn checksum(&self) -> Option<&'static str> {
        checksum(&self.etag)
    }

    /// Links a file of a snapshot, `pointer`, to the blob; the link is relative, so that the cache can be
    /// moved. Without `has_links`, and where symbolic links cannot be created, the file is a copy.
    pub(super) fn link(&self, pointer: &Path, snapshot: &Path, has_links: bool) -> io::Result<()> {
        let folder = pointer.parent().unwrap_or(snapshot);
        fs::create_dir_all(folder)?;
        match fs::remove_file(pointer) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let subfolder = folder.strip_prefix(snapshot).unwrap_or(Path::new(""));
        let depth = subfolder.components().filter(|part| matches!(part, Component::Normal(_))).count() + 2;
        let target: PathBuf = (0..depth).map(|_| "..").chain(["blobs", &self.name]).collect();
        // Another process may have created it meanwhile.
        if has_links && (symlink(&target, pointer).is_ok() || pointer.exists()) {
            return Ok(());
        }
        fs::copy(&self.path, pointer).map(drop)
    }
}

/// The name of the checksum that an ETag is; `None` if it is none.
fn checksum(etag: &str) -> Option<&'static str> {
    match etag.len() {
        _ if !etag.bytes().all(|b| b.is_ascii_hexdigit()) => None,
        64 => Some("SHA-256"),
        40 => Some("SHA-1"),
        _ => None,
    }
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(windows)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::windows::fs::symlink_file(target, link)
}
