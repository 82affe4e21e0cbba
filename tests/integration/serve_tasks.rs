//! `/tasks/{tag,fill,answer}`: rows are those of the commands in every bit, with the options of the command
//! line, and what is refused.
#![cfg(all(unix, feature = "serve"))]

use std::thread;

use crate::support::arrow;
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::Schema;
use arrow::ipc::reader::StreamReader;
use serde_json::{Value, json};

use crate::support::serving::{Server, rows_of_records};
use crate::support::{assert_fails, fixture, model_command};

const TAGGER: &str = "token-heads/ner-word-piece";
const ANSWERER: &str = "token-heads/qa-word-piece";
const MASK_FILLER: &str = "masked-lm/bert";

/// Texts of all lengths, of which some have several windows.
fn texts() -> Vec<String> {
    let long =
        "In London, Ada Lovelace met Charles Babbage, and the lamp-lighter burned the wick of the lamp. ";
    let texts = [
        "Ada Lovelace met Charles Babbage in London. A lamp burns.",
        "the lamp-lighter of São Tomé: 灯 and 🕯! The lamp burned, the Lamp.",
        "lamp",
        "",
    ];
    let texts = texts.into_iter().map(String::from);
    texts.chain([1, 3, 9].map(|count| long.repeat(count))).collect()
}

fn masked() -> Vec<String> {
    let texts = ["the [MASK] burns", "[MASK]", "A lamp, a [MASK] and a [MASK]: burning!"];
    texts.into_iter().map(String::from).chain([format!("[MASK]{}", " the lamp".repeat(60))]).collect()
}

#[test]
fn rows_are_those_of_the_commands() {
    for (model, command, options, args) in [
        (TAGGER, "tag", json!({}), &[][..]),
        (TAGGER, "tag", json!({ "aggregation": "max" }), &["--aggregation", "max"]),
        (TAGGER, "tag", json!({ "aggregation": "none", "raw": true }), &["--aggregation", "none", "--raw"]),
        (TAGGER, "tag", json!({ "truncation_side": "left" }), &["--truncation-side", "left"]),
        (
            TAGGER,
            "tag",
            json!({ "stride": 7, "aggregation": "average" }),
            &["--stride", "7", "--aggregation", "average"],
        ),
        (TAGGER, "tag", json!({ "stride": 0, "raw": true }), &["--stride", "0", "--raw"]),
        (MASK_FILLER, "fill", json!({}), &[]),
        (MASK_FILLER, "fill", json!({ "top_k": 1 }), &["--top-k", "1"]),
        (MASK_FILLER, "fill", json!({ "top_k": 0, "raw": true }), &["--top-k", "0", "--raw"]),
        (ANSWERER, "answer", json!({}), &[]),
        (ANSWERER, "answer", json!({ "top_k": 3, "raw": true }), &["--top-k", "3", "--raw"]),
        (
            ANSWERER,
            "answer",
            json!({ "stride": 5, "max_answer_length": 4 }),
            &["--stride", "5", "--max-answer-length", "4"],
        ),
    ] {
        let texts = if command == "fill" { masked() } else { texts() };
        let records: Vec<Value> =
            texts.iter().map(|text| json!({ "text": text, "question": "who met Ada?" })).collect();
        let args = match command {
            "answer" => [&["--question-field", "question"], args].concat(),
            _ => args.to_vec(),
        };
        let expected = rows_of_records(command, model, &records, &args);
        let server = Server::shared(&[model], &[]);
        let ask = |field: &str, texts: Value| {
            let mut body = json!({ field: texts, "options": options });
            if command == "answer" && field == "texts" {
                body["question"] = json!("who met Ada?");
            }
            server.post(&format!("/tasks/{command}"), &body).ok()["rows"].clone()
        };
        assert_eq!(ask("texts", json!(texts)), json!(expected), "{command} {options}");
        for (text, expected) in texts.iter().zip(&expected) {
            let mut expected = expected.clone();
            expected["index"] = json!(0);
            assert_eq!(ask("texts", json!(text)), json!([expected]), "{command} {options} {text:?}");
        }
        if command == "answer" {
            let pairs: Vec<[&str; 2]> = texts.iter().map(|text| ["who met Ada?", &**text]).collect();
            assert_eq!(ask("pairs", json!(pairs)), json!(expected), "{options}, as pairs");
        }
    }
}

