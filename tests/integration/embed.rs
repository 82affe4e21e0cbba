//! `sconce embed` and the other commands as users call them.

use crate::support;
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Output, Stdio};

use crate::support::{assert_close, embed, embedding, fixture, numbers, rows, sconce, stderr, stdout};
use candle_core::Tensor;
use serde_json::Value;

const TEXTS: [&str; 4] = ["the candle burns", "", "a lamp and a wick", "Attention! 灯"];

fn write_lines(folder: &Path, name: &str, lines: &[&str]) -> String {
    let path = folder.join(name);
    fs::write(&path, lines.iter().map(|line| format!("{line}\n")).collect::<String>()).unwrap();
    path.display().to_string()
}

#[test]
fn arguments_standard_input_and_files_give_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let expected = stdout(&embed("bert-tiny", TEXTS));
    assert_eq!(expected.lines().count(), TEXTS.len());

    let file = write_lines(folder.path(), "texts.txt", &TEXTS);
    assert_eq!(stdout(&embed("bert-tiny", ["--input", &file])), expected);

    for args in [&[][..], &["--input", "-"]] {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).args(args);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(TEXTS.join("\n").as_bytes()).unwrap();
        assert_eq!(stdout(&child.wait_with_output().unwrap()), expected);
    }
}

#[test]
fn several_files_are_one_input_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let first = write_lines(folder.path(), "1.txt", &TEXTS[..1]);
    let second = write_lines(folder.path(), "2.txt", &TEXTS[1..]);
    assert_eq!(stdout(&embed("bert-tiny", ["-i", &first, &second])), stdout(&embed("bert-tiny", TEXTS)));
}

#[test]
fn a_row_has_the_documented_keys() {
    let long = "lamp ".repeat(30);
    let found = rows(&embed("bert-tiny", ["the lamp", &long]));
    let keys = |row: &Value| row.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    for (i, (row, tokens, truncated)) in
        [(&found[0], 4, false), (&found[1], 24, true)].into_iter().enumerate()
    {
        assert_eq!(keys(row), ["index", "tokens", "truncated", "embedding"]);
        assert_eq!(row["index"], i);
        assert_eq!(row["tokens"], tokens);
        assert_eq!(row["truncated"], truncated);
        assert_eq!(embedding(row).len(), 36);
    }
}

#[test]
fn an_argument_that_names_a_file_is_a_text_with_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    write_lines(folder.path(), "README.md", &TEXTS);
    // Run in the directory, so that the names are short and no text is truncated.
    let embed_there = |args: &[&str]| {
        let mut command = sconce();
        command.current_dir(folder.path()).arg("embed").arg("--model").arg(fixture("bert-tiny")).args(args);
        command.output().expect("sconce starts")
    };
    let output = embed_there(&["README.md", "README.md", "a lamp"]);
    assert_eq!(rows(&output).len(), 3);
    let message = stderr(&output);
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("hint: ") && message.contains("--input README.md"), "{message}");
    assert_eq!(stderr(&embed_there(&["README.md", "--quiet"])), "");
    assert_eq!(stderr(&embed("bert-tiny", ["a lamp"])), "");
}

#[test]
fn a_single_hyphen_is_standard_input() {
    let with_input = |args: &[&str], input: &str| {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).args(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    };
    let output = with_input(&["-"], "a lamp\nthe wick\n");
    assert_eq!(stdout(&output), stdout(&embed("bert-tiny", ["a lamp", "the wick"])));
    assert_eq!(stderr(&output), "");
    assert_eq!(rows(&embed("bert-tiny", ["a", "-"])).len(), 2, "among other texts, a hyphen is a text");
    // Input that is read as lines, but looks like another format.
    let jsonl = "{\"text\": \"a lamp\"}\n{\"text\": \"the wick\"}\n";
    for args in [&[][..], &["-"], &["--input", "-"]] {
        let output = with_input(args, jsonl);
        assert_eq!(rows(&output).len(), 2);
        let message = stderr(&output);
        assert!(
            message.lines().count() == 1 && message.contains("hint: standard input looks like JSON lines"),
            "{message}"
        );
        assert!(message.contains("--input-format jsonl"), "{message}");
    }
    assert_eq!(stderr(&with_input(&["--input", "-", "--input-format", "lines"], jsonl)), "");
    assert_eq!(stderr(&with_input(&[], "{a lamp}\n")), "");
    assert!(stderr(&with_input(&[], "<!DOCTYPE html>\n<p>a\n")).contains("looks like HTML"));
}

