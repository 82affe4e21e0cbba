//! What the user says about vectors; what is left open, the model's files decide.

use anyhow::{Result, bail};

use super::embed::usual_batch_tokens;
use super::heads::normalized;
use super::{Console, Embedder, Loaded, OnLong, WrongUsage};
use crate::model::pipeline::Prompts;
use crate::nn::{Head, Pool, Pooling};
use crate::output::Dtype;
use crate::text::Chunking;

/// What the user says about vectors.
#[derive(Debug, Clone)]
pub struct Choices {
    /// Whether vectors are scaled to unit length.
    pub normalize: Option<bool>,
    /// How many of their first dimensions are kept.
    pub dimensions: Option<usize>,
    /// What stands before each text.
    pub prompt: Option<PromptChoice>,
    /// How they are stored.
    pub dtype: Dtype,
    /// What becomes of texts over the limit.
    pub on_long: OnLong,
    /// How texts are cut into chunks; none: a text is a row.
    pub chunking: Option<Chunking>,
    /// Tokens of all texts of a batch together; else as many as suit the device.
    pub batch_tokens: Option<usize>,
}

/// A prompt, as a user gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptChoice {
    /// Its text.
    Text(String),
    /// Its name in the model's files.
    Name(String),
}

impl Choices {
    /// Decides what is open.
    ///
    /// # Errors
    /// If the user wants what the model has not: wrong usage.
    pub fn embedder(&self, loaded: Loaded, console: &Console) -> Result<Embedder> {
        let prompt = self.prompt(&loaded.pipeline.prompts, console)?;
        let Loaded { pipeline, pooling, tokenizer, encoders, heads, dimensions, .. } = loaded;
        let kept = match pooling {
            // The model's own number is for the vectors of texts.
            Pooling::None => None,
            Pooling::Text(_) => pipeline.dimensions,
        };
        let (heads, dimensions) = self.finish(heads, dimensions, kept)?;
        let left_out = match pipeline.pooling {
            Some(module) if !module.include_prompt && !prompt.is_empty() => {
                match tokenizer.prompt_length(&prompt) {
                    Ok(length) => length,
                    Err(error) => bail!("the tokenizer fails on the prompt {prompt:?} ({error})"),
                }
            }
            _ => 0,
        };
        console.detail(format!(
            "pooling {pooling}, {dimensions} dimensions, {}, at most {} tokens a text",
            if normalized(&heads) { "normalised" } else { "not normalised" },
            tokenizer.max_length(),
        ));
        let Choices { dtype, on_long, chunking, batch_tokens, .. } = *self;
        if let Some(chunking) = chunking {
            check_chunking(chunking, &pooling, tokenizer.tokens_around(&prompt)?, tokenizer.max_length())?;
        }
        if on_long == OnLong::Mean && tokenizer.tokens_around(&prompt)? >= tokenizer.max_length() {
            bail!(WrongUsage(format!(
                "the prompt fills the limit of {} tokens, which leaves --on-long mean no room for a text; pass a shorter \
                 --prompt or a larger --max-length",
                tokenizer.max_length()
            )));
        }
        let batch_tokens = batch_tokens.unwrap_or_else(|| usual_batch_tokens(&encoders));
        Ok(Embedder {
            tokenizer,
            encoders,
            pooling,
            heads,
            dimensions,
            dtype,
            prompt,
            left_out,
            on_long,
            chunking,
            batch_tokens,
        })
    }

    /// The heads that run and the dimensions of what they give: those of the model, the cut to `kept` dimensions or
    /// to what the user wants, and scaling to unit length.
    fn finish(
        &self,
        mut heads: Vec<Head>,
        mut dimensions: usize,
        kept: Option<usize>,
    ) -> Result<(Vec<Head>, usize)> {
        if self.normalize == Some(false) && normalized(&heads) {
            heads.pop();
        }
        match (self.dimensions, kept) {
            (Some(n), _) if n > dimensions => bail!(WrongUsage(format!(
                "--dimensions {n}, but the model's vectors have {dimensions}; pass a smaller number"
            ))),
            (Some(n), _) => {
                let last = heads.len() - usize::from(normalized(&heads));
                heads.insert(last, Head::First(n));
                dimensions = n;
            }
            // sentence-transformers cuts last of all, and does not scale again what it has cut.
            (None, Some(n)) if n < dimensions => {
                heads.push(Head::First(n));
                dimensions = n;
            }
            (None, _) => {}
        }
        if self.normalize == Some(true) && !normalized(&heads) {
            heads.push(Head::Normalize);
        }
        Ok((heads, dimensions))
    }

    /// What stands before each text; nothing, if it is empty.
    fn prompt(&self, prompts: &Prompts, console: &Console) -> Result<String> {
        let name = match (&self.prompt, &prompts.default) {
            (Some(PromptChoice::Text(text)), _) => {
                console.detail(format!("prompt {text:?}"));
                return Ok(text.clone());
            }
            (Some(PromptChoice::Name(name)), _) | (None, Some(name)) => name,
            (None, None) => return Ok(String::new()),
        };
        let Some(text) = prompts.get(name) else {
            let known = match prompts.names() {
                none if none.is_empty() => "none".into(),
                names => names,
            };
            bail!(WrongUsage(format!(
                "--prompt-name {name}: the model's files have no such prompt; they have {known}; --prompt TEXT takes \
                 any"
            )))
        };
        console.detail(format!("prompt {name}: {text:?}"));
        Ok(text.into())
    }
}

/// Refuses chunks that the model cannot encode, or that leave no room for a text; `around` are the special tokens and the prompt.
fn check_chunking(chunking: Chunking, pooling: &Pooling, around: usize, limit: usize) -> Result<()> {
    let Chunking { tokens, late, .. } = chunking;
    if tokens > limit {
        bail!(WrongUsage(format!(
            "--chunk {tokens} exceeds the limit of {limit} tokens for a text; pass --chunk {limit} or less, or a larger \
             --max-length if the model has more positions"
        )));
    }
    if around >= tokens {
        bail!(WrongUsage(format!(
            "--chunk {tokens} leaves no room for a text, since the special tokens and the prompt have {around} tokens; pass \
             a larger --chunk"
        )));
    }
    if late && *pooling != Pooling::Text(vec![Pool::Mean]) {
        bail!(WrongUsage(format!(
            "--chunk-late is for mean pooling, but the pooling is {pooling}; leave the option out, or pass --pooling mean"
        )));
    }
    Ok(())
}
