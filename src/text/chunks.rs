//! Where a long text is cut into chunks: at the best boundary that keeps each within a number of tokens.
//!
//! A chunk ends at the last paragraph that fits, where not even one fits at the last sentence, then at the last word, and only
//! where a single word is too long inside of it. Only the text around a chunk is tokenized to find its end, so that time grows
//! with the length of the text and memory with that of a chunk.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use anyhow::{Result, bail};
use unicode_segmentation::UnicodeSegmentation;

use super::{TokenIds, Tokenizer};

/// How texts are cut into chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking {
    /// Maximum tokens of a chunk, with the special tokens and the prompt.
    pub tokens: usize,
    /// Maximum tokens at the end of a chunk that the next one repeats.
    pub overlap: usize,
    /// Late chunking (Günther et al. 2024): the whole text is encoded at once, and a chunk's vector is the mean over its tokens.
    pub late: bool,
}

/// A chunk and its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Its bytes in the text. White space at both ends is left out.
    pub range: Range<usize>,
    /// Its tokens, with the special tokens and the prompt.
    pub tokens: TokenIds,
}

/// A sequence that is encoded at once for late chunking, and the tokens of the chunks in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LateWindow {
    /// Its tokens, with the special tokens and the prompt.
    pub tokens: TokenIds,
    /// The tokens of each of its chunks.
    pub chunks: Vec<Range<usize>>,
}

/// A character has more tokens than a chunk: the rest of a sentence that begins with the text's place.
#[derive(Debug)]
pub struct LongCharacter {
    character: char,
    limit: usize,
}

impl fmt::Display for LongCharacter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LongCharacter { character, limit } = self;
        write!(
            f,
            "has the character {character:?}, which alone has more tokens than --chunk {limit} holds with the special \
             tokens and the prompt; pass a larger --chunk"
        )
    }
}

impl std::error::Error for LongCharacter {}

/// Bytes of text for a token: enough for most texts, so that one attempt finds the end of a chunk. More are taken where they are
/// too few.
const BYTES_PER_TOKEN: usize = 8;
/// Bytes after a boundary that decide whether it is one.
const LOOKAHEAD: usize = 256;
/// The part of a window for late chunking that repeats the text before its first chunk, as context: a quarter.
const CONTEXT: usize = 4;

/// Cuts a text into chunks, each of which [`Tokenizer::encode`] takes with `prompt` before it. Every character that is not white
/// space is in a chunk. A text without any is one empty chunk.
///
/// # Errors
/// If the tokenizer fails; [`LongCharacter`] if one character has more tokens than fit.
pub fn split(tokenizer: &Tokenizer, prompt: &str, text: &str, chunking: Chunking) -> Result<Vec<Piece>> {
    Splitter::new(tokenizer, prompt, text, chunking.tokens)?.split(chunking.overlap)
}

/// The windows that encode a text for late chunking, given its chunks. A text within the tokenizer's limit is one window. A longer
/// one has several (long late chunking): each holds as many whole chunks as fit, after some of the text before them, so that every
/// chunk is in one window with text on its left. The first chunk of the text takes the prompt and the special tokens before it, the
/// last one those at the end.
///
/// # Errors
/// If the tokenizer fails.
pub fn late_windows(
    tokenizer: &Tokenizer,
    prompt: &str,
    text: &str,
    chunks: &[Range<usize>],
) -> Result<Vec<LateWindow>> {
    let splitter = Splitter::new(tokenizer, prompt, text, tokenizer.max_length())?;
    let mut windows = Vec::new();
    let mut first = 0;
    while first < chunks.len() {
        let (window, next) = splitter.late_window(chunks, first)?;
        windows.push(window);
        first = next;
    }
    Ok(windows)
}

/// Finds the ends of chunks in a text.
struct Splitter<'a> {
    tokenizer: &'a Tokenizer,
    prompt: &'a str,
    text: &'a str,
    /// Maximum tokens of a sequence, with the special tokens and the prompt.
    limit: usize,
    /// What is left of them for the text.
    room: usize,
}

impl<'a> Splitter<'a> {
    fn new(tokenizer: &'a Tokenizer, prompt: &'a str, text: &'a str, limit: usize) -> Result<Self> {
        let room = limit.saturating_sub(tokenizer.tokens_around(prompt)?);
        Ok(Splitter { tokenizer, prompt, text, limit, room })
    }

