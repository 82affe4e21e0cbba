//! `/openapi.json`: what each route takes and answers. Requests and answers are in `schemas.json`; paths,
//! methods and errors are those of the table of routes.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use hyper::Method;
use serde_json::{Map, Value, json};

use super::answer::{ARROW_TYPE, JSON_TYPE};
use super::route::{self, Matched, Route};
use super::schema::tasks::TaskRoute;
use super::schema::{FaultKind, Schema};

/// The schemas of requests and answers by their names.
const SCHEMAS: &str = include_str!("schemas.json");

/// The type of the page of metrics.
pub(super) const METRICS_TYPE: &str = "text/plain; version=0.0.4";

/// The document, as JSON.
pub(super) fn document() -> &'static [u8] {
    static DOCUMENT: LazyLock<Vec<u8>> = LazyLock::new(|| build().to_string().into_bytes());
    &DOCUMENT
}

/// What a route does.
struct Operation {
    summary: &'static str,
    /// The name of the schema of its request.
    request: Option<&'static str>,
    /// The name of the schema of its answer.
    answer: &'static str,
}

fn operation(route: Route) -> Operation {
    let get = |summary, answer| Operation { summary, request: None, answer };
    let post = |summary, request, answer| Operation { summary, request: Some(request), answer };
    match route {
        Route::Embed => post("Vectors of texts", "EmbedRequest", "Vectors"),
        Route::EmbedAll => post("Vectors of the tokens of texts", "EmbedOutputsRequest", "TokenVectors"),
        Route::EmbedSparse => post("Sparse vectors of texts", "EmbedOutputsRequest", "SparseVectors"),
        Route::Predict => post("Labels of texts or pairs", "PredictRequest", "Predictions"),
        Route::Similarity => post("Similarities of a text with others", "SimilarityRequest", "Similarities"),
        Route::Tokenize => post("Tokens of texts", "TokenizeRequest", "Tokens"),
        Route::Decode => post("Texts of token ids", "DecodeRequest", "Decoded"),
        Route::Info => get("The first model, and the limits of the server", "Info"),
        Route::Root => post("The task of the first model", "RootRequest", "RootAnswer"),
        Route::Rerank => post("Scores of texts for a query", "AnyRerankRequest", "AnyRerankAnswer"),
        Route::OpenAiEmbeddings => post("Vectors of texts", "EmbeddingsRequest", "Embeddings"),
        Route::OpenAiModels => get("The models", "ListedModels"),
        Route::OpenAiModel => get("A model", "ListedModel"),
        Route::OllamaEmbed => post("Vectors of texts", "OllamaEmbedRequest", "OllamaEmbedAnswer"),
        Route::OllamaEmbeddings => {
            post("The vector of a text", "OllamaEmbeddingsRequest", "OllamaEmbeddingsAnswer")
        }
        Route::OllamaTags => get("The models", "OllamaModels"),
        Route::OllamaVersion => get("The version of the server", "OllamaVersion"),
        Route::OllamaShow => post("A model", "OllamaShowRequest", "OllamaShowAnswer"),
        Route::Task(TaskRoute::Embed) => post("Rows of sconce embed", "EmbedTaskRequest", "EmbedRows"),
        Route::Task(TaskRoute::Rerank) => post("Rows of sconce rerank", "RerankTaskRequest", "RerankRows"),
        Route::Task(TaskRoute::Classify) => {
            post("Rows of sconce classify", "ClassifyTaskRequest", "ClassifyRows")
        }
        Route::Task(TaskRoute::Tag) => post("Rows of sconce tag", "TagTaskRequest", "TagRows"),
        Route::Task(TaskRoute::Fill) => post("Rows of sconce fill", "FillTaskRequest", "FillRows"),
        Route::Task(TaskRoute::Answer) => post("Rows of sconce answer", "AnswerTaskRequest", "AnswerRows"),
        Route::Ready => get("Whether requests are answered", "Empty"),
        Route::Live => get("Whether the server runs", "Empty"),
        Route::Metrics => get("Metrics, as Prometheus reads them", "Metrics"),
        Route::OpenApi => get("This document", "Document"),
    }
}

/// The kinds of faults that a request to a route can have, if its path and method are those of the route.
fn fault_kinds(matched: &Matched) -> Vec<FaultKind> {
    use FaultKind as Kind;
    let mut kinds = vec![Kind::Origin];
    if !matched.is_open() {
        kinds.push(Kind::Unauthorized);
    }
    if matched.route == Route::Ready {
        kinds.push(Kind::NotReady);
    }
    if matched.is_page() {
        return kinds;
    }
    kinds.extend([Kind::NotReady, Kind::BodyTooLarge, Kind::Overloaded, Kind::MalformedJson]);
    kinds.extend([Kind::SlowBody, Kind::Timeout, Kind::Internal]);
    if *matched.method == Method::POST {
        kinds.extend([Kind::Invalid, Kind::MediaType]);
    }
    if matched.takes_texts() {
        kinds.extend([Kind::Empty, Kind::Text, Kind::TooLong]);
    }
    if matched.takes_texts() || matches!(matched.route, Route::OpenAiModel | Route::OllamaShow) {
        kinds.push(Kind::Model);
    }
    kinds
}

/// The schemas of the errors of a route: a rerank route has that of its request.
fn error_schemas(matched: &Matched) -> &'static [Schema] {
    match (matched.route, matched.schema) {
        (Route::Rerank, _) => &[Schema::Tei, Schema::Cohere],
        (_, Schema::Tei) => &[Schema::Tei],
        (_, Schema::OpenAi) => &[Schema::OpenAi],
        (_, Schema::Cohere) => &[Schema::Cohere],
        (_, Schema::Ollama) => &[Schema::Ollama],
        (_, Schema::Plain) => &[Schema::Plain],
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The name of the schema of an error.
fn error_name(schema: Schema) -> &'static str {
    match schema {
        Schema::Tei => "TeiError",
        Schema::OpenAi => "OpenAiError",
        Schema::Cohere => "CohereError",
        Schema::Ollama | Schema::Plain => "PlainError",
    }
}

