//! The chunks of a text: where each is, for the row that it has.

use std::ops::Range;

use anyhow::Error;

use super::sequences::tokenizer_failed;
use crate::engine::TokenizeError;
use crate::rows::Span;
use crate::text::{Chunk, OversizedCharacter};

/// The chunks of a text in these ranges of its bytes, which are sorted by their starts and can overlap; those
/// of tokens are empty.
pub(super) fn locate(text: &str, ranges: impl IntoIterator<Item = Range<usize>>) -> Vec<Chunk> {
    let (mut byte, mut character, mut line) = (0, 0, 1);
    let chunks = ranges.into_iter().zip(0..).map(|(Range { start, end }, index)| {
        character += text[byte..start].chars().count() as u64;
        line += line_breaks(&text[byte..start]);
        byte = start;
        let characters = character..character + text[start..end].chars().count() as u64;
        Chunk { index, characters, lines: line..=line + line_breaks(&text[start..end]), tokens: 0..0 }
    });
    chunks.collect()
}

/// Where a chunk is in its text.
pub(super) fn span(chunk: &Chunk) -> Span {
    let Chunk { index, ref characters, ref lines, .. } = *chunk;
    let (line, end_line) = (*lines.start(), *lines.end());
    Span { chunk: index, start: characters.start, end: characters.end, line, end_line }
}

/// Why a text cannot be split.
pub(super) fn cannot_split(error: Error) -> TokenizeError {
    match error.downcast() {
        Ok::<OversizedCharacter, _>(long) => TokenizeError::Failed(long.to_string()),
        Err(error) => tokenizer_failed(error),
    }
}

/// The number of line breaks in a text.
fn line_breaks(text: &str) -> u64 {
    memchr::memchr_iter(b'\n', text.as_bytes()).count() as u64
}
