//! What the files of a reranker say beside its Transformer module: the LogitScore module, and whether a chat
//! template renders the query and the text.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::arguments::is_off;
use super::{TokenLimit, fields, token_limit};
use crate::model::config::Config;

/// The name that sentence-transformers gives to the logits of the vocabulary.
const LOGITS: &str = "causal_logits";

/// The LogitScore module: the tokens whose logits are the score of a causal language model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitScore {
    /// The token whose logit is the score.
    pub true_token: u32,
    /// The token whose logit is subtracted from it.
    pub false_token: Option<u32>,
    /// The configuration of the module.
    pub file: PathBuf,
}

impl LogitScore {
    /// Reads the configuration of the module.
    pub(super) fn read(file: &Path) -> Result<Self> {
        let config = fields::LOGIT_SCORE.read(file)?;
        let Some(true_token) = config.token_id("true_token_id")? else {
            bail!("{}", config.invalid("true_token_id", "absent", "a token id"))
        };
        if let Some(name) = config.string("module_input_name")?.filter(|name| *name != LOGITS) {
            bail!("{}", config.invalid("module_input_name", format!("{name:?}"), LOGITS))
        }
        Ok(LogitScore { true_token, false_token: config.token_id("false_token_id")?, file: file.to_owned() })
    }
}

/// What a cross-encoder reads of a query and a text.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum PairInput {
    /// The two as a pair.
    Pair,
    /// What the chat template of the tokenizer makes of two messages.
    Messages(MessageOptions),
    /// The files do not say: what the chat template makes of them if the tokenizer has one, else the two as a
    /// pair.
    #[default]
    Inferred,
}

/// How a query and a text become messages: `modality_config` and `processing_kwargs` of the Transformer
/// module.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageOptions {
    /// Whether the content of a message is a list of parts; `None`: as the template seems to read it.
    pub has_parts: Option<bool>,
    /// Whether truncated texts end in the tokens that the template has after the last message.
    pub restores_suffix: bool,
    /// Variables of the template.
    pub variables: Map<String, Value>,
}

impl Default for MessageOptions {
    fn default() -> Self {
        MessageOptions { has_parts: None, restores_suffix: true, variables: Map::new() }
    }
}

impl PairInput {
    /// Reads the configuration of a Transformer module. Returns a limit of texts beside it, if there is one.
    pub(super) fn read(config: &Config) -> Result<(Self, Option<TokenLimit>)> {
        let modalities = config.object("modality_config")?;
        let Some(message) = modalities.map(|all| all.object("message")).transpose()?.flatten() else {
            return Ok((PairInput::Pair, None));
        };
        let has_parts = match message.string("format")? {
            None | Some("auto") => None,
            Some("flat") => Some(false),
            Some("structured") => Some(true),
            Some(other) => {
                bail!("{}", message.invalid("format", format!("{other:?}"), "flat, structured or auto"))
            }
        };
        let mut options = MessageOptions { has_parts, ..MessageOptions::default() };
        let mut limit = None;
        let calls = config.object("processing_kwargs")?;
        if let Some(arguments) = calls.map(|calls| calls.object("chat_template")).transpose()?.flatten() {
            limit = token_limit(&arguments, "max_length")?;
            options.restores_suffix = arguments.flag_or("restore_suffix", true)?;
            for (key, value) in arguments.fields() {
                match key.as_str() {
                    "restore_suffix" | "max_length" | "padding" | "return_tensors" => {}
                    "truncation" if !is_off(value) => {}
                    // A template in place of the tokenizer's; the sides of a conversation that is continued.
                    "truncation" | "chat_template" | "continue_final_message" => {
                        let expected = "no such argument, since it is not supported";
                        bail!("{}", arguments.invalid(key, value, expected))
                    }
                    _ => {
                        options.variables.insert(key.clone(), value.clone());
                    }
                }
            }
        }
        Ok((PairInput::Messages(options), limit))
    }
}
