//! `sconce inspect`: parameters and multiply-adds are those of the reference implementation, and every model,
//! broken ones included, gives a page or one sentence. The goldens are written by
//! `scripts/fixtures/make_cost_fixtures.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::damage::{cases, damaged, damaged_file, run_case};
use crate::support::{MODELS, assert_fails, copy_folder, fixture, sconce, stderr, stdout};
use rand::Rng;
use sconce::model::config::Config;
use sconce::model::families::{FAMILIES, Family};
use sconce::named::Named;
use sconce::nn::cost::{
    Growth, attention_overtakes, encoder_parameters, encoder_work, module_parameters, pooler_parameters,
    windowed_pairs,
};
use sconce::nn::{
    Activation, Component, Encoder, EncoderSpec, ParameterCount, Pool, PoolerDense, Pooling, PostPooling,
    PostPoolingSpec, SlidingWindow,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The names of the goldens with their specs: all tiny models and all configs.
fn specs() -> Vec<(String, EncoderSpec)> {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut paths: Vec<(String, PathBuf)> =
        MODELS.iter().map(|name| ((*name).to_owned(), fixture(name).join("config.json"))).collect();
    for entry in fs::read_dir(fixture("towers")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        paths.push((format!("towers/{name}"), path.join("config.json")));
    }
    paths.retain(|(_, path)| path.exists());
    for folder in ["configs", "configs/variations"] {
        let path = configs.parent().unwrap().join(folder);
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|suffix| suffix == "json") {
                paths.push((format!("{folder}/{}", path.file_stem().unwrap().to_str().unwrap()), path));
            }
        }
    }
    let spec = |path: &Path| {
        let config = Config::read(path).unwrap();
        Family::of(&config).unwrap().spec(&config).unwrap()
    };
    paths.into_iter().map(|(name, path)| (name, spec(&path))).collect()
}

fn goldens() -> BTreeMap<String, Value> {
    serde_json::from_slice(&fs::read(fixture("cost.json")).unwrap()).unwrap()
}

/// The sum over the parts of this growth.
fn multiply_adds(spec: &EncoderSpec, tokens: usize, growth: Growth) -> usize {
    encoder_work(spec, tokens).iter().filter(|part| part.growth == growth).map(|part| part.total()).sum()
}

#[test]
fn formulas_count_every_tensor_that_an_encoder_loads() {
    for (name, spec) in specs() {
        let mut count = ParameterCount::default();
        Encoder::load(&spec, &mut count).unwrap();
        let formulas: BTreeMap<Component, usize> =
            encoder_parameters(&spec).iter().map(|part| (part.component, part.total())).collect();
        assert_eq!(formulas, count.components, "{name}");
        assert_eq!(formulas.values().sum::<usize>(), count.parameters, "{name}");
    }
}

#[test]
fn formulas_count_every_tensor_of_poolers_and_modules() {
    let pooling = Pooling::Text(vec![Pool::Pooler]);
    let mut spec = EncoderSpec::without_layers(10, 36, 10);
    let projection = |outputs, bias| PoolerDense { outputs, bias, activation: Activation::Identity };
    for dense in [spec.pooler.dense, Some(projection(20, false)), Some(projection(36, true)), None] {
        let mut count = ParameterCount::default();
        spec.pooler.dense = dense;
        PostPooling::load_pooler(&mut count, &pooling, &spec).unwrap();
        let pooler = pooler_parameters(&spec);
        assert_eq!(pooler.total(), count.parameters, "{dense:?}");
        let components: BTreeMap<Component, usize> =
            [(pooler.component, pooler.total())].into_iter().filter(|(_, total)| *total > 0).collect();
        assert_eq!(components, count.components);
    }
    let dense = |inputs, outputs, bias, residual| PostPoolingSpec::Dense {
        inputs,
        outputs,
        bias,
        activation: Activation::Tanh.into(),
        residual,
    };
    for (module, expected) in [
        (dense(6, 4, true, false), 28),
        (dense(6, 4, false, true), 48),
        (dense(6, 6, true, true), 42),
        (PostPoolingSpec::LayerNorm { width: 6 }, 12),
        (PostPoolingSpec::Normalize, 0),
    ] {
        let mut count = ParameterCount::default();
        PostPooling::load(&mut count, "module", &module).unwrap();
        assert_eq!(module_parameters(&module).total(), expected, "{module}");
        assert_eq!(count.parameters, expected, "{module}");
        assert!(count.components.keys().all(|part| *part == Component::PostPooling), "{module}");
    }
}

