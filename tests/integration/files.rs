//! `sconce embed` over files: input selection, output columns and metadata, statistics, memory.

use crate::support;
use crate::support::arrow;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;

use crate::support::{assert_fails, embedding, fixture, rows, sconce, stderr};
use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, TimeUnit};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use sconce::kernels::isa::Isa;
use serde_json::{Value, json};
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
    // Without the option, each file of a folder is read as its extension says.
    let found = rows(&run(&["-i", &at("")]));
    assert_eq!(found.len(), 1 + 3 + 1);
    assert!(found.iter().all(|row| row.get("id").is_none()));
}

/// Kept columns through every format that has columns, each output being the next input.
#[test]
fn kept_columns_round_trip_through_every_format() {
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
    // JSON Lines keeps any JSON value, with the order of its fields.
    fs::write(at("odd.jsonl"), "{\"text\": \"a\", \"x\": [1, {\"y\": null}]}\n{\"text\": \"b\"}\n").unwrap();
    let found = rows(&run(&["-i", &at("odd.jsonl"), "--keep", "x"]));
    assert_eq!((&found[0]["x"], &found[1]["x"]), (&json!([1, { "y": null }]), &Value::Null));
}

/// All rows of an Arrow IPC file.
fn read_arrow(path: &Path) -> RecordBatch {
    let reader = arrow::ipc::reader::FileReader::try_new(fs::File::open(path).unwrap(), None).unwrap();
    let schema = reader.schema();
    concat_batches(&schema, &reader.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
}

/// All rows of a Parquet file.
fn read_parquet(path: &Path) -> RecordBatch {
    let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path).unwrap()).unwrap();
    let (schema, reader) = (reader.schema().clone(), reader.build().unwrap());
    concat_batches(&schema, &reader.collect::<Result<Vec<_>, _>>().unwrap()).unwrap()
}

/// Asserts that the kept columns of a file have the types and values of the input, or the nearest type of the
/// format.
fn assert_kept_columns(names: &[&str], before: &RecordBatch, after: &RecordBatch, format: &str) {
    for name in names {
        let (old, new): (&ArrayRef, &ArrayRef) =
            (before.column_by_name(name).unwrap(), after.column_by_name(name).unwrap());
        // Views and dictionaries are written as plain values; Parquet lacks two types.
        let data_type = match *name {
            "category" | "view" => DataType::Utf8,
            "inner" => new.data_type().clone(),
            "seconds" if format == "parquet" => DataType::Timestamp(TimeUnit::Millisecond, None),
            "day64" if format == "parquet" => DataType::Date32,
            _ => old.data_type().clone(),
        };
        assert_eq!(new.data_type(), &data_type, "{name} in {format}");
        assert_eq!(new, &cast(old, &data_type).unwrap(), "{name} in {format}");
        assert!(new.is_null(2), "{name}");
    }
    let inner = after.schema().field_with_name("inner").unwrap().data_type().to_string();
    assert!(inner.contains("America/New_York") && !inner.contains("Dictionary"), "{inner}");
}

/// The first row of the typed fixtures as JSON.
fn typed_row() -> Value {
    json!({
        "naive": "2026-11-21T06:02:17.250001",
        "seconds": "1970-01-01T00:00:00",
        "zoned": "1970-01-01T00:00:00.000000001Z",
        "day": "2026-11-21",
        "day64": "2026-11-21",
        "clock": "06:02:17.250001",
        "span": "PT1.5S",
        "price": "12.50",
        "huge": format!("1{}", "0".repeat(60)),
        "words": ["x", null],
        "more": [[1], []],
        "three": [1.0, 2.0, 3.0],
        "inner": {"a": 1, "b": ["x", "y"], "at": "2026-11-21T06:02:17.250Z"},
        "map": {"k": 1, "l": null},
        "pairs": [[1, "x"]],
        "category": "x",
        "bytes": "00ff",
        "four": "61626364",
        "small": -128,
        "large": u64::MAX,
        "half": 0.5,
        "single": 0.1,
        "flag": true,
        "long": "x",
        "view": "x",
    })
}

