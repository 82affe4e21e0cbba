//! Sparse vectors compared: `similarity`, `rerank` and `search` with sparse encoders, against
//! sentence-transformers' `SparseEncoder` and plain loops. The models are made by
//! `scripts/fixtures/make_masked_lm_fixtures.py`.

use crate::support::arrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, LargeListArray, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field};
use arrow::ipc::writer::StreamWriter;
use serde_json::{Value, json};

use crate::support::{
    KilledRun, assert_fails, assert_resumes, copy_folder, first_difference, fixture, goldens, model_command,
    numbers, rows, sconce, stderr, stdout,
};

/// Tolerance of similarities.
const ATOL: f32 = 1e-5;

fn run(command: &str, model: &Path, args: &[&str]) -> Output {
    model_command(command, model, args).output().unwrap()
}

fn texts(goldens: &Value) -> Vec<&str> {
    goldens["texts"].as_array().unwrap().iter().map(|row| row["text"].as_str().unwrap()).collect()
}

/// Scores in the order of the rows.
fn scores(rows: &[Value]) -> Vec<f32> {
    rows.iter().map(|row| row["score"].as_f64().unwrap() as f32).collect()
}

#[test]
fn similarities_are_those_of_the_sparse_encoder() {
    for name in ["bert-max", "bert-sum", "bert-legacy", "distilbert-log1p"] {
        let model = fixture("sparse").join(name);
        let goldens = goldens(&model);
        let texts = texts(&goldens);
        let found = stdout(&run("similarity", &model, &[&["--json", "--"], &texts[..]].concat()));
        let found: Value = serde_json::from_str(&found).unwrap();
        assert_eq!(found["metric"], "dot");
        for (i, expected) in goldens["similarity"].as_array().unwrap().iter().enumerate() {
            let expected = numbers(expected);
            let differs = |found: &[f32]| first_difference(found, &expected, ATOL, ATOL);
            if let Some(difference) = differs(&numbers(&found["similarities"][i])) {
                panic!("{name} similarity {i}: {difference}");
            }
            let reranked = run("rerank", &model, &[&["--query", texts[i], "--"], &texts[..]].concat());
            if let Some(difference) = differs(&scores(&rows(&reranked))) {
                panic!("{name} rerank {i}: {difference}");
            }
        }
    }
}

/// Texts of the words of the vocabulary, with an id each; some are equal.
fn corpus(folder: &Path) -> PathBuf {
    let words = ["lamp", "wick", "flame", "key", "the", "a", "burns", "light", "query", "value"];
    let line = |i: usize| {
        let text: Vec<&str> = (0..1 + i % 9).map(|j| words[(i * i + 3 * j * (i + 1) + j) % 10]).collect();
        json!({"id": format!("d{i}"), "text": text.join(" ")}).to_string() + "\n"
    };
    let path = folder.join("corpus.jsonl");
    fs::write(&path, (0..700).map(line).collect::<String>()).unwrap();
    path
}

const QUERIES: [&str; 3] = ["the lamp burns", "a key", "attention of the flame"];

/// Embeds texts into a file.
fn embedded(model: &Path, output: PathBuf, args: &[&str]) -> PathBuf {
    let written = run("embed", model, &[args, &["-o", output.to_str().unwrap()]].concat());
    assert!(written.status.success(), "{}", stderr(&written));
    output
}

fn search(model: &Path, file: &Path, args: &[&str]) -> Output {
    let common = [file.to_str().unwrap(), "--output-format", "jsonl"];
    run("search", model, &[&common, args].concat())
}

/// A file of sparse vectors in jsonl.
fn weights(path: &Path) -> Vec<BTreeMap<String, f32>> {
    let lines = fs::read_to_string(path).unwrap();
    let row = |line: &str| serde_json::from_str::<Value>(line).unwrap()["weights"].clone();
    lines.lines().map(|line| serde_json::from_value(row(line)).unwrap()).collect()
}

