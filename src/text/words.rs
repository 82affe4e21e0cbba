//! From a text to its words: the normalizer and the pre-tokenizer of a tokenizer. They are those of the
//! library, but BERT's skip the steps that cannot change a text in ASCII, which takes two thirds of the time
//! to be tokenized then.

use serde::Deserialize;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::{
    NormalizedString, Normalizer, NormalizerWrapper, PreTokenizedString, PreTokenizer, PreTokenizerWrapper,
    SplitDelimiterBehavior,
};
use unicode_categories::UnicodeCategories;

/// A normalizer of the library.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct TextNormalizer(pub(super) NormalizerWrapper);

impl<N: Into<NormalizerWrapper>> From<N> for TextNormalizer {
    fn from(normalizer: N) -> Self {
        TextNormalizer(normalizer.into())
    }
}

impl Normalizer for TextNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> tokenizers::Result<()> {
        match self.0 {
            // There is nothing to clean, no accent and no Chinese character.
            NormalizerWrapper::BertNormalizer(BertNormalizer { lowercase, .. })
                if text.get().bytes().all(|byte| matches!(byte, b' '..=b'~')) =>
            {
                if lowercase && text.get().bytes().any(|byte| byte.is_ascii_uppercase()) {
                    text.lowercase();
                }
                Ok(())
            }
            _ => self.0.normalize(text),
        }
    }
}

/// A pre-tokenizer of the library.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct TextPreTokenizer(pub(super) PreTokenizerWrapper);

impl<P: Into<PreTokenizerWrapper>> From<P> for TextPreTokenizer {
    fn from(pre_tokenizer: P) -> Self {
        TextPreTokenizer(pre_tokenizer.into())
    }
}

impl PreTokenizer for TextPreTokenizer {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        match &self.0 {
            PreTokenizerWrapper::BertPreTokenizer(_) => {
                text.split(|_, text| text.split(char::is_whitespace, SplitDelimiterBehavior::Removed))?;
                text.split(|_, text| text.split(is_bert_punctuation, SplitDelimiterBehavior::Isolated))
            }
            other => other.pre_tokenize(text),
        }
    }
}

/// Whether BERT's pre-tokenizer isolates a character. The library looks up the category of letters, too.
fn is_bert_punctuation(character: char) -> bool {
    if character.is_ascii() { character.is_ascii_punctuation() } else { character.is_punctuation() }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
    use tokenizers::{OffsetReferential, OffsetType};

    use super::*;

    /// Texts of characters from one of some sets, the first of which are in ASCII.
    fn texts() -> Vec<String> {
        let ascii: String = (0..128).map(|byte| byte as u8 as char).collect();
        let sets = ["aAbZ  .-$^@[`{~", "ab \t\n\r\u{7f}\0", &ascii, "aÉé Ǆ日本\u{a0}\u{301}«—١\u{200d}İß"];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut text = |set: &str| {
            let set: Vec<char> = set.chars().collect();
            (0..rng.random_range(0..12)).map(|_| set[rng.random_range(0..set.len())]).collect()
        };
        sets.iter().cycle().take(4_000).map(|set| text(set)).collect()
    }

    #[test]
    fn texts_are_normalized_as_by_the_library() {
        let mut changed = 0;
        for settings in 0..24 {
            let strip_accents = [None, Some(false), Some(true)][settings / 8];
            let is_set = |bit: usize| settings >> bit & 1 == 1;
            let library = BertNormalizer::new(is_set(0), is_set(1), strip_accents, is_set(2));
            let own = TextNormalizer::from(library);
            for text in texts() {
                let [mut expected, mut actual] = [(); 2].map(|()| NormalizedString::from(text.as_str()));
                library.normalize(&mut expected).unwrap();
                own.normalize(&mut actual).unwrap();
                assert_eq!(actual, expected, "{library:?}");
                changed += usize::from(text.is_ascii() && actual.get() != text);
            }
        }
        assert!(changed > 10_000, "only {changed} texts in ASCII are changed");
    }

    #[test]
    fn texts_are_split_as_by_the_library() {
        let own = TextPreTokenizer::from(BertPreTokenizer);
        let words = |pre_tokenizer: &dyn Fn(&mut PreTokenizedString) -> tokenizers::Result<()>,
                     text: &str| {
            let mut split = PreTokenizedString::from(text);
            pre_tokenizer(&mut split).unwrap();
            let splits = split.get_splits(OffsetReferential::Original, OffsetType::Byte);
            splits.into_iter().map(|(word, range, _)| (word.to_owned(), range)).collect::<Vec<_>>()
        };
        let every_character = (0..=u32::from(char::MAX)).filter_map(char::from_u32).collect();
        for text in texts().into_iter().chain([every_character]) {
            let expected = words(&|text| BertPreTokenizer.pre_tokenize(text), &text);
            assert_eq!(words(&|text| own.pre_tokenize(text), &text), expected);
        }
    }
}
