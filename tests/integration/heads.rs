//! `classify` and `rerank`: logits, labels and scores are those of `transformers` and sentence-transformers,
//! and their runs are those of `embed`. The models are made by `scripts/fixtures/make_head_fixtures.py`.

use crate::support::arrow;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use sconce::named::Named;
use sconce::text::{PairTruncation, Tokenizer, TokenizerOptions, TruncationSide};
use serde_json::{Value, json};

use crate::support;
use crate::support::{
    assert_close, assert_fails, first_difference, fixture, model_command, numbers, rows, sconce, stderr,
};

/// Tolerance of logits.
const LOGIT_ATOL: f32 = 1e-4;
/// Tolerance of scores.
const SCORE_ATOL: f32 = 1e-5;
/// The limit of the goldens, in tokens.
const LIMIT: &str = "40";

const CROSS_ENCODERS: &[&str] =
    &["cross-encoder-bert", "cross-encoder-roberta", "cross-encoder-tanh", "cross-encoder-saved"];

/// `sconce COMMAND` with one of the models.
fn run(command: &str, model: &str, args: &[&str]) -> Command {
    model_command(command, &fixture("heads").join(model), args)
}

fn output(command: &str, model: &str, args: &[&str]) -> Output {
    run(command, model, args).output().unwrap()
}

fn goldens(model: &str) -> Value {
    support::goldens(&fixture("heads").join(model))
}

