//! A `tokenizer.json` with what stands beside it, as AutoTokenizer of transformers 5 takes it.
//!
//! Most of its classes take only the vocabulary of the file: how texts are normalized and split, and which special tokens stand
//! around them, is the class's own, with the switches of `tokenizer_config.json`. The others take the file as it is. Both add
//! the tokens that the files beside it name.

use std::path::Path;

use anyhow::{Result, anyhow};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::processors::PostProcessorWrapper;
use tokenizers::{ModelWrapper, NormalizerWrapper, PreTokenizerWrapper, Tokenizer};

use super::settings::{Settings, Specials};
use super::vocabulary::{self, Class, Frame};

/// The class of each model type, where no file names one; `TokenizersBackend` takes files as they are.
const CLASS_OF_MODEL: &[(&str, &str)] = &[
    ("albert", "AlbertTokenizer"),
    ("bert", "BertTokenizer"),
    ("camembert", "CamembertTokenizer"),
    ("data2vec-text", "RobertaTokenizer"),
    ("deberta-v2", "DebertaV2Tokenizer"),
    ("distilbert", "BertTokenizer"),
    ("electra", "BertTokenizer"),
    ("ernie", "BertTokenizer"),
    ("gpt2", "GPT2Tokenizer"),
    ("gte", "XLMRobertaTokenizer"),
    ("jina_embeddings_v3", "XLMRobertaTokenizer"),
    ("megatron-bert", "BertTokenizer"),
    ("modernbert", "TokenizersBackend"),
    ("mpnet", "MPNetTokenizer"),
    ("nomic_bert", "BertTokenizer"),
    ("rembert", "RemBertTokenizer"),
    ("roberta", "RobertaTokenizer"),
    ("roberta-prelayernorm", "RobertaTokenizer"),
    ("roformer", "RoFormerTokenizer"),
    ("xlm-roberta", "XLMRobertaTokenizer"),
    ("xlm-roberta-xl", "TokenizersBackend"),
];

/// What a class takes of a file.
#[derive(Deserialize)]
#[serde(bound(deserialize = "M: DeserializeOwned"))]
struct File<M> {
    model: M,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Option<PostProcessorWrapper>,
    #[serde(default)]
    added_tokens: Vec<Value>,
}

/// The pieces of a Unigram model with their scores.
#[derive(Deserialize)]
struct Pieces {
    vocab: Vec<(String, f64)>,
}

/// Builds the tokenizer of the class that the files name, from a file whose model is of this `kind`; none where the class takes
/// the file as it is.
///
/// # Errors
/// If a file beside it is broken, or names a special token that there is not.
pub(super) fn rebuild(
    path: &Path,
    bytes: &[u8],
    kind: Option<&str>,
    settings: &Settings,
) -> Result<Option<Tokenizer>> {
    let Some(class) = class_of(settings) else { return Ok(None) };
    let own = match class.file {
        "vocab.txt" => "WordPiece",
        "vocab.json" => "BPE",
        _ => "Unigram",
    };
    if kind.is_some_and(|kind| kind != own) {
        return Ok(None);
    }
    // A file that does not parse is read once more as it is, which says where.
    match own {
        "WordPiece" => build(path, class, settings, read::<WordPiece>(bytes), |mut model, _, specials| {
            model.unk_token = vocabulary::named(specials, "unk_token").cloned().unwrap_or_default();
            (model.continuing_subword_prefix, model.max_input_chars_per_word) = ("##".into(), 100);
            Ok((
                model.into(),
                Some(vocabulary::casing(settings)?.into()),
                json!({"type": "BertPreTokenizer"}),
            ))
        }),
        "BPE" => build(path, class, settings, read::<BPE>(bytes), |mut model, _, _| {
            (model.dropout, model.unk_token) = (None, None);
            (model.continuing_subword_prefix, model.end_of_word_suffix) = (None, None);
            (model.fuse_unk, model.byte_fallback, model.ignore_merges) = (false, false, false);
            let prefix = settings.flag("add_prefix_space", false)?;
            let split = json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": true, "use_regex": true});
            Ok((model.into(), None, split))
        }),
        _ => build(path, class, settings, read::<Pieces>(bytes), |Pieces { vocab }, normalizer, specials| {
            pieces(class.names[0], settings, vocab, &normalizer, specials)
        }),
    }
}

fn read<M: DeserializeOwned>(bytes: &[u8]) -> Option<File<M>> {
    serde_json::from_slice(bytes).ok()
}

