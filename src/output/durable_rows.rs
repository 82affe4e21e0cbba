//! The rows of an interrupted run that are known to be on disk.

use serde::{Deserialize, Serialize};

use super::digest::HashedBlock;

/// The rows of an interrupted run that are known to be on disk, as the manifest records them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableRows {
    /// Number of rows.
    pub rows: u64,
    /// Length in bytes of the partial file up to the end of those rows.
    pub bytes: u64,
    /// Digests of those bytes; a resumed run verifies them. Empty in manifests of releases that had no digests.
    #[serde(default)]
    pub blocks: Vec<HashedBlock>,
}
