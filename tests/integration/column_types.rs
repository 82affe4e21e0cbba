//! Kept columns whose types differ and whose values do not: `embed --append`, `merge` and several inputs of
//! one run give them the type of the first file, and refuse a value that it does not hold exactly.

use std::fs::{self, File};
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::Value;
use tempfile::TempDir;

use crate::support::arrow::array::{
    Array, ArrayRef, Decimal128Array, Int8Array, Int64Array, ListArray, NullArray, RecordBatch, StringArray,
    StructArray, new_empty_array,
};
use crate::support::arrow::buffer::OffsetBuffer;
use crate::support::arrow::compute::{cast, concat_batches};
use crate::support::arrow::datatypes::{DataType, Field, Int32Type, Schema};
use crate::support::arrow::ipc::reader::FileReader;
use crate::support::arrow::ipc::writer::FileWriter;
use crate::support::{assert_fails, fixture, sconce, stderr};

const FORMATS: [&str; 2] = ["parquet", "arrow"];

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

fn large_list(item: DataType) -> DataType {
    DataType::LargeList(Arc::new(Field::new("element", item, true)))
}

fn lists(rows: [Option<Vec<Option<i32>>>; 2]) -> ArrayRef {
    Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))
}

/// An empty list, and null.
fn empty(item: DataType) -> ArrayRef {
    let (offsets, nulls) = (OffsetBuffer::from_lengths([0, 0]), vec![true, false].into());
    let field = Arc::new(Field::new("item", item.clone(), true));
    Arc::new(ListArray::new(field, offsets, new_empty_array(&item), Some(nulls)))
}

fn decimals(values: [i128; 2], digits: u8, scale: i8) -> ArrayRef {
    let values = Decimal128Array::from(values.to_vec());
    Arc::new(values.with_precision_and_scale(digits, scale).unwrap())
}

