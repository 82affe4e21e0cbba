//! Splits a long text into chunks of a maximum number of tokens, each of which ends at the best boundary that
//! fits.
//!
//! A chunk ends at the last paragraph boundary within the limit; without one, at the last sentence boundary,
//! then at the last word boundary. Only a word that exceeds the limit by itself is split. To find the end of
//! a chunk, only the text near it is tokenized: time grows with the length of the text, memory with the
//! length of a chunk.

use std::ops::{Range, RangeInclusive};

use anyhow::{Result, bail};
use thiserror::Error;
use unicode_segmentation::UnicodeSegmentation;

use super::{TokenIds, Tokenizer};

/// How texts are split into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking {
    /// The maximum tokens of a chunk, including the special tokens and the prompt.
    pub tokens: usize,
    /// The maximum tokens at the end of a chunk that the next chunk repeats.
    pub overlap: usize,
    /// Late chunking (Günther et al. 2024): the encoder sees the whole text, and the vector of a chunk is the
    /// mean over its tokens.
    pub late: bool,
}

/// A chunk of a text with its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenizedChunk {
    /// Its bytes in the text, without white space at either end.
    pub range: Range<usize>,
    /// Its tokens, with the special tokens and the prompt.
    pub tokens: TokenIds,
}

/// A sequence that is encoded for late chunking, with the tokens of each of its chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateSequence {
    /// Its tokens, with the special tokens and the prompt.
    pub tokens: TokenIds,
    /// For each chunk in it, the range of its tokens.
    pub chunks: Vec<Range<usize>>,
}

/// A single character has more tokens than a chunk may have. The message continues a sentence that begins
/// with the location of the text.
#[derive(Debug, Error)]
#[error(
    "has a character, {character:?}, with more tokens than --chunk {limit} allows in addition to the special tokens and the prompt; \
     pass a larger --chunk"
)]
pub struct OversizedCharacter {
    character: char,
    limit: usize,
}

/// Bytes of text per token that are tokenized to find the end of a chunk: enough for most texts to need one
/// attempt. If a text has more, the number of bytes is doubled.
const BYTES_PER_TOKEN: usize = 8;
/// Bytes after a possible boundary that the rules of Unicode may need to decide whether it is one.
const LOOKAHEAD_BYTES: usize = 256;
/// The share of the limit (1 / 4) that a sequence for late chunking may spend on the text before its first
/// chunk, as context.
const CONTEXT_DIVISOR: usize = 4;

/// Splits a text into chunks. Each of them, encoded by [`Tokenizer::encode`] with `prompt` before it, is
/// within the limit. Every character except white space is in a chunk. An empty or blank text is one empty
/// chunk.
///
/// # Errors
/// If the tokenizer fails; [`OversizedCharacter`] if a single character has more tokens than a chunk may
/// have.
pub fn split(
    tokenizer: &Tokenizer,
    prompt: &str,
    text: &str,
    chunking: Chunking,
) -> Result<Vec<TokenizedChunk>> {
    Splitter::new(tokenizer, prompt, text, chunking.tokens)?.split(chunking.overlap)
}

/// The sequences that encode a text for late chunking, given the byte ranges of its chunks. A text within the
/// tokenizer's limit is one sequence. A longer one is encoded in several ("long late chunking"): each has as
/// many whole chunks as fit after some of the text before them, so that every chunk is in exactly one
/// sequence and has context on its left. The first chunk of the text includes the prompt and the special
/// tokens before it, the last chunk the special tokens after it.
pub fn late_sequences(
    tokenizer: &Tokenizer,
    prompt: &str,
    text: &str,
    chunks: &[Range<usize>],
) -> Result<Vec<LateSequence>> {
    let splitter = Splitter::new(tokenizer, prompt, text, tokenizer.max_length())?;
    let mut sequences = Vec::new();
    let mut first = 0;
    while first < chunks.len() {
        let (sequence, next) = splitter.late_sequence(chunks, first)?;
        sequences.push(sequence);
        first = next;
    }
    Ok(sequences)
}

/// Finds the ends of chunks in a text. Positions are byte offsets into it.
struct Splitter<'a> {
    tokenizer: &'a Tokenizer,
    prompt: &'a str,
    text: &'a str,
    /// The maximum tokens of a sequence, including the special tokens and the prompt.
    max_tokens: usize,
    /// The maximum tokens of a sequence without them.
    max_text_tokens: usize,
}

impl<'a> Splitter<'a> {
    fn new(tokenizer: &'a Tokenizer, prompt: &'a str, text: &'a str, max_tokens: usize) -> Result<Self> {
        let max_text_tokens = max_tokens.saturating_sub(tokenizer.num_prompt_and_special_tokens(prompt)?);
        Ok(Splitter { tokenizer, prompt, text, max_tokens, max_text_tokens })
    }

