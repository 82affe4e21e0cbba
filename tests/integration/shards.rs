//! `--shard I/N`: the outputs of all shards, one after another, are the output of one run, and `sconce merge` joins them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{assert_fails, fixture, kill_after_first_save, sconce, stderr};

const SHARDS: usize = 3;

/// A folder with inputs.
struct Inputs {
    folder: TempDir,
}

impl Inputs {
    /// A jsonl file with unreadable, empty and long records, whose ids are numbers in the first records and texts in the last.
    fn new(records: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let line = |i: usize| match i % 17 {
            5 => "{\"text\": 7}".to_owned(),
            9 => json!({"text": " ", "id": i, "year": i}).to_string(),
            11 => json!({"text": "lamp ".repeat(60), "id": i, "year": i}).to_string(),
            n if i > records / 2 => {
                json!({"text": "the wick ".repeat(n), "id": format!("n{i}"), "year": 0.5}).to_string()
            }
            n => json!({"text": "the wick ".repeat(n), "id": i, "year": i}).to_string(),
        };
        let lines: Vec<String> = (0..records).map(line).collect();
        fs::write(folder.path().join("texts.jsonl"), lines.join("\n")).unwrap();
        Inputs { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, input: &str, output: &str, args: &[&str]) -> Command {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(self.path(input));
        command.arg("-o").arg(self.path(output)).args(["-q", "--on-error", "skip"]).args(args);
        command
    }

    #[track_caller]
    fn run(&self, input: &str, output: &str, args: &[&str]) {
        let run = self.command(input, output, args).output().unwrap();
        assert!(matches!(run.status.code(), Some(0 | 3)), "{}", stderr(&run));
    }

    /// Writes the whole output and the shards, and merges these.
    #[track_caller]
    fn merged(&self, input: &str, format: &str, args: &[&str]) -> [PathBuf; 2] {
        self.run(input, &format!("whole.{format}"), args);
        let parts: Vec<String> = (1..=SHARDS).map(|i| format!("part-{i}.{format}")).collect();
        for (part, i) in parts.iter().zip(1..) {
            self.run(input, part, &[args, &["--shard", &format!("{i}/{SHARDS}")]].concat());
        }
        let merged = format!("merged.{format}");
        let run = self.merge(&merged, &parts.iter().map(String::as_str).collect::<Vec<_>>());
        assert!(run.status.success(), "{}", stderr(&run));
        [self.path(&format!("whole.{format}")), self.path(&merged)]
    }

    fn merge(&self, output: &str, parts: &[&str]) -> Output {
        let parts = parts.iter().map(|part| self.path(part));
        sconce().args(["merge", "-q"]).arg(self.path(output)).args(parts).output().unwrap()
    }
}

/// Asserts that two files are equal, with the files beside them that `suffixes` name.
#[track_caller]
fn assert_same([whole, merged]: &[PathBuf; 2], suffixes: &[&str]) {
    for suffix in suffixes {
        let read = |path: &Path| fs::read(format!("{}{suffix}", path.display())).unwrap();
        assert!(read(whole) == read(merged), "{}{suffix} differs", merged.display());
    }
}

#[test]
fn merged_shards_have_the_bytes_of_one_run_in_every_format() {
    let inputs = Inputs::new(200);
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors"] {
        let keep: &[&str] = if ["npy", "safetensors"].contains(&format) { &[] } else { &["--keep", "year"] };
        for extra in
            [&["--skip-empty", "--on-long", "skip"][..], &["--limit", "123"], &["--output-dtype", "int8"]]
        {
            let files = inputs.merged("texts.jsonl", format, &[keep, extra].concat());
            assert_same(&files, &["", ".ledger.jsonl"]);
            if format == "npy" {
                assert_same(&files, &[".meta.json"]);
            }
        }
    }
}

