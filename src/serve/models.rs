//! The models of a server: loaded once, each with what it can answer.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use super::schema::{Fault, FaultKind, shown};
use super::{ServeOptions, ServedModel};
use crate::engine::{QueueTask, QueuedTask, RowOptions, TaskInput, Workload};
use crate::model::modules::Prompts;
use crate::model::purpose::noun;
use crate::neighbours::Representation;
use crate::nn::HeadKind;
use crate::output::ContentType;
use crate::sys::console::Console;
use crate::sys::threads::single_thread_pool;
use crate::task::{
    Classifier, Loaded, ModelTask, PromptChoice, ScoreOptions, TextEncoder, load_for_own_task, workload,
};
use crate::text::Tokenizer;

/// What a model gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Capability {
    /// A vector of a text.
    Embed,
    /// A sparse vector of a text.
    EmbedSparse,
    /// A vector of each token of a text.
    EmbedTokens,
    /// A vector of a text, of any kind.
    Vectors,
    /// A score of a document for a query, by a cross-encoder or by the similarity of vectors.
    Rerank,
    /// The same, by a cross-encoder.
    Scores,
    /// Labels of a text.
    Classify,
    /// Anything: tokens alone are needed.
    Any,
}

impl Capability {
    /// Continues "this route needs ".
    fn needed(self) -> &'static str {
        match self {
            Capability::Embed | Capability::EmbedTokens | Capability::Vectors => "an embedding model",
            Capability::EmbedSparse => "a sparse encoder like SPLADE",
            Capability::Rerank => "a cross-encoder or an embedding model",
            Capability::Scores => "a cross-encoder",
            Capability::Classify => "a text classifier",
            Capability::Any => "a model",
        }
    }
}

/// A task by its kind.
#[derive(Clone)]
pub(super) enum Kind {
    /// Vectors, dense or sparse.
    Vectors(Arc<TextEncoder>),
    /// Scores of pairs of a query and a document.
    CrossEncoder(Arc<Classifier>),
    /// Labels.
    Classifier(Arc<Classifier>),
}

/// A loaded model.
pub(super) struct Model {
    /// Its name in requests.
    pub name: String,
    /// Its id on the hub, or its directory.
    pub id: String,
    /// What it does.
    pub kind: Kind,
    /// The same for the queue.
    pub task: Arc<dyn QueuedTask>,
    /// The prompts of its files.
    pub prompts: Prompts,
    /// Facts that clients ask for.
    pub facts: Facts,
    /// The limits and the memory of its batches.
    pub workload: Workload,
    /// Tokens that one worker encodes in a second, measured at the start.
    pub tokens_per_second: f64,
}

/// What clients ask about a model.
#[derive(Debug, Clone)]
pub(super) struct Facts {
    /// The model type of its config, such as `bert`.
    pub family: String,
    /// The compute type, such as `f32`.
    pub dtype: &'static str,
    /// The pooling, such as `mean`.
    pub pooling: String,
    /// Dimensions of a vector, or the number of labels.
    pub dimensions: usize,
    /// Maximum tokens of a text.
    pub max_length: usize,
    /// Elements of the hidden state of a token.
    pub hidden_size: usize,
    /// Parameters.
    pub parameters: usize,
    /// Seconds since 1970 at which it was loaded.
    pub loaded_at: u64,
}

impl Model {
    /// Loads a model for what its files say that it is for, and measures it.
    fn load(served: &ServedModel, options: &ServeOptions, console: &Console) -> Result<Self> {
        let loaded = load_for_own_task(&served.options, console)?;
        let prompts = loaded.modules.prompts.clone();
        let mut facts = facts(&loaded);
        let scores = ScoreOptions { on_long: options.vectors.on_long, raw: false };
        let kind = match loaded.head_kind {
            Some(HeadKind::SequenceClassification | HeadKind::CausalLm) if loaded.dimensions == 1 => {
                let prompt = options.vectors.prompt.as_ref();
                Kind::CrossEncoder(Classifier::cross_encoder(loaded, scores, prompt, false, console)?.into())
            }
            Some(HeadKind::SequenceClassification | HeadKind::NextSentence | HeadKind::CausalLm) => {
                Kind::Classifier(Classifier::new(loaded, scores, 0)?.into())
            }
            Some(kind @ (HeadKind::TokenClassification | HeadKind::QuestionAnswering)) => bail!(
                "{} is a {}, for which there is no route; serve embedding models, sparse encoders, rerankers and classifiers",
                served.options.source.model,
                noun(kind)
            ),
            Some(HeadKind::MaskedLm | HeadKind::LexicalWeights) | None => {
                Kind::Vectors(TextEncoder::new(loaded, &options.vectors, console)?.into())
            }
        };
        if let Kind::Vectors(encoder) = &kind {
            facts.dimensions = encoder.dimensions();
        }
        let workload = kind.workload(options.max_batch_tokens);
        let task = kind.queued(&workload, 1.0);
        let tokens_per_second = single_thread_pool("measure".into())?.install(|| measure(&*task))?;
        let (name, id) = (served.name.clone(), served.options.source.model.clone());
        Ok(Model { name, id, kind, task, prompts, facts, workload, tokens_per_second })
    }

