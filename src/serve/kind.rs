//! What a served model is, and the tasks that it gives.

use std::sync::Arc;

use anyhow::Result;

use super::ServeOptions;
use super::models::Capability;
use super::schema::tasks::TaskRouteOptions;
use super::schema::{Fault, FaultKind};
use crate::engine::{QueueTask, QueuedTask, Workload};
use crate::load::Loaded;
use crate::neighbours::Representation;
use crate::nn::{HeadKind, Pooling};
use crate::rows::ContentType;
use crate::sys::console::Console;
use crate::task::{
    Aggregation, AnswerOptions, Answerer, Classifier, MaskFiller, ModelTask, ScoreOptions, TagOptions,
    Tagger, TextEncoder, workload,
};
use crate::text::Tokenizer;

/// A task by its kind.
#[derive(Clone)]
pub(super) enum Kind {
    /// Vectors, dense or sparse.
    Vectors(Arc<TextEncoder>),
    /// Scores of pairs of a query and a document.
    CrossEncoder(Arc<Classifier>),
    /// Labels.
    Classifier(Arc<Classifier>),
    /// Entities.
    Tagger(Arc<Tagger>),
    /// Tokens for masks.
    MaskFiller(Arc<MaskFiller>),
    /// Answers to a question.
    Answerer(Arc<Answerer>),
}

/// A task, whatever its outputs.
pub(super) trait ServedTask: Send + Sync {
    /// The tokenizer of its texts.
    fn tokenizer(&self) -> &Tokenizer;

    /// The type of what its rows hold.
    fn row_content(&self) -> ContentType;

    /// The limits and the memory of its batches.
    fn workload(&self, batch_tokens: Option<usize>) -> Workload;

    /// Bytes of what a row holds, or of what it holds for one token or mask if it grows with those of its
    /// text.
    fn row_bytes(&self) -> usize;

    /// The task for the queue, with the tokens of its forward passes and the cost of a token.
    fn queued(self: Arc<Self>, batch_tokens: usize, cost: f64) -> Arc<dyn QueuedTask>;
}

impl<T: ModelTask> ServedTask for T {
    fn tokenizer(&self) -> &Tokenizer {
        &self.model().tokenizer
    }

    fn row_content(&self) -> ContentType {
        self.content()
    }

    fn workload(&self, batch_tokens: Option<usize>) -> Workload {
        workload(self, batch_tokens)
    }

    fn row_bytes(&self) -> usize {
        self.vector_bytes()
    }

    fn queued(self: Arc<Self>, batch_tokens: usize, cost: f64) -> Arc<dyn QueuedTask> {
        Arc::new(QueueTask::new(self, batch_tokens, cost))
    }
}

impl Kind {
    /// The kind of a model that was loaded for what its files say that it is for.
    pub(super) fn of(loaded: Loaded, options: &ServeOptions, console: &Console) -> Result<Self> {
        let on_long = options.vectors.on_long;
        let scores = ScoreOptions { on_long, raw: false, chunking: None };
        Ok(match loaded.head_kind() {
            Some(HeadKind::SequenceClassification | HeadKind::CausalLm) if loaded.steps.dimensions == 1 => {
                let prompt = options.vectors.prompt.as_ref();
                Kind::CrossEncoder(Classifier::cross_encoder(loaded, scores, prompt, false, console)?.into())
            }
            Some(HeadKind::SequenceClassification | HeadKind::NextSentence | HeadKind::CausalLm) => {
                Kind::Classifier(Classifier::new(loaded, scores, 0)?.into())
            }
            Some(HeadKind::TokenClassification) => {
                let aggregation = Aggregation::default();
                let options = TagOptions { aggregation, raw: false, on_long, stride: None };
                Kind::Tagger(Tagger::new(loaded, options)?.into())
            }
            Some(HeadKind::QuestionAnswering) => {
                Kind::Answerer(Answerer::new(loaded, AnswerOptions::default())?.into())
            }
            Some(HeadKind::MaskedLm) if loaded.steps.pooling != Pooling::Splade => {
                Kind::MaskFiller(MaskFiller::new(loaded, scores, MaskFiller::TOP_K)?.into())
            }
            Some(HeadKind::MaskedLm | HeadKind::LexicalWeights) | None => {
                Kind::Vectors(TextEncoder::new(loaded, &options.vectors, console)?.into())
            }
        })
    }

    /// The task.
    pub(super) fn task(&self) -> Arc<dyn ServedTask> {
        match self {
            Kind::Vectors(task) => task.clone(),
            Kind::CrossEncoder(task) | Kind::Classifier(task) => task.clone(),
            Kind::Tagger(task) => task.clone(),
            Kind::MaskFiller(task) => task.clone(),
            Kind::Answerer(task) => task.clone(),
        }
    }

