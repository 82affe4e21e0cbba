//! The outputs of models like BGE-M3 and gte-multilingual-base: lexical weights, vectors of tokens, and
//! several outputs of one forward pass, against FlagEmbedding. The models are made by
//! `scripts/fixtures/make_unified_fixtures.py`.

use crate::support::arrow;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Float32Type, Int32Type};
use arrow::ipc::reader::FileReader;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

use crate::support::{
    KilledRun, assert_fails, assert_resumes, copy_folder, first_difference, fixture, goldens, model_command,
    numbers, rows, stderr, stdout,
};

/// Tolerance of weights, vectors and scores.
const ATOL: f32 = 1e-5;
/// All outputs of one pass.
const ALL: [&str; 2] = ["--outputs", "dense,lexical,multi-vector"];

fn model(name: &str) -> PathBuf {
    fixture("unified").join(name)
}

fn run(command: &str, model: &Path, args: &[&str]) -> Output {
    model_command(command, model, args).output().unwrap()
}

fn texts(goldens: &Value) -> Vec<&str> {
    goldens["texts"].as_array().unwrap().iter().map(|row| row["text"].as_str().unwrap()).collect()
}

/// A jsonl file of texts.
fn input(folder: &Path, texts: &[&str]) -> String {
    let path = folder.join("texts.jsonl");
    let lines: String = texts.iter().map(|text| format!("{}\n", json!({"text": text}))).collect();
    fs::write(&path, lines).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The tokens of the vocabulary by their ids.
fn vocabulary(model: &Path) -> Vec<String> {
    let tokenizer: Value = serde_json::from_slice(&fs::read(model.join("tokenizer.json")).unwrap()).unwrap();
    let vocabulary = tokenizer["model"]["vocab"].as_array().unwrap().iter();
    vocabulary.map(|entry| entry[0].as_str().unwrap().to_owned()).collect()
}

/// Asserts that the weights of a row of jsonl are those of pairs of id and weight.
#[track_caller]
fn assert_weights(found: &Value, expected: &Value, vocabulary: &[String], what: &str) {
    let found = found.as_object().unwrap();
    let expected = expected.as_array().unwrap();
    assert_eq!(found.len(), expected.len(), "{what}");
    for pair in expected {
        let token = &vocabulary[pair[0].as_u64().unwrap() as usize];
        let own = found[token].as_f64().unwrap_or_else(|| panic!("{what}: no weight of {token}"));
        assert!((own - pair[1].as_f64().unwrap()).abs() < f64::from(ATOL), "{what} {token}: {own}, {pair}");
    }
}

/// The vectors of tokens, concatenated.
fn flat(vectors: &Value) -> Vec<f32> {
    vectors.as_array().unwrap().iter().flat_map(numbers).collect()
}

#[test]
fn three_outputs_of_one_pass_are_those_of_flag_embedding() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("m3");
    let (goldens, vocabulary) = (goldens(&model), vocabulary(&model));
    let path = input(folder.path(), &texts(&goldens));
    let all = rows(&run("embed", &model, &[&["-i", &path], &ALL[..]].concat()));
    let alone = |pooling| rows(&run("embed", &model, &["-i", &path, "--pooling", pooling]));
    let (dense, lexical, tokens) = (alone("auto"), alone("lexical"), alone("multi-vector"));
    for (i, expected) in goldens["texts"].as_array().unwrap().iter().enumerate() {
        let (row, text) = (&all[i], &expected["text"]);
        assert_weights(&row["weights"], &expected["lexical"], &vocabulary, &text.to_string());
        for (found, expected) in [
            (numbers(&row["embedding"]), numbers(&expected["dense"])),
            (flat(&row["embeddings"]), flat(&expected["tokens"])),
        ] {
            assert_eq!(first_difference(&found, &expected, ATOL, 0.0), None, "{text}");
        }
        // Alone, each output has the same bits.
        assert_eq!(row["embedding"], dense[i]["embedding"], "{text}");
        assert_eq!(row["weights"], lexical[i]["weights"], "{text}");
        assert_eq!(row["embeddings"], tokens[i]["embeddings"], "{text}");
        assert_eq!((&row["tokens"], &row["truncated"]), (&dense[i]["tokens"], &dense[i]["truncated"]));
        let one = rows(&run("embed", &model, &[&ALL[..], &["--", text.as_str().unwrap()]].concat()));
        let content = |row: &Value| ["embedding", "weights", "embeddings"].map(|key| row[key].clone());
        assert_eq!(content(&one[0]), content(row), "alone and in a batch: {text}");
    }
    // Without the vector, its modules are not in the row.
    let two = rows(&run("embed", &model, &["--outputs", "multi-vector,lexical", "the lamp burns"]));
    assert_eq!(two[0].as_object().unwrap().len(), 5);
    assert_eq!((&two[0]["weights"], &two[0]["embeddings"]), (&all[0]["weights"], &all[0]["embeddings"]));
}

