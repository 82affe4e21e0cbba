//! A query and texts → scores.

use super::engine::{self, Engine, Row, TextEngine, inputs};
use super::error::{Error, ErrorKind};
use super::model::Model;
use crate::engine::TaskInput;
use crate::load::load_reranker;
use crate::model::modules::Role;
use crate::neighbours::descending;
use crate::rows::Content;
use crate::task::{
    self, ModelTask, OnLong, PromptChoice, QueryOptions, ScoreOptions, TextEncoder, VectorOptions,
};
use crate::text::PairTruncation;

/// A model that scores texts by a query: a cross-encoder, which reads both together, or an embedding model,
/// whose vectors are compared.
///
/// ```
/// use sconce::{Model, Reranker};
///
/// # let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/heads/cross-encoder-bert");
/// let reranker = Reranker::open(directory)?; // such as "cross-encoder/ms-marco-MiniLM-L6-v2"
/// let texts = ["a lamp burns oil", "the candle"];
/// let ranked = reranker.rank("what burns in a lamp?", &texts)?;
/// for score in &ranked {
///     println!("{:.3} {}", score.score, texts[score.index]);
/// }
/// assert!(ranked[0].score >= ranked[1].score);
/// # Ok::<(), sconce::Error>(())
/// ```
pub struct Reranker {
    scorer: Scorer,
    warnings: Vec<String>,
}

enum Scorer {
    CrossEncoder(Engine<task::Reranker>),
    BiEncoder(Box<TextEngine>),
}

/// How texts are scored: [`Reranker::builder`].
#[derive(Debug, Clone)]
#[must_use]
pub struct RerankerBuilder {
    model: Model,
    prompt: Option<PromptChoice>,
    raw: bool,
}

/// The score of a text by a query.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// The index of the text among those that were scored together.
    pub index: usize,
    /// The score; greater is better.
    pub score: f32,
    /// Tokens of the query and the text over the limit, which truncation removed.
    pub truncated_tokens: usize,
}

impl Reranker {
    /// Opens a model by its id on the Hugging Face Hub or by its directory, as `sconce rerank --model` does.
    ///
    /// # Errors
    /// If there is no such model, it cannot be downloaded, is invalid or for another task, or a choice
    /// contradicts it.
    pub fn open(model: impl Into<Model>) -> Result<Self, Error> {
        Reranker::builder(model).open()
    }

    /// Chooses how texts are scored.
    pub fn builder(model: impl Into<Model>) -> RerankerBuilder {
        RerankerBuilder { model: model.into(), prompt: None, raw: false }
    }

    /// The score of each text by a query, in the order of the texts.
    ///
    /// # Errors
    /// For the first text that cannot be encoded, is too long while [`OnLong::Error`] is chosen, or has a
    /// score that is NaN or infinite; if the query cannot be encoded; if the device fails.
    pub fn score<T: AsRef<str>>(&self, query: &str, texts: &[T]) -> Result<Vec<Score>, Error> {
        let mut texts = inputs(texts);
        match &self.scorer {
            Scorer::CrossEncoder(engine) => {
                texts.iter_mut().for_each(|text| text.query = Some(query));
                let rows = engine.encode(&texts)?.into_iter().enumerate();
                Ok(rows.map(|(index, row)| of_row(index, &row)).collect())
            }
            Scorer::BiEncoder(engine) => compare(engine, query, &texts),
        }
    }

    /// The scores of texts by a query, best first; equal scores in the order of the texts.
    ///
    /// # Errors
    /// As [`score`](Reranker::score).
    pub fn rank<T: AsRef<str>>(&self, query: &str, texts: &[T]) -> Result<Vec<Score>, Error> {
        let mut scores = self.score(query, texts)?;
        scores.sort_by_key(|score| descending(score.score));
        Ok(scores)
    }

    /// Maximum tokens of a query and a text together, or of each for an embedding model, including special
    /// tokens.
    pub fn max_length(&self) -> usize {
        match &self.scorer {
            Scorer::CrossEncoder(engine) => engine.task().model().tokenizer.max_length(),
            Scorer::BiEncoder(engine) => engine.own().task().model().tokenizer.max_length(),
        }
    }

    /// What the command line would warn of: sentences about what may make scores differ from those that the
    /// model's authors intended.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }
}

