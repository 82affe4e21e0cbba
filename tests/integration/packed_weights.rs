//! Packed weights are mapped from a file in the cache, and no state of that file changes a vector.

use std::collections::HashMap;
use std::fs::{self, FileTimes};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, SystemTime};

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::support::{copy_folder, fixture, model_command, set_fields, stdout};

/// The intermediate size that makes a checkpoint of 13.5 MiB of `bert-tiny`: smaller ones have no file.
const INTERMEDIATE: usize = 24_576;

/// A model that is large enough for a file, in `folder`.
pub fn large_model(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    copy_folder(&fixture("bert-tiny"), &model);
    let config = fs::read_to_string(model.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_str(&config).unwrap();
    config["intermediate_size"] = INTERMEDIATE.into();
    fs::write(model.join("config.json"), config.to_string()).unwrap();
    let path = model.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let stored = SafeTensors::deserialize(&bytes).unwrap();
    let mut tensors: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    for (name, tensor) in stored.tensors() {
        assert_eq!(tensor.dtype(), Dtype::F32);
        let mut shape = tensor.shape().to_vec();
        let mut data = tensor.data().to_vec();
        let is_up = name.contains("intermediate.dense");
        let is_down = name.contains("output.dense.weight") && !name.contains("attention");
        if is_up || is_down {
            shape[usize::from(is_down)] = INTERMEDIATE;
            let value = |i: usize| (i.wrapping_mul(2_654_435_761) % 2003) as f32 / 20_030.0 - 0.05;
            data = (0..shape.iter().product()).flat_map(|i| value(i).to_le_bytes()).collect();
        }
        tensors.insert(name, (shape, data));
    }
    let views: HashMap<&String, TensorView> = tensors
        .iter()
        .map(|(name, (shape, data))| (name, TensorView::new(Dtype::F32, shape.clone(), data).unwrap()))
        .collect();
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
    model
}

/// Starts a run that embeds a few texts with these options and this cache.
fn start(model: &Path, cache: &Path, options: &[&str]) -> Child {
    let mut command = model_command("embed", model, options);
    command.args(["one text", "and another, longer one"]).env("SCONCE_CACHE", cache);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The output of such a run, which prints no message.
fn finish(child: Child) -> String {
    let output = child.wait_with_output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && message.is_empty(), "{message}");
    String::from_utf8(output.stdout).unwrap()
}

fn embed(model: &Path, cache: &Path, options: &[&str]) -> String {
    finish(start(model, cache, options))
}

/// The files of packed weights.
fn files(cache: &Path) -> Vec<PathBuf> {
    let Ok(files) = fs::read_dir(cache.join("weights")) else { return Vec::new() };
    files.map(|file| file.unwrap().path()).collect()
}

#[test]
fn mapped_weights_give_the_same_bits_in_each_compute_type() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    for (index, dtype) in ["f32", "bf16", "bf16x3", "int8"].into_iter().enumerate() {
        let options = ["--dtype", dtype];
        let expected = embed(&model, &cache, &[&options[..], &["--no-weight-cache"]].concat());
        assert_eq!(files(&cache).len(), index, "without a file");
        assert_eq!(embed(&model, &cache, &options), expected, "{dtype}, packed");
        let made = files(&cache);
        assert_eq!(made.len(), index + 1, "one file for each type: {made:?}");
        let times: Vec<_> = made.iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect();
        assert_eq!(embed(&model, &cache, &options), expected, "{dtype}, mapped");
        let after: Vec<_> = made.iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect();
        assert_eq!(times, after, "a complete file is not written again");
    }
}