#[test]
fn parameters_are_those_of_the_reference() {
    let (specs, goldens) = (specs(), goldens());
    assert_eq!(specs.len(), goldens.len());
    for (name, spec) in specs {
        let golden = &goldens[&name];
        let parameters: usize = encoder_parameters(&spec).iter().map(|part| part.total()).sum();
        assert_eq!(golden["parameters"], parameters, "{name}");
        if !golden["pooler"].is_null() {
            assert_eq!(golden["pooler"], pooler_parameters(&spec).total(), "{name}");
        }
    }
}

/// The reference counts two FLOPs for a multiply-add, and computes in each forward pass what Sconce computes
/// once per model.
#[test]
fn multiply_adds_are_those_of_the_reference_profiler() {
    let goldens = goldens();
    for (name, spec) in specs() {
        let flops = goldens[&name]["flops"].as_object().unwrap();
        assert_eq!(flops.len(), 2, "{name}");
        for (tokens, expected) in flops {
            let tokens = tokens.parse().unwrap();
            let growths = [Growth::Linear, Growth::Quadratic, Growth::Once];
            let found: usize = growths.iter().map(|growth| 2 * multiply_adds(&spec, tokens, *growth)).sum();
            assert_eq!(expected, found, "{name}, {tokens} tokens");
        }
    }
}

#[test]
fn every_family_has_a_golden() {
    let goldens = goldens();
    let types: Vec<String> = goldens
        .keys()
        .map(|name| match name.starts_with("configs/") {
            true => Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.json")),
            false => fixture(name).join("config.json"),
        })
        .map(|path| Config::read(&path).unwrap().string("model_type").unwrap().unwrap().to_owned())
        .collect();
    for model_type in FAMILIES.iter().flat_map(|family| family.model_types) {
        assert!(types.iter().any(|known| known == model_type), "{model_type}");
    }
}

#[test]
fn pairs_in_windows_are_those_of_the_mask() {
    let (_, plain) = specs().remove(0);
    for (radius, causal) in [(0, false), (3, false), (3, true), (64, false), (64, true)] {
        for tokens in [1, 2, 4, 7, 40, 130] {
            let mut spec = plain.clone();
            spec.layers = 3;
            spec.mask.causal = causal;
            spec.mask.sliding_window = Some(SlidingWindow { radius, layers: vec![true, false, true] });
            let visible = |q: usize, k: usize| q.abs_diff(k) <= radius && (!causal || k <= q);
            let pairs = (0..tokens).flat_map(|q| (0..tokens).map(move |k| (q, k)));
            let windowed = pairs.filter(|(q, k)| visible(*q, *k)).count();
            let (within, all) = windowed_pairs(&spec, tokens);
            let inner = spec.layer_sharing.inner;
            assert_eq!(within, inner * (2 * windowed + tokens * tokens), "{radius} {causal} {tokens}");
            assert_eq!(all, inner * 3 * tokens * tokens);
        }
    }
}

#[test]
fn attention_overtakes_at_the_first_length_where_it_costs_more() {
    for (name, spec) in specs() {
        let cost = |n| {
            let (within, all) = windowed_pairs(&spec, n);
            let quadratic = multiply_adds(&spec, n, Growth::Quadratic) as f64 * within as f64 / all as f64;
            (quadratic, multiply_adds(&spec, n, Growth::Linear) as f64)
        };
        let Some(n) = attention_overtakes(&spec) else {
            let window = spec.mask.sliding_window.unwrap_or_else(|| panic!("{name}"));
            assert!(!window.layers.contains(&false), "{name}: only windows in all layers bound attention");
            continue;
        };
        let (before, after) = (cost(n - 1), cost(n));
        assert!(before.0 <= before.1 && after.0 > after.1, "{name}: {n}, {before:?}, {after:?}");
    }
    // BERT base: 12 d² per token, 2 d per pair of tokens.
    let (_, bert) = specs().into_iter().find(|(name, _)| name == "configs/bert-base-uncased").unwrap();
    assert_eq!(attention_overtakes(&bert), Some(6 * 768 + 1));
    let mut local = bert;
    local.mask.sliding_window = Some(SlidingWindow { radius: 8, layers: vec![true; local.layers] });
    assert_eq!(attention_overtakes(&local), None);
}

