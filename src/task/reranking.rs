//! Reranking: the score of a query and each text, by a cross-encoder or by the similarity of vectors.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;

use super::batch_size::engine;
use super::classification::{Classifier, ScoreOptions};
use super::embedding::EmbeddedTexts;
use super::model_task::ModelTask;
use super::options::{PromptChoice, QueryOptions, VectorOptions};
use super::text_encoder::{EncodedVector, TextEncoder};
use super::text_model::TextModel;
use crate::engine::{RowOptionError, RowOptions, Task, TaskInput, TaskRow, TokenizeError};
use crate::error::UsageError;
use crate::load::Loaded;
use crate::model::modules::Role;
use crate::named::Named;
use crate::neighbours::{Compared, Encoded};
use crate::nn::keep_memory;
use crate::rows::{Content, ContentType};
use crate::sys::console::Console;
use crate::text::{OnLong, TokenizedText};

/// A model that scores texts by a query.
pub enum Reranker {
    /// A cross-encoder, which reads query and text together.
    CrossEncoder(Box<Classifier>),
    /// An embedding model or a sparse encoder, which compares their vectors.
    BiEncoder(Box<BiEncoder>),
}

/// An embedding model and what it makes of the queries.
pub struct BiEncoder {
    encoder: Arc<TextEncoder>,
    /// What all texts are compared with. Empty if each has a query of its own.
    queries: Vec<Compared>,
    /// The lengths of these queries, and the limit for them.
    embedded: (EmbeddedTexts, usize),
    ranked: bool,
}

impl Reranker {
    /// A reranker. A bi-encoder compares texts with `queries`, or if there are none each with its own, which
    /// a cross-encoder always takes. `ranked`: rows have a rank.
    ///
    /// # Errors
    /// If the model is no cross-encoder, and the options need one: a usage error.
    /// [`TextError`](super::TextError) for the first query that cannot be encoded.
    pub fn new(
        loaded: Loaded,
        options: ScoreOptions,
        queries: &QueryOptions,
        ranked: bool,
        console: &Console,
    ) -> Result<Self> {
        if loaded.head.is_some() && !loaded.steps.pooling.is_sparse() {
            let classifier =
                Classifier::cross_encoder(loaded, options, queries.prompt.as_ref(), ranked, console)?;
            return Ok(Reranker::CrossEncoder(Box::new(classifier)));
        }
        let needs_head = |option| {
            UsageError(format!(
                "{option} needs a cross-encoder, but the model is an embedding model; choose a cross-encoder"
            ))
        };
        if options.raw {
            return Err(needs_head("--raw").into());
        }
        match &queries.prompt {
            Some(PromptChoice::Text(_)) => return Err(needs_head("--prompt").into()),
            Some(PromptChoice::Name(_)) => return Err(needs_head("--prompt-name").into()),
            None => {}
        }
        let bi_encoder = BiEncoder::new(loaded, options, &queries.texts, ranked, console)?;
        Ok(Reranker::BiEncoder(Box::new(bi_encoder)))
    }

    /// An encoder that compares each text, as what it is read, with its own query.
    pub fn of_pairs(encoder: Arc<TextEncoder>) -> Self {
        let (queries, embedded) = Default::default();
        Reranker::BiEncoder(Box::new(BiEncoder { encoder, queries, embedded, ranked: false }))
    }

    /// The prompt of a cross-encoder, which may be empty; a bi-encoder has one for each role.
    pub fn prompt(&self) -> &str {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.prompt(),
            Reranker::BiEncoder(_) => "",
        }
    }

    /// The queries of all texts that a bi-encoder has embedded, and their limit.
    pub fn embedded_queries(&self) -> Option<&(EmbeddedTexts, usize)> {
        match self {
            Reranker::BiEncoder(encoder) if !encoder.queries.is_empty() => Some(&encoder.embedded),
            Reranker::CrossEncoder(_) | Reranker::BiEncoder(_) => None,
        }
    }

    /// The name of what scores are: an activation or a similarity function.
    pub fn score_name(&self) -> String {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.function().to_string(),
            Reranker::BiEncoder(encoder) => encoder.encoder.similarity().name().into(),
        }
    }
}

impl BiEncoder {
    fn new(
        loaded: Loaded,
        scores: ScoreOptions,
        queries: &[String],
        ranked: bool,
        console: &Console,
    ) -> Result<Self> {
        let ScoreOptions { on_long, chunking, .. } = scores;
        let options = VectorOptions { role: Some(Role::Document), chunking, ..VectorOptions::new(on_long) };
        let engine = engine(TextEncoder::new(loaded, &options, console)?)?;
        let encoder = engine.task().clone();
        let limit = encoder.limit_of(Role::Query)?;
        let queries: Vec<TaskInput> = queries.iter().map(|text| as_query(text)).collect();
        let mut embedded = EmbeddedTexts::embed(&engine, &queries)?;
        let vectors = std::mem::take(&mut embedded.vectors).into_iter();
        let queries = vectors.map(|vector| encoder.compared(vector)).collect::<Result<_>>()?;
        Ok(BiEncoder { encoder, queries, embedded: (embedded, limit), ranked })
    }

