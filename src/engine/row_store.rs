//! Encoded rows by key, in files that are only appended to.
//!
//! Each process appends to a file of its own, which it holds a lock on for as long as it runs, and reads all
//! files. A file is a sequence of entries: key (16 bytes), checksum (8 bytes), length (4 bytes,
//! little-endian), content. An entry that was torn by a crash, or damaged, is not found; its text is encoded
//! again.

use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow};

use crate::store::Hasher;
use crate::store::own_file::{self, PRIVATE};

const KEY_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;
const HEADER_BYTES: usize = KEY_BYTES + CHECKSUM_BYTES + size_of::<u32>();

/// Files that stay open; others, of so many processes at a time, are opened for each of their rows.
const MAX_OPEN_FILES: usize = 64;

/// The rows in a directory.
pub(super) struct RowStore(Mutex<Files>);

struct Files {
    directory: PathBuf,
    /// The files that are open, by their indices.
    open: HashMap<usize, File>,
    places: HashMap<u128, Place>,
    /// The index of the file that this process appends to, and its length. `None` after a write has failed.
    own: Option<(usize, u64)>,
}

/// The place of an entry's content.
#[derive(Clone, Copy)]
struct Place {
    file: usize,
    offset: u64,
    checksum: [u8; CHECKSUM_BYTES],
    length: u32,
}

impl RowStore {
    /// Opens the files in `directory`, which is made if it does not exist, and locks one that no other
    /// process appends to.
    pub(super) fn open(directory: &Path) -> Result<Self> {
        let failed = |error: io::Error| {
            anyhow!("cannot use the cache {} ({error}); pass another --cache, or none", directory.display())
        };
        fs::create_dir_all(directory).map_err(failed)?;
        let (open, places) = (HashMap::new(), HashMap::new());
        let mut files = Files { directory: directory.to_owned(), open, places, own: None };
        for index in 0.. {
            let is_searching = files.own.is_none();
            let path = files.path(index);
            let opened =
                if is_searching { own_file::open_or_create(&path, PRIVATE) } else { own_file::open(&path) };
            let failed = |error: io::Error| {
                anyhow!(
                    "cannot use the cache {} ({error}); remove it, or pass another --cache",
                    path.display()
                )
            };
            let mut file = match opened {
                Ok(file) => file,
                Err(error) if error.kind() == ErrorKind::NotFound && !is_searching => break,
                Err(error) => return Err(failed(error)),
            };
            let is_own = is_searching
                && match file.try_lock() {
                    Ok(()) => true,
                    Err(TryLockError::WouldBlock) => false,
                    Err(TryLockError::Error(error)) => return Err(failed(error)),
                };
            let end = files.read_places(&mut file, index).map_err(failed)?;
            if is_own {
                // What follows the last whole entry was torn by a crash.
                file.set_len(end).map_err(failed)?;
                files.own = Some((index, end));
            }
            if is_own || files.open.len() < MAX_OPEN_FILES {
                files.open.insert(index, file);
            }
        }
        Ok(RowStore(Mutex::new(files)))
    }

    /// The content of an entry.
    pub(super) fn find(&self, key: u128) -> Option<Vec<u8>> {
        let mut files = self.lock();
        let Place { file: index, offset, checksum, length } = *files.places.get(&key)?;
        let mut opened = None;
        let file = match files.open.get_mut(&index) {
            Some(file) => file,
            None => opened.insert(own_file::open(&files.path(index)).ok()?),
        };
        let mut content = vec![0; length as usize];
        let is_read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut content)).is_ok();
        (is_read && self::checksum(key, &content) == checksum).then_some(content)
    }

    /// Adds an entry. A write that fails, for example because the disk is full, is no error: later entries
    /// are not written.
    pub(super) fn add(&self, key: u128, content: &[u8]) {
        let Ok(length) = u32::try_from(content.len()) else { return };
        let checksum = checksum(key, content);
        let entry = [&key.to_le_bytes()[..], &checksum, &length.to_le_bytes(), content].concat();
        let mut files = self.lock();
        let Some((index, end)) = files.own else { return };
        let Some(file) = files.open.get_mut(&index) else { return };
        let is_written = file.seek(SeekFrom::Start(end)).and_then(|_| file.write_all(&entry)).is_ok();
        files.own = is_written.then_some((index, end + entry.len() as u64));
        if is_written {
            let offset = end + HEADER_BYTES as u64;
            files.places.insert(key, Place { file: index, offset, checksum, length });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Files> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files {
    fn path(&self, index: usize) -> PathBuf {
        self.directory.join(format!("{index}.rows"))
    }

    /// Reads the places of all entries of a file, and returns the end of the last whole one. The contents are
    /// not read: a damaged header leads to keys and checksums that no text has.
    fn read_places(&mut self, file: &mut File, index: usize) -> io::Result<u64> {
        let length_of_file = file.metadata()?.len();
        let mut end = 0;
        while length_of_file - end >= HEADER_BYTES as u64 {
            let mut header = [0; HEADER_BYTES];
            file.seek(SeekFrom::Start(end))?;
            file.read_exact(&mut header)?;
            let key = u128::from_le_bytes(array_at(&header, 0));
            let checksum = array_at(&header, KEY_BYTES);
            let length = u32::from_le_bytes(array_at(&header, KEY_BYTES + CHECKSUM_BYTES));
            let offset = end + HEADER_BYTES as u64;
            if length_of_file - offset < u64::from(length) {
                break;
            }
            self.places.insert(key, Place { file: index, offset, checksum, length });
            end = offset + u64::from(length);
        }
        Ok(end)
    }
}

/// The first bytes of SHA-256 over key and content.
fn checksum(key: u128, content: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let mut hasher = Hasher::default();
    hasher.add(key.to_le_bytes());
    hasher.add(content);
    array_at(&hasher.digest().first_bits().to_be_bytes(), 0)
}

/// `N` bytes from `start` on.
fn array_at<const N: usize>(bytes: &[u8], start: usize) -> [u8; N] {
    std::array::from_fn(|i| bytes[start + i])
}
