//! From a call to an answer: which model, which texts with which choices, and what its rows are. It knows the calls of the schemas, but
//! neither bodies nor HTTP.

use std::borrow::Cow;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Error;
use tokio::sync::oneshot;

use super::kind::Kind;
use super::models::{Capability, Model, Models};
use super::schema::tasks::{TaskCall, TaskRoute, TaskRouteOptions};
use super::schema::{
    Embed, Fault, FaultKind, OneOrMany, Predict, Rerank, SentenceSimilarity, TextAndPair, TextOptions,
    Truncated,
};
use crate::engine::{
    Answered, Call, CallTimes, EncodedText, OwnedInput, Queue, RowOptions, TOKENIZER_BYTES_PER_TEXT_BYTE,
    TextError, TextFault,
};
use crate::formats::write_json_rows;
use crate::neighbours::{SparseVector, descending};
use crate::rows::{Content, ContentType, LabelScore, Row, VectorValues};
use crate::task::{ModelTask, TextEncoder};
use crate::text::{OnLong, Role};

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
    pub models: Models,
    pub queue: Queue,
    pub defaults: Defaults,
}

/// The texts of a request with what becomes of them.
pub(super) struct Job<'a> {
    /// The model that encodes them.
    pub model: &'a Model,
    call: Call,
    /// Bytes of what a row holds, or of what it holds for one token or mask.
    row_bytes: usize,
    /// Tokens that the windows of a text over the limit share. `None`: it has one window, whose other tokens are truncated.
    stride: Option<usize>,
    /// What messages call the texts.
    names: Names,
    /// Names of ignored fields of the request.
    pub ignored: Vec<String>,
}

/// Bytes of an element of an answer: as `f32`, and as text.
const BYTES_PER_ELEMENT: usize = 4 + 13;

impl Job<'_> {
    /// An estimate of the memory in which whole texts are tokenized, in bytes. Other texts are tokenized in pieces.
    pub(super) fn tokenizer_bytes(&self) -> u64 {
        let is_aligned = matches!(self.model.kind, Kind::Tagger(_) | Kind::Answerer(_));
        let is_whole = |input: &&OwnedInput| is_aligned || input.on_long == Some(OnLong::Mean);
        let whole = self.call.inputs.iter().filter(is_whole);
        (whole.map(OwnedInput::bytes).max().unwrap_or(0) * TOKENIZER_BYTES_PER_TEXT_BYTE) as u64
    }

    /// An estimate of the memory of the answer, in bytes.
    pub(super) fn answer_bytes(&self) -> u64 {
        let Model { facts, workload, kind, .. } = self.model;
        let is_per_token = self.call.inputs.iter().any(|input| input.per_token);
        let row_bytes = if is_per_token { size_of::<f32>() * facts.hidden_size } else { self.row_bytes };
        let max_length = workload.max_length;
        let mask = kind.mask().unwrap_or_default();
        let parts = |input: &OwnedInput| match kind {
            Kind::Tagger(_) => {
                (self.windows(input) - 1).saturating_mul(max_length) + tokens(input).min(max_length)
            }
            Kind::MaskFiller(_) => occurrences(input, &mask).min(max_length),
            Kind::Answerer(_) => self.windows(input),
            _ if is_per_token || workload.is_per_token => tokens(input).min(max_length),
            _ => 1,
        };
        let parts = self.call.inputs.iter().map(parts).fold(0, usize::saturating_add);
        let bytes = match kind {
            // What a row holds, and about the same as text.
            Kind::Tagger(_) | Kind::MaskFiller(_) | Kind::Answerer(_) => row_bytes.saturating_mul(2),
            _ => row_bytes / size_of::<f32>() * BYTES_PER_ELEMENT,
        };
        parts.saturating_mul(bytes) as u64
    }

    /// An estimate of the number of windows of a text, with two bytes for each token of its question.
    fn windows(&self, input: &OwnedInput) -> usize {
        let Some(stride) = self.stride else { return 1 };
        let question = input.query.as_ref().map_or(0, |question| question.len() / 2);
        let shared = stride.saturating_add(question + MAX_SPECIAL_TOKENS);
        tokens(input) / self.model.workload.max_length.saturating_sub(shared).max(1) + 1
    }
}