    fn split(&self, overlap: usize) -> Result<Vec<Piece>> {
        let mut pieces: Vec<Piece> = Vec::new();
        let mut from = self.skip_blank(0);
        while from < self.text.len() {
            let start = match pieces.last() {
                Some(last) if overlap > 0 => {
                    // A chunk does not repeat all of the one before it.
                    let start = self.start_of_last(last.range.start, last.range.end, overlap)?;
                    if start > last.range.start && start < last.range.end { start } else { from }
                }
                _ => from,
            };
            let piece = match self.chunk(start, from)? {
                None if start < from => self.chunk(from, from)?,
                piece => piece,
            };
            let Some(piece) = piece else {
                let character = self.text[from..].chars().next().unwrap_or_default();
                bail!(LongCharacter { character, limit: self.limit });
            };
            from = self.skip_blank(piece.range.end);
            pieces.push(piece);
        }
        if pieces.is_empty() {
            pieces.push(Piece { range: 0..0, tokens: self.encode(0..0)? });
        }
        Ok(pieces)
    }

    /// The chunk that begins at `start`, of which the text up to `from` is in the chunk before it. None if nothing fits, or if it
    /// would be cut inside of a word although the text before `from` could be left out.
    fn chunk(&self, start: usize, from: usize) -> Result<Option<Piece>> {
        let mut room = self.room;
        while room > 0 {
            let (least, reach) = self.reach(start, from, room)?;
            let Some(end) = self.best_end(start, least..=reach, start == from) else { return Ok(None) };
            let range = start..start + self.text[start..end].trim_end().len();
            let tokens = self.encode(range.clone())?;
            let excess = (tokens.ids.len() + tokens.cut).saturating_sub(self.limit);
            if excess == 0 {
                return Ok(Some(Piece { range, tokens }));
            }
            // Some text has more tokens by itself than within a longer one.
            room = room.saturating_sub(excess.max(room / 16));
        }
        Ok(None)
    }

    /// How far `room` tokens reach from `start`: to the token after them, or to the end of the text; and the least end of a chunk,
    /// past `from` and the first token.
    fn reach(&self, start: usize, from: usize, room: usize) -> Result<(usize, usize)> {
        let mut bytes = room * BYTES_PER_TOKEN + 64;
        loop {
            let window = &self.text[start..self.floor(start.saturating_add(bytes))];
            let offsets = self.tokenizer.offsets(window)?;
            let reach = match offsets.get(room) {
                Some(next) => self.skip_blank(self.floor(start + next.start)),
                None if start + window.len() < self.text.len() => {
                    bytes = bytes.saturating_mul(2);
                    continue;
                }
                None => self.text.len(),
            };
            let first = offsets.first().map_or(window.len(), |first| first.end);
            let least = self.ceil((start + first).max(from + 1));
            return Ok((least, reach.max(least)));
        }
    }

    /// The best end for a chunk from `start`: the last boundary of the highest kind in `ends`. Inside of a word only if it `may_cut`
    /// one.
    fn best_end(&self, start: usize, ends: RangeInclusive<usize>, may_cut: bool) -> Option<usize> {
        let reach = *ends.end();
        if reach == self.text.len() {
            return Some(reach);
        }
        let text = &self.text[start..self.floor(reach + LOOKAHEAD)];
        let ends = ends.start() - start..=reach - start;
        let last = |boundaries: &mut dyn Iterator<Item = usize>| {
            boundaries.take_while(|end| end <= ends.end()).filter(|end| end >= ends.start()).last()
        };
        last(&mut paragraphs(text))
            .or_else(|| last(&mut sentences(text)))
            .or_else(|| last(&mut words(text)))
            .or_else(|| {
                let graphemes = || text.grapheme_indices(true).map(|(at, _)| at);
                may_cut.then(|| last(&mut graphemes()).unwrap_or(*ends.end()))
            })
            .map(|end| start + end)
    }

    /// Where at most the last `tokens` tokens of the text from `from` to `end` begin: at a sentence, else at a word; `end` if there
    /// is no such boundary.
    fn start_of_last(&self, from: usize, end: usize, tokens: usize) -> Result<usize> {
        let from = from.max(self.floor(end.saturating_sub(tokens * BYTES_PER_TOKEN + 64)));
        let text = &self.text[from..end];
        let offsets = self.tokenizer.offsets(text)?;
        let mut room = tokens;
        while room > 0 {
            let earliest = offsets.len().checked_sub(room).map_or(0, |first| offsets[first].start);
            let start = sentences(text)
                .find(|start| *start >= earliest)
                .or_else(|| words(text).find(|start| *start >= earliest));
            let Some(start) = start.map(|start| self.skip_blank(from + start)).filter(|start| *start < end)
            else {
                return Ok(end);
            };
            let excess = self.tokenizer.offsets(&self.text[start..end])?.len().saturating_sub(tokens);
            if excess == 0 {
                return Ok(start);
            }
            room = room.saturating_sub(excess.max(room / 16));
        }
        Ok(end)
    }

