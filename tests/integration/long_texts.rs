//! Texts over the limit are truncated, encoded in chunks, skipped or an error, and each of these is reported.

use crate::support;
use std::fs;
use std::path::Path;
use std::process::Output;

use crate::support::{
    assert_close, assert_fails, copy_folder, embed, embedding, fixture, numbers, rows, sconce, stderr,
};
use serde_json::{Value, json};

/// Words of one token each in the vocabulary of bert-tiny.
const WORDS: [&str; 4] = ["lamp", "the", "wick", "flame"];
/// The limit of bert-tiny, 24 tokens, without `[CLS]` and `[SEP]`.
const MAX_TEXT_TOKENS: usize = 22;

fn words(count: usize) -> Vec<&'static str> {
    (0..count).map(|i| WORDS[(i + i / 7) % 4]).collect()
}

/// Embeds each chunk of a text as a text of its own. Returns the mean of their vectors, weighted by their
/// tokens including special tokens, and the number of all tokens.
fn mean_of_chunks(words: &[&str], prompt: &str, args: &[&str]) -> (Vec<f32>, usize) {
    let prompt_tokens = prompt.split_whitespace().count();
    let chunks: Vec<String> = words
        .chunks(MAX_TEXT_TOKENS - prompt_tokens)
        .map(|chunk| format!("{prompt}{}", chunk.join(" ")))
        .collect();
    let mut all_args: Vec<&str> = chunks.iter().map(String::as_str).collect();
    all_args.extend(["--no-normalize"]);
    all_args.extend(args);
    let rows = rows(&embed("bert-tiny", all_args));
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
fn the_vectors_of_chunks_are_averaged_weighted_by_tokens() {
    for count in [23, 44, 45, 1000] {
        let words = words(count);
        let text = words.join(" ");
        for pooling in ["mean", "cls", "max"] {
            let args = ["--pooling", pooling];
            let (mean, total) = mean_of_chunks(&words, "", &args);
            // Another text, and batches smaller than the text, do not change the vector.
            for more in [&[][..], &["the lamp", "--batch-tokens", "50"]] {
                let mut all = vec![text.as_str(), "--on-long", "mean", "--no-normalize"];
                all.extend(args.iter().chain(more));
                let rows = rows(&embed("bert-tiny", &all));
                assert_close(&embedding(&rows[0]), &mean, 1e-6, 1e-5);
                assert_eq!((&rows[0]["tokens"], &rows[0]["truncated"]), (&json!(total), &json!(false)));
            }
        }
        let normalized = rows(&embed("bert-tiny", [text.as_str(), "--on-long", "mean", "--normalize"]));
        let (mean, _) = mean_of_chunks(&words, "", &[]);
        assert_close(&embedding(&normalized[0]), &unit(&mean), 1e-6, 1e-5);
    }
}

#[test]
fn every_chunk_begins_with_the_prompt() {
    let words = words(60);
    let args = ["--on-long", "mean", "--no-normalize", "--prompt", "the lamp "];
    let mut all = vec![words.join(" ")];
    all.extend(args.map(String::from));
    let found = rows(&embed("bert-tiny", all));
    let (mean, total) = mean_of_chunks(&words, "the lamp ", &[]);
    assert_close(&embedding(&found[0]), &mean, 1e-6, 1e-5);
    assert_eq!(found[0]["tokens"], total);
}

/// A model that excludes the prompt from pooling excludes it from the weights of the chunks, too.
#[test]
fn an_excluded_prompt_does_not_count_in_the_weights_of_chunks() {
    let model = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), model.path());
    let pooling = model.path().join("1_Pooling/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&pooling).unwrap()).unwrap();
    config["include_prompt"] = false.into();
    fs::write(&pooling, config.to_string()).unwrap();
    let model = model.path().to_str().unwrap();
    let options = ["--pooling", "auto", "--no-normalize", "--prompt", "the lamp "];
    let vector = |text: &str, args: &[&str]| {
        let row = rows(&embed(model, [&[text], &options[..], args].concat())).remove(0);
        (embedding(&row), row["tokens"].as_u64().unwrap())
    };
    let words = words(45);
    let (mut mean, mut total) = (vec![0.0; 36], 0.0);
    for chunk in words.chunks(MAX_TEXT_TOKENS - 2) {
        let (values, tokens) = vector(&chunk.join(" "), &[]);
        // [CLS] counts as a part of the prompt, as in sentence-transformers.
        let pooled_tokens = tokens as f32 - 3.0;
        mean.iter_mut().zip(values).for_each(|(sum, x)| *sum += x * pooled_tokens);
        total += pooled_tokens;
    }
    mean.iter_mut().for_each(|sum| *sum /= total);
    let (found, _) = vector(&words.join(" "), &["--on-long", "mean"]);
    assert_close(&found, &mean, 1e-6, 1e-5);
}

