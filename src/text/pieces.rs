//! Tokenizing a very long text in pieces: memory then grows with the tokens that are kept, not with the text.
//!
//! A text is cut before a space between two letters or digits, if every step of its tokenizer treats both
//! sides of such a place alone: the tokens of the pieces are those of the whole text. A tokenizer with other
//! steps takes the whole text at once, and so does a text without such places, as in Chinese. Memory is then
//! up to 180 times the size of the text.

use serde_json::Value;
use tokenizers::{AddedToken, Model};
use unicode_categories::UnicodeCategories;
use unicode_segmentation::UnicodeSegmentation;

use super::bpe_parts::{CLIP_WORDS, QWEN2_WORDS};
use super::token_model::{LibraryTokenizer, TokenModel};

/// Bytes of a text that is tokenized in pieces. Shorter ones take little memory.
pub(super) const MIN_BYTES: usize = if cfg!(test) { 4 << 10 } else { 1 << 20 };
/// Bytes of a piece; it ends at the next possible place.
pub(super) const PIECE_BYTES: usize = MIN_BYTES / 16;

/// Regular expressions of normalizers that replace white space by a space.
const WHITE_SPACE: [&str; 3] = [" {2,}", r"\s{2,}|[\n\r\t]", r"\s+"];
/// Regular expressions of pre-tokenizers that split a text before a space between letters or digits: CLIP's,
/// Qwen's, GPT-2's and that of Llama 3.
const WORDS: [&str; 4] = [
    CLIP_WORDS,
    QWEN2_WORDS,
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    concat!(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
];

/// The pieces of a text.
pub(super) fn pieces(text: &str) -> impl Iterator<Item = &str> {
    pieces_of(text, PIECE_BYTES)
}

/// The pieces of a text, of at least this many bytes each.
pub(super) fn pieces_of(text: &str, bytes: usize) -> impl Iterator<Item = &str> {
    let mut start = 0;
    std::iter::from_fn(move || {
        let rest = &text[start..];
        let end = place(rest, bytes);
        start += end;
        (!rest.is_empty()).then(|| &rest[..end])
    })
}

/// The first place from byte `from` on where a text may be cut, or its end.
fn place(text: &str, from: usize) -> usize {
    let bytes = text.as_bytes();
    let is_place = |space: &usize| {
        let (before, after) = (text[..*space].chars().next_back(), text[space + 1..].chars().next());
        before.is_some_and(is_plain) && after.is_some_and(is_plain)
    };
    // A byte of a longer character is not a space.
    (from.max(1)..bytes.len()).filter(|i| bytes[*i] == b' ').find(is_place).unwrap_or(bytes.len())
}

/// Whether a character is a letter or digit that forms no character with a space beside it.
fn is_plain(character: char) -> bool {
    if character.is_ascii() {
        return character.is_ascii_alphanumeric();
    }
    let is_letter = character.is_letter_uppercase() || character.is_letter_lowercase();
    let between = format!(" {character} ");
    (is_letter || character.is_letter_other()) && between.graphemes(true).count() == 3
}

/// Whether the tokens of [`pieces`] are those of the whole text.
pub(super) fn takes_pieces(tokenizer: &LibraryTokenizer) -> bool {
    let json = |step: Option<serde_json::Result<Value>>| step.map_or(Ok(Value::Null), |step| step);
    let normalizer = json(tokenizer.get_normalizer().map(|own| serde_json::to_value(&own.0)));
    let pre_tokenizer = json(tokenizer.get_pre_tokenizer().map(|own| serde_json::to_value(&own.0)));
    let (Ok(normalizer), Ok(pre_tokenizer)) = (normalizer, pre_tokenizer) else { return false };
    tokenizer.get_added_tokens_decoder().values().all(is_local_token)
        && is_local(&normalizer)
        && match splits(&pre_tokenizer, replaces_spaces(&normalizer)) {
            Some(true) => true,
            Some(false) => no_token_crosses(tokenizer.get_model()),
            None => false,
        }
}

/// Whether an added token has no space beside another character, and does not take one after a letter or
/// digit.
fn is_local_token(token: &AddedToken) -> bool {
    let spaces =
        token.content.chars().filter(|character| character.is_whitespace() || *character == '▁').count();
    (spaces == 0 || spaces == token.content.chars().count())
        && (!token.normalized || token.content.is_ascii())
        && !(token.rstrip && token.content.chars().next_back().is_some_and(is_plain))
}

fn steps<'a>(step: &'a Value, key: &str) -> &'a [Value] {
    step.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Whether a normalizer changes both sides of such a place alone, and keeps the space or makes a `▁` of it.
