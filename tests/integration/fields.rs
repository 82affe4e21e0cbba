//! Which fields of an input become the text, the pair, the id and the kept fields of a record.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::LogicalType;
use sconce::formats::RowFile;
use sconce::input::{Entries, Entry, Fields, Filter, Format, KeptName, TextFields, find};
use sconce::rows::OutputFormat;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{assert_fails, embed, embedding, fixture, rows, sconce, stderr, stdout};

/// The records of a file as `[id, text, pair, kept fields]`, or why they cannot be read; or the error about
/// the file.
fn read(path: &Path, fields: &Fields, format: Option<Format>) -> Result<Vec<Value>, String> {
    let folder = format!("{}/", path.parent().unwrap().display());
    let without_folder = |error: anyhow::Error| error.to_string().replace(&folder, "");
    let found = find(&[path.to_owned()], format, &Filter::default()).unwrap();
    let entries = Entries::open(found.sources, fields.clone());
    entries
        .map_err(without_folder)?
        .map(|entry| match entry.map_err(without_folder)? {
            Entry::Record(record) => {
                let kept = record.kept.iter().map(|value| value.json().into_owned());
                Ok(json!([record.id, record.text, record.pair, kept.collect::<Value>()]))
            }
            Entry::Unreadable(unreadable) => Ok(unreadable.reason.into()),
        })
        .collect()
}

/// [`read`] of a file with this name and content.
fn read_text(name: &str, content: &str, fields: &Fields) -> Result<Vec<Value>, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    fs::write(&path, content).unwrap();
    read(&path, fields, None)
}

fn several(names: &[&str], separator: &str) -> TextFields {
    TextFields { names: names.iter().map(ToString::to_string).collect(), separator: separator.into() }
}

/// Every JSON type is an id: strings and integers as they are, null as none, others as their text.
#[test]
fn json_of_every_type_is_an_id() {
    let cases = [
        ("\"a\"", json!("a")),
        ("7", json!(7)),
        ("-0.5", json!("-0.5")),
        ("null", Value::Null),
        ("true", json!("true")),
        ("false", json!("false")),
        ("{\"$oid\": \"5f1a\"}", json!("{\"$oid\":\"5f1a\"}")),
        ("[ 1, [\"a  b\\\"\", null],\t{} ]", json!("[1,[\"a  b\\\"\",null],{}]")),
        ("{\"b\": 123456789012345678901, \"a\": 1.0}", json!("{\"b\":123456789012345678901,\"a\":1.0}")),
    ];
    let lines: String =
        cases.iter().map(|(id, _)| format!("{{\"id\": {id}, \"text\": \"a lamp\"}}\n")).collect();
    let expected: Vec<Value> = cases.iter().map(|(_, id)| json!([id, "a lamp", null, []])).collect();
    let named = Fields { id: Some("id".into()), ..Fields::default() };
    let kept = Fields { keeps_id: true, ..Fields::default() };
    for fields in [&Fields::default(), &named, &kept] {
        assert_eq!(read_text("a.jsonl", &lines, fields), Ok(expected.clone()));
    }

    let without = "{\"text\": \"a lamp\"}\n{\"text\": \"light\", \"id\": 1}\n";
    let record = |id: Value, text: &str| json!([id, text, null, []]);
    let expected = vec![record(Value::Null, "a lamp"), record(json!(1), "light")];
    assert_eq!(read_text("a.jsonl", without, &Fields::default()), Ok(expected.clone()));
    assert_eq!(read_text("a.jsonl", without, &kept), Ok(expected));
    let missing = json!("has no field \"id\"; choose another with --id-field");
    assert_eq!(read_text("a.jsonl", without, &named), Ok(vec![missing, record(json!(1), "light")]));
    let none = "a.jsonl: no record has the field \"id\" (fields: text); choose another with --keep";
    assert_eq!(read_text("a.jsonl", "{\"text\": \"a lamp\"}\n", &kept), Err(none.into()));
    let none = "a.csv: no column \"id\" (columns: text); choose one with --keep";
    assert_eq!(read_text("a.csv", "text\na lamp\n", &kept), Err(none.into()));
}

