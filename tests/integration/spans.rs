//! `tag` and `answer`: logits, entities and answers are those of `transformers`, and their runs are those of
//! `embed`. The models are made by `scripts/fixtures/make_token_head_fixtures.py`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use sconce::hub::Source;
use sconce::load::{Loaded, ModelOptions, load_head};
use sconce::nn::{HeadKind, RaggedBatch, TaskHead};
use sconce::sys::console::{Console, Verbosity};
use serde_json::{Value, json};

use crate::support;
use crate::support::{assert_fails, first_difference, fixture, model_command, numbers, rows, sconce, stderr};

/// Tolerance of logits, and of scores.
const ATOL: f32 = 1e-4;
/// The limit of the goldens, in tokens.
const LIMIT: &str = "40";

/// The tokenizers of the goldens of `tag` and, but for the last, of `answer`.
const TOKENIZERS: &[&str] = &["word-piece", "byte-level", "unigram"];

/// `sconce COMMAND` with one of the models.
fn run(command: &str, model: &str, args: &[&str]) -> Command {
    model_command(command, &fixture("token-heads").join(model), args)
}

fn output(command: &str, model: &str, args: &[&str]) -> Output {
    run(command, model, args).output().unwrap()
}

fn goldens(model: &str) -> Value {
    support::goldens(&fixture("token-heads").join(model))
}

