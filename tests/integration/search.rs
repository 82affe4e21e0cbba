//! `sconce search`: neighbours equal numpy's for every format, type and metric; weights and means; what is
//! refused.

use crate::support::arrow;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use arrow::ipc::writer::FileWriter;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{ArrayRef, FixedSizeListArray, ListArray, RecordBatch};
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};

use crate::support::{assert_fails, embed, fixture, rows, sconce, stderr, stdout};

const MODEL: &str = "bert-tiny";
/// Formats of `embed` with columns, and without.
const FORMATS: [&str; 6] = ["parquet", "arrow", "jsonl", "csv", "npy", "safetensors"];

fn search<S: AsRef<std::ffi::OsStr>>(file: &Path, args: impl IntoIterator<Item = S>) -> Output {
    sconce().args(["search", "-q"]).arg(file).args(args).output().expect("sconce starts")
}

/// `sconce search` with the model, as JSON lines.
fn search_rows(file: &Path, args: &[&str]) -> Vec<Value> {
    let model = fixture(MODEL);
    let common = ["-m", model.to_str().unwrap(), "--output-format", "jsonl"];
    rows(&search(file, common.iter().chain(args)))
}

fn stored(name: &str) -> PathBuf {
    fixture("search").join(name)
}

/// A search among the stored vectors, without a model.
fn search_stored(name: &str, args: &[&str]) -> Vec<Value> {
    let queries = stored("queries.npy");
    let common = ["--query-vectors", queries.to_str().unwrap(), "--output-format", "jsonl"];
    rows(&search(&stored(name), common.iter().chain(args)))
}

/// Texts with an id, a year and a note; every seventh note is null, some have quotes and line breaks.
fn corpus(folder: &Path) -> PathBuf {
    let words = ["lamp", "wick", "flame", "key", "the", "a", "burns", "light"];
    let line = |i: usize| {
        let text: Vec<&str> = (0..6).map(|j| words[(i * i + 3 * j * (i + 1) + j) % words.len()]).collect();
        let note = if i.is_multiple_of(7) { Value::Null } else { json!(format!("n \"{i}\",\nx")) };
        json!({"id": format!("d{i}"), "text": text.join(" "), "year": 1900 + (i * 37) % 100, "note": note})
            .to_string()
    };
    let path = folder.join("corpus.jsonl");
    fs::write(&path, (0..90).map(line).collect::<Vec<_>>().join("\n")).unwrap();
    path
}

/// Embeds the corpus into a file.
fn embedded(folder: &Path, name: &str, more: &[&str]) -> PathBuf {
    let (input, output) = (corpus(folder), folder.join(name));
    let common = ["--input", input.to_str().unwrap(), "-o", output.to_str().unwrap(), "--dimensions", "32"];
    let found = embed(MODEL, common.iter().chain(more));
    assert!(found.status.success(), "{}", stderr(&found));
    output
}

#[test]
fn neighbours_equal_those_of_numpy() {
    let goldens: Value = serde_json::from_slice(&fs::read(stored("goldens.json")).unwrap()).unwrap();
    let k = goldens["k"].to_string();
    for case in goldens["cases"].as_array().unwrap() {
        let (file, metric) = (case["file"].as_str().unwrap(), case["metric"].as_str().unwrap());
        let found = search_stored(file, &["-k", &k, "--metric", metric]);
        let expected: Vec<&Value> = case["neighbours"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|query| query.as_array().unwrap())
            .collect();
        assert_eq!(found.len(), expected.len(), "{file} {metric}");
        for (i, (row, expected)) in found.iter().zip(expected).enumerate() {
            let k = goldens["k"].as_u64().unwrap() as usize;
            assert_eq!((&row["query"], &row["rank"]), (&json!(i / k), &json!(i % k)), "{file} {metric}");
            assert_eq!(row["index"], expected[0], "{file} {metric} row {i}: {row}, expected {expected}");
            let (score, expected) = (row["score"].as_f64().unwrap(), expected[1].as_f64().unwrap());
            assert!(
                (score - expected).abs() <= 1e-6 + 1e-6 * expected.abs(),
                "{file} {metric}: {score} {expected}"
            );
        }
    }
}

#[test]
fn the_metric_of_the_file_is_the_default() {
    let found = search_stored("int8.parquet", &[]);
    assert_eq!(found, search_stored("int8.parquet", &["--metric", "dot"]));
    assert_eq!(search_stored("f32.npy", &[]), search_stored("f32.npy", &["--metric", "cosine"]));
}

#[test]
fn neighbours_do_not_depend_on_threads_and_on_the_other_queries() {
    let all = search_stored("f32.parquet", &["--threads", "2"]);
    assert_eq!(all, search_stored("f32.parquet", &["--threads", "1"]));
    let scores = |rows: &[Value]| rows.iter().map(|row| row["score"].clone()).collect::<Vec<_>>();
    assert_eq!(scores(&all), scores(&search_stored("f32.npy", &[])));
}

