//! Models with a `modules.json`, as sentence-transformers saves them: vectors of `sconce embed` against those
//! of its `encode`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::operands::flat;
use crate::support::{
    assert_close, assert_fails, copy_folder, embed, embedding, first_difference, fixture, numbers, rows,
    sconce, stderr, stdout,
};
use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;

/// The models of `scripts/fixtures/make_pipeline_fixtures.py`, in `tests/fixtures/pipelines`.
const MODELS: &[&str] = &[
    "dense",
    "dense-sizes",
    "layer-norm",
    "no-flags",
    "normalize-around",
    "prompts",
    "prompts-left-out",
    "prompts-left-out-bare",
    "prompts-left-out-cls",
    "residuals",
    "token-modules",
    "truncated",
    "two-denses",
];

fn tensors(path: &str) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(fixture("pipelines").join(path), &Device::Cpu).expect("goldens load")
}

fn goldens(name: &str) -> Value {
    let json = fs::read(fixture("pipelines").join(name).join("goldens.json")).expect("goldens exist");
    serde_json::from_slice(&json).expect("goldens are JSON")
}

fn strings(list: &Value) -> Vec<String> {
    list.as_array().expect("a list").iter().map(|x| x.as_str().expect("a text").to_owned()).collect()
}

/// The vectors of `texts`, concatenated.
fn vectors(model: &Path, options: &[&str], texts: &[String]) -> Vec<f32> {
    let output = sconce()
        .arg("embed")
        .arg("-m")
        .arg(model)
        .arg("--quiet")
        .args(options)
        .arg("--")
        .args(texts)
        .output()
        .expect("sconce starts");
    rows(&output).iter().flat_map(embedding).collect()
}