/// A column of every Arrow type is an id.
#[test]
fn columns_of_every_type_are_ids() {
    let huge = format!("1{}", "0".repeat(60));
    let ids = [
        ("naive", json!("2026-11-21T06:02:17.250001"), json!("1911-11-21T06:02:17.250001")),
        ("seconds", json!("1970-01-01T00:00:00"), json!("1969-12-31T23:59:59")),
        ("zoned", json!("1970-01-01T00:00:00.000000001Z"), json!("2006-07-14T23:58:24.606846977Z")),
        ("day", json!("2026-11-21"), json!("2026-11-21")),
        ("day64", json!("2026-11-21"), json!("2026-11-21")),
        ("clock", json!("06:02:17.250001"), json!("00:00:00")),
        ("span", json!("PT1.5S"), json!("P0D")),
        ("price", json!("12.50"), json!("-0.01")),
        ("huge", json!(huge), json!("-1")),
        ("words", json!("[\"x\",null]"), json!("[]")),
        ("more", json!("[[1],[]]"), json!("[null]")),
        ("three", json!("[1.0,2.0,3.0]"), json!("[4.0,null,6.0]")),
        (
            "inner",
            json!("{\"a\":1,\"b\":[\"x\",\"y\"],\"at\":\"2026-11-21T06:02:17.250Z\"}"),
            json!("{\"a\":null,\"b\":null,\"at\":null}"),
        ),
        ("map", json!("{\"k\":1,\"l\":null}"), json!("{}")),
        ("pairs", json!("[[1,\"x\"]]"), json!("[]")),
        ("category", json!("x"), json!("y")),
        ("bytes", json!("00ff"), json!("")),
        ("four", json!("61626364"), json!("00010203")),
        ("small", json!(-128), json!(127)),
        ("large", json!(u64::MAX), json!(0)),
        ("half", json!("0.5"), json!(-2)),
        // NaN is how pandas writes null.
        ("single", json!("0.1"), Value::Null),
        ("flag", json!("true"), json!("false")),
        ("long", json!("x"), json!("")),
        ("view", json!("x"), json!("a string that is longer than a view")),
    ];
    for name in ["typed.parquet", "typed.arrow"] {
        for (column, first, second) in &ids {
            let fields = Fields { id: Some((*column).into()), ..Fields::default() };
            let expected = vec![
                json!([first, "a lamp", null, []]),
                json!([second, "a wick", null, []]),
                json!([null, "light", null, []]),
            ];
            assert_eq!(read(&fixture("input").join(name), &fields, None), Ok(expected), "{name} {column}");
        }
    }
}

const NULL: &str = "is null, expected a string; write an empty string, or remove the row";

