//! What stands beside a vocabulary: whose it is, its switches and its special tokens. Read as transformers reads it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokenizers::AddedToken;

use crate::disk;

/// The special tokens that every tokenizer can have, in the order in which those new to a vocabulary join it.
const NAMES: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// `tokenizer_config.json` and the files that go with it, as far as they are there.
#[derive(Clone)]
pub(super) struct Settings {
    /// The tokenizer's class, if a file says it.
    pub class: Option<String>,
    /// The type of the model in `config.json`.
    pub model_type: Option<String>,
    path: PathBuf,
    switches: Map<String, Value>,
    /// Special tokens by name; none where a file says that there is none.
    named: BTreeMap<String, Option<Token>>,
    extra: Vec<Token>,
    /// Added tokens by ids of their own.
    listed: BTreeMap<u64, Token>,
    /// Whether `tokenizer_config.json` lists them, so that no other file counts.
    decided: bool,
}

/// Special tokens, and tokens that are found in a text before it is cut into words.
pub(super) struct Specials {
    /// What each name stands for.
    pub named: Vec<(String, String)>,
    /// The tokens that files list with an id.
    pub listed: Vec<String>,
    /// All of them, in the order in which those new to the vocabulary join it.
    pub tokens: Vec<AddedToken>,
}

/// A token as the files describe it.
#[derive(Clone, Deserialize)]
struct Token {
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

impl Token {
    fn bare(content: &str) -> Self {
        let content = content.to_owned();
        let (single_word, lstrip, rstrip, normalized) = (false, false, false, None);
        Token { content, single_word, lstrip, rstrip, normalized, special: true }
    }

    fn read(value: &Value) -> Option<Self> {
        match value {
            Value::String(content) => Some(Self::bare(content)),
            _ => Self::deserialize(value).ok(),
        }
    }

    fn finish(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}

impl Settings {
    /// Reads what stands beside a vocabulary.
    ///
    /// # Errors
    /// If a file is there but broken; the sentence names it.
    pub fn read(vocabulary: &Path) -> Result<Self> {
        let beside = |name: &str| vocabulary.with_file_name(name);
        let (path, model) = (beside("tokenizer_config.json"), object(&beside("config.json"))?);
        let switches = object(&path)?.unwrap_or_default();
        let of_model = |key: &str| model.as_ref().and_then(|model| model.get(key)?.as_str());
        let class = switches.get("tokenizer_class").and_then(Value::as_str);
        let mut settings = Settings {
            class: class.or(of_model("tokenizer_class")).map(String::from),
            model_type: of_model("model_type").map(String::from),
            path,
            switches,
            named: BTreeMap::new(),
            extra: Vec::new(),
            listed: BTreeMap::new(),
            decided: false,
        };
        let Settings { path, switches, .. } = &settings;
        let (path, switches) = (path.clone(), switches.clone());
        settings.take_tokens(&path, &switches)?;
        if let Some(decoder) = switches.get("added_tokens_decoder") {
            return match by_id(decoder, |id, token| Some((id.parse().ok()?, Token::read(token)?))) {
                Some(listed) => Ok(Settings { listed, decided: true, ..settings }),
                None => wrong(&path, "added_tokens_decoder", "a map of ids to tokens"),
            };
        }
        // Files of older releases, which count only where the newer form is not there.
        let path = beside("special_tokens_map.json");
        if let Some(map) = object(&path)? {
            settings.take_tokens(&path, &map)?;
        }
        let path = beside("added_tokens.json");
        if let Some(added) = object(&path)? {
            let known = settings.named.values().flatten().chain(&settings.extra);
            let known: Vec<&str> = known.map(|token| &*token.content).collect();
            let listed = by_id(&Value::Object(added), |content, id| {
                let special = known.contains(&content);
                let token = Token { special, normalized: Some(!special), ..Token::bare(content) };
                Some((id.as_u64()?, token))
            });
            let Some(listed) = listed else {
                bail!("{} is not a map of tokens to ids; fix the file", path.display())
            };
            settings.listed = listed;
        }
        Ok(settings)
    }

