//! PyTorch checkpoints are read as safetensors are. A file that holds anything but tensors, or is damaged, is
//! one sentence; no code of it is run, and memory is bounded.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{assert_fails, copy_folder, embedding, fixture, rows, sconce, stdout};
use safetensors::SafeTensors;
use serde_json::json;
use tempfile::TempDir;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

const TEXTS: [&str; 2] = ["the lamp", "a wick burns, and it is light"];

/// A copy of a fixture whose weights are the file `weights`.
fn model(name: &str, weights: &[u8]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture(name), folder.path());
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    fs::write(folder.path().join("pytorch_model.bin"), weights).unwrap();
    folder
}

fn embed(folder: &Path) -> Output {
    sconce().arg("embed").arg("-m").arg(folder).args(TEXTS).output().unwrap()
}

fn vectors(output: &Output) -> Vec<Vec<f32>> {
    rows(output).iter().map(embedding).collect()
}

/// A zip archive of uncompressed files.
fn zip(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
        archive.start_file(*name, options).unwrap();
        archive.write_all(bytes).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

fn text(x: &str) -> Vec<u8> {
    [&[b'X'][..], &(x.len() as u32).to_le_bytes(), x.as_bytes()].concat()
}

fn integer(x: i64) -> Vec<u8> {
    [&[0x8a, 8][..], &x.to_le_bytes()].concat()
}

fn tuple(items: &[Vec<u8>]) -> Vec<u8> {
    [b"(", &items.concat()[..], b"t"].concat()
}

fn global(module: &str, name: &str) -> Vec<u8> {
    format!("c{module}\n{name}\n").into_bytes()
}

fn storage(class: &str, name: &str, elements: i64) -> Vec<u8> {
    let class = global("torch", class);
    [tuple(&[text("storage"), class, text(name), text("cpu"), integer(elements)]), b"Q".to_vec()].concat()
}

fn tensor(storage: Vec<u8>, offset: i64, shape: &[i64], strides: &[i64]) -> Vec<u8> {
    let sizes = |sizes: &[i64]| tuple(&sizes.iter().map(|size| integer(*size)).collect::<Vec<_>>());
    let args = [storage, integer(offset), sizes(shape), sizes(strides), vec![0x89], b"}".to_vec()];
    [global("torch._utils", "_rebuild_tensor_v2"), tuple(&args), b"R".to_vec()].concat()
}

/// A pickle of `{name: value}`.
fn dict(name: &str, value: Vec<u8>) -> Vec<u8> {
    [&[0x80, 2, b'}'][..], &text(name), &value, b"s."].concat()
}

/// A checkpoint in the format of PyTorch before 1.6: the version, the machine, a state dict, the names of its
/// storages, and these.
fn legacy(version: i64, machine: Vec<u8>, pickle: &[u8], names: &[&str], storages: &[u8]) -> Vec<u8> {
    let magic = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.";
    let names = names.iter().map(|name| text(name)).collect::<Vec<_>>().concat();
    let pickles = [&magic[..], b"\x80\x02", &integer(version), b".", &dict("little_endian", machine), pickle];
    [&pickles.concat()[..], b"\x80\x02](", &names, b"e.", storages].concat()
}

/// A checkpoint with a pickle and one storage of four f32.
fn checkpoint(pickle: &[u8]) -> Vec<u8> {
    zip(&[("model/data.pkl", pickle), ("model/byteorder", b"little"), ("model/data/0", &[0; 16])])
}

#[test]
fn checkpoints_give_the_vectors_of_safetensors() {
    let expected = vectors(&embed(&fixture("bert-tiny")));
    let folder = model("bert-tiny", &fs::read(fixture("pytorch").join("bert-tiny.bin")).unwrap());
    assert_eq!(vectors(&embed(folder.path())), expected);

    // safetensors wins where both exist, as in transformers.
    let both = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), both.path());
    fs::write(both.path().join("pytorch_model.bin"), "no weights").unwrap();
    assert_eq!(vectors(&embed(both.path())), expected);
}

