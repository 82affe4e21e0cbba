//! Arguments that the configuration of a Transformer module has for `from_pretrained` of the config, the
//! model and the tokenizer, and for calls of the tokenizer. Each is obeyed, refused by its name, or without
//! effect on vectors.

use anyhow::Result;
use serde_json::{Map, Value};

use super::limits::truncation_side;
use super::{TokenLimit, token_limit};
use crate::model::config::Config;
use crate::text::TruncationSide;

/// Arguments of every `from_pretrained`: where and how its files are found.
const DOWNLOADS: &[&str] = &[
    "cache_dir",
    "code_revision",
    "force_download",
    "local_files_only",
    "proxies",
    "resume_download",
    "revision",
    "subfolder",
    "token",
    "trust_remote_code",
    "use_auth_token",
];

/// Arguments of `from_pretrained` of a model: how and in which precision it computes.
const MODELS: &[&str] = &[
    "add_pooling_layer",
    "attn_implementation",
    "device_map",
    "dtype",
    "low_cpu_mem_usage",
    "max_memory",
    "offload_buffers",
    "offload_folder",
    "offload_state_dict",
    "torch_dtype",
    "use_safetensors",
    "weights_only",
];

/// Arguments of `from_pretrained` of a tokenizer: its padding, which no token attends to, and its decoding.
const TOKENIZERS: &[&str] =
    &["clean_up_tokenization_spaces", "pad_to_multiple_of", "padding_side", "use_fast"];

/// Arguments of calls of the tokenizer.
const CALLS: &[&str] = &["logits_to_keep", "pad_to_multiple_of", "padding", "padding_side", "verbose"];

/// What the arguments change.
#[derive(Debug, Default)]
pub(super) struct Arguments {
    /// Fields of config.json.
    pub config: Map<String, Value>,
    /// The maximum length of a text that the tokenizer is made with.
    pub tokenizer_length: Option<TokenLimit>,
    /// The maximum length of a text in calls of the tokenizer, whatever its role.
    pub call_length: Option<TokenLimit>,
    /// The side at which longer texts are truncated.
    pub truncation_side: Option<TruncationSide>,
    /// Whether texts have no special tokens.
    pub no_special_tokens: bool,
}

impl Arguments {
    /// Reads the arguments of a Transformer module.
    pub(super) fn read(config: &Config) -> Result<Self> {
        let mut arguments = Arguments::default();
        if let Some(own) = of_either_name(config, "config_args", "config_kwargs")? {
            arguments.read_config(&own)?;
        }
        if let Some(own) = of_either_name(config, "model_args", "model_kwargs")? {
            refuse_others(&own, &[DOWNLOADS, MODELS])?;
        }
        if let Some(own) = of_either_name(config, "tokenizer_args", "processor_kwargs")? {
            arguments.read_tokenizer(&own)?;
        }
        if let Some(calls) = config.object("processing_kwargs")? {
            // Those for all modalities replace those for texts.
            for key in ["text", "common"] {
                if let Some(own) = calls.object(key)? {
                    arguments.read_calls(&own)?;
                }
            }
        }
        Ok(arguments)
    }

    /// Arguments of the config replace the fields of config.json.
    fn read_config(&mut self, arguments: &Config) -> Result<()> {
        for (key, value) in arguments.fields() {
            match value {
                _ if is_in(&[DOWNLOADS, MODELS], key) => {}
                Value::Array(_) | Value::Object(_) => return Err(unsupported(arguments, key, value)),
                _ => drop(self.config.insert(key.clone(), value.clone())),
            }
        }
        Ok(())
    }

    /// Arguments of the tokenizer replace the fields of tokenizer_config.json.
    fn read_tokenizer(&mut self, arguments: &Config) -> Result<()> {
        self.tokenizer_length = token_limit(arguments, "model_max_length")?;
        self.truncation_side = truncation_side(arguments)?;
        refuse_others(arguments, &[DOWNLOADS, TOKENIZERS, &["model_max_length", "truncation_side"]])
    }

    /// Arguments of each call of the tokenizer.
    fn read_calls(&mut self, arguments: &Config) -> Result<()> {
        self.call_length = token_limit(arguments, "max_length")?.or(self.call_length.take());
        self.no_special_tokens = !arguments.flag_or("add_special_tokens", !self.no_special_tokens)?;
        for (key, value) in arguments.fields() {
            let is_supported = match key.as_str() {
                "max_length" | "add_special_tokens" => true,
                "truncation" => !is_off(value),
                other => CALLS.contains(&other) || other.starts_with("return_"),
            };
            if !is_supported && !value.is_null() {
                return Err(unsupported(arguments, key, value));
            }
        }
        Ok(())
    }
}

/// The arguments under their name of older releases, else under the newer one.
fn of_either_name(config: &Config, older: &str, newer: &str) -> Result<Option<Config>> {
    match config.object(older)? {
        None => config.object(newer),
        older => Ok(older),
    }
}

/// Fails at the first argument that is not in these lists.
fn refuse_others(arguments: &Config, known: &[&[&str]]) -> Result<()> {
    match arguments.fields().iter().find(|(key, value)| !is_in(known, key) && !value.is_null()) {
        Some((key, value)) => Err(unsupported(arguments, key, value)),
        None => Ok(()),
    }
}

/// Whether the value of the argument `truncation` does not truncate.
pub(super) fn is_off(truncation: &Value) -> bool {
    *truncation == Value::Bool(false) || truncation.as_str() == Some("do_not_truncate")
}

fn is_in(lists: &[&[&str]], key: &str) -> bool {
    lists.iter().any(|list| list.contains(&key))
}

fn unsupported(arguments: &Config, key: &str, value: &Value) -> anyhow::Error {
    anyhow::anyhow!("{}", arguments.invalid(key, value, "no such argument, since it is not supported"))
}