#[test]
fn lexical_weights_of_a_token_classifier_are_those_of_gte() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("gte");
    let (goldens, vocabulary) = (goldens(&model), vocabulary(&model));
    let path = input(folder.path(), &texts(&goldens));
    let found = rows(&run("embed", &model, &["-i", &path, "--outputs", "dense,lexical"]));
    let alone = rows(&run("embed", &model, &["-i", &path, "--pooling", "lexical"]));
    for ((row, alone), expected) in found.iter().zip(&alone).zip(goldens["texts"].as_array().unwrap()) {
        let text = expected["text"].to_string();
        assert_weights(&row["weights"], &expected["lexical"], &vocabulary, &text);
        assert_eq!(row["weights"], alone["weights"], "{text}");
        let difference =
            first_difference(&numbers(&row["embedding"]), &numbers(&expected["dense"]), ATOL, 0.0);
        assert_eq!(difference, None, "{text}");
        assert!(row.get("embeddings").is_none());
    }
}

#[test]
fn scores_of_weights_and_of_token_vectors_are_those_of_flag_embedding() {
    let model = model("m3");
    let goldens = goldens(&model);
    let texts = texts(&goldens);
    for (pooling, scores) in [("lexical", "lexical"), ("multi-vector", "tokens")] {
        let expected = numbers(&goldens["scores"][scores]);
        let args = [&["--json", "--pooling", pooling, "--"], &texts[..]].concat();
        let similar = stdout(&run("similarity", &model, &args));
        let similar: Value = serde_json::from_str(&similar).unwrap();
        let found = flat(&similar["similarities"]);
        assert_eq!(first_difference(&found, &expected, ATOL, ATOL), None, "{pooling}");
        let args = [&["--query", texts[1], "--pooling", pooling, "--"], &texts[..]].concat();
        let scores: Vec<f32> = rows(&run("rerank", &model, &args))
            .iter()
            .map(|row| row["score"].as_f64().unwrap() as f32)
            .collect();
        let own = &expected[texts.len()..2 * texts.len()];
        assert_eq!(first_difference(&scores, own, ATOL, ATOL), None, "rerank {pooling}");
    }
}

/// The similarity function and the number of elements in the settings are for the model's own vectors.
#[test]
fn settings_of_vectors_do_not_change_lexical_weights() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model("m3"), folder.path());
    let score =
        || stdout(&run("similarity", folder.path(), &["--pooling", "lexical", "the lamp", "the lamp burns"]));
    let before = score();
    let settings = json!({"similarity_fn_name": "cosine", "max_active_dims": 1});
    fs::write(folder.path().join("config_sentence_transformers.json"), settings.to_string()).unwrap();
    assert_eq!(score(), before);
}

#[test]
fn search_compares_lexical_weights_by_their_dot_products() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("m3");
    let goldens = goldens(&model);
    let texts = texts(&goldens);
    let path = input(folder.path(), &texts);
    for extension in ["parquet", "jsonl", "npz"] {
        let file = folder.path().join(format!("weights.{extension}"));
        let file = file.to_str().unwrap();
        let written = run("embed", &model, &["-i", &path, "-o", file, "--pooling", "lexical"]);
        assert!(written.status.success(), "{}", stderr(&written));
        let args = [file, texts[1], "--pooling", "lexical", "--output-format", "jsonl", "-k", "1"];
        let found = rows(&run("search", &model, &args));
        let expected = numbers(&goldens["scores"]["lexical"])[texts.len() + 1];
        assert_eq!(found[0]["index"], 1, "{extension}");
        assert!((found[0]["score"].as_f64().unwrap() as f32 - expected).abs() < ATOL, "{extension}");
    }
}

