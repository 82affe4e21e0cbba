//! Errors in models, inputs, outputs and options: the message is one sentence that names the file, row or
//! option and the remedy. Nothing panics, and no incomplete output is left under its final name.

use crate::support::arrow;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use crate::support::{assert_fails, copy_folder, embed, fixture, rows, sconce, stderr, stdout};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use sconce::kernels::isa::Isa;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A copy of a model fixture that a test may change.
struct Model {
    folder: TempDir,
}

impl Model {
    fn copy_of(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_folder(&fixture(name), folder.path());
        Model { folder }
    }

    fn tiny() -> Self {
        Self::copy_of("bert-tiny")
    }

    fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// Sets a tokenizer class that uses the whole `tokenizer.json`, not only its vocabulary.
    fn use_whole_tokenizer_json(&self) {
        fs::write(self.path("tokenizer_config.json"), r#"{"tokenizer_class": "PreTrainedTokenizerFast"}"#)
            .unwrap();
    }

    fn run(&self, command: &str) -> Output {
        let mut sconce = sconce();
        sconce.arg(command).arg("--model").arg(self.folder.path());
        sconce.arg(if command == "embed" { "the lamp" } else { "--tensors" });
        sconce.output().unwrap()
    }

    fn embed(&self) -> Output {
        self.run("embed")
    }

    /// Changes `config.json`.
    fn edit_config(&self, edit: impl FnOnce(&mut serde_json::Map<String, Value>)) {
        let path = self.path("config.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(config.as_object_mut().unwrap());
        fs::write(path, config.to_string()).unwrap();
    }

    /// Changes the tensors of the checkpoint by name: data type, shape and bytes.
    fn edit_tensors(&self, edit: impl FnOnce(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) {
        let bytes = fs::read(self.path("model.safetensors")).unwrap();
        let mut tensors = SafeTensors::deserialize(&bytes)
            .unwrap()
            .tensors()
            .into_iter()
            .map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
            .collect();
        edit(&mut tensors);
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()))
            .collect();
        fs::write(self.path("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    }
}

const QUERY: &str = "encoder.layer.1.attention.self.query.weight";
const WORD_EMBEDDINGS: &str = "embeddings.word_embeddings.weight";

#[test]
fn a_model_that_does_not_exist() {
    let output = sconce().args(["embed", "-m", "./nowhere/at/all", "x"]).output().unwrap();
    assert_fails(&output, 1, &["./nowhere/at/all", "neither a directory nor a hub id"]);
    let output = sconce().args(["embed", "-m", "some-org/some-model", "x"]).output().unwrap();
    assert_fails(&output, 1, &["some-org/some-model", "not in the cache", "sconce download", "--model DIR"]);
    let empty = tempfile::tempdir().unwrap();
    let output = sconce().arg("embed").arg("-m").arg(empty.path()).arg("x").output().unwrap();
    assert_fails(&output, 1, &[&empty.path().display().to_string(), "config.json"]);
}

#[test]
fn a_missing_file_of_the_model() {
    for (file, parts) in [
        ("tokenizer.json", ["has no tokenizer.json", "--tokenizer FILE"]),
        ("model.safetensors", ["has no model.safetensors", "download the model again"]),
        ("1_Pooling/config.json", ["1_Pooling/config.json", "cannot read"]),
    ] {
        let model = Model::tiny();
        fs::remove_file(model.path(file)).unwrap();
        assert_fails(&model.embed(), 1, &parts);
    }
}

/// If a model has its weights only in another format, the remedy is not to download it again.
#[test]
fn weights_in_another_format_are_an_error_with_a_remedy_for_that_format() {
    for (file, remedy) in [
        ("tf_model.h5", "from_tf=True"),
        ("flax_model.msgpack", "from_flax=True"),
        ("adapter_model.safetensors", "merge_and_unload"),
        ("adapter_model.bin", "merge_and_unload"),
        ("onnx/model.onnx", "choose the model that this was exported from"),
        ("model_quantized.onnx", "choose the model that this was exported from"),
        ("model-Q4_K_M.gguf", "choose the model that this was converted from"),
        ("openvino/openvino_model.xml", "choose the model that this was exported from"),
    ] {
        let model = Model::tiny();
        fs::remove_file(model.path("model.safetensors")).unwrap();
        fs::create_dir_all(model.path(file).parent().unwrap()).unwrap();
        fs::write(model.path(file), "weights").unwrap();
        let output = model.embed();
        assert_fails(&output, 1, &["has its weights only as", file, remedy]);
        assert!(!stderr(&output).contains("again"), "{}", stderr(&output));
    }
}

/// 65,504 tensors are missing; comparing each of them with all others took longer than this.
#[test]
fn many_missing_tensors_are_told_quickly() {
    let model = Model::tiny();
    model.edit_config(|config| config["num_hidden_layers"] = json!(4096));
    let start = std::time::Instant::now();
    assert_fails(&model.embed(), 1, &["encoder.layer.2.", "(and 65503 more"]);
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

/// The JSON files of a model with what only Python's `json` reads, in fields without effect: the first object
/// of each gets them.
#[test]
fn json_files_of_a_model_are_read_as_python_reads_them() {
    // A key that is there twice has its last value, which is that of the fixture.
    let fields = r#""x_nan": NaN, "x_numbers": [Infinity, -Infinity, 1e999], "x_half": "\ud83d", "\udc00": {"b": NaN},"#;
    // Fields of modules have to be known.
    let of_transformer =
        r#""cache_dir": NaN, "backend": "\ud83d", "unpad_inputs": [Infinity, {"\udc00": 1e999}],"#;
    let files = [
        ("bert-tiny", "config.json", fields, r#""hidden_size": 1, "model_type": NaN,"#),
        ("bert-tiny", "modules.json", fields, r#""path": "nowhere","#),
        ("bert-tiny", "sentence_bert_config.json", of_transformer, r#""max_seq_length": 1,"#),
        ("bert-tiny", "tokenizer_config.json", fields, r#""model_max_length": Infinity,"#),
        ("bert-tiny", "config_sentence_transformers.json", fields, r#""prompts": null,"#),
        ("bert-tiny", "1_Pooling/config.json", "", r#""embedding_dimension": NaN,"#),
        ("adapters/peft-own", "adapter_config.json", fields, r#""lora_alpha": 9,"#),
    ];
    for (name, file, fields, more) in files {
        let model = Model::copy_of(name);
        let expected = stdout(&model.embed());
        let text = fs::read_to_string(model.path(file)).unwrap();
        fs::write(model.path(file), text.replacen('{', &format!("{{{fields}{more}"), 1)).unwrap();
        assert_eq!(stdout(&model.embed()), expected, "{file}");
        assert!(!expected.is_empty());
    }
}

/// Numbers and strings of that kind where one is needed.
#[test]
fn values_that_only_python_reads_are_named_where_they_count() {
    for (file, field, parts) in [
        ("config.json", r#""layer_norm_eps": NaN"#, ["\"layer_norm_eps\" is NaN, expected", "config.json"]),
        (
            "config.json",
            r#""hidden_size": -Infinity"#,
            ["\"hidden_size\" is -Infinity, expected", "config.json"],
        ),
        (
            "config.json",
            r#""hidden_act": "\ud83d""#,
            [r#""hidden_act" is "\\ud83d", expected a string"#, "config.json"],
        ),
        (
            "tokenizer_config.json",
            r#""model_max_length": "8""#,
            ["\"model_max_length\" is \"8\"", "a number of tokens"],
        ),
        (
            "tokenizer_config.json",
            r#""model_max_length": NaN"#,
            ["\"model_max_length\" is NaN", "a number of tokens"],
        ),
        (
            "tokenizer_config.json",
            r#""model_max_length": [8]"#,
            ["\"model_max_length\" is [8]", "a number of tokens"],
        ),
    ] {
        let model = Model::tiny();
        let text = fs::read_to_string(model.path(file)).unwrap();
        let text = text.trim_end().trim_end_matches('}').trim_end();
        fs::write(model.path(file), format!("{text}, {field}}}")).unwrap();
        assert_fails(&model.embed(), 1, &parts);
    }
    // Without a limit, as in transformers.
    let model = Model::tiny();
    fs::remove_file(model.path("sentence_bert_config.json")).unwrap();
    fs::write(model.path("tokenizer_config.json"), r#"{"model_max_length": Infinity}"#).unwrap();
    let output =
        sconce().arg("embed").arg("-m").arg(model.folder.path()).arg("a ".repeat(60)).output().unwrap();
    let limited = stdout(&output);
    fs::write(model.path("tokenizer_config.json"), "{}").unwrap();
    let output =
        sconce().arg("embed").arg("-m").arg(model.folder.path()).arg("a ".repeat(60)).output().unwrap();
    assert_eq!(limited, stdout(&output));
}

#[test]
fn a_truncated_safetensors_file() {
    let whole = fs::read(fixture("bert-tiny").join("model.safetensors")).unwrap();
    for keep in [0, 1, 7, 8, 9, 100, 4000, whole.len() / 2, whole.len() - 1] {
        let model = Model::tiny();
        fs::write(model.path("model.safetensors"), &whole[..keep]).unwrap();
        assert_fails(&model.embed(), 1, &["model.safetensors", "download the file again"]);
    }
}

#[test]
fn a_safetensors_file_with_a_corrupt_header() {
    let whole = fs::read(fixture("bert-tiny").join("model.safetensors")).unwrap();
    let with = |edit: &dyn Fn(&mut Vec<u8>)| {
        let model = Model::tiny();
        let mut bytes = whole.clone();
        edit(&mut bytes);
        fs::write(model.path("model.safetensors"), bytes).unwrap();
        model.embed()
    };
    // Header lengths over that of any file, over the limit, over that of this file, and one that overflows.
    for length in [u64::MAX, 1 << 40, 200_000_000, 90_000_000, u64::MAX - 7] {
        let output = with(&|bytes| bytes[..8].copy_from_slice(&length.to_le_bytes()));
        assert_fails(&output, 1, &["model.safetensors", "download the file again"]);
    }
    assert_fails(&with(&|bytes| bytes[8] = b'x'), 1, &["model.safetensors", "corrupt"]);
    assert_fails(&with(&|bytes| bytes[20] = 0xff), 1, &["model.safetensors", "corrupt"]);
    assert_fails(&with(&|bytes| bytes.push(0)), 1, &["model.safetensors", "more or less data"]);
    // A text in place of the file, as git-lfs or a proxy may leave it.
    let model = Model::tiny();
    fs::write(model.path("model.safetensors"), "version https://git-lfs.github.com/spec/v1\n").unwrap();
    assert_fails(&model.embed(), 1, &["model.safetensors", "not a safetensors file"]);
}

#[test]
fn offsets_that_overlap_or_do_not_fit_the_shape() {
    let header = |header: &str| {
        let model = Model::tiny();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.as_bytes());
        bytes.extend([0; 16]);
        fs::write(model.path("model.safetensors"), bytes).unwrap();
        model.embed()
    };
    for faulty in [
        r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}}"#,
        r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,16]}}"#,
        r#"{"a":{"dtype":"F33","shape":[4],"data_offsets":[0,16]}}"#,
        r#"[]"#,
    ] {
        assert_fails(&header(faulty), 1, &["model.safetensors", "corrupt"]);
    }
    let other = r#"{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    assert_fails(&header(other), 1, &[WORD_EMBEDDINGS, "not a checkpoint of this model type"]);
}

#[test]
fn tensors_that_are_missing_or_have_the_wrong_shape_or_type() {
    let model = Model::tiny();
    model.edit_tensors(|tensors| {
        tensors.remove(QUERY);
    });
    assert_fails(&model.embed(), 1, &[QUERY, "[36, 36]", "is missing"]);

    let model = Model::tiny();
    model.edit_tensors(|tensors| tensors.get_mut(QUERY).unwrap().1 = vec![18, 72]);
    assert_fails(&model.embed(), 1, &[QUERY, "[18, 72]", "[36, 36]"]);

    let model = Model::tiny();
    model.edit_tensors(|tensors| tensors.get_mut(WORD_EMBEDDINGS).unwrap().0 = Dtype::I32);
    assert_fails(&model.embed(), 1, &[WORD_EMBEDDINGS, "I32"]);

    // The config has more layers than the checkpoint: the error names one tensor and the number of others.
    let model = Model::tiny();
    model.edit_config(|config| drop(config.insert("num_hidden_layers".into(), json!(3))));
    assert_fails(&model.embed(), 1, &["encoder.layer.2.", "and 15 more", "sconce inspect"]);
    let report = model.run("inspect");
    assert_eq!(report.status.code(), Some(1));
    assert_eq!(stdout(&report).matches("  problem  tensor encoder.layer.2.").count(), 16);
}

#[test]
fn inspect_lists_unused_tensors() {
    let page = stdout(&Model::copy_of("bert-masked-lm").run("inspect"));
    assert!(page.contains("  unused   cls.predictions.bias"), "{page}");
    assert!(page.contains("  used     bert.embeddings.word_embeddings.weight [97, 64] F16"), "{page}");
    let page = stdout(&Model::tiny().run("inspect"));
    assert!(page.contains("  unused   pooler.dense.weight"), "{page}");
}

/// Splits the checkpoint of a copy into two shards, and returns their index.
fn shard(model: &Model) -> Value {
    let whole = fs::read(model.path("model.safetensors")).unwrap();
    fs::remove_file(model.path("model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&whole).unwrap().tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let mut map = serde_json::Map::new();
    for (i, part) in tensors.chunks(tensors.len() / 2 + 1).enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", i + 1);
        fs::write(model.path(&name), safetensors::serialize(part.iter().cloned(), None).unwrap()).unwrap();
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), json!(name))));
    }
    json!({"metadata": {}, "weight_map": map})
}

#[test]
fn weights_in_shards() {
    const INDEX: &str = "model.safetensors.index.json";
    let model = Model::tiny();
    let index = shard(&model);
    let with = |index: &Value| {
        fs::write(model.path(INDEX), index.to_string()).unwrap();
        model.embed()
    };
    let expected = rows(&embed("bert-tiny", ["the lamp"]));
    assert_eq!(rows(&with(&index)), expected);

    let mut wrong = index.clone();
    wrong["weight_map"]["no.such.tensor"] = json!("model-00001-of-00002.safetensors");
    assert_fails(
        &with(&wrong),
        1,
        &[INDEX, "no.such.tensor", "model-00001-of-00002", "download the model again"],
    );
    let mut wrong = index.clone();
    wrong["weight_map"][WORD_EMBEDDINGS] = json!("../model.safetensors");
    assert_fails(&with(&wrong), 1, &[INDEX, "weight_map"]);
    assert_fails(&with(&json!({})), 1, &[INDEX, "weight_map"]);
    fs::remove_file(model.path("model-00002-of-00002.safetensors")).unwrap();
    assert_fails(&with(&index), 1, &[INDEX, "model-00002-of-00002.safetensors", "does not exist"]);
}

/// The names of TensorFlow, in the first BERT checkpoints.
#[test]
fn layer_norms_may_be_named_gamma_and_beta() {
    let model = Model::tiny();
    model.edit_tensors(|tensors| {
        for (name, tensor) in std::mem::take(tensors) {
            let name = name
                .replace("LayerNorm.weight", "LayerNorm.gamma")
                .replace("LayerNorm.bias", "LayerNorm.beta");
            tensors.insert(name, tensor);
        }
    });
    assert_eq!(rows(&model.embed()), rows(&embed("bert-tiny", ["the lamp"])));
}

#[test]
fn weights_that_are_not_finite_are_a_warning_that_names_the_tensor() {
    for (tensor, value) in [
        (QUERY, f32::NAN),
        (WORD_EMBEDDINGS, f32::INFINITY),
        ("encoder.layer.0.output.LayerNorm.bias", f32::NEG_INFINITY),
    ] {
        let model = Model::tiny();
        model.edit_tensors(|tensors| {
            tensors.get_mut(tensor).unwrap().2[..4].copy_from_slice(&value.to_le_bytes())
        });
        for command in ["embed", "inspect"] {
            let output = model.run(command);
            let message = stderr(&output);
            assert!(message.contains("warning") && message.contains(tensor), "{message}");
            let is_in_vectors = command == "embed" && tensor != WORD_EMBEDDINGS;
            assert_eq!(output.status.code(), Some(if is_in_vectors { 3 } else { 0 }), "{message}");
            if is_in_vectors {
                let row: Value = serde_json::from_slice(&output.stdout).unwrap();
                let row = &row["embedding"];
                assert!(row.as_array().unwrap().iter().all(Value::is_null), "NaN is written as null");
            }
        }
    }
}

/// A format and data type that cannot represent NaN get no row for such a vector.
#[test]
fn vectors_that_are_not_finite_are_listed_in_the_ledger() {
    let model = Model::tiny();
    model.edit_tensors(|tensors| {
        tensors.get_mut(QUERY).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes())
    });
    let folder = tempfile::tempdir().unwrap();
    for (name, dtype, shown) in [
        ("out.npy", "f32", true),
        ("out.jsonl", "f16", true),
        ("out.csv", "int8", true),
        ("out.npy", "int8", false),
        ("out.parquet", "binary", false),
    ] {
        let path = folder.path().join(name);
        let run = |args: &[&str]| {
            let mut command = sconce();
            command.arg("embed").arg("-m").arg(model.folder.path()).args([
                "a lamp",
                "--quiet",
                "--dimensions",
                "32",
            ]);
            command
                .args(["--output-dtype", dtype, "--normalize", "-o"])
                .arg(&path)
                .args(args)
                .output()
                .unwrap()
        };
        if !shown {
            let output = run(&[]);
            assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
            assert!(stderr(&output).contains("argument 1 has a vector with NaN"), "{}", stderr(&output));
        }
        let output = run(&["--on-error", "skip"]);
        assert_eq!(output.status.code(), Some(3), "{name} {dtype}: {}", stderr(&output));
        let ledger = fs::read_to_string(folder.path().join(format!("{name}.ledger.jsonl"))).unwrap();
        let entry: Value = serde_json::from_str(ledger.trim()).unwrap();
        assert_eq!(entry["event"], if shown { "not_finite" } else { "failed" }, "{name} {dtype}");
        assert!(entry["reason"].as_str().unwrap().contains("NaN"), "{ledger}");
    }
}

/// Weights are read once for each device.
#[test]
fn values_that_are_not_finite_are_counted_once_for_all_devices() {
    use sconce::checkpoint::Checkpoint;
    use sconce::nn::WeightSource;
    let model = Model::tiny();
    model.edit_tensors(|tensors| {
        tensors.get_mut(QUERY).unwrap().2[..4].copy_from_slice(&f32::NAN.to_le_bytes())
    });
    let checkpoint = Checkpoint::open(&model.path("model.safetensors")).unwrap();
    let bert = sconce::model::families::FAMILIES.iter().find(|family| family.model_types.contains(&"bert"));
    let mut reader = checkpoint.reader(bert.unwrap().names, 3).unwrap();
    for _ in 0..2 {
        reader.set_backend(Default::default());
        reader.matrix("layers.1.0.attention.query.weight", 36, 36).unwrap();
    }
    assert_eq!(reader.into_report().not_finite, [(QUERY.to_owned(), 1)]);
}

#[test]
fn a_config_with_a_missing_or_absurd_field() {
    let model = Model::tiny();
    model.edit_config(|config| drop(config.remove("model_type")));
    assert_fails(&model.embed(), 1, &["config.json", "model_type", "required"]);
    for field in ["vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size"] {
        let model = Model::tiny();
        model.edit_config(|config| {
            config.insert(field.into(), Value::Null);
        });
        assert_fails(&model.embed(), 1, &["config.json", field, "required"]);
    }
    for (field, value, part) in [
        ("hidden_size", json!(0), "\"hidden_size\" is 0"),
        ("hidden_size", json!(-36), "\"hidden_size\" is -36"),
        ("hidden_size", json!("36"), "\"hidden_size\" is \"36\""),
        ("hidden_size", json!(36.5), "\"hidden_size\" is 36.5"),
        ("hidden_size", json!(1e30), "\"hidden_size\" is 1e+30"),
        ("hidden_size", json!(35), "\"hidden_size\" is 35, expected a multiple"),
        ("num_attention_heads", json!(5), "a multiple of \"num_attention_heads\", which is 5"),
        ("num_attention_heads", json!(1_000_000_000_000_u64), "\"num_attention_heads\" is 1000000000000"),
        ("num_hidden_layers", json!(1_000_000), "\"num_hidden_layers\" is 1000000"),
        ("layer_norm_eps", json!(-1e-12), "\"layer_norm_eps\" is -1e-12"),
        ("layer_norm_eps", json!("small"), "\"layer_norm_eps\" is \"small\""),
        ("hidden_act", json!("gelou"), "\"hidden_act\" is \"gelou\""),
        ("hidden_act", json!(3), "\"hidden_act\" is 3"),
        ("model_type", json!("gpt2"), "model type \"gpt2\" is not supported"),
        ("quantization_config", json!({"quant_method": "gptq"}), "quantized weights are not supported"),
        ("model_type", json!(7), "\"model_type\" is 7"),
        ("position_embedding_type", json!("relative_key"), "\"position_embedding_type\" is \"relative_key\""),
        ("is_decoder", json!(true), "\"is_decoder\" is true"),
    ] {
        let model = Model::tiny();
        model.edit_config(|config| drop(config.insert(field.into(), value)));
        assert_fails(&model.embed(), 1, &["config.json", part]);
    }
    for text in ["", "{", "[]", "\u{feff}{}"] {
        let model = Model::tiny();
        fs::write(model.path("config.json"), text).unwrap();
        assert_fails(&model.embed(), 1, &["config.json"]);
    }
}

/// The error for a misspelt model type has the supported one, the error for another kind of model says which
/// kind it is.
#[test]
fn a_model_type_that_is_not_supported() {
    let embed = |model_type: &str| {
        let model = Model::tiny();
        model.edit_config(|config| drop(config.insert("model_type".into(), json!(model_type))));
        model.embed()
    };
    for (written, meant) in
        [("modern_bert", "modernbert"), ("robreta", "roberta"), ("deberta_v2", "deberta-v2")]
    {
        let meant = format!("did you mean {meant}?");
        assert_fails(&embed(written), 1, &["config.json", &format!("{written:?}"), &meant]);
    }
    for (model_type, kind) in [
        ("qwen3_moe", "a decoder language model"),
        ("cohere2", "a decoder language model"),
        ("bart", "an encoder-decoder"),
        ("nystromformer", "an encoder of another architecture"),
        ("altclip", "a model of images, or of images and texts"),
        ("whisper", "a model of sound"),
        ("abacus", "not supported; supported encoders: bert"),
    ] {
        let output = embed(model_type);
        assert_fails(&output, 1, &["config.json", &format!("{model_type:?} is not supported"), kind]);
        assert!(!stderr(&output).contains("did you mean"), "{}", stderr(&output));
    }
}

/// The length of this function is that of its table: a model, a changed field of its config, and parts of the
/// error.
#[test]
fn config_fields_that_are_invalid_or_contradict_each_other() {
    let cases: &[(&str, &str, Value, &[&str])] = &[
        ("modernbert", "layer_types", json!(["full_attention"]), &["\"layer_types\"", "a list of 1", "4"]),
        (
            "modernbert",
            "layer_types",
            json!(["a", "b", "c", "d"]),
            &["\"layer_types\"", "\"a\"", "sliding_attention"],
        ),
        ("modernbert", "layer_types", json!("full_attention"), &["\"layer_types\"", "a list of strings"]),
        ("modernbert", "local_attention", json!(-3), &["\"local_attention\" is -3"]),
        ("modernbert", "hidden_size", json!(25), &["\"hidden_size\" is 25", "\"num_attention_heads\""]),
        ("eurobert", "num_key_value_heads", json!(4), &["\"num_key_value_heads\" is 4", "a divisor"]),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "mrope"}),
            &["\"rope_parameters.rope_type\"", "longrope"],
        ),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "longrope", "long_factor": [1.0, 2.0]}),
            &["\"rope_parameters.short_factor\" is null", "a list of positive numbers"],
        ),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "longrope", "long_factor": [1.0], "short_factor": [1.0]}),
            &["short_factor", "a list of 1", "one factor for each of"],
        ),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "linear", "factor": 2, "partial_rotary_factor": 0.5}),
            &["\"rope_parameters.partial_rotary_factor\" is 0.5", "frequencies are scaled"],
        ),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "dynamic"}),
            &["no field \"rope_parameters.factor\""],
        ),
        (
            "nomic-bert-first-code",
            "rotary_emb_fraction",
            json!(0.3),
            &["\"rotary_emb_fraction\" is 0.3", "head size 8"],
        ),
        ("gte", "rotary_emb_fraction", json!(0.5), &["\"rotary_emb_fraction\" is 0.5", "not supported"]),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "linear"}),
            &["no field \"rope_parameters.factor\""],
        ),
        (
            "eurobert",
            "rope_parameters",
            json!({"rope_type": "linear", "factor": 0}),
            &["\"rope_parameters.factor\" is 0"],
        ),
        ("eurobert", "rope_parameters", json!([1]), &["\"rope_parameters\"", "an object"]),
        ("nomic-bert", "head_dim", json!(7), &["rotary embeddings need an even head size, found 7"]),
        (
            "nomic-bert-first-code",
            "activation_function",
            json!("relu"),
            &["\"activation_function\"", "swiglu"],
        ),
        ("nomic-bert-first-code", "prenorm", json!(true), &["\"prenorm\" is true"]),
        ("nomic-bert-first-code", "moe_every_n_layers", json!(2), &["\"moe_every_n_layers\" is 2"]),
        ("nomic-bert-moe", "moe_top_k", json!(5), &["\"moe_top_k\" is 5", "from 1 to 4"]),
        ("nomic-bert-moe", "num_experts", json!(null), &["no field \"num_experts\""]),
        ("nomic-bert-moe", "expert_choice_router", json!(true), &["\"expert_choice_router\" is true"]),
        ("nomic-bert-moe", "num_shared_experts", json!(1), &["\"num_shared_experts\" is 1"]),
        ("new", "logn_attention_scale", json!(true), &["\"logn_attention_scale\" is true"]),
        ("new", "layer_norm_type", json!("batch_norm"), &["\"layer_norm_type\"", "rms_norm"]),
        ("ibert", "quant_mode", json!(true), &["\"quant_mode\" is true", "before it was quantized"]),
        (
            "longformer",
            "attention_window",
            json!([6, 8, 6]),
            &["\"attention_window\" is [6,8,6]", "one width"],
        ),
        ("longformer", "attention_window", json!(7), &["\"attention_window\" is 7", "an even number"]),
        (
            "big-bird",
            "attention_type",
            json!("sparse"),
            &["\"attention_type\" is \"sparse\"", "original_full"],
        ),
        ("big-bird", "rescale_embeddings", json!(true), &["\"rescale_embeddings\" is true"]),
        ("deberta-v2", "pos_att_type", json!(["p2p"]), &["\"pos_att_type\"", "c2p"]),
        ("deberta-v2", "relative_attention", json!(false), &["\"pos_att_type\"", "\"relative_attention\""]),
        ("albert", "embedding_size", json!(null), &["no field \"embedding_size\""]),
        ("deberta-v2", "position_buckets", json!(1), &["\"position_buckets\" is 1"]),
        ("deberta-v2-p2c", "max_relative_positions", json!(4), &["\"position_buckets\" is 12"]),
        (
            "new",
            "rope_scaling",
            json!({"type": "ntk", "factor": 2, "mixed_b": 0.9}),
            &["\"rope_scaling.mixed_b\""],
        ),
        ("deberta-v2", "conv_kernel_size", json!(4), &["\"conv_kernel_size\" is 4"]),
        (
            "roberta",
            "position_embedding_type",
            json!("relative_key"),
            &["\"position_embedding_type\"", "absolute"],
        ),
        ("roberta", "pad_token_id", json!(60), &["\"max_position_embeddings\"", "61"]),
        ("talking-heads-both", "talking_heads", json!({}), &["\"talking_heads\"", "before_softmax"]),
        (
            "talking-heads-both",
            "talking_heads",
            json!({"before_softmax": 0}),
            &["\"talking_heads.before_softmax\" is 0"],
        ),
        (
            "talking-heads-both",
            "talking_heads",
            json!({"after_softmax": 7}),
            &["\"hidden_size\"", "\"talking_heads\""],
        ),
        ("enlarged-keys", "attention_key_size", json!("64"), &["\"attention_key_size\""]),
        ("pre-norm", "norm_placement", json!("sandwich"), &["\"norm_placement\"", "pre+final"]),
        ("rms-norm", "norm_type", json!("group_norm"), &["\"norm_type\"", "layer_norm"]),
        (
            "gemma3",
            "is_causal",
            json!(true),
            &["\"is_causal\" is true, expected false", "\"use_bidirectional_attention\""],
        ),
        ("gemma3", "sliding_window", json!(null), &["\"sliding_window\" is null"]),
        ("llama-bidirectional", "is_causal", json!(true), &["\"is_causal\" is true"]),
        ("mistral", "sliding_window", json!(0), &["\"sliding_window\" is 0"]),
        (
            "qwen2-bidirectional",
            "use_sliding_window",
            json!(false),
            &["\"layer_types\"", "\"use_sliding_window\""],
        ),
        ("qwen3", "head_dim", json!(9), &["rotary embeddings need an even head size, found 9"]),
        ("alibi", "position_embedding_type", json!("xpos"), &["\"position_embedding_type\"", "alibi"]),
        ("bert-tiny", "feed_forward_type", json!("moe"), &["\"feed_forward_type\"", "geglu"]),
        ("bert-tiny", "is_causal", json!("yes"), &["\"is_causal\"", "true or false"]),
        ("bert-tiny", "hidden_act", json!("gelu_newer"), &["\"hidden_act\"", "gelu_new"]),
    ];
    for (fixture, key, value, parts) in cases {
        let model = Model::copy_of(fixture);
        model.edit_config(|config| drop(config.insert((*key).into(), value.clone())));
        let mut all = vec!["config.json"];
        all.extend(*parts);
        assert_fails(&model.embed(), 1, &all);
    }
}