/// Columns of Parquet and Arrow inputs keep their types and values in Parquet and Arrow; JSON Lines and CSV
/// have the nearest value.
#[test]
fn kept_columns_keep_their_types() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["typed.arrow", "typed.parquet"] {
        let input = fixture("input").join(name);
        let before = if name == "typed.arrow" { read_arrow(&input) } else { read_parquet(&input) };
        let schema = before.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).skip(1).collect();
        let (input, keep) = (input.display().to_string(), names.join(","));
        for format in ["arrow", "parquet", "jsonl", "csv"] {
            let output = at(&format!("out.{format}"));
            let args = ["-i", &input, "--keep", &keep, "--restart", "-o", output.to_str().unwrap()];
            let done = run(&args);
            assert!(done.status.success(), "{}", stderr(&done));
        }
        for (format, after) in
            [("arrow", read_arrow(&at("out.arrow"))), ("parquet", read_parquet(&at("out.parquet")))]
        {
            assert_kept_columns(&names, &before, &after, format);
        }
        let lines = fs::read_to_string(at("out.jsonl")).unwrap();
        let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = typed_row();
        for name in &names {
            assert_eq!(lines[0][name], expected[name], "{name}");
            assert_eq!(lines[2][name], Value::Null, "{name}");
        }
        assert_eq!((&lines[1]["pairs"], &lines[1]["map"]), (&json!([]), &json!({})));
        let csv = fs::read_to_string(at("out.csv")).unwrap();
        for part in [",2026-11-21T06:02:17.250001,", ",\"[\"\"x\"\",null]\",", ",12.50,", ",\"{\"\"a\"\":1,"]
        {
            assert!(csv.lines().nth(1).unwrap().contains(part), "{part}");
        }
    }
}

/// A column may have another type in a later file: a value is converted if that is exact.
#[test]
fn a_value_of_a_later_file_is_converted_if_exact() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let texts: ArrayRef = Arc::new(arrow::array::StringArray::from(vec!["a lamp"; 1001]));
    let small: ArrayRef = Arc::new(arrow::array::Int8Array::from(vec![7; 1001]));
    let batch = RecordBatch::try_from_iter([("text", texts), ("small", small)]).unwrap();
    let file = fs::File::create(at("small.arrow")).unwrap();
    let mut writer = arrow::ipc::writer::FileWriter::try_new(file, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    fs::write(at("wide.jsonl"), "{\"text\":\"a\",\"small\":8}\n{\"text\":\"b\",\"small\":700}\n").unwrap();
    let [small, wide, output] =
        ["small.arrow", "wide.jsonl", "two.parquet"].map(|name| at(name).display().to_string());
    let args = ["-i", &small, &wide, "--keep", "small", "-o", &output];
    assert_fails(&run(&args), 1, &["wide.jsonl line 2", "700", "\"small\"", "8-bit integers", "--keep"]);
    let done = run(&[&args[..], &["--on-error", "skip", "--restart"]].concat());
    assert!(stderr(&done).contains("1 record was written with null"), "{}", stderr(&done));
    let after = read_parquet(Path::new(&output));
    let column = after.column_by_name("small").unwrap();
    assert_eq!((column.data_type(), column.len()), (&DataType::Int8, 1003));
    let tail: ArrayRef = Arc::new(arrow::array::Int8Array::from(vec![Some(7), Some(8), None]));
    assert_eq!(column.slice(1000, 3).to_data(), tail.to_data());
}

