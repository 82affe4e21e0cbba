//! Configs that lack fields: they have the defaults of `transformers`, which
//! `scripts/fixtures/make_config_defaults.py` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use sconce::model::classification::labels;
use sconce::model::config::Config;
use sconce::model::config_defaults::DefaultValue;
use sconce::model::families::{FAMILIES, Family};
use serde_json::{Map, Value, json};

use crate::support::{MODELS, assert_fails, copy_folder, fixture, model_command, stdout};

/// Fixtures of model types that are not among [`MODELS`].
const MORE: &[&str] =
    &["t5/embed-tokens-plain", "t5/mt5", "t5/umt5", "towers/clip-text", "towers/siglip-text"];

/// What `transformers` says about the class of each model type.
fn goldens() -> BTreeMap<String, Value> {
    serde_json::from_slice(&fs::read(fixture("config-defaults.json")).unwrap()).unwrap()
}

fn config(fields: &Map<String, Value>) -> Config {
    Config::with_fields(Path::new("config.json"), fields.clone())
}

/// The defaults of a row, of which a later one replaces an earlier one.
fn table(family: &Family) -> BTreeMap<&'static str, DefaultValue> {
    family.config_defaults.all().collect()
}

/// All fields of the class of a model type, with their defaults.
fn fields_of(model_type: &str, golden: &Value) -> Map<String, Value> {
    let mut fields = golden["fields"].as_object().unwrap().clone();
    fields.insert("model_type".into(), json!(model_type));
    // The class of ESM has no default for it.
    if fields.get("vocab_size").is_some_and(Value::is_null) {
        fields.insert("vocab_size".into(), json!(33));
    }
    fields
}

#[test]
fn the_defaults_of_every_row_are_those_of_the_configuration_class() {
    let goldens = goldens();
    let mut compared = BTreeSet::new();
    for family in FAMILIES.iter().filter(|family| !table(family).is_empty()) {
        for model_type in family.model_types {
            let golden = &goldens[*model_type];
            for (key, default) in table(family) {
                assert_eq!(golden["fields"][key], default.json(), "{model_type}: {key}");
            }
            let aliases = golden["aliases"].as_object().unwrap();
            let aliases: BTreeSet<_> =
                aliases.iter().map(|(alias, key)| (alias.as_str(), key.as_str().unwrap())).collect();
            let own: BTreeSet<_> = family.config_defaults.all_aliases().collect();
            assert_eq!(own, aliases, "{model_type}");
            compared.insert(*model_type);
        }
    }
    // Only code of the model's own has no class in transformers.
    let all: BTreeSet<_> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
    let other: Vec<_> = all.difference(&compared).copied().collect();
    assert_eq!(other, ["llama_bidirec", "new"]);
}

/// Fields that the table does not have (theta, types of layers, windows) included.
#[test]
fn a_config_without_fields_is_the_encoder_of_the_class_without_arguments() {
    for (model_type, golden) in goldens() {
        let full = config(&fields_of(&model_type, &golden));
        let Ok(family) = Family::of(&full) else { continue };
        let mut required = Map::from_iter([("model_type".into(), json!(model_type))]);
        if golden["fields"].get("vocab_size") == Some(&Value::Null) {
            required.insert("vocab_size".into(), full.fields()["vocab_size"].clone());
        }
        let empty = config(&required);
        let found = Family::of(&empty).unwrap().spec(&empty).unwrap();
        assert_eq!(found, family.spec(&full).unwrap(), "{model_type}");
    }
}

#[test]
fn no_field_of_a_class_is_taken_for_a_misspelling_of_another() {
    for (model_type, golden) in goldens() {
        let full = fields_of(&model_type, &golden);
        let Ok(family) = Family::of(&config(&full)) else { continue };
        for key in table(family).keys() {
            let mut fields = full.clone();
            fields.remove(*key);
            let others = ["num_labels", "eos_token_id", "unk_token_id", "torch_dtype", "classifier_dropout"];
            fields.extend(others.map(|name| (name.to_owned(), json!(2))));
            let completed = family.config_defaults.complete(&config(&fields)).unwrap();
            assert_eq!(completed.get(key), Some(&table(family)[key].json()), "{model_type}: {key}");
        }
    }
}

