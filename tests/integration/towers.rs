//! The text towers of CLIP and SigLIP against transformers and sentence-transformers, on the models of
//! `scripts/fixtures/make_tower_fixtures.py`.

use std::fs;
use std::path::Path;

use candle_core::Device;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    assert_fails, copy_folder, embedding, first_difference, fixture, goldens, model_command, numbers, rows,
    stderr, stdout,
};

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;
/// Of single hidden states, whose values are larger.
const TOKEN_ATOL: f32 = 1e-4;

const TOWERS: &[&str] = &[
    "clip",
    "clip-text",
    "clip-projection",
    "clip-module",
    "clip-modality",
    "siglip",
    "siglip-text",
    "siglip2",
];

fn texts(model: &Path) -> Vec<String> {
    let rows = goldens(model);
    rows.as_array().unwrap().iter().map(|row| row["text"].as_str().unwrap().to_owned()).collect()
}

fn golden(model: &Path, tensor: &str) -> Vec<f32> {
    let tensors = candle_core::safetensors::load(model.join("goldens.safetensors"), &Device::Cpu).unwrap();
    tensors[tensor].flatten_all().unwrap().to_vec1().unwrap()
}

/// The rows of the golden texts.
fn embed(model: &Path, options: &[&str]) -> Vec<Value> {
    let texts = texts(model);
    let mut command = model_command("embed", model, options);
    let output = command.arg("--").args(&texts).output().unwrap();
    rows(&output)
}

fn vectors(model: &Path, options: &[&str]) -> Vec<f32> {
    embed(model, options).iter().flat_map(embedding).collect()
}

/// A copy of a tower whose config a test changes.
fn copy(name: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("towers").join(name), folder.path());
    edit(&folder.path().join("config.json"), change);
    folder
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

#[test]
fn vectors_are_those_of_the_reference() {
    for name in TOWERS {
        let model = fixture("towers").join(name);
        if let Some(difference) =
            first_difference(&vectors(&model, &[]), &golden(&model, "vectors"), ATOL, RTOL)
        {
            panic!("{name}: {difference}");
        }
    }
    assert_eq!(fs::read_dir(fixture("towers")).unwrap().count(), TOWERS.len());
}

#[test]
fn hidden_states_of_all_tokens_are_those_of_the_reference() {
    for name in TOWERS {
        let model = fixture("towers").join(name);
        let rows = embed(&model, &["--pooling", "none"]);
        let tokens: Vec<_> =
            goldens(&model).as_array().unwrap().iter().map(|row| row["ids"].clone()).collect();
        let found: Vec<f32> = rows
            .iter()
            .zip(&tokens)
            .flat_map(|(row, ids)| {
                let states = row["embeddings"].as_array().unwrap();
                assert_eq!(states.len(), ids.as_array().unwrap().len(), "{name}: {ids}");
                states.iter().flat_map(numbers)
            })
            .collect();
        if let Some(difference) = first_difference(&found, &golden(&model, "hidden"), TOKEN_ATOL, RTOL) {
            panic!("{name}: {difference}");
        }
    }
}

/// OpenAI's configs have 2 as the end of a text, which stands for the highest id; later ones have the id
/// itself.
#[test]
fn the_end_of_a_text_is_the_highest_id_or_the_one_of_the_config() {
    let model = fixture("towers").join("clip");
    let with_end = |id: u32| copy("clip", |config| config["text_config"]["eos_token_id"] = json!(id));
    let named = vectors(with_end(547).path(), &[]);
    assert_eq!(named, vectors(&model, &[]));
    let first = vectors(with_end(546).path(), &[]);
    assert!(first_difference(&first, &named, 0.01, 0.0).is_some(), "<|startoftext|> is another token");
    // Without the token, the first one.
    assert_eq!(first, vectors(with_end(300).path(), &[]));
}

#[test]
fn a_text_config_dict_replaces_the_text_config() {
    let model = copy("clip", |config| {
        config["text_config_dict"] = config["text_config"].clone();
        config["text_config"]["num_hidden_layers"] = json!(5);
    });
    assert_eq!(vectors(model.path(), &[]), vectors(&fixture("towers").join("clip"), &[]));
}

/// A tower that stands alone has the names of its tensors with or without `text_model.`, and a projection if
/// its class says so.
#[test]
fn a_tower_alone_is_the_tower_of_the_whole_model() {
    let whole = fixture("towers").join("clip");
    let alone = |class: &str| {
        copy("clip", |config| {
            let mut fields = config["text_config"].clone();
            fields["architectures"] = json!([class]);
            fields["model_type"] = json!("clip_text_model");
            fields["projection_dim"] = config["projection_dim"].clone();
            *config = fields;
        })
    };
    assert_eq!(vectors(alone("CLIPTextModelWithProjection").path(), &[]), vectors(&whole, &[]));
    let hidden = vectors(alone("CLIPTextModel").path(), &[]);
    assert_eq!(hidden.len(), texts(&whole).len() * 16, "as wide as the hidden states");
}

