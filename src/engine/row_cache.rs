//! Rows of earlier runs in a directory (`--cache`): a text with the same tokens, model and options is not encoded again.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use super::row_store::RowStore;
use super::task::{Task, TaskRow};
use crate::sys::digest_cache::first_bits;
use crate::text::TokenizedText;

/// The rows of texts, by their tokens, for one model with one set of options.
pub struct RowCache {
    store: RowStore,
    /// Rows that were found.
    found: AtomicU64,
}

impl RowCache {
    /// The rows in `directory` of this identity: a digest of everything that a row depends on beside its tokens.
    pub fn open(directory: &Path, identity: u128) -> Result<Self> {
        let store = RowStore::open(&directory.join(format!("{identity:032x}")))?;
        Ok(RowCache { store, found: AtomicU64::new(0) })
    }

    /// The number of rows that were found.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// [`Task::run`] for the texts, each with its [`key`], whose rows are not in the cache, to which they are added.
    pub(super) fn run<T: Task>(
        &self,
        task: &T,
        texts: &[TokenizedText],
        keys: &[u128],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<Vec<TaskRow>>> {
        let mut rows: Vec<_> = keys.iter().map(|key| self.find(*key)).collect();
        let missing: Vec<usize> = (0..texts.len()).filter(|i| rows[*i].is_none()).collect();
        let found: usize = rows.iter().flatten().map(Vec::len).sum();
        self.found.fetch_add(found as u64, Ordering::Relaxed);
        if !missing.is_empty() {
            let texts: Vec<_> = missing.iter().map(|i| texts[*i].clone()).collect();
            let made = task.run(&texts, batch_tokens, worker)?;
            for (i, made) in missing.into_iter().zip(made) {
                self.store.add(keys[i], &postcard::to_allocvec(&made)?);
                rows[i] = Some(made);
            }
        }
        match rows.into_iter().collect() {
            Some(rows) => Ok(rows),
            None => bail!("a text has no rows; please report this as a bug"),
        }
    }

    /// The rows of a text, if they are in the store.
    fn find(&self, key: u128) -> Option<Vec<TaskRow>> {
        postcard::from_bytes(&self.store.find(key)?).ok()
    }
}

/// The key of a text: a digest of its sequences.
pub(super) fn key(text: &TokenizedText) -> u128 {
    let mut digest = KeyHasher::default();
    text.hash(&mut digest);
    first_bits(digest.0)
}

/// SHA-256 as the hasher of keys. What [`Hash`] writes may change with the compiler, which is part of the build and so of the identity.
#[derive(Default)]
struct KeyHasher(Sha256);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: a key has more bits.
    fn finish(&self) -> u64 {
        first_bits(self.0.clone()) as u64
    }
}
