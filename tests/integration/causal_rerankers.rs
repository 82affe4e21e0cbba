//! `rerank` with causal language models: scores are those of `CrossEncoder` of sentence-transformers, from
//! the chat template to the logits of one or two tokens. The models are made by
//! `scripts/fixtures/make_causal_reranker_fixtures.py`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    assert_close, assert_fails, copy_folder, fixture, goldens, model_command, numbers, rows, set_fields,
    stderr, stdout,
};

/// Tolerance of scores.
const ATOL: f32 = 1e-5;

fn model(name: &str) -> PathBuf {
    fixture("causal-rerankers").join(name)
}

/// A copy of a model, to be changed.
fn copy(name: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&model(name), folder.path());
    folder
}

/// `sconce rerank` of pairs, each with its own query.
fn rerank(model: &Path, pairs: &Value, args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let line = |pair: &Value| json!({"query": pair[0], "text": pair[1]}).to_string() + "\n";
    let path = folder.path().join("pairs.jsonl");
    fs::write(&path, pairs.as_array().unwrap().iter().map(line).collect::<String>()).unwrap();
    let common = ["--query-field", "query", "-i", path.to_str().unwrap()];
    model_command("rerank", model, &[&common, args].concat()).output().unwrap()
}

/// `sconce rerank` of one query and one text.
fn rerank_one(model: &Path, args: &[&str]) -> Output {
    model_command("rerank", model, &[&["--query", "a lamp", "the candle burns"], args].concat())
        .output()
        .unwrap()
}

fn scores(output: &Output) -> Vec<f32> {
    rows(output).iter().map(|row| row["score"].as_f64().unwrap() as f32).collect()
}

/// All fixtures, by name.
fn all() -> Vec<String> {
    let entries = fs::read_dir(fixture("causal-rerankers")).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names.len(), 11, "{names:?}");
    names
}

