//! Multi-vector models in the layouts of sentence-transformers, PyLate and the original ColBERT: vectors of
//! `sconce embed` and scores of `sconce rerank` against those of `MultiVectorEncoder`.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Output;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};

use crate::support;
use crate::support::operands::flat;
use crate::support::{
    assert_fails, copy_folder, first_difference, fixture, numbers, rows, sconce, stderr, stdout,
};

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;

/// The models of `scripts/fixtures/make_multi_vector_fixtures.py`, in `tests/fixtures/multi-vector`.
const MODELS: [&str; 7] = ["jina", "lfm2", "native", "pooled", "pylate", "stanford", "two-denses"];

fn model(name: &str) -> std::path::PathBuf {
    fixture("multi-vector").join(name)
}

fn goldens(name: &str) -> (Value, HashMap<String, Tensor>) {
    let json = fs::read(model(name).join("goldens.json")).expect("goldens exist");
    let tensors = candle_core::safetensors::load(model(name).join("goldens.safetensors"), &Device::Cpu);
    (serde_json::from_slice(&json).expect("goldens are JSON"), tensors.expect("goldens load"))
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|x| x.as_str().expect("a text").to_owned()).collect()
}

fn run(command: &str, model: &Path, args: &[&str]) -> Output {
    sconce().arg(command).arg("-m").arg(model).args(args).output().expect("sconce starts")
}

/// The vectors of each text, concatenated.
fn embed(model: &Path, options: &[&str], texts: &[String]) -> Vec<Vec<f32>> {
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let output = run("embed", model, &[&["--quiet"], options, &["--"], &texts].concat());
    let vectors =
        |row: &Value| row["embeddings"].as_array().expect("vectors").iter().flat_map(numbers).collect();
    rows(&output).iter().map(vectors).collect()
}

