//! A file of the cache: its content under the hub's name for it, what has arrived of it, and the link from a snapshot.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Component, Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::requests::FileInfo;
use crate::terminal;

/// Another process that downloads the same file is taken for stalled after so many times the time limit for a silent
/// server: it tries several times.
const LOCK_PATIENCE: u32 = 4;
/// How often a lock is tried.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// A file of the cache, there or not.
pub struct Blob {
    /// Where its content is, once it has arrived.
    pub path: PathBuf,
    etag: String,
    /// Bytes.
    pub size: u64,
}

/// Why a file cannot be downloaded now.
#[derive(Debug)]
pub enum LockError {
    /// Another process holds the lock, and nothing arrives.
    Held(PathBuf),
    /// The lock file cannot be used.
    Disk(io::Error),
}

impl Blob {
    /// The file of a model's folder in the cache; none if the hub's name for its content cannot be that of a file.
    pub fn new(folder: &Path, info: FileInfo) -> Option<Self> {
        let FileInfo { etag, size } = info;
        let is_name = super::is_plain(&etag) && etag.len() <= 128;
        is_name.then(|| Blob { path: folder.join("blobs").join(&etag), etag, size })
    }

    /// What has arrived so far.
    pub fn part(&self) -> PathBuf {
        self.path.with_extension("part")
    }

    /// Keeps other processes away for as long as the answer lives. Waits for one that is at it as long as its part of
    /// the file grows.
    pub fn lock(&self, name: &str, timeout: Duration) -> Result<Option<File>, LockError> {
        let path = self.path.with_extension("lock");
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(LockError::Disk)?;
        let arrived = || fs::metadata(self.part()).map_or(0, |part| part.len());
        let (mut since, mut before, mut is_told) = (Instant::now(), arrived(), false);
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                // Without locks the checksum still tells whether two processes wrote into one file.
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(LockError::Disk(error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !is_told {
                let shown = path.display();
                terminal::say(&format!(
                    "warning: waiting for another process to download {name} (lock {shown})"
                ));
                is_told = true;
            }
            let now = arrived();
            if now != before {
                (since, before) = (Instant::now(), now);
            } else if since.elapsed() > LOCK_PATIENCE * timeout {
                return Err(LockError::Held(path));
            }
            thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Whether a file is what the hub says: its size, and its checksum where the hub's name for it is one. That of a
    /// large file is the SHA-256 of its content. That of a small one is the SHA-1 of the content as git stores it;
    /// some mirrors have the SHA-1 of the content itself.
    pub fn is_sound(&self, path: &Path) -> io::Result<bool> {
        let mut file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        if file.metadata()?.len() != self.size {
            return Ok(false);
        }
        let etag = self.etag.to_lowercase();
        match self.checksum() {
            Some("SHA-256") => {
                let mut hash = Sha256::new();
                io::copy(&mut file, &mut hash)?;
                Ok(hex(&hash.finalize()) == etag)
            }
            Some(_) => {
                let content = fs::read(path)?;
                let git = Sha1::new_with_prefix(format!("blob {}\0", content.len())).chain_update(&content);
                Ok([git, Sha1::new_with_prefix(&content)]
                    .into_iter()
                    .any(|hash| hex(&hash.finalize()) == etag))
            }
            None => Ok(true),
        }
    }

    /// Which checksum the hub's name for the content is.
    pub fn checksum(&self) -> Option<&'static str> {
        match self.etag.len() {
            _ if !self.etag.bytes().all(|b| b.is_ascii_hexdigit()) => None,
            64 => Some("SHA-256"),
            40 => Some("SHA-1"),
            _ => None,
        }
    }

    /// Links a file of a snapshot to the content, with a path that holds wherever the cache is moved to. Where the
    /// system grants no links, the file is a copy.
    pub fn link(&self, pointer: &Path, snapshot: &Path) -> io::Result<()> {
        let folder = pointer.parent().unwrap_or(snapshot);
        fs::create_dir_all(folder)?;
        match fs::remove_file(pointer) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let inside = folder.strip_prefix(snapshot).unwrap_or(Path::new(""));
        let depth = inside.components().filter(|part| matches!(part, Component::Normal(_))).count() + 2;
        let target: PathBuf = (0..depth).map(|_| "..").chain(["blobs", &self.etag]).collect();
        match symlink(&target, pointer) {
            // Another process has been faster.
            Err(_) if pointer.exists() => Ok(()),
            Err(error) if cfg!(unix) => Err(error),
            Err(_) => fs::copy(&self.path, pointer).map(drop),
            Ok(()) => Ok(()),
        }
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
