//! Task heads: what follows the last hidden states in a model for a task other than embedding.

use anyhow::Result;

use super::{ClassificationHead, ClassificationSpec, Pooling, TokenHead, TokenHeadSpec, WeightSource};

/// The kinds of task heads, by the names of `transformers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// Logits of labels for each sequence.
    SequenceClassification,
    /// Logits of labels for each token.
    TokenClassification,
    /// Logits of the start and the end of an answer for each token.
    QuestionAnswering,
}

impl HeadKind {
    /// The canonical name of the last layer, which only heads of this kind have.
    pub fn last_layer(self) -> &'static str {
        match self {
            HeadKind::SequenceClassification => "head.classifier",
            HeadKind::TokenClassification => "head.token_classifier",
            HeadKind::QuestionAnswering => "head.qa_outputs",
        }
    }
}

/// The computation of a task head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HeadSpec {
    /// A head of [`HeadKind::SequenceClassification`].
    SequenceClassification(ClassificationSpec),
    /// A head of [`HeadKind::TokenClassification`].
    TokenClassification(TokenHeadSpec),
    /// A head of [`HeadKind::QuestionAnswering`].
    QuestionAnswering(TokenHeadSpec),
}

impl HeadSpec {
    /// The kind of the head.
    pub fn kind(&self) -> HeadKind {
        match self {
            HeadSpec::SequenceClassification(_) => HeadKind::SequenceClassification,
            HeadSpec::TokenClassification(_) => HeadKind::TokenClassification,
            HeadSpec::QuestionAnswering(_) => HeadKind::QuestionAnswering,
        }
    }

    /// The pooling of hidden states before the head.
    pub fn pooling(&self) -> Pooling {
        match self {
            HeadSpec::SequenceClassification(spec) => Pooling::Text(vec![spec.pool]),
            HeadSpec::TokenClassification(_) | HeadSpec::QuestionAnswering(_) => Pooling::None,
        }
    }

    /// Logits per sequence, or per token.
    pub fn outputs(&self) -> usize {
        match self {
            HeadSpec::SequenceClassification(spec) => spec.labels,
            HeadSpec::TokenClassification(spec) | HeadSpec::QuestionAnswering(spec) => spec.outputs,
        }
    }
}

/// A task head with its weights.
pub enum TaskHead {
    /// A head of [`HeadKind::SequenceClassification`].
    SequenceClassification(ClassificationHead),
    /// A head of [`HeadKind::TokenClassification`].
    TokenClassification(TokenHead),
    /// A head of [`HeadKind::QuestionAnswering`].
    QuestionAnswering(TokenHead),
}

impl TaskHead {
    /// Loads the layers of the head; [`HeadKind::last_layer`] is the last one.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load(source: &mut dyn WeightSource, spec: &HeadSpec, hidden_size: usize) -> Result<Self> {
        let last = spec.kind().last_layer();
        Ok(match spec {
            HeadSpec::SequenceClassification(spec) => {
                TaskHead::SequenceClassification(ClassificationHead::load(source, spec, hidden_size)?)
            }
            HeadSpec::TokenClassification(spec) => {
                TaskHead::TokenClassification(TokenHead::load(source, last, spec, hidden_size)?)
            }
            HeadSpec::QuestionAnswering(spec) => {
                TaskHead::QuestionAnswering(TokenHead::load(source, last, spec, hidden_size)?)
            }
        })
    }
}
