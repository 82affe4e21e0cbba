//! Static embedding models: those of sentence-transformers' StaticEmbedding module and of model2vec.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::{Modules, PoolingModule, TokenLimit};
use crate::error::UsageError;
use crate::model::config::Config;
use crate::model::layout::{CONFIG, MODULE_WEIGHTS};
use crate::model::static_embedding::{self, StaticLayout};
use crate::nn::{Pool, Pooling};
use crate::sys::regular_file::has_dir_entry;

impl Modules {
    /// Reads the settings of a static embedding model, whose vectors are means over tokens.
    pub(super) fn read_static(&mut self, folder: &Path, pooling: Option<&Pooling>) -> Result<()> {
        let mean = Pooling::Text(vec![Pool::Mean]);
        if let Some(other) = pooling.filter(|pooling| **pooling != mean) {
            let folder = folder.display();
            bail!(UsageError(match other {
                Pooling::None => format!(
                    "{folder} has static embeddings: its tokens have no hidden states and do not attend to each other; choose a \
                     model with layers"
                ),
                _ => format!(
                    "--pooling {other}: {folder} has static embeddings, which are pooled by the mean; leave the option out"
                ),
            }))
        }
        let layout = StaticLayout::of(folder);
        self.static_embedding = Some(layout);
        let config = folder.join(CONFIG);
        if layout == StaticLayout::Model2Vec {
            let fields = Config::read(&config)?;
            let tokens = match fields.fields().get(static_embedding::MAX_LENGTH) {
                None => Some(static_embedding::MODEL2VEC_MAX_LENGTH),
                Some(Value::Null) => None,
                Some(_) => Some(fields.width(static_embedding::MAX_LENGTH)?),
            };
            let key = static_embedding::MAX_LENGTH.to_owned();
            self.max_length =
                tokens.map(|tokens| TokenLimit { tokens, key, file: config.clone(), of_tokenizer: false });
        }
        let weights = MODULE_WEIGHTS.map(|name| folder.join(name));
        let file = weights.iter().find(|file| has_dir_entry(file)).unwrap_or(&weights[0]).clone();
        self.pooling = Some(PoolingModule::of_encoder(&file, Pool::Mean, None));
        Ok(())
    }

    /// Adds the normalization that the config of model2vec asks for, unless the last module normalizes.
    pub(super) fn add_own_normalize(&mut self, folder: &Path) -> Result<()> {
        let is_own = self.static_embedding == Some(StaticLayout::Model2Vec);
        if is_own && Config::read(&folder.join(&self.encoder_folder).join(CONFIG))?.flag("normalize")? {
            self.add_normalize(folder)?;
        }
        Ok(())
    }
}

/// Whether a folder without `modules.json` has a model of model2vec.
pub(super) fn is_model2vec(folder: &Path) -> Result<bool> {
    let path = folder.join(CONFIG);
    Ok(has_dir_entry(&path)
        && Config::read(&path)?.get("model_type").and_then(Value::as_str)
            == Some(static_embedding::MODEL2VEC))
}
