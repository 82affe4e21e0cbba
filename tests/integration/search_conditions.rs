//! `search --where`: the nearest neighbours among the rows that meet conditions, exactly.

use std::fs;
use std::sync::Arc;

use crate::support::arrow::array::{
    ArrayRef, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float64Array, Int64Array, ListArray,
    RecordBatch, StringArray, StructArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    TimestampMillisecondArray, UInt64Array,
};
use crate::support::arrow::datatypes::{DataType, Field, Int64Type};
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

/// The indices of the rows that meet a condition.
#[track_caller]
fn met(file: &str, condition: &str) -> Vec<u64> {
    let found = search(&[file, "a", "-m", &fixture("bert-tiny").display().to_string(), "--where", condition]);
    let mut found: Vec<u64> = found.iter().map(|(_, index, _)| *index).collect();
    found.sort_unstable();
    found
}

fn write_arrow(path: &str, columns: &[(&str, ArrayRef)]) {
    let batch = RecordBatch::try_from_iter(columns.iter().cloned()).unwrap();
    let mut writer = FileWriter::try_new(fs::File::create(path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
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
    assert_fails(&run("status > 3"), 1, &["status of row 1 is \"open\"", "not a number"]);
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
    write_arrow(&path("in.arrow"), &[("text", texts), ("x", values), ("u", large)]);
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
        assert_eq!(met(&file, condition), expected, "{condition}");
    }
}

/// Decimals, dates and times are compared as such, also where a literal has other digits or another offset;
/// members of structs as columns; lists and structs are refused.
#[test]
fn values_are_compared_by_the_types_of_their_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    // 2025-01-01T00:00:00Z, 2025-01-10T11:00:00Z and 9999-12-31T00:00:00Z.
    let instants =
        [1_735_689_600, 1_736_506_800, 253_402_214_400].map(|second: i64| Some(second * 1_000_000));
    let created = TimestampMicrosecondArray::from([&instants[..], &[None]].concat()).with_timezone("UTC");
    let local = instants.map(|instant| instant.map(|instant| instant / 1000));
    let authors: ArrayRef = Arc::new(StringArray::from(vec![Some("ann"), Some("bob"), None, Some("ann")]));
    let years: ArrayRef = Arc::new(Int64Array::from(vec![1999, 2001, 2003, 2005]));
    let meta = StructArray::from(vec![
        (Arc::new(Field::new("author", DataType::Utf8, true)), authors),
        (Arc::new(Field::new("year", DataType::Int64, true)), years),
    ]);
    let tags = vec![Some(vec![Some(1)]), None, Some(vec![]), Some(vec![Some(2)])];
    let prices = Decimal128Array::from(vec![763_513_224_102, 900_000_000_001, 95_000, -95_000]);
    let uuids = (0..4u8).map(|i| [0xa0 + i; 16]).collect::<Vec<_>>();
    let uuids = FixedSizeBinaryArray::try_from_iter(uuids.iter()).unwrap();
    let columns: [(&str, ArrayRef); 9] = [
        ("text", Arc::new(StringArray::from(vec!["a", "b", "c", "d"]))),
        ("uid", Arc::new(uuids)),
        ("price", Arc::new(prices.with_precision_and_scale(16, 4).unwrap())),
        ("created", Arc::new(created)),
        ("local", Arc::new(TimestampMillisecondArray::from([&local[..], &[None]].concat()))),
        ("day", Arc::new(Date32Array::from(vec![Some(20_089), Some(20_098), None, None]))),
        ("at", Arc::new(Time64MicrosecondArray::from(vec![0, 39_600_000_000, 1, 86_399_999_999]))),
        ("tags", Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(tags))),
        ("meta", Arc::new(meta)),
    ];
    write_arrow(&path("in.arrow"), &columns);
    for name in ["out.parquet", "out.arrow", "out.jsonl"] {
        let (input, file) = (path("in.arrow"), path(name));
        let written = embed("bert-tiny", ["-i", &input, "-o", &file, "--keep", "*"]);
        assert!(written.status.success(), "{}", stderr(&written));
        for (condition, expected) in [
            ("price > 90000000", &[1][..]),
            ("price > '90000000.0001'", &[]),
            ("price >= 90000000.00010", &[1]),
            ("price > 90000000.00005", &[1]),
            ("price > 9.4 and price < 1e8", &[0, 1, 2]),
            ("price = -9.5", &[3]),
            ("uid = a1a1a1a1-A1A1-a1a1-a1a1-a1a1a1a1a1a1", &[1]),
            ("uid > a1a1a1a1-a1a1-a1a1-a1a1-a1a1a1a1a1a1", &[2, 3]),
            ("uid = a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1", &[1]),
            ("created < '2025-01-01T00:00:00.000001Z'", &[0]),
            ("created >= '2025-01-10T12:00:00+01:00'", &[1, 2]),
            ("created = '2025-01-10T12:00:00+01:00'", &[1]),
            ("created = '2025-01-10 11:00:00'", &[1]),
            ("created = 2025-01-01", &[0]),
            ("created >= 9999-12-31", &[2]),
            ("local < '2025-01-01 00:00:00.000001'", &[0]),
            ("local = 2025-01-10T11:00:00", &[1]),
            ("day > '2025-01-01 00:00:00'", &[1]),
            ("day <= 2025-01-10", &[0, 1]),
            ("at >= 11:00", &[1, 3]),
            ("at < '00:00:00.0000005'", &[0]),
            ("meta.author = ann", &[0, 3]),
            ("'meta.year' > 2001 and meta.author != bob", &[3]),
        ] {
            // Without types, text is compared as text.
            if name != "out.jsonl" || condition.contains("meta") {
                assert_eq!(met(&file, condition), expected, "{name}: {condition}");
            }
        }
        let refused = |condition: &str, code: i32, messages: &[&str]| {
            let args = ["search", &file, "--query-vectors", &file, "--where", condition];
            assert_fails(&sconce().args(args).output().unwrap(), code, messages);
        };
        refused("tags = 2", 1, &["--where: tags of row 1 is [1]", "lists and structs cannot be compared"]);
        refused("meta = ann", 1, &["meta of row 1 is {\"author\":\"ann\",\"year\":1999}", "NAME.MEMBER"]);
        refused("meta.author.x = 3", 1, &["--where meta.author.x: ", "row 1", "without a member \"x\""]);
        refused("none.x = 3", 2, &["--where none.x", "no such column", "meta"]);
        if name != "out.jsonl" {
            refused("meta.autor = ann", 1, &["without a member \"autor\""]);
            refused("price > high", 1, &["price holds decimal(16, 4)", "\"high\"; write a number"]);
            refused("created < 2026-02", 1, &["created holds timestamps", "\"2026-02\"; write a date as"]);
            refused("day < 2026", 1, &["day holds dates", "\"2026\"; write a date as"]);
            refused("at < noon", 1, &["at holds times of day", "\"noon\""]);
        }
    }
}