#[test]
fn every_format_gives_the_same_neighbours_and_columns() {
    let folder = tempfile::tempdir().unwrap();
    for dtype in ["f32", "f16", "int8", "binary"] {
        let mut expected = None;
        let one_column = ("csv", &["--vector-column", "embedding"][..]);
        for (format, column) in FORMATS.map(|format| (format, &[][..])).into_iter().chain([one_column]) {
            let has_columns = !["npy", "safetensors"].contains(&format);
            let keep = if has_columns { &["--keep", "year", "note"][..] } else { &[] };
            let file = embedded(
                folder.path(),
                &format!("{dtype}.{format}"),
                &[&["--normalize", "--output-dtype", dtype], keep, column].concat(),
            );
            let mut found = search_rows(
                &file,
                &["the lamp burns", "a key", "--dimensions", "32", "--normalize", "-k", "7"],
            );
            assert_eq!(found.len(), 14);
            for row in &mut found {
                let index = row["index"].as_u64().unwrap();
                let row = row.as_object_mut().unwrap();
                let (id, year, note) = (row.remove("id"), row.remove("year"), row.remove("note"));
                if has_columns {
                    assert_eq!(id, Some(json!(format!("d{index}"))), "{format}");
                    assert_eq!(year, Some(json!(1900 + (index * 37) % 100)), "{format}");
                    let null = index % 7 == 0;
                    assert_eq!(
                        note,
                        Some(if null { Value::Null } else { json!(format!("n \"{index}\",\nx")) }),
                        "{format}"
                    );
                }
                // int8 formats without scales have unit vectors, whose scale rounds differently.
                let score = row["score"].as_f64().unwrap();
                row["score"] = json!((score * 1e5).round());
            }
            let expected = expected.get_or_insert_with(|| found.clone());
            assert_eq!(&found, expected, "{dtype} {format}");
        }
    }
}

#[test]
fn an_arrow_stream_and_a_compressed_file_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = embedded(folder.path(), "a.arrow", &["--keep", "year"]);
    let stream = folder.path().join("stream.arrows");
    let input = corpus(folder.path());
    let args = [
        "--input",
        input.to_str().unwrap(),
        "--output-format",
        "arrow",
        "--dimensions",
        "32",
        "--keep",
        "year",
    ];
    fs::write(&stream, embed(MODEL, args).stdout).unwrap();
    let args = ["the lamp", "--dimensions", "32"];
    assert_eq!(search_rows(&file, &args), search_rows(&stream, &args));
    let label = &search_stored("list.arrow", &["-k", "1"])[0]["label"];
    assert!(label.as_str().is_some_and(|label| label.starts_with('l')), "{label}");
}

#[test]
fn chunks_are_located_in_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = None;
    for format in FORMATS {
        let file = embedded(folder.path(), &format!("chunks.{format}"), &["--chunk", "5"]);
        let mut found = search_rows(&file, &["lamp wick", "--dimensions", "32", "-k", "5"]);
        for row in &mut found {
            let row = row.as_object_mut().unwrap();
            row.remove("id");
            row["score"] = json!((row["score"].as_f64().unwrap() * 1e6).round());
            if format == "npy" {
                // The metadata beside an npy file has the number of chunks only.
                row.insert("start".into(), Value::Null);
                row.insert("end".into(), Value::Null);
            }
        }
        assert!(found.iter().any(|row| row["chunk"] != json!(0)), "{found:?}");
        let expected: &Vec<Value> = expected.get_or_insert_with(|| found.clone());
        for (row, expected) in found.iter().zip(expected) {
            for column in ["index", "chunk", "score"] {
                assert_eq!(row[column], expected[column], "{format}");
            }
            if format != "npy" {
                assert_eq!((&row["start"], &row["end"]), (&expected["start"], &expected["end"]), "{format}");
            }
        }
    }
}

#[test]
fn only_neighbours_that_reach_the_threshold_are_written() {
    let all = search_stored("f32.npy", &["-k", "301"]);
    let threshold = all[5]["score"].as_f64().unwrap();
    let found = search_stored("f32.npy", &["-k", "301", "--threshold", &threshold.to_string()]);
    let expected: Vec<&Value> =
        all.iter().filter(|row| row["score"].as_f64().unwrap() >= threshold).collect();
    assert_eq!(found.iter().collect::<Vec<_>>(), expected);
    assert!(search_stored("f32.npy", &["--threshold", "1.5"]).is_empty());
}

