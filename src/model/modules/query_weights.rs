//! Queries of a sparse encoder without an encoder: a weight for each token of the vocabulary, such as its IDF
//! (Geng et al. 2024, "Towards Competitive Search Relevance for Inference-Free Learned Sparse Retrievers").
//! sentence-transformers' `SparseStaticEmbedding`.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};

use super::post_pooling::weights_in;
use super::{TokenLimit, fields, read_truncation};
use crate::checkpoint::Checkpoint;
use crate::model::layout::{CONFIG, TOKENIZER_CONFIG, tokenizer_in};
use crate::text::TruncationSide;

/// The tensor of the weights.
const WEIGHT: &str = "weight";

/// The module that weights the tokens of queries, in a folder of its own with a tokenizer.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryWeights {
    /// Its folder.
    pub folder: PathBuf,
    /// The configuration of the Router that chooses it.
    pub router: PathBuf,
    /// Whether texts without a role are queries.
    pub is_default: bool,
    /// The maximum length of a query in tokens.
    pub max_length: Option<TokenLimit>,
    /// The side at which longer queries are truncated, if its files say it.
    pub truncation_side: Option<TruncationSide>,
}

impl QueryWeights {
    /// Reads the configuration.
    pub(super) fn read(folder: PathBuf, router: PathBuf, is_default: bool) -> Result<Self> {
        let config = fields::SPARSE_STATIC_EMBEDDING.read(&folder.join(CONFIG))?;
        if let Some(path) = config.string("path")? {
            bail!("{}", config.invalid("path", format!("{path:?}"), "weights in model.safetensors"));
        }
        let (max_length, truncation_side) = read_truncation(&folder.join(TOKENIZER_CONFIG))?;
        Ok(QueryWeights { folder, router, is_default, max_length, truncation_side })
    }

    /// The weight of each token of the vocabulary.
    pub fn weights(&self) -> Result<Vec<f32>> {
        let path = weights_in(&self.folder)?;
        let checkpoint = Checkpoint::open(&path)?;
        let weights = checkpoint.vector(WEIGHT)?;
        checkpoint.check_unchanged()?;
        let shown = path.display();
        weights.ok_or_else(|| anyhow!("{shown} has no vector {WEIGHT} of floats; download the model again"))
    }

    /// The tokenizer file.
    pub fn tokenizer(&self) -> Result<PathBuf> {
        tokenizer_in(&self.folder)
    }

    /// The files that affect vectors.
    pub fn files(&self) -> Result<[PathBuf; 4]> {
        let config = self.folder.join(CONFIG);
        Ok([self.router.clone(), config, self.tokenizer()?, weights_in(&self.folder)?])
    }
}
