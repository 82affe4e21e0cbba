//! Outputs through the library: what each format holds, and that an interruption does not show in it.

mod support;

use std::borrow::Cow;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int64Type};
use half::f16;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::reader::{FileReader, SerializedFileReader};
use sconce::field::{FieldValue, column_type};
use sconce::output::{
    self, Beside, Block, Claim, Column, Digest, Dtype, Durable, Event, Format, Kind, Layout, Ledger,
    LedgerEntry, Numbers, Row, Target, Vector, Writer, manifest,
};
use serde_json::{Value, json};

const FORMATS: [Format; 6] =
    [Format::Jsonl, Format::Csv, Format::Npy, Format::Parquet, Format::Arrow, Format::Safetensors];
const DTYPES: [Dtype; 4] = [Dtype::F32, Dtype::F16, Dtype::Int8, Dtype::Binary];

/// A row before it is written.
#[derive(Debug, Clone)]
struct Text {
    index: u64,
    id: Option<Value>,
    tokens: usize,
    truncated: bool,
    kept: Vec<FieldValue>,
    vector: Vector,
}

/// A row as it is read back; numbers of every type fit an `f64`, whose bits are compared so that NaN is equal to NaN.
#[derive(Debug, Clone, Default, PartialEq)]
struct Found {
    index: u64,
    id: Option<Value>,
    tokens: u64,
    truncated: bool,
    kept: Vec<Value>,
    scale: Option<f32>,
    numbers: Vec<f64>,
}

fn layout(format: Format, dtype: Dtype) -> Layout {
    let column = |(name, kind): (&str, Kind)| Column { name: name.into(), kind };
    let kept =
        [("year", Kind::Integer), ("score", Kind::Float), ("open", Kind::Boolean), ("title", Kind::Text)];
    let columns = format.holds_columns();
    Layout {
        format,
        dtype,
        dimensions: 16,
        per_token: false,
        normalized: true,
        chunks: false,
        ids: columns.then_some(Kind::Text),
        kept: kept.map(column).into_iter().filter(|_| columns).collect(),
        about: [("model".to_owned(), "a/model".to_owned()), ("prompt".to_owned(), "query: ".to_owned())]
            .into(),
    }
}

/// Every format with every dtype, and with a vector a token where it can.
fn layouts() -> Vec<Layout> {
    let mut layouts = Vec::new();
    for format in FORMATS {
        for dtype in DTYPES {
            let plain = layout(format, dtype);
            let per_token = Layout { per_token: true, ..plain.clone() };
            layouts.extend([plain, per_token].into_iter().filter(|layout| output::check(layout).is_ok()));
        }
    }
    assert_eq!(layouts.len(), 6 * 4 + 3 * 3);
    layouts
}

/// Numbers between -1 and 1 that look like chance.
fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

fn texts(layout: &Layout, count: u64) -> Vec<Text> {
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
        let vectors = if layout.per_token { tokens } else { 1 };
        Text {
            // Rows that were skipped leave holes.
            index: i + i / 3,
            id: (layout.ids.is_some() && i % 4 != 1).then(|| json!(format!("doc-{i}"))),
            tokens,
            truncated: i.is_multiple_of(3),
            kept: kept.into_iter().map(FieldValue::Json).take(layout.kept.len()).collect(),
            vector: layout.dtype.store(values(i, vectors * layout.dimensions), layout.dimensions),
        }
    };
    (0..count).map(text).collect()
}

fn row(text: &Text) -> Row<'_> {
    let Text { index, id, tokens, truncated, kept, vector } = text;
    Row { index: *index, id: id.as_ref(), chunk: None, tokens: *tokens, truncated: *truncated, kept, vector }
}

fn write(path: &Path, layout: &Layout, texts: &[Text]) {
    output::check(layout).unwrap();
    let mut writer = open(&Target::File(path.into()), layout, None).unwrap();
    texts.iter().for_each(|text| writer.write(&row(text)).unwrap());
    writer.finish().unwrap();
}

/// Writes some rows and makes them durable, one more that is not, and leaves half a row behind.
fn interrupt(
    path: &Path,
    layout: &Layout,
    texts: &[Text],
    range: std::ops::Range<usize>,
    durable: Option<Durable>,
) -> Durable {
    let target = Target::File(path.into());
    let mut writer = open(&target, layout, durable).unwrap();
    texts[range.clone()].iter().for_each(|text| writer.write(&row(text)).unwrap());
    let bytes = writer.checkpoint().unwrap();
    let blocks = writer.blocks(range.end as u64);
    texts.get(range.end).iter().for_each(|text| writer.write(&row(text)).unwrap());
    drop(writer);
    assert!(!path.exists(), "nothing stands under the final name");
    let rows = beside(&target).unwrap().unwrap().rows;
    assert!(rows.metadata().unwrap().len() >= bytes);
    OpenOptions::new().append(true).open(rows).unwrap().write_all(b"half a ro\0w").unwrap();
    Durable { rows: range.end as u64, bytes, blocks }
}