#[test]
fn softmax_weights_and_the_mean_of_a_column_equal_a_plain_loop() {
    for temperature in [0.05f64, 1.0] {
        let t = temperature.to_string();
        let found = search_stored("f32.parquet", &["-k", "8", "--weights", "softmax", "--temperature", &t]);
        let means = search_stored(
            "f32.parquet",
            &["-k", "8", "--weights", "softmax", "--temperature", &t, "--value-field", "year"],
        );
        assert_eq!((found.len(), means.len()), (48, 6));
        for (query, mean) in found.chunks(8).zip(&means) {
            let exponentials: Vec<f64> =
                query.iter().map(|row| (row["score"].as_f64().unwrap() / temperature).exp()).collect();
            let sum: f64 = exponentials.iter().sum();
            let (mut values, mut weights) = (0.0, 0.0);
            for (row, exponential) in query.iter().zip(&exponentials) {
                let weight = row["weight"].as_f64().unwrap();
                // Scores of the output have the digits of f32.
                assert!((weight - exponential / sum).abs() < 1e-5 * weight.max(0.01), "{row}");
                if let Some(year) = row["year"].as_f64() {
                    values += weight * year;
                    weights += weight;
                }
            }
            let total: f64 = query.iter().map(|row| row["weight"].as_f64().unwrap()).sum();
            assert!((total - 1.0).abs() < 1e-12, "{total}");
            assert_eq!(mean["neighbours"], json!(8));
            assert!((mean["value"].as_f64().unwrap() - values / weights).abs() < 1e-9, "{mean}");
        }
    }
    let uniform = search_stored("f32.parquet", &["-k", "4", "--weights", "uniform"]);
    assert!(uniform.iter().all(|row| row["weight"] == json!(0.25)));
}

#[test]
fn candidates_of_narrow_vectors_are_ranked_by_wide_ones() {
    let wide = stored("f32.parquet");
    let wide = wide.to_str().unwrap();
    let exact = search_stored("f32.npy", &["-k", "5"]);
    let plain = |rows: Vec<Value>| -> Vec<Value> {
        rows.into_iter().map(|row| json!([row["query"], row["rank"], row["index"], row["score"]])).collect()
    };
    for file in ["binary.npy", "int8.npy"] {
        let all = search_stored(file, &["-k", "5", "--rescore", wide, "--rescore-multiplier", "61"]);
        assert_eq!(plain(all), plain(exact.clone()), "{file}");
        // Few candidates: each has its f32 score, and the best come first.
        let few = search_stored(file, &["-k", "5", "--rescore", wide, "--rescore-multiplier", "1"]);
        let candidates = search_stored(file, &["-k", "5"]);
        for (few, candidates) in few.chunks(5).zip(candidates.chunks(5)) {
            let sorted = |rows: &[Value]| {
                let mut rows: Vec<u64> = rows.iter().map(|row| row["index"].as_u64().unwrap()).collect();
                rows.sort_unstable();
                rows
            };
            assert_eq!(sorted(few), sorted(candidates));
            assert!(few.is_sorted_by(|a, b| a["score"].as_f64() >= b["score"].as_f64()));
        }
    }
}

#[test]
fn queries_come_from_arguments_files_and_standard_input() {
    let folder = tempfile::tempdir().unwrap();
    let file = embedded(folder.path(), "a.parquet", &[]);
    let queries = folder.path().join("queries.jsonl");
    fs::write(&queries, "{\"id\":\"x\",\"q\":\"the lamp\"}\n{\"id\":\"y\",\"q\":\"a key\"}\n").unwrap();
    let common = ["--dimensions", "32", "-k", "3"];
    let expected = search_rows(&file, &[&["the lamp", "a key"], &common[..]].concat());
    let path = queries.to_str().unwrap();
    let mut found = search_rows(&file, &[&["--queries", path, "--text-field", "q"], &common[..]].concat());
    for row in &mut found {
        let id = row.as_object_mut().unwrap().remove("query_id").unwrap();
        assert_eq!(id, json!(["x", "y"][row["query"].as_u64().unwrap() as usize]));
    }
    assert_eq!(found, expected);
    let lines = folder.path().join("lines.txt");
    fs::write(&lines, "the lamp\na key\n").unwrap();
    let mut command = sconce();
    command
        .arg("search")
        .arg(&file)
        .arg("-m")
        .arg(fixture(MODEL))
        .args(common)
        .args(["--output-format", "jsonl"]);
    let piped = command.stdin(File::open(&lines).unwrap()).output().unwrap();
    assert_eq!(rows(&piped), expected);
}

/// What it takes to rank the neighbours of each query again.
#[test]
fn rows_have_the_text_of_their_query_if_asked() {
    let folder = tempfile::tempdir().unwrap();
    let corpus = embedded(folder.path(), "corpus.parquet", &[]);
    let queries = folder.path().join("queries.jsonl");
    let texts = ["a key", "the lamp\nis on"];
    let lines = texts.map(|text| format!("{}\n", serde_json::json!({"text": text, "id": 7})));
    std::fs::write(&queries, lines.concat()).unwrap();
    let args = ["--queries", queries.to_str().unwrap(), "-k", "2", "--dimensions", "32"];
    let plain = search_rows(&corpus, &args);
    let found = search_rows(&corpus, &[&args[..], &["--query-text"]].concat());
    assert_eq!(found.len(), 4);
    for (mut row, plain) in found.into_iter().zip(plain) {
        let text = row.as_object_mut().unwrap().remove("query_text").unwrap();
        assert_eq!(text, texts[row["query"].as_u64().unwrap() as usize]);
        assert_eq!(row, plain);
    }
    let refused = search(&corpus, ["--query-text", "--output-format", "text", "a"]);
    assert_fails(&refused, 2, &["--query-text", "pass --output-format jsonl, csv or parquet"]);
}

