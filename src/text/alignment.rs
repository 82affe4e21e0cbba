//! Where the tokens of a text are in the text: for tasks that find parts of texts.

use std::ops::Range;
use std::sync::Arc;

/// A text, and where the tokens of a sequence are in it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Alignment {
    /// The whole text, of which the sequence may have a part.
    pub text: Arc<str>,
    /// The place of each token. `None` for special tokens, and for the first text of a pair.
    pub spans: Vec<Option<TokenSpan>>,
}

/// The place of a token in its text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenSpan {
    /// Its characters.
    pub characters: Range<usize>,
    /// The index of its word, as the pre-tokenizer splits words. `None` if the tokenizer knows no words.
    pub word: Option<u32>,
    /// Whether it continues the word of the token before it, as the pipeline `token-classification` of
    /// `transformers` decides it.
    pub is_subword: bool,
}

/// The characters of a text, each with its offset.
pub struct Characters<'a> {
    text: &'a str,
    /// The byte of each character, and the end. `None` for ASCII.
    bytes: Option<Vec<usize>>,
}

impl<'a> Characters<'a> {
    /// The characters of `text`.
    pub fn new(text: &'a str) -> Self {
        let ends = || text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
        Characters { text, bytes: (!text.is_ascii()).then(ends) }
    }

    /// The part of the text from one character to another. Empty if the end is before the start.
    pub fn slice(&self, characters: &Range<usize>) -> &'a str {
        let byte = |character: usize| match &self.bytes {
            None => character.min(self.text.len()),
            Some(bytes) => bytes.get(character).copied().unwrap_or(self.text.len()),
        };
        &self.text[byte(characters.start)..byte(characters.end.max(characters.start))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_sliced_in_any_script() {
        assert_eq!(Characters::new("a lamp").slice(&(2..6)), "lamp");
        assert_eq!(Characters::new("süße Öl").slice(&(1..4)), "üße");
        assert_eq!(Characters::new("süße").slice(&(4..9)), "");
    }
}
