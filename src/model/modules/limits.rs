//! The maximum length of a text, and the end at which longer ones are truncated.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use super::Modules;
use crate::model::config::Config;
use crate::model::layout::TOKENIZER_CONFIG;
use crate::sys::model_json::{self, read_json_object};
use crate::sys::regular_file::has_dir_entry;

/// A maximum length in a file of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenLimit {
    /// Tokens, including special tokens.
    pub tokens: usize,
    /// The field.
    pub key: String,
    /// The file.
    pub file: PathBuf,
    /// Whether it is the limit of a tokenizer, which applies up to the number of positions that the model was
    /// made for.
    pub of_tokenizer: bool,
}

impl Modules {
    /// `tokenizer_config.json`: the maximum length and the truncation side.
    pub(super) fn read_tokenizer(&mut self, folder: &Path) -> Result<()> {
        (self.max_length, self.truncate_left) = read_truncation(&folder.join(TOKENIZER_CONFIG))?;
        Ok(())
    }

    /// The maximum length and the truncation side in the folder of a base model, whose adapter has no
    /// tokenizer of its own.
    pub fn read_base_tokenizer(&mut self, base: &Path) -> Result<()> {
        let (limit, is_left) = read_truncation(&base.join(TOKENIZER_CONFIG))?;
        self.max_length = self.max_length.take().or(limit);
        self.truncate_left |= is_left;
        Ok(())
    }
}

/// A maximum length in tokens; `None` without the field.
pub(super) fn token_limit(config: &Config, key: &str) -> Result<Option<TokenLimit>> {
    match config.get(key) {
        None => Ok(None),
        Some(value) => match value.as_u64().filter(|n| *n > 0) {
            Some(n) => {
                let (key, file) = (config.key_path(key), config.path().to_owned());
                Ok(Some(TokenLimit { tokens: n as usize, key, file, of_tokenizer: false }))
            }
            None => bail!("{}", config.invalid(key, value, "a number of tokens")),
        },
    }
}

/// `model_max_length` of `tokenizer_config.json`, and whether `truncation_side` is left. Tokenizers without a
/// limit have a `model_max_length` of 1e30.
pub(super) fn read_truncation(path: &Path) -> Result<(Option<TokenLimit>, bool)> {
    if !has_dir_entry(path) {
        return Ok((None, false));
    }
    let fields = read_json_object(path)?;
    let key = "model_max_length";
    let tokens = match fields.get(key) {
        None | Some(Value::Null) => None,
        Some(value) => match model_json::as_f64(value).filter(|n| !n.is_nan()) {
            Some(n) => Some(n).filter(|n| (1.0..1e9).contains(n)),
            None => {
                let found = value.to_string();
                bail!(
                    "{}: {key:?} is {}, expected a number of tokens; fix the file",
                    path.display(),
                    model_json::shown(&found)
                )
            }
        },
    };
    let truncate_left = match fields.get("truncation_side") {
        None | Some(Value::Null) => false,
        Some(Value::String(side)) if side == "right" => false,
        Some(Value::String(side)) if side == "left" => true,
        Some(other) => {
            bail!("{}: \"truncation_side\" is {other}, expected left or right; fix the file", path.display())
        }
    };
    let limit = |n: f64| TokenLimit {
        tokens: n as usize,
        key: key.into(),
        file: path.to_owned(),
        of_tokenizer: true,
    };
    Ok((tokens.map(limit), truncate_left))
}
