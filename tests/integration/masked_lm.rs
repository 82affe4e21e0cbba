//! `fill`, sentence pairs by `classify`, and `embed --pooling splade`: logits, tokens and weights are those
//! of `transformers` and sentence-transformers. The models are made by
//! `scripts/fixtures/make_masked_lm_fixtures.py`.

use crate::support::arrow;
use std::fs;
use std::path::Path;
use std::process::Output;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Float32Type, Int32Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Value, json};

use crate::support::{
    KilledRun, assert_close, assert_fails, assert_resumes, first_difference, fixture, goldens, model_command,
    numbers, rows, stderr,
};

/// Tolerance of logits, and of the scores of the pipeline.
const ATOL: f32 = 1e-4;
/// Tolerance of sparse weights.
const WEIGHT_ATOL: f32 = 1e-5;
/// Size of the vocabulary.
const VOCAB: usize = 97;

fn run(command: &str, model: &Path, args: &[&str]) -> Output {
    model_command(command, model, args).output().unwrap()
}

/// The models of a folder of fixtures.
fn models(kind: &str, count: usize) -> Vec<std::path::PathBuf> {
    let models: Vec<_> = fs::read_dir(fixture(kind)).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(models.len(), count);
    models
}

fn texts(goldens: &Value) -> Vec<&str> {
    goldens["texts"].as_array().unwrap().iter().map(|row| row["text"].as_str().unwrap()).collect()
}

#[test]
fn logits_of_every_mask_are_those_of_transformers() {
    for model in models("masked-lm", 35) {
        let goldens = goldens(&model);
        let args = [&["--raw", "--top-k", "0"], &texts(&goldens)[..]].concat();
        let found = rows(&run("fill", &model, &args));
        assert_eq!(found.len(), goldens["texts"].as_array().unwrap().len());
        for (row, expected) in found.iter().zip(goldens["texts"].as_array().unwrap()) {
            let (masks, expected) =
                (row["masks"].as_array().unwrap(), expected["logits"].as_array().unwrap());
            assert_eq!(masks.len(), expected.len(), "{}", model.display());
            for (mask, expected) in masks.iter().zip(expected) {
                let mut logits = vec![f32::NAN; VOCAB];
                for token in mask.as_array().unwrap() {
                    logits[token["id"].as_u64().unwrap() as usize] = token["score"].as_f64().unwrap() as f32;
                }
                if let Some(difference) = first_difference(&logits, &numbers(expected), ATOL, 0.0) {
                    panic!("{}: {difference}", model.display());
                }
            }
        }
    }
}

#[test]
fn tokens_and_scores_are_those_of_the_fill_mask_pipeline() {
    let field = |mask: &Value, key: &str| -> Vec<Value> {
        mask.as_array().unwrap().iter().map(|token| token[key].clone()).collect()
    };
    for model in models("masked-lm", 35) {
        let goldens = goldens(&model);
        let found = rows(&run("fill", &model, &texts(&goldens)));
        for (row, expected) in found.iter().zip(goldens["texts"].as_array().unwrap()) {
            assert_eq!(row["tokens"], expected["ids"].as_array().unwrap().len());
            let masks = row["masks"].as_array().unwrap();
            for (mask, expected) in masks.iter().zip(expected["best"].as_array().unwrap()) {
                for key in ["token", "id"] {
                    assert_eq!(field(mask, key), field(expected, key), "{}", model.display());
                }
                let scores = |mask| numbers(&json!(field(mask, "score")));
                assert_close(&scores(mask), &scores(expected), ATOL, 0.0);
            }
        }
    }
}

