//! LoRA adapters: merged weights give the vectors of the reference, and what is no plain adapter is refused
//! by name. The models are made by `scripts/fixtures/make_adapter_fixtures.py`.

use std::fs;
use std::path::Path;

use candle_core::Device;
use serde_json::{Value, json};

use crate::support::{
    assert_fails, copy_folder, embedding, first_difference, fixture, goldens, model_command, numbers, rows,
    sconce, set_fields, states, stderr, stdout,
};

const MODELS: [&str; 8] = [
    "adapters/jina-v3",
    "adapters/jina-v5-small",
    "adapters/jina-v5-nano",
    "adapters/peft",
    "adapters/peft-own",
    "adapters/peft-dora",
    "adapters/peft-alone",
    "adapters/peft-tokens",
];

/// Changes a field of a JSON file.
fn set(path: &Path, key: &str, value: Value) {
    set_fields(path, &json!({key: value}));
}

/// Compares the hidden states of texts with those of a golden.
fn assert_states(what: &str, folder: &Path, options: &[&str], texts: &[String], expected: &[f32]) {
    let options = [options, &["--pooling", "none", "--"]].concat();
    let output = model_command("embed", folder, &options).args(texts).output().unwrap();
    let states: Vec<f32> = rows(&output).iter().flat_map(states).collect();
    if let Some(difference) = first_difference(&states, expected, 1e-4, 1e-4) {
        panic!("{what}, hidden states: {difference}");
    }
}

#[test]
fn every_task_gives_the_hidden_states_and_vectors_of_merged_weights() {
    for model in MODELS {
        let folder = fixture(model);
        let goldens = goldens(&folder);
        let list = |key: &str| goldens[key].as_array().unwrap().clone();
        let texts: Vec<String> = list("texts").iter().map(|text| text.as_str().unwrap().to_owned()).collect();
        let tensors =
            candle_core::safetensors::load(folder.join("goldens.safetensors"), &Device::Cpu).unwrap();
        for (i, case) in list("cases").iter().enumerate() {
            let options: Vec<&str> = case["task"].as_str().iter().flat_map(|task| ["--task", task]).collect();
            let golden =
                |name: &str| tensors[&format!("{name}.{i}")].flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let output = model_command("embed", &folder, &options).arg("--").args(&texts).output().unwrap();
            let vectors: Vec<f32> = rows(&output).iter().flat_map(embedding).collect();
            if let Some(difference) = first_difference(&vectors, &golden("vectors"), 1e-5, 1e-5) {
                panic!("{model}, {case}, vectors: {difference}");
            }
            assert_states(&format!("{model}, {case}"), &folder, &options, &texts, &golden("tokens"));
        }
    }
}

/// An adapter as every fine-tuned classifier has it: the head, norms and biases are beside the updates, the
/// config of the base model does not name the labels, and the file is one of `torch.save`.
#[test]
fn an_adapter_of_a_classifier_has_the_logits_of_merged_weights() {
    let folder = fixture("adapters/peft-classifier");
    let texts: Vec<String> = serde_json::from_value(goldens(&folder)["texts"].clone()).unwrap();
    let tensors = candle_core::safetensors::load(folder.join("goldens.safetensors"), &Device::Cpu).unwrap();
    let golden = |name: &str| tensors[name].flatten_all().unwrap().to_vec1::<f32>().unwrap();
    // The path of the base model is one from the folder of the adapter.
    let output =
        model_command("classify", &folder, &["--raw", "--top-k", "0", "--"]).args(&texts).output().unwrap();
    let logits: Vec<f32> = (rows(&output).iter())
        .flat_map(|row| {
            let mut labels = row["labels"].as_array().unwrap().clone();
            labels.sort_by_key(|label| label["label"].as_str().unwrap().to_owned());
            assert_eq!(labels[2]["label"], "LABEL_2", "{row}");
            labels.into_iter().map(|label| label["score"].as_f64().unwrap() as f32)
        })
        .collect();
    if let Some(difference) = first_difference(&logits, &golden("logits"), 1e-4, 1e-4) {
        panic!("logits: {difference}");
    }
    assert_states("a classifier", &folder, &[], &texts, &golden("tokens"));
    let page = stdout(&model_command("inspect", &folder, &["--json"]).output().unwrap());
    let page: Value = serde_json::from_str(&page).unwrap();
    assert!(page.to_string().contains("LABEL_2") && page.to_string().contains("SEQ_CLS"), "{page}");
    let merged = page["tensors"]["merged"].as_array().unwrap();
    // Two updates in each of two layers, and the table; two biases and a norm in each layer. The head is not
    // loaded.
    assert_eq!(merged.len(), 2 * 2 + 1 + 2 * (2 + 2), "{merged:?}");
}