#[test]
fn options_that_the_format_does_not_support_are_refused() {
    let folder = documents();
    let input = folder.path().join("in.jsonl").display().to_string();
    fs::write(&input, "{\"text\": \"a\", \"year\": 1, \"embedding\": 2}\n").unwrap();
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
fn stats_agree_with_the_run() {
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
    assert!(stats.get("padding").is_none(), "there is no padding");
    let number = |key: &str| stats[key].as_f64().unwrap();
    assert!(number("seconds") > number("seconds_loading") && number("seconds_encoding") > 0.0);
    assert!(number("tokens_per_second") > 0.0 && number("peak_memory_bytes") > 1e6);
    assert!((0.0..=1.0).contains(&number("idle")));
    assert!(stats["device"].as_str().unwrap().starts_with("cpu (") && stats["dtype"] == "f32");
    let too_long = at(&"s".repeat(300));
    let in_file = at("in.jsonl/stats.json");
    for stats in [&in_file, &too_long] {
        let output = run(&["a", "--stats", stats, "-o", &at("other.npy")]);
        assert_fails(&output, 1, &[&format!("--stats {stats}")]);
        assert!(!Path::new(&at("other.npy")).exists(), "refused before any work");
    }
}

/// A process that is killed leaves the old summary or the new one, because the new one is a file of its own
/// until it is complete.
#[test]
#[cfg(unix)]
fn a_summary_is_replaced_when_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["stats.json", "target.json"] {
        fs::write(at(name), "old").unwrap();
    }
    fs::hard_link(at("stats.json"), at("also stats.json")).unwrap();
    std::os::unix::fs::symlink("target.json", at("link.json")).unwrap();
    for name in ["stats.json", "link.json", "new.json"] {
        let done = run(&["a", "-o", at("v.npy").to_str().unwrap(), "--stats", at(name).to_str().unwrap()]);
        assert!(done.status.success(), "{}", stderr(&done));
        let stats: Value = serde_json::from_slice(&fs::read(at(name)).unwrap()).unwrap();
        assert_eq!(stats["rows"], 1, "{name}");
    }
    assert_eq!(fs::read_to_string(at("also stats.json")).unwrap(), "old", "not written over");
    assert!(fs::symlink_metadata(at("link.json")).unwrap().is_symlink());
    assert_eq!(fs::read(at("link.json")).unwrap(), fs::read(at("target.json")).unwrap());
    let mut names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(!names.any(|name| name.to_string_lossy().starts_with(".sconce-")), "no temporary file is left");
    // A file without a name cannot be replaced.
    let script = "exec 3<>\"$1\" && rm \"$1\" && shift && \"$@\" && cat <&3";
    let mut nameless = Command::new("bash");
    nameless.args(["-c", script, "-"]).arg(at("nameless")).arg(env!("CARGO_BIN_EXE_sconce"));
    nameless.args(["embed", "a", "-o"]).arg(at("v.npy")).args(["--stats", "/dev/fd/3"]);
    let printed = nameless.env("SCONCE_MODEL", fixture("bert-tiny")).output().unwrap();
    let stats: Value = serde_json::from_slice(&printed.stdout).unwrap();
    assert_eq!(stats["rows"], 1, "{}", stderr(&printed));
    // A device stays one.
    let full = run(&["a", "-o", at("v.npy").to_str().unwrap(), "--stats", "/dev/full"]);
    assert_fails(&full, 1, &["--stats /dev/full", "No space left", "choose another path"]);
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
}

/// A path used for two files is refused before either is overwritten.
#[test]
fn one_path_for_two_files_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for name in ["in.jsonl", "v.npy.ledger.jsonl"] {
        fs::write(at(name), "{\"text\": \"a\"}\n").unwrap();
    }
    std::os::unix::fs::symlink(at("in.jsonl"), at("link")).unwrap();
    std::os::unix::fs::symlink("v.npy", at("to v.npy")).unwrap();
    for (args, parts) in [
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("in.jsonl")],
            ["--stats", "is also the input"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("v.npy")],
            ["--stats", "is also the output"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("./v.npy")],
            ["--stats", "is also the output"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("to v.npy")],
            ["--stats", "is also the output"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("v.npy"), "--stats", &at("v.npy.ledger.jsonl")],
            ["--stats", "ledger"],
        ),
        (
            vec!["-i", &at("v.npy.ledger.jsonl"), "-o", &at("v.npy")],
            ["ledger of the output", "is also the input"],
        ),
        (
            vec!["-i", &at("in.jsonl"), "-o", &at("link"), "--output-format", "npy"],
            ["--output", "is also the input"],
        ),
    ] {
        assert_fails(&run(&args), 2, &parts);
    }
    for name in ["in.jsonl", "v.npy.ledger.jsonl"] {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), "{\"text\": \"a\"}\n");
    }
    // A file that is not a ledger is not overwritten by one.
    assert_fails(
        &run(&["a", "-o", &at("v.npy")]),
        1,
        &["v.npy.ledger.jsonl", "would be overwritten by the ledger"],
    );
    assert!(!Path::new(&at("v.npy")).exists());
}

