//! Builds a tokenizer from the file of a SentencePiece model and the files next to it, as `AutoTokenizer` of
//! transformers 5 does.
//!
//! The class takes the pieces, their scores and the character map, and has its own ways with white space and
//! with characters that are in no piece, whatever the settings of the file. A file that the class would read
//! in another way than its model was trained is refused.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use tokenizers::models::bpe::{self, BPE};

use super::bpe_parts::{GEMMA, LLAMA, bpe_parts};
use super::sentence_piece::{Algorithm, Piece, PieceKind, Refusal, SentencePiece};
use super::tokenizer_class::{
    ClassTokenizer, ModelType, TokenizerClass, add_special_tokens, cannot_build, missing_token,
};
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};
use super::tokenizer_json::{chosen_class_name, unigram_parts, unigram_unk_id};
use super::vocab_files::CONVERT;
use crate::sys::regular_file;

/// The classes that are built from a SentencePiece file, with its name. Every class takes `tokenizer.model`,
/// too, and has it first.
const CLASSES: &[(&str, &str)] = &[
    (XLM_ROBERTA, "sentencepiece.bpe.model"),
    (CAMEMBERT, "sentencepiece.bpe.model"),
    (ALBERT, "spiece.model"),
    (T5, "spiece.model"),
    (DEBERTA_V2, "spm.model"),
    (LLAMA, ANY_CLASS),
    (GEMMA, ANY_CLASS),
];
const ANY_CLASS: &str = "tokenizer.model";

const XLM_ROBERTA: &str = "XLMRobertaTokenizer";
const CAMEMBERT: &str = "CamembertTokenizer";
const ALBERT: &str = "AlbertTokenizer";
const T5: &str = "T5Tokenizer";
const DEBERTA_V2: &str = "DebertaV2Tokenizer";

/// Maximum merges of a BPE model; those of Gemma have half a million.
const MAX_MERGES: usize = 1 << 22;
/// Maximum tokens `<extra_id_0>`, `<extra_id_1>` … of T5, which has 100.
const MAX_EXTRA_IDS: usize = 1 << 16;

/// Reads a SentencePiece file; `config` is what the files next to it say.
pub(super) fn read(path: &Path, config: &TokenizerConfig) -> Result<ClassTokenizer> {
    let class = tokenizer_class(path, config)?;
    let shown = path.display();
    let bytes = regular_file::read_model_file(path, regular_file::MAX_TOKENIZER_BYTES)?;
    let model = SentencePiece::parse(&bytes).map_err(|refusal| match refusal {
        Refusal::Damaged(reason) => {
            anyhow!("cannot parse {shown} as a SentencePiece model ({reason}); download it again")
        }
        Refusal::Unsupported(reason) => anyhow!("cannot read {shown} ({reason}); {CONVERT}"),
    })?;
    let refuse =
        |reason: String| anyhow!("cannot build a {} from {shown} ({reason}); {CONVERT}", class.names[0]);
    let extra_ids = extra_ids(class, config)?;
    check(class, &model, config, &extra_ids).map_err(refuse)?;
    let config = with_tokens_of(&model, config, &extra_ids);
    let special_tokens = config.special_tokens(class.special_tokens);
    let unk_token = special_tokens.get("unk_token").cloned();
    let parts = match class.model {
        ModelType::PieceBpe => {
            check_unk_token(class, &model, unk_token.as_deref()).map_err(refuse)?;
            let merges = merges(&model.pieces).map_err(refuse)?;
            bpe_parts(class.names[0], bpe(path, &model.pieces, merges)?, &special_tokens, &config)?
        }
        _ => {
            let vocab = unigram_vocab(path, class, &model.pieces, &special_tokens, extra_ids)?;
            let unk_id = unigram_unk_id(class.names[0], &vocab, &special_tokens, &config)?;
            if dropped(class) == 0 && unk_id != model.unk_id {
                let found = model.unk_id;
                return Err(refuse(format!(
                    "its unknown token has the id {found}, and the class has {unk_id}"
                )));
            }
            let normalizer = match model.character_map {
                [] => Value::Null,
                map => json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(map)}),
            };
            unigram_parts(path, class.names[0], vocab, &normalizer, &special_tokens, &config)?
        }
    };
    let mut tokenizer = parts.into_tokenizer().map_err(|error| cannot_build(path, error))?;
    tokenizer.set_encode_special_tokens(config.bool("split_special_tokens", false)?);
    add_special_tokens(path, class, &config, special_tokens, &mut tokenizer)?;
    Ok(ClassTokenizer { tokenizer, unk_token })
}

