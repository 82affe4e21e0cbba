//! The answer to the body of a route: parse, ask, render. Nothing else knows both the schemas and the models.
//!
//! `about`: answers about the models. `tokens`: answers of the tokenizer alone.

mod about;
mod tokens;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::Admitted;
use super::kind::Kind;
use super::models::Capability;
use super::route::{Matched, Route};
use super::schema::tasks::{self, TaskRoute, TaskRouteOptions};
use super::schema::{Embed, Fault, Predict, Rerank, Schema, SentenceSimilarity, ollama, openai, rerank, tei};
use super::service::{Job, Reply, RowFormat, Service, Texts};
use crate::engine::CallTimes;
use crate::rows::ContentType;

/// Maximum bytes of a body that is parsed on the thread of all connections.
const PARSED_BYTES: usize = 1 << 15;

/// What the answers of a server say about it.
#[derive(Debug, Clone)]
pub(super) struct Limits {
    /// Maximum requests that wait or run.
    pub concurrent_requests: usize,
    /// Maximum texts of a request.
    pub client_batch_size: usize,
    /// Threads of workers.
    pub threads: usize,
}

/// A reply to a route, and what its headers say.
pub(super) struct Response {
    pub reply: Reply,
    /// Names of ignored fields of the request.
    pub ignored: Vec<String>,
    /// The type of the body.
    pub content_type: &'static str,
}

/// The type of most bodies.
pub(super) const JSON_TYPE: &str = "application/json";
/// The type of rows as an Arrow IPC stream.
pub(super) const ARROW_TYPE: &str = "application/vnd.apache.arrow.stream";

impl Response {
    /// A body in JSON that no text is encoded for.
    pub(super) fn plain(body: Vec<u8>) -> Self {
        let times = CallTimes::default();
        let reply =
            Reply { body, tokens: 0, texts: 0, bytes: 0, truncated: Vec::new(), is_gpu: false, times };
        Response { reply, ignored: Vec::new(), content_type: JSON_TYPE }
    }
}

/// A request that has passed all checks of its head.
pub(super) struct Request<'a> {
    pub route: Matched,
    pub path: &'a str,
    pub body: Arc<Vec<u8>>,
    /// How the client wants rows.
    pub rows: RowFormat,
    /// The id of the request, for answers that have one.
    pub id: &'a str,
    pub since: Instant,
}

type Answer = Result<Response, (Fault, Schema)>;

impl Service {
    /// The answer to a request.
    ///
    /// # Errors
    /// The fault, with the schema in which it is answered.
    pub(super) async fn answer(
        &self,
        request: Request<'_>,
        admitted: &mut Admitted,
        limits: &Limits,
    ) -> Answer {
        let schema = request.route.schema;
        if request.route.route == Route::Rerank {
            return self.answer_rerank(admitted, &request, schema, limits.client_batch_size).await;
        }
        self.answer_in_schema(&request, admitted, limits).await.map_err(|fault| (fault, schema))
    }

    /// The answer to a request whose route has one schema.
    async fn answer_in_schema(
        &self,
        request: &Request<'_>,
        admitted: &mut Admitted,
        limits: &Limits,
    ) -> Result<Response, Fault> {
        let (route, body, max) = (request.route.route, &request.body, limits.client_batch_size);
        match route {
            Route::Root => self.answer_root(admitted, request, max).await,
            Route::Embed => {
                let call = self.parse(body, move |body| tei::embed(body, max)).await?;
                self.answer_embed(admitted, call).await
            }
            Route::EmbedAll => {
                let call = self.parse(body, move |body| tei::embed_outputs(body, max)).await?;
                self.answer_embed_all(admitted, call).await
            }
            Route::EmbedSparse => {
                let call = self.parse(body, move |body| tei::embed_outputs(body, max)).await?;
                self.answer_embed_sparse(admitted, call).await
            }
            Route::Predict => {
                let call = self.parse(body, move |body| tei::predict(body, max)).await?;
                self.answer_predict(admitted, call, false).await
            }
            Route::Similarity => {
                let call = self.parse(body, move |body| tei::similarity(body, max)).await?;
                self.answer_similarity(admitted, call).await
            }
            Route::Tokenize => {
                let call = self.parse(body, move |body| tei::tokenize(body, max)).await?;
                self.answer_tokenize(admitted, call).await
            }
            Route::Decode => {
                let call = self.parse(body, move |body| tei::decode(body, max)).await?;
                self.answer_decode(call).await
            }
            Route::Info => Ok(Response::plain(self.info(limits))),
            Route::OpenAiEmbeddings => self.answer_openai(admitted, body, max).await,
            Route::OpenAiModels => Ok(Response::plain(self.openai_models())),
            Route::OpenAiModel => self.openai_model(&Matched::model(request.path)),
            Route::OllamaEmbed => self.answer_ollama(admitted, request, max).await,
            Route::OllamaEmbeddings => self.answer_ollama_embeddings(admitted, body).await,
            Route::OllamaTags => Ok(Response::plain(self.ollama_tags())),
            Route::OllamaVersion => Ok(Response::plain(ollama::version_answer(env!("CARGO_PKG_VERSION")))),
            Route::OllamaShow => self.ollama_show(body).await,
            Route::Task(route) => self.answer_task(admitted, route, request, max).await,
            // These have an answer before.
            Route::Rerank | Route::Ready | Route::Live | Route::Metrics | Route::OpenApi => {
                Ok(Response::plain(Vec::new()))
            }
        }
    }