/// Each text on a pipe gets its row before the next text is sent.
#[test]
fn rows_of_a_stream_are_written_immediately() {
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

/// A text on a pipe does not wait for a full batch while the encoder is idle, in any format that streams.
#[test]
fn an_idle_encoder_does_not_wait() {
    for format in ["jsonl", "csv", "arrow"] {
        let mut child = command(&["--output-format", format])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut latency = |text: &[u8]| {
            let since = std::time::Instant::now();
            input.write_all(text).unwrap();
            // The first bytes of the row; a header comes with the first one.
            let mut bytes = vec![0; 1 << 16];
            let read = std::io::Read::read(&mut output, &mut bytes).unwrap();
            assert!(read > 0);
            since.elapsed()
        };
        latency(b"the lamp\n");
        let latencies: Vec<_> = (0..10).map(|_| latency(b"the wick\n")).collect();
        let min = latencies.iter().min().unwrap();
        assert!(min.as_millis() < 50, "{format}: {latencies:?}");
        drop(input);
        assert!(child.wait().unwrap().success());
    }
}

/// Arrow on a pipe is an IPC stream; in a file it is an IPC file.
#[test]
fn arrow_on_a_pipe_is_a_stream() {
    let output = run(&["a lamp", "the wick", "--output-format", "arrow"]);
    let reader = arrow::ipc::reader::StreamReader::try_new(&output.stdout[..], None).unwrap();
    assert_eq!(reader.schema().metadata().get("sconce.pooling").map(String::as_str), Some("mean"));
    let rows: usize = reader.map(|batch| batch.unwrap().num_rows()).sum();
    assert_eq!(rows, 2);
    // A file has the IPC file format.
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    run(&["a lamp", "-o", &at("out.arrow")]);
    arrow::ipc::reader::FileReader::try_new(fs::File::open(at("out.arrow")).unwrap(), None).unwrap();
}

/// --limit and --skip-empty.
#[test]
fn limit_and_skip_empty_select_records() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("in.txt"), "\nthe lamp\n \t\n\nthe wick\nlight\n").unwrap();
    let indices = |args: &[&str]| -> Vec<u64> {
        let (input, stats) = (at("in.txt"), at("stats"));
        let all = [&["-i", &input, "--stats", &stats][..], args].concat();
        rows(&run(&all)).iter().map(|row| row["index"].as_u64().unwrap()).collect()
    };
    let stats = || -> Value { serde_json::from_slice(&fs::read(at("stats")).unwrap()).unwrap() };
    assert_eq!(indices(&[]), [0, 1, 2, 3, 4, 5]);
    assert_eq!((&stats()["empty"], &stats()["skipped_empty"]), (&json!(3), &json!(0)));
    assert_eq!(indices(&["--skip-empty"]), [1, 4, 5]);
    assert_eq!((&stats()["empty"], &stats()["skipped_empty"]), (&json!(3), &json!(3)));
    assert_eq!(indices(&["--limit", "2"]), [0, 1]);
    assert_eq!(indices(&["--limit", "2", "--skip-empty"]), [1, 4]);
    assert_eq!(indices(&["--limit", "0"]), [0; 0]);
    assert_eq!(indices(&["--limit", "9"]), [0, 1, 2, 3, 4, 5]);
    fs::write(at("in.txt"), "\n".repeat(12) + "the lamp\n").unwrap();
    let message = stderr(&run(&["-i", &at("in.txt")]));
    assert!(message.contains("12 of 13 texts are empty") && message.contains("--skip-empty"), "{message}");
}