/// The rows of an Arrow IPC stream, which ends in order.
fn arrow_rows(stream: &[u8]) -> RecordBatch {
    let reader = StreamReader::try_new(stream, None).expect("a schema");
    let schema = reader.schema();
    let batches: Vec<RecordBatch> = reader.collect::<Result<_, _>>().expect("batches");
    let rows = concat_batches(&schema, &batches).unwrap();
    let without_metadata = Schema::new(schema.fields().clone());
    RecordBatch::try_new(without_metadata.into(), rows.columns().to_vec()).unwrap()
}

#[test]
fn rows_are_an_arrow_stream_for_clients_that_accept_only_that() {
    let texts: Vec<&str> = vec!["the lamp", "", "the wick in the lamp of São Tomé"];
    for (model, command, options, args) in [
        ("bert-tiny", "embed", json!({}), &[][..]),
        ("bert-tiny", "embed", json!({ "pooling": "none" }), &["--pooling", "none"]),
        (
            "bert-tiny",
            "embed",
            json!({ "dimensions": 8, "normalize": true, "output_dtype": "f16" }),
            &["--dimensions", "8", "--normalize", "--output-dtype", "f16"],
        ),
        ("bert-tiny", "embed", json!({ "output_dtype": "int8" }), &["--output-dtype", "int8"]),
        (TAGGER, "tag", json!({}), &[]),
    ] {
        let args = [&["--output-format", "arrow"], args, &texts[..]].concat();
        let expected = model_command(command, &fixture(model), &args).output().unwrap().stdout;
        let server = Server::shared(&[model], &[]);
        let body = json!({ "texts": texts, "options": options });
        let answer =
            server.post_for("application/vnd.apache.arrow.stream", &format!("/tasks/{command}"), &body);
        assert_eq!(arrow_rows(&answer), arrow_rows(&expected), "{command} {options}");
    }
}