/// The `k` rows with the greatest dot products, by a loop over all rows, queries and tokens.
fn plain_search(documents: &Path, queries: &Path, k: usize) -> Vec<Vec<(usize, f32)>> {
    let documents = weights(documents);
    let of_query = |query: &BTreeMap<String, f32>| {
        let score = |document: &BTreeMap<String, f32>| {
            let products = query.iter().map(|(token, weight)| {
                f64::from(*weight) * f64::from(document.get(token).copied().unwrap_or_default())
            });
            products.sum::<f64>() as f32
        };
        let mut scores: Vec<(usize, f32)> = documents.iter().map(score).enumerate().collect();
        scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        scores.truncate(k);
        scores
    };
    weights(queries).iter().map(of_query).collect()
}

/// Compares found neighbours with expected ones. Sums in another order may differ in their last bit, and then
/// so may the order of rows.
fn assert_neighbours(found: &[Value], expected: &[Vec<(usize, f32)>], what: &str) {
    assert_eq!(found.len(), expected.iter().map(Vec::len).sum::<usize>(), "{what}");
    let mut found = found.iter();
    for (query, expected) in expected.iter().enumerate() {
        for (rank, (index, score)) in expected.iter().enumerate() {
            let row = found.next().unwrap();
            assert_eq!((&row["query"], &row["rank"]), (&json!(query), &json!(rank)), "{what}");
            let own = row["score"].as_f64().unwrap() as f32;
            assert!((own - score).abs() <= 1e-6 * score, "{what}: {row}, expected {score}");
            let same = expected.iter().find(|(other, _)| row["index"] == json!(other));
            assert!(row["index"] == json!(index) || same.is_some_and(|same| (same.1 - score).abs() < 1e-5));
        }
    }
}

#[test]
fn neighbours_are_those_of_a_plain_loop_for_every_format_and_kind_of_query() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("sparse/bert-max");
    let input = corpus(folder.path());
    let input = ["-i", input.to_str().unwrap()];
    let in_format = |extension: &str| {
        let file = folder.path().join(format!("corpus.{extension}"));
        let queries = folder.path().join(format!("queries.{extension}"));
        (embedded(&model, file, &input), embedded(&model, queries, &QUERIES))
    };
    let (documents, queries) = in_format("weights.jsonl");
    let expected = plain_search(&documents, &queries, 12);
    for (file, queries) in [(documents, queries), in_format("parquet"), in_format("arrow"), in_format("npz")]
    {
        let name = file.display().to_string();
        let has_ids = !name.ends_with("npz");
        let by_model = rows(&search(&model, &file, &[&QUERIES[..], &["-k", "12"]].concat()));
        assert_neighbours(&by_model, &expected, &name);
        for row in &by_model {
            let id = if has_ids { json!(format!("d{}", row["index"])) } else { Value::Null };
            assert_eq!(row["id"], id, "{name}");
            assert!(row.get("weights").or(row.get("values")).is_none(), "{row}");
        }
        let by_vectors = ["--query-vectors", queries.to_str().unwrap(), "-k", "12", "--threads", "1"];
        assert_eq!(rows(&search(&model, &file, &by_vectors)), by_model, "{name}");
        let alone = rows(&search(&model, &file, &[QUERIES[1], "-k", "12", "--metric", "dot"]));
        assert_eq!(scores(&alone), scores(&by_model[12..24]), "{name}");
        let threshold = by_model[4]["score"].to_string();
        let found = rows(&search(&model, &file, &[QUERIES[0], "--threshold", &threshold]));
        assert_eq!(scores(&found), scores(&by_model[..found.len()]), "{name}");
        let reaches = |score: &f32| *score >= scores(&by_model)[4];
        assert!(found.len() >= 5 && scores(&found).iter().all(reaches), "{name}");
    }
}

