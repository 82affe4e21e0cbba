//! Writes every output format through the library and reads it back, with and without interruptions.

use crate::support;
use crate::support::arrow;
use std::borrow::Cow;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int64Type, UInt8Type};
use half::f16;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::reader::{FileReader, SerializedFileReader};
use sconce::formats::{self, Writer};
use sconce::named::Named;
use sconce::rows::field::{FieldValue, carried_type};
use sconce::rows::{
    ColumnType, Content, ContentType, KeptColumn, LabelScore, OutputDtype, OutputFormat, OutputSchema,
    OutputTypes, Row, StoredVector, VectorType, VectorValues,
};
use sconce::store::{
    Digest, DurableRows, Event, HashedBlock, Ledger, LedgerEntry, OutputLock, ReadFiles, SidecarPaths,
    Target, manifest,
};
use serde_json::{Value, json};

const DTYPES: [OutputDtype; 5] =
    [OutputDtype::F32, OutputDtype::F16, OutputDtype::Int8, OutputDtype::Binary, OutputDtype::Ubinary];

/// An owned row to write.
#[derive(Debug, Clone)]
struct TestRow {
    index: u64,
    id: Option<Value>,
    tokens: usize,
    truncated: bool,
    kept: Vec<FieldValue>,
    content: Content,
}

/// A row read back from a file. Elements of every dtype are exact as `f64`.
#[derive(Debug, Clone, Default, PartialEq)]
struct ReadRow {
    index: u64,
    id: Option<Value>,
    tokens: u64,
    truncated: bool,
    kept: Vec<Value>,
    scale: Option<f32>,
    values: Vec<f64>,
}

fn schema(format: OutputFormat, dtype: OutputDtype) -> OutputSchema {
    let column = |(name, column_type): (&str, ColumnType)| KeptColumn::new(name, column_type);
    let kept = [
        ("year", ColumnType::Integer),
        ("score", ColumnType::Float),
        ("open", ColumnType::Boolean),
        ("title", ColumnType::Text),
    ];
    let columns = format.has_columns();
    OutputSchema {
        format,
        content: ContentType::Vectors(VectorType {
            dtype,
            dimensions: 16,
            per_token: false,
            normalized: true,
            nullable: false,
        }),
        chunks: false,
        ids: columns.then_some(ColumnType::Text),
        kept: kept.map(column).into_iter().filter(|_| columns).collect(),
        metadata: [("model".to_owned(), "a/model".to_owned()), ("prompt".to_owned(), "query: ".to_owned())]
            .into_iter()
            .collect(),
        follows_batches: false,
    }
}

/// The type of the vectors of a schema.
fn vectors(schema: &OutputSchema) -> VectorType {
    match schema.content {
        ContentType::Vectors(vectors) => vectors,
        other => panic!("{other:?}"),
    }
}

/// A schema with another type of vectors.
fn with_vectors(schema: OutputSchema, change: impl FnOnce(&mut VectorType)) -> OutputSchema {
    let mut vectors = vectors(&schema);
    change(&mut vectors);
    OutputSchema { content: ContentType::Vectors(vectors), ..schema }
}

/// The content of a row with these values.
fn vector(schema: &OutputSchema, values: Vec<f32>) -> Content {
    let vectors = vectors(schema);
    Content::Vector(vectors.dtype.quantize(values, vectors.dimensions))
}

/// Every supported combination of format, dtype, and one vector per row or per token.
fn schemas() -> Vec<OutputSchema> {
    let mut schemas = Vec::new();
    for format in vector_formats() {
        for dtype in DTYPES {
            let plain = schema(format, dtype);
            let per_token = with_vectors(plain.clone(), |vectors| vectors.per_token = true);
            schemas.extend([plain, per_token].into_iter().filter(|schema| formats::check(schema).is_ok()));
        }
    }
    // jsonl and csv have no ubinary.
    assert_eq!(schemas.len(), 6 * 5 - 2 + 3 * 4 - 1);
    schemas
}

/// Pseudorandom values in [-1, 1).
fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

/// Number of stored elements per vector.
fn width(schema: &OutputSchema) -> usize {
    let vectors = vectors(schema);
    vectors.dtype.width(vectors.dimensions)
}

fn texts(schema: &OutputSchema, count: u64) -> Vec<TestRow> {
    let titles =
        [json!("a lamp, \"lit\""), Value::Null, json!("灯\nand more"), json!({"a": [1, 2.5]}), json!("")];
    let text = |i: u64| {
        let tokens = 2 + (i as usize * 7) % 5;
        let kept = vec![
            if i % 3 == 1 { Value::Null } else { json!(1900 + i) },
            if i % 4 == 2 { Value::Null } else { json!(i as f64 / 4.0) },
            if i % 5 == 3 { Value::Null } else { json!(i.is_multiple_of(2)) },
            titles[i as usize % titles.len()].clone(),
        ];
        let VectorType { dimensions, per_token, .. } = vectors(schema);
        let count = if per_token { tokens } else { 1 };
        TestRow {
            // The indices of skipped records are missing.
            index: i + i / 3,
            id: (schema.ids.is_some() && i % 4 != 1).then(|| json!(format!("doc-{i}"))),
            tokens,
            truncated: i.is_multiple_of(3),
            kept: kept.into_iter().map(FieldValue::Json).take(schema.kept.len()).collect(),
            content: vector(schema, values(i, count * dimensions)),
        }
    };
    (0..count).map(text).collect()
}

fn row(text: &TestRow) -> Row<'_> {
    let TestRow { index, id, tokens, truncated, kept, content } = text;
    Row { index: *index, id: id.as_ref(), chunk: None, tokens: *tokens, truncated: *truncated, kept, content }
}

fn write(path: &Path, schema: &OutputSchema, texts: &[TestRow]) {
    formats::check(schema).unwrap();
    let mut writer = open(&Target::File(path.into()), schema, None).unwrap();
    texts.iter().for_each(|text| writer.write(&row(text)).unwrap());
    writer.finish().unwrap();
}

/// Writes a range of rows and a checkpoint, then one more row and half a row, as a killed run may leave them.
fn interrupt(
    path: &Path,
    schema: &OutputSchema,
    texts: &[TestRow],
    range: std::ops::Range<usize>,
    durable: Option<DurableRows>,
) -> DurableRows {
    let target = Target::File(path.into());
    let mut writer = open(&target, schema, durable).unwrap();
    texts[range.clone()].iter().for_each(|text| writer.write(&row(text)).unwrap());
    let bytes = writer.checkpoint().unwrap();
    let blocks = writer.blocks(range.end as u64);
    texts.get(range.end).iter().for_each(|text| writer.write(&row(text)).unwrap());
    drop(writer);
    assert!(!path.exists(), "the output has no final name yet");
    let rows = sidecars(&target).unwrap().unwrap().partial;
    assert!(rows.metadata().unwrap().len() >= bytes);
    OpenOptions::new().append(true).open(rows).unwrap().write_all(b"half a ro\0w").unwrap();
    DurableRows { rows: range.end as u64, bytes, blocks }
}