    /// The window for late chunking of which `chunks[first]` is the first chunk, and the first chunk of the next window.
    fn late_window(&self, chunks: &[Range<usize>], first: usize) -> Result<(LateWindow, usize)> {
        let own = chunks[first].start;
        let mut from = if first == 0 { own } else { self.start_of_last(0, own, self.limit / CONTEXT)? };
        let mut room = self.room;
        loop {
            let (_, reach) = self.reach(from, from, room.max(1))?;
            let fitting = chunks[first..].iter().take_while(|chunk| chunk.end <= reach).count();
            if from < own && (fitting == 0 || room == 0) {
                (from, room) = (own, self.room);
                continue;
            }
            // A chunk by itself fits.
            let next = first + fitting.max(1);
            let text = &self.text[from..chunks[next - 1].end];
            let (tokens, offsets) = self.tokenizer.encode_with_offsets(&self.prompted(text))?;
            let excess = tokens.ids.len().saturating_sub(self.limit);
            if excess > 0 && (next > first + 1 || from < own) {
                room = room.saturating_sub(excess.max(room / 16));
                continue;
            }
            let spans = first..next;
            let chunks = spans.map(|i| {
                let place = |at: usize| self.prompt.len() + at.saturating_sub(from);
                let span = span(&offsets, place(chunks[i].start)..place(chunks[i].end));
                let start = if i == 0 { 0 } else { span.start };
                start..if i + 1 == chunks.len() { tokens.ids.len() } else { span.end }
            });
            return Ok((LateWindow { chunks: chunks.collect(), tokens }, next));
        }
    }

    /// The tokens of a part of the text, with the prompt before it.
    fn encode(&self, range: Range<usize>) -> Result<TokenIds> {
        self.tokenizer.encode(&self.prompted(&self.text[range]), None)
    }

    fn prompted(&self, part: &str) -> String {
        format!("{}{part}", self.prompt)
    }

    /// The first character at or after `at` that is not white space, or the end of the text.
    fn skip_blank(&self, at: usize) -> usize {
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

/// Where paragraphs begin: after a blank line.
fn paragraphs(text: &str) -> impl Iterator<Item = usize> {
    let mut end = 0;
    text.split_inclusive('\n').filter_map(move |line| {
        end += line.len();
        (line.ends_with('\n') && line.trim().is_empty()).then_some(end)
    })
}

/// Where sentences and lines begin, but for the first (UAX #29).
fn sentences(text: &str) -> impl Iterator<Item = usize> {
    text.split_sentence_bound_indices().map(|(at, _)| at).skip(1)
}

/// Where words begin, but for the first (UAX #29): punctuation stays with the word before it.
fn words(text: &str) -> impl Iterator<Item = usize> {
    let mut before = "";
    text.split_word_bound_indices().filter_map(move |(at, word)| {
        let is_after_blank = before.ends_with(char::is_whitespace);
        let is_word = word.starts_with(char::is_alphanumeric);
        before = word;
        (at > 0 && (is_after_blank || is_word)).then_some(at)
    })
}

/// The tokens that have bytes in a range, given the bytes of each token; none for a special token. If there are none, since the
/// tokenizer drops those bytes, it is the token after them.
fn span(offsets: &[Option<Range<usize>>], bytes: Range<usize>) -> Range<usize> {
    let is_in = |token: &Option<Range<usize>>| {
        token.as_ref().is_some_and(|token| token.end > bytes.start && token.start < bytes.end)
    };
    match (offsets.iter().position(is_in), offsets.iter().rposition(is_in)) {
        (Some(first), Some(last)) => first..last + 1,
        _ => {
            let is_after =
                |token: &Option<Range<usize>>| token.as_ref().is_some_and(|token| token.start >= bytes.end);
            let next = offsets.iter().position(is_after).unwrap_or(offsets.len().saturating_sub(1));
            next..next + 1
        }
    }
}
