//! The tokenizer of a model, with truncation that is counted.
//!
//! # Untrusted tokenizers
//!
//! A tokenizer of a known class takes time in proportion to the length of a text. One that is built from a
//! whole `tokenizer.json` can be made to take quadratic time or more, and nothing but Ctrl-C ends it:
//!
//! * a regular expression that backtracks: its engine gives up after a million steps, but starts again at
//!   each position of the text (`(?=(a+)+b)a` takes a second for 30,000 letters `a`, and more than forty for
//!   300,000);
//! * a WordPiece model with a large `max_input_chars_per_word` and a token of thousands of characters, on a
//!   long word.
//!
//! Files that would make much of a short text are refused: see `check_growth`.
//!
//! The whole of a long text is tokenized, although only its beginning may be used: truncated tokens are
//! counted. See `pieces` for the memory that it takes.

use std::borrow::Cow;
use std::iter::repeat_n;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Result, anyhow, bail};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tokenizers::normalizers::{Lowercase, Precompiled, Sequence};
use tokenizers::utils::truncation::{
    TruncationDirection, TruncationParams, TruncationStrategy, truncate_encodings,
};
use tokenizers::{
    AddedToken, DecoderWrapper, Encoding, NormalizerWrapper, PostProcessor, PostProcessorWrapper,
};

use super::alignment::Alignment;
use super::character_map::longest_replacement;
use super::sentence_piece::MAX_PIECE_BYTES;
use super::token_model::{LibraryTokenizer, TokenModel, has_model_of_long_pieces};
use super::tokenizer_class::ClassTokenizer;
use super::tokenizer_config::TokenizerConfig;
use super::{pieces, sentence_piece_files, tokenizer_json, vocab_files};
use crate::named::names;
use crate::sys::catch_panic::catch_panic;
use crate::sys::regular_file;

/// The tokens of one sequence: of a text, a pair of texts or a chunk, with special tokens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenIds {
    /// `input_ids`: vocabulary ids.
    pub ids: Vec<u32>,
    /// `token_type_ids`: 0 for the first text and its special tokens, 1 for the second text of a pair.
    pub token_type_ids: Vec<u32>,
    /// Number of tokens that truncation removed from the text.
    pub truncated_tokens: usize,
    /// Where the tokens are in the text; only of [`Tokenizer::encode_aligned`].
    pub alignment: Option<Box<Alignment>>,
    /// Number of tokens at the end that no token attends to.
    pub unattended_tokens: usize,
}

/// The end at which a text that exceeds the limit is truncated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum TruncationSide {
    /// The first tokens are dropped.
    Left,
    /// The last tokens are dropped.
    #[default]
    Right,
}

names!(TruncationSide { Left => "left", Right => "right" });

/// Which text of a pair that exceeds the limit is truncated, by the names of `transformers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PairTruncation {
    /// The longer text, until both are of equal length; then both.
    #[default]
    LongestFirst,
    /// The first text.
    OnlyFirst,
    /// The second text.
    OnlySecond,
}

names!(PairTruncation {
    LongestFirst => "longest_first",
    OnlyFirst => "only_first",
    OnlySecond => "only_second",
});

/// Options of a [`Tokenizer`] that are not in its files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// The maximum tokens of a text or pair, including special tokens.
    pub max_length: usize,
    /// The end at which longer texts are truncated.
    pub truncation_side: TruncationSide,
    /// Which text of a pair is truncated.
    pub pair_truncation: PairTruncation,
    /// Whether texts are lowercased before the tokenizer's own normalizer.
    pub lowercase: bool,
}

/// The maximum white-space characters in a row that a regular expression of a tokenizer can split. Its engine
/// gives up after a million steps, and would leave the rest of the text unsplit without an error.
const MAX_WHITESPACE_RUN: usize = 999_000;

/// What `clean_up_tokenization_spaces` replaces in decoded tokens.
const CLEANED_UP: [(&str, &str); 10] = [
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
];
/// The setting without which the tokens of a BPE are not cleaned up.
const CLEAN_UP_BPE: &str = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output";

/// A tokenizer with a maximum length. Clones share the vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<LibraryTokenizer>,
    /// Whether the pre-tokenizer has a regular expression.
    has_regex: bool,
    max_length: usize,
    truncation_side: TruncationSide,
    pair_truncation: PairTruncation,
    /// The mask token that a file next to the tokenizer names.
    named_mask: Option<String>,
    /// The padding token that a file next to the tokenizer names.
    named_padding: Option<String>,
    /// The id of the token that the configuration names for what is not in the vocabulary.
    unknown: Option<u32>,
    /// Whether decoded tokens have no space before punctuation.
    cleans_up: bool,
    /// The side of the text that `padding_side` names.
    padding_side: TruncationSide,
    /// The token that sequences are padded with to `max_length`; `None`: they are not padded.
    padding: Option<u32>,
    /// Characters of a text that are tokenized, for each token of `max_length`.
    characters_per_token: Option<usize>,
    /// Whether long texts may be tokenized in pieces; found for the first one.
    takes_pieces: OnceLock<bool>,
}

/// Builds the tokenizer of a vocabulary.
type ReadVocabulary = fn(&Path, &TokenizerConfig) -> Result<ClassTokenizer>;

/// Parses a `tokenizer.json`.
fn parse(bytes: &[u8]) -> serde_json::Result<LibraryTokenizer> {
    serde_json::from_slice::<LibraryTokenizer>(bytes).map_err(|error| {
        if has_model_of_long_pieces(bytes) {
            return error;
        }
        // The library gives the line of an error in the model, too.
        serde_json::from_slice::<tokenizers::Tokenizer>(bytes).err().unwrap_or(error)
    })
}

/// Whether a normalizer has a step that lowercases. If so, sentence-transformers does not add one.
fn lowercases(normalizer: Option<&NormalizerWrapper>) -> bool {
    match normalizer {
        Some(NormalizerWrapper::Lowercase(_)) => true,
        Some(NormalizerWrapper::Sequence(steps)) => {
            steps.as_ref().iter().any(|step| matches!(step, NormalizerWrapper::Lowercase(_)))
        }
        _ => false,
    }
}

