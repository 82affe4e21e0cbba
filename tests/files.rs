//! Batch inference over files, as its users call it: what goes in, what comes out, what is said of it.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use support::{assert_fails, embedding, fixture, rows, sconce, stderr};
use tempfile::TempDir;

fn command(args: &[&str]) -> Command {
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).args(args);
    command
}

fn run(args: &[&str]) -> Output {
    command(args).output().unwrap()
}

/// A folder of documents.
fn documents() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("more")).unwrap();
    for (name, text) in
        [("b.txt", "the lamp\n\nburns"), ("a.md", "the wick"), ("more/c.txt", "light"), (".hidden", "x")]
    {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn each_file_is_a_text() {
    let folder = documents();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let found = rows(&run(&["-i", &at(""), "--input-format", "files"]));
    let ids: Vec<&str> = found.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 3);
    for (id, end) in ids.iter().zip(["a.md", "b.txt", "more/c.txt"]) {
        assert!(id.ends_with(end), "{id} is not {end}");
    }
    let expected = rows(&support::embed("bert-tiny", ["the wick", "the lamp\n\nburns", "light"]));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(embedding(found), embedding(expected));
    }
    let found = rows(&run(&["-i", &at("*.txt"), &at("more/*"), "--input-format", "files"]));
    assert_eq!(found.len(), 2);
    // Without the option a folder is its files, each as its name says.
    let found = rows(&run(&["-i", &at("")]));
    assert_eq!(found.len(), 1 + 3 + 1);
    assert!(found.iter().all(|row| row.get("id").is_none()));
}

/// One record after another through every format that carries columns, and back in.
#[test]
fn columns_go_through_and_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let records = [
        json!({ "id": "a", "text": "the lamp", "year": 1999, "rate": 0.5, "lit": true, "note": "a \"b\",\nc" }),
        json!({ "id": "b", "text": "the wick", "year": null, "rate": 2.0, "lit": false, "note": null }),
    ];
    fs::write(at("in.jsonl"), records.iter().map(|record| format!("{record}\n")).collect::<String>())
        .unwrap();
    let keep = ["--keep", "text", "year", "rate", "lit", "note"];
    let mut input = at("in.jsonl");
    for output in ["1.parquet", "2.arrow", "3.parquet", "4.jsonl"] {
        let output = at(output);
        let done = run(&[&["-i", &input, "-o", &output][..], &keep].concat());
        assert!(done.status.success(), "{}", stderr(&done));
        input = output;
    }
    let last = fs::read_to_string(at("4.jsonl")).unwrap();
    let vectors = rows(&support::embed("bert-tiny", ["the lamp", "the wick"]));
    for ((line, record), vector) in last.lines().zip(&records).zip(&vectors) {
        let row: Value = serde_json::from_str(line).unwrap();
        for (key, value) in record.as_object().unwrap() {
            assert_eq!(&row[key], value, "{key}");
        }
        assert_eq!(embedding(&row), embedding(vector));
    }
    // JSON carries what columns cannot: a value of any kind, in the field's own order.
    fs::write(at("odd.jsonl"), "{\"text\": \"a\", \"x\": [1, {\"y\": null}]}\n{\"text\": \"b\"}\n").unwrap();
    let found = rows(&run(&["-i", &at("odd.jsonl"), "--keep", "x"]));
    assert_eq!((&found[0]["x"], &found[1]["x"]), (&json!([1, { "y": null }]), &Value::Null));
}

#[test]
fn options_that_have_nowhere_to_go() {
    let folder = documents();
    let input = folder.path().join("in.jsonl").display().to_string();
    fs::write(&input, "{\"text\": \"a\", \"year\": 1}\n").unwrap();
    for (args, parts) in [
        (vec!["-o", "x.npy", "--keep", "year"], ["npy", "--keep"]),
        (vec!["-o", "x.safetensors", "--keep", "year"], ["safetensors", "--keep"]),
        (vec!["--keep", "embedding"], ["--keep", "embedding"]),
        (vec!["--keep", "year", "year"], ["--keep", "year"]),
        (vec!["-o", "x.npy", "--output-dtype", "int8", "--no-normalize"], ["int8", "--normalize"]),
        (vec!["--output-dtype", "binary", "--dimensions", "12"], ["binary", "--dimensions"]),
        (vec!["--output-dtype", "int8", "--pooling", "none"], ["int8", "--pooling none"]),
        (vec!["-o", "x.csv", "--pooling", "none"], ["csv", "--pooling none"]),
    ] {
        let output = run(&[&["-i", &input][..], &args].concat());
        assert_fails(&output, 2, &parts);
    }
    let lines = folder.path().join("a.md").display().to_string();
    assert_fails(&run(&["-i", &lines, "--keep", "year"]), 2, &["--keep", "jsonl"]);
    assert_fails(&run(&["a", "--keep", "year"]), 2, &["--keep", "--input"]);
}

