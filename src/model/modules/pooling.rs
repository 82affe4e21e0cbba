//! The Pooling module.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use super::fields;
use crate::model::config::Config;
use crate::nn::{Pool, Pooling};

/// The Pooling module of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingModule {
    /// The pooling.
    pub pooling: Pooling,
    /// Whether the tokens of the prompt are pooled, too.
    pub include_prompt: bool,
    /// The dimensions of the hidden states that the module is for, if its file has that field.
    pub embedding_dimension: Option<usize>,
    /// The module's configuration.
    pub file: PathBuf,
}

/// Pooling modes: the name in `pooling_mode` (sentence-transformers ≥ 5.4), the flag of older releases, and
/// ours; in the order in which older releases concatenate the vectors of several modes.
const MODES: &[(&str, &str, Pool)] = &[
    ("cls", "pooling_mode_cls_token", Pool::Cls),
    ("max", "pooling_mode_max_tokens", Pool::Max),
    ("mean", "pooling_mode_mean_tokens", Pool::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pool::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pool::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pool::Last),
];

impl PoolingModule {
    /// The pooling of the Transformer module itself, with this configuration `file`. A `pooling` of the
    /// user's replaces it.
    pub(super) fn of_encoder(file: &Path, pool: Pool, pooling: Option<&Pooling>) -> Self {
        let pooling = pooling.cloned().unwrap_or(Pooling::Text(vec![pool]));
        PoolingModule { pooling, include_prompt: true, embedding_dimension: None, file: file.to_owned() }
    }

    /// Reads the module's `config.json`. A `pooling` of the user's replaces the mode of the file, which is
    /// then not read.
    pub fn read(path: &Path, pooling: Option<&Pooling>) -> Result<Self> {
        let config = fields::POOLING.read(path)?;
        let keys = ["embedding_dimension", "word_embedding_dimension"];
        let embedding_dimension = match keys.into_iter().find_map(|key| Some((key, config.get(key)?))) {
            None => None,
            Some((key, value)) => match value.as_u64() {
                Some(n) => Some(n as usize).filter(|n| *n > 0),
                None => bail!(
                    "{}: {key:?} is {value}, expected a number of dimensions; fix the file",
                    path.display()
                ),
            },
        };
        Ok(PoolingModule {
            pooling: match pooling {
                Some(pooling) => pooling.clone(),
                None => Pooling::Text(pools(&config)?),
            },
            include_prompt: config.flag_or("include_prompt", true)?,
            embedding_dimension,
            file: path.to_owned(),
        })
    }
}

/// The modes of a file, in the old schema (one flag per mode) or the new one (`pooling_mode`, a name or a
/// list).
fn pools(config: &Config) -> Result<Vec<Pool>> {
    let path = config.path().display();
    let unknown = |mode: &dyn std::fmt::Display| {
        anyhow::anyhow!("{path}: pooling mode {mode} is not supported; pass --pooling")
    };
    let named: Option<Vec<Pool>> = match config.get("pooling_mode") {
        None => None,
        Some(modes) => {
            let modes = modes.as_array().map_or(std::slice::from_ref(modes), Vec::as_slice);
            let pool = |mode: &Value| {
                let known = MODES.iter().find(|(name, ..)| mode.as_str() == Some(name));
                known.map(|(.., pool)| *pool).ok_or_else(|| unknown(mode))
            };
            Some(modes.iter().map(pool).collect::<Result<_>>()?)
        }
    };
    let flags = flags(config)?;
    match (named, flags) {
        (Some(named), _) if named.is_empty() => {}
        (Some(named), Some(flags)) if !flags.is_empty() && !is_same_set(&named, &flags) => {
            bail!(
                "{path}: \"pooling_mode\" is {}, but the flags of older releases in the same file select {}; pass --pooling",
                Pooling::Text(named),
                Pooling::Text(flags)
            )
        }
        (Some(named), _) => return Ok(named),
        (None, Some(flags)) if !flags.is_empty() => return Ok(flags),
        // sentence-transformers uses the mean if no flag is set, and if the file has no mode at all.
        (None, Some(_)) => return Ok(vec![Pool::Mean]),
        (None, None) if !config.fields().is_empty() => return Ok(vec![Pool::Mean]),
        (None, None) => {}
    }
    bail!("{path} has no pooling mode; fix the file, or pass --pooling")
}

/// Whether two lists have the same modes, in any order.
fn is_same_set(a: &[Pool], b: &[Pool]) -> bool {
    a.iter().all(|pool| b.contains(pool)) && b.iter().all(|pool| a.contains(pool))
}

/// The modes whose flags are set; `None` if the file has no flags.
fn flags(config: &Config) -> Result<Option<Vec<Pool>>> {
    let keys = || config.fields().keys().filter(|key| key.starts_with("pooling_mode_"));
    for key in keys() {
        if config.flag(key)? && !MODES.iter().any(|(_, flag, _)| flag == key) {
            bail!("{}: pooling mode {key:?} is not supported; pass --pooling", config.path().display())
        }
    }
    if keys().next().is_none() {
        return Ok(None);
    }
    let mut pools = Vec::new();
    for (_, flag, pool) in MODES {
        if config.flag(flag)? {
            pools.push(*pool);
        }
    }
    Ok(Some(pools))
}