/// Whether a pre-tokenizer, as in a `tokenizer.json`, uses a regular expression: one of its own, or that of
/// byte-level BPE.
fn has_regex(pre_tokenizer: &Value) -> bool {
    match pre_tokenizer {
        Value::Object(fields) => {
            let is_byte_level = fields.get("type").is_some_and(|name| name == "ByteLevel");
            let uses_regex = is_byte_level && fields.get("use_regex") != Some(&Value::Bool(false));
            uses_regex || fields.contains_key("Regex") || fields.values().any(has_regex)
        }
        Value::Array(list) => list.iter().any(has_regex),
        _ => false,
    }
}

/// Builds a tokenizer from a `tokenizer.json` and the files next to it.
///
/// # Errors
/// The outer error is about the files next to it, the inner one about the `tokenizer.json` itself.
fn from_json(
    path: &Path,
    bytes: &[u8],
    config: &TokenizerConfig,
) -> Result<serde_json::Result<ClassTokenizer>> {
    if let Some(tokenizer) = tokenizer_json::from_class(path, bytes, config)? {
        return Ok(Ok(tokenizer));
    }
    match parse(bytes) {
        Ok(tokenizer) => tokenizer_json::add_special_tokens(path, tokenizer, config).map(Ok),
        Err(error) => Ok(Err(error)),
    }
}