#[test]
fn sentence_pairs_have_the_logits_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for model in models("sentence-pairs", 5) {
        let goldens = goldens(&model);
        let path = folder.path().join("pairs.jsonl");
        let lines = goldens["texts"].as_array().unwrap().iter();
        let lines = lines.map(|row| json!({"text": row["text"], "pair": row["pair"]}).to_string() + "\n");
        fs::write(&path, lines.collect::<String>()).unwrap();
        let input =
            ["-i", path.to_str().unwrap(), "--pair-field", "pair", "--top-k", "0", "--max-length", "40"];
        let names = match model.file_name().unwrap().to_str().unwrap() {
            "albert" => ["in_order", "swapped"],
            _ => ["is_next", "not_next"],
        };
        let score = |row: &Value, name: &str| {
            let labels = row["labels"].as_array().unwrap().iter();
            labels.clone().find(|label| label["label"] == name).unwrap()["score"].as_f64().unwrap() as f32
        };
        let logits = rows(&run("classify", &model, &[&input[..], &["--raw"]].concat()));
        let scores = rows(&run("classify", &model, &input));
        for (i, expected) in goldens["texts"].as_array().unwrap().iter().enumerate() {
            let expected = numbers(&expected["logits"]);
            assert_close(&names.map(|name| score(&logits[i], name)), &expected, ATOL, 0.0);
            let first = 1.0 / (1.0 + (expected[1] - expected[0]).exp());
            assert_close(&[score(&scores[i], names[0])], &[first], ATOL, 0.0);
        }
    }
}

/// A sparse vector as dense weights, by the tokens of the model.
fn dense(model: &Path, row: &Value) -> Vec<f32> {
    let file = fs::read_to_string(model.join("tokenizer.json")).unwrap();
    let vocab = serde_json::from_str::<Value>(&file).unwrap()["model"]["vocab"].clone();
    let mut weights = vec![0.0; VOCAB];
    for (token, weight) in row["weights"].as_object().unwrap() {
        weights[vocab[token].as_u64().unwrap() as usize] = weight.as_f64().unwrap() as f32;
    }
    weights
}

fn expected_weights(row: &Value) -> Vec<f32> {
    let mut weights = vec![0.0; VOCAB];
    for (index, value) in row["indices"].as_array().unwrap().iter().zip(numbers(&row["values"])) {
        weights[index.as_u64().unwrap() as usize] = value;
    }
    weights
}

#[test]
fn weights_are_those_of_the_sparse_encoder() {
    for model in models("sparse", 5) {
        let goldens = goldens(&model);
        let is_plain = !model.join("modules.json").exists();
        let args = if is_plain { &["--pooling", "splade"][..] } else { &[] };
        let found = rows(&run("embed", &model, &[args, &texts(&goldens)].concat()));
        for (row, expected) in found.iter().zip(goldens["texts"].as_array().unwrap()) {
            let weights = row["weights"].as_object().unwrap().values();
            let weights: Vec<f64> = weights.map(|weight| weight.as_f64().unwrap()).collect();
            assert!(!weights.is_empty() && weights.is_sorted_by(|a, b| a >= b), "by descending weight");
            let expected = expected_weights(expected);
            if let Some(difference) =
                first_difference(&dense(&model, row), &expected, WEIGHT_ATOL, WEIGHT_ATOL)
            {
                panic!("{}: {difference}", model.display());
            }
        }
    }
}

#[test]
fn a_text_has_the_same_bits_alone_and_in_any_batch() {
    let words = ["lamp", "wick", "attention", "[MASK]", "burning", "query"];
    let texts: Vec<String> = (1..50)
        .map(|n| {
            (0..n).map(|i| words[(i * 7 + n) % words.len()]).chain(["[MASK]"]).collect::<Vec<_>>().join(" ")
        })
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let contents = |output: &Output, key: &str| -> Vec<Value> {
        rows(output).iter().map(|row| row[key].clone()).collect()
    };
    for (command, model, key) in [
        ("fill", fixture("masked-lm/bert"), "masks"),
        ("fill", fixture("masked-lm/rembert"), "masks"),
        ("embed", fixture("sparse/bert-max"), "weights"),
        ("embed", fixture("sparse/bert-sum"), "weights"),
    ] {
        let expected = contents(&run(command, &model, &texts), key);
        for args in [&["--batch-tokens", "1"][..], &["--batch-tokens", "5000"], &["--threads", "1"]] {
            let found = contents(&run(command, &model, &[args, &texts].concat()), key);
            assert!(found == expected, "{command} {} {args:?}", model.display());
        }
        for i in [0, 20, 48] {
            assert_eq!(contents(&run(command, &model, &[texts[i]]), key), expected[i..=i]);
        }
    }
}

