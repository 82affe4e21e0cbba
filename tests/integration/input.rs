//! Input formats: texts of any format give the vectors of the same texts as lines, ids are carried through,
//! and errors name the file and the line.

use crate::support;
use crate::support::arrow;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::slice;
use std::thread;

use crate::support::damage::malformed_parquet;
use crate::support::{assert_fails, embed, embedding, fixture, rows, sconce, stdout};
use sconce::formats::Compression;
use sconce::input::{Entries, Entry, Fields, Filter, Format, InputPath, Record, Source, Unreadable, find};
use sconce::rows::FieldValue;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The inputs that paths name, without a filter.
fn sources(paths: &[PathBuf], format: Option<Format>) -> anyhow::Result<Vec<Source>> {
    Ok(find(paths, format, &Filter::default())?.sources)
}

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

fn ids(rows: &[Value]) -> Vec<Option<Value>> {
    rows.iter().map(|row| row.get("id").cloned()).collect()
}

/// An id that is a string or an integer, as text.
fn text_of(id: &Option<Value>) -> Option<String> {
    id.as_ref().map(|id| match id {
        Value::String(id) => id.clone(),
        Value::Number(id) if !id.is_f64() => id.to_string(),
        other => panic!("{other} as an id"),
    })
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
fn json_lines_give_the_vectors_of_plain_lines() {
    let found = rows(&run("texts.jsonl", JSONL, &[]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!(7)), None]);
    assert_same_vectors(&rows(&run("texts.ndjson", JSONL, &[])));
    // `--input-format` wins over the extension, and the options choose other fields.
    let renamed =
        JSONL.replace("\"text\": \"", "\"body\": \"").replace("\"id\"", "\"key\"").replace("null", "\"z\"");
    let args = ["--input-format", "jsonl", "--text-field", "body", "--id-field", "key"];
    let found = rows(&run("texts.txt", &renamed, &args));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!(7)), Some(json!("z"))]);
}

const CSV: &str = "id,text,x\na,a lamp,1\n7,\"the \"\"wick\"\", burning\nlight\",2\n,,3\n";

#[test]
fn csv_and_tsv_give_the_vectors_of_plain_lines() {
    let found = rows(&run("texts.csv", CSV, &[]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!("7")), Some(json!(""))]);
    let tsv = "\u{feff}body\tid\na lamp\ta\r\n\"the \"\"wick\"\", burning\nlight\"\tb\n\"\"\tc\n";
    let found = rows(&run("texts.tsv", tsv, &["--text-field", "body", "--quote", "\""]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!("b")), Some(json!("c"))]);
    // A file that is only a header has no records.
    assert_eq!(stdout(&run("texts.csv", "text\n", &[])), "");
}