fn inspect(model: &Path, args: &[&str]) -> Output {
    sconce().arg("inspect").arg(model).args(args).output().unwrap()
}

fn inspect_json(model: &Path, args: &[&str]) -> Value {
    let output = inspect(model, &[args, &["--json"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The sum of a field over a list of objects.
fn sum(list: &Value, key: &str) -> u64 {
    list.as_array().unwrap().iter().map(|part| part[key].as_u64().unwrap()).sum()
}

#[test]
fn every_model_has_a_page_whose_sums_agree() {
    for name in MODELS {
        let model = fixture(name);
        let page = stdout(&inspect(&model, &[]));
        for heading in [
            "Model",
            "Encoder",
            "Vectors",
            "Parameters",
            "Multiply-adds for one text",
            "Memory",
            "Files",
            "Tensors",
        ] {
            assert!(page.lines().any(|line| line.starts_with(heading)), "{name}: no {heading} in {page}");
        }
        assert!(
            !page.contains("Problems") && page.lines().all(|line| !line.ends_with(' ')),
            "{name}: {page}"
        );
        let json = inspect_json(&model, &["--tokens", "9"]);
        assert_eq!(json["parameters"], sum(&json["components"], "parameters"), "{name}");
        let work = &json["multiply_adds"];
        let parts = ["linear", "quadratic", "per_text", "once"].map(|key| work[key].as_u64().unwrap());
        assert_eq!(parts.iter().sum::<u64>(), sum(&work["parts"], "multiply_adds"), "{name}");
        assert_eq!(work["total"], parts[..3].iter().sum::<u64>(), "{name}");
        assert_eq!(work["tokens"], 9, "{name}");
        let types: Vec<_> = json["memory"].as_array().unwrap().iter().map(|use_| &use_["dtype"]).collect();
        assert_eq!(types, ["f32", "bf16x3", "bf16", "int8"], "{name}");
        assert_eq!(json["problems"], json!([]), "{name}");
    }
}

/// What the parts of a model are called, without the notation of the source and without rounding errors.
#[test]
fn parts_are_described_in_words() {
    for (model, line) in [
        ("granite", "scores divided by √25\n"),
        (
            "eurobert-yarn",
            "theta 900, YaRN with factor 4 from 16 tokens, beta fast 4, beta slow 0.5, attention factor 1.13863)\n",
        ),
        ("gemma3-causal", "theta 500, linear with factor 2.5; in local layers theta 50)\n"),
        ("new", "theta 90, NTK with factor 2)\n"),
        ("gemma2", "biases            none\n"),
        ("lfm2", "kernel size 4, in 3 of 4 layers\n"),
        (
            "llama",
            "NTK by parts with factor 8 from 32 tokens, low frequency factor 1, high frequency factor 4)\n",
        ),
        ("decoders/pplx-embed", "round(127 · tanh(x))\n"),
        ("decoders/voyage-4-nano", "dense 32 → 56, linear, no bias\n"),
    ] {
        let page = stdout(&inspect(&fixture(model), &[]));
        assert!(page.contains(line), "{model}: {page}");
    }
}

/// The page of the smallest model, up to its files.
/// Elements of the tensors of a checkpoint that `transformers` has saved, each tied one once.
fn saved_parameters(model: &Path) -> usize {
    let bytes = fs::read(model.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    tensors.tensors().iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>()).sum()
}

#[test]
fn heads_are_shown_with_their_labels_and_the_command_for_them() {
    for (model, kind, outputs, scores, command) in [
        ("heads/bert", "sequence classification", 3, "softmax", "sconce classify"),
        ("heads/bert-multi-label", "sequence classification", 3, "sigmoid", "sconce classify"),
        ("heads/roberta", "sequence classification", 3, "softmax", "sconce classify"),
        ("heads/cross-encoder-bert", "sequence classification", 1, "sigmoid", "sconce rerank"),
        ("heads/cross-encoder-tanh", "sequence classification", 1, "tanh", "sconce rerank"),
        ("token-heads/ner-word-piece", "token classification", 6, "softmax", "sconce tag"),
        ("token-heads/qa-word-piece", "question answering", 2, "softmax", "sconce answer"),
        ("masked-lm/bert", "masked LM", 97, "softmax", "sconce fill"),
        ("sparse/bert-max", "masked LM", 97, "maximum of log(1 + relu(x))", "sconce embed"),
        ("sentence-pairs/bert", "next sentence", 2, "softmax", "sconce classify"),
    ] {
        let path = fixture(model);
        let json = inspect_json(&path, &[]);
        let head = &json["head"];
        assert_eq!((&head["kind"], &head["scores"]), (&json!(kind), &json!(scores)), "{model}");
        assert_eq!((&head["outputs"], &head["command"]), (&json!(outputs), &json!(command)), "{model}");
        let labels = head["labels"].as_array().unwrap().len();
        assert_eq!(labels, if kind == "masked LM" { 0 } else { outputs }, "{model}");
        let sum = json["parameters"].as_u64().unwrap() + head["parameters"].as_u64().unwrap();
        assert_eq!(sum as usize, saved_parameters(&path), "{model}");
        let page = stdout(&inspect(&path, &[]));
        for line in ["\nHead\n", command, scores] {
            assert!(page.contains(line), "{model}: {page}");
        }
    }
    assert_eq!(inspect_json(&fixture("bert-tiny"), &[])["head"], json!(null));
    let json = inspect_json(&fixture("masked-lm/bert"), &[]);
    let work = json!({"formula": "d² + V·d", "each": 24 * 24 + 24 * 97, "per": "token"});
    assert_eq!(json["head"]["multiply_adds"], work);
}

/// A multi-vector model projects each token.
#[test]
fn the_projection_of_a_multi_vector_model_is_counted_for_each_token() {
    let json = inspect_json(&fixture("multi-vector/pylate"), &["--tokens", "9"]);
    let parts = json["multiply_adds"]["parts"].as_array().unwrap();
    let projection = parts.iter().find(|part| part["name"] == "after pooling").unwrap();
    assert_eq!(projection["multiply_adds"], 32 * 8 * 9, "{projection}");
}

#[test]
fn the_page_shows_formulas_with_their_numbers() {
    let page = stdout(&inspect(&fixture("bert-tiny"), &["--tokens", "10"]));
    for line in [
        "  max length        24 tokens (max_seq_length in sentence_bert_config.json)",
        "  heads             3 × 12",
        "  tokenizer         tokenizer.json (WordPiece, 97 tokens; 2 special tokens per text)",
        "  pooling           mean (1_Pooling/config.json)",
        "  normalize         yes (2_Normalize)",
        "  embeddings         V·d + P·d + S·d + 2·d  5,076        5,076",
        "  attention          4·d² + 4·d             5,328  × 2  10,656",
        "  feed-forward       2·d·f + f + d          3,832  × 2   7,664",
        "  norms              2·d                       72  × 4     288",
        "  total                                                 23,684",
        "  where V 97 (vocabulary), d 36 (hidden size), P 40 (positions), S 2 (token types),",
        "Multiply-adds for one text of 10 tokens",
        "  attention projections  4·d²·n   51,840  × 2  103,680  53.7%",
        "  attention takes more than the linear parts from 125 tokens on",
    ] {
        assert!(page.lines().any(|found| found == line), "no {line:?} in\n{page}");
    }
}

#[test]
fn the_limit_is_shown_with_its_source() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), folder.path());
    let source = || {
        let json = inspect_json(folder.path(), &[]);
        let file = json["max_length_source"]["file"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        let key = json["max_length_source"]["key"].as_str().unwrap().to_owned();
        (json["max_length"].as_u64().unwrap(), key, file)
    };
    let expected = |tokens, key: &str, file: &str| (tokens, key.to_owned(), file.to_owned());
    assert_eq!(source(), expected(24, "max_seq_length", "sentence_bert_config.json"));
    let settings = |content: Value| {
        fs::write(folder.path().join("sentence_bert_config.json"), content.to_string()).unwrap();
    };
    settings(json!({"max_seq_length": 24, "tokenizer_args": {"model_max_length": 12}}));
    assert_eq!(source(), expected(12, "tokenizer_args.model_max_length", "sentence_bert_config.json"));
    settings(json!({"max_seq_length": 41}));
    assert_eq!(source(), expected(40, "max_position_embeddings", "config.json"));
    settings(json!({"do_lower_case": false}));
    assert_eq!(source(), expected(24, "model_max_length", "tokenizer_config.json"));
}

#[test]
fn files_have_their_sizes_and_digests() {
    let model = fixture("bert-tiny");
    let json = inspect_json(&model, &[]);
    let files = json["files"].as_array().unwrap();
    assert!(files.len() >= 6, "{files:?}");
    for file in files {
        let bytes = fs::read(file["path"].as_str().unwrap()).unwrap();
        assert_eq!(file["bytes"], bytes.len());
        assert_eq!(file["sha256"], format!("{:x}", Sha256::digest(&bytes)));
    }
    let digest = files.iter().find(|file| file["path"].as_str().unwrap().ends_with("model.safetensors"));
    let digest = digest.unwrap()["sha256"].as_str().unwrap();
    assert!(!stdout(&inspect(&model, &[])).contains(digest));
    assert!(stdout(&inspect(&model, &["-v"])).contains(digest));
}

/// A design is costed without weights, tokenizer and network.
#[test]
fn a_config_alone_is_enough() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let run = |config: &Path, args: &[&str]| {
        sconce()
            .args(["inspect", "--config"])
            .arg(config)
            .args(args)
            .env("SCONCE_MODEL", "no/model")
            .output()
            .unwrap()
    };
    for name in ["bert-base-uncased", "xlm-roberta-xl", "deberta-v3-base", "variations/talking-heads-more"] {
        let config = configs.join(format!("{name}.json"));
        let page = run(&config, &[]);
        assert!(page.status.success() && stderr(&page).is_empty(), "{name}: {}", stderr(&page));
        assert!(stdout(&page).contains("  weights           none\n"), "{}", stdout(&page));
        let json: Value = serde_json::from_slice(&run(&config, &["--json"]).stdout).unwrap();
        assert_eq!(json["parameters"], goldens()[&format!("configs/{name}")]["parameters"], "{name}");
        for key in ["weights", "tokenizer", "tensors"] {
            assert!(json[key].is_null(), "{name}: {key}");
        }
        assert_eq!(json["files"].as_array().unwrap().len(), 1, "{name}");
    }
    let bert = configs.join("bert-base-uncased.json");
    let tokenizer = fixture("bert-tiny").join("tokenizer.json");
    let json = run(&bert, &["--json", "--tokenizer", tokenizer.to_str().unwrap()]);
    let json: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json["tokenizer"], tokenizer.to_str().unwrap());
    assert_fails(&run(&bert, &["some/model"]), 2, &["--config", "some/model is not used", "remove one"]);
    assert_eq!(run(&bert, &["--tokens", "0"]).status.code(), Some(2));
    let random = run(&bert, &["--random-weights", "7", "-m", fixture("bert-tiny").to_str().unwrap()]);
    assert!(stdout(&random).contains("random, seed 7"), "{}", stderr(&random));
}