#[test]
fn search_compares_the_vectors_of_a_file_with_several_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("m3");
    for extension in ["parquet", "jsonl"] {
        let write = |name: &str, args: &[&str]| {
            let file = folder.path().join(format!("{name}.{extension}")).to_str().unwrap().to_owned();
            let texts = ["-o", &file, "the lamp burns", "a key", "of the lamp"];
            assert!(run("embed", &model, &[args, &texts].concat()).status.success());
            file
        };
        let (dense, outputs) = (write("dense", &[]), write("outputs", &ALL));
        let search = |file: &str| rows(&run("search", &model, &[file, "a lamp", "--output-format", "jsonl"]));
        assert_eq!(search(&outputs), search(&dense), "{extension}: the other outputs are no kept columns");
    }
}

#[test]
fn parquet_and_arrow_have_a_column_for_each_output() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("m3");
    let goldens = goldens(&model);
    let path = input(folder.path(), &texts(&goldens));
    let rows = rows(&run("embed", &model, &[&["-i", &path], &ALL[..]].concat()));
    for extension in ["parquet", "arrow"] {
        let file = folder.path().join(format!("out.{extension}"));
        let args = ["-i", &path, "-o", file.to_str().unwrap(), "--output-dtype", "f32"];
        let written = run("embed", &model, &[&args[..], &ALL].concat());
        assert!(written.status.success(), "{}", stderr(&written));
        let file = fs::File::open(&file).unwrap();
        let (batch, metadata) = if extension == "arrow" {
            let mut reader = FileReader::try_new(file, None).unwrap();
            let batch = reader.next().unwrap().unwrap();
            (batch, reader.schema().metadata().clone())
        } else {
            let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
            let metadata = reader.schema().metadata().clone();
            (reader.build().unwrap().next().unwrap().unwrap(), metadata)
        };
        let schema = batch.schema();
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["index", "tokens", "truncated", "embedding", "indices", "values", "embeddings"]);
        assert_eq!(metadata["sconce.outputs"], "dense,lexical,multi-vector");
        assert!(matches!(batch["embedding"].data_type(), DataType::FixedSizeList(_, 24)));
        for (i, row) in rows.iter().enumerate() {
            let vector = batch["embedding"].as_fixed_size_list().value(i);
            assert_eq!(vector.as_primitive::<Float32Type>().values().to_vec(), numbers(&row["embedding"]));
            let tokens = batch["embeddings"].as_list::<i32>().value(i);
            let tokens = tokens.as_fixed_size_list().values().as_primitive::<Float32Type>().values().to_vec();
            let expected = flat(&row["embeddings"]);
            assert!(tokens.windows(expected.len()).any(|part| part == expected), "{extension} {i}");
            let indices = batch["indices"].as_list::<i32>().value(i);
            let indices: Vec<i32> = indices.as_primitive::<Int32Type>().values().to_vec();
            let ids = goldens["texts"][i]["lexical"].as_array().unwrap().iter();
            assert_eq!(indices, ids.map(|pair| pair[0].as_i64().unwrap() as i32).collect::<Vec<_>>());
            let values = batch["values"].as_list::<i32>().value(i);
            let mut values: Vec<f32> = values.as_primitive::<Float32Type>().values().to_vec();
            values.sort_by(|a, b| b.total_cmp(a));
            let weights = row["weights"].as_object().unwrap().values();
            assert_eq!(values, weights.map(|weight| weight.as_f64().unwrap() as f32).collect::<Vec<_>>());
        }
    }
}

#[test]
fn formats_that_hold_one_array_refuse_several_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let model = model("m3");
    for (name, outputs, parts) in [
        ("out.npy", ALL[1], &["npy", "several outputs", "jsonl"][..]),
        ("out.safetensors", "dense,lexical", &["safetensors", "several outputs", "jsonl"]),
        ("out.npz", ALL[1], &["npz", "several outputs"]),
        ("out.csv", ALL[1], &["csv", "one vector per row"]),
    ] {
        let output = folder.path().join(name);
        let output = run("embed", &model, &["--outputs", outputs, "-o", output.to_str().unwrap(), "a lamp"]);
        assert_fails(&output, 2, parts);
    }
    let csv = folder.path().join("two.csv");
    let written = run("embed", &model, &["--outputs", "dense,lexical", "-o", csv.to_str().unwrap(), "lamp"]);
    assert!(written.status.success(), "{}", stderr(&written));
    let text = fs::read_to_string(csv).unwrap();
    let header = text.lines().next().unwrap();
    assert!(header.starts_with("index,tokens,truncated,e0,") && header.ends_with(",e23,weights"), "{header}");
}