/// UUIDs, texts in columns of bytes, and fields of structs.
#[test]
fn uuids_bytes_and_structs_of_parquet_and_arrow() {
    let path = |form: &str| fixture("input").join(format!("fields.{form}"));
    let null = |field: &str| json!(format!("cannot be used: field {field:?} {NULL}"));
    let damaged = |field: &str, byte: usize| {
        json!(format!(
            "cannot be used: field {field:?} is not valid UTF-8 (byte {byte} of the value); write it as UTF-8, or remove the row"
        ))
    };
    let uuids = [
        json!("00000000-0000-0000-0000-000000000007"),
        Value::Null,
        json!("550e8400-e29b-41d4-a716-446655440000"),
        json!("00000000-0000-0000-0000-000000000009"),
    ];
    let default = Fields::default;
    let keep = ["meta.lang", "meta.deep.year", "meta.deep.raw", "meta.deep"].map(KeptName::from).to_vec();
    let nested = Fields { text: "meta.text".into(), id: Some("meta.key".into()), keep, ..default() };
    let cases = [
        (
            default(),
            [
                json!([uuids[0], "a lamp", null, []]),
                json!([uuids[1], "the candle ü", null, []]),
                null("text"),
                damaged("text", 3),
            ],
        ),
        (
            Fields { text: "fixed".into(), pair: Some("meta.lang".into()), keeps_id: true, ..default() },
            [json!([uuids[0], "abc", "own", []]), null("meta.lang"), null("fixed"), damaged("fixed", 1)],
        ),
        (
            nested,
            [
                json!([
                    "00000000-0000-0000-0000-000000000001",
                    "light",
                    null,
                    ["own", 1911, "736e6f77", {"year": 1911, "raw": "736e6f77"}]
                ]),
                null("meta.text"),
                null("meta.text"),
                json!(["ffffffff-ffff-ffff-ffff-ffffffffffff", "", null, ["own", -1, null, {"year": -1, "raw": null}]]),
            ],
        ),
        (
            Fields { text: several(&["meta.lang", "meta.text", "text"], " | "), ..default() },
            [
                json!([uuids[0], "own | light | a lamp", null, []]),
                json!([uuids[1], "the candle ü", null, []]),
                json!([uuids[2], "own", null, []]),
                damaged("text", 3),
            ],
        ),
        (
            Fields { text: several(&["meta.lang"], ""), id: Some("meta.deep".into()), ..default() },
            [
                json!(["{\"year\":1911,\"raw\":\"736e6f77\"}", "own", null, []]),
                null("meta.lang"),
                json!(["{\"year\":null,\"raw\":\"00\"}", "own", null, []]),
                json!(["{\"year\":-1,\"raw\":null}", "own", null, []]),
            ],
        ),
    ];
    for form in ["parquet", "arrow"] {
        for (fields, expected) in &cases {
            assert_eq!(read(&path(form), fields, None), Ok(expected.to_vec()), "{form} {fields:?}");
        }
        let error =
            |name: &str| read(&path(form), &Fields { text: name.into(), ..default() }, None).unwrap_err();
        assert_eq!(
            error("id"),
            format!(
                "fields.{form}: column \"id\" holds UUIDs, expected text; choose another with --text-field"
            )
        );
        let found = error("meta");
        let (starts, ends) = (
            format!("fields.{form}: column \"meta\" holds structs of \""),
            ", expected text; choose one of its fields, such as meta.text, with --text-field",
        );
        assert!(found.starts_with(&starts) && found.ends_with(ends), "{found}");
        for missing in ["meta.none", "meta.deep.year.x", "meta.", ".meta", "text.x"] {
            let columns = "columns: id, text, fixed, meta, meta.lang";
            let expected =
                format!("fields.{form}: no column {missing:?} ({columns}); choose one with --text-field");
            assert_eq!(error(missing), expected);
        }
    }
}

const NESTED: &str = concat!(
    "{\"id\": 1, \"doc\": {\"body\": \"a lamp\", \"tags\": {\"lang\": \"en\"}}, \"title\": \"Lamp\"}\n",
    "{\"id\": 2, \"doc.body\": \"own\", \"doc\": {\"body\": \"hidden\"}, \"title\": \"\"}\n",
    "{\"id\": 3, \"doc\": null, \"title\": \"Light\"}\n",
    "{\"id\": 4, \"doc\": {\"body\": null, \"tags.lang\": \"de\"}, \"title\": null}\n",
    "{\"id\": 5, \"doc\": {\"body\": 7}}\n",
    "{\"id\": 6, \"doc\": \"text\"}\n",
);

/// Names with dots are those of nested fields of JSON lines, in every option. A column of CSV has the whole
/// name.
#[test]
fn nested_fields_of_json_lines() {
    let default = Fields::default;
    let missing =
        |field: &str, option: &str| json!(format!("has no field {field:?}; choose another with {option}"));
    let unfit = |what: &str| {
        json!(format!(
            "cannot be used: field \"doc.body\" is {what}, expected a string; choose another with --text-field"
        ))
    };
    let keep = vec!["doc.tags.lang".into(), KeptName { field: "doc.body".into(), output: "b".into() }];
    let found = read_text("a.jsonl", NESTED, &Fields { text: "doc.body".into(), keep, ..default() });
    let expected = [
        json!([1, "a lamp", null, ["en", "a lamp"]]),
        json!([2, "own", null, [null, "own"]]),
        missing("doc.body", "--text-field"),
        json!(format!("cannot be used: field \"doc.body\" {NULL}")),
        unfit("a number"),
        missing("doc.body", "--text-field"),
    ];
    assert_eq!(found, Ok(expected.to_vec()));

    let pairs = Fields { text: "title".into(), pair: Some("doc.body".into()), ..default() };
    let pairs = Fields { id: Some("doc.tags".into()), ..pairs };
    let found = read_text("a.jsonl", NESTED.lines().next().unwrap(), &pairs);
    assert_eq!(found, Ok(vec![json!(["{\"lang\":\"en\"}", "Lamp", "a lamp", []])]));

    let none = "a.jsonl: no record has the field \"doc.tags.none\" (fields: id, doc, title); choose another with --keep";
    let keep = vec!["doc.tags.none".into()];
    assert_eq!(read_text("a.jsonl", NESTED, &Fields { keep, ..default() }), Err(none.into()));

    let table = "doc,doc.body\nx,a lamp\n";
    let body = Fields { text: "doc.body".into(), ..default() };
    assert_eq!(read_text("a.csv", table, &body), Ok(vec![json!([null, "a lamp", null, []])]));
    let none = "a.csv: no column \"doc.body\" (columns: doc); choose one with --text-field";
    assert_eq!(read_text("a.csv", "doc\nx\n", &body), Err(none.into()));
}

