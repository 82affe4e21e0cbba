//! `config.json`, read field by field with errors that name the field.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use crate::nn::{ACTIVATIONS, Activation};

/// The largest width, vocabulary or position count that is taken for a size and not for a slip of the pen.
pub const WIDEST: usize = 1 << 24;
/// Heads that are taken for a number and not for a slip of the pen.
pub const HEADS: RangeInclusive<usize> = 1..=1 << 12;

/// The fields of a `config.json`, or of an object inside of it.
#[derive(Debug, Clone)]
pub struct Config {
    path: PathBuf,
    /// The object, with a dot after it; nothing for the whole file.
    inside: String,
    fields: Map<String, Value>,
}

impl Config {
    /// Reads a configuration file.
    ///
    /// # Errors
    /// If the file cannot be read or does not hold a JSON object.
    pub fn read(path: &Path) -> Result<Self> {
        Ok(Config { path: path.to_owned(), inside: String::new(), fields: super::read_json_object(path)? })
    }

    /// All fields.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// The file that was read.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A whole number that has to be there and within `range`: shapes have no defaults.
    pub fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let Some(value) = self.get(key) else { bail!("{}", self.missing(key)) };
        match value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n)) {
            Some(n) => Ok(n),
            None => {
                let expected = format!("a whole number from {} to {}", range.start(), range.end());
                bail!("{}", self.wrong(key, value, &expected))
            }
        }
    }

    /// A width, vocabulary or number of positions that has to be there.
    pub fn width(&self, key: &str) -> Result<usize> {
        self.size(key, 1..=WIDEST)
    }

    /// `width / heads`, both with the keys that they are from.
    pub fn share(&self, width_key: &str, width: usize, heads_key: &str, heads: usize) -> Result<usize> {
        if !width.is_multiple_of(heads) {
            let expected = format!("a multiple of {heads_key:?}, which is {heads}");
            bail!("{}", self.wrong(width_key, width, &expected));
        }
        Ok(width / heads)
    }

    /// The activation that a field names, or nothing.
    pub fn activation(&self, key: &str) -> Result<Option<Activation>> {
        let Some(name) = self.string(key)? else { return Ok(None) };
        match Activation::from_name(name) {
            Some(activation) => Ok(Some(activation)),
            None => {
                let known: Vec<_> = ACTIVATIONS.iter().map(|(name, _)| *name).collect();
                bail!("{}", self.wrong(key, format!("{name:?}"), &format!("one of {}", known.join(", "))))
            }
        }
    }

    /// The id of a token, or nothing.
    pub fn id(&self, key: &str) -> Result<Option<u32>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => {
                match value.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < 1 << 24) {
                    Some(id) => Ok(Some(id)),
                    None => bail!("{}", self.wrong(key, value, "the id of a token")),
                }
            }
        }
    }

    /// A positive number below 1, or `default` where there is none.
    pub fn fraction(&self, key: &str, default: f64) -> Result<f64> {
        match self.get(key) {
            None => Ok(default),
            Some(value) => match value.as_f64().filter(|x| (f64::from(f32::MIN_POSITIVE)..1.0).contains(x)) {
                Some(x) => Ok(x),
                None => bail!("{}", self.wrong(key, value, "a number between 0 and 1")),
            },
        }
    }

    /// A string, or nothing.
    pub fn string(&self, key: &str) -> Result<Option<&str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(value) => bail!("{}", self.wrong(key, value, "a string")),
        }
    }

    /// A truth value; false where there is none.
    pub fn flag(&self, key: &str) -> Result<bool> {
        self.flag_or(key, false)
    }

    /// A truth value, or `default` where there is none.
    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool> {
        match self.get(key) {
            None => Ok(default),
            Some(Value::Bool(b)) => Ok(*b),
            Some(value) => bail!("{}", self.wrong(key, value, "true or false")),
        }
    }

    /// A positive number, or `default` where there is none.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        if self.has(key) { self.required(key) } else { Ok(default) }
    }

    /// A positive number that has to be there.
    pub fn required(&self, key: &str) -> Result<f64> {
        match self.number_or_none(key)? {
            Some(x) if x > 0.0 => Ok(x),
            Some(x) => bail!("{}", self.wrong(key, x, "a positive number")),
            None => bail!("{}", self.missing(key)),
        }
    }

    /// A number, or nothing.
    pub fn number_or_none(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(value) => match value.as_f64().filter(|x| x.is_finite()) {
                Some(x) => Ok(Some(x)),
                None => bail!("{}", self.wrong(key, value, "a number")),
            },
        }
    }

    /// A list of strings, or nothing.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_array().and_then(|list| list.iter().map(Value::as_str).collect()) {
            Some(list) => Ok(Some(list)),
            None => bail!("{}", self.wrong(key, value, "a list of strings")),
        }
    }

    /// An object, or nothing.
    pub fn object(&self, key: &str) -> Result<Option<Config>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(fields)) => Ok(Some(Config {
                path: self.path.clone(),
                inside: format!("{}{key}.", self.inside),
                fields: fields.clone(),
            })),
            Some(value) => bail!("{}", self.wrong(key, value, "an object")),
        }
    }

    /// Whether a field is there and not null.
    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// One sentence on a field that is not there.
    fn missing(&self, key: &str) -> String {
        format!("{} has no field \"{}{key}\"; it is required", self.path.display(), self.inside)
    }

    /// One sentence on a field with the wrong value.
    pub fn wrong(&self, key: &str, found: impl std::fmt::Display, expected: &str) -> String {
        format!("{}: \"{}{key}\" is {found}, but has to be {expected}", self.path.display(), self.inside)
    }

    /// A field of any kind; one that is null is as good as none.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.fields.get(key).filter(|value| !value.is_null())
    }
}