#[test]
fn standard_input_and_several_files_are_read() {
    let mut command = sconce();
    command.args(["embed", "-m"]).arg(fixture("bert-tiny")).args(["--input", "-", "--input-format", "csv"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(CSV.as_bytes()).unwrap();
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

/// A pair of texts is one sequence with two `token_type_ids`.
#[test]
fn a_pair_is_one_sequence_with_two_token_types() {
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
fn csv_output_has_an_id_column() {
    let output = stdout(&run("texts.jsonl", JSONL, &["--output-format", "csv"]));
    let lines: Vec<Vec<&str>> = output.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0][..5], ["index", "id", "tokens", "truncated", "e0"]);
    let ids: Vec<&str> = lines[1..].iter().map(|line| line[1]).collect();
    assert_eq!(ids, ["a", "7", ""]);
    assert!(lines.iter().all(|line| line.len() == 4 + 36));
}

#[test]
fn a_row_that_cannot_be_read_ends_the_run() {
    let cases: &[(&str, &str, &[&str], &[&str])] = &[
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n{\"body\": \"b\"}\n",
            &[],
            &["a.jsonl line 2", "no field \"text\"", "--text-field"],
        ),
        ("a.jsonl", "{\"text\": null}\n", &[], &["a.jsonl line 1", "\"text\" is null"]),
        ("a.jsonl", "{\"text\": 7}\n", &[], &["a.jsonl line 1", "\"text\" is a number"]),
        ("a.jsonl", "{\"text\": [\"a\"]}\n", &[], &["a.jsonl line 1", "\"text\" is an array"]),
        ("a.jsonl", "\n{\"text\": \"a\"\n", &[], &["a.jsonl line 2", "not valid JSON"]),
        ("a.jsonl", "[1]\n", &[], &["a.jsonl line 1", "not a JSON object"]),
        (
            "a.jsonl",
            "{\"text\": \"a\"}\n",
            &["--id-field", "key"],
            &["a.jsonl line 1", "no field \"key\"", "--id-field"],
        ),
        ("a.jsonl", "{\"text\": \"a\"}\n", &["--pair-field", "b"], &["a.jsonl line 1", "no field \"b\""]),
        ("a.csv", "body,id\nx,1\n", &[], &["a.csv", "no column \"text\"", "body, id", "--text-field"]),
        ("a.csv", "text,id\nx,1\ny\n", &[], &["a.csv line 3", "1 field,", "header has 2"]),
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

/// Options that choose fields are refused for input without fields, where they would do nothing.
#[test]
fn options_for_fields_are_refused_for_plain_lines() {
    for args in [&["--text-field", "body"][..], &["--id-field", "key"], &["--pair-field", "other"]] {
        assert_fails(&run("a.txt", "a\n", args), 2, &[args[0], "jsonl"]);
        let mut with_text = args.to_vec();
        with_text.push("a text");
        assert_fails(&embed("bert-tiny", &with_text), 2, &[args[0], "jsonl"]);
    }
}

/// A carried-through field that no record of JSON lines has is an error: its name is probably misspelt.
#[test]
fn a_kept_field_that_no_record_has_is_an_error() {
    let lines = "{\"text\": \"a\", \"title\": 1}\n{\"text\": \"b\", \"late\": 2}\n";
    for args in [&["--keep", "ttile"][..], &["--keep", "title,ttile"], &["--keep", "title", "ttile"]] {
        let output = run("a.jsonl", lines, args);
        assert_fails(&output, 1, &["a.jsonl", "no record has the field \"ttile\"", "text, title", "--keep"]);
        assert_eq!(stdout(&output), "");
    }
    // A field that only some records have is null in the others.
    let found = rows(&run("a.jsonl", lines, &["--keep", "late,title"]));
    let kept: Vec<_> = found.iter().map(|row| (&row["late"], &row["title"])).collect();
    assert_eq!(kept, [(&Value::Null, &json!(1)), (&json!(2), &Value::Null)]);
    // Records of a stream are written one by one, so the first record has to have the fields.
    let mut command = sconce();
    command.args(["embed", "-m"]).arg(fixture("bert-tiny")).args(["-i", "-", "--input-format", "jsonl"]);
    command.args(["--keep", "late"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert_fails(&child.wait_with_output().unwrap(), 1, &["standard input", "\"late\"", "text, title"]);
}

/// An integer that JSON parsers would round is an error, not another integer.
#[test]
fn integers_that_would_be_rounded_are_refused() {
    for big in
        ["18446744073709551616", "-9223372036854775809", "[1, {\"y\": 123456789012345678901234567890}]"]
    {
        let line = format!("{{\"text\": \"a\", \"x\": {big}}}\n");
        let parts = ["a.jsonl line 1", "field \"x\"", "64 bits", "in quotes"];
        assert_fails(&run("a.jsonl", &line, &["--keep", "x"]), 1, &parts);
        rows(&run("a.jsonl", &line, &[]));
    }
    let exact =
        "{\"text\": \"18446744073709551616\", \"x\": [18446744073709551615, 1e300, -9223372036854775808]}\n";
    let found = rows(&run("a.jsonl", exact, &["--keep", "x"]));
    assert_eq!(found[0]["x"], json!([u64::MAX, 1e300, i64::MIN]));
}

/// The entries that [`Entries`] reads, and the error that ends them.
#[derive(Debug, PartialEq)]
struct ReadResult {
    entries: Vec<Entry>,
    error: Option<String>,
}

fn fields() -> Fields {
    Fields::default()
}

fn keeping(names: &[&str]) -> Fields {
    Fields { keep: names.iter().map(|name| (*name).into()).collect(), ..fields() }
}

#[track_caller]
fn read(paths: &[PathBuf], format: Option<Format>, fields: Fields) -> ReadResult {
    let mut entries = match Entries::open(sources(paths, format).unwrap(), fields) {
        Ok(entries) => entries,
        // The header of a file is wrong.
        Err(error) => return ReadResult { entries: Vec::new(), error: Some(error.to_string()) },
    };
    let bytes = paths.iter().filter(|path| path.is_file()).map(|path| fs::metadata(path).unwrap().len());
    if paths.iter().all(|path| path.is_file()) {
        assert_eq!(entries.total_bytes(), Some(bytes.sum()));
    }
    assert_eq!(entries.bytes_read(), 0);
    let mut read = ReadResult { entries: Vec::new(), error: None };
    let mut last = 0;
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) => read.entries.push(entry),
            Err(error) => read.error = Some(error.to_string()),
        }
        let bytes_read = entries.bytes_read();
        assert!(
            bytes_read >= last && bytes_read <= entries.total_bytes().unwrap(),
            "{last}, then {bytes_read}"
        );
        last = bytes_read;
    }
    if read.error.is_none() {
        assert_eq!(Some(entries.bytes_read()), entries.total_bytes());
    }
    assert!(entries.next().is_none(), "nothing follows the end");
    read
}

#[track_caller]
fn read_bytes(name: &str, bytes: &[u8], fields: Fields) -> ReadResult {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let mut found = read(&[path], None, fields);
    // Each temporary folder has another name.
    let folder = format!("{}/", folder.path().display());
    for entry in &mut found.entries {
        let (Entry::Record(Record { location, .. }) | Entry::Unreadable(Unreadable { location, .. })) = entry;
        location.source = location.source.replace(&folder, "").into();
    }
    found.error = found.error.map(|error| error.replace(&folder, ""));
    found
}

fn input(name: &str) -> PathBuf {
    fixture("input").join(name)
}

/// The entries as `location|id|text`, or as the error about them.
fn shown(read: &ReadResult) -> Vec<String> {
    let folder = format!("{}/", fixture("input").display());
    let shown = read.entries.iter().map(|entry| match entry {
        Entry::Record(record) => {
            format!("{}|{}|{}", record.location, text_of(&record.id).unwrap_or("-".into()), record.text)
        }
        Entry::Unreadable(unreadable) => unreadable.to_string(),
    });
    shown.map(|line| line.replace(&folder, "")).collect()
}

const NULL_TEXT: &str =
    "cannot be used: field \"text\" is null, expected a string; write an empty string, or remove the row";

const PARQUET: &[&str] = &[
    "none",
    "snappy",
    "gzip",
    "lz4",
    "zstd",
    "pages-2",
    "delta",
    "large",
    "view",
    "dictionary",
    "polars",
    "pandas",
];
const ARROW: &[&str] = &[
    "file.arrow",
    "lz4.arrow",
    "zstd.arrow",
    "old.arrow",
    "large.arrow",
    "view.arrow",
    "dictionary.arrow",
    "polars.arrow",
    "stream.arrows",
    "zstd.arrows",
    "dictionary.arrows",
];

fn files_of_other_writers() -> Vec<String> {
    let parquet = PARQUET.iter().map(|name| format!("{name}.parquet"));
    parquet.chain(ARROW.iter().map(|name| (*name).to_owned())).collect()
}

/// Files of other writers, in all their encodings, have the same rows.
#[test]
fn files_of_other_writers_have_the_same_rows() {
    for name in files_of_other_writers() {
        let found = read(&[input(&name)], None, fields());
        let expected = [
            format!("{name} row 1|a|a lamp"),
            format!("{name} row 2|b|the \"wick\", burning\nlight"),
            format!("{name} row 3|-|"),
            format!("{name} row 4 {NULL_TEXT}"),
            format!("{name} row 5|e|the candle ünïcode 火"),
            format!("{name} row 6|f|a lamp"),
        ];
        assert_eq!(shown(&found), expected);
        assert_eq!(found.error, None);
    }
    for name in ["numbered.parquet", "numbered.feather"] {
        let found = read(&[input(name)], None, fields());
        let ids: Vec<_> = found
            .entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Record(record) => Some(record.id.clone()),
                Entry::Unreadable(_) => None,
            })
            .collect();
        assert_eq!(ids, [Some(json!(1)), Some(json!(2)), None, Some(json!(5)), Some(json!(6))]);
    }
    for name in ["empty.parquet", "empty.arrow"] {
        assert_eq!(read(&[input(name)], None, fields()), ReadResult { entries: vec![], error: None });
    }
}

#[test]
fn parquet_and_arrow_give_the_vectors_of_lines() {
    for name in ["whole.parquet", "whole.arrow"] {
        let found = rows(&embed("bert-tiny", ["--input", input(name).to_str().unwrap()]));
        assert_same_vectors(&found);
        assert_eq!(ids(&found), [Some(json!("a")), Some(json!("7")), None]);
    }
}

#[test]
fn a_second_column_gives_the_pairs() {
    for name in ["snappy.parquet", "stream.arrows"] {
        let found = read(&[input(name)], None, Fields { pair: Some("pair".into()), ..fields() });
        let pairs: Vec<_> = found
            .entries
            .iter()
            .map(|entry| match entry {
                Entry::Record(record) => record.pair.clone().unwrap(),
                Entry::Unreadable(unreadable) => unreadable.reason.clone(),
            })
            .collect();
        let null = NULL_TEXT.replace("text", "pair");
        assert_eq!(pairs, ["a", "b", "c", NULL_TEXT, &null, "f"]);
    }
}

fn json_of(kept: &[FieldValue]) -> Value {
    kept.iter().map(|value| value.json().into_owned()).collect()
}

const KEPT: [&str; 13] = [
    "number", "text", "byte", "double", "float", "flag", "day", "time", "price", "kind", "nested", "before",
    "id",
];

/// Carried-through columns keep their types.
#[test]
fn kept_columns_keep_their_types() {
    let first = json!([
        7,
        "a lamp",
        255,
        0.5,
        0.1,
        true,
        "2026-11-21",
        "2026-11-21T06:02:17.250Z",
        "12.50",
        "x",
        {"a": 1, "b": "z"},
        [1, 2],
        "a"
    ]);
    let second_numbers = json!([-1, 0, null, null, false]);
    let third = json!([
        null,
        "",
        1,
        null,
        null,
        null,
        "2026-11-21",
        "2026-11-21T06:02:17.250Z",
        "12.50",
        "x",
        {"a": 1, "b": "z"},
        null,
        null
    ]);
    let last = json!([5, "a lamp", 4, 5.0, 3.0, true, null, null, null, "y", null, [5], "f"]);
    for name in [
        "none.parquet",
        "pages-2.parquet",
        "zstd.parquet",
        "file.arrow",
        "lz4.arrow",
        "zstd.arrows",
        "old.arrow",
    ] {
        let found = read(&[input(name)], None, keeping(&KEPT));
        let kept: Vec<_> = found
            .entries
            .iter()
            .filter_map(|entry| match entry {
                Entry::Record(record) => Some(json_of(&record.kept)),
                Entry::Unreadable(_) => None,
            })
            .collect();
        assert_eq!(kept.len(), 5, "{name}");
        assert_eq!(kept[0], first, "{name}");
        let numbers = [0, 2, 3, 4, 5].map(|i| kept[1][i].clone());
        assert_eq!(Value::from(numbers.to_vec()), second_numbers, "{name}");
        assert_eq!(kept[2], third, "{name}");
        assert_eq!(kept[4], last, "{name}");
    }
}

/// Fields of JSON keep their types; columns of CSV are strings; lines have only built-in fields.
#[test]
fn kept_fields_of_text_formats_are_json() {
    let kept = |name: &str, content: &str| -> Vec<Value> {
        let found = read_bytes(name, content.as_bytes(), keeping(&["more", "x"]));
        assert_eq!(found.error, None);
        found
            .entries
            .into_iter()
            .map(|entry| match entry {
                Entry::Record(record) => json_of(&record.kept),
                Entry::Unreadable(unreadable) => panic!("{unreadable}"),
            })
            .collect()
    };
    let lines = "{\"text\":\"a\",\"x\":[1,{\"y\":null}]}\n{\"text\":\"b\",\"more\":0.1,\"x\":\"z\"}\n";
    assert_eq!(kept("a.jsonl", lines), [json!([null, [1, {"y": null}]]), json!([0.1, "z"])]);
    assert_eq!(kept("a.csv", "x,text,more\n1,a,\n"), [json!(["", "1"])]);
    assert_eq!(kept("a.txt", "a\n"), [json!([null, null])]);
}

#[test]
fn missing_and_mistyped_columns_are_errors() {
    for (name, columns) in [
        ("polars.parquet", "id, text"),
        ("polars.arrow", "id, text"),
        ("a.csv", "id, text"),
        ("a.tsv", "id, text"),
    ] {
        let content = match name {
            "a.csv" => b"id,text\n1,a\n".to_vec(),
            "a.tsv" => b"id\ttext\n1\ta\n".to_vec(),
            name => fs::read(input(name)).unwrap(),
        };
        for (fields, option) in [
            (Fields { text: "body".into(), ..fields() }, "--text-field"),
            (Fields { pair: Some("body".into()), ..fields() }, "--pair-field"),
            (Fields { id: Some("body".into()), ..fields() }, "--id-field"),
            (keeping(&["body"]), "--keep"),
        ] {
            let found = read_bytes(name, &content, fields);
            assert_eq!(found.entries, []);
            let expected =
                format!("{name}: no column \"body\" (columns: {columns}); choose one with {option}");
            assert_eq!(found.error, Some(expected));
        }
    }
    for name in ["none.parquet", "file.arrow"] {
        let bytes = fs::read(input(name)).unwrap();
        let found = read_bytes(name, &bytes, Fields { text: "number".into(), ..fields() });
        let expected = format!(
            "{name}: column \"number\" holds 64-bit integers, expected text; choose another with --text-field"
        );
        assert_eq!(found.error, Some(expected));
        // The fourth row has no text. Some writers write a column of integers and nulls as floats.
        let day = Some("2026-11-21");
        for (column, ids) in [
            ("double", [Some("0.5"), None, None, Some("-0.25"), Some("5")]),
            ("flag", [Some("true"), Some("false"), None, Some("false"), Some("true")]),
            ("day", [day, day, day, day, None]),
        ] {
            let found = read_bytes(name, &bytes, Fields { id: Some(column.into()), ..fields() });
            let id = |entry: &Entry| match entry {
                Entry::Record(record) => Some(text_of(&record.id)),
                Entry::Unreadable(_) => None,
            };
            let found: Vec<_> = found.entries.iter().filter_map(id).collect();
            assert_eq!(found, ids.map(|id| id.map(String::from)), "{column}");
        }
    }
    let found = read_bytes("a.csv", b"", fields());
    let expected = "a.csv: no column \"text\", nor any other; add a header row with the column names";
    assert_eq!(found.error.as_deref(), Some(expected));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 3).unwrap()
}