/// Every model with a head.
fn models() -> Vec<String> {
    let entries = fs::read_dir(fixture("heads")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> = names.collect();
    assert_eq!(names.len(), 45);
    names
}

/// The texts and pairs of the goldens as a jsonl file.
fn input(folder: &Path, rows: &[Value]) -> String {
    let line = |row: &Value| {
        let fields = [("text", &row["text"]), ("pair", &row["pair"])];
        let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
        json!(fields.collect::<std::collections::BTreeMap<_, _>>()).to_string() + "\n"
    };
    let path = folder.join("texts.jsonl");
    fs::write(&path, rows.iter().map(line).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The rows of `sconce COMMAND` for all texts of the goldens: those with and those without a pair.
fn all_labels(model: &str, goldens: &Value, args: &[&str]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let texts = goldens["texts"].as_array().unwrap();
    let (pairs, singles): (Vec<Value>, Vec<Value>) =
        texts.iter().cloned().partition(|row| !row["pair"].is_null());
    let classify = |texts: &[Value], more: &[&str]| {
        let path = input(folder.path(), texts);
        let common = ["-i", &path, "--top-k", "0", "--max-length", LIMIT];
        rows(&output("classify", model, &[&common, args, more].concat()))
    };
    let (mut pairs, mut singles) =
        (classify(&pairs, &["--pair-field", "pair"]).into_iter(), classify(&singles, &[]).into_iter());
    let next = |row: &Value| if row["pair"].is_null() { singles.next() } else { pairs.next() };
    texts.iter().map(next).collect::<Option<_>>().unwrap()
}

fn labels(row: &Value) -> Vec<(&str, f32)> {
    let label = |label: &'_ Value| label["score"].as_f64().unwrap() as f32;
    let labels = row.as_array().unwrap().iter();
    labels.map(|entry| (entry["label"].as_str().unwrap(), label(entry))).collect()
}

/// The names of the labels of a model, in the order of its logits.
fn names(model: &str) -> Vec<String> {
    let path = fixture("heads").join(model).join("config.json");
    let config: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    match config["id2label"].as_object() {
        Some(names) => (0..names.len()).map(|i| names[&i.to_string()].as_str().unwrap().to_owned()).collect(),
        None => ["LABEL_0", "LABEL_1"].map(str::to_owned).into(),
    }
}

#[test]
fn logits_of_every_head_are_those_of_transformers() {
    for model in models() {
        let (goldens, names) = (goldens(&model), names(&model));
        let found = all_labels(&model, &goldens, &["--raw"]);
        for (row, (text, expected)) in found
            .iter()
            .zip(goldens["texts"].as_array().unwrap().iter().zip(goldens["logits"].as_array().unwrap()))
        {
            assert_eq!(row["tokens"], text["ids"].as_array().unwrap().len(), "{model}: {text}");
            let labels = labels(&row["labels"]);
            assert!(labels.is_sorted_by(|a, b| a.1 >= b.1), "{model}: best first");
            let logit = |name: &String| labels.iter().find(|(label, _)| label == name).unwrap().1;
            let logits: Vec<f32> = names.iter().map(logit).collect();
            if let Some(difference) = first_difference(&logits, &numbers(expected), LOGIT_ATOL, 0.0) {
                panic!("{model}: {text}: {difference}");
            }
        }
    }
}

#[test]
fn labels_and_scores_are_those_of_the_text_classification_pipeline() {
    for model in
        ["bert", "bert-multi-label", "bert-regression", "roberta", "distilbert", "cross-encoder-bert"]
    {
        let goldens = goldens(model);
        let found = all_labels(model, &goldens, &[]);
        for (row, expected) in found.iter().zip(goldens["labels"].as_array().unwrap()) {
            let (found, expected) = (labels(&row["labels"]), labels(expected));
            let split = |labels: &[(&str, f32)]| -> (Vec<String>, Vec<f32>) {
                labels.iter().map(|(label, score)| (label.to_string(), *score)).unzip()
            };
            let ((names, scores), (expected_names, expected_scores)) = (split(&found), split(&expected));
            assert_eq!(names, expected_names, "{model}");
            assert_close(&scores, &expected_scores, SCORE_ATOL, 0.0);
        }
        let best = rows(&output("classify", model, &["the candle burns"]));
        assert_eq!(best[0]["labels"].as_array().unwrap().len(), 1, "one label by default");
    }
}

#[test]
fn scores_are_those_of_the_cross_encoder() {
    let folder = tempfile::tempdir().unwrap();
    for model in CROSS_ENCODERS {
        let goldens = goldens(model);
        let texts = goldens["texts"].as_array().unwrap().iter();
        let pairs: Vec<Value> = texts.filter(|row| !row["pair"].is_null()).cloned().collect();
        let path = input(folder.path(), &pairs);
        let args = ["-i", &path, "--query-field", "text", "--text-field", "pair", "--max-length", LIMIT];
        let score = |row: &Value| row["score"].as_f64().unwrap() as f32;
        let found: Vec<f32> = rows(&output("rerank", model, &args)).iter().map(score).collect();
        assert_close(&found, &numbers(&goldens["scores"]), SCORE_ATOL, 0.0);
        // One query for all texts.
        let (query, text) = (pairs[0]["text"].as_str().unwrap(), pairs[0]["pair"].as_str().unwrap());
        let one = rows(&output("rerank", model, &["--query", query, text, "--max-length", LIMIT]));
        assert_eq!(score(&one[0]), found[0]);
    }
}

#[test]
fn pairs_are_truncated_by_the_strategies_of_transformers() {
    for model in ["bert", "roberta"] {
        let truncation = &goldens(model)["truncation"];
        for &strategy in PairTruncation::ALL {
            let options = TokenizerOptions {
                max_length: 40,
                truncation_side: TruncationSide::Right,
                pair_truncation: strategy,
                lowercase: false,
            };
            let path = fixture("heads").join(model).join("tokenizer.json");
            let tokenizer = Tokenizer::read(&path, &options).unwrap();
            for row in truncation[strategy.name()].as_array().unwrap() {
                let tokens = tokenizer.encode(row["text"].as_str().unwrap(), row["pair"].as_str()).unwrap();
                assert_eq!(json!(tokens.ids), row["ids"], "{model} {}", strategy.name());
            }
        }
    }
    // The text that is truncated is too short.
    let long = "lamp ".repeat(60);
    let args = ["--query", "key", &long, "--max-length", LIMIT, "--truncation", "only_first"];
    let found = output("rerank", "cross-encoder-bert", &args);
    assert_fails(&found, 1, &["argument 1", "over the limit of 40", "its first text has only 1"]);
}

/// Rows without the index, which depends on the order of the input.
fn contents(rows: &[Value]) -> Vec<Value> {
    let content = |row: &Value| {
        let mut row = row.clone();
        row.as_object_mut().unwrap().remove("index");
        row
    };
    rows.iter().map(content).collect()
}

#[test]
fn a_text_has_the_same_scores_alone_and_in_any_batch() {
    let words = ["lamp", "wick", "attention", "the", "burning", "query"];
    let texts: Vec<String> = (1..60)
        .map(|n| (0..n).map(|i| words[(i * 7 + n) % words.len()]).collect::<Vec<_>>().join(" "))
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for model in ["bert", "modernbert-mean", "eurobert-late", "cross-encoder-bert"] {
        let rows_of = |texts: &[&str], args: &[&str]| {
            let found = if model == "cross-encoder-bert" {
                output("rerank", model, &[&["--query", "the light"], args, texts].concat())
            } else {
                output("classify", model, &[&["--top-k", "0"], args, texts].concat())
            };
            contents(&rows(&found))
        };
        let expected = rows_of(&texts, &[]);
        for args in [
            &["--batch-tokens", "1"][..],
            &["--batch-tokens", "100"],
            &["--batch-tokens", "100000"],
            &["--threads", "1"],
            &["--threads", "3", "--batch-tokens", "300"],
        ] {
            assert_eq!(rows_of(&texts, args), expected, "{model} {args:?}");
        }
        let reversed: Vec<&str> = texts.iter().rev().copied().collect();
        let mut found = rows_of(&reversed, &["--batch-tokens", "200"]);
        found.reverse();
        assert_eq!(found, expected, "{model}");
        for i in [0, 17, 58] {
            assert_eq!(rows_of(&texts[i..=i], &[]), expected[i..=i], "{model}");
        }
    }
}

#[test]
fn top_k_sorts_the_rows_and_ranks_them() {
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<String> =
        (0..400).map(|i| format!("lamp {} key {}", i % 37, "wick ".repeat(i % 5))).collect();
    let lines = texts.iter().enumerate().map(|(i, text)| json!({"text": text, "id": i, "year": 1900 + i}));
    let path = folder.path().join("texts.jsonl");
    fs::write(&path, lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    let path = path.to_str().unwrap();
    let rerank = |args: &[&str]| {
        rows(&output("rerank", "cross-encoder-bert", &[&["--query", "a light", "-i", path], args].concat()))
    };
    let mut expected = rerank(&["--keep", "year"]);
    assert_eq!(expected.len(), 400);
    assert!(expected.iter().zip(0..).all(|(row, i)| row["index"] == i && row.get("rank").is_none()));
    // Stable: of equal scores, the first in the input.
    expected.sort_by(|a, b| b["score"].as_f64().unwrap().total_cmp(&a["score"].as_f64().unwrap()));
    for (rank, row) in expected.iter_mut().enumerate() {
        row["rank"] = rank.into();
    }
    assert_eq!(rerank(&["--keep", "year", "--top-k", "0"]), expected);
    assert_eq!(rerank(&["--keep", "year", "--top-k", "7"]), expected[..7]);
    assert_eq!(rerank(&["--keep", "year", "--top-k", "7", "--batch-tokens", "50"]), expected[..7]);
    // In files, too, with the stats of the written rows.
    let (csv, stats) = (folder.path().join("best.csv"), folder.path().join("stats.json"));
    let args = ["--query", "a light", "-i", path, "--top-k", "3", "-o", csv.to_str().unwrap()];
    let done =
        output("rerank", "cross-encoder-bert", &[&args[..], &["--stats", stats.to_str().unwrap()]].concat());
    assert!(done.status.success(), "{}", stderr(&done));
    let csv = fs::read_to_string(&csv).unwrap();
    let ranked: Vec<&str> = csv.lines().collect();
    assert_eq!(ranked[0], "index,id,tokens,truncated,rank,score");
    for (line, row) in ranked[1..].iter().zip(&expected) {
        let fields = [&row["index"], &row["id"], &row["tokens"], &row["truncated"], &row["rank"]];
        let start: Vec<String> = fields.map(Value::to_string).into();
        assert!(line.starts_with(&(start.join(",") + ",")), "{line}");
    }
    let stats: Value = serde_json::from_str(&fs::read_to_string(stats).unwrap()).unwrap();
    assert_eq!((&stats["rows"], &stats["texts"]), (&json!(3), &json!(400)));
    assert_eq!(stats["scores"], "sigmoid");
}

/// Queries with ids and passages with another column, as jsonl files.
fn queries_and_passages(folder: &Path, passages: usize) -> (String, String) {
    let write = |name: &str, lines: Vec<Value>| {
        let path = folder.join(name);
        fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let queries = ["a light", "a key in the dark", "wick"];
    let queries = queries.iter().enumerate().map(|(i, text)| json!({"text": text, "id": format!("q{i}")}));
    let words = ["wick", "lamp", "attention", "query"];
    let passage = |i: usize| json!({"text": format!("lamp {} {}", words[i % 4].repeat(1 + i % 3), "key ".repeat(i % 7)), "year": i});
    (write("queries.jsonl", queries.collect()), write("passages.jsonl", (0..passages).map(passage).collect()))
}

/// A file of queries gives the rows of a run per query, with the columns of the query.
#[test]
fn every_query_of_a_file_is_scored_for_every_text() {
    let folder = tempfile::tempdir().unwrap();
    let (queries, passages) = queries_and_passages(folder.path(), 200);
    let texts: Vec<String> = fs::read_to_string(&queries)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].as_str().unwrap().to_owned())
        .collect();
    let models =
        [fixture("heads").join("cross-encoder-bert"), fixture("bert-tiny"), fixture("multi-vector/pylate")];
    for model in models {
        let rerank = |args: &[&str]| {
            let mut command = sconce();
            command.arg("rerank").arg("-m").arg(&model).args(["-i", &passages, "--keep", "year"]).args(args);
            rows(&command.output().unwrap())
        };
        // In the order of the input: the rows of each query, one after another for each text.
        let of_query = |query: usize, args: &[&str]| {
            let mut rows = rerank(&[&["--query", &texts[query]], args].concat());
            for row in &mut rows {
                (row["query"], row["query_id"]) = (query.into(), format!("q{query}").into());
            }
            rows
        };
        let each: Vec<Vec<Value>> = (0..texts.len()).map(|query| of_query(query, &[])).collect();
        let found = rerank(&["--queries", &queries]);
        assert_eq!(found.len(), 600);
        for (i, row) in found.iter().enumerate() {
            assert_eq!(*row, each[i % 3][i / 3], "{} row {i}", model.display());
        }
        // Sorted: the best rows of the first query, of the second, and so on.
        let expected: Vec<Value> =
            (0..texts.len()).flat_map(|query| of_query(query, &["--top-k", "5"])).collect();
        for batch in ["37", "2048"] {
            let args = ["--queries", &queries, "--top-k", "5", "--batch-tokens", batch];
            assert_eq!(rerank(&args), expected, "{}", model.display());
        }
    }
}

#[test]
fn queries_of_a_file_are_refused_if_they_cannot_be_used() {
    let folder = tempfile::tempdir().unwrap();
    let (queries, passages) = queries_and_passages(folder.path(), 3);
    let empty = folder.path().join("empty.txt");
    fs::write(&empty, "").unwrap();
    let empty = empty.to_str().unwrap();
    let refused = |args: &[&str], code: i32, parts: &[&str]| {
        let found = output("rerank", "cross-encoder-bert", args);
        assert_fails(&found, code, parts);
    };
    let found = output("rerank", "cross-encoder-bert", &["--queries", &queries, "--query", "a", "b"]);
    assert_eq!(found.status.code(), Some(2), "{}", stderr(&found));
    refused(&["--queries", empty, "a"], 1, &["--queries", "empty.txt", "no queries"]);
    refused(&["--queries", "-"], 2, &["--queries -", "standard input", "--input FILE"]);
    refused(
        &["--queries", empty, "--query-field", "q", "a"],
        2,
        &["--query-field needs queries with fields"],
    );
    refused(&["--queries", &queries, "--query-field", "q", "a"], 1, &["no field \"q\"", "--query-field"]);
    let of_records = ["-i", &passages, "--query-field", "q"];
    refused(&of_records, 1, &["\"q\"", "with --query-field"]);
    refused(&["--queries", &queries, "-o", &queries, "a"], 2, &["is also the file of --queries"]);
    let args = ["--queries", &queries, "-i", &passages, "--keep", "query"];
    refused(&args, 2, &["--keep query", "already an output column"]);
}

/// The records of each query, wherever they are, have the ranks of a run with that query and its records.
#[test]
fn records_with_the_same_query_are_ranked_together() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let queries = ["a key in the dark", "a light", "wick"];
    let words = ["wick", "lamp", "attention", "query"];
    let record = |i: usize| {
        let text = format!("lamp {} {}", words[i % 4].repeat(1 + i % 3), "key ".repeat(i % 7));
        json!({"text": text, "year": i, "q": queries[i * i % 3]})
    };
    let write = |name: &str, records: &[Value]| {
        fs::write(at(name), records.iter().map(|record| format!("{record}\n")).collect::<String>()).unwrap();
    };
    let records: Vec<Value> = (0..90).map(record).collect();
    write("pairs.jsonl", &records);
    for model in [fixture("heads").join("cross-encoder-bert"), fixture("bert-tiny")] {
        let rerank = |args: &[&str]| {
            let mut command = sconce();
            command.arg("rerank").arg("-m").arg(&model).args(["--keep", "q", "year"]).args(args);
            rows(&command.output().unwrap())
        };
        let mut expected = Vec::new();
        // The square of a number is 0 or 1 modulo 3: no record has the third query.
        for query in &queries[..2] {
            let own: Vec<Value> = records.iter().filter(|record| record["q"] == *query).cloned().collect();
            write("own.jsonl", &own);
            for mut row in rerank(&["-i", &at("own.jsonl"), "--query", query, "--top-k", "4"]) {
                row["index"] = row["year"].clone();
                expected.push(row);
            }
        }
        assert_eq!(expected.len(), 8);
        for batch in ["37", "2048"] {
            let pairs = at("pairs.jsonl");
            let args = ["-i", &pairs, "--query-field", "q", "--top-k", "4", "--batch-tokens", batch];
            assert_eq!(rerank(&args), expected, "{}", model.display());
        }
    }
}

/// Pairs of one Parquet file, and queries and texts of two, into Parquet with typed columns.
#[test]
fn reranking_reads_and_writes_parquet() {
    let folder = tempfile::tempdir().unwrap();
    let (queries, passages) = queries_and_passages(folder.path(), 20);
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (scores, again) = (at("scores.parquet"), at("again.parquet"));
    let run = |args: &[&str]| {
        let found = output("rerank", "cross-encoder-bert", args);
        assert!(found.status.success(), "{}", stderr(&found));
        found
    };
    let both = ["--queries", &queries, "-i", &passages, "--keep", "text", "year"];
    run(&[&both[..], &["-o", &scores]].concat());
    // The texts of the first run and its ids of queries are the pairs of the second.
    let pairs = ["-i", &scores, "--query-field", "query_id", "--keep", "query", "year"];
    run(&[&pairs[..], &["-o", &again]].concat());
    let column = |path: &str, name: &str| {
        let file = fs::File::open(path).unwrap();
        let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let batches: Vec<_> = reader.build().unwrap().map(Result::unwrap).collect();
        let batch = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        let column = batch.column_by_name(name).unwrap().clone();
        arrow::compute::cast(&column, &arrow::datatypes::DataType::Utf8).unwrap()
    };
    assert_eq!(column(&scores, "query").len(), 60);
    for name in ["query", "year"] {
        assert_eq!(&column(&scores, name), &column(&again, name), "{name}");
    }
    let lines = rows(&run(&both));
    let ids: Vec<String> = lines.iter().map(|row| row["query_id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(
        &column(&scores, "query_id"),
        &(std::sync::Arc::new(arrow::array::StringArray::from(ids)) as arrow::array::ArrayRef)
    );
}

/// The row of a chunk is that of the chunk's text alone, and tells where it is in the text.
#[test]
fn chunks_have_the_scores_of_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<String> = (1..9)
        .map(|i| {
            format!(
                "The lamp burns. é {}\n\nA wick, a key.\n{}",
                "key lamp ".repeat(3 * i),
                "wick\n".repeat(i)
            )
        })
        .collect();
    let (queries, _) = queries_and_passages(folder.path(), 1);
    let path = folder.path().join("texts.jsonl");
    fs::write(&path, texts.iter().map(|text| json!({"text": text}).to_string() + "\n").collect::<String>())
        .unwrap();
    let path = path.to_str().unwrap();
    let models = [
        fixture("heads/cross-encoder-bert"),
        fixture("bert-tiny"),
        fixture("multi-vector/pylate"),
        fixture("causal-rerankers/qwen3"),
    ];
    for model in models {
        let rerank = |args: &[&str]| {
            rows(
                &sconce()
                    .arg("rerank")
                    .arg("-m")
                    .arg(&model)
                    .args(["--keep", "text"])
                    .args(args)
                    .output()
                    .unwrap(),
            )
        };
        let chunked = ["--queries", &queries, "-i", path, "--chunk", "14", "--chunk-overlap", "4"];
        let found = rerank(&chunked);
        assert!(found.len() > 3 * 20, "{} rows of {}", found.len(), model.display());
        let alone = folder.path().join("alone.jsonl");
        let lines = found.iter().map(|row| json!({"text": row["text"]}).to_string() + "\n");
        fs::write(&alone, lines.collect::<String>()).unwrap();
        let alone = rerank(&["--queries", &queries, "-i", alone.to_str().unwrap()]);
        assert_eq!(alone.len(), 3 * found.len());
        for (i, row) in found.iter().enumerate() {
            let text = &texts[row["index"].as_u64().unwrap() as usize];
            let [start, end] = ["start", "end"].map(|name| row[name].as_u64().unwrap() as usize);
            let chunk: String = text.chars().skip(start).take(end - start).collect();
            assert_eq!(row["text"], chunk);
            let before: String = text.chars().take(start).collect();
            assert_eq!(row["line"], 1 + before.matches('\n').count());
            assert_eq!(row["end_line"], 1 + (before + &chunk).matches('\n').count());
            let same = &alone[3 * i + row["query"].as_u64().unwrap() as usize];
            assert_eq!(
                (&same["score"], &same["tokens"]),
                (&row["score"], &row["tokens"]),
                "{}",
                model.display()
            );
        }
        let best = rerank(&[&chunked[..], &["--top-k", "4"]].concat());
        for query in 0..3 {
            let mut expected: Vec<&Value> = found.iter().filter(|row| row["query"] == query).collect();
            expected.sort_by(|a, b| b["score"].as_f64().unwrap().total_cmp(&a["score"].as_f64().unwrap()));
            for (rank, (row, expected)) in best[4 * query..4 * query + 4].iter().zip(expected).enumerate() {
                assert_eq!(row["rank"], rank);
                assert!(
                    ["index", "chunk", "text", "score"].iter().all(|name| row[name] == expected[name]),
                    "{row}"
                );
            }
        }
    }
    let args = ["--query", "a", "-i", path, "--chunk", "9", "--chunk-overlap", "9"];
    assert_fails(
        &output("rerank", "cross-encoder-bert", &args),
        2,
        &["--chunk-overlap 9 must be less than --chunk 9"],
    );
    let args = ["--query", "a", "-i", path, "--chunk-overlap", "9"];
    assert_fails(
        &output("rerank", "cross-encoder-bert", &args),
        2,
        &["--chunk-overlap needs --chunk TOKENS"],
    );
}

/// The best rows of a run that is killed are saved, with all that is written of them.
#[test]
fn a_killed_ranking_is_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let (queries, passages) = queries_and_passages(folder.path(), 12_000);
    for (format, chunks) in [("jsonl", &[][..]), ("parquet", &[]), ("jsonl", &["--chunk", "9"])] {
        let path = |name: &str| folder.path().join(format!("{name}{}.{format}", chunks.len()));
        let command = |name: &str, args: &[&str]| {
            let ranking = ["--queries", &queries, "-i", &passages, "--keep", "year,text", "--top-k", "50"];
            let mut command = sconce();
            command.arg("rerank").arg("-m").arg(fixture("heads/cross-encoder-bert")).args(ranking);
            command.args(chunks);
            command.arg("-o").arg(path(name)).args(args);
            command
        };
        assert_eq!(command("whole", &[]).output().unwrap().status.code(), Some(0));
        support::kill_after_first_save(&mut command("killed", &[]), &path("killed"));
        let other = command("killed", &["--resume", "--raw"]).output().unwrap();
        assert_fails(&other, 2, &["--raw has changed", "--restart"]);
        let resumed = command("killed", &["--resume"]).output().unwrap();
        assert!(resumed.status.success(), "{}", stderr(&resumed));
        assert!(stderr(&resumed).contains("resuming after"), "{}", stderr(&resumed));
        assert!(fs::read(path("whole")).unwrap() == fs::read(path("killed")).unwrap());
        let again = command("killed", &["--resume"]).output().unwrap();
        assert!(stderr(&again).contains("is up to date: 150 rows"), "{}", stderr(&again));
    }
}

#[test]
fn a_bi_encoder_ranks_by_the_similarity_of_vectors() {
    let texts = ["the candle burns", "a lamp, a wick and a flame", "query"];
    let model = fixture("bert-tiny");
    let found =
        sconce().arg("rerank").arg("-m").arg(&model).args(["--query", "a light"]).args(texts).output();
    let scores: Vec<f32> =
        rows(&found.unwrap()).iter().map(|row| row["score"].as_f64().unwrap() as f32).collect();
    let compared =
        sconce().arg("similarity").arg("--json").arg("-m").arg(&model).arg("a light").args(texts).output();
    let compared: Value = serde_json::from_slice(&compared.unwrap().stdout).unwrap();
    assert_eq!(scores, numbers(&compared["similarities"][0])[1..]);
    let refused = |args: &[&str], parts: &[&str]| {
        let found = sconce().arg("rerank").arg("-m").arg(&model).args(args).output().unwrap();
        assert_fails(&found, 2, parts);
    };
    refused(&["--query", "a", "--raw", "b"], &["--raw needs a cross-encoder"]);
}

/// With a query per record, a bi-encoder gives the scores that it gives with that query for all texts.
#[test]
fn a_bi_encoder_compares_each_record_with_its_own_query() {
    let folder = tempfile::tempdir().unwrap();
    let long = "the candle burns beside a lamp and a wick, ".repeat(9);
    let texts = ["the candle burns", "a lamp, a wick and a flame", "query", &long, "a key"];
    let queries = ["a light", "the wick", "a light", "a light", &long];
    let records: Vec<Value> =
        texts.iter().zip(queries).map(|(text, query)| json!({"text": text, "pair": query})).collect();
    let path = input(folder.path(), &records);
    let rerank = |model: &str, args: &[&str]| {
        let model = fixture(model);
        let found = sconce().arg("rerank").arg("-q").arg("-m").arg(model).args(args).output().unwrap();
        assert!(found.status.success(), "{}", stderr(&found));
        rows(&found)
    };
    let scores = |rows: &[Value]| -> Vec<Value> {
        rows.iter().map(|row| json!([row["chunk"], row["start"], row["score"]])).collect()
    };
    for (model, options) in [
        ("bert-tiny", &["--on-long", "truncate"][..]),
        ("bert-tiny", &["--chunk", "8"]),
        ("multi-vector/native", &["--on-long", "truncate"]),
        ("sparse/bert-max", &["--on-long", "truncate"]),
        ("sparse/distilbert-log1p", &["--on-long", "truncate"]),
    ] {
        let own =
            rerank(model, &[&["-i", &path, "--query-field", "pair", "--keep", "pair"], options].concat());
        for (index, query) in queries.iter().enumerate() {
            let found: Vec<Value> = own.iter().filter(|row| row["index"] == index).cloned().collect();
            let expected = rerank(model, &[&["--query", query, texts[index]], options].concat());
            assert_eq!(scores(&found), scores(&expected), "{model} {options:?} {index}");
            assert!(found.iter().all(|row| row["pair"] == *query), "{found:?}");
        }
    }
}

/// `--on-long` decides what becomes of a record's own query, too.
#[test]
fn a_bi_encoder_does_not_truncate_a_record_s_query_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let long = "the wick ".repeat(90);
    let path =
        input(folder.path(), &[json!({"text": "a", "pair": "a key"}), json!({"text": "a", "pair": long})]);
    let model = fixture("bert-tiny");
    let rerank = |action: &str| {
        let args = ["-i", &path, "--query-field", "pair", "--on-long", action];
        sconce().arg("rerank").arg("-m").arg(&model).args(args).output().unwrap()
    };
    let (refused, skipped, truncated) = (rerank("error"), rerank("skip"), rerank("truncate"));
    assert_eq!(refused.status.code(), Some(1), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("has a query that has"), "{}", stderr(&refused));
    assert_eq!(skipped.status.code(), Some(3), "{}", stderr(&skipped));
    assert_eq!(String::from_utf8_lossy(&skipped.stdout).lines().count(), 1);
    let truncated = rows(&truncated);
    assert_eq!(truncated.iter().map(|row| row["truncated"] == true).collect::<Vec<_>>(), [false, true]);
}

