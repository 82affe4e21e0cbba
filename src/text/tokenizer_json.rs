//! Builds a tokenizer from a `tokenizer.json` and the files next to it, as `AutoTokenizer` of transformers 5 does.
//!
//! Most tokenizer classes take only the vocabulary and merges from the file. The normalizer, the pre-tokenizer and the special tokens
//! are those of the class, with the settings of `tokenizer_config.json`: see [`from_class`]. Other classes take the whole file: see
//! [`add_special_tokens`]. In both cases the special tokens and added tokens of the files next to it are added.

use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::token_model::{LibraryTokenizer, TokenModel};
use super::tokenizer_class::{
    self, CLIP, CLIP_WORD_END, ModelType, Template, TokenizerClass, clip_normalizer, clip_pre_tokenizer,
    post_processor,
};
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};
use super::vocab_files::bert_normalizer;
use super::word_piece::WordPiece;

/// The class that takes a `tokenizer.json` as it is.
const BACKEND_CLASS: &str = "TokenizersBackend";

/// The class of each model type, if no file has a `tokenizer_class`.
const CLASS_OF_MODEL_TYPE: &[(&str, &str)] = &[
    ("albert", "AlbertTokenizer"),
    ("bert", "BertTokenizer"),
    ("camembert", "CamembertTokenizer"),
    ("clip", CLIP),
    ("data2vec-text", "RobertaTokenizer"),
    ("deberta-v2", "DebertaV2Tokenizer"),
    ("distilbert", "BertTokenizer"),
    ("electra", "BertTokenizer"),
    ("ernie", "BertTokenizer"),
    ("gpt2", "GPT2Tokenizer"),
    ("gte", "XLMRobertaTokenizer"),
    ("jina_embeddings_v3", "XLMRobertaTokenizer"),
    ("megatron-bert", "BertTokenizer"),
    ("modernbert", BACKEND_CLASS),
    ("mpnet", "MPNetTokenizer"),
    ("mt5", "T5Tokenizer"),
    ("nomic_bert", "BertTokenizer"),
    ("rembert", "RemBertTokenizer"),
    ("roberta", "RobertaTokenizer"),
    ("roberta-prelayernorm", "RobertaTokenizer"),
    ("roformer", "RoFormerTokenizer"),
    ("t5", "T5Tokenizer"),
    ("xlm-roberta", "XLMRobertaTokenizer"),
    ("xlm-roberta-xl", BACKEND_CLASS),
];

/// The parts of a `tokenizer.json` that a class uses, with a model of its type.
#[derive(Deserialize)]
struct TokenizerJson<M> {
    model: M,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Option<PostProcessorWrapper>,
    #[serde(default)]
    added_tokens: Vec<Value>,
}

/// The vocabulary of a Unigram model: pieces with their log probabilities.
#[derive(Deserialize)]
struct UnigramVocab {
    /// A model of another type does not parse.
    #[serde(rename = "type")]
    _type: Option<UnigramType>,
    vocab: Vec<(String, f64)>,
}

/// The only `type` of a [`UnigramVocab`].
#[derive(Deserialize)]
enum UnigramType {
    Unigram,
}

/// Builds the tokenizer of the class that the files name from a `tokenizer.json`. Returns `None` if the whole file is to be used, or if
/// it does not parse: reading it as a whole then gives the error with its line.
///
/// # Errors
/// If a file next to it is malformed, or if its special tokens or settings do not fit the class.
pub(super) fn from_class(
    path: &Path,
    bytes: &[u8],
    config: &TokenizerConfig,
) -> Result<Option<LibraryTokenizer>> {
    let Some(class) = tokenizer_class(config) else { return Ok(None) };
    match class.model {
        ModelType::WordPiece => build(path, class, config, bytes, word_piece_parts),
        ModelType::Bpe if class.names[0] == CLIP => build(path, class, config, bytes, clip_parts),
        ModelType::Bpe => build(path, class, config, bytes, bpe_parts),
        ModelType::Unigram => {
            build(path, class, config, bytes, |model, normalizer, special_tokens, config| {
                unigram_parts(path, class.names[0], model, &normalizer, special_tokens, config)
            })
        }
    }
}

/// The class that the files name, as `AutoTokenizer` chooses it. Returns `None` for a class that takes the whole file.
fn tokenizer_class(config: &TokenizerConfig) -> Option<&'static TokenizerClass> {
    let by_model_type =
        CLASS_OF_MODEL_TYPE.iter().find(|(model_type, _)| config.model_type.as_deref() == Some(model_type));
    let by_model_type = by_model_type.map(|(_, class)| *class);
    let name = config.class.as_deref().map(|name| name.strip_suffix("Fast").unwrap_or(name));
    match name {
        Some(_) if by_model_type == Some(BACKEND_CLASS) => None,
        Some(name) => TokenizerClass::find(name),
        None => TokenizerClass::find(by_model_type?),
    }
}

/// The model, the normalizer and the pre-tokenizer (as in a `tokenizer.json`) of a tokenizer.
type Parts = (TokenModel, Option<NormalizerWrapper>, Value);