#[test]
fn every_layout_gives_the_reference_vectors_in_both_roles_and_pooled() {
    let mut folders: Vec<_> = fs::read_dir(fixture("multi-vector"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    folders.sort();
    assert_eq!(folders, MODELS, "every folder is tested");
    for name in MODELS {
        let (goldens, tensors) = goldens(name);
        for case in goldens["cases"].as_array().unwrap() {
            let options = strings(&case["options"]);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let found = embed(&model(name), &options, &strings(&goldens["texts"]));
            for (found, golden) in found.iter().zip(strings(&case["vectors"])) {
                if let Some(difference) = first_difference(found, &flat(&tensors[&golden]), ATOL, RTOL) {
                    panic!("{name} with {options:?}, {golden}: {difference}");
                }
            }
        }
    }
}

/// The tokens of the expansion that no token attends to are computed without padding, too.
#[test]
fn a_text_has_the_same_bits_alone_and_in_any_batch() {
    for name in MODELS {
        let texts = strings(&goldens(name).0["texts"]);
        for role in ["query", "document"] {
            let together = embed(&model(name), &["--role", role], &texts);
            for batch_tokens in ["1", "60"] {
                let found = embed(&model(name), &["--role", role, "--batch-tokens", batch_tokens], &texts);
                assert_eq!(found, together, "{name} {role} {batch_tokens}");
            }
            for (text, expected) in texts.iter().zip(&together) {
                let alone =
                    embed(&model(name), &["--role", role, "--threads", "1"], std::slice::from_ref(text));
                assert_eq!(alone, std::slice::from_ref(expected), "{name} {role} {text:?}");
            }
        }
    }
}

#[test]
fn reranking_and_similarity_are_by_max_sim() {
    for name in MODELS {
        let (goldens, tensors) = goldens(name);
        let texts = strings(&goldens["texts"]);
        let expected: Vec<Vec<f32>> = tensors["scores"].to_vec2().unwrap();
        for (query, expected) in texts.iter().zip(expected) {
            let mut args = vec!["--quiet", "--query", query, "--"];
            args.extend(texts.iter().map(String::as_str));
            let scores = rows(&run("rerank", &model(name), &args));
            let scores: Vec<f32> = scores.iter().map(|row| row["score"].as_f64().unwrap() as f32).collect();
            if let Some(difference) = first_difference(&scores, &expected, ATOL, RTOL) {
                panic!("{name}, {query:?}: {difference}");
            }
        }
    }
    // A text with itself, as documents: the sum of its unit vectors' products with themselves.
    let object = stdout(&run("similarity", &model("pylate"), &["--json", "a lamp", "a lamp"]));
    let object: Value = serde_json::from_str(&object).unwrap();
    assert_eq!(object["metric"], "maxsim");
    let tokens = object["tokens"][0].as_f64().unwrap();
    assert!((object["similarities"][0][1].as_f64().unwrap() - tokens).abs() < 1e-5, "{object}");
    assert_fails(
        &run("similarity", &model("pylate"), &["--metric", "dot", "a", "b"]),
        2,
        &["--metric dot", "maxsim"],
    );
}

#[test]
fn the_metadata_and_the_page_of_inspect_tell_the_role_and_the_layout() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("queries.arrow");
    let path = output.to_str().unwrap();
    assert!(run("embed", &model("pylate"), &["--role", "query", "-o", path, "a lamp"]).status.success());
    let bytes = fs::read(&output).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    for part in ["sconce.role", "query", "sconce.pooling", "multi-vector", "maxsim", "[Q] "] {
        assert!(text.contains(part), "{part}");
    }
    for (name, parts) in [
        ("pylate", ["multi-vector", "16 tokens", "at most 25 tokens", "7 tokens"]),
        ("native", ["multi-vector", "at least 12 tokens", "at most 30 tokens", "5 tokens"]),
        ("pooled", ["multi-vector", "means of clusters of 2", "not expanded", "5 tokens"]),
        ("stanford", ["multi-vector", "14 tokens", "at most 20 tokens", "32 tokens"]),
    ] {
        let page = stdout(&run("inspect", &model(name), &[]));
        assert!(parts.iter().all(|part| page.contains(part)), "{name} {parts:?}\n{page}");
        let json: Value = serde_json::from_str(&stdout(&run("inspect", &model(name), &["--json"]))).unwrap();
        assert_eq!((&json["pooling"], &json["dimensions"]), (&json!("multi-vector"), &json!(8)), "{json}");
    }
}

/// `encode_query` of sentence-transformers uses the prompt named query, and never the default prompt.
#[test]
fn the_role_chooses_the_prompt_of_an_ordinary_model() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("pipelines/prompts"), folder.path());
    let settings = folder.path().join("config_sentence_transformers.json");
    let vectors = |args: &[&str]| {
        let all = [args, &["a lamp"]].concat();
        rows(&run("embed", folder.path(), &all))[0]["embedding"].clone()
    };
    let set = |prompts: Value| {
        fs::write(&settings, json!({"prompts": prompts, "default_prompt_name": "x"}).to_string()).unwrap();
    };
    set(json!({"query": "the lamp ", "document": "a key ", "x": "wick "}));
    assert_eq!(vectors(&["--role", "query"]), vectors(&["--prompt", "the lamp "]));
    assert_eq!(vectors(&["--role", "document"]), vectors(&["--prompt", "a key "]));
    assert_eq!(vectors(&["--role", "query", "--prompt-name", "x"]), vectors(&["--prompt", "wick "]));
    set(json!({"passage": "a key ", "x": "wick "}));
    assert_eq!(vectors(&["--role", "query"]), vectors(&["--prompt", ""]));
    assert_eq!(vectors(&["--role", "document"]), vectors(&["--prompt", "a key "]));
    set(json!({"document": null, "passage": "a key ", "x": "wick "}));
    assert_eq!(vectors(&["--role", "document"]), vectors(&["--prompt", ""]));
    assert_eq!(vectors(&[]), vectors(&["--prompt", "wick "]));
}

