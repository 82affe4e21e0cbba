//! Fields of `config.json` that the configuration classes of `transformers` have a default for. A row of the
//! family table names those of its class, and a config that lacks such a field has the default: files that
//! people publish lack them.
//!
//! The values are those of transformers 5; `tests/fixtures/config-defaults.json` holds what it says, and a
//! test compares both.

mod classes;

use anyhow::{Result, bail};
use serde_json::Value;

use super::config::Config;

pub use classes::*;

/// Similarity (normalised Damerau-Levenshtein) above which an unknown field is a misspelling of an absent
/// one.
const MIN_SIMILARITY: f64 = 0.8;

/// The defaults of a configuration class.
pub struct ConfigDefaults {
    /// The class whose fields this one has beside its own.
    pub base: Option<&'static ConfigDefaults>,
    /// Fields with their values; they replace those of the base.
    pub fields: &'static [(&'static str, DefaultValue)],
    /// Other names of fields: the name and the field that it stands for (`attribute_map`). Where a config has
    /// both, the other name counts, the last one in the file if it has several.
    pub aliases: &'static [(&'static str, &'static str)],
}

/// The default of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum DefaultValue {
    /// A size, a count or a token id.
    Size(u64),
    /// A number that is no size.
    Number(f64),
    /// A name.
    Name(&'static str),
    /// A flag.
    Flag(bool),
}

impl DefaultValue {
    /// The value as JSON.
    pub fn json(self) -> Value {
        match self {
            DefaultValue::Size(size) => size.into(),
            DefaultValue::Number(number) => number.into(),
            DefaultValue::Name(name) => name.into(),
            DefaultValue::Flag(flag) => flag.into(),
        }
    }
}

impl ConfigDefaults {
    /// The class and those that it is based on, from the base up.
    fn lineage(&self) -> Vec<&ConfigDefaults> {
        let mut classes: Vec<_> = std::iter::successors(Some(self), |class| class.base).collect();
        classes.reverse();
        classes
    }

    /// All fields with their defaults; a later one replaces an earlier one of the same name.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, DefaultValue)> {
        self.lineage().into_iter().flat_map(|class| class.fields.iter().copied())
    }

    /// All other names of fields, each with the field that it stands for.
    pub fn all_aliases(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.lineage().into_iter().flat_map(|class| class.aliases.iter().copied())
    }

    /// The config with the defaults for the fields that it lacks.
    pub fn complete(&self, config: &Config) -> Result<Config> {
        let mut complete = config.clone();
        for (name, value) in config.fields().iter().filter(|(_, value)| !value.is_null()) {
            if let Some((_, key)) = self.all_aliases().find(|(alias, _)| alias == name) {
                complete.set(key, value.clone());
            }
        }
        for (key, value) in self.all() {
            complete.set_default(key, value.json());
        }
        let is_own = |name: &str| self.all().any(|(key, _)| key == name);
        for name in config.fields().keys().filter(|name| !is_own(name)) {
            let similarity = |key: &str| strsim::normalized_damerau_levenshtein(key, name);
            let closest =
                complete.defaults().max_by(|(a, _), (b, _)| similarity(a).total_cmp(&similarity(b)));
            if let Some((key, default)) = closest.filter(|(key, _)| similarity(key) > MIN_SIMILARITY) {
                bail!(
                    "{} has no field \"{key}\", but {name:?}; correct the name, or write \"{key}\": {default}, the default of \
                     transformers",
                    config.path().display()
                )
            }
        }
        Ok(complete)
    }
}