/// A run that is killed goes on where it was, and its output has the bytes of an uninterrupted run.
#[test]
fn a_killed_run_of_masks_is_resumed() {
    const RECORDS: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..RECORDS).map(|i| match i % 97 {
        31 => "no mask\n".into(),
        _ => format!("{}burns [MASK] {i}\n", "the wick ".repeat(i % 5)),
    });
    let input = folder.path().join("texts.txt");
    fs::write(&input, lines.collect::<String>()).unwrap();
    assert_resumes(&KilledRun {
        command: &|| model_command("fill", &fixture("masked-lm/bert"), &["--on-error", "skip"]),
        input: &input,
        formats: &["jsonl", "parquet"],
        code: 3,
        changed: (&["--top-k", "3"], &["--top-k has changed", "--restart"]),
    });
}

/// The least memory that `--max-memory` asks for, beside that of the model, has room for the logits of a
/// large vocabulary.
#[test]
fn the_memory_limit_leaves_room_for_logits() {
    let folder = tempfile::tempdir().unwrap();
    let least = |vocab_size: usize| {
        let config = folder.path().join(format!("{vocab_size}.json"));
        let mut fields: Value =
            serde_json::from_slice(&fs::read(fixture("masked-lm/bert/config.json")).unwrap()).unwrap();
        fields["vocab_size"] = vocab_size.into();
        fs::write(&config, fields.to_string()).unwrap();
        let args = ["--config", config.to_str().unwrap(), "--random-weights", "1", "--max-memory", "100MB"];
        let found = run("fill", &fixture("masked-lm/bert"), &[&args[..], &["a [MASK]"]].concat());
        (found.status.code(), stderr(&found))
    };
    assert_eq!(least(97).0, Some(0));
    // 48 tokens of 200,000 logits in f32, twice, are 77 MB; the matrices of the decoder and the embeddings
    // are 38 MB.
    let (code, message) = least(200_000);
    assert_eq!(code, Some(2), "{message}");
    let sizes: Vec<f64> =
        message.split_whitespace().filter_map(|word| word.trim_end_matches(',').parse().ok()).collect();
    let [_, model, all, ..] = sizes[..] else { panic!("{message}") };
    assert!(all - model > 77.0, "{message}");
}

#[test]
fn a_text_without_a_mask_ends_the_run_or_is_skipped() {
    let model = fixture("masked-lm/bert");
    let texts = ["the lamp", "the [MASK]"];
    let parts = ["argument 1 has no mask", "[MASK]"];
    assert_fails(&run("fill", &model, &texts), 1, &parts);
    let skipped = run("fill", &model, &[&["--on-error", "skip"], &texts[..]].concat());
    assert_eq!((skipped.status.code(), rows_of(&skipped).len()), (Some(3), 1), "{}", stderr(&skipped));
    let long = format!("{} [MASK]", "lamp ".repeat(60));
    assert_fails(&run("fill", &model, &[&long]), 1, &["no mask [MASK] within the limit of 40 tokens"]);
}