/// Reads a `tokenizer.json` with `parse`, whose inner error is about the file itself, and builds the
/// tokenizer.
fn read_json<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<serde_json::Result<T>>,
    build: impl FnOnce(T) -> Result<Tokenizer>,
) -> Result<Tokenizer> {
    let shown = path.display();
    let bytes = regular_file::read_model_file(path, regular_file::MAX_TOKENIZER_BYTES)?;
    let reason = match catch_panic(|| parse(&bytes)).transpose()? {
        Some(Ok(parsed)) => match build(parsed) {
            Ok(tokenizer) => return Ok(tokenizer),
            Err(error) => error.to_string(),
        },
        Some(Err(error)) => format!("line {}, column {}", error.line(), error.column()),
        None => "the tokenizers library panics on it".into(),
    };
    bail!("cannot parse {shown} as a tokenizer ({reason}); download it again")
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or a `vocab.txt`, a `vocab.json` or a SentencePiece file with the files next
    /// to it. Padding and truncation settings of the file are ignored: batches are ragged, and `options` has
    /// the limit.
    pub fn read(path: &Path, options: &TokenizerOptions) -> Result<Self> {
        let shown = path.display();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let config = TokenizerConfig::read(path)?;
        let of_vocabulary = match &*name {
            name if vocab_files::is_vocab_file(name) => Some(vocab_files::read as ReadVocabulary),
            name if name.ends_with(".model") => Some(sentence_piece_files::read as ReadVocabulary),
            _ => None,
        };
        if let Some(read) = of_vocabulary {
            let cannot_build = || {
                anyhow!(
                    "cannot build a tokenizer from {shown} and the files next to it; download the model again"
                )
            };
            let built = catch_panic(|| read(path, &config)).ok_or_else(cannot_build)??;
            return Self::of_class(built, options, &config).map_err(|_| cannot_build());
        }
        let parse = |bytes: &[u8]| from_json(path, bytes, &config);
        read_json(path, parse, |built| Self::of_class(built, options, &config))
    }

    /// Reads the `tokenizer.json` of a static model: the files next to it are not read, and there are no
    /// special tokens. `options` gets the limit and the side of truncation that the file sets, if it does.
    pub fn read_static(
        path: &Path,
        options: impl FnOnce(Option<(usize, TruncationSide)>) -> TokenizerOptions,
    ) -> Result<Self> {
        let build = |mut inner: LibraryTokenizer| {
            inner.with_post_processor(None::<PostProcessorWrapper>);
            let own = inner.get_truncation().map(|own| match own.direction {
                TruncationDirection::Left => (own.max_length, TruncationSide::Left),
                TruncationDirection::Right => (own.max_length, TruncationSide::Right),
            });
            Self::new(inner, &options(own))
        };
        read_json(path, |bytes| Ok(parse(bytes)), build)
    }

    /// Cuts texts before they are tokenized, as model2vec does: to the maximum length times the median length
    /// of the tokens of the vocabulary, in characters.
    pub fn cut_characters(&mut self) {
        let vocabulary = self.inner.get_vocab(true);
        let mut lengths: Vec<usize> = vocabulary.keys().map(|token| token.chars().count()).collect();
        lengths.sort_unstable();
        let (low, high) = (lengths.len().saturating_sub(1) / 2, lengths.len() / 2);
        let at = |index: usize| lengths.get(index).copied().unwrap_or(0);
        self.characters_per_token = Some((at(low) + at(high)) / 2);
    }

    /// The text as far as it is tokenized, if that is not all of it.
    fn cut<'a>(&self, text: &'a str) -> Option<&'a str> {
        let characters = self.characters_per_token?.saturating_mul(self.max_length);
        // A text of that many bytes does not have more characters.
        if text.len() <= characters {
            return None;
        }
        let (end, _) = text.char_indices().nth(characters)?;
        Some(&text[..end])
    }

    /// The id of the token that the configuration names for what is not in the vocabulary, if there is one.
    pub fn unknown_token_id(&self) -> Option<u32> {
        self.unknown
    }

    /// The id of the token that the model of the tokenizer gives for what is not in the vocabulary, if there
    /// is one.
    pub fn model_unknown_token_id(&self) -> Option<u32> {
        self.token_id(&self.model().unk_token()?)
    }

    /// A tokenizer with the files next to it.
    fn of_class(built: ClassTokenizer, options: &TokenizerOptions, config: &TokenizerConfig) -> Result<Self> {
        let ClassTokenizer { tokenizer, unk_token } = built;
        let named = |name: &str| config.special_token(name).map(str::to_owned);
        let tokenizer = Self::new(tokenizer, options)?;
        let is_set = |key: &str| config.field(key) == Some(&Value::Bool(true));
        let may_clean_up = !matches!(tokenizer.model(), TokenModel::Bpe(_)) || is_set(CLEAN_UP_BPE);
        Ok(Tokenizer {
            unknown: unk_token.and_then(|token| tokenizer.token_id(&token)),
            cleans_up: may_clean_up && is_set("clean_up_tokenization_spaces"),
            named_mask: named("mask_token"),
            named_padding: named("pad_token"),
            padding_side: if config.pads_left()? { TruncationSide::Left } else { TruncationSide::Right },
            ..tokenizer
        })
    }

    /// A tokenizer without other files.
    fn new(mut inner: LibraryTokenizer, options: &TokenizerOptions) -> Result<Self> {
        check_growth(&inner)?;
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        if options.lowercase && !lowercases(inner.get_normalizer().map(|own| &own.0)) {
            let own = inner.get_normalizer().map(|own| own.0.clone());
            let steps = [Some(NormalizerWrapper::Lowercase(Lowercase)), own];
            let sequence = Sequence::new(steps.into_iter().flatten().collect());
            inner.with_normalizer(Some(sequence)).map_err(|error| anyhow!("{error}"))?;
        }
        let pre_tokenizer = inner.get_pre_tokenizer().and_then(|own| serde_json::to_value(&own.0).ok());
        let has_regex = pre_tokenizer.as_ref().is_some_and(has_regex);
        let TokenizerOptions { max_length, truncation_side, pair_truncation, .. } = *options;
        let tokenizer = Tokenizer {
            inner: Arc::new(inner),
            has_regex,
            max_length,
            truncation_side,
            pair_truncation,
            named_mask: None,
            named_padding: None,
            unknown: None,
            cleans_up: false,
            padding_side: TruncationSide::Right,
            padding: None,
            characters_per_token: None,
            takes_pieces: OnceLock::new(),
        };
        // A template with a special token that it does not define makes the library panic on the first text.
        if catch_panic(|| [None, Some("b")].map(|pair| tokenizer.encode("a", pair).is_ok())).is_none() {
            bail!("its post-processor names a special token that it does not define");
        }
        Ok(tokenizer)
    }

    /// The id of the mask token and the token: the one that the tokenizer's files name, else `[MASK]` or
    /// `<mask>` if it is in the vocabulary.
    pub fn mask_token(&self) -> Option<(u32, &str)> {
        let candidates = match &self.named_mask {
            Some(named) => vec![named.as_str()],
            None => vec!["[MASK]", "<mask>"],
        };
        candidates.into_iter().find_map(|token| Some((self.token_id(token)?, token)))
    }

    /// The text of a token, as `decode` of transformers returns it; that of an id without a token is empty.
    pub fn decode(&self, id: u32) -> String {
        let text = self.inner.decode(&[id], false).unwrap_or_default();
        match self.cleans_up {
            true => CLEANED_UP.iter().fold(text, |text, (from, to)| text.replace(from, to)),
            false => text,
        }
    }

    /// The text of tokens, as `decode` of transformers returns it. Ids without a token are left out.
    pub fn decode_all(&self, ids: &[u32], skip_special_tokens: bool) -> String {
        self.inner.decode(ids, skip_special_tokens).unwrap_or_default()
    }

    /// How it splits words into tokens.
    pub fn algorithm(&self) -> &'static str {
        self.model().algorithm()
    }

    /// Tokens in the vocabulary, added tokens included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The maximum tokens of a text or pair, including special tokens.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// The library's tokenizer, which is changed before there are clones.
    fn inner_mut(&mut self) -> &mut LibraryTokenizer {
        Arc::get_mut(&mut self.inner).expect("a tokenizer is changed before it is cloned")
    }

    /// Sets the maximum tokens of a text or pair, including special tokens.
    pub fn set_max_length(&mut self, max_length: usize) {
        self.max_length = max_length;
    }

    /// Pads sequences to the maximum length: with the padding token that the tokenizer's files name, else
    /// with `default`.
    pub fn pad_to_max_length(&mut self, default: u32) {
        let named = self.named_padding.as_deref().and_then(|token| self.token_id(token));
        self.padding = Some(named.unwrap_or(default));
    }

    /// Makes a prompt, or its first word, one token wherever a text contains it, if it is in the vocabulary:
    /// the marker of queries or documents, which the normalizer or the pre-tokenizer would split.
    pub fn add_marker(&mut self, prompt: &str) -> Result<()> {
        let Some(word) = prompt.split_whitespace().next() else { return Ok(()) };
        let Some(marker) = [prompt, word].into_iter().find(|marker| self.token_id(marker).is_some()) else {
            return Ok(());
        };
        if self.encode_without_special_tokens(marker)?.get_ids()
            != [self.token_id(marker).unwrap_or_default()]
        {
            let token = AddedToken::from(marker.to_owned(), true).normalized(false);
            self.inner_mut().add_special_tokens([token]).map_err(|error| anyhow!("{error}"))?;
        }
        Ok(())
    }

    /// Removes the special tokens that are added to texts.
    pub fn without_special_tokens(mut self) -> Self {
        self.inner_mut().with_post_processor(None::<PostProcessorWrapper>);
        self
    }

    /// The id of a token, if the vocabulary has it.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The end at which longer texts are truncated.
    pub fn truncation_side(&self) -> TruncationSide {
        self.truncation_side
    }

    /// This tokenizer, but for the end at which longer texts are truncated.
    pub fn with_truncation_side(&self, side: Option<TruncationSide>) -> Cow<'_, Self> {
        match side.filter(|side| *side != self.truncation_side) {
            Some(truncation_side) => Cow::Owned(Tokenizer { truncation_side, ..self.clone() }),
            None => Cow::Borrowed(self),
        }
    }

    /// Which text of a pair is truncated.
    pub fn pair_truncation(&self) -> PairTruncation {
        self.pair_truncation
    }

    /// Tokenizes a text, or a pair of texts, and adds special tokens. Texts over the limit are truncated at
    /// [`Tokenizer::truncation_side`], pairs by [`Tokenizer::pair_truncation`]; special tokens are kept.
    pub fn encode(&self, text: &str, pair: Option<&str>) -> Result<TokenIds> {
        let cut = self.cut(text);
        // The order of the lengths of a pair decides how it is truncated.
        let kept = self.max_length.saturating_add(2);
        let (mut first, first_tokens) = self.encode_at_least(cut.unwrap_or(text), kept)?;
        // The tokens of the whole text are counted.
        let not_tokenized = match cut {
            Some(_) => self.encode_at_least(text, 0)?.1.saturating_sub(first_tokens).max(1),
            None => 0,
        };
        let (mut second, second_tokens) =
            match pair.map(|pair| self.encode_at_least(pair, kept)).transpose()? {
                Some((second, tokens)) => (Some(second), tokens),
                None => (None, 0),
            };
        let tokens = first_tokens + second_tokens;
        let max_length = self.max_length.saturating_sub(self.num_special_tokens(pair.is_some()));
        let direction = self.direction();
        let removed = tokens.saturating_sub(max_length);
        let (strategy, only) = match (&second, self.pair_truncation) {
            (None, _) | (_, PairTruncation::LongestFirst) => (TruncationStrategy::LongestFirst, None),
            (Some(_), PairTruncation::OnlyFirst) => {
                (TruncationStrategy::OnlyFirst, Some(("first", first_tokens)))
            }
            (Some(_), PairTruncation::OnlySecond) => {
                (TruncationStrategy::OnlySecond, Some(("second", second_tokens)))
            }
        };
        if let Some((text, tokens)) = only.filter(|(_, tokens)| removed > 0 && *tokens <= removed) {
            let limit = self.max_length;
            bail!("{removed} tokens over the limit of {limit}, but its {text} text has only {tokens}");
        }
        // Of texts that were tokenized in pieces, one token more than the limit, and one more of the longer
        // text.
        let is_cut =
            first.len() < first_tokens || second.as_ref().is_some_and(|second| second.len() < second_tokens);
        if is_cut {
            truncate(&mut first, max_length + 1 + usize::from(first_tokens > second_tokens), direction);
            second.iter_mut().for_each(|second| truncate(second, max_length + 1, direction));
        }
        let truncation = TruncationParams { max_length, direction, strategy, ..Default::default() };
        let (mut first, mut second) =
            truncate_encodings(first, second, &truncation).map_err(|error| anyhow!("{error}"))?;
        // The library keeps the truncated tokens as further encodings of `max_length` tokens, and its
        // post-processor would combine each of the first text with each of the second.
        for encoding in [Some(&mut first), second.as_mut()].into_iter().flatten() {
            drop(encoding.take_overflowing());
        }
        Ok(TokenIds { truncated_tokens: removed + not_tokenized, ..self.with_special_tokens(first, second)? })
    }

    /// Tokenizes a text that has its special tokens, such as the text of a chat template. One over the limit
    /// is truncated.
    pub fn encode_rendered(&self, text: &str) -> Result<TokenIds> {
        let (mut encoding, tokens) = self.encode_at_least(text, self.max_length)?;
        let truncated_tokens = tokens.saturating_sub(self.max_length);
        encoding.truncate(self.max_length, 0, self.direction());
        Ok(TokenIds { truncated_tokens, ..token_ids(&encoding) })
    }

    /// The tokens of a text of any length that has its special tokens.
    pub fn rendered_ids(&self, text: &str) -> Result<Vec<u32>> {
        Ok(self.encode_without_special_tokens(text)?.get_ids().to_vec())
    }

    /// The number of tokens in a sequence that do not come from its text: the special tokens and those of
    /// `prompt`.
    pub fn num_prompt_and_special_tokens(&self, prompt: &str) -> Result<usize> {
        Ok(self.num_special_tokens(false) + self.encode_without_special_tokens(prompt)?.len())
    }

    /// The byte range in the text of each of its tokens, without special tokens.
    pub fn offsets(&self, text: &str) -> Result<Vec<Range<usize>>> {
        self.check_whitespace(text)?;
        let encoding = self.inner.encode(text, false).map_err(|error| anyhow!("{error}"))?;
        Ok(encoding.get_offsets().iter().map(|&(start, end)| start..end).collect())
    }

    /// Tokenizes a text of any length, without truncation, and adds special tokens. Returns with the tokens
    /// the byte range of each in the text, `None` for special tokens.
    pub fn encode_with_offsets(&self, text: &str) -> Result<(TokenIds, Vec<Option<Range<usize>>>)> {
        self.check_whitespace(text)?;
        let encoding = self.inner.encode(text, true).map_err(|error| anyhow!("{error}"))?;
        let tokens = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
        let offsets = tokens.map(|(&(start, end), &special)| (special == 0).then_some(start..end)).collect();
        Ok((token_ids(&encoding), offsets))
    }

    /// Tokenizes a text in consecutive sequences without overlap. Each has the prompt before it and the
    /// special tokens around it, and is as long as the limit allows; the last one has the rest.
    ///
    /// # Panics
    /// If the [prompt and the special tokens](Tokenizer::num_prompt_and_special_tokens) reach the limit.
    pub fn encode_in_sequences(&self, prompt: &str, text: &str) -> Result<Vec<TokenIds>> {
        let prompt = self.encode_without_special_tokens(prompt)?;
        let max_text_tokens = self.max_length.saturating_sub(self.num_special_tokens(false) + prompt.len());
        assert!(max_text_tokens > 0, "the prompt and the special tokens reach the limit");
        let (mut first, _) = self.encode_at_least(text, usize::MAX)?;
        first.truncate(max_text_tokens, 0, TruncationDirection::Right);
        let rest = first.take_overflowing();
        let chunk = |text: Encoding| {
            let mut tokens = prompt.clone();
            tokens.merge_with(text, true);
            self.with_special_tokens(tokens, None)
        };
        [first].into_iter().chain(rest).map(chunk).collect()
    }

    /// Tokenizes a text, or a pair, of any length with special tokens. Offsets are in characters.
    pub(super) fn encode_characters(&self, first: Option<&str>, text: &str) -> Result<Encoding> {
        for text in first.into_iter().chain([text]) {
            self.check_whitespace(text)?;
        }
        let encoding = match first {
            Some(first) => self.inner.encode_char_offsets((first, text), true),
            None => self.inner.encode_char_offsets(text, true),
        };
        encoding.map_err(|error| anyhow!("{error}"))
    }

    /// How words are split into tokens.
    pub(super) fn model(&self) -> &TokenModel {
        self.inner.get_model()
    }

    /// The tokens of a text without special tokens.
    fn encode_without_special_tokens(&self, text: &str) -> Result<Encoding> {
        self.check_whitespace(text)?;
        self.inner.encode_fast(text, false).map_err(|error| anyhow!("{error}"))
    }

    /// The tokens of a text without special tokens, and their number: all of them, or of a long text at least
    /// `kept` at the side that truncation keeps.
    fn encode_at_least(&self, text: &str, kept: usize) -> Result<(Encoding, usize)> {
        let takes_pieces = || *self.takes_pieces.get_or_init(|| pieces::takes_pieces(&self.inner));
        if text.len() < pieces::MIN_BYTES || !takes_pieces() {
            let encoding = self.encode_without_special_tokens(text)?;
            let tokens = encoding.len();
            return Ok((encoding, tokens));
        }
        self.check_whitespace(text)?;
        let (mut all, mut tokens) = (Encoding::default(), 0);
        for piece in pieces::pieces(text) {
            let encoding = self.inner.encode_fast(piece, false).map_err(|error| anyhow!("{error}"))?;
            tokens += encoding.len();
            match self.truncation_side {
                TruncationSide::Right if all.len() >= kept => {}
                TruncationSide::Right => all.merge_with(encoding, false),
                TruncationSide::Left => {
                    all.merge_with(encoding, false);
                    // Not for each piece: what is kept is copied.
                    if all.len() / 2 > kept.max(pieces::PIECE_BYTES) {
                        truncate(&mut all, kept, TruncationDirection::Left);
                    }
                }
            }
        }
        Ok((all, tokens))
    }

    fn direction(&self) -> TruncationDirection {
        match self.truncation_side {
            TruncationSide::Left => TruncationDirection::Left,
            TruncationSide::Right => TruncationDirection::Right,
        }
    }

    /// Refuses a text with more white space in a row than the regular expression of the tokenizer can split.
    fn check_whitespace(&self, text: &str) -> Result<()> {
        if self.has_regex && text.len() > MAX_WHITESPACE_RUN {
            let longest = text.split(|c: char| !c.is_whitespace()).map(|run| run.chars().count()).max();
            if let Some(longest) = longest.filter(|longest| *longest > MAX_WHITESPACE_RUN) {
                bail!(
                    "{longest} white-space characters in a row; the regular expression of its tokenizer can split \
                     {MAX_WHITESPACE_RUN}"
                )
            }
        }
        Ok(())
    }

    /// Adds special tokens to the tokens of a text or pair.
    fn with_special_tokens(&self, first: Encoding, second: Option<Encoding>) -> Result<TokenIds> {
        let encoding = self.inner.post_process(first, second, true).map_err(|error| anyhow!("{error}"))?;
        Ok(self.padded(token_ids(&encoding)))
    }

    /// The tokens with padding up to the maximum length, if sequences are padded.
    fn padded(&self, mut tokens: TokenIds) -> TokenIds {
        let Some(padding) = self.padding else { return tokens };
        let missing = self.max_length.saturating_sub(tokens.ids.len());
        let at = match self.padding_side {
            TruncationSide::Left => 0,
            TruncationSide::Right => tokens.ids.len(),
        };
        tokens.ids.splice(at..at, repeat_n(padding, missing));
        tokens.token_type_ids.splice(at..at, repeat_n(0, missing));
        tokens
    }

    /// The number of prompt tokens that are excluded from pooling, as sentence-transformers counts them: the
    /// tokens of the prompt alone, with special tokens, except one at the end.
    pub fn prompt_length(&self, prompt: &str) -> Result<usize> {
        let encoding = self.inner.encode(prompt, true).map_err(|error| anyhow!("{error}"))?;
        let length = encoding.len().min(self.max_length);
        if encoding.get_special_tokens_mask().last() == Some(&1) {
            return Ok(length - 1);
        }
        // The text of the prompt may itself end in a special token.
        let added_tokens = self.inner.get_added_tokens_decoder();
        let last = length.checked_sub(1).map(|last| encoding.get_ids()[last]);
        let is_special = last.and_then(|id| added_tokens.get(&id)).is_some_and(|token| token.special);
        Ok(length - usize::from(is_special))
    }

    /// The token with this id, if there is one.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Whether a token is a special token of the vocabulary, such as `[CLS]`.
    pub fn is_special(&self, token: &str) -> bool {
        self.inner.get_added_vocabulary().is_special_token(token)
    }

    /// The token with this id for a reader. Tokens of byte-level BPE are decoded where they are whole
    /// characters, with `Ġ` for a space as in the vocabulary (`Ã©` → `é`); others are the strings of the
    /// vocabulary, `#ID` if there is none.
    pub fn label(&self, id: u32) -> String {
        let Some(token) = self.token(id) else { return format!("#{id}") };
        let is_byte_level = matches!(self.inner.get_decoder(), Some(DecoderWrapper::ByteLevel(_)));
        if !is_byte_level || self.is_special(&token) {
            return token;
        }
        match self.inner.decode(&[id], false) {
            Ok(text) if !text.is_empty() && !text.contains(char::REPLACEMENT_CHARACTER) => {
                text.replace(' ', "Ġ")
            }
            _ => token,
        }
    }

    /// The number of special tokens that are added to a text, or to a pair: `num_special_tokens_to_add` of
    /// transformers.
    pub fn num_special_tokens(&self, is_pair: bool) -> usize {
        self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(is_pair))
    }
}

