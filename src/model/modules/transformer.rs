//! The Transformer module: `sentence_bert_config.json` or the like.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use super::arguments::Arguments;
use super::{ModelFolder, Modules, PairInput, PoolingModule, fields, token_limit};
use crate::model::config::Config;
use crate::model::layout::TRANSFORMER_CONFIGS;
use crate::model::purpose::Purpose;
use crate::nn::{Pool, Pooling};
use crate::sys::regular_file::has_dir_entry;

impl Modules {
    /// Lengths and casing of the encoder's input, arguments, and which of its outputs is used.
    pub(super) fn read_transformer(
        &mut self,
        folder: &Path,
        is_custom: bool,
        model: &ModelFolder,
    ) -> Result<()> {
        let Some(config) = transformer_config(folder)? else { return Ok(()) };
        if !is_custom {
            fields::TRANSFORMER.check(&config)?;
        }
        self.read_purpose(&config, model)?;
        match &mut self.multi_vector {
            Some(multi_vector) => multi_vector.read_lengths(&config)?,
            None => self.read_role_lengths(&config)?,
        }
        self.max_length = token_limit(&config, "max_seq_length")?.or(self.max_length.take());
        self.lowercase = config.flag("do_lower_case")?;
        self.apply_arguments(Arguments::read(&config)?);
        // Embedding models read no pairs.
        if self.purpose.is_some() {
            let limit;
            (self.pair_input, limit) = PairInput::read(&config)?;
            self.max_length = limit.or(self.max_length.take());
        }
        self.read_output(&config, model.pooling)
    }

    /// The purpose of a model whose other files do not say it.
    fn read_purpose(&mut self, config: &Config, model: &ModelFolder) -> Result<()> {
        // A model that pools gives vectors of texts, whose lengths may depend on their roles, too.
        let by_lengths = || Purpose::of_lengths(config).filter(|_| !model.pools);
        let by_task = Purpose::of_transformer(config)?;
        self.purpose = self.purpose.take().or(by_task).or_else(by_lengths);
        if self.becomes_multi_vector(model.pooling) {
            self.multi_vector.get_or_insert_default();
        }
        Ok(())
    }

    /// What the arguments for the tokenizer and the config change.
    fn apply_arguments(&mut self, arguments: Arguments) {
        self.max_length = arguments.tokenizer_length.or(self.max_length.take());
        self.truncation_side = arguments.truncation_side.or(self.truncation_side);
        self.no_special_tokens = arguments.no_special_tokens;
        self.config_overrides = arguments.config;
        if let Some(limit) = arguments.call_length {
            self.max_length = Some(limit);
            self.role_lengths = [None, None];
            if let Some(multi_vector) = &mut self.multi_vector {
                (multi_vector.query_length, multi_vector.document_length) = (None, None);
            }
        }
    }

    /// The maximum lengths of queries and documents of a model that is no multi-vector model.
    fn read_role_lengths(&mut self, config: &Config) -> Result<()> {
        for (length, key) in self.role_lengths.iter_mut().zip(["query_length", "document_length"]) {
            *length = token_limit(config, key)?;
        }
        match config.get("query_expansion") {
            Some(expansion) if !self.purpose.as_ref().is_some_and(Purpose::is_multi_vector) => {
                let expected = "null, since queries are only expanded in multi-vector models";
                bail!("{}", config.invalid("query_expansion", expansion, expected))
            }
            _ => Ok(()),
        }
    }

    /// `modality_config` and `module_output_name`: which output of the encoder the next module gets.
    fn read_output(&mut self, config: &Config, pooling: Option<&Pooling>) -> Result<()> {
        let Some(modalities) = config.object("modality_config")? else { return Ok(()) };
        if self.purpose.is_some() {
            return Ok(());
        }
        let Some(text) = modalities.object("text")? else {
            if pooling.is_some() {
                return Ok(());
            }
            bail!(
                "{}: \"modality_config\" has no entry for text; choose another model",
                config.path().display()
            )
        };
        let method = text.string("method")?.unwrap_or_default();
        let output = text.get("method_output_name").and_then(Value::as_str).unwrap_or_default();
        match (method, output, config.string("module_output_name")?.unwrap_or_default()) {
            ("forward", "last_hidden_state", "token_embeddings") => {}
            ("forward", "pooler_output", "sentence_embedding")
            | ("get_text_features", "pooler_output" | "", "sentence_embedding") => {
                self.pooling = Some(PoolingModule::of_encoder(config.path(), Pool::Pooler, pooling));
            }
            _ if pooling.is_some() => {}
            (_, _, name) => bail!(
                "{}: {name:?} from output {} of the encoder's {method:?} is not supported; pass --pooling",
                config.path().display(),
                text.get("method_output_name").unwrap_or(&Value::Null)
            ),
        }
        Ok(())
    }
}

/// The configuration of the Transformer module in a folder: the first of its names with a non-empty object.
fn transformer_config(folder: &Path) -> Result<Option<Config>> {
    for name in TRANSFORMER_CONFIGS {
        let path = folder.join(name);
        if !has_dir_entry(&path) {
            continue;
        }
        let config = Config::read(&path)?;
        if !config.fields().is_empty() {
            return Ok(Some(config));
        }
    }
    Ok(None)
}
