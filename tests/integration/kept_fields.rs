//! `--keep '*'`, and fields in the names of directories.

use std::fs;
use std::path::Path;
use std::process::Output;

use sconce::rows::{ColumnType, KeptColumn, OutputFormat};
use serde_json::{Value, json};

use crate::support::{assert_fails, embed, fixture, rows, stderr, stdout};

fn run(args: &[&str]) -> Output {
    embed("bert-tiny", args)
}

/// The kept columns of rows.
#[track_caller]
fn kept(args: &[&str]) -> Vec<Value> {
    let run = run(args);
    assert!(run.status.success(), "{}", stderr(&run));
    let own = ["index", "id", "tokens", "truncated", "embedding"];
    let kept = |mut row: Value| {
        own.iter().for_each(|name| drop(row.as_object_mut().unwrap().shift_remove(*name)));
        row
    };
    rows(&run).into_iter().map(kept).collect()
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// A field that only a late record has is kept, too.
#[test]
fn a_star_keeps_the_fields_of_all_records_of_json_lines() {
    let folder = tempfile::tempdir().unwrap();
    let lines = "{\"text\": \"a\", \"x\": 1}\n".repeat(1500) + "{\"text\": \"a\", \"late\": 2}\n";
    let first = write(folder.path(), "a.jsonl", &lines);
    let second = write(folder.path(), "b.jsonl", "{\"text\": \"b\", \"other\": 3}\n");
    let rows = kept(&["-i", &first, &second, "--keep", "*"]);
    assert_eq!(rows[0], json!({"x": 1, "late": null, "other": null}));
    assert_eq!(
        rows[1500..],
        [json!({"x": null, "late": 2, "other": null}), json!({"x": null, "late": null, "other": 3})]
    );
}

#[test]
fn a_star_keeps_all_fields_that_are_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let jsonl = "{\"id\": 1, \"text\": \"a\", \"year\": 3, \"meta\": {\"x\": [1]}}\nnot json\n\
                 {\"lang\": \"en\", \"text\": \"b\", \"id\": 2}\n";
    let jsonl = write(folder.path(), "a.jsonl", jsonl);
    let skip = ["--on-error", "skip"];
    let found = run(&[&["-i", &jsonl, "--keep", "*"], &skip[..]].concat());
    assert_eq!(found.status.code(), Some(3), "{}", stderr(&found));
    let found: Vec<Value> = stdout(&found).lines().map(|row| serde_json::from_str(row).unwrap()).collect();
    assert_eq!(found[0]["meta"], json!({"x": [1]}));
    assert_eq!([&found[0]["year"], &found[1]["year"]], [&json!(3), &json!(null)]);
    assert_eq!([&found[0]["lang"], &found[1]["lang"]], [&json!(null), &json!("en")]);
    let names: Vec<&String> = found[0].as_object().unwrap().keys().collect();
    assert_eq!(names, ["index", "id", "tokens", "truncated", "year", "meta", "lang", "embedding"]);

    let csv = write(folder.path(), "a.csv", "sku,body,price,tokens\n7,a lamp,3.5,x\n");
    let of_csv = ["-i", &csv, "--text-field", "body", "--id-field", "sku"];
    assert_eq!(
        kept(&[&of_csv[..], &["--keep", "*", "tokens=words"]].concat()),
        [json!({"price": "3.5", "words": "x"})]
    );
    let is_own = run(&[&of_csv[..], &["--keep", "*"]].concat());
    assert_fails(&is_own, 2, &["tokens is already an output column", "NAME=AS"]);
    assert_eq!(
        kept(&[&of_csv[..], &["--keep", "file=from", "*", "body", "tokens=words"]].concat()),
        [json!({"from": csv, "price": "3.5", "body": "a lamp", "words": "x"})]
    );
    let parquet = fixture("input").join("fields.parquet");
    let of_parquet =
        kept(&["-i", parquet.to_str().unwrap(), "--keep", "*", "--limit", "1", "--on-null", "skip"]);
    let arrow = parquet.with_extension("arrow");
    assert_eq!(
        kept(&["-i", arrow.to_str().unwrap(), "--keep", "*", "--limit", "1", "--on-null", "skip"]),
        of_parquet
    );
    assert!(of_parquet[0].as_object().unwrap().keys().eq(["fixed", "meta", "meta.lang"]), "{of_parquet:?}");

    let lines = write(folder.path(), "a.txt", "a lamp\n");
    assert_fails(&run(&["-i", &lines, "--keep", "*"]), 2, &["--keep needs an input with fields"]);
    let stdin = run(&["-i", "-", "--input-format", "jsonl", "--keep", "*"]);
    assert_fails(&stdin, 2, &["--keep '*'", "standard input can be read only once", "name the fields"]);
}

#[test]
fn directories_have_fields() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str, text: &str| write(folder.path(), name, text);
    at("data/year=2025/lang=en%20us/a.jsonl", "{\"text\": \"a\", \"year\": 1, \"x\": true}\n");
    let second =
        at("data/year=2024/lang=__HIVE_DEFAULT_PARTITION__/b.jsonl", "{\"text\": \"b\", \"x\": false}\n");
    let data = folder.path().join("data").display().to_string();
    let [of_b, of_a] = [json!({"lang": null, "year": 2024}), json!({"lang": "en us", "year": 2025})];
    assert_eq!(kept(&["-i", &data, "--keep", "lang", "year"]), [of_b.clone(), of_a.clone()]);
    let pattern = format!("{data}/year=*/*/*.jsonl");
    assert_eq!(kept(&["-i", &pattern, "--keep", "lang,year"]), [of_b.clone(), of_a]);
    assert_eq!(kept(&["-i", &second, "--keep", "lang", "year"]), [of_b]);
    assert_eq!(
        kept(&["-i", &data, "--keep", "*", "year=y"])[1],
        json!({"x": true, "lang": "en us", "y": 2025})
    );
    assert_fails(&run(&["-i", &data, "--keep", "month"]), 1, &["no record has the field \"month\""]);

    // Also of formats without fields, of csv and of Parquet, whose column has the type of all values.
    let text = at("plain/part=1/a.txt", "a lamp\n");
    assert_eq!(kept(&["-i", &text, "--keep", "part", "line"]), [json!({"part": 1, "line": 1})]);
    assert_eq!(kept(&["-i", &text, "--keep", "*"]), [json!({"part": 1})]);
    at("csv/part=1/a.csv", "text,n\na,5\n");
    at("csv/part=x/a.csv", "text,n\nb,6\n");
    let csv = folder.path().join("csv").display().to_string();
    let expected = [json!({"n": "5", "part": "1"}), json!({"n": "6", "part": "x"})];
    assert_eq!(kept(&["-i", &csv, "--keep", "n", "part"]), expected);
    at("mixed/part=1/a.csv", "text\na\n");
    at("mixed/b.csv", "text\nb\n");
    let mixed = folder.path().join("mixed").display().to_string();
    assert_fails(&run(&["-i", &mixed, "--keep", "part"]), 1, &["b.csv", "part", "--keep"]);
    let parquet = folder.path().join("out.parquet").display().to_string();
    let written = run(&["-i", &data, "--keep", "year", "-o", &parquet]);
    assert!(written.status.success(), "{}", stderr(&written));
    let schema = sconce::formats::RowFile::open(Path::new(&parquet), OutputFormat::Parquet).unwrap();
    assert_eq!(schema.schema().kept, [KeptColumn::new("year", ColumnType::Integer)]);
}