/// Maximum factor by which the `Replace` steps of a normalizer lengthen a text together; those of Llama's
/// make three bytes of one.
const MAX_GROWTH: usize = 16;
/// Maximum bytes that a `Prepend` step puts before each part of a text.
const MAX_PREPENDED: usize = 64;

/// Refuses a tokenizer that makes much of a short text: one whose post-processor has a text twice, one whose
/// normalizer replaces short strings by long ones, or a Unigram model with long pieces.
fn check_growth(tokenizer: &LibraryTokenizer) -> Result<()> {
    let post_processor = tokenizer.get_post_processor().map(serde_json::to_value).transpose()?;
    if let Some((text, times)) = post_processor.as_ref().and_then(repeated_text) {
        bail!("its post-processor has text {text} {times} times");
    }
    let normalizer = tokenizer.get_normalizer().map(|own| &own.0);
    if normalizer.is_some_and(has_damaged_map) {
        bail!("its \"precompiled_charsmap\" is damaged");
    }
    let growth = normalizer.map_or(Some(1), growth);
    if growth.is_none_or(|growth| growth > MAX_GROWTH) {
        bail!("its normalizer makes more than {MAX_GROWTH} bytes of one");
    }
    if let TokenModel::Unigram(model) = tokenizer.get_model() {
        let longest = model.longest_piece();
        if longest > MAX_PIECE_BYTES {
            bail!(
                "its Unigram model has a piece of {longest} bytes, and at most {MAX_PIECE_BYTES} are supported"
            );
        }
    }
    Ok(())
}

