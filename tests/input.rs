//! Structured input: the same vectors as for the same texts as lines, ids carried through, and what is wrong said by file
//! and line.

mod support;

use std::fs;
use std::process::{Output, Stdio};

use serde_json::Value;
use support::{assert_fails, embed, embedding, fixture, rows, sconce, stderr, stdout};

/// `embed` of one file with this name and content.
fn run(name: &str, content: &str, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    let mut all = vec!["--input", path.to_str().unwrap()];
    all.extend(args);
    embed("bert-tiny", all)
}

fn expected() -> Vec<Value> {
    rows(&embed("bert-tiny", ["a lamp", "the \"wick\", burning\nlight", ""]))
}

fn ids(rows: &[Value]) -> Vec<Option<&str>> {
    rows.iter().map(|row| row.get("id").map(|id| id.as_str().unwrap())).collect()
}

#[track_caller]
fn assert_same_vectors(found: &[Value]) {
    let expected = expected();
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(embedding(found), embedding(expected));
        assert_eq!(found["index"], expected["index"]);
        assert_eq!(found["tokens"], expected["tokens"]);
    }
}

const JSONL: &str = concat!(
    "\u{feff}{\"id\": \"a\", \"text\": \"a lamp\", \"more\": [1, {\"text\": 2}]}\n",
    "\n",
    "{\"text\": \"the \\\"wick\\\", burning\\nlight\", \"id\": 7}\r\n",
    "  \n",
    "{\"text\": \"\", \"id\": null}",
);

#[test]
fn json_lines() {
    let found = rows(&run("texts.jsonl", JSONL, &[]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some("a"), Some("7"), None]);
    assert_same_vectors(&rows(&run("texts.ndjson", JSONL, &[])));
    // By what is typed, not by the name, and under other names.
    let renamed =
        JSONL.replace("\"text\": \"", "\"body\": \"").replace("\"id\"", "\"key\"").replace("null", "\"z\"");
    let args = ["--input-format", "jsonl", "--text-field", "body", "--id-field", "key"];
    let found = rows(&run("texts.txt", &renamed, &args));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some("a"), Some("7"), Some("z")]);
}

const CSV: &str = "id,text,x\na,a lamp,1\n7,\"the \"\"wick\"\", burning\nlight\",2\n,,3\n";

#[test]
fn tables() {
    let found = rows(&run("texts.csv", CSV, &[]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some("a"), Some("7"), Some("")]);
    let tsv = "\u{feff}body\tid\na lamp\ta\r\n\"the \"\"wick\"\", burning\nlight\"\tb\n\"\"\tc\n";
    let found = rows(&run("texts.tsv", tsv, &["--text-field", "body"]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some("a"), Some("b"), Some("c")]);
    // A header alone is no text.
    assert_eq!(stdout(&run("texts.csv", "text\n", &[])), "");
}

#[test]
fn standard_input_and_several_files() {
    let mut command = sconce();
    command.args(["embed", "-m"]).arg(fixture("bert-tiny")).args(["--input", "-", "--input-format", "csv"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), CSV.as_bytes()).unwrap();
    assert_same_vectors(&rows(&child.wait_with_output().unwrap()));

    let folder = tempfile::tempdir().unwrap();
    let files =
        [("a.jsonl", "{\"text\": \"a lamp\"}\n"), ("b.csv", "text\nthe candle\n"), ("c.txt", "light\n")];
    let mut args = vec!["--input".to_owned()];
    for (name, content) in files {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        args.push(path.to_str().unwrap().to_owned());
    }
    let plain = rows(&embed("bert-tiny", ["a lamp", "the candle", "light"]));
    assert_eq!(rows(&embed("bert-tiny", &args)), plain);
}