fn resume(path: &Path, schema: &OutputSchema, texts: &[TestRow], durable: DurableRows) {
    let rows = durable.rows as usize;
    let mut writer = open(&Target::File(path.into()), schema, Some(durable)).unwrap();
    texts[rows..].iter().for_each(|text| writer.write(&row(text)).unwrap());
    writer.finish().unwrap();
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[track_caller]
fn assert_message<T>(result: anyhow::Result<T>, parts: &[&str]) {
    let Err(error) = result else { panic!("no error, expected one with {parts:?}") };
    let message = format!("{error:#}");
    assert!(!message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

/// What a reader of the format must find.
fn expected(schema: &OutputSchema, text: &TestRow) -> ReadRow {
    let Content::Vector(stored) = &text.content else { panic!("{:?}", text.content) };
    let values = match &stored.values {
        VectorValues::F32(values) => values.iter().map(|x| f64::from(*x)).collect(),
        VectorValues::F16(values) => values.iter().map(|x| x.to_f64()).collect(),
        VectorValues::Int8(values) => values.iter().map(|x| f64::from(*x)).collect(),
        VectorValues::Uint8(values) => values.iter().map(|x| f64::from(*x)).collect(),
    };
    if !schema.format.has_columns() {
        return ReadRow { values, ..ReadRow::default() };
    }
    // A text column holds other values as JSON text; JSON Lines holds them as they are; null is empty in CSV.
    let kept = text.kept.iter().map(|value| match (schema.format, &*value.json()) {
        (OutputFormat::Jsonl, value) => value.clone(),
        (OutputFormat::Csv, Value::Null) => json!(""),
        (OutputFormat::Csv, Value::String(text)) => json!(text),
        (OutputFormat::Csv, other) => json!(other.to_string()),
        (_, value @ Value::Object(_)) => json!(value.to_string()),
        (_, value) => value.clone(),
    });
    let no_id = (schema.format == OutputFormat::Csv).then(|| json!(""));
    ReadRow {
        index: text.index,
        id: text.id.clone().or(no_id),
        tokens: text.tokens as u64,
        truncated: text.truncated,
        kept: kept.collect(),
        scale: stored.scale,
        values,
    }
}

/// The formats of dense vectors.
fn vector_formats() -> impl Iterator<Item = OutputFormat> {
    OutputFormat::ALL.iter().copied().filter(|format| *format != OutputFormat::Npz)
}

fn read(path: &Path, schema: &OutputSchema) -> Vec<ReadRow> {
    match schema.format {
        OutputFormat::Jsonl => read_jsonl(path, schema),
        OutputFormat::Csv => read_csv(path, schema),
        OutputFormat::Npy => read_npy(path, schema),
        OutputFormat::Npz => unreachable!("npz holds no dense vectors"),
        OutputFormat::Safetensors => read_safetensors(path, schema),
        OutputFormat::Arrow => {
            let file = fs::File::open(path).unwrap();
            let batches = arrow::ipc::reader::FileReader::try_new(file, None).unwrap();
            batches.flat_map(|batch| read_batch(&batch.unwrap(), schema)).collect()
        }
        OutputFormat::Parquet => {
            let file = fs::File::open(path).unwrap();
            let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
            batches.flat_map(|batch| read_batch(&batch.unwrap(), schema)).collect()
        }
    }
}

fn read_jsonl(path: &Path, schema: &OutputSchema) -> Vec<ReadRow> {
    let values = |list: &Value| -> Vec<f64> {
        let is_integer = matches!(vectors(schema).dtype, OutputDtype::Int8 | OutputDtype::Binary);
        let number = |x: &Value| {
            assert_eq!(x.is_i64(), is_integer, "{x}");
            // Floats have the fewest digits that read back as the same f32.
            if is_integer { x.as_f64().unwrap() } else { f64::from(x.to_string().parse::<f32>().unwrap()) }
        };
        list.as_array().unwrap().iter().map(number).collect()
    };
    let found = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        ReadRow {
            index: line["index"].as_u64().unwrap(),
            id: line.get("id").cloned(),
            tokens: line["tokens"].as_u64().unwrap(),
            truncated: line["truncated"].as_bool().unwrap(),
            kept: schema.kept.iter().map(|column| line[&column.name].clone()).collect(),
            scale: line.get("scale").map(|scale| scale.to_string().parse().unwrap()),
            values: if vectors(schema).per_token {
                line["embeddings"].as_array().unwrap().iter().flat_map(values).collect()
            } else {
                values(&line["embedding"])
            },
        }
    };
    fs::read_to_string(path).unwrap().lines().map(found).collect()
}

fn read_csv(path: &Path, schema: &OutputSchema) -> Vec<ReadRow> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let mut names = vec!["index", "id", "tokens", "truncated", "year", "score", "open", "title"];
    names.extend((vectors(schema).dtype == OutputDtype::Int8).then_some("scale"));
    let header = reader.headers().unwrap().clone();
    assert_eq!(header.iter().take(names.len()).collect::<Vec<_>>(), names);
    let first = names.len();
    assert!(header.iter().skip(first).enumerate().all(|(i, name)| name == format!("e{i}")));
    let found = |row: Result<csv::StringRecord, csv::Error>| {
        let row = row.unwrap();
        ReadRow {
            index: row[0].parse().unwrap(),
            id: Some(json!(row[1])),
            tokens: row[2].parse().unwrap(),
            truncated: row[3].parse().unwrap(),
            kept: (4..8).map(|i| json!(row[i])).collect(),
            scale: (vectors(schema).dtype == OutputDtype::Int8).then(|| row[8].parse().unwrap()),
            values: row.iter().skip(first).map(|x| f64::from(x.parse::<f32>().unwrap())).collect(),
        }
    };
    reader.records().map(found).collect()
}

/// The rows of an array, which has no other columns.
fn rows_of(bytes: &[u8], schema: &OutputSchema) -> Vec<ReadRow> {
    let values: Vec<f64> = match vectors(schema).dtype {
        OutputDtype::F32 => {
            bytes.chunks(4).map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap()))).collect()
        }
        OutputDtype::F16 => {
            bytes.chunks(2).map(|x| f16::from_le_bytes(x.try_into().unwrap()).to_f64()).collect()
        }
        OutputDtype::Int8 | OutputDtype::Binary => bytes.iter().map(|x| f64::from(*x as i8)).collect(),
        OutputDtype::Ubinary => bytes.iter().map(|x| f64::from(*x)).collect(),
    };
    let rows = values.chunks(width(schema));
    rows.map(|row| ReadRow { values: row.to_vec(), ..ReadRow::default() }).collect()
}

fn read_npy(path: &Path, schema: &OutputSchema) -> Vec<ReadRow> {
    let bytes = fs::read(path).unwrap();
    let descr = match vectors(schema).dtype {
        OutputDtype::F32 => "<f4",
        OutputDtype::F16 => "<f2",
        OutputDtype::Int8 | OutputDtype::Binary => "|i1",
        OutputDtype::Ubinary => "|u1",
    };
    assert_eq!(bytes[..10], *b"\x93NUMPY\x01\x00\x76\x00");
    let rows = rows_of(&bytes[128..], schema);
    let width = width(schema);
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}, {width}), }}", rows.len());
    assert_eq!(std::str::from_utf8(&bytes[10..128]).unwrap(), format!("{header:<117}\n"));
    rows
}

fn read_safetensors(path: &Path, schema: &OutputSchema) -> Vec<ReadRow> {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!((&*metadata["format"], &*metadata["output_dtype"]), ("sconce", vectors(schema).dtype.name()));
    assert_eq!((&*metadata["model"], &*metadata["prompt"]), ("a/model", "query: "));
    assert_eq!(file.names(), ["embeddings"]);
    let tensor = file.tensor("embeddings").unwrap();
    let dtype = match vectors(schema).dtype {
        OutputDtype::F32 => safetensors::Dtype::F32,
        OutputDtype::F16 => safetensors::Dtype::F16,
        OutputDtype::Int8 | OutputDtype::Binary => safetensors::Dtype::I8,
        OutputDtype::Ubinary => safetensors::Dtype::U8,
    };
    assert_eq!(tensor.dtype(), dtype);
    let rows = rows_of(tensor.data(), schema);
    assert_eq!(tensor.shape(), [rows.len(), width(schema)]);
    rows
}

fn read_batch(batch: &RecordBatch, schema: &OutputSchema) -> Vec<ReadRow> {
    let column = |name: &str| batch.column_by_name(name).unwrap_or_else(|| panic!("a column {name}"));
    let mut names = vec!["index", "id", "tokens", "truncated", "year", "score", "open", "title"];
    names.extend((vectors(schema).dtype == OutputDtype::Int8).then_some("scale"));
    names.push(if vectors(schema).per_token { "embeddings" } else { "embedding" });
    let arrow_schema = batch.schema();
    assert_eq!(arrow_schema.fields().iter().map(|field| field.name()).collect::<Vec<_>>(), names);
    if schema.format == OutputFormat::Arrow {
        let metadata =
            ["sconce.model", "sconce.prompt"].map(|key| arrow_schema.metadata().get(key).unwrap().as_str());
        assert_eq!(metadata, ["a/model", "query: "]);
    }
    let nullable: Vec<_> =
        arrow_schema.fields().iter().filter(|f| f.is_nullable()).map(|f| f.name()).collect();
    assert_eq!(nullable, ["id", "year", "score", "open", "title"]);

    let list = column(names.last().unwrap());
    let vectors_of =
        |i: usize| if vectors(schema).per_token { list.as_list::<i32>().value(i) } else { list.slice(i, 1) };
    let kept = |name: &str, i: usize| -> Value {
        let column = column(name);
        match column.data_type() {
            _ if column.is_null(i) => Value::Null,
            DataType::Int64 => column.as_primitive::<Int64Type>().value(i).into(),
            DataType::Float64 => column.as_primitive::<Float64Type>().value(i).into(),
            DataType::Boolean => column.as_boolean().value(i).into(),
            DataType::Utf8 => column.as_string::<i32>().value(i).into(),
            other => panic!("{other}"),
        }
    };
    let found = |i: usize| ReadRow {
        index: column("index").as_primitive::<Int64Type>().value(i) as u64,
        id: Some(kept("id", i)).filter(|id| !id.is_null()),
        tokens: column("tokens").as_primitive::<Int64Type>().value(i) as u64,
        truncated: column("truncated").as_boolean().value(i),
        kept: names[4..8].iter().map(|name| kept(name, i)).collect(),
        scale: batch.column_by_name("scale").map(|scale| scale.as_primitive::<Float32Type>().value(i)),
        values: elements_of(&vectors_of(i), schema),
    };
    (0..batch.num_rows()).map(found).collect()
}

