//! Records that cannot be read. With `--on-error skip` the other records are written, the ledger names each
//! skipped one, and the exit code is 3; with `stop` there is no output file.

use crate::support;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use crate::support::{assert_fails, embedding, fixture, rows, sconce, stderr};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A temporary folder with an input file.
struct Folder {
    folder: TempDir,
    input: PathBuf,
}

impl Folder {
    fn new(name: &str, content: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join(name);
        fs::write(&input, content).unwrap();
        Folder { folder, input }
    }

    fn run(&self, output: &str, args: &[&str]) -> Output {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(&self.input);
        command.arg("-o").arg(self.folder.path().join(output)).args(args).output().unwrap()
    }

    fn lines(&self, name: &str) -> Vec<Value> {
        lines(&self.folder.path().join(name))
    }
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// JSON lines, good ones and one with each kind of fault. The second value is the start of the expected
/// reason; `None` for a good line.
fn faults() -> Vec<(Vec<u8>, Option<&'static str>)> {
    let mut long = b"{\"text\": \"".to_vec();
    long.resize(50 << 20, b'a');
    long.extend(b"\"}");
    vec![
        (b"{\"id\": 1, \"text\": \"the lamp\"}".to_vec(), None),
        (b"{\"id\": 2, \"text\": \"the".to_vec(), Some("is not valid JSON (column 22)")),
        (b"{\"id\": 3, \"title\": \"the lamp\"}".to_vec(), Some("has no field \"text\"")),
        (b"{\"id\": 4, \"text\": null}".to_vec(), Some("cannot be used: field \"text\" is null")),
        (b"{\"id\": 5, \"text\": 5}".to_vec(), Some("cannot be used: field \"text\" is a number")),
        (
            b"{\"id\": 6, \"text\": \"the \xff\xfe\"}".to_vec(),
            Some("is not valid UTF-8 (byte 24 of the line)"),
        ),
        (b"[1, 2]".to_vec(), Some("is not a JSON object")),
        (long, Some("is longer than 16 MiB")),
        (vec![b'['; 100_000], Some("is not valid JSON")),
        (b"{\"id\": 10, \"text\": \"the wick\"}".to_vec(), None),
    ]
}

#[test]
fn readable_records_are_written_and_unreadable_ones_are_in_the_ledger() {
    let faults = faults();
    let folder = Folder::new(
        "texts.jsonl",
        &faults.iter().map(|(line, _)| &line[..]).collect::<Vec<_>>().join(&b'\n'),
    );
    for format in ["jsonl", "csv", "parquet"] {
        let name = format!("out.{format}");
        let output = folder.run(
            &name,
            &["--on-error", "skip", "--stats", folder.input.with_file_name("s").to_str().unwrap()],
        );
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let ledger_name = format!("{name}.ledger.jsonl");
        let message = stderr(&output);
        assert!(
            message.contains("8 records were skipped because they could not be used")
                && message.contains(&ledger_name),
            "{message}"
        );
        let ledger = folder.lines(&ledger_name);
        let bad: Vec<_> =
            faults.iter().enumerate().filter_map(|(i, (_, reason))| Some((i, (*reason)?))).collect();
        assert_eq!(ledger.len(), bad.len());
        for (entry, (index, reason)) in ledger.iter().zip(bad) {
            assert_eq!(entry["index"], index);
            assert_eq!(entry["file"], folder.input.to_str().unwrap());
            assert_eq!(entry["line"], index + 1);
            assert_eq!(entry["event"], "failed");
            let found = entry["reason"].as_str().unwrap();
            assert!(found.starts_with(reason), "{found}");
        }
        let stats = &folder.lines_of_stats();
        assert_eq!((&stats["rows"], &stats["failed"]), (&json!(2), &json!(8)));
    }
    let found = folder.lines("out.jsonl");
    let expected = rows(&support::embed("bert-tiny", ["the lamp", "the wick"]));
    assert_eq!(
        found.iter().map(|row| (&row["index"], &row["id"])).collect::<Vec<_>>(),
        [(&json!(0), &json!(1)), (&json!(9), &json!(10))]
    );
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(embedding(found), embedding(expected));
    }
}

impl Folder {
    fn lines_of_stats(&self) -> Value {
        serde_json::from_slice(&fs::read(self.input.with_file_name("s")).unwrap()).unwrap()
    }
}

#[test]
fn the_first_unreadable_record_stops_a_run() {
    for (index, (line, reason)) in faults().into_iter().enumerate() {
        let Some(reason) = reason else { continue };
        let folder = Folder::new("texts.jsonl", &[b"{\"text\": \"a lamp\"}\n", &line[..]].concat());
        for args in [&["--quiet"][..], &["--quiet", "--restart", "--on-error", "stop"]] {
            let output = folder.run("out.npy", args);
            assert_fails(
                &output,
                1,
                &[&format!("texts.jsonl line 2 {reason}"), "1 row is saved", "--resume"],
            );
            assert!(!folder.folder.path().join("out.npy").exists(), "{index}");
            assert!(!folder.folder.path().join("out.npy.ledger.jsonl").exists(), "{index}");
        }
    }
    // A run that has no rows to resume from leaves no files.
    let folder = Folder::new("texts.jsonl", b"{}\n");
    assert_fails(&folder.run("out.npy", &[]), 1, &["texts.jsonl line 1", "has no field"]);
    assert_eq!(fs::read_dir(folder.folder.path()).unwrap().count(), 1);
}

