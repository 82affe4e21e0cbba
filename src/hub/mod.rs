//! The Hugging Face cache, and the hub behind it.
//!
//! Files have the paths that all Hugging Face tools use: `models--ORG--NAME/snapshots/COMMIT/…`, with the
//! commit of a branch in `refs/BRANCH`. The reference is written after the last file, so that a commit with a
//! reference is complete.
//!
//! hf-hub provides the names of the cache. Requests are made by `client`, over the HTTP library of hf-hub:
//! hf-hub would follow a server's answers to any path, any host and any length.
//!
//! * `source`: the model that a user names. `directory`: where its files are, here or in the cache.
//! * `snapshot`: what the cache has of a model. `completeness`: whether that is all. `repository`: what to
//!   download.
//! * `cached`: all models in the cache.
//! * `download`: from the hub to the cache. `errors`: the sentences if that fails.

mod blob;
mod cached;
mod certificates;
mod client;
mod completeness;
mod directory;
mod download;
mod errors;
mod file_names;
mod ids;
mod proxy;
mod repository;
mod settings;
mod snapshot;
mod source;
mod url;

pub use cached::{CachedModel, cached_models};
pub use directory::ModelDir;
pub use source::{NoSuchModel, NotDownloaded, Source, is_revision};