#[test]
fn a_killed_run_with_several_outputs_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (0..40_000).map(|i| format!("{} key {i}", "the lamp ".repeat(i % 6))).collect();
    let path = input(folder.path(), &texts.iter().map(String::as_str).collect::<Vec<_>>());
    assert_resumes(&KilledRun {
        command: &|| model_command("embed", &model("m3"), &ALL),
        input: Path::new(&path),
        formats: &["jsonl", "parquet"],
        code: 0,
        changed: (&["--dimensions", "9"], &["--dimensions has changed", "--restart"]),
    });
}

#[test]
fn a_model_without_an_output_is_refused() {
    let bert = fixture("bert-tiny");
    let classifier = fixture("token-heads/ner-unigram");
    for (model, args, code, parts) in [
        (
            &bert,
            &["--pooling", "lexical"][..],
            1,
            &["no tensor classifier.weight", "no sparse_linear.pt", "BAAI/bge-m3"][..],
        ),
        (&classifier, &["--pooling", "lexical"], 1, &["6 logits per token", "BAAI/bge-m3"]),
        (&model("gte"), &["--pooling", "multi-vector"], 2, &["nothing projects its token vectors"]),
        (&model("gte"), &ALL, 2, &["--outputs multi-vector", "no colbert_linear.pt"]),
        (&bert, &["--outputs", "dense,lexical"], 1, &["no sparse_linear.pt"]),
        (&fixture("t5/gtr-t5"), &["--pooling", "lexical"], 1, &["the model has no lexical weights"]),
        (&fixture("static/potion"), &["--outputs", "dense,lexical"], 1, &["have no lexical weights head"]),
        (
            &fixture("sparse/bert-max"),
            &["--outputs", "dense,lexical"],
            1,
            &["a sparse encoder", "without lexical weights"],
        ),
        (&model("m3"), &["--outputs", "lexical"], 2, &["single output", "--pooling lexical"]),
        (&model("m3"), &["--outputs", "dense,dense"], 2, &["twice"]),
        (&model("m3"), &["--outputs", "dense,lexical", "--chunk", "9"], 2, &["--chunk", "--outputs"]),
        (&model("m3"), &["--outputs", "dense,lexical", "--output-dtype", "int8"], 2, &["int8", "f16"]),
        (
            &model("m3"),
            &["--pooling", "lexical", "--dimensions", "9"],
            2,
            &["--dimensions", "--pooling lexical"],
        ),
    ] {
        assert_fails(&run("embed", model, &[args, &["a lamp"]].concat()), code, parts);
    }
    // Its head has one logit, too: of a text, not of a token.
    let cross_encoder = fixture("heads/cross-encoder-bert");
    let output = run("embed", &cross_encoder, &["--pooling", "lexical", "a lamp"]);
    assert_fails(&output, 1, &["a cross-encoder", "without lexical weights"]);
}

#[test]
fn a_damaged_layer_is_named_only_if_it_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model("m3"), folder.path());
    for name in ["sparse_linear.pt", "colbert_linear.pt"] {
        fs::write(folder.path().join(name), b"PK").unwrap();
    }
    let folder = folder.path();
    assert!(run("embed", folder, &["a lamp"]).status.success());
    assert_fails(&run("embed", folder, &["--pooling", "lexical", "a"]), 1, &["sparse_linear.pt"]);
    assert_fails(&run("embed", folder, &["--pooling", "multi-vector", "a"]), 1, &["colbert_linear.pt"]);
    // Layers of another model.
    fs::copy(model("m3").join("colbert_linear.pt"), folder.join("sparse_linear.pt")).unwrap();
    let output = run("embed", folder, &["--pooling", "lexical", "a"]);
    assert_fails(&output, 1, &["sparse_linear.pt", "weight has shape [24, 24]", "[1, 24]"]);
}

#[test]
fn inspect_names_the_lexical_weights() {
    for name in ["m3", "gte"] {
        let text = stdout(&run("inspect", &model(name), &[]));
        assert!(text.contains("sconce embed --pooling lexical"), "{name}: {text}");
    }
}
