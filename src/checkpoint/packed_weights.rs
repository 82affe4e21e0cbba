//! Packed weights in a file of the user's cache, which processes map: those on one machine share its pages,
//! and none packs or checks the matrices again.
//!
//! A file is named by ISA, compute type, and SHA-256 of the checkpoint. Its key is the same and the build of
//! Sconce, because the layout of packed matrices may change from build to build: another build writes the
//! file anew, but not one that was just written, so that two builds that take turns do not write it at every
//! start. It is written beside its name and renamed. Its layout: magic, offset and length of the table as
//! little-endian u64, zeros up to byte 64, SHA-256 of all other bytes in hexadecimal, the matrices, each at a
//! multiple of 64 bytes, and the table in JSON.
//!
//! A file whose checksum is wrong is packed anew. What has been hashed is not hashed again as long as device,
//! inode, size and times of the file stay the same ([`digest_cache`]), so that start-up does not read the
//! weights; this holds for the checkpoint, too.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::nn::{GemmType, Matrix};
use crate::store::own_file::{self, PRIVATE};
use crate::store::{self, Digest, Durability, Hasher, digest_cache};
use crate::sys::BUILD;
use crate::sys::mapped_file::MappedFile;

const MAGIC: &[u8; 8] = b"SCONCEPW";
/// Where the checksum begins.
const CHECKSUM: usize = 64;
/// Where the matrices begin.
const DATA: usize = 128;
/// A matrix begins on a cache line.
const ALIGNMENT: usize = 64;
/// A temporary file that is older was left by a process that was killed.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// A file that no process has mapped for this long is removed when another one is written.
const UNUSED_AFTER: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A file of another build is left alone for this long.
const LEFT_TO_OTHERS: Duration = Duration::from_secs(10 * 60);
/// The beginning of the names of temporary files.
const TEMPORARY: &str = ".packing-";
/// Smaller checkpoints are packed faster than a file of theirs is found.
const MIN_BYTES: usize = 8 << 20;

/// A file of packed weights, and what is to be added to it.
pub struct PackedWeights {
    path: PathBuf,
    key: String,
    found: Option<Found>,
    added: Option<Writer>,
    /// Whether the file cannot be written.
    is_read_only: bool,
}

/// A valid file.
struct Found {
    file: Arc<MappedFile>,
    entries: BTreeMap<String, Span>,
}

/// The end of a file.
#[derive(Serialize, Deserialize)]
struct Table {
    key: String,
    entries: BTreeMap<String, Span>,
}

/// A matrix in the file, or the check of an embedding table, which is mapped from the checkpoint and has no
/// bytes here.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Span {
    offset: usize,
    bytes: usize,
    /// NaN and infinite values of the tensor.
    not_finite: usize,
}

impl PackedWeights {
    /// The packed weights of a checkpoint in `files` for this type of GEMM on the selected ISA. `None` if the
    /// checkpoint is small, or there is no directory for them.
    pub fn open(files: &[Arc<MappedFile>], compute: GemmType) -> Option<Self> {
        if files.iter().map(|file| (**file).as_ref().len()).sum::<usize>() < MIN_BYTES {
            return None;
        }
        let directory = digest_cache::cache_directory()?.join("weights");
        // Without a directory, nothing would be gained from hashing the checkpoint.
        fs::create_dir_all(&directory).ok()?;
        let mut content = Matrix::packing(compute);
        for file in files {
            content = format!("{content}, {}", digest_cache::sha256(file.path()).ok()?);
            if !file.is_at_path() {
                return None;
            }
        }
        let path = directory.join(format!("{:032x}.weights", Digest::of(&content).first_bits()));
        let key = format!("sconce {BUILD}, {content}");
        let found = Found::open(&path);
        let is_of_other_build =
            matches!(&found, Some((other, _)) if *other != key && other.ends_with(&content));
        let is_read_only = is_of_other_build && age(&path).is_some_and(|age| age < LEFT_TO_OTHERS);
        let found = found.filter(|(found, _)| *found == key).map(|(_, found)| found);
        Some(PackedWeights { path, key, found, added: None, is_read_only })
    }

    /// The mapped file.
    pub fn file(&self) -> Option<&Arc<MappedFile>> {
        self.found.as_ref().map(|found| &found.file)
    }

    /// The file, the range of an entry in it, and the number of NaN and infinite values of the tensor.
    pub fn find(&self, name: &str) -> Option<(Arc<MappedFile>, Range<usize>, usize)> {
        let found = self.found.as_ref()?;
        let span = found.entries.get(name)?;
        Some((found.file.clone(), span.offset..span.offset.checked_add(span.bytes)?, span.not_finite))
    }

    /// Adds an entry. A cache that cannot be written is no error.
    pub fn add(&mut self, name: String, bytes: &[u8], not_finite: usize) {
        if self.is_read_only {
            return;
        }
        let writer = self.added.take().map_or_else(|| Writer::new(&self.path), Ok);
        let added = writer.and_then(|mut writer| writer.add(name, bytes, not_finite).map(|()| writer));
        self.added = added.ok();
        self.is_read_only = self.added.is_none();
    }