fn resume(path: &Path, layout: &Layout, texts: &[Text], durable: Durable) {
    let rows = durable.rows as usize;
    let mut writer = open(&Target::File(path.into()), layout, Some(durable)).unwrap();
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
fn assert_says<T>(result: anyhow::Result<T>, parts: &[&str]) {
    let Err(error) = result else { panic!("no error, but {parts:?} were to be said") };
    let message = format!("{error:#}");
    assert!(!message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

/// What a reader is to find of a row.
fn expected(layout: &Layout, text: &Text) -> Found {
    let numbers = match &text.vector.numbers {
        Numbers::F32(numbers) => numbers.iter().map(|x| f64::from(*x)).collect(),
        Numbers::F16(numbers) => numbers.iter().map(|x| x.to_f64()).collect(),
        Numbers::Int8(numbers) => numbers.iter().map(|x| f64::from(*x)).collect(),
    };
    if !layout.format.holds_columns() {
        return Found { numbers, ..Found::default() };
    }
    // What is no string stands as JSON text in a column of text; JSON lines have it as it is, CSV has nothing for null.
    let kept = text.kept.iter().map(|value| match (layout.format, &*value.json()) {
        (Format::Jsonl, value) => value.clone(),
        (Format::Csv, Value::Null) => json!(""),
        (Format::Csv, Value::String(text)) => json!(text),
        (Format::Csv, other) => json!(other.to_string()),
        (_, value @ Value::Object(_)) => json!(value.to_string()),
        (_, value) => value.clone(),
    });
    let no_id = (layout.format == Format::Csv).then(|| json!(""));
    Found {
        index: text.index,
        id: text.id.clone().or(no_id),
        tokens: text.tokens as u64,
        truncated: text.truncated,
        kept: kept.collect(),
        scale: text.vector.scale,
        numbers,
    }
}

fn read(path: &Path, layout: &Layout) -> Vec<Found> {
    match layout.format {
        Format::Jsonl => read_jsonl(path, layout),
        Format::Csv => read_csv(path, layout),
        Format::Npy => read_npy(path, layout),
        Format::Safetensors => read_safetensors(path, layout),
        Format::Arrow => {
            let file = fs::File::open(path).unwrap();
            let batches = arrow::ipc::reader::FileReader::try_new(file, None).unwrap();
            batches.flat_map(|batch| read_batch(&batch.unwrap(), layout)).collect()
        }
        Format::Parquet => {
            let file = fs::File::open(path).unwrap();
            let batches = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
            batches.flat_map(|batch| read_batch(&batch.unwrap(), layout)).collect()
        }
    }
}

fn read_jsonl(path: &Path, layout: &Layout) -> Vec<Found> {
    let numbers = |list: &Value| -> Vec<f64> {
        let whole = matches!(layout.dtype, Dtype::Int8 | Dtype::Binary);
        let number = |x: &Value| {
            assert_eq!(x.is_i64(), whole, "{x}");
            // Digits are as few as an f32 needs.
            if whole { x.as_f64().unwrap() } else { f64::from(x.to_string().parse::<f32>().unwrap()) }
        };
        list.as_array().unwrap().iter().map(number).collect()
    };
    let found = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        Found {
            index: line["index"].as_u64().unwrap(),
            id: line.get("id").cloned(),
            tokens: line["tokens"].as_u64().unwrap(),
            truncated: line["truncated"].as_bool().unwrap(),
            kept: layout.kept.iter().map(|column| line[&column.name].clone()).collect(),
            scale: line.get("scale").map(|scale| scale.to_string().parse().unwrap()),
            numbers: match layout.per_token {
                true => line["embeddings"].as_array().unwrap().iter().flat_map(numbers).collect(),
                false => numbers(&line["embedding"]),
            },
        }
    };
    fs::read_to_string(path).unwrap().lines().map(found).collect()
}

fn read_csv(path: &Path, layout: &Layout) -> Vec<Found> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let mut names = vec!["index", "id", "tokens", "truncated", "year", "score", "open", "title"];
    names.extend((layout.dtype == Dtype::Int8).then_some("scale"));
    let header = reader.headers().unwrap().clone();
    assert_eq!(header.iter().take(names.len()).collect::<Vec<_>>(), names);
    let first = names.len();
    assert!(header.iter().skip(first).enumerate().all(|(i, name)| name == format!("e{i}")));
    let found = |row: Result<csv::StringRecord, csv::Error>| {
        let row = row.unwrap();
        Found {
            index: row[0].parse().unwrap(),
            id: Some(json!(row[1])),
            tokens: row[2].parse().unwrap(),
            truncated: row[3].parse().unwrap(),
            kept: (4..8).map(|i| json!(row[i])).collect(),
            scale: (layout.dtype == Dtype::Int8).then(|| row[8].parse().unwrap()),
            numbers: row.iter().skip(first).map(|x| f64::from(x.parse::<f32>().unwrap())).collect(),
        }
    };
    reader.records().map(found).collect()
}

/// Rows of an array without anything else.
fn rows_of(bytes: &[u8], layout: &Layout) -> Vec<Found> {
    let numbers: Vec<f64> = match layout.dtype {
        Dtype::F32 => bytes.chunks(4).map(|x| f64::from(f32::from_le_bytes(x.try_into().unwrap()))).collect(),
        Dtype::F16 => bytes.chunks(2).map(|x| f16::from_le_bytes(x.try_into().unwrap()).to_f64()).collect(),
        Dtype::Int8 | Dtype::Binary => bytes.iter().map(|x| f64::from(*x as i8)).collect(),
    };
    let rows = numbers.chunks(layout.dtype.width(layout.dimensions));
    rows.map(|row| Found { numbers: row.to_vec(), ..Found::default() }).collect()
}

fn read_npy(path: &Path, layout: &Layout) -> Vec<Found> {
    let bytes = fs::read(path).unwrap();
    let descr = match layout.dtype {
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::Int8 | Dtype::Binary => "|i1",
    };
    assert_eq!(bytes[..10], *b"\x93NUMPY\x01\x00\x76\x00");
    let rows = rows_of(&bytes[128..], layout);
    let width = layout.dtype.width(layout.dimensions);
    let header =
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}, {width}), }}", rows.len());
    assert_eq!(std::str::from_utf8(&bytes[10..128]).unwrap(), format!("{header:<117}\n"));
    rows
}

fn read_safetensors(path: &Path, layout: &Layout) -> Vec<Found> {
    let bytes = fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let metadata = header.metadata().clone().unwrap();
    assert_eq!((&*metadata["format"], &*metadata["output_dtype"]), ("sconce", layout.dtype.name()));
    assert_eq!((&*metadata["model"], &*metadata["prompt"]), ("a/model", "query: "));
    assert_eq!(file.names(), ["embeddings"]);
    let tensor = file.tensor("embeddings").unwrap();
    let dtype = match layout.dtype {
        Dtype::F32 => safetensors::Dtype::F32,
        Dtype::F16 => safetensors::Dtype::F16,
        Dtype::Int8 | Dtype::Binary => safetensors::Dtype::I8,
    };
    assert_eq!(tensor.dtype(), dtype);
    let rows = rows_of(tensor.data(), layout);
    assert_eq!(tensor.shape(), [rows.len(), layout.dtype.width(layout.dimensions)]);
    rows
}

