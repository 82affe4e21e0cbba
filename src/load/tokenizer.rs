//! The tokenizers of a model.

use std::path::Path;

use anyhow::{Result, bail};

use super::loaded::StaticQueries;
use super::options::ModelOptions;
use crate::error::UsageError;
use crate::model::modules::{Modules, QueryWeights};
use crate::model::static_embedding::StaticLayout;
use crate::text::{Tokenizer, TokenizerOptions};

/// Reads the weights of queries of a sparse encoder with `dimensions`, and their tokenizer.
pub(super) fn static_queries(
    options: &ModelOptions,
    module: &QueryWeights,
    dimensions: usize,
) -> Result<StaticQueries> {
    let weights = module.weights()?;
    if weights.len() != dimensions {
        bail!(
            "{} weights {} tokens, but the vocabulary of the model has {dimensions}; use the files of one model",
            module.folder.display(),
            weights.len()
        );
    }
    let own_limit = module.max_length.as_ref().map(|limit| limit.tokens);
    let limits = TokenizerOptions {
        max_length: options.max_length.or(own_limit).unwrap_or(usize::MAX),
        truncation_side: options.truncation_side.or(module.truncation_side).unwrap_or_default(),
        pair_truncation: options.pair_truncation,
        lowercase: false,
    };
    let tokenizer = Tokenizer::read(&module.tokenizer()?, &limits)?.without_special_tokens();
    Ok(StaticQueries { tokenizer, weights })
}

/// Reads the tokenizer, and checks that its limit leaves room for a text.
pub(super) fn read_tokenizer(
    file: &Path,
    options: &ModelOptions,
    limits: TokenizerOptions,
    modules: &Modules,
) -> Result<Tokenizer> {
    let mut tokenizer = match modules.static_embedding {
        Some(StaticLayout::SentenceTransformers) => Tokenizer::read_static(file, |own| match own {
            Some((max_length, side)) => TokenizerOptions {
                max_length: options.max_length.unwrap_or(max_length),
                truncation_side: options.truncation_side.unwrap_or(side),
                ..limits
            },
            None => limits,
        })?,
        // Its limit is in the config.
        Some(StaticLayout::Model2Vec) => Tokenizer::read_static(file, |_| limits)?,
        None => Tokenizer::read(file, &limits)?,
    };
    if modules.static_embedding == Some(StaticLayout::Model2Vec) {
        tokenizer.cut_characters();
    }
    if modules.no_special_tokens {
        tokenizer = tokenizer.without_special_tokens();
    }
    let (max_length, special_tokens) = (tokenizer.max_length(), tokenizer.num_special_tokens(false));
    if max_length <= special_tokens {
        bail!(UsageError(format!(
            "a limit of {max_length} tokens leaves no room for a text beside {special_tokens} special tokens; pass a larger \
             --max-length"
        )));
    }
    Ok(tokenizer)
}

/// Has the tokenizer keep the markers of a multi-vector model whole, and pad sequences if the encoder attends
/// to `padding`.
pub(super) fn add_markers_and_padding(
    tokenizer: &mut Tokenizer,
    modules: &Modules,
    padding: Option<u32>,
) -> Result<()> {
    let mut markers = modules.multi_vector.iter().flat_map(|multi_vector| &multi_vector.markers);
    markers.try_for_each(|marker| tokenizer.add_marker(marker))?;
    if let Some(default) = padding {
        tokenizer.pad_to_max_length(default);
    }
    Ok(())
}