#[test]
fn options_that_do_not_apply_are_refused() {
    let ordinary = fixture("pipelines/dense");
    let cases: &[(&Path, &[&str], &[&str])] = &[
        (&ordinary, &["--pooling", "multi-vector"], &["--pooling multi-vector", "not a multi-vector model"]),
        (&ordinary, &["--token-pooling", "2"], &["--token-pooling needs a multi-vector model"]),
        (
            &model("pylate"),
            &["--token-pooling", "2", "--role", "query"],
            &["--token-pooling applies to documents"],
        ),
        (&model("pylate"), &["--on-long", "mean"], &["--on-long mean", "one per token"]),
        (&model("pylate"), &["--chunk", "9", "--role", "query"], &["--chunk splits documents"]),
        (&model("pylate"), &["--role", "query", "--max-length", "2"], &["leaves no room", "--max-length"]),
    ];
    for (model, options, parts) in cases {
        assert_fails(&run("embed", model, &[options, &["a lamp"][..]].concat()), 2, parts);
    }
    let output = run("embed", &model("pylate"), &["--token-pooling", "0.5", "a lamp"]);
    assert!(output.status.code() == Some(2) && stderr(&output).contains("a number from 1 on"));
    assert_fails(
        &run("classify", &model("pylate"), &["a lamp"]),
        1,
        &["is an embedding model, not a text classifier"],
    );
    // Another pooling is of hidden states, without the modules of the model.
    let row = &rows(&run("embed", &model("stanford"), &["--pooling", "mean", "a lamp"]))[0];
    assert_eq!(numbers(&row["embedding"]).len(), 32);
}

/// Chunks of a document are rows, each with the vectors of its tokens.
#[test]
fn chunks_of_a_document_have_the_vectors_of_their_tokens() {
    let text = "The lamp the key. A wick a flame. The candle burns on.";
    let found = rows(&run("embed", &model("native"), &["--chunk", "14", text]));
    assert!(found.len() > 1, "{found:?}");
    for row in &found {
        let (start, end) = (row["start"].as_u64().unwrap() as usize, row["end"].as_u64().unwrap() as usize);
        let alone = embed(&model("native"), &[], &[text[start..end].to_owned()]);
        let vectors: Vec<f32> = row["embeddings"].as_array().unwrap().iter().flat_map(numbers).collect();
        assert_eq!(vectors, alone[0]);
    }
}

/// A model, one of its files, a change to it and parts of the message.
type Fault<'a> = (&'a str, &'a str, fn(&mut Value), &'a [&'a str]);

#[test]
fn faults_in_the_files_are_named() {
    let cases: &[Fault] = &[
        (
            "native",
            "sentence_bert_config.json",
            |f| f["query_expansion"] = json!({"length": 3}),
            &["strategy", "fixed or min"],
        ),
        (
            "native",
            "sentence_bert_config.json",
            |f| f["query_expansion"] = json!({"strategy": "min"}),
            &["length"],
        ),
        (
            "native",
            "sentence_bert_config.json",
            |f| f["query_expansion"]["token"] = json!("[GO]"),
            &["[GO]", "vocabulary"],
        ),
        (
            "native",
            "sentence_bert_config.json",
            |f| f["query_expansion"]["length"] = json!(99),
            &["99", "48 positions"],
        ),
        (
            "native",
            "2_MultiVectorMask/config.json",
            |f| f["keep_only_token_ids"] = json!([3]),
            &["models of images"],
        ),
        (
            "native",
            "1_Dense/config.json",
            |f| f["module_input_name"] = json!("sentence_embedding"),
            &["token_embeddings"],
        ),
        (
            "pooled",
            "4_HierarchicalTokenPooling/config.json",
            |f| f["pool_factor"] = json!(0.5),
            &["a number from 1 on"],
        ),
        (
            "pylate",
            "modules.json",
            |f| f[1]["type"] = json!("pylate.models.Other.Other"),
            &["pylate.models.Other.Other", "not supported"],
        ),
        (
            "pylate",
            "config_sentence_transformers.json",
            |f| f["query_length"] = json!("x"),
            &["query_length", "number of tokens"],
        ),
        (
            "stanford",
            "artifact.metadata",
            |f| f["doc_maxlen"] = json!(-1),
            &["doc_maxlen", "number of tokens"],
        ),
    ];
    for (name, file, change, parts) in cases {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&model(name), folder.path());
        let path = folder.path().join(file);
        let mut fields: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut fields);
        fs::write(&path, fields.to_string()).unwrap();
        assert_fails(&run("embed", folder.path(), &["a lamp"]), 1, parts);
    }
    // Everything in artifact.metadata has a default.
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model("stanford"), folder.path());
    fs::remove_file(folder.path().join("artifact.metadata")).unwrap();
    let output = run("embed", folder.path(), &["--role", "query", "a lamp"]);
    assert_eq!(rows(&output)[0]["tokens"], 32, "{}", stderr(&output));
}

