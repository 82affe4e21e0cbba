//! Static embeddings: a table with a vector for each token, and no encoder. A text's vector is the mean over
//! its tokens. The files are those of sentence-transformers' StaticEmbedding, or of model2vec.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value, json};

use super::config::Config;
use super::layout::CONFIG;
use crate::checkpoint::Checkpoint;
use crate::nn::EncoderSpec;
use crate::sys::model_json::read_json_object;
use crate::sys::regular_file::has_dir_entry;

/// The layout of a static model, after which the reference implementation differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StaticLayout {
    /// `embedding.weight` and no config: all tokens of a text are averaged.
    SentenceTransformers,
    /// `embeddings` with a config: unknown tokens are left out of the mean, and texts are truncated.
    Model2Vec,
}

/// The value of `model_type` in the config of a model2vec model.
pub const MODEL2VEC: &str = "model2vec";

/// Maximum tokens of a text for model2vec, if the config has no other.
pub const MODEL2VEC_MAX_LENGTH: usize = 512;

/// The key of the maximum length in the config of model2vec.
pub const MAX_LENGTH: &str = "max_length";

/// The limit of a static model without a maximum length, in tokens; it only bounds sizes.
const UNLIMITED: usize = 1 << 24;

impl StaticLayout {
    /// The layout of the static model in this folder.
    pub fn of(folder: &Path) -> Self {
        if has_dir_entry(&folder.join(CONFIG)) {
            StaticLayout::Model2Vec
        } else {
            StaticLayout::SentenceTransformers
        }
    }
}

/// The config of the static model with these weights: that of model2vec, or one without fields, with the
/// sizes of the table.
pub fn config(folder: &Path, weights: &Path) -> Result<Config> {
    let path = folder.join(CONFIG);
    let (model_type, path, fields) = match StaticLayout::of(folder) {
        StaticLayout::Model2Vec => (MODEL2VEC, path.clone(), read_json_object(&path)?),
        StaticLayout::SentenceTransformers => ("StaticEmbedding", weights.to_owned(), Map::new()),
    };
    let checkpoint = Checkpoint::open(weights)?;
    let table = ["embedding.weight", "embeddings"].into_iter().find_map(|name| checkpoint.shape(name));
    let &[rows, width] = table.unwrap_or_default() else {
        bail!(
            "{} has no matrix \"embedding.weight\" or \"embeddings\": it is not a static embedding model",
            weights.display()
        )
    };
    let rows = checkpoint.shape("mapping").and_then(|shape| shape.first().copied()).unwrap_or(rows);
    let sizes = json!({"model_type": model_type, "vocab_size": rows, "hidden_size": width});
    let Value::Object(sizes) = sizes else { unreachable!("the literal is an object") };
    Ok(Config::with_fields(&path, fields.into_iter().chain(sizes).collect()))
}

/// The spec of a static model: an encoder without layers.
pub fn spec(config: &Config) -> Result<EncoderSpec> {
    let (vocab_size, hidden_size) = (config.width("vocab_size")?, config.width("hidden_size")?);
    Ok(EncoderSpec::without_layers(vocab_size, hidden_size, UNLIMITED))
}