#[test]
fn a_text_finds_itself_and_the_vector_of_embed() {
    let folder = tempfile::tempdir().unwrap();
    let file = embedded(folder.path(), "a.arrow", &["--keep", "text"]);
    let text: Value =
        serde_json::from_str(fs::read_to_string(corpus(folder.path())).unwrap().lines().nth(4).unwrap())
            .unwrap();
    let found = search_rows(
        &file,
        &[text["text"].as_str().unwrap(), "--dimensions", "32", "-k", "1", "--metric", "euclidean"],
    );
    assert_eq!((&found[0]["text"], &found[0]["score"]), (&text["text"], &json!(0.0)));
}

#[test]
fn tables_have_the_same_rows_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let expected = search_stored("f32.parquet", &["-k", "2"]);
    let queries = stored("queries.npy");
    let write = |name: &str| {
        let output = folder.path().join(name);
        let args = ["--query-vectors", queries.to_str().unwrap(), "-k", "2", "-o", output.to_str().unwrap()];
        let found = search(&stored("f32.parquet"), args);
        assert!(found.status.success(), "{}", stderr(&found));
        assert!(found.stdout.is_empty());
        output
    };
    let lines = fs::read_to_string(write("a.jsonl")).unwrap();
    assert_eq!(
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>(),
        expected
    );
    let table = fs::read_to_string(write("a.csv")).unwrap();
    assert!(table.starts_with("query,rank,index,id,score,year\n0,0,"), "{table}");
    assert_eq!(table.lines().count(), 13);
    let text = fs::read_to_string(write("a.txt")).unwrap();
    let widths: Vec<usize> = text.lines().map(|line| line.find("row").or(line.find("id")).unwrap()).collect();
    assert!(text.starts_with("query  rank") && widths.iter().all(|width| *width == widths[0]), "{text}");
    // Read back as a vector file would be, by its columns: parquet.
    let parquet = write("a.parquet");
    let file = fs::File::open(&parquet).unwrap();
    let batches = sconce::formats::parquet::open("a.parquet", file, "write it again").unwrap();
    let fields = sconce::formats::ColumnarFile::schema(&batches).fields().iter();
    let fields: Vec<String> = fields.map(|field| format!("{} {}", field.name(), field.data_type())).collect();
    let expected = ["query Int64", "rank Int64", "index Int64", "id Utf8", "score Float32", "year Int32"];
    assert_eq!(fields, expected);
    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
}

#[test]
fn text_for_people_has_the_score_first_and_no_control_characters() {
    let folder = tempfile::tempdir().unwrap();
    let file = embedded(folder.path(), "a.jsonl", &["--keep", "note"]);
    let model = fixture(MODEL);
    let found =
        search(&file, ["lamp \u{1b}", "-m", model.to_str().unwrap(), "--dimensions", "32", "-k", "90"]);
    let text = stdout(&found);
    assert!(text.trim_start().starts_with("rank   score  index  id"), "{text}");
    assert_eq!(text.lines().count(), 91, "{text}");
}

/// Vectors of two dimensions, some of them null, in every format that can have them, in f32 and f64.
fn with_null_vectors(folder: &Path, vectors: &[Option<[f32; 2]>]) -> Vec<PathBuf> {
    let list = |vector: &Option<[f32; 2]>| vector.map(|vector| vector.map(Some).to_vec());
    let wide = |vector: &Option<[f32; 2]>| vector.map(|vector| vector.map(|x| Some(f64::from(x))).to_vec());
    let fixed: ArrayRef =
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(vectors.iter().map(list), 2));
    let lists: ArrayRef =
        Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(vectors.iter().map(wide)));
    let mut paths = Vec::new();
    for (name, column) in [("fixed", fixed), ("lists", lists)] {
        let batch = RecordBatch::try_from_iter([("embedding", column)]).unwrap();
        let path = folder.join(format!("{name}.arrow"));
        let mut writer = FileWriter::try_new(File::create(&path).unwrap(), &batch.schema()).unwrap();
        writer.write(&batch).and_then(|()| writer.finish()).unwrap();
        paths.push(path);
        let path = folder.join(format!("{name}.parquet"));
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        paths.push(path);
    }
    let line = |vector: &Option<[f32; 2]>| format!("{}\n", json!({ "embedding": vector }));
    paths.push(folder.join("a.jsonl"));
    fs::write(&paths[4], vectors.iter().map(line).collect::<String>()).unwrap();
    let line = |vector: &Option<[f32; 2]>| vector.map_or(",\n".into(), |[a, b]| format!("{a:.1},{b:.1}\n"));
    paths.push(folder.join("a.csv"));
    fs::write(&paths[5], format!("e0,e1\n{}", vectors.iter().map(line).collect::<String>())).unwrap();
    paths
}