/// A compressed file has the records of the uncompressed one; a truncated one gives its first records, and
/// then an error.
#[test]
fn compressed_files_have_the_same_records() {
    for name in ["members.txt.gz", "frames.txt.zst"] {
        let found = read(&[input(name)], None, fields());
        let expected = [("1", "a lamp"), ("2", "the candle"), ("3", "light")]
            .map(|(line, text)| format!("{name} line {line}|-|{text}"));
        assert_eq!(shown(&found), expected);
    }
    let arrow = fs::read(input("file.arrow")).unwrap();
    let stream = fs::read(input("stream.arrows")).unwrap();
    let contents: [(&str, &[u8]); 6] = [
        ("a.txt", b"a lamp\nthe candle\n"),
        ("a.jsonl", JSONL.as_bytes()),
        ("a.csv", CSV.as_bytes()),
        ("a.tsv", b"text\na\n"),
        ("a.arrow", &arrow),
        ("a.arrows", &stream),
    ];
    for (name, content) in contents {
        let plain = read_bytes(name, content, fields());
        assert_eq!(plain.error, None);
        assert!(!plain.entries.is_empty());
        for (suffix, compressed) in
            [("gz", gzip(content)), ("GZIP", gzip(content)), ("zst", zstd(content)), ("zstd", zstd(content))]
        {
            let compressed_name = format!("{name}.{suffix}");
            let mut found = read_bytes(&compressed_name, &compressed, fields());
            for entry in &mut found.entries {
                let (Entry::Record(Record { location, .. }) | Entry::Unreadable(Unreadable { location, .. })) =
                    entry;
                assert_eq!(&*location.source, compressed_name);
                location.source = name.into();
            }
            assert_eq!(found, plain);
        }
    }

    let lines: String = (0..200_000).map(|i| format!("line {i} {}\n", i * 7919 % 10007)).collect();
    for (suffix, compressed) in [("gz", gzip(lines.as_bytes())), ("zst", zstd(lines.as_bytes()))] {
        let name = format!("a.txt.{suffix}");
        let found = read_bytes(&name, &compressed[..compressed.len() - 9], fields());
        let error = found.error.unwrap();
        let start = format!("cannot read {name} after line {} (", found.entries.len());
        assert!(error.starts_with(&start), "{error}");
        assert!(error.ends_with("); the compressed file is damaged or truncated; write it again"), "{error}");
        assert!(found.entries.len() > 1000);
    }
    let error = read_bytes("a.csv.gz", b"text\na\n", fields()).error.unwrap();
    assert_eq!(error, "a.csv.gz is not gzip-compressed; remove .gz from its name");
    let error = read_bytes("a.arrow.gz", &gzip(&arrow)[..900], fields()).error.unwrap();
    assert!(error.starts_with("cannot read a.arrow.gz "), "{error}");
    assert!(error.ends_with("the compressed file is damaged or truncated; write it again"), "{error}");
}

fn names(sources: &[Source]) -> Vec<String> {
    let name = |source: &Source| match &source.path {
        InputPath::File(path) => path.file_name().unwrap().to_string_lossy().into_owned(),
        InputPath::Stdin => "-".into(),
    };
    sources.iter().map(name).collect()
}

/// A folder with files of several formats, hidden files, and names that look like globs.
fn folder_of_inputs() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["b", "b/deep", ".hidden", "empty", "c[1]"] {
        fs::create_dir(at(name)).unwrap();
    }
    let files = [
        "b/deep/4.txt",
        "b.jsonl.gz",
        "a.txt",
        "b/3.csv",
        ".hidden/x.txt",
        "b/.x",
        "c.parquet",
        "c[1]/5.txt",
        "d[1].txt",
    ];
    for name in files {
        fs::write(at(name), "").unwrap();
    }
    folder
}