/// SigLIP attends to its padding: a text alone, in a batch and of another length have vectors of their own.
#[test]
fn padding_does_not_depend_on_the_batch() {
    let model = fixture("towers").join("siglip");
    let together = vectors(&model, &[]);
    let alone: Vec<f32> = texts(&model)
        .iter()
        .flat_map(|text| {
            let output = model_command("embed", &model, &["--", text]).output().unwrap();
            rows(&output).iter().flat_map(embedding).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(together, alone);
    assert!(embed(&model, &[]).iter().all(|row| row["tokens"] == 20));
}

/// The padding token is that of the tokenizer, else that of the config; left of the text where the files say
/// so.
#[test]
fn padding_is_what_the_files_say() {
    let model = fixture("towers").join("siglip2");
    let expected = vectors(&model, &[]);
    let with = |settings: Value, padding: u32| {
        let model = copy("siglip2", |config| config["text_config"]["pad_token_id"] = json!(padding));
        edit(&model.path().join("tokenizer_config.json"), |config| {
            for (key, value) in settings.as_object().unwrap() {
                config[key] = value.clone();
            }
        });
        vectors(model.path(), &[])
    };
    assert_eq!(with(json!({}), 5), expected);
    assert_eq!(with(json!({"pad_token": null}), 0), expected);
    for other in [with(json!({"pad_token": null}), 5), with(json!({"padding_side": "left"}), 0)] {
        assert!(first_difference(&other, &expected, 0.01, 0.0).is_some());
    }
}

#[test]
fn longer_texts_are_never_truncated_in_silence() {
    let long = "a photo of a lamp ".repeat(12);
    for name in ["clip", "siglip"] {
        let model = fixture("towers").join(name);
        let embed = |options: &[&str]| model_command("embed", &model, options).arg(&long).output().unwrap();
        let output = embed(&[]);
        assert!(stderr(&output).contains("longer than 20 tokens"), "{name}: {}", stderr(&output));
        assert_eq!(rows(&output)[0]["truncated"], true);
        assert_fails(&embed(&["--on-long", "error"]), 1, &["over the limit of 20"]);
        assert_eq!(rows(&embed(&["--on-long", "mean"])).len(), 1);
    }
    let chunk = |name: &str| {
        let args = ["--chunk", "12", &long];
        model_command("embed", &fixture("towers").join(name), &args).output().unwrap()
    };
    let chunks = rows(&chunk("clip"));
    assert!(chunks.len() > 3 && chunks.iter().all(|row| row["truncated"] == false));
    assert_fails(&chunk("siglip"), 2, &["--chunk", "padding", "--on-long mean"]);
}

#[test]
fn inspect_says_that_the_tower_of_images_is_not_read() {
    let inspect =
        |name: &str| stdout(&model_command("inspect", &fixture("towers").join(name), &[]).output().unwrap());
    let page = inspect("clip");
    assert!(page.contains("tower of images is not read"), "{page}");
    assert!(!inspect("clip-text").contains("tower of images"));
    let counted = |name: &str| {
        let args = ["--json"];
        let output = model_command("inspect", &fixture("towers").join(name), &args).output().unwrap();
        let json: Value = serde_json::from_str(&stdout(&output)).unwrap();
        json["parameters"].clone()
    };
    let layers = 2 * (4 * (16 * 16 + 16) + 2 * 16 * 24 + 24 + 16 + 4 * 16);
    assert_eq!(counted("clip"), json!(548 * 16 + 20 * 16 + layers + 2 * 16 + 16 * 20));
}

/// Of a wrong field, the message has its path in the file.
#[test]
fn a_wrong_field_of_the_text_config_is_named_with_its_object() {
    let wrong = copy("clip", |config| config["text_config"]["num_hidden_layers"] = json!("two"));
    let output = model_command("embed", wrong.path(), &["x"]).output().unwrap();
    assert_fails(&output, 1, &["config.json", "\"text_config.num_hidden_layers\"", "two"]);
    let images = copy("clip", |config| config["model_type"] = json!("clip_vision_model"));
    let output = model_command("embed", images.path(), &["x"]).output().unwrap();
    assert_fails(&output, 1, &["clip_vision_model", "not supported"]);
}