/// A jsonl file with these records.
fn input(folder: &Path, records: &[Value]) -> String {
    let path = folder.join("texts.jsonl");
    fs::write(&path, records.iter().map(|record| format!("{record}\n")).collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

/// The checkpoints of families, which have both heads.
fn families() -> Vec<String> {
    let entries = fs::read_dir(fixture("token-heads")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: Vec<String> =
        names.filter(|name| !name.starts_with("ner-") && !name.starts_with("qa-")).collect();
    assert_eq!(names.len(), 34);
    names
}

fn load(kind: HeadKind, model: &str) -> Loaded {
    let source = Source {
        model: fixture("token-heads").join(model).display().to_string(),
        revision: "main".into(),
        dimensions: None,
        offline: true,
        cache: None,
        progress: false,
        silent: false,
    };
    let tokenizer = Some(fixture("bert-tiny").join("tokenizer.json"));
    let options = ModelOptions { tokenizer, ..ModelOptions::of(source) };
    load_head(kind, &options, &Console::new(Verbosity::Quiet, false)).unwrap()
}

#[test]
fn logits_of_tokens_are_those_of_transformers_in_every_family() {
    let mut compared = 0;
    for model in families() {
        let goldens = goldens(&model);
        let ids: Vec<Vec<u32>> = serde_json::from_value(goldens["ids"].clone()).unwrap();
        let types: Vec<Vec<u32>> = ids.iter().map(|ids| vec![0; ids.len()]).collect();
        for (kind, key) in [
            (HeadKind::TokenClassification, "token_classification"),
            (HeadKind::QuestionAnswering, "question_answering"),
        ] {
            let Some(expected) = goldens[key].as_array() else { continue };
            let loaded = load(kind, &model);
            let batch = RaggedBatch::new(ids.iter().zip(&types).map(|(ids, types)| (&ids[..], &types[..])));
            let hidden = loaded.encoders[0].forward(&batch.unwrap()).unwrap();
            let logits = match loaded.head.map(|head| head.layers) {
                Some(TaskHead::TokenClassification(head) | TaskHead::QuestionAnswering(head)) => {
                    head.forward(&hidden).unwrap()
                }
                _ => panic!("{model} has no head of tokens"),
            };
            let expected: Vec<f32> = expected.iter().flat_map(numbers).collect();
            let logits = logits.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            if let Some(difference) = first_difference(&logits, &expected, ATOL, 0.0) {
                panic!("{model} {key}: {difference}");
            }
            compared += 1;
        }
    }
    assert_eq!(
        compared,
        34 + 26,
        "ESM, GTE, NomicBERT and EuroBERT have no head for question answering, T5 only one of its decoder, \
         BigBird another"
    );
}

/// Asserts that spans have these labels or texts, scores, starts and ends.
#[track_caller]
fn assert_spans(found: &Value, name: &str, expected: &Value, what: &str) {
    let found = found.as_array().unwrap();
    let expected = expected.as_array().unwrap();
    let exact = |span: &Value| (span[name].clone(), span["start"].clone(), span["end"].clone());
    let found_exact: Vec<_> = found.iter().map(exact).collect();
    let expected_exact: Vec<_> =
        expected.iter().map(|span| (span[0].clone(), span[2].clone(), span[3].clone())).collect();
    assert_eq!(found_exact, expected_exact, "{what}");
    let scores: Vec<f32> = found.iter().map(|span| span["score"].as_f64().unwrap() as f32).collect();
    let expected: Vec<f32> = expected.iter().map(|span| span[1].as_f64().unwrap() as f32).collect();
    if let Some(difference) = first_difference(&scores, &expected, ATOL, 0.0) {
        panic!("{what}: {difference}");
    }
}

#[test]
fn entities_are_those_of_the_token_classification_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    for tokenizer in TOKENIZERS {
        let model = format!("ner-{tokenizer}");
        let goldens = goldens(&model);
        let texts = goldens["texts"].as_array().unwrap();
        let path = input(folder.path(), &texts.iter().map(|text| json!({"text": text})).collect::<Vec<_>>());
        for (aggregation, args) in [
            ("none", &[][..]),
            ("simple", &[]),
            ("first", &[]),
            ("average", &[]),
            ("max", &[]),
            ("simple-windows", &["--stride", "7"]),
            ("max-windows", &["--stride", "7"]),
        ] {
            let name = aggregation.trim_end_matches("-windows");
            let common = ["-i", &path, "--max-length", LIMIT, "--aggregation", name];
            let found = rows(&output("tag", &model, &[&common, args].concat()));
            let expected = goldens[aggregation].as_array().unwrap();
            assert_eq!(found.len(), expected.len());
            assert!(expected.iter().any(|entities| entities.as_array().unwrap().len() > 1));
            for ((row, expected), text) in found.iter().zip(expected).zip(texts) {
                assert_spans(&row["entities"], "label", expected, &format!("{model} {aggregation} {text}"));
                let text: Vec<char> = text.as_str().unwrap().chars().collect();
                for entity in row["entities"].as_array().unwrap() {
                    let offset = |name: &str| entity[name].as_u64().unwrap() as usize;
                    let part: String = text[offset("start")..offset("end")].iter().collect();
                    assert_eq!(entity["text"], part);
                }
            }
        }
    }
}

/// The token for what is not in the vocabulary begins a word: that which the configuration names, not that of
/// the tokenizer.json.
#[test]
fn the_unknown_token_is_that_of_the_configuration() {
    let folder = tempfile::tempdir().unwrap();
    for tokenizer in TOKENIZERS {
        let name = format!("ner-{tokenizer}");
        let goldens = fs::read(fixture("token-heads").join(&name).join("unknown.json")).unwrap();
        let goldens: Value = serde_json::from_slice(&goldens).unwrap();
        let texts = goldens["texts"].as_array().unwrap();
        let path = input(folder.path(), &texts.iter().map(|text| json!({"text": text})).collect::<Vec<_>>());
        let model = folder.path().join(&name);
        support::copy_folder(&fixture("token-heads").join(&name), &model);
        for (i, config) in goldens["configs"].as_array().unwrap().iter().enumerate() {
            fs::write(model.join("tokenizer_config.json"), config.to_string()).unwrap();
            for aggregation in ["first", "average", "max"] {
                let args = ["-i", &path, "--max-length", LIMIT, "--aggregation", aggregation];
                let found = rows(&model_command("tag", &model, &args).output().unwrap());
                let expected = goldens[aggregation][i].as_array().unwrap();
                assert_eq!(found.len(), expected.len());
                for ((row, expected), text) in found.iter().zip(expected).zip(texts) {
                    let what = format!("{name} {config} {aggregation} {text}");
                    assert_spans(&row["entities"], "label", expected, &what);
                }
            }
        }
    }
}

/// The golden file of `--raw`.
fn raw_goldens(model: &str) -> Value {
    let path = fixture("token-heads").join(model).join("raw.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn raw_scores_of_entities_are_logits() {
    let folder = tempfile::tempdir().unwrap();
    let mut differs = false;
    for tokenizer in TOKENIZERS {
        let model = format!("ner-{tokenizer}");
        let (goldens, raw) = (goldens(&model), raw_goldens(&model));
        let texts = raw["texts"].as_array().unwrap();
        let path = input(folder.path(), &texts.iter().map(|text| json!({"text": text})).collect::<Vec<_>>());
        for aggregation in ["none", "simple", "first", "average", "max"] {
            let args = ["-i", &path, "--max-length", LIMIT, "--aggregation", aggregation, "--raw"];
            let found = rows(&output("tag", &model, &args));
            let expected = raw[aggregation].as_array().unwrap();
            assert_eq!(found.len(), expected.len());
            for ((row, expected), text) in found.iter().zip(expected).zip(texts) {
                assert_spans(&row["entities"], "label", expected, &format!("{model} {aggregation} {text}"));
            }
            let labels = |goldens: &Value| -> Vec<Value> {
                let entities =
                    goldens[aggregation].as_array().unwrap().iter().flat_map(|row| row.as_array().unwrap());
                entities.map(|entity| entity[0].clone()).collect()
            };
            differs |= labels(&raw) != labels(&goldens);
        }
    }
    assert!(differs, "the labels of means of logits are not always those of means of probabilities");
}

#[test]
fn raw_scores_of_answers_are_sums_of_logits() {
    let folder = tempfile::tempdir().unwrap();
    for tokenizer in &TOKENIZERS[..2] {
        let model = format!("qa-{tokenizer}");
        let raw = raw_goldens(&model);
        let texts = raw["texts"].as_array().unwrap();
        let records = texts.iter().map(|pair| json!({"question": pair[0], "context": pair[1]}));
        let path = input(folder.path(), &records.collect::<Vec<_>>());
        let fields = ["--question-field", "question", "--text-field", "context"];
        let args = ["-i", &path, "--max-length", LIMIT, "--top-k", "3", "--raw"];
        let found = rows(&output("answer", &model, &[&args[..], &fields].concat()));
        for ((row, expected), text) in found.iter().zip(raw["answers"].as_array().unwrap()).zip(texts) {
            let answers = row["answers"].as_array().unwrap();
            let own: Vec<&Value> = answers.iter().map(|answer| &answer["text"]).collect();
            let expected = expected.as_array().unwrap();
            assert_eq!(own, expected.iter().map(|answer| &answer[0]).collect::<Vec<_>>(), "{model} {text}");
            let scores: Vec<f32> =
                answers.iter().map(|answer| answer["score"].as_f64().unwrap() as f32).collect();
            let expected: Vec<f32> =
                expected.iter().map(|answer| answer[1].as_f64().unwrap() as f32).collect();
            assert_eq!(first_difference(&scores, &expected, ATOL, 0.0), None, "{model} {text}");
        }
        let no_answer: Vec<f32> = found.iter().map(|row| row["no_answer"].as_f64().unwrap() as f32).collect();
        assert_eq!(first_difference(&no_answer, &numbers(&raw["no_answer"]), ATOL, 0.0), None, "{model}");
    }
}

#[test]
fn answers_are_those_of_the_question_answering_pipeline() {
    let folder = tempfile::tempdir().unwrap();
    for tokenizer in &TOKENIZERS[..2] {
        let model = format!("qa-{tokenizer}");
        let goldens = goldens(&model);
        let texts = goldens["texts"].as_array().unwrap();
        let records = texts.iter().map(|pair| json!({"question": pair[0], "context": pair[1]}));
        let path = input(folder.path(), &records.collect::<Vec<_>>());
        for (key, args) in [
            ("best", &[][..]),
            ("three", &["--top-k", "3"]),
            ("short", &["--top-k", "3", "--max-answer-length", "2"]),
            ("stride", &["--top-k", "2", "--stride", "5"]),
        ] {
            let fields = ["--question-field", "question", "--text-field", "context"];
            let common = ["-i", &path, "--max-length", LIMIT];
            let found = rows(&output("answer", &model, &[&common[..], &fields, args].concat()));
            for ((row, expected), text) in found.iter().zip(goldens[key].as_array().unwrap()).zip(texts) {
                assert_spans(&row["answers"], "text", expected, &format!("{model} {key} {text}"));
            }
            if key == "best" {
                let no_answer = |row: &Value| row["no_answer"].as_f64().unwrap() as f32;
                let found: Vec<f32> = found.iter().map(no_answer).collect();
                let difference = first_difference(&found, &numbers(&goldens["no_answer"]), ATOL, 0.0);
                assert_eq!(difference, None, "{model}");
                // One question for all texts, and the text as an option.
                let (question, text) = (texts[0][0].as_str().unwrap(), texts[0][1].as_str().unwrap());
                let common = ["--question", question, "--max-length", LIMIT];
                let one = rows(&output("answer", &model, &[&common[..], &["--context", text]].concat()));
                assert_eq!(one, rows(&output("answer", &model, &[&common[..], &[text]].concat())));
                assert_eq!(no_answer(&one[0]), found[0], "{model}");
            }
        }
    }
}

#[test]
fn a_text_has_the_same_spans_alone_and_in_any_batch() {
    let words = ["Ada", "lamp", "wick,", "London", "the", "burning", "query"];
    let texts: Vec<String> = (1..50)
        .map(|n| (0..n).map(|i| words[(i * 5 + n) % words.len()]).collect::<Vec<_>>().join(" "))
        .collect();
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    for (command, model, options) in [
        ("tag", "ner-word-piece", &["--stride", "5", "--aggregation", "average"][..]),
        ("tag", "ner-byte-level", &["--aggregation", "none"]),
        ("answer", "qa-word-piece", &["--question", "who?", "--top-k", "3"]),
    ] {
        let rows_of = |texts: &[&str], args: &[&str]| {
            let found = output(command, model, &[options, &["--max-length", LIMIT], args, texts].concat());
            let mut rows = rows(&found);
            rows.iter_mut().for_each(|row| drop(row.as_object_mut().unwrap().remove("index")));
            rows
        };
        let expected = rows_of(&texts, &[]);
        for args in [
            &["--batch-tokens", "1"][..],
            &["--batch-tokens", "100000"],
            &["--threads", "1"],
            &["--threads", "3", "--batch-tokens", "300"],
        ] {
            assert_eq!(rows_of(&texts, args), expected, "{command} {args:?}");
        }
        for i in [0, 17, 48] {
            assert_eq!(rows_of(&texts[i..=i], &[]), expected[i..=i], "{command}");
        }
    }
}

/// A run that is killed goes on where it was, and its output has the bytes of an uninterrupted run.
#[test]
fn a_killed_tagging_is_resumed() {
    const RECORDS: usize = 30_000;
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..RECORDS).map(|i| match i % 97 {
        31 => "{\"text\": 7}\n".into(),
        _ => format!("{{\"text\": \"{}Ada {i} in London\", \"id\": {i}}}\n", "the wick ".repeat(i % 5)),
    });
    let input = folder.path().join("texts.jsonl");
    fs::write(&input, lines.collect::<String>()).unwrap();
    support::assert_resumes(&support::KilledRun {
        command: &|| run("tag", "ner-word-piece", &["--on-error", "skip"]),
        input: &input,
        formats: &["jsonl", "parquet"],
        code: 3,
        changed: (&["--aggregation", "max"], &["--aggregation has changed", "--restart"]),
    });
}

#[test]
fn a_killed_run_of_answers_is_resumed() {
    const RECORDS: usize = 20_000;
    let folder = tempfile::tempdir().unwrap();
    let lines = (0..RECORDS).map(|i| {
        let record = json!({"context": format!("{}Ada {i} in London", "the wick ".repeat(i % 5)), "id": i});
        format!("{record}\n")
    });
    let input = folder.path().join("texts.jsonl");
    fs::write(&input, lines.collect::<String>()).unwrap();
    let question = ["--question", "where is Ada", "--text-field", "context"];
    support::assert_resumes(&support::KilledRun {
        command: &|| run("answer", "qa-word-piece", &question),
        input: &input,
        formats: &["jsonl", "parquet"],
        code: 0,
        changed: (&["--top-k", "3"], &["--top-k has changed", "--restart"]),
    });
}

/// A second run into the same output does what `embed` does: with `--resume` it finds the rows of the first
/// one, without it starts again.
#[test]
fn a_second_run_with_resume_finds_that_the_output_is_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("texts.txt");
    fs::write(&input, "Ada in London [MASK]\nthe lamp [MASK]\n").unwrap();
    for (command, model, args) in [
        ("embed", "bert-tiny", &[][..]),
        ("tag", "token-heads/ner-word-piece", &[]),
        ("answer", "token-heads/qa-word-piece", &["--question", "where is Ada"]),
        ("classify", "heads/bert", &[]),
        ("rerank", "heads/cross-encoder-bert", &["--query", "a lamp"]),
        ("rerank", "heads/cross-encoder-bert", &["--query", "a lamp", "--top-k", "2"]),
        ("fill", "masked-lm/bert", &[]),
    ] {
        let (output, stats) = (folder.path().join("rows.jsonl"), folder.path().join("stats.json"));
        let run = |more: &[&str]| {
            let mut run = sconce();
            run.arg(command).arg("-m").arg(fixture(model)).args(args).args(more);
            let found = run.arg("-i").arg(&input).arg("-o").arg(&output).output().unwrap();
            assert!(found.status.success(), "{command}: {}", stderr(&found));
            stderr(&found)
        };
        run(&["--restart"]);
        let rows = fs::read(&output).unwrap();
        let written = fs::metadata(&output).unwrap().modified().unwrap();
        let stats = stats.to_str().unwrap();
        for again in [&["--resume"][..], &["--resume", "--stats", stats]] {
            let note = run(again);
            assert!(note.contains("is up to date: 2 rows"), "{command} {again:?}: {note}");
            assert_eq!(fs::metadata(&output).unwrap().modified().unwrap(), written, "{command}");
        }
        let note = run(&["--stats", stats]);
        assert!(!note.contains("up to date"), "{command}: {note}");
        assert_eq!(fs::read(&output).unwrap(), rows, "{command}");
    }
}

#[test]
fn csv_has_spans_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let texts = ["Ada met Charles", "a lamp, in London"];
    for (command, model, options, columns) in [
        ("tag", "ner-word-piece", &[][..], &["entities"][..]),
        ("answer", "qa-word-piece", &["--question", "who?", "--top-k", "2"], &["answers", "no_answer"]),
    ] {
        let path = folder.path().join(format!("{command}.csv"));
        let expected = rows(&output(command, model, &[options, &texts].concat()));
        let written = output(command, model, &[options, &texts, &["-o", path.to_str().unwrap()]].concat());
        assert!(written.status.success(), "{}", stderr(&written));
        let mut reader = csv::Reader::from_path(&path).unwrap();
        let header: Vec<String> = reader.headers().unwrap().iter().map(str::to_owned).collect();
        assert_eq!(header, [&["index", "tokens", "truncated"], columns].concat());
        for (record, row) in reader.records().zip(&expected) {
            for (field, column) in record.unwrap().iter().skip(3).zip(columns) {
                assert_eq!(serde_json::from_str::<Value>(field).unwrap(), row[column], "{command}");
            }
        }
    }
}