fn read_batch(batch: &RecordBatch, layout: &Layout) -> Vec<Found> {
    let column = |name: &str| batch.column_by_name(name).unwrap_or_else(|| panic!("a column {name}"));
    let mut names = vec!["index", "id", "tokens", "truncated", "year", "score", "open", "title"];
    names.extend((layout.dtype == Dtype::Int8).then_some("scale"));
    names.push(if layout.per_token { "embeddings" } else { "embedding" });
    let schema = batch.schema();
    assert_eq!(schema.fields().iter().map(|field| field.name()).collect::<Vec<_>>(), names);
    if layout.format == Format::Arrow {
        let about = ["sconce.model", "sconce.prompt"].map(|key| schema.metadata().get(key).unwrap().as_str());
        assert_eq!(about, ["a/model", "query: "]);
    }
    let nullable: Vec<_> = schema.fields().iter().filter(|f| f.is_nullable()).map(|f| f.name()).collect();
    assert_eq!(nullable, ["id", "year", "score", "open", "title"]);

    let list = column(names.last().unwrap());
    let vectors_of =
        |i: usize| if layout.per_token { list.as_list::<i32>().value(i) } else { list.slice(i, 1) };
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
    let found = |i: usize| Found {
        index: column("index").as_primitive::<Int64Type>().value(i) as u64,
        id: Some(kept("id", i)).filter(|id| !id.is_null()),
        tokens: column("tokens").as_primitive::<Int64Type>().value(i) as u64,
        truncated: column("truncated").as_boolean().value(i),
        kept: names[4..8].iter().map(|name| kept(name, i)).collect(),
        scale: batch.column_by_name("scale").map(|scale| scale.as_primitive::<Float32Type>().value(i)),
        numbers: numbers_of(&vectors_of(i), layout),
    };
    (0..batch.num_rows()).map(found).collect()
}

fn numbers_of(vectors: &ArrayRef, layout: &Layout) -> Vec<f64> {
    let vectors = vectors.as_fixed_size_list();
    assert_eq!(vectors.value_length() as usize, layout.dtype.width(layout.dimensions));
    let each = (0..vectors.len()).flat_map(|i| {
        let numbers = vectors.value(i);
        match layout.dtype {
            Dtype::F32 => {
                numbers.as_primitive::<Float32Type>().values().iter().map(|x| (*x).into()).collect()
            }
            Dtype::F16 => numbers.as_primitive::<Float16Type>().values().iter().map(|x| x.to_f64()).collect(),
            Dtype::Int8 | Dtype::Binary => {
                numbers.as_primitive::<Int8Type>().values().iter().map(|x| (*x).into()).collect::<Vec<f64>>()
            }
        }
    });
    each.collect()
}

#[test]
fn every_format_holds_every_row() {
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        for count in [0, 1, 9] {
            let texts = texts(&layout, count);
            write(&path, &layout, &texts);
            let expected: Vec<_> = texts.iter().map(|text| expected(&layout, text)).collect();
            assert_eq!(read(&path, &layout), expected, "{layout:?}");
            assert_eq!(names(folder.path()), ["out"], "nothing else is left");
        }
    }
}

/// After every row a run may stop, and stop again later: the file is the one of a run that did not stop.
#[test]
fn an_interruption_does_not_show() {
    for layout in layouts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let texts = texts(&layout, 5);
        write(&path, &layout, &texts);
        let whole = fs::read(&path).unwrap();
        for first in 0..=texts.len() {
            for second in [first, first + 1, texts.len()] {
                let second = second.min(texts.len());
                fs::remove_file(&path).unwrap();
                let durable = interrupt(&path, &layout, &texts, 0..first, None);
                let durable = interrupt(&path, &layout, &texts, first..second, Some(durable));
                resume(&path, &layout, &texts, durable);
                assert!(fs::read(&path).unwrap() == whole, "{layout:?} after {first} and {second} rows");
                assert_eq!(names(folder.path()), ["out"]);
            }
        }
    }
}