#[test]
fn rows_without_a_vector_are_counted_and_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let vectors =
        [None, Some([1.0, 0.0]), None, Some([0.0, 1.0]), Some([-1.0, 0.5]), None, Some([2.0, 0.5]), None];
    let queries = folder.path().join("queries.jsonl");
    for (count, mut sought) in [(1, vec![[1.0, 0.0]]), (2, vec![[1.0, 0.0], [0.0, 1.0]])] {
        let lines: Vec<String> =
            sought.drain(..).map(|x: [f32; 2]| json!({ "embedding": x }).to_string()).collect();
        fs::write(&queries, lines.join("\n")).unwrap();
        for file in with_null_vectors(folder.path(), &vectors) {
            let args = ["--query-vectors", queries.to_str().unwrap(), "--output-format", "jsonl", "-k", "8"];
            let found = sconce().arg("search").arg(&file).args(args).output().unwrap();
            let expected = format!("4 rows of {} have no vector (null) and are not compared", file.display());
            assert!(stderr(&found).contains(&expected), "{}", stderr(&found));
            let indices: Vec<_> = rows(&found).iter().map(|row| row["index"].as_u64().unwrap()).collect();
            assert_eq!(indices[..4], [1, 6, 3, 4], "{}", file.display());
            assert_eq!(indices.len(), 4 * count);
        }
    }
    for file in with_null_vectors(folder.path(), &vectors) {
        let args = ["--threshold", "-1", "--output-format", "jsonl"];
        let found = sconce().arg("pairs").arg(&file).args(args).output().unwrap();
        assert!(stderr(&found).contains("4 rows of"), "{}", stderr(&found));
        let pairs: Vec<_> =
            rows(&found).iter().map(|row| (row["a"].as_u64().unwrap(), row["b"].as_u64().unwrap())).collect();
        assert_eq!(pairs, [(1, 6), (3, 4), (3, 6), (1, 3), (4, 6), (1, 4)], "{}", file.display());
        // A file of queries has to have all of them.
        let args = ["search", "--query-vectors"];
        let found = sconce().args(args).args([&file, &file]).output().unwrap();
        assert_fails(&found, 1, &[file.to_str().unwrap(), "4 rows", "no vector (null); remove them"]);
    }
}

/// The column of the vectors is found if that of the first row is null, and only then among those that are
/// empty there.
#[test]
fn the_first_vector_of_a_csv_file_may_be_null() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.csv");
    for (rows, parts) in [
        ("id,v,other\n1,,\n2,\"[1, 2]\",\n", &["no vector (null)"][..]),
        ("id,v,other\n1,,\"[3]\"\n2,\"[1, 2]\",\n", &["several of vectors", "--vector-field NAME"]),
    ] {
        fs::write(&file, rows).unwrap();
        let args = ["search", "--query-vectors"];
        assert_fails(&sconce().args(args).args([&file, &file]).output().unwrap(), 1, parts);
    }
}

/// Null says nothing about the type of the other vectors of a csv file.
#[test]
fn signs_in_csv_are_signs_with_null_among_them() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("in.jsonl");
    fs::write(&input, "{\"text\":\"a lamp\"}\n{\"text\":null}\n{\"text\":\"the wick burns\"}\n").unwrap();
    let mut expected = None;
    for (name, column) in
        [("a.jsonl", &[][..]), ("elements.csv", &[]), ("list.csv", &["--vector-column", "embedding"])]
    {
        let file = folder.path().join(name);
        let paths = ["--input", input.to_str().unwrap(), "-o", file.to_str().unwrap()];
        let signs = ["--dimensions", "32", "--output-dtype", "binary", "--on-null", "null"];
        let written = embed(MODEL, paths.iter().chain(&signs).chain(column));
        assert!(written.status.success(), "{}", stderr(&written));
        let found = search_rows(&file, &["the wick", "--dimensions", "32"]);
        let scores: Vec<Value> = found.iter().map(|row| json!([row["index"], row["score"]])).collect();
        assert_eq!(scores.len(), 2, "{name}: {found:?}");
        assert_eq!(&scores, expected.get_or_insert_with(|| scores.clone()), "{name}");
    }
}

