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
    assert_fails(&with(&[]), 1, &["in.jsonl line 2", "\"text\" is null", "--on-null skip", "--on-null null"]);

    let skipped = with(&["--on-null", "skip", "--resume"]);
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

    // What belongs to the run does not matter to what it would take.
    let nightly = [
        "--dry-run",
        "--resume",
        "--stats",
        &path(folder.path(), "new/s.json"),
        "--cache",
        &path(folder.path(), "c"),
    ];
    assert_eq!(stdout(&run(&[&options[..], &nightly].concat())).lines().next(), report.lines().next());
    assert!(!folder.path().join("new").exists() && !folder.path().join("c").exists());
    let summary = path(folder.path(), "new/s.json");
    assert_eq!(run(&[&options[..], &["--stats", &summary]].concat()).status.code(), Some(3));
    assert!(Path::new(&summary).exists());

    let stopped = run(&["-i", &input, "--dry-run"]);
    assert_fails(&stopped, 1, &["the run would stop", "in.jsonl line 2", "\"text\" is null"]);
}

/// Counts records that the output does not have, and those that differ only with --update.
#[test]
fn a_dry_run_of_append_counts_new_records() {
    let folder = tempfile::tempdir().unwrap();
    let (input, output) = (path(folder.path(), "in.jsonl"), path(folder.path(), "out.parquet"));
    let lines = |texts: &[&str]| {
        let line =
            |(id, text): (usize, &&str)| format!("{{\"n\": 1.50, \"id\": {id}, \"text\": \"{text}\"}}\n");
        fs::write(&input, texts.iter().enumerate().map(line).collect::<String>()).unwrap();
    };
    let append = |more: &[&str]| {
        let found = run(&[&["-i", &input, "-o", &output, "--append", "--keep", "n"], more].concat());
        (found.status.code(), stdout(&found), stderr(&found))
    };
    lines(&["a", "b"]);
    let (code, report, _) = append(&["--dry-run"]);
    assert_eq!((code, report.lines().next()), (Some(0), Some("rows       2")), "{report}");
    assert_eq!(append(&[]).0, Some(0));
    let before = fs::read(&output).unwrap();
    lines(&["a", "b", "c d e"]);
    let (code, report, error) = append(&["--dry-run"]);
    let report: Vec<&str> = report.lines().collect();
    assert_eq!((code, &report[..2]), (Some(0), &["rows       1", "unchanged  2 records"][..]), "{error}");
    assert!(report[2].starts_with("tokens     5, "), "{report:?}");
    lines(&["a", "other"]);
    let (code, _, error) = append(&["--dry-run"]);
    assert!(code == Some(1) && error.contains("pass --update"), "{error}");
    let (code, report, _) = append(&["--dry-run", "--update"]);
    assert_eq!((code, report.lines().next()), (Some(0), Some("rows       1")), "{report}");
    let npy = path(folder.path(), "out.npy");
    let refused = run(&["-i", &input, "-o", &npy, "--append", "--dry-run"]);
    assert_fails(&refused, 2, &["--append needs a column"]);
    assert_eq!(fs::read(&output).unwrap(), before);
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("partial")));
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