/// Groups end where the rows say, not where batches of the run ended.
#[test]
fn an_interruption_does_not_show_in_groups() {
    for format in [Format::Parquet, Format::Arrow] {
        let layout = Layout { dimensions: 4096, ..layout(format, Dtype::F32) };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let texts = texts(&layout, 2200);
        write(&path, &layout, &texts);
        let whole = fs::read(&path).unwrap();
        // 16 MiB are 1024 vectors of 4096 numbers; a little less for what stands beside them.
        let groups: Vec<usize> = match format {
            Format::Arrow => {
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
            durable = Some(interrupt(&path, &layout, &texts, range, durable));
        }
        resume(&path, &layout, &texts, durable.unwrap());
        assert!(fs::read(&path).unwrap() == whole, "{format}");
    }
}

/// A vector is stored as its type asks: floats plain, the 255 numbers of a byte by a dictionary.
/// Nor does it in columns that keep the type that they had in the input.
#[test]
fn an_interruption_does_not_show_in_kept_columns() {
    let file = |name: &str| fs::File::open(support::fixture("input").join(name)).unwrap();
    let batches = arrow::ipc::reader::FileReader::try_new(file("typed.arrow"), None).unwrap();
    let batch = batches.into_iter().next().unwrap().unwrap();
    let schema = batch.schema();
    let columns: Vec<(&str, &ArrayRef, DataType)> = (schema.fields().iter().zip(batch.columns()).skip(1))
        .map(|(field, column)| (field.name().as_str(), column, column_type(field.data_type()).unwrap()))
        .collect();
    for format in [Format::Parquet, Format::Arrow] {
        let kept = columns.iter().map(|(name, _, kind)| {
            let kind = Kind::Arrow(kind.clone()).in_format(format);
            // It goes through the manifest of an interrupted run.
            let kind = serde_json::from_str(&serde_json::to_string(&kind).unwrap()).unwrap();
            Column { name: name.to_string(), kind }
        });
        let layout = Layout { kept: kept.collect(), ..layout(format, Dtype::F32) };
        let mut texts = texts(&layout, 40);
        for (i, text) in texts.iter_mut().enumerate() {
            let row =
                |(_, column, kind): &(_, &ArrayRef, _)| FieldValue::of_row(column, i % 3, kind).unwrap();
            text.kept = columns.iter().map(row).collect();
        }
        let folder = tempfile::tempdir().unwrap();
        let [whole, parts] = ["whole", "parts"].map(|name| folder.path().join(name));
        write(&whole, &layout, &texts);
        for cut in [1, 2, 3, 20, 39] {
            let first = interrupt(&parts, &layout, &texts, 0..cut, None);
            let second = interrupt(&parts, &layout, &texts, cut..cut + 1, Some(first));
            resume(&parts, &layout, &texts, second);
            assert!(fs::read(&parts).unwrap() == fs::read(&whole).unwrap(), "{format}, after {cut} rows");
            fs::remove_file(&parts).unwrap();
        }
    }
}

#[test]
fn parquet_stores_vectors_plainly() {
    for (dtype, encoding) in [(Dtype::F32, Encoding::PLAIN), (Dtype::Int8, Encoding::RLE_DICTIONARY)] {
        let layout = layout(Format::Parquet, dtype);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        write(&path, &layout, &texts(&layout, 9));
        let file = SerializedFileReader::new(fs::File::open(&path).unwrap()).unwrap();
        let columns = file.metadata().row_group(0).columns();
        let vectors = columns.last().unwrap();
        assert_eq!(vectors.column_path().string(), "embedding.list.item");
        assert!(vectors.encodings().any(|found| found == encoding), "{dtype}");
        assert_eq!(vectors.dictionary_page_offset().is_some(), dtype == Dtype::Int8);
        assert_eq!(vectors.compression(), Compression::UNCOMPRESSED);
        assert!(vectors.statistics().is_none());
        assert!(columns[0].statistics().is_some());
        let keys = file.metadata().file_metadata().key_value_metadata().unwrap();
        assert!(keys.iter().any(|pair| pair.key == "ARROW:schema"), "readers are told the size of the lists");
    }
}

#[test]
fn lines_of_json() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.jsonl");
    let lines = |layout: &Layout, texts: &[Text]| {
        write(&path, layout, texts);
        fs::read_to_string(&path).unwrap()
    };
    let all = layout(Format::Jsonl, Dtype::Int8);
    let mut text = Text {
        index: 7,
        id: Some(json!("a\"b")),
        tokens: 3,
        truncated: true,
        kept: [json!(1), json!(2.5), Value::Null, json!([1, {"x": "y"}])].map(FieldValue::Json).into(),
        vector: Dtype::Int8.store(vec![0.0, -12.7, 1.0], 3),
    };
    assert_eq!(
        lines(&all, &[text.clone()]),
        "{\"index\":7,\"id\":\"a\\\"b\",\"tokens\":3,\"truncated\":true,\"year\":1,\"score\":2.5,\"open\":null,\
         \"title\":[1,{\"x\":\"y\"}],\"scale\":0.1,\"embedding\":[0,-127,10]}\n"
    );
    text.vector = Dtype::Int8.store(vec![0.0, f32::INFINITY], 2);
    assert!(lines(&all, &[text.clone()]).ends_with("\"scale\":null,\"embedding\":[0,0]}\n"));

    let bare = Layout { ids: None, kept: vec![], ..layout(Format::Jsonl, Dtype::F32) };
    (text.id, text.kept) = (None, vec![]);
    text.vector = Dtype::F32.store(vec![0.1, 1e-30, f32::NAN, f32::NEG_INFINITY, 16777216.0, -0.0], 6);
    assert_eq!(
        lines(&bare, &[text.clone()]),
        "{\"index\":7,\"tokens\":3,\"truncated\":true,\"embedding\":[0.1,1e-30,null,null,16777216.0,-0.0]}\n"
    );
    let half = Layout { dtype: Dtype::F16, dimensions: 2, per_token: true, ..bare };
    text.vector = Dtype::F16.store(vec![0.1, 0.5, 65504.0, 1e9], 2);
    assert_eq!(
        lines(&half, &[text]),
        "{\"index\":7,\"tokens\":3,\"truncated\":true,\"embeddings\":[[0.099975586,0.5],[65504.0,null]]}\n"
    );
}

#[test]
fn rows_of_csv() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    let all = Layout { dimensions: 3, ..layout(Format::Csv, Dtype::Int8) };
    let mut text = Text {
        index: 7,
        id: None,
        tokens: 3,
        truncated: false,
        kept: [json!(1), Value::Null, json!(true), json!("one, two\r\n\"three\"")]
            .map(FieldValue::Json)
            .into(),
        vector: Dtype::Int8.store(vec![0.0, -12.7, 1.0], 3),
    };
    write(&path, &all, &[text.clone()]);
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "index,id,tokens,truncated,year,score,open,title,scale,e0,e1,e2\n\
         7,,3,false,1,,true,\"one, two\r\n\"\"three\"\"\",0.1,0,-127,10\n"
    );
    let bare = Layout { ids: None, kept: vec![], dimensions: 4, ..layout(Format::Csv, Dtype::F32) };
    text.kept = vec![];
    text.vector = Dtype::F32.store(vec![0.1, 1e-9, f32::NAN, 3.0], 4);
    write(&path, &bare, &[text]);
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "index,tokens,truncated,e0,e1,e2,e3\n7,3,false,0.1,0.000000001,NaN,3\n"
    );
}

#[test]
fn numbers_are_narrowed() {
    let values = vec![0.1, -0.25, 1.0, 0.0, 1e-8, 70000.0, -65519.0, f32::NAN];
    assert_eq!(
        Dtype::F32.store(values[..2].to_vec(), 2),
        Vector { numbers: Numbers::F32(vec![0.1, -0.25]), scale: None }
    );
    let Numbers::F16(halves) = Dtype::F16.store(values.clone(), 8).numbers else { panic!("f16") };
    let bits: Vec<u16> = halves.iter().map(|x| x.to_bits()).collect();
    assert_eq!(bits[..7], [0x2E66, 0xB400, 0x3C00, 0, 0, 0x7C00, 0xFBFF]);
    assert!(halves[7].is_nan());

    let int8 = |values: &[f32]| Dtype::Int8.store(values.to_vec(), values.len());
    let stored =
        |numbers: &[i8], scale| Vector { numbers: Numbers::Int8(numbers.to_vec()), scale: Some(scale) };
    assert_eq!(int8(&[127.0, -127.0, 63.4, 0.5, 1.5, -2.5]), stored(&[127, -127, 63, 0, 2, -2], 1.0));
    assert_eq!(int8(&[-0.5, 0.25]), stored(&[-127, 64], 0.5 / 127.0));
    assert_eq!(int8(&[0.0, -0.0]), stored(&[0, 0], 0.0));
    // Too small for a scale, and so small that the scale has few bits.
    assert_eq!(int8(&[1e-45, 0.0]), stored(&[0, 0], 0.0));
    assert_eq!(int8(&[2e-43, -2e-43]), stored(&[127, -127], 2e-43f32 / 127.0));
    assert_eq!(int8(&[f32::MAX, f32::MIN]), stored(&[127, -127], f32::MAX / 127.0));
    for broken in [f32::NAN, f32::INFINITY] {
        let vector = int8(&[1.0, broken]);
        assert_eq!(vector.numbers, Numbers::Int8(vec![0, 0]));
        assert!(vector.scale.unwrap().is_nan());
        assert!(!vector.is_finite());
    }

    // 0b1000_0001 is 129 and 129 - 128 is 1; no bit is -128; all bits are 127.
    let mut signs = vec![1.0, -1.0, 0.0, -0.0, -1.0, -1.0, f32::NAN, 0.1];
    signs.extend([[-1.0; 8], [1.0; 8]].concat());
    let binary = |dimensions| Dtype::Binary.store(signs.clone(), dimensions);
    assert_eq!(binary(24), Vector { numbers: Numbers::Int8(vec![1, -128, 127]), scale: None });
    assert_eq!(binary(8), binary(24), "a vector a token is the same numbers");
    assert_eq!(
        [Dtype::F32, Dtype::F16, Dtype::Int8, Dtype::Binary].map(|dtype| dtype.width(24)),
        [24, 24, 24, 3]
    );

    assert!(Dtype::F16.store(vec![65504.0], 1).is_finite());
    assert!(!Dtype::F16.store(vec![70000.0], 1).is_finite());
    assert!(!Dtype::F32.store(vec![f32::NAN], 1).is_finite());
    assert!(int8(&[1.0]).is_finite() && Dtype::F32.store(vec![1e30], 1).is_finite());
}

