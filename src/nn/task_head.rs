//! Task heads: what follows the last hidden states in a model for a task other than embedding.

use anyhow::Result;

use super::{
    CausalLmSpec, ClassificationHead, ClassificationSpec, MaskedLmHead, MaskedLmSpec, Pool, Pooling,
    TokenHead, TokenHeadSpec, WeightSource,
};
use crate::named::names;

/// The kinds of task heads, by the names of `transformers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadKind {
    /// Logits of labels for each sequence.
    SequenceClassification,
    /// Logits of labels for each token.
    TokenClassification,
    /// Logits of the start and the end of an answer for each token.
    QuestionAnswering,
    /// Logits of the vocabulary for each token.
    MaskedLm,
    /// The lexical weight of each token, before its ReLU.
    LexicalWeights,
    /// Logits of two labels for each pair: whether the second text follows the first, or their order.
    NextSentence,
    /// The logit of a next token for each sequence, or the difference of two.
    CausalLm,
}

names!(HeadKind {
    SequenceClassification => "sequence classification",
    TokenClassification => "token classification",
    QuestionAnswering => "question answering",
    MaskedLm => "masked LM",
    LexicalWeights => "lexical weights",
    NextSentence => "next sentence",
    CausalLm => "causal LM",
});

impl HeadKind {
    /// The canonical name of the last layer, which only heads of this kind have; those of
    /// [`HeadKind::MaskedLm`] and [`HeadKind::CausalLm`] may be the matrix of the token embeddings.
    pub fn last_layer(self) -> &'static str {
        match self {
            HeadKind::SequenceClassification => "head.classifier",
            HeadKind::TokenClassification | HeadKind::LexicalWeights => "head.token_classifier",
            HeadKind::QuestionAnswering => "head.qa_outputs",
            HeadKind::MaskedLm => "head.mlm.decoder",
            HeadKind::NextSentence => "head.next_sentence",
            HeadKind::CausalLm => "head.lm_head",
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
    /// A head of [`HeadKind::MaskedLm`].
    MaskedLm(MaskedLmSpec),
    /// A head of [`HeadKind::LexicalWeights`].
    LexicalWeights(TokenHeadSpec),
    /// A head of [`HeadKind::NextSentence`].
    NextSentence(ClassificationSpec),
    /// A head of [`HeadKind::CausalLm`].
    CausalLm(CausalLmSpec),
}

impl HeadSpec {
    /// The kind of the head.
    pub fn kind(&self) -> HeadKind {
        match self {
            HeadSpec::SequenceClassification(_) => HeadKind::SequenceClassification,
            HeadSpec::TokenClassification(_) => HeadKind::TokenClassification,
            HeadSpec::QuestionAnswering(_) => HeadKind::QuestionAnswering,
            HeadSpec::MaskedLm(_) => HeadKind::MaskedLm,
            HeadSpec::LexicalWeights(_) => HeadKind::LexicalWeights,
            HeadSpec::NextSentence(_) => HeadKind::NextSentence,
            HeadSpec::CausalLm(_) => HeadKind::CausalLm,
        }
    }

    /// The canonical name of a tensor that only heads of this kind have and the checkpoint lacks; `None` if
    /// it has the head.
    pub fn missing(&self, source: &dyn WeightSource) -> Option<String> {
        let names: Vec<String> = match self {
            // The decoder may be tied, and have no bias.
            HeadSpec::MaskedLm(spec) if spec.is_tied && spec.transform.is_none() => return None,
            HeadSpec::CausalLm(spec) if spec.is_tied => return None,
            HeadSpec::MaskedLm(spec) if spec.transform.is_some() => {
                spec.modules.iter().map(|module| format!("{module}.dense.weight")).collect()
            }
            _ => vec![format!("{}.weight", self.kind().last_layer())],
        };
        let has_head = names.iter().any(|name| source.has(name));
        names.into_iter().next().filter(|_| !has_head)
    }

    /// The pooling of hidden states before the head.
    pub fn pooling(&self) -> Pooling {
        match self {
            HeadSpec::SequenceClassification(spec) | HeadSpec::NextSentence(spec) => {
                Pooling::Text(vec![spec.pool])
            }
            HeadSpec::TokenClassification(_) | HeadSpec::QuestionAnswering(_) | HeadSpec::MaskedLm(_) => {
                Pooling::None
            }
            HeadSpec::LexicalWeights(_) => Pooling::Lexical,
            HeadSpec::CausalLm(_) => Pooling::Text(vec![Pool::Last]),
        }
    }

    /// Whether the head computes logits for each token, which may be pooled after that, and not for each
    /// sequence.
    pub fn is_per_token(&self) -> bool {
        match self {
            HeadSpec::SequenceClassification(spec) | HeadSpec::NextSentence(spec) => spec.pools_logits,
            HeadSpec::CausalLm(_) => false,
            HeadSpec::TokenClassification(_)
            | HeadSpec::QuestionAnswering(_)
            | HeadSpec::MaskedLm(_)
            | HeadSpec::LexicalWeights(_) => true,
        }
    }

    /// Logits per sequence, or per token.
    pub fn outputs(&self) -> usize {
        match self {
            HeadSpec::SequenceClassification(spec) | HeadSpec::NextSentence(spec) => spec.labels,
            HeadSpec::CausalLm(_) => 1,
            HeadSpec::MaskedLm(spec) => spec.vocab_size,
            HeadSpec::TokenClassification(spec)
            | HeadSpec::QuestionAnswering(spec)
            | HeadSpec::LexicalWeights(spec) => spec.outputs,
        }
    }
}

/// A task head with its weights.
pub enum TaskHead {
    /// A head of [`HeadKind::SequenceClassification`], [`HeadKind::NextSentence`] or [`HeadKind::CausalLm`].
    SequenceClassification(ClassificationHead),
    /// A head of [`HeadKind::TokenClassification`] or [`HeadKind::LexicalWeights`].
    TokenClassification(TokenHead),
    /// A head of [`HeadKind::QuestionAnswering`].
    QuestionAnswering(TokenHead),
    /// A head of [`HeadKind::MaskedLm`].
    MaskedLm(MaskedLmHead),
}

impl TaskHead {
    /// Loads the layers of the head; [`HeadKind::last_layer`] is the last one.
    ///
    /// # Errors
    /// If the source fails.
    pub fn load(source: &mut dyn WeightSource, spec: &HeadSpec, hidden_size: usize) -> Result<Self> {
        let last = spec.kind().last_layer();
        Ok(match spec {
            HeadSpec::SequenceClassification(spec) | HeadSpec::NextSentence(spec) => {
                TaskHead::SequenceClassification(ClassificationHead::load(source, last, spec, hidden_size)?)
            }
            HeadSpec::CausalLm(spec) => {
                TaskHead::SequenceClassification(spec.load(source, last, hidden_size)?)
            }
            HeadSpec::MaskedLm(spec) => TaskHead::MaskedLm(MaskedLmHead::load(source, spec, hidden_size)?),
            HeadSpec::TokenClassification(spec) | HeadSpec::LexicalWeights(spec) => {
                TaskHead::TokenClassification(TokenHead::load(source, last, spec, hidden_size)?)
            }
            HeadSpec::QuestionAnswering(spec) => {
                TaskHead::QuestionAnswering(TokenHead::load(source, last, spec, hidden_size)?)
            }
        })
    }
}