#[test]
fn truncation_is_counted_and_never_silent() {
    let long = "lamp ".repeat(30);
    for quiet in [false, true] {
        let mut args = vec![long.as_str(), "lamp"];
        args.extend(quiet.then_some("--quiet"));
        let message = stderr(&embed("bert-tiny", &args));
        assert_eq!(
            message,
            "sconce: warning: 1 of 2 texts were longer than 24 tokens and were truncated; 8 tokens were removed\n"
        );
    }
    assert_eq!(stderr(&embed("bert-tiny", ["lamp"])), "");
}

#[test]
fn max_length_sets_the_limit() {
    let long = "lamp ".repeat(30);
    let tokens = |args: &[&str]| rows(&embed("bert-tiny", args))[0]["tokens"].clone();
    assert_eq!(tokens(&[&long]), 24);
    assert_eq!(tokens(&[&long, "--max-length", "5"]), 5);
    assert_eq!(tokens(&[&long, "--max-length", "40"]), 32);
}

#[test]
fn npy_holds_the_rows_of_jsonl() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.npy");
    let expected: Vec<f32> = rows(&embed("bert-tiny", TEXTS)).iter().flat_map(embedding).collect();

    let mut args = vec!["--output", target.to_str().unwrap()];
    args.extend(TEXTS);
    assert!(embed("bert-tiny", &args).status.success());
    let array = Tensor::read_npy(&target).unwrap();
    assert_eq!(array.dims(), [4, 36]);
    assert_close(&array.flatten_all().unwrap().to_vec1::<f32>().unwrap(), &expected, 0.0, 0.0);

    // A pipe, which cannot seek, gets the same bytes.
    let mut args = vec!["--output-format", "npy"];
    args.extend(TEXTS);
    assert_eq!(embed("bert-tiny", &args).stdout, fs::read(&target).unwrap());
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    let expected = [".out.npy.done.json", "out.npy", "out.npy.meta.json"];
    assert_eq!(
        names, expected,
        "the output, its metadata and the record of the finished run are the only files"
    );
}

#[test]
fn csv_holds_the_rows_of_jsonl() {
    let expected = rows(&embed("bert-tiny", TEXTS));
    let mut args = vec!["--output-format", "csv"];
    args.extend(TEXTS);
    let text = stdout(&embed("bert-tiny", &args));
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(lines[0][..5], ["index", "tokens", "truncated", "e0", "e1"]);
    assert_eq!(lines.len(), 1 + expected.len());
    for (line, row) in lines[1..].iter().zip(&expected) {
        assert_eq!(line[0], row["index"].to_string());
        assert_eq!(line[1], row["tokens"].to_string());
        assert_eq!(line[2], row["truncated"].to_string());
        let values: Vec<f32> = line[3..].iter().map(|x| x.parse().unwrap()).collect();
        assert_close(&values, &embedding(row), 0.0, 0.0);
    }
}

#[test]
fn an_output_file_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.jsonl");
    fs::write(&target, "the earlier output\n".repeat(1000)).unwrap();
    assert!(embed("bert-tiny", ["-o", target.to_str().unwrap(), "a"]).status.success());
    assert_eq!(fs::read_to_string(&target).unwrap(), stdout(&embed("bert-tiny", ["a"])));
    #[cfg(unix)]
    {
        let link = folder.path().join("link.jsonl");
        std::os::unix::fs::symlink(&target, &link).unwrap();
        assert!(embed("bert-tiny", ["-o", link.to_str().unwrap(), "b"]).status.success());
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&target).unwrap(), stdout(&embed("bert-tiny", ["b"])));
    }
}

/// `/dev/stdout` is a link to a pipe.
#[test]
#[cfg(target_os = "linux")]
fn a_device_is_written_to_and_not_replaced() {
    let before = fs::read_link("/dev/stdout").unwrap();
    let output = embed("bert-tiny", ["-o", "/dev/stdout", "--output-format", "jsonl", "a"]);
    assert_eq!(stdout(&output), stdout(&embed("bert-tiny", ["a"])));
    assert_eq!(fs::read_link("/dev/stdout").unwrap(), before);

    // If standard output is a file, rows are appended to it.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.jsonl");
    fs::write(&path, "first\n").unwrap();
    let file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).args(["-o", "/dev/stdout", "a"]);
    assert!(command.stdout(Stdio::from(file)).status().unwrap().success());
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("first\n{}", stdout(&output)));
}

