//! Structured input: the same vectors as for the same texts as lines, ids carried through, and what is wrong said by file
//! and line.

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::slice;
use std::thread;

use sconce::field::FieldValue;
use sconce::input::{
    Compression, Entries, Entry, Fields, Format, Place, Record, Source, Unreadable, sources,
};
use serde_json::{Value, json};
use support::{assert_fails, embed, embedding, fixture, rows, sconce, stdout};

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

/// An id as text, where it is a string or an integer.
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
fn json_lines() {
    let found = rows(&run("texts.jsonl", JSONL, &[]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!(7)), None]);
    assert_same_vectors(&rows(&run("texts.ndjson", JSONL, &[])));
    // By what is typed, not by the name, and under other names.
    let renamed =
        JSONL.replace("\"text\": \"", "\"body\": \"").replace("\"id\"", "\"key\"").replace("null", "\"z\"");
    let args = ["--input-format", "jsonl", "--text-field", "body", "--id-field", "key"];
    let found = rows(&run("texts.txt", &renamed, &args));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!(7)), Some(json!("z"))]);
}

const CSV: &str = "id,text,x\na,a lamp,1\n7,\"the \"\"wick\"\", burning\nlight\",2\n,,3\n";

#[test]
fn tables() {
    let found = rows(&run("texts.csv", CSV, &[]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!("7")), Some(json!(""))]);
    let tsv = "\u{feff}body\tid\na lamp\ta\r\n\"the \"\"wick\"\", burning\nlight\"\tb\n\"\"\tc\n";
    let found = rows(&run("texts.tsv", tsv, &["--text-field", "body"]));
    assert_same_vectors(&found);
    assert_eq!(ids(&found), [Some(json!("a")), Some(json!("b")), Some(json!("c"))]);
    // A header alone is no text.
    assert_eq!(stdout(&run("texts.csv", "text\n", &[])), "");
}

#[test]
fn standard_input_and_several_files() {
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
}