/// Transposed matrices, columns and every second row of larger ones, also in the format of PyTorch before
/// 1.6.
#[test]
fn tensors_of_any_strides_are_read() {
    let expected = vectors(&embed(&fixture("bert-tiny")));
    for name in ["strided.bin", "legacy.bin"] {
        let folder = model("bert-tiny", &fs::read(fixture("pytorch").join(name)).unwrap());
        assert_eq!(vectors(&embed(folder.path())), expected, "{name}");
    }
}

/// A third or a half of the rows of a transposed matrix.
#[test]
fn parts_of_transposed_matrices_are_read() {
    let weights = fs::read(fixture("new").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&weights).unwrap().tensors();
    let mut pickle = [&[0x80, 2][..], b"}"].concat();
    let mut storages = Vec::new();
    for (i, (name, view)) in tensors.iter().enumerate() {
        let (shape, data) = (view.shape(), view.data());
        let sizes: Vec<i64> = shape.iter().map(|size| *size as i64).collect();
        let (strides, data) = match *shape {
            [rows, columns] => {
                let element = |i: usize| &data[4 * (i % rows * columns + i / rows)..][..4];
                (vec![1, rows as i64], (0..rows * columns).flat_map(element).copied().collect())
            }
            _ => (vec![1; shape.len()], data.to_vec()),
        };
        let value =
            tensor(storage("FloatStorage", &i.to_string(), data.len() as i64 / 4), 0, &sizes, &strides);
        pickle.extend([text(name), value, b"s".to_vec()].concat());
        storages.push((format!("m/data/{i}"), data));
    }
    pickle.push(b'.');
    let mut files = vec![("m/data.pkl", &pickle[..])];
    files.extend(storages.iter().map(|(name, data)| (name.as_str(), &data[..])));
    let folder = model("new", &zip(&files));
    assert_eq!(vectors(&embed(folder.path())), vectors(&embed(&fixture("new"))));
}

/// `torch.serialization.set_crc32_options(False)` writes zeros for checksums.
#[test]
fn files_without_checksums_are_read() {
    let mut bytes = fs::read(fixture("pytorch").join("bert-tiny.bin")).unwrap();
    let entries: Vec<usize> =
        (0..bytes.len() - 4).filter(|i| bytes[*i..].starts_with(b"PK\x01\x02")).collect();
    assert!(entries.len() > 30);
    entries.into_iter().for_each(|at| bytes[at + 16..at + 20].fill(0));
    let folder = model("bert-tiny", &bytes);
    assert_eq!(vectors(&embed(folder.path())), vectors(&embed(&fixture("bert-tiny"))));
}

/// A copy of a fixture whose tensors have other names.
fn renamed(name: &str, rename: impl Fn(&str) -> String) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture(name), folder.path());
    let path = folder.path().join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let tensors = tensors.into_iter().map(|(name, tensor)| (rename(&name), tensor));
    fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    folder
}

/// `torch.compile`, DDP, FSDP, activation checkpoints, and a module with the model in a field, also in one
/// another.
#[test]
fn names_lose_the_prefixes_of_wrappers() {
    let prefixes = [
        "_orig_mod.",
        "module.",
        "_fsdp_wrapped_module.",
        "model.",
        "bert.",
        "module._orig_mod.",
        "_orig_mod.module.",
        "module.module.",
        "model.model.",
        "module.model._orig_mod.bert.",
        "_fsdp_wrapped_module._checkpoint_wrapped_module.bert.",
    ];
    for name in ["bert-tiny", "qwen3"] {
        let expected = vectors(&embed(&fixture(name)));
        for prefix in prefixes.iter().filter(|prefix| name == "bert-tiny" || !prefix.contains("bert")) {
            let folder = renamed(name, |name| format!("{prefix}{name}"));
            assert_eq!(vectors(&embed(folder.path())), expected, "{name}, {prefix}");
        }
    }
    let inside = |name: &str| {
        let name =
            name.replace("layer.0.", "layer.0._orig_mod.").replace("embeddings.", "embeddings._orig_mod.");
        name.replace("layer.1.", "layer.1._fsdp_wrapped_module._checkpoint_wrapped_module.")
    };
    assert_eq!(vectors(&embed(renamed("bert-tiny", inside).path())), vectors(&embed(&fixture("bert-tiny"))));
}