/// Builds a tokenizer from the `parts` that its class makes of the file's model, an `M`, and its normalizer. Returns `None` if the file
/// does not parse.
fn build<M: DeserializeOwned>(
    path: &Path,
    class: &'static TokenizerClass,
    config: &TokenizerConfig,
    bytes: &[u8],
    parts: impl FnOnce(M, Value, &SpecialTokens, &TokenizerConfig) -> Result<Parts>,
) -> Result<Option<LibraryTokenizer>> {
    let Ok(file) = serde_json::from_slice::<TokenizerJson<M>>(bytes) else { return Ok(None) };
    let special_tokens =
        config.clone().with_added_tokens(&file.added_tokens).special_tokens(class.special_tokens);
    let cannot_build = |error: tokenizers::Error| {
        let class = class.names[0];
        anyhow!("cannot build a {class} from {} ({error}); fix tokenizer_class", path.display())
    };
    let (model, normalizer, pre_tokenizer) = parts(file.model, file.normalizer, &special_tokens, config)?;
    let mut tokenizer = LibraryTokenizer::new(model);
    tokenizer.with_normalizer(normalizer).map_err(cannot_build)?;
    let pre_tokenizer =
        PreTokenizerWrapper::deserialize(pre_tokenizer).map_err(|error| cannot_build(error.into()))?;
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    // GPT-2 and ALBERT use the post-processor of the file.
    let uses_own = matches!(class.names[0], "GPT2Tokenizer" | "AlbertTokenizer");
    let own = match file.post_processor.filter(|_| uses_own) {
        Some(own) => Some(own),
        // With a tokenizer.json, transformers ignores add_bos_token and add_eos_token of GPT-2.
        None if class.template == Template::OptionalBosEos => {
            Some(post_processor(class.template, [None, None], false).map_err(cannot_build)?)
        }
        None => None,
    };
    match own {
        Some(own) => {
            tokenizer.add_tokens(special_tokens.tokens).map_err(cannot_build)?;
            tokenizer.with_post_processor(Some(own));
        }
        None => tokenizer_class::add_special_tokens(path, class, config, special_tokens, &mut tokenizer)?,
    }
    Ok(Some(tokenizer))
}

/// The parts of `BertTokenizer` and `MPNetTokenizer`.
fn word_piece_parts(
    model: WordPiece,
    _: Value,
    special_tokens: &SpecialTokens,
    config: &TokenizerConfig,
) -> Result<Parts> {
    let unk_token = special_tokens.get("unk_token").cloned().unwrap_or_default();
    let model = TokenModel::WordPiece(WordPiece::bert(model.vocab, unk_token));
    Ok((model, Some(bert_normalizer(config)?.into()), json!({"type": "BertPreTokenizer"})))
}

/// The parts of `RobertaTokenizer` and `GPT2Tokenizer`.
fn bpe_parts(mut model: BPE, _: Value, _: &SpecialTokens, config: &TokenizerConfig) -> Result<Parts> {
    (model.dropout, model.unk_token) = (None, None);
    (model.continuing_subword_prefix, model.end_of_word_suffix) = (None, None);
    (model.fuse_unk, model.byte_fallback, model.ignore_merges) = (false, false, false);
    let add_prefix_space = config.bool("add_prefix_space", false)?;
    let pre_tokenizer = json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true,
    });
    Ok((TokenModel::Bpe(model), None, pre_tokenizer))
}

/// The parts of `CLIPTokenizer`.
fn clip_parts(
    model: BPE,
    normalizer: Value,
    special_tokens: &SpecialTokens,
    config: &TokenizerConfig,
) -> Result<Parts> {
    let (mut model, ..) = bpe_parts(model, normalizer, special_tokens, config)?;
    if let TokenModel::Bpe(model) = &mut model {
        model.unk_token = special_tokens.get("unk_token").cloned();
        model.end_of_word_suffix = Some(CLIP_WORD_END.into());
    }
    Ok((model, Some(NormalizerWrapper::deserialize(clip_normalizer())?), clip_pre_tokenizer()))
}

/// The parts of the classes with a Unigram model, which transformers converts from a SentencePiece file.
fn unigram_parts(
    path: &Path,
    class: &str,
    UnigramVocab { vocab, .. }: UnigramVocab,
    normalizer: &Value,
    special_tokens: &SpecialTokens,
    config: &TokenizerConfig,
) -> Result<Parts> {
    let unk_id = unigram_unk_id(class, &vocab, special_tokens, config)?;
    let normalizer = unigram_normalizer(class, normalizer, config)?;
    let pre_tokenizer = unigram_pre_tokenizer(class, config)?;
    let model = Unigram::from(vocab, Some(unk_id), false).map_err(|error| {
        anyhow!(
            "cannot build a {class} from the vocabulary in {} ({error}); fix tokenizer_class",
            path.display()
        )
    })?;
    Ok((TokenModel::Unigram(model), normalizer, pre_tokenizer))
}