/// A filter that includes all files but hidden ones, whatever they are.
fn everything() -> Filter {
    Filter { include: vec!["[!.]*".into()], ..Filter::default() }
}

#[test]
fn directories_are_walked_in_the_order_of_paths() {
    let folder = folder_of_inputs();
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path(), folder.path().join("b/loop")).unwrap();
    let found = find(&[folder.path().to_owned()], None, &everything()).unwrap().sources;
    assert_eq!(names(&found), ["a.txt", "3.csv", "4.txt", "b.jsonl.gz", "c.parquet", "5.txt", "d[1].txt"]);
    let formats: Vec<_> = found.iter().map(|source| (source.format, source.compression)).collect();
    let plain = |format| (format, None);
    assert_eq!(
        formats,
        [
            plain(Format::Lines),
            plain(Format::Csv),
            plain(Format::Lines),
            (Format::Jsonl, Some(Compression::Gzip)),
            plain(Format::Parquet),
            plain(Format::Lines),
            plain(Format::Lines),
        ]
    );
}

#[test]
fn globs_match_files_and_directories() {
    let folder = folder_of_inputs();
    let at = |name: &str| folder.path().join(name);
    let matched = |pattern: &str| names(&find(&[at(pattern)], None, &everything()).unwrap().sources);
    assert_eq!(matched("*.txt"), ["a.txt", "d[1].txt"]);
    assert_eq!(matched("?.txt"), ["a.txt"]);
    assert_eq!(matched("b*"), ["3.csv", "4.txt", "b.jsonl.gz"]);
    assert_eq!(matched("**/*.csv"), ["3.csv"]);
    assert_eq!(matched("[ac].*"), ["a.txt", "c.parquet"]);
    // A path of an existing file is not a glob.
    assert_eq!(matched("d[1].txt"), ["d[1].txt"]);
    assert_eq!(matched("c[1]"), ["5.txt"]);
    // Inputs are read in the order of the command line, and repeated ones again.
    let several = sources(&[at("b/3.csv"), at("a.txt"), at("b/3.csv"), "-".into()], None).unwrap();
    assert_eq!(names(&several), ["3.csv", "a.txt", "3.csv", "-"]);
    // The extension gives the compression even with `--input-format`.
    let given = sources(&[at("b.jsonl.gz")], Some(Format::Files)).unwrap();
    assert_eq!((given[0].format, given[0].compression), (Format::Files, Some(Compression::Gzip)));
}

/// In a directory or among the files of a glob, files of records win over other files, and what describes
/// them is no input. A note says what is left out.
#[test]
fn data_win_over_other_files() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let found = |files: &[&str], path: &str, format, include: &[&str]| {
        for entry in fs::read_dir(folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
        for file in files {
            fs::create_dir_all(at(file).parent().unwrap()).unwrap();
            fs::write(at(file), "").unwrap();
        }
        let include = include.iter().map(|glob| (*glob).to_owned()).collect();
        let found = find(&[at(path)], format, &Filter { include, ..Filter::default() });
        match found {
            Ok(found) => {
                let notes: Vec<_> =
                    found.notes().map(|note| note.replace(folder.path().to_str().unwrap(), "F")).collect();
                (names(&found.sources), notes.join("; "))
            }
            Err(error) => (Vec::new(), error.to_string().replace(folder.path().to_str().unwrap(), "F")),
        }
    };
    let left_out = |count: &str, path: &str, names: &str| {
        format!(
            "{count} of --input F{path} left out, because other files are data ({names}); pass --include to choose files"
        )
    };
    let hub = ["README.md", ".gitattributes", "LICENSE", "data/train.jsonl", "data/test.jsonl.gz"];
    let note = left_out("2 files", "/", "LICENSE, README.md");
    assert_eq!(found(&hub, "", None, &[]), (vec!["test.jsonl.gz".into(), "train.jsonl".into()], note));
    let note = left_out("2 files", "/*", "LICENSE, README.md");
    assert_eq!(found(&hub, "*", None, &[]), (vec!["test.jsonl.gz".into(), "train.jsonl".into()], note));
    assert_eq!(found(&hub, "", None, &["*.md"]), (vec!["README.md".into()], String::new()));
    let (all, note) = found(&hub, "", None, &["[!.]*"]);
    assert_eq!(all.len(), 4);
    assert_eq!(note, "F/LICENSE is read as lines, without fields, beside inputs that have fields");
    // With a format that has fields, all files have it but those that describe data.
    let (jsonl, note) = found(&["README.md", "a.json", "b.txt", "state.json"], "", Some(Format::Jsonl), &[]);
    assert_eq!(
        (jsonl, note),
        (vec!["a.json".into(), "b.txt".into()], left_out("2 files", "/", "README.md, state.json"))
    );
    // Data sets as the package datasets, Spark and pandas write them.
    let saved = ["data-00000-of-00001.arrow", "dataset_info.json", "state.json"];
    let note = left_out("2 files", "/", "dataset_info.json, state.json");
    assert_eq!(found(&saved, "", None, &[]), (vec![saved[0].into()], note));
    let spark =
        ["part-0.parquet", "_SUCCESS", "_metadata", "_common_metadata", "part-0.parquet.crc", "x.json"];
    let note = left_out("5 files", "/", "_SUCCESS, _common_metadata, _metadata and 2 more");
    assert_eq!(found(&spark, "", None, &[]), (vec!["part-0.parquet".into()], note));
    let (texts, _) = found(&["part-0.txt", "_SUCCESS"], "", None, &[]);
    assert_eq!(texts, ["part-0.txt"]);
    // Texts alone are all read, a .json file may hold the data, and files of several formats of data are
    // data.
    assert_eq!(
        found(&["README.md", "a.rst"], "", None, &[]),
        (vec!["README.md".into(), "a.rst".into()], String::new())
    );
    assert!(
        found(&["README.md", "train.json"], "", None, &[])
            .1
            .contains("train.json: .json files are not supported")
    );
    assert_eq!(found(&["a.csv", "b.parquet"], "", None, &[]).0, ["a.csv", "b.parquet"]);
    assert_eq!(found(&["README.md", "a.csv"], "", Some(Format::Files), &[]).0, ["README.md", "a.csv"]);
    let (none, error) = found(&["_SUCCESS"], "", None, &[]);
    assert!(none.is_empty() && error.contains("only files that are not texts (_SUCCESS)"), "{error}");
}

#[test]
fn inputs_without_a_readable_format_are_refused() {
    let folder = folder_of_inputs();
    let at = |name: &str| folder.path().join(name);
    let fails = |name: &str, format, expected: &str| {
        let error = sources(&[at(name)], format).unwrap_err().to_string();
        assert_eq!(error.replace(&format!("{}/", folder.path().display()), ""), expected);
    };
    let excluded = ", or --no-ignore if .gitignore excludes them";
    fails(
        "empty",
        None,
        &format!("--input empty is a directory without files; pass one that has text files{excluded}"),
    );
    let nothing = "matches no file; check the glob and the current directory";
    fails("*.png", None, &format!("--input *.png {nothing}"));
    fails("empty/*", None, &format!("--input empty/* {nothing}"));
    let json = "--input x.json: .json files are not supported; write one object per line, pass --input-format, or leave it out with --exclude";
    fails("x.json", None, json);
    fails("x.json.gz", None, &json.replace(".json:", ".json.gz:"));
    assert_eq!(sources(&[at("x.json")], Some(Format::Jsonl)).unwrap()[0].format, Format::Jsonl);
    fails(
        "x.parquet.gz",
        None,
        "--input x.parquet.gz is a compressed Parquet file, which cannot be read in place; decompress it first",
    );
    let stdin = sources(&["-".into()], Some(Format::Parquet)).unwrap_err().to_string();
    let expected = "standard input cannot be Parquet, because reading Parquet needs seeking; save it to a file and pass that";
    assert_eq!(stdin, expected);
}