fn elements_of(column: &ArrayRef, schema: &OutputSchema) -> Vec<f64> {
    let lists = column.as_fixed_size_list();
    assert_eq!(lists.value_length() as usize, width(schema));
    let each = (0..lists.len()).flat_map(|i| {
        let values = lists.value(i);
        match vectors(schema).dtype {
            OutputDtype::F32 => {
                values.as_primitive::<Float32Type>().values().iter().map(|x| (*x).into()).collect()
            }
            OutputDtype::F16 => {
                values.as_primitive::<Float16Type>().values().iter().map(|x| x.to_f64()).collect()
            }
            OutputDtype::Int8 | OutputDtype::Binary => {
                values.as_primitive::<Int8Type>().values().iter().map(|x| (*x).into()).collect::<Vec<f64>>()
            }
            OutputDtype::Ubinary => {
                values.as_primitive::<UInt8Type>().values().iter().map(|x| (*x).into()).collect()
            }
        }
    });
    each.collect()
}

#[test]
fn every_format_stores_every_row() {
    for schema in schemas() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for count in [0, 1, 9] {
            let texts = texts(&schema, count);
            write(&path, &schema, &texts);
            let expected: Vec<_> = texts.iter().map(|text| expected(&schema, text)).collect();
            assert_eq!(read(&path, &schema), expected, "{schema:?}");
            assert_eq!(names(folder.path()), ["out"], "nothing else is left");
        }
    }
}

/// Interrupted twice, at any rows, and resumed.
#[test]
fn a_resumed_file_has_the_same_bytes() {
    for schema in schemas() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let texts = texts(&schema, 5);
        write(&path, &schema, &texts);
        let uninterrupted = fs::read(&path).unwrap();
        for first in 0..=texts.len() {
            for second in [first, first + 1, texts.len()] {
                let second = second.min(texts.len());
                fs::remove_file(&path).unwrap();
                let durable = interrupt(&path, &schema, &texts, 0..first, None);
                let durable = interrupt(&path, &schema, &texts, first..second, Some(durable));
                resume(&path, &schema, &texts, durable);
                assert!(
                    fs::read(&path).unwrap() == uninterrupted,
                    "{schema:?} after {first} and {second} rows"
                );
                assert_eq!(names(folder.path()), ["out"]);
            }
        }
    }
}

/// Where a row group ends depends on the rows only.
#[test]
fn row_groups_do_not_depend_on_interruptions() {
    for format in [OutputFormat::Parquet, OutputFormat::Arrow] {
        let schema = with_vectors(schema(format, OutputDtype::F32), |vectors| vectors.dimensions = 4096);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let texts = texts(&schema, 2200);
        write(&path, &schema, &texts);
        let uninterrupted = fs::read(&path).unwrap();
        // A group of 16 MiB has 1024 vectors of 4096 f32 elements, less the size of the other columns.
        let groups: Vec<usize> = match format {
            OutputFormat::Arrow => {
                let file =
                    arrow::ipc::reader::FileReader::try_new(fs::File::open(&path).unwrap(), None).unwrap();
                file.map(|batch| batch.unwrap().num_rows()).collect()
            }
            _ => {
                let file = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
                file.metadata().row_groups().iter().map(|group| group.num_rows() as usize).collect()
            }
        };
        assert_eq!(groups, [1021, 1021, 158]);
        fs::remove_file(&path).unwrap();
        let mut durable = None;
        for range in [0..300, 300..1021, 1021..1025, 1025..1900] {
            durable = Some(interrupt(&path, &schema, &texts, range, durable));
        }
        resume(&path, &schema, &texts, durable.unwrap());
        assert!(fs::read(&path).unwrap() == uninterrupted, "{format}");
    }
}

/// Columns of every Arrow type, which go through the partial file and the manifest.
#[test]
fn kept_columns_survive_an_interruption() {
    let file = |name: &str| fs::File::open(support::fixture("input").join(name)).unwrap();
    let batches = arrow::ipc::reader::FileReader::try_new(file("typed.arrow"), None).unwrap();
    let batch = batches.into_iter().next().unwrap().unwrap();
    let arrow_schema = batch.schema();
    let columns: Vec<(&str, &ArrayRef, DataType)> =
        (arrow_schema.fields().iter().zip(batch.columns()).skip(1))
            .map(|(field, column)| (field.name().as_str(), column, carried_type(field.data_type()).unwrap()))
            .collect();
    for format in [OutputFormat::Parquet, OutputFormat::Arrow] {
        let kept = columns.iter().map(|(name, _, data_type)| {
            let column_type = ColumnType::Arrow(data_type.clone()).for_format(format);
            // As the manifest of an interrupted run stores it.
            let column_type = serde_json::from_str(&serde_json::to_string(&column_type).unwrap()).unwrap();
            KeptColumn::new(name.to_string(), column_type)
        });
        let schema = OutputSchema { kept: kept.collect(), ..schema(format, OutputDtype::F32) };
        let mut texts = texts(&schema, 40);
        for (i, text) in texts.iter_mut().enumerate() {
            let row = |(_, column, data_type): &(_, &ArrayRef, _)| {
                FieldValue::from_row(column, i % 3, data_type).unwrap()
            };
            text.kept = columns.iter().map(row).collect();
        }
        let folder = tempfile::tempdir().unwrap();
        let [uninterrupted, resumed] = ["uninterrupted", "resumed"].map(|name| folder.path().join(name));
        write(&uninterrupted, &schema, &texts);
        for cut in [1, 2, 3, 20, 39] {
            let first = interrupt(&resumed, &schema, &texts, 0..cut, None);
            let second = interrupt(&resumed, &schema, &texts, cut..cut + 1, Some(first));
            resume(&resumed, &schema, &texts, second);
            assert!(
                fs::read(&resumed).unwrap() == fs::read(&uninterrupted).unwrap(),
                "{format}, after {cut} rows"
            );
            fs::remove_file(&resumed).unwrap();
        }
    }
}

/// Float vectors are PLAIN, int8 vectors dictionary-encoded.
#[test]
fn parquet_stores_vectors_uncompressed() {
    for (dtype, encoding) in
        [(OutputDtype::F32, Encoding::PLAIN), (OutputDtype::Int8, Encoding::RLE_DICTIONARY)]
    {
        let schema = schema(OutputFormat::Parquet, dtype);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        write(&path, &schema, &texts(&schema, 9));
        let file = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
        let columns = file.metadata().row_group(0).columns();
        let vectors = columns.last().unwrap();
        assert_eq!(vectors.column_path().string(), "embedding.list.item");
        assert!(vectors.encodings().any(|found| found == encoding), "{dtype}");
        assert_eq!(vectors.dictionary_page_offset().is_some(), dtype == OutputDtype::Int8);
        assert_eq!(vectors.compression(), Compression::UNCOMPRESSED);
        assert!(vectors.statistics().is_none());
        assert!(columns[0].statistics().is_some());
        let keys = file.metadata().file_metadata().key_value_metadata().unwrap();
        assert!(keys.iter().any(|pair| pair.key == "ARROW:schema"), "it stores the size of the lists");
    }
}

