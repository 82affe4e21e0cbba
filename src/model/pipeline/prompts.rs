//! `config_sentence_transformers.json`: prompts, and the dimensions that are kept.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::disk::is_listed;
use crate::model::purpose::Purpose;
use crate::model::read_json_object;

/// What may stand before each text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Names and texts; a text may be empty.
    pub texts: Vec<(String, String)>,
    /// The name of the prompt that is taken where the user names none.
    pub default: Option<String>,
}

/// Names that sentence-transformers gives to every model; a model that does not know them has empty prompts for them.
const EVERYWHERE: [&str; 2] = ["query", "document"];

impl Prompts {
    /// The text of a prompt.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    /// All names, for a sentence.
    pub fn names(&self) -> String {
        self.texts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// What the file says.
#[derive(Debug, Default)]
pub struct Settings {
    /// The prompts.
    pub prompts: Prompts,
    /// How many dimensions of a vector are kept.
    pub dimensions: Option<usize>,
    /// What the model is, if it is no embedding model.
    pub purpose: Option<Purpose>,
}

/// Reads the file; a model without it has none of this.
pub fn read(path: &Path) -> Result<Settings> {
    if !is_listed(path) {
        return Ok(Settings::default());
    }
    let shown = path.display();
    let fields = read_json_object(path)?;
    let given = |key: &str| fields.get(key).filter(|value| !value.is_null());
    let mut texts = Vec::new();
    match given("prompts") {
        None => {}
        Some(Value::Object(prompts)) => {
            for (name, text) in prompts {
                let text = match text {
                    Value::String(text) => text.clone(),
                    Value::Null => String::new(),
                    _ => bail!("{shown}: the prompt {name:?} is {text}, not a text; fix the file"),
                };
                texts.push((name.clone(), text));
            }
        }
        Some(other) => bail!("{shown}: \"prompts\" is {other}, not texts by name; fix the file"),
    }
    let mut prompts = Prompts { texts, default: None };
    match given("default_prompt_name") {
        None => {}
        Some(Value::String(name)) if prompts.get(name).is_some() => prompts.default = Some(name.clone()),
        Some(Value::String(name)) if EVERYWHERE.contains(&name.as_str()) => {}
        Some(name) => {
            bail!("{shown}: \"default_prompt_name\" is {name}, but no prompt has that name; fix the file")
        }
    }
    let dimensions = match given("truncate_dim") {
        None => None,
        Some(value) => match value.as_u64().filter(|n| *n > 0) {
            Some(n) => Some(n as usize),
            None => bail!("{shown}: \"truncate_dim\" is {value}, not a number of dimensions; fix the file"),
        },
    };
    Ok(Settings { prompts, dimensions, purpose: Purpose::of_settings(&fields) })
}
