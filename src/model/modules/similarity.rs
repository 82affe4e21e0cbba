//! The similarity function of a model: `similarity_fn_name` of `config_sentence_transformers.json`.

use crate::named::Named;

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

impl Named for Similarity {
    const ALL: &'static [Self] =
        &[Similarity::Cosine, Similarity::Dot, Similarity::Euclidean, Similarity::Manhattan];

    fn name(self) -> &'static str {
        match self {
            Similarity::Cosine => "cosine",
            Similarity::Dot => "dot",
            Similarity::Euclidean => "euclidean",
            Similarity::Manhattan => "manhattan",
        }
    }
}
