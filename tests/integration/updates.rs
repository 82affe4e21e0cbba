//! `embed --append --update --delete`: by id, the output has the rows of an embedding of the new input from
//! nothing.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::arrow::array::RecordBatch;
use crate::support::{arrow, assert_fails, fixture, sconce, stderr};

const FORMATS: [&str; 4] = ["jsonl", "csv", "parquet", "arrow"];
const CHANGES: [&str; 2] = ["--update", "--delete"];

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes records as `(id, text, year)`.
    fn write(&self, records: impl IntoIterator<Item = (usize, String, usize)>) {
        let lines = records
            .into_iter()
            .map(|(id, text, year)| format!("{}\n", json!({"id": id, "text": text, "year": year})));
        fs::write(self.path("texts.jsonl"), lines.collect::<String>()).unwrap();
    }

    fn command(&self, output: &str, args: &[&str]) -> Command {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(self.path("texts.jsonl"));
        command.arg("-o").arg(self.path(output)).args(["--append", "--keep", "year"]).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs, and returns the numbers of records that were added, updated, deleted and unchanged.
    #[track_caller]
    fn counts(&self, output: &str, args: &[&str]) -> [u64; 4] {
        let stats = self.path("stats.json");
        let _ = fs::remove_file(&stats);
        let run = self.command(output, args).arg("--stats").arg(&stats).output().unwrap();
        assert!(run.status.success(), "{}", stderr(&run));
        let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        ["added", "updated", "deleted", "unchanged"].map(|key| stats[key].as_u64().unwrap())
    }

    /// The rows of a file as text, without their `index`, in a fixed order.
    fn rows(&self, name: &str) -> Vec<String> {
        let path = self.path(name);
        let mut rows: Vec<String> = match name.rsplit('.').next().unwrap() {
            "jsonl" => fs::read_to_string(path).unwrap().lines().map(without_index).collect(),
            "csv" => {
                let text = fs::read_to_string(path).unwrap();
                let rows = text.lines().skip(1);
                rows.map(|line| line.split_once(',').unwrap().1.to_owned()).collect()
            }
            "parquet" => {
                let file = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
                file.build().unwrap().flat_map(|batch| rows_of(&batch.unwrap())).collect()
            }
            _ => {
                let file = arrow::ipc::reader::FileReader::try_new(File::open(path).unwrap(), None).unwrap();
                file.flat_map(|batch| rows_of(&batch.unwrap())).collect()
            }
        };
        rows.sort();
        rows
    }
}

fn without_index(line: &str) -> String {
    let mut row: Value = serde_json::from_str(line).unwrap();
    row.as_object_mut().unwrap().remove("index");
    row.to_string()
}

fn rows_of(batch: &RecordBatch) -> Vec<String> {
    (0..batch.num_rows()).map(|row| format!("{:?}", &batch.slice(row, 1).columns()[1..])).collect()
}

fn text(words: usize) -> String {
    "the wick of a lamp ".repeat(1 + words % 13)
}

/// A table, and the same one after changes of each kind: 2 texts and a kept field have changed, 3 records are
/// gone, 2 are new, and the others are in another order.
fn tables() -> [Vec<(usize, String, usize)>; 2] {
    let before: Vec<_> = (0..40).map(|id| (id, text(id), id % 3)).collect();
    let mut after = before.clone();
    (after[3].1, after[17].1, after[20].2) = (text(4), "light".into(), 9);
    after.drain(5..8);
    after.extend([(40, text(40), 0), (41, text(3), 1)]);
    after.reverse();
    [before, after]
}

#[test]
fn the_rows_are_those_of_an_embedding_from_nothing() {
    let [before, after] = tables();
    for format in FORMATS {
        for args in [&[][..], &["--chunk", "12"]] {
            let folder = Folder::new();
            let (grown, whole) = (format!("grown.{format}"), format!("whole.{format}"));
            let changes = [&CHANGES, args].concat();
            folder.write(before.clone());
            assert_eq!(folder.counts(&grown, &changes), [40, 0, 0, 0]);
            folder.write(after.clone());
            assert_eq!(folder.counts(&grown, &changes), [2, 3, 3, 34]);
            folder.counts(&whole, args);
            assert_eq!(folder.rows(&grown), folder.rows(&whole), "{format} {args:?}");
            let modified = || fs::metadata(folder.path(&grown)).unwrap().modified().unwrap();
            let before_last = modified();
            assert_eq!(folder.counts(&grown, &changes), [0, 0, 0, 39]);
            assert_eq!(modified(), before_last, "the file is written again for nothing");
        }
    }
}