#[test]
fn a_checkpoint_may_mix_the_old_and_new_names_of_layer_norms() {
    let model = Model::tiny();
    let expected = stdout(&model.embed());
    model.edit_tensors(|tensors| {
        for (now, then) in [("weight", "gamma"), ("bias", "beta")] {
            let name = "encoder.layer.1.output.LayerNorm";
            let norm = tensors.remove(&format!("{name}.{now}")).unwrap();
            tensors.insert(format!("{name}.{then}"), norm);
        }
    });
    assert_eq!(stdout(&model.embed()), expected);
}

#[test]
fn a_git_lfs_pointer_in_place_of_the_weights() {
    let model = Model::tiny();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    fs::write(model.path("model.safetensors"), pointer).unwrap();
    assert_fails(&model.embed(), 1, &["model.safetensors", "git lfs pull"]);
}

#[test]
fn a_git_lfs_pointer_in_place_of_a_small_file() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    for name in ["config.json", "tokenizer.json", "vocab.txt"] {
        let model = Model::tiny();
        if name == "vocab.txt" {
            fs::remove_file(model.path("tokenizer.json")).unwrap();
        }
        fs::write(model.path(name), pointer).unwrap();
        let expected =
            format!("{name} is a Git LFS pointer, not the file itself; run git lfs pull in its directory");
        assert_fails(&model.embed(), 1, &[&expected]);
    }
}

