//! Rows of earlier runs in a directory (`--cache`): a text with the same tokens, model and options is not
//! encoded again.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;

use super::row_store::RowStore;
use super::task::{RowOptions, TaskRow};
use super::workers::PlannedText;
use crate::store;
use crate::text::TokenizedText;

/// The rows of texts, by their tokens, for one model with one set of options.
pub struct RowCache {
    store: RowStore,
    /// Rows that were found.
    found: AtomicU64,
}

impl RowCache {
    /// The rows in `directory` of this identity: a digest of everything that a row depends on beside its
    /// tokens.
    pub fn open(directory: &Path, identity: u128) -> Result<Self> {
        let store = RowStore::open(&directory.join(format!("{identity:032x}")))?;
        Ok(RowCache { store, found: AtomicU64::new(0) })
    }

    /// The number of rows that were found.
    pub fn found(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }

    /// Puts the rows that are in the cache into their place, and returns the texts of the others.
    pub(super) fn place_found(&self, texts: Vec<PlannedText>) -> Vec<PlannedText> {
        let is_missing = |planned: &PlannedText| {
            let Some(rows) = self.find(planned.place.key) else { return true };
            self.found.fetch_add(rows.len() as u64, Ordering::Relaxed);
            planned.place.set(rows);
            false
        };
        texts.into_iter().filter(is_missing).collect()
    }

    /// Adds the rows of a text.
    pub(super) fn add(&self, key: u128, rows: &[TaskRow]) -> Result<()> {
        self.store.add(key, &postcard::to_allocvec(rows)?);
        Ok(())
    }

    /// The rows of a text, if they are in the store.
    fn find(&self, key: u128) -> Option<Vec<TaskRow>> {
        postcard::from_bytes(&self.store.find(key)?).ok()
    }
}

/// The key of a text: a digest of its sequences, and of the options of its rows if it has any.
pub(super) fn key(text: &TokenizedText, options: &RowOptions) -> u128 {
    let mut digest = KeyHasher::default();
    text.hash(&mut digest);
    if *options != RowOptions::default() {
        options.hash(&mut digest);
    }
    digest.0.digest().first_bits()
}

/// SHA-256 as the hasher of keys. What [`Hash`] writes may change with the compiler, which is part of the
/// build and so of the identity.
#[derive(Default)]
struct KeyHasher(store::Hasher);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.add(bytes);
    }

    /// Not used: a key has more bits.
    fn finish(&self) -> u64 {
        self.0.digest().first_bits() as u64
    }
}
