//! The linear layers of a model like BGE-M3 (Chen et al. 2024), which FlagEmbedding saves beside its encoder:
//! one that gives lexical weights, and one that projects the vector of each token.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::post_pooling::ModuleInput;
use super::{MultiVector, PostPoolingModule};
use crate::model::layout::COLBERT_LINEAR;
use crate::sys::regular_file::has_dir_entry;

/// A file of a layer in a folder, if it is there.
pub(super) fn file_in(folder: &Path, name: &str) -> Option<PathBuf> {
    Some(folder.join(name)).filter(|path| has_dir_entry(path))
}

/// The projection of token vectors, from its file: `weight` of `(D, H)` and `bias` of `(D)`, and
/// normalization.
pub fn token_projection(file: &Path) -> Result<Vec<PostPoolingModule>> {
    let folder = file.parent().unwrap_or(file);
    let normalize = PostPoolingModule::normalize(folder.join("normalize"), ModuleInput::Tokens)?;
    Ok(vec![PostPoolingModule::linear(folder, COLBERT_LINEAR)?, normalize])
}

/// What FlagEmbedding does beside the projection: the first token has no vector, and a score is the mean over
/// the tokens of the query.
pub(super) fn multi_vector() -> MultiVector {
    MultiVector { skips_first_token: true, mean: true, ..MultiVector::default() }
}