/// The text that a template of a post-processor has more than once, and how often.
fn repeated_text(post_processor: &Value) -> Option<(String, usize)> {
    let of_template = |template: &Value| {
        let names =
            template.as_array()?.iter().filter_map(|piece| piece.get("Sequence")?.get("id")?.as_str());
        let names: Vec<&str> = names.collect();
        let times = |text: &str| names.iter().filter(|name| **name == text).count();
        ["A", "B"].map(|text| (text.to_owned(), times(text))).into_iter().find(|(_, times)| *times > 1)
    };
    let processors = post_processor.get("processors").and_then(Value::as_array);
    let own = ["single", "pair"].iter().find_map(|key| of_template(post_processor.get(key)?));
    own.or_else(|| processors?.iter().find_map(repeated_text))
}

/// How many bytes the steps of a normalizer that insert strings make of one; `None` for very many.
fn growth(normalizer: &NormalizerWrapper) -> Option<usize> {
    match normalizer {
        NormalizerWrapper::Sequence(steps) => {
            steps.as_ref().iter().try_fold(1, |product: usize, step| product.checked_mul(growth(step)?))
        }
        NormalizerWrapper::Prepend(step) => (step.prepend.len() <= MAX_PREPENDED).then_some(1),
        NormalizerWrapper::Replace(step) => {
            let fields = serde_json::to_value(step).ok()?;
            let replaced = fields["pattern"]["String"].as_str().map_or(1, str::len).max(1);
            Some(step.content.len().div_ceil(replaced).max(1))
        }
        // The characters of long replacements have three bytes.
        NormalizerWrapper::Precompiled(map) => Some(longest_of_map(map)?.div_ceil(3).max(1)),
        _ => Some(1),
    }
}