    /// Writes the file, if it has new entries. A cache that cannot be written is no error.
    pub fn finish(self) -> Result<()> {
        let Some(found) = &self.found else {
            let _ = self.added.map(|added| added.finish(&self.path, self.key));
            return Ok(());
        };
        found.file.check_unchanged()?;
        if let Some(mut added) = self.added {
            let old = found.entries.iter().filter_map(|(name, span)| {
                let bytes = (*found.file).as_ref().get(span.offset..span.offset.checked_add(span.bytes)?)?;
                Some((name.clone(), bytes, span.not_finite))
            });
            let is_copied = { old }.try_for_each(|(name, bytes, count)| added.add(name, bytes, count));
            let _ = is_copied.and_then(|()| added.finish(&self.path, self.key));
        }
        Ok(())
    }
}

impl Found {
    /// The file of this path with its key, if it is complete and undamaged, and nobody else can have written
    /// it.
    fn open(path: &Path) -> Option<(String, Self)> {
        let file = MappedFile::new(path, own_file::open_trusted(path).ok()?).ok()?;
        let bytes: &[u8] = file.as_ref();
        let header = bytes.get(..DATA).filter(|header| header.starts_with(MAGIC))?;
        let number =
            |at: usize| usize::try_from(u64::from_le_bytes(header[at..at + 8].try_into().ok()?)).ok();
        let (offset, length) = (number(8)?, number(16)?);
        let checksum = digest_cache::digest(path, || {
            let mut hasher = Hasher::default();
            hasher.add(&bytes[DATA..]);
            hasher.add(&bytes[..CHECKSUM]);
            Ok(hasher.digest())
        });
        if header[CHECKSUM..] != *checksum.ok()?.to_string().as_bytes() || !file.is_at_path() {
            return None;
        }
        let table = bytes.get(offset..offset.checked_add(length)?)?;
        let Table { key, entries } = serde_json::from_slice(table).ok()?;
        Some((key, Found { file: Arc::new(file), entries }))
    }
}

/// The time since a file was modified.
fn age(path: &Path) -> Option<Duration> {
    fs::metadata(path).ok()?.modified().ok()?.elapsed().ok()
}

/// Removes files that were not used for long, and temporary files that processes left which were killed while
/// they wrote.
fn remove_unused(directory: &Path) {
    for file in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_temporary = file.file_name().to_string_lossy().starts_with(TEMPORARY);
        let used = || digest_cache::last_used(&file.metadata().ok()?)?.elapsed().ok();
        let is_unused = match is_temporary {
            true => age(&file.path()).is_some_and(|age| age > ABANDONED_AFTER),
            false => used().is_some_and(|idle| idle > UNUSED_AFTER),
        };
        if is_unused {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// A new file, beside its later name.
struct Writer {
    file: BufWriter<NamedTempFile>,
    /// SHA-256 of the bytes from [`DATA`] on.
    hasher: Hasher,
    /// Bytes so far.
    position: usize,
    entries: BTreeMap<String, Span>,
}

impl Writer {
    fn new(path: &Path) -> io::Result<Self> {
        remove_unused(store::parent_dir(path));
        let mut file = BufWriter::new(store::temporary_file(path, TEMPORARY, PRIVATE)?);
        file.write_all(&[0; DATA])?;
        Ok(Writer { file, hasher: Hasher::default(), position: DATA, entries: BTreeMap::new() })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.hasher.add(bytes);
        self.position += bytes.len();
        Ok(())
    }

    fn add(&mut self, name: String, bytes: &[u8], not_finite: usize) -> io::Result<()> {
        let padding = self.position.next_multiple_of(ALIGNMENT) - self.position;
        self.write(&[0; ALIGNMENT][..padding])?;
        self.entries.insert(name, Span { offset: self.position, bytes: bytes.len(), not_finite });
        self.write(bytes)
    }

    /// Writes table and header, and renames the file to `path`.
    fn finish(mut self, path: &Path, key: String) -> io::Result<()> {
        let offset = self.position;
        let table = serde_json::to_vec(&Table { key, entries: std::mem::take(&mut self.entries) })?;
        self.write(&table)?;
        let mut header = [0; DATA];
        header[..8].copy_from_slice(MAGIC);
        header[8..16].copy_from_slice(&(offset as u64).to_le_bytes());
        header[16..24].copy_from_slice(&(table.len() as u64).to_le_bytes());
        self.hasher.add(&header[..CHECKSUM]);
        header[CHECKSUM..].copy_from_slice(self.hasher.digest().to_string().as_bytes());
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header)?;
        let file = self.file.into_inner().map_err(io::IntoInnerError::into_error)?;
        store::put(file, path, Durability::Unsynced)
    }
}
