//! Texts over the limit: cut, encoded in windows, left out or refused, and never silently.

mod support;

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};
use support::{assert_close, assert_fails, embed, embedding, fixture, numbers, rows, sconce, stderr};

/// Words that are one token each for the tiny BERT, whose limit is 24 tokens with two special ones.
const WORDS: [&str; 4] = ["lamp", "the", "wick", "flame"];
const ROOM: usize = 22;

fn words(count: usize) -> Vec<&'static str> {
    (0..count).map(|i| WORDS[(i + i / 7) % 4]).collect()
}

/// The mean of the windows' own vectors, weighted by their tokens, special ones included.
fn mean_of_windows(words: &[&str], prompt: &str, args: &[&str]) -> (Vec<f32>, usize) {
    let prompt_tokens = prompt.split_whitespace().count();
    let windows: Vec<String> =
        words.chunks(ROOM - prompt_tokens).map(|window| format!("{prompt}{}", window.join(" "))).collect();
    let mut all: Vec<&str> = windows.iter().map(String::as_str).collect();
    all.extend(["--no-normalize"]);
    all.extend(args);
    let rows = rows(&embed("bert-tiny", all));
    let tokens = |row: &Value| row["tokens"].as_u64().unwrap() as usize;
    let total: usize = rows.iter().map(tokens).sum();
    let mut mean = vec![0.0; 36];
    for row in &rows {
        for (sum, x) in mean.iter_mut().zip(embedding(row)) {
            *sum += f64::from(x) * tokens(row) as f64 / total as f64;
        }
    }
    (mean.into_iter().map(|x| x as f32).collect(), total)
}

fn unit(vector: &[f32]) -> Vec<f32> {
    let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    vector.iter().map(|x| x / norm).collect()
}

#[test]
fn chunks_are_averaged_by_their_tokens() {
    for count in [23, 44, 45, 1000] {
        let words = words(count);
        let text = words.join(" ");
        for pooling in ["mean", "cls", "max"] {
            let args = ["--pooling", pooling];
            let (mean, total) = mean_of_windows(&words, "", &args);
            // A short text beside it, and batches smaller than the text, change nothing.
            for more in [&[][..], &["the lamp", "--batch-tokens", "50"]] {
                let mut all = vec![text.as_str(), "--on-long", "mean", "--no-normalize"];
                all.extend(args.iter().chain(more));
                let rows = rows(&embed("bert-tiny", &all));
                assert_close(&embedding(&rows[0]), &mean, 1e-6, 1e-5);
                assert_eq!((&rows[0]["tokens"], &rows[0]["truncated"]), (&json!(total), &json!(false)));
            }
        }
        let normalized = rows(&embed("bert-tiny", [text.as_str(), "--on-long", "mean", "--normalize"]));
        let (mean, _) = mean_of_windows(&words, "", &[]);
        assert_close(&embedding(&normalized[0]), &unit(&mean), 1e-6, 1e-5);
    }
}

#[test]
fn every_window_begins_with_the_prompt() {
    let words = words(60);
    let args = ["--on-long", "mean", "--no-normalize", "--prompt", "the lamp "];
    let mut all = vec![words.join(" ")];
    all.extend(args.map(String::from));
    let found = rows(&embed("bert-tiny", all));
    let (mean, total) = mean_of_windows(&words, "the lamp ", &[]);
    assert_close(&embedding(&found[0]), &mean, 1e-6, 1e-5);
    assert_eq!(found[0]["tokens"], total);
}

/// Without pooling there is nothing to average: the tokens of all windows come one after another.
#[test]
fn tokens_of_all_windows() {
    let words = words(50);
    let args = ["--pooling", "none"];
    let windows: Vec<String> = words.chunks(ROOM).map(|window| window.join(" ")).collect();
    let apart = rows(&embed("bert-tiny", windows.iter().map(String::as_str).chain(args)));
    let apart: Vec<f32> = apart.iter().flat_map(tokens).collect();
    let whole = embed("bert-tiny", [words.join(" ").as_str(), "--on-long", "mean"].into_iter().chain(args));
    let whole = rows(&whole);
    assert_close(&tokens(&whole[0]), &apart, 0.0, 0.0);
    assert_eq!(whole[0]["tokens"].as_u64().unwrap() as usize * 36, apart.len());
}

fn tokens(row: &Value) -> Vec<f32> {
    row["embeddings"].as_array().unwrap().iter().flat_map(numbers).collect()
}

