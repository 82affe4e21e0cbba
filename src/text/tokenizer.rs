//! The tokenizer of a model, with truncation that is counted.
//!
//! # Untrusted tokenizers
//!
//! A tokenizer of a known class takes time in proportion to a text. One that is taken as its file says can be made to take time that
//! grows with the square of a text or faster, and nothing but Ctrl-C bounds it:
//!
//! * a regular expression that backtracks: its engine gives up after a million steps, but at each place of the text anew
//!   (`(?=(a+)+b)a` takes a second for 30,000 letters `a`, and more than forty for 300,000);
//! * a WordPiece model with a large `max_input_chars_per_word`, over a long word (10 seconds for 8,000 letters).
//!
//! A long text is not cut at white space before it is tokenized, although only its beginning may be wanted: tokens that are
//! cut off are counted, normalizers and pre-tokenizers may look across white space, and an added token may contain it.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow, bail};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::{Lowercase, Sequence};
use tokenizers::utils::truncation::{TruncationDirection, TruncationParams, truncate_encodings};
use tokenizers::{
    DecoderWrapper, Encoding, Model, ModelWrapper, NormalizerWrapper, PostProcessor, PostProcessorWrapper,
    PreTokenizerWrapper, TokenizerImpl,
};

use super::{resolve, settings, vocabulary};
use crate::disk;
use crate::guard::guard;

/// The tokens of one text or one pair, specials included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenIds {
    /// Vocabulary ids.
    pub ids: Vec<u32>,
    /// Segment ids: 0 for the first text and its specials, 1 for the second of a pair.
    pub type_ids: Vec<u32>,
    /// Tokens that the limit cut off.
    pub cut: usize,
}

/// How texts become tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizerOptions {
    /// The longest text or pair in tokens, specials included.
    pub max_length: usize,
    /// Whether a text that is longer loses its beginning and not its end.
    pub cut_left: bool,
    /// Whether to lowercase before the tokenizer's own normalisation.
    pub lowercase: bool,
}

/// White-space characters in a row that a pattern of a tokenizer can split. Its engine gives up short of a million of
/// them; what follows in the text would not be split at all, without an error.
const MAX_SPACES: usize = 999_000;

/// A tokenizer with its limit.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Whether texts are split by a pattern.
    has_pattern: bool,
    max_length: usize,
    cut: TruncationDirection,
}

/// A tokenizer whose model is known to be an `M`.
type With<M> = TokenizerImpl<M, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// What of a `tokenizer.json` says which model it has.
#[derive(Deserialize)]
struct Outline<'a> {
    #[serde(borrow)]
    model: Kind<'a>,
}

#[derive(Deserialize)]
struct Kind<'a> {
    #[serde(rename = "type", borrow)]
    name: Option<Cow<'a, str>>,
}

/// Parses a `tokenizer.json`. The library finds out which model a file has by way of a generic value of all of it, which
/// takes twice as long as reading the model that the file names.
fn parse(bytes: &[u8]) -> serde_json::Result<tokenizers::Tokenizer> {
    fn of<'a, M: Deserialize<'a> + Model + Into<ModelWrapper>>(
        bytes: &'a [u8],
    ) -> Option<tokenizers::Tokenizer> {
        serde_json::from_slice::<With<M>>(bytes).ok().map(tokenizers::Tokenizer::from)
    }
    let direct = match kind(bytes).as_deref() {
        Some("WordPiece") => of::<WordPiece>(bytes),
        Some("BPE") => of::<BPE>(bytes),
        Some("Unigram") => of::<Unigram>(bytes),
        _ => None,
    };
    // The library says what is wrong with a file, and reads those of its first releases.
    direct.map_or_else(|| serde_json::from_slice(bytes), Ok)
}

/// Whether a normalizer lowercases as a step of its own, after which sentence-transformers adds no other.
fn lowercases(normalizer: Option<&NormalizerWrapper>) -> bool {
    match normalizer {
        Some(NormalizerWrapper::Lowercase(_)) => true,
        Some(NormalizerWrapper::Sequence(all)) => {
            all.as_ref().iter().any(|one| matches!(one, NormalizerWrapper::Lowercase(_)))
        }
        _ => false,
    }
}

/// The type of the model in a `tokenizer.json`, where it says it.
fn kind(bytes: &[u8]) -> Option<Cow<'_, str>> {
    serde_json::from_slice::<Outline>(bytes).ok()?.model.name
}