#[test]
fn kinds_of_columns() {
    let of = |values: &[Value]| Kind::of(values.iter());
    assert_eq!(of(&[json!(true), Value::Null]), Kind::Boolean);
    assert_eq!(of(&[Value::Null, json!(1), json!(i64::MIN)]), Kind::Integer);
    assert_eq!(of(&[json!(1), json!(1.5)]), Kind::Float);
    assert_eq!(of(&[json!(1.0)]), Kind::Float);
    assert_eq!(of(&[json!(1u64 << 63)]), Kind::Float, "a power of two is the same as an f64");
    assert_eq!(of(&[json!(u64::MAX)]), Kind::Text, "no kind of number holds it");
    assert_eq!(of(&[json!((1i64 << 53) + 1), json!(0.5)]), Kind::Text, "an f64 would be another number");
    assert_eq!(of(&[json!(true), json!(1)]), Kind::Text);
    assert_eq!(of(&[json!("a"), json!([1])]), Kind::Text);
    assert_eq!(of(&[]), Kind::Text);
    assert_eq!(of(&[Value::Null]), Kind::Text);

    let values =
        [Value::Null, json!(true), json!(-1), json!(0.5), json!("a"), json!([]), json!((1i64 << 53) + 1)];
    let fits = |kind: Kind| values.iter().map(|value| kind.fits(value)).collect::<Vec<_>>();
    assert_eq!(fits(Kind::Boolean), [true, true, false, false, false, false, false]);
    assert_eq!(fits(Kind::Integer), [true, false, true, false, false, false, true]);
    assert_eq!(fits(Kind::Float), [true, false, true, true, false, false, false]);
    assert_eq!(fits(Kind::Text), [true; 7]);
}

#[test]
fn a_value_that_does_not_fit_its_column() {
    for format in [Format::Parquet, Format::Arrow] {
        let layout = layout(format, Dtype::F32);
        let folder = tempfile::tempdir().unwrap();
        let mut writer = open(&Target::File(folder.path().join("out")), &layout, None).unwrap();
        let mut text = texts(&layout, 1).remove(0);
        text.kept[0] = json!("MCMXC").into();
        assert_says(writer.write(&row(&text)), &["row 0", "\"year\"", "MCMXC", "whole numbers", "--keep"]);
    }
}

#[test]
fn what_a_format_cannot_hold() {
    use Format::{Arrow, Csv, Jsonl, Npy, Parquet, Safetensors};
    let says = |layout: Layout, parts: &[&str]| assert_says(output::check(&layout), parts);
    let plain = |format, dtype| Layout { kept: vec![], ..layout(format, dtype) };
    for format in [Csv, Npy, Safetensors] {
        let layout = Layout { per_token: true, ..plain(format, Dtype::F32) };
        says(layout, &[format.name(), "--pooling none", "--output-format jsonl, parquet or arrow"]);
    }
    for format in [Jsonl, Parquet, Arrow] {
        let layout = Layout { per_token: true, ..plain(format, Dtype::Int8) };
        says(layout, &["--output-dtype int8", "--pooling none", "f32, f16 or binary"]);
        output::check(&Layout { normalized: false, ..plain(format, Dtype::Int8) }).unwrap();
    }
    for format in [Npy, Safetensors] {
        let layout = Layout { normalized: false, ..plain(format, Dtype::Int8) };
        says(layout, &[format.name(), "scale", "--normalize"]);
        let layout = Layout { kept: self::layout(Csv, Dtype::F32).kept, ..plain(format, Dtype::F32) };
        says(layout, &[format.name(), "--keep", "--output-format jsonl, csv, parquet or arrow"]);
    }
    for format in FORMATS {
        let binary = |dimensions| Layout { dimensions, ..plain(format, Dtype::Binary) };
        says(binary(36), &["--output-dtype binary", "have 36", "--dimensions 32"]);
        says(binary(7), &["--output-dtype binary", "have 7", "choose another --output-dtype"]);
        output::check(&binary(8)).unwrap();
    }
    let keep = |format, names: &[&str]| Layout {
        kept: names.iter().map(|name| Column { name: name.to_string(), kind: Kind::Text }).collect(),
        ..plain(format, Dtype::F32)
    };
    for format in [Jsonl, Csv, Parquet, Arrow] {
        for name in ["index", "id", "tokens", "truncated", "scale", "embedding", "embeddings"] {
            says(keep(format, &["year", name]), &[&format!("--keep {name}"), "of its own"]);
        }
        says(keep(format, &["year", "title", "year"]), &["--keep", "\"year\" twice"]);
        output::check(&keep(format, &["year", "e16", "e01", "e", "Index"])).unwrap();
    }
    says(keep(Csv, &["e15"]), &["--keep e15", "of its own"]);
    output::check(&keep(Parquet, &["e15"])).unwrap();
    let binary = Layout { dtype: Dtype::Binary, ..keep(Csv, &["e2"]) };
    output::check(&binary).unwrap();
}

/// Opens an output that nobody has.
fn open(target: &Target, layout: &Layout, durable: Option<Durable>) -> anyhow::Result<Box<dyn Writer>> {
    output::open(&Claim::take(target)?, layout, durable)
}

fn beside(target: &Target) -> anyhow::Result<Option<Beside>> {
    Ok(Claim::take(target)?.beside().cloned())
}