    async fn answer_embed(&self, admitted: &mut Admitted, embed: Embed) -> Result<Response, Fault> {
        let job = self.embed(embed, Capability::Embed)?;
        self.respond(admitted, job, |texts| Ok(tei::embed_answer(&texts.dense()))).await
    }

    async fn answer_embed_all(&self, admitted: &mut Admitted, embed: Embed) -> Result<Response, Fault> {
        let job = self.embed(embed, Capability::EmbedTokens)?;
        let width = job.model.token_width();
        self.respond(admitted, job, move |texts| {
            let width = width.unwrap_or_else(|| texts.token_width());
            let vectors = texts.dense().into_iter().map(|values| tei::TokenVectors { values, width });
            Ok(tei::embed_all_answer(&vectors.collect::<Vec<_>>()))
        })
        .await
    }

    async fn answer_embed_sparse(&self, admitted: &mut Admitted, embed: Embed) -> Result<Response, Fault> {
        let job = self.embed(embed, Capability::EmbedSparse)?;
        self.respond(admitted, job, |texts| Ok(tei::embed_sparse_answer(&texts.sparse()))).await
    }

    /// `always_list`: whether the labels of a text that was not sent in a list are a list with one element,
    /// too.
    async fn answer_predict(
        &self,
        admitted: &mut Admitted,
        predict: Predict,
        always_list: bool,
    ) -> Result<Response, Fault> {
        let is_list = always_list || predict.inputs.is_list;
        let job = self.predict(predict)?;
        self.respond(admitted, job, move |texts| Ok(tei::predict_answer(&texts.labels(), is_list))).await
    }

    async fn answer_similarity(
        &self,
        admitted: &mut Admitted,
        call: SentenceSimilarity,
    ) -> Result<Response, Fault> {
        let job = self.similarity(call)?;
        let encoder = job.model.encoder();
        self.respond(admitted, job, move |texts| {
            Ok(tei::similarity_answer(&texts.scores(encoder.as_deref())?))
        })
        .await
    }

    async fn answer_root(
        &self,
        admitted: &mut Admitted,
        request: &Request<'_>,
        max: usize,
    ) -> Result<Response, Fault> {
        let models = self.models.clone();
        let task_of = move |name: Option<&str>| {
            let model = name.and_then(|name| models.named(name)).unwrap_or(models.first());
            match &model.kind {
                Kind::CrossEncoder(_) => tei::DefaultTask::Rerank,
                Kind::Classifier(_) => tei::DefaultTask::Predict,
                _ => match model.content() {
                    ContentType::Sparse { .. } => tei::DefaultTask::EmbedSparse,
                    _ => tei::DefaultTask::Embed,
                },
            }
        };
        // The clients of Hugging Face, which ask at `/`, read the labels of the first text from a list of
        // texts.
        let always_list = request.route.path == "/";
        match self.parse(&request.body, move |body| tei::root(body, task_of, max)).await? {
            tei::RootCall::Embed(call) => self.answer_embed(admitted, call).await,
            tei::RootCall::EmbedSparse(call) => self.answer_embed_sparse(admitted, call).await,
            tei::RootCall::Predict(call) => self.answer_predict(admitted, call, always_list).await,
            tei::RootCall::Similarity(call) => self.answer_similarity(admitted, call).await,
            tei::RootCall::Rerank(call) => self.rerank_in(admitted, call, Schema::Tei, "").await,
        }
    }

    async fn answer_rerank(
        &self,
        admitted: &mut Admitted,
        request: &Request<'_>,
        schema: Schema,
        max: usize,
    ) -> Answer {
        let call = self.parse(&request.body, move |body| Ok(rerank::rerank(body, schema, max))).await;
        let (call, schema) = call.map_err(|fault| (fault, schema))??;
        self.rerank_in(admitted, call, schema, request.id).await.map_err(|fault| (fault, schema))
    }

    async fn rerank_in(
        &self,
        admitted: &mut Admitted,
        call: Rerank,
        schema: Schema,
        id: &str,
    ) -> Result<Response, Fault> {
        let job = self.rerank(&call)?;
        let (encoder, model, id) = (job.model.encoder(), job.model.name.clone(), id.to_owned());
        self.respond(admitted, job, move |texts| {
            let scores = texts.scores(encoder.as_deref())?;
            let (documents, truncated) = (call.ranked(&scores), texts.truncated());
            Ok(match schema {
                Schema::Tei => tei::rerank_answer(&documents),
                _ => {
                    let (scored, tokens) = (scores.len(), texts.tokens());
                    let (id, model, documents, truncated) = (&*id, &*model, &*documents, &*truncated);
                    rerank::RerankAnswer { id, model, documents, scored, tokens, truncated }.body()
                }
            })
        })
        .await
    }

