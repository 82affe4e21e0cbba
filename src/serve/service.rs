//! From a call to an answer: which model, which texts with which choices, and what its rows are. It knows the
//! calls of the schemas, but neither bodies nor HTTP.
//!
//! `job`: the texts of a request. `texts`: what they have become.

mod job;
mod texts;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;
use tokio::sync::oneshot;

use super::kind::{Kind, ServedTask};
use super::models::{Capability, Model, Models};
use super::schema::tasks::{TaskCall, TaskRoute, TaskRouteOptions};
use super::schema::{
    Embed, Fault, FaultKind, Predict, Rerank, SentenceSimilarity, TextAndPair, TextOptions, Truncated,
};
use crate::engine::{Answered, Call, CallTimes, OwnedInput, Queue, RowOptions, TextError, TextFault};
use crate::task::{PromptChoice, Reranker, TextEncoder};
use crate::text::{OnLong, Role};
use job::Names;

pub(super) use job::Job;
pub(super) use texts::{RowFormat, Texts};

/// What a request does not choose.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    /// What becomes of texts over the limit.
    pub on_long: OnLong,
    /// Whether dense vectors have unit length. `None`: as the model's files say.
    pub normalize: Option<bool>,
}

/// The models with the queue of their texts.
pub(super) struct Service {
    pub models: Arc<Models>,
    pub queue: Queue,
    pub defaults: Defaults,
}

/// A body, and what headers and metrics say of its call.
pub(super) struct Reply {
    pub body: Vec<u8>,
    /// Encoded tokens of all texts.
    pub tokens: usize,
    /// The number of texts.
    pub texts: usize,
    /// Bytes of all texts.
    pub bytes: usize,
    /// The texts that were truncated.
    pub truncated: Vec<Truncated>,
    /// Whether a GPU encoded them.
    pub is_gpu: bool,
    pub times: CallTimes,
}

