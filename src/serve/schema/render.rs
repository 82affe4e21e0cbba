//! What the answers of all schemas share. An `f32` is written as in jsonl rows: the fewest digits that read
//! back as the same value.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Serialize, Serializer};

use super::truncation::Truncated;

/// The average length of an element of a unit vector with its comma, in bytes.
const ELEMENT_BYTES: usize = 13;

/// An answer as JSON.
pub(super) fn json(answer: &impl Serialize) -> Vec<u8> {
    json_of(answer, 0)
}

/// An answer as JSON with vectors that take about this many bytes.
pub(super) fn json_of(answer: &impl Serialize, vector_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(256 + vector_bytes);
    serde_json::to_writer(&mut bytes, answer).expect("writing to memory does not fail, and keys are strings");
    bytes
}

/// The bytes that this many elements take as numbers.
pub(super) fn float_bytes(elements: usize) -> usize {
    elements * ELEMENT_BYTES
}

/// The bytes that this many elements of one vector take in base64.
pub(super) fn base64_bytes(elements: usize) -> usize {
    (elements * size_of::<f32>()).div_ceil(3) * 4
}

/// Number of elements of several vectors.
pub(super) fn element_count(vectors: &[&[f32]]) -> usize {
    vectors.iter().map(|vector| vector.len()).sum()
}

/// What a request is billed for by OpenAI, Cohere and Jina. An embedding has no tokens beside those of its
/// texts.
#[derive(Serialize)]
pub(super) struct Usage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl Usage {
    pub(super) fn of(tokens: usize) -> Self {
        Usage { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// A vector as a string: base64 of its elements, little-endian.
pub(super) struct Base64<'a>(pub &'a [f32]);

impl Serialize for Base64<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bytes: Vec<u8> = self.0.iter().flat_map(|element| element.to_le_bytes()).collect();
        serializer.serialize_str(&BASE64_STANDARD.encode(bytes))
    }
}

/// Whether the field `truncated` is left out.
pub(super) fn none_truncated(truncated: &&[Truncated]) -> bool {
    truncated.is_empty()
}