/// The values of several fields are joined; those that are blank, null or missing are left out.
#[test]
fn several_fields_are_one_text() {
    let fields = Fields { text: several(&["title", "doc.body"], "\n"), ..Fields::default() };
    let none = "has a string in none of the fields \"title\", \"doc.body\"; choose others with --text-field";
    let number =
        "cannot be used: field \"doc.body\" is a number, expected a string; choose another with --text-field";
    let record = |id: u64, text: &str| json!([id, text, null, []]);
    let expected = [
        record(1, "Lamp\na lamp"),
        record(2, "own"),
        record(3, "Light"),
        json!(none),
        json!(number),
        json!(none),
    ];
    assert_eq!(read_text("a.jsonl", NESTED, &fields), Ok(expected.to_vec()));
    let misspelt = Fields { text: several(&["titel", "doc.body"], "\n"), ..Fields::default() };
    let error = "a.jsonl: no record has the field \"titel\" (fields: id, doc, title); choose another with --text-field";
    assert_eq!(read_text("a.jsonl", NESTED, &misspelt), Err(error.into()));

    let table = "title,doc.body\nLamp,a lamp\n,light\n\" \",\n";
    let row = |text: &str| json!([null, text, null, []]);
    assert_eq!(read_text("a.csv", table, &fields), Ok(vec![row("Lamp\na lamp"), row("light"), row(" ")]));
    let error = "a.csv: no column \"titel\" (columns: title, doc.body); choose one with --text-field";
    assert_eq!(read_text("a.csv", table, &misspelt), Err(error.into()));
}

/// Two files whose names are not UTF-8 have different ids.
#[cfg(unix)]
#[test]
fn files_whose_names_are_not_utf8_have_ids() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let folder = tempfile::tempdir().unwrap();
    let files: [&[u8]; 3] = [b"\xff.txt", b"\xfe\xc3.txt", "ü.txt".as_bytes()];
    for name in files {
        fs::write(folder.path().join(OsStr::from_bytes(name)), "a lamp").unwrap();
    }
    let fields = Fields { keep: vec!["file".into()], ..Fields::default() };
    let mut found = read(folder.path(), &fields, Some(Format::Files)).unwrap();
    found.sort_by_key(ToString::to_string);
    let expected = ["\\xfe\\xc3.txt", "\\xff.txt", "ü.txt"].map(|name| {
        let path = folder.path().join(name);
        json!([path, "a lamp", null, [path]])
    });
    assert_eq!(found, expected);
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder.write("beir.jsonl", "{\"_id\": \"d1\", \"title\": \"Lamp\", \"text\": \"It burns.\"}\n");
        folder.write("nested.jsonl", "{\"doc\": {\"body\": \"It burns.\"}, \"id\": {\"$oid\": \"5f1a\"}}\n");
        folder
    }

    fn at(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.0.path().join(name), content).unwrap();
    }
}

fn run(args: &[&str]) -> Output {
    embed("bert-tiny", args)
}