/// A kept field that no record has is a slip of the pen in JSON lines, too.
#[test]
fn fields_to_keep_that_no_record_has() {
    let lines = "{\"text\": \"a\", \"title\": 1}\n{\"text\": \"b\", \"late\": 2}\n";
    for args in [&["--keep", "ttile"][..], &["--keep", "title,ttile"], &["--keep", "title", "ttile"]] {
        let output = run("a.jsonl", lines, args);
        assert_fails(&output, 1, &["a.jsonl", "no record has the field \"ttile\"", "text, title", "--keep"]);
        assert_eq!(stdout(&output), "");
    }
    // One that some records have is null in the others.
    let found = rows(&run("a.jsonl", lines, &["--keep", "late,title"]));
    let kept: Vec<_> = found.iter().map(|row| (&row["late"], &row["title"])).collect();
    assert_eq!(kept, [(&Value::Null, &json!(1)), (&json!(2), &Value::Null)]);
    // A stream is answered as it comes: its first record has to have them.
    let mut command = sconce();
    command.args(["embed", "-m"]).arg(fixture("bert-tiny")).args(["-i", "-", "--input-format", "jsonl"]);
    command.args(["--keep", "late"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    assert_fails(&child.wait_with_output().unwrap(), 1, &["standard input", "\"late\"", "text, title"]);
}

/// An integer that JSON's readers would round is not carried through as another.
#[test]
fn integers_of_more_than_64_bits() {
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

/// What [`Entries`] gives of some names, by the library: a line an entry, and the sentence of the error at the end.
#[derive(Debug, PartialEq)]
struct Read {
    entries: Vec<Entry>,
    error: Option<String>,
}

fn fields() -> Fields {
    Fields { text: "text".into(), pair: None, id: None, keep: Vec::new() }
}

fn keeping(names: &[&str]) -> Fields {
    Fields { keep: names.iter().map(|name| (*name).to_owned()).collect(), ..fields() }
}

#[track_caller]
fn read(paths: &[PathBuf], format: Option<Format>, fields: Fields) -> Read {
    let mut entries = match Entries::open(sources(paths, format).unwrap(), fields) {
        Ok(entries) => entries,
        // What a file says at its beginning is wrong.
        Err(error) => return Read { entries: Vec::new(), error: Some(error.to_string()) },
    };
    let bytes = paths.iter().filter(|path| path.is_file()).map(|path| fs::metadata(path).unwrap().len());
    if paths.iter().all(|path| path.is_file()) {
        assert_eq!(entries.size(), Some(bytes.sum()));
    }
    assert_eq!(entries.position(), 0);
    let mut read = Read { entries: Vec::new(), error: None };
    let mut last = 0;
    while let Some(entry) = entries.next() {
        match entry {
            Ok(entry) => read.entries.push(entry),
            Err(error) => read.error = Some(error.to_string()),
        }
        let position = entries.position();
        assert!(position >= last && position <= entries.size().unwrap(), "{last}, then {position}");
        last = position;
    }
    if read.error.is_none() {
        assert_eq!(Some(entries.position()), entries.size());
    }
    assert!(entries.next().is_none(), "the end is the end");
    read
}

#[track_caller]
fn read_bytes(name: &str, bytes: &[u8], fields: Fields) -> Read {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, bytes).unwrap();
    let mut found = read(&[path], None, fields);
    // The folder has another name each time.
    let folder = format!("{}/", folder.path().display());
    for entry in &mut found.entries {
        let (Entry::Record(Record { place, .. }) | Entry::Unreadable(Unreadable { place, .. })) = entry;
        place.source = place.source.replace(&folder, "").into();
    }
    found.error = found.error.map(|error| error.replace(&folder, ""));
    found
}

fn input(name: &str) -> PathBuf {
    fixture("input").join(name)
}

/// An entry as `place|id|text`, or the sentence on it.
fn shown(read: &Read) -> Vec<String> {
    let folder = format!("{}/", fixture("input").display());
    let shown = read.entries.iter().map(|entry| match entry {
        Entry::Record(record) => {
            format!("{}|{}|{}", record.place, text_of(&record.id).unwrap_or("-".into()), record.text)
        }
        Entry::Unreadable(unreadable) => unreadable.to_string(),
    });
    shown.map(|line| line.replace(&folder, "")).collect()
}

const NULL_TEXT: &str = "cannot be used: field \"text\" is null, but has to be a string; write an empty one, or leave the row out";

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

fn tables_of_others() -> Vec<String> {
    let parquet = PARQUET.iter().map(|name| format!("{name}.parquet"));
    parquet.chain(ARROW.iter().map(|name| (*name).to_owned())).collect()
}

/// Files by other writers, in all of their encodings, hold the same rows.
#[test]
fn parquet_and_arrow() {
    for name in tables_of_others() {
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
        assert_eq!(read(&[input(name)], None, fields()), Read { entries: vec![], error: None });
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
fn pairs_of_columns() {
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

/// Fields that go along, each as what it is.
#[test]
fn kept_fields() {
    let names = [
        "number", "text", "byte", "double", "float", "flag", "day", "time", "price", "kind", "nested",
        "before", "id",
    ];
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
        let found = read(&[input(name)], None, keeping(&names));
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
fn columns_that_are_not_there() {
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
            let expected = format!("{name} has no column \"body\" but {columns}; name another with {option}");
            assert_eq!(found.error, Some(expected));
        }
    }
    for name in ["none.parquet", "file.arrow"] {
        let bytes = fs::read(input(name)).unwrap();
        let found = read_bytes(name, &bytes, Fields { text: "number".into(), ..fields() });
        let expected = format!(
            "{name}: column \"number\" holds Int64, but has to hold strings; name another with --text-field"
        );
        assert_eq!(found.error, Some(expected));
        let found = read_bytes(name, &bytes, Fields { id: Some("nested".into()), ..fields() });
        let error = found.error.unwrap_or_default();
        let begins = format!("{name}: column \"nested\" holds Struct");
        let ends = "but has to hold strings, numbers or dates; name another with --id-field";
        assert!(error.starts_with(&begins) && error.ends_with(ends), "{error}");
        // Without the fourth row, which has no text. Whole numbers with one missing are floats to some writers.
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
    let expected = "a.csv has no column \"text\", nor any other; give it a header that names its columns";
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

/// A packed file holds what the plain one holds; one that ends early says so, after what there is.
#[test]
fn packed_files() {
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
        for (suffix, packed) in
            [("gz", gzip(content)), ("GZIP", gzip(content)), ("zst", zstd(content)), ("zstd", zstd(content))]
        {
            let packed_name = format!("{name}.{suffix}");
            let mut found = read_bytes(&packed_name, &packed, fields());
            for entry in &mut found.entries {
                let (Entry::Record(Record { place, .. }) | Entry::Unreadable(Unreadable { place, .. })) =
                    entry;
                assert_eq!(&*place.source, packed_name);
                place.source = name.into();
            }
            assert_eq!(found, plain);
        }
    }

    let lines: String = (0..200_000).map(|i| format!("line {i} {}\n", i * 7919 % 10007)).collect();
    for (suffix, packed) in [("gz", gzip(lines.as_bytes())), ("zst", zstd(lines.as_bytes()))] {
        let name = format!("a.txt.{suffix}");
        let found = read_bytes(&name, &packed[..packed.len() - 9], fields());
        let error = found.error.unwrap();
        let start = format!("cannot read {name} after line {} (", found.entries.len());
        assert!(error.starts_with(&start), "{error}");
        assert!(
            error.ends_with("); the packed file is damaged or ends early; fetch or pack it again"),
            "{error}"
        );
        assert!(found.entries.len() > 1000);
    }
    let error = read_bytes("a.csv.gz", b"text\na\n", fields()).error.unwrap();
    assert!(error.starts_with("cannot read a.csv.gz after line 0 ("), "{error}");
    let error = read_bytes("a.arrow.gz", &gzip(&arrow)[..900], fields()).error.unwrap();
    assert!(error.starts_with("cannot read a.arrow.gz "), "{error}");
    assert!(error.ends_with("fetch or pack it again"), "{error}");
}

fn names(sources: &[Source]) -> Vec<String> {
    let name = |source: &Source| match &source.place {
        Place::File(path) => path.file_name().unwrap().to_string_lossy().into_owned(),
        Place::Stdin => "-".into(),
    };
    sources.iter().map(name).collect()
}

#[test]
fn directories_and_patterns() {
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
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path(), at("b/loop")).unwrap();
    let found = sources(&[folder.path().to_owned()], None).unwrap();
    assert_eq!(names(&found), ["a.txt", "3.csv", "4.txt", "b.jsonl.gz", "c.parquet", "5.txt", "d[1].txt"]);
    #[cfg(unix)]
    fs::remove_file(at("b/loop")).unwrap();
    let formats: Vec<_> = found.iter().map(|source| (source.format, source.compression)).collect();
    let plain = |format| (format, Compression::None);
    assert_eq!(
        formats,
        [
            plain(Format::Lines),
            plain(Format::Csv),
            plain(Format::Lines),
            (Format::Jsonl, Compression::Gzip),
            plain(Format::Parquet),
            plain(Format::Lines),
            plain(Format::Lines),
        ]
    );
    let matched = |pattern: &str| names(&sources(&[at(pattern)], None).unwrap());
    assert_eq!(matched("*.txt"), ["a.txt", "d[1].txt"]);
    assert_eq!(matched("?.txt"), ["a.txt"]);
    assert_eq!(matched("b*"), ["3.csv", "4.txt", "b.jsonl.gz"]);
    assert_eq!(matched("**/*.csv"), ["3.csv"]);
    assert_eq!(matched("[ac].*"), ["a.txt", "c.parquet"]);
    // A file of that name is meant, although it is a pattern, too.
    assert_eq!(matched("d[1].txt"), ["d[1].txt"]);
    assert_eq!(matched("c[1]"), ["5.txt"]);
    // In the order in which they are named, as often as they are named.
    let several = sources(&[at("b/3.csv"), at("a.txt"), at("b/3.csv"), "-".into()], None).unwrap();
    assert_eq!(names(&several), ["3.csv", "a.txt", "3.csv", "-"]);
    // The packing is in the name whatever else is said.
    let said = sources(&[at("b.jsonl.gz")], Some(Format::Files)).unwrap();
    assert_eq!((said[0].format, said[0].compression), (Format::Files, Compression::Gzip));

    let fails = |name: &str, format, expected: &str| {
        let error = sources(&[at(name)], format).unwrap_err().to_string();
        assert_eq!(error.replace(&format!("{}/", folder.path().display()), ""), expected);
    };
    fails("empty", None, "--input empty is a directory without files; name one that has texts");
    let nothing = "matches no file; check the pattern, and the folder that it is looked for in";
    fails("*.png", None, &format!("--input *.png {nothing}"));
    fails("empty/*", None, &format!("--input empty/* {nothing}"));
    let json = "--input x.json: .json files are not supported; write one object a line, or say with --input-format how \
                texts stand in it";
    fails("x.json", None, json);
    fails("x.json.gz", None, &json.replace(".json:", ".json.gz:"));
    assert_eq!(sources(&[at("x.json")], Some(Format::Jsonl)).unwrap()[0].format, Format::Jsonl);
    fails(
        "x.parquet.gz",
        None,
        "--input x.parquet.gz is parquet that is packed once more; unpack it, since its columns are packed",
    );
    let stdin = sources(&["-".into()], Some(Format::Parquet)).unwrap_err().to_string();
    let expected =
        "standard input cannot be parquet, which is read from its end; save it as a file and name that";
    assert_eq!(stdin, expected);
}

#[test]
fn sources_that_cannot_be_opened() {
    let open =
        |path: &Path, format| match Entries::open(sources(&[path.to_owned()], format).unwrap(), fields()) {
            Ok(_) => panic!("{} was opened", path.display()),
            Err(error) => error.to_string(),
        };
    let missing =
        "cannot read --input /nowhere/a.txt (No such file or directory (os error 2)); check the name";
    assert_eq!(open(Path::new("/nowhere/a.txt"), None), missing);
    assert_eq!(open(Path::new("/nowhere/a.txt"), Some(Format::Files)), missing);
    let device = "--input /dev/null is no regular file, and parquet is read from its end; copy it to a file";
    assert_eq!(open(Path::new("/dev/null"), Some(Format::Parquet)), device);
    let source = Source {
        place: Place::File(fixture("input")),
        format: Format::Lines,
        compression: Compression::None,
        is_lenient: false,
        fault: None,
    };
    let error = Entries::open(vec![source], fields()).err().unwrap().to_string();
    assert!(error.ends_with("input is a directory; name the text files in it"), "{error}");
}

/// Each file is one text, and one that is none does not stand in the way of the others.
#[test]
fn files_as_texts() {
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
        format!("{} is longer than 16 MiB; split the text: it is all of the file", path("d.txt")),
        format!("{0}|{0}|", path("e.txt")),
        format!("{} cannot be read (invalid gzip header); check the file", path("f.gz")),
    ];
    assert_eq!(shown(&found), expected);
}

/// What cannot be read is named by its place, and what comes after it is read.
#[test]
fn rows_after_rows_that_cannot_be_read() {
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
            "a.jsonl line 2 is not a JSON object; write one a line, or pass --input-format lines",
            "a.jsonl line 3 cannot be used: field \"text\" is a number, but has to be a string; name another with \
             --text-field",
            "a.jsonl line 5 is not valid JSON (column 17); mend the line, or pass --input-format lines",
            "a.jsonl line 6 has no field \"text\"; name the field of the text with --text-field",
            "a.jsonl line 7 is not valid JSON (column 100009); mend the line, or pass --input-format lines",
            "a.jsonl line 8 cannot be used: field \"id\" is a number that is too large to be kept as it is; write it \
             in quotes",
            "a.jsonl line 9|18446744073709551615|c",
        ]
    );
    let table = b"text,id\n\na,1\r\nb\nc,\"2\nx\"\r\nd,4,5\r\n\r\n\xff,6\r\ne,7\r\nf,8";
    let found = read_bytes("a.csv", table, fields());
    let counts = "mend the row, or put what holds delimiters in quotes";
    assert_eq!(
        shown(&found),
        [
            "a.csv line 3|1|a".to_owned(),
            format!("a.csv line 4 has 1 fields, but the header has 2; {counts}"),
            "a.csv line 5|2\nx|c".into(),
            format!("a.csv line 7 has 3 fields, but the header has 2; {counts}"),
            "a.csv line 9 is not valid UTF-8; convert the file to UTF-8, for example with iconv".into(),
            "a.csv line 10|7|e".into(),
            "a.csv line 11|8|f".into(),
        ]
    );
    assert_eq!(found.error, None);
}

/// A line that is too long is passed over without being held, and the next one is read.
#[test]
fn lines_that_are_too_long() {
    const MOST: usize = 16 << 20;
    for (length, fits) in [(MOST - 1, true), (MOST, false), (MOST + 1, false), (3 * MOST, false)] {
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
                assert_eq!(
                    shown[1],
                    "a.txt line 2 is longer than 16 MiB; split the text: there is one per line"
                );
            }
        }
        content.extend(b"{\"text\": \"c\"}");
        let found = read_bytes("a.jsonl", &content, fields());
        assert_eq!(found.entries.len(), 4, "{length}");
        assert!(matches!(&found.entries[3], Entry::Record(record) if record.text == "c"));
    }
}

