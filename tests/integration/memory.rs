//! Memory limits of readers: inputs that are small on disk, or have one useful column among large ones, and
//! that do not fit into memory as a whole. The command runs under a limit of its address space.
#![cfg(unix)]

use crate::support;
use crate::support::arrow;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use crate::support::{assert_fails, embedding, fixture, rows, stderr};
use arrow::array::{
    Array, ArrayRef, DictionaryArray, FixedSizeListArray, Float32Array, Int8Array, Int32Array,
    LargeStringArray, ListArray, RecordBatch, StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type};
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use tempfile::TempDir;

/// The limit of the address space, in KiB. The binary, thread stacks and reservations of the allocator take
/// all but about 400 MB of it.
const ADDRESS_SPACE_KIB: u32 = 700_000;
/// The size of a column that does not fit into the address space, in bytes.
const LARGE: usize = 640 << 20;

fn run(input: &Path, args: &[&str]) -> Output {
    let limited = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &limited, "-", env!("CARGO_BIN_EXE_sconce"), "embed", "--threads", "2"]);
    command.env("HF_HUB_OFFLINE", "1").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(input);
    command.args(args).output().unwrap()
}

/// Asserts that the output has the vectors of "the lamp" and "the wick".
#[track_caller]
fn assert_lamp_and_wick(output: &Output) {
    let expected = rows(&support::embed("bert-tiny", ["the lamp", "the wick"]));
    let found = rows(output);
    assert_eq!(found.len(), 2);
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(embedding(found), embedding(expected));
    }
}

/// A sparse file: its long runs of zeros take no space on disk.
struct SparseFile(File);