/// A run that is killed goes on where it was, and its output has the bytes of an uninterrupted run.
#[test]
fn a_killed_classification_is_resumed() {
    const RECORDS: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..RECORDS).map(|i| match i % 97 {
        31 => "{\"text\": 7}\n".into(),
        _ => format!("{{\"text\": \"{}burns {i}\", \"id\": {i}}}\n", "the wick ".repeat(i % 5)),
    });
    let input = folder.path().join("texts.jsonl");
    fs::write(&input, lines.collect::<String>()).unwrap();
    support::assert_resumes(&support::KilledRun {
        command: &|| run("classify", "bert", &["--on-error", "skip", "--top-k", "2"]),
        input: &input,
        formats: &["jsonl", "parquet"],
        code: 3,
        changed: (&["--raw"], &["--raw has changed", "--restart"]),
    });
}

/// The queries of records keep their numbers, also where the first record of one has no row.
#[test]
fn a_killed_ranking_of_each_query_is_resumed() {
    const RECORDS: usize = 40_000;
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..RECORDS).map(|i| match i % 97 {
        0 => format!("{{\"text\": 7, \"q\": \"lamp {i}\"}}\n"),
        _ => {
            format!("{{\"text\": \"{}burns {i}\", \"q\": \"lamp {}\"}}\n", "the wick ".repeat(i % 5), i / 90)
        }
    });
    let input = folder.path().join("pairs.jsonl");
    fs::write(&input, lines.collect::<String>()).unwrap();
    let args = ["--on-error", "skip", "--query-field", "q", "--keep", "q", "--top-k", "2"];
    support::assert_resumes(&support::KilledRun {
        command: &|| run("rerank", "cross-encoder-bert", &args),
        input: &input,
        formats: &["jsonl"],
        code: 3,
        changed: (&["--raw"], &["--raw has changed", "--restart"]),
    });
}