#[test]
fn a_misspelt_field_is_an_error() {
    for family in FAMILIES {
        for key in table(family).keys().filter(|key| key.len() > 5) {
            let misspelt = key.replacen(&key[2..3], "", 1);
            let fields = Map::from_iter([(misspelt.clone(), json!(2))]);
            let error = family.config_defaults.complete(&config(&fields)).unwrap_err().to_string();
            assert!(error.contains(&format!("no field \"{key}\", but \"{misspelt}\"")), "{error}");
        }
    }
}

/// Where two fields contradict each other, the one counts that `transformers` takes: each config is the
/// encoder of the config that its class in `transformers` makes of it.
#[test]
fn fields_that_contradict_one_another_have_the_precedence_of_transformers() {
    let bytes = fs::read(fixture("config-precedence.json")).unwrap();
    let rows: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
    let mut faults = Vec::new();
    for row in &rows {
        let of = |key: &str| {
            let mut fields = row[key].as_object().unwrap().clone();
            fields.insert("model_type".into(), row["model_type"].clone());
            config(&fields)
        };
        let spec = |config: &Config| {
            let spec = Family::of(config).and_then(|family| family.spec(config));
            spec.map_err(|error| format!("{error:#}"))
        };
        let (found, expected) = (spec(&of("config")), spec(&of("fields")));
        if expected.is_err() || found != expected {
            faults.push(format!("{} {}: {found:?}, expected {expected:?}", row["model_type"], row["config"]));
        }
        let labels = labels(&of("config")).map_err(|error| error.to_string());
        if labels.as_ref().map(|labels| json!(labels)) != Ok(row["labels"].clone()) {
            faults.push(format!(
                "{} {}: {labels:?}, expected {}",
                row["model_type"], row["config"], row["labels"]
            ));
        }
    }
    assert!(
        faults.is_empty() && rows.len() > 150,
        "{} of {}:\n{}",
        faults.len(),
        rows.len(),
        faults.join("\n")
    );
}

#[test]
fn other_names_of_a_field_are_read() {
    let read = |fields: Value| {
        let config = config(fields.as_object().unwrap());
        Family::of(&config)?.spec(&config)
    };
    let spec = read(json!({"model_type": "distilbert", "hidden_size": 384, "num_hidden_layers": 2})).unwrap();
    assert_eq!((spec.hidden_size, spec.layers, spec.heads), (384, 2, 12));
    let both = json!({"model_type": "distilbert", "hidden_size": 384, "dim": 768, "n_layers": 2});
    assert_eq!(read(both).unwrap(), spec);
    let error = read(json!({"model_type": "bert", "num_attention_heads": 10})).unwrap_err().to_string();
    assert!(error.contains("\"hidden_size\" is 768 (the default of transformers)"), "{error}");
}

/// A copy of a fixture with another config.
fn with_config(model: &str, fields: &Map<String, Value>) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture(model), folder.path());
    fs::write(folder.path().join("config.json"), Value::from(fields.clone()).to_string()).unwrap();
    folder
}