#[test]
fn a_damaged_file_is_rebuilt_and_changes_no_vector() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let expected = embed(&model, &cache, &[]);
    let file = files(&cache).pop().unwrap();
    let intact = fs::read(&file).unwrap();
    let length = intact.len();
    // Magic, offset and length of the table, reserved bytes, checksum, first, middle and last matrix, table.
    for at in [0, 8, 12, 16, 40, 64, 127, 128, 4096, length / 3, length / 2, length - 3000, length - 1] {
        let mut damaged = intact.clone();
        damaged[at] ^= 1;
        fs::write(&file, damaged).unwrap();
        assert_eq!(embed(&model, &cache, &[]), expected, "byte {at} of {length}");
        assert!(fs::read(&file).unwrap() == intact, "rebuilt after damage of byte {at}");
    }
    for length in [0, 7, 100, 128, length / 2, length - 1] {
        fs::write(&file, &intact[..length]).unwrap();
        assert_eq!(embed(&model, &cache, &[]), expected, "{length} bytes");
        assert!(fs::read(&file).unwrap() == intact, "rebuilt after truncation to {length}");
    }
}

#[test]
fn another_checkpoint_and_another_file_under_its_name_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let first = embed(&model, &cache, &[]);
    let file = files(&cache).pop().unwrap();
    let weights = model.join("model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    // The sign of every value of the last tensors.
    let end = bytes.len();
    bytes[end - 400_000..].as_chunks_mut::<4>().0.iter_mut().for_each(|value| value[3] ^= 0x80);
    fs::write(&weights, bytes).unwrap();
    let second = embed(&model, &cache, &["--no-weight-cache"]);
    assert_ne!(first, second);
    assert_eq!(embed(&model, &cache, &[]), second);
    let other = files(&cache).into_iter().find(|other| *other != file).unwrap();
    fs::copy(&file, &other).unwrap();
    assert_eq!(embed(&model, &cache, &[]), second, "a valid file of another checkpoint");
    assert!(fs::read(&file).unwrap() != fs::read(&other).unwrap(), "rebuilt");
}

/// One checkpoint with other settings and with an adapter: the file has its matrices, whichever of them a run
/// needs.
#[test]
fn settings_and_adapters_never_get_packed_weights_of_other_values() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let settings = model.join("sentence_bert_config.json");
    let layers =
        |layers: usize| set_fields(&settings, &json!({"config_kwargs": {"num_hidden_layers": layers}}));
    let adapter = fixture("adapters/peft-alone");
    let adapt = || {
        // The updates of attention: those of other layers do not fit the larger ones of this model.
        let bytes = fs::read(adapter.join("adapter_model.safetensors")).unwrap();
        let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
        tensors.retain(|(name, _)| name.contains(".self.") && name.contains("layer.0."));
        let file = model.join("adapter_model.safetensors");
        fs::write(file, safetensors::serialize(tensors, None).unwrap()).unwrap();
        fs::copy(adapter.join("adapter_config.json"), model.join("adapter_config.json")).unwrap();
    };
    // A warning says that the checkpoint has more layers.
    let vectors = |options: &[&str]| stdout(&start(&model, &cache, options).wait_with_output().unwrap());
    let uncached = || vectors(&["--no-weight-cache"]);
    layers(1);
    let first = vectors(&[]);
    assert_eq!(first, uncached(), "one layer, packed");
    layers(2);
    let both = vectors(&[]);
    assert_eq!(both, uncached(), "two layers, of which one was packed");
    assert_ne!(first, both);
    layers(1);
    assert_eq!(vectors(&[]), first, "one of two packed layers");
    adapt();
    let adapted = vectors(&[]);
    assert_eq!(adapted, uncached(), "with an adapter");
    assert_ne!(adapted, first);
    fs::remove_file(model.join("adapter_config.json")).unwrap();
    fs::remove_file(model.join("adapter_model.safetensors")).unwrap();
    assert_eq!(vectors(&[]), first, "without the adapter again");
    assert_eq!(files(&cache).len(), 1);
}