    fn has(&self, capability: Capability) -> bool {
        match (&self.kind, capability) {
            (_, Capability::Any)
            | (Kind::CrossEncoder(_), Capability::Rerank | Capability::Scores)
            | (Kind::Classifier(_), Capability::Classify) => true,
            (Kind::Vectors(_), Capability::Vectors) => true,
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

    /// The prompt that a request chooses.
    pub(super) fn prompt(&self, choice: Option<&PromptChoice>) -> Result<Option<Arc<str>>, Fault> {
        match choice {
            None => Ok(None),
            Some(PromptChoice::Text(text)) => Ok(Some(text.as_str().into())),
            Some(PromptChoice::Name(name)) => match self.prompts.get(name) {
                Some(text) => Ok(Some(text.into())),
                None => {
                    let known = self.prompts.names();
                    let remedy = match &*known {
                        "" => "which has no prompts; leave it out".to_owned(),
                        known => format!("which has {known}; send one of these"),
                    };
                    let message = format!(
                        "prompt_name is {:?}, but not a prompt of {}, {remedy}",
                        shown(name),
                        self.name
                    );
                    Err(Fault::of(FaultKind::Invalid, "prompt_name", message))
                }
            },
        }
    }

    /// The type of what its rows hold.
    pub(super) fn content(&self) -> ContentType {
        match &self.kind {
            Kind::Vectors(task) => task.content(),
            Kind::CrossEncoder(task) | Kind::Classifier(task) => task.content(),
        }
    }

    /// What gives the vectors of its texts, if it does.
    pub(super) fn encoder(&self) -> Option<Arc<TextEncoder>> {
        match &self.kind {
            Kind::Vectors(encoder) => Some(encoder.clone()),
            Kind::CrossEncoder(_) | Kind::Classifier(_) => None,
        }
    }

    /// Elements of a vector in answers with one for each token. `None`: a text has as many vectors as tokens.
    pub(super) fn token_width(&self) -> Option<usize> {
        match &self.kind {
            Kind::Vectors(encoder) if encoder.gives_tokens() => None,
            _ => Some(self.facts.dimensions),
        }
    }

    fn is_named(&self, name: &str) -> bool {
        self.name == name || self.id == name
    }

    fn is_cross_encoder(&self) -> bool {
        matches!(self.kind, Kind::CrossEncoder(_))
    }

    /// What it is, for a message: "an embedding model".
    fn noun(&self) -> &'static str {
        match &self.kind {
            Kind::Vectors(encoder) => match encoder.content() {
                ContentType::Sparse { .. } => "a sparse encoder",
                _ if encoder.representation() == Representation::PerToken => "a multi-vector model",
                _ => "an embedding model",
            },
            Kind::CrossEncoder(_) => "a cross-encoder",
            Kind::Classifier(_) => "a text classifier",
        }
    }

    /// Whether a vector has unit length by the model's own files.
    fn normalizes(&self) -> bool {
        match &self.kind {
            Kind::Vectors(encoder) => match &**encoder {
                TextEncoder::Dense(embedder) => embedder.is_normalized(),
                TextEncoder::Sparse(_) => false,
            },
            _ => false,
        }
    }
}

impl Kind {
    /// The tokenizer of texts.
    pub(super) fn tokenizer(&self) -> &Tokenizer {
        match self {
            Kind::Vectors(task) => &task.model().tokenizer,
            Kind::CrossEncoder(task) | Kind::Classifier(task) => &task.model().tokenizer,
        }
    }

    fn workload(&self, batch_tokens: Option<usize>) -> Workload {
        match self {
            Kind::Vectors(task) => workload(&**task, batch_tokens),
            Kind::CrossEncoder(task) | Kind::Classifier(task) => workload(&**task, batch_tokens),
        }
    }

