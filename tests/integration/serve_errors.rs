//! `sconce serve`: what is refused, in the schema of each route, and what answers say about the server.
#![cfg(all(unix, feature = "serve"))]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;

use serde_json::{Value, json};

use crate::support::serving::{Answer, Server, read_answer, request_bytes, serve};
use crate::support::{assert_fails, fixture, stderr};

const DENSE: &str = "bert-tiny";
const CROSS_ENCODER: &str = "heads/cross-encoder-bert";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Schema {
    Tei,
    OpenAi,
    Cohere,
    Plain,
}

/// Every route with its method, the schema of its errors, and a body that it answers.
fn routes() -> Vec<(&'static str, &'static str, Schema, Value)> {
    use Schema::{Cohere, OpenAi, Plain, Tei};
    let inputs = json!({ "inputs": "the lamp" });
    let rank = json!({ "query": "the lamp", "documents": ["a"] });
    let similarity = json!({ "inputs": { "source_sentence": "a", "sentences": ["b"] } });
    vec![
        ("POST", "/embed", Tei, inputs.clone()),
        ("POST", "/embed_all", Tei, inputs.clone()),
        ("POST", "/embed_sparse", Tei, inputs.clone()),
        ("POST", "/predict", Tei, inputs.clone()),
        ("POST", "/similarity", Tei, similarity),
        ("POST", "/tokenize", Tei, inputs.clone()),
        ("POST", "/decode", Tei, json!({ "ids": [5] })),
        ("POST", "/", Tei, inputs.clone()),
        ("POST", "/invocations", Tei, inputs),
        ("POST", "/rerank", Tei, json!({ "query": "the lamp", "texts": ["a"] })),
        ("POST", "/v1/rerank", Cohere, rank.clone()),
        ("POST", "/v2/rerank", Cohere, rank),
        ("POST", "/v1/embeddings", OpenAi, json!({ "input": "a" })),
        ("POST", "/embeddings", OpenAi, json!({ "input": "a" })),
        ("GET", "/v1/models", OpenAi, Value::Null),
        ("GET", "/v1/models/any", OpenAi, Value::Null),
        ("POST", "/api/embed", Plain, json!({ "input": "a" })),
        ("POST", "/api/embeddings", Plain, json!({ "prompt": "a" })),
        ("GET", "/api/tags", Plain, Value::Null),
        ("GET", "/api/version", Plain, Value::Null),
        ("POST", "/api/show", Plain, json!({})),
        ("POST", "/tasks/embed", Plain, json!({ "texts": "a" })),
        ("POST", "/tasks/rerank", Plain, json!({ "texts": "a", "query": "b" })),
        ("POST", "/tasks/classify", Plain, json!({ "texts": "a" })),
        ("POST", "/tasks/tag", Plain, json!({ "texts": "a" })),
        ("POST", "/tasks/fill", Plain, json!({ "texts": "a" })),
        ("POST", "/tasks/answer", Plain, json!({ "texts": "a", "question": "b" })),
        ("GET", "/metrics", Plain, Value::Null),
        ("GET", "/openapi.json", Plain, Value::Null),
    ]
}

/// Routes that answer without a key.
const OPEN: [&str; 5] = ["/info", "/health", "/health/ready", "/ping", "/health/live"];

#[test]
fn the_document_has_all_routes() {
    let document = Server::shared(&[DENSE], &[]).get("/openapi.json").ok();
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let described: BTreeSet<(String, String)> = (document["paths"].as_object().unwrap().iter())
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(|method| (method.to_uppercase(), path.clone()))
        })
        .collect();
    let open = OPEN.iter().map(|path| ("GET", *path));
    let expected = routes().into_iter().map(|(method, path, ..)| (method, path)).chain(open);
    let expected = expected.map(|(method, path)| (method.into(), path.replace("/any", "/{id}")));
    assert_eq!(described, expected.collect());
}

/// The message of an error, after a check of its status and its body.
#[track_caller]
fn message(answer: &Answer, status: u16, schema: Schema) -> String {
    assert_eq!(answer.status, status, "{}", answer.body);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let body = answer.json();
    let keys = |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    let (message, expected) = match schema {
        Schema::Tei => (&body["error"], &["error", "error_type"][..]),
        Schema::OpenAi => {
            assert_eq!(keys(&body), ["error"]);
            (&body["error"]["message"], &["message", "type", "param", "code"][..])
        }
        Schema::Cohere => (&body["message"], &["message"][..]),
        Schema::Plain => (&body["error"], &["error"][..]),
    };
    assert_eq!(keys(if schema == Schema::OpenAi { &body["error"] } else { &body }), expected);
    let message = message.as_str().expect("a sentence");
    assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
    assert_eq!(answer.header("retry-after").is_some(), [429, 503].contains(&status), "{message}");
    message.to_owned()
}

