//! Records that cannot be read: with `--on-error skip` the others come out, the ledger names each that did not, and the
//! exit code says so; with `stop` nothing stands under the final name.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use serde_json::{Value, json};
use support::{assert_fails, embedding, fixture, rows, sconce, stderr};
use tempfile::TempDir;

struct Place {
    folder: TempDir,
    input: PathBuf,
}

impl Place {
    fn new(name: &str, content: &[u8]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join(name);
        fs::write(&input, content).unwrap();
        Place { folder, input }
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

/// JSON lines of every kind of fault, with the good ones between them: text, and for a bad line what the reason begins
/// with.
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
fn good_rows_come_out_and_bad_ones_are_named() {
    let faults = faults();
    let place =
        Place::new("texts.jsonl", &faults.iter().map(|(line, _)| &line[..]).collect::<Vec<_>>().join(&b'\n'));
    for format in ["jsonl", "csv", "parquet"] {
        let name = format!("out.{format}");
        let output = place.run(
            &name,
            &["--on-error", "skip", "--stats", place.input.with_file_name("s").to_str().unwrap()],
        );
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let ledger_name = format!("{name}.ledger.jsonl");
        let said = stderr(&output);
        assert!(
            said.contains("8 records were left out because they could not be used")
                && said.contains(&ledger_name),
            "{said}"
        );
        let ledger = place.lines(&ledger_name);
        let bad: Vec<_> =
            faults.iter().enumerate().filter_map(|(i, (_, reason))| Some((i, (*reason)?))).collect();
        assert_eq!(ledger.len(), bad.len());
        for (entry, (index, reason)) in ledger.iter().zip(bad) {
            assert_eq!(entry["index"], index);
            assert_eq!(entry["file"], place.input.to_str().unwrap());
            assert_eq!(entry["line"], index + 1);
            assert_eq!(entry["event"], "failed");
            let found = entry["reason"].as_str().unwrap();
            assert!(found.starts_with(reason), "{found}");
        }
        let stats = &place.lines_of_stats();
        assert_eq!((&stats["rows"], &stats["failed"]), (&json!(2), &json!(8)));
    }
    let found = place.lines("out.jsonl");
    let expected = rows(&support::embed("bert-tiny", ["the lamp", "the wick"]));
    assert_eq!(
        found.iter().map(|row| (&row["index"], &row["id"])).collect::<Vec<_>>(),
        [(&json!(0), &json!(1)), (&json!(9), &json!(10))]
    );
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(embedding(found), embedding(expected));
    }
}

impl Place {
    fn lines_of_stats(&self) -> Value {
        serde_json::from_slice(&fs::read(self.input.with_file_name("s")).unwrap()).unwrap()
    }
}

#[test]
fn the_first_bad_row_stops_a_run() {
    for (index, (line, reason)) in faults().into_iter().enumerate() {
        let Some(reason) = reason else { continue };
        let place = Place::new("texts.jsonl", &[b"{\"text\": \"a lamp\"}\n", &line[..]].concat());
        for args in [&["--quiet"][..], &["--quiet", "--restart", "--on-error", "stop"]] {
            let output = place.run("out.npy", args);
            assert_fails(&output, 1, &[&format!("texts.jsonl line 2 {reason}"), "1 row is kept", "--resume"]);
            assert!(!place.folder.path().join("out.npy").exists(), "{index}");
            assert!(!place.folder.path().join("out.npy.ledger.jsonl").exists(), "{index}");
        }
    }
    // Nothing is left where there is nothing to go on with.
    let place = Place::new("texts.jsonl", b"{}\n");
    assert_fails(&place.run("out.npy", &[]), 1, &["texts.jsonl line 1", "has no field"]);
    assert_eq!(fs::read_dir(place.folder.path()).unwrap().count(), 1);
}

/// Where there is no file, there is no ledger: each record is named on standard error.
#[test]
fn on_standard_output_they_are_named_at_once() {
    let place = Place::new("texts.csv", b"text,id\nthe lamp,1\nthe,wick,2\n\"a\nb\",3\n\xff,4\nthe wick,5\n");
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(&place.input);
    let output = command.args(["--on-error", "skip"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let said = stderr(&output);
    for part in [
        "left out: ",
        "texts.csv line 3 has 3 fields",
        "texts.csv line 6 is not valid UTF-8",
        "2 records were",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let ids: Vec<Value> = support::stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["id"].clone())
        .collect();
    assert_eq!(ids, ["1", "3", "5"]);
}

/// What a typed column cannot take ends a run, or is null and listed; JSON and CSV take it as it is.
#[test]
fn values_that_do_not_fit_their_column() {
    let first = "{\"text\": \"the lamp\", \"year\": 1999}\n".repeat(1000);
    let later = "{\"text\": \"the wick\", \"year\": \"unknown\"}\n{\"text\": \"a\", \"id\": 7}\n";
    let place = Place::new("texts.jsonl", format!("{first}{later}").as_bytes());
    // The same first records count, however the work is divided.
    for tokens in ["64", "4096"] {
        let output =
            place.run("out.parquet", &["--keep", "year", "--batch-tokens", tokens, "--quiet", "--restart"]);
        let parts = [
            "texts.jsonl line 1001",
            "\"unknown\"",
            "\"year\"",
            "whole numbers",
            "--keep",
            "--on-error skip",
        ];
        assert_fails(&output, 1, &parts);
    }
    let output = place.run("out.parquet", &["--keep", "year", "--on-error", "skip", "--resume"]);
    assert_eq!(output.status.code(), Some(0), "no row was left out");
    assert!(stderr(&output).contains("2 records were written with null"), "{}", stderr(&output));
    let ledger = place.lines("out.parquet.ledger.jsonl");
    let events: Vec<_> = ledger.iter().map(|entry| (&entry["line"], &entry["event"])).collect();
    assert_eq!(events, [(&json!(1001), &json!("nulled")), (&json!(1002), &json!("nulled"))]);
    assert!(ledger[1]["reason"].as_str().unwrap().contains("--id-field"));
    // Read back: every vector is there.
    let back = support::embed(
        "bert-tiny",
        ["-i", place.folder.path().join("out.parquet").to_str().unwrap(), "--text-field", "year"],
    );
    assert_fails(&back, 1, &["out.parquet", "\"year\"", "Int64"]);
    let output = place.run("out.jsonl", &["--keep", "year"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let rows = place.lines("out.jsonl");
    assert_eq!((&rows[1000]["year"], &rows[1001]["id"]), (&json!("unknown"), &json!(7)));
    assert_eq!(rows[1001]["year"], Value::Null);
    let output = place.run("out.csv", &["--keep", "year", "--id-field", "id", "--on-error", "skip"]);
    assert_eq!(output.status.code(), Some(3), "rows without the id that was named");
    let output = place.run("out.csv", &["--keep", "year", "--on-error", "skip"]);
    let csv = fs::read_to_string(place.folder.path().join("out.csv")).unwrap();
    assert_eq!(csv.lines().filter(|line| line.contains(",unknown,")).count(), 1);
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("1 record was written with null"),
        "the last one's id is lost, and said"
    );
}

/// A file that may not grow: what was written is kept, and a run that may write goes on after it.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow() {
    let place = Place::new("texts.txt", "the wick burns\n".repeat(8_000).as_bytes());
    for format in ["jsonl", "csv", "npy", "parquet", "arrow", "safetensors"] {
        let (name, whole) = (format!("out.{format}"), format!("whole.{format}"));
        let mut command = std::process::Command::new("bash");
        command.args([
            "-c",
            "trap '' XFSZ; ulimit -f 700; exec \"$@\"",
            "-",
            env!("CARGO_BIN_EXE_sconce"),
            "embed",
        ]);
        command.env("HF_HUB_OFFLINE", "1").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(&place.input);
        let output = command.arg("-o").arg(place.folder.path().join(&name)).output().unwrap();
        assert_fails(&output, 1, &["cannot write", &name]);
        assert!(!place.folder.path().join(&name).exists());
        let resumed = place.run(&name, &["--resume"]);
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert!(place.run(&whole, &[]).status.success());
        let read = |name: &str| fs::read(place.folder.path().join(name)).unwrap();
        assert!(read(&name) == read(&whole), "{format}");
    }
}