#[test]
fn a_prefix_that_is_not_removed_is_named() {
    let table = "embeddings.word_embeddings.weight";
    let all = |prefix: &'static str| renamed("bert-tiny", move |name| format!("{prefix}{name}"));
    let all_but_one = |prefix: &'static str| {
        renamed("bert-tiny", move |name| match name {
            "pooler.dense.bias" => "other.bias".into(),
            name => format!("{prefix}{name}"),
        })
    };
    let named = |prefix: &str| format!("only as {prefix}{table}");
    for (folder, parts) in [
        (all("0.auto_model."), vec![named("0.auto_model."), "the prefix 0.auto_model. is none".into()]),
        (all("electra."), vec![named("electra."), "of this model type".into()]),
        (all_but_one("model."), vec![named("model."), "(and one without it)".into()]),
        (all_but_one("module."), vec![named("module."), "(and one without it)".into()]),
        (all("x-"), vec![format!("has no tensor {table}"), "not a checkpoint of this model type".into()]),
        (
            renamed("bert-tiny", |name| match name {
                "pooler.dense.bias" => "_orig_mod.pooler.dense.weight".into(),
                name => name.to_owned(),
            }),
            vec!["pooler.dense.weight".into(), "another one".into(), "torch.compile".into()],
        ),
    ] {
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        assert_fails(&embed(folder.path()), 1, &[&["model.safetensors"], &parts[..]].concat());
    }
}

#[test]
fn shards_are_read_by_their_index() {
    let expected = vectors(&embed(&fixture("bert-tiny")));
    let bin = fs::read(fixture("pytorch").join("bert-tiny.bin")).unwrap();
    let folder = model("bert-tiny", &bin);
    let path = |name: &str| folder.path().join(name);
    fs::rename(path("pytorch_model.bin"), path("pytorch_model-00001-of-00002.bin")).unwrap();
    fs::copy(path("pytorch_model-00001-of-00002.bin"), path("pytorch_model-00002-of-00002.bin")).unwrap();
    let weights = fs::read(fixture("bert-tiny").join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&weights).unwrap();
    let shard =
        |(i, name): (usize, String)| (name, format!("pytorch_model-0000{}-of-00002.bin", 1 + i % 2).into());
    let names = tensors.names().into_iter().map(ToOwned::to_owned).enumerate();
    let map: serde_json::Map<_, _> = names.map(shard).collect();
    fs::write(path("pytorch_model.bin.index.json"), json!({ "weight_map": map }).to_string()).unwrap();
    assert_eq!(vectors(&embed(folder.path())), expected);

    fs::remove_file(path("pytorch_model-00002-of-00002.bin")).unwrap();
    let parts = ["pytorch_model.bin.index.json names the shard pytorch_model-00002-of-00002.bin", "download"];
    assert_fails(&embed(folder.path()), 1, &parts);
}

#[test]
fn inspect_shows_tensors_of_a_checkpoint() {
    let folder = model("bert-tiny", &fs::read(fixture("pytorch").join("bert-tiny.bin")).unwrap());
    let inspect = |folder: &Path| sconce().arg("inspect").arg(folder).arg("--json").output().unwrap();
    let report =
        |folder: &Path| -> serde_json::Value { serde_json::from_str(&stdout(&inspect(folder))).unwrap() };
    let (found, expected) = (report(folder.path()), report(&fixture("bert-tiny")));
    assert_eq!(found["tensors"]["used"], expected["tensors"]["used"]);
    assert_eq!(found["parameters"], expected["parameters"]);
}

