//! Builds a tokenizer from a `tokenizer.json` and the files next to it, as `AutoTokenizer` of transformers 5
//! does.
//!
//! Most tokenizer classes take only the vocabulary and merges from the file. The normalizer, the
//! pre-tokenizer and the special tokens are those of the class, with the settings of `tokenizer_config.json`:
//! see [`from_class`]. Other classes take the whole file: see [`add_special_tokens`]. In both cases the
//! special tokens and added tokens of the files next to it are added.

use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::processors::PostProcessorWrapper;

use super::bpe_parts::{CLIP, GEMMA, LLAMA, Parts, QWEN2, bpe_parts, metaspace, replace};
use super::token_model::{LibraryTokenizer, TokenModel};
use super::tokenizer_class::{
    self, BACKEND_CLASS, ClassTokenizer, ModelType, Template, TokenizerClass, class_name, post_processor,
};
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};
use super::vocab_files::word_piece_parts;
use super::word_piece::WordPiece;

/// The class of each model type, if no file has a `tokenizer_class`.
const CLASS_OF_MODEL_TYPE: &[(&str, &str)] = &[
    ("albert", "AlbertTokenizer"),
    ("bert", "BertTokenizer"),
    ("big_bird", "BigBirdTokenizer"),
    ("camembert", "CamembertTokenizer"),
    ("clip", CLIP),
    ("data2vec-text", "RobertaTokenizer"),
    ("deberta", "DebertaTokenizer"),
    ("deberta-v2", "DebertaV2Tokenizer"),
    ("distilbert", "BertTokenizer"),
    ("electra", "BertTokenizer"),
    ("ernie", "BertTokenizer"),
    ("gemma", GEMMA),
    ("gemma2", GEMMA),
    ("gemma3_text", GEMMA),
    ("gpt2", "GPT2Tokenizer"),
    ("granite", BACKEND_CLASS),
    ("gte", "XLMRobertaTokenizer"),
    ("jina_embeddings_v3", "XLMRobertaTokenizer"),
    ("lfm2", BACKEND_CLASS),
    ("megatron-bert", "BertTokenizer"),
    ("ministral", BACKEND_CLASS),
    ("ministral3", BACKEND_CLASS),
    ("mistral", BACKEND_CLASS),
    ("mobilebert", "MobileBertTokenizer"),
    ("modernbert", BACKEND_CLASS),
    ("mpnet", "MPNetTokenizer"),
    ("mt5", "T5Tokenizer"),
    ("nomic_bert", "BertTokenizer"),
    ("qwen2", QWEN2),
    ("qwen3", QWEN2),
    ("rembert", "RemBertTokenizer"),
    ("roberta", "RobertaTokenizer"),
    ("roberta-prelayernorm", "RobertaTokenizer"),
    ("roformer", "RoFormerTokenizer"),
    ("siglip2", "Siglip2Tokenizer"),
    ("t5", "T5Tokenizer"),
    ("umt5", BACKEND_CLASS),
    ("xlm-roberta", "XLMRobertaTokenizer"),
    ("xlm-roberta-xl", BACKEND_CLASS),
];

/// The id of the unknown token in BigBird's vocabulary.
const BIG_BIRD_UNK_ID: usize = 100;

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

/// Builds the tokenizer of the class that the files name from a `tokenizer.json`. Returns `None` if the whole
/// file is to be used, or if it does not parse: reading it as a whole then gives the error with its line.
pub(super) fn from_class(
    path: &Path,
    bytes: &[u8],
    config: &TokenizerConfig,
) -> Result<Option<ClassTokenizer>> {
    let Some(class) = tokenizer_class(config, bytes) else { return Ok(None) };
    match class.model {
        // The class reads a vocab.txt. A tokenizer.json that another program has made is taken as it is.
        ModelType::WordLevel => Ok(None),
        ModelType::WordPiece => {
            build(path, class, config, bytes, |model: WordPiece, _, special_tokens, config| {
                let unk_token = special_tokens.get("unk_token").cloned().unwrap_or_default();
                word_piece_parts(model.vocab, unk_token, config)
            })
        }
        ModelType::Bpe | ModelType::PieceBpe => {
            build(path, class, config, bytes, |model: BPE, _, special_tokens, config| {
                bpe_parts(class.names[0], model, special_tokens, config)
            })
        }
        ModelType::Unigram => {
            build(path, class, config, bytes, |model: UnigramVocab, normalizer, special_tokens, config| {
                unigram_parts(path, class.names[0], model.vocab, &normalizer, special_tokens, config)
            })
        }
    }
}