#[test]
fn several_files_are_searched_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let shards = folder.path().join("shards");
    fs::create_dir(&shards).unwrap();
    let input = corpus(folder.path());
    let whole = embedded(folder.path(), "whole.parquet", &["--keep", "year"]);
    for format in ["parquet", "npy", "jsonl"] {
        let mut files = Vec::new();
        for shard in ["1/3", "2/3", "3/3"] {
            let output = shards.join(format!("part-{}.{format}", &shard[..1]));
            let args = ["--input", input.to_str().unwrap(), "--dimensions", "32", "--shard", shard];
            let keep = if format == "npy" { &[][..] } else { &["--keep", "year"] };
            let found = embed(MODEL, args.iter().chain(keep).chain(&["-o", output.to_str().unwrap()]));
            assert!(found.status.success(), "{}", stderr(&found));
            files.push(output.display().to_string());
        }
        let more = ["lamp wick", "--dimensions", "32", "-k", "90"];
        let expected = search_rows(&whole, &more);
        let named: Vec<&str> = files[1..].iter().map(String::as_str).chain(more).collect();
        for mut found in [search_rows(Path::new(&files[0]), &named), search_rows(&shards, &more)] {
            assert_eq!(found.len(), 90);
            for (row, expected) in found.iter_mut().zip(&expected) {
                let file = row.as_object_mut().unwrap().remove("file").unwrap();
                let shard = expected["index"].as_u64().unwrap() / 30;
                assert_eq!(file, files[shard as usize]);
                for key in ["index", "score", "rank"] {
                    assert_eq!(row[key], expected[key], "{format}");
                }
                assert_eq!(row.get("year"), if format == "npy" { None } else { expected.get("year") });
            }
        }
        // Queries from a file beside several files, which clap takes for queries.
        let queries = folder.path().join("queries.txt");
        fs::write(&queries, "lamp wick\n").unwrap();
        let from_file = ["--queries", queries.to_str().unwrap(), "--dimensions", "32", "-k", "90"];
        let more: Vec<&str> = files[1..].iter().map(String::as_str).chain(from_file).collect();
        assert_eq!(search_rows(Path::new(&files[0]), &more), search_rows(Path::new(&files[0]), &named));
        fs::remove_dir_all(&shards).and_then(|()| fs::create_dir(&shards)).unwrap();
    }
    assert_fails(&search(&shards, ["lamp"]), 2, &["shards is a directory without files"]);
    let other = embedded(folder.path(), "other.parquet", &["--pooling", "max"]);
    let mixed: Vec<String> = ["npy", "parquet", "jsonl"]
        .map(|format| embedded(folder.path(), &format!("mixed.{format}"), &[]).display().to_string())
        .into();
    let vectors = ["--query-vectors", &mixed[0], "-k", "270"];
    let more: Vec<&str> = mixed[1..].iter().map(String::as_str).chain(vectors).collect();
    let found = search_rows(Path::new(&mixed[0]), &more);
    let of_file = |file: &String| {
        let rows = found.iter().filter(|row| row["file"] == **file);
        rows.map(|row| (&row["query"], row["index"].as_u64().unwrap() % 90, &row["score"]))
            .collect::<Vec<_>>()
    };
    assert_eq!((found.len(), of_file(&mixed[0]).len()), (90 * 270, 90 * 90));
    assert!(mixed[1..].iter().all(|file| of_file(file) == of_file(&mixed[0])));
    let found = search(&whole, [other.to_str().unwrap(), "lamp"]);
    assert_fails(&found, 1, &["whole.parquet was made with pooling", "other.parquet with", "one by one"]);
    let model = fixture(MODEL);
    let args = ["corpus.txt", "-m", model.to_str().unwrap(), "--dimensions", "32"];
    fs::write(folder.path().join("corpus.txt"), "a").unwrap();
    let found = sconce().current_dir(&folder).arg("search").arg(&whole).args(args).output().unwrap();
    assert!(stderr(&found).contains("hint: \"corpus.txt\" is taken as a query"), "{}", stderr(&found));
}

#[test]
fn columns_are_chosen_with_keep() {
    let found = search_stored("f32.parquet", &["-k", "1", "--keep", "id"]);
    let keys: Vec<&str> = found[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys, ["query", "rank", "index", "id", "score"]);
    let queries = stored("queries.npy");
    let args = ["--query-vectors", queries.to_str().unwrap(), "--keep", "colour"];
    assert_fails(&search(&stored("f32.parquet"), args), 2, &["--keep colour", "columns: id, year"]);
}

#[test]
fn the_prompt_of_queries_is_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    crate::support::copy_folder(&fixture(MODEL), &model);
    let prompts =
        json!({"prompts": {"query": "a key the ", "document": "lamp "}, "default_prompt_name": null});
    fs::write(model.join("config_sentence_transformers.json"), prompts.to_string()).unwrap();
    let model = model.to_str().unwrap();
    let make = |name: &str, prompt: &str| {
        let (input, output) = (corpus(folder.path()), folder.path().join(name));
        let found = sconce()
            .args([
                "embed",
                "-m",
                model,
                "--prompt-name",
                prompt,
                "-i",
                input.to_str().unwrap(),
                "-o",
                output.to_str().unwrap(),
            ])
            .output()
            .unwrap();
        assert!(found.status.success(), "{}", stderr(&found));
        output
    };
    let (documents, queries) = (make("documents.npy", "document"), make("queries.parquet", "query"));
    let find = |file: &Path, more: &[&str]| {
        search(file, [&["the lamp", "-m", model, "--output-format", "jsonl"], more].concat())
    };
    let found = rows(&find(&documents, &[]));
    assert_eq!(found, rows(&find(&documents, &["--prompt-name", "query"])));
    assert_ne!(found, rows(&find(&documents, &["--prompt", ""])));
    assert_fails(&find(&queries, &[]), 1, &["queries.parquet", "a key the", "--prompt-name document"]);
    assert_eq!(rows(&find(&queries, &["--prompt-name", "query"])).len(), 10);
}