#[test]
fn every_pooling_matches_its_definition() {
    let texts = ["the candle burns", "a lamp"];
    let vectors = |args: &[&str]| {
        let mut all = texts.to_vec();
        all.extend(args);
        rows(&embed("bert-tiny", all))
    };
    let tokens = vectors(&["--pooling", "none"]);
    for (i, row) in tokens.iter().enumerate() {
        assert!(row.get("embedding").is_none());
        let tokens: Vec<Vec<f32>> = row["embeddings"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(tokens.len() as u64, row["tokens"].as_u64().unwrap());
        let column = |f: &dyn Fn(&[f32]) -> f32| -> Vec<f32> {
            (0..36).map(|d| f(&tokens.iter().map(|token| token[d]).collect::<Vec<_>>())).collect()
        };
        let mean = column(&|xs| xs.iter().sum::<f32>() / xs.len() as f32);
        let max = column(&|xs| xs.iter().copied().fold(f32::MIN, f32::max));
        let root = column(&|xs| xs.iter().sum::<f32>() / (xs.len() as f32).sqrt());
        let weighted = column(&|xs| {
            let sum: f32 = xs.iter().zip(1..).map(|(x, weight)| x * weight as f32).sum();
            sum / (1..=xs.len()).sum::<usize>() as f32
        });
        for (pooling, expected) in [
            ("cls", &tokens[0]),
            ("last", &tokens[tokens.len() - 1]),
            ("mean", &mean),
            ("max", &max),
            ("mean-sqrt-len", &root),
            ("weighted-mean", &weighted),
        ] {
            let found = embedding(&vectors(&["--pooling", pooling, "--no-normalize"])[i]);
            assert_close(&found, expected, 1e-6, 1e-6);
            let length = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
            let unit: Vec<f32> = expected.iter().map(|x| x / length).collect();
            assert_close(&embedding(&vectors(&["--pooling", pooling, "--normalize"])[i]), &unit, 1e-6, 1e-6);
        }
    }
    // The files of this model choose mean and normalization, those of the other CLS without normalization.
    assert_eq!(vectors(&[]), vectors(&["--pooling", "mean", "--normalize"]));
    let own = embed("bert-masked-lm", texts);
    let mut args = texts.to_vec();
    args.extend(["--pooling", "cls", "--no-normalize"]);
    assert_eq!(stdout(&own), stdout(&embed("bert-masked-lm", args)));
}

#[test]
fn a_model_without_modules_json_uses_the_default_pooling_with_a_note() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors"] {
        fs::copy(fixture("bert-tiny").join(file), folder.path().join(file)).unwrap();
    }
    let run = |args: &[&str]| {
        sconce().arg("embed").arg("-m").arg(folder.path()).arg("a lamp").args(args).output().unwrap()
    };
    let plain = run(&[]);
    assert!(stderr(&plain).contains("no pooling configured; using mean"), "{}", stderr(&plain));
    assert_eq!(stderr(&run(&["--quiet"])), "");
    assert_eq!(stdout(&plain), stdout(&embed("bert-tiny", ["a lamp", "--no-normalize"])));
}

#[test]
fn do_lower_case_of_sentence_transformers_lowercases_texts() {
    let folder = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "model.safetensors", "modules.json"] {
        fs::copy(fixture("bert-tiny").join(file), folder.path().join(file)).unwrap();
    }
    fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    fs::copy(fixture("bert-tiny").join("1_Pooling/config.json"), folder.path().join("1_Pooling/config.json"))
        .unwrap();
    // A tokenizer that keeps the case of texts, of a class that uses the whole file. Its vocabulary has no
    // capital letters.
    fs::write(
        folder.path().join("tokenizer_config.json"),
        r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#,
    )
    .unwrap();
    let path = folder.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["normalizer"]["lowercase"] = Value::Bool(false);
    fs::write(&path, tokenizer.to_string()).unwrap();
    let run = |lower: bool| {
        let settings = format!(r#"{{"max_seq_length": 24, "do_lower_case": {lower}}}"#);
        fs::write(folder.path().join("sentence_bert_config.json"), settings).unwrap();
        stdout(&sconce().arg("embed").arg("-m").arg(folder.path()).arg("The LAMP").output().unwrap())
    };
    let expected = stdout(&embed("bert-tiny", ["the lamp"]));
    assert_eq!(run(true), expected);
    assert_ne!(run(false), expected);
}

