//! Rows of earlier runs in a directory (`--cache`): a text with the same tokens, model and options is not encoded again.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, bail};
use sha2::{Digest, Sha256};

use super::manifest::RunIdentity;
use super::row_store::RowStore;
use super::task::{Task, TaskRow, TokenizeError};
use crate::text::TokenizedText;

/// A task whose rows are first looked up in a cache, if there is one.
pub struct CachedTask<T> {
    task: Arc<T>,
    cache: Option<Arc<RowCache>>,
}

/// The rows of texts, by their tokens, for one model with one set of options.
pub struct RowCache {
    store: RowStore,
    /// Texts whose rows were found.
    found: AtomicU64,
}

impl RowCache {
    /// The rows in `directory` that were made with this identity: everything that a row depends on beside its tokens.
    ///
    /// # Errors
    /// If the directory cannot be made, or its files cannot be written.
    pub fn open(directory: &Path, identity: &RunIdentity) -> Result<Self> {
        let mut digest = KeyHasher::default();
        identity.hash(&mut digest);
        let store = RowStore::open(&directory.join(format!("{:032x}", digest.key())))?;
        Ok(RowCache { store, found: AtomicU64::new(0) })
    }

    /// The number of texts whose rows were found.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}

impl<T> CachedTask<T> {
    /// Looks rows up in `cache` before the task makes them.
    pub fn new(task: Arc<T>, cache: Option<Arc<RowCache>>) -> Self {
        CachedTask { task, cache }
    }
}

impl<T: Task> Task for CachedTask<T> {
    fn tokenize(&self, text: &str, pair: Option<&str>) -> Result<TokenizedText, TokenizeError> {
        self.task.tokenize(text, pair)
    }

    fn queries(&self) -> usize {
        self.task.queries()
    }

    fn tokenize_with(
        &self,
        query: usize,
        text: &str,
        pair: Option<&str>,
    ) -> Result<TokenizedText, TokenizeError> {
        self.task.tokenize_with(query, text, pair)
    }

    fn run(&self, texts: &[TokenizedText], batch_tokens: usize, worker: usize) -> Result<Vec<Vec<TaskRow>>> {
        let Some(cache) = &self.cache else { return self.task.run(texts, batch_tokens, worker) };
        let keys: Vec<u128> = texts.iter().map(key).collect();
        let mut rows: Vec<_> = keys.iter().map(|key| find(&cache.store, *key)).collect();
        let missing: Vec<usize> = (0..texts.len()).filter(|i| rows[*i].is_none()).collect();
        cache.found.fetch_add((texts.len() - missing.len()) as u64, Ordering::Relaxed);
        if !missing.is_empty() {
            let texts: Vec<_> = missing.iter().map(|i| texts[*i].clone()).collect();
            let made = self.task.run(&texts, batch_tokens, worker)?;
            for (i, made) in missing.into_iter().zip(made) {
                cache.store.add(keys[i], &postcard::to_allocvec(&made)?);
                rows[i] = Some(made);
            }
        }
        match rows.into_iter().collect() {
            Some(rows) => Ok(rows),
            None => bail!("a text has no rows; please report this as a bug"),
        }
    }

    fn on_workers_start(&self) {
        self.task.on_workers_start();
    }
}

/// The rows of a text, if they are in the store.
fn find(store: &RowStore, key: u128) -> Option<Vec<TaskRow>> {
    postcard::from_bytes(&store.find(key)?).ok()
}

/// The key of a text: a digest of its sequences.
fn key(text: &TokenizedText) -> u128 {
    let mut digest = KeyHasher::default();
    text.hash(&mut digest);
    digest.key()
}

/// SHA-256 as the hasher of keys. What [`Hash`] writes may change with the compiler, which is part of the build and so of the identity.
#[derive(Default)]
struct KeyHasher(Sha256);

impl KeyHasher {
    /// The first 128 bits.
    fn key(self) -> u128 {
        let digest = self.0.finalize();
        digest.iter().take(16).fold(0, |bits, byte| bits << 8 | u128::from(*byte))
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: a key has more bits.
    fn finish(&self) -> u64 {
        self.0.clone().finalize().iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    }
}