/// A `tokenizer.json` with what stands beside it.
fn resolve(path: &Path, bytes: &[u8]) -> Result<serde_json::Result<tokenizers::Tokenizer>> {
    let settings = settings::Settings::read(path)?;
    if let Some(tokenizer) = resolve::rebuild(path, bytes, kind(bytes).as_deref(), &settings)? {
        return Ok(Ok(tokenizer));
    }
    let mut tokenizer = match parse(bytes) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return Ok(Err(error)),
    };
    resolve::extend(path, &mut tokenizer, &settings)?;
    Ok(Ok(tokenizer))
}

impl Tokenizer {
    /// Reads a `tokenizer.json`, or a `vocab.txt` or `vocab.json` with the files beside it. Padding and truncation
    /// that a file asks for are left aside: batches are ragged, and the limit is the model's.
    ///
    /// # Errors
    /// If a file cannot be read or does not parse, or if it is of a tokenizer that needs another form.
    pub fn read(path: &Path, options: &TokenizerOptions) -> Result<Self> {
        let shown = path.display();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".model") {
            bail!("{shown} is a SentencePiece model, which Sconce does not read; {}", vocabulary::SAVE);
        }
        if vocabulary::is_vocabulary(&name) {
            let unusable =
                || anyhow!("{shown} and the files beside it make no tokenizer; fetch the model again");
            let inner = guard(|| vocabulary::read(path)).ok_or_else(unusable)??;
            return Self::new(inner, options).map_err(|_| unusable());
        }
        let bytes = match disk::read(path, disk::MAX_TOKENIZER_BYTES) {
            Ok(bytes) => bytes,
            Err(error) => bail!("cannot read {shown} ({error}); download the model again"),
        };
        let place = match guard(|| resolve(path, &bytes)).transpose()? {
            Some(Ok(inner)) => match Self::new(inner, options) {
                Ok(tokenizer) => return Ok(tokenizer),
                Err(error) => error.to_string(),
            },
            Some(Err(error)) => format!("line {}, column {}", error.line(), error.column()),
            None => "a part of it is damaged".into(),
        };
        bail!("{shown} is there but does not parse as a tokenizer ({place}); fetch it again")
    }

    fn new(mut inner: tokenizers::Tokenizer, options: &TokenizerOptions) -> Result<Self> {
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|error| anyhow!("{error}"))?;
        if options.lowercase && !lowercases(inner.get_normalizer()) {
            let own = inner.get_normalizer().cloned();
            let both = [Some(NormalizerWrapper::Lowercase(Lowercase)), own];
            let both = Sequence::new(both.into_iter().flatten().collect());
            inner.with_normalizer(Some(both)).map_err(|error| anyhow!("{error}"))?;
        }
        let cut = if options.cut_left { TruncationDirection::Left } else { TruncationDirection::Right };
        let splitter = inner.get_pre_tokenizer().and_then(|splitter| serde_json::to_value(splitter).ok());
        let has_pattern = splitter.as_ref().is_some_and(has_pattern);
        let tokenizer = Tokenizer { inner, has_pattern, max_length: options.max_length, cut };
        // A template that names a token which it does not define shows only when it is used, as a panic.
        if guard(|| [None, Some("b")].map(|pair| tokenizer.encode("a", pair).is_ok())).is_none() {
            bail!("its post-processor names a special token that it does not define");
        }
        Ok(tokenizer)
    }

    /// The longest text or pair in tokens, specials included.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// Whether a text that is longer loses its beginning and not its end.
    pub fn cuts_left(&self) -> bool {
        self.cut == TruncationDirection::Left
    }

    /// Tokenizes a text, or a pair of texts, with the model's special tokens. Past the limit tokens are cut at
    /// the end, or the beginning, of the longer text of a pair first; special tokens stay.
    ///
    /// # Errors
    /// If the tokenizer fails, which its models do for an unknown token without an `unk_token`.
    pub fn encode(&self, text: &str, pair: Option<&str>) -> Result<TokenIds> {
        let (first, second) = (self.bare(text)?, pair.map(|pair| self.bare(pair)).transpose()?);
        let tokens = first.len() + second.as_ref().map_or(0, |encoding| encoding.len());
        let room = self.max_length.saturating_sub(self.specials(pair.is_some()));
        let truncation = TruncationParams { max_length: room, direction: self.cut, ..Default::default() };
        let (mut first, mut second) =
            truncate_encodings(first, second, &truncation).map_err(|error| anyhow!("{error}"))?;
        // What was cut is kept in windows of the limit's length. Nobody asks for them, and framing a pair would combine
        // each window of one text with each of the other.
        for encoding in [Some(&mut first), second.as_mut()].into_iter().flatten() {
            drop(encoding.take_overflowing());
        }
        Ok(TokenIds { cut: tokens.saturating_sub(room), ..self.framed(first, second)? })
    }

    /// Tokens of a sequence that are not of its text: the special tokens and those of this prompt.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn tokens_around(&self, prompt: &str) -> Result<usize> {
        Ok(self.specials(false) + self.bare(prompt)?.len())
    }

    /// The bytes of each token of a text by itself, without special tokens.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn offsets(&self, text: &str) -> Result<Vec<Range<usize>>> {
        self.check_spaces(text)?;
        let encoding = self.inner.encode(text, false).map_err(|error| anyhow!("{error}"))?;
        Ok(encoding.get_offsets().iter().map(|&(start, end)| start..end).collect())
    }

    /// Tokenizes a text with the model's special tokens, past the limit, too. With each token are its bytes in the text; special
    /// tokens have none.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_with_offsets(&self, text: &str) -> Result<(TokenIds, Vec<Option<Range<usize>>>)> {
        self.check_spaces(text)?;
        let encoding = self.inner.encode(text, true).map_err(|error| anyhow!("{error}"))?;
        let tokens = encoding.get_offsets().iter().zip(encoding.get_special_tokens_mask());
        let offsets = tokens.map(|(&(start, end), &special)| (special == 0).then_some(start..end)).collect();
        let (ids, type_ids) = (encoding.get_ids().to_vec(), encoding.get_type_ids().to_vec());
        Ok((TokenIds { ids, type_ids, cut: 0 }, offsets))
    }

    /// Tokenizes a text in windows, one after another without overlap: each begins with the prompt, has the model's
    /// special tokens around it, and is as long as the limit allows; the last has the rest.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    ///
    /// # Panics
    /// If the limit leaves no room [around](Tokenizer::tokens_around) the prompt.
    pub fn encode_windows(&self, prompt: &str, text: &str) -> Result<Vec<TokenIds>> {
        let prompt = self.bare(prompt)?;
        let room = self.max_length.saturating_sub(self.specials(false) + prompt.len());
        assert!(room > 0, "the prompt leaves room for a text");
        let mut first = self.bare(text)?;
        first.truncate(room, 0, TruncationDirection::Right);
        let rest = first.take_overflowing();
        let window = |part: Encoding| {
            let mut tokens = prompt.clone();
            tokens.merge_with(part, true);
            self.framed(tokens, None)
        };
        [first].into_iter().chain(rest).map(window).collect()
    }

    /// The tokens of a text by themselves.
    fn bare(&self, text: &str) -> Result<Encoding> {
        self.check_spaces(text)?;
        self.inner.encode_fast(text, false).map_err(|error| anyhow!("{error}"))
    }

    /// Refuses a text that the patterns of the tokenizer cannot split.
    fn check_spaces(&self, text: &str) -> Result<()> {
        if self.has_pattern && text.len() > MAX_SPACES {
            let longest = text.split(|c: char| !c.is_whitespace()).map(|run| run.chars().count()).max();
            if let Some(longest) = longest.filter(|longest| *longest > MAX_SPACES) {
                bail!("{longest} white-space characters in a row, more than its patterns can split")
            }
        }
        Ok(())
    }

    /// Puts special tokens around texts.
    fn framed(&self, first: Encoding, second: Option<Encoding>) -> Result<TokenIds> {
        let encoding = self.inner.post_process(first, second, true).map_err(|error| anyhow!("{error}"))?;
        Ok(TokenIds { ids: encoding.get_ids().to_vec(), type_ids: encoding.get_type_ids().to_vec(), cut: 0 })
    }

    /// Tokens that a prompt puts before a text, as sentence-transformers counts them: those of the prompt by itself,
    /// special tokens included, except for a special one at the end.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn prompt_length(&self, prompt: &str) -> Result<usize> {
        let encoding = self.inner.encode(prompt, true).map_err(|error| anyhow!("{error}"))?;
        let length = encoding.len().min(self.max_length);
        if encoding.get_special_tokens_mask().last() == Some(&1) {
            return Ok(length - 1);
        }
        // A special token may stand in the prompt itself.
        let added = self.inner.get_added_tokens_decoder();
        let last = length.checked_sub(1).map(|last| encoding.get_ids()[last]);
        let special = last.and_then(|id| added.get(&id)).is_some_and(|token| token.special);
        Ok(length - usize::from(special))
    }

    /// The token that an id stands for.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Special tokens that are added to a text or a pair.
    pub fn specials(&self, pair: bool) -> usize {
        self.inner.get_post_processor().map_or(0, |processor| processor.added_tokens(pair))
    }
}