/// Standard output has no ledger: each skipped record is named on standard error.
#[test]
fn without_an_output_file_skipped_records_are_named_on_standard_error() {
    let folder =
        Folder::new("texts.csv", b"text,id\nthe lamp,1\nthe,wick,2\n\"a\nb\",3\n\xff,4\nthe wick,5\n");
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(&folder.input);
    let output = command.args(["--on-error", "skip"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let message = stderr(&output);
    for part in [
        "skipped: ",
        "texts.csv line 3 has 3 fields",
        "texts.csv line 6 is not valid UTF-8",
        "2 records were",
    ] {
        assert!(message.contains(part), "{message}");
    }
    let ids: Vec<Value> = support::stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone())
        .collect();
    assert_eq!(ids, ["1", "3", "5"]);
}

/// A value that does not fit the type of its column ends the run, or is written as null and listed in the
/// ledger. JSON and CSV columns have no type.
#[test]
fn values_that_do_not_fit_their_column_end_the_run_or_are_nulled() {
    let first = "{\"text\": \"the lamp\", \"year\": 1999}\n".repeat(1000);
    let later = "{\"text\": \"the wick\", \"year\": \"unknown\"}\n{\"text\": \"a\", \"id\": 7}\n";
    let folder = Folder::new("texts.jsonl", format!("{first}{later}").as_bytes());
    // The first records decide the type, whatever the batch size.
    for tokens in ["64", "4096"] {
        let output =
            folder.run("out.parquet", &["--keep", "year", "--batch-tokens", tokens, "--quiet", "--restart"]);
        let parts = [
            "texts.jsonl line 1001",
            "\"unknown\"",
            "\"year\"",
            "64-bit integers",
            "--keep",
            "--on-error skip",
        ];
        assert_fails(&output, 1, &parts);
    }
    let output = folder.run("out.parquet", &["--keep", "year", "--on-error", "skip", "--resume"]);
    assert_eq!(output.status.code(), Some(0), "no record was skipped");
    assert!(stderr(&output).contains("2 records were written with null"), "{}", stderr(&output));
    let ledger = folder.lines("out.parquet.ledger.jsonl");
    let events: Vec<_> = ledger.iter().map(|entry| (&entry["line"], &entry["event"])).collect();
    assert_eq!(events, [(&json!(1001), &json!("nulled")), (&json!(1002), &json!("nulled"))]);
    assert!(ledger[1]["reason"].as_str().unwrap().contains("--id-field"));
    // The column has the type of the first records.
    let back = support::embed(
        "bert-tiny",
        ["-i", folder.folder.path().join("out.parquet").to_str().unwrap(), "--text-field", "year"],
    );
    assert_fails(&back, 1, &["out.parquet", "\"year\"", "64-bit integers"]);
    let output = folder.run("out.jsonl", &["--keep", "year"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = folder.lines("out.jsonl");
    assert_eq!((&rows[1000]["year"], &rows[1001]["id"]), (&json!("unknown"), &json!(7)));
    assert_eq!(rows[1001]["year"], Value::Null);
    let output = folder.run("out.csv", &["--keep", "year", "--id-field", "id", "--on-error", "skip"]);
    assert_eq!(output.status.code(), Some(3), "records without the chosen id field are skipped");
    let output = folder.run("out.csv", &["--keep", "year", "--on-error", "skip"]);
    let csv = fs::read_to_string(folder.folder.path().join("out.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.contains(",unknown,")).count(), 1);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("1 record was written with null"),
        "the id of the last record is null, with a warning"
    );
}

/// The limit is that of `ulimit -f`. The rows written so far are kept, and a later run resumes after them.
#[cfg(unix)]
#[test]
fn a_run_that_reaches_a_file_size_limit_can_be_resumed() {
    let folder = Folder::new("texts.txt", "the wick burns\n".repeat(8_000).as_bytes());
    for format in ["jsonl", "csv", "npy", "parquet", "arrow", "safetensors"] {
        let (name, complete) = (format!("out.{format}"), format!("complete.{format}"));
        let mut command = std::process::Command::new("bash");
        command.args([
            "-c",
            "trap '' XFSZ; ulimit -f 700; exec \"$@\"",
            "-",
            env!("CARGO_BIN_EXE_sconce"),
            "embed",
        ]);
        command.env("HF_HUB_OFFLINE", "1").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(&folder.input);
        let output = command.arg("-o").arg(folder.folder.path().join(&name)).output().unwrap();
        assert_fails(&output, 1, &["cannot write", &name]);
        assert!(stderr(&output).matches("--resume").count() <= 1, "{}", stderr(&output));
        assert!(!folder.folder.path().join(&name).exists());
        let resumed = folder.run(&name, &["--resume"]);
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert!(folder.run(&complete, &[]).status.success());
        let read = |name: &str| fs::read(folder.folder.path().join(name)).unwrap();
        assert!(read(&name) == read(&complete), "{format}");
    }
}