fn is_local(normalizer: &Value) -> bool {
    let Some(name) = normalizer.get("type").and_then(Value::as_str) else { return normalizer.is_null() };
    match name {
        "BertNormalizer" | "NFC" | "NFD" | "NFKC" | "NFKD" | "Lowercase" | "StripAccents" | "Nmt"
        | "Precompiled" => true,
        "Sequence" => steps(normalizer, "normalizers").iter().all(is_local),
        // The last piece alone ends in white space.
        "Strip" => normalizer["strip_left"] == Value::Bool(false),
        "Replace" => {
            let (pattern, content) =
                (&normalizer["pattern"], normalizer["content"].as_str().unwrap_or_default());
            match (pattern["String"].as_str(), pattern["Regex"].as_str()) {
                (Some(" "), _) => content == "▁",
                (Some(string), _) => !string.is_empty() && !string.contains([' ', '▁']),
                (None, Some(regex)) => WHITE_SPACE.contains(&regex) && content == " ",
                (None, None) => false,
            }
        }
        _ => false,
    }
}

/// Whether a normalizer makes a `▁` of every space.
fn replaces_spaces(normalizer: &Value) -> bool {
    normalizer["pattern"]["String"] == " " || steps(normalizer, "normalizers").iter().any(replaces_spaces)
}

/// Whether a pre-tokenizer splits a text at such a place, which has no space if they are `replaced`. `None`
/// if it may split the pieces in another way than the whole text.
fn splits(pre_tokenizer: &Value, replaced: bool) -> Option<bool> {
    let flag = |key: &str| pre_tokenizer.get(key).and_then(Value::as_bool);
    match pre_tokenizer.get("type").and_then(Value::as_str) {
        None => pre_tokenizer.is_null().then_some(false),
        Some("BertPreTokenizer" | "Whitespace" | "WhitespaceSplit") => Some(true),
        Some("Punctuation" | "Digits") => Some(false),
        Some("Metaspace") => (pre_tokenizer["replacement"] == "▁").then_some(flag("split").unwrap_or(true)),
        Some("ByteLevel") => Some(flag("use_regex").unwrap_or(true)),
        Some("Split") if replaced && pre_tokenizer["pattern"]["String"] == " " => Some(false),
        Some("Split") => {
            let regex = pre_tokenizer["pattern"]["Regex"].as_str();
            regex.is_some_and(|regex| WORDS.contains(&regex)).then_some(true)
        }
        Some("Sequence") => {
            let each = steps(pre_tokenizer, "pretokenizers").iter().map(|step| splits(step, replaced));
            each.collect::<Option<Vec<bool>>>().map(|each| each.contains(&true))
        }
        Some(_) => None,
    }
}

/// Whether the model takes such a text as one word, but has no token with a space, `▁` or `Ġ` after another
/// character: then its merges never cross the place.
fn no_token_crosses(model: &TokenModel) -> bool {
    let TokenModel::Bpe(bpe) = model else { return false };
    let is_space = |character: char| [' ', '▁', 'Ġ'].contains(&character);
    let crosses = |token: &String| {
        let mut characters = token.chars().skip_while(|character| is_space(*character));
        characters.any(is_space)
    };
    // Without a token for a space, it may be a part of an unknown one.
    let is_known = ["▁", "Ġ"].iter().any(|space| model.token_to_id(space).is_some());
    !bpe.ignore_merges && is_known && !model.get_vocab().keys().any(crosses)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_cut_before_spaces_between_letters() {
        assert_eq!(place("a b. c d", 1), 1);
        assert_eq!(place("a b. c d", 2), 6);
        assert_eq!(place("a, b  c\nd", 0), 9);
        assert_eq!(place("é ü 灯 火", 3), 5);
        // A mark belongs to the space before it.
        assert_eq!(place("a \u{301}b \u{93e} c", 0), 11);
        let text = "the lamp burns, ".repeat(60) + "the end";
        let all: Vec<&str> = pieces(&text).collect();
        assert_eq!((all.len(), all.concat()), (4, text.clone()));
        assert_eq!(pieces(&text.replace(' ', "")).count(), 1);
        assert_eq!(pieces("").count(), 0);
    }
}
