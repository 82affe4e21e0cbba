//! `sconce attend`: attention against `output_attentions` of the reference implementation, and its files.

use std::collections::HashMap;
use std::fs;
use std::process::Output;

use crate::support::operands::flat;
use crate::support::{
    MODELS, assert_fails, copy_folder, first_difference, fixture, numbers, sconce, stderr, stdout,
};
use candle_core::{Device, Tensor};
use sconce::hub::Source;
use sconce::load::{Loaded, ModelOptions, load};
use sconce::nn::Pooling;
use sconce::sys::console::{Console, Verbosity};
use sconce::task::{AttentionMaps, AttentionOptions, Layers, Mixing, Views, attend};
use serde_json::Value;

const ATOL: f32 = 1e-5;
/// The index of each text in `goldens.json` whose attention is in `attentions.safetensors`: a text and a
/// pair.
const ATTENDED: [usize; 2] = [2, 5];

fn quiet() -> Console {
    Console::new(Verbosity::Quiet, false)
}

fn open(model: &str) -> Loaded {
    let source = Source {
        model: fixture(model).display().to_string(),
        revision: "main".into(),
        dimensions: None,
        offline: true,
        cache: None,
        progress: false,
        silent: false,
    };
    let options = ModelOptions { pooling: Some(Pooling::None), ..ModelOptions::of(source) };
    load(&options, &quiet()).expect("the fixture loads")
}

fn goldens(model: &str) -> HashMap<String, Tensor> {
    let path = fixture(model).join("attentions.safetensors");
    candle_core::safetensors::load(path, &Device::Cpu).expect("goldens load")
}

fn golden_text(model: &str, index: usize) -> (String, Option<String>) {
    let json = fs::read(fixture(model).join("goldens.json")).expect("goldens are there");
    let rows: Vec<Value> = serde_json::from_slice(&json).expect("goldens are JSON");
    (rows[index]["text"].as_str().unwrap().into(), rows[index]["pair"].as_str().map(String::from))
}

/// All layers of a golden text.
fn maps(model: &Loaded, name: &str, index: usize, views: Views, mixing: Option<Mixing>) -> AttentionMaps {
    let (text, pair) = golden_text(name, index);
    let options =
        AttentionOptions { prompt: None, layers: Layers::All, views, mixing, without_special: false };
    attend(model, &text, pair.as_deref(), &options, &quiet()).expect("the model runs")
}

#[track_caller]
fn assert_equal(model: &str, what: &str, found: &[f32], golden: &Tensor) {
    if let Some(difference) = first_difference(found, &flat(golden), ATOL, 0.0) {
        panic!("{model}: {what}: {difference}");
    }
}

#[test]
fn heads_mean_and_rollout_equal_the_reference_in_every_family() {
    let mut talking = 0;
    for model in MODELS {
        let (loaded, goldens) = (open(model), goldens(model));
        for index in ATTENDED {
            let golden = &goldens[&format!("attentions.{index}")];
            let found = maps(&loaded, model, index, Views::Heads, None);
            let n = found.ids.len();
            assert_eq!(golden.dims(), [found.layers.len(), found.views.len(), n, n], "{model}");
            assert_equal(model, "heads", &found.values, golden);
            let mean = maps(&loaded, model, index, Views::Mean, None);
            assert_equal(model, "mean", &mean.values, &golden.mean(1).unwrap());
            let rollout = maps(&loaded, model, index, Views::Rollout, None);
            assert_equal(model, "rollout", &rollout.values, &goldens[&format!("rollout.{index}")]);
            if let Some(golden) = goldens.get(&format!("softmax.{index}")) {
                assert_eq!(found.mixing, Some(Mixing::After), "{model}");
                let before = maps(&loaded, model, index, Views::Heads, Some(Mixing::Before));
                assert_equal(model, "before mixing", &before.values, golden);
                talking += 1;
            }
        }
    }
    assert_eq!(talking, 3 * ATTENDED.len(), "three fixtures project heads after the softmax");
}