#[test]
fn a_prompt_of_the_user_replaces_the_instruction_of_the_task() {
    let folder = fixture("adapters/jina-v3");
    let run = |options: &[&str], text: &str| {
        let output = model_command("embed", &folder, options).args(["--", text]).output().unwrap();
        embedding(&rows(&output)[0])
    };
    let task = ["--task", "retrieval.query"];
    let prompted = run(&task, "lamp");
    assert_eq!(prompted, run(&[&task[..], &["--prompt", "the query: "]].concat(), "lamp"));
    assert_ne!(prompted, run(&[&task[..], &["--prompt", ""]].concat(), "lamp"));
}

#[test]
fn without_a_task_a_note_lists_the_tasks() {
    let run = |options: &[&str]| {
        let folder = fixture("adapters/jina-v3");
        sconce().arg("embed").arg("-m").arg(folder).args(options).args(["--", "a"]).output().unwrap()
    };
    let expected = "retrieval.query, retrieval.passage, separation, text-matching";
    let output = run(&[]);
    assert!(output.status.success() && stderr(&output).contains(expected), "{}", stderr(&output));
    let output = run(&["--task", "separation"]);
    assert!(output.status.success() && !stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn a_model_that_is_not_used_without_an_adapter_asks_for_a_task() {
    for model in ["adapters/jina-v5-small", "adapters/jina-v5-nano"] {
        let output = model_command("embed", &fixture(model), &["--", "a"]).output().unwrap();
        assert_fails(&output, 2, &["needs one of its adapters", "(clustering, retrieval)", "--task"]);
    }
}

#[test]
fn a_task_that_is_not_there_is_refused_with_those_that_are() {
    let run = |model: &str| {
        let options = ["--task", "clasification", "--", "a"];
        model_command("embed", &fixture(model), &options).output().unwrap()
    };
    assert_fails(
        &run("adapters/peft"),
        2,
        &["--task clasification", "(tasks: clustering, retrieval, words)"],
    );
    assert_fails(&run("adapters/peft-own"), 2, &["--task clasification", "no adapters"]);
    assert_fails(&run("bert-tiny"), 2, &["--task clasification", "no adapters"]);
}

#[test]
fn inspect_shows_tasks_and_merged_tensors() {
    let inspect = |model: &str, options: &[&str]| -> Value {
        let options = [&["--json"], options].concat();
        let output = model_command("inspect", &fixture(model), &options).output().unwrap();
        serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
    };
    let page = inspect("adapters/jina-v3", &["--task", "separation"]);
    assert_eq!(page["adapter"], "separation");
    assert_eq!(page["adapters"].as_array().unwrap().len(), 4);
    // Two tables, and four matrices in each of two layers.
    assert_eq!(page["tensors"]["merged"].as_array().unwrap().len(), 2 + 2 * 4);
    let unused = page["tensors"]["unused"].as_array().unwrap();
    assert!(unused.iter().all(|name| name.as_str().unwrap().starts_with("roberta.pooler.")), "{unused:?}");
    let page = inspect("adapters/peft", &["--task", "retrieval"]);
    assert_eq!(page["tensors"]["merged"].as_array().unwrap().len(), 2 * 4);
    let page = inspect("adapters/peft", &[]);
    assert_eq!((&page["adapter"], &page["tensors"]["merged"]), (&Value::Null, &json!([])));
}

#[test]
fn a_run_with_another_task_is_not_resumed() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("out.parquet");
    let run = |task: &str| {
        let options = ["--task", task, "--resume", "-o", output.to_str().unwrap(), "--", "a lamp"];
        model_command("embed", &fixture("adapters/jina-v3"), &options).output().unwrap()
    };
    assert!(run("separation").status.success());
    let first = fs::read(&output).unwrap();
    assert!(String::from_utf8_lossy(&first).contains("separation"), "the metadata names the task");
    assert!(run("separation").status.success());
    assert_eq!(fs::read(&output).unwrap(), first);
    assert!(run("text-matching").status.success());
    assert_ne!(fs::read(&output).unwrap(), first);
}

#[test]
fn adapters_that_are_not_plain_low_rank_updates_are_refused_by_name() {
    for (key, value, expected) in [
        ("peft_type", json!("IA3"), "\"peft_type\" is \"IA3\""),
        ("alpha_pattern", json!({"(": 3}), "a simpler regular expression"),
        ("alpha_pattern", json!({"a{9999}{9999}": 3}), "a simpler regular expression"),
        ("alpha_pattern", json!({"q_proj": "3"}), "\"alpha_pattern.q_proj\" is \"3\""),
        ("init_lora_weights", json!("pissa_niter_16"), "\"init_lora_weights\" is \"pissa_niter_16\""),
        ("lora_alpha", json!(null), "no field \"lora_alpha\""),
        ("layers_to_transform", json!([-1]), "\"layers_to_transform\" is [-1]"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture("adapters/peft-own"), folder.path());
        set(&folder.path().join("adapter_config.json"), key, value);
        let output = model_command("embed", folder.path(), &["--", "a"]).output().unwrap();
        assert_fails(&output, 1, &["adapter_config.json", expected]);
    }
}

/// Edits of a config with which PEFT loads the adapter, and which are refused: it leaves out tensors of the
/// file, takes parts that the file lacks as they were before the training, or changes the weights of the base
/// model or what an adapter computes.
const REFUSED: &[&str] = &[
    r#"{"exclude_modules":["q_proj"]}"#,
    r#"{"exclude_modules":".*\\.0\\..*"}"#,
    r#"{"target_modules":["q_proj"]}"#,
    r#"{"layers_to_transform":0,"layers_pattern":"layers"}"#,
    r#"{"lora_bias":true}"#,
    r#"{"use_dora":true}"#,
    r#"{"layer_replication":[[0,2]]}"#,
    r#"{"alora_invocation_tokens":[1,2]}"#,
    r#"{"monteclora_config":{"num_samples":2}}"#,
    r#"{"use_qalora":true}"#,
    r#"{"init_lora_weights":"olora"}"#,
    r#"{"init_lora_weights":"OLoRA"}"#,
    r#"{"init_lora_weights":"pissa"}"#,
];

#[test]
fn edited_configs_have_the_vectors_of_peft_or_are_refused_by_name() {
    let path = fixture("adapters/edited.json");
    let edited: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let texts: Vec<String> = serde_json::from_value(edited["texts"].clone()).unwrap();
    let mut wrong = Vec::new();
    for case in edited["cases"].as_array().unwrap() {
        let edits = case["edits"].as_object().unwrap();
        let refused: Vec<Value> = REFUSED.iter().map(|edits| serde_json::from_str(edits).unwrap()).collect();
        let is_refused = case["vectors"].is_null() || refused.contains(&case["edits"]);
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture("adapters/peft-own"), folder.path());
        set_fields(&folder.path().join("adapter_config.json"), &case["edits"]);
        let output = model_command("embed", folder.path(), &["--"]).args(&texts).output().unwrap();
        if is_refused {
            let message = stderr(&output);
            if output.status.code() != Some(1)
                || !edits.keys().any(|key| message.contains(&format!("\"{key}\"")))
            {
                wrong.push(format!("{}: {message}", case["edits"]));
            }
        } else if !output.status.success() {
            wrong.push(format!("{}: {}", case["edits"], stderr(&output)));
        } else {
            let vectors: Vec<f32> = rows(&output).iter().flat_map(embedding).collect();
            let expected: Vec<f32> = case["vectors"].as_array().unwrap().iter().flat_map(numbers).collect();
            wrong.extend(
                first_difference(&vectors, &expected, 1e-5, 1e-5).map(|x| format!("{}: {x}", case["edits"])),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Fields of PEFT that change nothing where an adapter is loaded: settings of the training, of initial values
/// and of how layers run, what the tensors themselves tell, and `fan_in_fan_out`, which PEFT corrects by the
/// class of the layer.
const WITHOUT_EFFECT: &[&str] = &[
    "auto_mapping",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "fan_in_fan_out",
    "inference_mode",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "velora_config",
];

/// The fields are those that the installed PEFT writes. Each has a value here that no field can have.
#[test]
fn every_field_of_peft_is_read_refused_or_without_effect() {
    let fields = fs::read(fixture("adapters/fields.json")).unwrap();
    let fields: Vec<String> = serde_json::from_slice(&fields).unwrap();
    let mut wrong = Vec::new();
    for field in &fields {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture("adapters/peft-tokens"), folder.path());
        let config = folder.path().join("adapter_config.json");
        set(&config, "base_model_name_or_path", json!(fixture("bert-tiny")));
        set(&config, field, json!([{"unexpected": [1]}]));
        let output = model_command("embed", folder.path(), &["--", "a"]).output().unwrap();
        let is_read = !output.status.success() && stderr(&output).contains(&format!("\"{field}\""));
        if is_read == WITHOUT_EFFECT.contains(&field.as_str()) || is_read == output.status.success() {
            wrong.push(format!("{field}: {}", stderr(&output)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(WITHOUT_EFFECT.iter().all(|field| fields.iter().any(|known| known == field)));
}

/// Half of an update, or a part of it that is not as the config says, would be left out.
#[test]
fn updates_that_are_not_whole_are_refused() {
    const QUERY: &str = "base_model.model.layers.0.self_attn.q_proj.";
    let without = |model: &str, path: &str, tensor: &str| {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture(model), folder.path());
        let file = folder.path().join(path);
        let bytes = fs::read(&file).unwrap();
        let mut tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
        tensors.retain(|(name, _)| *name != tensor);
        fs::write(file, safetensors::serialize(tensors, None).unwrap()).unwrap();
        folder
    };
    let run = |folder: &tempfile::TempDir, options: &[&str]| {
        model_command("embed", folder.path(), &[options, &["--", "a"]].concat()).output().unwrap()
    };
    const PEFT: &str = "adapter_model.safetensors";
    for (end, other) in [("lora_A.weight", "lora_B.weight"), ("lora_B.weight", "lora_A.weight")] {
        let folder = without("adapters/peft-own", PEFT, &format!("{QUERY}{end}"));
        assert_fails(
            &run(&folder, &[]),
            1,
            &[PEFT, &format!("has tensor {QUERY}{other}, but no {QUERY}{end}")],
        );
        let end = end.trim_end_matches(".weight");
        let name = format!("roberta.encoder.layers.1.mixer.Wqkv.parametrizations.weight.0.{end}");
        let folder = without("adapters/jina-v3", "model.safetensors", &name);
        let output = run(&folder, &["--task", "separation"]);
        assert_fails(&output, 1, &["model.safetensors", &format!("but no {name}"), "half of an update"]);
    }
    let words = "base_model.model.embed_tokens.";
    for (end, other) in [("lora_embedding_A", "lora_embedding_B"), ("lora_embedding_B", "lora_embedding_A")] {
        let folder = without("adapters/peft", &format!("words/{PEFT}"), &format!("{words}{end}"));
        let output = run(&folder, &["--task", "words"]);
        assert_fails(&output, 1, &[PEFT, &format!("has tensor {words}{other}, but no {words}{end}")]);
    }
    const TOKENS: &str = "adapters/peft-tokens";
    let folder = without(TOKENS, PEFT, "");
    let config = folder.path().join("adapter_config.json");
    set(&config, "base_model_name_or_path", json!(fixture("bert-tiny")));
    let fields = fs::read(&config).unwrap();
    for (key, value, expected) in [
        ("lora_bias", json!(false), "is the bias of an update, but \"lora_bias\" is not true"),
        ("trainable_token_indices", json!([2, 9, 30]), "names 3 rows"),
        ("trainable_token_indices", json!(null), "\"trainable_token_indices\" is null"),
        ("trainable_token_indices", json!([2, 9, 30, 9999]), "up to row 9999"),
        ("trainable_token_indices", json!({"other": [2, 9, 30, 31]}), "the token ids of the rows"),
    ] {
        set(&config, key, value);
        assert_fails(&run(&folder, &[]), 1, &["adapter_", expected]);
        fs::write(&config, &fields).unwrap();
    }
    let dictionary = json!({"word_embeddings": [2, 9, 30, 31]});
    let expected = stdout(&run(&folder, &[]));
    set(&config, "trainable_token_indices", dictionary);
    assert_eq!(stdout(&run(&folder, &[])), expected);
    for tensor in [
        "encoder.layer.0.attention.self.query.lora_B.bias",
        "embeddings.word_embeddings.token_adapter.trainable_tokens_delta",
    ] {
        let folder = without(TOKENS, PEFT, &format!("base_model.model.{tensor}"));
        let config = folder.path().join("adapter_config.json");
        set(&config, "base_model_name_or_path", json!(fixture("bert-tiny")));
        assert_fails(&run(&folder, &[]), 1, &[PEFT, "has no t", "needs"]);
    }
    let magnitudes = format!("{QUERY}lora_magnitude_vector");
    let folder = without("adapters/peft-dora", PEFT, &magnitudes);
    assert_fails(&run(&folder, &[]), 1, &[PEFT, &format!("has no tensor {magnitudes}"), "\"use_dora\""]);
    let folder = without("adapters/peft-dora", PEFT, "");
    set(&folder.path().join("adapter_config.json"), "use_dora", json!(false));
    assert_fails(&run(&folder, &[]), 1, &[PEFT, "lora_magnitude_vector is of DoRA", "\"use_dora\""]);
}

#[test]
fn adapters_of_other_models_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("adapters/peft-own"), folder.path());
    let weights = folder.path().join("adapter_model.safetensors");
    let renamed = |from: &str, to: &str| {
        let bytes = fs::read(fixture("adapters/peft-own").join("adapter_model.safetensors")).unwrap();
        let length = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = String::from_utf8(bytes[8..length].to_vec()).unwrap().replace(from, to);
        fs::write(
            &weights,
            [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &bytes[length..]].concat(),
        )
        .unwrap();
        model_command("embed", folder.path(), &["--", "a"]).output().unwrap()
    };
    assert_fails(&renamed("layers.1", "layers.7"), 1, &["adapter_model.safetensors", "layers.7"]);
    assert_fails(
        &renamed("lora_", "ia3_"),
        1,
        &["adapter_model.safetensors", "ia3_A", "nor a tensor of the model"],
    );
    let output = {
        set(&folder.path().join("config.json"), "num_key_value_heads", json!(4));
        renamed("", "")
    };
    assert!(!output.status.success());
    let jina = tempfile::tempdir().unwrap();
    copy_folder(&fixture("adapters/jina-v3"), jina.path());
    set(&jina.path().join("config.json"), "lora_rank", json!(5));
    let output = model_command("embed", jina.path(), &["--task", "separation", "--", "a"]).output().unwrap();
    assert_fails(&output, 1, &["lora_A", "rank 5"]);
}

/// A copy of the adapter without weights of a base model, which is named by a path.
fn adapter_alone(base: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("adapters/peft-alone"), folder.path());
    set(&folder.path().join("adapter_config.json"), "base_model_name_or_path", json!(base));
    folder
}

fn embed(folder: &Path, options: &[&str]) -> std::process::Output {
    model_command("embed", folder, options).args(["--", "The wick burns.", "a lamp"]).output().unwrap()
}

#[test]
fn the_base_model_of_an_adapter_is_named_by_a_path() {
    let expected = stdout(&embed(&fixture("adapters/peft-alone"), &[]));
    let base = fixture("bert-tiny");
    assert_eq!(stdout(&embed(adapter_alone(base.to_str().unwrap()).path(), &[])), expected);
    // A path from the adapter, and from the working directory. No folder beside a clone of this repository
    // has this name.
    let name = "base-model-of-the-adapter";
    let parent = tempfile::tempdir().unwrap();
    copy_folder(&base, &parent.path().join(name));
    copy_folder(&fixture("adapters/peft-alone"), &parent.path().join("adapter"));
    let config = parent.path().join("adapter/adapter_config.json");
    set(&config, "base_model_name_or_path", json!(format!("../{name}")));
    assert_eq!(stdout(&embed(&parent.path().join("adapter"), &[])), expected);
    set(&config, "base_model_name_or_path", json!(name));
    let mut command = model_command("embed", Path::new("adapter"), &[]);
    let output =
        command.args(["--", "The wick burns.", "a lamp"]).current_dir(parent.path()).output().unwrap();
    assert_eq!(stdout(&output), expected);
    assert_ne!(stdout(&embed(&base, &[])), expected);
}

/// The tokenizer and its limit are those of the base model where the adapter has no tokenizer.
#[test]
fn an_adapter_without_a_tokenizer_has_that_of_its_base_model() {
    let base = fixture("bert-tiny");
    let folder = adapter_alone(base.to_str().unwrap());
    let expected = stdout(&embed(folder.path(), &[]));
    for file in ["tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json"] {
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_eq!(stdout(&embed(folder.path(), &[])), expected);
    let long = "lamp ".repeat(100);
    let output = model_command("embed", folder.path(), &["--", &long]).output().unwrap();
    assert!(rows(&output)[0]["truncated"] == true, "{}", stdout(&output));
}

#[test]
fn an_adapter_without_a_base_model_is_refused_with_the_remedy() {
    let config = |folder: &tempfile::TempDir| folder.path().join("adapter_config.json");
    let folder = adapter_alone("");
    assert_fails(&embed(folder.path(), &[]), 1, &["adapter_config.json", "base_model_name_or_path"]);
    set(&config(&folder), "base_model_name_or_path", json!(null));
    assert_fails(&embed(folder.path(), &[]), 1, &["adapter_config.json", "base_model_name_or_path"]);
    set(&config(&folder), "base_model_name_or_path", json!("tiny/base"));
    let cache = tempfile::tempdir().unwrap();
    let mut command = model_command("embed", folder.path(), &["--offline", "--", "a"]);
    let output = command.env("HF_HUB_CACHE", cache.path()).output().unwrap();
    assert_fails(&output, 1, &["adapter_config.json", "tiny/base", "sconce download tiny/base"]);
    let other = adapter_alone("x/y");
    let chain = adapter_alone(other.path().to_str().unwrap());
    assert_fails(&embed(chain.path(), &[]), 1, &["no config.json", "no adapter itself"]);
    let qwen = fixture("qwen3");
    assert_fails(&embed(adapter_alone(qwen.to_str().unwrap()).path(), &[]), 1, &["hidden states of 36"]);
}

/// A checkpoint that was saved while PEFT wrapped its modules: the weights have other names, adapters beside
/// them are refused.
#[test]
fn weights_that_were_saved_in_the_wrapping_of_peft_are_read() {
    let bytes = fs::read(fixture("bert-tiny").join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap().tensors();
    let wrapped = |name: &str| {
        let name = name.replace("attention.self.query.", "attention.self.query.base_layer.");
        format!("base_model.model.{name}")
    };
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), folder.path());
    let save = |adapter: bool| {
        let mut named: Vec<_> =
            tensors.iter().map(|(name, tensor)| (wrapped(name), tensor.clone())).collect();
        if adapter {
            let name = "base_model.model.encoder.layer.0.attention.self.query.lora_A.default.weight";
            named.push((name.to_owned(), tensors[0].1.clone()));
        }
        let weights = safetensors::serialize(named, None).unwrap();
        fs::write(folder.path().join("model.safetensors"), weights).unwrap();
        embed(folder.path(), &[])
    };
    assert_eq!(stdout(&save(false)), stdout(&embed(&fixture("bert-tiny"), &[])));
    assert_fails(&save(true), 1, &["lora_A.default.weight", "merge_and_unload"]);
}
