//! The model's own way from hidden states to a vector, as sentence-transformers saves it: `modules.json`,
//! the pooling module's `config.json`, and `sentence_bert_config.json`.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::{read_json, read_json_object};
use crate::nn::{Pool, Pooling};

/// What happens around the encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Pipeline {
    /// How tokens become a vector, and which file says so.
    pub pooling: Option<(Pooling, PathBuf)>,
    /// Whether vectors are scaled to unit length.
    pub normalize: bool,
    /// The longest text in tokens, specials included, where the files set one.
    pub max_length: Option<usize>,
    /// Whether texts are lowercased before the tokenizer sees them.
    pub lowercase: bool,
}

impl Pipeline {
    /// Reads the pipeline files of a model folder; a folder without `modules.json` has no pooling of its own.
    ///
    /// # Errors
    /// If a file does not parse, or asks for a module that is not supported.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut pipeline = Pipeline {
            pooling: None,
            normalize: false,
            max_length: tokenizer_limit(&folder.join("tokenizer_config.json"))?,
            lowercase: false,
        };
        let path = folder.join("modules.json");
        if !path.is_file() {
            return Ok(pipeline);
        }
        let modules = read_json(&path)?;
        let Some(modules) = modules.as_array() else {
            bail!("{} does not hold a list of modules; fetch the file again", path.display())
        };
        for module in modules {
            let text = |key: &str| module.get(key).and_then(Value::as_str);
            let (Some(kind), Some(place)) = (text("type"), text("path")) else {
                bail!("{}: a module has no \"type\" or no \"path\"; fetch the file again", path.display())
            };
            // The packages around the names have moved between releases; the names have not.
            match kind.rsplit('.').next().unwrap_or(kind) {
                "Transformer" if place.is_empty() => pipeline.read_transformer(folder)?,
                "Transformer" => bail!(
                    "{}: the encoder lies in the subfolder {place:?}; pass that folder as the model",
                    path.display()
                ),
                "Pooling" => {
                    let file = folder.join(place).join("config.json");
                    pipeline.pooling = Some((read_pooling(&file)?, file));
                }
                "Normalize" => pipeline.normalize = true,
                other => bail!("{}: module {other} is not supported", path.display()),
            }
        }
        Ok(pipeline)
    }

    /// `sentence_bert_config.json`: the limit and the casing of the encoder's input.
    fn read_transformer(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join("sentence_bert_config.json");
        if !path.is_file() {
            return Ok(());
        }
        let fields = read_json_object(&path)?;
        if let Some(value) = fields.get("max_seq_length").filter(|value| !value.is_null()) {
            match value.as_u64().filter(|n| *n > 0) {
                Some(n) => self.max_length = Some(n as usize),
                None => bail!("{}: \"max_seq_length\" is {value}, not a number of tokens", path.display()),
            }
        }
        self.lowercase = fields.get("do_lower_case").and_then(Value::as_bool).unwrap_or(false);
        Ok(())
    }
}

/// `model_max_length` of `tokenizer_config.json`; tokenizers without a limit write an absurd one, 1e30.
fn tokenizer_limit(path: &Path) -> Result<Option<usize>> {
    if !path.is_file() {
        return Ok(None);
    }
    let limit = read_json_object(path)?.get("model_max_length").and_then(Value::as_f64);
    Ok(limit.filter(|n| (1.0..1e9).contains(n)).map(|n| n as usize))
}

/// The pooling that a pooling module's config asks for, in the old schema (a flag a mode) or the new one
/// (`pooling_mode`, one or several).
fn read_pooling(path: &Path) -> Result<Pooling> {
    let fields = read_json_object(path)?;
    let modes = pooling_modes(&fields);
    if modes.is_empty() {
        bail!("{} asks for no pooling mode; fetch the file again, or pass --pooling", path.display());
    }
    let pools = modes.into_iter().map(|mode| match mode {
        "cls" => Ok(Pool::Cls),
        "max" => Ok(Pool::Max),
        "mean" => Ok(Pool::Mean),
        "mean_sqrt_len_tokens" => Ok(Pool::MeanSqrtLen),
        "weightedmean" => Ok(Pool::WeightedMean),
        "lasttoken" => Ok(Pool::Last),
        other => bail!("{}: pooling mode {other:?} is not supported; pass --pooling", path.display()),
    });
    Ok(Pooling::Text(pools.collect::<Result<_>>()?))
}

fn pooling_modes(fields: &Map<String, Value>) -> Vec<&str> {
    const FLAGS: &[(&str, &str)] = &[
        ("pooling_mode_cls_token", "cls"),
        ("pooling_mode_max_tokens", "max"),
        ("pooling_mode_mean_tokens", "mean"),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
        ("pooling_mode_weightedmean_tokens", "weightedmean"),
        ("pooling_mode_lasttoken", "lasttoken"),
    ];
    match fields.get("pooling_mode") {
        Some(Value::String(mode)) => vec![mode],
        Some(Value::Array(modes)) => modes.iter().filter_map(Value::as_str).collect(),
        _ => FLAGS
            .iter()
            .filter(|(key, _)| fields.get(*key).and_then(Value::as_bool) == Some(true))
            .map(|(_, mode)| *mode)
            .collect(),
    }
}