/// A file with one row of lists, as other software may write them.
fn lists(path: &Path, indices: Vec<Option<i64>>, values: Vec<f64>) {
    let list = |values: ArrayRef, item: DataType| -> ArrayRef {
        let offsets = OffsetBuffer::from_lengths([values.len()]);
        Arc::new(LargeListArray::new(Arc::new(Field::new("item", item, true)), offsets, values, None))
    };
    let indices = list(Arc::new(Int64Array::from(indices)), DataType::Int64);
    let values = list(Arc::new(Float64Array::from(values)), DataType::Float64);
    let batch = RecordBatch::try_from_iter([("indices", indices), ("values", values)]).unwrap();
    let mut writer = StreamWriter::try_new(fs::File::create(path).unwrap(), &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
}

#[test]
fn lists_of_other_software_are_read_and_malformed_ones_named() {
    let folder = tempfile::tempdir().unwrap();
    let (file, queries) = (folder.path().join("a.arrows"), folder.path().join("q.arrows"));
    lists(&queries, vec![Some(3), Some(90_000)], vec![2.0, 0.5]);
    let search = || {
        let mut command = sconce();
        command.arg("search").arg(&file).arg("--query-vectors").arg(&queries);
        command.args(["--output-format", "jsonl"]).output().unwrap()
    };
    lists(&file, vec![Some(90_000), Some(7), Some(3)], vec![4.0, 1.0, 1.0]);
    assert_eq!(rows(&search())[0]["score"], 4.0);
    let name = file.to_str().unwrap();
    for (indices, values, part) in [
        (vec![Some(1)], vec![1.0, 2.0], "row 0 has 1 indices and 2 values"),
        (vec![Some(1), Some(-1)], vec![1.0, 2.0], "row 0 has an index that is not from 0"),
        (vec![Some(1 << 40)], vec![1.0], "row 0 has an index that is not from 0"),
        (vec![None], vec![1.0], "row 0 has an element that is null"),
        (vec![Some(1)], vec![f64::NAN], "row 0 has a value that is not finite"),
    ] {
        lists(&file, indices, values);
        assert_fails(&search(), 1, &[name, part]);
    }
}

#[test]
fn vectors_that_cannot_be_compared_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (model, other, dense) =
        (fixture("sparse/bert-max"), fixture("sparse/bert-sum"), fixture("bert-tiny"));
    let file = |name: &str, model: &Path| embedded(model, folder.path().join(name), &["the lamp"]);
    let (parquet, jsonl) = (file("a.parquet", &model), file("a.jsonl", &model));
    let dense_file = file("dense.parquet", &dense);
    assert_fails(&search(&dense, &parquet, &["a"]), 1, &["a.parquet", "sparse vector", "have one vector"]);
    assert_fails(&search(&model, &dense_file, &["a"]), 1, &["dense.parquet", "have a sparse vector"]);
    assert_fails(&search(&other, &parquet, &["a"]), 1, &["a.parquet", "other weights", "--model"]);
    let query_vectors = ["--query-vectors", jsonl.to_str().unwrap()];
    assert_fails(&search(&model, &parquet, &query_vectors), 1, &["with tokens", "both as jsonl"]);
    assert_fails(&search(&model, &parquet, &["a", "--metric", "cosine"]), 2, &["--metric", "dot", "remove"]);
    let cosine = folder.path().join("cosine");
    copy_folder(&model, &cosine);
    let settings = json!({"model_type": "SparseEncoder", "similarity_fn_name": "cosine"}).to_string();
    fs::write(cosine.join("config_sentence_transformers.json"), settings).unwrap();
    assert_fails(&search(&cosine, &parquet, &["a"]), 2, &["similarity function", "cosine", "--metric dot"]);
    assert_eq!(rows(&search(&cosine, &parquet, &["the lamp", "--metric", "dot"])).len(), 1);
    let cosine_file = file("cosine.parquet", &cosine);
    let itself = ["--query-vectors", cosine_file.to_str().unwrap()];
    assert_fails(&search(&cosine, &cosine_file, &itself), 2, &["cosine", "--metric dot"]);
    let metric = run("similarity", &model, &["the lamp", "the lamp", "--metric", "cosine"]);
    assert_eq!(stdout(&metric), "1.000000\n");
    let rescore = ["a", "--rescore", parquet.to_str().unwrap()];
    assert_fails(&search(&model, &jsonl, &rescore), 2, &["--rescore", "sparse vectors"]);
    let pairs = sconce().arg("pairs").arg(&parquet).output().unwrap();
    assert_fails(&pairs, 1, &["a.parquet", "sparse vector", "one dense vector"]);
}

