//! The routes: path and method, and the schema of their errors.

use std::borrow::Cow;

use hyper::Method;
use percent_encoding::percent_decode_str;

use super::schema::Schema;
use super::schema::tasks::TaskRoute;

/// A route, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Route {
    Embed,
    EmbedAll,
    EmbedSparse,
    Predict,
    Similarity,
    Tokenize,
    Decode,
    Info,
    Root,
    Rerank,
    OpenAiEmbeddings,
    OpenAiModels,
    OpenAiModel,
    OllamaEmbed,
    OllamaEmbeddings,
    OllamaTags,
    OllamaVersion,
    OllamaShow,
    Task(TaskRoute),
    Ready,
    Live,
    Metrics,
    OpenApi,
}

const GET: &Method = &Method::GET;
const POST: &Method = &Method::POST;

/// Paths with their route, method and schema. Health and metrics take part in no queue.
const ROUTES: &[(&str, Route, &Method, Schema)] = &[
    ("/embed", Route::Embed, POST, Schema::Tei),
    ("/embed_all", Route::EmbedAll, POST, Schema::Tei),
    ("/embed_sparse", Route::EmbedSparse, POST, Schema::Tei),
    ("/predict", Route::Predict, POST, Schema::Tei),
    ("/similarity", Route::Similarity, POST, Schema::Tei),
    ("/tokenize", Route::Tokenize, POST, Schema::Tei),
    ("/decode", Route::Decode, POST, Schema::Tei),
    ("/info", Route::Info, GET, Schema::Tei),
    ("/", Route::Root, POST, Schema::Tei),
    ("/invocations", Route::Root, POST, Schema::Tei),
    ("/rerank", Route::Rerank, POST, Schema::Tei),
    ("/v1/rerank", Route::Rerank, POST, Schema::Cohere),
    ("/v2/rerank", Route::Rerank, POST, Schema::Cohere),
    ("/v1/embeddings", Route::OpenAiEmbeddings, POST, Schema::OpenAi),
    ("/embeddings", Route::OpenAiEmbeddings, POST, Schema::OpenAi),
    ("/v1/models", Route::OpenAiModels, GET, Schema::OpenAi),
    ("/api/embed", Route::OllamaEmbed, POST, Schema::Ollama),
    ("/api/embeddings", Route::OllamaEmbeddings, POST, Schema::Ollama),
    ("/api/tags", Route::OllamaTags, GET, Schema::Ollama),
    ("/api/version", Route::OllamaVersion, GET, Schema::Ollama),
    ("/api/show", Route::OllamaShow, POST, Schema::Ollama),
    ("/tasks/embed", Route::Task(TaskRoute::Embed), POST, Schema::Plain),
    ("/tasks/rerank", Route::Task(TaskRoute::Rerank), POST, Schema::Plain),
    ("/tasks/classify", Route::Task(TaskRoute::Classify), POST, Schema::Plain),
    ("/tasks/tag", Route::Task(TaskRoute::Tag), POST, Schema::Plain),
    ("/tasks/fill", Route::Task(TaskRoute::Fill), POST, Schema::Plain),
    ("/tasks/answer", Route::Task(TaskRoute::Answer), POST, Schema::Plain),
    ("/health", Route::Ready, GET, Schema::Plain),
    ("/health/ready", Route::Ready, GET, Schema::Plain),
    ("/ping", Route::Ready, GET, Schema::Plain),
    ("/health/live", Route::Live, GET, Schema::Plain),
    ("/metrics", Route::Metrics, GET, Schema::Plain),
    ("/openapi.json", Route::OpenApi, GET, Schema::Plain),
];

/// What precedes the id of a model.
const MODEL: &str = "/v1/models/";

/// The route of a model, whose path begins so.
const MODEL_ROUTE: Matched =
    Matched { route: Route::OpenAiModel, method: GET, schema: Schema::OpenAi, path: MODEL };

/// A path that there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Matched {
    pub route: Route,
    pub method: &'static Method,
    pub schema: Schema,
    /// The path as in the table, for metrics.
    pub path: &'static str,
}

impl Matched {
    /// The route of a path, which may end with a slash.
    pub(super) fn of(path: &str) -> Option<Self> {
        let path = match path.strip_suffix('/') {
            Some("") | None => path,
            Some(path) => path,
        };
        if path.len() > MODEL.len() && path.starts_with(MODEL) {
            return Some(MODEL_ROUTE);
        }
        all().find(|known| known.path == path && known.route != Route::OpenAiModel)
    }

    /// The name of the model in the path, which may be percent-encoded: OpenAI's clients send the slash of a
    /// hub id as `%2F`.
    pub(super) fn model(path: &str) -> Cow<'_, str> {
        let name = path.strip_prefix(MODEL).unwrap_or_default();
        percent_decode_str(name.strip_suffix('/').unwrap_or(name)).decode_utf8_lossy()
    }

    /// The value of the header `Allow`.
    pub(super) fn allowed(&self) -> &'static str {
        if self.method == GET { "GET, HEAD" } else { "POST" }
    }

    /// Whether the route has an answer whatever the state of the models, without a place in the queue.
    pub(super) fn is_page(&self) -> bool {
        matches!(self.route, Route::Ready | Route::Live | Route::Metrics | Route::OpenApi)
    }

    /// Whether the route takes texts, which need a model and memory.
    pub(super) fn takes_texts(&self) -> bool {
        self.method == POST && self.route != Route::OllamaShow
    }

    /// Whether the route has an answer without a key: health, and what clients of text-embeddings-inference
    /// ask for without one.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.route, Route::Ready | Route::Live | Route::Info)
    }
}

/// The schema of errors of a path that there is not: that of the routes with the same beginning.
pub(super) fn schema_of(path: &str) -> Schema {
    match () {
        () if path.starts_with("/v1/rerank") || path.starts_with("/v2/") => Schema::Cohere,
        () if path.starts_with("/v1/") => Schema::OpenAi,
        () if path.starts_with("/api/") => Schema::Ollama,
        () => Schema::Plain,
    }
}

/// All routes.
pub(super) fn all() -> impl Iterator<Item = Matched> {
    let routes = ROUTES.iter().map(|&(path, route, method, schema)| Matched { route, method, schema, path });
    routes.chain([MODEL_ROUTE])
}

/// The paths of all routes, for metrics.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    all().map(|matched| matched.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_may_end_with_a_slash() {
        let route = |path| Matched::of(path).map(|matched| matched.route);
        assert_eq!(route("/"), Some(Route::Root));
        assert_eq!(route("/embed/"), Some(Route::Embed));
        assert_eq!(route("/v1/models/"), Some(Route::OpenAiModels));
        assert_eq!(route("/v1/models/BAAI/bge-m3"), Some(Route::OpenAiModel));
        for path in ["/v1/models/BAAI/bge-m3", "/v1/models/BAAI%2Fbge-m3", "/v1/models/BAAI/bge-m3/"] {
            assert_eq!(Matched::model(path), "BAAI/bge-m3", "{path}");
        }
        assert_eq!(route("/embedding"), None);
        assert_eq!(schema_of("/v1/chat/completions"), Schema::OpenAi);
    }
}
