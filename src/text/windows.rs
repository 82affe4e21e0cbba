//! Tokenizing a text with the places of its tokens, in windows if it is over the limit.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use thiserror::Error;
use tokenizers::Encoding;

use super::alignment::{Alignment, TokenSpan};
use super::token_model::TokenModel;
use super::tokenizer::{TokenIds, Tokenizer, TruncationSide};

/// How a text over the limit is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// One window: the text is truncated.
    Truncate,
    /// Windows as long as the limit allows.
    Overlapping {
        /// Tokens that a window shares with the next one.
        stride: usize,
    },
}

/// The first text of a pair is too long. The predicate of a sentence whose subject is the record.
#[derive(Debug, Error)]
#[error(
    "is too long for one window of {max_length} tokens, which has room for {room} of its tokens{}",
    if *.stride == 0 { String::new() } else { format!(", and windows share {stride}") }
)]
pub struct NoRoom {
    /// Tokens of the text that a window has room for.
    pub room: usize,
    /// The limit of a window.
    pub max_length: usize,
    /// Tokens that windows share.
    pub stride: usize,
}

impl Tokenizer {
    /// Tokenizes a text, after `first` if it is the second text of a pair, with special tokens and the
    /// alignment of the text. Each window has the whole first text and a part of the text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`], and [`NoRoom`] if the first text leaves room for no more tokens of the text
    /// than windows share.
    pub fn encode_aligned(&self, first: Option<&str>, text: &str, windows: Windows) -> Result<Vec<TokenIds>> {
        let encoding = self.encode_characters(first, text)?;
        let second = usize::from(first.is_some());
        let is_text = |sequence: &Option<usize>| *sequence == Some(second);
        let sequences = encoding.get_sequence_ids();
        let start = sequences.iter().position(is_text).unwrap_or(encoding.len());
        let end = sequences.iter().rposition(is_text).map_or(start, |last| last + 1);
        let around = encoding.len() - (end - start);
        let room = self.max_length().saturating_sub(around);
        let spans = self.spans(&encoding, start..end, text);
        let text: Arc<str> = text.into();
        let parts = match windows {
            Windows::Truncate => vec![truncated(start..end, room, self.truncation_side())],
            Windows::Overlapping { stride } => overlapping(start..end, room, stride).ok_or(NoRoom {
                room,
                max_length: self.max_length(),
                stride,
            })?,
        };
        let removed = match windows {
            Windows::Truncate => (end - start).saturating_sub(room),
            Windows::Overlapping { .. } => 0,
        };
        let window = |part: Range<usize>| {
            let kept = (0..start).chain(part).chain(end..encoding.len());
            let of = |values: &[u32]| kept.clone().map(|i| values[i]).collect();
            let spans = kept.clone().map(|i| spans[i].clone()).collect();
            TokenIds {
                ids: of(encoding.get_ids()),
                token_type_ids: of(encoding.get_type_ids()),
                truncated_tokens: removed,
                alignment: Some(Alignment { text: text.clone(), spans }.into()),
                unattended_tokens: 0,
            }
        };
        Ok(parts.into_iter().map(window).collect())
    }

    /// The place of each token of an encoding whose text has the tokens `of_text`.
    fn spans(&self, encoding: &Encoding, of_text: Range<usize>, text: &str) -> Vec<Option<TokenSpan>> {
        let (words, unknown) = (self.has_word_prefix(), self.unknown_token_id());
        let spaces: Vec<bool> = if words { Vec::new() } else { text.chars().map(|c| c == ' ').collect() };
        let span = |i: usize| {
            if !of_text.contains(&i) || encoding.get_special_tokens_mask()[i] == 1 {
                return None;
            }
            let (start, end) = encoding.get_offsets()[i];
            let is_subword = if unknown == Some(encoding.get_ids()[i]) {
                false
            } else if words {
                encoding.get_tokens()[i].chars().count() != end - start
            } else {
                start > 0 && !spaces[start - 1..spaces.len().min(start + 1)].contains(&true)
            };
            Some(TokenSpan { characters: start..end, word: encoding.get_word_ids()[i], is_subword })
        };
        (0..encoding.len()).map(span).collect()
    }

    /// Whether the tokens of the vocabulary that continue a word have a prefix, such as `##`.
    fn has_word_prefix(&self) -> bool {
        match self.model() {
            TokenModel::WordPiece(model) => !model.continuing_subword_prefix.is_empty(),
            TokenModel::Bpe(model) => {
                model.continuing_subword_prefix.as_ref().is_some_and(|prefix| !prefix.is_empty())
            }
            TokenModel::WordLevel(_) | TokenModel::Unigram(_) => false,
        }
    }
}

/// The tokens of a text that fit into `room` tokens.
fn truncated(tokens: Range<usize>, room: usize, side: TruncationSide) -> Range<usize> {
    match side {
        TruncationSide::Left => tokens.start.max(tokens.end.saturating_sub(room))..tokens.end,
        TruncationSide::Right => tokens.start..tokens.end.min(tokens.start + room),
    }
}

/// Windows of `room` tokens that share `stride` tokens with the next one; the last one has the rest. `None`
/// if the text needs several windows, but one has no more than `stride` tokens.
fn overlapping(tokens: Range<usize>, room: usize, stride: usize) -> Option<Vec<Range<usize>>> {
    if tokens.len() <= room {
        return Some(vec![tokens]);
    }
    if stride >= room {
        return None;
    }
    let mut windows = Vec::new();
    for start in tokens.clone().step_by(room - stride) {
        windows.push(start..tokens.end.min(start + room));
        if start + room >= tokens.end {
            break;
        }
    }
    Some(windows)
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[test]
    fn windows_share_tokens_and_cover_the_text() {
        assert_eq!(overlapping(2..12, 10, 3).as_deref(), Some(slice::from_ref(&(2..12))));
        assert_eq!(overlapping(2..12, 4, 1).unwrap(), [2..6, 5..9, 8..12]);
        assert_eq!(overlapping(0..11, 4, 1).unwrap(), [0..4, 3..7, 6..10, 9..11]);
        assert_eq!(overlapping(5..5, 4, 1).as_deref(), Some(slice::from_ref(&(5..5))));
        assert_eq!(overlapping(0..11, 4, 4), None);
    }

    #[test]
    fn truncation_keeps_one_side() {
        assert_eq!(truncated(2..12, 4, TruncationSide::Right), 2..6);
        assert_eq!(truncated(2..12, 4, TruncationSide::Left), 8..12);
        assert_eq!(truncated(2..5, 4, TruncationSide::Left), 2..5);
    }
}