/// The page in docs/inspect.md, except for what depends on the machine.
#[test]
fn the_documented_page_is_that_of_the_command() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/inspect.md")).unwrap();
    let command = document.lines().find(|line| line.starts_with("sconce inspect --config ")).unwrap();
    let args = command.split(" #").next().unwrap().split_whitespace().skip(1);
    let page = stdout(&sconce().args(args).current_dir(root).output().unwrap());
    let documented = document.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let fixed = |page: &str| {
        let page = page.split("\nMemory\n").next().unwrap().to_owned();
        page.lines().filter(|line| !line.contains("computes in")).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(fixed(documented), fixed(&page));
    assert!(fixed(&page).contains("Multiply-adds for one text of 512 tokens"), "{page}");
}

/// Sizes that no machine could hold are counted without allocating them.
#[test]
fn enormous_configs_are_costed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for name in ["bert-base-uncased", "deberta-v3-base", "modernbert-base", "albert-base-v2"] {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("configs/{name}.json"));
        let mut config: Value = serde_json::from_slice(&fs::read(config).unwrap()).unwrap();
        for key in ["hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings"] {
            config[key] = json!(1 << 24);
        }
        config["num_attention_heads"] = json!(1 << 12);
        config["conv_kernel_size"] = json!(255);
        fs::write(&path, config.to_string()).unwrap();
        for args in [&[][..], &["--json"], &["--tokens", "4294967295"]] {
            let output = sconce().args(["inspect", "--config"]).arg(&path).args(args).output().unwrap();
            assert!(output.status.success(), "{name}: {}", stderr(&output));
        }
    }
}

