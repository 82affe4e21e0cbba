//! From a text to tokens: the prompt before it, and the check that every token has an embedding.

use anyhow::{Result, bail};

use super::options::PromptChoice;
use crate::engine::TokenizeError;
use crate::error::UsageError;
use crate::model::modules::{Prompts, Role};
use crate::named::Named;
use crate::nn::EncoderSpec;
use crate::sys::console::Console;
use crate::text::{TokenIds, Tokenizer};

/// The prompt before each text, which may be empty: the user's choice, else that of the role, else the
/// model's default prompt.
///
/// # Errors
/// A usage error if the model has no prompt of that name.
pub(super) fn resolve_prompt(
    choice: Option<&PromptChoice>,
    role: Option<Role>,
    prompts: &Prompts,
    console: &Console,
) -> Result<String> {
    let name = match (choice, role, &prompts.default) {
        (Some(PromptChoice::Text(text)), ..) => {
            console.detail(format!("prompt {text:?}"));
            return Ok(text.clone());
        }
        (None, Some(role), _) => {
            let (name, text) = prompts.of_role(role);
            console.detail(format!("role {}, prompt {name}: {text:?}", role.name()));
            return Ok(text.into());
        }
        (Some(PromptChoice::Name(name)), ..) | (None, None, Some(name)) => name,
        (None, None, None) => return Ok(String::new()),
    };
    let Some(text) = prompts.get(name) else {
        let known = prompts.names();
        bail!(UsageError(if known.is_empty() {
            format!("--prompt-name {name}: no such prompt, because the model has none; pass --prompt TEXT")
        } else {
            format!(
                "--prompt-name {name}: the model has no such prompt (prompts: {known}); choose one of these, or pass \
                 --prompt TEXT"
            )
        }))
    };
    console.detail(format!("prompt {name}: {text:?}"));
    Ok(text.into())
}

/// The tokens of a prompt, which are not pooled.
pub(super) fn prompt_length(tokenizer: &Tokenizer, prompt: &str) -> Result<usize> {
    if prompt.is_empty() {
        return Ok(0);
    }
    match tokenizer.prompt_length(prompt) {
        Ok(length) => Ok(length),
        Err(error) => bail!("cannot tokenize the prompt {prompt:?} ({error}); pass another --prompt"),
    }
}

/// Rejects tokens without an embedding.
pub(super) fn check_tokens(
    tokens: &TokenIds,
    tokenizer: &Tokenizer,
    spec: &EncoderSpec,
) -> Result<(), TokenizeError> {
    if let Some(id) = tokens.ids.iter().find(|id| **id as usize >= spec.vocab_size) {
        return Err(TokenizeError::Failed(format!(
            "has token {:?} with id {id}, but the model has only {} token embeddings; use the model's own tokenizer",
            tokenizer.token(*id).unwrap_or_default(),
            spec.vocab_size
        )));
    }
    let token_types = spec.token_types.unwrap_or(usize::MAX);
    if let Some(id) = tokens.token_type_ids.iter().find(|id| **id as usize >= token_types) {
        return Err(TokenizeError::Failed(format!(
            "has a token with token type {id}, but the model has only {token_types} token types; use the model's own \
             tokenizer"
        )));
    }
    // The mean over no tokens of a static model is zeros.
    if tokens.ids.is_empty() && !spec.is_static() {
        return Err(TokenizeError::NoTokens);
    }
    Ok(())
}
