//! From options and a loaded model to an [`Embedder`].

use anyhow::{Result, bail};

use super::late_interaction::max_length;
use super::{Embedder, Finishing, LateInteraction};
use crate::engine::RowOptions;
use crate::error::UsageError;
use crate::load::{Loaded, Steps};
use crate::model::modules::Role;
use crate::model::static_embedding::StaticLayout;
use crate::nn::{EncoderSpec, Pool, Pooling};
use crate::sys::console::Console;
use crate::task::options::VectorOptions;
use crate::task::reading::Readings;
use crate::task::text_model::TextModel;
use crate::task::tokens::resolve_prompt;
use crate::text::{Chunking, OnLong, Tokenizer};

impl Embedder {
    /// Resolves the options against the model.
    ///
    /// # Errors
    /// If an option contradicts the model: a usage error.
    pub fn new(loaded: Loaded, options: &VectorOptions, console: &Console) -> Result<Self> {
        let late_interaction = match &loaded.modules.multi_vector {
            Some(config) if loaded.steps.pooling == Pooling::MultiVector => {
                Some(LateInteraction::new(&loaded, config, options)?)
            }
            _ => None,
        };
        if options.token_pooling.is_some() && late_interaction.is_none() {
            bail!(UsageError(
                "--token-pooling needs a multi-vector model like ColBERT; remove it, or choose another model"
                    .into()
            ));
        }
        let role = late_interaction.as_ref().map(LateInteraction::role).or(options.role);
        let prompt = resolve_prompt(options.prompt.as_ref(), role, &loaded.modules.prompts, console)?;
        let similarity = match &loaded.modules.multi_vector {
            Some(config) if late_interaction.is_some() => config.similarity(),
            // That of a sparse encoder is for its sparse vectors.
            _ => loaded.modules.similarity.filter(|_| loaded.modules.splade.is_none()).unwrap_or_default(),
        };
        let role_lengths = loaded.role_lengths().filter(|_| late_interaction.is_none());
        let Loaded { modules, mut tokenizer, encoders, steps, .. } = loaded;
        let Steps { token_modules, pooling, mut post_pooling, dimensions, .. } = steps;
        let truncate_dim = match pooling {
            Pooling::Text(_) => modules.truncate_dim,
            // It does not apply to vectors of tokens.
            _ => None,
        };
        let finishing = Finishing::new(&mut post_pooling, dimensions, truncate_dim, options);
        finishing
            .check(options.dimensions)
            .map_err(|error| UsageError(format!("--dimensions {}", error.reason)))?;
        let (dimensions, is_normalized) =
            (finishing.dimensions(&RowOptions::default()), finishing.is_normalized(&RowOptions::default()));
        let excludes_prompt = modules.pooling.is_some_and(|module| !module.include_prompt);
        let lengths = late_interaction.as_ref().map(LateInteraction::max_lengths).or(role_lengths);
        let readings =
            Readings::new(&mut tokenizer, role, prompt, modules.prompts, lengths, excludes_prompt)?;
        console.detail(format!(
            "pooling {pooling}, {dimensions} dimensions, {}, at most {} tokens per text",
            if is_normalized { "normalized" } else { "not normalized" },
            tokenizer.max_length(),
        ));
        let VectorOptions { dtype, on_long, chunking, .. } = *options;
        if let Some(chunking) = chunking {
            check_has_chunks(encoders[0].spec(), chunking.late)?;
        }
        let unknown_token = match modules.static_embedding {
            Some(StaticLayout::Model2Vec) => tokenizer.model_unknown_token_id(),
            Some(StaticLayout::SentenceTransformers) | None => None,
        };
        check_room(options, &tokenizer, &pooling, &readings.prompt)?;
        Ok(Embedder {
            model: TextModel { tokenizer, encoders, on_long },
            pooling,
            token_modules,
            post_pooling,
            finishing,
            dimensions,
            dtype,
            readings,
            chunking,
            similarity,
            late_interaction,
            unknown_token,
        })
    }

    /// The maximum tokens of a document of a model, and so of a chunk.
    ///
    /// # Errors
    /// If the limit leaves no room for a text: a usage error.
    pub fn document_limit(loaded: &Loaded) -> Result<usize> {
        match &loaded.modules.multi_vector {
            Some(config) if loaded.steps.pooling == Pooling::MultiVector => {
                max_length(loaded, config, Role::Document)
            }
            _ => {
                let lengths = loaded.role_lengths();
                Ok(lengths.map_or(loaded.max_length.tokens, |lengths| lengths[Role::Document as usize]))
            }
        }
    }
}

/// Checks that special tokens and prompt leave room for the text.
fn check_room(options: &VectorOptions, tokenizer: &Tokenizer, pooling: &Pooling, prompt: &str) -> Result<()> {
    let max_length = tokenizer.max_length();
    if let Some(chunking) = options.chunking {
        check_chunking(chunking, pooling, tokenizer.num_prompt_and_special_tokens(prompt)?, max_length)?;
    }
    if options.on_long == OnLong::Mean && tokenizer.num_prompt_and_special_tokens(prompt)? >= max_length {
        bail!(UsageError(format!(
            "the prompt fills the limit of {max_length} tokens and leaves no room for a text with --on-long mean; pass a \
             shorter --prompt or a larger --max-length"
        )));
    }
    Ok(())
}

/// Checks that the encoder may encode chunks, and with `late` chunks of one sequence.
fn check_has_chunks(spec: &EncoderSpec, late: bool) -> Result<()> {
    if spec.padding.is_some() {
        bail!(UsageError(
            "--chunk: the model pads every text to its limit and attends to the padding; pass --on-long mean instead".into()
        ))
    }
    if late && spec.is_static() {
        bail!(UsageError(
            "--chunk-late: static embeddings do not depend on the rest of a text; leave the option out"
                .into()
        ))
    }
    Ok(())
}

/// Checks the size of chunks; `overhead` is the number of special tokens and prompt tokens.
fn check_chunking(chunking: Chunking, pooling: &Pooling, overhead: usize, max_length: usize) -> Result<()> {
    let Chunking { tokens, late, .. } = chunking;
    if tokens > max_length {
        bail!(UsageError(format!(
            "--chunk {tokens} exceeds the limit of {max_length} tokens for a text; pass --chunk {max_length} or less, or a \
             larger --max-length if the model has more positions"
        )));
    }
    if overhead >= tokens {
        bail!(UsageError(format!(
            "--chunk {tokens} leaves no room for a text beside {overhead} special and prompt tokens; pass a larger --chunk"
        )));
    }
    if late && *pooling != Pooling::Text(vec![Pool::Mean]) {
        bail!(UsageError(format!(
            "--chunk-late needs mean pooling, found {pooling}; leave the option out, or pass --pooling mean"
        )));
    }
    Ok(())
}