impl RerankerBuilder {
    /// What a cross-encoder has before each query, or the instruction in its chat template. Default: the
    /// model's default prompt.
    pub fn prompt(mut self, text: impl Into<String>) -> Self {
        self.prompt = Some(PromptChoice::Text(text.into()));
        self
    }

    /// The name of a prompt in the files of a cross-encoder.
    pub fn prompt_name(mut self, name: impl Into<String>) -> Self {
        self.prompt = Some(PromptChoice::Name(name.into()));
        self
    }

    /// Whether scores are the logits of a cross-encoder, without its activation.
    pub fn raw(mut self, raw: bool) -> Self {
        self.raw = raw;
        self
    }

    /// Which of a query and a text a cross-encoder truncates if both are over the limit together. Default:
    /// the longer one.
    pub fn truncation(mut self, truncation: PairTruncation) -> Self {
        self.model.options.pair_truncation = truncation;
        self
    }

    /// Opens the model.
    ///
    /// # Errors
    /// As [`Reranker::open`].
    pub fn open(self) -> Result<Reranker, Error> {
        let RerankerBuilder { model, prompt, raw } = self;
        if model.on_long == OnLong::Mean {
            let message =
                "`on_long` mean is for vectors, and a reranker gives scores; choose error or truncate";
            return Err(Error::new(ErrorKind::InvalidOption, &message));
        }
        let needs_head = raw || prompt.is_some();
        let options = ScoreOptions { on_long: model.on_long, raw, chunking: None };
        let queries = QueryOptions { texts: Vec::new(), prompt };
        let vectors = VectorOptions { role: Some(Role::Document), ..VectorOptions::new(model.on_long) };
        let (made, context) = engine::open(&model, load_reranker, |loaded, console| {
            let has_queries = engine::has_queries(&loaded, vectors.role);
            // An embedding model refuses what needs a head.
            if needs_head || loaded.head.is_some() && !loaded.steps.pooling.is_sparse() {
                let task = task::Reranker::new(loaded, options, &queries, false, console)?;
                return Ok(Made::CrossEncoder(Box::new(task)));
            }
            let encoder = TextEncoder::new(loaded, &vectors, console)?;
            Ok(Made::BiEncoder(Box::new(encoder), has_queries))
        })?;
        let scorer = match made {
            Made::CrossEncoder(task) => Scorer::CrossEncoder(Engine::new(*task, &context)?),
            Made::BiEncoder(encoder, has_queries) => {
                Scorer::BiEncoder(Box::new(TextEngine::new(*encoder, has_queries, &vectors, &context)?))
            }
        };
        Ok(Reranker { scorer, warnings: context.warnings })
    }
}

/// What a loaded model is.
enum Made {
    CrossEncoder(Box<task::Reranker>),
    BiEncoder(Box<TextEncoder>, bool),
}

/// The scores of a bi-encoder.
fn compare(engine: &TextEngine, query: &str, texts: &[TaskInput]) -> Result<Vec<Score>, Error> {
    let encoder = engine.own();
    let queries = engine.encode_queries(&[query]).map_err(|error| error.of_query())?;
    let Some(query) = queries.into_iter().next() else { return Ok(Vec::new()) };
    let content = encoder.task().content();
    let encoded = |row: &Row| {
        let bug = || {
            Error::new(ErrorKind::Backend, &"a text has no vector to compare; please report this as a bug")
        };
        row.content.encoded(&content).ok_or_else(bug)
    };
    let compared = encoder.task().compared(encoded(&query)?);
    let compared = compared.map_err(|error| Error::new(ErrorKind::InvalidQuery, &error))?;
    let score = |(index, row): (usize, Row)| {
        let score = compared.score(&encoded(&row)?).unwrap_or(f32::NAN);
        Ok(Score { index, score, truncated_tokens: query.truncated_tokens + row.truncated_tokens })
    };
    encoder.encode(texts)?.into_iter().enumerate().map(score).collect()
}

/// The score in a row.
fn of_row(index: usize, row: &Row) -> Score {
    match row.content {
        Content::Score { score, .. } => Score { index, score, truncated_tokens: row.truncated_tokens },
        _ => unreachable!("the task gives scores"),
    }
}