#[test]
fn json_lines_have_the_documented_fields() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let lines = |schema: &OutputSchema, texts: &[TestRow]| {
        write(&path, schema, texts);
        fs::read_to_string(&path).unwrap()
    };
    let all = schema(OutputFormat::Jsonl, OutputDtype::Int8);
    let mut text = TestRow {
        index: 7,
        id: Some(json!("a\"b")),
        tokens: 3,
        truncated: true,
        kept: [json!(1), json!(2.5), Value::Null, json!([1, {"x": "y"}])].map(FieldValue::Json).into(),
        content: Content::Vector(OutputDtype::Int8.quantize(vec![0.0, -12.7, 1.0], 3)),
    };
    assert_eq!(
        lines(&all, &[text.clone()]),
        "{\"index\":7,\"id\":\"a\\\"b\",\"tokens\":3,\"truncated\":true,\"year\":1,\"score\":2.5,\"open\":null,\
         \"title\":[1,{\"x\":\"y\"}],\"scale\":0.1,\"embedding\":[0,-127,10]}\n"
    );
    text.content = Content::Vector(OutputDtype::Int8.quantize(vec![0.0, f32::INFINITY], 2));
    assert!(lines(&all, &[text.clone()]).ends_with("\"scale\":null,\"embedding\":[0,0]}\n"));

    let bare = OutputSchema { ids: None, kept: vec![], ..schema(OutputFormat::Jsonl, OutputDtype::F32) };
    (text.id, text.kept) = (None, vec![]);
    text.content = Content::Vector(
        OutputDtype::F32.quantize(vec![0.1, 1e-30, f32::NAN, f32::NEG_INFINITY, 16777216.0, -0.0], 6),
    );
    assert_eq!(
        lines(&bare, &[text.clone()]),
        "{\"index\":7,\"tokens\":3,\"truncated\":true,\"embedding\":[0.1,1e-30,null,null,16777216.0,-0.0]}\n"
    );
    let half = with_vectors(bare, |vectors| {
        *vectors = VectorType {
            dtype: OutputDtype::F16,
            dimensions: 2,
            per_token: true,
            normalized: true,
            nullable: false,
        };
    });
    text.content = Content::Vector(OutputDtype::F16.quantize(vec![0.1, 0.5, 65504.0, 1e9], 2));
    assert_eq!(
        lines(&half, &[text]),
        "{\"index\":7,\"tokens\":3,\"truncated\":true,\"embeddings\":[[0.099975586,0.5],[65504.0,null]]}\n"
    );
}

#[test]
fn csv_rows_have_the_documented_fields() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    let all = with_vectors(schema(OutputFormat::Csv, OutputDtype::Int8), |vectors| vectors.dimensions = 3);
    let mut text = TestRow {
        index: 7,
        id: None,
        tokens: 3,
        truncated: false,
        kept: [json!(1), Value::Null, json!(true), json!("one, two\r\n\"three\"")]
            .map(FieldValue::Json)
            .into(),
        content: Content::Vector(OutputDtype::Int8.quantize(vec![0.0, -12.7, 1.0], 3)),
    };
    write(&path, &all, &[text.clone()]);
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "index,id,tokens,truncated,year,score,open,title,scale,e0,e1,e2\n\
         7,,3,false,1,,true,\"one, two\r\n\"\"three\"\"\",0.1,0,-127,10\n"
    );
    let bare = OutputSchema { ids: None, kept: vec![], ..schema(OutputFormat::Csv, OutputDtype::F32) };
    let bare = with_vectors(bare, |vectors| vectors.dimensions = 4);
    text.kept = vec![];
    text.content = Content::Vector(OutputDtype::F32.quantize(vec![0.1, 1e-9, f32::NAN, 3.0], 4));
    write(&path, &bare, &[text]);
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "index,tokens,truncated,e0,e1,e2,e3\n7,3,false,0.1,0.000000001,NaN,3\n"
    );
}

#[test]
fn vectors_are_quantized() {
    let values = vec![0.1, -0.25, 1.0, 0.0, 1e-8, 70000.0, -65519.0, f32::NAN];
    assert_eq!(
        OutputDtype::F32.quantize(values[..2].to_vec(), 2),
        StoredVector { values: VectorValues::F32(vec![0.1, -0.25]), scale: None }
    );
    let VectorValues::F16(halves) = OutputDtype::F16.quantize(values.clone(), 8).values else {
        panic!("f16")
    };
    let bits: Vec<u16> = halves.iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits[..7], [0x2E66, 0xB400, 0x3C00, 0, 0, 0x7C00, 0xFBFF]);
    assert!(halves[7].is_nan());

    let int8 = |values: &[f32]| OutputDtype::Int8.quantize(values.to_vec(), values.len());
    let stored = |values: &[i8], scale| StoredVector {
        values: VectorValues::Int8(values.to_vec()),
        scale: Some(scale),
    };
    assert_eq!(int8(&[127.0, -127.0, 63.4, 0.5, 1.5, -2.5]), stored(&[127, -127, 63, 0, 2, -2], 1.0));
    assert_eq!(int8(&[-0.5, 0.25]), stored(&[-127, 64], 0.5 / 127.0));
    assert_eq!(int8(&[0.0, -0.0]), stored(&[0, 0], 0.0));
    // A maximum whose scale underflows to zero, and one whose scale is subnormal.
    assert_eq!(int8(&[1e-45, 0.0]), stored(&[0, 0], 0.0));
    assert_eq!(int8(&[2e-43, -2e-43]), stored(&[127, -127], 2e-43f32 / 127.0));
    assert_eq!(int8(&[f32::MAX, f32::MIN]), stored(&[127, -127], f32::MAX / 127.0));
    for broken in [f32::NAN, f32::INFINITY] {
        let vector = int8(&[1.0, broken]);
        assert_eq!(vector.values, VectorValues::Int8(vec![0, 0]));
        assert!(vector.scale.unwrap().is_nan());
        assert!(!vector.is_finite());
    }

    // 0b1000_0001 is 129, which is stored as 129 - 128; no bit set is -128, all bits are 127.
    let mut signs = vec![1.0, -1.0, 0.0, -0.0, -1.0, -1.0, f32::NAN, 0.1];
    signs.extend([[-1.0; 8], [1.0; 8]].concat());
    let binary = |dimensions| OutputDtype::Binary.quantize(signs.clone(), dimensions);
    assert_eq!(binary(24), StoredVector { values: VectorValues::Int8(vec![1, -128, 127]), scale: None });
    assert_eq!(binary(8), binary(24), "several vectors are packed one by one");
    assert_eq!(
        [OutputDtype::F32, OutputDtype::F16, OutputDtype::Int8, OutputDtype::Binary]
            .map(|dtype| dtype.width(24)),
        [24, 24, 24, 3]
    );

    assert!(OutputDtype::F16.quantize(vec![65504.0], 1).is_finite());
    assert!(!OutputDtype::F16.quantize(vec![70000.0], 1).is_finite());
    assert!(!OutputDtype::F32.quantize(vec![f32::NAN], 1).is_finite());
    assert!(int8(&[1.0]).is_finite() && OutputDtype::F32.quantize(vec![1e30], 1).is_finite());
}

#[test]
fn column_types_are_inferred_from_values() {
    let of = |values: &[Value]| ColumnType::infer(values.iter());
    assert_eq!(of(&[json!(true), Value::Null]), ColumnType::Boolean);
    assert_eq!(of(&[Value::Null, json!(1), json!(i64::MIN)]), ColumnType::Integer);
    assert_eq!(of(&[json!(1), json!(1.5)]), ColumnType::Float);
    assert_eq!(of(&[json!(1.0)]), ColumnType::Float);
    assert_eq!(of(&[json!(1u64 << 63)]), ColumnType::Float, "a power of two is exact as f64");
    assert_eq!(of(&[json!(u64::MAX)]), ColumnType::Text, "neither i64 nor f64 holds it");
    assert_eq!(of(&[json!((1i64 << 53) + 1), json!(0.5)]), ColumnType::Text, "2^53 + 1 is not exact as f64");
    assert_eq!(of(&[json!(true), json!(1)]), ColumnType::Text);
    assert_eq!(of(&[json!("a"), json!([1])]), ColumnType::Text);
    assert_eq!(of(&[]), ColumnType::Text);
    assert_eq!(of(&[Value::Null]), ColumnType::Text);

    let values =
        [Value::Null, json!(true), json!(-1), json!(0.5), json!("a"), json!([]), json!((1i64 << 53) + 1)];
    let fits = |kind: ColumnType| values.iter().map(|value| kind.accepts_json(value)).collect::<Vec<_>>();
    assert_eq!(fits(ColumnType::Boolean), [true, true, false, false, false, false, false]);
    assert_eq!(fits(ColumnType::Integer), [true, false, true, false, false, false, true]);
    assert_eq!(fits(ColumnType::Float), [true, false, true, true, false, false, false]);
    assert_eq!(fits(ColumnType::Text), [true; 7]);
}

