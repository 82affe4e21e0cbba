//! WordPiece (Wu et al. 2016, "Google's Neural Machine Translation System", section 4.1): the tokens of a
//! word are the longest ones of the vocabulary, from its start on.
//!
//! The model of the library `tokenizers` in a sixth of its memory, which counts where many processes share
//! one model: they share the weights, but not the vocabulary. BERT's 30,522 tokens take 0.9 MB here, and 5 MB
//! in the library's two hash maps of strings.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use ahash::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tokenizers::models::wordpiece::{self, WordPieceTrainer};
use tokenizers::{Model, Token};

/// A WordPiece model, as in a `tokenizer.json`.
#[derive(Deserialize)]
pub(super) struct WordPiece {
    /// A model of another type does not parse.
    #[serde(rename = "type")]
    _type: Option<WordPieceType>,
    /// The token of a word that the vocabulary has no tokens for.
    pub(super) unk_token: String,
    /// The prefix of a token that continues a word.
    pub(super) continuing_subword_prefix: String,
    /// The maximum characters of a word that is split into tokens.
    pub(super) max_input_chars_per_word: usize,
    pub(super) vocab: Vocabulary,
}

/// The only `type` of a [`WordPiece`].
#[derive(Deserialize)]
enum WordPieceType {
    WordPiece,
}

impl WordPiece {
    /// The model of BERT's tokenizers.
    pub(super) fn bert(vocab: Vocabulary, unk_token: String) -> Self {
        let continuing_subword_prefix = "##".into();
        WordPiece { _type: None, unk_token, continuing_subword_prefix, max_input_chars_per_word: 100, vocab }
    }

    /// The one token of a word that cannot be split.
    fn unknown(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        let id = self.vocab.id(&self.unk_token).ok_or(wordpiece::Error::MissingUnkToken)?;
        Ok(vec![Token::new(id, self.unk_token.clone(), (0, word.len()))])
    }
}

impl Model for WordPiece {
    type Trainer = WordPieceTrainer;

    fn tokenize(&self, word: &str) -> tokenizers::Result<Vec<Token>> {
        if word.chars().count() > self.max_input_chars_per_word {
            return self.unknown(word);
        }
        let mut tokens = Vec::new();
        let mut start = 0;
        while start < word.len() {
            let prefix = if start > 0 { self.continuing_subword_prefix.as_str() } else { "" };
            // No token ends later.
            let mut limit = word.len().min(start + self.vocab.longest);
            while !word.is_char_boundary(limit) {
                limit -= 1;
            }
            let mut token = [prefix, &word[start..limit]].concat();
            let id = loop {
                if token.len() == prefix.len() {
                    return self.unknown(word);
                }
                if let Some(id) = self.vocab.id(&token) {
                    break id;
                }
                token.pop();
            };
            let end = start + token.len() - prefix.len();
            tokens.push(Token::new(id, token, (start, end)));
            start = end;
        }
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.vocab.id(token)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.vocab.token(id).map(str::to_owned)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        self.vocab.iter().map(|(token, id)| (token.to_owned(), id)).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.vocab.ids.len()
    }

    fn save(&self, _: &Path, _: Option<&str>) -> tokenizers::Result<Vec<PathBuf>> {
        Err("a tokenizer is only read".into())
    }

    fn get_trainer(&self) -> WordPieceTrainer {
        WordPieceTrainer::default()
    }
}

impl From<wordpiece::WordPiece> for WordPiece {
    fn from(model: wordpiece::WordPiece) -> Self {
        let mut tokens: Vec<(String, u32)> = model.get_vocab().into_iter().collect();
        tokens.sort_unstable_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
        let vocab = tokens.iter().map(|(token, id)| (token.as_str(), *id)).collect();
        WordPiece {
            _type: None,
            unk_token: model.unk_token,
            continuing_subword_prefix: model.continuing_subword_prefix,
            max_input_chars_per_word: model.max_input_chars_per_word,
            vocab,
        }
    }
}

/// The tokens of a vocabulary, each with its id.
#[derive(Default)]
pub(super) struct Vocabulary {
    /// The tokens, one after the other.
    text: String,
    /// Where each token ends in `text`. It begins where the one before it ends.
    ends: Vec<u32>,
    /// The id of each token.
    ids: Vec<u32>,
    /// The indices of the tokens, by their hash.
    indices: HashTable<u32>,
    hasher: RandomState,
    /// Bytes of the longest token.
    longest: usize,
}

impl Vocabulary {
    /// Adds a token. One that is there gets the id.
    ///
    /// # Panics
    /// If the tokens have 4 GiB or more; the files of a tokenizer are smaller.
    fn insert(&mut self, token: &str, id: u32) {
        let Vocabulary { text, ends, ids, indices, hasher, longest } = self;
        let known = |index: &u32| nth(text, ends, *index as usize);
        let hash = |token: &str| hasher.hash_one(token);
        match indices.entry(hash(token), |index| known(index) == token, |index| hash(known(index))) {
            Entry::Occupied(index) => ids[*index.get() as usize] = id,
            Entry::Vacant(place) => {
                let as_u32 =
                    |length: usize| u32::try_from(length).expect("a tokenizer's file is smaller than 4 GiB");
                place.insert(as_u32(ids.len()));
                text.push_str(token);
                ends.push(as_u32(text.len()));
                ids.push(id);
                *longest = token.len().max(*longest);
            }
        }
    }