/// Two texts of a row are one text with two segments.
#[test]
fn pairs() {
    let pair = "{\"text\": \"the lamp is on\", \"other\": \"a candle is burning in the light\"}\n";
    let args = ["--pair-field", "other", "--no-normalize"];
    let found = rows(&run("pair.jsonl", pair, &args));
    let goldens = candle_core::safetensors::load(
        fixture("bert-tiny").join("goldens.safetensors"),
        &candle_core::Device::Cpu,
    );
    // The sixth of the golden texts.
    let golden = goldens.unwrap()["pooled.mean"].get(5).unwrap().to_vec1::<f32>().unwrap();
    support::assert_close(&embedding(&found[0]), &golden, 1e-5, 1e-5);
    let table = "text,other\nthe lamp is on,a candle is burning in the light\n";
    assert_eq!(rows(&run("pair.csv", table, &args)), found);
}

#[test]
fn ids_in_a_csv_of_vectors() {
    let output = stdout(&run("texts.jsonl", JSONL, &["--output-format", "csv"]));
    let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0][..5], ["index", "id", "tokens", "truncated", "e0"]);
    let ids: Vec<&str> = lines[1..].iter().map(|line| line[1]).collect();
    assert_eq!(ids, ["a", "7", ""]);
    assert!(lines.iter().all(|line| line.len() == 4 + 36));
}

#[test]
fn rows_that_cannot_be_read() {
    let cases: &[(&str, &str, &[&str], &[&str])] = &[
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n{\"body\": \"b\"}\n",
            &[],
            &["a.jsonl line 2", "no field \"text\"", "--text-field"],
        ),
        ("a.jsonl", "{\"text\": null}\n", &[], &["a.jsonl line 1", "\"text\" is null"]),
        ("a.jsonl", "{\"text\": 7}\n", &[], &["a.jsonl line 1", "\"text\" is a number"]),
        ("a.jsonl", "{\"text\": [\"a\"]}\n", &[], &["a.jsonl line 1", "\"text\" is a list"]),
        ("a.jsonl", "\n{\"text\": \"a\"\n", &[], &["a.jsonl line 2", "not valid JSON"]),
        ("a.jsonl", "[1]\n", &[], &["a.jsonl line 1", "not a JSON object"]),
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n",
            &["--id-field", "key"],
            &["a.jsonl line 1", "no field \"key\"", "--id-field"],
        ),
        (
            "a.jsonl",
            "{\"text\": \"a\", \"id\": []}\n",
            &["--id-field", "id"],
            &["a.jsonl line 1", "\"id\" is a list"],
        ),
        ("a.jsonl", "{\"text\": \"a\"}\n", &["--pair-field", "b"], &["a.jsonl line 1", "no field \"b\""]),
        ("a.csv", "body,id\nx,1\n", &[], &["a.csv", "no column \"text\"", "body, id", "--text-field"]),
        ("a.csv", "text,id\nx,1\ny\n", &[], &["a.csv line 3", "1 fields", "header has 2"]),
        ("a.csv", "text\nx\n", &["--id-field", "key"], &["a.csv", "no column \"key\""]),
        ("a.csv", "", &[], &["a.csv", "no column \"text\""]),
    ];
    for (name, content, args, parts) in cases {
        assert_fails(&run(name, content, args), 1, parts);
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [("a.csv", &b"text\nok\nb\xff\n"[..]), ("a.jsonl", b"{\"text\": \"\xff\"}\n")] {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        let output = embed("bert-tiny", ["--input", path.to_str().unwrap()]);
        assert_fails(&output, 1, &[name, "line", "UTF-8"]);
    }
}

/// A field for input that has none would be an option that does nothing.
#[test]
fn fields_of_plain_lines() {
    for args in [&["--text-field", "body"][..], &["--id-field", "key"], &["--pair-field", "other"]] {
        assert_fails(&run("a.txt", "a\n", args), 2, &[args[0], "jsonl"]);
        let mut with_text = args.to_vec();
        with_text.push("a text");
        assert_fails(&embed("bert-tiny", &with_text), 2, &[args[0], "jsonl"]);
    }
    let parquet = run("a.parquet", "", &[]);
    assert_eq!(parquet.status.code(), Some(2), "{}", stderr(&parquet));
}
