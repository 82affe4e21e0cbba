//! A file of the cache directory with what a check has found, so that it is not made at every start.

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::store::own_file::{PRIVATE, read_trusted};
use crate::store::{Digest, digest_cache, replace_cached};
use crate::sys::BUILD;

/// Maximum size of a file.
const MAX_BYTES: u64 = 1 << 16;

/// The file of an outcome.
#[derive(Debug)]
pub struct OutcomeFile {
    pub(super) path: PathBuf,
    /// All that the outcome depends on.
    key: String,
}

/// What the file has.
#[derive(Serialize, Deserialize)]
struct Content<T> {
    key: String,
    outcome: T,
}

impl OutcomeFile {
    /// The file for what `kind` says, in a folder of the cache directory. An outcome with another key is
    /// replaced.
    pub(super) fn new(cache: &Path, folder: &str, kind: &str, key: String) -> Self {
        let name = format!("{:032x}.json", Digest::of(kind).first_bits());
        OutcomeFile { path: cache.join(folder).join(name), key }
    }

    /// The file for what `what` says about a model of these files, for one build of Sconce. `None` without a
    /// cache directory, or if a file cannot be read.
    pub fn of_files(folder: &str, what: &str, files: &[PathBuf]) -> Option<Self> {
        let cache = digest_cache::cache_directory()?;
        let digests = files.iter().map(|file| digest_cache::sha256(file).map(|digest| digest.to_string()));
        let digests = digests.collect::<Result<Vec<_>, _>>().ok()?;
        let kind = format!("{what}, SHA-256 {}", digests.join(" "));
        let key = format!("sconce {BUILD}, {kind}");
        Some(Self::new(&cache, folder, &kind, key))
    }

    /// The outcome; `None` if the file is missing, damaged or has another key.
    pub fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let text = read_trusted(&self.path, MAX_BYTES).ok()?;
        let content: Content<T> = serde_json::from_str(&text).ok()?;
        (content.key == self.key).then_some(content.outcome)
    }

    /// Whether the outcome could be written. A cache that cannot be written is no error.
    pub fn write<T: Serialize>(&self, outcome: &T) -> bool {
        let content = Content { key: self.key.clone(), outcome };
        serde_json::to_vec(&content).is_ok_and(|json| replace_cached(&self.path, PRIVATE, &json).is_ok())
    }
}