fn read_fields(model: &str) -> Map<String, Value> {
    let path = fixture(model).join("config.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Each fixture's config loses the fields that have the default of its class, and the vectors keep every bit.
#[test]
fn configs_without_the_fields_that_equal_their_defaults_give_the_same_vectors() {
    let mut tested = BTreeSet::new();
    for model in MODELS.iter().chain(MORE) {
        let mut fields = read_fields(model);
        let family = Family::of(&config(&fields)).unwrap();
        let count = fields.len();
        fields.retain(|key, value| table(family).get(key.as_str()).is_none_or(|it| it.json() != *value));
        if fields.len() == count {
            continue;
        }
        tested.extend(fields["model_type"].as_str().map(str::to_owned));
        let short = with_config(model, &fields);
        let embed = |folder: &Path| {
            let args = ["--pooling", "mean", "The wick burns.", "a lamp"];
            let output = model_command("embed", folder, &args).output().unwrap();
            assert!(output.status.success(), "{model}: {output:?}");
            stdout(&output)
        };
        assert_eq!(embed(short.path()), embed(&fixture(model)), "{model}");
    }
    for family in FAMILIES.iter().filter(|family| !table(family).is_empty()) {
        let types = family.model_types;
        // Of these, the fields are in an object of the config.
        if family.text_config.is_some_and(|object| object.model_types == types) {
            continue;
        }
        assert!(types.iter().any(|model_type| tested.contains(*model_type)), "{types:?}");
    }
}

#[test]
fn a_default_that_the_tensors_contradict_is_named() {
    for (key, default, tensor) in [
        ("hidden_size", "768", "1_Pooling"),
        ("vocab_size", "30522", "word_embeddings"),
        ("max_position_embeddings", "512", "position_embeddings"),
        ("intermediate_size", "3072", "intermediate.dense"),
        ("num_hidden_layers", "12", "encoder.layer."),
    ] {
        let mut fields = read_fields("bert-tiny");
        assert!(fields.remove(key).is_some());
        fields.insert("num_attention_heads".into(), json!(1));
        let folder = with_config("bert-tiny", &fields);
        let output = model_command("embed", folder.path(), &["x"]).output().unwrap();
        let expected = format!("\"{key}\": {default}");
        assert_fails(&output, 1, &[tensor, "config.json", "defaults of transformers", &expected]);
    }
}

/// DistilBERT has six layers by default. The other layers of a checkpoint would be left out, and the vectors
/// be wrong.
#[test]
fn a_checkpoint_with_more_layers_than_the_default_is_refused() {
    let mut fields = read_fields("distilbert");
    fields.remove("n_layers");
    let bytes = fs::read(fixture("distilbert").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let folder = with_config("distilbert", &fields);
    let embed_with_layers = |layers: usize| {
        let mut more: BTreeMap<String, _> = tensors.iter().cloned().collect();
        for (name, tensor) in tensors.iter().filter(|(name, _)| name.contains("layer.0.")) {
            let copies = (0..layers).map(|i| name.replace("layer.0.", &format!("layer.{i}.")));
            more.extend(copies.map(|name| (name, tensor.clone())));
        }
        let weights = safetensors::serialize(more, None).unwrap();
        fs::write(folder.path().join("model.safetensors"), weights).unwrap();
        model_command("embed", folder.path(), &["x"]).output().unwrap()
    };
    assert!(embed_with_layers(6).status.success());
    assert_fails(&embed_with_layers(7), 1, &["\"n_layers\"", "6, the default of transformers", "layer.6."]);
}

#[test]
fn inspect_shows_defaults() {
    let mut fields = read_fields("bert-tiny");
    for key in ["hidden_act", "layer_norm_eps", "type_vocab_size"] {
        fields.remove(key);
    }
    let folder = with_config("bert-tiny", &fields);
    let page = stdout(&model_command("inspect", folder.path(), &[]).output().unwrap());
    assert!(page.contains("hidden_act: gelu (default of transformers)"), "{page}");
    assert!(page.contains("layer_norm_eps: 1e-12 (default of transformers)"), "{page}");
    let report = stdout(&model_command("inspect", folder.path(), &["--json"]).output().unwrap());
    let report: Value = serde_json::from_str(&report).unwrap();
    let expected = json!({"hidden_act": "gelu", "layer_norm_eps": 1e-12, "type_vocab_size": 2});
    let mut found = report["defaults_of_transformers"].clone();
    found.as_object_mut().unwrap().retain(|key, _| expected.get(key).is_some());
    assert_eq!(found, expected);
}