#[test]
fn a_model_that_cannot_be_run_is_shown_as_far_as_it_can_be_read() {
    type Break = fn(&Path);
    let breaks: [(Break, &[&str]); 6] = [
        (|model| fs::remove_file(model.join("tokenizer.json")).unwrap(), &["has no tokenizer.json"]),
        (|model| fs::write(model.join("tokenizer.json"), "{").unwrap(), &["cannot parse", "tokenizer.json"]),
        (|model| fs::remove_file(model.join("model.safetensors")).unwrap(), &["has no model.safetensors"]),
        (
            |model| {
                let weights = fs::read(model.join("model.safetensors")).unwrap();
                fs::write(model.join("model.safetensors"), &weights[..weights.len() / 2]).unwrap();
            },
            &["model.safetensors is truncated"],
        ),
        (|model| fs::write(model.join("model.safetensors"), "").unwrap(), &["is not a safetensors file"]),
        (
            |model| {
                fs::remove_file(model.join("model.safetensors")).unwrap();
                fs::remove_file(model.join("tokenizer.json")).unwrap();
            },
            &["has no tokenizer.json", "(and 1 more; see the report)"],
        ),
    ];
    for (break_model, parts) in breaks {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture("bert-tiny"), folder.path());
        break_model(folder.path());
        let output = inspect(folder.path(), &[]);
        assert_fails(&output, 1, parts);
        let page = stdout(&output);
        assert!(page.contains("\nProblems\n  ") && page.contains(parts[0]), "{page}");
        assert!(page.contains("  feed-forward       2·d·f + f + d"), "{page}");
        let output = inspect(folder.path(), &["--json"]);
        assert_fails(&output, 1, parts);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(json["problems"][0].as_str().unwrap().contains(parts[0]), "{json}");
    }
    // A fault of a checkpoint is that of its head, too.
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("heads/llama"), folder.path());
    fs::write(folder.path().join("model.safetensors"), "").unwrap();
    let json: Value = serde_json::from_slice(&inspect(folder.path(), &["--json"]).stdout).unwrap();
    assert_eq!(json["problems"].as_array().unwrap().len(), 1, "{json}");
    // Without modules.json, the pooling is the family's.
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), folder.path());
    fs::remove_file(folder.path().join("modules.json")).unwrap();
    assert!(stdout(&inspect(folder.path(), &[])).contains("no pooling configured"));
}