impl Write for SparseFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > 1 << 16 && bytes.iter().all(|byte| *byte == 0) {
            self.0.seek(SeekFrom::Current(bytes.len() as i64)).map(|_| bytes.len())
        } else {
            self.0.write(bytes)
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A temporary folder for inputs and outputs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &[u8]) -> PathBuf {
        fs::write(self.at(name), content).unwrap();
        self.at(name)
    }

    /// Writes a record batch as an Arrow file, or as a stream if the extension is `arrows`.
    fn write_batch(
        &self,
        name: &str,
        columns: Vec<(&str, ArrayRef)>,
        compression: Option<CompressionType>,
    ) -> PathBuf {
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let file = SparseFile(File::create(self.at(name)).unwrap());
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

/// Two rows of lists of `LARGE` bytes in all.
fn large() -> ArrayRef {
    let bytes: ArrayRef = Arc::new(Int8Array::from(vec![0; LARGE]));
    let item = Arc::new(Field::new_list_field(DataType::Int8, false));
    Arc::new(FixedSizeListArray::new(item, (LARGE / 2) as i32, bytes, None))
}

#[test]
fn arrow_columns_that_are_not_needed_are_not_read() {
    let folder = Folder::new();
    for (name, compression) in [
        ("plain.arrow", None),
        ("plain.arrows", None),
        ("zstd.arrow", Some(CompressionType::ZSTD)),
        ("zstd.arrows", Some(CompressionType::ZSTD)),
        ("lz4.arrow", Some(CompressionType::LZ4_FRAME)),
    ] {
        // Large columns before and after the column that is read.
        let columns = vec![("before", large()), ("text", texts()), ("after", large())];
        let columns = if compression.is_none() { columns[..2].to_vec() } else { columns };
        let input = folder.write_batch(name, columns, compression);
        assert_lamp_and_wick(&run(&input, &[]));
        let kept = run(&input, &["--keep", "before"]);
        assert_fails(&kept, 1, &[name, "record batch after row 0", "takes 67", "smaller record batches"]);
        fs::remove_file(input).unwrap();
    }
}

#[test]
fn an_arrow_batch_of_too_much_text_is_refused() {
    let folder = Folder::new();
    let text = "lamp ".repeat(3 << 20);
    let rows: ArrayRef = Arc::new(LargeStringArray::from(vec![text.as_str(); LARGE / text.len() + 1]));
    for (name, compression) in [
        ("plain.arrow", None),
        ("plain.arrows", None),
        ("zstd.arrow", Some(CompressionType::ZSTD)),
        ("lz4.arrows", Some(CompressionType::LZ4_FRAME)),
    ] {
        let input = folder.write_batch(name, vec![("text", rows.clone())], compression);
        for args in [&[][..], &["--max-memory", "300MB"]] {
            let parts = [name, "the record batch after row 0 takes ", "smaller record batches"];
            assert_fails(&run(&input, args), 1, &parts);
        }
        fs::remove_file(input).unwrap();
    }
}

#[test]
fn an_arrow_dictionary_that_is_too_large_is_refused() {
    let folder = Folder::new();
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
        let input = folder.write_batch(name, columns, Some(CompressionType::ZSTD));
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

/// Each decoded row may repeat the longest string of a dictionary.
#[test]
fn parquet_rows_of_a_large_dictionary_are_decoded_a_few_at_a_time() {
    let folder = Folder::new();
    let long = "lamp ".repeat(1 << 20);
    let texts = ["the lamp", "the wick"].into_iter().chain(std::iter::repeat_n(long.as_str(), 126));
    let batch =
        RecordBatch::try_from_iter([("text", Arc::new(StringArray::from_iter_values(texts)) as ArrayRef)]);
    let batch = batch.unwrap();
    let options = WriterProperties::builder().set_dictionary_page_size_limit(64 << 20).build();
    let path = folder.at("dictionary.parquet");
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(options)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert!(fs::metadata(&path).unwrap().len() < 16 << 20, "each string is in the file once");
    assert_lamp_and_wick(&run(&path, &["--limit", "2"]));
}

/// A page is decompressed as a whole, however few of its rows are decoded at a time.
#[test]
fn a_parquet_page_over_the_limit_is_refused() {
    let folder = Folder::new();
    let long = "lamp ".repeat(1 << 20);
    for (name, has_dictionary) in [("plain.parquet", false), ("dictionary.parquet", true)] {
        let texts = (0..12).map(|i| format!("{i}{long}"));
        let column: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
        let batch = RecordBatch::try_from_iter([("text", column)]).unwrap();
        let options = WriterProperties::builder()
            .set_dictionary_enabled(has_dictionary)
            .set_dictionary_page_size_limit(usize::MAX)
            .set_data_page_size_limit(usize::MAX)
            .set_compression(Compression::ZSTD(ZstdLevel::default()));
        let path = folder.at(name);
        let file = File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(options.build())).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        assert!(fs::metadata(&path).unwrap().len() < 1 << 20, "a page is small on disk");
        let refused = run(&path, &["--max-memory", "150MB"]);
        let parts = ["the page after row 0 takes 6", "--max-memory leaves", "smaller row groups"];
        assert_fails(&refused, 1, &[&[name][..], &parts].concat());
    }
}

#[test]
fn json_fields_that_are_not_needed_are_not_built() {
    let folder = Folder::new();
    let list = format!("[0{}]", ",0".repeat(7 << 20));
    let object = format!("{{\"a\":0{}}}", ",\"a\":{}".repeat(2 << 20));
    let deep = format!("{}{}", "[".repeat(4 << 20), "]".repeat(4 << 20));
    for (name, value) in [("list", &list), ("object", &object), ("deep", &deep)] {
        let lines =
            format!("{{\"text\":\"the lamp\",\"v\":{value}}}\n{{\"v\":{value},\"text\":\"the wick\"}}\n");
        let input = folder.write(&format!("{name}.jsonl"), lines.as_bytes());
        assert_lamp_and_wick(&run(&input, &[]));
        let parts: &[&str] =
            &[&format!("{name}.jsonl line 1 "), "\"v\"", "leave it out of --keep", "--max-memory"];
        assert_fails(&run(&input, &["--keep", "v"]), 1, parts);
        let typed = ["--text-field", "v", "--on-error", "skip"];
        let output = run(&input, &typed);
        let kind = if name == "object" { "an object" } else { "an array" };
        assert!(stderr(&output).contains(&format!("field \"v\" is {kind}, expected a string")));
    }
    let fields: String = (0..1 << 20).map(|i| format!("\"f{i}\":0,")).collect();
    let input = folder.write("fields.jsonl", format!("{{{fields}\"text\":\"the lamp\"}}\n").as_bytes());
    assert!(run(&input, &[]).status.success());
    let missing = run(&input, &["--keep", "g"]);
    assert_fails(&missing, 1, &["no record has the field \"g\"", "f0, f1", "f19 and 1048557 more"]);
    assert!(missing.stderr.len() < 1000, "the names are not all listed");
    // A line over the maximum length is skipped before it is parsed.
    let long = format!("{{\"text\":\"the lamp\",\"v\":[0{}]}}\n{{\"text\":\"a\"}}\n", ",0".repeat(50 << 20));
    let input = folder.write("long.jsonl", long.as_bytes());
    assert_fails(&run(&input, &[]), 1, &["long.jsonl line 1 is longer than 16 MiB"]);
}

#[test]
fn tables_of_millions_of_columns_are_refused() {
    let folder = Folder::new();
    for (suffix, delimiter) in [("csv", ","), ("tsv", "\t")] {
        let many = delimiter.repeat(15 << 20);
        let input = folder.write(&format!("header.{suffix}"), format!("text{many}\nthe lamp\n").as_bytes());
        let parts = [&format!("header.{suffix} line 1 has more than 4194304 fields")];
        assert_fails(&run(&input, &[]), 1, &parts.map(String::as_str));
        let content = format!("text{delimiter}x\nthe lamp{delimiter}1\nthe{many}\n");
        let input = folder.write(&format!("row.{suffix}"), content.as_bytes());
        let parts = [&format!("row.{suffix} line 3 has 15,728,641 fields, but the header has 2")];
        assert_fails(&run(&input, &[]), 1, &parts.map(String::as_str));
        // A million columns fit.
        let many = delimiter.repeat(1 << 20);
        let content = format!("text{many}\nthe lamp{many}\nthe wick{many}\n");
        assert_lamp_and_wick(&run(&folder.write(&format!("wide.{suffix}"), content.as_bytes()), &[]));
        let missing = run(&folder.at(&format!("wide.{suffix}")), &["--text-field", "b"]);
        assert_fails(&missing, 1, &["no column \"b\"", "and 1048557 more"]);
        assert!(missing.stderr.len() < 1000, "the names are not all listed");
    }
}

/// A line that does not fit into `--max-memory` is skipped without being held in memory.
#[test]
fn lines_over_the_memory_limit_are_skipped() {
    let folder = Folder::new();
    let (stats, output) = (folder.at("stats.json"), folder.at("out.jsonl"));
    let long = "lamp ".repeat(3 << 20);
    for (name, content) in [
        ("long.txt", format!("{long}\nthe lamp\n")),
        ("long.jsonl", format!("{{\"text\":\"{long}\"}}\n{{\"text\":\"the lamp\"}}\n")),
    ] {
        let input = folder.write(name, content.as_bytes());
        let files = ["--stats", stats.to_str().unwrap(), "-o", output.to_str().unwrap()];
        let found = run(&input, &[&["--max-memory", "80MB", "--on-error", "skip"][..], &files].concat());
        assert_eq!(found.status.code(), Some(3), "{}", stderr(&found));
        let ledger = fs::read_to_string(folder.at("out.jsonl.ledger.jsonl")).unwrap();
        let entry: Value = serde_json::from_str(ledger.trim()).unwrap();
        assert_eq!(entry["line"], 1);
        let reason = entry["reason"].as_str().unwrap();
        assert!(reason.contains("bytes, the maximum that fits into --max-memory"), "{reason}");
        let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        let peak = stats["peak_memory_bytes"].as_u64().unwrap();
        assert!(peak < 80_000_000, "{peak} bytes");
    }
}

/// A file of sparse vectors whose elements take more memory than there is: they are scored block by block.
#[test]
fn a_file_of_sparse_vectors_larger_than_memory_is_searched() {
    const ROWS: usize = 1 << 14;
    const ELEMENTS: usize = 64;
    const GROUPS: usize = 110;
    let folder = Folder::new();
    let batch = |rows: usize, value: f32| {
        let indices = Int32Array::from_iter_values((0..rows * ELEMENTS).map(|i| (i % ELEMENTS) as i32));
        let values = Float32Array::from_value(value, rows * ELEMENTS);
        let list = |items: ArrayRef| -> ArrayRef {
            let field = Arc::new(Field::new_list_field(items.data_type().clone(), false));
            let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(ELEMENTS, rows));
            Arc::new(ListArray::new(field, offsets, items, None))
        };
        let columns = [("indices", list(Arc::new(indices))), ("values", list(Arc::new(values)))];
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let common = batch(ROWS, 0.5);
    let write = |name: &str, batches: &[&RecordBatch]| {
        let path = folder.at(name);
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), common.schema(), None).unwrap();
        for batch in batches {
            writer.write(batch).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
        path
    };
    let best = batch(1, 0.75);
    let rows_of_file: Vec<&RecordBatch> = std::iter::repeat_n(&common, GROUPS).chain([&best]).collect();
    let path = write("sparse.parquet", &rows_of_file);
    let queries = write("queries.parquet", &[&batch(1, 1.0)]);
    assert!(ROWS * GROUPS * ELEMENTS * 8 > 1000 * ADDRESS_SPACE_KIB as usize);
    let limited = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$@\"");
    let mut command = Command::new("bash");
    command.args(["-c", &limited, "-", env!("CARGO_BIN_EXE_sconce"), "search", "--query-vectors"]);
    command.arg(queries).arg(path).args(["-k", "1", "--output-format", "jsonl"]);
    let found = rows(&command.output().unwrap());
    assert_eq!((&found[0]["index"], &found[0]["score"]), (&(ROWS * GROUPS).into(), &48.0.into()));
}

