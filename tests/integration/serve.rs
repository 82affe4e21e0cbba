//! `sconce serve`: a text has the bits of the command line, whatever the route, the format, the neighbours
//! and the load.
#![cfg(all(unix, feature = "serve"))]

use std::fs;
use std::thread;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use crate::support::serving::{Server, rows_of_records};
use crate::support::{embedding, fixture, numbers, states};

/// A model that normalizes its vectors and truncates after 24 tokens.
const DENSE: &str = "bert-tiny";
/// A model that does not normalize.
const NOT_NORMALIZED: &str = "pipelines/two-denses";
const SPARSE: &str = "sparse/bert-max";
const CROSS_ENCODER: &str = "heads/cross-encoder-bert";
const MULTI_VECTOR: &str = "multi-vector/pylate";

/// Texts from none to many words, some over the limit of every fixture, in no order of length.
fn texts() -> Vec<String> {
    let words = ["the", "lamp", "burning", "wick", "of", "candle", "light", "灯", "é", "🕯️", "to", "A", "?"];
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let text = |i: usize| {
        let count = match i % 5 {
            0 => i / 5,
            1 => 40 + i,
            _ => rng.random_range(1..16),
        };
        let words: Vec<&str> = (0..count).map(|_| words[rng.random_range(0..words.len())]).collect();
        words.join(" ")
    };
    let mut texts: Vec<String> = (0..56).map(text).collect();
    texts.extend(
        ["\u{0} \t\n", "e\u{301}\u{202e}\u{fffd}", "\"quotes\" \\ and {braces}", "the lamp"]
            .map(String::from),
    );
    texts
}

/// The rows of a command over texts.
fn command_rows(command: &str, model: &str, texts: &[String], args: &[&str]) -> Vec<Value> {
    let records: Vec<Value> = texts.iter().map(|text| json!({ "text": text })).collect();
    rows_of_records(command, model, &records, &[&["--on-long", "truncate"], args].concat())
}

fn embedded(model: &str, texts: &[String], args: &[&str]) -> Vec<Vec<f32>> {
    command_rows("embed", model, texts, args).iter().map(embedding).collect()
}

fn vectors(list: &Value) -> Vec<Vec<f32>> {
    list.as_array().expect("a list").iter().map(numbers).collect()
}

#[track_caller]
fn assert_bits(found: &[Vec<f32>], expected: &[Vec<f32>], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let bits = |vector: &[f32]| vector.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(found), bits(expected), "{what}: text {index}");
    }
}

/// The dense vectors of texts by a route.
fn by_route(server: &Server, route: &str, texts: &[String]) -> Vec<Vec<f32>> {
    let openai = |encoding: &str| {
        let body = json!({ "input": texts, "model": "any", "encoding_format": encoding });
        let answer = server.post("/v1/embeddings", &body).ok();
        answer["data"].as_array().unwrap().iter().map(|data| data["embedding"].clone()).collect::<Vec<_>>()
    };
    match route {
        "/v1/embeddings float" => openai("float").iter().map(numbers).collect(),
        "/v1/embeddings base64" => openai("base64").iter().map(from_base64).collect(),
        "/api/embed" => vectors(&server.post(route, &json!({ "input": texts })).ok()["embeddings"]),
        route => vectors(&server.post(route, &json!({ "inputs": texts })).ok()),
    }
}