#[test]
fn rows_of_probabilities_sum_to_one() {
    for model in MODELS {
        let loaded = open(model);
        let mixing = loaded.encoders[0].spec().talking_heads.post_softmax.map(|_| Mixing::Before);
        let found = maps(&loaded, model, 5, Views::Everything, mixing);
        for row in found.values.chunks(found.ids.len()) {
            let sum: f32 = row.iter().sum();
            assert!((sum - 1.0).abs() < 1e-5, "{model}: a row sums to {sum}");
        }
    }
}

#[test]
fn keys_outside_a_sliding_window_have_no_weight() {
    let loaded = open("modernbert");
    let window = loaded.encoders[0].spec().mask.sliding_window.clone().expect("modernbert has a window");
    let found = maps(&loaded, "modernbert", 2, Views::Heads, None);
    let n = found.ids.len();
    let mut outside = 0;
    for (layer, heads) in found.values.chunks(found.views.len() * n * n).enumerate() {
        for (i, weight) in heads.iter().enumerate() {
            let (query, key) = (i / n % n, i % n);
            if window.layers[layer] && query.abs_diff(key) > window.radius {
                assert_eq!(*weight, 0.0, "layer {layer}, {query} → {key}");
                outside += 1;
            }
        }
    }
    assert!(outside > 0, "the text is longer than the window");
}

/// `sconce attend` with a fixture as its model.
fn run(model: &str, args: &[&str]) -> Output {
    sconce().arg("attend").arg("--model").arg(fixture(model)).args(args).output().expect("sconce starts")
}

fn succeed(output: &Output) {
    assert!(output.status.success(), "{}", stderr(output));
}

#[test]
fn titles_name_the_weights_that_were_used() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("a.svg");
    let config = folder.path().join("made-up.json");
    fs::copy(fixture("roberta").join("config.json"), &config).unwrap();
    let random = ["--random-weights", "7"];
    let with_config = [&["--config", config.to_str().unwrap()][..], &random].concat();
    for (args, expected) in [
        (&[][..], "roberta"),
        (&random, "roberta (random weights, seed 7)"),
        (&with_config, "made-up (random weights, seed 7)"),
    ] {
        succeed(&run("roberta", &[&["the lamp", "-o", svg.to_str().unwrap()], args].concat()));
        let svg = fs::read_to_string(&svg).unwrap();
        assert!(svg.contains(&format!(">{expected}</text>")), "{expected}: {}", &svg[..600]);
    }
    let json = folder.path().join("a.json");
    succeed(&run("roberta", &[&["the lamp", "-o", json.to_str().unwrap()], &with_config[..]].concat()));
    let values: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    assert_eq!(values["model"], config.to_str().unwrap());
}