#[test]
fn vectors_of_another_model_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let find = |file: &Path, model: &str, more: &[&str]| {
        let model = fixture(model);
        search(file, [&["a lamp", "-m", model.to_str().unwrap()], more].concat())
    };
    for format in ["parquet", "arrow", "safetensors", "npy"] {
        let file = embedded(folder.path(), &format!("a.{format}"), &[]);
        let name = file.to_str().unwrap();
        let found = find(&file, "bert-relu", &["--dimensions", "32"]);
        assert_fails(&found, 1, &[name, "was made by", "--model"]);
        assert_fails(&find(&file, MODEL, &[]), 1, &[name, "32 dimensions", "--dimensions"]);
        assert_fails(
            &find(&file, MODEL, &["--dimensions", "32", "--pooling", "max"]),
            1,
            &[name, "pooling", "--pooling"],
        );
        let unit = embedded(folder.path(), &format!("unit.{format}"), &["--normalize"]);
        let unnormalized = ["--dimensions", "32", "--no-normalize", "--metric"];
        let found = find(&unit, MODEL, &[&unnormalized[..], &["dot"]].concat());
        assert_fails(&found, 1, &[unit.to_str().unwrap(), "normalized true", "--normalize"]);
        let found = find(&unit, MODEL, &[&unnormalized[..], &["cosine"]].concat());
        assert!(found.status.success(), "{}", stderr(&found));
    }
    let a = embedded(folder.path(), "a.parquet", &[]);
    let b = folder.path().join("b.parquet");
    let other =
        ["-i", corpus(folder.path()).to_str().unwrap(), "-o", b.to_str().unwrap(), "--dimensions", "32"]
            .map(String::from);
    assert!(embed("bert-relu", &other).status.success());
    let found = search(&a, ["--query-vectors", b.to_str().unwrap()]);
    assert_fails(&found, 1, &["a.parquet", "b.parquet", "weights_sha256"]);
}

#[test]
fn vectors_of_tokens_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["parquet", "arrow", "jsonl"] {
        let (input, output) = (corpus(folder.path()), folder.path().join(format!("tokens.{format}")));
        let args = ["-i", input.to_str().unwrap(), "-o", output.to_str().unwrap(), "--pooling", "none"];
        assert!(embed(MODEL, args).status.success());
        let found = search(&output, ["--query-vectors", stored("queries.npy").to_str().unwrap()]);
        assert_fails(&found, 1, &[output.to_str().unwrap(), "one vector per token"]);
    }
}

#[test]
fn truncated_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for format in FORMATS {
        let file = embedded(folder.path(), &format!("a.{format}"), &[]);
        let bytes = fs::read(&file).unwrap();
        // The metadata of npy is that of the whole file.
        fs::write(&file, &bytes[..bytes.len() - 70]).unwrap();
        let model = fixture(MODEL);
        let found = search(&file, ["a lamp", "--dimensions", "32", "-m", model.to_str().unwrap()]);
        assert_fails(&found, 1, &[file.to_str().unwrap()]);
    }
}

#[test]
fn values_that_are_not_finite_are_refused_with_their_row() {
    let folder = tempfile::tempdir().unwrap();
    let queries = stored("queries.npy");
    let args = ["--query-vectors", queries.to_str().unwrap()];
    let mut bytes = fs::read(stored("f32.npy")).unwrap();
    let at = bytes.len() - 4 * 40 * 3;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let file = folder.path().join("nan.npy");
    fs::write(&file, &bytes).unwrap();
    assert_fails(&search(&file, args), 1, &["nan.npy", "row 298", "not finite"]);
    assert_fails(
        &search(&stored("f32.npy"), ["--query-vectors", file.to_str().unwrap()]),
        1,
        &["query 299", "not finite"],
    );
    let line = |element: &str| format!("{{\"index\":0,\"embedding\":[{}{element}]}}\n", "0.5,".repeat(39));
    let file = folder.path().join("nan.jsonl");
    fs::write(&file, line("0.5") + &line("null")).unwrap();
    assert_fails(&search(&file, args), 1, &["nan.jsonl", "row 1", "null"]);
    fs::write(&file, line("0.5") + &line("0.5,0.5")).unwrap();
    assert_fails(&search(&file, args), 1, &["nan.jsonl", "row 1", "41 elements"]);
}

