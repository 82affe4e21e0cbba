//! The similarity function of a model: `similarity_fn_name` of `config_sentence_transformers.json`.

use crate::named::names;

/// A similarity of two vectors, by the name that sentence-transformers gives it. Larger values mean more similar vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Similarity {
    /// The cosine of the angle between the vectors.
    #[default]
    Cosine,
    /// The dot product.
    Dot,
    /// The negative Euclidean distance.
    Euclidean,
    /// The negative Manhattan distance.
    Manhattan,
}

names!(Similarity {
    Cosine => "cosine",
    Dot => "dot",
    Euclidean => "euclidean",
    Manhattan => "manhattan",
});