#[test]
fn arrays_and_json_have_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let model = "bert-tiny";
    let (text, _) = golden_text(model, 2);
    for name in ["a.npy", "a.safetensors", "a.json"] {
        succeed(&run(model, &[&text, "-o", &path(name)]));
    }
    let golden = &goldens(model)["attentions.2"];
    let npy = Tensor::read_npy(path("a.npy")).unwrap();
    assert_eq!(npy.dims(), golden.dims());
    assert_equal(model, "npy", &flat(&npy), golden);

    let tensors = candle_core::safetensors::load(path("a.safetensors"), &Device::Cpu).unwrap();
    assert_eq!(tensors["attentions"].dims(), golden.dims());
    assert_eq!(flat(&tensors["attentions"]), flat(&npy));
    let bytes = fs::read(path("a.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    assert_eq!(header % 8, 0, "the tensor is aligned");
    let header: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let metadata = &header["__metadata__"];
    assert_eq!((&metadata["kind"], &metadata["layers"]), (&"heads".into(), &"[0,1]".into()));

    let json: Value = serde_json::from_slice(&fs::read(path("a.json")).unwrap()).unwrap();
    let tokens = json["tokens"].as_array().unwrap();
    assert_eq!((&tokens[0], &tokens[2], &tokens[13]), (&"[CLS]".into(), &"lamp".into(), &"[SEP]".into()));
    assert_eq!(json["special_tokens_mask"][0], 1);
    assert_eq!(metadata["tokens"], serde_json::to_string(tokens).unwrap());
    let rows = json["attentions"].as_array().unwrap().iter().flat_map(|layer| layer.as_array().unwrap());
    let rows = rows.flat_map(|head| head.as_array().unwrap()).flat_map(numbers);
    assert_eq!(rows.collect::<Vec<f32>>(), flat(&npy));
    let files: Vec<_> = fs::read_dir(folder.path()).unwrap().collect();
    assert_eq!(files.len(), 3, "nothing else is left: {files:?}");
}

#[test]
fn a_layer_and_a_head_are_chosen_by_their_index() {
    let golden = &goldens("talking-heads-both")["attentions.2"];
    let (text, _) = golden_text("talking-heads-both", 2);
    let values = |args: &[&str]| {
        let output = run("talking-heads-both", &[&[&*text, "--output-format", "json"], args].concat());
        succeed(&output);
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()
    };
    let chosen = values(&["--layer", "1", "--head", "2"]);
    assert_eq!((&chosen["layers"], &chosen["heads"]), (&vec![1].into(), &vec![2].into()));
    assert_eq!(chosen["mixing"], "after");
    let rows = chosen["attentions"][0][0].as_array().unwrap().iter().flat_map(numbers).collect::<Vec<f32>>();
    assert_equal("talking-heads-both", "layer 1, head 2", &rows, &golden.get(1).unwrap().get(2).unwrap());
    let before = values(&["--mixing", "before"]);
    assert_eq!(before["heads"].as_array().unwrap().len(), 5, "softmax heads");
    assert_eq!(values(&["--rollout"])["layers"], Value::from(vec![1]), "the rollout of the last layer");
    assert_eq!(values(&["--mean"])["kind"], "mean");
}

#[test]
fn pictures_and_the_page_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let text = "the lamp , the flame";
    for args in [vec![], vec!["--layer", "0", "--head", "1"]] {
        for name in ["a.svg", "a.png", "a.html", "a.txt"] {
            succeed(&run("bert-tiny", &[&[text, "-o", &path(name)], &args[..]].concat()));
        }
        let svg = fs::read_to_string(path("a.svg")).unwrap();
        assert!(svg.ends_with("</svg>\n") && svg.contains(">[CLS]<") && svg.contains(">lamp<"), "{svg}");
        assert!(svg.contains("layer 0, head 1</title>"));
        assert_eq!(svg.contains("layer 1, head 2</title>"), args.is_empty());
        assert_eq!(fs::read(path("a.png")).unwrap()[..8], *b"\x89PNG\r\n\x1a\n");
        let html = fs::read_to_string(path("a.html")).unwrap();
        assert_eq!(html.contains("\"mean\",\"rollout\"]"), args.is_empty());
        assert!(html.contains("[\"[CLS]\",true]") && html.ends_with("</html>\n"));
        assert!(fs::read_to_string(path("a.txt")).unwrap().contains("0 1 2 3 4 5 6"));
    }
}

/// The weights of the other tokens stay as they are, in every format.
#[test]
fn special_tokens_are_left_out() {
    let args = ["the lamp is on", "--output-format", "json"];
    let values = |args: &[&str]| {
        let output = run("bert-tiny", args);
        succeed(&output);
        serde_json::from_str::<Value>(&stdout(&output)).unwrap()
    };
    let (with, without) = (values(&args), values(&[&args[..], &["--without-special"]].concat()));
    assert_eq!(with["tokens"].as_array().unwrap().len(), 6);
    assert_eq!(without["tokens"], serde_json::json!(["the", "lamp", "is", "on"]));
    assert_eq!(without["ids"].as_array().unwrap()[..], with["ids"].as_array().unwrap()[1..5]);
    assert_eq!(without["special_tokens_mask"], serde_json::json!([0, 0, 0, 0]));
    assert_eq!((&with["without_special"], &without["without_special"]), (&Value::Null, &true.into()));
    for (layer, head, query) in [(0, 0, 0), (1, 2, 3)] {
        let row = |values: &Value, query: usize| numbers(&values["attentions"][layer][head][query]);
        assert_eq!(row(&without, query), row(&with, query + 1)[1..5]);
    }
    let picture = stdout(&run("bert-tiny", &["the lamp", "--without-special", "--numbers"]));
    assert!(
        picture.starts_with("bert-tiny (without special tokens), layer 1, mean\n      0    1\n0 "),
        "{picture}"
    );
    assert!(
        !picture.contains("[CLS]") && picture.ends_with(" lamp\n\nrows: queries, columns: keys\n"),
        "{picture}"
    );
}