#[test]
fn a_value_of_another_type_is_refused() {
    for format in [OutputFormat::Parquet, OutputFormat::Arrow] {
        let schema = schema(format, OutputDtype::F32);
        let folder = tempfile::tempdir().unwrap();
        let mut writer = open(&Target::File(folder.path().join("out")), &schema, None).unwrap();
        let mut text = texts(&schema, 1).remove(0);
        text.kept[0] = json!("MCMXC").into();
        assert_message(
            writer.write(&row(&text)),
            &["row 0", "\"year\"", "MCMXC", "64-bit integers", "--keep"],
        );
    }
}

/// Rows of scores, of ranked scores and of labels, with the jsonl and csv that they are written as.
fn other_contents() -> Vec<(ContentType, Vec<Content>, &'static str, &'static str)> {
    let score = |score, rank| Content::Score { score, rank };
    let label = |label: &str, score| LabelScore { label: label.into(), score };
    let labels = vec![label("a, \"b\"", 0.75), label("灯", 0.1)];
    vec![
        (
            ContentType::Scores { ranked: false },
            vec![score(0.1, None), score(f32::NAN, None)],
            "\"score\":0.1}\n\"score\":null}\n",
            "score\n0.1\nNaN\n",
        ),
        (
            ContentType::Scores { ranked: true },
            vec![score(-2.5, Some(0)), score(-1e-9, Some(1))],
            "\"rank\":0,\"score\":-2.5}\n\"rank\":1,\"score\":-1e-9}\n",
            "rank,score\n0,-2.5\n1,-0.000000001\n",
        ),
        (
            ContentType::Labels,
            vec![Content::Labels(labels), Content::Labels(vec![])],
            "\"labels\":[{\"label\":\"a, \\\"b\\\"\",\"score\":0.75},{\"label\":\"灯\",\"score\":0.1}]}\n\"labels\":[]}\n",
            "labels\n\"[{\"\"label\"\":\"\"a, \\\"\"b\\\"\"\"\",\"\"score\"\":0.75},{\"\"label\"\":\"\"灯\"\",\"\"score\"\":0.1}]\"\n[]\n",
        ),
    ]
}

#[test]
fn scores_and_labels_have_the_documented_columns() {
    let folder = tempfile::tempdir().unwrap();
    for (content, contents, jsonl, csv) in other_contents() {
        for (format, expected) in [(OutputFormat::Jsonl, jsonl), (OutputFormat::Csv, csv)] {
            let path = folder.path().join("out");
            let schema =
                OutputSchema { content, ids: None, kept: vec![], ..schema(format, OutputDtype::F32) };
            write(&path, &schema, &rows_with(&contents));
            let text = fs::read_to_string(&path).unwrap();
            let (header, start) = match format {
                OutputFormat::Csv => ("index,tokens,truncated,", "0,3,false,"),
                _ => ("", "{\"index\":0,\"tokens\":3,\"truncated\":false,"),
            };
            let text = text.strip_prefix(header).unwrap();
            let text = text.replace(start, "").replace(&start.replace('0', "1"), "");
            assert_eq!(text, expected);
        }
    }
}

#[test]
fn scores_and_labels_are_columns_of_arrow_and_parquet_with_and_without_interruptions() {
    let folder = tempfile::tempdir().unwrap();
    for (content, contents, ..) in other_contents() {
        for format in [OutputFormat::Arrow, OutputFormat::Parquet] {
            let schema =
                OutputSchema { content, ids: None, kept: vec![], ..schema(format, OutputDtype::F32) };
            let texts = rows_with(&contents);
            let path = folder.path().join("out");
            write(&path, &schema, &texts);
            let file = fs::File::open(&path).unwrap();
            let batches: Vec<RecordBatch> = if format == OutputFormat::Arrow {
                arrow::ipc::reader::FileReader::try_new(file, None).unwrap().map(Result::unwrap).collect()
            } else {
                let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
                reader.map(Result::unwrap).collect()
            };
            assert_eq!(batches.iter().flat_map(contents_of).collect::<Vec<_>>().len(), contents.len());
            // NaN is not equal to itself: compared as text.
            let found: Vec<Content> = batches.iter().flat_map(contents_of).collect();
            assert_eq!(format!("{found:?}"), format!("{contents:?}"));
            let uninterrupted = fs::read(&path).unwrap();
            fs::remove_file(&path).unwrap();
            let durable = interrupt(&path, &schema, &texts, 0..1, None);
            resume(&path, &schema, &texts, durable);
            assert_eq!(fs::read(&path).unwrap(), uninterrupted);
        }
    }
}

/// A row for each content.
fn rows_with(contents: &[Content]) -> Vec<TestRow> {
    let row = |(content, index): (&Content, u64)| TestRow {
        index,
        id: None,
        tokens: 3,
        truncated: false,
        kept: vec![],
        content: content.clone(),
    };
    contents.iter().zip(0..).map(row).collect()
}

/// The scores or labels of a record batch.
fn contents_of(batch: &RecordBatch) -> Vec<Content> {
    let floats = |column: &ArrayRef| column.as_primitive::<Float32Type>().values().to_vec();
    if let Some(lists) = batch.column_by_name("labels") {
        let row = |row: Option<ArrayRef>| {
            let row = row.unwrap();
            let row = row.as_struct();
            let names = row.column_by_name("label").unwrap().as_string::<i32>().iter();
            let scores = floats(row.column_by_name("score").unwrap());
            let labels = names.zip(scores);
            let labels = labels.map(|(label, score)| LabelScore { label: label.unwrap().into(), score });
            Content::Labels(labels.collect())
        };
        return lists.as_list::<i32>().iter().map(row).collect();
    }
    let scores = floats(batch.column_by_name("score").unwrap()).into_iter();
    let ranks = batch.column_by_name("rank");
    let ranks = ranks.map(|ranks| ranks.as_primitive::<Int64Type>().values().to_vec());
    let rank = |i: usize| ranks.as_ref().map(|ranks| ranks[i] as u64);
    scores.enumerate().map(|(i, score)| Content::Score { score, rank: rank(i) }).collect()
}

#[test]
fn arrays_hold_neither_scores_nor_labels() {
    for format in [OutputFormat::Npy, OutputFormat::Safetensors] {
        for (content, noun) in
            [(ContentType::Scores { ranked: false }, "a score"), (ContentType::Labels, "labels")]
        {
            let schema = OutputSchema { content, ..schema(format, OutputDtype::F32) };
            let remedy = "--output-format jsonl, csv, parquet or arrow";
            assert_message(formats::check(&schema), &[format.name(), noun, remedy]);
        }
    }
    let kept = |content, name: &str| {
        let kept = vec![KeptColumn::new(name, ColumnType::Text)];
        formats::check(&OutputSchema { content, kept, ..schema(OutputFormat::Jsonl, OutputDtype::F32) })
    };
    assert_message(kept(ContentType::Labels, "labels"), &["--keep labels", "already an output column"]);
    assert_message(kept(ContentType::Scores { ranked: false }, "rank"), &["--keep rank"]);
    kept(ContentType::Labels, "embedding").unwrap();
}