fn texts(values: [&str; 2]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn structs(members: Vec<(&str, ArrayRef)>) -> ArrayRef {
    let field = |name, array: &ArrayRef| Arc::new(Field::new(name, array.data_type().clone(), true));
    let members = members.into_iter().map(|(name, array)| (field(name, &array), array));
    Arc::new(StructArray::from(members.collect::<Vec<_>>()))
}

/// An Arrow file with two texts, whose ids begin at `id`, and the column `x`.
fn write(folder: &TempDir, name: &str, id: i64, x: &ArrayRef) {
    let columns: [(&str, ArrayRef); 3] = [
        ("id", Arc::new(Int64Array::from(vec![id, id + 1]))),
        ("text", texts(["a lamp", "the wick"])),
        ("x", x.clone()),
    ];
    let fields: Vec<_> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let columns = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let mut writer = FileWriter::try_new(File::create(folder.path().join(name)).unwrap(), &schema).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

fn embed(folder: &TempDir, inputs: &[&str], out: &str, args: &[&str]) -> Output {
    let mut run = sconce();
    run.current_dir(folder.path()).args(["embed", "--keep", "x", "--append", "--stats", "stats.json", "-m"]);
    run.arg(fixture("bert-tiny")).args(["-o", out]).args(args).arg("-i").args(inputs).output().unwrap()
}

fn merge(folder: &TempDir, out: &str, inputs: &[&str]) -> Output {
    sconce().current_dir(folder.path()).args(["merge", out]).args(inputs).output().unwrap()
}

#[track_caller]
fn assert_runs(run: &Output, case: &str) {
    assert!(run.status.success(), "{case}: {}", stderr(run));
}

/// The column `x` of an output.
fn column(path: &Path) -> ArrayRef {
    let file = File::open(path).unwrap();
    let batches: Vec<RecordBatch> = match path.extension().unwrap().to_str() {
        Some("parquet") => {
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
            reader.map(Result::unwrap).collect()
        }
        _ => FileReader::try_new(file, None).unwrap().map(Result::unwrap).collect(),
    };
    concat_batches(&batches[0].schema(), &batches).unwrap().column_by_name("x").unwrap().clone()
}

#[test]
fn the_same_values_in_another_type_have_the_type_of_the_first_file() {
    let pair = lists([Some(vec![Some(1), None]), Some(vec![])]);
    let nulls: ArrayRef = Arc::new(NullArray::new(2));
    let words = || cast(&texts(["b", "c"]), &list(DataType::Utf8)).unwrap();
    let int8: ArrayRef = Arc::new(Int8Array::from(vec![7, 9]));
    let int64: ArrayRef = Arc::new(Int64Array::from(vec![7, 9]));
    let nested = |array: &ArrayRef, data_type: DataType| cast(array, &data_type).unwrap();
    // The columns of two files, and the second as the output has it, in the type of both.
    let cases: Vec<(&str, ArrayRef, ArrayRef, ArrayRef)> = vec![
        ("empty lists of null", empty(DataType::Null), words(), words()),
        ("empty lists of null second", words(), empty(DataType::Null), empty(DataType::Utf8)),
        ("empty lists of text", empty(DataType::Utf8), pair.clone(), pair.clone()),
        ("large lists", pair.clone(), nested(&pair, large_list(DataType::Int32)), pair.clone()),
        (
            "lists after large lists",
            nested(&pair, large_list(DataType::Int32)),
            pair.clone(),
            nested(&pair, large_list(DataType::Int32)),
        ),
        ("large lists of large text", words(), nested(&words(), large_list(DataType::LargeUtf8)), words()),
        (
            "large bytes",
            nested(&texts(["a", "b"]), DataType::Binary),
            nested(&texts(["a", "b"]), DataType::LargeBinary),
            nested(&texts(["a", "b"]), DataType::Binary),
        ),
        ("large text", texts(["a", "b"]), nested(&texts(["c", "d"]), DataType::LargeUtf8), texts(["c", "d"])),
        ("nulls", nulls.clone(), int8.clone(), int8.clone()),
        ("nulls second", int8.clone(), nulls.clone(), nested(&nulls, DataType::Int8)),
        ("nulls and lists", nulls.clone(), pair.clone(), pair.clone()),
        (
            "members in another order",
            structs(vec![("a", int8.clone()), ("b", texts(["x", "y"]))]),
            structs(vec![("b", nested(&texts(["z", "x"]), DataType::LargeUtf8)), ("a", int8.clone())]),
            structs(vec![("a", int8.clone()), ("b", texts(["z", "x"]))]),
        ),
        (
            "a member is missing",
            structs(vec![("a", int8.clone()), ("b", texts(["x", "y"]))]),
            structs(vec![("a", int8.clone())]),
            structs(vec![("a", int8.clone()), ("b", nested(&nulls, DataType::Utf8))]),
        ),
        (
            "a member is null",
            structs(vec![("a", nulls.clone()), ("b", texts(["x", "y"]))]),
            structs(vec![("a", int8.clone()), ("b", texts(["x", "y"]))]),
            structs(vec![("a", int8.clone()), ("b", texts(["x", "y"]))]),
        ),
        (
            "a larger scale",
            decimals([150, 275], 10, 2),
            decimals([1500, 31], 12, 1),
            decimals([15000, 310], 10, 2),
        ),
        (
            "a smaller scale",
            decimals([15, 27], 10, 1),
            decimals([1500, 250], 8, 2),
            decimals([150, 25], 10, 1),
        ),
        ("whole numbers", decimals([150, 275], 10, 2), int64.clone(), decimals([700, 900], 10, 2)),
    ];
    for format in FORMATS {
        for (case, first, second, expected) in &cases {
            let (folder, case) = (tempfile::tempdir().unwrap(), format!("{format}, {case}"));
            write(&folder, "1.arrow", 1, first);
            write(&folder, "2.arrow", 3, second);
            let [one, two, grown, merged, whole] =
                ["one", "two", "grown", "merged", "whole"].map(|name| format!("{name}.{format}"));
            assert_runs(&embed(&folder, &["1.arrow"], &one, &[]), &case);
            assert_runs(&embed(&folder, &["2.arrow"], &two, &[]), &case);
            assert_runs(&embed(&folder, &["1.arrow"], &grown, &[]), &case);
            assert_runs(&embed(&folder, &["2.arrow"], &grown, &[]), &case);
            assert_runs(&merge(&folder, &merged, &[&one, &two]), &case);
            assert_runs(&embed(&folder, &["1.arrow", "2.arrow"], &whole, &[]), &case);
            for name in [&grown, &merged, &whole] {
                let found = column(&folder.path().join(name));
                assert_eq!(found.len(), 4, "{case}, {name}");
                assert_eq!(&found.slice(2, 2), expected, "{case}, {name}");
            }
            // Records that are there are found, whichever of both types they have now.
            write(&folder, "3.arrow", 3, expected);
            for (input, deleted) in [("2.arrow", 2), ("3.arrow", 0)] {
                assert_runs(&embed(&folder, &[input], &grown, &["--update", "--delete"]), &case);
                let stats = fs::read(folder.path().join("stats.json")).unwrap();
                let stats: Value = serde_json::from_slice(&stats).unwrap();
                let counts = ["unchanged", "updated", "deleted"].map(|key| stats[key].as_u64().unwrap());
                assert_eq!(counts, [2, 0, deleted], "{case}, {input}");
            }
        }
    }
}

#[test]
fn a_value_that_would_lose_something_is_refused() {
    let cents = decimals([150, 275], 10, 2);
    let cases: [(ArrayRef, ArrayRef, &str, &str); 4] = [
        (cents.clone(), decimals([1500, 2755], 10, 3), "decimal(10, 3)", "decimal(10, 2)"),
        (
            structs(vec![("a", cents.clone())]),
            structs(vec![("a", cents.clone()), ("b", texts(["x", "y"]))]),
            "structs of \"a\": decimal(10, 2), \"b\": text",
            "structs of \"a\": decimal(10, 2)",
        ),
        (
            cast(&cents, &list(DataType::Decimal128(10, 2))).unwrap(),
            cast(&texts(["b", "c"]), &large_list(DataType::LargeUtf8)).unwrap(),
            "lists of text",
            "lists of decimal(10, 2)",
        ),
        (
            Arc::new(Int8Array::from(vec![1, 2])),
            cast(&texts(["b", "c"]), &DataType::LargeBinary).unwrap(),
            "bytes",
            "8-bit integers",
        ),
    ];
    for format in FORMATS {
        for (first, second, from, to) in &cases {
            let folder = tempfile::tempdir().unwrap();
            write(&folder, "1.arrow", 1, first);
            write(&folder, "2.arrow", 3, second);
            let [one, two, merged] = ["one", "two", "merged"].map(|name| format!("{name}.{format}"));
            assert_runs(&embed(&folder, &["1.arrow"], &one, &[]), from);
            assert_runs(&embed(&folder, &["2.arrow"], &two, &[]), from);
            let place = if from.starts_with("decimal") { "row 2" } else { "row 1" };
            let parts = [&format!("{two} {place} has"), "in column \"x\"", from, to, &one, "write it again"];
            assert_fails(&merge(&folder, &merged, &[&one, &two]), 1, &parts);
            assert!(!folder.path().join(&merged).exists());
            let parts = [&format!("2.arrow {place} has"), "field \"x\"", from, to, &one, "another file"];
            assert_fails(&embed(&folder, &["2.arrow"], &one, &[]), 1, &parts);
        }
    }
}