    /// The id of a token.
    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.index(token).map(|index| self.ids[index])
    }

    /// The token with this id.
    fn token(&self, id: u32) -> Option<&str> {
        // Files have the tokens in the order of their ids.
        let at_id = usize::try_from(id).ok().filter(|&index| self.ids.get(index) == Some(&id));
        let index = at_id.or_else(|| self.ids.iter().position(|&other| other == id))?;
        Some(nth(&self.text, &self.ends, index))
    }

    fn index(&self, token: &str) -> Option<usize> {
        let is_token = |index: &u32| nth(&self.text, &self.ends, *index as usize) == token;
        self.indices.find(self.hasher.hash_one(token), is_token).map(|&index| index as usize)
    }

    fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.ids.iter().enumerate().map(|(index, &id)| (nth(&self.text, &self.ends, index), id))
    }

    /// The tokens of a `vocab.txt`: one a line, whose number is its id.
    pub(super) fn from_lines(text: &str) -> Self {
        text.lines().map(str::trim_end).zip(0..).collect()
    }
}

impl<'a> FromIterator<(&'a str, u32)> for Vocabulary {
    fn from_iter<I: IntoIterator<Item = (&'a str, u32)>>(tokens: I) -> Self {
        let tokens = tokens.into_iter();
        let mut vocabulary = Vocabulary::default();
        vocabulary.indices.reserve(tokens.size_hint().0, |_| unreachable!("the table is empty"));
        for (token, id) in tokens {
            vocabulary.insert(token, id);
        }
        vocabulary
    }
}

/// The token with this index.
fn nth<'a>(text: &'a str, ends: &[u32], index: usize) -> &'a str {
    let start = index.checked_sub(1).map_or(0, |before| ends[before]);
    &text[start as usize..ends[index] as usize]
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(VocabularyVisitor)
    }
}

/// A token of a file, borrowed unless it has escapes.
#[derive(Deserialize)]
struct BorrowedToken<'a>(#[serde(borrow)] Cow<'a, str>);

struct VocabularyVisitor;

impl<'de> Visitor<'de> for VocabularyVisitor {
    type Value = Vocabulary;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of tokens to ids")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocabulary, A::Error> {
        // A table that grew would hash its tokens again: they are counted first.
        let mut tokens = Vec::new();
        while let Some(token) = map.next_entry::<BorrowedToken, u32>()? {
            tokens.push(token);
        }
        Ok(tokens.iter().map(|(BorrowedToken(token), id)| (token.as_ref(), *id)).collect())
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    /// Both models of a `tokenizer.json`.
    fn models(json: &str) -> (WordPiece, wordpiece::WordPiece) {
        (serde_json::from_str(json).unwrap(), serde_json::from_str(json).unwrap())
    }

    fn outcome(model: &impl Model, word: &str) -> Result<Vec<Token>, String> {
        model.tokenize(word).map_err(|error| error.to_string())
    }

    #[test]
    fn words_have_the_tokens_of_the_library() {
        let tokens =
            ["a", "é", "日本", "ab", "aéb", "##a", "##b", "##é", "##ba", "##日", "##", "", "c##", "##b##"];
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut split = 0;
        for prefix in ["##", "", "é"] {
            for unk_token in ["[UNK]", "none"] {
                let known: Vec<String> = tokens
                    .iter()
                    .filter(|_| rng.random_bool(0.8))
                    .map(|token| format!("{token:?}: 7"))
                    .collect();
                let vocab = format!("{}, \"[UNK]\": 3, \"a\": 1", known.join(", "));
                let (own, library) = models(&format!(
                    r#"{{"type": "WordPiece", "unk_token": {unk_token:?}, "continuing_subword_prefix": {prefix:?},
                    "max_input_chars_per_word": 6, "vocab": {{{vocab}}}}}"#
                ));
                for round in 0..2_000 {
                    let letters = if round % 2 == 0 { "ab" } else { "abé日本#c" };
                    let letter =
                        |_| letters.chars().nth(rng.random_range(0..letters.chars().count())).unwrap();
                    let length = round / 2 % 8;
                    let word: String = (0..length).map(letter).collect();
                    let expected = outcome(&library, &word);
                    split += usize::from(expected.as_ref().is_ok_and(|tokens| tokens.len() > 1));
                    assert_eq!(outcome(&own, &word), expected, "{word:?}, {prefix:?}, {vocab}");
                }
                assert_eq!(own.get_vocab(), library.get_vocab());
                assert_eq!(own.get_vocab_size(), library.get_vocab_size());
            }
        }
        assert!(split > 1_000, "only {split} words have several tokens");
    }

    #[test]
    fn tokens_are_found_by_their_ids() {
        let vocab: Vocabulary = [("a", 0), ("b", 1), ("ß", 9), ("c", 4), ("b", 2)].into_iter().collect();
        let by_id = [(0, "a"), (2, "b"), (4, "c"), (9, "ß")];
        for id in 0..11 {
            let expected = by_id.iter().find(|(other, _)| *other == id).map(|(_, token)| *token);
            assert_eq!(vocab.token(id), expected, "{id}");
        }
        for (id, token) in by_id {
            assert_eq!(vocab.id(token), Some(id));
        }
        assert_eq!((vocab.id(""), vocab.id("ab")), (None, None));
    }

    #[test]
    fn a_line_of_a_vocabulary_file_is_a_token() {
        let vocab = Vocabulary::from_lines("[PAD]\na \r\n\nb\na");
        assert_eq!(vocab.iter().collect::<Vec<_>>(), [("[PAD]", 0), ("a", 4), ("", 2), ("b", 3)]);
    }
}
