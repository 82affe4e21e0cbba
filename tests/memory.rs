//! Inputs that are small on the disk, or have one field of use among many, and would take far more memory than there is if
//! they were read as they are. The command runs in an address space that has no room for that.
#![cfg(unix)]

mod support;

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, DictionaryArray, FixedSizeListArray, Int8Array, Int32Array, LargeStringArray, RecordBatch,
    StringArray,
};
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use serde_json::Value;
use support::{assert_fails, embedding, fixture, rows, stderr};
use tempfile::TempDir;

/// An address space, in KiB, in which the command runs, but with little more than 400 MB to spare: threads reserve their stacks,
/// and the allocator its arenas.
const SPACE: u32 = 1_000_000;
/// Bytes that do not fit into it.
const LARGE: usize = 640 << 20;

fn run(input: &Path, args: &[&str]) -> Output {
    let limited = format!("ulimit -v {SPACE}; exec \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &limited, "-", env!("CARGO_BIN_EXE_sconce"), "embed", "--threads", "2"]);
    command.env("HF_HUB_OFFLINE", "1").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(input);
    command.args(args).output().unwrap()
}

/// Asserts that the rows are those of the lamp and the wick.
#[track_caller]
fn assert_lamp_and_wick(output: &Output) {
    let expected = rows(&support::embed("bert-tiny", ["the lamp", "the wick"]));
    let found = rows(output);
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(embedding(found), embedding(expected));
    }
}

/// A file whose zeros take no room on the disk.
struct Sparse(File);

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match bytes.len() > 1 << 16 && bytes.iter().all(|byte| *byte == 0) {
            true => self.0.seek(SeekFrom::Current(bytes.len() as i64)).map(|_| bytes.len()),
            false => self.0.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Place(TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.at(name), content).unwrap();
        self.at(name)
    }

    /// A batch as an Arrow file or, by its suffix, as a stream.
    fn write_batch(
        &self,
        name: &str,
        columns: Vec<(&str, ArrayRef)>,
        compression: Option<CompressionType>,
    ) -> PathBuf {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let file = Sparse(File::create(self.at(name)).unwrap());
        if name.ends_with(".arrows") {
            let mut writer = StreamWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
        } else {
            let mut writer = FileWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
            writer.write(&batch).unwrap();
            writer.finish().unwrap();
        }
        self.at(name)
    }
}

fn texts() -> ArrayRef {
    Arc::new(StringArray::from(vec!["the lamp", "the wick"]))
}

/// Two rows of as many bytes as do not fit.
fn large() -> ArrayRef {
    let bytes: ArrayRef = Arc::new(Int8Array::from(vec![0; LARGE]));
    let item = Arc::new(Field::new_list_field(DataType::Int8, false));
    Arc::new(FixedSizeListArray::new(item, (LARGE / 2) as i32, bytes, None))
}

#[test]
fn arrow_columns_that_nobody_asks_for_are_not_read() {
    let place = Place::new();
    for (name, compression) in [
        ("plain.arrow", None),
        ("plain.arrows", None),
        ("zstd.arrow", Some(CompressionType::ZSTD)),
        ("zstd.arrows", Some(CompressionType::ZSTD)),
        ("lz4.arrow", Some(CompressionType::LZ4_FRAME)),
    ] {
        // Columns before and after the one that is read.
        let columns = vec![("before", large()), ("text", texts()), ("after", large())];
        let columns = if compression.is_none() { columns[..2].to_vec() } else { columns };
        let input = place.write_batch(name, columns, compression);
        assert_lamp_and_wick(&run(&input, &[]));
        let kept = run(&input, &["--keep", "before"]);
        assert_fails(&kept, 1, &[name, "record batch after row 0", "takes 67", "smaller record batches"]);
        fs::remove_file(input).unwrap();
    }
}

#[test]
fn an_arrow_batch_of_too_much_text_is_refused() {
    let place = Place::new();
    let text = "lamp ".repeat(3 << 20);
    let rows: ArrayRef = Arc::new(LargeStringArray::from(vec![text.as_str(); LARGE / text.len() + 1]));
    for (name, compression) in [
        ("plain.arrow", None),
        ("plain.arrows", None),
        ("zstd.arrow", Some(CompressionType::ZSTD)),
        ("lz4.arrows", Some(CompressionType::LZ4_FRAME)),
    ] {
        let input = place.write_batch(name, vec![("text", rows.clone())], compression);
        for args in [&[][..], &["--max-memory", "300MB"]] {
            let parts = [name, "the record batch after row 0 takes ", "smaller record batches"];
            assert_fails(&run(&input, args), 1, &parts);
        }
        fs::remove_file(input).unwrap();
    }
}

#[test]
fn an_arrow_dictionary_that_is_too_large_is_refused() {
    let place = Place::new();
    let text = "lamp ".repeat(3 << 20);
    let mut values: Vec<String> = (0..LARGE / text.len() + 1).map(|i| format!("{i}{text}")).collect();
    values.extend(["the lamp".into(), "the wick".into()]);
    let count = values.len() as i32;
    let keys = Int32Array::from(vec![count - 2, count - 1]);
    let values = Arc::new(LargeStringArray::from(values));
    let large: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::new(keys, values));
    let small: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::from_iter(["the lamp", "the wick"]));
    for name in ["dictionary.arrow", "dictionary.arrows"] {
        let columns = vec![("kind", large.clone()), ("text", small.clone())];
        let input = place.write_batch(name, columns, Some(CompressionType::ZSTD));
        assert_lamp_and_wick(&run(&input, &[]));
        assert_fails(
            &run(&input, &["--text-field", "kind"]),
            1,
            &[name, "after row 0", "smaller record batches"],
        );
        let kept = run(&input, &["--keep", "kind", "--max-memory", "300MB"]);
        assert_fails(&kept, 1, &[name, "after row 0", "smaller record batches"]);
    }
}

