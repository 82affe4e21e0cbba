//! How texts are read: what they are, with the prompt and the limit that follow from it.

use std::borrow::Cow;
use std::sync::OnceLock;

use anyhow::{Result, anyhow};

use super::tokens::prompt_length;
use crate::engine::{TaskInput, TokenizeError};
use crate::error::UsageError;
use crate::model::modules::Prompts;
use crate::named::Named;
use crate::text::{OnLong, Role, Tokenizer};

/// How a text is read.
pub(super) struct Reading<'a> {
    /// What the text is, if anything depends on it.
    pub role: Option<Role>,
    /// The prompt before it.
    pub prompt: &'a str,
    /// Tokens of the prompt, if they are not pooled.
    pub prompt_tokens: usize,
    /// The tokenizer, with the limit of such texts.
    pub tokenizer: Cow<'a, Tokenizer>,
    /// What becomes of it over the limit.
    pub on_long: OnLong,
}

/// How the texts of a task are read, and queries and documents where a caller says what a text is. By default
/// there is no prompt.
#[derive(Default)]
pub struct Readings {
    /// What the texts are, if anything depends on it.
    pub role: Option<Role>,
    /// The prompt before each text.
    pub prompt: String,
    /// Tokens at the start of each sequence that are not pooled: those of the prompt, if the model excludes
    /// them.
    pub prompt_tokens: usize,
    /// Whether the tokens of a prompt are not pooled.
    pub excludes_prompt: bool,
    /// The prompts of the model.
    prompts: Prompts,
    /// The maximum tokens of a query and of a document, in the order of [`Role`], if the model has its own
    /// for one of them.
    lengths: Option<[usize; 2]>,
    /// How queries and documents are read, once there was one; or why they cannot be.
    of_role: [OnceLock<Result<OfRole, String>>; 2],
}

/// What follows from a role.
struct OfRole {
    prompt: String,
    prompt_tokens: usize,
    tokenizer: Tokenizer,
}

impl Readings {
    /// The texts of a task have `role` and `prompt`; `tokenizer` gets their limit.
    ///
    /// # Errors
    /// If the prompt cannot be tokenized, or the limit leaves no room for a text: a usage error.
    pub(super) fn new(
        tokenizer: &mut Tokenizer,
        role: Option<Role>,
        prompt: String,
        prompts: Prompts,
        lengths: Option<[usize; 2]>,
        excludes_prompt: bool,
    ) -> Result<Self> {
        if let (Some(lengths), Some(role)) = (lengths, role) {
            set_length(tokenizer, lengths, role)?;
        }
        let prompt_tokens = if excludes_prompt { prompt_length(tokenizer, &prompt)? } else { 0 };
        let of_role = Default::default();
        Ok(Readings { role, prompt, prompt_tokens, excludes_prompt, prompts, lengths, of_role })
    }

    /// How a text is read, which is tokenized by `tokenizer` and treated by `on_long` unless something else
    /// follows from its choices.
    pub(super) fn of<'a>(
        &'a self,
        input: &TaskInput<'a>,
        tokenizer: &'a Tokenizer,
        on_long: OnLong,
    ) -> Result<Reading<'a>, TokenizeError> {
        let on_long = input.on_long.unwrap_or(on_long);
        let Readings { role, prompt, prompt_tokens, .. } = self;
        let mut reading = Reading {
            role: *role,
            prompt,
            prompt_tokens: *prompt_tokens,
            tokenizer: Cow::Borrowed(tokenizer),
            on_long,
        };
        if let Some(role) = input.role {
            let of_role = self.of_role[role as usize].get_or_init(|| self.read_as(role, tokenizer));
            let of_role = of_role.as_ref().map_err(|reason| TokenizeError::Failed(reason.clone()))?;
            reading.role = Some(role);
            (reading.prompt, reading.prompt_tokens) = (&of_role.prompt, of_role.prompt_tokens);
            reading.tokenizer = Cow::Borrowed(&of_role.tokenizer);
        }
        if let Some(prompt) = input.prompt {
            let length = if self.excludes_prompt { prompt_length(&reading.tokenizer, prompt) } else { Ok(0) };
            reading.prompt_tokens = length.map_err(|error| TokenizeError::Failed(error.to_string()))?;
            reading.prompt = prompt;
        }
        if let Cow::Borrowed(tokenizer) = reading.tokenizer {
            reading.tokenizer = tokenizer.with_truncation_side(input.truncation_side);
        }
        Ok(reading)
    }

    /// What follows from a role.
    fn read_as(&self, role: Role, tokenizer: &Tokenizer) -> Result<OfRole, String> {
        let prompt = self.prompts.of_role(role).1.to_owned();
        let mut tokenizer = tokenizer.clone();
        let length = match self.lengths {
            Some(lengths) => set_length(&mut tokenizer, lengths, role),
            None => Ok(()),
        };
        length.map_err(|error| format!("cannot be read ({error})"))?;
        let prompt_tokens = match self.excludes_prompt {
            true => {
                prompt_length(&tokenizer, &prompt).map_err(|error| format!("cannot be read ({error})"))?
            }
            false => 0,
        };
        Ok(OfRole { prompt, prompt_tokens, tokenizer })
    }
}

/// Sets the limit of the tokenizer for texts of a role; `lengths` are those of a query and of a document, in
/// the order of [`Role`].
fn set_length(tokenizer: &mut Tokenizer, lengths: [usize; 2], role: Role) -> Result<()> {
    let max_length = lengths[role as usize];
    let special_tokens = tokenizer.num_special_tokens(false);
    if max_length <= special_tokens {
        return Err(anyhow!(UsageError(format!(
            "a {} of {max_length} tokens leaves no room for a text beside {special_tokens} special tokens; pass a larger \
             --max-length",
            role.name()
        ))));
    }
    tokenizer.set_max_length(max_length);
    Ok(())
}