/// Special tokens around a question and a text.
const MAX_SPECIAL_TOKENS: usize = 4;

/// An estimate of the tokens of a text, with four bytes for each.
fn tokens(input: &OwnedInput) -> usize {
    input.bytes() / 4 + 2
}

/// What messages call the texts and the options of a job.
#[derive(Debug, Clone)]
struct Names {
    field: OneOrMany<()>,
    /// The name of the first text, which is not in the field.
    first: Option<&'static str>,
    /// Whether options are those of a command, in a field of their own.
    has_options: bool,
}

impl Names {
    fn of<T>(values: &OneOrMany<T>, first: Option<&'static str>) -> Self {
        Names { field: values.without_values(), first, has_options: false }
    }

    /// The field of an option of rows.
    fn option(&self, option: &str) -> String {
        match (option, self.has_options) {
            ("raw", false) => "raw_scores".into(),
            ("dtype", true) => "options.output_dtype".into(),
            (option, true) => format!("options.{option}"),
            (option, false) => option.into(),
        }
    }

    fn name(&self, index: usize) -> String {
        match self.first {
            Some(first) if index == 0 => first.into(),
            Some(_) => self.field.name(index - 1),
            None => self.field.name(index),
        }
    }
}

/// The texts of a call that was answered.
pub(super) struct Texts {
    texts: Vec<EncodedText>,
    /// The index of the first text in the list of the request: 1 if there is a query before it.
    offset: usize,
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

impl Texts {
    /// Encoded tokens of all texts.
    pub(super) fn tokens(&self) -> usize {
        self.texts.iter().map(|text| text.tokens).sum()
    }

    /// The texts that were truncated, by their index in the request. A query has the index after those of the documents.
    pub(super) fn truncated(&self) -> Vec<Truncated> {
        let of_text = |(index, text): (usize, &EncodedText)| {
            let index = index.checked_sub(self.offset).unwrap_or(self.texts.len() - self.offset);
            let tokens = text.tokens + text.truncated_tokens;
            (text.truncated_tokens > 0).then_some(Truncated { index, tokens, kept: text.tokens })
        };
        self.texts.iter().enumerate().filter_map(of_text).collect()
    }

    /// The rows of a command as a JSON array: of the best labels `top_k` only, and with `ranked` the best rows only, sorted; 0: all.
    pub(super) fn write_rows(
        &self,
        content: &ContentType,
        top_k: Option<usize>,
        ranked: bool,
        bytes: &mut Vec<u8>,
    ) {
        let mut contents: Vec<Cow<Content>> = self.contents().map(Cow::Borrowed).collect();
        let mut order: Vec<usize> = (0..contents.len()).collect();
        let kept = match top_k {
            Some(0) => usize::MAX,
            top_k => top_k.unwrap_or(1),
        };
        if let ContentType::Labels = content {
            for content in &mut contents {
                if let Content::Labels(labels) = content.to_mut() {
                    labels.truncate(kept);
                }
            }
        }
        if ranked {
            let score = |content: &Content| match content {
                Content::Score { score, .. } => *score,
                _ => 0.0,
            };
            order.sort_by_key(|&text| descending(score(&contents[text])));
            order.truncate(kept);
            for (place, &text) in order.iter().enumerate() {
                if let Content::Score { rank, .. } = contents[text].to_mut() {
                    *rank = Some(place as u64);
                }
            }
        }
        let row = |&index: &usize| Row {
            index: index as u64,
            id: None,
            chunk: None,
            tokens: self.texts[index].tokens,
            truncated: self.texts[index].truncated_tokens > 0,
            kept: &[],
            content: &contents[index],
        };
        let rows: Vec<Row> = order.iter().map(row).collect();
        write_json_rows(&rows, content, bytes);
    }

    /// What each text has become. Without chunks and with one query, a text has one row.
    fn contents(&self) -> impl Iterator<Item = &Content> {
        self.texts.iter().filter_map(|text| text.rows().first().map(|row| &row.content))
    }

