//! The maximum length of a text, and the end at which longer ones are truncated.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::Modules;
use crate::model::config::Config;
use crate::model::layout::TOKENIZER_CONFIG;
use crate::named::Named;
use crate::sys::model_json;
use crate::sys::regular_file::has_dir_entry;
use crate::text::TruncationSide;

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
        (self.max_length, self.truncation_side) = read_truncation(&folder.join(TOKENIZER_CONFIG))?;
        Ok(())
    }

    /// The maximum length and the truncation side in the folder of a base model, whose adapter has no
    /// tokenizer of its own.
    pub fn read_base_tokenizer(&mut self, base: &Path) -> Result<()> {
        let (limit, side) = read_truncation(&base.join(TOKENIZER_CONFIG))?;
        self.max_length = self.max_length.take().or(limit);
        self.truncation_side = self.truncation_side.or(side);
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

/// `model_max_length` and `truncation_side` of `tokenizer_config.json`. Tokenizers without a limit have a
/// `model_max_length` of 1e30.
pub(super) fn read_truncation(path: &Path) -> Result<(Option<TokenLimit>, Option<TruncationSide>)> {
    if !has_dir_entry(path) {
        return Ok((None, None));
    }
    let (config, key) = (Config::read(path)?, "model_max_length");
    let tokens = match config.get(key) {
        None => None,
        Some(value) => match model_json::as_f64(value).filter(|n| !n.is_nan()) {
            Some(n) => Some(n).filter(|n| (1.0..1e9).contains(n)),
            None => bail!("{}", config.invalid(key, value, "a number of tokens")),
        },
    };
    let limit = |n: f64| TokenLimit {
        tokens: n as usize,
        key: key.into(),
        file: path.to_owned(),
        of_tokenizer: true,
    };
    Ok((tokens.map(limit), truncation_side(&config)?))
}

/// The field `truncation_side` of a tokenizer; `None` without the field.
pub(super) fn truncation_side(tokenizer: &Config) -> Result<Option<TruncationSide>> {
    const KEY: &str = "truncation_side";
    let Some(name) = tokenizer.string(KEY)? else { return Ok(None) };
    match TruncationSide::from_name(name) {
        Some(side) => Ok(Some(side)),
        None => bail!("{}", tokenizer.invalid(KEY, format!("{name:?}"), "left or right")),
    }
}
