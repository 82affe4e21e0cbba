//! `tokenizer_config.json` and the files next to it: the class of a tokenizer, its settings and its special
//! tokens, with the precedence that transformers gives these files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::sys::model_json::read_json_object;
use crate::sys::regular_file::has_dir_entry;

/// The special tokens that every tokenizer class has, in the order in which transformers adds them to a
/// vocabulary without them.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `tokenizer_config.json`, `special_tokens_map.json`, `added_tokens.json`, and the tokenizer's part of
/// `config.json`. Any of them may be absent.
#[derive(Clone)]
pub(super) struct TokenizerConfig {
    /// `tokenizer_class`.
    pub class: Option<String>,
    /// `model_type` of `config.json`.
    pub model_type: Option<String>,
    /// The path of `tokenizer_config.json`.
    path: PathBuf,
    /// The fields of `tokenizer_config.json`.
    fields: Map<String, Value>,
    /// Special tokens by name, for example `cls_token`; `None` where a file sets one to null.
    special_tokens: BTreeMap<String, Option<TokenEntry>>,
    /// `extra_special_tokens`, which have no names, or `additional_special_tokens` in their place; `None` if
    /// no file lists them.
    extra_special_tokens: Option<Vec<TokenEntry>>,
    /// `additional_special_tokens`, which count only without `extra_special_tokens`.
    additional_special_tokens: Vec<TokenEntry>,
    /// Added tokens by id.
    added_tokens: BTreeMap<u64, TokenEntry>,
    /// Whether `tokenizer_config.json` has an `added_tokens_decoder`. If so, other files add no tokens.
    has_added_tokens_decoder: bool,
}

/// The special tokens of a tokenizer and its other added tokens, which are found in a text before it is split
/// into words.
pub(super) struct SpecialTokens {
    /// Pairs of a name, for example `cls_token`, and the token.
    by_name: Vec<(String, String)>,
    /// The tokens that a file lists with an id.
    pub with_id: Vec<String>,
    /// All of them, in the order in which those that the vocabulary lacks are added to it.
    pub tokens: Vec<AddedToken>,
}

impl SpecialTokens {
    /// The token with this name, for example `cls_token`.
    pub(super) fn get(&self, name: &str) -> Option<&String> {
        self.by_name.iter().find(|(key, _)| key == name).map(|(_, token)| token)
    }
}

/// An `AddedToken` of transformers, as the files describe it.
#[derive(Clone, Deserialize)]
struct TokenEntry {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

impl TokenEntry {
    /// A special token that a file gives as a plain string.
    fn from_content(content: &str) -> Self {
        let content = content.to_owned();
        let (single_word, lstrip, rstrip, normalized) = (false, false, false, None);
        TokenEntry { content, single_word, lstrip, rstrip, normalized, special: true }
    }

    /// A token that a file gives as a string or as an object.
    fn from_value(value: &Value) -> Option<Self> {
        match value {
            Value::String(content) => Some(Self::from_content(content)),
            _ => Self::deserialize(value).ok(),
        }
    }

    fn into_added_token(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}

impl TokenizerConfig {
    /// The special token with this name, for example `mask_token`, if a file names one.
    pub(super) fn special_token(&self, name: &str) -> Option<&str> {
        self.special_tokens.get(name)?.as_ref().map(|token| token.content.as_str())
    }

    /// The special tokens that files name, with their names.
    pub(super) fn named_special_tokens(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.special_tokens.iter();
        named.filter_map(|(name, token)| Some((name.as_str(), token.as_ref()?.content.as_str())))
    }

    /// The path of `tokenizer_config.json`.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A field of `tokenizer_config.json`.
    pub(super) fn field(&self, key: &str) -> Option<&Value> {
        self.fields.get(key)
    }

    /// Whether `padding_side` is left.
    pub(super) fn pads_left(&self) -> Result<bool> {
        match self.fields.get("padding_side") {
            None | Some(Value::Null) => Ok(false),
            Some(Value::String(side)) if side == "left" || side == "right" => Ok(side == "left"),
            Some(value) => invalid(&self.path, "padding_side", value, "left or right"),
        }
    }

