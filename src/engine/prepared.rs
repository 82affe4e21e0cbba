//! From a text to its tokens, or to its rows if the cache has them.

use std::ops::Range;
use std::sync::Arc;

use super::row_cache::text_key;
use super::task::{Task, TaskInput, TaskRow, TokenizeError};
use super::workers::Runner;
use crate::text::TokenizedText;

/// What a text has become before it is encoded.
pub enum Prepared {
    /// Tokens, which are to be encoded.
    Tokens(TokenizedText),
    /// Rows, so that nothing is left to do.
    Rows(Vec<TaskRow>),
}

/// A text, or a part of one with many chunks.
pub struct PreparedText {
    /// Tokens of all sequences, including special tokens.
    pub tokens: usize,
    /// Tokens that truncation removed.
    pub truncated_tokens: usize,
    /// Sequences that it is encoded in.
    pub sequences: usize,
    /// The characters of each chunk in the whole text. Empty if the text is one row.
    pub chunks: Vec<Range<u64>>,
    /// Its tokens, or its rows.
    pub prepared: Prepared,
}

impl From<TokenizedText> for PreparedText {
    fn from(text: TokenizedText) -> Self {
        PreparedText {
            tokens: text.token_count(),
            truncated_tokens: text.truncated_tokens(),
            sequences: text.sequences.len(),
            chunks: text.chunks().map(|chunk| chunk.characters.clone()).collect(),
            prepared: Prepared::Tokens(text),
        }
    }
}

/// Prepares texts, on any thread.
pub struct Preparer<T>(pub(super) Arc<Runner<T>>);

impl<T: Task> Preparer<T> {
    /// Tokenizes a text, unless the cache has the rows of all of its chunks. A text of several chunks is
    /// returned in parts of at most `part_tokens` tokens, see [`TokenizedText::split`].
    ///
    /// # Errors
    /// [`TokenizeError`] if the text cannot be encoded.
    pub fn prepare(&self, input: &TaskInput, part_tokens: usize) -> Result<Vec<PreparedText>, TokenizeError> {
        let cache = self.0.cache.as_ref().map(|cache| (cache, text_key(input, part_tokens)));
        if let Some(found) = cache.and_then(|(cache, key)| cache.find_text(key)) {
            return Ok(found);
        }
        let parts = self.0.task.tokenize(input)?.split(part_tokens);
        if let Some((cache, key)) = cache
            && parts.iter().any(|part| part.chunks().next().is_some())
        {
            cache.add_text(key, &parts);
        }
        Ok(parts.into_iter().map(PreparedText::from).collect())
    }
}