/// The rows on standard output, whatever the exit code.
fn rows_of(output: &Output) -> Vec<Value> {
    let lines = String::from_utf8(output.stdout.clone()).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn every_format_holds_masks_and_sparse_vectors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let write = |command: &str, model: &Path, text: &str, file: &str| {
        let written = run(command, model, &[text, "-o", &path(file)]);
        assert!(written.status.success(), "{}", stderr(&written));
    };
    let (masked, sparse) = (fixture("masked-lm/bert"), fixture("sparse/bert-max"));
    let text = "a [MASK] and a [MASK]";
    let masks = rows(&run("fill", &masked, &[text]))[0]["masks"].clone();
    let weights = rows(&run("embed", &sparse, &["the candle burns"]))[0]["weights"].clone();
    for (command, model, text, column, expected) in
        [("fill", &masked, text, "masks", masks), ("embed", &sparse, "the candle burns", "weights", weights)]
    {
        write(command, model, text, "rows.csv");
        let mut reader = csv::Reader::from_path(path("rows.csv")).unwrap();
        let index = reader.headers().unwrap().iter().position(|name| name == column).unwrap();
        let record = reader.records().next().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&record[index]).unwrap(), expected);
        // The columns of a Parquet file are those of an Arrow file.
        write(command, model, text, "rows.parquet");
        let columns = parquet_columns(Path::new(&path("rows.parquet")));
        let expected_columns = match column {
            "masks" => json!({"masks": expected}),
            _ => {
                let dense = dense(model, &json!({"weights": expected}));
                let (indices, values): (Vec<usize>, Vec<f32>) =
                    dense.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0).unzip();
                json!({"indices": indices, "values": values})
            }
        };
        for (name, expected) in expected_columns.as_object().unwrap() {
            assert_eq!(without_rounding(&columns[name]), without_rounding(expected), "{name}");
        }
    }
}

/// Numbers as f32.
fn without_rounding(value: &Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().unwrap() as f32),
        Value::Array(list) => list.iter().map(without_rounding).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| (key.clone(), without_rounding(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

/// The first row of a Parquet file as JSON.
fn parquet_columns(path: &Path) -> Value {
    let reader = ParquetRecordBatchReaderBuilder::try_new(fs::File::open(path).unwrap()).unwrap();
    let batch = reader.build().unwrap().next().unwrap().unwrap();
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| (field.name().clone(), value(column, 0)));
    Value::Object(columns.collect())
}

/// The value of row `i` of a column as JSON; null for types that the content of rows does not have.
fn value(column: &ArrayRef, i: usize) -> Value {
    match column.data_type() {
        DataType::List(_) => {
            let list = column.as_list::<i32>().value(i);
            (0..list.len()).map(|i| value(&list, i)).collect()
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(column.as_struct().columns());
            Value::Object(columns.map(|(field, column)| (field.name().clone(), value(column, i))).collect())
        }
        DataType::Utf8 => column.as_string::<i32>().value(i).into(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(i).into(),
        DataType::Float32 => json!(column.as_primitive::<Float32Type>().value(i)),
        _ => Value::Null,
    }
}

#[test]
fn models_without_the_head_and_options_without_effect_are_refused() {
    let parts = ["embedding model, not a masked language model", "sconce embed"];
    assert_fails(&run("fill", &fixture("bert-tiny"), &["a [MASK]"]), 1, &parts);
    let parts = ["not a masked language model", "sconce classify"];
    assert_fails(&run("fill", &fixture("heads/bert"), &["a [MASK]"]), 1, &parts);
    let parts = ["no tensor cls.predictions.transform.dense.weight", "masked language model"];
    let splade =
        |model: &Path, args: &[&str]| run("embed", model, &[&["--pooling", "splade", "a"], args].concat());
    assert_fails(&splade(&fixture("sentence-pairs/bert"), &[]), 1, &parts);
    let sparse = fixture("sparse/bert-max");
    for option in [
        &["--normalize"][..],
        &["--dimensions", "3"],
        &["--output-dtype", "f16"],
        &["--on-long", "mean"],
        &["--chunk", "20"],
    ] {
        assert_fails(&splade(&sparse, option), 2, &[option[0], "dense vectors", "remove it"]);
    }
    assert_fails(&splade(&sparse, &["--output-format", "npy"]), 2, &["a sparse vector"]);
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    assert!(run("embed", &fixture("bert-tiny"), &["a", "-o", &path("a.npy")]).status.success());
    fs::write(path("a.txt"), "a\n").unwrap();
    let verify = ["--against", &path("a.npy"), "-i", &path("a.txt")];
    let pooled = run("verify", &sparse, &[&verify[..], &["--pooling", "splade"]].concat());
    assert_fails(&pooled, 2, &["--pooling splade", "needs dense ones"]);
    assert_fails(&run("verify", &sparse, &verify), 1, &["a sparse encoder like SPLADE"]);
}