/// The elements of rows with weights, by the ids of the model's tokens.
fn assert_weights(found: &Output, expected: &[&Value], vocab: &Value, what: &str) {
    let found = rows(found);
    assert_eq!(found.len(), expected.len(), "{what}");
    for (row, expected) in found.iter().zip(expected) {
        let dense = |elements: &mut dyn Iterator<Item = (u64, f32)>| {
            let mut weights = vec![0.0; vocab.as_object().unwrap().len()];
            elements.for_each(|(id, weight)| weights[id as usize] = weight);
            weights
        };
        let own = row["weights"].as_object().unwrap().iter();
        let own = dense(
            &mut own.map(|(token, weight)| (vocab[token].as_u64().unwrap(), weight.as_f64().unwrap() as f32)),
        );
        let indices = expected["indices"].as_array().unwrap().iter();
        let values = numbers(&expected["values"]);
        let expected = dense(&mut indices.map(|id| id.as_u64().unwrap()).zip(values));
        if let Some(difference) = first_difference(&own, &expected, ATOL, ATOL) {
            panic!("{what}: {difference}");
        }
    }
}

#[test]
fn queries_of_a_router_are_weighted_without_the_encoder_and_documents_encoded() {
    for name in ["folders", "on-top"] {
        let model = fixture("sparse-router").join(name);
        let goldens = goldens(&model);
        let texts = texts(&goldens);
        let tokenizer = fs::read(model.join("query_0_SparseStaticEmbedding/tokenizer.json")).unwrap();
        let vocab = serde_json::from_slice::<Value>(&tokenizer).unwrap()["model"]["vocab"].clone();
        let golden = goldens["texts"].as_array().unwrap();
        let documents: Vec<&Value> = golden.iter().collect();
        let queries: Vec<&Value> = golden.iter().map(|row| &row["query"]).collect();
        let embed = |role: &str| run("embed", &model, &[&["--role", role, "--"], &texts[..]].concat());
        assert_weights(&embed("document"), &documents, &vocab, &format!("{name} document"));
        assert_weights(&embed("query"), &queries, &vocab, &format!("{name} query"));
        for (i, expected) in goldens["similarity"].as_array().unwrap().iter().enumerate() {
            let reranked = run("rerank", &model, &[&["--query", texts[i], "--"], &texts[..]].concat());
            let found = scores(&rows(&reranked));
            if let Some(difference) = first_difference(&found, &numbers(expected), ATOL, ATOL) {
                panic!("{name} rerank {i}: {difference}");
            }
        }
    }
}

#[test]
fn search_takes_the_route_of_queries_and_files_say_their_role() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("sparse-router/folders");
    let texts = ["the lamp burns", "a key", "the wick of the lamp"];
    let roles = ["document", "query"].map(|role| {
        embedded(
            &model,
            folder.path().join(format!("{role}.parquet")),
            &[&["--role", role], &texts[..]].concat(),
        )
    });
    let [documents, queries] = &roles;
    let by_model = rows(&search(&model, documents, &texts));
    let by_vectors = rows(&search(&model, documents, &["--query-vectors", queries.to_str().unwrap()]));
    assert_eq!(by_model, by_vectors);
    assert_fails(&search(&model, queries, &texts), 1, &["query.parquet", "--role query"]);
}

