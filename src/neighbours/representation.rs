//! What a text is represented by: one vector, one vector per token, or a sparse vector.

use serde::{Deserialize, Serialize};

use super::order::descending;

/// What texts are represented by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Representation {
    /// One dense vector.
    Dense,
    /// One dense vector per token.
    PerToken,
    /// One sparse vector.
    Sparse,
}

impl Representation {
    /// What a text has, for messages.
    pub fn noun(self) -> &'static str {
        match self {
            Representation::Dense => "one vector",
            Representation::PerToken => "one vector per token",
            Representation::Sparse => "a sparse vector",
        }
    }
}

/// A text as a model represents it.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoded {
    /// One vector.
    Dense(Vec<f32>),
    /// The vectors of its tokens, concatenated.
    PerToken(Vec<f32>),
    /// A sparse vector.
    Sparse(SparseVector),
}

impl Encoded {
    /// The elements of its vector, or of those of its tokens; `None` for a sparse vector.
    pub fn dense(&self) -> Option<&[f32]> {
        match self {
            Encoded::Dense(values) | Encoded::PerToken(values) => Some(values),
            Encoded::Sparse(_) => None,
        }
    }

    /// Its sparse vector.
    pub fn sparse(&self) -> Option<&SparseVector> {
        match self {
            Encoded::Sparse(vector) => Some(vector),
            Encoded::Dense(_) | Encoded::PerToken(_) => None,
        }
    }
}

/// The elements of a vector over the vocabulary that are not zero.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct SparseVector {
    /// Vocabulary ids, ascending.
    pub indices: Vec<u32>,
    /// Their weights.
    pub values: Vec<f32>,
    /// Their tokens, as in the vocabulary; empty where they are read back from columns.
    pub tokens: Vec<String>,
}

impl SparseVector {
    /// Pairs of a token and its weight, by descending weight; equal weights by ascending index.
    pub fn by_weight(&self) -> Vec<(&str, f32)> {
        let mut weights: Vec<(&str, f32)> =
            self.tokens.iter().map(String::as_str).zip(self.values.iter().copied()).collect();
        weights.sort_by_key(|(_, weight)| descending(*weight));
        weights
    }
}