#[test]
fn every_model_gives_the_reference_vectors() {
    let mut folders: Vec<_> = fs::read_dir(fixture("pipelines"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().is_dir())
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    folders.sort();
    assert_eq!(folders, MODELS, "every folder is tested");
    for name in MODELS {
        let (goldens, tensors) = (goldens(name), tensors(&format!("{name}/goldens.safetensors")));
        let texts = strings(&goldens["texts"]);
        for case in goldens["cases"].as_array().unwrap() {
            let options = strings(&case["options"]);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let found = vectors(&fixture("pipelines").join(name), &options, &texts);
            let golden = flat(&tensors[case["vectors"].as_str().unwrap()]);
            if let Some(difference) = first_difference(&found, &golden, ATOL, RTOL) {
                panic!("{name} with {options:?}: {difference}");
            }
        }
    }
}

/// A copy of a model that a test may change.
struct Model {
    folder: TempDir,
}

impl Model {
    fn copy_of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture("pipelines").join(name), folder.path());
        Model { folder }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Changes a JSON file; a missing file is null.
    fn edit(&self, file: &str, edit: impl FnOnce(&mut Value)) {
        let path = self.path(file);
        let mut value = fs::read(&path).map_or(Value::Null, |json| serde_json::from_slice(&json).unwrap());
        edit(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    fn run(&self, command: &str, args: &[&str]) -> Output {
        sconce().arg(command).arg("-m").arg(self.folder.path()).args(args).output().unwrap()
    }

    fn vector(&self, args: &[&str]) -> Vec<f32> {
        let mut all = vec!["a lamp on the wick"];
        all.extend(args);
        embedding(&rows(&self.run("embed", &all))[0])
    }
}

#[test]
fn modules_are_identified_by_the_last_component_of_their_type() {
    let model = Model::copy_of("dense");
    let expected = model.vector(&[]);
    for prefix in
        ["sentence_transformers.models.", "sentence_transformers.sentence_transformer.modules.x.", ""]
    {
        model.edit("modules.json", |modules| {
            for module in modules.as_array_mut().unwrap() {
                let kind = module["type"].as_str().unwrap().rsplit('.').next().unwrap();
                module["type"] = json!(format!("{prefix}{kind}"));
            }
        });
        assert_eq!(model.vector(&[]), expected, "{prefix}");
    }
}

#[test]
fn vectors_have_the_same_bits_in_any_batch() {
    let texts: Vec<String> =
        (1..30).map(|n| "the lamp of a candle ".repeat(n % 5) + &"a".repeat(n)).collect();
    for name in ["normalize-around", "residuals", "prompts-left-out-cls"] {
        let model = fixture("pipelines").join(name);
        let expected = vectors(&model, &["--batch-tokens", "100000"], &texts);
        for tokens in ["1", "50", "200"] {
            assert_eq!(vectors(&model, &["--batch-tokens", tokens], &texts), expected, "{name}, {tokens}");
        }
    }
}

#[test]
fn the_pooler_gives_the_reference_vectors() {
    let goldens = tensors("poolers.safetensors");
    let texts = strings(&self::goldens("dense")["texts"]);
    assert_eq!(goldens.len(), 5);
    for (name, golden) in &goldens {
        let found = vectors(&fixture(name), &["--pooling", "pooler", "--no-normalize"], &texts);
        if let Some(difference) = first_difference(&found, &flat(golden), ATOL, RTOL) {
            panic!("{name}: {difference}");
        }
    }
}

#[test]
fn the_pooler_of_a_model_without_one_is_an_error() {
    for (name, kind) in [("distilbert", "distilbert"), ("electra", "electra")] {
        let output = embed(name, ["lamp", "--pooling", "pooler"]);
        assert_fails(&output, 2, &["--pooling pooler", kind, "no pooler", "choose another"]);
    }
    let output = embed("bert-masked-lm", ["lamp", "--pooling", "pooler"]);
    assert_fails(&output, 1, &["model.safetensors", "bert.pooler.dense.weight", "another --pooling"]);
}

#[test]
fn random_weights_include_the_pooler() {
    let config = fixture("bert-tiny").join("config.json");
    let run = |pooling: &str| {
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("--config").arg(&config);
        let output = command.args(["--random-weights", "7", "lamp", "--pooling", pooling]).output().unwrap();
        embedding(&rows(&output)[0])
    };
    let (cls, pooled) = (run("cls"), run("pooler"));
    assert!(pooled.iter().all(|x| x.abs() < 1.0) && pooled != cls && pooled.iter().any(|x| *x != 0.0));
    assert_eq!(run("pooler"), pooled);
}

#[test]
fn options_add_and_remove_the_final_normalization() {
    let length = |vector: &[f32]| vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    let model = Model::copy_of("normalize-around");
    let (own, without) = (model.vector(&[]), model.vector(&["--no-normalize"]));
    assert_close(&[length(&own)], &[1.0], 1e-6, 0.0);
    assert!((length(&without) - 1.0).abs() > 0.1, "the last Normalize is removed");
    let unit: Vec<f32> = without.iter().map(|x| x / length(&without)).collect();
    assert_close(&own, &unit, 1e-6, 1e-6);
    assert_eq!(model.vector(&["--normalize"]), own, "vectors are not normalized twice");
    // A Normalize before the dense layer stays.
    model.edit("modules.json", |modules| drop(modules.as_array_mut().unwrap().pop()));
    assert_eq!(model.vector(&[]), without);
    assert_eq!(model.vector(&["--no-normalize"]), without);
    assert_eq!(model.vector(&["--normalize"]), own);
}

#[test]
fn the_pooling_option_keeps_the_post_pooling_modules_that_fit() {
    let model = Model::copy_of("dense");
    let by_option = model.vector(&["--pooling", "cls"]);
    assert_ne!(by_option, model.vector(&[]));
    model.edit("1_Pooling/config.json", |config| config["pooling_mode"] = json!("cls"));
    assert_eq!(model.vector(&[]), by_option);

    let model = Model::copy_of("two-denses");
    let output = model.run("embed", &["lamp", "--pooling", "mean"]);
    assert_fails(&output, 2, &["--pooling mean", "16", "2_Dense/config.json", "32", "--pooling none"]);
    // Post-pooling modules do not run on vectors of tokens.
    let tokens = |model: &Model| {
        let row = rows(&model.run("embed", &["the lamp", "--pooling", "none"])).remove(0);
        row["embeddings"].as_array().unwrap().iter().map(numbers).collect::<Vec<_>>()
    };
    let found = tokens(&model);
    assert_eq!((found.len(), found[0].len()), (4, 16));
    model.edit("modules.json", |modules| modules.as_array_mut().unwrap().truncate(2));
    assert_eq!(tokens(&model), found);
}

#[test]
fn vectors_are_truncated_to_the_first_dimensions() {
    let model = Model::copy_of("dense");
    let whole = model.vector(&["--no-normalize"]);
    assert_eq!(whole.len(), 12);
    assert_eq!(model.vector(&["--no-normalize", "--dimensions", "5"]), whole[..5]);
    assert_eq!(model.vector(&["--no-normalize", "--dimensions", "12"]), whole);
    let length = whole[..5].iter().map(|x| x * x).sum::<f32>().sqrt();
    let unit: Vec<f32> = whole[..5].iter().map(|x| x / length).collect();
    assert_close(&model.vector(&["--dimensions", "5"]), &unit, 1e-6, 1e-6);
    let output = model.run("embed", &["lamp", "--dimensions", "13"]);
    assert_fails(&output, 2, &["--dimensions 13", "exceeds the 12 dimensions", "smaller"]);
    assert_eq!(model.run("embed", &["lamp", "--dimensions", "0"]).status.code(), Some(2));
    // The user may ask for more dimensions than truncate_dim.
    let model = Model::copy_of("truncated");
    assert_eq!(model.vector(&[]).len(), 7);
    assert_eq!(model.vector(&["--dimensions", "16"]).len(), 16);
    let tokens = rows(&model.run("embed", &["lamp", "--pooling", "none"]));
    assert_eq!(numbers(&tokens[0]["embeddings"][0]).len(), 16);
    // A truncate_dim above the dimensions has no effect, as in sentence-transformers.
    model.edit("config_sentence_transformers.json", |config| config["truncate_dim"] = json!(99));
    assert_eq!(model.vector(&[]).len(), 16);
}

#[test]
fn prompts_are_chosen_by_text_or_by_name() {
    let model = Model::copy_of("prompts");
    let run = |args: &[&str]| model.run("embed", &[&["the lamp"], args].concat());
    let by_text = run(&["--prompt", "query: "]);
    assert_eq!(stdout(&run(&[])), stdout(&by_text), "the default");
    assert_eq!(stdout(&run(&["--prompt-name", "query"])), stdout(&by_text));
    assert_eq!(rows(&by_text)[0]["tokens"], 4 + 2);
    assert_eq!(rows(&run(&["--prompt", ""]))[0]["tokens"], 4);
    assert_eq!(stderr(&run(&[])), "");
    let messages = stderr(&run(&["--verbose"]));
    assert!(messages.contains(r#"prompt query: "query: ""#), "{messages}");
    let messages = stderr(&run(&["--verbose", "--prompt", "so: "]));
    assert!(messages.contains(r#"prompt "so: ""#), "{messages}");

    assert_fails(
        &run(&["--prompt-name", "question"]),
        2,
        &["--prompt-name question", "passage, query", "--prompt TEXT"],
    );
    assert_eq!(run(&["--prompt", "a", "--prompt-name", "query"]).status.code(), Some(2));
    let output = embed("bert-relu", ["lamp", "--prompt-name", "question"]);
    assert_fails(&output, 2, &["--prompt-name question", "no such prompt"]);
    // sentence-transformers defines a prompt "document" for every model, empty by default.
    model.edit("config_sentence_transformers.json", |config| {
        *config = json!({"prompts": {"passage": null}, "default_prompt_name": "document"})
    });
    assert_eq!(rows(&run(&[]))[0]["tokens"], 4);
    assert_eq!(rows(&run(&["--prompt-name", "passage"]))[0]["tokens"], 4);
}

/// The maximum over no tokens is −∞, as in sentence-transformers; the row is reported as not finite.
#[test]
fn a_text_that_ends_with_the_prompt_has_no_tokens_to_pool() {
    let model = Model::copy_of("prompts-left-out-bare");
    let output = model.run("embed", &["p", "--prompt", "lam", "--pooling", "max"]);
    assert!(stderr(&output).contains("1 of 1 row contains NaN or infinite values"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(3));
    let row: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(row["tokens"], 1);
    assert!(row["embedding"].as_array().unwrap().iter().all(Value::is_null));
}

#[test]
fn inspect_shows_post_pooling_modules_and_prompts() {
    let page = stdout(&Model::copy_of("residuals").run("inspect", &["--tensors"]));
    for part in [
        "dense 32 → 32, silu, residual",
        "dense 32 → 6, relu, no bias, residual",
        "normalize         no",
        "dimensions        6",
        "4_Dense: residual.weight [6, 32] F32",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let page = stdout(&Model::copy_of("prompts-left-out-cls").run("inspect", &[]));
    for part in ["excluding prompt tokens", r#"passage (default): "the lamp of a ""#, r#"query: "query: ""#] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    let page = stdout(&Model::copy_of("truncated").run("inspect", &[]));
    assert!(page.contains("dimensions        7, the first of 16"), "{page}");
}

const DENSE: &str = "2_Dense/config.json";
const POOLING: &str = "1_Pooling/config.json";
const SETTINGS: &str = "config_sentence_transformers.json";

#[test]
fn contradictions_between_files_are_errors() {
    for (file, key, value, part) in [
        (DENSE, "in_features", json!(15), "takes vectors of 15 dimensions, found 16"),
        (DENSE, "in_features", Value::Null, "no field \"in_features\""),
        (DENSE, "out_features", json!(11), "tensor linear.weight has shape [12, 16]"),
        (DENSE, "out_features", json!(0), "\"out_features\" is 0"),
        (DENSE, "bias", json!("yes"), "\"bias\" is \"yes\""),
        (DENSE, "activation_function", json!("torch.nn.modules.activation.Threshold"), "Threshold"),
        (DENSE, "activation_function", json!("my.own.Tanh"), "\"my.own.Tanh\""),
        (DENSE, "module_input_name", json!("token_embeddings"), "\"token_embeddings\""),
        (DENSE, "module_output_name", json!("other"), "\"module_output_name\""),
        (DENSE, "use_residual", json!(true), "residual.weight of shape [12, 16] is missing"),
        ("3_Normalize/config.json", "module_input_name", json!("token_embeddings"), "\"token_embeddings\""),
        (POOLING, "embedding_dimension", json!(24), "24 dimensions, but the model has 16"),
        (POOLING, "embedding_dimension", json!("16"), "\"embedding_dimension\" is \"16\""),
        (POOLING, "pooling_mode", json!("median"), "\"median\" is not supported"),
        (POOLING, "pooling_mode", json!(["cls", 3]), "pooling mode 3 is not supported"),
        (POOLING, "pooling_mode", json!([]), "no pooling mode"),
        (POOLING, "pooling_mode", json!(["cls", "mean"]), "takes vectors of 16 dimensions"),
        (POOLING, "pooling_mode_max_tokens", json!(true), "\"pooling_mode\" is mean, but the flags"),
        (
            POOLING,
            "pooling_mode_median_tokens",
            json!(true),
            "\"pooling_mode_median_tokens\" is not supported",
        ),
        (POOLING, "pooling_mode_cls_token", json!(1), "\"pooling_mode_cls_token\" is 1"),
        (POOLING, "include_prompt", json!("no"), "\"include_prompt\" is \"no\""),
        (SETTINGS, "prompts", json!(["a"]), "\"prompts\" is"),
        (SETTINGS, "prompts", json!({"query": 3}), "the prompt \"query\" is 3"),
        (SETTINGS, "default_prompt_name", json!("question"), "\"question\", but no prompt has that name"),
        (SETTINGS, "truncate_dim", json!(-1), "\"truncate_dim\" is -1"),
    ] {
        let model = Model::copy_of("dense");
        model.edit(file, |config| config[key] = value);
        // Dimensions that do not match are reported with the file of the module that gets the vectors.
        let named = if part.starts_with("takes vectors") { DENSE } else { file };
        assert_fails(&model.run("embed", &["lamp"]), 1, &[named, part]);
        assert_fails(&model.run("inspect", &[]), 1, &[named, part]);
    }
}

/// A model that pools is no multi-vector model, whatever lengths its roles have; `--max-length` replaces
/// them.
#[test]
fn lengths_of_roles_do_not_make_a_multi_vector_model() {
    let model = Model::copy_of("dense");
    let long = "lamp ".repeat(40);
    let tokens = |args: &[&str]| {
        rows(&model.run("embed", &[&[long.as_str()], args].concat()))[0]["tokens"].as_u64().unwrap()
    };
    for with_type in [true, false] {
        model.edit(SETTINGS, |settings| {
            *settings = json!({"query_length": 3});
            if with_type {
                settings["model_type"] = json!("SentenceTransformer");
            }
        });
        model.edit(TRANSFORMER_CONFIG, |config| {
            config["query_length"] = json!(5);
            config["document_length"] = json!(7);
        });
        assert_eq!([tokens(&["--role", "query"]), tokens(&["--role", "document"])], [5, 7]);
        assert_eq!([tokens(&[]), tokens(&["--role", "query", "--max-length", "9"])], [24, 9]);
        let page = stdout(&model.run("inspect", &[]));
        assert!(
            page.contains("query length      5 tokens") && page.contains("pooling           mean"),
            "{page}"
        );
    }
    model.edit(SETTINGS, |settings| *settings = json!({}));
    model.edit(TRANSFORMER_CONFIG, |config| {
        config["query_expansion"] = json!({"strategy": "fixed", "length": 9});
    });
    let expected = ["\"query_expansion\" is", "expanded in multi-vector models"];
    assert_fails(&model.run("embed", &["lamp"]), 1, &expected);
}

#[test]
fn arguments_that_are_not_supported_are_refused_by_name() {
    for (config, part) in [
        (json!({"config_kwargs": {"rope_scaling": {"factor": 2}}}), "\"config_kwargs.rope_scaling\" is {"),
        (json!({"config_args": {"layer_types": []}}), "\"config_args.layer_types\" is []"),
        (json!({"model_kwargs": {"variant": "fp16"}}), "\"model_kwargs.variant\" is \"fp16\""),
        (json!({"model_args": {"load_in_8bit": true}}), "\"model_args.load_in_8bit\" is true"),
        (json!({"tokenizer_args": {"do_lower_case": false}}), "\"tokenizer_args.do_lower_case\" is false"),
        (json!({"processor_kwargs": {"truncation_side": "both"}}), "\"processor_kwargs.truncation_side\""),
        (json!({"processing_kwargs": {"common": {"stride": 2}}}), "\"processing_kwargs.common.stride\" is 2"),
        (json!({"tokenizer_name_or_path": "elsewhere"}), "\"tokenizer_name_or_path\" is \"elsewhere\""),
        (json!({"max_seq_len": 9}), "\"max_seq_len\" is 9, expected no such field"),
    ] {
        let model = Model::copy_of("dense");
        fs::write(model.path(TRANSFORMER_CONFIG), config.to_string()).unwrap();
        assert_fails(&model.run("embed", &["lamp"]), 1, &[TRANSFORMER_CONFIG, part]);
    }
}

#[test]
fn misplaced_modules_are_errors() {
    type Edit = fn(&mut Vec<Value>);
    let edits: [(Edit, &str); 5] = [
        (|modules| modules.swap(1, 2), "\"2_Dense\") is before Pooling"),
        (|modules| modules.push(modules[1].clone()), "second Pooling"),
        (|modules| modules[2]["path"] = json!("../elsewhere"), "\"../elsewhere\" is outside"),
        (|modules| modules[2]["path"] = json!("/elsewhere"), "\"/elsewhere\" is outside"),
        (
            |modules| modules[2]["type"] = json!("sentence_transformers.models.CNN"),
            "module CNN is not supported",
        ),
    ];
    for (edit, part) in edits {
        let model = Model::copy_of("dense");
        model.edit("modules.json", |modules| edit(modules.as_array_mut().unwrap()));
        assert_fails(&model.run("embed", &["lamp"]), 1, &["modules.json", part]);
    }
}

#[test]
fn missing_and_damaged_weights_of_a_module_are_errors() {
    let model = Model::copy_of("dense");
    let weights = model.path("2_Dense/model.safetensors");
    fs::rename(&weights, model.path("2_Dense/pytorch_model.bin")).unwrap();
    let output = model.run("embed", &["lamp"]);
    assert_fails(&output, 1, &["2_Dense/pytorch_model.bin is not a PyTorch checkpoint", "download"]);
    // Without pooling the dense layer does not run.
    assert!(model.run("embed", &["lamp", "--pooling", "none"]).status.success());
    fs::remove_file(model.path("2_Dense/pytorch_model.bin")).unwrap();
    assert_fails(&model.run("embed", &["lamp"]), 1, &["2_Dense has no model.safetensors", "download"]);
    fs::write(&weights, b"no tensors").unwrap();
    assert_fails(&model.run("embed", &["lamp"]), 1, &["2_Dense/model.safetensors", "download"]);

    let one = Tensor::full(f32::NAN, (12, 16), &Device::Cpu).unwrap();
    let bias = Tensor::zeros(12, candle_core::DType::F32, &Device::Cpu).unwrap();
    let tensors = HashMap::from([("linear.weight", one), ("linear.bias", bias)]);
    candle_core::safetensors::save(&tensors, &weights).unwrap();
    let messages = stderr(&model.run("embed", &["lamp"]));
    assert!(messages.contains("2_Dense: linear.weight contains 192 values that are NaN"), "{messages}");
}

/// The error suggests `--pooling`, and with it the model runs.
#[test]
fn the_pooling_option_replaces_an_unsupported_pooling() {
    let model = Model::copy_of("dense");
    let expected = model.vector(&[]);
    model.edit(POOLING, |config| config["pooling_mode"] = json!("median"));
    assert_fails(&model.run("embed", &["lamp"]), 1, &["pass --pooling"]);
    assert_eq!(model.vector(&["--pooling", "mean"]), expected);
}

/// A custom class can have the same last component as a class of sentence-transformers.
#[test]
fn custom_modules_are_recognized_by_their_full_type() {
    for (i, kind) in
        [(1, "custom_st.Pooling"), (2, "my.modules.Dense"), (3, "transformers_modules.x.Normalize")]
    {
        let model = Model::copy_of("dense");
        model.edit("modules.json", |modules| modules[i]["type"] = json!(kind));
        for command in ["embed", "inspect"] {
            let args: &[&str] = if command == "embed" { &["lamp"] } else { &[] };
            assert_fails(&model.run(command, args), 1, &["modules.json", kind, "code of the model's own"]);
        }
    }
}

const TRANSFORMER_CONFIG: &str = "sentence_bert_config.json";

/// Former releases of sentence-transformers named this file after the architecture.
#[test]
fn every_name_of_the_transformer_config_is_read() {
    let model = Model::copy_of("dense");
    let tokens =
        |model: &Model| rows(&model.run("embed", &["lamp ".repeat(40).as_str()]))[0]["tokens"].clone();
    fs::remove_file(model.path("tokenizer_config.json")).unwrap();
    let limit = tokens(&model);
    for name in ["roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"] {
        let name = format!("sentence_{name}_config.json");
        // An empty object is ignored.
        fs::write(model.path(TRANSFORMER_CONFIG), "{}").unwrap();
        fs::write(model.path(&name), r#"{"max_seq_length": 7, "do_lower_case": true}"#).unwrap();
        assert_eq!(tokens(&model), 7, "{name}, not {limit}");
        let page = stdout(&model.run("inspect", &[]));
        assert!(page.contains("lowercase         yes"), "{name}: {page}");
        fs::write(model.path(TRANSFORMER_CONFIG), r#"{"max_seq_length": 9}"#).unwrap();
        assert_eq!(tokens(&model), 9, "{TRANSFORMER_CONFIG} takes precedence over {name}");
        fs::remove_file(model.path(&name)).unwrap();
    }
}

/// Arguments of the tokenizer, and the name of the output that is passed to the next module.
#[test]
fn the_transformer_config_of_sentence_transformers_6_is_read() {
    let model = Model::copy_of("dense");
    let long = "lamp ".repeat(40);
    let tokens = || rows(&model.run("embed", &[&long]))[0]["tokens"].clone();
    for (config, expected) in [
        (json!({"processing_kwargs": {"text": {"max_length": 6}}}), 6),
        (json!({"max_seq_length": 9, "processing_kwargs": {"common": {"max_length": 8}}}), 8),
        (
            json!({"processing_kwargs": {"common": {"max_length": 8}, "text": {"max_length": 11, "truncation": true}}}),
            8,
        ),
        (json!({"max_seq_length": 9, "processor_kwargs": {"model_max_length": 10}}), 10),
        (json!({"max_seq_length": 9, "tokenizer_args": {"model_max_length": 5}}), 5),
    ] {
        fs::write(model.path(TRANSFORMER_CONFIG), config.to_string()).unwrap();
        assert_eq!(tokens(), expected, "{config}");
    }
    let text =
        |method: &str, output: Value| json!({"text": {"method": method, "method_output_name": output}});
    for (config, part) in [
        (
            json!({"processing_kwargs": {"text": {"max_length": "6"}}}),
            "\"processing_kwargs.text.max_length\" is \"6\"",
        ),
        (
            json!({"processing_kwargs": {"text": {"truncation": false}}}),
            "\"processing_kwargs.text.truncation\" is false",
        ),
        (
            json!({"modality_config": text("forward", json!("last_hidden_state")), "module_output_name": "all_layer_embeddings"}),
            "\"all_layer_embeddings\"",
        ),
        (
            json!({"modality_config": text("forward", json!(["hidden_states", -2])), "module_output_name": "token_embeddings"}),
            "[\"hidden_states\",-2]",
        ),
        (
            json!({"modality_config": {"image": {}}, "module_output_name": "token_embeddings"}),
            "no entry for text",
        ),
    ] {
        fs::write(model.path(TRANSFORMER_CONFIG), config.to_string()).unwrap();
        assert_fails(&model.run("embed", &["lamp"]), 1, &[TRANSFORMER_CONFIG, part]);
    }
    // The output of the encoder's own pooler, without a Pooling module.
    let model = Model { folder: tempfile::tempdir().unwrap() };
    copy_folder(&fixture("bert-tiny"), model.folder.path());
    let expected = model.vector(&["--pooling", "pooler"]);
    let config = json!({"modality_config": text("forward", json!("pooler_output")), "module_output_name": "sentence_embedding"});
    fs::write(model.path(TRANSFORMER_CONFIG), config.to_string()).unwrap();
    model.edit("modules.json", |modules| drop(modules.as_array_mut().unwrap().remove(1)));
    assert_eq!(model.vector(&[]), expected);
}

/// The first releases of sentence-transformers saved the encoder in a folder of its own.
#[test]
fn an_encoder_in_a_folder_of_its_own_is_found() {
    let model = Model::copy_of("normalize-around");
    let expected = model.vector(&[]);
    fs::create_dir(model.path("0_Transformer")).unwrap();
    for entry in fs::read_dir(model.folder.path()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_file() && !["modules.json", "config_sentence_transformers.json"].contains(&&*name) {
            fs::rename(&path, model.path("0_Transformer").join(name)).unwrap();
        }
    }
    model.edit("modules.json", |modules| modules[0]["path"] = json!("0_Transformer"));
    assert_eq!(model.vector(&[]), expected);
    // Such models have another config.json in the top folder, which is not that of the encoder.
    fs::write(model.path("config.json"), r#"{"__version__": "0.3.8"}"#).unwrap();
    assert_eq!(model.vector(&[]), expected);
    let page = stdout(&model.run("inspect", &[]));
    assert!(page.contains("0_Transformer/config.json"), "{page}");
    // The folder of the encoder alone has no Pooling module: a warning says so.
    let output = sconce().args(["embed", "lamp", "-m"]).arg(model.path("0_Transformer")).output().unwrap();
    let messages = stderr(&output);
    assert!(
        messages.contains("warning")
            && messages.contains("is the encoder of the model in")
            && messages.contains("pass --model"),
        "{messages}"
    );
}

/// A dangling link is an error, not an absent file.
#[test]
#[cfg(unix)]
fn dangling_links_to_optional_files_are_errors() {
    for name in
        [TRANSFORMER_CONFIG, "config_sentence_transformers.json", "modules.json", "tokenizer_config.json"]
    {
        let model = Model::copy_of("dense");
        fs::remove_file(model.path(name)).unwrap();
        std::os::unix::fs::symlink("../../blobs/gone", model.path(name)).unwrap();
        assert_fails(&model.run("embed", &["lamp"]), 1, &[name, "cannot read"]);
    }
}

/// Fields of a config, a part of the model's purpose, and the command for its head, where there is one.
type Purpose<'a> = (&'a [(&'a str, Value)], &'a str, Option<&'a str>);

/// Checks that a model with a task head gave a vector, with a note that names these.
fn assert_pooled(found: &Output, parts: &[&str]) {
    let notes = stderr(found);
    assert!(found.status.success(), "{notes}");
    assert_eq!(rows(found).len(), 1);
    let note = notes.lines().find(|line| line.contains("without its head"));
    let note = note.unwrap_or_else(|| panic!("{notes}"));
    parts.iter().for_each(|part| assert!(note.contains(part), "{part}: {note}"));
}

/// Every field in the files of a sentence-transformers model that identifies a model for another task.
#[test]
fn models_for_other_tasks_are_rejected_or_noted_with_the_name_of_their_task() {
    let task = |task: &str| json!({ "transformer_task": task });
    // With the command for its head, where there is one.
    let whole: &[(&str, Value, &str, Option<&str>)] = &[
        (SETTINGS, json!({"model_type": "CrossEncoder"}), "is a cross-encoder", Some("sconce rerank")),
        (SETTINGS, json!({"model_type": "SparseEncoder"}), "is a sparse encoder like SPLADE", None),
        (SETTINGS, json!({"model_type": "Oracle"}), "\"Oracle\"", None),
        (TRANSFORMER_CONFIG, task("sequence-classification"), "is a cross-encoder", Some("sconce rerank")),
        (TRANSFORMER_CONFIG, task("fill-mask"), "is a sparse encoder", None),
        (TRANSFORMER_CONFIG, task("text-generation"), "is a text generator", None),
    ];
    for (file, content, part, command) in whole {
        let model = Model::copy_of("dense");
        fs::write(model.path(file), content.to_string()).unwrap();
        let own = model.run("embed", &["lamp"]);
        match command {
            Some(command) => assert_pooled(&own, &[part, file, command]),
            None => assert_fails(&own, 1, &[part, file, "choose an embedding model"]),
        }
        let page = stdout(&model.run("inspect", &[]));
        assert!(page.contains("task  ") && page.contains(part.trim_start_matches("is ")), "{page}");
        // With --pooling, the hidden states of any model are pooled.
        assert_eq!(rows(&model.run("embed", &["lamp", "--pooling", "cls"])).len(), 1);
    }
    for (kind, part) in [
        (
            "sentence_transformers.sparse_encoder.models.SparseAutoEncoder",
            "is a sparse encoder like CSR, which gives the features of a sparse autoencoder",
        ),
        ("sentence_transformers.models.Asym", "is a model with different encoders"),
    ] {
        let model = Model::copy_of("dense");
        model.edit("modules.json", |modules| modules[1]["type"] = json!(kind));
        assert_fails(&model.run("embed", &["lamp"]), 1, &["modules.json", kind, part]);
    }
    let model = Model::copy_of("dense");
    model.edit("modules.json", |modules| modules.as_array_mut().unwrap().truncate(1));
    assert_fails(
        &model.run("embed", &["lamp"]),
        1,
        &["modules.json has no Pooling module", "pass --pooling"],
    );
}

/// Checkpoints of transformers, which have no modules.json.
#[test]
fn checkpoints_with_a_task_head_are_pooled_with_a_note_or_rejected() {
    let bare = || {
        let model = Model::copy_of("dense");
        fs::remove_file(model.path("modules.json")).unwrap();
        model
    };
    let class = |class: &str| json!([class]);
    let cases: &[Purpose] = &[
        (
            &[
                ("architectures", class("BertForSequenceClassification")),
                ("id2label", json!({"0": "LABEL_0"})),
            ],
            "a cross-encoder",
            Some("sconce rerank"),
        ),
        (
            &[("architectures", class("BertForSequenceClassification"))],
            "a text classifier or cross-encoder",
            Some("sconce classify"),
        ),
        (&[("architectures", class("BertForTokenClassification"))], "a token classifier", Some("sconce tag")),
        (
            &[("architectures", class("BertForQuestionAnswering"))],
            "a question-answering model",
            Some("sconce answer"),
        ),
        (&[("architectures", class("BertForMultipleChoice"))], "a multiple-choice model", None),
        (
            &[("architectures", class("BertForNextSentencePrediction"))],
            "a next-sentence predictor",
            Some("sconce classify"),
        ),
        (
            &[("architectures", Value::Null), ("num_labels", json!(1))],
            "a cross-encoder",
            Some("sconce rerank"),
        ),
        (
            &[("architectures", Value::Null), ("num_labels", json!(3))],
            "a text classifier",
            Some("sconce classify"),
        ),
        (
            &[("sentence_transformers", json!({"activation_fn": "torch.nn.Sigmoid"}))],
            "a cross-encoder",
            Some("sconce rerank"),
        ),
        (
            &[("sbert_ce_default_activation_function", json!("torch.nn.Identity"))],
            "a cross-encoder",
            Some("sconce rerank"),
        ),
    ];
    for (fields, part, command) in cases {
        let model = bare();
        model.edit("config.json", |config| {
            fields.iter().for_each(|(key, value)| config[*key] = value.clone());
        });
        let own = model.run("embed", &["lamp"]);
        match command {
            Some(command) => assert_pooled(&own, &[part, "config.json", command]),
            None => assert_fails(&own, 1, &[part, "config.json", "--pooling"]),
        }
        assert!(model.run("embed", &["lamp", "--pooling", "mean"]).status.success());
        assert!(model.run("inspect", &[]).status.success());
    }
    // The tensors of a task head identify the task, too.
    let model = bare();
    let mut tensors = candle_core::safetensors::load(model.path("model.safetensors"), &Device::Cpu).unwrap();
    tensors.insert(
        "classifier.weight".into(),
        Tensor::zeros((1, 16), candle_core::DType::F32, &Device::Cpu).unwrap(),
    );
    candle_core::safetensors::save(&tensors, model.path("model.safetensors")).unwrap();
    assert_pooled(&model.run("embed", &["lamp"]), &["cross-encoder", "classifier.weight", "sconce classify"]);
    // Encoders from pretraining are accepted, and so are all models with a Pooling module.
    for class in ["BertModel", "BertForMaskedLM", "BertForPreTraining"] {
        let model = bare();
        model.edit("config.json", |config| config["architectures"] = json!([class]));
        assert!(model.run("embed", &["lamp"]).status.success(), "{class}");
    }
    let model = Model::copy_of("dense");
    model.edit("config.json", |config| config["architectures"] = json!(["BertForSequenceClassification"]));
    assert!(model.run("embed", &["lamp"]).status.success());
}

#[test]
fn inspect_lists_the_sizes_of_a_dense_module() {
    let model = fixture("pipelines/dense-sizes");
    let run = |args: &[&str]| stdout(&sconce().arg("inspect").arg(&model).args(args).output().unwrap());
    assert!(run(&[]).contains("4, 12, 256 (--dimensions N chooses one of them)"));
    let report: Value = serde_json::from_str(&run(&["--json"])).unwrap();
    assert_eq!((&report["dense_sizes"], &report["dimensions"]), (&json!([4, 12, 256]), &json!(12)));
    let other = sconce().arg("inspect").arg(fixture("pipelines/dense")).arg("--json").output().unwrap();
    let report: Value = serde_json::from_str(&stdout(&other)).unwrap();
    assert_eq!(report["dense_sizes"], json!([]));
}

#[test]
fn more_dimensions_than_those_of_the_dense_module_are_an_error_without_a_folder_for_them() {
    let output = embed("pipelines/dense-sizes", ["--dimensions", "13", "a lamp"]);
    assert_fails(&output, 2, &["--dimensions 13", "12 dimensions"]);
}