/// A truncated text has the vector of the part that is kept.
#[test]
fn texts_are_truncated_at_the_side_of_the_option_or_the_model() {
    let text = "the candle burns on and on in the light of a lamp";
    let words: Vec<&str> = text.split(' ').collect();
    let run = |side: Option<&str>, args: &[&str]| {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "model.safetensors"] {
            fs::copy(fixture("bert-tiny").join(file), folder.path().join(file)).unwrap();
        }
        if let Some(side) = side {
            let config = format!(r#"{{"truncation_side": "{side}"}}"#);
            fs::write(folder.path().join("tokenizer_config.json"), config).unwrap();
        }
        let mut command = sconce();
        command.args(["embed", "--quiet", "--max-length", "8", "-m"]).arg(folder.path()).args(args);
        command.output().unwrap()
    };
    // [CLS], the six tokens that are kept, [SEP]. Every word is one token, except burn ##s.
    let vector = |output: &Output| embedding(&rows(output)[0]);
    let right = vector(&run(None, &[&words[..5].join(" ")]));
    let left = vector(&run(None, &[&words[6..].join(" ")]));
    assert_ne!(left, right);
    assert_eq!(vector(&run(None, &[text])), right);
    assert_eq!(vector(&run(Some("right"), &[text])), right);
    assert_eq!(vector(&run(Some("left"), &[text])), left);
    assert_eq!(vector(&run(None, &["--truncation-side", "left", text])), left);
    assert_eq!(vector(&run(Some("left"), &["--truncation-side", "right", text])), right);
    support::assert_fails(
        &run(Some("middle"), &[text]),
        1,
        &["tokenizer_config.json", "middle", "left or right"],
    );
}

/// As in transformers, for the classes that use these settings.
#[test]
fn tokenizer_config_overrides_the_casing_of_tokenizer_json() {
    let edit = |folder: &Path, file: &str, edit: &dyn Fn(&mut Value)| {
        let path = folder.join(file);
        let mut fields: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut fields);
        fs::write(path, fields.to_string()).unwrap();
    };
    let run = |casing: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"] {
            fs::copy(fixture("bert-tiny").join(file), folder.path().join(file)).unwrap();
        }
        casing(folder.path());
        let mut command = sconce();
        stdout(&command.args(["embed", "-m"]).arg(folder.path()).arg("The LAMP, üni").output().unwrap())
    };
    let plain = run(&|_| ());
    let config = |key: &'static str, value: bool| {
        run(&|folder| edit(folder, "tokenizer_config.json", &|fields| fields[key] = value.into()))
    };
    // A class that uses the whole tokenizer.json.
    let own = |key: &'static str, value: bool| {
        run(&|folder| {
            edit(folder, "tokenizer_config.json", &|fields| {
                fields["tokenizer_class"] = "PreTrainedTokenizerFast".into()
            });
            edit(folder, "tokenizer.json", &|fields| fields["normalizer"][key] = value.into());
        })
    };
    assert_eq!(config("do_lower_case", false), own("lowercase", false));
    assert_ne!(config("do_lower_case", false), plain);
    assert_eq!(config("strip_accents", false), own("strip_accents", false));
    assert_ne!(config("strip_accents", false), plain);
}

#[test]
fn random_weights_depend_only_on_the_seed() {
    let config = fixture("bert-tiny").join("config.json");
    let tokenizer = fixture("bert-tiny").join("tokenizer.json");
    let run = |seed: &str| {
        let mut command = sconce();
        command.arg("embed").arg("--config").arg(&config).arg("--tokenizer").arg(&tokenizer);
        command.args(["--random-weights", seed, "--quiet", "the lamp"]);
        rows(&command.output().unwrap())
    };
    let first = run("7");
    assert_eq!(embedding(&first[0]).len(), 36);
    assert!(embedding(&first[0]).iter().all(|x| x.is_finite()));
    assert_eq!(run("7"), first);
    assert_ne!(run("8"), first);
    // The values are the same in every release, since benchmarks use them in place of a model.
    assert_close(&embedding(&first[0])[..2], &FIRST_OF_SEED_7, 1e-6, 1e-6);
    // Without --tokenizer, the model's own is used.
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("--config").arg(&config);
    let output = command.args(["--random-weights", "7", "--quiet", "the lamp"]).output().unwrap();
    assert_eq!(rows(&output), first);
}