impl Service {
    /// Vectors of texts: dense ones, sparse ones or those of tokens, by the capability.
    pub(super) fn embed(&self, embed: Embed, capability: Capability) -> Result<Job<'_>, Fault> {
        let model = self.models.select(embed.model.as_deref(), capability)?;
        let normalize = match capability {
            Capability::Embed => embed.normalize.or(self.defaults.normalize),
            _ => embed.normalize,
        };
        let options = RowOptions { normalize, dimensions: embed.dimensions, ..RowOptions::default() };
        let names = Names::of(&embed.inputs, None);
        let mut inputs = self.inputs(model, embed.inputs.values, &embed.options)?;
        if capability == Capability::EmbedTokens {
            inputs.iter_mut().for_each(|input| input.per_token = true);
        }
        self.job(model, inputs, options, names, embed.ignored)
    }

    /// Scores of documents for a query.
    pub(super) fn rerank(&self, rerank: &Rerank) -> Result<Job<'_>, Fault> {
        let model = self.models.select(rerank.model.as_deref(), Capability::Rerank)?;
        let documents = rerank.documents.values.clone();
        let mut ignored = rerank.ignored.clone();
        if rerank.max_tokens_per_document.is_some_and(|limit| limit < model.facts.max_length) {
            ignored.push("max_tokens_per_doc".into());
        }
        match &model.kind {
            Kind::Vectors(_) => {
                let options = TextOptions { role: Some(Role::Query), ..rerank.options.clone() };
                let mut inputs = self.inputs(model, vec![rerank.query.clone()], &options)?;
                let options =
                    TextOptions { role: Some(Role::Document), prompt: None, ..rerank.options.clone() };
                inputs.extend(self.inputs(model, documents, &options)?);
                if rerank.raw_scores {
                    ignored.push("raw_scores".into());
                }
                let names = Names::of(&rerank.documents, Some("query"));
                self.job(model, inputs, RowOptions::default(), names, ignored)
            }
            _ => {
                let mut inputs = self.inputs(model, documents, &rerank.options)?;
                let query: Arc<str> = rerank.query.as_str().into();
                inputs.iter_mut().for_each(|input| input.query = Some(query.clone()));
                let options = RowOptions { raw: Some(rerank.raw_scores), ..RowOptions::default() };
                self.job(model, inputs, options, Names::of(&rerank.documents, None), ignored)
            }
        }
    }

    /// Labels of texts or pairs.
    pub(super) fn predict(&self, predict: Predict) -> Result<Job<'_>, Fault> {
        let model = self.models.select(predict.model.as_deref(), Capability::Classify)?;
        let names = Names::of(&predict.inputs, None);
        let inputs = self.inputs(model, predict.inputs.values, &predict.options)?;
        let options = RowOptions { raw: Some(predict.raw_scores), ..RowOptions::default() };
        self.job(model, inputs, options, names, predict.ignored)
    }

    /// Similarities of a text with others.
    pub(super) fn similarity(&self, call: SentenceSimilarity) -> Result<Job<'_>, Fault> {
        let model = self.models.select(call.model.as_deref(), Capability::Embed)?;
        let names = Names::of(&call.sentences, Some("inputs.source_sentence"));
        let texts = [call.source].into_iter().chain(call.sentences.values).collect();
        let inputs = self.inputs(model, texts, &call.options)?;
        self.job(model, inputs, RowOptions::default(), names, call.ignored)
    }

    /// The rows of a command for texts or pairs.
    pub(super) fn task(&self, route: TaskRoute, call: TaskCall) -> Result<Job<'_>, Fault> {
        let capability = match route {
            TaskRoute::Embed if call.options.per_token => Capability::EmbedTokens,
            TaskRoute::Embed => Capability::Vectors,
            TaskRoute::Rerank => Capability::Rerank,
            TaskRoute::Classify => Capability::Classify,
            TaskRoute::Tag => Capability::Tag,
            TaskRoute::Fill => Capability::Fill,
            TaskRoute::Answer => Capability::Answer,
        };
        let model = self.models.select(call.model.as_deref(), capability)?;
        let mut task_options = call.options;
        let task = match &model.kind {
            Kind::Vectors(encoder) if route == TaskRoute::Rerank => {
                Some(comparison(encoder.clone(), &mut task_options)?)
            }
            kind => kind.task_with(&mut task_options)?,
        };
        let TaskRouteOptions { text, normalize, dimensions, output_dtype, per_token, raw, stride, .. } =
            task_options;
        let options = RowOptions { dimensions, normalize, dtype: output_dtype, raw };
        let names = Names { has_options: true, ..Names::of(&call.texts, None) };
        let query: Option<Arc<str>> = call.query.map(Into::into);
        let mut inputs = self.inputs(model, call.texts.values, &text)?;
        for input in &mut inputs {
            input.per_token = per_token;
            input.query = match input.pair.take_if(|_| route.has_query()) {
                // The first text of a pair is its query or question.
                Some(document) => Some(mem::replace(&mut input.text, document).into()),
                None => query.clone(),
            };
        }
        let mut job = self.job(model, inputs, options, names, call.ignored)?;
        job.stride = match &model.kind {
            Kind::Answerer(answerer) => stride.or(Some(answerer.stride())),
            _ => stride,
        };
        if let Some(task) = task {
            (job.row_bytes, job.content) = (task.row_bytes(), task.row_content());
            job.call.task = model.queued(task);
        }
        Ok(job)
    }

    /// Texts with the choices of a request.
    fn inputs(
        &self,
        model: &Model,
        texts: Vec<impl Into<TextAndPair>>,
        options: &TextOptions,
    ) -> Result<Vec<OwnedInput>, Fault> {
        let prompt = model.prompt(options.prompt.as_ref())?;
        let input = |TextAndPair { text, pair }| OwnedInput {
            text,
            pair,
            role: options.role,
            prompt: prompt.clone(),
            on_long: Some(options.on_long.unwrap_or(self.defaults.on_long)),
            truncation_side: options.truncation_side,
            ..OwnedInput::default()
        };
        Ok(texts.into_iter().map(Into::into).map(input).collect())
    }

    fn job<'a>(
        &self,
        model: &'a Model,
        inputs: Vec<OwnedInput>,
        options: RowOptions,
        names: Names,
        ignored: Vec<String>,
    ) -> Result<Job<'a>, Fault> {
        model.task.check(&options).map_err(|error| {
            let option = names.option(error.option);
            Fault::of(FaultKind::Invalid, option.clone(), format!("{option} {}", error.reason))
        })?;
        let call = Call { task: model.task.clone(), inputs, options };
        let row_bytes = model.workload.vector_bytes;
        Ok(Job { model, call, row_bytes, content: model.content(), stride: None, names, ignored })
    }

    /// Refuses texts that would wait longer than requests may take.
    pub(super) fn check_waiting(&self, request_timeout: Duration) -> Result<(), Fault> {
        let waiting = self.queue.waiting_time();
        if waiting < request_timeout {
            return Ok(());
        }
        let message = format!("texts for {} seconds wait; send fewer at once", waiting.as_secs());
        Err(Fault::new(FaultKind::Overloaded, message))
    }

    /// Waits for the answer to a job. `body` makes the body on a worker. A caller that stops waiting leaves
    /// the queue.
    pub(super) async fn ask(
        &self,
        job: Job<'_>,
        body: impl FnOnce(&Texts) -> Result<Vec<u8>, Fault> + Send + 'static,
    ) -> Result<Reply, Fault> {
        let (send, receive) = oneshot::channel();
        let names = job.names;
        let bytes = job.call.inputs.iter().map(OwnedInput::bytes).sum();
        let is_gpu = job.model.workload.is_gpu;
        let ticket = self.queue.submit(job.call, move |answer| {
            let reply = match answer {
                Ok(answered) => reply(answered, &names, bytes, body).map(|reply| Reply { is_gpu, ..reply }),
                Err(error) => Err(fault(&error, &names)),
            };
            let _ = send.send(reply);
        });
        let reply = receive.await;
        drop(ticket);
        reply.unwrap_or_else(|_| Err(panicked()))
    }

    /// Runs short work on a worker.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        let (send, receive) = oneshot::channel();
        self.queue.run(move || drop(send.send(work())));
        receive.await.unwrap_or_else(|_| Err(panicked()))
    }
}