/// A query of a record without any vector concerns that record, and a request, only.
#[test]
fn a_query_whose_tokens_are_all_on_the_skiplist_is_refused_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model("native"), folder.path());
    let path = folder.path().join("2_MultiVectorMask/config.json");
    let mut fields: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    fields["skiplist_tasks"] = json!(["query", "document"]);
    fields["skiplist_words"] = json!(["[CLS]", "[SEP]", "[MASK]", "query", "the", "lamp"]);
    fs::write(&path, fields.to_string()).unwrap();
    let input = folder.path().join("pairs.jsonl");
    let lines = ["a key", "lamp", "a wick"].map(|query| json!({"text": "a key", "q": query}).to_string());
    fs::write(&input, lines.join("\n")).unwrap();
    let args = ["-i", input.to_str().unwrap(), "--query-field", "q"];
    let reason = "has a query all of whose tokens are on the model's skiplist";
    assert_fails(&run("rerank", folder.path(), &args), 1, &["pairs.jsonl line 2", reason]);
    let skipped = run("rerank", folder.path(), &[&args[..], &["--on-error", "skip"]].concat());
    assert_eq!(skipped.status.code(), Some(3), "{}", stderr(&skipped));
    assert_eq!(String::from_utf8_lossy(&skipped.stdout).lines().count(), 2);

    let name = folder.path().to_str().unwrap();
    let server = support::serving::Server::start(&[name], &[]);
    let answer = server.post("/tasks/rerank", &json!({"query": "lamp", "texts": ["a key"]}));
    assert_eq!(answer.status, 400, "{}", answer.body);
    assert!(answer.body.contains(reason), "{}", answer.body);
    server.stop();
}

/// The scores of every query and document, read back from a search of all rows.
fn searched(args: &[&str], queries: usize, documents: usize) -> Vec<f32> {
    let output = sconce().arg("search").args(args).output().expect("sconce starts");
    let mut scores = vec![f32::NAN; queries * documents];
    for row in rows(&output) {
        let (query, index) =
            (row["query"].as_u64().unwrap() as usize, row["index"].as_u64().unwrap() as usize);
        scores[query * documents + index] = row["score"].as_f64().unwrap() as f32;
    }
    scores
}

#[test]
fn search_scores_rows_by_max_sim_in_every_format_that_has_vectors_of_tokens() {
    for name in MODELS {
        let (goldens, tensors) = goldens(name);
        let texts = strings(&goldens["texts"]);
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let folder = tempfile::tempdir().unwrap();
        let model = model(name);
        let model = model.to_str().unwrap();
        for extension in ["parquet", "arrow", "jsonl"] {
            let path = |role: &str| folder.path().join(format!("{role}.{extension}")).display().to_string();
            for role in ["query", "document"] {
                let options = ["-q", "--role", role, "-o", &path(role), "--"];
                assert!(run("embed", Path::new(model), &[&options[..], &texts].concat()).status.success());
            }
            let common = ["-k", "100", "--output-format", "jsonl"];
            let expected = flat(&tensors["scores"]);
            let by_model = [
                &[&path("document"), "-q", "-m", model, "--on-long", "truncate"],
                &common[..],
                &["--"],
                &texts,
            ];
            let by_model = searched(&by_model.concat(), texts.len(), texts.len());
            let of_file: &[&str] = &[&path("document"), "--query-vectors", &path("query")];
            let found = searched(&[of_file, &common].concat(), texts.len(), texts.len());
            // A jsonl file does not say that its model divides by the tokens of the query.
            if (name, extension) != ("pooled", "jsonl") {
                assert_eq!(found, by_model, "{name} {extension}");
            }
            if let Some(difference) = first_difference(&by_model, &expected, ATOL, RTOL) {
                panic!("{name} {extension}: {difference}");
            }
        }
    }
}