    fn queued(&self, workload: &Workload, cost: f64) -> Arc<dyn QueuedTask> {
        let tokens = workload.batch_tokens;
        match self {
            Kind::Vectors(task) => Arc::new(QueueTask::new(task.clone(), tokens, cost)),
            Kind::CrossEncoder(task) | Kind::Classifier(task) => {
                Arc::new(QueueTask::new(task.clone(), tokens, cost))
            }
        }
    }
}

fn facts(loaded: &Loaded) -> Facts {
    let loaded_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Facts {
        family: loaded.config.string("model_type").ok().flatten().unwrap_or_default().to_owned(),
        dtype: loaded.encoders[0].backend().dtype(),
        pooling: loaded.pooling.to_string(),
        dimensions: loaded.dimensions,
        hidden_size: loaded.encoders[0].spec().hidden_size,
        max_length: loaded.max_length.tokens,
        parameters: loaded.parameters,
        loaded_at,
    }
}

/// Maximum time of the measurement, which also warms up.
const WARM_UP_SECONDS: f64 = 0.25;

/// Tokens that this thread, alone, encodes in a second.
fn measure(task: &dyn QueuedTask) -> Result<f64> {
    let text = "A lamp burns in the window of the house by the sea. ".repeat(6);
    let input = TaskInput { query: Some("lamp"), ..TaskInput::new(&text) };
    let Ok(text) = task.tokenize(&input) else { return Ok(DEFAULT_RATE) };
    let (texts, options) = (vec![text; 2], [RowOptions::default(); 2]);
    let tokens: usize = texts.iter().map(|text| text.token_count()).sum();
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < WARM_UP_SECONDS {
        let since = Instant::now();
        task.rows(&texts, &options, 0)?;
        best = best.min(since.elapsed().as_secs_f64());
    }
    Ok(tokens as f64 / best.max(1e-6))
}

/// The tokens per second of a model that does not encode the text of the measurement.
const DEFAULT_RATE: f64 = 5000.0;

/// All models of a server, in the order in which they were named.
pub(super) struct Models {
    pub all: Vec<Model>,
}

impl Models {
    /// Loads all models, and measures each on one thread.
    pub(super) fn load(options: &ServeOptions, console: &Console) -> Result<Self> {
        let mut all: Vec<Model> = Vec::with_capacity(options.models.len());
        for served in &options.models {
            if all.iter().any(|model| model.name == served.name) {
                bail!(crate::error::UsageError(format!(
                    "--model {}: the name is there twice; name one NAME={}",
                    served.name, served.options.source.model
                )));
            }
            all.push(Model::load(served, options, console)?);
        }
        let fastest = all.iter().map(|model| model.tokens_per_second).fold(0.0, f64::max);
        for model in &mut all {
            model.task = model.kind.queued(&model.workload, fastest / model.tokens_per_second);
        }
        Ok(Models { all })
    }

    /// The model that a request names, or the first with the capability. Reranking is the task of cross-encoders where there are some:
    /// an embedding model reranks only if it is named.
    pub(super) fn select(&self, name: Option<&str>, capability: Capability) -> Result<&Model, Fault> {
        let able: Vec<&Model> = self.all.iter().filter(|model| model.has(capability)).collect();
        if let Some(named) = able.iter().find(|model| name.is_some_and(|name| model.is_named(name))) {
            return Ok(named);
        }
        let mut unnamed = able.clone();
        if capability == Capability::Rerank && able.iter().any(|model| model.is_cross_encoder()) {
            unnamed.retain(|model| model.is_cross_encoder());
        }
        match (&unnamed[..], name) {
            ([], _) => {
                let all = self.all.iter().map(|model| format!("{} is {}", model.name, model.noun()));
                let message = format!(
                    "this route needs {}, but {}; start sconce serve with one more --model",
                    capability.needed(),
                    all.collect::<Vec<_>>().join(", ")
                );
                Err(Fault::of(FaultKind::Model, "model", message))
            }
            ([only], _) => Ok(only),
            ([first, ..], None) => Ok(first),
            (_, Some(name)) => Err(unknown(name, &able)),
        }
    }

    /// The model of routes that name none.
    pub(super) fn first(&self) -> &Model {
        &self.all[0]
    }

    /// The fault of a name that no model has.
    pub(super) fn unknown(&self, name: &str) -> Fault {
        unknown(name, &self.all.iter().collect::<Vec<_>>())
    }

    /// A model by its name or id.
    pub(super) fn named(&self, name: &str) -> Option<&Model> {
        self.all.iter().find(|model| model.is_named(name))
    }

    /// The names of models whose dense vectors do not have unit length by their own files.
    pub(super) fn not_normalized(&self) -> impl Iterator<Item = &str> {
        let models = self.all.iter().filter(|model| model.has(Capability::Embed) && !model.normalizes());
        models.map(|model| &*model.name)
    }

    /// Continues the line that a server prints at its start.
    pub(super) fn describe(&self) -> String {
        let describe = |model: &Model| {
            let Facts { dimensions, max_length, dtype, .. } = &model.facts;
            let what = match &model.kind {
                Kind::Vectors(_) => format!("{dimensions} dimensions · "),
                Kind::Classifier(_) => format!("{dimensions} labels · "),
                _ => String::new(),
            };
            format!("{} · {what}{max_length} tokens · {dtype}", model.name)
        };
        self.all.iter().map(describe).collect::<Vec<_>>().join(", ")
    }
}

/// The fault of a name that none of these models has.
fn unknown(name: &str, models: &[&Model]) -> Fault {
    let known: Vec<&str> = models.iter().map(|model| &*model.name).collect();
    let message =
        format!("model is {:?}, which is not served; send one of {}", shown(name), known.join(", "));
    Fault::of(FaultKind::Model, "model", message)
}