#[test]
fn merged_chunks_have_the_bytes_of_one_run() {
    let inputs = Inputs::new(60);
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors"] {
        let files = inputs.merged("texts.jsonl", format, &["--chunk", "8"]);
        assert_same(
            &files,
            if format == "npy" { &["", ".ledger.jsonl", ".meta.json"] } else { &["", ".ledger.jsonl"] },
        );
    }
}

#[test]
fn other_rows_are_merged_too() {
    let inputs = Inputs::new(60);
    for format in ["jsonl", "parquet", "arrow"] {
        for extra in [
            &["--pooling", "none"][..],
            &["--output-dtype", "binary", "--dimensions", "16"],
            &["--output-dtype", "f16"],
        ] {
            assert_same(&inputs.merged("texts.jsonl", format, extra), &[""]);
        }
    }
}

#[test]
fn labels_and_sparse_vectors_are_merged() {
    let inputs = Inputs::new(40);
    for (task, model, formats) in [
        ("classify", "heads/bert", &["jsonl", "csv", "parquet", "arrow"][..]),
        ("embed", "sparse/bert-max", &["jsonl", "csv", "parquet", "arrow", "npz"][..]),
    ] {
        for format in formats {
            let run = |output: &str, args: &[&str]| {
                let mut command = sconce();
                command.arg(task).arg("-m").arg(fixture(model)).arg("-i").arg(inputs.path("texts.jsonl"));
                command.arg("-o").arg(inputs.path(output)).args(["-q", "--on-error", "skip"]).args(args);
                let run = command.output().unwrap();
                assert_eq!(run.status.code(), Some(3), "{task} {}", stderr(&run));
            };
            let [whole, a, b, merged] =
                ["whole", "a", "b", "merged"].map(|name| format!("{task}-{name}.{format}"));
            run(&whole, &[]);
            run(&a, &["--shard", "1/2"]);
            run(&b, &["--shard", "2/2"]);
            let run = inputs.merge(&merged, &[&a, &b]);
            assert!(run.status.success(), "{}", stderr(&run));
            assert_same(&[inputs.path(&whole), inputs.path(&merged)], &[""]);
        }
    }
}

#[test]
fn shards_are_of_the_records_of_all_files() {
    let inputs = Inputs::new(10);
    let docs = inputs.path("docs");
    fs::create_dir(&docs).unwrap();
    fs::write(docs.join("a.txt"), "one\ntwo\nthree").unwrap();
    fs::write(docs.join("b.csv"), "text,note\n\"four\nlines\",x\nfive,\"y\nz\"\n").unwrap();
    fs::write(docs.join("c.jsonl"), "{\"text\":\"six\"}\n").unwrap();
    assert_same(&inputs.merged("docs", "jsonl", &["--keep", "file", "line"]), &[""]);
    assert_same(&inputs.merged("docs", "parquet", &["--input-format", "files"]), &[""]);
    let rows = fs::read_to_string(inputs.path("part-2.jsonl")).unwrap();
    let indices: Vec<Value> =
        rows.lines().map(|row| serde_json::from_str::<Value>(row).unwrap()["index"].clone()).collect();
    assert_eq!(indices, [2, 3]);
}

#[test]
fn a_shard_may_be_empty() {
    let inputs = Inputs::new(2);
    for format in ["jsonl", "csv", "parquet", "arrow", "npy", "safetensors"] {
        assert_same(&inputs.merged("texts.jsonl", format, &[]), &[""]);
    }
}