#[test]
fn inputs_that_cannot_be_opened_are_errors() {
    let open =
        |path: &Path, format| match Entries::open(sources(&[path.to_owned()], format).unwrap(), fields()) {
            Ok(_) => panic!("{} was opened", path.display()),
            Err(error) => error.to_string(),
        };
    let missing =
        "cannot read --input /nowhere/a.txt (No such file or directory (os error 2)); check the path";
    assert_eq!(open(Path::new("/nowhere/a.txt"), None), missing);
    assert_eq!(open(Path::new("/nowhere/a.txt"), Some(Format::Files)), missing);
    let device =
        "--input /dev/null is not a regular file, and reading Parquet needs seeking; copy it to a file";
    assert_eq!(open(Path::new("/dev/null"), Some(Format::Parquet)), device);
    let source = Source {
        path: InputPath::File(fixture("input")),
        format: Format::Lines,
        compression: None,
        syntax: Format::Lines.syntax(),
        is_lenient: false,
        fault: None,
    };
    let error = Entries::open(vec![source], fields()).err().unwrap().to_string();
    assert!(error.ends_with("input is a directory; pass the text files in it"), "{error}");
}

/// Text in UTF-16 with a byte order mark gives the records of UTF-8, in all formats of text.
#[test]
fn utf_16_is_read() {
    let encoded = |text: &str, big: bool| -> Vec<u8> {
        let units = "\u{feff}".encode_utf16().chain(text.trim_start_matches('\u{feff}').encode_utf16());
        units.flat_map(|unit| if big { unit.to_be_bytes() } else { unit.to_le_bytes() }).collect()
    };
    let long = format!("text\n{}", "ünïcode 火 🔥\n".repeat(20_000));
    for (name, content) in [
        ("a.txt", "a lamp\r\nthe 🔥\n"),
        ("a.jsonl", JSONL),
        ("a.csv", CSV),
        ("a.tsv", "text\na\n"),
        ("b.csv", &long),
    ] {
        let plain = read_bytes(name, content.as_bytes(), fields());
        assert!(plain.error.is_none() && !plain.entries.is_empty());
        for big in [false, true] {
            assert_eq!(read_bytes(name, &encoded(content, big), fields()), plain, "{name}");
            let compressed = read_bytes(&format!("{name}.gz"), &gzip(&encoded(content, big)), fields());
            assert_eq!((compressed.entries.len(), compressed.error), (plain.entries.len(), None), "{name}");
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    fs::write(&path, encoded(CSV, false)).unwrap();
    let output = embed("bert-tiny", ["--input", path.to_str().unwrap()]);
    assert_same_vectors(&rows(&output));
    assert!(support::stderr(&output).contains("a.csv is UTF-16; it is converted to UTF-8"));
    let mut odd = encoded("a\nb", false);
    odd.extend([0x3d, 0xd8, b'\n', 0, b'c', 0, 0xff]);
    let found = read_bytes("a.txt", &odd, fields());
    assert_eq!(
        shown(&found),
        [
            "a.txt line 1|-|a",
            "a.txt line 2 has half of a UTF-16 surrogate pair (byte 2 of the line); write the whole character, or remove the half",
            "a.txt line 3 ends with half of a UTF-16 code unit: the file was not copied as a whole; write or copy it again",
        ]
    );
    // A file that is cut inside of a code unit, whose first byte would be text on its own.
    for big in [false, true] {
        for (name, text) in [("a.txt", "a\nb"), ("a.csv", "text\na\nb"), ("b.csv", "te")] {
            let mut cut = encoded(text, big);
            cut.push(b'c');
            let found = read_bytes(name, &cut, fields());
            let last = shown(&found).last().cloned().or(found.error).unwrap();
            assert!(last.contains("ends with half of a UTF-16 code unit"), "{name}: {last}");
        }
    }
}

/// A file of another kind than its name says is named as what it is, by every reader.
#[test]
fn names_that_lie_are_told() {
    let parquet = fs::read(input("snappy.parquet")).unwrap();
    let arrow = fs::read(input("file.arrow")).unwrap();
    let stream = fs::read(input("stream.arrows")).unwrap();
    let rename = |what: &str, suffix: &str| {
        format!("is {what}, but its name does not end in .{suffix}; rename it to NAME.{suffix}")
    };
    let contents: [(&[u8], String); 6] = [
        (&gzip(b"text\na\n"), rename("gzip-compressed", "gz")),
        (&zstd(b"text\na\n"), rename("zstd-compressed", "zst")),
        (b"BZh91AY&SY\0\0", "is bzip2-compressed; decompress it with bzip2 -d".into()),
        (&parquet, "is a Parquet file, not".into()),
        (&arrow, "is Arrow data, not".into()),
        (&stream, "is Arrow data, not".into()),
    ];
    for name in ["a.txt", "a.jsonl", "a.csv", "a.tsv"] {
        for (bytes, expected) in &contents {
            let found = read_bytes(name, bytes, fields());
            let message = found.error.clone().unwrap_or_else(|| shown(&found).join("; "));
            assert!(message.starts_with(&format!("{name} {}", expected.replace("NAME", name))), "{message}");
        }
    }
    for (name, bytes, expected) in [
        ("a.parquet", &arrow[..], "a.parquet is Arrow data, not a Parquet file; pass --input-format arrow"),
        ("a.parquet", b"text\na\n", "a.parquet is text, not a Parquet file; pass --input-format"),
        (
            "a.parquet",
            &gzip(&parquet),
            "a.parquet is gzip-compressed, not a Parquet file; decompress it with gzip -d",
        ),
        ("a.arrow", &parquet, "a.arrow is a Parquet file, not Arrow data; pass --input-format parquet"),
        ("a.arrow", b"{\"text\": \"a\"}\n", "a.arrow is text, not Arrow data; pass --input-format"),
        ("a.csv.zst", &gzip(b"text\na\n"), "a.csv.zst is gzip-compressed, not zstd-compressed; rename it"),
        ("a.arrow.gz", &arrow, "a.arrow.gz is Arrow data, not gzip-compressed; remove .gz from its name"),
        (
            "a.csv.gz",
            &gzip(&parquet),
            "a.csv.gz is a Parquet file, not a csv file; save it to an uncompressed file",
        ),
    ] {
        let error = read_bytes(name, bytes, fields()).error.unwrap();
        assert!(error.starts_with(expected), "{error}");
    }
}

/// NaN, Infinity and lone surrogates, as Python's `json.dumps` writes them: of no account in fields that are
/// not read.
#[test]
fn json_as_python_writes_it_is_read() {
    let lines = [
        r#"{"text": "a NaN", "score": NaN, "more": {"a": [-Infinity]}}"#,
        r#"{"text": "b", "score": -Infinity, "more": ["NaN", NaN]}"#,
        r#"{"text": "c", "score": 0.5, "more": null}"#,
        r#"{"text": "d", "score": 1, "\ud83d": "\ud83d"}"#,
        r#"{"text": NaN}"#,
        r#"{"text": "e", "id": Infinity}"#,
        r#"{"text": "f \ud83d"}"#,
        r#"{"text": "g", "more": {"x": "\udd25"}}"#,
        r#"{"text": "h", "score": nan}"#,
        r#"{'text': 'i'}"#,
        r#"NaN"#,
    ];
    let surrogate = |field: &str, escape: &str| {
        format!(
            "cannot be used: field \"{field}\" has a lone surrogate, {escape}, which is half of a character; write the whole \
             character, or remove the escape"
        )
    };
    let found = read_bytes("a.jsonl", lines.join("\n").as_bytes(), keeping(&["score", "more"]));
    let kept = found.entries[..4].iter().map(|entry| match entry {
        Entry::Record(record) => (record.kept[0].not_finite(), json_of(&record.kept)),
        Entry::Unreadable(unreadable) => panic!("{unreadable}"),
    });
    let kept: Vec<_> = kept.collect();
    assert!(kept[0].0.is_some_and(f64::is_nan));
    assert_eq!(kept[1], (Some(f64::NEG_INFINITY), json!([null, ["NaN", null]])));
    let values: Vec<_> = kept.into_iter().map(|(_, value)| value).collect();
    assert_eq!(values[0], json!([null, {"a": [null]}]));
    assert_eq!(values[2..], [json!([0.5, null]), json!([1, null])]);
    let reasons: Vec<_> = shown(&found).split_off(4);
    let expected = [
        "cannot be used: field \"text\" is NaN, expected a string; choose another with --text-field".to_owned(),
        "cannot be used: field \"id\" is Infinity, expected a string or an integer; choose another with --id-field".into(),
        surrogate("text", "\\ud83d"),
        surrogate("more", "\\udd25"),
        "is not valid JSON (column 25); fix the line".into(),
        "is a Python dict, not JSON; write it with json.dumps".into(),
        "is not valid JSON (column 1); fix the line, or pass --input-format lines".into(),
    ];
    let expected: Vec<_> =
        expected.iter().zip(5..).map(|(reason, line)| format!("a.jsonl line {line} {reason}")).collect();
    assert_eq!(reasons, expected);
    // A column with NaN is one of floats, and jsonl has null for it, as for NaN of a column of floats.
    let content = lines[..4].join("\n");
    let found = rows(&run("a.jsonl", &content, &["--keep", "score"]));
    assert_eq!(
        found.iter().map(|row| row["score"].clone()).collect::<Vec<_>>(),
        [json!(null), json!(null), json!(0.5), json!(1)]
    );
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("o.parquet").display().to_string();
    assert!(run("a.jsonl", &content, &["--keep", "score", "-o", &output]).status.success());
    let read_back = read(&[PathBuf::from(&output)], None, Fields { text: "score".into(), ..fields() });
    assert!(read_back.error.is_some_and(|error| error.contains("\"score\" holds 64-bit floats")));
    let file = fs::File::open(&output).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file)
        .unwrap()
        .build()
        .unwrap();
    let batch = reader.into_iter().next().unwrap().unwrap();
    let scores = batch.column_by_name("score").unwrap();
    let scores: Vec<_> = (0..4)
        .map(|row| arrow::array::AsArray::as_primitive::<arrow::datatypes::Float64Type>(scores).value(row))
        .collect();
    assert!(scores[0].is_nan());
    assert_eq!(scores[1..], [f64::NEG_INFINITY, 0.5, 1.0]);
}

/// With `--input-format files` each file is one text; a file that cannot be read does not stop the others
/// from being read.
#[test]
fn each_file_is_one_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.txt"), "\u{feff}a lamp\nthe candle\n").unwrap();
    fs::write(at("b.txt.gz"), gzip(b"light")).unwrap();
    fs::write(at("c.bin"), b"ab\xff").unwrap();
    fs::write(at("d.txt"), vec![b'a'; (16 << 20) + 1]).unwrap();
    fs::write(at("e.txt"), "").unwrap();
    fs::write(at("f.gz"), "no gzip at all").unwrap();
    let found = read(&[folder.path().to_owned()], Some(Format::Files), fields());
    let path = |name: &str| at(name).display().to_string();
    let expected = [
        format!("{0}|{0}|a lamp\nthe candle\n", path("a.txt")),
        format!("{0}|{0}|light", path("b.txt.gz")),
        format!(
            "{} is not valid UTF-8 (byte 3 of the file); convert the file to UTF-8, for example with iconv",
            path("c.bin")
        ),
        format!("{} is longer than 16 MiB; split the file: it is read as one text", path("d.txt")),
        format!("{0}|{0}|", path("e.txt")),
        format!("{} is not gzip-compressed; remove .gz from its name", path("f.gz")),
    ];
    assert_eq!(shown(&found), expected);
}

