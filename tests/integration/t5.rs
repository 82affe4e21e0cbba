//! T5's encoder: repositories laid out as on the hub, made by `scripts/fixtures/make_t5_fixtures.py`.

use std::fs;

use candle_core::Device;

use crate::support::{
    assert_fails, copy_folder, embedding, first_difference, fixture, goldens, model_command, rows, sconce,
    states,
};

#[test]
fn t5_encoders_give_the_hidden_states_and_vectors_of_the_reference() {
    let mut models = 0;
    for entry in fs::read_dir(fixture("t5")).unwrap() {
        let folder = entry.unwrap().path();
        let goldens = goldens(&folder);
        let texts: Vec<&str> =
            goldens["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        let tensors =
            candle_core::safetensors::load(folder.join("goldens.safetensors"), &Device::Cpu).unwrap();
        let golden = |name: &str| tensors[name].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let options: Vec<&str> =
            goldens["options"].as_array().unwrap().iter().map(|option| option.as_str().unwrap()).collect();
        let output = model_command("embed", &folder, &options).arg("--").args(&texts).output().unwrap();
        let vectors: Vec<f32> = rows(&output).iter().flat_map(embedding).collect();
        if let Some(difference) = first_difference(&vectors, &golden("vectors"), 1e-5, 1e-5) {
            panic!("{}, vectors: {difference}", folder.display());
        }
        let options = [&options[..], &["--pooling", "none"]].concat();
        let output = model_command("embed", &folder, &options).arg("--").args(&texts).output().unwrap();
        let states: Vec<f32> = rows(&output).iter().flat_map(states).collect();
        if let Some(difference) = first_difference(&states, &golden("tokens"), 1e-4, 0.0) {
            panic!("{}, hidden states: {difference}", folder.display());
        }
        models += 1;
    }
    assert_eq!(models, 8);
}

/// Their files do not say that the instruction is left out of the pooling; sentence-transformers knows it by
/// the names of the repositories.
#[test]
fn the_instruction_of_instructor_models_is_not_pooled() {
    let home = tempfile::tempdir().unwrap();
    let hub = |id: &str| {
        let repository = home.path().join("hub").join(format!("models--{}", id.replace('/', "--")));
        let snapshot = repository.join("snapshots/0123456789012345678901234567890123456789");
        fs::create_dir_all(&snapshot).unwrap();
        fs::create_dir_all(repository.join("refs")).unwrap();
        fs::write(repository.join("refs/main"), "0123456789012345678901234567890123456789").unwrap();
        copy_folder(&fixture("t5/instructor"), &snapshot);
        let pooling = snapshot.join("1_Pooling/config.json");
        let fields = fs::read_to_string(&pooling).unwrap();
        assert!(fields.contains("\"include_prompt\": false"), "{fields}");
        fs::write(&pooling, fields.replace("\"include_prompt\": false", "\"include_prompt\": true")).unwrap();
        let mut command = sconce();
        command.env("HF_HOME", home.path()).args(["embed", "--offline", "--prompt", "a title: ", "a lamp"]);
        rows(&command.args(["--model", id]).output().unwrap())
            .iter()
            .flat_map(embedding)
            .collect::<Vec<f32>>()
    };
    let options = ["--prompt", "a title: "];
    let output = model_command("embed", &fixture("t5/instructor"), &options).arg("a lamp").output().unwrap();
    let expected: Vec<f32> = rows(&output).iter().flat_map(embedding).collect();
    assert_eq!(hub("hkunlp/instructor-large"), expected);
    assert_ne!(hub("another/instructor-large"), expected);
}

#[test]
fn fields_of_t5_that_contradict_its_maths_are_named() {
    for (key, value, expected) in [
        ("relative_attention_num_buckets", "3", "an even number from 4 on"),
        ("relative_attention_max_distance", "8", "more than 8"),
        ("feed_forward_proj", "\"gated-nonsense\"", "expected relu"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture("t5/gtr-t5"), folder.path());
        let path = folder.path().join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        config[key] = serde_json::from_str(value).unwrap();
        fs::write(&path, config.to_string()).unwrap();
        let output = model_command("embed", folder.path(), &["--", "a"]).output().unwrap();
        assert_fails(&output, 1, &["config.json", key, expected]);
    }
}
