//! The fields of the configuration of each module: those that are read, and those without an effect on
//! vectors. sentence-transformers does not load a module with another field, unless it is listed in
//! [`Fields::others`].

use std::path::Path;

use anyhow::{Result, bail};

use crate::model::config::Config;

/// The fields of a configuration.
pub(super) struct Fields {
    /// Fields that are read.
    read: &'static [&'static str],
    /// Fields that have no effect on vectors.
    without_effect: &'static [&'static str],
    /// The beginning of the names of other fields that are read.
    others: Option<&'static str>,
}

impl Fields {
    const fn new(read: &'static [&'static str], without_effect: &'static [&'static str]) -> Self {
        Fields { read, without_effect, others: None }
    }

    /// Fails at the first field of `config` that is not known.
    pub(super) fn check(&self, config: &Config) -> Result<()> {
        let is_known = |key: &str| {
            self.read.contains(&key)
                || self.without_effect.contains(&key)
                || self.others.is_some_and(|start| key.starts_with(start))
        };
        match config.fields().iter().find(|(key, value)| !is_known(key) && !value.is_null()) {
            Some((key, value)) => {
                bail!("{}", config.invalid(key, value, "no such field, since it is unknown"))
            }
            None => Ok(()),
        }
    }

    /// Reads the configuration of a module with these fields.
    pub(super) fn read(&self, path: &Path) -> Result<Config> {
        let config = Config::read(path)?;
        self.check(&config)?;
        Ok(config)
    }
}

/// The Transformer module: `sentence_bert_config.json`.
pub(super) const TRANSFORMER: Fields = Fields::new(
    &[
        "config_args",
        "config_kwargs",
        "do_lower_case",
        "document_length",
        "max_seq_length",
        "modality_config",
        "model_args",
        "model_kwargs",
        "module_output_name",
        "processing_kwargs",
        "processor_kwargs",
        "query_expansion",
        "query_length",
        "tokenizer_args",
        "transformer_task",
    ],
    // How the encoder is run, and where files are cached.
    &["backend", "cache_dir", "unpad_inputs"],
);

/// Pooling. Modes of older releases are flags whose names begin alike.
pub(super) const POOLING: Fields = Fields {
    read: &["embedding_dimension", "include_prompt", "pooling_mode", "word_embedding_dimension"],
    without_effect: &[],
    others: Some("pooling_mode_"),
};

/// LayerNorm.
pub(super) const LAYER_NORM: Fields = Fields::new(&["dimension"], &[]);

/// SpladePooling. The dimensions are those of the vocabulary; chunks save memory.
pub(super) const SPLADE_POOLING: Fields = Fields::new(
    &["activation_function", "pooling_strategy"],
    &["chunk_size", "embedding_dimension", "word_embedding_dimension"],
);

/// SparseStaticEmbedding. Whether weights are frozen concerns training.
pub(super) const SPARSE_STATIC_EMBEDDING: Fields = Fields::new(&["path"], &["frozen"]);

/// LogitScore.
pub(super) const LOGIT_SCORE: Fields =
    Fields::new(&["false_token_id", "module_input_name", "true_token_id"], &[]);

/// MultiVectorMask.
pub(super) const MULTI_VECTOR_MASK: Fields =
    Fields::new(&["keep_only_token_ids", "skiplist_tasks", "skiplist_words"], &[]);

/// HierarchicalTokenPooling.
pub(super) const TOKEN_POOLING: Fields =
    Fields::new(&["normalize_embeddings", "num_protected_tokens", "pool_factor", "tasks"], &[]);

/// Query expansion, in the configuration of the Transformer module.
pub(super) const QUERY_EXPANSION: Fields = Fields::new(&["attend", "length", "strategy", "token"], &[]);
