//! The content of a row beside its columns: a vector, a score, labels, entities, answers, tokens for masks, a
//! sparse vector, or several vectors of different kinds.

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::columns::{
    ANSWERS, EMBEDDING, EMBEDDINGS, ENTITIES, INDICES, LABELS, MASKS, NO_ANSWER, RANK, SCALE, SCORE, VALUES,
    WEIGHTS,
};
use super::dtype::{OutputDtype, StoredVector, VectorValues};
use super::format::OutputFormat;
use crate::neighbours::{Encoded, SparseVector};

/// The content of a row, of the type that [`OutputSchema::content`](super::OutputSchema::content) has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Content {
    /// A vector, or the vectors of the tokens of a text.
    Vector(StoredVector),
    /// A score.
    Score {
        /// The score.
        score: f32,
        /// The rank among all rows, from 0; present where rows are sorted by their scores.
        rank: Option<u64>,
    },
    /// Labels, best first.
    Labels(Vec<LabelScore>),
    /// For each mask of a text, the tokens in its place, best first.
    Masks(Vec<Vec<TokenScore>>),
    /// A sparse vector.
    Sparse(Box<SparseVector>),
    /// Labelled parts of a text, in its order.
    Entities(Vec<Entity>),
    /// Answers to a question, best first.
    Answers {
        /// The answers.
        answers: Vec<Answer>,
        /// The score of the text having no answer.
        no_answer: f32,
    },
    /// Several outputs of one text, in the order of [`OutputTypes::parts`].
    Outputs(Vec<Content>),
    /// No vector, because the text is null; only where [`VectorType::nullable`] is set.
    Null,
}

/// A token with its score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TokenScore {
    /// The token, decoded.
    pub token: String,
    /// Its vocabulary id.
    pub id: u32,
    /// Its score: a probability, or a logit.
    pub score: f32,
}

/// A labelled part of a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entity {
    /// The label.
    pub label: String,
    /// Its probability, or its logit.
    pub score: f32,
    /// Its first character in the text.
    pub start: u64,
    /// The end of its characters.
    pub end: u64,
    /// Its characters.
    pub text: String,
}

/// A part of a text that answers a question.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Its characters.
    pub text: String,
    /// Its first character in the text.
    pub start: u64,
    /// The end of its characters.
    pub end: u64,
    /// Its probability, or the sum of the logits of its start and end.
    pub score: f32,
}

/// What spans of a text are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// [`Content::Entities`].
    Entities,
    /// [`Content::Answers`].
    Answers,
}

/// A label with its score.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LabelScore {
    /// The label.
    pub label: String,
    /// Its score: a probability, or a logit.
    pub score: f32,
}

/// The type of the content of all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentType {
    /// [`Content::Vector`].
    Vectors(VectorType),
    /// [`Content::Score`].
    Scores {
        /// Whether rows are sorted by their scores and have a rank.
        ranked: bool,
    },
    /// [`Content::Labels`].
    Labels,
    /// [`Content::Masks`].
    Masks,
    /// [`Content::Sparse`].
    Sparse {
        /// Dimensions of a vector: the size of the vocabulary.
        dimensions: usize,
    },
    /// Parts of the text.
    Spans(SpanKind),
    /// [`Content::Outputs`].
    Outputs(OutputTypes),
}

/// The types of several outputs of one text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputTypes {
    /// One vector.
    pub dense: Option<VectorType>,
    /// Dimensions of a sparse vector.
    pub sparse: Option<usize>,
    /// One vector per token.
    pub tokens: Option<VectorType>,
}

impl OutputTypes {
    /// The type of each output.
    pub fn parts(&self) -> impl Iterator<Item = ContentType> {
        let sparse = self.sparse.map(|dimensions| ContentType::Sparse { dimensions });
        let (dense, tokens) = (self.dense.map(ContentType::Vectors), self.tokens.map(ContentType::Vectors));
        [dense, sparse, tokens].into_iter().flatten()
    }
}

/// The type of vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VectorType {
    /// Type of the stored elements.
    pub dtype: OutputDtype,
    /// Dimensions of a vector, before it is stored as `dtype`.
    pub dimensions: usize,
    /// Whether a row holds one vector per token.
    pub per_token: bool,
    /// Whether vectors have unit length.
    pub normalized: bool,
    /// Whether a row may have null in place of its vector.
    pub nullable: bool,
}

impl Content {
    /// Whether all numbers are finite.
    pub fn is_finite(&self) -> bool {
        match self {
            Content::Vector(vector) => vector.is_finite(),
            Content::Score { score, .. } => score.is_finite(),
            Content::Labels(labels) => labels.iter().all(|label| label.score.is_finite()),
            Content::Masks(masks) => masks.iter().flatten().all(|token| token.score.is_finite()),
            Content::Sparse(vector) => vector.values.iter().all(|weight| weight.is_finite()),
            Content::Entities(entities) => entities.iter().all(|entity| entity.score.is_finite()),
            Content::Answers { answers, no_answer } => {
                no_answer.is_finite() && answers.iter().all(|answer| answer.score.is_finite())
            }
            Content::Outputs(outputs) => outputs.iter().all(Content::is_finite),
            Content::Null => true,
        }
    }