const FIRST_OF_SEED_7: [f32; 2] = [-0.372_115_82, -0.267_599_82];

#[test]
fn every_model_type_has_a_file_in_configs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let types: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| fs::read(entry.unwrap().path()).ok())
        .filter_map(|text| serde_json::from_slice::<Value>(&text).ok())
        // The type of a text tower is in the config of the whole model.
        .flat_map(|config| [config["model_type"].clone(), config["text_config"]["model_type"].clone()])
        .filter_map(|model_type| model_type.as_str().map(str::to_owned))
        .collect();
    for model_type in sconce::model::families::FAMILIES.iter().flat_map(|family| family.model_types) {
        // `gte` is the name that transformers gives to `new`.
        assert!(types.iter().any(|known| known == model_type) || *model_type == "gte", "{model_type}");
    }
}

#[test]
fn completions_and_help_are_complete() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&sconce().args(["completions", shell]).output().unwrap());
        assert!(script.contains("batch-tokens"), "{shell}");
    }
    let help = stdout(&sconce().args(["embed", "--help"]).output().unwrap());
    for part in [
        "--model",
        "--pooling",
        "--output-format",
        "--threads",
        "--random-weights",
        "Input:",
        "Output:",
        "Vectors:",
        "Model:",
        "Examples:",
        "Environment:",
        "HF_HOME",
        "SCONCE_MODEL",
        "Exit codes:",
        "130 interrupted",
    ] {
        assert!(help.contains(part), "no {part}");
    }
}

/// A screen has 30 lines of 100 columns.
#[test]
fn the_short_help_fits_a_screen() {
    for command in ["embed", "inspect", "download"] {
        let help = stdout(&sconce().args([command, "-h"]).env("COLUMNS", "100").output().unwrap());
        assert!(help.lines().count() <= 30, "{} lines: {help}", help.lines().count());
        assert!(help.lines().all(|line| line.chars().count() <= 100), "{help}");
        assert!(help.contains("--help has all options and examples"), "{help}");
        for hidden in ["--random-weights", "--batch-tokens", "Examples:"] {
            assert!(!help.contains(hidden), "{hidden}: {help}");
        }
    }
}

#[test]
fn inspect_takes_the_model_without_an_option_and_prints_json() {
    let tiny = fixture("bert-tiny");
    let run = |args: &[&str]| sconce().arg("inspect").arg(&tiny).args(args).output().unwrap();
    let page = stdout(&run(&[]));
    assert_eq!(page, stdout(&sconce().args(["inspect", "--model"]).arg(&tiny).output().unwrap()));
    let output = run(&["--json"]);
    assert!(output.status.success());
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (key, value) in [
        ("model_type", Value::from("bert")),
        ("max_length", 24.into()),
        ("pooling", "mean".into()),
        ("normalize", true.into()),
        ("dimensions", 36.into()),
        ("task", Value::Null),
        ("default_prompt", Value::Null),
    ] {
        assert_eq!(json[key], value, "{key}");
    }
    assert_eq!(json["encoder"]["layers"], 2);
    assert_eq!(json["encoder"]["hidden_size"], 36);
    let used = json["tensors"]["used"].as_array().unwrap();
    assert!(used.iter().any(
        |t| t["name"] == "embeddings.word_embeddings.weight" && t["shape"] == serde_json::json!([97, 36])
    ));
    assert!(json["tensors"]["problems"].as_array().unwrap().is_empty());
    // The argument overrides SCONCE_MODEL, but contradicts --model.
    let mut command = sconce();
    command.arg("inspect").arg(&tiny).env("SCONCE_MODEL", "./nowhere/at/all");
    assert_eq!(stdout(&command.output().unwrap()), page);
    let output = sconce().arg("inspect").arg(&tiny).args(["-m", "other/model"]).output().unwrap();
    support::assert_fails(&output, 2, &["two models", "--model other/model", "remove one of them"]);
}