/// Whether the description of a pre-tokenizer has a regular expression, or is of the one that has its own.
fn has_pattern(splitter: &Value) -> bool {
    match splitter {
        Value::Object(fields) => {
            let is_byte_level = fields.get("type").is_some_and(|name| name == "ByteLevel");
            let own = is_byte_level && fields.get("use_regex") != Some(&Value::Bool(false));
            own || fields.contains_key("Regex") || fields.values().any(has_pattern)
        }
        Value::Array(list) => list.iter().any(has_pattern),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_that_a_pattern_cannot_split_are_an_error() {
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
        let options = TokenizerOptions { max_length: 2_000_000, cut_left: false, lowercase: false };
        let read = |pre_tokenizer: &str| {
            Tokenizer::new(parse(file(pre_tokenizer).as_bytes()).unwrap(), &options).unwrap()
        };
        for pre_tokenizer in [&byte_level(true), split, &sequence] {
            let tokenizer = read(pre_tokenizer);
            for count in [1_000, MAX_SPACES] {
                let tokens = tokenizer.encode(&format!("{}x x x", " ".repeat(count)), None).unwrap();
                // No token reaches over a space into the next word.
                assert_eq!(tokens.ids.len(), count + 5, "{pre_tokenizer}");
            }
            for count in [MAX_SPACES + 1, 1_000_100] {
                let error = tokenizer.encode(&format!("x{}x x x", " ".repeat(count)), None).unwrap_err();
                assert!(
                    error.to_string().contains(&format!("{count} white-space characters in a row")),
                    "{error}"
                );
            }
        }
        // Without a pattern nothing gives up.
        let tokens =
            read(&byte_level(false)).encode(&format!("{}x x x", " ".repeat(1_000_100)), None).unwrap();
        assert_eq!(tokens.ids.len(), 1_000_100 + 3);
    }

    /// What becomes of a file: the tokenizer written out, or what is wrong.
    fn outcome(read: serde_json::Result<tokenizers::Tokenizer>) -> String {
        read.map_or_else(|error| error.to_string(), |tokenizer| serde_json::to_string(&tokenizer).unwrap())
    }

    #[test]
    fn every_model_is_read_as_the_library_reads_it() {
        let words = r#""vocab": {"a": 0, "b": 1, "ab": 2, "[UNK]": 3}"#;
        let rest =
            r#""unk_token": "[UNK]", "continuing_subword_prefix": "\u0023#", "max_input_chars_per_word": 9"#;
        let models = [
            format!(r#""type": "WordPiece", {rest}, {words}"#),
            format!(r#"{words}, {rest}, "type": "WordPiece""#),
            format!(r#"{rest}, {words}"#),
            format!(r#""type": "Word\u0050iece", {rest}, {words}"#),
            format!(
                r#""type": "BPE", "dropout": null, "ignore_merges": true, {words}, "merges": [["a", "b"]]"#
            ),
            format!(r#""type": "BPE", "byte_fallback": false, {words}, "merges": ["a b"]"#),
            r#""type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["a", -1.25], ["b", -2]]"#.into(),
            format!(r#""type": "WordLevel", "unk_token": "[UNK]", {words}"#),
            // What is wrong with these has to be said in the same words.
            format!(r#""type": "WordPiece", {rest}"#),
            format!(r#""type": "BPE", {words}, "merges": ["a c"]"#),
            r#""type": "Unigram", "unk_id": 7, "vocab": [["a", 0.0]]"#.into(),
            format!(r#""type": "BPE", {rest}, {words}"#),
            format!(r#""type": "Sentence", {words}"#),
            format!(r#""type": 3, {rest}, {words}"#),
            format!(r#""type": "WordPiece", {rest}, "vocab": {{"a": -1}}"#),
            format!(r#""type": "WordPiece", {rest}, {words}"#) + ",",
        ];
        for model in models {
            let added = r#"[{"id": 3, "content": "[UNK]", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}]"#;
            let file = format!(r#"{{"version": "1.0", "added_tokens": {added}, "model": {{{model}}}}}"#);
            let bytes = file.as_bytes();
            assert_eq!(outcome(parse(bytes)), outcome(serde_json::from_slice(bytes)), "{file}");
        }
    }
}
