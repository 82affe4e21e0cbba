//! The pooling module.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::Value;

use crate::model::config::Config;
use crate::nn::{Pool, Pooling};

/// How tokens become a vector.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolingModule {
    /// The way.
    pub pooling: Pooling,
    /// Whether the tokens of a prompt are pooled with those of the text.
    pub include_prompt: bool,
    /// Dimensions of the hidden states that the file speaks of, where it does.
    pub width: Option<usize>,
    /// The file that says so.
    pub file: PathBuf,
}

/// The modes: what releases from 5.4 on call them in `pooling_mode`, the flag that older ones have for each, in the
/// order in which those join them, and ours.
const MODES: &[(&str, &str, Pool)] = &[
    ("cls", "pooling_mode_cls_token", Pool::Cls),
    ("max", "pooling_mode_max_tokens", Pool::Max),
    ("mean", "pooling_mode_mean_tokens", Pool::Mean),
    ("mean_sqrt_len_tokens", "pooling_mode_mean_sqrt_len_tokens", Pool::MeanSqrtLen),
    ("weightedmean", "pooling_mode_weightedmean_tokens", Pool::WeightedMean),
    ("lasttoken", "pooling_mode_lasttoken", Pool::Last),
];

impl PoolingModule {
    /// The model's own pooler, where the Transformer module of this `file` hands on what that gives.
    pub(super) fn pooler(file: &Path) -> Self {
        let pooling = Pooling::Text(vec![Pool::Pooler]);
        PoolingModule { pooling, include_prompt: true, width: None, file: file.to_owned() }
    }

    /// Reads the module's `config.json`, but for the mode where the user has chosen a `pooling`.
    ///
    /// # Errors
    /// If the file does not parse, contradicts itself or asks for a mode that is not supported.
    pub fn read(path: &Path, pooling: Option<&Pooling>) -> Result<Self> {
        let config = Config::read(path)?;
        let width = match config.get("embedding_dimension").or(config.get("word_embedding_dimension")) {
            None => None,
            Some(value) => match value.as_u64() {
                Some(n) => Some(n as usize).filter(|n| *n > 0),
                None => bail!(
                    "{}: \"embedding_dimension\" is {value}, not a number of dimensions; fix the file",
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
            width,
            file: path.to_owned(),
        })
    }
}

/// The modes that a file asks for, in the old schema (a flag a mode) or the new one (`pooling_mode`, one or several).
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
        (Some(named), Some(flags)) if !flags.is_empty() && !same(&named, &flags) => {
            bail!(
                "{path}: \"pooling_mode\" says {}, but the flags of older releases beside it say {}; pass --pooling",
                Pooling::Text(named),
                Pooling::Text(flags)
            )
        }
        (Some(named), _) => return Ok(named),
        (None, Some(flags)) if !flags.is_empty() => return Ok(flags),
        // sentence-transformers takes the mean where no flag is set, and where there is no mode at all.
        (None, Some(_)) => return Ok(vec![Pool::Mean]),
        (None, None) if !config.fields().is_empty() => return Ok(vec![Pool::Mean]),
        (None, None) => {}
    }
    bail!("{path} asks for no pooling mode; fix the file, or pass --pooling")
}

/// Whether two lists have the same modes, in whatever order.
fn same(a: &[Pool], b: &[Pool]) -> bool {
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