    /// Takes the special tokens of one file, in place of what an earlier one said.
    fn take_tokens(&mut self, path: &Path, fields: &Map<String, Value>) -> Result<()> {
        for (key, value) in fields {
            let broken = |what| wrong(path, key, what);
            match (key.as_str(), value) {
                ("extra_special_tokens" | "additional_special_tokens", Value::Array(tokens)) => {
                    match tokens.iter().map(Token::read).collect::<Option<Vec<_>>>() {
                        Some(tokens) => self.extra.extend(tokens),
                        None => return broken("a list of tokens"),
                    }
                }
                ("extra_special_tokens", Value::Object(tokens)) => self.take_tokens(path, tokens)?,
                ("extra_special_tokens" | "additional_special_tokens", Value::Null) => {}
                (name, Value::Null) if NAMES.contains(&name) => drop(self.named.insert(key.clone(), None)),
                (name, Value::String(_) | Value::Object(_)) if name.ends_with("_token") => {
                    match Token::read(value) {
                        Some(token) => drop(self.named.insert(key.clone(), Some(token))),
                        None => return broken("a token"),
                    }
                }
                (name, _) if NAMES.contains(&name) => return broken("a token"),
                _ => {}
            }
        }
        Ok(())
    }

    /// A switch.
    ///
    /// # Errors
    /// If it is neither true nor false.
    pub fn flag(&self, key: &str, default: bool) -> Result<bool> {
        match self.switches.get(key) {
            None => Ok(default),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(_) => wrong(&self.path, key, "true or false"),
        }
    }

    /// A switch that may be left open.
    ///
    /// # Errors
    /// If it is neither true nor false nor null.
    pub fn open_flag(&self, key: &str) -> Result<Option<bool>> {
        match self.switches.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => self.flag(key, false).map(Some),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    /// If it is none.
    pub fn number(&self, key: &str, default: usize) -> Result<usize> {
        match self.switches.get(key) {
            None => Ok(default),
            Some(value) => match value.as_u64() {
                Some(number) => Ok(number as usize),
                None => wrong(&self.path, key, "a whole number"),
            },
        }
    }

    /// With the `added_tokens` of a `tokenizer.json`, which count where `tokenizer_config.json` lists none.
    pub fn with_added(mut self, tokens: &[Value]) -> Self {
        let read = |token: &Value| Some((token.get("id")?.as_u64()?, Token::deserialize(token).ok()?));
        if !self.decided {
            self.listed.extend(tokens.iter().filter_map(read));
        }
        self
    }

    /// The special tokens of a class with these `defaults`.
    pub fn specials(&self, defaults: &[(&str, &str)]) -> Specials {
        let own = self.named.keys().map(String::as_str).filter(|name| !NAMES.contains(name));
        let named = NAMES.into_iter().chain(own).filter_map(|name| {
            let default =
                || defaults.iter().find(|(key, _)| *key == name).map(|(_, token)| Token::bare(token));
            let token = self.named.get(name).cloned().unwrap_or_else(default)?;
            Some((name.to_owned(), token))
        });
        let named: Vec<(String, Token)> = named.collect();
        let listed: Vec<String> = self.listed.values().map(|token| token.content.clone()).collect();
        let others = named.iter().map(|(_, token)| token).chain(&self.extra);
        let others = others.filter(|token| !listed.contains(&token.content));
        let tokens = self.listed.values().chain(others).cloned().map(|mut token| {
            token.special |= named.iter().any(|(_, other)| other.content == token.content);
            token.finish()
        });
        let tokens = tokens.collect();
        let named = named.into_iter().map(|(name, token)| (name, token.content)).collect();
        Specials { named, listed, tokens }
    }
}

/// The tokens of a map by their ids.
fn by_id(map: &Value, read: impl Fn(&str, &Value) -> Option<(u64, Token)>) -> Option<BTreeMap<u64, Token>> {
    map.as_object()?.iter().map(|(key, value)| read(key, value)).collect()
}

/// A file's JSON object; none if there is no such file.
fn object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let shown = path.display();
    if !disk::is_listed(path) {
        return Ok(None);
    }
    let bytes = match disk::read(path, disk::MAX_CONFIG_BYTES) {
        Ok(bytes) => bytes,
        Err(error) => bail!("cannot read {shown} ({error}); download the file again"),
    };
    match serde_json::from_slice(&bytes) {
        Ok(Value::Object(fields)) => Ok(Some(fields)),
        Ok(_) => bail!("{shown} does not hold a JSON object; fix the file"),
        Err(error) => bail!("{shown} is not valid JSON ({error}); download the file again"),
    }
}

fn wrong<T>(path: &Path, key: &str, what: &str) -> Result<T> {
    bail!("{}: {key} is not {what}; fix the file", path.display())
}
