//! The token sequences of one text.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::{Alignment, Role, TokenIds};

/// A tokenized text: one sequence, or several for a text that is encoded in parts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TokenizedText {
    /// The sequences, in the order of the text.
    pub sequences: Vec<Sequence>,
    /// What the text is, if what becomes of its tokens depends on it.
    pub role: Option<Role>,
    /// Tokens at the start of each sequence that are not pooled: those of a prompt that the model excludes.
    pub prompt_tokens: usize,
    /// Whether it has a vector for each token, although others are pooled.
    pub per_token: bool,
    /// The query whose vector its own is compared with, if it has one that other texts may not have.
    pub query: Option<Arc<TokenizedText>>,
}

/// Tokens that attend to each other: one forward pass of the encoder.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sequence {
    /// Token ids, including special tokens.
    pub tokens: TokenIds,
    /// The chunks of the text in this sequence, one output row each. Empty if the whole text is one row.
    pub chunks: Vec<Chunk>,
}

/// A chunk of a text.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Its index in the text, from 0.
    pub index: u64,
    /// Its characters in the text.
    pub characters: Range<u64>,
    /// The lines of its first and of its last character, from 1.
    pub lines: RangeInclusive<u64>,
    /// Its tokens in its sequence.
    pub tokens: Range<usize>,
}

impl TokenizedText {
    /// A text of these sequences, in which all tokens are the text's own.
    pub fn new(sequences: Vec<Sequence>) -> Self {
        TokenizedText { sequences, role: None, prompt_tokens: 0, per_token: false, query: None }
    }

    /// Tokens of all sequences, including special tokens, and those of its query.
    pub fn token_count(&self) -> usize {
        self.own_token_count() + self.query.as_ref().map_or(0, |query| query.token_count())
    }

    /// Tokens of all sequences, including special tokens, without those of its query.
    pub fn own_token_count(&self) -> usize {
        self.sequences.iter().map(|sequence| sequence.tokens.ids.len()).sum()
    }

    /// Tokens that truncation removed, also from its query.
    pub fn truncated_tokens(&self) -> usize {
        let own: usize = self.sequences.iter().map(|sequence| sequence.tokens.truncated_tokens).sum();
        own + self.query.as_ref().map_or(0, |query| query.truncated_tokens())
    }

    /// Where the tokens of the first sequence are in the text, if it was tokenized with that.
    pub fn alignment(&self) -> Option<&Alignment> {
        self.sequences.first()?.tokens.alignment.as_deref()
    }

    /// The chunks of the text, one output row each. Empty if the whole text is one row.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.sequences.iter().flat_map(|sequence| &sequence.chunks)
    }

    /// Output rows of this text.
    pub fn row_count(&self) -> usize {
        self.chunks().count().max(1)
    }

    /// Splits a text of several rows into parts of at most `max_tokens` tokens each, at the boundaries of
    /// sequences. A longer sequence is a part of its own, and a text of one row is never split.
    pub fn split(self, max_tokens: usize) -> Vec<TokenizedText> {
        if self.chunks().next().is_none() {
            return vec![self];
        }
        let lengths: Vec<usize> = self.sequences.iter().map(|sequence| sequence.tokens.ids.len()).collect();
        let mut sequences = self.sequences.into_iter();
        consecutive_runs(&lengths, max_tokens)
            .into_iter()
            .map(|run| TokenizedText {
                sequences: sequences.by_ref().take(run.len()).collect(),
                role: self.role,
                prompt_tokens: self.prompt_tokens,
                per_token: self.per_token,
                query: self.query.clone(),
            })
            .collect()
    }
}

/// Groups sequences of these `lengths`, in tokens, into runs of at most `max_tokens` tokens, keeping their
/// order. A sequence that is longer is a run of its own.
///
/// Returns the indices of the sequences in each run.
pub fn consecutive_runs(lengths: &[usize], max_tokens: usize) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, &length) in lengths.iter().enumerate() {
        if i > start && tokens + length > max_tokens {
            runs.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += length;
    }
    if start < lengths.len() {
        runs.push(start..lengths.len());
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::consecutive_runs;

    #[test]
    fn runs_keep_the_order_and_a_longer_sequence_is_a_run_of_its_own() {
        assert_eq!(consecutive_runs(&[3, 4, 5, 1, 1], 7), [0..2, 2..5]);
        assert_eq!(consecutive_runs(&[2, 9, 2], 4), [0..1, 1..2, 2..3]);
        assert_eq!(consecutive_runs(&[9], 4).len(), 1);
        assert!(consecutive_runs(&[], 4).is_empty());
    }
}