/// The error comes before any memory is allocated.
#[test]
fn implausible_sizes_in_a_config() {
    type Fields<'a> = &'a [(&'a str, Value)];
    let cases: &[(&str, Fields, &[&str])] = &[
        (
            "talking-heads-both",
            &[("talking_heads", json!({"before_softmax": 10_000_000}))],
            &["\"talking_heads.before_softmax\""],
        ),
        (
            "alibi",
            &[("num_attention_heads", json!(1 << 20)), ("hidden_size", json!(1 << 20))],
            &["\"num_attention_heads\""],
        ),
        (
            "albert-groups",
            &[
                ("num_hidden_layers", json!(4096)),
                ("num_hidden_groups", json!(4096)),
                ("inner_group_num", json!(4096)),
            ],
            &["\"inner_group_num\""],
        ),
        ("rotary", &[("rope_theta", json!(1e-300))], &["\"rope_theta\""]),
        ("bert-tiny", &[("layer_norm_eps", json!(1e-60))], &["\"layer_norm_eps\""]),
        ("rotary", &[("partial_rotary_factor", json!(0.5))], &["\"partial_rotary_factor\" is 0.5"]),
        ("gte", &[("is_causal", json!(true))], &["\"is_causal\" is true"]),
        (
            "jina-embeddings-v3",
            &[("position_embedding_type", json!("alibi"))],
            &["\"position_embedding_type\""],
        ),
    ];
    for (fixture, fields, parts) in cases {
        let model = Model::copy_of(fixture);
        model.edit_config(|config| {
            config.extend(fields.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
        });
        assert_fails(&model.embed(), 1, parts);
    }
    let config = Model::tiny();
    config.edit_config(|config| {
        config.extend(
            [("hidden_size", 3), ("intermediate_size", 1 << 24), ("num_hidden_layers", 60)]
                .map(|(key, value)| (key.to_owned(), json!(value))),
        );
    });
    let mut command = sconce();
    command.args(["embed", "--random-weights", "1", "--config"]).arg(config.path("config.json"));
    let output = command.arg("--tokenizer").arg(config.path("tokenizer.json")).arg("a").output().unwrap();
    assert_fails(&output, 1, &["config.json", "parameters", "check its sizes"]);
}

#[test]
fn a_config_that_leaves_tensors_of_the_checkpoint_unused_is_a_warning() {
    let cases: &[(&str, &str, Value, &str)] = &[
        ("bert-tiny", "attention_bias", json!(false), "layer.0.attention.output.dense.bias and 7 more"),
        ("bert-relu", "position_embedding_type", json!("none"), "embeddings.position_embeddings.weight of"),
        (
            "roberta",
            "num_hidden_layers",
            json!(1),
            "encoder.layer.1.attention.output.LayerNorm.bias and 15 more",
        ),
        ("deberta-v2", "norm_rel_ebd", json!("none"), "deberta.encoder.LayerNorm.bias and 1 more"),
    ];
    for (fixture, key, value, part) in cases {
        let model = Model::copy_of(fixture);
        assert_eq!(stderr(&model.embed()), "", "{fixture}");
        model.edit_config(|config| drop(config.insert((*key).into(), value.clone())));
        let output = model.embed();
        assert!(output.status.success());
        let warning = stderr(&output);
        assert!(warning.contains("sconce: warning: ") && warning.contains(part), "{warning}");
    }
}

/// Ministral 3 has no sparse attention, as BigBird has; neither is read beyond its limit.
#[test]
fn the_limit_of_attention_is_told() {
    for (model, limit) in [("ministral3", 40), ("big-bird", 28)] {
        let found = embed(model, ["--max-length", &(limit + 1).to_string(), "a"]);
        let limit = format!("--max-length {} exceeds {limit}", limit + 1);
        assert_fails(&found, 2, &[&limit, "tokens, up to which the model's attention is supported"]);
    }
}

/// Texts are as long as the positions, of which those past the trained length are scaled.
#[test]
fn the_limit_of_nomic_bert_is_not_its_trained_length() {
    let model = Model::copy_of("nomic-bert-first-code");
    model.edit_config(|config| {
        config.extend(
            [("max_trained_positions", 16), ("rotary_scaling_factor", 2)]
                .map(|(key, value)| (key.to_owned(), json!(value))),
        );
    });
    let report = stdout(&model.run("inspect"));
    assert!(report.contains("  max length        40 tokens"), "{report}");
    assert!(report.contains("dynamic NTK with factor 2 past 16 tokens"), "{report}");
}

#[test]
fn a_fused_tensor_that_is_missing_or_has_the_wrong_shape_is_named_once() {
    let model = Model::copy_of("modernbert");
    let name = "model.layers.1.attn.Wqkv.weight";
    model.edit_tensors(|tensors| drop(tensors.remove(name).unwrap()));
    assert_fails(&model.embed(), 1, &[name, "[72, 24]", "missing"]);
    let report = stdout(&model.run("inspect"));
    assert_eq!(report.matches(name).count(), 1, "{report}");

    let model = Model::copy_of("modernbert");
    model.edit_tensors(|tensors| {
        let (_, shape, bytes) = tensors.get_mut(name).unwrap();
        shape[0] = 48;
        bytes.truncate(48 * 24 * 4);
    });
    assert_fails(&model.embed(), 1, &[name, "[48, 24]", "[72, 24]"]);
}

#[test]
fn malformed_files_of_sentence_transformers() {
    for (file, text, part) in [
        ("modules.json", "{", "not valid JSON"),
        ("modules.json", "{}", "list of modules"),
        ("modules.json", r#"[{"idx":0}]"#, "no \"type\""),
        ("modules.json", r#"[{"type":"a.b.Dense","path":"2_Dense"}]"#, "Dense"),
        ("1_Pooling/config.json", r#"{"pooling_mode":"median"}"#, "median"),
        ("1_Pooling/config.json", r#"{"pooling_mode":["cls","average"]}"#, "average"),
        ("1_Pooling/config.json", r#"{"pooling_mode":[]}"#, "no pooling mode"),
        ("1_Pooling/config.json", r#"{}"#, "no pooling mode"),
        ("sentence_bert_config.json", r#"{"max_seq_length":-1}"#, "max_seq_length"),
    ] {
        let model = Model::tiny();
        fs::write(model.path(file), text).unwrap();
        assert_fails(&model.embed(), 1, &[file, part]);
    }
}

#[test]
fn a_malformed_tokenizer_json() {
    for text in ["", "{", "{}", "[1, 2]", r#"{"version":"1.0","model":{"type":"Nothing"}}"#] {
        let model = Model::tiny();
        fs::write(model.path("tokenizer.json"), text).unwrap();
        let output = model.embed();
        assert_fails(&output, 1, &["cannot parse", "tokenizer.json as a tokenizer", "download it again"]);
        assert!(!stderr(&output).contains("not found"));
    }
}

/// A template with an undefined special token, and a malformed character map.
#[test]
fn a_tokenizer_json_on_which_the_tokenizers_library_panics() {
    let edits: [fn(&mut Value); 3] = [
        |tokenizer| tokenizer["post_processor"]["special_tokens"] = json!({}),
        |tokenizer| tokenizer["post_processor"]["pair"][0]["SpecialToken"]["id"] = json!("[NONE]"),
        |tokenizer| tokenizer["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
    ];
    for edit in edits {
        let model = Model::tiny();
        model.use_whole_tokenizer_json();
        let path = model.path("tokenizer.json");
        let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut tokenizer);
        fs::write(&path, tokenizer.to_string()).unwrap();
        for command in ["embed", "inspect"] {
            assert_fails(&model.run(command), 1, &["cannot parse", "tokenizer.json as a tokenizer"]);
        }
    }
}

/// Without special tokens an empty text has no tokens to pool.
#[test]
fn an_empty_text_without_special_tokens_is_skipped() {
    let model = Model::tiny();
    model.use_whole_tokenizer_json();
    let path = model.path("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"] = Value::Null;
    fs::write(&path, tokenizer.to_string()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.jsonl");
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(model.folder.path()).args(["a", "", "the lamp", "-o"]).arg(&target);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let tokens = |line: &str| serde_json::from_str::<Value>(line).unwrap()["tokens"].clone();
    let written = fs::read_to_string(&target).unwrap();
    assert_eq!(written.lines().map(tokens).collect::<Vec<_>>(), [1, 2]);
    let ledger = fs::read_to_string(folder.path().join("out.jsonl.ledger.jsonl")).unwrap();
    assert!(ledger.contains("\"skipped\"") && ledger.contains("has no tokens"), "{ledger}");
}

#[test]
fn a_token_type_id_that_the_model_has_no_embedding_for() {
    let model = Model::tiny();
    model.use_whole_tokenizer_json();
    let path = model.path("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    tokenizer["post_processor"]["single"][0]["SpecialToken"]["type_id"] = json!(5);
    fs::write(&path, tokenizer.to_string()).unwrap();
    assert_fails(
        &model.embed(),
        1,
        &["argument 1", "token type 5", "only 2 token types", "use the model's own tokenizer"],
    );
}

#[test]
fn a_token_id_that_the_model_has_no_embedding_for() {
    let model = Model::tiny();
    model.edit_config(|config| drop(config.insert("vocab_size".into(), json!(60))));
    model.edit_tensors(|tensors| {
        let (_, shape, data) = tensors.get_mut(WORD_EMBEDDINGS).unwrap();
        shape[0] = 60;
        data.truncate(60 * 36 * 4);
    });
    let output = model.embed();
    assert_fails(&output, 1, &["argument 1", "\"the\"", "60", "use the model's own tokenizer"]);
}

fn embed_file(bytes: &[u8], args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.txt");
    fs::write(&path, bytes).unwrap();
    let mut all = vec!["-i", path.to_str().unwrap()];
    all.extend(args);
    embed("bert-tiny", all)
}

#[test]
fn invalid_utf8_is_an_error_that_names_the_line() {
    let output = embed_file(b"the lamp\nthe \xff lamp\na\n", &[]);
    assert_fails(&output, 1, &["texts.txt line 2", "not valid UTF-8", "byte 5", "iconv"]);
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.npy");
    let output = embed_file(b"the lamp\n\xc3\n", &["-o", target.to_str().unwrap()]);
    assert_fails(&output, 1, &["line 2"]);
    assert!(!target.exists(), "no file has the final name");
}

#[test]
fn an_empty_line_is_a_text_of_special_tokens_only() {
    let found = rows(&embed_file(b"a\n\nb\n", &[]));
    assert_eq!(found.len(), 3);
    assert_eq!(found[1]["tokens"], 2);
    assert_eq!(found[1]["embedding"].as_array().unwrap().len(), 36);
}

#[test]
fn lines_may_end_in_any_way_and_begin_with_a_byte_order_mark() {
    let tokens = |bytes: &[u8]| -> Vec<u64> {
        rows(&embed_file(bytes, &[])).iter().map(|row| row["tokens"].as_u64().unwrap()).collect()
    };
    assert_eq!(tokens(b"the lamp"), [4]);
    assert_eq!(tokens(b"the lamp\n"), [4]);
    assert_eq!(tokens(b"the lamp\r\n\r\nlamp\r\n"), [4, 2, 3]);
    assert_eq!(tokens(b"\xef\xbb\xbfthe lamp\n"), [4]);
    assert_eq!(tokens(b"\n\n"), [2, 2]);
    assert_eq!(tokens(b""), [0; 0]);
}

#[test]
fn an_empty_file_gives_an_empty_result() {
    for (name, expected) in [("out.jsonl", 0), ("out.csv", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join(name);
        let output = embed_file(b"", &["-o", target.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(fs::read_to_string(&target).unwrap().lines().count(), expected);
    }
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("out.npy");
    assert!(embed_file(b"", &["-o", target.to_str().unwrap()]).status.success());
    assert!(String::from_utf8_lossy(&fs::read(&target).unwrap()).contains("'shape': (0, 36)"));
}

#[test]
fn an_input_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    assert_fails(&embed("bert-tiny", ["-i", "/nowhere/texts.txt"]), 1, &["--input /nowhere/texts.txt"]);
    assert_fails(&embed("bert-tiny", ["-i", folder]), 2, &[folder, "directory without files"]);
    assert_fails(&embed("bert-tiny", ["-i", "texts.json"]), 2, &["texts.json", "--input-format"]);
    assert_fails(&embed("bert-tiny", ["-i", "-", "-"]), 2, &["standard input twice"]);
}

#[test]
fn an_output_that_cannot_be_written() {
    let output = embed("bert-tiny", ["-o", "/dev/null/below/out.npy", "a"]);
    assert_fails(&output, 1, &["/dev/null/below/out.npy", "/dev/null/below cannot be made", "--output"]);
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    assert_fails(&embed("bert-tiny", ["--output-format", "jsonl", "-o", folder, "a"]), 1, &[folder]);
    assert_fails(&embed("bert-tiny", ["-o", "out.parket", "a"]), 2, &["out.parket", "--output-format"]);
    for format in ["csv", "npy"] {
        let output = embed("bert-tiny", ["--output-format", format, "--pooling", "none", "a"]);
        assert_fails(&output, 2, &[format, "--pooling none", "jsonl"]);
    }
}

#[test]
fn a_full_disk() {
    for format in ["jsonl", "csv", "npy", "safetensors", "arrow", "parquet"] {
        let output = embed("bert-tiny", ["--output-format", format, "-o", "/dev/full", "a"]);
        assert_fails(&output, 1, &["/dev/full", "disk is full"]);
        assert!(!fs::metadata("/dev/full").unwrap().is_file(), "the device is still a device");

        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).args(["--output-format", format, "a"]);
        command.stdout(Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap()));
        let output = command.stderr(Stdio::piped()).output().unwrap();
        assert_fails(&output, 1, &["standard output", "disk is full"]);
    }
}

#[test]
fn a_full_standard_output_is_an_error_and_a_full_standard_error_is_not() {
    let full = || Stdio::from(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let tiny = fixture("bert-tiny").display().to_string();
    for args in [&["inspect", "-m", &tiny][..], &["completions", "bash"]] {
        let output = sconce().args(args).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        assert_fails(&output, 1, &["standard output", "disk is full"]);
    }
    let output = sconce().args(["embed", "-m", "./nowhere/at/all", "a"]).stderr(full()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let model = Model::tiny();
    fs::remove_file(model.path("modules.json")).unwrap();
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(model.folder.path()).arg("a");
    let output = command.stdout(Stdio::piped()).stderr(full()).output().unwrap();
    assert_eq!(rows(&output).len(), 1);
}

#[test]
fn a_line_over_the_limit() {
    let output = embed_file(&vec![b'a'; (16 << 20) + 1], &[]);
    assert_fails(&output, 1, &["texts.txt line 1", "16 MiB", "split the text into several lines"]);
}

#[test]
fn an_output_that_is_also_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.jsonl");
    fs::write(&path, "a\n").unwrap();
    let path = path.to_str().unwrap();
    let output = embed("bert-tiny", ["-i", path, "--input-format", "lines", "-o", path]);
    assert_fails(&output, 2, &[path, "is also the input"]);
    assert_eq!(fs::read_to_string(path).unwrap(), "a\n");
    let new = format!("{}/", folder.path().join("new").display());
    let output = embed("bert-tiny", ["--output-format", "jsonl", "-o", &new, "a"]);
    assert_fails(&output, 1, &[&new, "names a directory"]);
}

#[test]
fn a_closed_output_pipe_is_not_an_error() {
    let text = "the lamp is on\n".repeat(3000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.txt");
    fs::write(&path, text).unwrap();
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(&path);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_missing_gpu_is_an_error_only_for_device_cuda() {
    for device in ["cuda", "cuda:0", "cuda:0,1"] {
        assert_fails(&embed("bert-tiny", ["--device", device, "a"]), 1, &["--device cuda:0", "--device cpu"]);
    }
    for device in ["auto", "cpu"] {
        let output = embed("bert-tiny", ["--device", device, "a"]);
        assert_eq!(output.status.code(), Some(0), "{device}: {}", stderr(&output));
    }
}

#[test]
fn invalid_and_contradictory_options_are_wrong_usage() {
    for (args, part) in [
        (vec!["a", "-i", "texts.txt"], "--input"),
        (vec!["--config", "config.json", "a"], "--random-weights"),
        (vec!["--threads", "0", "a"], "--threads"),
        (vec!["--device", "cpu", "--dtype", "f16", "a"], "--dtype f16 needs a GPU"),
        (vec!["--device", "cuda", "--dtype", "int8", "a"], "--dtype int8 is not supported on a GPU"),
        (vec!["--device", "gpu", "a"], "--device"),
        (vec!["--device", "cuda:", "a"], "--device"),
        (vec!["--device", "cuda:1,1", "a"], "--device"),
        (vec!["--device", "cuda:-1", "a"], "--device"),
        (vec!["--batch-tokens", "0", "a"], "--batch-tokens"),
        (vec!["--pooling", "median", "a"], "--pooling"),
        (vec!["--revision", "../../x", "a"], "--revision"),
        (vec!["--no-such-option", "a"], "--no-such-option"),
    ] {
        let output = embed("bert-tiny", &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
    let output = embed("bert-tiny", ["--max-length", "41", "a"]);
    assert_fails(&output, 2, &["--max-length 41", "40 positions"]);
    let output = embed("bert-tiny", ["--max-length", "2", "a"]);
    assert_fails(&output, 2, &["2 special tokens", "--max-length"]);
}

#[test]
fn an_instruction_set_that_the_processor_does_not_have() {
    let output = sconce()
        .args(["embed", "--model"])
        .arg(fixture("bert-tiny"))
        .arg("lamp")
        .env("SCONCE_ISA", "abacus")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let message = stderr(&output);
    assert!(message.contains("SCONCE_ISA=abacus") && message.contains("portable"), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
}

/// Replaces a file by a dangling link.
#[cfg(unix)]
fn replace_by_dangling_link(path: &std::path::Path) {
    let _ = fs::remove_file(path);
    std::os::unix::fs::symlink("../blobs/0123", path).unwrap();
}

#[test]
#[cfg(unix)]
fn a_dangling_link_in_a_model_is_an_error_and_not_a_missing_file() {
    for file in [
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer_config.json",
        "modules.json",
        "1_Pooling/config.json",
        "2_Normalize/config.json",
        "tokenizer.json",
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
    ] {
        let model = Model::tiny();
        if file.contains("index") {
            fs::remove_file(model.path("model.safetensors")).unwrap();
        }
        replace_by_dangling_link(&model.path(file));
        assert_fails(&model.embed(), 1, &[file, "is a link to ../blobs/0123, which does not exist"]);
    }
    // The same holds for the files next to a vocabulary.
    for file in ["special_tokens_map.json", "added_tokens.json", "tokenizer_config.json"] {
        let model = Model::tiny();
        fs::remove_file(model.path("tokenizer.json")).unwrap();
        let tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "lamp"].join("\n");
        fs::write(model.path("vocab.txt"), tokens).unwrap();
        fs::write(model.path("tokenizer_config.json"), "{}").unwrap();
        assert!(model.embed().status.success());
        replace_by_dangling_link(&model.path(file));
        assert_fails(&model.embed(), 1, &[file, "is a link to ../blobs/0123, which does not exist"]);
    }
}

#[test]
#[cfg(unix)]
fn a_pipe_or_a_device_in_a_model_is_refused() {
    for file in
        ["config.json", "modules.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
    {
        let model = Model::tiny();
        fs::remove_file(model.path(file)).unwrap();
        let made = std::process::Command::new("mkfifo").arg(model.path(file)).status().unwrap();
        assert!(made.success());
        assert_fails(&model.embed(), 1, &[file, "a pipe or a device, not a regular file"]);
        fs::remove_file(model.path(file)).unwrap();
        std::os::unix::fs::symlink("/dev/zero", model.path(file)).unwrap();
        assert_fails(&model.embed(), 1, &[file, "a pipe or a device, not a regular file"]);
        fs::remove_file(model.path(file)).unwrap();
        fs::create_dir(model.path(file)).unwrap();
        assert_fails(&model.embed(), 1, &[file, "a directory, not a file"]);
    }
}

#[test]
fn a_model_file_over_the_size_limit_is_refused() {
    for (file, limit) in
        [("config.json", "64 MiB"), ("modules.json", "64 MiB"), ("tokenizer.json", "512 MiB")]
    {
        let model = Model::tiny();
        let large = fs::OpenOptions::new().write(true).open(model.path(file)).unwrap();
        large.set_len(1 << 40).unwrap();
        assert_fails(&model.embed(), 1, &[file, "larger than", limit]);
    }
}

#[test]
fn files_of_the_model_are_not_overwritten() {
    let model = Model::tiny();
    // A file of the model that is not read.
    fs::write(model.path("pytorch_model.bin"), "weights").unwrap();
    let before: BTreeMap<_, _> = files(&model);
    for file in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "pytorch_model.bin",
    ] {
        for option in ["--stats", "--output"] {
            let mut command = sconce();
            command.args(["embed", "a", "--output-format", "jsonl", "--model"]).arg(model.folder.path());
            let output = command.arg(option).arg(model.path(file)).output().unwrap();
            assert_fails(&output, 2, &[option, file, "is also a file of the model", "choose another path"]);
            assert!(files(&model) == before, "{option} {file}");
        }
    }
    // A hard link to a file of the model.
    let link = model.folder.path().with_extension("stats");
    fs::hard_link(model.path("config.json"), &link).unwrap();
    let mut command = sconce();
    command.args(["embed", "a", "--model"]).arg(model.folder.path()).arg("--stats").arg(&link);
    assert_fails(&command.output().unwrap(), 2, &["--stats", "is also a file of the model"]);
    assert!(files(&model) == before);
    fs::remove_file(link).unwrap();
    // A new file in the directory is not a file of the model, and may be overwritten.
    for _ in 0..2 {
        let mut command = sconce();
        command.args(["embed", "a", "--model"]).arg(model.folder.path());
        let output = command.arg("-o").arg(model.path("vectors.safetensors")).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}

/// The files of a model with their contents.
fn files(model: &Model) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut folders = vec![model.folder.path().to_owned()];
    let mut files = BTreeMap::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(files.insert(path.clone(), fs::read(path).unwrap())),
            }
        }
    }
    files
}

#[test]
fn a_hard_link_to_the_input_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let (input, link) = (folder.path().join("in.txt"), folder.path().join("stats.json"));
    fs::write(&input, "the lamp\n").unwrap();
    fs::hard_link(&input, &link).unwrap();
    for option in ["--stats", "-o"] {
        let args =
            ["-i", input.to_str().unwrap(), "--output-format", "jsonl", option, link.to_str().unwrap()];
        assert_fails(&embed("bert-tiny", args), 2, &["is also the input"]);
        assert_eq!(fs::read_to_string(&input).unwrap(), "the lamp\n");
    }
}

#[test]
fn control_characters_do_not_reach_the_terminal() {
    let evil = "\u{1b}]0;title\u{7}\u{1b}[31m\r\n\u{9b}2J\u{202e}";
    let is_clean = |output: &Output| {
        let page = stdout(output) + &stderr(output);
        let bad = |c: char| c != '\n' && c.is_control() || c == '\u{202e}';
        assert!(!page.contains(bad), "{page:?}");
        assert!(page.contains("\\u{1b}"), "{page:?}");
    };
    let config = |field: &str| {
        let model = Model::tiny();
        model.edit_config(|config| drop(config.insert(field.into(), json!(format!("bert{evil}")))));
        model
    };
    for field in ["model_type", "hidden_act", "position_embedding_type"] {
        let output = config(field).embed();
        assert_eq!(output.status.code(), Some(1));
        is_clean(&output);
    }
    let model = Model::tiny();
    model.edit_tensors(|tensors| {
        let tensor = tensors[QUERY].clone();
        tensors.insert(format!("extra{evil}"), tensor);
        tensors.remove(QUERY);
    });
    is_clean(&model.run("inspect"));
    // The names of tensors, prompts, columns and files.
    let model = Model::tiny();
    model.edit_tensors(|tensors| {
        let tensor = tensors[QUERY].clone();
        tensors.insert(format!("extra{evil}"), tensor);
    });
    let page = model.run("inspect");
    is_clean(&page);
    assert_eq!(stdout(&page).lines().filter(|line| line.contains("extra")).count(), 1);
    let model = Model::tiny();
    fs::write(model.path("config_sentence_transformers.json"), json!({"prompts": {evil: "x"}}).to_string())
        .unwrap();
    let mut command = sconce();
    command.args(["embed", "a", "--prompt-name", "none", "--model"]).arg(model.folder.path());
    is_clean(&command.output().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("in.csv");
    fs::write(&csv, format!("\"a{evil}\"\nx\n")).unwrap();
    is_clean(&embed("bert-tiny", ["-i", csv.to_str().unwrap()]));
    #[cfg(unix)]
    {
        let path = folder.path().join(evil);
        fs::write(&path, [0xff, b'\n']).unwrap();
        is_clean(&embed("bert-tiny", ["-i", path.to_str().unwrap()]));
    }
}

#[test]
#[cfg(unix)]
fn directories_that_link_to_each_other_are_read_once() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..12).map(|i| format!("f{i:02}")).collect();
    for name in &names {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("text.txt"), format!("the lamp {name}\n")).unwrap();
        for other in &names {
            std::os::unix::fs::symlink(format!("../{other}"), folder.path().join(name).join(other)).unwrap();
        }
    }
    let args = ["--input-format", "files", "-i", folder.path().to_str().unwrap()];
    let found = rows(&embed("bert-tiny", args));
    let ids: Vec<_> = found.iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect();
    let expected: Vec<_> =
        names.iter().map(|name| folder.path().join(name).join("text.txt").display().to_string()).collect();
    assert_eq!(ids, expected, "each file under its own path");
}

/// Starts `sconce embed` on standard input: the process, its standard input and the lines of its standard
/// output.
fn spawn_embed(model: &Model) -> (Child, ChildStdin, Lines<BufReader<ChildStdout>>) {
    let mut command = sconce();
    command.arg("embed").arg("--model").arg(model.folder.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    (child, input, BufReader::new(output).lines())
}

#[test]
fn a_model_file_that_changes_while_it_is_in_use_ends_the_run() {
    let whole = fs::read(fixture("bert-tiny").join("model.safetensors")).unwrap();
    let changes: [&dyn Fn(&mut fs::File); 3] = [
        &|file| file.set_len(100).unwrap(),
        &|file| file.set_len(0).unwrap(),
        // Other bytes of the same length, as a copy over the file would write.
        &|file| file.write_all(&vec![7; whole.len()]).unwrap(),
    ];
    for change in changes {
        let model = Model::tiny();
        let (child, mut input, mut output) = spawn_embed(&model);
        input.write_all(b"the lamp\n").unwrap();
        assert!(output.next().unwrap().unwrap().contains("embedding"));
        let mut file = fs::OpenOptions::new().write(true).open(model.path("model.safetensors")).unwrap();
        change(&mut file);
        drop(file);
        input.write_all("the lamp on the wall\n".repeat(50).as_bytes()).unwrap();
        drop(input);
        assert!(output.next().is_none(), "no row is computed with the changed weights");
        let ended = child.wait_with_output().unwrap();
        assert_fails(
            &ended,
            1,
            &["model.safetensors was modified while it was in use", "run the command again"],
        );
    }
    // Replacing the file by another does not change the mapped one.
    let model = Model::tiny();
    let (child, mut input, mut output) = spawn_embed(&model);
    input.write_all(b"the lamp\n").unwrap();
    let first = output.next().unwrap().unwrap();
    fs::write(model.path("new"), "not a model").unwrap();
    fs::rename(model.path("new"), model.path("model.safetensors")).unwrap();
    input.write_all(b"the lamp\n").unwrap();
    drop(input);
    let second = output.next().unwrap().unwrap();
    assert_eq!(first.replace("\"index\":0", ""), second.replace("\"index\":1", ""));
    assert!(child.wait_with_output().unwrap().status.success());
}

#[test]
fn the_memory_for_a_pair_of_long_texts_is_linear_in_their_length() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let text = "the lamp burns ".repeat(14_000);
    fs::write(at("pairs.jsonl"), json!({"text": text, "pair": text}).to_string()).unwrap();
    let args = ["-i", &at("pairs.jsonl"), "--pair-field", "pair", "--stats", &at("stats.json")];
    let found = rows(&embed("bert-tiny", args));
    assert_eq!(found[0]["truncated"], true);
    let stats: Value = serde_json::from_slice(&fs::read(at("stats.json")).unwrap()).unwrap();
    let peak = stats["peak_memory_bytes"].as_u64().unwrap_or(0);
    assert!(peak < 400_000_000, "{peak} bytes");
    assert!(stats["tokens_cut"].as_u64().unwrap() > 80_000);
}

#[test]
fn random_weights_and_dense_modules_count_towards_max_memory() {
    let bert = format!("{}/configs/bert-base-uncased.json", env!("CARGO_MANIFEST_DIR"));
    let tokenizer = fixture("bert-tiny").join("tokenizer.json").display().to_string();
    let args =
        ["--random-weights", "1", "--config", &bert, "--tokenizer", &tokenizer, "--max-memory", "400MB", "a"];
    // Without a checkpoint file, the embedding table is in memory, too. With AMX, an f32 is packed into 6
    // bytes.
    let bytes = if Isa::selected().tile_unit().is_some() { "605.4 MB" } else { "435.6 MB" };
    assert_fails(
        &embed("bert-tiny", args),
        2,
        &["--max-memory 400", &format!("the weights of the model need {bytes}")],
    );

    let model = Model::copy_of("pipelines/dense");
    let path = model.path("2_Dense/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    config["out_features"] = json!(1 << 22);
    fs::write(&path, config.to_string()).unwrap();
    let run = |args: &[&str]| {
        let mut command = sconce();
        command.args(["embed", "a", "--random-weights", "1", "--model"]).arg(model.folder.path());
        command.args(args).output().unwrap()
    };
    let output = run(&["--max-memory", "200MB"]);
    assert_fails(&output, 2, &["--max-memory 200", "the weights of the model need"]);
    // A second dense module that exceeds any memory.
    (config["in_features"], config["out_features"]) = (json!(1 << 22), json!(1 << 22));
    fs::write(model.path("3_Normalize/config.json"), config.to_string()).unwrap();
    let modules = fs::read_to_string(model.path("modules.json")).unwrap();
    fs::write(model.path("modules.json"), modules.replace("normalize.Normalize", "dense.Dense")).unwrap();
    assert_fails(&run(&[]), 1, &["3_Normalize/config.json", "parameters; check its sizes"]);
}

#[test]
fn memory_for_a_small_parquet_file_of_long_texts_is_bounded_by_its_longest_text() {
    use arrow::array::{ArrayRef, RecordBatch, StringArray};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, ZstdLevel};
    use parquet::file::properties::WriterProperties;
    use std::sync::Arc;

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    for has_dictionary in [true, false] {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(3).unwrap()))
            .set_dictionary_enabled(has_dictionary)
            .set_dictionary_page_size_limit(1 << 30)
            .build();
        let file = fs::File::create(at("long.parquet")).unwrap();
        let text = "the lamp ".repeat(1 << 18);
        let texts: ArrayRef = Arc::new(StringArray::from(vec![text.as_str(); 256]));
        let batch = RecordBatch::try_from_iter([("text", texts)]).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        assert!(fs::metadata(at("long.parquet")).unwrap().len() < 1 << 20, "a small file");

        let (input, stats, output) = (at("long.parquet"), at("stats.json"), at("out.jsonl"));
        let bounds = ["--max-memory", "300MB", "--on-error", "skip"];
        let files = ["-i", &input, "--stats", &stats, "-o", &output];
        let output = embed("bert-tiny", bounds.into_iter().chain(files));
        assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
        let stats: Value = serde_json::from_slice(&fs::read(at("stats.json")).unwrap()).unwrap();
        let peak = stats["peak_memory_bytes"].as_u64().unwrap_or(0);
        assert!(peak < 300_000_000, "{peak} bytes, dictionary {has_dictionary}");
        assert_eq!(stats["failed"], 256);
    }
}

/// Rows would be lost. A standard output redirected to /dev/null is not an error.
#[test]
#[cfg(unix)]
fn a_closed_standard_output_is_an_error() {
    let run = |redirection: &str, args: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", &format!("exec \"$@\" {redirection}"), "-", env!("CARGO_BIN_EXE_sconce")]);
        command.args(args).env("SCONCE_MODEL", fixture("bert-tiny")).output().unwrap()
    };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out.jsonl");
    let file = file.to_str().unwrap();
    for command in [&["embed", "hello"][..], &["inspect"], &["completions", "bash"]] {
        assert_fails(&run(">&-", command), 1, &["standard output", "is closed", "redirect it"]);
        for open in [">/dev/null", "1<>/dev/null"] {
            assert!(run(open, command).status.success(), "{command:?} {open}");
        }
    }
    // Commands that write to a file do not need it.
    for closed in [">&-", "<&- >&- 2>&-"] {
        assert!(run(closed, &["embed", "hello", "-o", file]).status.success());
        assert_eq!(fs::read_to_string(file).unwrap().lines().count(), 1);
        fs::remove_file(file).unwrap();
    }
}

/// The stack size exceeds any memory, so that the system refuses to start threads, as it does at a limit of
/// processes.
#[test]
fn threads_that_cannot_be_started_are_an_error() {
    for threads in ["1", "4"] {
        let mut command = sconce();
        command.args(["embed", "hello", "--threads", threads, "-m"]).arg(fixture("bert-tiny"));
        let output = command.env("RUST_MIN_STACK", (1u64 << 50).to_string()).output().unwrap();
        assert_fails(&output, 1, &["cannot start", "thread", "--threads", "ulimit -u"]);
    }
}