#[test]
fn a_model_with_another_head_is_refused_with_the_command_for_it() {
    let refused = |command: &str, model: &str, args: &[&str], parts: &[&str]| {
        assert_fails(&output(command, model, args), 1, parts);
    };
    refused(
        "tag",
        "qa-word-piece",
        &["a"],
        &["a question-answering model", "not a token classifier", "sconce answer"],
    );
    let parts = ["a token classifier", "not a question-answering model", "use sconce tag"];
    refused("answer", "ner-word-piece", &["--question", "a", "b"], &parts);
    refused("classify", "ner-word-piece", &["a"], &["not a text classifier", "use sconce tag"]);
    refused(
        "rerank",
        "qa-word-piece",
        &["--query", "a", "b"],
        &["not an embedding model", "use sconce answer"],
    );
    let embed = support::embed("token-heads/qa-word-piece", ["a"]);
    assert!(embed.status.success() && stderr(&embed).contains("its head, which sconce answer uses"));
    let tag = sconce().args(["tag", "-m"]).arg(fixture("bert-tiny")).arg("a").output().unwrap();
    assert_fails(&tag, 1, &["an embedding model, not a token classifier", "use sconce embed"]);
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let refused = |command: &str, model: &str, args: &[&str], parts: &[&str]| {
        assert_fails(&output(command, model, args), 2, parts);
    };
    let tag =
        |args: &[&str], parts: &[&str]| refused("tag", "ner-word-piece", &[&["a"], args].concat(), parts);
    tag(&["--stride", "5", "--aggregation", "none"], &["--stride", "--aggregation none"]);
    tag(&["--stride", "5", "--on-long", "skip"], &["--stride needs --on-long truncate"]);
    tag(&["--stride", "5", "--truncation-side", "left"], &["--truncation-side has no effect"]);
    tag(&["--stride", "8", "--max-length", "10"], &["--stride 8", "windows have 8 tokens", "--max-length"]);
    tag(
        &["--output-format", "npy"],
        &["npy holds an array of vectors", "entities", "jsonl, csv, parquet or arrow"],
    );
    let answer = ["--question", "a", "b", "--output-format", "safetensors"];
    refused("answer", "qa-word-piece", &answer, &["safetensors holds", "answers", "jsonl"]);
    assert_eq!(output("answer", "qa-word-piece", &["b"]).status.code(), Some(2), "no question");
    let both = output("answer", "qa-word-piece", &["--question", "a", "--context", "b", "c"]);
    assert_eq!(both.status.code(), Some(2), "two texts");
}

