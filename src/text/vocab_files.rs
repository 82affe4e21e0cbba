//! Builds a tokenizer from a `vocab.txt`, or from a `vocab.json` with `merges.txt`, as older releases of transformers saved them.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, bail};
use serde::Deserialize;
use tokenizers::models::bpe::{self, BPE, BpeBuilder};
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::token_model::{LibraryTokenizer, TokenModel};
use super::tokenizer_class::{
    CLASSES, CLIP, CLIP_WORD_END, ModelType, TokenizerClass, add_special_tokens, cannot_build,
    clip_normalizer, clip_pre_tokenizer, missing_token,
};
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};
use super::word_piece::{Vocabulary, WordPiece};
use crate::sys::regular_file;

/// How to get a `tokenizer.json` from a tokenizer in another form: the last part of an error message.
pub(super) const CONVERT: &str = "convert it to a tokenizer.json with transformers \
    (AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT))";

/// The classes of model types whose vocabulary file has the name of BERT's or RoBERTa's, but not its class. They count if no file has
/// a `tokenizer_class`.
const CLASS_OF_MODEL_TYPE: &[(&str, &str)] = &[
    ("clip", CLIP),
    ("mpnet", "MPNetTokenizer"),
    ("gpt2", "GPT2Tokenizer"),
    ("roformer", "RoFormerTokenizer"),
    ("deberta", "DebertaTokenizer"),
];

/// Whether a file with this name is a vocabulary.
pub(super) fn is_vocab_file(name: &str) -> bool {
    CLASSES.iter().any(|class| class.model.is_vocab_file(name))
}

/// Reads a vocabulary; `config` is what the files next to it say.
///
/// # Errors
/// If a file is missing or malformed, or if its tokenizer class is not supported.
pub(super) fn read(path: &Path, config: &TokenizerConfig) -> Result<LibraryTokenizer> {
    let class = tokenizer_class(path, config)?;
    let special_tokens = config.special_tokens(class.special_tokens);
    let mut tokenizer = match class.model {
        ModelType::WordPiece => read_word_piece(path, class, config, &special_tokens)?,
        _ if class.names[0] == CLIP => clip(path, read_bpe(path)?, special_tokens.get("unk_token"))?,
        _ => byte_level(path, read_bpe(path)?, config)?,
    };
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    add_special_tokens(path, class, config, special_tokens, &mut tokenizer)?;
    Ok(tokenizer)
}

/// The class that `tokenizer_class` or the model type names, else the default for a vocabulary file with this name.
fn tokenizer_class(path: &Path, config: &TokenizerConfig) -> Result<&'static TokenizerClass> {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let by_model_type = |model_type: &String| CLASS_OF_MODEL_TYPE.iter().find(|(key, _)| key == model_type);
    let by_model_type = config.model_type.as_ref().and_then(by_model_type).map(|(_, class)| *class);
    let name = config.class.as_deref().or(by_model_type);
    let name = name.map(|name| name.strip_suffix("Fast").unwrap_or(name));
    let mut candidates = CLASSES.iter().filter(|class| class.model.is_vocab_file(&file_name));
    let class = match name {
        Some(name) => candidates.find(|class| class.names.contains(&name)),
        None => candidates.next(),
    };
    match class {
        Some(class) => Ok(class),
        None => bail!("cannot build a {} from {}; {CONVERT}", name.unwrap_or("tokenizer"), path.display()),
    }
}

/// Reads a `vocab.txt`: one token per line, whose id is the number of the line.
fn read_word_piece(
    path: &Path,
    class: &TokenizerClass,
    config: &TokenizerConfig,
    special_tokens: &SpecialTokens,
) -> Result<LibraryTokenizer> {
    let text = read_text(path)?;
    if text.trim().is_empty() {
        bail!("{} is empty; download the model again", path.display());
    }
    let vocab = Vocabulary::from_lines(&text);
    let unk_token = special_tokens.get("unk_token");
    let Some(unk_token) = unk_token.filter(|token| vocab.id(token).is_some()) else {
        return Err(missing_token(path, class, "unk_token", unk_token));
    };
    let model = WordPiece::bert(vocab, unk_token.clone());
    let mut tokenizer = LibraryTokenizer::new(TokenModel::WordPiece(model));
    tokenizer.with_normalizer(Some(bert_normalizer(config)?)).map_err(|error| cannot_build(path, error))?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    Ok(tokenizer)
}

