//! `sconce similarity`: values of sentence-transformers' `similarity`, by the model's own function or
//! another.

use std::fs;
use std::process::Output;

use crate::support::{
    assert_close, assert_fails, copy_folder, fixture, numbers, rows, sconce, stderr, stdout,
};
use serde_json::{Value, json};

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;

fn goldens() -> Value {
    serde_json::from_slice(&fs::read(fixture("similarity/goldens.json")).unwrap()).unwrap()
}

fn similarity(model: &str, args: &[&str], texts: &[&str]) -> Output {
    let mut command = sconce();
    command.args(["similarity", "--quiet", "-m"]).arg(fixture(model)).args(args).arg("--").args(texts);
    command.output().expect("sconce starts")
}

fn matrix(value: &Value) -> Vec<f32> {
    value.as_array().expect("a matrix").iter().flat_map(numbers).collect()
}

#[test]
fn the_four_functions_give_the_values_of_the_reference() {
    let goldens = goldens();
    let texts: Vec<&str> = goldens["texts"].as_array().unwrap().iter().map(|x| x.as_str().unwrap()).collect();
    for (model, functions) in goldens["models"].as_object().unwrap() {
        let functions = functions.as_object().unwrap();
        assert_eq!(functions.len(), 4);
        for (function, expected) in functions {
            let output = similarity(model, &["--json", "--metric", function], &texts);
            let object: Value = serde_json::from_str(&stdout(&output)).unwrap();
            assert_eq!(object["metric"], *function);
            assert_close(&matrix(&object["similarities"]), &matrix(expected), ATOL, RTOL);
            let diagonal = object["similarities"][0][0].as_f64().unwrap();
            assert!(!["euclidean", "manhattan"].contains(&function.as_str()) || diagonal == 0.0);
        }
    }
}

#[test]
fn two_texts_give_one_number_and_more_texts_a_matrix() {
    let goldens = goldens();
    let texts: Vec<&str> = goldens["texts"].as_array().unwrap().iter().map(|x| x.as_str().unwrap()).collect();
    let expected = matrix(&goldens["models"]["bert-tiny"]["cosine"]);
    let page = stdout(&similarity("bert-tiny", &[], &texts[..2]));
    assert_close(&[page.trim().parse().unwrap()], &expected[1..2], ATOL, 0.0);
    let page = stdout(&similarity("bert-tiny", &[], &["the candle burns", "a\nlamp", "key"]));
    let lines: Vec<&str> = page.lines().collect();
    assert_eq!(lines.len(), 4, "{page}");
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["1", "2", "3", "text"]);
    assert!(lines[1].starts_with("1  1.0000  ") && lines[1].ends_with("  the candle burns"), "{page}");
    assert!(lines[2].ends_with("  1.0000  0.9656  a lamp"), "{page}");
}

#[test]
fn other_formats_have_a_row_per_pair() {
    let texts = ["the candle burns", "a lamp", "key"];
    let object: Value = serde_json::from_str(&stdout(&similarity("bert-tiny", &["--json"], &texts))).unwrap();
    let score = |a: usize, b: usize| &object["similarities"][a][b];
    let expected = [(0, 1), (0, 2), (1, 2)].map(|(a, b)| json!({"a": a, "b": b, "score": score(a, b)}));
    assert_eq!(rows(&similarity("bert-tiny", &["--output-format", "jsonl"], &texts)), expected);
    let csv = stdout(&similarity("bert-tiny", &["--output-format", "csv"], &texts));
    let lines = expected.map(|row| format!("{},{},{}\n", row["a"], row["b"], row["score"]));
    assert_eq!(csv, format!("a,b,score\n{}", lines.concat()));
}

#[test]
fn the_default_is_the_function_of_the_model() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), folder.path());
    let settings = folder.path().join("config_sentence_transformers.json");
    let fields: Value = serde_json::from_slice(&fs::read(&settings).unwrap()).unwrap();
    let run = |name: Value| {
        let mut fields = fields.clone();
        fields["similarity_fn_name"] = name;
        fs::write(&settings, fields.to_string()).unwrap();
        similarity(folder.path().to_str().unwrap(), &["--json"], &["a lamp", "key"])
    };
    let metric = |output: Output| -> Value {
        serde_json::from_str::<Value>(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))["metric"]
            .clone()
    };
    for name in ["cosine", "dot", "euclidean", "manhattan"] {
        assert_eq!(metric(run(json!(name))), name);
    }
    assert_eq!(metric(run(Value::Null)), "cosine");
    for name in [json!("maxsim"), json!(1)] {
        let shown =
            format!("\"similarity_fn_name\" is {name}, expected one of cosine, dot, euclidean, manhattan");
        assert_fails(&run(name), 1, &["config_sentence_transformers.json: ", &shown]);
    }
    fs::remove_file(&settings).unwrap();
    let output = similarity(folder.path().to_str().unwrap(), &["--json"], &["a lamp", "key"]);
    assert_eq!(metric(output), "cosine");
}

#[test]
fn options_of_embed_apply() {
    let score = |args: &[&str]| stdout(&similarity("pipelines/dense", args, &["a lamp", "key"]));
    let plain = score(&["--metric", "dot"]);
    for args in
        [&["--prompt", "candle "][..], &["--no-normalize"], &["--pooling", "max"], &["--dimensions", "5"]]
    {
        assert_ne!(score(&[&["--metric", "dot"], args].concat()), plain, "{args:?}");
    }
}

#[test]
fn truncated_texts_are_reported() {
    let mut command = sconce();
    let long = "lamp ".repeat(90);
    command.args(["similarity", "-m"]).arg(fixture("bert-tiny")).args(["a lamp", &long]);
    let output = command.output().unwrap();
    assert!(output.status.success());
    let warning = "1 of 2 texts were longer than 24 tokens and were truncated";
    assert!(stderr(&output).contains(warning), "{}", stderr(&output));
}

#[test]
fn wrong_usage_is_refused() {
    let output = similarity("bert-tiny", &[], &["one text"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = similarity("bert-tiny", &["--metric", "maxsim"], &["a", "b"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_fails(&similarity("bert-tiny", &["--pooling", "none"], &["a", "b"]), 2, &["--pooling none"]);
}