    async fn answer_openai(
        &self,
        admitted: &mut Admitted,
        body: &Arc<Vec<u8>>,
        max: usize,
    ) -> Result<Response, Fault> {
        let (embed, encoding) = self.parse(body, move |body| openai::embeddings(body, max)).await?;
        let job = self.embed(embed, Capability::Embed)?;
        let model = job.model.name.clone();
        self.respond(admitted, job, move |texts| {
            let (vectors, truncated) = (texts.dense(), texts.truncated());
            let (vectors, truncated, tokens) = (&*vectors, &*truncated, texts.tokens());
            Ok(openai::EmbeddingsAnswer { vectors, encoding, model: &model, tokens, truncated }.body())
        })
        .await
    }

    async fn answer_ollama(
        &self,
        admitted: &mut Admitted,
        request: &Request<'_>,
        max: usize,
    ) -> Result<Response, Fault> {
        let embed = self.parse(&request.body, move |body| ollama::embed(body, max)).await?;
        let asked = embed.model.clone();
        let job = self.embed(embed, Capability::Embed)?;
        let (model, since) = (asked.unwrap_or_else(|| job.model.name.clone()), request.since);
        self.respond(admitted, job, move |texts| {
            let (vectors, truncated) = (texts.dense(), texts.truncated());
            let (vectors, truncated, tokens) = (&*vectors, &*truncated, texts.tokens());
            let total_duration = nanoseconds(since.elapsed());
            let answer = ollama::EmbedAnswer {
                model: &model,
                vectors,
                total_duration,
                load_duration: 0,
                tokens,
                truncated,
            };
            Ok(answer.body())
        })
        .await
    }

    async fn answer_ollama_embeddings(
        &self,
        admitted: &mut Admitted,
        body: &Arc<Vec<u8>>,
    ) -> Result<Response, Fault> {
        let embed = self.parse(body, ollama::embeddings).await?;
        if embed.inputs.values.iter().all(String::is_empty) {
            return Ok(Response::plain(ollama::embedding_answer(&[], &[])));
        }
        let job = self.embed(embed, Capability::Embed)?;
        self.respond(admitted, job, |texts| {
            let (vectors, truncated) = (texts.dense(), texts.truncated());
            Ok(ollama::embedding_answer(vectors.first().copied().unwrap_or_default(), &truncated))
        })
        .await
    }

    async fn answer_task(
        &self,
        admitted: &mut Admitted,
        route: TaskRoute,
        request: &Request<'_>,
        max: usize,
    ) -> Result<Response, Fault> {
        let call = self.parse(&request.body, move |body| tasks::task(body, route, max)).await?;
        let TaskRouteOptions { top_k, output_dtype, dimensions, per_token, .. } = call.options;
        let job = self.task(route, call)?;
        let (mut content, width, format) = (job.content, job.model.token_width(), request.rows);
        match &mut content {
            ContentType::Vectors(vectors) => {
                vectors.dtype = output_dtype.unwrap_or(vectors.dtype);
                vectors.dimensions = dimensions.unwrap_or(vectors.dimensions);
                vectors.per_token |= per_token;
            }
            ContentType::Scores { ranked } => *ranked = top_k.is_some(),
            _ => {}
        }
        let response = self.respond(admitted, job, move |texts| {
            match (&mut content, width) {
                (ContentType::Vectors(vectors), None) if per_token => {
                    vectors.dimensions = texts.token_width()
                }
                _ => {}
            }
            texts.write_rows(&content, top_k, format)
        });
        let content_type = if format == RowFormat::Arrow { ARROW_TYPE } else { JSON_TYPE };
        Ok(Response { content_type, ..response.await? })
    }

    /// Parses a body: a large one on a worker, so that the thread of all connections is free.
    async fn parse<T: Send + 'static>(
        &self,
        body: &Arc<Vec<u8>>,
        parse: impl FnOnce(&[u8]) -> Result<T, Fault> + Send + 'static,
    ) -> Result<T, Fault> {
        if body.len() <= PARSED_BYTES {
            return parse(body);
        }
        let body = body.clone();
        self.run(move || parse(&body)).await
    }

    /// Asks for a job, whose ignored fields the response names.
    async fn respond(
        &self,
        admitted: &mut Admitted,
        mut job: Job<'_>,
        body: impl FnOnce(&Texts) -> Result<Vec<u8>, Fault> + Send + 'static,
    ) -> Result<Response, Fault> {
        admitted.grow(job.answer_bytes() + job.tokenizer_bytes())?;
        let ignored = std::mem::take(&mut job.ignored);
        Ok(Response { reply: self.ask(job, body).await?, ignored, content_type: JSON_TYPE })
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    duration.as_nanos().try_into().unwrap_or(u64::MAX)
}