#[test]
fn requests_with_other_options_do_not_change_each_other() {
    let server = Server::shared(&[TAGGER], &[]);
    let ask = |options: &Value| {
        server.post("/tasks/tag", &json!({ "texts": texts(), "options": options })).ok()["rows"].clone()
    };
    let options: Vec<Value> = ["none", "simple", "first", "average", "max"]
        .into_iter()
        .flat_map(|aggregation| [true, false].map(|raw| json!({ "aggregation": aggregation, "raw": raw })))
        .collect();
    let alone: Vec<Value> = options.iter().map(ask).collect();
    thread::scope(|scope| {
        for client in 0..4 {
            let (options, alone, ask) = (&options, &alone, &ask);
            scope.spawn(move || {
                for i in 0..2 * options.len() {
                    let i = (i + 3 * client) % options.len();
                    assert_eq!(ask(&options[i]), alone[i], "{}", options[i]);
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_answered_is_refused() {
    let server = Server::start(&[TAGGER, ANSWERER, MASK_FILLER], &[]);
    let long = "the lamp ".repeat(60);
    for (command, body, status, part) in [
        ("tag", json!({ "pairs": [["a", "b"]] }), 400, "texts is missing"),
        (
            "tag",
            json!({ "texts": "a", "options": { "stride": 40 } }),
            400,
            "options.stride is 40, but windows have 38 tokens",
        ),
        (
            "tag",
            json!({ "texts": "a", "options": { "stride": 3, "aggregation": "none" } }),
            400,
            "options.stride and options.aggregation contradict each other",
        ),
        (
            "tag",
            json!({ "texts": "a", "options": { "aggregation": "last" } }),
            400,
            "options.aggregation is \"last\"; send \"none\"",
        ),
        ("tag", json!({ "texts": ["a", long], "options": { "on_long": "error" } }), 413, "texts[1] has "),
        ("fill", json!({ "texts": ["[MASK]", "lamp"] }), 400, "texts[1] has no mask; write [MASK]"),
        ("fill", json!({ "texts": format!("{long} [MASK]") }), 400, "no mask [MASK] within the limit of"),
        ("answer", json!({ "texts": "a" }), 400, "question is missing; send a string"),
        ("answer", json!({ "texts": "a", "question": "b", "options": { "top_k": 0 } }), 400, "top_k is 0"),
        (
            "answer",
            json!({ "texts": ["a"], "question": long }),
            400,
            "texts[0] has a question that leaves no room",
        ),
        (
            "answer",
            json!({ "pairs": [["a", "b"]], "question": "c" }),
            400,
            "pairs and question are both there",
        ),
        ("embed", json!({ "texts": "a" }), 404, "an embedding model"),
        ("classify", json!({ "texts": "a" }), 404, "is a question-answering model"),
    ] {
        let answer = server.post(&format!("/tasks/{command}"), &body);
        assert_eq!(answer.status, status, "{command} {}", answer.body);
        let error = answer.json()["error"].as_str().expect("a sentence").to_owned();
        assert!(error.contains(part), "{command} {body}: {error}");
    }
    let answer =
        server.post("/tasks/tag", &json!({ "texts": ["a"], "pairs": [], "options": { "top_k": 1 } }));
    assert_eq!((answer.status, answer.header("x-ignored-fields")), (200, Some("options.top_k,pairs")));
    let answer = server.post("/tasks/tag", &json!({ "texts": ["lamp", long] }));
    assert_eq!(answer.header("x-truncated-count"), Some("1"));
    assert_eq!(answer.ok()["rows"][1]["truncated"], true);
    let windows = server.post("/tasks/tag", &json!({ "texts": [long], "options": { "stride": 4 } }));
    assert_eq!((windows.status, windows.header("x-truncated-count")), (200, None));
    server.stop();
}

/// As the command does, by the dimensions that the request chooses.
#[test]
fn signs_that_fill_no_bytes_are_refused() {
    let server = Server::shared(&["bert-tiny"], &[]);
    for (dtype, dimensions, status, part) in [
        ("binary", None, 400, "but vectors have 36; pass dimensions 32"),
        ("ubinary", Some(30), 400, "packs 8 dimensions into a byte, but vectors have 30; pass dimensions 24"),
        ("binary", Some(32), 200, ""),
    ] {
        let options = json!({ "output_dtype": dtype, "dimensions": dimensions });
        let answer = server.post("/tasks/embed", &json!({ "texts": "a", "options": options }));
        assert_eq!(answer.status, status, "{}", answer.body);
        assert!(answer.body.contains(part), "{}", answer.body);
    }
    let args = ["--dimensions", "30", "--output-dtype", "binary", "a"];
    let run = model_command("embed", &fixture("bert-tiny"), &args).output().unwrap();
    assert_fails(&run, 2, &["--output-dtype binary packs 8 dimensions", "pass --dimensions 24"]);
}

/// A server whose memory for requests is that of one body at the limit.
#[test]
fn answers_that_do_not_fit_into_memory_are_refused() {
    let limits = ["--max-memory", "1MB", "--payload-limit", "300KB"];
    let server = Server::start(&[TAGGER, ANSWERER, MASK_FILLER], &limits);
    let texts = texts();
    for (command, body, options, too_many) in [
        ("tag", json!({ "texts": texts }), json!({ "stride": 3 }), json!({ "stride": 37 })),
        ("fill", json!({ "texts": "[MASK] ".repeat(80) }), json!({ "top_k": 1 }), json!({ "top_k": 0 })),
        (
            "answer",
            json!({ "texts": "the lamp ".repeat(30), "question": "where" }),
            json!({ "top_k": 3 }),
            json!({ "top_k": u32::MAX, "max_answer_length": u32::MAX }),
        ),
    ] {
        let ask = |options: &Value| {
            let mut body = body.clone();
            body["options"] = options.clone();
            server.post(&format!("/tasks/{command}"), &body).status
        };
        assert_eq!((ask(&options), ask(&too_many), ask(&options)), (200, 413, 200), "{command}");
    }
    server.stop();
}

#[test]
fn a_masked_language_model_gives_vectors_if_a_pooling_is_chosen() {
    let body = json!({ "texts": ["the [MASK] burns"] });
    let server = Server::start(&[MASK_FILLER], &["--pooling", "mean"]);
    assert_eq!(server.post("/tasks/fill", &body).status, 404);
    let vectors = server.post("/tasks/embed", &body).ok();
    let records = [json!({ "text": "the [MASK] burns" })];
    assert_eq!(
        vectors["rows"],
        json!(rows_of_records("embed", MASK_FILLER, &records, &["--pooling", "mean"]))
    );
    server.stop();

    let server = Server::start(&[MASK_FILLER], &[]);
    assert_eq!(server.post("/tasks/embed", &body).status, 404);
    assert_eq!(server.post("/tasks/fill", &body).status, 200);
    let log = server.stop();
    assert!(
        log.contains("is a masked language model") && log.contains("pass --pooling for vectors"),
        "{log}"
    );

    let server = Server::start(&["bert-masked-lm"], &[]);
    assert_eq!(server.post("/tasks/embed", &body).status, 200, "its Pooling module says so");
    server.stop();
}