#[test]
fn unsupported_options_are_refused() {
    use OutputFormat::{Arrow, Csv, Jsonl, Npy, Parquet, Safetensors};
    let refused = |schema: OutputSchema, parts: &[&str]| assert_message(formats::check(&schema), parts);
    let plain = |format, dtype| OutputSchema { kept: vec![], ..schema(format, dtype) };
    let not_normalized =
        |format| with_vectors(plain(format, OutputDtype::Int8), |vectors| vectors.normalized = false);
    for format in [Csv, Npy, Safetensors] {
        let schema = with_vectors(plain(format, OutputDtype::F32), |vectors| vectors.per_token = true);
        refused(schema, &[format.name(), "--pooling none", "--output-format jsonl, parquet or arrow"]);
    }
    for format in [Jsonl, Parquet, Arrow] {
        let schema = with_vectors(plain(format, OutputDtype::Int8), |vectors| vectors.per_token = true);
        refused(schema, &["--output-dtype int8", "--pooling none", "f32, f16 or binary"]);
        formats::check(&not_normalized(format)).unwrap();
    }
    for format in [Npy, Safetensors] {
        let schema = not_normalized(format);
        refused(schema, &[format.name(), "scale", "--normalize"]);
        let schema = OutputSchema {
            kept: self::schema(Csv, OutputDtype::F32).kept,
            ..plain(format, OutputDtype::F32)
        };
        refused(schema, &[format.name(), "--keep", "--output-format jsonl, csv, parquet or arrow"]);
    }
    for format in vector_formats() {
        let binary = |dimensions| {
            with_vectors(plain(format, OutputDtype::Binary), |vectors| vectors.dimensions = dimensions)
        };
        refused(binary(36), &["--output-dtype binary", "have 36", "--dimensions 32"]);
        refused(binary(7), &["--output-dtype binary", "have 7", "choose another type"]);
        formats::check(&binary(8)).unwrap();
    }
    let keep = |format, names: &[&str]| OutputSchema {
        kept: names.iter().map(|name| KeptColumn::new(name.to_string(), ColumnType::Text)).collect(),
        ..plain(format, OutputDtype::F32)
    };
    for format in [Jsonl, Csv, Parquet, Arrow] {
        for name in ["index", "id", "tokens", "truncated", "scale", "embedding", "embeddings"] {
            refused(
                keep(format, &["year", name]),
                &[&format!("--keep {name}"), "is already an output column"],
            );
        }
        let several = ["--keep: tokens, scale are already output columns", "--keep tokens=AS scale=AS"];
        refused(keep(format, &["tokens", "year", "scale"]), &several);
        refused(keep(format, &["year", "title", "year"]), &["--keep", "\"year\" twice"]);
        formats::check(&keep(format, &["year", "e16", "e01", "e", "Index"])).unwrap();
    }
    refused(keep(Csv, &["e15"]), &["--keep e15", "is already an output column"]);
    formats::check(&keep(Parquet, &["e15"])).unwrap();
    let outputs = OutputTypes { dense: Some(vectors(&keep(Csv, &[]))), sparse: Some(9), tokens: None };
    let several = OutputSchema { content: ContentType::Outputs(outputs), ..keep(Csv, &["e15"]) };
    refused(several, &["--keep e15", "is already an output column"]);
    let binary = with_vectors(keep(Csv, &["e2"]), |vectors| vectors.dtype = OutputDtype::Binary);
    formats::check(&binary).unwrap();
}

/// Locks an output of a run that reads no file.
fn lock(target: &Target) -> anyhow::Result<OutputLock> {
    OutputLock::acquire(target)?.check("--output", &ReadFiles::default())
}

/// Locks and opens an output.
fn open(target: &Target, schema: &OutputSchema, durable: Option<DurableRows>) -> anyhow::Result<Writer> {
    formats::Writer::open(&lock(target)?, schema, durable)
}

fn sidecars(target: &Target) -> anyhow::Result<Option<SidecarPaths>> {
    Ok(OutputLock::acquire(target)?.sidecars().cloned())
}

/// The second process gets an error and changes nothing.
#[test]
fn a_second_writer_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::File(folder.path().join("out.jsonl"));
    let sidecars = sidecars(&target).unwrap().unwrap();
    let schema = schema(OutputFormat::Jsonl, OutputDtype::F32);
    let texts = texts(&schema, 3);
    let claim = lock(&target).unwrap();
    let mut writer = formats::Writer::open(&claim, &schema, None).unwrap();
    writer.write(&row(&texts[0])).unwrap();
    let bytes = writer.checkpoint().unwrap();
    let before = fs::read(&sidecars.partial).unwrap();
    assert_eq!(before.len() as u64, bytes);
    for durable in [
        None,
        Some(DurableRows { rows: 0, bytes: 0, blocks: vec![] }),
        Some(DurableRows { rows: 0, bytes: 1, blocks: vec![] }),
    ] {
        let parts = ["out.jsonl", "being written by another sconce", "wait for it", "--output"];
        assert_message(open(&target, &schema, durable), &parts);
    }
    assert_eq!(fs::read(&sidecars.partial).unwrap(), before);
    writer.finish().unwrap();
    assert_message(open(&target, &schema, None), &["being written by another sconce"]);
    drop(claim);
    assert_eq!(names(folder.path()), ["out.jsonl"]);
    assert_eq!(fs::read(folder.path().join("out.jsonl")).unwrap(), before);
    drop(open(&target, &schema, None).unwrap());
}

#[test]
fn unusable_partial_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let target = Target::File(path.clone());
    let sidecars = sidecars(&target).unwrap().unwrap();
    let remedy = "pass --restart to start over";
    for schema in vector_formats().map(|format| schema(format, OutputDtype::F32)) {
        let texts = texts(&schema, 4);
        let durable = interrupt(&path, &schema, &texts, 0..3, None);
        let file = OpenOptions::new().write(true).open(&sidecars.partial).unwrap();
        file.set_len(durable.bytes - 1).unwrap();
        let there = format!("{} bytes", durable.bytes - 1);
        assert_message(open(&target, &schema, Some(durable.clone())), &["out.partial", &there, remedy]);
        assert_eq!(sidecars.partial.metadata().unwrap().len(), durable.bytes - 1, "the file is unchanged");
        fs::remove_file(&sidecars.partial).unwrap();
        assert_message(
            open(&target, &schema, Some(durable.clone())),
            &["out.partial", "no longer exists", remedy],
        );
        assert_eq!(names(folder.path()), [""; 0], "no file is created");
        assert_message(
            open(&Target::Stdout, &schema, Some(durable)),
            &["standard output", "leave --resume out"],
        );
    }
    // Rows of another size, and other columns.
    for format in [OutputFormat::Npy, OutputFormat::Safetensors] {
        let schema = schema(format, OutputDtype::F32);
        let durable = interrupt(&path, &schema, &texts(&schema, 4), 0..3, None);
        let wider = with_vectors(schema, |vectors| vectors.dimensions = 24);
        assert_message(open(&target, &wider, Some(durable)), &["out", "3 rows of 96 bytes", remedy]);
    }
    let schema = schema(OutputFormat::Arrow, OutputDtype::F32);
    let durable = interrupt(&path, &schema, &texts(&schema, 4), 0..3, None);
    let other = OutputSchema { ids: None, ..schema };
    let writer = open(&target, &other, Some(durable)).unwrap();
    assert_message(writer.finish(), &["other columns", remedy]);
    // A run that was interrupted before its first checkpoint starts from the beginning.
    let mut writer = open(&target, &other, Some(DurableRows { rows: 0, bytes: 0, blocks: vec![] })).unwrap();
    writer.write(&row(&texts(&other, 1)[0])).unwrap();
    writer.finish().unwrap();
    assert_eq!(names(folder.path()), ["out"]);
}

/// The partial file and a partly converted file are replaced by the next run, and removed by `discard`.
#[test]
fn files_of_a_killed_run_are_replaced() {
    for schema in vector_formats().map(|format| schema(format, OutputDtype::F32)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let texts = texts(&schema, 3);
        write(&path, &schema, &texts[..1]);
        let expected = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        interrupt(&path, &schema, &texts, 0..3, None);
        let sidecars = sidecars(&Target::File(path.clone())).unwrap().unwrap();
        fs::write(&sidecars.converted, vec![0; 100_000]).unwrap();
        let is_converted = matches!(schema.format, OutputFormat::Parquet | OutputFormat::Arrow);
        write(&path, &schema, &texts[..1]);
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(sidecars.converted.exists(), !is_converted, "only converted formats replace it");
        fs::write(&sidecars.partial, "rows").unwrap();
        fs::write(&sidecars.manifest, "manifest").unwrap();
        fs::write(&sidecars.ledger, "ledger").unwrap();
        fs::write(&sidecars.final_ledger, "final").unwrap();
        let claim = lock(&Target::File(path.clone())).unwrap();
        claim.discard().unwrap();
        claim.discard().unwrap();
        drop(claim);
        assert_eq!(names(folder.path()), ["out", "out.ledger.jsonl"]);
    }
}

