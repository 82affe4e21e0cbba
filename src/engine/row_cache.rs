//! Rows of earlier runs in a directory (`--cache`): a text with the same tokens, model and options is not
//! encoded again. Texts that are split into chunks are found by their characters, too, and need not be
//! tokenized.

use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::prepared::{Prepared, PreparedText};
use super::row_store::RowStore;
use super::task::{RowOptions, TaskInput, TaskRow};
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
        Ok(RowCache::new(RowStore::open(&directory.join(folder_name(identity)))?))
    }

    /// [`RowCache::open`] in a directory that rows leave again: those that no run has used for thirty days,
    /// and the oldest ones if all are larger than a GiB.
    pub fn open_bounded(directory: &Path, identity: u128) -> Result<Self> {
        let store = RowStore::open_bounded(directory, &folder_name(identity), SystemTime::now())?;
        Ok(RowCache::new(store))
    }

    fn new(store: RowStore) -> Self {
        RowCache { store, found: AtomicU64::new(0) }
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

    /// Adds the parts of a text, whose rows are added one by one when they are encoded.
    pub(super) fn add_text(&self, key: u128, parts: &[TokenizedText]) {
        let part = |part: &TokenizedText| CachedPart {
            key: self::key(part, &RowOptions::default()),
            tokens: part.token_count(),
            truncated_tokens: part.truncated_tokens(),
            sequences: part.sequences.len(),
        };
        let parts: Vec<CachedPart> = parts.iter().map(part).collect();
        if let Ok(parts) = postcard::to_allocvec(&parts) {
            self.store.add(key, &parts);
        }
    }

    /// The parts of a text, if the rows of all of them are in the store.
    pub(super) fn find_text(&self, key: u128) -> Option<Vec<PreparedText>> {
        let parts: Vec<CachedPart> = postcard::from_bytes(&self.store.find(key)?).ok()?;
        let part = |part: CachedPart| {
            let rows = self.find(part.key)?;
            Some(PreparedText {
                tokens: part.tokens,
                truncated_tokens: part.truncated_tokens,
                sequences: part.sequences,
                chunks: rows
                    .iter()
                    .map(|row| row.span.map(|span| span.start..span.end))
                    .collect::<Option<_>>()?,
                prepared: Prepared::Rows(rows),
            })
        };
        let parts = parts.into_iter().map(part).collect::<Option<Vec<_>>>()?;
        let rows: usize = parts.iter().map(|part| part.chunks.len()).sum();
        self.found.fetch_add(rows as u64, Ordering::Relaxed);
        Some(parts)
    }

    /// The rows of a text, if they are in the store.
    fn find(&self, key: u128) -> Option<Vec<TaskRow>> {
        postcard::from_bytes(&self.store.find(key)?).ok()
    }
}

/// A part of a text with several chunks.
#[derive(Serialize, Deserialize)]
struct CachedPart {
    /// The key of its rows.
    key: u128,
    tokens: usize,
    truncated_tokens: usize,
    sequences: usize,
}

/// The folder of the rows of an identity.
fn folder_name(identity: u128) -> String {
    format!("{identity:032x}")
}

/// The key of the parts of at most `part_tokens` tokens of a text that is not tokenized.
pub(super) fn text_key(input: &TaskInput, part_tokens: usize) -> u128 {
    let mut digest = KeyHasher::default();
    // The key of no tokens begins so: a text has fewer sequences.
    digest.write_u64(u64::MAX);
    (input, part_tokens).hash(&mut digest);
    digest.0.digest().first_bits()
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
