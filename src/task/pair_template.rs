//! From a query and a text to tokens by the chat template of the tokenizer, as the Transformer module of
//! sentence-transformers does.

use anyhow::{Result, bail};

use crate::engine::TokenizeError;
use crate::load::Loaded;
use crate::model::modules::{MessageOptions, PairInput};
use crate::nn::HeadKind;
use crate::sys::console::Console;
use crate::text::{ChatTemplate, Message, TokenIds, Tokenizer};

/// Pairs that differ in their query or in their text: what the template makes of them must differ, too.
const PROBES: [[&str; 2]; 3] = [["alpha", "bravo"], ["charlie", "bravo"], ["alpha", "foxtrot"]];
/// Contents without a common token at their ends, which tell what the template has after the last one.
const FILLERS: [&str; 2] = ["0", "1 2 3 4"];

/// A chat template that renders a query and a text, with the prompt as the message of the system.
pub(super) struct PairTemplate {
    template: ChatTemplate,
    has_parts: bool,
    /// The tokens at the end of every text of the template, which truncated ones get back.
    suffix: Vec<u32>,
}

impl PairTemplate {
    /// The template by which the model reads pairs; `None` if it reads them as pairs. `prompt` may be empty.
    pub(super) fn of(loaded: &Loaded, prompt: &str, console: &Console) -> Result<Option<Self>> {
        let is_required = loaded.head_kind() == Some(HeadKind::CausalLm);
        let (options, is_asked_for) = match &loaded.modules.pair_input {
            PairInput::Pair => return Ok(None),
            PairInput::Messages(options) => (options.clone(), true),
            PairInput::Inferred => (MessageOptions::default(), false),
        };
        let is_required = is_required || is_asked_for;
        let template = match ChatTemplate::read(&loaded.origin.tokenizer, &options.variables) {
            Err(error) if !is_required => {
                console.note(format!("{error}; encoding query and text as a pair"));
                None
            }
            template => template?,
        };
        let Some(template) = template else {
            if is_required {
                bail!(
                    "{} has no chat template beside it (chat_template.jinja, or \"chat_template\" in tokenizer_config.json), which \
                     renders a query and a text for this model; add it, or choose another model",
                    loaded.origin.tokenizer.display()
                )
            }
            return Ok(None);
        };
        let has_parts = options.has_parts.unwrap_or(template.reads_parts());
        let mut pairs = PairTemplate { template, has_parts, suffix: Vec::new() };
        if let Some(why) = pairs.failure() {
            let file = pairs.template.file().display();
            if pairs.template.is_endless() {
                bail!("{file}: the chat template {why}; use another one");
            }
            if is_required {
                bail!(
                    "{file}: the chat template {why}: it is that of a chat model, not of a reranker; choose a reranker, or write a \
                     template that renders the messages of the roles query and document"
                )
            }
            console.note(format!("the chat template of {file} {why}; encoding query and text as a pair"));
            return Ok(None);
        }
        if options.restores_suffix {
            pairs.suffix = pairs.common_suffix(&loaded.tokenizer, prompt)?;
        }
        Ok(Some(pairs))
    }

    /// Why the template cannot render a query and a text; `None` if it can.
    fn failure(&self) -> Option<String> {
        let render =
            |[query, text]: [&str; 2]| self.template.render(&messages("", query, text), self.has_parts);
        match PROBES.map(render) {
            [Ok(base), Ok(query), Ok(text)] => {
                let dropped =
                    [("query", query), ("document", text)].into_iter().find(|(_, other)| *other == base);
                dropped.map(|(role, _)| format!("leaves out the message of the role {role}"))
            }
            [Err(error), ..] | [_, Err(error), _] | [.., Err(error)] => Some(format!("fails ({error})")),
        }
    }

    /// The longest common end of the tokens of two conversations with other contents; empty if they do not
    /// differ.
    fn common_suffix(&self, tokenizer: &Tokenizer, prompt: &str) -> Result<Vec<u32>> {
        let ids = |filler: &str| match self.render(prompt, filler, filler) {
            Ok(text) => tokenizer.rendered_ids(&text),
            // A template may refuse such contents.
            Err(_) => Ok(Vec::new()),
        };
        let [first, second] = [ids(FILLERS[0])?, ids(FILLERS[1])?];
        let pairs = first.iter().rev().zip(second.iter().rev());
        let common = pairs.take_while(|(first, second)| first == second).count();
        let is_whole = common == first.len().min(second.len());
        Ok(if is_whole { Vec::new() } else { first[first.len() - common..].to_vec() })
    }

    /// The tokens of a query and a text, after the prompt if there is one. One that fills the limit ends in
    /// the suffix.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        prompt: &str,
        query: &str,
        text: &str,
    ) -> Result<TokenIds, TokenizeError> {
        let rendered = self.render(prompt, query, text).map_err(|error| {
            let file = self.template.file().display();
            TokenizeError::Failed(format!(
                "cannot be rendered by the chat template of {file} ({error}); correct the text"
            ))
        })?;
        let mut tokens = tokenizer.encode_rendered(&rendered).map_err(super::sequences::tokenizer_failed)?;
        if tokens.ids.len() >= tokenizer.max_length() {
            let kept = self.suffix.len().min(tokens.ids.len());
            let end = tokens.ids.len() - kept;
            tokens.ids[end..].copy_from_slice(&self.suffix[self.suffix.len() - kept..]);
        }
        Ok(tokens)
    }

    fn render(&self, prompt: &str, query: &str, text: &str) -> Result<String, String> {
        self.template.render(&messages(prompt, query, text), self.has_parts)
    }
}

/// The messages of a query and a text, after the prompt if there is one.
fn messages<'a>(prompt: &'a str, query: &'a str, text: &'a str) -> Vec<Message<'a>> {
    let all = [("system", prompt), ("query", query), ("document", text)];
    let all = all.into_iter().filter(|(role, content)| *role != "system" || !content.is_empty());
    all.map(|(role, content)| Message { role, content }).collect()
}