/// The class that the files name, as `AutoTokenizer` chooses it.
fn tokenizer_class(path: &Path, config: &TokenizerConfig) -> Result<&'static TokenizerClass> {
    let shown = path.display();
    let Some(name) = chosen_class_name(config) else {
        bail!(
            "cannot build a tokenizer from {shown}: the files next to it name no tokenizer_class; {CONVERT}"
        );
    };
    let of_class = CLASSES.iter().find(|(class, _)| *class == name);
    let (Some((_, file)), Some(class)) = (of_class, TokenizerClass::find(name)) else {
        bail!("cannot build a {name} from {shown}; {CONVERT}");
    };
    let file_name = path.file_name().unwrap_or_default().to_string_lossy();
    if ![file, ANY_CLASS].iter().any(|known| file_name.ends_with(*known)) {
        bail!(
            "{shown} is not the file of a {name}, which is {file} or {ANY_CLASS}; rename it if it is that file"
        );
    }
    Ok(class)
}

/// The first pieces of a model that a class has other tokens for.
fn dropped(class: &TokenizerClass) -> usize {
    match class.names[0] {
        XLM_ROBERTA => 3,
        CAMEMBERT => 1,
        _ => 0,
    }
}

/// Whether a class reads a model as it was trained; if not, why.
fn check(
    class: &TokenizerClass,
    model: &SentencePiece,
    config: &TokenizerConfig,
    extra_ids: &[String],
) -> Result<(), String> {
    let algorithm = if class.model == ModelType::PieceBpe { Algorithm::Bpe } else { Algorithm::Unigram };
    if model.algorithm != algorithm {
        let [found, expected] = [model.algorithm, algorithm].map(Algorithm::name);
        return Err(format!("it is a {found} model, and those of the class are {expected} models"));
    }
    let dropped = dropped(class);
    let is_part = |piece: &&Piece| !matches!(piece.kind, PieceKind::Unknown | PieceKind::Control);
    if let Some(piece) = model.pieces.iter().take(dropped).find(is_part) {
        return Err(format!(
            "the piece {:?} is among the first {dropped}, which the class does not use",
            piece.text
        ));
    }
    if dropped > 0 && model.unk_id >= dropped {
        return Err(format!("its unknown token has the id {}", model.unk_id));
    }
    let is_extra = |piece: &&Piece| piece.text.contains("<extra_id_");
    if let Some(piece) = model.pieces.iter().find(is_extra).filter(|_| !extra_ids.is_empty()) {
        return Err(format!("it has the piece {:?} already, and extra_ids is not 0", piece.text));
    }
    // With these settings transformers gives up the special tokens of the class.
    let settings = ["add_bos_token", "add_eos_token"];
    match settings.into_iter().find(|key| class.names[0] == ALBERT && config.field(key).is_some()) {
        Some(key) => Err(format!("{key} of tokenizer_config.json is not supported")),
        None => Ok(()),
    }
}

/// Whether a class with a BPE model has the model's token for unknown characters; if not, why.
fn check_unk_token(
    class: &TokenizerClass,
    model: &SentencePiece,
    unk_token: Option<&str>,
) -> Result<(), String> {
    let found = model.pieces[model.unk_id].text;
    match unk_token {
        // Llama's leaves out unknown characters, if there are no pieces for their bytes.
        _ if class.names[0] == LLAMA => Ok(()),
        Some(unk_token) if unk_token == found => Ok(()),
        Some(unk_token) => Err(format!("its unknown token is {found:?}, and unk_token is {unk_token:?}")),
        None => Err(format!("its unknown token is {found:?}, and unk_token is null")),
    }
}