/// The error about a record that cannot be read names its location, and the records after it are read.
#[test]
fn records_after_unreadable_ones_are_read() {
    let lines = read_bytes("a.txt", b"a\n\xffb\nc", fields());
    assert_eq!(
        shown(&lines),
        [
            "a.txt line 1|-|a",
            "a.txt line 2 is not valid UTF-8 (byte 1 of the line); convert the file to UTF-8, for example with iconv",
            "a.txt line 3|-|c"
        ]
    );
    let deep = format!("{{\"text\": {}", "[".repeat(100_000));
    let json = [
        "{\"text\": \"a\"}",
        "[]",
        "{\"text\": 1}",
        "",
        "{\"text\": \"\\ud800\"}",
        "{\"id\": 1}",
        &deep,
        "{\"text\": \"b\", \"id\": 12345678901234567890123}",
        "{\"text\": \"c\", \"id\": 18446744073709551615}",
    ];
    let found = read_bytes("a.jsonl", json.join("\n").as_bytes(), fields());
    assert_eq!(
        shown(&found),
        [
            "a.jsonl line 1|-|a",
            "a.jsonl line 2 is not a JSON object; write one per line, or pass --input-format lines",
            "a.jsonl line 3 cannot be used: field \"text\" is a number, expected a string; choose another with \
             --text-field",
            "a.jsonl line 5 cannot be used: field \"text\" has a lone surrogate, \\ud800, which is half of a character; write the \
             whole character, or remove the escape",
            "a.jsonl line 6 has no field \"text\"; choose another with --text-field",
            "a.jsonl line 7 is not valid JSON (column 100009); fix the line",
            "a.jsonl line 8 cannot be used: field \"id\" is a number that 64 bits cannot hold exactly; write it \
             in quotes",
            "a.jsonl line 9|18446744073709551615|c",
        ]
    );
    let table = b"text,id\n\na,1\r\nb\nc,\"2\nx\"\r\nd,4,5\r\n\r\n\xff,6\r\ne,7\r\nf,8";
    let found = read_bytes("a.csv", table, fields());
    let counts = "fix the row, or quote fields that contain the delimiter";
    assert_eq!(
        shown(&found),
        [
            "a.csv line 3|1|a".to_owned(),
            format!("a.csv line 4 has 1 field, but the header has 2; {counts}"),
            "a.csv line 5|2\nx|c".into(),
            format!("a.csv line 7 has 3 fields, but the header has 2; {counts}"),
            "a.csv line 9 is not valid UTF-8; convert the file to UTF-8, for example with iconv".into(),
            "a.csv line 10|7|e".into(),
            "a.csv line 11|8|f".into(),
        ]
    );
    assert_eq!(found.error, None);
}

/// A line that is too long is skipped without being held in memory, and the next one is read.
#[test]
fn lines_over_16_mib_are_skipped() {
    const MAX: usize = 16 << 20;
    for (length, fits) in [(MAX - 1, true), (MAX, false), (MAX + 1, false), (3 * MAX, false)] {
        let mut content = b"a\n".to_vec();
        content.resize(2 + length, b'x');
        content.extend(b"\nb\n");
        let found = read_bytes("a.txt", &content, fields());
        assert_eq!(found.entries.len(), 3, "{length}");
        let shown = shown(&found);
        assert_eq!(shown[2], "a.txt line 3|-|b");
        match fits {
            true => assert_eq!(shown[1].len(), "a.txt line 2|-|".len() + length),
            false => {
                assert_eq!(shown[1], "a.txt line 2 is longer than 16 MiB; split the text into several lines");
            }
        }
        content.extend(b"{\"text\": \"c\"}");
        let found = read_bytes("a.jsonl", &content, fields());
        assert_eq!(found.entries.len(), 4, "{length}");
        assert!(matches!(&found.entries[3], Entry::Record(record) if record.text == "c"));
    }
}

