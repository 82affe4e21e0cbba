//! Every field that sentence-transformers, PyLate and model2vec write to the configurations of a model is
//! read, refused by its name, or in a list of fields without effect. The fields are those of
//! `scripts/fixtures/make_module_fields.py`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use sconce::model::modules::Modules;
use serde_json::{Value, json};

use crate::support::{copy_folder, fixture};

/// The fields without an effect on vectors.
const WITHOUT_EFFECT: &[(&str, &[&str])] = &[
    // The identity outside training.
    ("Dropout", &["dropout"]),
    // What to do with a dictionary of several texts.
    ("Router", &["allow_empty_key"]),
    // Training.
    ("SparseStaticEmbedding", &["frozen"]),
    // The size of the vocabulary.
    ("SpladePooling", &["embedding_dimension", "word_embedding_dimension"]),
    // How the encoder is run.
    ("Transformer", &["backend", "unpad_inputs"]),
    // How the model was made. Its tensors tell their types.
    (
        "model2vec",
        &[
            "apply_pca",
            "architectures",
            "embedding_dtype",
            "head_config",
            "hidden_dim",
            "model_type",
            "pooling",
            "seq_length",
            "sif_coefficient",
            "tokenizer_name",
            "vocabulary_quantization",
        ],
    ),
    // Versions of Python packages, and the precision of a cross-encoder's modules.
    ("settings", &["__version__", "keep_in_fp32_modules", "requirements"]),
];

/// Models with the configuration of each class, and its file.
const FILES: &[(&str, &str, &str)] = &[
    ("Dense", "pipelines/dense", "2_Dense/config.json"),
    ("Dropout", "pipelines/normalize-around", "3_Dropout/config.json"),
    ("HierarchicalTokenPooling", "multi-vector/pooled", "4_HierarchicalTokenPooling/config.json"),
    ("LayerNorm", "pipelines/layer-norm", "2_LayerNorm/config.json"),
    ("LogitScore", "causal-rerankers/qwen3", "1_LogitScore/config.json"),
    ("MultiVectorMask", "multi-vector/native", "2_MultiVectorMask/config.json"),
    ("Normalize", "pipelines/dense", "3_Normalize/config.json"),
    ("Pooling", "pipelines/dense", "1_Pooling/config.json"),
    ("Pooling", "pipelines/two-denses", "1_Pooling/config.json"),
    ("Router", "sparse-router/folders", "router_config.json"),
    ("SparseStaticEmbedding", "sparse-router/folders", "query_0_SparseStaticEmbedding/config.json"),
    ("SpladePooling", "sparse/bert-max", "1_SpladePooling/config.json"),
    ("Transformer", "pipelines/dense", "sentence_bert_config.json"),
    ("model2vec", "static/potion", "config.json"),
    ("settings", "pipelines/dense", "config_sentence_transformers.json"),
    ("settings", "multi-vector/pylate", "config_sentence_transformers.json"),
    ("settings", "multi-vector/native", "config_sentence_transformers.json"),
];

/// Whether a value that no field can have changes the modules of a model, or is an error that names the
/// field.
fn is_read(class: &str, model: &Path, file: &str, field: &str) -> bool {
    let read = |folder: &Path| Modules::read(folder, None, None);
    let folder = tempfile::tempdir().unwrap();
    copy_folder(model, folder.path());
    let path = folder.path().join(file);
    let mut config: Value = fs::read(&path).map_or(json!({}), |json| serde_json::from_slice(&json).unwrap());
    fs::write(&path, config.to_string()).unwrap();
    let before = read(folder.path()).unwrap();
    let fields = if class == "Router" { &mut config["parameters"] } else { &mut config };
    fields[field] = json!([{"unexpected": [1]}]);
    fs::write(&path, config.to_string()).unwrap();
    match read(folder.path()) {
        Ok(after) => after != before,
        Err(error) => {
            let words = |text: &str| text.replace('_', " ");
            assert!(words(&error.to_string()).contains(&words(field)), "{field}: {error}");
            true
        }
    }
}

#[test]
fn every_field_is_read_refused_or_without_effect() {
    let fields = fs::read(fixture("module-fields.json")).unwrap();
    let fields: BTreeMap<String, Vec<String>> = serde_json::from_slice(&fields).unwrap();
    let mut wrong = Vec::new();
    for (class, fields) in &fields {
        let without_effect = WITHOUT_EFFECT.iter().find(|(known, _)| known == class);
        let without_effect = without_effect.map_or(&[][..], |(_, fields)| *fields);
        let files: Vec<_> = FILES.iter().filter(|(known, ..)| known == class).collect();
        assert!(!files.is_empty(), "{class}");
        for field in fields {
            let is_read = files.iter().any(|(_, model, file)| is_read(class, &fixture(model), file, field));
            if is_read == without_effect.contains(&field.as_str()) {
                wrong.push(format!("{class}.{field} is read: {is_read}"));
            }
        }
        for field in without_effect {
            assert!(fields.iter().any(|known| known == field), "{class} has no {field}");
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Fields that no release writes are refused where sentence-transformers does not load them.
#[test]
fn unknown_fields_are_refused_where_the_reference_fails() {
    for (class, model, file) in FILES {
        if matches!(*class, "Dense" | "Dropout" | "Normalize" | "Router" | "model2vec" | "settings") {
            continue;
        }
        assert!(is_read(class, &fixture(model), file, "made_up"), "{class}");
    }
}