#[test]
fn long_texts_are_truncated_skipped_or_end_the_run() {
    let long = "lamp ".repeat(80);
    let args = ["a", &long, "b", "--max-length", LIMIT];
    let truncated = rows(&output("tag", "ner-word-piece", &args));
    assert_eq!((&truncated[1]["tokens"], &truncated[1]["truncated"]), (&json!(40), &json!(true)));
    let windows = rows(&output("tag", "ner-word-piece", &[&args[..], &["--stride", "0"]].concat()));
    assert_eq!((&windows[1]["tokens"], &windows[1]["truncated"]), (&json!(86), &json!(false)));
    let skipped = output("tag", "ner-word-piece", &[&args[..], &["--on-long", "skip"]].concat());
    assert_eq!(skipped.status.code(), Some(3));
    assert_eq!(String::from_utf8(skipped.stdout).unwrap().lines().count(), 2);
    let stopped = output("tag", "ner-word-piece", &[&args[..], &["--on-long", "error"]].concat());
    assert_fails(&stopped, 1, &["argument 2 has 82 tokens, over the limit of 40"]);
    // A question that leaves no room for the text.
    let args = ["--question", &long, &long, "--max-length", LIMIT];
    assert_fails(
        &output("answer", "qa-word-piece", &args),
        1,
        &["argument 1", "a window of 40 tokens", "shorten the question"],
    );
}
