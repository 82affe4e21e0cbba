//! The model of a tokenizer, which splits words into tokens.

use std::borrow::Cow;
use std::collections::HashMap;
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
    Unigram(Unigram),
    WordLevel(WordLevel),
    WordPiece(WordPiece),
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
                let fields = serde_json::to_value(model).ok()?;
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
            ModelWrapper::Unigram(model) => TokenModel::Unigram(model),
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
            Some("Unigram") => serde_json::from_str(json).ok().map(TokenModel::Unigram),
            Some("WordPiece") => serde_json::from_str(json).ok().map(TokenModel::WordPiece),
            _ => None,
        };
        // The library reads the files of its first releases, too, which have no type.
        let by_library =
            || serde_json::from_str::<ModelWrapper>(json).map(Self::from).map_err(D::Error::custom);
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