/// The task that compares the vectors of texts with those of their queries, as `sconce rerank` does with an
/// embedding model.
fn comparison(
    encoder: Arc<TextEncoder>,
    options: &mut TaskRouteOptions,
) -> Result<Arc<dyn ServedTask>, Fault> {
    let prompt = options.text.prompt.as_ref().map(|prompt| match prompt {
        PromptChoice::Text(_) => "options.prompt",
        PromptChoice::Name(_) => "options.prompt_name",
    });
    if let Some(option) = prompt.or(options.raw.filter(|raw| *raw).map(|_| "options.raw")) {
        let message =
            format!("{option} needs a cross-encoder, but the model is an embedding model; leave it out");
        return Err(Fault::of(FaultKind::Invalid, option, message));
    }
    (options.raw, options.text.role) = (None, Some(Role::Document));
    Ok(Arc::new(Reranker::of_pairs(encoder)))
}

/// The fault of a request whose work has panicked.
fn panicked() -> Fault {
    Fault::new(FaultKind::Internal, "the server failed at this request; please report this as a bug")
}

/// The fault of a request that comes while the server stops.
pub(super) fn stopping() -> Fault {
    Fault::new(FaultKind::NotReady, "the server stops; send the request again")
}

/// The reply of texts that were answered, if all values are finite.
fn reply(
    answered: Answered,
    names: &Names,
    bytes: usize,
    body: impl FnOnce(&Texts) -> Result<Vec<u8>, Fault>,
) -> Result<Reply, Fault> {
    let Answered { texts, times } = answered;
    if let Some(index) = texts.iter().position(|text| text.rows().iter().any(|row| !row.is_finite)) {
        let message = format!("{} gives values that are not finite; check the model", names.name(index));
        return Err(Fault::new(FaultKind::Internal, message));
    }
    let texts = Texts { texts, offset: usize::from(names.first.is_some()) };
    let body = body(&texts)?;
    let (tokens, truncated) = (texts.tokens(), texts.truncated());
    Ok(Reply { body, tokens, texts: texts.texts.len(), bytes, truncated, is_gpu: false, times })
}

/// The fault of a call without an answer.
fn fault(error: &Error, names: &Names) -> Fault {
    let Some(TextError { index, fault, reason }) = error.downcast_ref() else {
        return Fault::new(FaultKind::Internal, format!("{error:#}"));
    };
    let name = names.name(*index);
    match fault {
        TextFault::TooLong { others, .. } => {
            let (others, them) = match others {
                0 => (String::new(), "it"),
                1 => (", which another text exceeds, too".into(), "them"),
                _ => (format!(", which {others} other texts exceed, too"), "them"),
            };
            let option = names.truncation();
            let message =
                format!("{name} {reason}{others}; shorten {them}, or have {them} truncated with {option}");
            Fault::of(FaultKind::TooLong, name, message)
        }
        TextFault::Invalid => Fault::of(FaultKind::Text, name.clone(), format!("{name} {reason}")),
        TextFault::NotFinite => Fault::new(FaultKind::Internal, format!("{name} {reason}")),
    }
}