    /// Reads the files next to `tokenizer_file`, a `tokenizer.json` or a vocabulary.
    ///
    /// # Errors
    /// If a file exists, but cannot be read or does not hold what it should; the message names it.
    pub(super) fn read(tokenizer_file: &Path) -> Result<Self> {
        let sibling = |name: &str| tokenizer_file.with_file_name(name);
        let path = sibling("tokenizer_config.json");
        let model_config = read_object(&sibling("config.json"))?;
        let fields = read_object(&path)?.unwrap_or_default();
        let model_field = |key: &str| model_config.as_ref().and_then(|config| config.get(key)?.as_str());
        let class = fields.get("tokenizer_class").and_then(Value::as_str);
        let mut config = TokenizerConfig {
            class: class.or(model_field("tokenizer_class")).map(String::from),
            model_type: model_field("model_type").map(String::from),
            path: path.clone(),
            fields: fields.clone(),
            special_tokens: BTreeMap::new(),
            extra_special_tokens: None,
            additional_special_tokens: Vec::new(),
            added_tokens: BTreeMap::new(),
            has_added_tokens_decoder: false,
        };
        config.set_special_tokens(&path, &fields)?;
        let has_extra = match fields.get("extra_special_tokens") {
            Some(Value::Array(tokens)) => !tokens.is_empty(),
            Some(Value::Object(tokens)) => !tokens.is_empty(),
            _ => false,
        };
        if !has_extra && fields.contains_key("additional_special_tokens") {
            config.extra_special_tokens = Some(std::mem::take(&mut config.additional_special_tokens));
        }
        if let Some(decoder) = fields.get("added_tokens_decoder") {
            let entry = |id: &str, token: &Value| Some((id.parse().ok()?, TokenEntry::from_value(token)?));
            return match tokens_by_id(decoder, entry) {
                Some(added_tokens) => {
                    Ok(TokenizerConfig { added_tokens, has_added_tokens_decoder: true, ..config })
                }
                None => invalid(&path, "added_tokens_decoder", decoder, "a map of ids to AddedToken objects"),
            };
        }
        config.read_older_files(&sibling("special_tokens_map.json"), &sibling("added_tokens.json"))?;
        Ok(config)
    }

    /// Reads the files of older releases of transformers, which count only without an `added_tokens_decoder`.
    fn read_older_files(&mut self, special_tokens_map: &Path, added_tokens: &Path) -> Result<()> {
        if let Some(fields) = read_object(special_tokens_map)? {
            self.set_special_tokens(special_tokens_map, &fields)?;
        }
        let Some(fields) = read_object(added_tokens)? else { return Ok(()) };
        let special_tokens = self.special_tokens.values().flatten();
        let special_tokens = special_tokens.chain(self.extra_special_tokens.iter().flatten());
        let special_tokens: Vec<&str> = special_tokens.map(|token| &*token.content).collect();
        let entry = |content: &str, id: &Value| {
            let special = special_tokens.contains(&content);
            let token =
                TokenEntry { special, normalized: Some(!special), ..TokenEntry::from_content(content) };
            Some((id.as_u64()?, token))
        };
        match tokens_by_id(&Value::Object(fields), entry) {
            Some(tokens) => self.added_tokens = tokens,
            None => bail!("{} does not map tokens to ids; fix the file", added_tokens.display()),
        }
        Ok(())
    }