const QUOTES: &str =
    "write a quote inside a quoted field twice, or pass --quote none if quotes are plain text";

/// A quoted field that does not end, or that goes on after its closing quote, is an error in the line where
/// it begins; the lines after that are read.
#[test]
fn stray_quotes_do_not_join_rows() {
    let open = format!("has a quoted field that does not end; {QUOTES}");
    let after = format!("has a quoted field with text after its closing quote; {QUOTES}");
    let backslash =
        format!("has a quote after a backslash in a quoted field, which ends the field there; {QUOTES}");
    let missing =
        "has 1 field, but the header has 2; fix the row, or quote fields that contain the delimiter";
    let cases: [(&str, &[&str]); 10] = [
        ("text\na\n\"b\nc\nd\n", &["2|-|a", "3 OPEN", "4|-|c", "5|-|d"]),
        ("text\na\n\"b\nc\nd", &["2|-|a", "3 OPEN", "4|-|c", "5|-|d"]),
        ("id,text\r\n1,a\r\n2,\"b\r\n3,c\r\n", &["2|1|a", "3 OPEN", "4|3|c"]),
        ("text\n\"", &["2 OPEN"]),
        (
            "id,text\n1,a\n2,\"5 inch\n3,c\n4,a 7\" d\n5,e\n",
            &["2|1|a", "3 AFTER", "4|3|c", "5|4|a 7\" d", "6|5|e"],
        ),
        ("text\n\"a\" \nb\n", &["2 AFTER", "3|-|b"]),
        ("text\n\"a\"\"\"b\nc\n", &["2 AFTER", "3|-|c"]),
        ("id,text\n1,\"the \\\"old\\\" lamp\"\n2,b\n", &["2 BACKSLASH", "3|2|b"]),
        // The line where the field begins, after a field of two lines.
        ("text,x\n\"a\nb\",\"c\nd\n", &["3 OPEN", "4 MISSING"]),
        ("text\ra\r\"b\rc\r", &["2|-|a", "3 OPEN", "4|-|c"]),
    ];
    for (content, expected) in cases {
        let found = read_bytes("a.csv", content.as_bytes(), fields());
        let reasons = [("OPEN", &*open), ("AFTER", &after), ("BACKSLASH", &backslash), ("MISSING", missing)];
        let expected: Vec<_> = expected
            .iter()
            .map(|entry| {
                let replaced = reasons
                    .iter()
                    .fold((*entry).to_owned(), |entry, (name, reason)| entry.replace(name, reason));
                format!("a.csv line {replaced}")
            })
            .collect();
        assert_eq!((shown(&found), &found.error), (expected, &None), "{content:?}");
    }
    // Quotes inside a field without quotes are text, and so is what the csv crate takes for the end of a
    // file.
    for content in [
        "text\na\"b\nc",
        "text\n\"a\"\"\"\n\"c\"",
        "text\n\u{1a}\n\u{1a}",
        "text\r\"\n\u{1a}\"\rb\r",
        "text\n \"a\"\nb",
    ] {
        let found = read_bytes("a.csv", content.as_bytes(), fields());
        assert_eq!((found.entries.len(), found.error), (2, None), "{content:?}");
    }
    let header = read_bytes("a.csv", b"\"id\"x,text\n1,a\n", fields());
    assert_eq!(header.error, Some(format!("a.csv line 1 {after}")));
    let lines = read_bytes("a.csv", b"text\n\"a\nb\",x\n", fields());
    let counts = "has 2 fields in 2 lines, but the header has 1; fix the row, or quote fields that contain the delimiter";
    assert_eq!(shown(&lines), [format!("a.csv line 2 {counts}")]);
    let mut content = b"text\na\n\"b".to_vec();
    content.resize(40 << 20, b'\n');
    content.extend(b"c\n");
    let found = read_bytes("a.csv", &content, fields());
    let expected = [
        "a.csv line 2|-|a".to_owned(),
        format!("a.csv line 3 is longer than 16 MiB; {QUOTES}"),
        format!("a.csv line {}|-|c", (40 << 20) - 6),
    ];
    assert_eq!((shown(&found), found.error), (expected.to_vec(), None));
}

/// A column that is read has to have a name of its own; others need none.
#[test]
fn columns_of_one_name_are_an_error_if_they_are_read() {
    let content = b"text,x,x,text\na,1,2,b\n";
    let error =
        "a.csv: the header has 2 columns \"text\"; rename one of them, or choose another with --text-field";
    assert_eq!(read_bytes("a.csv", content, fields()).error.as_deref(), Some(error));
    let content = b"text,x,x\na,1,2\n";
    assert_eq!(shown(&read_bytes("a.csv", content, fields())), ["a.csv line 2|-|a"]);
    let error = "a.csv: the header has 2 columns \"x\"; rename one of them, or choose another with --keep";
    assert_eq!(read_bytes("a.csv", content, keeping(&["x"])).error.as_deref(), Some(error));
    let error =
        "a.csv: the header has 2 columns \"id\"; rename one of them, or choose another with --id-field";
    assert_eq!(read_bytes("a.csv", b"id,text,id\n1,a,2\n", fields()).error.as_deref(), Some(error));
    let error =
        "a.csv: no column \"text\" (columns: id;text); choose one with --text-field, or pass --delimiter ';'";
    assert_eq!(read_bytes("a.csv", b"id;text\n1;a\n", fields()).error.as_deref(), Some(error));
}

/// `--delimiter` and `--quote`; TSV has no quotes.
#[test]
fn delimiters_and_quotes_are_chosen() {
    let kept = |name: &str, content: &str, args: &[&str]| -> Vec<Value> {
        let found = rows(&run(name, content, &[args, &["--keep", "text", "--dimensions", "2"]].concat()));
        found.into_iter().map(|row| row["text"].clone()).collect()
    };
    let stray = "id\ttext\n1\tfirst\n2\t\"5 inch pipe\n3\t\"x\"\n";
    assert_eq!(kept("a.tsv", stray, &[]), ["first", "\"5 inch pipe", "\"x\""]);
    assert_eq!(kept("a.csv", "id,text\n2,\"5 inch\n3,a\n", &["--quote", "none"]), ["\"5 inch", "a"]);
    assert_eq!(kept("a.csv", "id;text\n1;\"a;b\"\n", &["--delimiter", ";"]), ["a;b"]);
    assert_eq!(kept("a.csv", "id\ttext\n1\ta, b\n", &["--delimiter", "\\t"]), ["a, b"]);
    assert_eq!(kept("a.csv", "id,text\n1,'it''s, \"b\"'\n", &["--quote", "'"]), ["it's, \"b\""]);
    let quoted = "id\ttext\n1\t\"a\nb\"\n";
    assert_eq!(kept("a.tsv", quoted, &["--quote", "\""]), ["a\nb"]);
    assert_fails(&run("a.tsv", quoted, &[]), 1, &["a.tsv line 3 has 1 field,", "fix the row"]);
    let split = run("a.tsv", "id\ttext\n1\t\"a\tb\"\n", &[]);
    assert_fails(&split, 1, &["a.tsv line 2 has 3 fields", "pass --quote '\"' if some fields are quoted"]);
    for (name, args, parts) in [
        ("a.jsonl", &["--delimiter", ";"][..], &["--delimiter needs an input in csv or tsv"][..]),
        ("a.txt", &["--quote", "none"], &["--quote needs an input in csv or tsv"]),
        ("a.csv", &["--quote", ","], &["the delimiter and the quote are the same"]),
    ] {
        assert_fails(&run(name, "text\na\n", args), 2, parts);
    }
    for args in [["--delimiter", ";;"], ["--delimiter", "\n"], ["--quote", "\u{201c}"], ["--quote", ""]] {
        let message = support::stderr(&run("a.csv", "text\na\n", &args));
        assert!(message.contains(args[0]) && message.contains("expected one ASCII character"), "{message}");
    }
}