/// The name of the class that the files name, else of that of the model type.
pub(super) fn chosen_class_name(config: &TokenizerConfig) -> Option<&str> {
    let by_model_type =
        CLASS_OF_MODEL_TYPE.iter().find(|(model_type, _)| config.model_type.as_deref() == Some(model_type));
    class_name(config, by_model_type.map(|(_, class)| *class))
}

/// The class that the files name, as `AutoTokenizer` chooses it. Returns `None` for a class that takes the
/// whole file.
fn tokenizer_class(config: &TokenizerConfig, bytes: &[u8]) -> Option<&'static TokenizerClass> {
    let name = chosen_class_name(config)?;
    // Files of Llama 3 have the class of Llama 2.
    let is_byte_level = || str::from_utf8(bytes).is_ok_and(|json| json.contains("\"ByteLevel\""));
    if name == LLAMA && is_byte_level() {
        return None;
    }
    TokenizerClass::find(name)
}

/// Builds a tokenizer from the `parts` that its class makes of the file's model, an `M`, and its normalizer.
/// Returns `None` if the file does not parse.
fn build<M: DeserializeOwned>(
    path: &Path,
    class: &'static TokenizerClass,
    config: &TokenizerConfig,
    bytes: &[u8],
    parts: impl FnOnce(M, Value, &SpecialTokens, &TokenizerConfig) -> Result<Parts>,
) -> Result<Option<ClassTokenizer>> {
    let Ok(file) = serde_json::from_slice::<TokenizerJson<M>>(bytes) else { return Ok(None) };
    let special_tokens =
        config.clone().with_added_tokens(&file.added_tokens).special_tokens(class.special_tokens);
    let cannot_build = |error: tokenizers::Error| {
        let class = class.names[0];
        anyhow!("cannot build a {class} from {} ({error}); fix tokenizer_class", path.display())
    };
    let unk_token = special_tokens.get("unk_token").cloned();
    let parts = parts(file.model, file.normalizer, &special_tokens, config)?;
    let mut tokenizer = parts.into_tokenizer().map_err(cannot_build)?;
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    // ALBERT and the decoder language models use the post-processor of the file.
    let uses_own = class.template == Template::OptionalBosEos || class.names[0] == "AlbertTokenizer";
    let own = match file.post_processor.filter(|_| uses_own) {
        Some(own) => Some(own),
        // With a tokenizer.json, transformers ignores add_bos_token and add_eos_token.
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
    Ok(Some(ClassTokenizer { tokenizer, unk_token }))
}

/// The parts of the classes with a Unigram model of these pieces and their log probabilities; `normalizer` is
/// that of the file, of which the character map counts.
pub(super) fn unigram_parts(
    path: &Path,
    class: &str,
    vocab: Vec<(String, f64)>,
    normalizer: &Value,
    special_tokens: &SpecialTokens,
    config: &TokenizerConfig,
) -> Result<Parts> {
    let unk_id = unigram_unk_id(class, &vocab, special_tokens, config)?;
    let normalizer = unigram_normalizer(class, normalizer, config)?;
    let (pre_tokenizer, decoder) = unigram_words(class, config)?;
    let model = Unigram::from(vocab, Some(unk_id), false).map_err(|error| {
        anyhow!(
            "cannot build a {class} from the vocabulary in {} ({error}); fix tokenizer_class",
            path.display()
        )
    })?;
    Ok(Parts { model: TokenModel::Unigram(model.into()), normalizer, pre_tokenizer, decoder })
}

/// The id of the unknown token.
pub(super) fn unigram_unk_id(
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
        "BigBirdTokenizer" => vocab
            .iter()
            .position(|(piece, score)| piece == unk_token && *score == 0.0)
            .unwrap_or(BIG_BIRD_UNK_ID),
        "DebertaV2Tokenizer" => {
            match vocab.iter().position(|(piece, score)| piece == unk_token && *score == 0.0) {
                Some(id) => id,
                None => config.integer("unk_id", 1)?,
            }
        }
        _ => 1,
    })
}