/// An unreadable file in a folder is one failed record.
#[test]
fn a_bad_file_does_not_end_a_run_over_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join("in").join(name);
    fs::create_dir(folder.path().join("in")).unwrap();
    for (name, content) in [
        ("a.txt", &b"the lamp\n"[..]),
        ("b.json", b"{}"),
        ("c.txt.gz", b"no gzip"),
        ("d.txt", b"\x89PNG\r\n\x1a\n\0\0"),
        ("e.csv", b"no,such\n1,2\n"),
        ("f.parquet", b"PAR1"),
        ("g.pdf", b"%PDF-1.4\n%\xe2\xe3\n"),
        ("z.txt", b"the wick\n"),
    ] {
        fs::write(at(name), content).unwrap();
    }
    std::os::unix::fs::symlink(folder.path().join("nowhere"), at("h.txt")).unwrap();
    let (input, output) = (at("").display().to_string(), folder.path().join("o.jsonl").display().to_string());
    for input in [&input, &format!("{input}*")] {
        let done = run(&["-i", input, "--include", "*", "-o", &output, "--on-error", "skip"]);
        assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
        assert_eq!(fs::read_to_string(&output).unwrap().lines().count(), 2);
        let ledger = fs::read_to_string(format!("{output}.ledger.jsonl")).unwrap();
        let entries: Vec<Value> = ledger.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let expected = [
            ("b.json", ".json files are not supported"),
            ("c.txt.gz", "is not gzip-compressed; remove .gz from its name"),
            ("d.txt", "is a PNG image, not text"),
            ("e.csv", "no column \"text\""),
            ("f.parquet", "as Parquet"),
            ("g.pdf", "is a PDF document, not text"),
            ("h.txt", "No such file"),
        ];
        assert_eq!(entries.len(), expected.len(), "{ledger}");
        for (entry, (name, part)) in entries.iter().zip(expected) {
            assert!(entry["file"].as_str().unwrap().ends_with(name), "{entry}");
            assert!(entry["reason"].as_str().unwrap().contains(part), "{entry}");
        }
    }
    // Without --on-error skip it is refused before any work.
    assert_fails(&run(&["-i", &input, "--include", "*"]), 2, &["b.json", ".json files are not supported"]);
    // Without --include, only files with fields are read.
    let data = run(&["-i", &input, "--on-error", "skip"]);
    assert_eq!((data.status.code(), data.stdout.len()), (Some(3), 0));
    let message = stderr(&data);
    assert!(
        message.contains("7 files of --input") && message.contains("(a.txt, b.json, c.txt.gz and 4 more)"),
        "{message}"
    );
    let files = run(&["-i", &input, "--input-format", "files", "--on-error", "skip"]);
    let message = stderr(&files);
    for (name, part) in [("d.txt", "a PNG image"), ("g.pdf", "a PDF document"), ("h.txt", "cannot be read")] {
        assert!(message.lines().any(|line| line.contains(name) && line.contains(part)), "{message}");
    }
}

/// Folders are walked as ripgrep does: .gitignore, globs, links.
#[test]
fn ignored_and_excluded_files_are_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["in/node_modules", "in/docs", "elsewhere"] {
        fs::create_dir_all(at(name)).unwrap();
    }
    for name in ["in/a.md", "in/b.txt", "in/node_modules/c.md", "in/docs/d.md", "elsewhere/e.md"] {
        fs::write(at(name), name).unwrap();
    }
    fs::write(at("in/.gitignore"), "node_modules/\n").unwrap();
    std::os::unix::fs::symlink(at("elsewhere"), at("in/out")).unwrap();
    std::os::unix::fs::symlink(at("elsewhere/e.md"), at("in/out.md")).unwrap();
    std::os::unix::fs::symlink(at("in/a.md"), at("in/same.md")).unwrap();
    let input = at("in").display().to_string();
    let found = |args: &[&str]| -> Vec<String> {
        let rows = rows(&run(&[&["-i", &input, "--input-format", "files"][..], args].concat()));
        let name = |row: &Value| row["id"].as_str().unwrap().replace(&format!("{input}/"), "");
        rows.iter().map(name).collect()
    };
    assert_eq!(found(&[]), ["a.md", "b.txt", "docs/d.md", "same.md"]);
    assert_eq!(found(&["--no-ignore"]), ["a.md", "b.txt", "docs/d.md", "node_modules/c.md", "same.md"]);
    assert_eq!(found(&["--exclude", "*.md"]), ["b.txt"]);
    assert_eq!(found(&["--exclude", "docs", "--exclude", "same.*"]), ["a.md", "b.txt"]);
    assert_eq!(found(&["--include", "*.md", "--exclude", "docs/"]), ["a.md", "same.md"]);
    let none = run(&["-i", &input, "--include", "*.rst"]);
    assert_fails(&none, 2, &["--include"]);
    assert_fails(&run(&["-i", &input, "--exclude", "[a"]), 2, &["--exclude [a"]);
}

