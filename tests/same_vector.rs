//! The vector of a text is the same alone, in any batch, in any order and with any number of threads.

mod support;

use std::fs;
use std::process::Command;

use sconce::kernels::isa::{Isa, VARIABLE};
use support::{assert_close, embedding, fixture, rows, sconce};

/// Not even the last bit.
const ATOL: f32 = 0.0;

/// Texts of every length up to past the limit.
fn texts(longest: usize) -> Vec<String> {
    let words = ["lamp", "wick", "attention", "the", "burning", "query"];
    (0..longest)
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

fn check(model: &dyn Fn(&mut Command), dtype: &str, texts: &[String], alone: usize) {
    let vectors =
        |texts: &[String], args: &[&str]| vectors(model, texts, &[&["--dtype", dtype], args].concat());
    let expected = vectors(texts, &[]);
    assert!(expected.iter().all(|vector| vector.iter().any(|x| x.abs() > 0.1)), "vectors are not trivial");
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
fn of_a_tiny_model() {
    let model = |command: &mut Command| {
        command.env("SCONCE_MODEL", fixture("bert-tiny"));
    };
    check(&model, "f32", &texts(40), 40);
}

/// Every way of computing attention: windows, shared keys, distances, mixed heads, pooled modules behind it.
#[test]
fn of_models_of_every_kind() {
    let kinds = [
        "modernbert",
        "eurobert",
        "deberta-v2",
        "talking-heads-both",
        "roformer-values",
        "mpnet",
        "jina-bert-v2",
        "sinusoidal",
        "pipelines/two-denses",
    ];
    for kind in kinds {
        let model = |command: &mut Command| {
            command.env("SCONCE_MODEL", fixture(kind));
        };
        check(&model, "f32", &texts(40), 5);
    }
}

#[test]
fn of_the_real_model() {
    check(&support::real_model, "f32", &texts(280).into_iter().step_by(4).collect::<Vec<_>>(), 10);
}

#[test]
fn in_every_type_and_instruction_set() {
    for isa in Isa::available() {
        let model = |command: &mut Command| {
            command.env("SCONCE_MODEL", fixture("bert-tiny")).env(VARIABLE, isa.name());
        };
        for dtype in ["f32", "bf16", "int8"] {
            check(&model, dtype, &texts(30), 10);
        }
    }
}