    /// Sets the special tokens that the fields of one file name, replacing those of an earlier file.
    fn set_special_tokens(&mut self, path: &Path, fields: &Map<String, Value>) -> Result<()> {
        for (key, value) in fields {
            match (key.as_str(), value) {
                ("extra_special_tokens", Value::Object(tokens)) => {
                    self.extra_special_tokens = None;
                    self.set_special_tokens(path, tokens)?;
                }
                ("extra_special_tokens", _) => {
                    let tokens = token_list(path, key, value)?;
                    self.extra_special_tokens.get_or_insert_default().extend(tokens);
                }
                ("additional_special_tokens", _) => {
                    self.additional_special_tokens = token_list(path, key, value)?;
                }
                (name, Value::Null) if SPECIAL_TOKENS.contains(&name) => {
                    self.special_tokens.insert(key.clone(), None);
                }
                (name, Value::String(_) | Value::Object(_)) if name.ends_with("_token") => {
                    match TokenEntry::from_value(value) {
                        Some(token) => drop(self.special_tokens.insert(key.clone(), Some(token))),
                        None => return invalid(path, key, value, "a string or an AddedToken object"),
                    }
                }
                (name, _) if SPECIAL_TOKENS.contains(&name) => {
                    return invalid(path, key, value, "a string or an AddedToken object");
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A field that is true or false.
    pub(super) fn bool(&self, key: &str, default: bool) -> Result<bool> {
        match self.fields.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => invalid(&self.path, key, value, "true or false"),
        }
    }

    /// A field that is true, false or null.
    pub(super) fn optional_bool(&self, key: &str) -> Result<Option<bool>> {
        match self.fields.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.bool(key, false).map(Some),
        }
    }

    /// A field that is an integer from 0.
    pub(super) fn integer(&self, key: &str, default: usize) -> Result<usize> {
        match self.fields.get(key) {
            None => Ok(default),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(number as usize),
                None => invalid(&self.path, key, value, "an integer from 0"),
            },
        }
    }

    /// Adds the `added_tokens` of a `tokenizer.json`, unless `tokenizer_config.json` has an
    /// `added_tokens_decoder`.
    pub(super) fn with_added_tokens(mut self, tokens: &[Value]) -> Self {
        let entry = |token: &Value| Some((token.get("id")?.as_u64()?, TokenEntry::deserialize(token).ok()?));
        if !self.has_added_tokens_decoder {
            self.added_tokens.extend(tokens.iter().filter_map(entry));
        }
        self
    }

    /// With the special tokens of a vocabulary file in place of `additional_special_tokens`: pairs of a token
    /// and whether it is special.
    pub(super) fn with_tokens_of_vocabulary<'a>(
        mut self,
        tokens: impl IntoIterator<Item = (&'a str, bool)>,
    ) -> Self {
        let entry = |(content, special)| TokenEntry {
            special,
            normalized: Some(false),
            ..TokenEntry::from_content(content)
        };
        self.additional_special_tokens = tokens.into_iter().map(entry).collect();
        self
    }

    /// The special tokens and added tokens of a tokenizer class with these `defaults`: pairs of a name and a
    /// token.
    pub(super) fn special_tokens(&self, defaults: &[(&str, &str)]) -> SpecialTokens {
        let other_names =
            self.special_tokens.keys().map(String::as_str).filter(|name| !SPECIAL_TOKENS.contains(name));
        let named = SPECIAL_TOKENS.into_iter().chain(other_names).filter_map(|name| {
            let default = || {
                let default = defaults.iter().find(|(key, _)| *key == name);
                default.map(|(_, token)| TokenEntry::from_content(token))
            };
            let token = self.special_tokens.get(name).cloned().unwrap_or_else(default)?;
            Some((name.to_owned(), token))
        });
        let named: Vec<(String, TokenEntry)> = named.collect();
        let with_id: Vec<String> = self.added_tokens.values().map(|token| token.content.clone()).collect();
        let unnamed = self.extra_special_tokens.as_ref().unwrap_or(&self.additional_special_tokens);
        let without_id = named.iter().map(|(_, token)| token).chain(unnamed);
        let without_id = without_id.filter(|token| !with_id.contains(&token.content));
        let tokens = self.added_tokens.values().chain(without_id).cloned().map(|mut token| {
            token.special |= named.iter().any(|(_, other)| other.content == token.content);
            token.into_added_token()
        });
        let tokens = tokens.collect();
        let by_name = named.into_iter().map(|(name, token)| (name, token.content)).collect();
        SpecialTokens { by_name, with_id, tokens }
    }
}

/// The tokens of a list, which may be null.
fn token_list(path: &Path, key: &str, value: &Value) -> Result<Vec<TokenEntry>> {
    let tokens = match value {
        Value::Null => Some(Vec::new()),
        Value::Array(tokens) => tokens.iter().map(TokenEntry::from_value).collect(),
        _ => None,
    };
    match tokens {
        Some(tokens) => Ok(tokens),
        None => invalid(path, key, value, "a list of strings or AddedToken objects"),
    }
}

/// The tokens of a JSON object by id. Returns `None` if `entry` does so for a pair of key and value.
fn tokens_by_id(
    object: &Value,
    entry: impl Fn(&str, &Value) -> Option<(u64, TokenEntry)>,
) -> Option<BTreeMap<u64, TokenEntry>> {
    object.as_object()?.iter().map(|(key, value)| entry(key, value)).collect()
}

/// The JSON object in a file, or `None` if the file does not exist.
fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    if has_dir_entry(path) { read_json_object(path).map(Some) } else { Ok(None) }
}

/// The error for a field whose value is not what is `expected`.
fn invalid<T>(path: &Path, key: &str, value: &Value, expected: &str) -> Result<T> {
    let found = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(_) => "a string".into(),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    };
    bail!("{}: {key:?} is {found}, expected {expected}; fix the file", path.display())
}
