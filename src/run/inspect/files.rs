//! The files of a model with their sizes and SHA-256 digests.

use std::fs::File;
use std::path::PathBuf;

use anyhow::{Context, Result};
use rayon::prelude::*;

use crate::load::Examined;
use crate::store::Digest;

/// A file of a model.
pub(super) struct ModelFile {
    pub path: PathBuf,
    pub bytes: u64,
    /// SHA-256 of its content; `None` if it was not computed.
    pub digest: Option<Digest>,
}

/// All files that affect vectors, with their digests if `with_digests`.
pub(super) fn model_files(examined: &Examined, with_digests: bool) -> Result<Vec<ModelFile>> {
    let describe = |path: &PathBuf| {
        let read = || -> std::io::Result<ModelFile> {
            let bytes = path.metadata()?.len();
            let digest = with_digests.then(|| Digest::of_reader(File::open(path)?));
            Ok(ModelFile { path: path.clone(), bytes, digest: digest.transpose()? })
        };
        read().with_context(|| format!("cannot read {}", path.display()))
    };
    examined.files.par_iter().map(describe).collect()
}