#[test]
fn embed_pools_a_model_with_a_task_head_and_notes_the_command_for_the_head() {
    for (model, command) in [("cross-encoder-bert", "sconce rerank"), ("bert", "sconce classify")] {
        let embed = |args: &[&str]| {
            let found = support::embed(&format!("heads/{model}"), args);
            assert!(found.status.success(), "{}", stderr(&found));
            found
        };
        let head = format!("without its head, which {command} uses");
        let (own, chosen) = (embed(&["a"]), embed(&["a", "--pooling", "mean"]));
        let notes = stderr(&own);
        assert!(notes.contains(&head) && notes.contains("no pooling configured; using mean"), "{notes}");
        assert!(stderr(&chosen).contains(&head));
        assert_eq!(own.stdout, chosen.stdout, "{model}");
        assert_eq!(stderr(&embed(&["a", "--quiet"])), "");
    }
}

#[test]
fn a_model_without_the_head_is_refused_with_the_command_for_it() {
    let classify = |model: &Path| sconce().arg("classify").arg("-m").arg(model).arg("a").output().unwrap();
    let parts = ["an embedding model, not a text classifier", "sconce embed"];
    assert_fails(&classify(&fixture("bert-tiny")), 1, &parts);
    let found = output("rerank", "bert", &["--query", "a", "b"]);
    assert_fails(&found, 1, &["3 labels", "not a cross-encoder", "sconce classify"]);
    // A checkpoint whose config does not say what it is for, without the tensors of a head.
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("bert-tiny").join(file), folder.path().join(file)).unwrap();
    }
    assert_fails(&classify(folder.path()), 1, &["no tensor classifier.weight", "sconce embed"]);
    let masked_lm = model_command("tag", &fixture("masked-lm/bert"), &["a"]).output().unwrap();
    assert_fails(&masked_lm, 1, &["a masked language model, not a token classifier", "use sconce fill"]);
}

