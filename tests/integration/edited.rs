//! Models of other fixtures with edited JSON files: what `scripts/fixtures/make_edited_fixtures.py` writes of
//! the reference implementation.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{
    copy_folder, embedding, first_difference, fixture, model_command, numbers, rows, set_fields, states,
    stdout,
};

const ATOL: f32 = 1e-5;
const RTOL: f32 = 1e-5;

/// Replaces fields of the JSON files of a model; null removes a field.
fn edit(folder: &Path, edits: &Value) {
    for (file, edits) in edits.as_object().unwrap() {
        let path = folder.join(file);
        match edits {
            Value::Object(_) => set_fields(&path, edits),
            whole => fs::write(path, whole.to_string()).unwrap(),
        }
    }
}

/// The numbers of a row: its vector, those of its tokens, or its weights as a vector over the vocabulary of a
/// tokenizer.
fn values(row: &Value, tokenizer: Option<&Value>, dimensions: usize) -> Vec<f32> {
    if let Some(weights) = row.get("weights") {
        let vocab = &tokenizer.expect("a vocabulary")["model"]["vocab"];
        let mut values = vec![0.0; dimensions];
        for (token, weight) in weights.as_object().unwrap() {
            values[vocab[token].as_u64().unwrap() as usize] = weight.as_f64().unwrap() as f32;
        }
        return values;
    }
    if row.get("embeddings").is_some() { states(row) } else { embedding(row) }
}

#[test]
fn edited_models_give_the_reference_vectors() {
    let cases: Vec<Value> = serde_json::from_slice(&fs::read(fixture("edited.json")).unwrap()).unwrap();
    let mut differences = Vec::new();
    for case in &cases {
        let folder = tempfile::tempdir().unwrap();
        let name = case["model"].as_str().unwrap();
        copy_folder(&fixture(name), folder.path());
        edit(folder.path(), &case["edits"]);
        let role = case["role"].as_str().map(|role| role.trim_start_matches("encode_"));
        let options: Vec<&str> = role.map_or(vec![], |role| vec!["--role", role]);
        let texts: Vec<&str> =
            case["texts"].as_array().unwrap().iter().map(|x| x.as_str().unwrap()).collect();
        let what = format!("{name} {} {:?}", case["edits"], case["role"]);
        let output = model_command("embed", folder.path(), &options).arg("--").args(&texts).output().unwrap();
        if !output.status.success() {
            differences.push(format!("{what}: {}", String::from_utf8_lossy(&output.stderr)));
            continue;
        }
        let tokenizers = ["tokenizer.json", "query_0_SparseStaticEmbedding/tokenizer.json"];
        let tokenizer = tokenizers.iter().find_map(|file| fs::read(folder.path().join(file)).ok());
        let tokenizer = tokenizer.map(|bytes| serde_json::from_slice::<Value>(&bytes).unwrap());
        let found = rows(&output);
        assert_eq!(found.len(), texts.len(), "{what}");
        for (index, (row, expected)) in found.iter().zip(case["vectors"].as_array().unwrap()).enumerate() {
            let expected = numbers(expected);
            let values = values(row, tokenizer.as_ref(), expected.len());
            if let Some(difference) = first_difference(&values, &expected, ATOL, RTOL) {
                differences.push(format!("{what}, text {index}: {difference}"));
                break;
            }
        }
        let Some(similarity) = case["similarity"].as_array() else { continue };
        let own =
            model_command("similarity", folder.path(), &["--json", "--"]).args(&texts).output().unwrap();
        let own: Value = serde_json::from_str(&stdout(&own)).unwrap();
        for (index, expected) in similarity.iter().enumerate() {
            let expected = numbers(expected);
            let query = ["--query", texts[index], "--"];
            let reranked = model_command("rerank", folder.path(), &query).args(&texts).output().unwrap();
            let scores = rows(&reranked).iter().map(|row| row["score"].as_f64().unwrap() as f32).collect();
            for found in [numbers(&own["similarities"][index]), scores] {
                if let Some(difference) = first_difference(&found, &expected, ATOL, RTOL) {
                    differences.push(format!("{what}, similarity {index}: {difference}"));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} of {}:\n{}", differences.len(), cases.len(), differences.join("\n"));
    assert!(cases.len() > 100);
}
