//! The table of `docs/models.md`: every command runs with a small model of the same family and files, and
//! every refusal is the sentence that the page has. The page is written from `docs/models.json` by
//! `scripts/check/models_table.py`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use sconce::model::families::FAMILIES;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{assert_fails, copy_folder, fixture, sconce, stderr};

/// Values of `family` for models without an encoder.
const STATIC: [&str; 2] = ["model2vec", "StaticEmbedding"];

fn rows() -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.json");
    let rows: Vec<Value> = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    rows.into_iter().filter(|row| row.get("section").is_none()).collect()
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{row} has no {key}"))
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value =
        fs::read(path).ok().map_or_else(|| json!({}), |bytes| serde_json::from_slice(&bytes).unwrap());
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// A copy of the row's fixture, with the prompts and fields that the row gives it, and the records that
/// commands read.
fn model(row: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture(text(row, "fixture")), folder.path());
    for prompt in row["prompts"].as_array().into_iter().flatten() {
        let settings = folder.path().join("config_sentence_transformers.json");
        edit(&settings, |settings| settings["prompts"][prompt.as_str().unwrap()] = json!("a prompt: "));
    }
    for (key, value) in row["config"].as_object().into_iter().flatten() {
        edit(&folder.path().join("config.json"), |config| config[key] = value.clone());
    }
    if row.get("labels").is_some() {
        keep_first_label(folder.path());
    }
    let record = json!({"text": "a lamp", "hypothesis": "a light"});
    fs::write(folder.path().join("pairs.jsonl"), record.to_string()).unwrap();
    folder
}

/// Cuts the last layer of a classifier to its first label, which makes it a cross-encoder.
fn keep_first_label(folder: &Path) {
    edit(&folder.join("config.json"), |config| config["id2label"] = json!({"0": "score"}));
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let is_last = |name: &str| {
        let module = name.rsplit_once('.').map_or(name, |(module, _)| module);
        ["classifier", "classifier.out_proj"].contains(&module)
    };
    let cut: Vec<_> = tensors
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            let (mut shape, mut data) = (tensor.shape().to_vec(), tensor.data());
            if is_last(&name) {
                data = &data[..data.len() / shape[0]];
                shape[0] = 1;
            }
            (name, TensorView::new(tensor.dtype(), shape, data).unwrap())
        })
        .collect();
    fs::write(&path, safetensors::serialize(cut, None).unwrap()).unwrap();
}

/// The words of a command, of which some are in double quotes.
fn words(command: &str) -> Vec<String> {
    let quoted = command.split('"').enumerate();
    quoted
        .flat_map(|(i, part)| match i % 2 {
            1 => vec![part.to_owned()],
            _ => part.split_whitespace().map(str::to_owned).collect(),
        })
        .collect()
}

#[test]
fn every_command_of_the_table_runs_or_is_refused_as_the_page_says() {
    let mut seen = BTreeSet::new();
    let mut tested = 0;
    for row in rows().into_iter().filter(|row| row.get("fixture").is_some()) {
        let key: Vec<String> =
            ["fixture", "command", "prompts", "config", "labels"].map(|key| row[key].to_string()).into();
        if !seen.insert(key) {
            continue;
        }
        let folder = model(&row);
        let mut command = text(&row, "command").to_owned();
        let tokenizer = fs::read_to_string(folder.path().join("tokenizer.json")).unwrap_or_default();
        if !tokenizer.contains("<mask>") {
            // The vocabulary of BERT is that of most fixtures.
            command = command.replace("<mask>", "[MASK]");
        }
        let words = words(&command);
        assert_eq!(words[0], "sconce", "{row}");
        let here = folder.path().to_str().unwrap();
        let args = words[1..].iter().map(|word| if word == "MODEL" { here } else { word });
        let output = sconce().args(args).current_dir(folder.path()).output().unwrap();
        match row["refused"].as_str() {
            Some(sentence) => assert_fails(&output, 1, &[sentence]),
            None => assert!(output.status.success(), "{row}: {}", stderr(&output)),
        }
        tested += 1;
    }
    assert!(tested > 40, "{tested} commands");
}

#[test]
fn every_row_names_a_family_and_a_fixture_of_that_family() {
    let types: BTreeSet<_> = FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
    for row in rows().iter().filter(|row| row.get("refused").is_none() && row.get("fixture").is_some()) {
        let family = text(row, "family");
        if STATIC.contains(&family) {
            continue;
        }
        assert!(types.contains(family), "{row}");
        let config = fs::read(fixture(text(row, "fixture")).join("config.json")).unwrap();
        let config: Value = serde_json::from_slice(&config).unwrap();
        let expected = row["fixture_family"].as_str().unwrap_or(family);
        assert_eq!(config["model_type"], expected, "{row}");
    }
}

#[test]
fn the_page_has_the_rows_of_the_data() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/models.md");
    let page = fs::read_to_string(path).unwrap();
    let (_, table) = page.split_once("<!-- models.json -->\n").unwrap();
    let (table, _) = table.split_once("<!-- end of models.json -->\n").unwrap();
    let is_row = |line: &&str| line.starts_with("| ") && !line.starts_with("| model |");
    let found: Vec<&str> = table.lines().filter(is_row).collect();
    let shown = |row: &Value| {
        let (id, family) = (text(row, "id"), text(row, "family"));
        match row["refused"].as_str() {
            Some(sentence) => format!("| {id} | {family} | refused: {sentence} |"),
            None => format!("| {id} | {family} | `{}` |", text(row, "command").replace("MODEL", id)),
        }
    };
    let expected: Vec<String> = rows().iter().map(shown).collect();
    assert_eq!(found, expected, "run scripts/check/models_table.py");
}