/// Rows that stay keep their order, and others follow in the order of the input.
#[test]
fn each_change_alone() {
    let [before, after] = tables();
    let ids = |folder: &Folder| -> Vec<u64> {
        let text = fs::read_to_string(folder.path("a.jsonl")).unwrap();
        text.lines().map(|row| serde_json::from_str::<Value>(row).unwrap()["id"].as_u64().unwrap()).collect()
    };
    let folder = Folder::new();
    folder.write(before.clone());
    folder.counts("a.jsonl", &[]);
    folder.write(after);
    let run = folder.command("a.jsonl", &["--update"]).output().unwrap();
    assert!(stderr(&run).contains("2 records added, 3 updated, 0 deleted"), "{}", stderr(&run));
    let stay = (0..40).filter(|id| ![3, 17, 20].contains(id));
    assert_eq!(ids(&folder), stay.chain([41, 40, 20, 17, 3]).collect::<Vec<_>>());

    let folder = Folder::new();
    folder.write(before.clone());
    folder.counts("a.jsonl", &[]);
    folder.write(before.into_iter().filter(|(id, ..)| id % 2 == 0));
    assert_eq!(folder.counts("a.jsonl", &["--delete"]), [0, 0, 20, 20]);
    assert_eq!(ids(&folder), (0..40).step_by(2).collect::<Vec<_>>());
    folder.write([(4, "other".into(), 0)]);
    assert_eq!(folder.counts("a.jsonl", &CHANGES), [0, 1, 19, 0]);
}

/// Fields of the input are matched with the columns by their names, in any order.
#[test]
fn fields_in_another_order_are_no_change() {
    for format in FORMATS {
        let folder = Folder::new();
        let embed = |records: &str| {
            fs::write(folder.path("texts.jsonl"), records).unwrap();
            let args = ["embed", "--append", "--update", "--keep", "*", "-m"];
            let mut command = sconce();
            command.args(args).arg(fixture("bert-tiny")).arg("-i").arg(folder.path("texts.jsonl"));
            let run = command.arg("-o").arg(folder.path(&format!("a.{format}"))).output().unwrap();
            assert!(run.status.success(), "{format}: {}", stderr(&run));
            stderr(&run)
        };
        embed("{\"id\": 1, \"text\": \"a\", \"x\": 1, \"y\": \"b\"}\n");
        let second = embed(
            "{\"y\": \"c\", \"x\": 2, \"text\": \"b\", \"id\": 2}\n{\"y\": \"b\", \"id\": 1, \"x\": 1, \"text\": \"a\"}\n",
        );
        assert!(second.contains("1 record added, 0 updated, 0 deleted"), "{format}: {second}");
    }
}

/// Each record of an id that has several takes the place of one, whichever they are.
#[test]
fn several_records_of_an_id_are_counted_one_by_one() {
    let record = |id: usize, text: &str| (id, text.to_owned(), 0);
    for format in FORMATS {
        let (folder, out) = (Folder::new(), format!("a.{format}"));
        let run = |texts: &[&str], args: &[&str]| {
            folder.write(texts.iter().map(|text| record(1, text)).chain([record(2, "wick")]));
            let counts = folder.counts(&out, args);
            assert_eq!(folder.rows(&out).len(), texts.len() + 1, "{format}");
            counts
        };
        assert_eq!(run(&["a", "b"], &CHANGES), [3, 0, 0, 0]);
        assert_eq!(run(&["b"], &CHANGES), [0, 0, 1, 2], "one of two is gone");
        assert_eq!(run(&["b", "b", "b"], &CHANGES), [2, 0, 0, 2], "copies of one that is there");
        assert_eq!(run(&["c", "b", "d"], &CHANGES), [0, 2, 0, 2], "two of three have changed");
        assert_eq!(run(&["e"], &CHANGES), [0, 1, 2, 1], "one for three others");
        assert_eq!(run(&["f", "g", "h"], &["--update"]), [2, 1, 0, 1], "three for another");
        assert_eq!(run(&["f"], &["--update"]), [0, 0, 2, 2], "--update alone");
        assert_eq!(run(&["f", "f"], &["--delete"]), [1, 0, 0, 2], "--delete alone");
    }
}

#[test]
fn an_update_that_is_killed_leaves_the_old_file_and_resumes() {
    let many = |shift: usize| (0..3_000).map(move |id| (id, format!("{} {shift}", text(id)), 0));
    let folder = Folder::new();
    let changes = [&CHANGES[..], &["--resume", "--batch-tokens", "256"]].concat();
    folder.write(many(0));
    folder.counts("a.parquet", &changes);
    let old = fs::read(folder.path("a.parquet")).unwrap();
    folder.write(many(1).skip(10));
    let start = Instant::now();
    folder.counts("whole.parquet", &changes);
    let took = start.elapsed();
    for kill in 1..6 {
        let mut child = folder.command("a.parquet", &changes).spawn().unwrap();
        thread::sleep(Duration::from_micros(took.as_micros() as u64 * kill / 16));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(fs::read(folder.path("a.parquet")).unwrap() == old, "the file has changed");
    }
    assert_eq!(folder.counts("a.parquet", &changes), [0, 2_990, 10, 0]);
    assert_eq!(folder.rows("a.parquet"), folder.rows("whole.parquet"));
}

