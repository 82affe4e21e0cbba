//! The metric: what the score of two vectors is.

use crate::named::names;

/// What the score of two vectors is. Greater is nearer for every metric. The names are those of
/// sentence-transformers' `SimilarityFunction`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Metric {
    /// q · x / (‖q‖ ‖x‖), from −1 to 1; 0 if a vector is all zeros.
    #[default]
    Cosine,
    /// q · x.
    Dot,
    /// −‖q − x‖, the negative distance: 0 for equal vectors.
    Euclidean,
}

names!(Metric { Cosine => "cosine", Dot => "dot", Euclidean => "euclidean" });