/// Who comes second is told so, and changes nothing.
#[test]
fn one_run_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let target = Target::File(folder.path().join("out.jsonl"));
    let beside = beside(&target).unwrap().unwrap();
    let layout = layout(Format::Jsonl, Dtype::F32);
    let texts = texts(&layout, 3);
    let claim = Claim::take(&target).unwrap();
    let mut writer = output::open(&claim, &layout, None).unwrap();
    writer.write(&row(&texts[0])).unwrap();
    let bytes = writer.checkpoint().unwrap();
    let before = fs::read(&beside.rows).unwrap();
    assert_eq!(before.len() as u64, bytes);
    for durable in [
        None,
        Some(Durable { rows: 0, bytes: 0, blocks: vec![] }),
        Some(Durable { rows: 0, bytes: 1, blocks: vec![] }),
    ] {
        let parts = ["out.jsonl", "being written by another sconce", "wait for it", "--output"];
        assert_says(open(&target, &layout, durable), &parts);
    }
    assert_eq!(fs::read(&beside.rows).unwrap(), before);
    writer.finish().unwrap();
    assert_says(open(&target, &layout, None), &["being written by another sconce"]);
    drop(claim);
    assert_eq!(names(folder.path()), ["out.jsonl"]);
    assert_eq!(fs::read(folder.path().join("out.jsonl")).unwrap(), before);
    drop(open(&target, &layout, None).unwrap());
}

#[test]
fn what_cannot_be_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let target = Target::File(path.clone());
    let beside = beside(&target).unwrap().unwrap();
    let remedy = "pass --restart to start over";
    for layout in FORMATS.map(|format| layout(format, Dtype::F32)) {
        let texts = texts(&layout, 4);
        let durable = interrupt(&path, &layout, &texts, 0..3, None);
        let file = OpenOptions::new().write(true).open(&beside.rows).unwrap();
        file.set_len(durable.bytes - 1).unwrap();
        let there = format!("{} bytes", durable.bytes - 1);
        assert_says(open(&target, &layout, Some(durable.clone())), &["out.partial", &there, remedy]);
        assert_eq!(beside.rows.metadata().unwrap().len(), durable.bytes - 1, "it is left as it was");
        fs::remove_file(&beside.rows).unwrap();
        assert_says(open(&target, &layout, Some(durable.clone())), &["out.partial", "not there", remedy]);
        assert_eq!(names(folder.path()), [""; 0], "and is not made");
        assert_says(
            open(&Target::Stdout, &layout, Some(durable)),
            &["standard output", "leave --resume out"],
        );
    }
    // Rows of another size, and columns of another kind.
    for format in [Format::Npy, Format::Safetensors] {
        let layout = layout(format, Dtype::F32);
        let durable = interrupt(&path, &layout, &texts(&layout, 4), 0..3, None);
        let wider = Layout { dimensions: 24, ..layout };
        assert_says(open(&target, &wider, Some(durable)), &["out", "3 rows of 96 bytes", remedy]);
    }
    let layout = layout(Format::Arrow, Dtype::F32);
    let durable = interrupt(&path, &layout, &texts(&layout, 4), 0..3, None);
    let other = Layout { ids: None, ..layout };
    let writer = open(&target, &other, Some(durable)).unwrap();
    assert_says(writer.finish(), &["other columns", remedy]);
    // A run that was stopped before its first row is begun anew.
    let mut writer = open(&target, &other, Some(Durable { rows: 0, bytes: 0, blocks: vec![] })).unwrap();
    writer.write(&row(&texts(&other, 1)[0])).unwrap();
    writer.finish().unwrap();
    assert_eq!(names(folder.path()), ["out"]);
}

/// The rows of a run that is over are replaced by those of the next, and so is half of a final form.
#[test]
fn leftovers_are_replaced() {
    for layout in FORMATS.map(|format| layout(format, Dtype::F32)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let texts = texts(&layout, 3);
        write(&path, &layout, &texts[..1]);
        let expected = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        interrupt(&path, &layout, &texts, 0..3, None);
        let beside = beside(&Target::File(path.clone())).unwrap().unwrap();
        fs::write(&beside.whole, vec![0; 100_000]).unwrap();
        let made_at_the_end = matches!(layout.format, Format::Parquet | Format::Arrow);
        write(&path, &layout, &texts[..1]);
        assert_eq!(fs::read(&path).unwrap(), expected);
        assert_eq!(beside.whole.exists(), !made_at_the_end, "only who makes it replaces it");
        fs::write(&beside.rows, "rows").unwrap();
        fs::write(&beside.manifest, "manifest").unwrap();
        fs::write(&beside.ledger, "ledger").unwrap();
        fs::write(&beside.final_ledger, "final").unwrap();
        let claim = Claim::take(&Target::File(path.clone())).unwrap();
        claim.discard().unwrap();
        claim.discard().unwrap();
        drop(claim);
        assert_eq!(names(folder.path()), ["out", "out.ledger.jsonl"]);
    }
}

#[test]
fn names_beside_an_output() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let of = |path: &str| beside(&Target::File(at(path)));
    let found = of("vectors.npy").unwrap().unwrap();
    assert_eq!(found.output, at("vectors.npy"));
    assert_eq!(found.rows, at(".vectors.npy.partial"));
    assert_eq!(found.lock, at(".vectors.npy.partial.lock"));
    assert_eq!(found.whole, at(".vectors.npy.partial.whole"));
    assert_eq!(found.manifest, at(".vectors.npy.partial.json"));
    assert_eq!(found.ledger, at(".vectors.npy.partial.ledger"));
    assert_eq!(found.final_ledger, at("vectors.npy.ledger.jsonl"));
    assert_eq!(found.meta, at("vectors.npy.meta.json"));
    assert_eq!(found.done, at(".vectors.npy.done.json"));
    assert_eq!(names(folder.path()), [""; 0], "nothing stays");
    assert_eq!(beside(&Target::Stdout).unwrap(), None);
    assert_says(of("new/"), &["new/", "name of a folder"]);
    assert_says(of("no/such"), &["no does not exist", "create it first"]);
    assert_says(of(""), &["name of a folder", "name a file in it"]);
    #[cfg(target_os = "linux")]
    assert_eq!(of("/dev/full").unwrap(), None);
}