/// The options, in each way that lists of names can be given.
#[test]
fn options_name_several_and_nested_fields() {
    let folder = Folder::new();
    let (beir, nested) = (folder.at("beir.jsonl"), folder.at("nested.jsonl"));
    let expected = rows(&run(&["Lamp\nIt burns.", "Lamp It burns.", "It burns."]));
    let same = |found: &Output, index: usize| {
        let found = rows(found);
        assert_eq!((found.len(), embedding(&found[0])), (1, embedding(&expected[index])));
    };
    for (args, index) in [
        (&["--text-field", "title", "text", "-i", &beir][..], 0),
        (&["-i", &beir, "--text-field", "title,text"], 0),
        (&["-i", &beir, "--text-field", "title", "--text-field", "text", "--text-separator", " "], 1),
        (&["-i", &nested, "--text-field", "doc.body"], 2),
    ] {
        same(&run(args), index);
    }
    // A - after the names is standard input. The first record of a stream need not have all of the fields.
    let mut command = sconce();
    command.args(["embed", "-m"]).arg(fixture("bert-tiny")).args(["--input-format", "jsonl"]);
    command.args(["--text-field", "text,title", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"{\"title\": \"It burns.\"}\n").unwrap();
    same(&child.wait_with_output().unwrap(), 2);

    for args in [
        &["-i", &beir, "--text-separator", " "][..],
        &["-i", &beir, "--text-field", "text", "--text-separator", "-"],
    ] {
        assert_fails(&run(args), 2, &["--text-separator needs several fields", "--text-field"]);
    }
    assert_fails(&run(&["a lamp", "--text-separator", "-"]), 2, &["--text-separator needs several fields"]);
    let output = run(&["-i", &beir, "--keep", "=x"]);
    assert!(stderr(&output).contains("'=x' for '--keep <NAME>...': expected NAME or NAME=AS"));
    assert_eq!(output.status.code(), Some(2));
}

/// `--keep` copies fields under other names, and the error about a name that is taken says so. The id is an
/// output column of its own, which `--keep` may name.
#[test]
fn kept_fields_get_other_names() {
    let folder = Folder::new();
    let nested = folder.at("nested.jsonl");
    let text = ["-i", &nested, "--text-field", "doc.body"];
    let keep = |names: &[&str]| run(&[&text[..], &["--dimensions", "2", "--keep"], names].concat());
    let kept = |names: &[&str]| {
        let line = stdout(&keep(names));
        let (row, _) = line.split_once(",\"embedding\"").unwrap_or_else(|| panic!("{line}"));
        row.to_owned()
    };
    let start = "{\"index\":0,\"id\":\"{\\\"$oid\\\":\\\"5f1a\\\"}\",\"tokens\":7,\"truncated\":false";
    for (names, end) in [
        (&["id"][..], ""),
        (&["id", "id=key"], ",\"key\":{\"$oid\":\"5f1a\"}"),
        (
            &["doc.body", "doc=tokens.doc"],
            ",\"doc.body\":\"It burns.\",\"tokens.doc\":{\"body\":\"It burns.\"}",
        ),
    ] {
        assert_eq!(kept(names), format!("{start}{end}"));
    }
    // The name in the output is after the last =.
    assert_fails(&keep(&["line=a=b,line"]), 1, &["no record has the field \"line=a\"", "--keep"]);
    let taken = ["doc is already an output column", "copy the field under another name: --keep NAME=AS"];
    assert_fails(&keep(&["doc.body=tokens"]), 2, &["--keep tokens: tokens is already", taken[1]]);
    assert_fails(&keep(&["doc=x", "doc.body=x"]), 2, &["--keep names \"x\" twice", "NAME=AS"]);
    assert_fails(
        &run(&[&text[..], &["--id-field", "doc", "--keep", "id"]].concat()),
        2,
        &["--keep id", taken[1]],
    );

    // The id is a column of strings in the other formats.
    let csv = stdout(&run(
        &[&text[..], &["--dimensions", "2", "--keep", "doc=d", "--output-format", "csv"]].concat()
    ));
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "index,id,tokens,truncated,d,e0,e1");
    let row = "0,\"{\"\"$oid\"\":\"\"5f1a\"\"}\",7,false,\"{\"\"body\"\":\"\"It burns.\"\"}\",";
    assert!(lines[1].starts_with(row), "{csv}");
    let uuids = fixture("input").join("fields.parquet").display().to_string();
    let out = folder.at("out.parquet");
    let args =
        ["-i", &uuids, "--text-field", "meta.lang", "--keep", "id", "-o", &out, "--on-error", "skip", "-q"];
    assert_eq!(run(&args).status.code(), Some(3));
    let reread = Fields { text: "id".into(), ..Fields::default() };
    let ids: Vec<Value> =
        read(Path::new(&out), &reread, None).unwrap().iter().map(|row| row[0].clone()).collect();
    let expected = ["7", "550e8400-e29b-41d4-a716-446655440000", "9"].map(|id| match id.len() {
        1 => json!(format!("00000000-0000-0000-0000-00000000000{id}")),
        _ => json!(id),
    });
    assert_eq!(ids, expected);
}

