//! `config_sentence_transformers.json`: prompts, truncation, similarity function and the type of the model.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde_json::Value;

use crate::model::purpose::Purpose;
use crate::named::Named;
use crate::neighbours::Similarity;
use crate::sys::model_json::read_json_object;
use crate::sys::regular_file::has_dir_entry;
use crate::text::Role;

/// The prompts of a model: prefixes of a text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Prompts {
    /// Names and prefixes; a prefix may be empty.
    pub texts: Vec<(String, String)>,
    /// The name of the prompt that is used unless the user chooses one.
    pub default: Option<String>,
}

/// Prompts that sentence-transformers gives to every model, empty unless the model's files have them.
const IMPLICIT: [&str; 2] = ["query", "document"];

impl Prompts {
    /// The prefix of the prompt with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.texts.iter().find(|(known, _)| known == name).map(|(_, text)| text.as_str())
    }

    /// The prompt of a role: its name and its prefix, by the names that `encode_query` and `encode_document`
    /// of sentence-transformers look for. Without one of them it is empty, and not the default prompt.
    pub fn of_role(&self, role: Role) -> (&'static str, &str) {
        let names: &[&'static str] = match role {
            Role::Query => &["query"],
            Role::Document => &["document", "passage", "corpus"],
        };
        let named = names.iter().find_map(|name| Some((*name, self.get(name)?)));
        named.unwrap_or((role.name(), ""))
    }

    /// Sets the prefix of the prompt with this name, and makes it the default.
    pub fn set_default(&mut self, name: &str, text: &str) {
        self.set(name, text.to_owned());
        self.default = Some(name.to_owned());
    }

    /// Sets the prefix of the prompt with this name.
    pub(super) fn set(&mut self, name: &str, text: String) {
        self.texts.retain(|(known, _)| known != name);
        self.texts.push((name.to_owned(), text));
    }

    /// All names, separated by commas.
    pub fn names(&self) -> String {
        self.texts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// The settings of a model.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// Prompts.
    pub prompts: Prompts,
    /// The number of dimensions that vectors are truncated to.
    pub truncate_dim: Option<usize>,
    /// The similarity function.
    pub similarity: Option<Similarity>,
    /// The number of elements of a sparse vector.
    pub max_active_dims: Option<usize>,
    /// The path in PyTorch of the activation of a cross-encoder.
    pub activation: Option<String>,
    /// The purpose of the model if it is no embedding model.
    pub purpose: Option<Purpose>,
}

/// Reads the settings of a model; those of a model without the file are empty. `pools`: the model has a
/// Pooling module.
pub(super) fn read(path: &Path, pools: bool) -> Result<Settings> {
    if !has_dir_entry(path) {
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
                    _ => bail!("{shown}: the prompt {name:?} is {text}, expected a string; fix the file"),
                };
                texts.push((name.clone(), text));
            }
        }
        Some(other) => bail!("{shown}: \"prompts\" is {other}, expected an object of strings; fix the file"),
    }
    let mut prompts = Prompts { texts, default: None };
    match given("default_prompt_name") {
        None => {}
        Some(Value::String(name)) if prompts.get(name).is_some() => prompts.default = Some(name.clone()),
        Some(Value::String(name)) if IMPLICIT.contains(&name.as_str()) => {}
        Some(name) => {
            bail!("{shown}: \"default_prompt_name\" is {name}, but no prompt has that name; fix the file")
        }
    }
    let dimensions = |key: &str| match given(key) {
        None => Ok(None),
        Some(value) => match value.as_u64().filter(|n| *n > 0) {
            Some(n) => Ok(Some(n as usize)),
            None => bail!("{shown}: {key:?} is {value}, expected a number of dimensions; fix the file"),
        },
    };
    if let Some(other) = given("model_type").filter(|kind| !kind.is_string()) {
        bail!("{shown}: \"model_type\" is {other}, expected a string; fix the file")
    }
    let purpose = Purpose::of_settings(&fields, pools);
    let similarity = match given("similarity_fn_name") {
        Some(name) if purpose.as_ref().is_none_or(Purpose::is_sparse) => Some(similarity(name, path)?),
        _ => None,
    };
    let activation = match given("activation_fn") {
        None => None,
        Some(Value::String(path)) => Some(path.clone()),
        Some(other) => bail!("{shown}: \"activation_fn\" is {other}, expected a string; fix the file"),
    };
    Ok(Settings {
        prompts,
        truncate_dim: dimensions("truncate_dim")?,
        max_active_dims: dimensions("max_active_dims")?,
        similarity,
        activation,
        purpose,
    })
}

/// The similarity function with a name.
fn similarity(name: &Value, path: &Path) -> Result<Similarity> {
    let known = name.as_str().and_then(Similarity::from_name);
    known.filter(|similarity| Similarity::OF_VECTORS.contains(similarity)).ok_or_else(|| {
        let names: Vec<&str> = Similarity::OF_VECTORS.iter().map(|similarity| similarity.name()).collect();
        let (path, names) = (path.display(), names.join(", "));
        anyhow!("{path}: \"similarity_fn_name\" is {name}, expected one of {names}; fix the file")
    })
}