#[test]
#[cfg(unix)]
fn a_link_stays_a_link() {
    use std::os::unix::fs::symlink;
    for layout in [layout(Format::Npy, Dtype::F32), layout(Format::Arrow, Dtype::F32)] {
        let folder = tempfile::tempdir().unwrap();
        let [elsewhere, here] = ["elsewhere", "here"].map(|name| folder.path().join(name));
        fs::create_dir(&elsewhere).unwrap();
        fs::create_dir(&here).unwrap();
        let (link, file) = (here.join("link"), elsewhere.join("out"));
        symlink("../here/next", &link).unwrap();
        symlink(&file, here.join("next")).unwrap();
        // The first time there is no file yet, the second time there is.
        for count in [1, 2] {
            let beside = beside(&Target::File(link.clone())).unwrap().unwrap();
            assert_eq!(beside.rows.file_name().unwrap(), ".out.partial");
            let parent = |path: &Path| fs::canonicalize(path.parent().unwrap()).unwrap();
            assert_eq!(parent(&beside.rows), fs::canonicalize(&elsewhere).unwrap());
            write(&link, &layout, &texts(&layout, count));
            assert!(link.is_symlink() && !file.is_symlink());
            assert_eq!(read(&file, &layout).len() as u64, count);
            assert_eq!(
                (names(&here), names(&elsewhere)),
                (vec!["link".into(), "next".into()], vec!["out".into()])
            );
        }
        // A link in the place of the rows would lead them elsewhere.
        let precious = folder.path().join("precious");
        fs::write(&precious, "mine").unwrap();
        symlink(&precious, elsewhere.join(".out.partial")).unwrap();
        assert_says(open(&Target::File(link), &layout, None), &[".out.partial is in its way"]);
        assert_eq!(fs::read_to_string(&precious).unwrap(), "mine");
    }
    let folder = tempfile::tempdir().unwrap();
    let circle = folder.path().join("circle");
    symlink(&circle, &circle).unwrap();
    assert_says(beside(&Target::File(circle)), &["circle", "--output"]);
}

#[test]
#[cfg(unix)]
fn permissions_are_those_of_the_output() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    for layout in FORMATS.map(|format| layout(format, Dtype::F32)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let beside = beside(&Target::File(path.clone())).unwrap().unwrap();
        let (new, texts) = (folder.path().join("new"), texts(&layout, 2));
        fs::write(&new, "").unwrap();
        write(&path, &layout, &texts);
        assert_eq!(mode(&path), mode(&new), "as a new file has them");
        for expected in [0o600, 0o640, 0o400, 0o666] {
            fs::set_permissions(&path, fs::Permissions::from_mode(expected)).unwrap();
            let mut writer = open(&Target::File(path.clone()), &layout, None).unwrap();
            assert_eq!(mode(&beside.rows) & !(expected | 0o600), 0, "no more may read what is unfinished");
            writer.write(&row(&texts[0])).unwrap();
            let bytes = writer.checkpoint().unwrap();
            drop(writer);
            let durable = Some(Durable { rows: 1, bytes, blocks: vec![] });
            open(&Target::File(path.clone()), &layout, durable).unwrap().finish().unwrap();
            assert_eq!(mode(&path), expected);
            assert_eq!(read(&path, &layout).len(), 1);
        }
    }
}

#[test]
fn a_ledger_is_cut_and_continued() {
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
        cut: None,
    };
    let line = |index: u64, event: &str| {
        let rest = "\"reason\":\"it is \\\"long\\\"\",\"tokens\":40}";
        let place = format!("\"file\":\"notes.jsonl\",\"line\":{}", index + 1);
        format!("{{\"index\":{index},{place},\"event\":\"{event}\",{rest}\n")
    };
    let mut ledger = Ledger::open(&path, &last, None).unwrap();
    assert_eq!(ledger.checkpoint().unwrap(), 0);
    assert!(!path.exists(), "a ledger without entries is no file");
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
            cut: Some(8),
            ..entry(6, Event::Chunked)
        })
        .unwrap();
    ledger.finish(&last).unwrap();
    let mut expected = line(0, "failed") + &line(3, "skipped") + &line(5, "truncated");
    expected += "{\"index\":6,\"file\":\"notes.jsonl\",\"row\":2,\"event\":\"chunked\",\"reason\":\"it is \\\"long\\\"\",\"cut\":8}\n";
    assert_eq!(fs::read_to_string(&last).unwrap(), expected);
    assert_eq!(names(folder.path()), ["out.ledger.jsonl"]);

    // A run without a fault leaves no ledger, neither its own nor that of a run before.
    fs::write(&path, "left over\n").unwrap();
    Ledger::open(&path, &last, None).unwrap().finish(&last).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
    // So does one that was interrupted before its first entry.
    fs::write(&path, "not durable\n").unwrap();
    fs::write(&last, "left over\n").unwrap();
    Ledger::open(&path, &last, Some(0)).unwrap().finish(&last).unwrap();
    assert_eq!(names(folder.path()), [""; 0]);

    let remedy = "pass --restart to start over";
    assert_says(
        Ledger::open(&path, &last, Some(9)).map(drop),
        &["out.partial.ledger", "0 bytes", "9 were", remedy],
    );
    fs::write(&path, "short\n").unwrap();
    assert_says(Ledger::open(&path, &last, Some(9)).map(drop), &["6 bytes", remedy]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "short\n");
}

/// Ids that are integers stay integers, in columns, too; an id that is none of them is null there.
#[test]
fn integers_as_ids() {
    let folder = tempfile::tempdir().unwrap();
    for format in [Format::Jsonl, Format::Csv, Format::Parquet, Format::Arrow] {
        let layout = Layout { ids: Some(Kind::Integer), ..layout(format, Dtype::F32) };
        let mut texts = texts(&layout, 3);
        texts[0].id = Some(json!(7));
        texts[1].id = None;
        texts[2].id = Some(json!(-1));
        let path = folder.path().join(format.name());
        write(&path, &layout, &texts);
        let ids: Vec<_> = read(&path, &layout).into_iter().map(|row| row.id).collect();
        let expected = match format {
            Format::Csv => ["7", "", "-1"].map(|id| Some(json!(id))),
            _ => [Some(json!(7)), None, Some(json!(-1))],
        };
        assert_eq!(ids, expected, "{format}");
    }
}

/// What stands beside an output that only its owner may read is not open to others either.
#[test]
#[cfg(unix)]
fn what_stands_beside_a_private_output_is_private() {
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
        let entry = LedgerEntry { index: 0, file, line: None, row: None, event, reason, tokens, cut: None };
        ledger.write(&entry).unwrap();
        ledger.finish(&at("final")).unwrap();
        assert_eq!(mode(&at("final")), expected);
    }
}