/// The bytes of a map's longest replacement; `None` if it is damaged.
fn longest_of_map(map: &Precompiled) -> Option<usize> {
    let fields = serde_json::to_value(map).ok()?;
    longest_replacement(&BASE64_STANDARD.decode(fields["precompiled_charsmap"].as_str()?).ok()?)
}

/// Whether a normalizer has a map of characters that leads out of itself, where the library panics.
fn has_damaged_map(normalizer: &NormalizerWrapper) -> bool {
    match normalizer {
        NormalizerWrapper::Sequence(steps) => steps.as_ref().iter().any(has_damaged_map),
        NormalizerWrapper::Precompiled(map) => longest_of_map(map).is_none(),
        _ => false,
    }
}

/// Keeps `length` tokens of an encoding, and drops the others.
fn truncate(encoding: &mut Encoding, length: usize, direction: TruncationDirection) {
    encoding.truncate(length, 0, direction);
    drop(encoding.take_overflowing());
}

fn token_ids(encoding: &Encoding) -> TokenIds {
    let (ids, token_type_ids) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
    TokenIds { ids, token_type_ids, truncated_tokens: 0, alignment: None, unattended_tokens: 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use tokenizers::{Model, ModelWrapper, Normalizer, PreTokenizer, PreTokenizerWrapper, TokenizerImpl};

    use super::*;

    type WithParts<M, N, P> = TokenizerImpl<M, N, P, PostProcessorWrapper, DecoderWrapper>;
    type OfLibrary = WithParts<ModelWrapper, NormalizerWrapper, PreTokenizerWrapper>;

    #[test]
    fn white_space_that_a_regular_expression_cannot_split_is_an_error() {
        let file = |pre_tokenizer: &str| {
            format!(
                r#"{{"version": "1.0", "pre_tokenizer": {pre_tokenizer}, "model": {{"type": "BPE",
                "vocab": {{"Ġ": 0, "x": 1, "xĠ": 2, " ": 3, "x ": 4}}, "merges": [["x", "Ġ"], ["x", " "]]}}}}"#
            )
        };
        let byte_level = |use_regex: bool| {
            format!(
                r#"{{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": {use_regex}}}"#
            )
        };
        let split = r#"{"type": "Split", "pattern": {"Regex": "\\s+(?!\\S)|\\s+|\\S+"}, "behavior": "Isolated",
            "invert": false}"#;
        let sequence =
            format!(r#"{{"type": "Sequence", "pretokenizers": [{split}, {}]}}"#, byte_level(false));
        let options = TokenizerOptions {
            max_length: 2_000_000,
            truncation_side: TruncationSide::Right,
            pair_truncation: PairTruncation::LongestFirst,
            lowercase: false,
        };
        let read = |pre_tokenizer: &str| {
            Tokenizer::new(parse(file(pre_tokenizer).as_bytes()).unwrap(), &options).unwrap()
        };
        for pre_tokenizer in [&byte_level(true), split, &sequence] {
            let tokenizer = read(pre_tokenizer);
            for count in [1_000, MAX_WHITESPACE_RUN] {
                let tokens = tokenizer.encode(&format!("{}x x x", " ".repeat(count)), None).unwrap();
                // No token contains a space and a part of the next word.
                assert_eq!(tokens.ids.len(), count + 5, "{pre_tokenizer}");
            }
            for count in [MAX_WHITESPACE_RUN + 1, 1_000_100] {
                let error = tokenizer.encode(&format!("x{}x x x", " ".repeat(count)), None).unwrap_err();
                assert!(
                    error.to_string().contains(&format!("{count} white-space characters in a row")),
                    "{error}"
                );
            }
        }
        // Without a regular expression there is no such limit.
        let tokens =
            read(&byte_level(false)).encode(&format!("{}x x x", " ".repeat(1_000_100)), None).unwrap();
        assert_eq!(tokens.ids.len(), 1_000_100 + 3);
    }

    const NO_LIMIT: TokenizerOptions = TokenizerOptions {
        max_length: usize::MAX,
        truncation_side: TruncationSide::Right,
        pair_truncation: PairTruncation::LongestFirst,
        lowercase: false,
    };

    /// The fixtures of tokenizers, with their names, and their texts.
    fn fixtures() -> (Vec<(String, Tokenizer)>, Vec<String>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tokenizers");
        let texts: Value =
            serde_json::from_slice(&std::fs::read(folder.join("texts.json")).unwrap()).unwrap();
        let texts = texts.as_array().unwrap().iter().map(|row| row["text"].as_str().unwrap().to_owned());
        let folders = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let read = |folder: std::path::PathBuf| {
            let names = ["tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model"];
            let names = names.into_iter().chain(["sentencepiece.bpe.model", "spm.model"]);
            let file = names.map(|name| folder.join(name)).find(|file| file.exists()).unwrap();
            let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
            (name, Tokenizer::read(&file, &NO_LIMIT).unwrap())
        };
        (folders.filter(|folder| folder.is_dir()).map(read).collect(), texts.collect())
    }

    #[test]
    fn pieces_of_a_text_have_its_tokens() {
        let (tokenizers, texts) = fixtures();
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut whole = Vec::new();
        let (mut count, mut cuts) = (0, 0);
        for (name, tokenizer) in tokenizers {
            if !pieces::takes_pieces(&tokenizer.inner) {
                whole.push(name);
                continue;
            }
            count += 1;
            for _ in 0..100 {
                let mut text = String::new();
                for _ in 0..20 {
                    let other = &texts[rng.random_range(0..texts.len())];
                    let words: Vec<&str> = other.split_inclusive([' ', '<', '[']).collect();
                    let start = rng.random_range(0..=words.len());
                    let end = rng.random_range(start..=words.len());
                    text.push_str(&words[start..end].concat());
                    text.push_str(["", " ", "  ", "\n", " a ", "b é"][rng.random_range(0..6)]);
                }
                let expected = tokenizer.encode_without_special_tokens(&text).unwrap();
                let parts: Vec<&str> = pieces::pieces_of(&text, rng.random_range(1..40)).collect();
                cuts += parts.len() - 1;
                let of =
                    |part: &&str| tokenizer.encode_without_special_tokens(part).unwrap().get_ids().to_vec();
                let found: Vec<u32> = parts.iter().flat_map(of).collect();
                assert_eq!(found, expected.get_ids(), "{name} {parts:?}");
            }
        }
        assert!(count > 40 && cuts > 10_000, "{count} tokenizers, {cuts} cuts");
        whole.sort_unstable();
        // The tokens of ESM are cut by an expression of their own; BigBird's normalizer makes one word of
        // spaces; those of the others put a prefix before each text.
        let expected = ["esm", "esm-pieces", "json-big-bird", "json-llama-classless", "json-mistral"];
        assert_eq!(whole, expected);
    }

    #[test]
    fn long_texts_are_truncated_as_if_they_were_tokenized_at_once() {
        let (tokenizers, texts) = fixtures();
        let long =
            |words: usize| texts[..9].concat().split(' ').cycle().take(words).collect::<Vec<_>>().join(" ");
        let (long, longer, short) = (long(2_000), long(2_010), long(30));
        assert!(long.len() > pieces::MIN_BYTES);
        for (name, mut tokenizer) in tokenizers {
            if !["bert-plain", "json-xlm-roberta"].contains(&&*name) {
                continue;
            }
            for side in [TruncationSide::Left, TruncationSide::Right] {
                for (limit, pair_truncation) in [
                    (8, PairTruncation::LongestFirst),
                    (9, PairTruncation::LongestFirst),
                    (600, PairTruncation::OnlyFirst),
                    (20_000, PairTruncation::LongestFirst),
                ] {
                    (tokenizer.truncation_side, tokenizer.max_length) = (side, limit);
                    tokenizer.pair_truncation = pair_truncation;
                    for (text, pair) in [
                        (&long, None),
                        (&long, Some(&longer)),
                        (&longer, Some(&long)),
                        (&long, Some(&short)),
                        (&short, Some(&long)),
                    ] {
                        let [at_once, in_pieces] = [false, true].map(|takes_pieces| {
                            tokenizer.takes_pieces = OnceLock::from(takes_pieces);
                            let tokens = tokenizer.encode(text, pair.map(String::as_str));
                            tokens.map_err(|error| error.to_string())
                        });
                        assert_eq!(at_once, in_pieces, "{name} {side:?} {limit}");
                    }
                    let [at_once, in_pieces] = [false, true].map(|takes_pieces| {
                        tokenizer.takes_pieces = OnceLock::from(takes_pieces);
                        tokenizer.encode_rendered(&long).unwrap()
                    });
                    assert_eq!(at_once, in_pieces, "{name} {side:?} {limit}");
                }
            }
        }
    }

    #[test]
    fn files_that_make_much_of_a_text_are_refused() {
        let file = |fields: &str, model: &str| {
            let bytes = format!(r#"{{"version": "1.0", {fields} "model": {model}}}"#);
            Tokenizer::new(parse(bytes.as_bytes()).unwrap(), &NO_LIMIT)
                .map(|_| ())
                .map_err(|error| error.to_string())
        };
        let words = r#"{"type": "WordLevel", "unk_token": "a", "vocab": {"a": 0}}"#;
        let text = |name: &str| format!(r#"{{"Sequence": {{"id": "{name}", "type_id": 0}}}}"#);
        let template = |single: &str, pair: &str| {
            format!(
                r#"{{"type": "TemplateProcessing", "single": [{single}], "pair": [{pair}], "special_tokens": {{}}}}"#
            )
        };
        let (a, pair) = (text("A"), format!("{}, {}", text("A"), text("B")));
        let many = vec![a.as_str(); 100_000].join(", ");
        for (post_processor, expected) in [
            (template(&a, &pair), None),
            (template(&many, &pair), Some("text A 100000 times")),
            (template(&a, &format!("{pair}, {}", text("B"))), Some("text B 2 times")),
            (
                format!(r#"{{"type": "Sequence", "processors": [{}]}}"#, template(&many, &pair)),
                Some("text A 100000 times"),
            ),
        ] {
            let found = file(&format!(r#""post_processor": {post_processor},"#), words);
            let expected = expected.map_or(Ok(()), |times| Err(format!("its post-processor has {times}")));
            assert_eq!(found, expected);
        }
        let replace = |pattern: &str, bytes: usize| {
            format!(r#"{{"type": "Replace", "pattern": {pattern}, "content": "{}"}}"#, "a".repeat(bytes))
        };
        let prepend = |bytes: usize| format!(r#"{{"type": "Prepend", "prepend": "{}"}}"#, "a".repeat(bytes));
        let string = |bytes: usize| format!(r#"{{"String": "{}"}}"#, "b".repeat(bytes));
        let regex = r#"{"Regex": "."}"#;
        for (steps, is_refused) in [
            (vec![prepend(3), replace(&string(1), 3)], false),
            (vec![replace(&string(2), 32), replace(regex, 1)], false),
            (vec![replace(&string(1), 17)], true),
            (vec![replace(regex, 1_000_000)], true),
            (vec![replace(&string(1), 2); 5], true),
            (vec![replace(&string(1), 2); 500], true),
            (vec![prepend(65)], true),
        ] {
            let normalizer = format!(r#"{{"type": "Sequence", "normalizers": [{}]}}"#, steps.join(", "));
            let found = file(&format!(r#""normalizer": {normalizer},"#), words);
            let refused = || Err("its normalizer makes more than 16 bytes of one".to_owned());
            assert_eq!(found, if is_refused { refused() } else { Ok(()) }, "{steps:?}");
        }
        let map = |bytes: &[u8]| {
            let map = BASE64_STANDARD.encode(bytes);
            let step = format!(r#"{{"type": "Precompiled", "precompiled_charsmap": "{map}"}}"#);
            file(&format!(r#""normalizer": {{"type": "Sequence", "normalizers": [{step}]}},"#), words)
        };
        // A trie without entries, and one whose children are past its end.
        let (empty, outside) = ([0; 1024], [0xff; 1024]);
        let trie = |units: &[u8]| [&(units.len() as u32).to_le_bytes(), units, b"b\0"].concat();
        assert_eq!(map(&trie(&empty)), Ok(()));
        assert_eq!(map(&trie(&outside)), Err("its \"precompiled_charsmap\" is damaged".to_owned()));
        let unigram = |longest: usize| {
            let pieces: Vec<String> =
                (1..=longest).map(|n| format!(r#"["{}", -1.0]"#, "a".repeat(n))).collect();
            format!(r#"{{"type": "Unigram", "unk_id": 0, "vocab": [{}]}}"#, pieces.join(", "))
        };
        assert_eq!(file("", &unigram(256)), Ok(()));
        let refused = "its Unigram model has a piece of 257 bytes, and at most 256 are supported";
        assert_eq!(file("", &unigram(257)), Err(refused.into()));
    }

    /// On a thread with a small stack: the library's trie of such a model is dropped by a recursion.
    #[test]
    fn a_piece_of_any_length_is_refused() {
        let piece = "a".repeat(1_000_000);
        let typed = format!(r#"{{"type": "Unigram", "unk_id": 0, "vocab": [["{piece}", -1.0]]}}"#);
        let untyped = typed.replace(r#""type": "Unigram", "#, "");
        let file = |model: &str, after: &str| format!(r#"{{"version": "1.0", "model": {model}{after}}}"#);
        let read = |json: String| {
            let tokenizer = parse(json.as_bytes()).map_err(|error| error.to_string())?;
            Tokenizer::new(tokenizer, &NO_LIMIT).map(drop).map_err(|error| error.to_string())
        };
        let outcomes = [
            read(file(&typed, "")),
            read(file(&untyped, "")),
            read(file(&typed, r#", "normalizer": 3"#)),
            read(file(&untyped, r#", "normalizer": 3"#)),
        ];
        let reasons = ["a piece of 1000000 bytes", "very long pieces", "", "very long pieces"];
        for (outcome, reason) in outcomes.into_iter().zip(reasons) {
            let error = outcome.unwrap_err();
            assert!(error.contains(reason), "{error}");
        }
    }

    /// The vocabulary and what some texts become, or the error.
    fn outcome<M: Model, N: Normalizer, P: PreTokenizer>(
        read: serde_json::Result<WithParts<M, N, P>>,
    ) -> Result<String, String> {
        let tokenizer = read.map_err(|error| error.to_string())?;
        let vocabulary: BTreeMap<String, u32> = tokenizer.get_vocab(true).into_iter().collect();
        let tokens = |text| match tokenizer.encode(text, true) {
            Ok(encoding) => Ok((encoding.get_tokens().to_vec(), encoding.get_ids().to_vec())),
            Err(error) => Err(error.to_string()),
        };
        Ok(format!("{vocabulary:?} {:?}", ["ab", "ba", "abababababab", "[UNK]", "c"].map(tokens)))
    }

    #[test]
    fn every_model_parses_as_the_library_parses_it() {
        let vocab = r#""vocab": {"a": 0, "b": 1, "ab": 2, "[UNK]": 3}"#;
        let rest =
            r#""unk_token": "[UNK]", "continuing_subword_prefix": "\u0023#", "max_input_chars_per_word": 9"#;
        let models = [
            format!(r#""type": "WordPiece", {rest}, {vocab}"#),
            format!(r#"{vocab}, {rest}, "type": "WordPiece""#),
            format!(r#"{rest}, {vocab}"#),
            format!(r#""type": "Word\u0050iece", {rest}, {vocab}"#),
            format!(
                r#""type": "BPE", "dropout": null, "ignore_merges": true, {vocab}, "merges": [["a", "b"]]"#
            ),
            format!(r#""type": "BPE", "byte_fallback": false, {vocab}, "merges": ["a b"]"#),
            r#""type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.25], ["b", -2]]"#.into(),
            format!(r#""type": "WordLevel", "unk_token": "[UNK]", {vocab}"#),
            // Malformed files: the errors are the same.
            format!(r#""type": "WordPiece", {rest}"#),
            format!(r#""type": "BPE", {vocab}, "merges": ["a c"]"#),
            r#""type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]"#.into(),
            format!(r#""type": "BPE", {rest}, {vocab}"#),
            format!(r#""type": "Sentence", {vocab}"#),
            format!(r#""type": 3, {rest}, {vocab}"#),
            format!(r#""type": "WordPiece", {rest}, "vocab": {{"a": -1}}"#),
            format!(r#""type": "WordPiece", {rest}, {vocab}"#) + ",",
        ];
        for model in models {
            let added = r#"[{"id": 3, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}]"#;
            let file = format!(r#"{{"version": "1.0", "added_tokens": {added}, "model": {{{model}}}}}"#);
            let bytes = file.as_bytes();
            let by_library = serde_json::from_slice::<OfLibrary>(bytes);
            assert_eq!(outcome(parse(bytes)), outcome(by_library), "{file}");
        }
    }
}