    fn split(&self, overlap: usize) -> Result<Vec<TokenizedChunk>> {
        let mut chunks: Vec<TokenizedChunk> = Vec::new();
        // Where the text begins that is in no chunk yet.
        let mut from = self.skip_white_space(0);
        while from < self.text.len() {
            let start = match chunks.last() {
                Some(last) if overlap > 0 => {
                    let start = self.start_of_last(last.range.start, last.range.end, overlap)?;
                    // A chunk does not repeat the whole chunk before it.
                    if start > last.range.start && start < last.range.end { start } else { from }
                }
                _ => from,
            };
            let chunk = match self.chunk(start, from)? {
                None if start < from => self.chunk(from, from)?,
                chunk => chunk,
            };
            let Some(chunk) = chunk else {
                let character = self.text[from..].chars().next().unwrap_or_default();
                bail!(OversizedCharacter { character, limit: self.max_tokens });
            };
            from = self.skip_white_space(chunk.range.end);
            chunks.push(chunk);
        }
        if chunks.is_empty() {
            chunks.push(TokenizedChunk { range: 0..0, tokens: self.encode(0..0)? });
        }
        Ok(chunks)
    }

    /// The chunk that begins at `start`, where the text before `from` is an overlap with the chunk before it.
    /// Returns `None` if no chunk fits, or if the overlap would force it to split a word.
    fn chunk(&self, start: usize, from: usize) -> Result<Option<TokenizedChunk>> {
        let mut max_text_tokens = self.max_text_tokens;
        while max_text_tokens > 0 {
            let (min_end, max_end) = self.end_bounds(start, from, max_text_tokens)?;
            let Some(end) = self.best_end(start, min_end..=max_end, start == from) else { return Ok(None) };
            let range = start..start + self.text[start..end].trim_end().len();
            let tokens = self.encode(range.clone())?;
            let excess = (tokens.ids.len() + tokens.truncated_tokens).saturating_sub(self.max_tokens);
            if excess == 0 {
                return Ok(Some(TokenizedChunk { range, tokens }));
            }
            // Some texts have more tokens by themselves than as a part of a longer text.
            max_text_tokens = max_text_tokens.saturating_sub(excess.max(max_text_tokens / 16));
        }
        Ok(None)
    }

    /// The bounds of the end of a chunk that begins at `start`. The lower bound is after `from` and after the
    /// first token. The upper bound is the beginning of the token that follows `max_text_tokens` tokens, or
    /// the end of the text.
    fn end_bounds(&self, start: usize, from: usize, max_text_tokens: usize) -> Result<(usize, usize)> {
        let mut bytes = max_text_tokens * BYTES_PER_TOKEN + 64;
        loop {
            let part = &self.text[start..self.floor(start.saturating_add(bytes))];
            let offsets = self.tokenizer.offsets(part)?;
            let max_end = match offsets.get(max_text_tokens) {
                Some(next) => self.skip_white_space(self.floor(start + next.start)),
                None if start + part.len() < self.text.len() => {
                    bytes = bytes.saturating_mul(2);
                    continue;
                }
                None => self.text.len(),
            };
            let first_token_end = offsets.first().map_or(part.len(), |first| first.end);
            let min_end = self.ceil((start + first_token_end).max(from + 1));
            return Ok((min_end, max_end.max(min_end)));
        }
    }

    /// The best end, among `ends`, of a chunk that begins at `start`: the last boundary of the highest kind.
    /// Returns `None` if only a split word would do and `may_split_word` is false.
    fn best_end(&self, start: usize, ends: RangeInclusive<usize>, may_split_word: bool) -> Option<usize> {
        let max_end = *ends.end();
        if max_end == self.text.len() {
            return Some(max_end);
        }
        let text = &self.text[start..self.floor(max_end + LOOKAHEAD_BYTES)];
        let ends = ends.start() - start..=max_end - start;
        let last = |boundaries: &mut dyn Iterator<Item = usize>| {
            boundaries.take_while(|end| end <= ends.end()).filter(|end| end >= ends.start()).last()
        };
        last(&mut paragraphs(text))
            .or_else(|| last(&mut sentences(text)))
            .or_else(|| last(&mut words(text)))
            .or_else(|| {
                let graphemes = || text.grapheme_indices(true).map(|(at, _)| at);
                may_split_word.then(|| last(&mut graphemes()).unwrap_or(*ends.end()))
            })
            .map(|end| start + end)
    }

    /// The beginning of the first sentence, or else of the first word, after `from` that has at most `tokens`
    /// tokens between it and `end`. Returns `end` if there is no such boundary.
    fn start_of_last(&self, from: usize, end: usize, tokens: usize) -> Result<usize> {
        let from = from.max(self.floor(end.saturating_sub(tokens * BYTES_PER_TOKEN + 64)));
        let text = &self.text[from..end];
        let offsets = self.tokenizer.offsets(text)?;
        let mut max_tokens = tokens;
        while max_tokens > 0 {
            let min_start = offsets.len().checked_sub(max_tokens).map_or(0, |first| offsets[first].start);
            let start = sentences(text)
                .find(|start| *start >= min_start)
                .or_else(|| words(text).find(|start| *start >= min_start));
            let start = start.map(|start| self.skip_white_space(from + start));
            let Some(start) = start.filter(|start| *start < end) else { return Ok(end) };
            let excess = self.tokenizer.offsets(&self.text[start..end])?.len().saturating_sub(tokens);
            if excess == 0 {
                return Ok(start);
            }
            max_tokens = max_tokens.saturating_sub(excess.max(max_tokens / 16));
        }
        Ok(end)
    }

