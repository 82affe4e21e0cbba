//! Static embeddings of model2vec and of sentence-transformers, made by
//! `scripts/fixtures/make_static_fixtures.py`.

use std::fs;
use std::path::Path;

use candle_core::Device;

use crate::support::{
    assert_fails, copy_folder, embedding, first_difference, fixture, goldens, model_command, rows,
};

fn texts(folder: &Path) -> Vec<String> {
    let texts = goldens(folder)["texts"].clone();
    texts.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn both_layouts_in_every_storage_give_the_reference_vectors() {
    let mut models = 0;
    for entry in fs::read_dir(fixture("static")).unwrap() {
        let folder = entry.unwrap().path();
        let output = model_command("embed", &folder, &["--"]).args(texts(&folder)).output().unwrap();
        let vectors: Vec<f32> = rows(&output).iter().flat_map(embedding).collect();
        let golden =
            candle_core::safetensors::load(folder.join("goldens.safetensors"), &Device::Cpu).unwrap();
        let golden: Vec<f32> = golden["vectors"].flatten_all().unwrap().to_vec1().unwrap();
        // model2vec computes vectors of f16 in f16.
        let rtol = if folder.ends_with("f16") { 1e-3 } else { 1e-5 };
        if let Some(difference) = first_difference(&vectors, &golden, 1e-5, rtol) {
            panic!("{}: {difference}", folder.display());
        }
        models += 1;
    }
    assert_eq!(models, 7);
}

#[test]
fn truncation_of_model2vec_is_counted_and_can_be_refused() {
    let folder = fixture("static/unigram");
    let long = "wick ".repeat(400);
    let output = model_command("embed", &folder, &["--", "a wick", &long]).output().unwrap();
    let truncated: Vec<bool> = rows(&output).iter().map(|row| row["truncated"].as_bool().unwrap()).collect();
    assert_eq!(truncated, [false, true]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("longer than 40 tokens"));
    let output = model_command("embed", &folder, &["--on-long", "error", "--", &long]).output().unwrap();
    assert_fails(&output, 1, &["over the limit of 40"]);
    // Static embeddings of sentence-transformers have no limit.
    let output = model_command("embed", &fixture("static/subfolder"), &["--", &long]).output().unwrap();
    assert_eq!(rows(&output)[0]["truncated"], false);
}

#[test]
fn options_that_need_an_encoder_are_refused_by_name() {
    let folder = fixture("static/potion");
    for (options, expected) in
        [(&["--pooling", "max"][..], "--pooling max"), (&["--chunk", "4", "--chunk-late"], "--chunk-late")]
    {
        let output = model_command("embed", &folder, options).args(["--", "a wick"]).output().unwrap();
        assert_fails(&output, 2, &[expected, "static embeddings", "leave the option out"]);
    }
}

#[test]
fn a_mapping_to_rows_that_do_not_exist_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("static/vocabulary-quantized"), folder.path());
    let path = folder.path().join("model.safetensors");
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    let rows = tensors["embeddings"].narrow(0, 0, 5).unwrap();
    tensors.insert("embeddings".into(), rows);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let output = model_command("embed", folder.path(), &["--", "a wick"]).output().unwrap();
    assert_fails(&output, 1, &["model.safetensors", "mapping", "table of 5 rows"]);
}

#[test]
fn a_static_model_is_inspected_with_its_table_and_its_limit() {
    let output = model_command("inspect", &fixture("static/potion"), &["--json"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!((&json["model_type"], &json["max_length"]), (&"model2vec".into(), &512.into()));
}