    /// Tokenizes a text, and its own query if it has one.
    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        let on_long = match input.on_long.unwrap_or(self.encoder.model().on_long) {
            OnLong::Mean => OnLong::Truncate,
            on_long => on_long,
        };
        let tokenize = |query| {
            self.encoder.tokenize(&TaskInput { on_long: Some(on_long), ..as_query(query) }).map(Arc::new)
        };
        let query = input.query.map(tokenize).transpose().map_err(|error| match error {
            TokenizeError::TooLong { tokens, reason } => {
                TokenizeError::TooLong { tokens, reason: format!("has a query that {reason}") }
            }
            TokenizeError::Failed(reason) => TokenizeError::Failed(format!("has a query that {reason}")),
            TokenizeError::NoTokens => TokenizeError::NoTokens,
        })?;
        if query.as_ref().is_some_and(|query| !self.encoder.keeps_tokens(query)) {
            return Err(TokenizeError::Failed(
                "has a query all of whose tokens are on the model's skiplist; choose another".into(),
            ));
        }
        let text = self.encoder.tokenize(&TaskInput { pair: None, query: None, ..*input })?;
        Ok(TokenizedText { query, ..text })
    }

    /// The vectors of texts, and of the queries that they have of their own, each once.
    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<EncodedPair>> {
        let mut compared = HashMap::new();
        for query in texts.iter().filter_map(|text| text.query.as_ref()) {
            compared.entry(&**query).or_insert(None);
        }
        if !compared.is_empty() {
            let queries: Vec<TokenizedText> = compared.keys().copied().cloned().collect();
            let outputs = self.encoder.encode(&queries, batch_tokens, worker)?;
            for (query, output) in queries.iter().zip(outputs) {
                let rows = self.encoder.finish(query, output, &RowOptions::default());
                let row = rows.first().and_then(|row| row.content.encoded(&self.encoder.content()));
                let vector = row.map(|vector| self.encoder.compared(vector)).transpose()?;
                if let Some(place) = compared.get_mut(query) {
                    *place = vector.map(Arc::new);
                }
            }
        }
        let vectors = self.encoder.encode(texts, batch_tokens, worker)?;
        let pair = |(text, vector): (&TokenizedText, EncodedVector)| {
            let query = text.query.as_ref().and_then(|query| compared[&**query].clone());
            EncodedPair::Vector(vector, query)
        };
        Ok(texts.iter().zip(vectors).map(pair).collect())
    }

    /// A row for each query, or for each query and chunk. `own`: the text's own query.
    fn finish(&self, text: &TokenizedText, output: EncodedVector, own: Option<&Compared>) -> Vec<TaskRow> {
        let rows = self.encoder.finish(text, output, &RowOptions::default());
        let content_type = self.encoder.content();
        let encoded = rows.iter().filter_map(|row| Some((row, row.content.encoded(&content_type)?)));
        let encoded: Vec<_> = encoded.collect();
        let row = |index, query: &Compared, (row, encoded): &(&TaskRow, Encoded)| {
            let content = Content::Score { score: query.score(encoded)?, rank: None };
            let is_finite = content.is_finite();
            Some(TaskRow { span: row.span, query: index, tokens: row.tokens, is_finite, content })
        };
        let common = self.queries.iter().enumerate().map(|(i, query)| (Some(i), query));
        let queries = common.chain(own.map(|query| (None, query)));
        queries.flat_map(|(i, query)| encoded.iter().filter_map(move |text| row(i, query, text))).collect()
    }
}

/// A query that texts are compared with.
fn as_query(text: &str) -> TaskInput<'_> {
    TaskInput { role: Some(Role::Query), on_long: Some(OnLong::Truncate), ..TaskInput::new(text) }
}

/// The output of a text.
pub enum EncodedPair {
    /// The logit of a cross-encoder.
    Logits(Vec<f32>),
    /// The vector that is compared with those of the queries, and the text's own query.
    Vector(EncodedVector, Option<Arc<Compared>>),
}

impl Task for Reranker {
    type Output = EncodedPair;

    fn tokenize(&self, input: &TaskInput) -> Result<TokenizedText, TokenizeError> {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.tokenize(input),
            Reranker::BiEncoder(encoder) => encoder.tokenize(input),
        }
    }

    fn encode(
        &self,
        texts: &[TokenizedText],
        batch_tokens: usize,
        worker: usize,
    ) -> Result<Vec<EncodedPair>> {
        Ok(match self {
            Reranker::CrossEncoder(classifier) => {
                let logits = classifier.encode(texts, batch_tokens, worker)?;
                logits.into_iter().map(EncodedPair::Logits).collect()
            }
            Reranker::BiEncoder(encoder) => encoder.encode(texts, batch_tokens, worker)?,
        })
    }

    fn finish(&self, text: &TokenizedText, output: EncodedPair, options: &RowOptions) -> Vec<TaskRow> {
        match (self, output) {
            (Reranker::CrossEncoder(classifier), EncodedPair::Logits(logits)) => {
                classifier.finish(text, logits, options)
            }
            (Reranker::BiEncoder(encoder), EncodedPair::Vector(vector, query)) => {
                encoder.finish(text, vector, query.as_deref())
            }
            _ => panic!("the output is of another model"),
        }
    }

    fn check(&self, options: &RowOptions) -> Result<(), RowOptionError> {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.check(options),
            Reranker::BiEncoder(_) => options.only(&[]),
        }
    }

    fn on_workers_start(&self) {
        keep_memory();
    }
}

impl ModelTask for Reranker {
    fn model(&self) -> &TextModel {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.model(),
            Reranker::BiEncoder(encoder) => encoder.encoder.model(),
        }
    }

    fn content(&self) -> ContentType {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.content(),
            Reranker::BiEncoder(encoder) => ContentType::Scores { ranked: encoder.ranked },
        }
    }

    fn vector_bytes(&self) -> usize {
        match self {
            Reranker::CrossEncoder(classifier) => classifier.vector_bytes(),
            // The vectors of a batch are compared before they are dropped.
            Reranker::BiEncoder(bi_encoder) => {
                bi_encoder.encoder.vector_bytes() + bi_encoder.queries.len().max(1) * size_of::<TaskRow>()
            }
        }
    }
}