/// A quote that is not closed takes the rest of a table with it, which must not pass for a text.
#[test]
fn quotes_that_are_left_open() {
    const CLOSE: &str =
        "close the quote that was left open, and write a quote inside of a quoted field twice";
    for (content, line, rows) in [
        ("text\na\n\"b\nc\nd\n", 3, 1),
        ("text\na\n\"b\nc\nd", 3, 1),
        ("id,text\r\n1,a\r\n2,\"b\r\n3,c\r\n", 3, 1),
        ("text\n\"", 2, 0),
    ] {
        let found = read_bytes("a.csv", content.as_bytes(), fields());
        assert_eq!(found.entries.len(), rows, "{content:?}");
        let expected =
            format!("a.csv line {line}: a quoted field of the row that begins here does not end; {CLOSE}");
        assert_eq!(found.error, Some(expected), "{content:?}");
    }
    // Quotes that only look open, and the mark behind the last byte as a text.
    for content in
        ["text\na\"b\nc", "text\n\"a\"\"\"\n\"c\"", "text\n\u{1a}\n\u{1a}", "text\r\"\n\u{1a}\"\rb\r"]
    {
        let found = read_bytes("a.csv", content.as_bytes(), fields());
        assert_eq!((found.entries.len(), found.error), (2, None), "{content:?}");
    }
    let mut content = b"text\na\n\"b".to_vec();
    content.resize(40 << 20, b'\n');
    let found = read_bytes("a.csv", &content, fields());
    assert_eq!(found.entries.len(), 1);
    let expected = format!("a.csv line 3: the row that begins here is longer than 16 MiB; {CLOSE}");
    assert_eq!(found.error, Some(expected));
}