/// The settings with the tokens that a model has beside parts of texts: its special tokens, the strings that
/// are never split, and those of T5.
fn with_tokens_of(model: &SentencePiece, config: &TokenizerConfig, extra_ids: &[String]) -> TokenizerConfig {
    let tokens = model.pieces.iter().filter_map(|piece| match piece.kind {
        PieceKind::Control => Some((piece.text, true)),
        PieceKind::UserDefined => Some((piece.text, false)),
        PieceKind::Normal | PieceKind::Unknown | PieceKind::Byte => None,
    });
    let tokens = tokens.chain(extra_ids.iter().map(|token| (token.as_str(), true)));
    config.clone().with_tokens_of_vocabulary(tokens)
}

/// The tokens that T5 has after the pieces, the last one first.
fn extra_ids(class: &TokenizerClass, config: &TokenizerConfig) -> Result<Vec<String>> {
    if class.names[0] != T5 {
        return Ok(Vec::new());
    }
    let count = config.integer("extra_ids", 100)?;
    if count > MAX_EXTRA_IDS {
        let path = config.path().display();
        bail!("{path}: \"extra_ids\" is {count}, and at most {MAX_EXTRA_IDS} are supported; fix the file");
    }
    Ok((0..count).rev().map(|number| format!("<extra_id_{number}>")).collect())
}

/// The vocabulary of a class with a Unigram model: its special tokens where it has others than the model, and
/// the pieces.
fn unigram_vocab(
    path: &Path,
    class: &TokenizerClass,
    pieces: &[Piece],
    special_tokens: &SpecialTokens,
    extra_ids: Vec<String>,
) -> Result<Vec<(String, f64)>> {
    let token = |name: &str| match special_tokens.get(name) {
        Some(token) => Ok((token.clone(), 0.0)),
        None => Err(missing_token(path, class, name, None)),
    };
    let (first, last) = match class.names[0] {
        XLM_ROBERTA => {
            let first = ["bos_token", "pad_token", "eos_token", "unk_token"].map(token);
            (first.into_iter().collect::<Result<Vec<_>>>()?, vec![token("mask_token")?])
        }
        CAMEMBERT => {
            let (pad, unk) = (token("pad_token")?, token("unk_token")?);
            let [begin, end, unused] = ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED"].map(str::to_owned);
            let first = vec![(begin, 0.0), pad, (end, 0.0), unk, (unused, -100.0)];
            (first, vec![token("mask_token")?])
        }
        _ => (Vec::new(), extra_ids.into_iter().map(|token| (token, 0.0)).collect()),
    };
    let pieces =
        pieces.iter().skip(dropped(class)).map(|piece| (piece.text.to_owned(), f64::from(piece.score)));
    Ok(first.into_iter().chain(pieces).chain(last).collect())
}

/// The merges of a BPE model, which its file does not have: for each piece, in the order of their ids, every
/// pair of pieces that it consists of.
fn merges(pieces: &[Piece]) -> Result<Vec<(String, String)>, String> {
    let texts: HashSet<&str> = pieces.iter().map(|piece| piece.text).collect();
    let mut merges = Vec::new();
    for piece in pieces {
        for (at, _) in piece.text.char_indices().skip(1) {
            let (left, right) = piece.text.split_at(at);
            if texts.contains(left) && texts.contains(right) {
                merges.push((left.to_owned(), right.to_owned()));
            }
        }
        if merges.len() > MAX_MERGES {
            return Err(format!("its pieces have more than {MAX_MERGES} merges"));
        }
    }
    Ok(merges)
}

/// The BPE model of these pieces.
fn bpe(path: &Path, pieces: &[Piece], merges: Vec<(String, String)>) -> Result<BPE> {
    let vocab: bpe::Vocab = pieces.iter().map(|piece| piece.text.to_owned()).zip(0..).collect();
    let model = BPE::builder().vocab_and_merges(vocab, merges).build();
    model.map_err(|error| cannot_build(path, error))
}