#[test]
fn a_killed_shard_is_resumed() {
    let inputs = Inputs::new(120_000);
    let args = ["--batch-tokens", "256", "--shard", "2/2"];
    inputs.run("texts.jsonl", "whole.jsonl", &args);
    kill_after_first_save(
        &mut inputs.command("texts.jsonl", "killed.jsonl", &args),
        &inputs.path("killed.jsonl"),
    );
    let mut other = inputs.command(
        "texts.jsonl",
        "killed.jsonl",
        &["--resume", "--batch-tokens", "256", "--shard", "1/2"],
    );
    let other = other.output().unwrap();
    assert_fails(&other, 2, &["--resume: --shard has changed since that run, from 2/2 to 1/2"]);
    let resumed =
        inputs.command("texts.jsonl", "killed.jsonl", &[&args[..], &["--resume"]].concat()).output().unwrap();
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
    assert_same(&["whole.jsonl", "killed.jsonl"].map(|name| inputs.path(name)), &["", ".ledger.jsonl"]);
}

#[test]
fn a_shard_that_cannot_be_is_refused() {
    let inputs = Inputs::new(3);
    for (shard, message) in [
        ("0/4", "shards are numbered from 1; pass 1/4 to 4/4"),
        ("5/4", "shards are numbered from 1; pass 1/4 to 4/4"),
        ("1/0", "there is no shard of 0"),
        ("half", "expected a number and a count, for example 2/4"),
    ] {
        let run = inputs.command("texts.jsonl", "x.jsonl", &["--shard", shard]).output().unwrap();
        assert_eq!(run.status.code(), Some(2));
        assert!(stderr(&run).contains(message), "{}", stderr(&run));
    }
    let stdin =
        sconce().arg("embed").arg("-m").arg(fixture("bert-tiny")).args(["--shard", "1/2"]).output().unwrap();
    assert_fails(&stdin, 2, &["--shard reads its input twice", "pass --input FILE"]);
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let inputs = Inputs::new(30);
    inputs.merged("texts.jsonl", "parquet", &[]);
    inputs.merged("texts.jsonl", "jsonl", &[]);
    let refused = |parts: &[&str], messages: &[&str]| {
        let output = inputs.path("refused");
        assert_fails(&inputs.merge("refused", parts), 1, messages);
        assert!(!output.exists());
    };
    for format in ["parquet", "jsonl"] {
        let [a, b, c] = [1, 2, 3].map(|i| format!("part-{i}.{format}"));
        refused(&[&b, &a, &c], &["is shard 2/3, but is file 1 of 3"]);
        refused(&[&a, &b], &["is shard 1/3, but is file 1 of 2"]);
        refused(&[&a, &b, &format!("whole.{format}")], &["whole", "is not a shard, but other files are"]);
    }
    refused(&["part-1.parquet", "part-2.jsonl"], &["parquet", "jsonl", "merge files of one format"]);
    inputs.run("texts.jsonl", "cls.parquet", &["--pooling", "cls"]);
    refused(&["whole.parquet", "cls.parquet"], &["differ in pooling: \"mean\" and \"cls\""]);
    inputs.run("texts.jsonl", "kept.csv", &["--keep", "year"]);
    inputs.run("texts.jsonl", "plain.csv", &[]);
    refused(&["kept.csv", "plain.csv"], &["plain.csv has other columns than", "kept.csv"]);
    let cut = fs::read(inputs.path("whole.jsonl")).unwrap();
    fs::write(inputs.path("cut.jsonl"), &cut[..cut.len() - 5]).unwrap();
    refused(&["cut.jsonl", "whole.jsonl"], &["cut.jsonl ends in the middle of a row"]);
    refused(&["texts.jsonl", "none.jsonl"], &["none.jsonl", "check the path"]);
}

#[test]
fn files_that_are_no_shards_are_merged_in_order() {
    let inputs = Inputs::new(20);
    inputs.run("texts.jsonl", "a.npy", &[]);
    inputs.run("texts.jsonl", "b.npy", &["--limit", "4"]);
    assert!(inputs.merge("ab.npy", &["a.npy", "b.npy"]).status.success());
    let [a, b, ab] = ["a.npy", "b.npy", "ab.npy"].map(|name| fs::read(inputs.path(name)).unwrap());
    assert_eq!(ab[128..], [&a[128..], &b[128..]].concat());
}
