//! The models of a server: loaded once, each with what it can answer.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

use super::kind::{Kind, ServedTask};
use super::schema::{Fault, FaultKind, shown};
use super::{ServeOptions, ServedModel};
use crate::engine::{QueuedTask, RowOptions, TaskInput, Workload};
use crate::load::{Loaded, load_for_own_task};
use crate::model::modules::Prompts;
use crate::rows::ContentType;
use crate::sys::console::Console;
use crate::sys::threads::single_thread_pool;
use crate::task::precision::warn_of_int8;
use crate::task::{PromptChoice, TextEncoder};

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
    /// Labels of a text.
    Classify,
    /// Entities of a text.
    Tag,
    /// Tokens for the masks of a text.
    Fill,
    /// Answers to a question from a text.
    Answer,
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
            Capability::Classify => "a text classifier",
            Capability::Tag => "a token classifier",
            Capability::Fill => "a masked language model",
            Capability::Answer => "a question-answering model",
            Capability::Any => "a model",
        }
    }
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
    /// Dimensions of a vector, or the number of logits of a text or a token.
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
        warn_of_int8(&served.options, &loaded, console);
        let kind = Kind::of(loaded, options, console)?;
        match &kind {
            Kind::Vectors(encoder) => facts.dimensions = encoder.dimensions(),
            Kind::MaskFiller(_) => console.note(format!(
                "{} is a masked language model by its config.json, and its tokens for masks are served; pass --pooling for vectors",
                served.options.source.model
            )),
            _ => {}
        }
        let workload = kind.task().workload(options.max_batch_tokens);
        let task = kind.task().queued(workload.batch_tokens, 1.0);
        let mask = kind.mask().unwrap_or_default();
        let tokens_per_second = single_thread_pool("measure".into())?.install(|| measure(&*task, &mask))?;
        let (name, id) = (served.name.clone(), served.options.source.model.clone());
        Ok(Model { name, id, kind, task, prompts, facts, workload, tokens_per_second })
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

    /// A task of this model for the queue.
    pub(super) fn queued(&self, task: Arc<dyn ServedTask>) -> Arc<dyn QueuedTask> {
        task.queued(self.workload.batch_tokens, self.task.cost())
    }

    /// The type of what its rows hold.
    pub(super) fn content(&self) -> ContentType {
        self.kind.task().row_content()
    }

    /// What gives the vectors of its texts, if it does.
    pub(super) fn encoder(&self) -> Option<Arc<TextEncoder>> {
        match &self.kind {
            Kind::Vectors(encoder) => Some(encoder.clone()),
            _ => None,
        }
    }

    /// Elements of a vector in answers with one for each token. `None`: a text has as many vectors as tokens.
    pub(super) fn token_width(&self) -> Option<usize> {
        match &self.kind {
            Kind::Vectors(encoder) if encoder.gives_tokens() => None,
            _ => Some(self.facts.dimensions),
        }
    }

    fn is_cross_encoder(&self) -> bool {
        matches!(self.kind, Kind::CrossEncoder(_))
    }
}

fn facts(loaded: &Loaded) -> Facts {
    let loaded_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Facts {
        family: loaded.origin.config.string("model_type").ok().flatten().unwrap_or_default().to_owned(),
        dtype: loaded.encoders[0].backend().dtype(),
        pooling: loaded.steps.pooling.to_string(),
        dimensions: loaded.steps.dimensions,
        hidden_size: loaded.encoders[0].spec().hidden_size,
        max_length: loaded.max_length.tokens,
        parameters: loaded.origin.parameters,
        loaded_at,
    }
}

/// Maximum time of the measurement, which also warms up.
const WARM_UP_SECONDS: f64 = 0.25;

/// Tokens that this thread, alone, encodes in a second. The text of the measurement has the mask token, which
/// may be empty.
fn measure(task: &dyn QueuedTask, mask: &str) -> Result<f64> {
    let text = format!("{mask} {}", "A lamp burns in the window of the house by the sea. ".repeat(6));
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
            let cost = fastest / model.tokens_per_second;
            model.task = model.kind.task().queued(model.workload.batch_tokens, cost);
        }
        Ok(Models { all })
    }

    /// The model that a request names, or the first with the capability. With only one of these, a name that
    /// no model has is its. Reranking is the task of cross-encoders where there are some: an embedding model
    /// reranks only if it is named.
    pub(super) fn select(&self, name: Option<&str>, capability: Capability) -> Result<&Model, Fault> {
        let named = name.and_then(|name| self.named(name));
        if let Some(model) = named.filter(|model| model.kind.has(capability)) {
            return Ok(model);
        }
        let able: Vec<&Model> = self.all.iter().filter(|model| model.kind.has(capability)).collect();
        let mut unnamed = able.clone();
        if capability == Capability::Rerank && able.iter().any(|model| model.is_cross_encoder()) {
            unnamed.retain(|model| model.is_cross_encoder());
        }
        match (&unnamed[..], named, name) {
            ([], ..) => {
                let all = self.all.iter().map(|model| format!("{} is {}", model.name, model.kind.noun()));
                let message = format!(
                    "this route needs {}, but {}; start sconce serve with one more --model",
                    capability.needed(),
                    all.collect::<Vec<_>>().join(", ")
                );
                Err(Fault::of(FaultKind::Model, "model", message))
            }
            (_, Some(named), _) => {
                let message = format!(
                    "{} is {}, which this route cannot use; send one of {}",
                    named.name,
                    named.kind.noun(),
                    names(&able)
                );
                Err(Fault::of(FaultKind::Model, "model", message))
            }
            ([only], ..) => Ok(only),
            ([first, ..], _, None) => Ok(first),
            (_, _, Some(name)) => Err(unknown(name, &able)),
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
        let by_name = self.all.iter().find(|model| model.name == name);
        by_name.or_else(|| self.all.iter().find(|model| model.id == name))
    }

    /// The names of models whose dense vectors do not have unit length by their own files.
    pub(super) fn not_normalized(&self) -> impl Iterator<Item = &str> {
        let models =
            self.all.iter().filter(|model| model.kind.has(Capability::Embed) && !model.kind.normalizes());
        models.map(|model| &*model.name)
    }

    /// Continues the line that a server prints at its start.
    pub(super) fn describe(&self) -> String {
        let describe = |model: &Model| {
            let Facts { dimensions, max_length, dtype, .. } = &model.facts;
            let what = match &model.kind {
                Kind::Vectors(_) => format!("{dimensions} dimensions · "),
                Kind::Classifier(_) | Kind::Tagger(_) => format!("{dimensions} labels · "),
                _ => String::new(),
            };
            format!("{} · {what}{max_length} tokens · {dtype}", model.name)
        };
        self.all.iter().map(describe).collect::<Vec<_>>().join(", ")
    }
}

fn names(models: &[&Model]) -> String {
    models.iter().map(|model| &*model.name).collect::<Vec<_>>().join(", ")
}

/// The fault of a name that none of these models has.
fn unknown(name: &str, models: &[&Model]) -> Fault {
    let message = format!("model is {:?}, which is not served; send one of {}", shown(name), names(models));
    Fault::of(FaultKind::Model, "model", message)
}