/// Lengths in damaged files for which there is no memory.
#[test]
fn lengths_without_memory_for_them_are_errors() {
    let name = "zstd.arrow";
    let intact = fs::read(input(name)).unwrap();
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let mut found = 0;
    for at in (8..intact.len() - 4).filter(|at| intact[*at..at + 4] == magic) {
        let mut bytes = intact.clone();
        bytes[at - 8..at].copy_from_slice(&(1_i64 << 60).to_le_bytes());
        // Only the columns that are kept are read.
        let all = [
            "before", "pair", "number", "byte", "double", "float", "flag", "day", "time", "price", "kind",
            "nested",
        ];
        let read = read_bytes(name, &bytes, keeping(&all));
        let expected = ["zstd.arrow: the record batch after row ", " takes 1.2 EB", "--max-memory"];
        let error = read.error.unwrap_or_default();
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        found += 1;
    }
    assert!(found > 10, "the fixture has compressed columns");
    let feather = "cannot read first.feather as Arrow (it is a Feather file of version 1, which is not supported; write it as \
                   version 2); write the file again, or pass --input-format";
    let bytes = fs::read(input("first.feather")).unwrap();
    assert_eq!(read_bytes("first.feather", &bytes, fields()).error.as_deref(), Some(feather));

    let start = "cannot read a.parquet as Parquet (";
    let end = "); write the file again, or pass --input-format";
    for (bytes, why) in malformed_parquet() {
        assert_eq!(read_bytes("a.parquet", &bytes, fields()).error, Some(format!("{start}{why}{end}")));
    }
}

/// A truncated file gives rows of the complete file and then an error, wherever it is truncated.
#[test]
fn truncated_files_are_errors() {
    for name in ["snappy.parquet", "file.arrow", "lz4.arrow", "stream.arrows", "dictionary.arrows"] {
        let bytes = fs::read(input(name)).unwrap();
        let complete = read_bytes(name, &bytes, fields()).entries;
        let mut valid = Vec::new();
        // A stream is valid after some of its messages: a larger step would miss them.
        let step = if name.ends_with("arrows") { 1 } else { 7 };
        for length in (0..bytes.len()).step_by(step) {
            let found = read_bytes(name, &bytes[..length], fields());
            assert_eq!(found.entries[..], complete[..found.entries.len()], "{name} truncated to {length}");
            match &found.error {
                None => valid.push(found.entries.len()),
                Some(error) => assert!(error.contains(name) && error.lines().count() == 1, "{error}"),
            }
        }
        valid.sort_unstable();
        valid.dedup();
        match name {
            "snappy.parquet" | "file.arrow" | "lz4.arrow" => assert_eq!(valid, [0; 0]),
            // A stream may end after any message.
            _ => assert_eq!(valid, [0, 4, 6]),
        }
    }
}

#[test]
fn arguments_have_a_size() {
    let mut entries = Entries::arguments(vec!["a".into(), "light".into()]);
    assert_eq!((entries.total_bytes(), entries.bytes_read()), (Some(8), 0));
    let Some(Ok(Entry::Record(record))) = entries.next() else { panic!("no text") };
    assert_eq!((record.location.to_string().as_str(), record.text.as_str()), ("argument 1", "a"));
    assert_eq!(entries.bytes_read(), 2);
    assert!(entries.next().is_some() && entries.next().is_none());
    assert_eq!(entries.bytes_read(), 8);
}

/// All formats but Parquet are read from standard input.
#[test]
fn formats_are_read_from_standard_input() {
    let run = |format: &str, bytes: &[u8]| {
        let mut command = sconce();
        command.args(["embed", "-m"]).arg(fixture("bert-tiny")).args([
            "--input",
            "-",
            "--input-format",
            format,
        ]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(bytes).unwrap();
        child.wait_with_output().unwrap()
    };
    assert_same_vectors(&rows(&run("jsonl", JSONL.as_bytes())));
    let broken = run("jsonl", b"{\"text\": \"a\"}\n{\n");
    assert_fails(&broken, 1, &["standard input line 2 is not valid JSON"]);
}

/// A named pipe is opened when it is read, has no size, and cannot be seeked.
#[cfg(unix)]
#[test]
fn named_pipes_are_read_without_seeking() {
    let folder = tempfile::tempdir().unwrap();
    let through = |name: &str, bytes: Vec<u8>| {
        let path = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut entries = Entries::open(sources(slice::from_ref(&path), None).unwrap(), fields()).unwrap();
        assert_eq!((entries.total_bytes(), entries.bytes_read()), (None, 0));
        let length = bytes.len() as u64;
        let writer = thread::spawn(move || fs::write(path, bytes).is_ok());
        // `Entries` can be sent to another thread.
        let reader = thread::spawn(move || {
            let found: Vec<_> = entries.by_ref().collect();
            (found, Entries::bytes_read(&entries))
        });
        let (found, position) = reader.join().unwrap();
        let (mut read, mut error) = (Vec::new(), None);
        for entry in found {
            match entry {
                Ok(entry) => read.push(entry),
                Err(failed) => error = Some(failed.to_string()),
            }
        }
        if error.is_none() {
            assert!(writer.join().unwrap());
            assert!(position > 0 && position <= length);
        }
        (read.len(), error)
    };
    assert_eq!(through("a.txt", b"a\nb\n".to_vec()), (2, None));
    assert_eq!(through("a.csv", CSV.into()), (3, None));
    assert_eq!(through("a.jsonl.zst", zstd(JSONL.as_bytes())), (3, None));
    for name in ["file.arrow", "lz4.arrow", "old.arrow", "stream.arrows"] {
        assert_eq!(through(name, fs::read(input(name)).unwrap()), (6, None));
    }
    let (rows, error) = through("polars.arrow", fs::read(input("polars.arrow")).unwrap());
    assert_eq!(rows, 0);
    let expected = "it may be a file that can only be read by its footer: pass it uncompressed, by its path";
    assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{error:?}");
    let compressed =
        read_bytes("polars.arrow.gz", &gzip(&fs::read(input("polars.arrow")).unwrap()), fields());
    assert!(compressed.error.as_ref().is_some_and(|error| error.contains(expected)), "{compressed:?}");

    let pipe = folder.path().join("a.parquet");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = Entries::open(sources(&[pipe], None).unwrap(), fields()).err().unwrap().to_string();
    assert!(error.contains("a.parquet is not a regular file, and reading Parquet needs seeking"), "{error}");
}

/// Several inputs are read one after another; a wrong header is an error before the first record.
#[test]
fn several_sources_are_one_input() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.txt"), "a\n").unwrap();
    fs::write(at("b.csv"), "body\nb\n").unwrap();
    let found =
        read(&[at("a.txt"), input("whole.parquet"), input("whole.arrow"), at("a.txt")], None, fields());
    assert_eq!((found.entries.len(), found.error), (8, None));
    let found = read(&[at("a.txt"), at("b.csv"), at("a.txt")], None, fields());
    assert_eq!(found.entries.len(), 0);
    let error = format!(
        "{}: no column \"text\" (columns: body); choose one with --text-field",
        at("b.csv").display()
    );
    assert_eq!(found.error, Some(error));
}