/// The responses of a route by their status.
fn responses(matched: &Matched, answer: &str) -> Map<String, Value> {
    let is_text = matched.route == Route::Metrics;
    let content_type = if is_text { METRICS_TYPE } else { JSON_TYPE };
    let mut content = json!({ content_type: { "schema": reference(answer) } });
    if let Route::Task(_) = matched.route {
        // Rows as an Arrow IPC stream, for clients that accept only that.
        content[ARROW_TYPE] = json!({});
    }
    let ok = json!({ "description": "The answer", "content": content });
    let mut responses = Map::from_iter([("200".to_owned(), ok)]);
    let mut errors: BTreeMap<u16, (Vec<&str>, Vec<Value>)> = BTreeMap::new();
    for kind in fault_kinds(matched) {
        for schema in error_schemas(matched) {
            let (reasons, schemas) = errors.entry(kind.status(*schema)).or_default();
            let (reason, schema) = (kind.reason(), reference(error_name(*schema)));
            if !reasons.contains(&reason) {
                reasons.push(reason);
            }
            if !schemas.contains(&schema) {
                schemas.push(schema);
            }
        }
    }
    for (status, (reasons, mut schemas)) in errors {
        let schema = if schemas.len() == 1 { schemas.remove(0) } else { json!({ "anyOf": schemas }) };
        let content = json!({ "application/json": { "schema": schema } });
        let error = json!({ "description": reasons.join(", or "), "content": content });
        responses.insert(status.to_string(), error);
    }
    responses
}

fn described(matched: &Matched, path: &str) -> Value {
    let Operation { summary, request, answer } = operation(matched.route);
    let method = matched.method.as_str().to_ascii_lowercase();
    let words = path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let id = [&*method].into_iter().chain(words).collect::<Vec<_>>().join("_");
    let mut described = json!({ "operationId": id, "summary": summary });
    if path.contains("{id}") {
        let schema = json!({ "type": "string", "minLength": 1 });
        described["parameters"] = json!([{ "name": "id", "in": "path", "required": true, "schema": schema }]);
    }
    if let Some(request) = request {
        let content = json!({ "application/json": { "schema": reference(request) } });
        described["requestBody"] = json!({ "required": true, "content": content });
    }
    if matched.is_open() {
        described["security"] = json!([]);
    }
    described["responses"] = responses(matched, answer).into();
    json!({ method: described })
}

/// The document as a value.
fn build() -> Value {
    let schemas: Value = serde_json::from_str(SCHEMAS).expect("schemas.json is JSON");
    let mut paths = Map::new();
    for matched in route::all() {
        let path = match matched.route {
            Route::OpenAiModel => format!("{}{{id}}", matched.path),
            _ => matched.path.to_owned(),
        };
        let described = described(&matched, &path);
        paths.insert(path, described);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "sconce serve",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Fields that a route does not have are ignored, and named in the header x-ignored-fields; null is absent. \
                            Names of values may be in upper or lower case.",
        },
        "servers": [{ "url": "/" }],
        "security": [{}, { "key": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of --api-key-file or SCONCE_API_KEY, if the server was started with keys",
                },
            },
            "schemas": schemas,
        },
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names of the schemas that a value refers to.
    fn references(value: &Value, names: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(Value::String(path)) = fields.get("$ref") {
                    names.insert(path.strip_prefix("#/components/schemas/").unwrap().to_owned());
                }
                fields.values().for_each(|value| references(value, names));
            }
            Value::Array(values) => values.iter().for_each(|value| references(value, names)),
            _ => {}
        }
    }

    #[test]
    fn schemas_are_there_and_used() {
        let document = build();
        let mut used = BTreeSet::new();
        references(&document, &mut used);
        let schemas = document["components"]["schemas"].as_object().unwrap();
        assert_eq!(used, schemas.keys().cloned().collect());
    }

    #[test]
    fn statuses_are_those_of_the_schemas_of_a_route() {
        let document = build();
        let statuses = |path: &str, method: &str| -> Vec<String> {
            document["paths"][path][method]["responses"].as_object().unwrap().keys().cloned().collect()
        };
        for (path, method, expected) in [
            ("/embed", "post", "200 400 401 403 404 408 413 415 422 429 500 503 504"),
            ("/v1/embeddings", "post", "200 400 401 403 404 408 413 415 429 500 503 504"),
            ("/v1/rerank", "post", "200 400 401 403 404 408 413 415 422 429 500 503 504"),
            ("/api/embed", "post", "200 400 401 403 404 408 413 415 429 500 503 504"),
            ("/v1/models/{id}", "get", "200 400 401 403 404 408 413 429 500 503 504"),
            ("/info", "get", "200 400 403 408 413 429 500 503 504"),
            ("/health", "get", "200 403 503"),
            ("/health/live", "get", "200 403"),
            ("/openapi.json", "get", "200 401 403"),
        ] {
            assert_eq!(statuses(path, method), expected.split(' ').collect::<Vec<_>>(), "{path}");
        }
        let error = &document["paths"]["/rerank"]["post"]["responses"]["400"]["content"]["application/json"];
        let expected = json!({ "anyOf": [reference("TeiError"), reference("CohereError")] });
        assert_eq!(error["schema"], expected);
    }
}
