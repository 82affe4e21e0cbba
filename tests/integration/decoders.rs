//! Encoders that were decoder language models: repositories laid out as on the hub, made by
//! `scripts/fixtures/make_decoder_fixtures.py`, and what their configs leave out.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::Device;
use sconce::model::config::Config;
use sconce::model::families::Family;
use sconce::nn::{EncoderSpec, Positions, RotaryScaling};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{
    assert_fails, copy_folder, embedding, first_difference, fixture, goldens, model_command, rows,
};

const ATOL: f32 = 1e-5;

/// The vectors of `texts`, concatenated.
fn vectors(model: &Path, options: &[&str], texts: &[&str]) -> Vec<f32> {
    let output = model_command("embed", model, options).arg("--").args(texts).output().unwrap();
    rows(&output).iter().flat_map(embedding).collect()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().expect("a list").iter().map(|x| x.as_str().expect("a text")).collect()
}

/// A copy of a fixture whose config a test changes; a value of null is written as null, no value removes the
/// field.
struct Model(TempDir);

impl Model {
    fn copy_of(name: &str, changes: &[(&str, Option<Value>)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture(name), folder.path());
        let model = Model(folder);
        let mut config: Value =
            serde_json::from_slice(&fs::read(model.path("config.json")).unwrap()).unwrap();
        let fields = config.as_object_mut().unwrap();
        for (key, value) in changes {
            match value {
                Some(value) => drop(fields.insert((*key).into(), value.clone())),
                None => drop(fields.remove(*key)),
            }
        }
        fs::write(model.path("config.json"), config.to_string()).unwrap();
        model
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn spec(&self) -> EncoderSpec {
        let config = Config::read(&self.path("config.json")).unwrap();
        Family::of(&config).unwrap().spec(&config).unwrap()
    }
}

#[test]
fn repositories_laid_out_as_on_the_hub_give_the_reference_vectors() {
    let mut models = 0;
    for entry in fs::read_dir(fixture("decoders")).unwrap() {
        let folder = entry.unwrap().path();
        let goldens = goldens(&folder);
        let tensors =
            candle_core::safetensors::load(folder.join("goldens.safetensors"), &Device::Cpu).unwrap();
        for case in goldens["cases"].as_array().unwrap() {
            let options = strings(&case["options"]);
            let found = vectors(&folder, &options, &strings(&goldens["texts"]));
            let golden = tensors[case["vectors"].as_str().unwrap()].flatten_all().unwrap();
            if let Some(difference) = first_difference(&found, &golden.to_vec1().unwrap(), ATOL, 0.0) {
                panic!("{} with {options:?}: {difference}", folder.display());
            }
        }
        models += 1;
    }
    assert_eq!(models, 8);
}

/// Fields that `transformers` has a default for. `null` is no window, and as many key and value heads as
/// query heads.
#[test]
fn fields_that_a_config_lacks_are_those_of_the_reference() {
    let radius = |model: &Model| model.spec().mask.sliding_window.map(|window| window.radius);
    assert_eq!(radius(&Model::copy_of("mistral", &[])), Some(5));
    assert_eq!(radius(&Model::copy_of("mistral", &[("sliding_window", None)])), Some(4095));
    assert_eq!(radius(&Model::copy_of("mistral", &[("sliding_window", Some(Value::Null))])), None);
    let spec = Model::copy_of("qwen3", &[("head_dim", None)]).spec();
    assert_eq!((spec.qk_head_dim, spec.key_value_heads), (128, 2));
    assert_eq!(
        Model::copy_of("qwen3", &[("num_key_value_heads", Some(Value::Null))]).spec().key_value_heads,
        4
    );
    let heads = [("num_key_value_heads", None), ("num_attention_heads", Some(json!(8)))];
    assert_eq!(Model::copy_of("mistral", &heads).spec().key_value_heads, 8);
    let lacking = ["query_pre_attn_scalar", "sliding_window_pattern", "rope_theta", "rope_local_base_freq"];
    let gemma = Model::copy_of("gemma3", &lacking.map(|key| (key, None))).spec();
    let stated = [
        ("query_pre_attn_scalar", Some(json!(256))),
        ("layer_types", Some(json!(["sliding_attention", "sliding_attention", "sliding_attention"]))),
        ("rope_theta", Some(json!(1e6))),
        ("rope_local_base_freq", Some(json!(1e4))),
    ];
    assert_eq!(gemma, Model::copy_of("gemma3", &stated).spec());
    // A scaling of no type of layer is that of full attention.
    let scaling = ("rope_scaling", Some(json!({"rope_type": "linear", "factor": 8})));
    let Positions::Rotary(rotary) = Model::copy_of("gemma3", &[scaling]).spec().positions else { panic!() };
    assert_eq!(rotary.frequencies.scaling, RotaryScaling::Linear { factor: 8.0 });
    assert_eq!(rotary.local.unwrap().scaling, RotaryScaling::None);
    let window = [("use_sliding_window", Some(json!(true))), ("layer_types", None), ("sliding_window", None)];
    assert_eq!(radius(&Model::copy_of("qwen3", &window)), None, "28 layers are below the window");
    let first = [&window[..], &[("max_window_layers", Some(json!(2)))]].concat();
    let window = Model::copy_of("qwen3", &first).spec().mask.sliding_window.unwrap();
    assert_eq!((window.radius, window.layers), (4095, vec![false, false, true]));
}

/// `use_bidirectional_attention` is `is_causal: false` where a family has no such field in `transformers`.
#[test]
fn both_flags_of_a_bidirectional_model_mean_the_same() {
    let texts = ["a lamp, a wick and a flame"];
    let with = |key: &str, value: bool| {
        let model = Model::copy_of("qwen3", &[(key, Some(json!(value)))]);
        vectors(model.0.path(), &["--pooling", "cls"], &texts)
    };
    let causal = vectors(&fixture("qwen3"), &["--pooling", "cls"], &texts);
    let bidirectional = with("is_causal", false);
    assert_eq!(bidirectional, with("use_bidirectional_attention", true));
    assert_eq!(causal, with("is_causal", true));
    assert!(first_difference(&bidirectional, &causal, 0.01, 0.0).is_some());
}

/// With a causal mask the first tokens do not depend on the others, whatever their number.
#[test]
fn tokens_of_a_causal_model_do_not_depend_on_later_ones() {
    let first = |text: &str| vectors(&fixture("mistral"), &["--pooling", "cls"], &[text]);
    assert_eq!(first("lamp"), first(&["lamp"; 30].join(" ")));
}

#[test]
fn a_head_that_a_family_does_not_have_is_refused_by_a_sentence() {
    let class = |model: &str, name: &str| {
        let model = Model::copy_of(model, &[("architectures", Some(json!([name])))]);
        fs::remove_file(model.path("modules.json")).unwrap();
        model
    };
    for (model, name, command, args) in [
        ("llama-bidirectional", "LlamaBidirectionalForSequenceClassification", "classify", &[][..]),
        ("gemma3", "Gemma3TextForTokenClassification", "tag", &[]),
        ("t5/mt5", "MT5ForSequenceClassification", "classify", &[]),
        ("t5/mt5", "MT5ForQuestionAnswering", "answer", &["--question", "who?"]),
    ] {
        let model = class(model, name);
        let output = model_command(command, model.0.path(), args).arg("a wick").output().unwrap();
        assert_fails(&output, 1, &["config.json", "models of type", "head; choose another model"]);
    }
    let model = class("qwen3", "Qwen3ForCausalLM");
    let output = model_command("embed", model.0.path(), &[]).arg("a wick").output().unwrap();
    assert_fails(&output, 1, &["a text generator", "Qwen3ForCausalLM", "--pooling"]);
}