    /// Encoded tokens of each text.
    pub(super) fn token_counts(&self) -> impl Iterator<Item = usize> {
        self.texts.iter().map(|text| text.tokens)
    }

    /// The dense vector of each text, or those of its tokens, concatenated.
    pub(super) fn dense(&self) -> Vec<&[f32]> {
        self.contents().filter_map(dense).collect()
    }

    /// The sparse vector of each text.
    pub(super) fn sparse(&self) -> Vec<&SparseVector> {
        let vectors = self.contents().filter_map(|content| match content {
            Content::Sparse(vector) => Some(&**vector),
            _ => None,
        });
        vectors.collect()
    }

    /// The labels of each text, best first.
    pub(super) fn labels(&self) -> Vec<&[LabelScore]> {
        let labels = self.contents().filter_map(|content| match content {
            Content::Labels(labels) => Some(&labels[..]),
            _ => None,
        });
        labels.collect()
    }

    /// The score of each document: that of a cross-encoder, or its similarity with the first text.
    pub(super) fn scores(&self, encoder: Option<&TextEncoder>) -> Result<Vec<f32>, Fault> {
        let Some(encoder) = encoder else {
            let scores = self.contents().filter_map(|content| match content {
                Content::Score { score, .. } => Some(*score),
                _ => None,
            });
            return Ok(scores.collect());
        };
        let content = encoder.content();
        let mut vectors = self.contents().filter_map(|row| row.encoded(&content));
        let Some(first) = vectors.next() else { return Ok(Vec::new()) };
        let first =
            encoder.compared(first).map_err(|error| Fault::new(FaultKind::Invalid, format!("{error:#}")))?;
        Ok(vectors.filter_map(|vector| first.score(&vector)).collect())
    }
}

/// How often a text and its pair have this string.
fn occurrences(input: &OwnedInput, of: &str) -> usize {
    let texts = [Some(&input.text), input.pair.as_ref()];
    texts.into_iter().flatten().map(|text| text.matches(of).count()).sum()
}

fn dense(content: &Content) -> Option<&[f32]> {
    match content {
        Content::Vector(stored) => match &stored.values {
            VectorValues::F32(values) => Some(values),
            VectorValues::F16(_) | VectorValues::Int8(_) => None,
        },
        _ => None,
    }
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
            TaskRoute::Embed => Capability::Vectors,
            TaskRoute::Rerank => Capability::Scores,
            TaskRoute::Classify => Capability::Classify,
            TaskRoute::Tag => Capability::Tag,
            TaskRoute::Fill => Capability::Fill,
            TaskRoute::Answer => Capability::Answer,
        };
        let model = self.models.select(call.model.as_deref(), capability)?;
        let mut task_options = call.options;
        let task = model.kind.task_with(&mut task_options)?;
        let TaskRouteOptions { text, normalize, dimensions, output_dtype, raw, stride, .. } = task_options;
        let options = RowOptions { dimensions, normalize, dtype: output_dtype, raw };
        let names = Names { has_options: true, ..Names::of(&call.texts, None) };
        let query: Option<Arc<str>> = call.query.map(Into::into);
        let mut inputs = self.inputs(model, call.texts.values, &text)?;
        for input in &mut inputs {
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
            job.row_bytes = task.row_bytes();
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
        Ok(Job { model, call, row_bytes, stride: None, names, ignored })
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

    /// Waits for the answer to a job. `body` makes the body on a worker. A caller that stops waiting leaves the queue.
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
            let message = match others {
                0 => format!("{name} {reason}; shorten it, or let it be truncated"),
                1 => {
                    format!(
                        "{name} {reason}, which another text exceeds, too; shorten them, or let them be truncated"
                    )
                }
                _ => format!(
                    "{name} {reason}, which {others} other texts exceed, too; shorten them, or let them be truncated"
                ),
            };
            Fault::of(FaultKind::TooLong, name, message)
        }
        TextFault::Invalid => Fault::of(FaultKind::Text, name.clone(), format!("{name} {reason}")),
        TextFault::NotFinite => Fault::new(FaultKind::Internal, format!("{name} {reason}")),
    }
}