    /// The task with those options of a request, which it takes, that are no options of rows. `None`: as it
    /// was loaded.
    pub(super) fn task_with(
        &self,
        options: &mut TaskRouteOptions,
    ) -> Result<Option<Arc<dyn ServedTask>>, Fault> {
        let TaskRouteOptions { raw, top_k, aggregation, stride, max_answer_length, .. } = options;
        let given = [raw.is_some(), top_k.is_some(), aggregation.is_some(), stride.is_some()];
        if !given.contains(&true) && max_answer_length.is_none() {
            return Ok(None);
        }
        Ok(match self {
            Kind::Vectors(_) | Kind::CrossEncoder(_) | Kind::Classifier(_) => None,
            Kind::Tagger(tagger) => {
                let (own, room) = (*tagger.options(), tagger.window_room());
                if let Some(stride) = stride.filter(|stride| *stride >= room) {
                    let message = format!(
                        "options.stride is {stride}, but windows have {room} tokens beside special tokens; send a smaller one"
                    );
                    return Err(Fault::of(FaultKind::Invalid, "options.stride", message));
                }
                let (aggregation, raw) = (aggregation.unwrap_or(own.aggregation), raw.take());
                let raw = raw.unwrap_or(own.raw);
                Some(Arc::new(tagger.with(TagOptions { aggregation, raw, stride: *stride, ..own })))
            }
            Kind::MaskFiller(filler) => {
                let raw = raw.take().unwrap_or(false);
                Some(Arc::new(filler.with(raw, top_k.unwrap_or(MaskFiller::TOP_K))))
            }
            Kind::Answerer(answerer) => {
                let own = answerer.options().clone();
                Some(Arc::new(answerer.with(AnswerOptions {
                    top_k: top_k.unwrap_or(own.top_k),
                    raw: raw.take().unwrap_or(own.raw),
                    max_answer_length: max_answer_length.unwrap_or(own.max_answer_length),
                    stride: *stride,
                    ..own
                })))
            }
        })
    }

    /// Whether the model gives this.
    pub(super) fn has(&self, capability: Capability) -> bool {
        match (self, capability) {
            (_, Capability::Any)
            | (Kind::CrossEncoder(_), Capability::Rerank)
            | (Kind::Classifier(_), Capability::Classify)
            | (Kind::Tagger(_), Capability::Tag)
            | (Kind::MaskFiller(_), Capability::Fill)
            | (Kind::Answerer(_), Capability::Answer)
            | (Kind::Vectors(_), Capability::Vectors) => true,
            (Kind::Vectors(encoder), _) => match (encoder.content(), capability) {
                (ContentType::Sparse { .. }, Capability::EmbedSparse | Capability::Rerank) => true,
                (ContentType::Vectors(vectors), Capability::EmbedTokens) => {
                    vectors.per_token || encoder.gives_tokens()
                }
                (ContentType::Vectors(vectors), Capability::Embed) => !vectors.per_token,
                (ContentType::Vectors(vectors), Capability::Rerank) => {
                    !vectors.per_token || encoder.representation() == Representation::PerToken
                }
                _ => false,
            },
            _ => false,
        }
    }

    /// What the model is, for a message: "an embedding model".
    pub(super) fn noun(&self) -> &'static str {
        match self {
            Kind::Vectors(encoder) => match encoder.content() {
                ContentType::Sparse { .. } => "a sparse encoder",
                _ if encoder.representation() == Representation::PerToken => "a multi-vector model",
                _ => "an embedding model",
            },
            Kind::CrossEncoder(_) => "a cross-encoder",
            Kind::Classifier(_) => "a text classifier",
            Kind::Tagger(_) => "a token classifier",
            Kind::MaskFiller(_) => "a masked language model",
            Kind::Answerer(_) => "a question-answering model",
        }
    }

    /// The names of the logits of a text or a token, in their order; empty if it has none.
    pub(super) fn labels(&self) -> Vec<String> {
        match self {
            Kind::CrossEncoder(task) | Kind::Classifier(task) => task.labels(),
            Kind::Tagger(tagger) => tagger.labels().to_vec(),
            Kind::Vectors(_) | Kind::MaskFiller(_) | Kind::Answerer(_) => Vec::new(),
        }
    }

    /// The mask token of a masked language model.
    pub(super) fn mask(&self) -> Option<String> {
        match self {
            Kind::MaskFiller(filler) => Some(filler.mask()),
            _ => None,
        }
    }

    /// Whether a vector has unit length by the model's own files.
    pub(super) fn normalizes(&self) -> bool {
        match self {
            Kind::Vectors(encoder) => match &**encoder {
                TextEncoder::Dense(embedder) => embedder.is_normalized(),
                TextEncoder::Sparse(_) => false,
            },
            _ => false,
        }
    }
}