#[test]
fn sidecar_files_have_the_documented_names() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let of = |path: &str| sidecars(&Target::File(at(path)));
    let found = of("vectors.npy").unwrap().unwrap();
    assert_eq!(found.output, at("vectors.npy"));
    assert_eq!(found.partial, at(".vectors.npy.partial"));
    assert_eq!(found.lock, at(".vectors.npy.partial.lock"));
    assert_eq!(found.converted, at(".vectors.npy.partial.whole"));
    assert_eq!(found.manifest, at(".vectors.npy.partial.json"));
    assert_eq!(found.ledger, at(".vectors.npy.partial.ledger"));
    assert_eq!(found.final_ledger, at("vectors.npy.ledger.jsonl"));
    assert_eq!(found.meta, at("vectors.npy.meta.json"));
    assert_eq!(found.done, at(".vectors.npy.done.json"));
    assert_eq!(names(folder.path()), [""; 0], "the lock file is removed");
    assert_eq!(sidecars(&Target::Stdout).unwrap(), None);
    assert_message(of("new/"), &["new/", "names a directory"]);
    assert!(of("no/such").is_ok() && folder.path().join("no").is_dir(), "the directory is made");
    assert_message(of(""), &["names a directory", "name a file in it"]);
    #[cfg(target_os = "linux")]
    assert_eq!(of("/dev/full").unwrap(), None);
}

#[test]
#[cfg(unix)]
fn a_symbolic_link_is_followed_and_not_replaced() {
    use std::os::unix::fs::symlink;
    for schema in [schema(OutputFormat::Npy, OutputDtype::F32), schema(OutputFormat::Arrow, OutputDtype::F32)]
    {
        let folder = tempfile::tempdir().unwrap();
        let [elsewhere, here] = ["elsewhere", "here"].map(|name| folder.path().join(name));
        fs::create_dir(&elsewhere).unwrap();
        fs::create_dir(&here).unwrap();
        let (link, file) = (here.join("link"), elsewhere.join("out"));
        symlink("../here/next", &link).unwrap();
        symlink(&file, here.join("next")).unwrap();
        // First the file does not exist, then it does.
        for count in [1, 2] {
            let sidecars = sidecars(&Target::File(link.clone())).unwrap().unwrap();
            assert_eq!(sidecars.partial.file_name().unwrap(), ".out.partial");
            let parent = |path: &Path| fs::canonicalize(path.parent().unwrap()).unwrap();
            assert_eq!(parent(&sidecars.partial), fs::canonicalize(&elsewhere).unwrap());
            write(&link, &schema, &texts(&schema, count));
            assert!(link.is_symlink() && !file.is_symlink());
            assert_eq!(read(&file, &schema).len() as u64, count);
            assert_eq!(
                (names(&here), names(&elsewhere)),
                (vec!["link".into(), "next".into()], vec!["out".into()])
            );
        }
        // A symbolic link in place of the partial file is refused: the rows would go elsewhere.
        let precious = folder.path().join("precious");
        fs::write(&precious, "mine").unwrap();
        symlink(&precious, elsewhere.join(".out.partial")).unwrap();
        assert_message(
            open(&Target::File(link), &schema, None),
            &[".out.partial exists and is not a regular file"],
        );
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    }
    let folder = tempfile::tempdir().unwrap();
    let circle = folder.path().join("circle");
    symlink(&circle, &circle).unwrap();
    assert_message(sidecars(&Target::File(circle)), &["circle", "--output"]);
}

#[test]
#[cfg(unix)]
fn a_replaced_output_keeps_its_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for schema in vector_formats().map(|format| schema(format, OutputDtype::F32)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let sidecars = sidecars(&Target::File(path.clone())).unwrap().unwrap();
        let (new, texts) = (folder.path().join("new"), texts(&schema, 2));
        fs::write(&new, "").unwrap();
        write(&path, &schema, &texts);
        assert_eq!(mode(&path), mode(&new), "the default permissions of a new file");
        for expected in [0o600, 0o640, 0o400, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(expected)).unwrap();
            let mut writer = open(&Target::File(path.clone()), &schema, None).unwrap();
            assert_eq!(
                mode(&sidecars.partial) & !(expected | 0o600),
                0,
                "the partial file is as private as the output"
            );
            writer.write(&row(&texts[0])).unwrap();
            let bytes = writer.checkpoint().unwrap();
            drop(writer);
            let durable = Some(DurableRows { rows: 1, bytes, blocks: vec![] });
            open(&Target::File(path.clone()), &schema, durable).unwrap().finish().unwrap();
            assert_eq!(mode(&path), expected);
            assert_eq!(read(&path, &schema).len(), 1);
        }
    }
}

#[test]
fn a_ledger_is_truncated_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let (path, last) = (folder.path().join(".out.partial.ledger"), folder.path().join("out.ledger.jsonl"));
    let entry = |index, event| LedgerEntry {
        index,
        file: "notes.jsonl",
        line: Some(index + 1),
        row: None,
        event,
        reason: Cow::Borrowed("it is \"long\""),
        tokens: Some(40),
        truncated_tokens: None,
    };
    let line = |index: u64, event: &str| {
        let rest = "\"reason\":\"it is \\\"long\\\"\",\"tokens\":40}";
        let place = format!("\"file\":\"notes.jsonl\",\"line\":{}", index + 1);
        format!("{{\"index\":{index},{place},\"event\":\"{event}\",{rest}\n")
    };
    let mut ledger = Ledger::open(&path, &last, None).unwrap();
    assert_eq!(ledger.checkpoint().unwrap(), 0);
    assert!(!path.exists(), "a ledger without entries has no file");
    ledger.write(&entry(0, Event::Failed)).unwrap();
    ledger.write(&entry(3, Event::Skipped)).unwrap();
    let bytes = ledger.checkpoint().unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), line(0, "failed") + &line(3, "skipped"));
    assert_eq!(path.metadata().unwrap().len(), bytes);
    ledger.write(&entry(4, Event::Chunked)).unwrap();
    drop(ledger);
    assert!(path.metadata().unwrap().len() > bytes);

    let mut ledger = Ledger::open(&path, &last, Some(bytes)).unwrap();
    assert_eq!(ledger.checkpoint().unwrap(), bytes);
    ledger.write(&entry(5, Event::Truncated)).unwrap();
    ledger
        .write(&LedgerEntry {
            line: None,
            row: Some(2),
            tokens: None,
            truncated_tokens: Some(8),
            ..entry(6, Event::Chunked)
        })
        .unwrap();
    ledger.finish(&last).unwrap();
    let mut expected = line(0, "failed") + &line(3, "skipped") + &line(5, "truncated");
    expected += "{\"index\":6,\"file\":\"notes.jsonl\",\"row\":2,\"event\":\"chunked\",\"reason\":\"it is \\\"long\\\"\",\"cut\":8}\n";
    assert_eq!(fs::read_to_string(&last).unwrap(), expected);
    assert_eq!(names(folder.path()), ["out.ledger.jsonl"]);
}

/// A run without entries removes the ledger of an earlier run.
#[test]
fn a_ledger_without_entries_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, last) = (folder.path().join(".out.partial.ledger"), folder.path().join("out.ledger.jsonl"));
    fs::write(&path, "left over\n").unwrap();
    fs::write(&last, "left over\n").unwrap();
    Ledger::open(&path, &last, None).unwrap().finish(&last).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
    // So does a resumed run that was interrupted before its first entry.
    fs::write(&path, "not durable\n").unwrap();
    fs::write(&last, "left over\n").unwrap();
    Ledger::open(&path, &last, Some(0)).unwrap().finish(&last).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
}

#[test]
fn a_ledger_that_is_too_short_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, last) = (folder.path().join(".out.partial.ledger"), folder.path().join("out.ledger.jsonl"));
    let remedy = "pass --restart to start over";
    assert_message(
        Ledger::open(&path, &last, Some(9)).map(drop),
        &["out.partial.ledger", "0 bytes", "9 were", remedy],
    );
    fs::write(&path, "short\n").unwrap();
    assert_message(Ledger::open(&path, &last, Some(9)).map(drop), &["6 bytes", remedy]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
}