#[test]
fn a_file_of_another_build_is_left_alone_for_ten_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let expected = embed(&model, &cache, &[]);
    let file = files(&cache).pop().unwrap();
    let own = fs::read(&file).unwrap();
    let foreign = of_another_build(&own);
    fs::write(&file, &foreign).unwrap();
    assert_eq!(embed(&model, &cache, &[]), expected);
    assert!(fs::read(&file).unwrap() == foreign, "not written");
    let old = SystemTime::now() - Duration::from_secs(11 * 60);
    fs::File::options().write(true).open(&file).unwrap().set_modified(old).unwrap();
    assert_eq!(embed(&model, &cache, &[]), expected);
    assert!(fs::read(&file).unwrap() == own, "written anew");
}

/// The file with another build in its key, and the checksum of that.
fn of_another_build(file: &[u8]) -> Vec<u8> {
    let mut file = file.to_vec();
    let key = b"(build ";
    let at = file.windows(key.len()).rposition(|bytes| bytes == key).unwrap() + key.len();
    file[at] = if file[at] == b'0' { b'1' } else { b'0' };
    let checksum = Sha256::new_with_prefix(&file[128..]).chain_update(&file[..64]).finalize();
    file[64..128].copy_from_slice(format!("{checksum:x}").as_bytes());
    file
}

#[test]
fn files_of_killed_processes_are_removed_after_a_day_and_unused_ones_after_a_month() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let weights = cache.join("weights");
    fs::create_dir_all(&weights).unwrap();
    let old = SystemTime::now() - Duration::from_secs(25 * 60 * 60);
    for (name, time) in [(".packing-old", old), (".packing-new", SystemTime::now()), ("other-old", old)] {
        let file = fs::File::create(weights.join(name)).unwrap();
        file.set_modified(time).unwrap();
    }
    let month = SystemTime::now() - Duration::from_secs(31 * 24 * 60 * 60);
    for (name, read) in [("unused", month), ("used", old)] {
        let file = fs::File::create(weights.join(name)).unwrap();
        file.set_times(FileTimes::new().set_accessed(read).set_modified(month)).unwrap();
    }
    embed(&model, &cache, &[]);
    assert_eq!(files(&cache).len(), 4, "the new file, and three others");
    assert!(!weights.join(".packing-old").exists() && !weights.join("unused").exists());
}

#[test]
fn processes_that_start_together_agree() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let expected = embed(&model, &cache, &["--no-weight-cache"]);
    let started: Vec<Child> = (0..8).map(|_| start(&model, &cache, &[])).collect();
    started.into_iter().for_each(|child| assert_eq!(finish(child), expected));
    assert_eq!(files(&cache).len(), 1, "no temporary file is left");
    assert_eq!(embed(&model, &cache, &[]), expected);
}

#[test]
fn a_cache_that_cannot_be_written_is_no_error() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let expected = embed(&model, &cache, &["--no-weight-cache"]);
    fs::write(folder.path().join("file"), "").unwrap();
    assert_eq!(embed(&model, &folder.path().join("file"), &[]), expected, "a file in place of the directory");
    fs::create_dir_all(&cache).unwrap();
    fs::write(cache.join("weights"), "").unwrap();
    assert_eq!(embed(&model, &cache, &[]), expected, "no directory for the files");
}

#[test]
fn not_finite_weights_are_reported_with_mapped_weights_too() {
    let folder = tempfile::tempdir().unwrap();
    let (model, cache) = (large_model(folder.path()), folder.path().join("cache"));
    let path = model.join("model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let stored = SafeTensors::read_metadata(&bytes).unwrap().1;
    let name = "encoder.layer.0.attention.self.key.weight";
    let tensors = stored.tensors();
    let info = tensors.iter().find(|(tensor, _)| tensor.ends_with(name)).unwrap().1;
    let at = header + info.data_offsets.0;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let run = |options: &[&str]| {
        let output = start(&model, &cache, options).wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let expected = run(&["--no-weight-cache"]);
    assert!(expected.1.contains(name), "{expected:?}");
    assert_eq!(run(&[]), expected, "packed");
    assert_eq!(run(&[]), expected, "mapped, if a file was written");
}