#[test]
fn options_without_effect_are_refused() {
    let rerank = |args: &[&str], parts: &[&str]| {
        assert_fails(
            &output("rerank", "cross-encoder-bert", &[&["--query", "a", "b"], args].concat()),
            2,
            parts,
        );
    };
    rerank(&["--truncation", "only_second", "--on-long", "skip"], &["--truncation needs --on-long truncate"]);
    rerank(
        &["--output-format", "npy"],
        &["npy holds an array of vectors", "a score", "jsonl, csv, parquet or arrow"],
    );
    let found = output("classify", "bert", &["a", "--truncation", "only_first"]);
    assert_fails(&found, 2, &["--truncation only_first needs pairs", "--pair-field"]);
    assert_eq!(output("rerank", "cross-encoder-bert", &["b"]).status.code(), Some(2), "no query");
    let found = output("classify", "bert", &["a", "--on-long", "mean"]);
    assert_eq!(found.status.code(), Some(2), "{}", stderr(&found));
}

#[test]
fn long_pairs_are_skipped_or_end_the_run() {
    let long = "lamp ".repeat(80);
    let args = ["--query", "a", &long, "b", "--max-length", LIMIT];
    let skipped = output("rerank", "cross-encoder-bert", &[&args[..], &["--on-long", "skip"]].concat());
    assert_eq!(skipped.status.code(), Some(3));
    assert_eq!(String::from_utf8(skipped.stdout).unwrap().lines().count(), 1);
    let stopped = output("rerank", "cross-encoder-bert", &[&args[..], &["--on-long", "error"]].concat());
    assert_fails(&stopped, 1, &["argument 1 has 84 tokens, over the limit of 40"]);
}