    /// A copy of the vectors of a text of this type, if the row holds them as they were computed.
    pub fn encoded(&self, content: &ContentType) -> Option<Encoded> {
        match (self, content) {
            (Content::Vector(StoredVector { values: VectorValues::F32(values), .. }), content) => {
                let encoded = if content.is_per_token() { Encoded::PerToken } else { Encoded::Dense };
                Some(encoded(values.clone()))
            }
            (Content::Sparse(vector), _) => Some(Encoded::Sparse((**vector).clone())),
            _ => None,
        }
    }

    /// The vector of the row.
    pub(crate) fn vector(&self) -> Result<&StoredVector> {
        match self {
            Content::Vector(vector) => Ok(vector),
            _ => bail!("a row has no vector; please report this as a bug"),
        }
    }
}

impl ContentType {
    /// Whether NaN and infinite numbers can be recognised in an output of this format.
    pub fn preserves_non_finite(&self, format: OutputFormat) -> bool {
        match self {
            ContentType::Vectors(VectorType { dtype, .. }) => match dtype {
                OutputDtype::F32 | OutputDtype::F16 => true,
                OutputDtype::Int8 => format.has_columns(),
                OutputDtype::Binary | OutputDtype::Ubinary => false,
            },
            ContentType::Outputs(outputs) => outputs.parts().all(|part| part.preserves_non_finite(format)),
            ContentType::Scores { .. }
            | ContentType::Labels
            | ContentType::Masks
            | ContentType::Sparse { .. }
            | ContentType::Spans(_) => true,
        }
    }

    /// Type of the stored numbers.
    pub fn dtype(&self) -> OutputDtype {
        self.vectors().map_or(OutputDtype::F32, |vectors| vectors.dtype)
    }

    /// The type of the vectors; of several outputs, that of the first vectors.
    pub(crate) fn vectors(&self) -> Option<VectorType> {
        match self {
            ContentType::Vectors(vectors) => Some(*vectors),
            ContentType::Outputs(outputs) => outputs.dense.or(outputs.tokens),
            ContentType::Scores { .. }
            | ContentType::Labels
            | ContentType::Masks
            | ContentType::Sparse { .. }
            | ContentType::Spans(_) => None,
        }
    }

    /// Whether the size of a row grows with the tokens of its text.
    pub fn is_per_token(&self) -> bool {
        match self {
            ContentType::Vectors(vectors) => vectors.per_token,
            ContentType::Spans(kind) => *kind == SpanKind::Entities,
            ContentType::Outputs(outputs) => outputs.tokens.is_some(),
            ContentType::Scores { .. }
            | ContentType::Labels
            | ContentType::Masks
            | ContentType::Sparse { .. } => false,
        }
    }

    /// The content of one row with its article, for messages.
    pub fn noun(&self) -> &'static str {
        match self {
            ContentType::Vectors(_) => "a vector",
            ContentType::Scores { .. } => "a score",
            ContentType::Labels => "labels",
            ContentType::Masks => "tokens for masks",
            ContentType::Sparse { .. } => "a sparse vector",
            ContentType::Spans(SpanKind::Entities) => "entities",
            ContentType::Spans(SpanKind::Answers) => "answers",
            ContentType::Outputs(_) => "several outputs",
        }
    }

    /// What is wrong with a row whose values are not all finite, as the predicate of a sentence.
    pub fn not_finite(&self) -> String {
        format!("has {} with NaN or infinite values", self.noun())
    }

    /// Names of the columns that the content may have.
    pub(crate) fn column_names(&self) -> &'static [&'static str] {
        match self {
            ContentType::Vectors(_) => &[SCALE, EMBEDDING, EMBEDDINGS],
            ContentType::Scores { .. } => &[RANK, SCORE],
            ContentType::Labels => &[LABELS],
            ContentType::Masks => &[MASKS],
            ContentType::Sparse { .. } => &[WEIGHTS, INDICES, VALUES],
            ContentType::Spans(SpanKind::Entities) => &[ENTITIES],
            ContentType::Spans(SpanKind::Answers) => &[ANSWERS, NO_ANSWER],
            ContentType::Outputs(_) => &[EMBEDDING, WEIGHTS, INDICES, VALUES, EMBEDDINGS],
        }
    }
}

impl VectorType {
    /// Number of stored elements per vector.
    pub(crate) fn width(&self) -> usize {
        self.dtype.width(self.dimensions)
    }

    /// Size of a stored vector in bytes.
    pub(crate) fn vector_bytes(&self) -> usize {
        self.width() * self.dtype.element_bytes()
    }
}

/// The error for a row whose content is not of the schema's type.
pub(crate) fn other_content<T>() -> Result<T> {
    bail!("a row has other content than the schema; please report this as a bug")
}