/// A model, the normalizer before it and the pre-tokenizer.
type Parts = (ModelWrapper, Option<NormalizerWrapper>, Value);

/// Puts the parts of a class together.
fn build<M>(
    path: &Path,
    class: &'static Class,
    settings: &Settings,
    file: Option<File<M>>,
    parts: impl FnOnce(M, Value, &Specials) -> Result<Parts>,
) -> Result<Option<Tokenizer>> {
    let Some(File { model, normalizer, post_processor, added_tokens }) = file else { return Ok(None) };
    let specials = settings.clone().with_added(&added_tokens).specials(class.tokens);
    let unfit =
        |error: tokenizers::Error| anyhow!("{} does not fit its tokenizer_class ({error})", path.display());
    let (model, normalizer, split) = parts(model, normalizer, &specials)?;
    let mut tokenizer = Tokenizer::new(model);
    tokenizer.with_normalizer(normalizer).map_err(unfit)?;
    let split = PreTokenizerWrapper::deserialize(split).map_err(|error| unfit(error.into()))?;
    tokenizer.with_pre_tokenizer(Some(split));
    tokenizer.set_encode_special_tokens(settings.flag("split_special_tokens", false)?);
    // GPT-2 and ALBERT keep what the file puts around texts.
    let own_frame = matches!(class.names[0], "GPT2Tokenizer" | "AlbertTokenizer");
    match post_processor.filter(|_| own_frame) {
        Some(frame) => {
            tokenizer.add_tokens(specials.tokens).map_err(unfit)?;
            tokenizer.with_post_processor(Some(frame));
        }
        // transformers leaves the switches of GPT-2's ends aside where there is a tokenizer.json.
        None if class.frame == Frame::Ends => {
            tokenizer.add_tokens(specials.tokens).map_err(unfit)?;
            tokenizer.with_post_processor(Some(vocabulary::frame(Frame::Ends, [None, None]).map_err(unfit)?));
        }
        None => vocabulary::add_frame(path, class, settings, specials, &mut tokenizer)?,
    }
    Ok(Some(tokenizer))
}

/// The class that the files name, as AutoTokenizer chooses it; none for one that takes a file as it is.
fn class_of(settings: &Settings) -> Option<&'static Class> {
    let of_model = CLASS_OF_MODEL.iter().find(|(model, _)| settings.model_type.as_deref() == Some(model));
    let of_model = of_model.map(|(_, class)| *class);
    let said = settings.class.as_deref().map(|said| said.strip_suffix("Fast").unwrap_or(said));
    let name = match said {
        Some(_) if of_model == Some("TokenizersBackend") => return None,
        Some(said) => said,
        None => of_model?,
    };
    vocabulary::CLASSES.iter().chain(CLASSES).find(|class| class.names.contains(&name))
}

/// Classes over SentencePiece models.
const CLASSES: &[Class] = &[
    Class { names: &["XLMRobertaTokenizer"], file: "", tokens: SPM_TOKENS, frame: Frame::BosEos },
    Class { names: &["CamembertTokenizer"], file: "", tokens: SPM_TOKENS, frame: Frame::BosEos },
    Class { names: &["AlbertTokenizer"], file: "", tokens: ALBERT_TOKENS, frame: Frame::Bert },
    Class { names: &["RemBertTokenizer"], file: "", tokens: ALBERT_TOKENS, frame: Frame::Bert },
    Class {
        names: &["DebertaV2Tokenizer"],
        file: "",
        tokens: &[
            ("bos_token", "[CLS]"),
            ("eos_token", "[SEP]"),
            ("unk_token", "[UNK]"),
            ("sep_token", "[SEP]"),
            ("pad_token", "[PAD]"),
            ("cls_token", "[CLS]"),
            ("mask_token", "[MASK]"),
        ],
        frame: Frame::Bert,
    },
];

const SPM_TOKENS: &[(&str, &str)] = &[
    ("bos_token", "<s>"),
    ("eos_token", "</s>"),
    ("unk_token", "<unk>"),
    ("sep_token", "</s>"),
    ("pad_token", "<pad>"),
    ("cls_token", "<s>"),
    ("mask_token", "<mask>"),
];

const ALBERT_TOKENS: &[(&str, &str)] = &[
    ("bos_token", "[CLS]"),
    ("eos_token", "[SEP]"),
    ("unk_token", "<unk>"),
    ("sep_token", "[SEP]"),
    ("pad_token", "<pad>"),
    ("cls_token", "[CLS]"),
    ("mask_token", "[MASK]"),
];