/// Numbers in damaged files that ask for more memory than there is.
#[test]
fn lengths_that_cannot_be() {
    let name = "zstd.arrow";
    let whole = fs::read(input(name)).unwrap();
    let magic = [0x28, 0xb5, 0x2f, 0xfd];
    let mut found = 0;
    for at in (8..whole.len() - 4).filter(|at| whole[*at..at + 4] == magic) {
        let mut bytes = whole.clone();
        bytes[at - 8..at].copy_from_slice(&(1_i64 << 60).to_le_bytes());
        // Columns that nobody asks for are not read.
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
    assert!(found > 10, "the fixture has packed columns");
    let feather = "cannot read first.feather as arrow (it is Feather of version 1, which is not supported: write it as version 2, \
                   which is Arrow); fetch or write it again, or say with --input-format what it is";
    let bytes = fs::read(input("first.feather")).unwrap();
    assert_eq!(read_bytes("first.feather", &bytes, fields()).error.as_deref(), Some(feather));

    // A footer of which the first column says that it has 2³¹ − 1 children, and one of columns a thousand deep.
    let column = |children: &[u8]| [&[0x48, 1, b'a', 0x15][..], children, &[0x00]].concat();
    let footer = |columns: Vec<Vec<u8>>| {
        let mut schema =
            vec![0x15, 0x02, 0x19, 0xfc, (columns.len() & 127) as u8 | 128, (columns.len() >> 7) as u8];
        schema.extend(columns.concat());
        schema.extend([0x16, 0x02, 0x19, 0x0c, 0x00]);
        let length = (schema.len() as u32).to_le_bytes();
        [b"PAR1", &schema[..], &length, b"PAR1"].concat()
    };
    let start = "cannot read a.parquet as parquet (";
    let end = "); fetch or write it again, or say with --input-format what it is";
    for (bytes, why) in [
        (footer(vec![column(&[0xfe, 0xff, 0xff, 0xff, 0x0f])]), "its list of columns is damaged"),
        (footer(vec![column(&[2]); 10_000]), "its columns stand in one another more than 64 deep"),
        (b"PAR1 no footer".to_vec(), "it does not end as such a file does"),
        (
            b"PAR1\xff\xff\xff\x7fPAR1".to_vec(),
            "it says that its footer has 2147483647 bytes, but it has 12 in all",
        ),
        (b"PAR".to_vec(), "it has only 3 bytes"),
    ] {
        assert_eq!(read_bytes("a.parquet", &bytes, fields()).error, Some(format!("{start}{why}{end}")));
    }
}

/// A file that was cut says so, wherever the cut is, and gives only rows of the whole file.
#[test]
fn tables_that_end_early() {
    for name in ["snappy.parquet", "file.arrow", "lz4.arrow", "stream.arrows", "dictionary.arrows"] {
        let bytes = fs::read(input(name)).unwrap();
        let whole = read_bytes(name, &bytes, fields()).entries;
        let mut complete = Vec::new();
        // A stream is whole after some of its messages, which a step would miss.
        let step = if name.ends_with("arrows") { 1 } else { 7 };
        for length in (0..bytes.len()).step_by(step) {
            let found = read_bytes(name, &bytes[..length], fields());
            assert_eq!(found.entries[..], whole[..found.entries.len()], "{name} cut to {length}");
            match &found.error {
                None => complete.push(found.entries.len()),
                Some(error) => assert!(error.contains(name) && error.lines().count() == 1, "{error}"),
            }
        }
        complete.sort_unstable();
        complete.dedup();
        match name {
            "snappy.parquet" | "file.arrow" | "lz4.arrow" => assert_eq!(complete, [0; 0]),
            // A stream may end after any message.
            _ => assert_eq!(complete, [0, 4, 6]),
        }
    }
}

#[test]
fn arguments_have_a_size() {
    let mut entries = Entries::arguments(vec!["a".into(), "light".into()]);
    assert_eq!((entries.size(), entries.position()), (Some(8), 0));
    let Some(Ok(Entry::Record(record))) = entries.next() else { panic!("no text") };
    assert_eq!((record.place.to_string().as_str(), record.text.as_str()), ("argument 1", "a"));
    assert_eq!(entries.position(), 2);
    assert!(entries.next().is_some() && entries.next().is_none());
    assert_eq!(entries.position(), 8);
}

/// Standard input by the command: everything but parquet is read as it comes.
#[test]
fn formats_from_standard_input() {
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

/// A pipe by its name is opened when it has its turn, has no size, and cannot be read from its end.
#[cfg(unix)]
#[test]
fn named_pipes() {
    let folder = tempfile::tempdir().unwrap();
    let through = |name: &str, bytes: Vec<u8>| {
        let path = folder.path().join(name);
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        let mut entries = Entries::open(sources(slice::from_ref(&path), None).unwrap(), fields()).unwrap();
        assert_eq!((entries.size(), entries.position()), (None, 0));
        let length = bytes.len() as u64;
        let writer = thread::spawn(move || fs::write(path, bytes).is_ok());
        // Entries go to the thread that reads them.
        let reader = thread::spawn(move || {
            let found: Vec<_> = entries.by_ref().collect();
            (found, Entries::position(&entries))
        });
        let (found, position) = reader.join().unwrap();
        let (mut read, mut error) = (Vec::new(), None);
        for entry in found {
            match entry {
                Ok(entry) => read.push(entry),
                Err(said) => error = Some(said.to_string()),
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
    let expected =
        "it may be one of the files that are read by the index at their end: give it unpacked, by its name";
    assert!(error.as_ref().is_some_and(|error| error.contains(expected)), "{error:?}");
    let packed = read_bytes("polars.arrow.gz", &gzip(&fs::read(input("polars.arrow")).unwrap()), fields());
    assert!(packed.error.as_ref().is_some_and(|error| error.contains(expected)), "{packed:?}");

    let pipe = folder.path().join("a.parquet");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = Entries::open(sources(&[pipe], None).unwrap(), fields()).err().unwrap().to_string();
    assert!(error.contains("a.parquet is no regular file, and parquet is read from its end"), "{error}");
}

/// Inputs one after another are one input; a header that is wrong is found before the first record.
#[test]
fn several_sources() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("a.txt"), "a\n").unwrap();
    fs::write(at("b.csv"), "body\nb\n").unwrap();
    let found =
        read(&[at("a.txt"), input("whole.parquet"), input("whole.arrow"), at("a.txt")], None, fields());
    assert_eq!((found.entries.len(), found.error), (8, None));
    let found = read(&[at("a.txt"), at("b.csv"), at("a.txt")], None, fields());
    assert_eq!(found.entries.len(), 0);
    let error =
        format!("{} has no column \"text\" but body; name another with --text-field", at("b.csv").display());
    assert_eq!(found.error, Some(error));
}
