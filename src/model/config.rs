//! `config.json`, read field by field with errors that name the field.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::nn::{ACTIVATIONS, Activation};
use crate::sys::model_json::{self, read_json_object};

/// Maximum width, vocabulary size or number of positions; a larger one is an error in the file.
pub const MAX_SIZE: usize = 1 << 24;
/// Numbers of attention heads that are accepted; others are an error in the file.
pub const HEAD_COUNTS: RangeInclusive<usize> = 1..=1 << 12;
/// Numbers of experts that are accepted; others are an error in the file.
pub const EXPERT_COUNTS: RangeInclusive<usize> = 1..=1 << 8;
/// Numbers of layers that are accepted; others are an error in the file.
pub const LAYER_COUNTS: RangeInclusive<usize> = 1..=1 << 12;

/// The fields of a `config.json`, or of an object inside it. Fields that are null count as absent, and have
/// no default.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
    /// The path of the object in the file, with a dot at its end; empty for the file itself.
    parent: String,
    fields: Map<String, Value>,
    /// The values of fields that the file lacks.
    defaults: Map<String, Value>,
}

impl Config {
    /// Reads a configuration file.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Self::with_fields(path, read_json_object(path)?))
    }

    /// A configuration without fields, for a file that does not exist.
    pub fn empty(path: &Path) -> Self {
        Self::with_fields(path, Map::new())
    }

    /// A configuration with these fields, as if the file held them.
    pub fn with_fields(path: &Path, fields: Map<String, Value>) -> Self {
        Config { path: path.to_owned(), parent: String::new(), fields, defaults: Map::new() }
    }

    /// Sets a field, as if the file held this value.
    pub fn set(&mut self, key: &str, value: Value) {
        self.fields.insert(key.to_owned(), value);
    }

    /// Gives a field a default, which applies if the file lacks the field.
    pub(super) fn set_default(&mut self, key: &str, value: Value) {
        self.defaults.insert(key.to_owned(), value);
    }

    /// The fields that the file lacks, with the defaults that apply.
    pub fn defaults(&self) -> impl Iterator<Item = (&str, &Value)> {
        let is_absent = |(key, _): &(&String, &Value)| !self.fields.contains_key(*key);
        self.defaults.iter().filter(is_absent).map(|(key, value)| (key.as_str(), value))
    }

    /// All fields, those that are null included.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// The file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A required whole number within `range`. Only shapes that `transformers` has a default for may be
    /// absent.
    pub fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let Some(value) = self.get(key) else { bail!("{}", self.missing(key)) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n)) {
            Some(n) => Ok(n),
            None => {
                let expected = format!("a whole number from {} to {}", range.start(), range.end());
                bail!("{}", self.invalid(key, value, &expected))
            }
        }
    }

    /// A required width, vocabulary size or number of positions.
    pub fn width(&self, key: &str) -> Result<usize> {
        self.size(key, 1..=MAX_SIZE)
    }

    /// The head dim `width / heads`; the keys are for the error.
    pub fn head_dim(&self, width_key: &str, width: usize, heads_key: &str, heads: usize) -> Result<usize> {
        if !width.is_multiple_of(heads) {
            let expected = format!("a multiple of {heads_key:?}, which is {heads}");
            bail!("{}", self.invalid(width_key, width, &expected));
        }
        Ok(width / heads)
    }

    /// The activation that a field names; `None` without the field.
    pub fn activation(&self, key: &str) -> Result<Option<Activation>> {
        let Some(name) = self.string(key)? else { return Ok(None) };
        match Activation::from_name(name) {
            Some(activation) => Ok(Some(activation)),
            None => {
                let known: Vec<_> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
                bail!("{}", self.invalid(key, format!("{name:?}"), &format!("one of {}", known.join(", "))))
            }
        }
    }

    /// A token id; `None` without the field.
    pub fn token_id(&self, key: &str) -> Result<Option<u32>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                match value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < 1 << 24) {
                    Some(id) => Ok(Some(id)),
                    None => bail!("{}", self.invalid(key, value, "a token id")),
                }
            }
        }
    }

    /// A positive number below 1; `default` without the field.
    pub fn fraction(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => match value.as_f64().filter(|x| (f64::from(f32::MIN_POSITIVE)..1.0).contains(x)) {
                Some(x) => Ok(x),
                None => bail!("{}", self.invalid(key, value, "a number between 0 and 1")),
            },
        }
    }

    /// A string; `None` without the field.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(value) => bail!("{}", self.invalid(key, value, "a string")),
        }
    }

    /// A flag; false without the field.
    pub fn flag(&self, key: &str) -> Result<bool> {
        self.flag_or(key, false)
    }

    /// A flag; `default` without the field.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(value) => bail!("{}", self.invalid(key, value, "true or false")),
        }
    }

    /// A positive number; `default` without the field.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        if self.has(key) { self.required_number(key) } else { Ok(default) }
    }

    /// A required positive number.
    pub fn required_number(&self, key: &str) -> Result<f64> {
        match self.optional_number(key)? {
            Some(x) if x > 0.0 => Ok(x),
            Some(x) => bail!("{}", self.invalid(key, x, "a positive number")),
            None => bail!("{}", self.missing(key)),
        }
    }

    /// A finite number; `None` without the field.
    pub fn optional_number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(Some(x)),
                None => bail!("{}", self.invalid(key, value, "a number")),
            },
        }
    }

    /// A list of strings; `None` without the field.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_array().and_then(|list| list.iter().map(Value::as_str).collect()) {
            Some(list) => Ok(Some(list)),
            None => bail!("{}", self.invalid(key, value, "a list of strings")),
        }
    }

    /// An object; `None` without the field.
    pub fn object(&self, key: &str) -> Result<Option<Config>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Config {
                path: self.path.clone(),
                parent: format!("{}{key}.", self.parent),
                fields: fields.clone(),
                defaults: Map::new(),
            })),
            Some(value) => bail!("{}", self.invalid(key, value, "an object")),
        }
    }

    /// The object of a field, empty if the file lacks it, with the `outer` fields of this config in place of
    /// its own.
    pub(super) fn part(&self, key: &str, outer: &[&str]) -> Result<Config> {
        let mut part = self.object(key)?.unwrap_or_else(|| Config {
            parent: format!("{}{key}.", self.parent),
            ..Config::empty(&self.path)
        });
        for key in outer {
            match self.get(key) {
                Some(value) => part.set(key, value.clone()),
                None => drop(part.fields.remove(*key)),
            }
        }
        Ok(part)
    }

    /// The path of a field in the file: `tokenizer_args.model_max_length`.
    pub fn key_path(&self, key: &str) -> String {
        format!("{}{key}", self.parent)
    }

    /// Whether the field is present.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The error for a required field that is absent.
    fn missing(&self, key: &str) -> String {
        format!("{} has no field \"{}{key}\", which is required", self.path.display(), self.parent)
    }

    /// The error for a field with an unexpected value.
    pub fn invalid(&self, key: &str, found: impl std::fmt::Display, expected: &str) -> String {
        let is_default = !self.fields.contains_key(key) && self.defaults.contains_key(key);
        let origin = if is_default { " (the default of transformers)" } else { "" };
        let found = found.to_string();
        let found = model_json::shown(&found);
        format!("{}: \"{}{key}\" is {found}{origin}, expected {expected}", self.path.display(), self.parent)
    }

    /// A field of any type: that of the file, else its default.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).or_else(|| self.defaults.get(key)).filter(|value| !value.is_null())
    }
}