/// Options of a case.
fn options(case: &Value) -> Vec<&str> {
    case["options"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect()
}

#[test]
fn scores_are_those_of_the_cross_encoder() {
    for name in all() {
        let goldens = goldens(&model(&name));
        for case in goldens["cases"].as_array().unwrap() {
            let output = rerank(&model(&name), &goldens["pairs"], &options(case));
            let tokens: Vec<usize> =
                rows(&output).iter().map(|row| row["tokens"].as_u64().unwrap() as usize).collect();
            let expected: Vec<usize> =
                case["ids"].as_array().unwrap().iter().map(|ids| ids.as_array().unwrap().len()).collect();
            assert_eq!(tokens, expected, "{name} {:?}", options(case));
            assert_close(&scores(&output), &numbers(&case["scores"]), ATOL, 0.0);
        }
    }
}

#[test]
fn a_score_does_not_depend_on_its_batch() {
    for name in ["qwen3", "llama", "mistral-pair"] {
        let pairs = &goldens(&model(name))["pairs"];
        let together = stdout(&rerank(&model(name), pairs, &[]));
        assert_eq!(together.lines().count(), pairs.as_array().unwrap().len());
        for more in [["--batch-tokens", "1"], ["--threads", "1"]] {
            assert_eq!(stdout(&rerank(&model(name), pairs, &more)), together, "{name} {more:?}");
        }
    }
}

#[test]
fn pairs_over_the_limit_are_reported() {
    let goldens = goldens(&model("qwen3"));
    let output = rerank(&model("qwen3"), &goldens["pairs"], &["--max-length", "135"]);
    let truncated: Vec<bool> = rows(&output).iter().map(|row| row["truncated"].as_bool().unwrap()).collect();
    assert_eq!(truncated.iter().filter(|truncated| **truncated).count(), 5, "{truncated:?}");
    assert!(stderr(&output).contains("5 of 7 texts were longer than 135 tokens"), "{}", stderr(&output));
    let output = rerank(&model("qwen3"), &goldens["pairs"], &["--max-length", "135", "--on-long", "skip"]);
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(stdout(&output).lines().count(), 2);
}

/// With and without the tokens at its end, a truncated text has another score: the goldens tell them apart.
#[test]
fn truncated_texts_end_as_the_template_does() {
    let goldens = goldens(&model("qwen2"));
    let folder = copy("qwen2");
    let settings: Value =
        serde_json::from_slice(&fs::read(folder.path().join("sentence_bert_config.json")).unwrap()).unwrap();
    let mut calls = settings["processing_kwargs"].clone();
    calls["chat_template"]["restore_suffix"] = json!(true);
    set_fields(&folder.path().join("sentence_bert_config.json"), &json!({"processing_kwargs": calls}));
    let restored = scores(&rerank(folder.path(), &goldens["pairs"], &[]));
    let cut = numbers(&goldens["cases"][0]["scores"]);
    let differs: Vec<bool> = restored.iter().zip(&cut).map(|(a, b)| (a - b).abs() > ATOL).collect();
    assert_eq!(differs, [false, false, false, false, true, true, false]);
}

#[test]
fn raw_scores_are_differences_of_logits() {
    let pairs = &goldens(&model("qwen3"))["pairs"];
    let logits = scores(&rerank(&model("qwen3"), pairs, &["--raw"]));
    let sigmoid: Vec<f32> = logits.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect();
    assert_close(&scores(&rerank(&model("qwen3"), pairs, &[])), &sigmoid, 1e-6, 0.0);
}

#[test]
fn a_bare_checkpoint_is_read_as_sentence_transformers_reads_it_with_a_note() {
    let mut command = crate::support::sconce();
    let output =
        command.args(["rerank", "-m"]).arg(model("bare")).args(["--query", "a", "b"]).output().unwrap();
    assert!(output.status.success());
    let note = "a causal language model without a LogitScore module; its score is logit(yes) - logit(no)";
    assert!(stderr(&output).contains(note), "{}", stderr(&output));
}

#[test]
fn a_model_without_a_template_for_pairs_is_refused() {
    // The template of a chat model, which knows neither role.
    let chat =
        "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.content }}{% endif %}{% endfor %}";
    let folder = copy("bare");
    let template = folder.path().join("chat_template.jinja");
    let shown = template.to_str().unwrap();
    for (source, parts) in [
        (chat, &["leaves out the message of the role query", "not of a reranker; choose a reranker"][..]),
        ("{{ messages[0].content }}", &["leaves out the message of the role document"]),
        ("{{ raise_exception('no\u{1b}[31m queries') }}", &["fails (", "no\\u{1b}[31m queries"]),
        ("{% for m in messages %}", &["the chat template does not parse (", "fix it"]),
    ] {
        fs::write(&template, source).unwrap();
        assert_fails(&rerank_one(folder.path(), &[]), 1, &[&[shown][..], parts].concat());
    }
    fs::remove_file(&template).unwrap();
    let parts =
        ["tokenizer.json has no chat template beside it (chat_template.jinja", "choose another model"];
    assert_fails(&rerank_one(folder.path(), &[]), 1, &parts);
    // The field of tokenizer_config.json, alone or by the name of the default.
    let own = fs::read_to_string(model("bare").join("chat_template.jinja")).unwrap();
    let expected = stdout(&rerank_one(&model("bare"), &[]));
    let named = json!([{"name": "tool_use", "template": "x"}, {"name": "default", "template": own}]);
    for field in [json!(own), named] {
        set_fields(&folder.path().join("tokenizer_config.json"), &json!({"chat_template": field}));
        assert_eq!(stdout(&rerank_one(folder.path(), &[])), expected);
    }
    set_fields(&folder.path().join("tokenizer_config.json"), &json!({"chat_template": 7}));
    assert_fails(
        &rerank_one(folder.path(), &[]),
        1,
        &["tokenizer_config.json", "neither a template nor a list"],
    );
}

/// A classification head can read plain pairs.
#[test]
fn a_classifier_whose_template_is_for_chats_reads_pairs_with_a_note() {
    let folder = copy("bare-classifier");
    let template = folder.path().join("chat_template.jinja");
    fs::remove_file(&template).unwrap();
    let expected = stdout(&rerank_one(folder.path(), &[]));
    assert_ne!(expected, stdout(&rerank_one(&model("bare-classifier"), &[])));
    for source in ["{{ messages | length }}", "{% generation %}"] {
        fs::write(&template, source).unwrap();
        let mut command = crate::support::sconce();
        let command = command.args(["rerank", "-m"]).arg(folder.path());
        let output = command.args(["--query", "a lamp", "the candle burns"]).output().unwrap();
        assert_eq!(stdout(&output), expected);
        assert!(stderr(&output).contains("encoding query and text as a pair"), "{}", stderr(&output));
    }
}

/// A template is a program of somebody else.
#[test]
fn templates_that_exhaust_the_stack_or_memory_are_refused() {
    let folder = copy("bare");
    let grown = |value: &str| {
        format!(
            "{{% set n = namespace(x=['a']) %}}{{% for i in range(99999) %}}{{% set n.x = {value} %}}{{% endfor %}}{{{{ n.x }}}}\
             {{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}"
        )
    };
    for (source, part) in [
        (format!("{{{{ 1{} }}}}", "+1".repeat(2_000)), "leaves out the message"),
        (format!("{{{{ 1{} }}}}", "+1".repeat(60_000)), "at most 4096 are read; use a simpler one"),
        (format!("{{{{ 1{} }}}}", "+1".repeat(100_000)), "at most 131072 are read; use a shorter one"),
        (format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(9_999)), "leaves out the message"),
        (format!("{{{{ {}a }}}}", "(".repeat(2_000)), "recursion"),
        (grown("n.x ~ n.x"), "fuel"),
        // What shares its parts is written as if it did not: the time is up, or the memory.
        (grown("[n.x, n.x]").replace("99999", "99"), "takes over"),
    ] {
        fs::write(folder.path().join("chat_template.jinja"), &source).unwrap();
        assert_fails(&rerank_one(folder.path(), &[]), 1, &["chat_template.jinja", part]);
    }
    // A deeply nested value alone is a text.
    fs::write(folder.path().join("chat_template.jinja"), grown("[n.x]")).unwrap();
    assert_eq!(rows(&rerank_one(folder.path(), &[])).len(), 1);
}