fn from_base64(value: &Value) -> Vec<f32> {
    let bytes = STANDARD.decode(value.as_str().expect("a string")).expect("base64");
    bytes.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

const DENSE_ROUTES: [&str; 6] =
    ["/embed", "/", "/invocations", "/v1/embeddings float", "/v1/embeddings base64", "/api/embed"];

#[test]
fn a_text_has_the_same_bits_whatever_the_route_and_the_neighbours() {
    let texts = texts();
    for (model, options) in [(DENSE, &[][..]), (NOT_NORMALIZED, &["--normalize"])] {
        let server = Server::shared(&[model], &[]);
        let expected = embedded(model, &texts, options);
        for route in DENSE_ROUTES {
            assert_bits(&by_route(&server, route, &texts), &expected, route);
        }
        for (text, expected) in texts.iter().zip(&expected) {
            let one = by_route(&server, "/embed", std::slice::from_ref(text));
            assert_bits(&one, std::slice::from_ref(expected), text);
            let alone = vectors(&server.post("/embed", &json!({ "inputs": text })).ok());
            assert_bits(&alone, std::slice::from_ref(expected), text);
        }
    }
}

#[test]
fn a_text_has_the_same_bits_beside_other_requests() {
    let texts = texts();
    let server = Server::shared(&[DENSE], &[]);
    let expected = embedded(DENSE, &texts, &[]);
    thread::scope(|scope| {
        for client in 0..8 {
            let (server, texts, expected) = (&server, &texts, &expected);
            scope.spawn(move || {
                for (i, texts) in texts.chunks(1 + 2 * client).enumerate() {
                    let route = DENSE_ROUTES[(client + i) % DENSE_ROUTES.len()];
                    let first = i * (1 + 2 * client);
                    let expected = &expected[first..first + texts.len()];
                    assert_bits(&by_route(server, route, texts), expected, route);
                }
            });
        }
    });
}

#[test]
fn a_request_chooses_its_vectors() {
    let texts = texts();
    let served = |model: &str, more: Value| {
        let server = Server::shared(&[model], &[]);
        let mut body = json!({ "inputs": texts });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vectors(&server.post("/embed", &body).ok())
    };
    for (model, fields, args) in [
        (DENSE, json!({ "dimensions": 12 }), &["--dimensions", "12"][..]),
        (DENSE, json!({ "dimensions": 36, "truncation_direction": "Right" }), &[]),
        (DENSE, json!({ "truncation_direction": "left" }), &["--truncation-side", "left"]),
        (DENSE, json!({ "normalize": false }), &["--no-normalize"]),
        (NOT_NORMALIZED, json!({ "normalize": false }), &[]),
        (NOT_NORMALIZED, json!({ "normalize": false, "dimensions": 5 }), &["--dimensions", "5"]),
        (NOT_NORMALIZED, json!({ "normalize": true }), &["--normalize"]),
        (
            "pipelines/prompts",
            json!({ "prompt_name": "passage" }),
            &["--prompt-name", "passage", "--normalize"],
        ),
        ("pipelines/prompts", json!({ "prompt_name": null }), &["--normalize"]),
    ] {
        assert_bits(
            &served(model, fields.clone()),
            &embedded(model, &texts, args),
            &format!("{model} {fields}"),
        );
    }
    let server = Server::shared(&[DENSE], &[]);
    let body = json!({ "input": texts, "dimensions": 7, "model": DENSE });
    let answer = server.post("/v1/embeddings", &body).ok();
    let found: Vec<Vec<f32>> =
        answer["data"].as_array().unwrap().iter().map(|data| numbers(&data["embedding"])).collect();
    assert_bits(&found, &embedded(DENSE, &texts, &["--dimensions", "7"]), "/v1/embeddings");
    let answer = server.post("/api/embed", &body).ok();
    assert_bits(&vectors(&answer["embeddings"]), &found, "/api/embed");
}

#[test]
fn sparse_vectors_are_those_of_the_command() {
    let texts = texts();
    let server = Server::shared(&[SPARSE], &[]);
    let tokenizer: Value =
        serde_json::from_slice(&fs::read(fixture(SPARSE).join("tokenizer.json")).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_object().unwrap();
    let expected = command_rows("embed", SPARSE, &texts, &["--pooling", "splade"]);
    let check = |found: &Value, expected: &Value| {
        let mut found: Vec<(u64, u32)> = (found.as_array().unwrap().iter())
            .map(|entry| {
                (entry["index"].as_u64().unwrap(), (entry["value"].as_f64().unwrap() as f32).to_bits())
            })
            .collect();
        let mut expected: Vec<(u64, u32)> = (expected["weights"].as_object().unwrap().iter())
            .map(|(token, value)| {
                (vocabulary[token].as_u64().unwrap(), (value.as_f64().unwrap() as f32).to_bits())
            })
            .collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    };
    for route in ["/embed_sparse", "/"] {
        let answer = server.post(route, &json!({ "inputs": texts })).ok();
        answer.as_array().unwrap().iter().zip(&expected).for_each(|(found, expected)| check(found, expected));
    }
    for (text, expected) in texts.iter().zip(&expected) {
        let answer = server.post("/embed_sparse", &json!({ "inputs": text })).ok();
        check(&answer[0], expected);
    }
}

#[test]
fn vectors_of_tokens_are_those_of_the_command() {
    let texts = texts();
    let server = Server::shared(&[MULTI_VECTOR], &[]);
    let expected: Vec<Vec<f32>> =
        command_rows("embed", MULTI_VECTOR, &texts, &[]).iter().map(states).collect();
    let answer = server.post("/embed_all", &json!({ "inputs": texts })).ok();
    let found = answer.as_array().unwrap().iter();
    let found: Vec<Vec<f32>> =
        found.map(|tokens| tokens.as_array().unwrap().iter().flat_map(numbers).collect()).collect();
    assert_bits(&found, &expected, "/embed_all");
}

#[test]
fn vectors_of_tokens_of_other_models_are_those_before_pooling() {
    let texts = texts();
    let expected = command_rows("embed", NOT_NORMALIZED, &texts, &["--pooling", "none", "--no-normalize"]);
    let answer = Server::shared(&[NOT_NORMALIZED], &[]).post("/embed_all", &json!({ "inputs": texts })).ok();
    for ((found, expected), text) in answer.as_array().unwrap().iter().zip(&expected).zip(&texts) {
        let found: Vec<f32> = found.as_array().unwrap().iter().flat_map(numbers).collect();
        assert_bits(&[found], &[states(expected)], text);
    }
}

#[test]
fn rows_of_tasks_are_those_of_the_commands() {
    let texts = texts();
    for (model, command, body, args) in [
        (DENSE, "embed", json!({}), &[][..]),
        (
            DENSE,
            "embed",
            json!({ "normalize": false, "dimensions": 5, "truncation_side": "left" }),
            &["--no-normalize", "--dimensions", "5", "--truncation-side", "left"],
        ),
        (DENSE, "embed", json!({ "output_dtype": "f16" }), &["--output-dtype", "f16"]),
        (DENSE, "embed", json!({ "output_dtype": "int8" }), &["--output-dtype", "int8"]),
        (DENSE, "embed", json!({ "prompt": "of a " }), &["--prompt", "of a "]),
        (SPARSE, "embed", json!({}), &["--pooling", "splade"]),
        (MULTI_VECTOR, "embed", json!({}), &[]),
        (MULTI_VECTOR, "embed", json!({ "role": "query" }), &["--role", "query"]),
        (CROSS_ENCODER, "rerank", json!({}), &["--query", "the lamp"]),
        (CROSS_ENCODER, "rerank", json!({ "raw": true }), &["--query", "the lamp", "--raw"]),
        (CROSS_ENCODER, "rerank", json!({ "top_k": 3 }), &["--query", "the lamp", "--top-k", "3"]),
        (DENSE, "rerank", json!({}), &["--query", "the lamp"]),
        (DENSE, "rerank", json!({ "top_k": 3, "raw": false }), &["--query", "the lamp", "--top-k", "3"]),
        (MULTI_VECTOR, "rerank", json!({}), &["--query", "the lamp"]),
        (SPARSE, "rerank", json!({}), &["--query", "the lamp"]),
        ("heads/bert", "classify", json!({ "top_k": 2 }), &["--top-k", "2"]),
        ("heads/bert", "classify", json!({ "top_k": 0, "raw": true }), &["--top-k", "0", "--raw"]),
    ] {
        let mut call = json!({ "texts": texts, "options": body });
        if command == "rerank" {
            call["query"] = json!("the lamp");
        }
        let server = Server::shared(&[model], &[]);
        let answer = server.post(&format!("/tasks/{command}"), &call).ok();
        let expected = command_rows(command, model, &texts, args);
        assert_eq!(answer["rows"].as_array().unwrap(), &expected, "{model} {command} {body}");
    }
}

/// The scores of a rerank answer, in the order of the documents, after a check that they are in descending
/// order.
fn scores(ranked: &Value, score: &str) -> Vec<u32> {
    let ranked = ranked.as_array().unwrap().iter();
    let mut found: Vec<(u64, f32)> = ranked
        .map(|entry| (entry["index"].as_u64().unwrap(), entry[score].as_f64().unwrap() as f32))
        .collect();
    assert!(found.is_sorted_by(|a, b| a.1 > b.1 || (a.1 == b.1 && a.0 < b.0)), "{found:?}");
    found.sort_unstable_by_key(|(index, _)| *index);
    found.into_iter().map(|(_, score)| score.to_bits()).collect()
}

#[test]
fn scores_are_those_of_the_command() {
    let texts = texts();
    for (model, args, fields) in [
        (CROSS_ENCODER, &[][..], json!({})),
        (CROSS_ENCODER, &["--raw"], json!({ "raw_scores": true })),
        (DENSE, &[], json!({})),
        (MULTI_VECTOR, &[], json!({})),
        (SPARSE, &[], json!({})),
    ] {
        let server = Server::shared(&[model], &[]);
        let rows = command_rows("rerank", model, &texts, &[&["--query", "the lamp of a"], args].concat());
        let expected: Vec<u32> =
            rows.iter().map(|row| (row["score"].as_f64().unwrap() as f32).to_bits()).collect();
        for (path, documents, score) in [
            ("/rerank", "texts", "score"),
            ("/rerank", "documents", "relevance_score"),
            ("/v2/rerank", "documents", "relevance_score"),
        ] {
            let mut body = json!({ "query": "the lamp of a", documents: texts });
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let answer = server.post(path, &body).ok();
            let ranked = if documents == "texts" { &answer } else { &answer["results"] };
            assert_eq!(scores(ranked, score), expected, "{model} {path} {documents} {fields}");
        }
        let one = |text: &String| {
            let body =
                json!({ "query": "the lamp of a", "texts": [text], "raw_scores": fields["raw_scores"] });
            scores(&server.post("/rerank", &body).ok(), "score")[0]
        };
        assert_eq!(texts.iter().map(one).collect::<Vec<_>>(), expected, "{model}, one by one");
    }
}

#[test]
fn labels_are_those_of_the_command() {
    let texts = texts();
    for (model, args, raw) in [
        ("heads/bert", &[][..], false),
        ("heads/bert", &["--raw"], true),
        ("heads/bert-multi-label", &[], false),
    ] {
        let server = Server::shared(&[model], &[]);
        let rows = command_rows("classify", model, &texts, &[&["--top-k", "0"], args].concat());
        let expected: Vec<Value> = rows.iter().map(|row| row["labels"].clone()).collect();
        let labels = |labels: &Value| -> Vec<(String, u32)> {
            let label = |label: &Value| {
                (
                    label["label"].as_str().unwrap().to_owned(),
                    (label["score"].as_f64().unwrap() as f32).to_bits(),
                )
            };
            labels.as_array().unwrap().iter().map(label).collect()
        };
        let inputs: Vec<Value> = texts.iter().map(|text| json!([text])).collect();
        let answer = server.post("/predict", &json!({ "inputs": inputs, "raw_scores": raw })).ok();
        for (found, expected) in answer.as_array().unwrap().iter().zip(&expected) {
            assert_eq!(labels(found), labels(expected), "{model}");
        }
        for (text, expected) in texts.iter().zip(&expected) {
            let answer = server.post("/predict", &json!({ "inputs": text, "raw_scores": raw })).ok();
            assert_eq!(labels(&answer), labels(expected), "{model}: {text:?}");
        }
    }
}

#[test]
fn nothing_is_truncated_silently() {
    let texts = texts();
    let server = Server::shared(&[DENSE], &[]);
    let rows = command_rows("embed", DENSE, &texts, &[]);
    let truncated: Vec<usize> =
        rows.iter().enumerate().filter(|(_, row)| row["truncated"] == true).map(|(index, _)| index).collect();
    assert!((10..30).contains(&truncated.len()), "{truncated:?}");
    let check_header = |answer: &crate::support::serving::Answer| {
        assert_eq!(answer.header("x-truncated-count"), Some(&*truncated.len().to_string()));
        let entries: Vec<&str> = answer.header("x-truncated").unwrap().split(',').collect();
        assert_eq!(entries.len(), truncated.len());
        for (entry, index) in entries.iter().zip(&truncated) {
            let (found, tokens) = entry.split_once(':').unwrap();
            let (tokens, kept) = tokens.split_once('>').unwrap();
            assert_eq!((found.parse(), kept), (Ok(*index), "24"));
            assert!(tokens.parse::<usize>().unwrap() > 24, "{entry}");
        }
    };
    let before = server.metric("sconce_truncated_texts_total");
    for (path, field) in
        [("/embed", "inputs"), ("/", "inputs"), ("/v1/embeddings", "input"), ("/api/embed", "input")]
    {
        let answer = server.post(path, &json!({ field: texts }));
        let body = answer.ok();
        check_header(&answer);
        if body.is_object() {
            let listed = body["truncated"].as_array().unwrap();
            let indices: Vec<usize> =
                listed.iter().map(|entry| entry["index"].as_u64().unwrap() as usize).collect();
            assert_eq!(indices, truncated, "{path}");
            assert!(listed.iter().all(|entry| entry["kept"] == 24 && entry["tokens"].as_u64() > Some(24)));
        }
        let short = server.post(path, &json!({ field: ["the lamp"] }));
        assert_eq!(short.header("x-truncated-count"), None);
        assert!(short.ok().get("truncated").is_none(), "{path}");
    }
    assert!(server.metric("sconce_truncated_texts_total") >= before + 4.0 * truncated.len() as f64);
    for (path, field) in [("/embed", "inputs"), ("/api/embed", "input")] {
        let answer = server.post(path, &json!({ field: texts, "truncate": false }));
        assert_eq!(answer.status, 413);
        let error = answer.json()["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with(&format!("{field}[{}] has ", truncated[0])), "{error}");
        assert!(error.contains("over the limit of 24"), "{error}");
    }
    let long = "the lamp ".repeat(30);
    let answer = server.post("/rerank", &json!({ "query": long, "texts": ["a", long] }));
    assert_eq!(
        answer.header("x-truncated"),
        Some("2:62>24,1:62>24"),
        "the query has the index after the documents"
    );
    let answer = server.post("/rerank", &json!({ "query": long, "texts": ["a"], "truncate": false }));
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert_eq!((answer.status, error.starts_with("query has 62 tokens")), (413, true));
    assert!(error.ends_with(r#"; shorten it, or have it truncated with "truncate": true"#), "{error}");
    let options = json!({ "on_long": "error" });
    let answer = server.post("/tasks/embed", &json!({ "texts": [long, long], "options": options }));
    let error = answer.json()["error"].as_str().unwrap().to_owned();
    assert!(
        error.ends_with(r#"shorten them, or have them truncated with "on_long": "truncate" in options"#),
        "{error}"
    );
    let answer =
        Server::shared(&[CROSS_ENCODER], &[]).post("/rerank", &json!({ "query": "a", "texts": ["a", long] }));
    assert_eq!(answer.header("x-truncated"), Some("1:64>40"));
    let answer = Server::shared(&["heads/bert"], &[]).post("/predict", &json!({ "inputs": long }));
    assert_eq!(answer.header("x-truncated"), Some("0:62>40"));
    let answer = Server::shared(&[SPARSE], &[]).post("/embed_sparse", &json!({ "inputs": [long] }));
    assert_eq!(answer.header("x-truncated"), Some("0:62>40"));
    let refusing = Server::start(&[DENSE], &["--on-long", "error"]);
    let answer = refusing.post("/v1/embeddings", &json!({ "input": long }));
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (413, &json!("context_length_exceeded")));
    assert_eq!(refusing.post("/embed", &json!({ "inputs": long, "truncate": true })).status, 200);
    assert_eq!(refusing.get("/info").ok()["auto_truncate"], false);
}

/// Models without special tokens have no token for an empty text.
#[test]
fn an_empty_text_of_a_static_model_has_a_vector() {
    let server = Server::start(&["static/potion"], &[]);
    for texts in [vec![""], vec!["", "lamp", ""]] {
        let texts: Vec<String> = texts.into_iter().map(String::from).collect();
        let expected = embedded("static/potion", &texts, &["--normalize"]);
        assert_bits(&by_route(&server, "/embed", &texts), &expected, "/embed");
    }
    server.stop();
}

#[test]
fn an_instruction_is_that_of_the_chat_template() {
    let server = Server::start(&["causal-rerankers/qwen3"], &[]);
    let documents = ["the lamp is burning".to_owned(), "candle light".to_owned()];
    let ask = |instruction: &str| {
        let body = json!({ "query": "lamp", "documents": documents, "raw_scores": true, "instruction": instruction });
        let mut results = server.post("/v1/rerank", &body).ok()["results"].as_array().unwrap().clone();
        results.sort_by_key(|result| result["index"].as_u64());
        results.iter().map(|result| result["relevance_score"].as_f64().unwrap() as f32).collect::<Vec<_>>()
    };
    for instruction in ["the candle", "of the lamp"] {
        let args = ["--query", "lamp", "--raw", "--prompt", instruction];
        let rows = command_rows("rerank", "causal-rerankers/qwen3", &documents, &args);
        let expected: Vec<f32> = rows.iter().map(|row| row["score"].as_f64().unwrap() as f32).collect();
        assert_eq!(ask(instruction), expected, "{instruction}");
    }
    assert_ne!(ask("the candle"), ask("of the lamp"));
    server.stop();
}

#[test]
fn a_pair_over_the_limit_is_truncated_where_texts_are_averaged() {
    let server = Server::start(&[DENSE], &["--on-long", "mean"]);
    let long = "the lamp ".repeat(40);
    let body = json!({ "pairs": [["a", long]] });
    let answer = server.post("/tasks/embed", &body);
    assert_eq!(answer.header("x-truncated-count"), Some("1"));
    let truncated = json!({ "pairs": [["a", long]], "options": { "on_long": "truncate" } });
    assert_eq!(answer.ok()["rows"], server.post("/tasks/embed", &truncated).ok()["rows"]);
    let prompt = json!({ "texts": [long], "options": { "prompt": "the lamp ".repeat(30) } });
    let refused = server.post("/tasks/embed", &prompt);
    assert_eq!(refused.status, 400);
    assert!(refused.json()["error"].as_str().unwrap().contains("shorten the prompt"));
    server.stop();
}

#[test]
fn vectors_of_tokens_have_their_dimensions_whatever_those_of_texts_are() {
    let server = Server::start(&[DENSE], &["--dimensions", "8"]);
    let texts = [String::from("the lamp is burning")];
    let found = server.post("/embed_all", &json!({ "inputs": texts })).ok();
    let row = &command_rows("embed", DENSE, &texts, &["--pooling", "none"])[0];
    assert_bits(&vectors(&found[0]), &vectors(&row["embeddings"]), "/embed_all");
    server.stop();
}
