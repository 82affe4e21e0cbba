//! The user's choice of a model, and the errors if there is no such model.

use std::path::PathBuf;

use thiserror::Error;

use super::file_names::is_component;

/// Which model to use, and whether the network may be used to get it.
#[derive(Debug, Clone)]
pub struct Source {
    /// A directory with a `config.json`, or an id on the hub.
    pub model: String,
    /// Branch, tag or commit on the hub.
    pub revision: String,
    /// The cache of the hub; `None`: as the variables of `huggingface_hub` say.
    pub cache: Option<PathBuf>,
    /// Dimensions of the vectors, which choose among the folders of a Dense module (`--dimensions`).
    pub dimensions: Option<usize>,
    /// Whether the network must not be used.
    pub offline: bool,
    /// Whether to draw download progress on standard error.
    pub progress: bool,
    /// Whether to print nothing, not even that a download waits for another process.
    pub silent: bool,
}

/// Whether a text can be a branch, a tag or a commit. It becomes a part of a path in the cache: a component
/// such as `..` cannot.
pub fn is_revision(text: &str) -> bool {
    text.split('/').all(is_component)
}

/// There is no such model: it is no directory, and neither the cache nor the hub has it, or the hub must not
/// be asked. A sentence.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct NoSuchModel(pub String);

/// A model cannot be downloaded: the hub cannot be reached or refuses, or the cache cannot store its files. A
/// sentence.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct NotDownloaded(pub String);
