//! `embed --append` encodes only the records that the output has no rows of, and the output is that of one
//! run.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{assert_fails, fixture, sconce, stderr};

const FORMATS: [&str; 4] = ["jsonl", "csv", "parquet", "arrow"];

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes records `from..to`, some of which cannot be read, are too long or have the text of another one.
    fn write(&self, from: usize, to: usize, has_ids: bool) {
        let lines = (from..to).map(|i| match i % 29 {
            7 => "{\"text\": 7}\n".to_owned(),
            _ => {
                let mut record = json!({"text": "the wick ".repeat(1 + i % 23), "year": i % 5});
                if has_ids {
                    record["id"] = i.into();
                }
                format!("{record}\n")
            }
        });
        fs::write(self.path("texts.jsonl"), lines.collect::<String>()).unwrap();
    }

    fn command(&self, output: &str, args: &[&str]) -> Command {
        let mut command = sconce();
        // Only a model like BGE-M3 has several outputs.
        let model = fixture(if args.contains(&"--outputs") { "unified/m3" } else { "bert-tiny" });
        command.arg("embed").arg("-m").arg(model).arg("-i").arg(self.path("texts.jsonl"));
        command.arg("-o").arg(self.path(output)).args([
            "-q",
            "--append",
            "--on-error",
            "skip",
            "--keep",
            "year",
        ]);
        command
            .arg("--stats")
            .arg(self.path("stats.json"))
            .args(args)
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }

    fn run(&self, output: &str, args: &[&str]) -> Output {
        self.command(output, args).output().unwrap()
    }

    /// Runs, and returns the number of encoded and of unchanged records.
    #[track_caller]
    fn counts(&self, output: &str, args: &[&str]) -> (u64, u64) {
        // A summary that an earlier run has left is not read as that of this one.
        let _ = fs::remove_file(self.path("stats.json"));
        let run = self.run(output, args);
        assert!(matches!(run.status.code(), Some(0 | 3)), "{}", stderr(&run));
        let stats: Value = serde_json::from_slice(&fs::read(self.path("stats.json")).unwrap()).unwrap();
        (stats["texts"].as_u64().unwrap(), stats["unchanged"].as_u64().unwrap())
    }

    #[track_caller]
    fn assert_same(&self, a: &str, b: &str) {
        assert!(fs::read(self.path(a)).unwrap() == fs::read(self.path(b)).unwrap(), "{a} and {b} differ");
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn only_new_records_are_encoded_and_the_file_is_that_of_one_run() {
    for has_ids in [true, false] {
        for format in FORMATS {
            let folder = Folder::new();
            let (grown, whole) = (format!("grown.{format}"), format!("whole.{format}"));
            folder.write(0, 87, has_ids);
            assert_eq!(folder.counts(&grown, &[]), (84, 0));
            folder.write(0, 145, has_ids);
            assert_eq!(folder.counts(&grown, &[]), (56, 84));
            let before = fs::metadata(folder.path(&grown)).unwrap().modified().unwrap();
            assert_eq!(folder.counts(&grown, &[]), (0, 140), "nothing is encoded twice");
            assert_eq!(fs::metadata(folder.path(&grown)).unwrap().modified().unwrap(), before);
            assert_eq!(folder.counts(&whole, &[]), (140, 0));
            folder.assert_same(&whole, &grown);
            folder.assert_same(&format!("{whole}.ledger.jsonl"), &format!("{grown}.ledger.jsonl"));
            let left = folder
                .names()
                .into_iter()
                .filter(|name| name.contains(".append") || name.contains(".partial"));
            assert_eq!(left.collect::<Vec<_>>(), Vec::<String>::new());
        }
    }
}

#[test]
fn chunks_of_a_record_are_found_together() {
    for format in FORMATS {
        let folder = Folder::new();
        let (grown, whole) = (format!("grown.{format}"), format!("whole.{format}"));
        folder.write(0, 20, false);
        folder.counts(&grown, &["--chunk", "8"]);
        folder.write(0, 40, false);
        assert_eq!(folder.counts(&grown, &["--chunk", "8"]).1, 19);
        folder.counts(&whole, &["--chunk", "8"]);
        folder.assert_same(&whole, &grown);
    }
}

#[test]
fn rows_of_several_outputs_are_appended_again_and_again() {
    for format in ["jsonl", "parquet", "arrow"] {
        let folder = Folder::new();
        let (grown, whole) = (format!("grown.{format}"), format!("whole.{format}"));
        let args = ["--outputs", "dense,lexical,multi-vector"];
        for (to, counts) in [(10, (9, 0)), (20, (10, 9)), (30, (10, 19))] {
            folder.write(0, to, true);
            assert_eq!(folder.counts(&grown, &args), counts, "{format}");
        }
        folder.counts(&whole, &args);
        folder.assert_same(&whole, &grown);
    }
}

/// A row without an end is not read into memory.
#[test]
fn a_row_of_any_length_is_refused() {
    let folder = Folder::new();
    folder.write(0, 5, true);
    for (name, start) in [("a.jsonl", "{\"index\":0,\"id\":\""), ("a.csv", "index,id,record_hash\n0,\"")] {
        fs::write(folder.path(name), start).unwrap();
        let file = fs::File::options().append(true).open(folder.path(name)).unwrap();
        file.set_len(1 << 30).unwrap();
        let parts = [name, "it has a row longer than 256 MiB", "write the file again"];
        assert_fails(&folder.run(name, &[]), 1, &parts);
    }
}

#[test]
fn rows_of_records_that_are_gone_stay() {
    let folder = Folder::new();
    folder.write(0, 30, true);
    folder.counts("grown.jsonl", &[]);
    let before = fs::read(folder.path("grown.jsonl")).unwrap();
    folder.write(20, 50, true);
    assert_eq!(folder.counts("grown.jsonl", &[]), (19, 10));
    assert!(fs::read(folder.path("grown.jsonl")).unwrap().starts_with(&before));
}

#[test]
fn an_append_that_is_killed_twenty_times_gives_the_file_of_one_run() {
    thread::scope(|scope| {
        for format in ["jsonl", "parquet"] {
            scope.spawn(move || kill_twenty_times(format));
        }
    });
}

/// Kills come at random times; the file is at each of them the old or the new one.
fn kill_twenty_times(format: &str) {
    let folder = Folder::new();
    let (grown, whole) = (format!("grown.{format}"), format!("whole.{format}"));
    let args = ["--batch-tokens", "256", "--resume"];
    folder.write(0, 2_000, true);
    folder.counts(&grown, &args);
    folder.write(0, 12_000, true);
    let start = Instant::now();
    folder.counts(&whole, &args);
    let took = start.elapsed();
    let [old, new] = [&grown, &whole].map(|name| fs::read(folder.path(name)).unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for _ in 0..20 {
        let mut child = folder.command(&grown, &args).spawn().unwrap();
        thread::sleep(Duration::from_micros(random.random_range(0..=took.as_micros() as u64 / 4)));
        child.kill().unwrap();
        child.wait().unwrap();
        let found = fs::read(folder.path(&grown)).unwrap();
        assert!(found == old || found == new, "neither the old nor the new file");
    }
    folder.counts(&grown, &args);
    folder.assert_same(&whole, &grown);
    assert_eq!(folder.counts(&grown, &args).0, 0);
}

#[test]
fn an_append_that_would_mix_rows_is_refused() {
    let folder = Folder::new();
    folder.write(0, 20, true);
    folder.counts("a.jsonl", &[]);
    let before = fs::read(folder.path("a.jsonl")).unwrap();
    let other = folder.run("a.jsonl", &["--pooling", "cls"]);
    assert_fails(&other, 1, &["a.jsonl was written with another model or other options"]);
    let text = fs::read_to_string(folder.path("texts.jsonl")).unwrap();
    fs::write(folder.path("texts.jsonl"), text.replacen("the wick", "the lamp", 1)).unwrap();
    let changed = folder.run("a.jsonl", &[]);
    assert_fails(&changed, 1, &["texts.jsonl line 1 has the id \"0\"", "--append only adds records"]);
    assert!(fs::read(folder.path("a.jsonl")).unwrap() == before);
    fs::write(folder.path("b.jsonl"), "{\"index\":0,\"tokens\":1,\"truncated\":false,\"embedding\":[1.0]}\n")
        .unwrap();
    assert_fails(&folder.run("b.jsonl", &[]), 1, &["b.jsonl has no column record_hash"]);
    let mut npy = sconce();
    npy.arg("embed")
        .arg("-m")
        .arg(fixture("bert-tiny"))
        .args(["--append", "a", "-o"])
        .arg(folder.path("a.npy"));
    let npy = npy.output().unwrap();
    assert_fails(&npy, 2, &["--append needs a column", "npy"]);
}

/// Runs over these records, which are the input.
#[track_caller]
fn append(folder: &Folder, output: &str, records: &[Value], args: &[&str]) -> Output {
    let _ = fs::remove_file(folder.path("stats.json"));
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    fs::write(folder.path("texts.jsonl"), lines).unwrap();
    folder.run(output, args)
}

/// The first records of a run do not give its columns other types than the file has.
#[test]
fn new_rows_have_the_types_of_the_columns_of_the_file() {
    let record = |text: &str, id: Value, year: Value| json!({"text": text, "id": id, "year": year});
    let (a, null) = (|id: Value, year: Value| record("a lamp", id, year), Value::Null);
    let b = |id: Value, year: Value| record("the wick", id, year);
    let cases = [
        ("whole numbers after floats", vec![a(1.into(), 0.5.into())], b(2.into(), 7.into())),
        ("numbers after texts", vec![a("x".into(), "y".into())], b(2.into(), 7.into())),
        ("null after numbers", vec![a(1.into(), 7.into())], b(2.into(), null.clone())),
        ("no id after ids", vec![a(1.into(), 7.into())], json!({"text": "the wick", "year": 8})),
        ("numbers after null", vec![a(1.into(), null.clone())], b(2.into(), 7.into())),
        ("the first record", vec![], b(2.into(), 7.into())),
    ];
    for format in FORMATS {
        for (name, first, second) in &cases {
            let folder = Folder::new();
            let (grown, whole) = (format!("grown.{format}"), format!("whole.{format}"));
            let all = [&first[..], std::slice::from_ref(second)].concat();
            // The input of the second day has all records, or only the new one.
            for (output, second) in [(&grown, &all[..]), (&"other".to_owned(), &all[first.len()..])] {
                let output = if output == "other" { format!("other.{format}") } else { output.clone() };
                for records in [first, second] {
                    let run = append(&folder, &output, records, &[]);
                    assert!(run.status.success(), "{format}, {name}: {}", stderr(&run));
                }
            }
            assert!(append(&folder, &whole, &all, &[]).status.success());
            folder.assert_same(&whole, &grown);
        }
    }
}

/// A file without rows takes the columns of the new records, however it was written, and `merge` and
/// `--keep '*'` the columns of files with rows.
#[test]
fn a_first_day_without_records_says_nothing_of_columns() {
    for format in FORMATS {
        for (suffix, empty, text) in [
            ("jsonl", "", "{\"id\": 1, \"text\": \"a lamp\", \"year\": 3}\n"),
            ("csv", "text,id\n", "id,text,year\n1,a lamp,3\n"),
        ] {
            let folder = Folder::new();
            let path = |name: &str| folder.path(name).display().to_string();
            let [first, second] = ["1", "2"].map(|day| path(&format!("{day}.{suffix}")));
            fs::write(&first, empty).unwrap();
            fs::write(&second, text).unwrap();
            let run = |inputs: &[&String], out: &str, args: &[&str]| {
                let mut run = sconce();
                run.args(["embed", "--keep", "*", "-m"]).arg(fixture("bert-tiny")).args(args);
                run.arg("-o").arg(folder.path(&format!("{out}.{format}")));
                let run = run.arg("-i").args(inputs).output().unwrap();
                assert!(run.status.success(), "{format}: {}", stderr(&run));
            };
            run(&[&second], "whole", &["--append"]);
            for (out, args) in [("grown", &["--append"][..]), ("plain", &[])] {
                run(&[&first], out, args);
                run(&[&second], out, &["--append"]);
                folder.assert_same(&format!("whole.{format}"), &format!("{out}.{format}"));
            }
            if suffix == "jsonl" {
                run(&[&first, &second], "both", &["--append"]);
                folder.assert_same(&format!("whole.{format}"), &format!("both.{format}"));
            }
            run(&[&first], "empty", &["--append"]);
            for parts in [["empty", "whole"], ["whole", "empty"]] {
                let mut merge = sconce();
                merge.arg("merge").arg(folder.path(&format!("merged.{format}")));
                merge.args(parts.map(|part| folder.path(&format!("{part}.{format}"))));
                let merge = merge.output().unwrap();
                assert!(merge.status.success(), "{format}: {}", stderr(&merge));
                folder.assert_same(&format!("whole.{format}"), &format!("merged.{format}"));
            }
        }
    }
}

/// Nothing is encoded, and no row counted.
#[test]
fn values_of_other_types_than_the_column_are_refused_before_any_is_encoded() {
    let record =
        |i: u64, id: Value, year: Value| json!({"text": format!("lamp {i}"), "id": id, "year": year});
    for format in ["csv", "parquet", "arrow"] {
        let folder = Folder::new();
        let out = format!("a.{format}");
        let first: Vec<Value> = (0..3).map(|i| record(i, i.into(), i.into())).collect();
        assert!(append(&folder, &out, &first, &[]).status.success());
        let before = fs::read(folder.path(&out)).unwrap();
        let assert_refused = |new: Value, args: &[&str], parts: &[&str]| {
            let run =
                append(&folder, &out, &[&first[..], &[record(8, 8.into(), 8.into()), new]].concat(), args);
            assert_fails(&run, 1, parts);
            assert!(!folder.path("stats.json").exists(), "no row is counted");
            assert!(fs::read(folder.path(&out)).unwrap() == before);
            let left: Vec<String> =
                folder.names().into_iter().filter(|name| name.contains(".partial")).collect();
            assert!(left.iter().all(|name| name.ends_with(".lock")), "{left:?}");
        };
        if format != "csv" {
            let parts = [
                "line 5 has the id \"x\", which is text",
                "\"id\" of",
                "holds 64-bit integers",
                "another file",
            ];
            assert_refused(record(9, "x".into(), 9.into()), &[], &parts);
        }
        // A value that does not fit is null, if others do.
        let new = [&first[..], &[record(8, 8.into(), 8.into()), record(9, 9.into(), "x".into())]].concat();
        let run = append(&folder, &out, &new, &[]);
        assert!(matches!(run.status.code(), Some(0 | 3)), "{}", stderr(&run));
        let ledger = fs::read_to_string(folder.path(&format!("{out}.ledger.jsonl"))).unwrap_or_default();
        assert_eq!(ledger.contains("\"nulled\""), format != "csv", "{ledger}");
        // Only values of another type are not those of this column.
        if format != "csv" {
            let run = append(&folder, &out, &[record(10, 10.into(), "x".into())], &[]);
            let parts = ["has \"x\" in field \"year\", where new records have text", "holds 64-bit integers"];
            assert_fails(&run, 1, &parts);
        }
    }
}

/// csv writes both as an empty field.
#[test]
fn an_empty_id_is_refused_for_csv_before_the_file_is_written() {
    let folder = Folder::new();
    let records = [json!({"text": "a lamp", "id": "", "year": 1})];
    for format in ["jsonl", "parquet", "arrow"] {
        let out = format!("a.{format}");
        assert!(append(&folder, &out, &records, &["--update"]).status.success());
        assert!(append(&folder, &out, &records, &["--update"]).status.success());
    }
    let parts = ["has an empty id, which csv cannot tell from none", "write jsonl, parquet or arrow"];
    assert_fails(&append(&folder, "a.csv", &records, &["--update"]), 1, &parts);
    assert!(append(&folder, "a.csv", &records, &[]).status.success());
    let parts = [
        "a.csv has a row with an empty id, which csv cannot tell from none",
        "write jsonl, parquet or arrow",
    ];
    assert_fails(&append(&folder, "a.csv", &records, &["--update"]), 1, &parts);
}