/// UUIDs that are kept are UUIDs in the output, also in the schema of Parquet itself.
#[test]
fn kept_uuids_stay_uuids() {
    let folder = Folder::new();
    for input in ["fields.parquet", "fields.arrow"] {
        let input = fixture("input").join(input).display().to_string();
        for format in [OutputFormat::Parquet, OutputFormat::Arrow] {
            let (out, merged) = (folder.at(&format!("out.{format}")), folder.at(&format!("merged.{format}")));
            let args = [
                "-i",
                &input,
                "--text-field",
                "meta.lang",
                "--keep",
                "id=key",
                "-o",
                &out,
                "--on-error",
                "skip",
            ];
            assert_eq!(run(&args).status.code(), Some(3));
            assert!(sconce().args(["merge", &merged, &out, &out]).status().unwrap().success());
            for out in [&out, &merged] {
                let file = RowFile::open(Path::new(out), format).unwrap();
                let [key] = &file.schema().kept[..] else { panic!("one column is kept") };
                assert_eq!(key.metadata.get("ARROW:extension:name").map(String::as_str), Some("arrow.uuid"));
                if format == OutputFormat::Parquet {
                    let file =
                        ParquetRecordBatchReaderBuilder::try_new(fs::File::open(out).unwrap()).unwrap();
                    let mut columns = file.parquet_schema().columns().iter();
                    let key = columns.find(|column| column.name() == "key").unwrap();
                    assert_eq!(key.logical_type_ref(), Some(&LogicalType::Uuid));
                }
            }
        }
    }
}

/// A run with another separator is another run.
#[test]
fn a_run_is_resumed_only_with_the_same_fields() {
    let folder = Folder::new();
    let (beir, out) = (folder.at("beir.jsonl"), folder.at("out.jsonl"));
    let run = |args: &[&str]| run(&[&["-i", &beir, "-o", &out, "--resume"], args].concat());
    let fields = ["--text-field", "title", "text"];
    assert!(run(&fields).status.success());
    let written = fs::read(&out).unwrap();
    assert!(stderr(&run(&fields)).contains("is up to date"));
    assert!(!stderr(&run(&[&fields[..], &["--text-separator", " the "]].concat())).contains("is up to date"));
    assert_ne!(fs::read(&out).unwrap(), written);
}

/// Commands that read queries and references read the same fields.
#[test]
fn queries_and_references_have_the_same_fields() {
    let folder = Folder::new();
    let (beir, nested, vectors) = (folder.at("beir.jsonl"), folder.at("nested.jsonl"), folder.at("v.npy"));
    assert!(run(&["-i", &beir, "--text-field", "title,text", "-o", &vectors]).status.success());
    let model = fixture("bert-tiny").display().to_string();
    let ok = |args: &[&str]| {
        let output = sconce().args(args).args(["-m", &model]).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        stdout(&output)
    };
    let fields = ["--text-field", "title,text"];
    let found =
        ok(&[&["search", "--queries", &beir], &fields[..], &[&vectors, "--output-format", "jsonl"]].concat());
    let row: Value = serde_json::from_str(&found).unwrap();
    assert!(row["score"].as_f64().unwrap() > 0.99999, "{found}");
    ok(&[&["verify", "--against", &vectors, "-i", &beir], &fields[..]].concat());
    let found = ok(&["rerank", "--queries", &nested, "--query-field", "doc.body", "It burns."]);
    let row: Value = serde_json::from_str(&found).unwrap();
    assert!(row["score"].as_f64().unwrap() > 0.99999, "{found}");
}