/// `text`, `file` and `line` can be kept like fields.
#[test]
fn text_file_and_line_can_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("a.txt"), "the lamp\nthe wick\n").unwrap();
    fs::write(at("b.jsonl"), "{\"body\": \"light\", \"line\": \"its own\"}\n").unwrap();
    fs::write(at("c.csv"), "body,x\nlight,1\n").unwrap();
    let kept = |args: &[&str]| -> Vec<Value> {
        let found = rows(&run(&[args, &["--keep", "text,file,line"]].concat()));
        found.iter().map(|row| json!([row["text"], row["file"], row["line"]])).collect()
    };
    let (text, jsonl, csv) = (at("a.txt"), at("b.jsonl"), at("c.csv"));
    assert_eq!(kept(&["-i", &text]), [json!(["the lamp", text, 1]), json!(["the wick", text, 2])]);
    assert_eq!(
        kept(&["-i", &text, "--input-format", "files"]),
        [json!(["the lamp\nthe wick\n", text, null])]
    );
    let body = ["--text-field", "body"];
    assert_eq!(kept(&[&["-i", &jsonl][..], &body].concat()), [json!(["light", jsonl, "its own"])]);
    assert_eq!(kept(&[&["-i", &csv][..], &body].concat()), [json!(["light", csv, 2])]);
    for name in ["v.parquet", "v.arrow"] {
        assert!(run(&["-i", &text, "-o", &at(name), "--keep", "text,line"]).status.success());
        let input = at(name);
        assert_eq!(kept(&["-i", &input])[1], json!(["the wick", input, 2]));
        assert_eq!(rows(&run(&["-i", &input, "--keep", "file"]))[0]["file"], json!(input));
    }
    assert_fails(&run(&["-i", &text, "--keep", "text,year"]), 2, &["--keep", "jsonl"]);
}

/// Metadata of the model and options: in the file, in `.meta.json` for npy, and in --stats.
#[test]
fn outputs_have_metadata() {
    use sha2::{Digest, Sha256};
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let weights = fs::read(fixture("bert-tiny").join("model.safetensors")).unwrap();
    let hash: String = Sha256::digest(&weights).iter().map(|byte| format!("{byte:02x}")).collect();
    let release = format!("sconce {}", env!("CARGO_PKG_VERSION"));
    let model = fixture("bert-tiny").display().to_string();
    let expected = [
        ("model", &*model),
        ("weights_sha256", &hash),
        ("pooling", "mean"),
        ("prompt", "query: "),
        ("normalized", "true"),
        ("dtype", "f32"),
        ("output_dtype", "f16"),
        ("similarity", "cosine"),
        ("release", &release),
    ];
    let args = ["a lamp", "--prompt", "query: ", "--output-dtype", "f16", "--quiet"];
    let made = |name: &str| {
        assert!(run(&[&args[..], &["-o", &at(name), "--stats", &at("stats")]].concat()).status.success())
    };
    made("out.parquet");
    let file = fs::File::open(at("out.parquet")).unwrap();
    let file = parquet::file::reader::SerializedFileReader::new(file).unwrap();
    let pairs = parquet::file::reader::FileReader::metadata(&file)
        .file_metadata()
        .key_value_metadata()
        .cloned()
        .unwrap();
    for (key, value) in expected {
        let found = pairs
            .iter()
            .find(|pair| pair.key == format!("sconce.{key}"))
            .and_then(|pair| pair.value.as_deref());
        assert_eq!(found, Some(value), "{key}");
    }
    made("out.arrow");
    let file = fs::File::open(at("out.arrow")).unwrap();
    let schema = arrow::ipc::reader::FileReader::try_new(file, None).unwrap().schema();
    made("out.safetensors");
    let bytes = fs::read(at("out.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    made("out.npy");
    let json = |name: &str| -> Value { serde_json::from_slice(&fs::read(at(name)).unwrap()).unwrap() };
    let (meta, stats) = (json("out.npy.meta.json"), json("stats"));
    for (key, value) in expected {
        assert_eq!(schema.metadata().get(&format!("sconce.{key}")).map(String::as_str), Some(value), "{key}");
        assert_eq!(header.metadata().as_ref().unwrap()[key], value, "{key}");
        assert_eq!((&meta[key], &stats[key]), (&json!(value), &json!(value)), "{key}");
    }
    // An IPC stream on a pipe has the same metadata.
    for stats in [&[][..], &["--stats", &at("stats")]] {
        let piped = run(&[&args[..], &["--output-format", "arrow"], stats].concat());
        let stream = arrow::ipc::reader::StreamReader::try_new(&piped.stdout[..], None).unwrap();
        for (key, value) in expected {
            let found = stream.schema().metadata().get(&format!("sconce.{key}")).cloned();
            assert_eq!(found.as_deref(), Some(value), "{key}");
        }
    }
}

/// Unknown metadata is absent; a prompt of any length is in a safetensors header.
#[test]
fn metadata_without_a_value_is_absent() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let long = "query ".repeat(2000);
    let done = run(&["a lamp", "--random-weights", "7", "--prompt", &long, "-o", &at("random.safetensors")]);
    assert!(done.status.success(), "{}", stderr(&done));
    let bytes = fs::read(at("random.safetensors")).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!(metadata["weights"], "random, seed 7");
    assert_eq!(metadata["prompt"], long);
    assert!(!metadata.contains_key("weights_sha256"));
}

#[test]
fn a_file_that_is_not_metadata_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(at("other.npy.meta.json"), "{}").unwrap();
    assert_fails(&run(&["a", "-o", &at("other.npy")]), 1, &["other.npy.meta.json", "would be overwritten"]);
}