#[test]
fn files_that_are_no_vector_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let queries = stored("queries.npy");
    let args = ["--query-vectors", queries.to_str().unwrap()];
    let refused: [(&str, &[u8], &str); 6] = [
        ("empty.npy", b"", "is empty"),
        ("table.csv", b"id,text\n1,a lamp\n", "is not a vector file"),
        ("texts.jsonl", b"{\"text\":\"a lamp\"}\n", "field \"embedding\""),
        ("packed.jsonl.gz", b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x00", "is compressed"),
        ("flat.npy", b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (), }              \n", "shape ()"),
        ("wide.npy", b"\x93NUMPY\x01\x00\x46\x00{'descr': '<i8', 'fortran_order': False, 'shape': (0, 4), }          \n", "<i8"),
    ];
    for (name, bytes, reason) in refused {
        let file = folder.path().join(name);
        fs::write(&file, bytes).unwrap();
        assert_fails(&search(&file, args), 1, &[name, reason]);
    }
    assert_fails(&search(&folder.path().join("absent.npy"), args), 1, &["absent.npy", "check the path"]);
    let empty = tempfile::tempdir().unwrap();
    assert_fails(&search(empty.path(), args), 2, &["is a directory without files"]);
}

#[test]
fn a_query_over_the_limit_is_refused_unless_it_may_be_truncated() {
    let folder = tempfile::tempdir().unwrap();
    let file = embedded(folder.path(), "a.npy", &[]);
    let long = "lamp ".repeat(100);
    let model = fixture(MODEL);
    let find = |more: &[&str]| {
        search(
            &file,
            [&["a lamp", &long, "-m", model.to_str().unwrap(), "--dimensions", "32"], more].concat(),
        )
    };
    assert_fails(&find(&[]), 1, &["query 2", "limit of 24", "--on-long truncate"]);
    for action in ["truncate", "mean"] {
        let found = find(&["--on-long", action]);
        assert!(found.status.success(), "{}", stderr(&found));
    }
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = embedded(folder.path(), "a.parquet", &["--keep", "year"]);
    let name = file.to_str().unwrap();
    let refused: [(&[&str], &str); 8] = [
        (&["a", "--temperature", "0.5"], "--weights"),
        (&["a", "--weights", "uniform", "--temperature", "0.5"], "--temperature"),
        (&["a", "--weights", "softmax", "--temperature", "0"], "above 0"),
        (&["a", "--value-field", "year"], "--weights"),
        (&["a", "--weights", "softmax", "--value-field", "colour"], "columns: "),
        (
            &["part-2.npy", "--queries", "q.txt"],
            "\"part-2.npy\" is not a file but a query, and --queries reads",
        ),
        (&["a", "--text-field", "q"], "--text-field"),
        (&["a", "-k", "0"], "-k"),
    ];
    for (args, reason) in refused {
        let found = search(&file, args);
        assert_eq!(found.status.code(), Some(2), "{args:?}: {}", stderr(&found));
        assert!(stderr(&found).contains(reason), "{args:?}: {}", stderr(&found));
    }
    let queries = folder.path().join("q.npy");
    fs::copy(stored("queries.npy"), &queries).unwrap();
    assert_fails(
        &search(&file, ["--query-vectors", queries.to_str().unwrap(), "-o", name]),
        2,
        &["also an input"],
    );
    let rescore = ["--query-vectors", queries.to_str().unwrap(), "--rescore", name];
    assert_fails(&search(&stored("f32.npy"), rescore), 1, &["--rescore", "90 vectors"]);
}

#[test]
fn an_empty_file_has_no_neighbours() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none.npy");
    let header =
        b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (0, 40), }         \n";
    fs::write(&file, header).unwrap();
    let queries = stored("queries.npy");
    let found = search(&file, ["--query-vectors", queries.to_str().unwrap(), "--output-format", "jsonl"]);
    assert!(rows(&found).is_empty());
}

/// A sparse file of 1.6 GB in 1 GB of address space.
#[test]
#[cfg(target_os = "linux")]
fn a_file_may_be_larger_than_the_memory() {
    let folder = tempfile::tempdir().unwrap();
    let (file, rows_of_file) = (folder.path().join("large.npy"), 2_600_000u64);
    let mut header = format!("\u{93}NUMPY\u{1}\u{0}v\u{0}{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows_of_file}, 160), }}")
        .chars()
        .map(|c| c as u8)
        .collect::<Vec<u8>>();
    header.resize(127, b' ');
    header.push(b'\n');
    fs::write(&file, &header).unwrap();
    File::options().write(true).open(&file).unwrap().set_len(128 + 4 * 160 * rows_of_file).unwrap();
    let query = folder.path().join("query.jsonl");
    fs::write(&query, format!("{{\"embedding\":[{}0.5]}}\n", "0.5,".repeat(159))).unwrap();
    let command = format!(
        "ulimit -v 1000000; exec '{}' search '{}' --query-vectors '{}' -k 2 --output-format jsonl",
        env!("CARGO_BIN_EXE_sconce"),
        file.display(),
        query.display()
    );
    let found = rows(&Command::new("sh").args(["-c", &command]).output().unwrap());
    let found: Vec<(&Value, &Value)> = found.iter().map(|row| (&row["index"], &row["score"])).collect();
    assert_eq!(found, [(&json!(0), &json!(0.0)), (&json!(1), &json!(0.0))]);
}