/// Integer ids, with a missing one, which is null in a typed column.
#[test]
fn integer_ids_stay_integers() {
    let folder = tempfile::tempdir().unwrap();
    for format in [OutputFormat::Jsonl, OutputFormat::Csv, OutputFormat::Parquet, OutputFormat::Arrow] {
        let schema = OutputSchema { ids: Some(ColumnType::Integer), ..schema(format, OutputDtype::F32) };
        let mut texts = texts(&schema, 3);
        texts[0].id = Some(json!(7));
        texts[1].id = None;
        texts[2].id = Some(json!(-1));
        let path = folder.path().join(format.name());
        write(&path, &schema, &texts);
        let ids: Vec<_> = read(&path, &schema).into_iter().map(|row| row.id).collect();
        let expected = match format {
            OutputFormat::Csv => ["7", "", "-1"].map(|id| Some(json!(id))),
            _ => [Some(json!(7)), None, Some(json!(-1))],
        };
        assert_eq!(ids, expected, "{format}");
    }
}

/// The manifest and the ledger hold texts, too.
#[test]
#[cfg(unix)]
fn sidecar_files_are_as_private_as_the_output() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("out"), "").unwrap();
    for expected in [0o600, 0o640] {
        fs::set_permissions(at("out"), fs::Permissions::from_mode(expected)).unwrap();
        manifest::save(&at("manifest"), &at("out"), &"a prompt").unwrap();
        assert_eq!(mode(&at("manifest")), expected);
        let mut ledger = Ledger::open(&at("ledger"), &at("out"), None).unwrap();
        let reason = Cow::Borrowed("a reason");
        let (file, event, tokens) = ("a", Event::Failed, None);
        let entry = LedgerEntry {
            index: 0,
            file,
            line: None,
            row: None,
            event,
            reason,
            tokens,
            truncated_tokens: None,
        };
        ledger.write(&entry).unwrap();
        ledger.finish(&at("final")).unwrap();
        assert_eq!(mode(&at("final")), expected);
    }
}

/// A run is resumed only if the partial file holds the bytes that were written.
#[test]
fn damaged_rows_are_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let target = Target::File(path.clone());
    let rows = sidecars(&target).unwrap().unwrap().partial;
    for schema in vector_formats().map(|format| schema(format, OutputDtype::F32)) {
        let texts = texts(&schema, 4);
        let mut writer = open(&target, &schema, None).unwrap();
        texts[..3].iter().for_each(|text| writer.write(&row(text)).unwrap());
        let bytes = writer.checkpoint().unwrap();
        let durable = DurableRows { rows: 3, bytes, blocks: writer.blocks(3) };
        assert_eq!(durable.blocks.len(), 1);
        drop(writer);
        let intact = fs::read(&rows).unwrap();
        for at in [intact.len() - 30, intact.len() - 1] {
            let mut damaged = intact.clone();
            damaged[at] ^= 1;
            fs::write(&rows, &damaged).unwrap();
            assert_message(
                open(&target, &schema, Some(durable.clone())),
                &["out.partial", "is damaged", "are not what was written", "(rows 1 to 3)", "--restart"],
            );
            assert!(fs::read(&rows).unwrap() == damaged, "the file is unchanged");
        }
        // Bytes after the durable rows are truncated.
        fs::write(&rows, [&intact[..], b"half a row"].concat()).unwrap();
        resume(&path, &schema, &texts, durable);
        let resumed = fs::read(&path).unwrap();
        write(&path, &schema, &texts);
        assert!(fs::read(&path).unwrap() == resumed, "{}", schema.format);
        fs::remove_file(&path).unwrap();
    }
}

/// The message names the rows of the damaged block, which has at least 1 MiB. A resumed run keeps the blocks
/// of earlier runs.
#[test]
fn damage_is_located_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.npy");
    let target = Target::File(path.clone());
    let partial = sidecars(&target).unwrap().unwrap().partial;
    // Rows of 64 KiB.
    let schema =
        with_vectors(schema(OutputFormat::Npy, OutputDtype::F32), |vectors| vectors.dimensions = 1 << 14);
    let values = (0..width(&schema)).map(|i| i as f32).collect();
    let content = vector(&schema, values);
    let mut durable = None;
    for run in 0..4u64 {
        let mut writer = open(&target, &schema, durable).unwrap();
        for index in run * 20..(run + 1) * 20 {
            let row = Row {
                index,
                id: None,
                chunk: None,
                tokens: 3,
                truncated: false,
                kept: &[],
                content: &content,
            };
            writer.write(&row).unwrap();
        }
        let bytes = writer.checkpoint().unwrap();
        durable = Some(DurableRows { rows: (run + 1) * 20, bytes, blocks: writer.blocks((run + 1) * 20) });
    }
    let durable = durable.unwrap();
    let ends: Vec<_> = durable.blocks.iter().map(|block| (block.rows, block.bytes)).collect();
    assert_eq!(ends, [20, 40, 60, 80].map(|rows| (rows, 128 + rows * (1 << 16))));
    let intact = fs::read(&partial).unwrap();
    for (row, found) in [(0, "(rows 1 to 20)"), (45, "(rows 41 to 60)"), (79, "(rows 61 to 80)")] {
        let mut damaged = intact.clone();
        damaged[128 + (row << 16) + 7] ^= 1;
        fs::write(&partial, &damaged).unwrap();
        assert_message(open(&target, &schema, Some(durable.clone())), &["is damaged", found, "--restart"]);
    }
    // The header is not hashed, since it is written last: a run that is killed after that can be resumed.
    let mut header = intact.clone();
    header[..128].fill(b'x');
    fs::write(&partial, &header).unwrap();
    open(&target, &schema, Some(durable)).unwrap().finish().unwrap();
    assert!(fs::read(&path).unwrap()[128..] == intact[128..]);
}

/// It may be somebody else's file under another name.
#[test]
#[cfg(unix)]
fn a_partial_file_with_hard_links_is_not_written_to() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let target = Target::File(path.clone());
    let rows = sidecars(&target).unwrap().unwrap().partial;
    let schema = schema(OutputFormat::Jsonl, OutputDtype::F32);
    let texts = texts(&schema, 2);
    let other = folder.path().join("other");
    fs::write(&other, "mine").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o666)).unwrap();
    fs::hard_link(&other, &rows).unwrap();
    let durable = DurableRows { rows: 1, bytes: 4, blocks: vec![] };
    assert_message(open(&target, &schema, Some(durable)), &["out.partial", "hard links", "--restart"]);
    write(&path, &schema, &texts);
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    assert_eq!((other.metadata().unwrap().nlink(), path.metadata().unwrap().nlink()), (1, 1));
    fs::write(folder.path().join("new"), "").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&folder.path().join("new")));
}

#[test]
fn a_manifest_round_trips() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Run {
        kept: Vec<KeptColumn>,
        durable: DurableRows,
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(".out.partial.json");
    assert_eq!(manifest::load::<Run>(&path).unwrap(), None);
    let block = HashedBlock { rows: 1, bytes: 1 << 59, sha256: Digest::of(b"rows") };
    for rows in [1, 2] {
        let run = Run {
            kept: schema(OutputFormat::Parquet, OutputDtype::Int8).kept,
            durable: DurableRows { rows, bytes: 1 << 60, blocks: vec![block.clone()] },
        };
        manifest::save(&path, folder.path(), &run).unwrap();
        assert_eq!(manifest::load(&path).unwrap(), Some(run));
        assert_eq!(names(folder.path()), [".out.partial.json"]);
    }
    let saved: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(saved["kept"][0], json!({"name": "year", "kind": "integer"}));
    // A changed manifest is refused.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"rows\": 2", "\"rows\": 3")).unwrap();
    assert_message(manifest::load::<Run>(&path), &["checksum does not match", "--restart"]);
    fs::write(&path, text).unwrap();
    let intact = fs::read(&path).unwrap();
    for broken in [&b""[..], b"[]", &intact[..intact.len() / 2]] {
        fs::write(&path, broken).unwrap();
        assert_message(manifest::load::<Run>(&path), &[".out.partial.json", "pass --restart to start over"]);
    }
    let nowhere = folder.path().join("nowhere/run.json");
    assert_message(manifest::save(&nowhere, &nowhere, &1), &["nowhere does not exist", "create it first"]);
}