#[test]
fn queries_that_need_no_encoder_do_not_read_its_weights() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fixture("sparse-router/folders");
    let file =
        embedded(&whole, folder.path().join("documents.parquet"), &["--role", "document", "a lamp", "a key"]);
    let expected = run("embed", &whole, &["--role", "query", "the lamp"]);
    let model = folder.path().join("model");
    copy_folder(&whole, &model);
    let weights = ["0_MLMTransformer", "0_Transformer"]
        .map(|name| model.join(format!("document_{name}/model.safetensors")));
    let weights = weights.into_iter().find(|path| path.exists()).unwrap();
    fs::write(&weights, b"damaged").unwrap();
    let found = run("embed", &model, &["--role", "query", "the lamp"]);
    assert_eq!(rows(&found), rows(&expected));
    assert_fails(&run("embed", &model, &["a lamp"]), 1, &["model.safetensors"]);
    let of_whole = rows(&search(&whole, &file, &["the lamp"]));
    assert!(of_whole[0]["score"].as_f64().unwrap() > 0.0);
    // A prompt without a role takes the encoder.
    assert_fails(&search(&model, &file, &["--prompt", "a ", "lamp"]), 1, &["model.safetensors"]);
    let text = stdout(&run("inspect", &whole, &[]));
    assert!(text.contains("query weights     query_0_SparseStaticEmbedding"), "{text}");
}

#[test]
fn routes_that_are_not_supported_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    copy_folder(&fixture("sparse-router/on-top"), &model);
    let router = model.join("router_config.json");
    let own = fs::read_to_string(&router).unwrap();
    fs::write(&router, own.replace("\"query\": [", "\"question\": [")).unwrap();
    assert_fails(&run("embed", &model, &["a"]), 1, &["different encoders for queries and documents"]);
    fs::write(&router, own.replace("\"query_0_SparseStaticEmbedding\"", "\"../x\"")).unwrap();
    assert_fails(&run("embed", &model, &["a"]), 1, &["router_config.json", "outside the model's directory"]);
    fs::write(&router, own).unwrap();
    let config = model.join("query_0_SparseStaticEmbedding/config.json");
    fs::write(&config, r#"{"frozen": true, "path": "idf.json"}"#).unwrap();
    assert_fails(&run("embed", &model, &["a"]), 1, &["config.json", "idf.json", "model.safetensors"]);
}

/// A run that is killed goes on where it was in the same role, and its output has the bytes of an
/// uninterrupted run.
#[test]
fn a_killed_run_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("texts.txt");
    let lines = (0..40_000).map(|i| format!("{}the lamp {i}\n", "a wick ".repeat(i % 4)));
    fs::write(&input, lines.collect::<String>()).unwrap();
    assert_resumes(&KilledRun {
        command: &|| model_command("embed", &fixture("sparse-router/folders"), &[]),
        input: &input,
        formats: &["jsonl", "parquet", "npz"],
        code: 0,
        changed: (&["--role", "query"], &["--prompt has changed", "also changed: --role", "--restart"]),
    });
}

#[test]
fn npz_is_refused_for_dense_vectors_and_resumed_runs_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("sparse/bert-max");
    let file = embedded(&model, folder.path().join("a.npz"), &QUERIES);
    let piped = run("embed", &model, &[&["--output-format", "npz"], &QUERIES[..]].concat());
    assert!(piped.stdout == fs::read(&file).unwrap(), "a pipe gets the bytes of the file");
    let dense = run("embed", &fixture("bert-tiny"), &["a", "--output-format", "npz"]);
    assert_fails(&dense, 2, &["npz holds sparse vectors", "a vector"]);
    let mut bytes = fs::read(&file).unwrap();
    bytes.truncate(bytes.len() / 2);
    fs::write(&file, bytes).unwrap();
    assert_fails(&search(&model, &file, &["a"]), 1, &["a.npz", "npz"]);
}
