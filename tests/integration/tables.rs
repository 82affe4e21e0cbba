//! Tables as they are: texts that are null, names of columns and files, and what a run would take.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::{Value, json};

use crate::support::{assert_fails, embed, embedding, rows, sconce, stderr, stdout};

const TEXTS: &str =
    "{\"id\": 1, \"text\": \"a lamp\"}\n{\"id\": 2, \"text\": null}\n{\"id\": 3, \"text\": \"light\"}\n";

fn run(args: &[&str]) -> Output {
    embed("bert-tiny", args)
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// The rows of a jsonl file.
fn read(path: &str) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_null_text_is_an_error_or_skipped_or_a_row_with_null() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "in.jsonl");
    fs::write(&input, TEXTS).unwrap();
    let output = path(folder.path(), "out.jsonl");
    let with = |args: &[&str]| run(&[&["-i", &input, "-o", &output], args].concat());
    assert_fails(&with(&[]), 1, &["in.jsonl line 2", "\"text\" is null", "--on-error skip"]);

    let skipped = with(&["--on-null", "skip", "--restart"]);
    assert_eq!(skipped.status.code(), Some(3), "{}", stderr(&skipped));
    assert!(
        stderr(&skipped).contains("1 record was skipped because its text is null"),
        "{}",
        stderr(&skipped)
    );
    let with_vectors = read(&output);
    assert_eq!(with_vectors.iter().map(|row| row["id"].clone()).collect::<Value>(), json!([1, 3]));
    let ledger = read(&format!("{output}.ledger.jsonl"));
    assert_eq!((&ledger[0]["line"], &ledger[0]["event"]), (&json!(2), &json!("skipped")));

    let nulls = with(&["--on-null", "null"]);
    assert!(nulls.status.success(), "{}", stderr(&nulls));
    let found = read(&output);
    assert_eq!(found.len(), 3);
    assert_eq!(
        (&found[1]["embedding"], &found[1]["tokens"], &found[1]["id"]),
        (&Value::Null, &json!(0), &json!(2))
    );
    for (row, expected) in [(&found[0], &with_vectors[0]), (&found[2], &with_vectors[1])] {
        assert_eq!(embedding(row), embedding(expected));
    }

    let without = with(&["--skip-empty"]);
    assert!(without.status.success(), "{}", stderr(&without));
    assert_eq!(read(&output).len(), 2);
}

/// In each format, a search finds the other rows, and files are resumed, appended to and merged as without
/// nulls.
#[test]
fn rows_with_null_are_rows_of_every_format_of_tables() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "in.jsonl");
    fs::write(&input, TEXTS).unwrap();
    let queries = path(folder.path(), "queries.npy");
    assert!(run(&["-o", &queries, "a lamp", "light"]).status.success());
    for (format, dtype) in
        [("jsonl", "f32"), ("csv", "f32"), ("parquet", "f32"), ("parquet", "int8"), ("arrow", "f16")]
    {
        let output = path(folder.path(), &format!("{dtype}.{format}"));
        let args = ["-i", &input, "-o", &output, "--on-null", "null", "--output-dtype", dtype];
        let written = run(&args);
        assert!(written.status.success(), "{format}: {}", stderr(&written));
        let found = sconce()
            .args(["search", &output, "--query-vectors", &queries, "-k", "1", "--output-format", "jsonl"])
            .output()
            .unwrap();
        assert!(found.status.success(), "{format}: {}", stderr(&found));
        let indices: Vec<Value> = rows(&found).iter().map(|row| row["index"].clone()).collect();
        assert_eq!(indices, [json!(0), json!(2)], "{format}");

        let (parts, merged) = (
            ["a", "b"].map(|part| path(folder.path(), &format!("{part}.{format}"))),
            path(folder.path(), &format!("merged.{format}")),
        );
        for (part, shard) in parts.iter().zip(["1/2", "2/2"]) {
            let args =
                ["-i", &input, "-o", part, "--on-null", "null", "--output-dtype", dtype, "--shard", shard];
            assert!(run(&args).status.success());
        }
        let done = sconce().args(["merge", &merged]).args(&parts).output().unwrap();
        assert!(done.status.success(), "{format}: {}", stderr(&done));
        assert!(fs::read(&merged).unwrap() == fs::read(&output).unwrap(), "{format}: merged shards differ");
    }
    for format in ["npy", "safetensors"] {
        let output = path(folder.path(), &format!("out.{format}"));
        let refused = run(&["-i", &input, "-o", &output, "--on-null", "null"]);
        assert_fails(&refused, 2, &[format, "--on-null null", "--on-null skip"]);
    }
    let refused = run(&["-i", &input, "--pooling", "none", "--on-null", "null"]);
    assert_fails(&refused, 2, &["--on-null null", "--on-null skip"]);
}