/// The normalizer of `BertTokenizer`.
///
/// # Errors
/// If one of its settings has the wrong type.
pub(super) fn bert_normalizer(config: &TokenizerConfig) -> Result<BertNormalizer> {
    Ok(BertNormalizer::new(
        true,
        config.bool("tokenize_chinese_chars", true)?,
        config.optional_bool("strip_accents")?,
        config.bool("do_lower_case", true)?,
    ))
}

/// The tokenizer of CLIP, a BPE whose last token of a word has an end.
fn clip(path: &Path, model: BpeBuilder, unk_token: Option<&String>) -> Result<LibraryTokenizer> {
    let model = match unk_token {
        Some(token) => model.unk_token(token.clone()),
        None => model,
    };
    let model = model.end_of_word_suffix(CLIP_WORD_END.into()).build();
    let model = model.map_err(|error| cannot_build(path, error))?;
    let mut tokenizer = LibraryTokenizer::new(TokenModel::Bpe(model));
    let normalizer = NormalizerWrapper::deserialize(clip_normalizer())?;
    tokenizer.with_normalizer(Some(normalizer)).map_err(|error| cannot_build(path, error))?;
    tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::deserialize(clip_pre_tokenizer())?));
    Ok(tokenizer)
}

/// The tokenizer of the other classes, a byte-level BPE.
fn byte_level(path: &Path, model: BpeBuilder, config: &TokenizerConfig) -> Result<LibraryTokenizer> {
    let model = model.build().map_err(|error| cannot_build(path, error))?;
    let mut tokenizer = LibraryTokenizer::new(TokenModel::Bpe(model));
    let add_prefix_space = config.bool("add_prefix_space", false)?;
    tokenizer.with_pre_tokenizer(Some(ByteLevel::new(add_prefix_space, false, true)));
    Ok(tokenizer)
}

/// Reads a `vocab.json` with its `merges.txt`: a BPE over bytes.
fn read_bpe(path: &Path) -> Result<BpeBuilder> {
    let shown = path.display();
    let vocab: bpe::Vocab = match serde_json::from_str::<HashMap<_, _>>(&read_text(path)?) {
        Ok(vocab) => vocab.into_iter().collect(),
        Err(error) => bail!(
            "{shown} does not map tokens to ids (line {}, column {}); fix the file",
            error.line(),
            error.column()
        ),
    };
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let merges_path = path.with_file_name(file_name.replace("vocab.json", "merges.txt"));
    let mut merges = Vec::new();
    for (number, line) in read_text(&merges_path)?.lines().enumerate() {
        if line.starts_with("#version") {
            continue;
        }
        // The library would not name the line, and panics if the concatenation is longer than every token.
        let is_known = |(a, b): &(&str, &str)| {
            [*a, *b, &format!("{a}{b}")].iter().all(|token| vocab.contains_key(*token))
        };
        match line.split_once(' ').filter(is_known) {
            Some((a, b)) => merges.push((a.to_owned(), b.to_owned())),
            None => bail!(
                "{}, line {}: expected two tokens of {shown} whose concatenation is in it, too; use the files of one \
                 tokenizer",
                merges_path.display(),
                number + 1
            ),
        }
    }
    Ok(BPE::builder().vocab_and_merges(vocab, merges))
}

fn read_text(path: &Path) -> Result<String> {
    let shown = path.display();
    match regular_file::read(path, regular_file::MAX_TOKENIZER_BYTES).map(String::from_utf8) {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(_)) => bail!("{shown} is not UTF-8; download the model again"),
        Err(error) => bail!("cannot read {shown} ({error}); download the model again"),
    }
}