/// What an interrupted run has left is continued only where it holds the bytes that were written.
#[test]
fn damaged_rows_are_not_continued() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let target = Target::File(path.clone());
    let rows = beside(&target).unwrap().unwrap().rows;
    for layout in FORMATS.map(|format| layout(format, Dtype::F32)) {
        let texts = texts(&layout, 4);
        let mut writer = open(&target, &layout, None).unwrap();
        texts[..3].iter().for_each(|text| writer.write(&row(text)).unwrap());
        let bytes = writer.checkpoint().unwrap();
        let durable = Durable { rows: 3, bytes, blocks: writer.blocks(3) };
        assert_eq!(durable.blocks.len(), 1);
        drop(writer);
        let whole = fs::read(&rows).unwrap();
        for at in [whole.len() - 30, whole.len() - 1] {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            fs::write(&rows, &damaged).unwrap();
            assert_says(
                open(&target, &layout, Some(durable.clone())),
                &["out.partial", "does not hold", "(rows 1 to 3)", "--restart"],
            );
            assert!(fs::read(&rows).unwrap() == damaged, "it is left as it was");
        }
        // What lies behind the rows that were written is cut off.
        fs::write(&rows, [&whole[..], b"half a row"].concat()).unwrap();
        resume(&path, &layout, &texts, durable);
        let resumed = fs::read(&path).unwrap();
        write(&path, &layout, &texts);
        assert!(fs::read(&path).unwrap() == resumed, "{}", layout.format);
        fs::remove_file(&path).unwrap();
    }
}

/// The message on damage says which rows are lost, to a block of at least 1 MiB; and a run that was resumed knows the blocks that
/// were written before.
#[test]
fn damage_is_located() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.npy");
    let target = Target::File(path.clone());
    let partial = beside(&target).unwrap().unwrap().rows;
    // Rows of 64 KiB.
    let layout = Layout { dimensions: 1 << 14, ..layout(Format::Npy, Dtype::F32) };
    let numbers = (0..layout.dimensions).map(|i| i as f32).collect();
    let vector = Vector { numbers: Numbers::F32(numbers), ..texts(&layout, 1)[0].vector.clone() };
    let mut durable = None;
    for run in 0..4u64 {
        let mut writer = open(&target, &layout, durable).unwrap();
        for index in run * 20..(run + 1) * 20 {
            let row =
                Row { index, id: None, chunk: None, tokens: 3, truncated: false, kept: &[], vector: &vector };
            writer.write(&row).unwrap();
        }
        let bytes = writer.checkpoint().unwrap();
        durable = Some(Durable { rows: (run + 1) * 20, bytes, blocks: writer.blocks((run + 1) * 20) });
    }
    let durable = durable.unwrap();
    let ends: Vec<_> = durable.blocks.iter().map(|block| (block.rows, block.bytes)).collect();
    assert_eq!(ends, [20, 40, 60, 80].map(|rows| (rows, 128 + rows * (1 << 16))));
    let whole = fs::read(&partial).unwrap();
    for (row, found) in [(0, "(rows 1 to 20)"), (45, "(rows 41 to 60)"), (79, "(rows 61 to 80)")] {
        let mut damaged = whole.clone();
        damaged[128 + (row << 16) + 7] ^= 1;
        fs::write(&partial, &damaged).unwrap();
        assert_says(open(&target, &layout, Some(durable.clone())), &["is damaged", found, "--restart"]);
    }
    // The header is written in the end: a run that is killed just after that has its rows.
    let mut header = whole.clone();
    header[..128].fill(b'x');
    fs::write(&partial, &header).unwrap();
    open(&target, &layout, Some(durable)).unwrap().finish().unwrap();
    assert!(fs::read(&path).unwrap()[128..] == whole[128..]);
}

/// A file in the place of the rows that has other names or another mode is not written to.
#[test]
#[cfg(unix)]
fn rows_of_others_are_not_adopted() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out");
    let target = Target::File(path.clone());
    let rows = beside(&target).unwrap().unwrap().rows;
    let layout = layout(Format::Jsonl, Dtype::F32);
    let texts = texts(&layout, 2);
    let other = folder.path().join("other");
    fs::write(&other, "mine").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o666)).unwrap();
    fs::hard_link(&other, &rows).unwrap();
    let durable = Durable { rows: 1, bytes: 4, blocks: vec![] };
    assert_says(open(&target, &layout, Some(durable)), &["out.partial", "other names", "--restart"]);
    write(&path, &layout, &texts);
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine");
    assert_eq!((other.metadata().unwrap().nlink(), path.metadata().unwrap().nlink()), (1, 1));
    fs::write(folder.path().join("new"), "").unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode();
    assert_eq!(mode(&path), mode(&folder.path().join("new")));
}

#[test]
fn a_manifest_comes_back() {
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    struct Run {
        kept: Vec<Column>,
        durable: Durable,
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(".out.partial.json");
    assert_eq!(manifest::load::<Run>(&path).unwrap(), None);
    let block = Block { rows: 1, bytes: 1 << 59, sha256: Digest::of(b"rows") };
    for rows in [1, 2] {
        let run = Run {
            kept: layout(Format::Parquet, Dtype::Int8).kept,
            durable: Durable { rows, bytes: 1 << 60, blocks: vec![block.clone()] },
        };
        manifest::save(&path, folder.path(), &run).unwrap();
        assert_eq!(manifest::load(&path).unwrap(), Some(run));
        assert_eq!(names(folder.path()), [".out.partial.json"]);
    }
    let saved: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(saved["kept"][0], json!({"name": "year", "kind": "integer"}));
    // One that was changed is not believed.
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"rows\": 2", "\"rows\": 3")).unwrap();
    assert_says(manifest::load::<Run>(&path), &["damaged", "--restart"]);
    fs::write(&path, text).unwrap();
    let whole = fs::read(&path).unwrap();
    for broken in [&b""[..], b"[]", &whole[..whole.len() / 2]] {
        fs::write(&path, broken).unwrap();
        assert_says(manifest::load::<Run>(&path), &[".out.partial.json", "pass --restart to start over"]);
    }
    let nowhere = folder.path().join("nowhere/run.json");
    assert_says(manifest::save(&nowhere, &nowhere, &1), &["nowhere does not exist", "create it first"]);
}