#[test]
fn vectors_of_tokens_in_f16_are_searched_too() {
    let (goldens, tensors) = goldens("pylate");
    let texts = strings(&goldens["texts"]);
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let (folder, model) = (tempfile::tempdir().unwrap(), model("pylate"));
    for extension in ["parquet", "arrow"] {
        let path = folder.path().join(format!("vectors.{extension}")).display().to_string();
        let options = ["-q", "--output-dtype", "f16", "-o", &path, "--"];
        assert!(run("embed", &model, &[&options[..], &texts].concat()).status.success());
        let options = [&path, "-q", "-m", model.to_str().unwrap(), "-k", "9", "--on-long", "truncate"];
        let args = [&options[..], &["--output-format", "jsonl", "--"], &texts].concat();
        let found = searched(&args, texts.len(), texts.len());
        if let Some(difference) = first_difference(&found, &flat(&tensors["scores"]), 1e-2, 0.0) {
            panic!("{extension}: {difference}");
        }
    }
}

#[test]
fn the_wrong_model_or_role_is_refused() {
    let (folder, pylate) = (tempfile::tempdir().unwrap(), model("pylate"));
    let path = |name: &str| folder.path().join(name).display().to_string();
    let embed = |model: &Path, options: &[&str], output: &str| {
        let args = [options, &["-q", "-o", output, "a lamp", "the key"]].concat();
        assert!(run("embed", model, &args).status.success());
    };
    embed(&pylate, &[], &path("documents.parquet"));
    embed(&pylate, &["--role", "query"], &path("queries.parquet"));
    embed(&pylate, &["--output-dtype", "binary"], &path("signs.arrow"));
    embed(&fixture("pipelines/dense"), &[], &path("single.parquet"));
    embed(&fixture("pipelines/dense"), &[], &path("single.jsonl"));
    let (dense, native) = (fixture("pipelines/dense"), model("native"));
    let cases: &[(&str, &Path, &[&str], &[&str])] = &[
        ("queries.parquet", &pylate, &[], &["made with --role query", "--role document"]),
        ("documents.parquet", &dense, &[], &["one vector per token", "one vector;"]),
        ("single.parquet", &pylate, &[], &["one vector,", "one vector per token"]),
        ("single.jsonl", &pylate, &[], &["one vector,", "one vector per token"]),
        ("documents.parquet", &native, &[], &["with other weights", "--model"]),
        ("documents.parquet", &pylate, &["--metric", "dot"], &["--metric", "MaxSim"]),
        ("documents.parquet", &pylate, &["--rescore", "x.npy"], &["--rescore", "MaxSim"]),
        ("signs.arrow", &pylate, &[], &["as integers", "--output-dtype f32 or f16"]),
    ];
    for (file, model, options, parts) in cases {
        let file = path(file);
        let output = run("search", model, &[&[&file[..], "a lamp"], *options].concat());
        let code = if options.is_empty() { 1 } else { 2 };
        assert_fails(&output, code, parts);
    }
    // A query of the same role is the user's choice.
    let output = run("search", &pylate, &[&path("queries.parquet"), "--role", "query", "a lamp"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let single = path("single.parquet");
    let args = ["search", &path("documents.parquet"), "--query-vectors", &single];
    let output = sconce().args(args).output().unwrap();
    assert_fails(&output, 1, &["one vector per token", "single.parquet have one vector;"]);
    assert_fails(
        &sconce().args(["pairs", &path("documents.parquet")]).output().unwrap(),
        1,
        &["has one vector per token", "multi-vector"],
    );
}

/// A killed run resumes with the vectors that it would have written, and only in the same role.
#[test]
fn a_killed_run_resumes_in_the_same_role_only() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("texts.txt");
    let lines: Vec<String> = (0..40_000).map(|i| format!("the lamp {i}, a key")).collect();
    fs::write(&input, lines.join("\n")).unwrap();
    support::assert_resumes(&support::KilledRun {
        command: &|| support::model_command("embed", &model("pylate"), &[]),
        input: &input,
        formats: &["parquet"],
        code: 0,
        changed: (&["--role", "query"], &["--role", "--restart"]),
    });
}
