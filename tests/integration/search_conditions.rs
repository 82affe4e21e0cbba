//! `search --where`: the nearest neighbours among the rows that meet conditions, exactly.

use std::fs;
use std::sync::Arc;

use crate::support::arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use crate::support::arrow::ipc::writer::FileWriter;
use serde_json::{Value, json};

use crate::support::{assert_fails, embed, fixture, rows, sconce, stderr};

const ROWS: u64 = 60;

/// The rows of a search: query, index and score of each neighbour.
#[track_caller]
fn search(args: &[&str]) -> Vec<(Value, u64, Value)> {
    let run = sconce().arg("search").args(args).args(["--output-format", "jsonl"]).output().unwrap();
    assert!(run.status.success(), "{args:?}: {}", stderr(&run));
    let place = |row: &Value| (row["query"].clone(), row["index"].as_u64().unwrap(), row["score"].clone());
    rows(&run).iter().map(place).collect()
}

#[test]
fn the_neighbours_are_the_best_of_the_rows_that_meet_the_conditions() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let input = path("in.jsonl");
    let record = |i: u64| {
        let text = format!("{}lamp {i}", "the wick ".repeat(i as usize % 11));
        let status = if i.is_multiple_of(3) { "open" } else { "closed" };
        let year = if i.is_multiple_of(7) { Value::Null } else { json!(2000 + i % 30) };
        format!("{}\n", json!({"id": i, "text": text, "status": status, "year": year}))
    };
    fs::write(&input, (0..ROWS).map(record).collect::<String>()).unwrap();
    let conditions = "status = \"open\" and year >= 2005 and year != 2012";
    let meets = |i: u64| i.is_multiple_of(3) && !i.is_multiple_of(7) && i % 30 >= 5 && i % 30 != 12;
    for (name, model, options) in [
        ("a.parquet", "bert-tiny", &["--dimensions", "32"][..]),
        ("a.arrow", "bert-tiny", &["--dimensions", "32", "--output-dtype", "int8"]),
        ("b.arrow", "bert-tiny", &["--dimensions", "32", "--output-dtype", "ubinary"]),
        ("a.jsonl", "bert-tiny", &["--dimensions", "32"]),
        ("a.csv", "bert-tiny", &["--dimensions", "32"]),
        ("sparse.parquet", "sparse/bert-max", &[]),
        ("tokens.parquet", "bert-tiny", &["--pooling", "none"]),
    ] {
        let file = path(name);
        let written =
            embed(model, [&["-i", &input, "-o", &file, "--keep", "status", "year"], options].concat());
        assert!(written.status.success(), "{name}: {}", stderr(&written));
        let queries = ["the wick", "lamp 7"];
        let fixture = fixture(model).display().to_string();
        let dimensions: &[&str] = if name.starts_with(['a', 'b']) { &options[..2] } else { &[] };
        let search = |args: &[&str]| {
            let queries = if name.starts_with("tokens") {
                vec!["--query-vectors", &file]
            } else {
                [&queries[..], &["-m", &fixture], dimensions].concat()
            };
            search(&[&[&*file], &queries[..], args].concat())
        };
        let mut expected = search(&["-k", "60"]);
        expected.retain(|(_, index, _)| meets(*index));
        let mut taken = Vec::<Value>::new();
        expected.retain(|(query, ..)| {
            taken.push(query.clone());
            taken.iter().filter(|other| *other == query).count() <= 4
        });
        assert_eq!(search(&["-k", "4", "--where", conditions]), expected, "{name}");
        assert!(expected.len() >= 4, "{name}: {expected:?}");
        let several = ["--where", "status = \"open\"", "--where", "year >= 2005 and year != 2012"];
        assert_eq!(search(&[&["-k", "4"], &several[..]].concat()), expected, "{name}");
        assert_eq!(search(&["--where", "year > 9999"]), [], "{name}");
    }
    let file = path("a.parquet");
    let run = |condition: &str| {
        sconce().args(["search", &file, "--query-vectors", &file, "--where", condition]).output().unwrap()
    };
    assert_fails(&run("month = 3"), 2, &["--where month", "no such column", "status"]);
    assert_fails(&run("status > 3"), 1, &["status of row 0 is \"open\"", "not a number"]);
    for (condition, unmet) in [
        ("status = \"opened\" and year > 1", Some("meets status = 'opened'; nothing")),
        ("year > 1 and year = 'new' and status = open", Some("meets year > 1 and year = 'new'; nothing")),
        ("status = open and year > 1", None),
    ] {
        let note = stderr(&run(condition));
        let is_noted = note.contains(&format!("no row of {file} {}", unmet.unwrap_or("meets")));
        assert_eq!(is_noted, unmet.is_some(), "{condition}: {note}");
    }
    let malformed = run("year ~ 3");
    assert_eq!(malformed.status.code(), Some(2));
    assert!(stderr(&malformed).contains("expected NAME = VALUE"), "{}", stderr(&malformed));
}

/// Infinite numbers are numbers, NaN is none.
#[test]
fn numbers_that_are_not_finite_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["a", "b", "c", "d"]));
    let values: ArrayRef =
        Arc::new(Float64Array::from(vec![1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN]));
    let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX, u64::MAX - 1, 5, 1 << 63]));
    let batch = RecordBatch::try_from_iter([("text", texts), ("x", values), ("u", large)]).unwrap();
    let mut writer =
        FileWriter::try_new(fs::File::create(path("in.arrow")).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let (input, file) = (path("in.arrow"), path("out.parquet"));
    let written = embed("bert-tiny", ["-i", &input, "-o", &file, "--keep", "x", "u"]);
    assert!(written.status.success(), "{}", stderr(&written));
    for (condition, expected) in [
        ("x > 0", &[0, 1][..]),
        ("x < 0", &[2]),
        ("x != 1", &[1, 2]),
        ("u = 18446744073709551615", &[0]),
        ("u > 18446744073709551614", &[0]),
        ("u >= 9223372036854775808", &[0, 1, 3]),
    ] {
        let found =
            search(&[&file, "a", "-m", &fixture("bert-tiny").display().to_string(), "--where", condition]);
        let mut found: Vec<u64> = found.iter().map(|(_, index, _)| *index).collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{condition}");
    }
}