#[test]
fn the_summary_adds_up() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let long = "lamp ".repeat(30);
    fs::write(at("in.jsonl"), format!("{{\"text\": \"the lamp\"}}\n{{\"text\": {long:?}}}\n7\n")).unwrap();
    let args =
        ["-i", &at("in.jsonl"), "-o", &at("out.npy"), "--on-error", "skip", "--stats", &at("stats.json")];
    assert_eq!(run(&args).status.code(), Some(3));
    let stats: Value = serde_json::from_slice(&fs::read(at("stats.json")).unwrap()).unwrap();
    for (key, value) in [
        ("rows", 2),
        ("tokens", 28),
        ("truncated", 1),
        ("tokens_cut", 8),
        ("failed", 1),
        ("skipped", 0),
        ("chunked", 0),
        ("rows_resumed", 0),
    ] {
        assert_eq!(stats[key], value, "{key}");
    }
    let number = |key: &str| stats[key].as_f64().unwrap();
    assert!(number("seconds") > number("seconds_loading") && number("seconds_encoding") > 0.0);
    assert!(number("tokens_per_second") > 0.0 && number("peak_memory_bytes") > 1e6);
    assert!((0.0..=1.0).contains(&number("idle")) && number("padding") == 0.0);
    assert!(stats["device"].as_str().unwrap().starts_with("cpu, ") && stats["dtype"] == "f32");
    let output = run(&["a", "--stats", "/nowhere/stats.json", "-o", &at("other.npy")]);
    assert_fails(&output, 1, &["--stats /nowhere/stats.json"]);
    assert!(!Path::new(&at("other.npy")).exists(), "what cannot be kept is found out before the work");
}

/// Names that stand for two things are refused before anything is lost.
#[test]
fn one_name_for_two_things() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for name in ["in.jsonl", "v.npy.ledger.jsonl"] {
        fs::write(at(name), "{\"text\": \"a\"}\n").unwrap();
    }
    std::os::unix::fs::symlink(at("in.jsonl"), at("link")).unwrap();
    for (args, parts) in [
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("in.jsonl")],
            ["--stats", "is the input, too"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("v.npy")],
            ["--stats", "is the output, too"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("v.npy.ledger.jsonl")],
            ["--stats", "ledger"],
        ),
        (
            vec!["-i", &at("v.npy.ledger.jsonl"), "-o", &at("v.npy")],
            ["ledger of the output", "is the input, too"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("link"), "--output-format", "npy"],
            ["--output", "is the input, too"],
        ),
    ] {
        assert_fails(&run(&args), 2, &parts);
    }
    for name in ["in.jsonl", "v.npy.ledger.jsonl"] {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), "{\"text\": \"a\"}\n");
    }
    // What is no ledger does not give way to one.
    assert_fails(&run(&["a", "-o", &at("v.npy")]), 1, &["v.npy.ledger.jsonl", "no ledger of an earlier run"]);
    assert!(!Path::new(&at("v.npy")).exists());
}

/// Rows of a stream come as its texts do, not when it ends.
#[test]
fn a_stream_is_answered_as_it_comes() {
    let mut child = command(&[]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for (index, text) in ["the lamp\n", "the wick\n"].iter().enumerate() {
        input.write_all(text.as_bytes()).unwrap();
        let row: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(row["index"], index);
    }
    drop(input);
    assert!(output.next().is_none());
    assert!(child.wait().unwrap().success());
}

/// The process stays below what it may take, and says what it would need where it cannot.
#[test]
fn memory_has_a_bound() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/bert-base-uncased.json");
    let tokenizer = fixture("bert-tiny").join("tokenizer.json");
    fs::write(at("in.txt"), format!("{}\nthe lamp\n", "the wick burns ".repeat(200)).repeat(8)).unwrap();
    let base = |memory: &str| {
        let mut command = sconce();
        command.args([
            "embed",
            "--random-weights",
            "1",
            "--max-memory",
            memory,
            "--quiet",
            "--stats",
            &at("stats.json"),
        ]);
        command.arg("--config").arg(&config).arg("--tokenizer").arg(&tokenizer).args([
            "-i",
            &at("in.txt"),
            "-o",
            &at("out.npy"),
        ]);
        command.output().unwrap()
    };
    assert_fails(&base("300MB"), 2, &["--max-memory", "300", "weights", "435.7 MB"]);
    assert_fails(&base("500MB"), 2, &["--max-memory", "500", "the least", "pass at least that"]);
    let mut outputs = Vec::new();
    for megabytes in [680, 1000] {
        let output = base(&format!("{megabytes}MB"));
        assert!(output.status.success(), "{}", stderr(&output));
        let stats: Value = serde_json::from_slice(&fs::read(at("stats.json")).unwrap()).unwrap();
        let peak = stats["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak < megabytes * 1_000_000, "{peak} bytes of {megabytes} MB");
        outputs.push(fs::read(at("out.npy")).unwrap());
    }
    assert!(outputs[0] == outputs[1], "a bound changes no vector");
    // What is too long to be tokenized within the bound is a record that cannot be had.
    fs::write(at("long.txt"), "the lamp ".repeat(1_500_000)).unwrap();
    let output = run(&["-i", &at("long.txt"), "--max-memory", "80MB"]);
    assert_fails(&output, 1, &["long.txt line 1", "bytes", "--max-memory", "split the text"]);
}