/// The parts of the classes over SentencePiece models.
fn pieces(
    class: &str,
    settings: &Settings,
    vocab: Vec<(String, f64)>,
    normalizer: &Value,
    specials: &Specials,
) -> Result<Parts> {
    let unknown = vocabulary::named(specials, "unk_token").map_or("", String::as_str);
    let place =
        |scored: bool| vocab.iter().position(|(piece, score)| piece == unknown && (!scored || *score == 0.0));
    let unknown = match class {
        "XLMRobertaTokenizer" => 3,
        "CamembertTokenizer" => place(false).unwrap_or(0),
        "RemBertTokenizer" => 2,
        "DebertaV2Tokenizer" => match place(true) {
            Some(unknown) => unknown,
            None => settings.number("unk_id", 1)?,
        },
        _ => 1,
    };
    let replace =
        |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let squeeze = |from: &str| json!({"type": "Replace", "pattern": {"Regex": from}, "content": " "});
    let lower = || json!({"type": "Lowercase"});
    let quotes = || vec![replace("``", "\""), replace("''", "\"")];
    let folded = |mut steps: Vec<Value>, keep: bool, lowers: bool| -> Result<Vec<Value>> {
        if !settings.flag("keep_accents", keep)? {
            steps.extend([json!({"type": "NFKD"}), json!({"type": "StripAccents"})]);
        }
        if settings.flag("do_lower_case", lowers)? {
            steps.push(lower());
        }
        Ok(steps)
    };
    let mut steps = match class {
        "AlbertTokenizer" => folded(quotes(), false, true)?,
        "RemBertTokenizer" => folded([quotes(), vec![squeeze(" {2,}")]].concat(), true, false)?,
        "DebertaV2Tokenizer" => {
            let lowers = settings.flag("do_lower_case", false)?.then(lower);
            let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
            lowers.into_iter().chain([squeeze(r"\s{2,}|[\n\r\t]"), json!({"type": "NFC"}), strip]).collect()
        }
        _ => Vec::new(),
    };
    if class != "DebertaV2Tokenizer" {
        steps.extend(precompiled(normalizer));
    }
    let prefix = settings.flag("add_prefix_space", true)?;
    let metaspace = |without: &str| {
        let scheme = if prefix { "always" } else { without };
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true})
    };
    let sequence = |parts: Vec<Value>| json!({"type": "Sequence", "pretokenizers": parts});
    let split = match class {
        "RemBertTokenizer" => metaspace("never"),
        "DebertaV2Tokenizer" => {
            let punctuation = json!({"type": "Punctuation", "behavior": "Isolated"});
            let punctuation = settings.flag("split_by_punct", false)?.then_some(punctuation);
            sequence(punctuation.into_iter().chain([metaspace("first")]).collect())
        }
        _ => sequence(vec![json!({"type": "WhitespaceSplit"}), metaspace("never")]),
    };
    let normalizer = match steps.is_empty() {
        true => None,
        false => Some(NormalizerWrapper::deserialize(json!({"type": "Sequence", "normalizers": steps}))?),
    };
    let model = Unigram::from(vocab, Some(unknown), false);
    let model =
        model.map_err(|error| anyhow!("its pieces do not fit a {class} ({error}); fix tokenizer_class"))?;
    Ok((model.into(), normalizer, split))
}

/// The character map of SentencePiece in a file's normalizer.
fn precompiled(normalizer: &Value) -> Option<Value> {
    let all = normalizer.get("normalizers").and_then(Value::as_array);
    let all = all.map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    all.iter().find(|one| one.get("precompiled_charsmap").is_some()).cloned()
}

/// Adds to a tokenizer that is taken as it is what the files beside it say.
///
/// # Errors
/// If one of them is broken.
pub(super) fn extend(path: &Path, tokenizer: &mut Tokenizer, settings: &Settings) -> Result<()> {
    let unfit =
        |error: tokenizers::Error| anyhow!("{} does not fit the files beside it ({error})", path.display());
    let known: Vec<String> =
        tokenizer.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let Specials { listed, mut tokens, .. } = settings.specials(&[]);
    tokens.retain(|token| listed.contains(&token.content) || !known.contains(&token.content));
    tokenizer.add_tokens(tokens).map_err(unfit)?;
    tokenizer.set_encode_special_tokens(settings.flag("split_special_tokens", false)?);
    if tokenizer.get_post_processor().is_none() {
        tokenizer.with_post_processor(Some(vocabulary::frame(Frame::Ends, [None, None]).map_err(unfit)?));
    }
    Ok(())
}
