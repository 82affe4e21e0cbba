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
use std::time::{Duration, SystemTime};

use anyhow::{Result, anyhow};

use crate::store::own_file::{self, PRIVATE};
use crate::store::{Hasher, digest_cache};

const KEY_BYTES: usize = 16;
const CHECKSUM_BYTES: usize = 8;
const HEADER_BYTES: usize = KEY_BYTES + CHECKSUM_BYTES + size_of::<u32>();

/// Files that stay open; others, of so many processes at a time, are opened for each of their rows.
const MAX_OPEN_FILES: usize = 64;

/// Entries of a bounded directory are in a folder for each period of this length. One that is found in an
/// earlier period is added to the present one, too, so that a period whose rows were not used goes as a
/// whole.
const PERIOD: Duration = Duration::from_secs(10 * 24 * 60 * 60);
/// Periods before the present one that are kept: thirty days.
const KEPT_PERIODS: u64 = 3;
/// Maximum size of a bounded directory when it is opened, in bytes.
const MAX_BYTES: u64 = 1 << 30;

/// The rows in a directory.
pub(super) struct RowStore(Mutex<Files>);

#[derive(Default)]
struct Files {
    paths: Vec<PathBuf>,
    /// The number of files of earlier periods, which are the first.
    earlier: usize,
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
        let mut files = Files::default();
        files.open_to_append(directory)?;
        Ok(RowStore(Mutex::new(files)))
    }

    /// Opens the files of `folder` in the folders of all periods of a bounded directory at the time `now`,
    /// after removing periods that are over.
    pub(super) fn open_bounded(directory: &Path, folder: &str, now: SystemTime) -> Result<Self> {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let present = now.as_secs() / PERIOD.as_secs();
        remove_periods(directory, present, MAX_BYTES);
        let mut files = Files::default();
        for period in present.saturating_sub(KEPT_PERIODS)..present {
            // What cannot be read is made again.
            let _ = files.open_all(&directory.join(period.to_string()).join(folder), false);
        }
        files.earlier = files.paths.len();
        files.open_to_append(&directory.join(present.to_string()).join(folder))?;
        Ok(RowStore(Mutex::new(files)))
    }

    /// The content of an entry.
    pub(super) fn find(&self, key: u128) -> Option<Vec<u8>> {
        let (place, content, is_earlier) = {
            let mut files = self.lock();
            let place = *files.places.get(&key)?;
            (place, files.read(place)?, place.file < files.earlier)
        };
        if checksum(key, &content) != place.checksum {
            return None;
        }
        if is_earlier {
            self.add(key, &content);
        }
        Some(content)
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
    /// Opens the files in `directory`, which is made if it does not exist, one of them to append to.
    fn open_to_append(&mut self, directory: &Path) -> Result<()> {
        fs::create_dir_all(directory).map_err(|error| {
            anyhow!("cannot use the cache {} ({error}); pass another --cache, or none", directory.display())
        })?;
        self.open_all(directory, true)
    }

    /// Opens all files in `directory`. `appends`: locks one that no other process appends to, which is made
    /// if there is none.
    fn open_all(&mut self, directory: &Path, appends: bool) -> Result<()> {
        for number in 0.. {
            let (index, path) = (self.paths.len(), directory.join(format!("{number}.rows")));
            let failed = |error: io::Error| {
                anyhow!(
                    "cannot use the cache {} ({error}); remove it, or pass another --cache",
                    path.display()
                )
            };
            let is_searching = appends && self.own.is_none();
            let opened =
                if is_searching { own_file::open_or_create(&path, PRIVATE) } else { own_file::open(&path) };
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
            let end = self.read_places(&mut file, index).map_err(failed)?;
            if is_own {
                // What follows the last whole entry was torn by a crash.
                file.set_len(end).map_err(failed)?;
                self.own = Some((index, end));
            }
            if is_own || self.open.len() < MAX_OPEN_FILES {
                self.open.insert(index, file);
            }
            self.paths.push(path);
        }
        Ok(())
    }

    /// Reads the content of an entry.
    fn read(&mut self, Place { file: index, offset, length, .. }: Place) -> Option<Vec<u8>> {
        let mut opened = None;
        let file = match self.open.get_mut(&index) {
            Some(file) => file,
            None => opened.insert(own_file::open(&self.paths[index]).ok()?),
        };
        let mut content = vec![0; length as usize];
        file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut content)).ok()?;
        Some(content)
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

/// Removes the folders of periods that are over, and the oldest of the others while all are larger than
/// `max_bytes`. What cannot be removed stays until the next time.
fn remove_periods(directory: &Path, present: u64, max_bytes: u64) {
    let folder = |entry: io::Result<fs::DirEntry>| {
        let (entry, number) = entry.ok().and_then(|entry| {
            let number: u64 = entry.file_name().to_str()?.parse().ok()?;
            Some((entry, number))
        })?;
        entry.file_type().is_ok_and(|kind| kind.is_dir()).then(|| (number, entry.path()))
    };
    let mut periods: Vec<(u64, PathBuf)> =
        fs::read_dir(directory).into_iter().flatten().filter_map(folder).collect();
    periods.sort();
    let sizes: Vec<u64> = periods.iter().map(|(_, path)| digest_cache::usage(path).bytes).collect();
    let mut total: u64 = sizes.iter().sum();
    for ((period, path), bytes) in periods.iter().zip(sizes) {
        if period + KEPT_PERIODS < present || total > max_bytes {
            let _ = fs::remove_dir_all(path);
            total -= bytes;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 60 * 60;

    fn open(directory: &Path, day: u64) -> RowStore {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs((20_000 + day) * DAY);
        RowStore::open_bounded(directory, "model", now).unwrap()
    }

    #[test]
    fn entries_leave_a_bounded_directory_when_they_are_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let store = open(directory.path(), 0);
        (0..3).for_each(|key| store.add(key, &[key as u8; 5]));
        for day in [5, 15, 25, 35, 45, 55] {
            let store = open(directory.path(), day);
            assert_eq!([0, 2].map(|key| store.find(key)), [Some(vec![0; 5]), Some(vec![2; 5])], "day {day}");
        }
        let store = open(directory.path(), 65);
        assert_eq!([0, 1, 2].map(|key| store.find(key).is_some()), [true, false, true]);
        let store = open(directory.path(), 110);
        assert!([0, 1, 2].iter().all(|key| store.find(*key).is_none()));
        let periods = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(periods, 1, "periods that are over are removed");
    }

    #[test]
    fn the_oldest_periods_leave_a_directory_that_is_too_large() {
        let directory = tempfile::tempdir().unwrap();
        for day in [0, 10, 20] {
            open(directory.path(), day).add(day.into(), &[0; 100]);
        }
        let periods = || -> Vec<String> {
            let entries = fs::read_dir(directory.path()).unwrap();
            let mut names: Vec<String> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        fs::create_dir(directory.path().join("other")).unwrap();
        let all = periods();
        for (max_bytes, left) in [(1 << 20, &all[..]), (300, &all[1..]), (150, &all[2..]), (0, &all[3..])] {
            remove_periods(directory.path(), 2002, max_bytes);
            assert_eq!(periods(), left, "{max_bytes}");
        }
    }
}