/// A row whose text the template refuses fails alone.
#[test]
fn a_text_that_the_template_refuses_is_an_error_of_its_row() {
    let folder = copy("bare");
    let source = "{% for m in messages %}{% if 'zzz' in m.content %}{{ raise_exception('no zzz') }}{% endif %}{{ m.content }}{% endfor %}";
    fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    let pairs = json!([["a", "b"], ["a", "zzz"], ["a", "c"]]);
    assert_fails(
        &rerank(folder.path(), &pairs, &[]),
        1,
        &["pairs.jsonl line 2", "no zzz", "correct the text"],
    );
    let output = rerank(folder.path(), &pairs, &["--on-error", "skip"]);
    assert_eq!((output.status.code(), stdout(&output).lines().count()), (Some(3), 2));
}

#[test]
fn files_that_are_not_supported_are_refused() {
    let module = |fields: Value, parts: &[&str]| {
        let folder = copy("qwen3");
        set_fields(&folder.path().join("1_LogitScore/config.json"), &fields);
        assert_fails(&rerank_one(folder.path(), &[]), 1, parts);
    };
    module(json!({"true_token_id": 333}), &["1_LogitScore", "names the token 333", "has only 333"]);
    module(json!({"true_token_id": null}), &["1_LogitScore", "true_token_id", "expected a token id"]);
    module(json!({"module_input_name": "scores"}), &["module_input_name", "causal_logits"]);
    let settings = |fields: Value, parts: &[&str]| {
        let folder = copy("qwen3");
        set_fields(&folder.path().join("sentence_bert_config.json"), &fields);
        assert_fails(&rerank_one(folder.path(), &[]), 1, parts);
    };
    let message = |format: &str| json!({"modality_config": {"message": {"format": format}}});
    settings(message("other"), &["modality_config.message.format", "flat, structured or auto"]);
    let call = |arguments: Value| json!({"processing_kwargs": {"chat_template": arguments}});
    settings(call(json!({"truncation": false})), &["processing_kwargs.chat_template.truncation"]);
    settings(call(json!({"chat_template": "x"})), &["processing_kwargs.chat_template.chat_template"]);
    let folder = copy("gemma3");
    set_fields(&folder.path().join("config.json"), &json!({"final_logit_softcapping": 0}));
    assert_fails(&rerank_one(folder.path(), &[]), 1, &["final_logit_softcapping", "a positive number"]);
    let folder = copy("qwen2");
    set_fields(&folder.path().join("config.json"), &json!({"tie_word_embeddings": true}));
    let tied = scores(&rerank_one(folder.path(), &[]));
    assert_ne!(
        tied,
        scores(&rerank_one(&model("qwen2"), &[])),
        "the matrix of the embeddings is another one"
    );
}