/// A run of more than a second prints its rows, tokens and time.
#[test]
fn a_long_run_ends_with_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.npy").display().to_string();
    let mut child = command(&["-o", &output]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(b"the lamp\n").unwrap();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    drop(input);
    let message = stderr(&child.wait_with_output().unwrap());
    assert!(message.contains("1 row, 4 tokens in ") && message.trim().ends_with("out.npy"), "{message}");
}

/// --max-memory bounds the peak memory; a bound that is too small is refused with the minimum.
#[test]
fn max_memory_bounds_the_peak() {
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
    // Tiles hold an f32 in 6 bytes.
    let tiles = Isa::selected().tile_unit().is_some();
    let weights = if tiles { "605.4 MB" } else { "435.6 MB" };
    assert_fails(&base("300MB"), 2, &["--max-memory", "300", "weights", weights]);
    let refused = base(if tiles { "650MB" } else { "500MB" });
    assert_fails(
        &refused,
        2,
        &["--max-memory", "0.0 MB", "to encode one text of", "pass a larger --max-memory"],
    );
    let bound = if tiles { 760 } else { 680 };
    let message = stderr(&refused);
    let (least, _) = message.split_once(" MB in all").unwrap();
    let least = least.rsplit(' ').next().unwrap().parse::<f64>().unwrap().ceil() as u64;
    assert!(least <= bound, "{message}");
    let mut outputs = Vec::new();
    for megabytes in [bound, 1000] {
        let output = base(&format!("{megabytes}MB"));
        assert!(output.status.success(), "{}", stderr(&output));
        let stats: Value = serde_json::from_slice(&fs::read(at("stats.json")).unwrap()).unwrap();
        let peak = stats["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak < megabytes * 1_000_000, "{peak} bytes of {megabytes} MB");
        outputs.push(fs::read(at("out.npy")).unwrap());
    }
    assert!(outputs[0] == outputs[1], "a bound changes no vector");
    // A text that is too long to be tokenized within the bound is a failed record.
    fs::write(at("long.txt"), "the lamp ".repeat(1_500_000)).unwrap();
    let output = run(&["-i", &at("long.txt"), "--max-memory", "80MB"]);
    assert_fails(&output, 1, &["long.txt line 1", "bytes", "--max-memory", "split the text"]);
}