/// Without pooling there is nothing to average.
#[test]
fn without_pooling_the_token_vectors_of_all_chunks_are_concatenated() {
    let words = words(50);
    let args = ["--pooling", "none"];
    let chunks: Vec<String> = words.chunks(MAX_TEXT_TOKENS).map(|chunk| chunk.join(" ")).collect();
    let separate = rows(&embed("bert-tiny", chunks.iter().map(String::as_str).chain(args)));
    let separate: Vec<f32> = separate.iter().flat_map(tokens).collect();
    let whole = embed("bert-tiny", [words.join(" ").as_str(), "--on-long", "mean"].into_iter().chain(args));
    let whole = rows(&whole);
    assert_close(&tokens(&whole[0]), &separate, 0.0, 0.0);
    assert_eq!(whole[0]["tokens"].as_u64().unwrap() as usize * 36, separate.len());
}

fn tokens(row: &Value) -> Vec<f32> {
    row["embeddings"].as_array().unwrap().iter().flat_map(numbers).collect()
}

/// A run over three texts, the second of which is too long, with the output `out.jsonl` in a directory.
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
fn every_value_of_on_long_is_counted_and_listed_in_the_ledger() {
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
    let message = stderr(&output);
    assert!(
        message
            .contains("1 of 3 texts were longer than 24 tokens and were truncated; 18 tokens were removed"),
        "{message}"
    );
    assert!(message.contains(ledger.to_str().unwrap()), "{message}");
    let long = "has 42 tokens, over the limit of 24";
    assert_eq!(lines(&ledger), [entry("truncated", long, json!({ "tokens": 24, "cut": 18 }))]);
    assert_eq!(counts(), [3, 1, 18, 0, 0, 0]);

    let output = run(folder.path(), &[&summary[..], &["--on-long", "mean"]].concat());
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).contains("1 of 3 texts were longer than 24 tokens; each is encoded in chunks"));
    let reason = "is encoded in 2 chunks of at most 24 tokens";
    assert_eq!(lines(&ledger), [entry("chunked", reason, json!({ "tokens": 44 }))]);
    assert_eq!(counts(), [3, 0, 0, 1, 2, 0]);

    let output = run(folder.path(), &[&summary[..], &["--on-long", "skip"]].concat());
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("1 of 3 texts were longer than 24 tokens and were skipped"));
    assert_eq!(lines(&ledger), [entry("skipped", long, json!({ "tokens": 42 }))]);
    let rows = lines(&folder.path().join("out.jsonl"));
    assert_eq!(rows.iter().map(|row| row["index"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 2]);
    assert_eq!(counts(), [2, 0, 0, 0, 0, 1]);

    // A failed run leaves the earlier output; a run without long texts removes the earlier ledger.
    let output = run(folder.path(), &["--max-length", "40", "--on-long", "error", "--prompt", ""]);
    assert_fails(
        &output,
        1,
        &["texts.txt line 2", "42 tokens", "limit of 40", "--on-long truncate, skip or mean"],
    );
    assert_eq!(rows, lines(&folder.path().join("out.jsonl")), "the earlier output has not changed");
    fs::remove_file(folder.path().join(".out.jsonl.partial.json")).unwrap();
    fs::write(&file, "the lamp\n").unwrap();
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(support::fixture("bert-tiny")).arg("-i").arg(&file);
    assert!(command.arg("-o").arg(folder.path().join("out.jsonl")).status().unwrap().success());
    assert!(!ledger.exists(), "the ledger of the earlier run has not been removed");
}

#[test]
fn options_that_have_no_effect_are_usage_errors() {
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

/// The attention scores of one head over 8,192 tokens would take 268 MB.
#[test]
fn memory_is_linear_in_the_number_of_tokens() {
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

#[test]
fn chunk_is_the_deprecated_name_of_mean() {
    let text = words(60).join(" ");
    let run = |name: &str, more: &[&str]| {
        embed("bert-tiny", [&[text.as_str(), "--on-long", name][..], more].concat())
    };
    let (old, new) = (run("chunk", &[]), run("mean", &[]));
    assert_eq!(rows(&old), rows(&new));
    assert!(stderr(&old).contains("--on-long chunk is deprecated; pass --on-long mean"), "{}", stderr(&old));
    assert!(!stderr(&new).contains("deprecated"));
    assert!(!stderr(&run("chunk", &["--quiet"])).contains("deprecated"));
}