#[test]
fn the_terminal_picture_has_no_colours_in_a_pipe() {
    let output = run("bert-tiny", &["the lamp is on"]);
    succeed(&output);
    let picture = stdout(&output);
    assert!(picture.starts_with("bert-tiny, layer 1, mean\n  0 1 2 3 4 5\n0 "), "{picture}");
    assert!(
        !picture.contains('\x1b') && picture.contains(" [CLS]\n") && picture.contains("keys;"),
        "{picture}"
    );
}

/// A model for another task has attention, too.
#[test]
fn models_without_pooling_are_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("masked-lm");
    copy_folder(&fixture("bert-masked-lm"), &model);
    fs::remove_file(model.join("modules.json")).unwrap();
    let output = sconce().args(["attend", "the lamp", "-m"]).arg(&model).output().unwrap();
    succeed(&output);
}

#[test]
fn wrong_usage_is_one_sentence() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("bert-tiny", &["a", "--layer", "2"], &["--layer 2", "2 layers", "0 to 1"]),
        ("bert-tiny", &["a", "--head", "3"], &["--head 3", "3 heads", "0 to 2"]),
        ("bert-tiny", &[""], &["TEXT is empty"]),
        ("bert-tiny", &["a", " \n"], &["PAIR is empty"]),
        ("bert-tiny", &[&"lamp ".repeat(30)], &["32 tokens", "limit 24", "--max-length 32"]),
        ("bert-tiny", &[&"lamp ".repeat(300)], &["302 tokens", "limit 24", "shorten the text"]),
        ("bert-tiny", &["a", "--mixing", "before"], &["--mixing before", "no talking heads"]),
        ("talking-heads-before", &["a", "--mixing", "before"], &["--mixing before", "before the softmax"]),
        ("bert-tiny", &["a", "-o", "a.jpg"], &["a.jpg", ".jpg", "svg, png, html"]),
        ("bert-tiny", &["a", "-o", "picture"], &["no extension", "--output-format"]),
        ("bert-tiny", &["a", "--prompt-name", "passage"], &["--prompt-name passage"]),
        ("bert-tiny", &["[SEP]", "--without-special"], &["--without-special", "special tokens only"]),
        ("bert-tiny", &["a", "--numbers", "-o", "a.npy"], &["--numbers", "npy", "text, svg and png"]),
        ("deberta-v2", &[&"lamp ".repeat(30), "--numbers"], &["32 tokens", "up to 24", "-o attention.svg"]),
        (
            "deberta-v2",
            &[&"lamp ".repeat(31), "--numbers", "-o", "a.svg"],
            &["33 tokens", "up to 32", "-o attention.json"],
        ),
        (
            "deberta-v2",
            &[&"lamp ".repeat(58), "--max-length", "90", "--output-format", "svg", "--layer", "9"],
            &["--layer 9"],
        ),
    ];
    for (model, args, parts) in cases {
        assert_fails(&run(model, args), 2, parts);
    }
    // The terminal shows short texts only.
    let long = "lamp ".repeat(70);
    assert_fails(&run("deberta-v2", &[&long, "--max-length", "90"]), 2, &["72 tokens", "up to 64", "-o"]);
}

#[test]
fn options_that_exclude_each_other_are_refused() {
    for pair in [
        ["--mean", "--rollout"],
        ["--head=0", "--mean"],
        ["--head=0", "--rollout"],
        ["--mixing=after", "--rollout"],
    ] {
        let output = run("talking-heads-both", &["a", pair[0], pair[1]]);
        assert_eq!(output.status.code(), Some(2), "{pair:?}");
        assert!(stderr(&output).contains("cannot be used with"), "{}", stderr(&output));
    }
}