/// A copy of a model with other fields in its config.
fn with_config(model: &str, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("heads").join(model).join(file), folder.path().join(file)).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    folder
}

/// As releases of `transformers` of 2020 saved it: `num_labels` counts, and an `id2label` of another length
/// names nothing.
#[test]
fn num_labels_replaces_an_id2label_of_another_length() {
    let labels_of = |change: fn(&mut Value)| {
        let folder = with_config("bert", change);
        let args = ["--top-k", "0", "--raw", "--", "a lamp"];
        let row = rows(&model_command("classify", folder.path(), &args).output().unwrap()).remove(0);
        let mut labels: Vec<(String, f64)> = (row["labels"].as_array().unwrap().iter())
            .map(|label| (label["label"].as_str().unwrap().to_owned(), label["score"].as_f64().unwrap()))
            .collect();
        labels.sort_by(|a, b| a.0.cmp(&b.0));
        labels
    };
    let expected = labels_of(|config| {
        config["id2label"] = json!({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"});
    });
    assert_eq!(expected.len(), 3);
    let found = labels_of(|config| {
        config["num_labels"] = json!(3);
        config["id2label"] = json!({"0": "no", "1": "yes"});
    });
    assert_eq!(found, expected);
    let named = labels_of(|config| {
        config["num_labels"] = json!(3);
        config["id2label"] = json!({"0": "a", "1": "b", "2": "c"});
    });
    assert_eq!(named.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn malformed_fields_of_a_head_are_named() {
    for (model, field, value, parts) in [
        ("bert", "id2label", json!({"0": "a", "2": "c"}), &["id2label", "none with the number 1"][..]),
        ("bert", "id2label", json!({"0": 1.5, "1": []}), &["id2label.1", "a label"]),
        ("bert", "id2label", json!({}), &["no labels"]),
        ("bert", "id2label", json!({"0": "a", "1": "b"}), &["classifier.weight", "[3, 24]", "[2, 24]"]),
        ("bert", "problem_type", json!("ranking"), &["problem_type", "multi_label_classification"]),
        ("modernbert", "classifier_pooling", json!("max"), &["classifier_pooling", "cls, mean"]),
        ("eurobert-bos", "classifier_pooling", json!("cls"), &["classifier_pooling", "bos, late, mean"]),
        ("deberta-v2", "pooler_hidden_size", json!(12), &["pooler_hidden_size", "hidden size 24"]),
        ("deberta-v2", "pooler_hidden_act", json!("odd"), &["pooler_hidden_act"]),
    ] {
        let folder = with_config(model, |config| config[field] = value);
        let found = sconce().arg("classify").arg("-m").arg(folder.path()).arg("a").output().unwrap();
        assert_fails(&found, 1, parts);
    }
    let folder = with_config("cross-encoder-bert", |config| {
        config["sentence_transformers"] = json!({"activation_fn": "torch.nn.Threshold"});
    });
    let rerank = |args: &[&str]| {
        sconce()
            .arg("rerank")
            .arg("-m")
            .arg(folder.path())
            .args(["--query", "a", "b"])
            .args(args)
            .output()
            .unwrap()
    };
    assert_fails(&rerank(&[]), 1, &["torch.nn.Threshold", "Softplus", "--raw"]);
    assert!(rerank(&["--raw"]).status.success());
}