#[test]
fn hostile_and_broken_files_are_refused() {
    let whole = fs::read(fixture("pytorch").join("bert-tiny.bin")).unwrap();
    let floats = || storage("FloatStorage", "0", 4);
    let pickle = |pickle: &[u8]| checkpoint(pickle);
    let of = |value: Vec<u8>| checkpoint(&dict("x", value));
    let call = |module: &str, name: &str, args: &[Vec<u8>]| {
        [global(module, name), tuple(args), b"R".to_vec()].concat()
    };
    let stack_global = [&text("builtins")[..], &text("eval"), &[0x93], &tuple(&[text("1")]), b"R"].concat();
    let nested = [&b")"[..], &vec![0x85; 1 << 20], b"."].concat();
    // A tensor of a long shape, kept once and used again and again.
    let long = tuple(&vec![integer(1); 10_000]);
    let bomb = [&long[..], b"q\x01", &vec![b"(h\x01h\x01t".to_vec(); 50_000].concat(), b"."].concat();
    // In the central directory, the second entry points to the first one's data.
    let mut overlap = checkpoint(&dict("x", floats()));
    let central = |zip: &[u8]| zip.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    let at = central(&overlap) + 42;
    overlap[at..at + 4].fill(0);
    let mut deflated = checkpoint(&dict("x", floats()));
    let at = central(&deflated) + 10;
    deflated[at] = 8;
    // torch.save does not write them, and zip does not either: the second name is changed afterwards.
    let mut two_of_one_name =
        zip(&[("m/data.pkl", &dict("x", floats())), ("m/data/0", &[0; 16]), ("m/data/1", &[1; 16])]);
    for at in 0..two_of_one_name.len() - 8 {
        if two_of_one_name[at..].starts_with(b"m/data/1") {
            two_of_one_name[at + 7] = b'0';
        }
    }
    // A byte in the middle, which is in a storage.
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    let of_one = dict("x", tensor(floats(), 0, &[4], &[1]));
    let legacy_storage =
        |elements: u64, bytes: usize| [&elements.to_le_bytes()[..], &vec![0; bytes]].concat();
    // A storage that is a part of another one, as PyTorch 0.3 wrote it.
    let whole_storage = tuple(&[text("1"), integer(0), integer(4)]);
    let class = global("torch", "FloatStorage");
    let id = [text("storage"), class, text("0"), text("cpu"), integer(4), whole_storage];
    let view = tensor([tuple(&id), b"Q".to_vec()].concat(), 0, &[4], &[1]);
    let cases: Vec<(&str, Vec<u8>)> = vec![
        ("posix.system, and only tensors are read", of(call("posix", "system", &[text("touch /tmp/x")]))),
        ("builtins.eval", of(stack_global)),
        ("torch.load", of(call("torch", "load", &[text("x")]))),
        ("opcode 0x81", of([&global("collections", "OrderedDict")[..], b")\x81"].concat())),
        ("opcode 0x69", of(b"(iposix\nsystem\n".to_vec())),
        ("opcode 0x82", of(vec![0x82, 1])),
        ("a state of their own", of([&tensor(floats(), 0, &[4], &[1])[..], b"}b"].concat())),
        ("larger than its storage", of(tensor(floats(), 0, &[1 << 40, 1 << 40], &[1, 1]))),
        ("larger than its storage", of(tensor(floats(), 3, &[2], &[1]))),
        ("malformed shape", of(tensor(floats(), -1, &[2], &[1]))),
        ("malformed shape", of(tensor(floats(), 0, &[1; 9], &[1; 9]))),
        (
            "storage of tensor x is missing or too short",
            of(tensor(storage("FloatStorage", "0", 1 << 50), 0, &[1 << 40], &[1])),
        ),
        (
            "storage of tensor x is missing or too short",
            of(tensor(storage("FloatStorage", "../../x", 4), 0, &[4], &[1])),
        ),
        ("torch.ComplexFloatStorage, which is not read", of(storage("ComplexFloatStorage", "0", 2))),
        ("larger than its storage", of(tensor(floats(), 0, &[2, 2], &[3, 1]))),
        ("larger than its storage", of(tensor(floats(), 1, &[2, 2], &[1, 2]))),
        ("larger than its storage", of(tensor(floats(), 0, &[1 << 40], &[0]))),
        ("larger than its storage", of(tensor(floats(), 0, &[2, 2], &[i64::MAX, i64::MAX]))),
        ("has no tensor embeddings", of(tensor(floats(), 0, &[2, 2], &[1, 2]))),
        ("malformed storage", of([text("storage"), b"Q".to_vec()].concat())),
        ("its pickle ends early", pickle(&[0x80, 2, b'X', 0xff, 0xff, 0xff, 0xff])),
        ("its pickle ends early", pickle(b"\x80\x02}")),
        ("not UTF-8", pickle(b"X\x01\x00\x00\x00\xff.")),
        ("holds no state dict", pickle(b"]q\x00h\x00a.")),
        (
            "has no tensor embeddings.word_embeddings.weight",
            pickle(&[&b"}q\x00"[..], &text("x"), b"h\x00s."].concat()),
        ),
        // Each byte makes a value, or a mark, or an entry of the memo.
        ("more values than its tensors need", pickle(&nested)),
        ("more values than its tensors need", pickle(&bomb)),
        ("more values than its tensors need", pickle(&vec![b')'; (8 << 20) - 1])),
        ("more values than its tensors need", pickle(&vec![b'N'; (8 << 20) - 1])),
        ("more values than its tensors need", pickle(&vec![b'('; (8 << 20) - 1])),
        ("more values than its tensors need", pickle(&[&b"N"[..], &vec![0x94; (8 << 20) - 1]].concat())),
        ("takes a value that it does not have", pickle(b".")),
        ("has no mark", pickle(b"}u.")),
        ("a key without a value", pickle(b"}(Nu.")),
        ("has not kept", pickle(b"h\x05.")),
        ("pickle of 9 MiB", pickle(&vec![b'N'; 9 << 20])),
        ("it has no data.pkl", zip(&[("model/data/0", &[0; 16])])),
        ("big-endian", zip(&[("m/data.pkl", &dict("x", floats())), ("m/byteorder", b"big")])),
        ("overlap", overlap),
        ("two files of one name", two_of_one_name),
        ("do not have the checksum of its zip archive", damaged),
        ("compressed or encrypted", deflated),
        ("not a whole zip archive", whole[..whole.len() / 2].to_vec()),
        ("not a whole zip archive", whole[..whole.len() - 1].to_vec()),
        ("has no tensor embeddings", legacy(1001, vec![0x88], &of_one, &["0"], &legacy_storage(4, 16))),
        ("before 1.6 other than 1001", legacy(1000, vec![0x88], &of_one, &["0"], &legacy_storage(4, 16))),
        ("big-endian", legacy(1001, vec![0x89], &of_one, &["0"], &legacy_storage(4, 16))),
        ("big-endian", legacy(1001, b"N".to_vec(), &of_one, &["0"], &legacy_storage(4, 16))),
        (
            "another size than its tensors say",
            legacy(1001, vec![0x88], &of_one, &["0"], &legacy_storage(5, 20)),
        ),
        ("a storage ends behind it", legacy(1001, vec![0x88], &of_one, &["0"], &legacy_storage(4, 15))),
        ("a storage ends behind it", legacy(1001, vec![0x88], &of_one, &["0"], &[])),
        ("\"1\" is of no tensor", legacy(1001, vec![0x88], &of_one, &["1"], &legacy_storage(4, 16))),
        ("storage of tensor x is missing", legacy(1001, vec![0x88], &of_one, &[], &[])),
        ("malformed storage", legacy(1001, vec![0x88], &dict("x", view), &["0"], &legacy_storage(4, 16))),
        (
            "posix.system, and only tensors are read",
            legacy(1001, call("posix", "system", &[text("touch /tmp/x")]), &of_one, &[], &[]),
        ),
        ("more values", legacy(1001, vec![b')'; 1 << 20], &of_one, &[], &[])),
        ("more values", legacy(1001, vec![0x88], &vec![b')'; 8 << 20], &[], &[])),
        ("its pickle ends early", legacy(1001, vec![0x88], &of_one, &[], &[])[..20].to_vec()),
        ("is not a PyTorch checkpoint", [&[0x80, 2][..], &integer(0x1950a86a20f9469c)[..], b"."].concat()),
        ("is not a PyTorch checkpoint", b"no weights".to_vec()),
        ("is not a PyTorch checkpoint", Vec::new()),
        ("Git LFS pointer", b"version https://git-lfs.github.com/spec/v1\n".to_vec()),
    ];
    for (part, file) in cases {
        let folder = model("bert-tiny", &file);
        let limited = "ulimit -v 700000; exec \"$@\"";
        let mut command = Command::new("bash");
        command.args(["-c", limited, "-", env!("CARGO_BIN_EXE_sconce"), "embed", "-m"]).arg(folder.path());
        assert_fails(&command.args(TEXTS).output().unwrap(), 1, &["pytorch_model.bin", part]);
    }
}
