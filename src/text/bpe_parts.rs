//! The tokenizer classes of transformers with a BPE model: what each does with a text before and after it.

use anyhow::Result;
use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

use super::token_model::{LibraryTokenizer, TokenModel};
use super::tokenizer_config::{SpecialTokens, TokenizerConfig};

/// The name of CLIP's class: a BPE of lowercased words, whose last token ends in [`CLIP_WORD_END`].
pub(super) const CLIP: &str = "CLIPTokenizer";
/// The name of Gemma's class: a BPE of SentencePiece without a prefix.
pub(super) const GEMMA: &str = "GemmaTokenizer";
/// The name of Llama's class: a BPE of SentencePiece, with a `▁` before texts.
pub(super) const LLAMA: &str = "LlamaTokenizer";
/// The name of Qwen's class: a byte-level BPE with words of its own.
pub(super) const QWEN2: &str = "Qwen2Tokenizer";

/// The end of the last token of a word.
const CLIP_WORD_END: &str = "</w>";
/// The words of CLIP's pre-tokenizer.
pub(super) const CLIP_WORDS: &str =
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
/// The words of Qwen's pre-tokenizer.
pub(super) const QWEN2_WORDS: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);

/// The steps of a tokenizer. All but the model are as in a `tokenizer.json`.
pub(super) struct Parts {
    pub model: TokenModel,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub decoder: Value,
}

impl Parts {
    /// The tokenizer of these steps.
    pub(super) fn into_tokenizer(self) -> tokenizers::Result<LibraryTokenizer> {
        let mut tokenizer = LibraryTokenizer::new(self.model);
        tokenizer.with_normalizer(Option::<NormalizerWrapper>::deserialize(self.normalizer)?)?;
        tokenizer.with_pre_tokenizer(Some(PreTokenizerWrapper::deserialize(self.pre_tokenizer)?));
        tokenizer.with_decoder(Some(DecoderWrapper::deserialize(self.decoder)?));
        Ok(tokenizer)
    }
}

/// A pre-tokenizer or decoder that writes `▁` for spaces.
pub(super) fn metaspace(prepend_scheme: &str, split: bool) -> Value {
    json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": prepend_scheme, "split": split})
}

/// A normalizer or decoder that replaces a string.
pub(super) fn replace(from: &str, to: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": from}, "content": to})
}

/// A pre-tokenizer of bytes, as characters that can be printed.
fn byte_level(add_prefix_space: bool, use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": use_regex,
    })
}

/// A pre-tokenizer that splits a text at what the pattern finds, or with `invert` at what is between that.
fn split(pattern: Value, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert})
}

/// The parts of a class with this BPE model, of which only the vocabulary and the merges are used.
pub(super) fn bpe_parts(
    class: &str,
    mut model: BPE,
    special_tokens: &SpecialTokens,
    config: &TokenizerConfig,
) -> Result<Parts> {
    (model.dropout, model.unk_token) = (None, None);
    (model.continuing_subword_prefix, model.end_of_word_suffix) = (None, None);
    (model.fuse_unk, model.byte_fallback, model.ignore_merges) = (false, false, false);
    let unk_token = special_tokens.get("unk_token").cloned();
    let sequence = |key: &str, steps: Vec<Value>| json!({"type": "Sequence", key: steps});
    let regex = |regex: &str| json!({"Regex": regex});
    let pieces = || vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    let byte_level_decoder = byte_level(true, true);
    let (normalizer, pre_tokenizer, decoder) = match class {
        CLIP => {
            model.unk_token = unk_token;
            model.end_of_word_suffix = Some(CLIP_WORD_END.into());
            let white_space = json!({"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "});
            let steps = vec![json!({"type": "NFC"}), white_space, json!({"type": "Lowercase"})];
            let words = vec![split(regex(CLIP_WORDS), "Removed", true), byte_level(false, true)];
            (sequence("normalizers", steps), sequence("pretokenizers", words), byte_level_decoder)
        }
        LLAMA => {
            (model.fuse_unk, model.byte_fallback) = (true, true);
            let add_prefix_space = config.optional_bool("add_prefix_space")?.unwrap_or(true);
            let scheme = match (add_prefix_space, config.optional_bool("legacy")?.unwrap_or(false)) {
                (false, _) => "never",
                // Only before the first part of a text that has special tokens.
                (true, false) => "first",
                (true, true) => "always",
            };
            let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
            let decoders = pieces().into_iter().chain(add_prefix_space.then_some(strip)).collect();
            (Value::Null, metaspace(scheme, false), sequence("decoders", decoders))
        }
        GEMMA => {
            (model.fuse_unk, model.byte_fallback, model.unk_token) = (true, true, unk_token);
            let words = split(json!({"String": " "}), "MergedWithPrevious", false);
            (replace(" ", "▁"), words, sequence("decoders", pieces()))
        }
        QWEN2 => {
            let add_prefix_space = config.optional_bool("add_prefix_space")?.unwrap_or(false);
            let words =
                vec![split(regex(QWEN2_WORDS), "Isolated", false), byte_level(add_prefix_space, false)];
            (json!({"type": "NFC"}), sequence("pretokenizers", words), byte_level_decoder)
        }
        _ => {
            let add_prefix_space = config.bool("add_prefix_space", false)?;
            (Value::Null, byte_level(add_prefix_space, true), byte_level_decoder)
        }
    };
    Ok(Parts { model: TokenModel::Bpe(model), normalizer, pre_tokenizer, decoder })
}
