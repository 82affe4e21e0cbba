//! The vector of a text has the same bits alone, in any batch, in any order and with any number of threads.

use crate::support;
use std::fs;
use std::process::Command;

use crate::support::{assert_close, embedding, fixture, rows, sconce};
use sconce::kernels::isa::{ISA_VARIABLE, Isa};

/// Vectors are compared bit for bit.
const ATOL: f32 = 0.0;

/// Texts of 0 to `max_words` − 1 words; the longest exceed the model's maximum length.
fn texts(max_words: usize) -> Vec<String> {
    let words = ["lamp", "wick", "attention", "the", "burning", "query"];
    (0..max_words)
        .map(|n| (0..n).map(|i| words[(i * 7 + n) % words.len()]).collect::<Vec<_>>().join(" "))
        .collect()
}

fn vectors(model: &dyn Fn(&mut Command), texts: &[String], args: &[&str]) -> Vec<Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.txt");
    fs::write(&path, texts.iter().map(|text| format!("{text}\n")).collect::<String>()).unwrap();
    let mut command = sconce();
    model(&mut command);
    let output =
        command.arg("embed").args(["--quiet", "--no-normalize"]).arg("-i").arg(&path).args(args).output();
    rows(&output.unwrap()).iter().map(embedding).collect()
}

/// Asserts that each text has the same vector in any batch, order and number of threads, and alone: at most
/// `alone` of the texts are embedded in a run of their own.
fn check(model: &dyn Fn(&mut Command), dtype: &str, texts: &[String], alone: usize) {
    let vectors =
        |texts: &[String], args: &[&str]| vectors(model, texts, &[&["--dtype", dtype], args].concat());
    let expected = vectors(texts, &[]);
    assert!(expected.iter().all(|vector| vector.iter().any(|x| x.abs() > 0.1)), "vectors are not near 0");
    let compare = |found: Vec<Vec<f32>>| {
        for (found, expected) in found.iter().zip(&expected) {
            assert_close(found, expected, ATOL, 0.0);
        }
        assert_eq!(found.len(), expected.len());
    };
    for args in [
        &["--batch-tokens", "1"][..],
        &["--batch-tokens", "7"],
        &["--batch-tokens", "100"],
        &["--batch-tokens", "1000000"],
        &["--threads", "1"],
        &["--threads", "2", "--batch-tokens", "64"],
        &["--threads", "5", "--batch-tokens", "300"],
    ] {
        compare(vectors(texts, args));
    }
    let mut reversed: Vec<String> = texts.to_vec();
    reversed.reverse();
    let mut found = vectors(&reversed, &["--batch-tokens", "90"]);
    found.reverse();
    compare(found);
    for (i, text) in texts.iter().enumerate().step_by(texts.len().div_ceil(alone)) {
        assert_close(&vectors(std::slice::from_ref(text), &[])[0], &expected[i], ATOL, 0.0);
    }
}

#[test]
fn a_tiny_model_gives_the_same_bits_in_any_batch() {
    let model = |command: &mut Command| {
        command.env("SCONCE_MODEL", fixture("bert-tiny"));
    };
    check(&model, "f32", &texts(40), 40);
}

/// Every kind of attention (sliding window, grouped-query, disentangled, talking heads, rotary, biases), and
/// post-pooling modules.
#[test]
fn every_kind_of_attention_gives_the_same_bits_in_any_batch() {
    let models = [
        "modernbert",
        "eurobert",
        "deberta-v2",
        "talking-heads-both",
        "roformer-values",
        "mpnet",
        "jina-bert-v2",
        "jina-bert-v2-qk-norm",
        "nomic-bert-moe",
        "sinusoidal",
        "pipelines/two-denses",
    ];
    for name in models {
        let model = |command: &mut Command| {
            command.env("SCONCE_MODEL", fixture(name));
        };
        check(&model, "f32", &texts(40), 5);
    }
}

#[test]
fn the_real_model_gives_the_same_bits_in_any_batch() {
    check(&support::real_model, "f32", &texts(280).into_iter().step_by(4).collect::<Vec<_>>(), 10);
}

#[test]
fn every_dtype_and_isa_gives_the_same_bits_in_any_batch() {
    for isa in Isa::available() {
        let model = |command: &mut Command| {
            command.env("SCONCE_MODEL", fixture("bert-tiny")).env(ISA_VARIABLE, isa.name());
        };
        for dtype in ["f32", "bf16", "int8"] {
            check(&model, dtype, &texts(30), 10);
        }
    }
}