#[test]
fn the_column_of_vectors_has_the_name_that_the_user_gives_it() {
    let folder = tempfile::tempdir().unwrap();
    let expected = embedding(&rows(&run(&["a lamp"]))[0]);
    let named = rows(&run(&["--vector-column", "v", "a lamp"]));
    assert_eq!(named[0].get("embedding"), None);
    assert_eq!(crate::support::numbers(&named[0]["v"]), expected);
    let tokens = rows(&run(&["--vector-column", "v", "--pooling", "none", "a lamp"]));
    assert!(tokens[0]["v"][0].is_array());
    for format in ["jsonl", "csv", "parquet", "arrow"] {
        let [first, second] =
            ["first", "second"].map(|name| path(folder.path(), &format!("{name}.{format}")));
        let written = run(&["--vector-column", "v", "-o", &first, "a lamp", "light"]);
        assert!(written.status.success(), "{}", stderr(&written));
        assert!(run(&["--vector-column", "v", "-o", &second, "--append", "a lamp"]).status.success());
        let appended = run(&["--vector-column", "v", "-o", &second, "--append", "a lamp", "light"]);
        assert!(appended.status.success(), "{format}: {}", stderr(&appended));
        for output in [&first, &second] {
            let hits = sconce()
                .args(["search", output, "--query-vectors", output, "-k", "1", "--output-format", "jsonl"])
                .output();
            let hits = hits.unwrap();
            assert!(hits.status.success(), "{format}: {}", stderr(&hits));
            assert_eq!(rows(&hits).iter().map(|row| row["index"].clone()).collect::<Value>(), json!([0, 1]));
            assert_eq!(rows(&hits)[0].get("v"), None, "{format}: the vector is shown");
        }
    }
    // pgvector and sqlite-vec read a vector as a list.
    let csv = stdout(&run(&["--vector-column", "v", "--output-format", "csv", "a lamp"]));
    let list = csv.lines().nth(1).and_then(|row| row.split('"').nth(1)).unwrap();
    assert!(csv.starts_with("index,tokens,truncated,v\n"), "{csv}");
    assert_eq!(crate::support::numbers(&serde_json::from_str(list).unwrap()), expected);
    for (args, parts) in [
        (["--vector-column", "tokens"], ["tokens is another column", "another name"]),
        (["--vector-column", "chunk"], ["chunk is another column", "another name"]),
    ] {
        assert_fails(&run(&[&args[..], &["a"]].concat()), 2, &parts);
    }
    let npy = path(folder.path(), "a.npy");
    assert_fails(&run(&["--vector-column", "v", "-o", &npy, "a"]), 2, &["npy", "--vector-column"]);
}

#[test]
fn a_dry_run_tells_what_the_run_then_does() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "in.jsonl");
    let long = "a lamp ".repeat(100);
    fs::write(&input, format!("{TEXTS}{{\"id\": 4, \"text\": \"{long}\"}}\n{{\"text\": \" \"}}\n{{}}\n"))
        .unwrap();
    let output = path(folder.path(), "out.jsonl");
    let options =
        ["-i", &input, "-o", &output, "--on-null", "null", "--on-error", "skip", "--max-length", "32"];
    let dry = run(&[&options[..], &["--dry-run"]].concat());
    assert_eq!(dry.status.code(), Some(3), "{}", stderr(&dry));
    assert!(!Path::new(&output).exists());
    let stats = path(folder.path(), "stats.json");
    assert_eq!(run(&[&options[..], &["--stats", &stats]].concat()).status.code(), Some(3));
    let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
    let report = stdout(&dry);
    let value = |name: &str| {
        report.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim().to_owned()
    };
    let count = |name: &str| value(name).split([' ', ',']).next().unwrap().parse::<u64>().ok();
    assert_eq!(count("rows"), stats["rows"].as_u64(), "{report}");
    assert_eq!(count("tokens"), stats["tokens"].as_u64(), "{report}");
    assert_eq!(count("skipped"), stats["failed"].as_u64(), "{report}");
    assert_eq!(count("truncated"), Some(1), "{report}");
    assert_eq!(count("empty"), Some(1), "{report}");
    assert!(value("time").starts_with("about 0 s, at "), "{report}");
    assert_eq!(value("vectors"), "720 B", "{report}");

    let stopped = run(&["-i", &input, "--dry-run"]);
    assert_fails(&stopped, 1, &["the run would stop", "in.jsonl line 2", "\"text\" is null"]);
}

#[test]
fn directories_of_an_output_are_made_and_names_can_have_the_shard() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "in.txt");
    fs::write(&input, "a\nb\nc\n").unwrap();
    let pattern = path(folder.path(), "new/deep/part-{shard}.npy");
    for shard in ["1/10", "10/10"] {
        let done = run(&["-i", &input, "-o", &pattern, "--shard", shard]);
        assert!(done.status.success(), "{}", stderr(&done));
    }
    for name in ["part-01-of-10.npy", "part-10-of-10.npy"] {
        assert!(folder.path().join("new/deep").join(name).is_file(), "{name}");
    }
    assert_fails(&run(&["-i", &input, "-o", &pattern]), 2, &["{shard} needs --shard"]);
}