    /// The sequence for late chunking whose first chunk is `chunks[first]`, and the index of the first chunk
    /// of the next sequence.
    fn late_sequence(&self, chunks: &[Range<usize>], first: usize) -> Result<(LateSequence, usize)> {
        let chunks_start = chunks[first].start;
        let mut from = if first == 0 {
            chunks_start
        } else {
            self.start_of_last(0, chunks_start, self.max_tokens / CONTEXT_DIVISOR)?
        };
        let mut max_text_tokens = self.max_text_tokens;
        loop {
            let (_, max_end) = self.end_bounds(from, from, max_text_tokens.max(1))?;
            let fitting = chunks[first..].iter().take_while(|chunk| chunk.end <= max_end).count();
            if from < chunks_start && (fitting == 0 || max_text_tokens == 0) {
                // No chunk fits after the context: leave out the context.
                (from, max_text_tokens) = (chunks_start, self.max_text_tokens);
                continue;
            }
            // Without context, one chunk always fits.
            let next = first + fitting.max(1);
            let text = &self.text[from..chunks[next - 1].end];
            let (tokens, offsets) = self.tokenizer.encode_with_offsets(&self.with_prompt(text))?;
            let excess = tokens.ids.len().saturating_sub(self.max_tokens);
            if excess > 0 && (next > first + 1 || from < chunks_start) {
                max_text_tokens = max_text_tokens.saturating_sub(excess.max(max_text_tokens / 16));
                continue;
            }
            let ranges = (first..next).map(|i| {
                let in_sequence = |at: usize| self.prompt.len() + at.saturating_sub(from);
                let range = token_range(&offsets, in_sequence(chunks[i].start)..in_sequence(chunks[i].end));
                let start = if i == 0 { 0 } else { range.start };
                start..if i + 1 == chunks.len() { tokens.ids.len() } else { range.end }
            });
            return Ok((LateSequence { chunks: ranges.collect(), tokens }, next));
        }
    }

    /// The tokens of a part of the text, with the prompt before it.
    fn encode(&self, range: Range<usize>) -> Result<TokenIds> {
        self.tokenizer.encode(&self.with_prompt(&self.text[range]), None)
    }

    fn with_prompt(&self, part: &str) -> String {
        format!("{}{part}", self.prompt)
    }

    /// The first character at or after `at` that is not white space, or the end of the text.
    fn skip_white_space(&self, at: usize) -> usize {
        self.text.len() - self.text[at..].trim_start().len()
    }

    /// The last character boundary at or before `at`.
    fn floor(&self, at: usize) -> usize {
        let at = at.min(self.text.len());
        (0..=at).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0)
    }

    /// The first character boundary at or after `at`.
    fn ceil(&self, at: usize) -> usize {
        (at..self.text.len()).find(|at| self.text.is_char_boundary(*at)).unwrap_or(self.text.len())
    }
}

/// The beginnings of paragraphs except the first: after a blank line.
fn paragraphs(text: &str) -> impl Iterator<Item = usize> {
    let mut end = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        end += line.len();
        (line.ends_with('\n') && line.trim().is_empty()).then_some(end)
    })
}

/// The beginnings of sentences and lines except the first (UAX #29).
fn sentences(text: &str) -> impl Iterator<Item = usize> {
    text.split_sentence_bound_indices().map(|(at, _)| at).skip(1)
}

/// The beginnings of words except the first (UAX #29). Punctuation belongs to the word before it.
fn words(text: &str) -> impl Iterator<Item = usize> {
    let mut previous = "";
    text.split_word_bound_indices().filter_map(move |(at, segment)| {
        let is_after_white_space = previous.ends_with(char::is_whitespace);
        let is_word = segment.starts_with(char::is_alphanumeric);
        previous = segment;
        (at > 0 && (is_after_white_space || is_word)).then_some(at)
    })
}

/// The range of the tokens that share bytes with `bytes`, given the byte range of each token, `None` for
/// special tokens. If the tokenizer dropped those bytes, it is the one token after them.
fn token_range(offsets: &[Option<Range<usize>>], bytes: Range<usize>) -> Range<usize> {
    let overlaps = |token: &Option<Range<usize>>| {
        token.as_ref().is_some_and(|token| token.end > bytes.start && token.start < bytes.end)
    };
    match (offsets.iter().position(overlaps), offsets.iter().rposition(overlaps)) {
        (Some(first), Some(last)) => first..last + 1,
        _ => {
            let is_after =
                |token: &Option<Range<usize>>| token.as_ref().is_some_and(|token| token.start >= bytes.end);
            let next = offsets.iter().position(is_after).unwrap_or(offsets.len().saturating_sub(1));
            next..next + 1
        }
    }
}
