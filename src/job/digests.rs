//! SHA-256 digests of the model's files and of texts.

use std::mem;
use std::path::PathBuf;
use std::thread::JoinHandle;

use anyhow::{Result, anyhow};

use super::manifest::RunIdentity;
use crate::rows::FileMetadata;
use crate::rows::metadata::Key;
use crate::store::{Digest, Hasher, digest_cache};
use crate::sys::threads::{spawn, thread_panicked};

/// The digests of files, computed in a background thread: hashing a large model takes longer than embedding a
/// short text.
pub enum FileDigests {
    /// Computed by a background thread.
    Running(JoinHandle<Result<RunIdentity>>),
    /// Computed when they are needed, because the system refused to start a thread.
    Deferred(Vec<PathBuf>),
    /// Computed.
    Finished(RunIdentity),
}

impl FileDigests {
    /// Starts hashing in a background thread. If the system refuses to start one, hashing is deferred.
    pub fn start(files: Vec<PathBuf>) -> Self {
        let deferred = files.clone();
        match spawn("hash-model", move || digests(&files)) {
            Ok(thread) => FileDigests::Running(thread),
            Err(_) => FileDigests::Deferred(deferred),
        }
    }

    /// Waits for the digests, keyed by file name.
    pub fn finish(self) -> Result<RunIdentity> {
        match self {
            FileDigests::Running(thread) => thread.join().map_err(thread_panicked)?,
            FileDigests::Deferred(files) => digests(&files),
            FileDigests::Finished(digests) => Ok(digests),
        }
    }

    /// Waits for the digests and keeps them.
    pub fn wait(&mut self) -> Result<RunIdentity> {
        let digests = mem::replace(self, FileDigests::Deferred(Vec::new())).finish()?;
        *self = FileDigests::Finished(digests.clone());
        Ok(digests)
    }
}

fn digests(paths: &[PathBuf]) -> Result<RunIdentity> {
    let mut identity = RunIdentity::new();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let digest = digest_cache::sha256(path)
            .map_err(|error| anyhow!("cannot read {} ({error})", path.display()))?;
        // Files in different folders can have the same name: their digests are separated by spaces.
        let all = identity.entry(format!("the model's {name}")).or_insert_with(|| "SHA-256".into());
        all.push(' ');
        *all += &digest.to_string();
    }
    Ok(identity)
}

/// The digests of the weights files, separated by spaces, or `None` if there are none.
pub fn weights_digest(identity: &RunIdentity) -> Option<String> {
    let weights = identity.iter().filter(|(key, _)| key.ends_with(".safetensors"));
    let digests: Vec<_> = weights.filter_map(|(_, value)| value.strip_prefix("SHA-256 ")).collect();
    (!digests.is_empty()).then(|| digests.join(" "))
}

/// Adds [`weights_digest`] to the metadata of an output.
pub(super) fn add_weights_digest(metadata: &mut FileMetadata, identity: &RunIdentity) {
    if let Some(digest) = weights_digest(identity) {
        metadata.insert(Key::WeightsSha256, digest);
    }
}

/// SHA-256 over texts and their lengths.
pub fn sha256_of_texts(texts: &[String]) -> Digest {
    let mut hasher = Hasher::default();
    texts.iter().for_each(|text| hasher.add_part(text));
    hasher.digest()
}

#[cfg(test)]
mod tests {
    use super::sha256_of_texts;

    #[test]
    fn digests_are_lowercase_hexadecimal_digits_and_padded() {
        let digest = sha256_of_texts(&["text 1557".to_owned()]);
        assert_eq!(digest.to_string(), "00034ab963edaf02620cb5f12deb709e24e71db05077aa8af2c017cac875e361");
    }
}
