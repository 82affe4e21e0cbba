//! The linear layers of a model like BGE-M3 (Chen et al. 2024), which FlagEmbedding saves beside its encoder: one that gives lexical
//! weights, and one that projects the vector of each token.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::post_pooling::{LINEAR_NAMES, ModuleInput};
use super::{MultiVector, PostPoolingModule};
use crate::checkpoint::{Checkpoint, TensorReport};
use crate::model::layout::{COLBERT_LINEAR, SPARSE_LINEAR};
use crate::nn::{HeadSpec, TaskHead};
use crate::sys::regular_file::has_dir_entry;

/// A file of a layer in a folder, if it is there.
pub(super) fn file_in(folder: &Path, name: &str) -> Option<PathBuf> {
    Some(folder.join(name)).filter(|path| has_dir_entry(path))
}

/// The projection of token vectors, from its file: `weight` of `(D, H)` and `bias` of `(D)`, and normalization.
pub fn token_projection(file: &Path) -> Result<Vec<PostPoolingModule>> {
    let folder = file.parent().unwrap_or(file);
    let normalize = PostPoolingModule::normalize(folder.join("normalize"), ModuleInput::Tokens)?;
    Ok(vec![PostPoolingModule::linear(folder, COLBERT_LINEAR)?, normalize])
}

/// What FlagEmbedding does beside the projection: the first token has no vector, and a score is the mean over the tokens of the query.
pub(super) fn multi_vector() -> MultiVector {
    MultiVector { skips_first_token: true, mean: true, ..MultiVector::default() }
}

/// Loads the layer of lexical weights from its own file: `weight` of `(1, H)` and `bias` of `(1)`. Its tensors are added to `report`.
pub fn load_lexical_layer(
    path: &Path,
    spec: &HeadSpec,
    hidden_size: usize,
    report: &mut TensorReport,
) -> Result<TaskHead> {
    let checkpoint = Checkpoint::open(path)?;
    let mut reader = checkpoint.reader_with("", &LINEAR_NAMES);
    let head = TaskHead::load(&mut reader, spec, hidden_size)?;
    let own = reader.into_report();
    checkpoint.check_unchanged()?;
    if let Some(first) = own.problems.first() {
        bail!("{}: {first}; use the files of one model", path.display())
    }
    report.add(own, Some(SPARSE_LINEAR));
    Ok(head)
}