/// A run over three texts, the second of which is long, into `out.jsonl` in a folder.
fn run(folder: &Path, args: &[&str]) -> Output {
    let input = folder.join("texts.txt");
    fs::write(&input, format!("the lamp\n{}\nthe wick\n", words(40).join(" "))).unwrap();
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(support::fixture("bert-tiny")).arg("-i").arg(&input);
    command.arg("-o").arg(folder.join("out.jsonl")).args(args).output().unwrap()
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn each_way_is_counted_and_entered() {
    let folder = tempfile::tempdir().unwrap();
    let ledger = folder.path().join("out.jsonl.ledger.jsonl");
    let file = folder.path().join("texts.txt");
    let stats = folder.path().join("stats.json");
    let entry = |event: &str, reason: &str, more: Value| {
        let mut entry = json!({ "index": 1, "file": file, "line": 2, "event": event, "reason": reason });
        entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        entry
    };
    let counts = || {
        let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        ["rows", "truncated", "tokens_cut", "chunked", "windows", "skipped"]
            .map(|key| stats[key].as_u64().unwrap())
    };
    let summary = ["--stats", stats.to_str().unwrap()];

    let output = run(folder.path(), &summary);
    assert_eq!(output.status.code(), Some(0));
    let said = stderr(&output);
    assert!(
        said.contains("1 of 3 texts were longer than 24 tokens and were truncated; 18 tokens were cut"),
        "{said}"
    );
    assert!(said.contains(ledger.to_str().unwrap()), "{said}");
    let long = "has 42 tokens, over the limit of 24";
    assert_eq!(lines(&ledger), [entry("truncated", long, json!({ "tokens": 24, "cut": 18 }))]);
    assert_eq!(counts(), [3, 1, 18, 0, 0, 0]);

    let output = run(folder.path(), &[&summary[..], &["--on-long", "mean"]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("1 of 3 texts were longer than 24 tokens; each is encoded in windows"));
    let windows = "is encoded in 2 windows of at most 24 tokens";
    assert_eq!(lines(&ledger), [entry("chunked", windows, json!({ "tokens": 44 }))]);
    assert_eq!(counts(), [3, 0, 0, 1, 2, 0]);

    let output = run(folder.path(), &[&summary[..], &["--on-long", "skip"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("1 of 3 texts were longer than 24 tokens and were left out"));
    assert_eq!(lines(&ledger), [entry("skipped", long, json!({ "tokens": 42 }))]);
    let rows = lines(&folder.path().join("out.jsonl"));
    assert_eq!(rows.iter().map(|row| row["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(counts(), [2, 0, 0, 0, 0, 1]);

    // Nothing long: an old ledger does not stay.
    let output = run(folder.path(), &["--max-length", "40", "--on-long", "error", "--prompt", ""]);
    assert_fails(
        &output,
        1,
        &["texts.txt line 2", "42 tokens", "limit of 40", "--on-long truncate, skip or mean"],
    );
    assert_eq!(rows, lines(&folder.path().join("out.jsonl")), "the output before is as it was");
    fs::remove_file(folder.path().join(".out.jsonl.partial.json")).unwrap();
    fs::write(&file, "the lamp\n").unwrap();
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(support::fixture("bert-tiny")).arg("-i").arg(&file);
    assert!(command.arg("-o").arg(folder.path().join("out.jsonl")).status().unwrap().success());
    assert!(!ledger.exists(), "a ledger of an earlier run is left");
}

#[test]
fn options_that_would_do_nothing() {
    for on_long in ["chunk", "skip", "error"] {
        let output = embed("bert-tiny", ["a", "--on-long", on_long, "--truncation-side", "left"]);
        assert_fails(&output, 2, &["--truncation-side", "--on-long truncate"]);
    }
    let output = embed("bert-tiny", ["-i", "a.jsonl", "--pair-field", "b", "--on-long", "mean"]);
    assert_fails(&output, 2, &["--on-long mean", "pairs"]);
    let prompt = words(30).join(" ");
    let output = embed("bert-tiny", ["a", "--on-long", "mean", "--prompt", &prompt]);
    assert_fails(
        &output,
        2,
        &["the prompt fills the limit of 24 tokens", "--on-long mean", "--prompt", "--max-length"],
    );
}

/// Twice the tokens take twice the memory, not four times: the scores of one head over 8,192 tokens would take 268 MB.
#[test]
fn memory_grows_with_the_length() {
    let folder = tempfile::tempdir().unwrap();
    let config = fs::read_to_string(fixture("bert-tiny").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["max_position_embeddings"] = 8192.into();
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let peak = |tokens: usize| {
        let stats = folder.path().join("stats.json");
        let text = words(tokens - 2).join(" ");
        let mut command = sconce();
        command
            .args(["embed", "--quiet", "--random-weights", "1", "--max-length", "8192", "--config"])
            .arg(&path);
        command.arg("--tokenizer").arg(fixture("bert-tiny").join("tokenizer.json"));
        let output = command.arg("--stats").arg(&stats).arg(&text).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let stats: Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
        assert_eq!(stats["tokens"], tokens);
        stats["peak_memory_bytes"].as_u64().unwrap()
    };
    let (half, whole) = (peak(4096), peak(8192));
    assert!(whole < half + (100 << 20), "{half} and {whole} bytes");
}

/// The old name of `mean` goes on working, and says what the new one is.
#[test]
fn chunk_is_the_old_name_of_mean() {
    let text = words(60).join(" ");
    let run = |name: &str, more: &[&str]| {
        embed("bert-tiny", [&[text.as_str(), "--on-long", name][..], more].concat())
    };
    let (old, new) = (run("chunk", &[]), run("mean", &[]));
    assert_eq!(rows(&old), rows(&new));
    assert!(stderr(&old).contains("--on-long chunk is now called --on-long mean"), "{}", stderr(&old));
    assert!(!stderr(&new).contains("now called"));
    assert!(!stderr(&run("chunk", &["--quiet"])).contains("now called"));
}