#[test]
fn changes_need_an_id_of_every_record() {
    let folder = Folder::new();
    fs::write(
        folder.path("texts.jsonl"),
        "{\"id\": 1, \"text\": \"a\", \"year\": 1}\n{\"text\": \"b\", \"year\": 1}\n",
    )
    .unwrap();
    let run = |args: &[&str]| folder.command("a.jsonl", args).output().unwrap();
    assert_fails(&run(&["--update"]), 1, &["texts.jsonl line 2 has no id", "--id-field"]);
    assert!(!folder.path("a.jsonl").exists());
    assert!(run(&["--restart"]).status.success());
    folder.write([(1, "a".into(), 1)]);
    assert_fails(&run(&["--delete"]), 1, &["a.jsonl has a row without an id", "write the file again"]);
    assert_fails(&run(&["--delete", "--limit", "1"]), 2, &["--delete", "--limit"]);
    assert_fails(&run(&["--delete", "--on-error", "skip"]), 2, &["--delete", "--on-error skip"]);
}

/// Rows are chunks only with `--chunk`.
#[test]
fn a_kept_field_may_be_named_chunk() {
    for format in FORMATS {
        let folder = Folder::new();
        let output = format!("a.{format}");
        folder.write((0..9).map(|id| (id, text(id), id)));
        let args = ["year=chunk", "--update", "--delete"];
        assert_eq!(folder.counts(&output, &args), [9, 0, 0, 0]);
        folder.write((1..9).map(|id| (id, text(id + usize::from(id == 4)), id)));
        assert_eq!(folder.counts(&output, &args), [0, 1, 1, 7], "{format}");
        assert_eq!(folder.rows(&output).len(), 8, "{format}");
    }
}

#[test]
fn rows_are_added_to_merged_files() {
    let [before, after] = tables();
    for format in FORMATS {
        let folder = Folder::new();
        let merge = |output: &str, parts: [&str; 2]| {
            let mut merge = sconce();
            merge.arg("merge").arg(folder.path(output)).args(parts.map(|part| folder.path(part)));
            let merge = merge.output().unwrap();
            assert!(merge.status.success(), "{}", stderr(&merge));
        };
        let [one, two, merged, whole] = ["1", "2", "merged", "whole"].map(|name| format!("{name}.{format}"));
        folder.write(before.clone());
        folder.counts(&one, &["--shard", "1/2"]);
        folder.counts(&two, &["--shard", "2/2"]);
        let again = folder.command(&two, &["--shard", "2/2"]).output().unwrap();
        assert_fails(&again, 2, &["--shard", "exists", "merged file"]);
        folder.counts(&two, &["--shard", "2/2", "--resume"]);
        merge(&merged, [&one, &two]);
        folder.counts(&whole, &[]);
        assert!(
            fs::read(folder.path(&merged)).unwrap() == fs::read(folder.path(&whole)).unwrap(),
            "{format}"
        );
        folder.write(after.clone());
        assert_eq!(folder.counts(&merged, &CHANGES), [2, 3, 3, 34]);
        fs::remove_file(folder.path(&whole)).unwrap();
        folder.counts(&whole, &[]);
        assert_eq!(folder.rows(&merged), folder.rows(&whole), "{format}");
    }
}

/// An input that a job failed to write is no reason to delete everything.
#[test]
fn an_input_without_records_removes_no_rows() {
    for format in FORMATS {
        let (folder, out) = (Folder::new(), format!("a.{format}"));
        folder.write([(1, text(1), 3), (2, text(2), 4)]);
        folder.counts(&out, &CHANGES);
        let before = fs::read(folder.path(&out)).unwrap();
        folder.write([]);
        for changes in [&["--delete"][..], &CHANGES] {
            let refused = folder.command(&out, changes).output().unwrap();
            assert_fails(&refused, 1, &["--delete would leave", "without rows", "remove the file"]);
        }
        assert_eq!(fs::read(folder.path(&out)).unwrap(), before);
        // Their records may all have no row.
        folder.write([(1, " ".into(), 3)]);
        assert_eq!(folder.counts(&out, &[&CHANGES[..], &["--skip-empty"]].concat()), [0, 0, 2, 0]);
        assert_eq!(folder.rows(&out), Vec::<String>::new());
    }
}