#[test]
fn the_column_of_ids_has_the_name_that_the_user_gives_it() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "in.jsonl");
    let write = |second: &str| {
        fs::write(
            &input,
            format!("{{\"sku\": \"a\", \"text\": \"a lamp\"}}\n{{\"sku\": \"b\", \"text\": \"{second}\"}}\n"),
        )
        .unwrap();
    };
    for format in ["jsonl", "csv", "parquet", "arrow"] {
        let output = path(folder.path(), &format!("out.{format}"));
        let args =
            ["-i", &input, "-o", &output, "--id-field", "sku", "--id-column", "sku", "--append", "--update"];
        for (second, expected) in [("light", [2, 0, 0]), ("the wick", [0, 1, 1]), ("the wick", [0, 0, 2])] {
            write(second);
            let stats = path(folder.path(), "stats.json");
            let run = run(&[&args[..], &["--stats", &stats]].concat());
            assert!(run.status.success(), "{format}: {}", stderr(&run));
            let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
            let counts = ["added", "updated", "unchanged"].map(|key| stats[key].as_u64().unwrap());
            assert_eq!(counts, expected, "{format}");
        }
        let found = sconce()
            .args(["search", &output, "--query-vectors", &output, "-k", "1", "--output-format", "jsonl"])
            .output()
            .unwrap();
        let found = rows(&found);
        assert_eq!([&found[0]["sku"], &found[1]["sku"]], [&json!("a"), &json!("b")], "{format}");
        let has_query_ids = ["parquet", "arrow"].contains(&format);
        assert_eq!(found[0].get("query_id").is_some(), has_query_ids, "{format}");
        assert_eq!(found[0].get("id"), None, "{format}");
    }
    // `id` is a name like others then.
    fs::write(&input, "{\"sku\": 7, \"id\": \"x\", \"text\": \"a lamp\"}\n").unwrap();
    let named = ["-i", &input, "--id-field", "sku", "--id-column"];
    let both = rows(&run(&[&named[..], &["sku", "--keep", "id"]].concat()));
    assert_eq!([&both[0]["sku"], &both[0]["id"]], [&json!(7), &json!("x")]);
    for (args, parts) in [
        (&["tokens"][..], ["--id-column tokens", "another name"]),
        (&["id", "--keep", "id"], ["--id-column id", "another name"]),
        (&["v", "--vector-column", "v"], ["v is another column", "another name"]),
        (&["e0", "--output-format", "csv"], ["--id-column e0", "another name"]),
        (&["v", "--output-format", "npy"], ["npy has no column of ids", "parquet"]),
    ] {
        assert_fails(&run(&[&named[..], args].concat()), 2, &parts);
    }
}

#[test]
fn signs_in_unsigned_bytes_are_those_in_signed_ones() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "in.txt");
    fs::write(&input, (0..9).map(|i| format!("{}lamp {i}\n", "the wick ".repeat(i))).collect::<String>())
        .unwrap();
    let embed = |name: &str, args: &[&str]| {
        let output = path(folder.path(), name);
        let run = run(&[&["-i", &input, "-o", &output], args].concat());
        assert!(run.status.success(), "{name}: {}", stderr(&run));
        output
    };
    let signed = embed("signed.npy", &["--dimensions", "32", "--output-dtype", "binary"]);
    let queries = embed("queries.npy", &["--dimensions", "32"]);
    let search = |file: &str| {
        let search = sconce()
            .args(["search", file, "--query-vectors", &queries, "-k", "4", "--output-format", "jsonl"])
            .output()
            .unwrap();
        assert!(search.status.success(), "{file}: {}", stderr(&search));
        let place = |row: &Value| ["query", "index", "score"].map(|name| row[name].clone());
        rows(&search).iter().map(place).collect::<Vec<_>>()
    };
    let expected = search(&signed);
    for format in ["npy", "safetensors", "parquet", "arrow"] {
        let args = ["--dimensions", "32", "--output-dtype", "ubinary"];
        let whole = embed(&format!("whole.{format}"), &args);
        assert_eq!(search(&whole), expected, "{format}");
        let parts = ["1/2", "2/2"].map(|shard| {
            embed(&format!("part-{}.{format}", &shard[..1]), &[&args[..], &["--shard", shard]].concat())
        });
        let merged = path(folder.path(), &format!("merged.{format}"));
        let merge = sconce().args(["merge", &merged]).args(&parts).output().unwrap();
        assert!(merge.status.success(), "{format}: {}", stderr(&merge));
        assert!(fs::read(&merged).unwrap() == fs::read(&whole).unwrap(), "{format}: merged shards differ");
    }
    let bytes = |name: &str| fs::read(path(folder.path(), name)).unwrap()[128..].to_vec();
    assert_eq!(bytes("signed.npy").iter().map(|byte| byte ^ 0x80).collect::<Vec<_>>(), bytes("whole.npy"));
    // Without metadata, as NumPy writes it.
    fs::remove_file(path(folder.path(), "whole.npy.meta.json")).unwrap();
    assert_eq!(search(&path(folder.path(), "whole.npy")), expected);
    for format in ["jsonl", "csv"] {
        let refused =
            run(&["--dimensions", "32", "--output-dtype", "ubinary", "--output-format", format, "a"]);
        assert_fails(&refused, 2, &[format, "does not tell --output-dtype ubinary from binary", "parquet"]);
    }
}
