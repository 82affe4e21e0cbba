//! Builds a tokenizer from a `vocab.txt`, or from a `vocab.json` with `merges.txt`, as older releases of
//! transformers saved them.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde_json::{Value, json};
use tokenizers::models::bpe::{self, BPE};
use tokenizers::models::wordlevel::WordLevel;

use super::bpe_parts::{CLIP, Parts, QWEN2, bpe_parts};
use super::token_model::TokenModel;
use super::tokenizer_class::{
    CLASSES, ClassTokenizer, ESM, ModelType, TokenizerClass, add_special_tokens, cannot_build, class_name,
    missing_token,
};
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};
use super::word_piece::{Vocabulary, WordPiece};
use crate::sys::regular_file;

/// How to get a `tokenizer.json` from a tokenizer in another form: the last part of an error message.
pub(super) const CONVERT: &str = "convert it to a tokenizer.json with transformers \
    (AutoTokenizer.from_pretrained(DIR).save_pretrained(OUT))";

/// The classes of model types whose vocabulary file has the name of BERT's or RoBERTa's, but not its class.
/// They count if no file has a `tokenizer_class`.
const CLASS_OF_MODEL_TYPE: &[(&str, &str)] = &[
    ("clip", CLIP),
    ("mpnet", "MPNetTokenizer"),
    ("gpt2", "GPT2Tokenizer"),
    ("qwen2", QWEN2),
    ("qwen3", QWEN2),
    ("roformer", "RoFormerTokenizer"),
    ("deberta", "DebertaTokenizer"),
    ("esm", ESM),
];

/// Whether a file with this name is a vocabulary.
pub(super) fn is_vocab_file(name: &str) -> bool {
    CLASSES.iter().any(|class| class.model.is_vocab_file(name))
}

/// Reads a vocabulary; `config` is what the files next to it say.
pub(super) fn read(path: &Path, config: &TokenizerConfig) -> Result<ClassTokenizer> {
    let class = tokenizer_class(path, config)?;
    let special_tokens = config.special_tokens(class.special_tokens);
    let unk_token = special_tokens.get("unk_token").cloned();
    let parts = match class.model {
        ModelType::WordPiece => {
            let (text, unk_token) = read_vocab_txt(path, class, &special_tokens)?;
            word_piece_parts(Vocabulary::from_lines(&text), unk_token, config)?
        }
        ModelType::WordLevel => {
            let (text, unk_token) = read_vocab_txt(path, class, &special_tokens)?;
            word_level_parts(path, &text, unk_token)?
        }
        _ => bpe_parts(class.names[0], read_bpe(path)?, &special_tokens, config)?,
    };
    let mut tokenizer = parts.into_tokenizer().map_err(|error| cannot_build(path, error))?;
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    add_special_tokens(path, class, config, special_tokens, &mut tokenizer)?;
    Ok(ClassTokenizer { tokenizer, unk_token })
}

/// The class that `tokenizer_class` or the model type names, else the default for a vocabulary file with this
/// name.
fn tokenizer_class(path: &Path, config: &TokenizerConfig) -> Result<&'static TokenizerClass> {
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    let by_model_type = |model_type: &String| CLASS_OF_MODEL_TYPE.iter().find(|(key, _)| key == model_type);
    let by_model_type = config.model_type.as_ref().and_then(by_model_type).map(|(_, class)| *class);
    let name = class_name(config, by_model_type);
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

/// The text of a `vocab.txt`, one token per line, whose id is the number of the line; and the token for what
/// is not in it.
fn read_vocab_txt(
    path: &Path,
    class: &TokenizerClass,
    special_tokens: &SpecialTokens,
) -> Result<(String, String)> {
    let text = read_text(path)?;
    if text.trim().is_empty() {
        bail!("{} is empty; download the model again", path.display());
    }
    let unk_token = special_tokens.get("unk_token");
    let Some(unk_token) = unk_token.filter(|token| text.lines().any(|line| line.trim() == **token)) else {
        return Err(missing_token(path, class, "unk_token", unk_token));
    };
    let unk_token = unk_token.clone();
    Ok((text, unk_token))
}

/// The parts of `EsmTokenizer`: a text is cut into the longest tokens of the vocabulary from left to right,
/// and what is between them at white space into words, which are unknown.
fn word_level_parts(path: &Path, text: &str, unk_token: String) -> Result<Parts> {
    let ids = text.lines().map(|line| line.trim().to_owned()).zip(0..).collect();
    let mut tokens: Vec<&str> = text.lines().map(str::trim).filter(|token| !token.is_empty()).collect();
    // The first alternative that matches is taken.
    tokens.sort_by_key(|token| std::cmp::Reverse(token.len()));
    let alternatives: Vec<String> = tokens.iter().map(|token| regex::escape(token)).collect();
    let split = json!({
        "type": "Split",
        "pattern": {"Regex": alternatives.join("|")},
        "behavior": "Isolated",
        "invert": false,
    });
    let model = WordLevel::builder().vocab(ids).unk_token(unk_token).build();
    Ok(Parts {
        model: TokenModel::WordLevel(model.map_err(|error| cannot_build(path, error))?),
        normalizer: Value::Null,
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": [split, {"type": "WhitespaceSplit"}]}),
        decoder: json!({"type": "Fuse"}),
    })
}

/// The parts of `BertTokenizer` and `MPNetTokenizer`.
pub(super) fn word_piece_parts(
    vocab: Vocabulary,
    unk_token: String,
    config: &TokenizerConfig,
) -> Result<Parts> {
    let normalizer = json!({
        "type": "BertNormalizer",
        "clean_text": true,
        "handle_chinese_chars": config.bool("tokenize_chinese_chars", true)?,
        "strip_accents": config.optional_bool("strip_accents")?,
        "lowercase": config.bool("do_lower_case", true)?,
    });
    Ok(Parts {
        model: TokenModel::WordPiece(WordPiece::bert(vocab, unk_token)),
        normalizer,
        pre_tokenizer: json!({"type": "BertPreTokenizer"}),
        decoder: json!({"type": "WordPiece", "prefix": "##", "cleanup": true}),
    })
}

/// Reads a `vocab.json` with its `merges.txt`: a BPE over bytes.
fn read_bpe(path: &Path) -> Result<BPE> {
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
    BPE::builder().vocab_and_merges(vocab, merges).build().map_err(|error| cannot_build(path, error))
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = regular_file::read_model_file(path, regular_file::MAX_TOKENIZER_BYTES)?;
    String::from_utf8(bytes).map_err(|_| anyhow!("{} is not UTF-8; download the model again", path.display()))
}