#[test]
fn json_fields_that_nobody_asks_for_are_not_built() {
    let place = Place::new();
    let list = format!("[0{}]", ",0".repeat(7 << 20));
    let object = format!("{{\"a\":0{}}}", ",\"a\":{}".repeat(2 << 20));
    let deep = format!("{}{}", "[".repeat(4 << 20), "]".repeat(4 << 20));
    for (name, value) in [("list", &list), ("object", &object), ("deep", &deep)] {
        let lines =
            format!("{{\"text\":\"the lamp\",\"v\":{value}}}\n{{\"v\":{value},\"text\":\"the wick\"}}\n");
        let input = place.write(&format!("{name}.jsonl"), lines.as_bytes());
        assert_lamp_and_wick(&run(&input, &[]));
        let parts: &[&str] =
            &[&format!("{name}.jsonl line 1 "), "\"v\"", "leave it out of --keep", "--max-memory"];
        assert_fails(&run(&input, &["--keep", "v"]), 1, parts);
        let typed = ["--text-field", "v", "--on-error", "skip"];
        let output = run(&input, &typed);
        let kind = if name == "object" { "an object" } else { "a list" };
        assert!(stderr(&output).contains(&format!("field \"v\" is {kind}, but has to be a string")));
    }
    let fields: String = (0..1 << 20).map(|i| format!("\"f{i}\":0,")).collect();
    let input = place.write("fields.jsonl", format!("{{{fields}\"text\":\"the lamp\"}}\n").as_bytes());
    assert!(run(&input, &[]).status.success());
    let missing = run(&input, &["--keep", "g"]);
    assert_fails(&missing, 1, &["no record has the field \"g\"", "f0, f1", "f19 and 1048557 more"]);
    assert!(missing.stderr.len() < 1000, "not a million names");
    // A line that is longer than any is taken for one is passed over, whatever is in it.
    let long = format!("{{\"text\":\"the lamp\",\"v\":[0{}]}}\n{{\"text\":\"a\"}}\n", ",0".repeat(50 << 20));
    let input = place.write("long.jsonl", long.as_bytes());
    assert_fails(&run(&input, &[]), 1, &["long.jsonl line 1 is longer than 16 MiB"]);
}

#[test]
fn tables_of_millions_of_columns_are_refused() {
    let place = Place::new();
    for (suffix, delimiter) in [("csv", ","), ("tsv", "\t")] {
        let many = delimiter.repeat(15 << 20);
        let input = place.write(&format!("header.{suffix}"), format!("text{many}\nthe lamp\n").as_bytes());
        let parts =
            [&format!("header.{suffix} line 1: the row that begins here has more than 4194304 fields")];
        assert_fails(&run(&input, &[]), 1, &parts.map(String::as_str));
        let content = format!("text{delimiter}x\nthe lamp{delimiter}1\nthe{many}\n");
        let input = place.write(&format!("row.{suffix}"), content.as_bytes());
        let parts = [&format!("row.{suffix} line 3: the row that begins here has more than 4194304 fields")];
        assert_fails(&run(&input, &[]), 1, &parts.map(String::as_str));
        // A million of them are columns like others.
        let many = delimiter.repeat(1 << 20);
        let content = format!("text{many}\nthe lamp{many}\nthe wick{many}\n");
        assert_lamp_and_wick(&run(&place.write(&format!("wide.{suffix}"), content.as_bytes()), &[]));
        let missing = run(&place.at(&format!("wide.{suffix}")), &["--text-field", "b"]);
        assert_fails(&missing, 1, &["no column \"b\"", "and 1048557 more"]);
        assert!(missing.stderr.len() < 1000, "not a million names");
    }
}

/// What is longer than the memory that is granted has room for is not read whole to find that out.
#[test]
fn long_lines_are_read_as_far_as_memory_goes() {
    let place = Place::new();
    let (stats, output) = (place.at("stats.json"), place.at("out.jsonl"));
    let long = "lamp ".repeat(3 << 20);
    for (name, content) in [
        ("long.txt", format!("{long}\nthe lamp\n")),
        ("long.jsonl", format!("{{\"text\":\"{long}\"}}\n{{\"text\":\"the lamp\"}}\n")),
    ] {
        let input = place.write(name, content.as_bytes());
        let files = ["--stats", stats.to_str().unwrap(), "-o", output.to_str().unwrap()];
        let found = run(&input, &[&["--max-memory", "80MB", "--on-error", "skip"][..], &files].concat());
        assert_eq!(found.status.code(), Some(3), "{}", stderr(&found));
        let ledger = fs::read_to_string(place.at("out.jsonl.ledger.jsonl")).unwrap();
        let entry: Value = serde_json::from_str(ledger.trim()).unwrap();
        assert_eq!(entry["line"], 1);
        let reason = entry["reason"].as_str().unwrap();
        assert!(reason.contains("bytes, the most that fits into --max-memory"), "{reason}");
        let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        let peak = stats["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak < 80_000_000, "{peak} bytes");
    }
}