/// The normalizer: the steps of the class, and the character map (`precompiled_charsmap`) of the file's own
/// `normalizer`.
fn unigram_normalizer(class: &str, normalizer: &Value, config: &TokenizerConfig) -> Result<Value> {
    let replace_with_space =
        |regex: &str| json!({"type": "Replace", "pattern": {"Regex": regex}, "content": " "});
    let lowercase = || json!({"type": "Lowercase"});
    let quotes = || vec![replace("``", "\""), replace("''", "\"")];
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
        "BigBirdTokenizer" => vec![json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})],
        "DebertaV2Tokenizer" => {
            let lowercase = config.bool("do_lower_case", false)?.then(lowercase);
            let white_space = replace_with_space(r"\s{2,}|[\n\r\t]");
            let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
            lowercase.into_iter().chain([white_space, json!({"type": "NFC"}), strip]).collect()
        }
        _ => Vec::new(),
    };
    if !["BigBirdTokenizer", "DebertaV2Tokenizer"].contains(&class) {
        steps.extend(precompiled_normalizer(normalizer));
    }
    if steps.is_empty() {
        return Ok(Value::Null);
    }
    Ok(json!({"type": "Sequence", "normalizers": steps}))
}

/// The pre-tokenizer, which splits texts into words that begin with `▁`, and the decoder.
fn unigram_words(class: &str, config: &TokenizerConfig) -> Result<(Value, Value)> {
    let metaspace = match (config.bool("add_prefix_space", true)?, class) {
        (true, _) | (_, "T5Tokenizer") => metaspace("always", true),
        (false, "DebertaV2Tokenizer") => metaspace("first", true),
        (false, _) => metaspace("never", true),
    };
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "pretokenizers": steps});
    let pre_tokenizer = match class {
        "BigBirdTokenizer" | "RemBertTokenizer" => metaspace.clone(),
        "DebertaV2Tokenizer" => {
            let punctuation = json!({"type": "Punctuation", "behavior": "Isolated"});
            let punctuation = config.bool("split_by_punct", false)?.then_some(punctuation);
            sequence(punctuation.into_iter().chain([metaspace.clone()]).collect())
        }
        _ => sequence(vec![json!({"type": "WhitespaceSplit"}), metaspace.clone()]),
    };
    Ok((pre_tokenizer, metaspace))
}

/// The normalizer with the character map of SentencePiece, within the normalizer of a `tokenizer.json`.
fn precompiled_normalizer(normalizer: &Value) -> Option<Value> {
    let steps = normalizer.get("normalizers").and_then(Value::as_array);
    let steps = steps.map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    steps.iter().find(|step| step.get("precompiled_charsmap").is_some()).cloned()
}

/// Adds the special tokens and added tokens of the files next to a `tokenizer.json` to the tokenizer of the
/// whole file.
pub(super) fn add_special_tokens(
    path: &Path,
    mut tokenizer: LibraryTokenizer,
    config: &TokenizerConfig,
) -> Result<ClassTokenizer> {
    let cannot_add = |error: tokenizers::Error| {
        anyhow!(
            "cannot add the special tokens of tokenizer_config.json to {} ({error}); download the model again",
            path.display()
        )
    };
    let known: Vec<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let special_tokens = config.special_tokens(&[]);
    let unk_token = special_tokens.get("unk_token").cloned();
    let SpecialTokens { with_id, mut tokens, .. } = special_tokens;
    tokens.retain(|token| with_id.contains(&token.content) || !known.contains(&token.content));
    tokenizer.add_tokens(tokens).map_err(cannot_add)?;
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    if tokenizer.get_post_processor().is_none() {
        let without_special_tokens = post_processor(Template::OptionalBosEos, [None, None], false);
        tokenizer.with_post_processor(Some(without_special_tokens.map_err(cannot_add)?));
    }
    Ok(ClassTokenizer { tokenizer, unk_token })
}