#[test]
fn options_that_do_not_apply_are_refused() {
    let output = rerank_one(&model("qwen3"), &["--truncation", "only_second"]);
    assert_fails(&output, 2, &["--truncation only_second", "chat template", "leave the option out"]);
    let output = rerank_one(&model("qwen3"), &["--prompt-name", "other"]);
    assert_fails(&output, 2, &["--prompt-name other", "code, news"]);
    let output = rerank_one(&fixture("bert-tiny"), &["--prompt", "query: "]);
    assert_fails(&output, 2, &["--prompt needs a cross-encoder"]);
}

#[test]
fn other_commands_name_the_command_for_rerankers() {
    let texts = ["the candle burns"];
    let output = model_command("classify", &model("qwen3"), &texts).output().unwrap();
    assert_fails(&output, 1, &["is a cross-encoder", "use sconce rerank"]);
    let mut embed = crate::support::sconce();
    let output = embed.args(["embed", "-m"]).arg(model("qwen3")).args(texts).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("which sconce rerank uses"), "{}", stderr(&output));
}

/// A classifier of which only its tensors tell.
#[test]
fn a_classifier_that_the_config_does_not_describe_is_refused_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("heads").join("cross-encoder-bert"), folder.path());
    let expected = stdout(&rerank_one(folder.path(), &[]));
    let config = folder.path().join("config.json");
    set_fields(&config, &json!({"architectures": null, "id2label": null, "label2id": null}));
    let parts = ["the tensor classifier.bias", "names no labels; add \"id2label\" with one label"];
    assert_fails(&rerank_one(folder.path(), &[]), 1, &parts);
    set_fields(&config, &json!({"id2label": {"0": "score"}}));
    assert_eq!(stdout(&rerank_one(folder.path(), &[])), expected);
}

#[test]
fn inspect_names_the_head() {
    let head = |name: &str| -> Value {
        let output = model_command("inspect", &model(name), &["--json"]).output().unwrap();
        let page: Value = serde_json::from_str(&stdout(&output)).unwrap();
        page["head"].clone()
    };
    let qwen3 = head("qwen3");
    assert_eq!(qwen3["kind"], "causal LM");
    assert_eq!(qwen3["labels"], json!(["logit(yes) - logit(no)"]));
    assert_eq!((&qwen3["scores"], &qwen3["command"]), (&json!("sigmoid"), &json!("sconce rerank")));
    assert_eq!(qwen3["parameters"], 0, "the head is tied");
    assert_eq!(head("qwen3-true-token")["labels"], json!(["logit(yes)"]));
    assert_eq!(head("qwen2")["parameters"], 333 * 32);
}