/// The cells of a matrix are written as they come.
#[test]
fn similarities_of_many_texts_take_little_memory() {
    const TEXTS: usize = 1300;
    for (style, lines) in [
        ("--output-format=text", TEXTS + 1),
        ("--json", 1),
        ("--output-format=jsonl", TEXTS * (TEXTS - 1) / 2),
    ] {
        let mut command = Command::new("bash");
        let limited = format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$@\"");
        command.args([
            "-c",
            &limited,
            "-",
            env!("CARGO_BIN_EXE_sconce"),
            "similarity",
            "-q",
            "--threads",
            "2",
            style,
        ]);
        command.arg("-m").arg(fixture("bert-tiny")).args((0..TEXTS).map(|i| format!("lamp {i}")));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{style}: {}", stderr(&output));
        assert_eq!(output.stdout.split(|byte| *byte == b'\n').count(), lines + 1, "{style}");
    }
}

/// Of a text far over the limit, the tokens within it are kept and the others are counted.
#[test]
fn a_long_text_takes_little_memory() {
    let folder = Folder::new();
    let text = "the lamp burns on the wick, a query in London ".repeat((6 << 20) / 46);
    let input = folder.write("long.txt", text.as_bytes());
    let stats = folder.at("stats.json");
    let output = run(&input, &["--input-format", "files", "--stats", stats.to_str().unwrap()]);
    let found = rows(&output);
    assert_eq!((found.len(), &found[0]["truncated"]), (1, &Value::Bool(true)), "{}", stderr(&output));
    // As many tokens as those of a short part, so many times.
    let part = rows(&support::embed("bert-tiny", ["the lamp burns on the wick, a query in London"]));
    let tokens = (part[0]["tokens"].as_u64().unwrap() - 2) * ((6 << 20) / 46);
    let stats: Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    let kept = found[0]["tokens"].as_u64().unwrap() - 2;
    assert_eq!(stats["tokens_cut"].as_u64(), Some(tokens - kept), "{stats}");
}