/// Models with a damaged file give a page or one sentence.
#[test]
fn damaged_models_are_shown_or_refused() {
    let models = ["bert-tiny", "albert", "deberta-v2-c2p", "modernbert", "eurobert", "pipelines/dense"];
    let copies: Vec<_> = models.iter().map(|model| (tempfile::tempdir().unwrap(), model)).collect();
    let mut files = Vec::new();
    for (folder, model) in &copies {
        copy_folder(&fixture(model), folder.path());
        for file in inspect_json(folder.path(), &[])["files"].as_array().unwrap() {
            files.push((folder.path(), PathBuf::from(file["path"].as_str().unwrap())));
        }
    }
    let (mut shown, mut partly, mut refused) = (0, 0, 0);
    for case in cases(240, 1) {
        run_case("inspect", case, |rng| {
            let (folder, path) = &files[rng.random_range(0..files.len())];
            let intact = fs::read(path).unwrap();
            let bytes = match path.extension().is_some_and(|suffix| suffix == "json") {
                true => damaged_file(rng, &intact),
                false => damaged(rng, std::slice::from_ref(&intact)),
            };
            fs::write(path, bytes).unwrap();
            let as_json = rng.random();
            let output = inspect(folder, if as_json { &["--json"] } else { &["--tensors"] });
            fs::write(path, intact).unwrap();
            let message = stderr(&output);
            assert!(!message.contains("panicked") && !message.contains("report this as a bug"), "{message}");
            let errors = message.lines().filter(|line| line.starts_with("sconce: error: ")).count();
            assert_eq!(errors, usize::from(!output.status.success()), "{message}");
            assert!(matches!(output.status.code(), Some(0..=2)), "{:?} {message}", output.status);
            let page = stdout(&output);
            if as_json && !page.is_empty() {
                serde_json::from_str::<Value>(&page).unwrap();
            }
            match (output.status.success(), page.is_empty()) {
                (true, empty) => {
                    assert!(!empty);
                    shown += 1;
                }
                (false, false) => partly += 1,
                (false, true) => refused += 1,
            }
        });
    }
    eprintln!("inspect: {shown} models shown, {partly} shown with problems, {refused} refused");
}

#[test]
fn components_have_different_names() {
    let names: std::collections::BTreeSet<_> = Component::ALL.iter().map(|part| part.name()).collect();
    assert_eq!(names.len(), Component::ALL.len());
}