const JSON: (&str, &str) = ("content-type", "application/json");

fn send(server: &Server, method: &str, path: &str, body: &Value, headers: &[(&str, &str)]) -> Answer {
    match method {
        "GET" => server.get_with(path, headers),
        _ => server.post_with(path, &body.to_string(), &[&[JSON], headers].concat()),
    }
}

#[test]
fn a_request_needs_one_of_the_keys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    fs::write(&file, "first-key\n\n  second key \r\n").unwrap();
    let mut command = serve(&[DENSE], &["--api-key-file", file.to_str().unwrap()]);
    command.env("SCONCE_API_KEY", "third-key");
    let server = Server::spawn(command);
    let bearer = |key: &str| format!("Bearer {key}");
    for (method, path, schema, body) in routes() {
        for key in [None, Some(""), Some("first-ke"), Some("first-key2"), Some("FIRST-KEY"), Some("second")] {
            let value = key.map(bearer);
            let headers: Vec<(&str, &str)> = value.iter().map(|value| ("authorization", &**value)).collect();
            let answer = send(&server, method, path, &body, &headers);
            assert!(message(&answer, 401, schema).contains("Authorization: Bearer"), "{path}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
        }
        for value in ["Bearer first-key", "bearer second key", "Bearer  third-key", "first-key"] {
            let answer = send(&server, method, path, &body, &[("authorization", value)]);
            assert_ne!(answer.status, 401, "{path} {value}");
        }
    }
    for path in OPEN {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    message(&server.get("/v1/nowhere"), 401, Schema::OpenAi);
    let log = server.stop();
    assert!(!log.contains("first-key") && !log.contains("third-key"), "{log}");

    let server = Server::shared(&[DENSE], &[]);
    let body = json!({ "input": "a" });
    assert_eq!(send(&server, "POST", "/v1/embeddings", &body, &[("authorization", "Bearer ")]).status, 200);
    fs::write(&file, " \n").unwrap();
    let output = serve(&[DENSE], &["--api-key-file", file.to_str().unwrap()]).output().unwrap();
    assert_fails(&output, 1, &["--api-key-file", "no keys"]);
    let output = serve(&[DENSE], &["--api-key-file", "/nonexistent/keys"]).output().unwrap();
    assert_fails(&output, 1, &["/nonexistent/keys", "cannot be read"]);
}

#[test]
fn unknown_routes_and_methods_are_told() {
    let server = Server::shared(&[DENSE], &[]);
    for (path, schema) in [
        ("/embeds", Schema::Plain),
        ("/v1/chat/completions", Schema::OpenAi),
        ("/v2/embed", Schema::Cohere),
        ("/api/generate", Schema::Plain),
        ("/%00%ff?the=lamp", Schema::Plain),
    ] {
        let found = message(&server.post(path, &json!({})), 404, schema);
        assert!(found.contains("/openapi.json"), "{found}");
        assert!(found.contains(path.split('?').next().unwrap()), "{found}");
    }
    for (method, path, schema, body) in routes() {
        let other = if method == "GET" { "POST" } else { "GET" };
        let answer = send(&server, other, path, &body, &[]);
        assert!(message(&answer, 405, schema).contains(&format!("send {method}")), "{path}");
        assert!(answer.header("allow").unwrap().contains(method), "{path}");
    }
}

#[test]
fn pages_of_other_origins_are_refused() {
    let server = Server::shared(&[DENSE], &[]);
    let own = format!("http://{}", server.address);
    for (method, path, schema, body) in routes() {
        for origin in ["http://example.org", "null", "http://127.0.0.1", "http://127.0.0.1:1", "", &own[7..]]
        {
            // The server closes a connection whose body it has not read, which must not be used again.
            let headers = [("origin", origin), ("connection", "close")];
            let answer = send(&server, method, path, &body, &headers);
            assert!(message(&answer, 403, schema).contains("origin"), "{path} {origin}");
        }
    }
    let answer = send(&server, "POST", "/embed", &json!({ "inputs": "a" }), &[("origin", &own)]);
    assert_eq!(answer.status, 200);
}

#[test]
fn pages_of_allowed_origins_are_answered() {
    let server = Server::start(
        &[DENSE],
        &["--cors-allow-origin", "https://app.example", "--max-concurrent-requests", "1"],
    );
    let app = ("origin", "https://app.example");
    let body = json!({ "inputs": "a" });
    for answer in [
        send(&server, "POST", "/embed", &body, &[app]),
        send(&server, "POST", "/embed", &json!({}), &[app]),
        server.get_with("/nowhere", &[app]),
    ] {
        assert_eq!(answer.header("access-control-allow-origin"), Some(app.1), "{}", answer.status);
        assert!(answer.header("access-control-expose-headers").unwrap().contains("x-truncated"));
    }
    for origin in ["https://app.example.org", "https://app.exampl", "http://app.example", "null"] {
        let answer = send(&server, "POST", "/embed", &body, &[("origin", origin)]);
        message(&answer, 403, Schema::Tei);
        assert_eq!(answer.header("access-control-allow-origin"), None, "{origin}");
    }
    let preflight = |origin: &str| {
        let request = format!(
            "OPTIONS /embed HTTP/1.1\r\nHost: x\r\nOrigin: {origin}\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\r\n"
        );
        server.raw(request.as_bytes())
    };
    let allowed = preflight(app.1);
    assert_eq!((allowed.status, allowed.header("access-control-allow-origin")), (204, Some(app.1)));
    assert!(allowed.header("access-control-allow-headers").unwrap().contains("authorization"));
    let refused = preflight("https://other.example");
    assert!(refused.status >= 400 && refused.header("access-control-allow-origin").is_none());
}

/// A request whose body is in chunks of this size.
fn chunked(path: &str, body: &str, size: usize) -> Vec<u8> {
    let mut request =
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n");
    for chunk in body.as_bytes().chunks(size) {
        let chunk = std::str::from_utf8(chunk).unwrap();
        request += &format!("{:x}\r\n{chunk}\r\n", chunk.len());
    }
    (request + "0\r\n\r\n").into_bytes()
}

#[test]
fn bodies_over_the_limit_are_refused() {
    const LIMIT: usize = 1000;
    let server = Server::start(&[DENSE], &["--payload-limit", "1000B"]);
    let padded = |body: &Value, length: usize| {
        let body = body.to_string();
        format!("{body}{}", " ".repeat(length - body.len()))
    };
    for (method, path, schema, body) in routes() {
        if method == "GET" {
            continue;
        }
        let fits = padded(&body, LIMIT);
        let (declared, whole) =
            (server.raw(&request_bytes(path, &fits)), server.raw(&chunked(path, &fits, 300)));
        assert!(declared.status < 413 && declared.status == whole.status, "{path} {}", declared.body);
        let over = padded(&body, LIMIT + 1);
        for answer in [
            server.raw(&request_bytes(path, &over)),
            server.raw(&chunked(path, &over, 300)),
            // Refused by its head: no byte of the body is sent.
            server.raw(&request_bytes(path, &over)[..request_bytes(path, &over).len() - over.len()]),
        ] {
            let found = message(&answer, 413, schema);
            assert!(found.contains("1000 bytes") && found.contains("--payload-limit"), "{found}");
        }
    }
    let huge = "POST /embed HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n";
    assert_eq!(server.raw(huge.as_bytes()).status / 100, 4);
    server.await_metric("sconce_requests_in_flight", |requests| requests == 0.0);
    assert_eq!(server.metric("sconce_bytes_in_flight"), 0.0);
}

#[test]
fn bodies_of_another_type_are_refused() {
    let server = Server::shared(&[DENSE], &[]);
    for (method, path, schema, body) in routes() {
        if method == "GET" || path == "/api/show" {
            continue;
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"] {
            let answer = server.post_with(path, &body.to_string(), &[("content-type", kind)]);
            match path.starts_with("/api/") {
                true => assert_eq!(answer.status, 200, "{path}"),
                false => assert!(message(&answer, 415, schema).contains("Content-Type: application/json")),
            }
        }
    }
    for kind in ["application/json; charset=utf-8", "Application/JSON", "application/ld+json"] {
        let answer = server.post_with("/embed", r#"{"inputs":"a"}"#, &[("content-type", kind)]);
        assert_eq!(answer.status, 200, "{kind}");
    }
    for (method, path, schema, body) in routes().into_iter().filter(|(method, ..)| *method == "POST") {
        let answer =
            send(&server, method, path, &body, &[("content-encoding", "GZip"), ("connection", "close")]);
        let found = message(&answer, 415, schema);
        assert!(found.contains("\"GZip\"") && found.contains("send it uncompressed"), "{path}: {found}");
    }
    let body = json!({ "inputs": "a" });
    assert_eq!(send(&server, "POST", "/embed", &body, &[("content-encoding", "Identity")]).status, 200);
    let head = "POST /embed HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 14\r\n\r\n";
    assert_eq!(server.raw(format!("{head}{{\"inputs\":\"a\"}}").as_bytes()).status, 200, "no type is JSON");
}

#[test]
fn fields_that_cannot_be_used_are_named() {
    let server = Server::shared(&[DENSE], &["--max-client-batch-size", "3"]);
    for (path, body, status, part) in [
        ("/embed", json!({}), 422, "inputs is missing"),
        ("/embed", json!({ "inputs": null }), 422, "inputs is missing"),
        ("/embed", json!({ "inputs": [] }), 400, "inputs is an empty list"),
        ("/embed", json!({ "inputs": ["a", 1] }), 422, "inputs[1] is a number"),
        ("/embed", json!({ "inputs": ["a", ["b"]] }), 422, "inputs[1] is an array"),
        ("/embed", json!({ "inputs": ["a", "b", "c", "d"] }), 422, "--max-client-batch-size"),
        (
            "/embed",
            json!({ "inputs": "a", "dimensions": 0 }),
            422,
            "dimensions is 0, but the model's vectors have 36",
        ),
        (
            "/v1/embeddings",
            json!({ "input": "a", "dimensions": 0 }),
            400,
            "dimensions is 0, but the model's vectors have 36",
        ),
        ("/api/embed", json!({ "input": "a", "dimensions": 0 }), 400, "pass a number from 1 to 36"),
        (
            "/tasks/embed",
            json!({ "texts": "a", "options": { "dimensions": 0 } }),
            400,
            "options.dimensions is 0, but the model's vectors have 36",
        ),
        (
            "/tasks/rerank",
            json!({ "texts": "a", "query": "b", "options": { "prompt": "p" } }),
            400,
            "options.prompt needs a cross-encoder",
        ),
        (
            "/tasks/rerank",
            json!({ "texts": "a", "query": "b", "options": { "raw": true } }),
            400,
            "options.raw needs a cross-encoder",
        ),
        ("/embed", json!({ "inputs": "a", "dimensions": 37 }), 422, "dimensions 37 exceeds the 36"),
        ("/embed", json!({ "inputs": "a", "normalize": "yes" }), 422, "normalize is a string"),
        ("/embed", json!({ "inputs": "a", "prompt_name": "essay" }), 422, "prompt_name is \"essay\""),
        (
            "/embed",
            json!({ "inputs": "a", "truncation_direction": "up" }),
            422,
            "truncation_direction is \"up\"",
        ),
        ("/embed", json!([1]), 400, "the body is an array"),
        ("/v1/embeddings", json!({ "input": [[1, 2], [3]] }), 400, "check_embedding_ctx_length=False"),
        ("/v1/embeddings", json!({ "input": [1, 2] }), 400, "check_embedding_ctx_length=False"),
        ("/v1/embeddings", json!({ "input": [] }), 400, "input is an empty list"),
        (
            "/v1/embeddings",
            json!({ "input": "a", "encoding_format": "binary" }),
            400,
            "encoding_format is \"binary\"",
        ),
        (
            "/v1/embeddings",
            json!({ "input": "a", "dimensions": 1536 }),
            400,
            "dimensions 1536 exceeds the 36",
        ),
        ("/v1/rerank", json!({ "documents": ["a"] }), 400, "query is missing"),
        ("/v1/rerank", json!({ "query": "a", "documents": [] }), 400, "documents is an empty list"),
        ("/v2/rerank", json!({ "query": "a", "documents": ["a"], "top_n": 0 }), 400, "top_n is 0"),
        ("/rerank", json!({ "query": "a", "texts": [null] }), 422, "texts[0] is null"),
        ("/api/embed", json!({ "input": 5 }), 400, "input is a number"),
        (
            "/similarity",
            json!({ "inputs": { "sentences": ["a"] } }),
            422,
            "inputs.source_sentence is missing",
        ),
        ("/tokenize", json!({ "inputs": 1 }), 422, "inputs is a number"),
        ("/decode", json!({ "ids": ["a"] }), 422, "ids[0]"),
        (
            "/tasks/embed",
            json!({ "texts": "a", "options": { "dimensions": 37 } }),
            400,
            "options.dimensions 37 exceeds the 36",
        ),
        ("/embed_sparse", json!({ "inputs": "a" }), 404, "a sparse encoder"),
        ("/predict", json!({ "inputs": "a" }), 404, "a text classifier"),
    ] {
        let schema = match path {
            "/v1/embeddings" => Schema::OpenAi,
            "/api/embed" | "/tasks/embed" | "/tasks/rerank" => Schema::Plain,
            path if path.ends_with("/rerank") && path != "/rerank" => Schema::Cohere,
            _ => Schema::Tei,
        };
        let found = message(&server.post(path, &body), status, schema);
        assert!(found.contains(part), "{path} {body}: {found}");
    }
    for (body, part) in [
        ("", "the body is empty"),
        ("{\"inputs\": \"a\"", "not valid JSON"),
        ("{\"inputs\": NaN}", "NaN"),
        ("{'inputs': 'a'}", "Python dict"),
        ("{\"inputs\": \"a\"} x", "trailing characters"),
    ] {
        let found = message(&server.post_with("/embed", body, &[JSON]), 400, Schema::Tei);
        assert!(found.contains(part), "{body}: {found}");
    }
    let found =
        message(&server.post_with("/embed", r#"{"inputs":["a","\ud83d"]}"#, &[JSON]), 422, Schema::Tei);
    assert!(found.contains("inputs[1]") && found.contains("half of a character"), "{found}");
    let head =
        "POST /embed HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 14\r\n\r\n{\"inputs\":\"";
    let answer = server.raw(&[head.as_bytes(), b"\xff\"}"].concat());
    assert!(message(&answer, 400, Schema::Tei).contains("not UTF-8 at byte 11"));
    for deep in [
        "[".repeat(1 << 20),
        "{\"a\":".repeat(1 << 18),
        format!("{}{}", "[".repeat(1 << 19), "]".repeat(1 << 19)),
    ] {
        let answer = server.post_with("/embed", &format!("{{\"inputs\":{deep}}}"), &[JSON]);
        assert!([400, 422].contains(&answer.status), "{}", answer.status);
    }
    let deep = format!("{{\"inputs\":\"a\",\"deep\":{}{}}}", "[".repeat(1 << 19), "]".repeat(1 << 19));
    let answer = server.post_with("/embed", &deep, &[JSON]);
    assert_eq!((answer.status, answer.header("x-ignored-fields")), (200, Some("deep")));
}

#[test]
fn requests_over_the_limit_are_refused_at_once() {
    let server = Server::start(&[DENSE], &["--max-concurrent-requests", "1"]);
    let request = request_bytes("/embed", r#"{"inputs":"the lamp"}"#);
    let mut held = server.connect();
    held.write_all(&request[..request.len() - 5]).unwrap();
    server.await_metric("sconce_requests_in_flight", |requests| requests == 1.0);
    for (method, path, schema, body) in routes() {
        if method == "GET" || path == "/api/show" {
            continue;
        }
        let answer = send(&server, method, path, &body, &[]);
        assert!(message(&answer, 429, schema).contains("send fewer at once"), "{path}");
    }
    for path in ["/health", "/health/live", "/metrics", "/v1/models", "/info", "/api/tags", "/api/version"] {
        assert_eq!(server.get(path).status, 200, "{path}");
    }
    held.write_all(&request[request.len() - 5..]).unwrap();
    assert_eq!(read_answer(&mut held).status, 200);
    assert_eq!(server.post("/embed", &json!({ "inputs": "a" })).status, 200);
}

#[test]
fn requests_name_their_model() {
    let ranker = format!("ranker={CROSS_ENCODER}");
    let server = Server::start(&["small=bert-tiny", &ranker], &[]);
    let names: Vec<Value> = server.get("/v1/models").ok()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].clone())
        .collect();
    assert_eq!(names, ["small", "ranker"]);
    let vector = server.post("/embed", &json!({ "inputs": "the lamp" })).ok();
    for name in ["small", "small:latest", "text-embedding-3-small"] {
        let found = server.post("/v1/embeddings", &json!({ "input": "the lamp", "model": name })).ok();
        assert_eq!(found["data"][0]["embedding"], vector[0], "{name}: the only embedding model");
    }
    let rank = |model: Value| {
        server.post("/v1/rerank", &json!({ "query": "a", "documents": ["the lamp", "wick"], "model": model }))
    };
    let by_default = rank(Value::Null).ok();
    assert_eq!(by_default["model"], "ranker", "a cross-encoder before an embedding model");
    assert_eq!(by_default["results"], rank(json!("ranker")).ok()["results"]);
    let other = rank(json!("small")).ok();
    assert_ne!(by_default["results"], other["results"]);
    assert_eq!(other["model"], "small");
    assert_eq!(rank(json!("rerank-v3.5")).ok()["model"], "ranker", "the only model that was trained to rank");
    let found = message(&server.get("/v1/models/other"), 404, Schema::OpenAi);
    assert!(found.contains("small, ranker"), "{found}");
    assert_eq!(server.get("/v1/models/small").ok()["id"], "small");
    server.stop();

    let server = Server::start(&["bert/tiny=bert-tiny", "other=roberta"], &[]);
    for path in ["/v1/models/bert/tiny", "/v1/models/bert%2Ftiny", "/v1/models/bert%2ftiny/"] {
        assert_eq!(server.get(path).ok()["id"], "bert/tiny", "{path}");
    }
    let answer = server.post("/v1/embeddings", &json!({ "input": "a", "model": "nowhere" }));
    assert_eq!(answer.json()["error"]["code"], "model_not_found");
    assert!(message(&answer, 404, Schema::OpenAi).contains("bert/tiny, other"));
    let dimensions = |model: &str| {
        let answer = server.post("/api/embed", &json!({ "input": "a", "model": model })).ok();
        answer["embeddings"][0].as_array().unwrap().len()
    };
    assert_eq!((dimensions("other"), dimensions("bert/tiny:latest")), (24, 36));
    server.stop();

    let twice = serve(&["a=bert-tiny", "a=roberta"], &[]).output().unwrap();
    assert_fails(&twice, 2, &["--model a", "twice"]);
    assert_fails(&serve(&["=bert-tiny"], &[]).output().unwrap(), 2, &["the name is empty", "NAME=MODEL"]);
    let output = serve(&[], &["-m", "a=", "--offline"]).output().unwrap();
    assert_fails(&output, 2, &["--model a=", "the model is empty", "NAME=MODEL"]);
}

#[test]
fn a_served_model_is_not_answered_for_by_another() {
    let ranker = format!("rr={CROSS_ENCODER}");
    let server = Server::start(&["small=bert-tiny", &ranker, "cls=heads/bert"], &[]);
    let rank = |model: &str| json!({ "query": "the lamp", "texts": ["a", "wick"], "model": model });
    let inputs = |model: &str| json!({ "inputs": "the lamp", "model": model });
    for (path, body, schema, noun, remedy) in [
        ("/rerank", rank("cls"), Schema::Tei, "cls is a text classifier", "small, rr"),
        ("/tasks/rerank", rank("cls"), Schema::Plain, "cls is a text classifier", "small, rr"),
        ("/predict", inputs("rr"), Schema::Tei, "rr is a cross-encoder", "cls"),
        ("/embed", inputs("cls"), Schema::Tei, "cls is a text classifier", "small"),
        (
            "/v1/embeddings",
            json!({ "input": "a", "model": "rr" }),
            Schema::OpenAi,
            "rr is a cross-encoder",
            "small",
        ),
        (
            "/api/embed",
            json!({ "input": "a", "model": "rr" }),
            Schema::Plain,
            "rr is a cross-encoder",
            "small",
        ),
    ] {
        let found = message(&server.post(path, &body), 404, schema);
        assert_eq!(found, format!("{noun}, which this route cannot use; send one of {remedy}"), "{path}");
    }
    // The root does what the named model does.
    let labels = server.post("/predict", &json!({ "inputs": ["the lamp"] })).ok();
    assert_eq!(server.post("/", &inputs("cls")).ok(), json!([labels]), "a list for each text");
    assert_eq!(server.post("/", &rank("rr")).ok(), server.post("/rerank", &rank("rr")).ok());
    let vectors = server.post("/embed", &inputs("small")).ok();
    assert_eq!(server.post("/", &inputs("small")).ok(), vectors);
    assert_eq!(server.post("/", &inputs("any")).ok(), vectors, "that of the first model");
    // An embedding model ranks if it is named, texts or pairs.
    let ranked = server.post("/rerank", &rank("small")).ok();
    let scores = |answer: &Answer| -> Vec<Value> {
        let answer = answer.ok();
        answer["rows"].as_array().unwrap().iter().map(|row| row["score"].clone()).collect()
    };
    let mut expected = vec![Value::Null; 2];
    for document in ranked.as_array().unwrap() {
        expected[document["index"].as_u64().unwrap() as usize] = document["score"].clone();
    }
    assert_eq!(scores(&server.post("/tasks/rerank", &rank("small"))), expected);
    let pairs = json!({ "pairs": [["the lamp", "a"], ["the lamp", "wick"]], "model": "small" });
    assert_eq!(scores(&server.post("/tasks/rerank", &pairs)), expected);
    assert_ne!(scores(&server.post("/tasks/rerank", &rank("any"))), expected, "those of the cross-encoder");
    server.stop();
}

#[test]
fn options_that_cannot_be_used_are_refused_at_the_start() {
    for (options, part) in [
        (["--max-memory", "x"], "expected a size, for example 512MB or 2GiB"),
        (["--payload-limit", "abc"], "expected a size, for example 512MB or 2GiB"),
        (["--payload-limit", "0"], "expected a size above 0"),
        (["--cors-allow-origin", "foo"], "expected a scheme and a host"),
    ] {
        let refused = serve(&[DENSE], &options).output().unwrap();
        let message = stderr(&refused);
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(message.contains(options[0]) && message.contains(part), "{message}");
    }
}

/// The samples of a page of Prometheus text by series, after a check of the format.
fn samples(page: &str) -> BTreeMap<String, f64> {
    let is_name =
        |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') && !name.is_empty();
    let (mut kinds, mut samples) = (BTreeMap::new(), BTreeMap::new());
    for line in page.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            assert!(
                help.split_once(' ').is_some_and(|(name, text)| is_name(name) && text.ends_with('.')),
                "{line}"
            );
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert_eq!(kinds.insert(name.to_owned(), kind), None, "{name} has one type");
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) =
                series.split_once('{').map_or((series, None), |(name, rest)| (name, Some(rest)));
            let family = ["_bucket", "_sum", "_count"].into_iter().find_map(|end| name.strip_suffix(end));
            let family = family.filter(|family| kinds.get(*family) == Some(&"histogram")).unwrap_or(name);
            assert!(kinds.contains_key(family), "{line} has no type");
            for label in labels.iter().flat_map(|labels| labels.strip_suffix('}').unwrap().split("\",")) {
                let (name, value) = label.split_once("=\"").unwrap();
                assert!(
                    is_name(name) && !value.trim_end_matches('"').replace(r#"\""#, "").contains('"'),
                    "{line}"
                );
            }
            let value: f64 = value.parse().unwrap();
            assert_eq!(samples.insert(series.to_owned(), value), None, "{series} is there once");
        }
    }
    samples
}

#[test]
fn metrics_are_those_of_prometheus_and_there_from_the_start() {
    let server = Server::start(&["a \"b\" \\=bert-tiny"], &[]);
    let answer = server.get("/metrics");
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4"));
    let first = samples(&answer.body);
    assert_eq!(server.post("/embed", &json!({ "inputs": ["a", "the lamp ".repeat(30)] })).status, 200);
    assert_eq!(server.post("/embed", &json!({})).status, 422);
    assert_eq!(server.get("/nowhere").status, 404);
    let later = samples(&server.get("/metrics").body);
    let series = |samples: &BTreeMap<String, f64>| samples.keys().cloned().collect::<BTreeSet<_>>();
    let new: Vec<String> = series(&later).difference(&series(&first)).cloned().collect();
    assert!(series(&first).is_subset(&series(&later)));
    assert!(
        new.iter().all(|series| series.starts_with("sconce_requests_total{") && !series.contains("200")),
        "{new:?}"
    );
    // The routes of this file are all that there are.
    let label = |series: &String| {
        series.strip_prefix("sconce_request_seconds_count{route=\"")?.strip_suffix("\"}").map(String::from)
    };
    let known = routes().into_iter().map(|(_, path, ..)| path).chain(OPEN);
    let known = known.map(|path| path.replace("/v1/models/any", "/v1/models/"));
    assert_eq!(later.keys().filter_map(label).collect::<BTreeSet<_>>(), known.collect());
    let grown = |name: &str| later[name] - first[name];
    assert_eq!(grown("sconce_texts_total"), 2.0);
    assert_eq!(grown("sconce_tokens_total"), 27.0);
    assert_eq!(grown("sconce_truncated_texts_total"), 1.0);
    assert_eq!(grown("sconce_batch_texts_total"), 2.0);
    assert_eq!(grown("sconce_requests_total{route=\"/embed\",status=\"200\"}"), 1.0);
    assert_eq!(grown("sconce_request_seconds_count{route=\"/embed\"}"), 2.0);
    assert_eq!(later["sconce_requests_total{route=\"/embed\",status=\"422\"}"], 1.0);
    assert_eq!(later["sconce_requests_total{route=\"other\",status=\"404\"}"], 1.0);
    assert_eq!(later["sconce_request_seconds_bucket{route=\"/embed\",le=\"+Inf\"}"], 2.0);
    for name in ["sconce_ready", "sconce_cancelled_texts_total", "sconce_queue_texts", "sconce_connections"] {
        assert!(later.contains_key(name), "{name}");
    }
    for stage in ["tokenize", "queue", "encode"] {
        let seconds = grown(&format!("sconce_stage_seconds_total{{stage=\"{stage}\"}}"));
        assert!(
            seconds > 0.0 && seconds < 2.0 * later["sconce_request_seconds_sum{route=\"/embed\"}"],
            "{stage} {seconds}"
        );
    }
}

#[test]
fn tokens_and_texts_round_trip() {
    let server = Server::shared(&[DENSE], &[]);
    let texts =
        ["the lamp burning", "a", "", "灯 of light!", "the lamp ".repeat(40).trim()].map(String::from);
    let ids = |texts: &[String], special: bool| -> Vec<Vec<u64>> {
        let body = json!({ "inputs": texts, "add_special_tokens": special });
        let answer = server.post("/tokenize", &body).ok();
        let tokens = answer.as_array().unwrap().iter().map(|tokens| tokens.as_array().unwrap());
        for (tokens, text) in tokens.clone().zip(texts) {
            for token in tokens {
                let place = (token["start"].as_u64(), token["stop"].as_u64());
                match place {
                    (Some(start), Some(stop)) => {
                        assert_eq!(token["text"], text[start as usize..stop as usize])
                    }
                    place => assert_eq!((place, &token["special"]), ((None, None), &json!(true)), "{token}"),
                }
            }
        }
        tokens.map(|tokens| tokens.iter().map(|token| token["id"].as_u64().unwrap()).collect()).collect()
    };
    let (plain, special) = (ids(&texts, false), ids(&texts, true));
    for (plain, special) in plain.iter().zip(&special) {
        assert_eq!(special[1..special.len() - 1], plain[..], "[CLS] and [SEP] around the others");
    }
    let decoded = server.post("/decode", &json!({ "ids": special })).ok();
    let decoded: Vec<String> =
        decoded.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect();
    assert_eq!(ids(&decoded, true), special);
    assert_eq!(decoded[..3], ["the lamp burning", "a", ""]);
    let whole = server.post("/decode", &json!({ "ids": special[1], "skip_special_tokens": false })).ok();
    assert_eq!(whole, json!(["[CLS] a [SEP]"]));
    let found = message(&server.post("/decode", &json!({ "ids": [1u64 << 40] })), 422, Schema::Tei);
    assert!(found.contains("ids[0]"), "{found}");
    for (ids, name) in [(json!([5, 99_999_999]), "ids[1]"), (json!([[5], [99_999_999]]), "ids[1][0]")] {
        let found = message(&server.post("/decode", &json!({ "ids": ids })), 422, Schema::Tei);
        assert!(
            found.starts_with(&format!("{name} is 99999999, which is not in the vocabulary of ")),
            "{found}"
        );
    }
}

#[test]
fn info_has_the_fields_of_text_embeddings_inference() {
    let options =
        ["--max-client-batch-size", "7", "--max-concurrent-requests", "9", "--max-batch-tokens", "64"];
    let info = Server::shared(&[DENSE], &options).get("/info").ok();
    for (field, expected) in [
        ("model_type", json!({ "embedding": { "pooling": "mean" } })),
        ("model_dtype", json!("f32")),
        ("max_input_length", json!(24)),
        ("max_client_batch_size", json!(7)),
        ("max_concurrent_requests", json!(9)),
        ("max_batch_tokens", json!(64)),
        ("auto_truncate", json!(true)),
        ("truncation_side", json!("right")),
        ("tokenization_workers", json!(2)),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("model_id", json!(fixture(DENSE))),
    ] {
        assert_eq!(info[field], expected, "{field}");
    }
    for field in ["model_sha", "max_batch_requests", "sha", "docker_label"] {
        assert!(info.get(field).is_some(), "{field}");
    }
    let labels = Server::shared(&["heads/bert"], &[]).get("/info").ok();
    assert_eq!(labels["model_type"]["classifier"]["id2label"].as_object().unwrap().len(), 3);
    let reranker = Server::shared(&[CROSS_ENCODER], &[]).get("/info").ok();
    assert!(reranker["model_type"]["reranker"].is_object(), "{reranker}");
    let tagger = Server::shared(&["token-heads/ner-word-piece"], &[]).get("/info").ok();
    assert_eq!(tagger["model_type"]["tagger"]["id2label"]["1"], "B-PER");
}

#[test]
fn headers_name_the_request_and_what_was_ignored() {
    let server = Server::shared(&[DENSE], &[]);
    let id = |headers: &[(&str, &str)], path: &str| {
        server.get_with(path, headers).header("x-request-id").unwrap().to_owned()
    };
    assert_eq!(id(&[("x-request-id", "my/id-7")], "/health"), "my/id-7");
    assert_eq!(id(&[("x-request-id", "my/id-8")], "/nowhere"), "my/id-8");
    let made = [
        id(&[], "/health"),
        id(&[], "/health"),
        id(&[("x-request-id", "two words")], "/health"),
        id(&[("x-request-id", &"x".repeat(129))], "/health"),
    ];
    assert_eq!(made.iter().collect::<BTreeSet<_>>().len(), 4, "{made:?}");
    assert!(!made[2].contains(' ') && made[3].len() < 64, "{made:?}");
    let body = json!({ "input": "a", "user": "u", "keep_alive": 5, "odd, \"é\n": 1, "none": null });
    let answer = server.post("/v1/embeddings", &body);
    answer.ok();
    let ignored = answer.header("x-ignored-fields").unwrap();
    assert!(ignored.starts_with("user,keep_alive,") && !ignored.contains("none"), "{ignored}");
    for name in ["x-compute-time", "x-total-time", "x-tokenization-time", "x-queue-time", "x-inference-time"]
    {
        assert!(answer.header(name).unwrap().parse::<u64>().is_ok(), "{name}");
    }
    assert_eq!(
        (answer.header("x-compute-tokens"), answer.header("x-compute-characters")),
        (Some("3"), Some("1"))
    );
    assert_eq!(server.post("/embed", &json!({ "inputs": "a" })).header("x-ignored-fields"), None);
    let answer = server.post("/embed", &json!({ "inputs": vec!["the lamp of a wick"; 2000] }));
    let milliseconds = |name: &str| answer.header(name).unwrap().parse::<u64>().unwrap();
    assert!(milliseconds("x-inference-time") + milliseconds("x-queue-time") <= milliseconds("x-total-time"));
}
