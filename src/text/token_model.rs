//! The model of a tokenizer, which splits words into tokens.

use std::borrow::Cow;
use std::collections::HashMap;
use std::mem;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::{DecoderWrapper, Model, ModelWrapper, PostProcessorWrapper, Token, TokenizerImpl};

use super::word_piece::WordPiece;
use super::words::{TextNormalizer, TextPreTokenizer};

/// A tokenizer of the library with steps of its own: normalizer, pre-tokenizer and model.
pub(super) type LibraryTokenizer =
    TokenizerImpl<TokenModel, TextNormalizer, TextPreTokenizer, PostProcessorWrapper, DecoderWrapper>;

/// How a tokenizer splits words into tokens.
pub(super) enum TokenModel {
    Bpe(BPE),
    Unigram(UnigramModel),
    WordLevel(WordLevel),
    WordPiece(WordPiece),
}

/// A Unigram model, which is left in memory if it has long pieces: the library drops its trie of pieces by a
/// recursion of as many calls as the longest piece has bytes. A tokenizer with such a model is refused.
pub(super) struct UnigramModel(Option<Unigram>);

/// Bytes of a piece for which a recursion fits into the stack of any thread.
const MAX_DROPPED_BYTES: usize = 1024;

impl UnigramModel {
    /// The bytes of the longest piece.
    pub(super) fn longest_piece(&self) -> usize {
        self.iter().map(|(piece, _)| piece.len()).max().unwrap_or(0)
    }
}

impl From<Unigram> for UnigramModel {
    fn from(model: Unigram) -> Self {
        UnigramModel(Some(model))
    }
}

impl Deref for UnigramModel {
    type Target = Unigram;

    fn deref(&self) -> &Unigram {
        self.0.as_ref().expect("the model is there until it is dropped")
    }
}

impl Drop for UnigramModel {
    fn drop(&mut self) {
        if self.longest_piece() > MAX_DROPPED_BYTES {
            mem::forget(self.0.take());
        }
    }
}

/// The pieces of a Unigram model in a `tokenizer.json`.
#[derive(Deserialize)]
struct Pieces<'a> {
    #[serde(borrow)]
    vocab: Vec<(Cow<'a, str>, f64)>,
}

/// Whether JSON is a Unigram model, of any release, that the library must not read: it would drop it.
fn has_long_pieces(json: &str) -> bool {
    let is_long = |pieces: Pieces| pieces.vocab.iter().any(|(piece, _)| piece.len() > MAX_DROPPED_BYTES);
    serde_json::from_str(json).is_ok_and(is_long)
}

/// Whether a `tokenizer.json` has such a model.
pub(super) fn has_model_of_long_pieces(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct File<'a> {
        #[serde(borrow)]
        model: &'a RawValue,
    }
    serde_json::from_slice(bytes).is_ok_and(|file: File| has_long_pieces(file.model.get()))
}

impl TokenModel {
    /// The name of the algorithm, which is the `type` in a `tokenizer.json`.
    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            TokenModel::Bpe(_) => "BPE",
            TokenModel::Unigram(_) => "Unigram",
            TokenModel::WordLevel(_) => "WordLevel",
            TokenModel::WordPiece(_) => "WordPiece",
        }
    }

    /// The token for what is not in the vocabulary, if the model has one.
    pub(super) fn unk_token(&self) -> Option<String> {
        match self {
            TokenModel::Bpe(model) => model.unk_token.clone(),
            TokenModel::Unigram(model) => {
                let fields = serde_json::to_value(&**model).ok()?;
                model.id_to_token(u32::try_from(fields.get("unk_id")?.as_u64()?).ok()?)
            }
            TokenModel::WordLevel(model) => Some(model.unk_token.clone()),
            TokenModel::WordPiece(model) => Some(model.unk_token.clone()),
        }
    }
}

impl From<ModelWrapper> for TokenModel {
    fn from(model: ModelWrapper) -> Self {
        match model {
            ModelWrapper::BPE(model) => TokenModel::Bpe(model),
            ModelWrapper::Unigram(model) => TokenModel::Unigram(model.into()),
            ModelWrapper::WordLevel(model) => TokenModel::WordLevel(model),
            ModelWrapper::WordPiece(model) => TokenModel::WordPiece(model.into()),
        }
    }
}

/// The part of a model in a `tokenizer.json` that gives its type.
#[derive(Deserialize)]
struct ModelHeader<'a> {
    #[serde(rename = "type", borrow)]
    model_type: Option<Cow<'a, str>>,
}

/// The type of a model in a `tokenizer.json`, if it has one.
fn model_type(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<ModelHeader>(json).ok()?.model_type
}

/// The model in a `tokenizer.json`. The library finds its type by parsing it to a [`serde_json::Value`]
/// first, which takes twice as long as parsing a model of a known type.
impl<'de> Deserialize<'de> for TokenModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let json = <&RawValue>::deserialize(deserializer)?.get();
        let model = match model_type(json).as_deref() {
            Some("BPE") => serde_json::from_str(json).ok().map(TokenModel::Bpe),
            Some("Unigram") => {
                serde_json::from_str(json).ok().map(|model: Unigram| TokenModel::Unigram(model.into()))
            }
            Some("WordPiece") => serde_json::from_str(json).ok().map(TokenModel::WordPiece),
            _ => None,
        };
        // The library reads the files of its first releases, too, which have no type.
        let by_library = || match has_long_pieces(json) {
            true => Err(D::Error::custom("its Unigram model has very long pieces")),
            false => serde_json::from_str::<ModelWrapper>(json).map(Self::from).map_err(D::Error::custom),
        };
        model.map_or_else(by_library, Ok)
    }
}

/// Calls a method of the model, whatever its type.
macro_rules! each {
    ($token_model:expr, $model:ident => $call:expr) => {
        match $token_model {
            TokenModel::Bpe($model) => $call,
            TokenModel::Unigram($model) => $call,
            TokenModel::WordLevel($model) => $call,
            TokenModel::WordPiece($model) => $call,
        }
    };
}

impl Model for TokenModel {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        each!(self, model => model.tokenize(word))
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        each!(self, model => model.token_to_id(token))
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        each!(self, model => model.id_to_token(id))
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        each!(self, model => model.get_vocab())
    }

    fn get_vocab_size(&self) -> usize {
        each!(self, model => model.get_vocab_size())
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        each!(self, model => model.save(folder, prefix))
    }

    fn get_trainer(&self) -> TrainerWrapper {
        each!(self, model => model.get_trainer().into())
    }
}