/// The id of the unknown token.
fn unigram_unk_id(
    class: &str,
    vocab: &[(String, f64)],
    special_tokens: &SpecialTokens,
    config: &TokenizerConfig,
) -> Result<usize> {
    let unk_token = special_tokens.get("unk_token").map_or("", String::as_str);
    Ok(match class {
        "XLMRobertaTokenizer" => 3,
        "CamembertTokenizer" => vocab.iter().position(|(piece, _)| piece == unk_token).unwrap_or(0),
        "RemBertTokenizer" | "T5Tokenizer" => 2,
        "DebertaV2Tokenizer" => {
            match vocab.iter().position(|(piece, score)| piece == unk_token && *score == 0.0) {
                Some(id) => id,
                None => config.integer("unk_id", 1)?,
            }
        }
        _ => 1,
    })
}

/// The normalizer: the steps of the class, and the character map (`precompiled_charsmap`) of the file's own `normalizer`.
fn unigram_normalizer(
    class: &str,
    normalizer: &Value,
    config: &TokenizerConfig,
) -> Result<Option<NormalizerWrapper>> {
    let replace_string =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let replace_with_space =
        |regex: &str| json!({"type": "Replace", "pattern": {"Regex": regex}, "content": " "});
    let lowercase = || json!({"type": "Lowercase"});
    let quotes = || vec![replace_string("``", "\""), replace_string("''", "\"")];
    let strip_accents_and_lowercase = |keep_accents: bool, do_lower_case: bool| -> Result<Vec<Value>> {
        let mut steps = Vec::new();
        if !config.bool("keep_accents", keep_accents)? {
            steps.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
        }
        if config.bool("do_lower_case", do_lower_case)? {
            steps.push(lowercase());
        }
        Ok(steps)
    };
    let mut steps = match class {
        "AlbertTokenizer" => [quotes(), strip_accents_and_lowercase(false, true)?].concat(),
        "RemBertTokenizer" => {
            let spaces = vec![replace_with_space(" {2,}")];
            [quotes(), spaces, strip_accents_and_lowercase(true, false)?].concat()
        }
        "DebertaV2Tokenizer" => {
            let lowercase = config.bool("do_lower_case", false)?.then(lowercase);
            let white_space = replace_with_space(r"\s{2,}|[\n\r\t]");
            let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
            lowercase.into_iter().chain([white_space, json!({"type": "NFC"}), strip]).collect()
        }
        _ => Vec::new(),
    };
    if class != "DebertaV2Tokenizer" {
        steps.extend(precompiled_normalizer(normalizer));
    }
    if steps.is_empty() {
        return Ok(None);
    }
    let sequence = json!({"type": "Sequence", "normalizers": steps});
    Ok(Some(NormalizerWrapper::deserialize(sequence)?))
}

/// The pre-tokenizer, as in a `tokenizer.json`: how texts are split into words that begin with `▁`.
fn unigram_pre_tokenizer(class: &str, config: &TokenizerConfig) -> Result<Value> {
    let add_prefix_space = config.bool("add_prefix_space", true)?;
    let metaspace = |scheme_without_prefix: &str| {
        let scheme = if add_prefix_space { "always" } else { scheme_without_prefix };
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
    };
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    Ok(match class {
        "RemBertTokenizer" => metaspace("never"),
        "DebertaV2Tokenizer" => {
            let punctuation = json!({"type": "Punctuation", "behavior": "Isolated"});
            let punctuation = config.bool("split_by_punct", false)?.then_some(punctuation);
            sequence(punctuation.into_iter().chain([metaspace("first")]).collect())
        }
        "T5Tokenizer" => sequence(vec![json!({"type": "WhitespaceSplit"}), metaspace("always")]),
        _ => sequence(vec![json!({"type": "WhitespaceSplit"}), metaspace("never")]),
    })
}

/// The normalizer with the character map of SentencePiece, within the normalizer of a `tokenizer.json`.
fn precompiled_normalizer(normalizer: &Value) -> Option<Value> {
    let steps = normalizer.get("normalizers").and_then(Value::as_array);
    let steps = steps.map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    steps.iter().find(|step| step.get("precompiled_charsmap").is_some()).cloned()
}

/// Adds the special tokens and added tokens of the files next to a `tokenizer.json` to the tokenizer of the whole file.
///
/// # Errors
/// If the library rejects them, or if a setting has the wrong type.
pub(super) fn add_special_tokens(
    path: &Path,
    tokenizer: &mut LibraryTokenizer,
    config: &TokenizerConfig,
) -> Result<()> {
    let cannot_add = |error: tokenizers::Error| {
        anyhow!(
            "cannot add the special tokens of tokenizer_config.json to {} ({error}); download the model again",
            path.display()
        )
    };
    let known: Vec<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let SpecialTokens { with_id, mut tokens, .. } = config.special_tokens(&[]);
    tokens.retain(|token| with_id.contains(&token.content) || !known.contains(&token.content));
    tokenizer.add_tokens(tokens).map_err(cannot_add)?;
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    if tokenizer.get_post_processor().is_none() {
        let without_special_tokens = post_processor(Template::OptionalBosEos, [None, None], false);
        tokenizer.with_post_processor(Some(without_special_tokens.map_err(cannot_add)?));
    }
    Ok(())
}
