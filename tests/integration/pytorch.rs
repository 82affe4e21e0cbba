//! PyTorch checkpoints are read as safetensors are. A file that holds anything but tensors, or is damaged, is one sentence; no code of it
//! is run, and memory is bounded.

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
        ("not those of consecutive rows", of(tensor(floats(), 0, &[2, 2], &[1, 2]))),
        ("malformed storage", of([text("storage"), b"Q".to_vec()].concat())),
        ("its pickle ends early", pickle(&[0x80, 2, b'X', 0xff, 0xff, 0xff, 0xff])),
        ("its pickle ends early", pickle(b"\x80\x02}")),
        ("not UTF-8", pickle(b"X\x01\x00\x00\x00\xff.")),
        ("holds no state dict", pickle(b"]q\x00h\x00a.")),
        (
            "has no tensor embeddings.word_embeddings.weight",
            pickle(&[&b"}q\x00"[..], &text("x"), b"h\x00s."].concat()),
        ),
        ("holds no state dict", pickle(&nested)),
        ("holds no state dict", pickle(&bomb)),
        ("takes a value that it does not have", pickle(b".")),
        ("has no mark", pickle(b"}u.")),
        ("a key without a value", pickle(b"}(Nu.")),
        ("has not kept", pickle(b"h\x05.")),
        ("pickle of 9 MiB", pickle(&vec![b'N'; 9 << 20])),
        ("it has no data.pkl", zip(&[("model/data/0", &[0; 16])])),
        ("big-endian", zip(&[("m/data.pkl", &dict("x", floats())), ("m/byteorder", b"big")])),
        ("overlap", overlap),
        ("compressed or encrypted", deflated),
        ("not a whole zip archive", whole[..whole.len() / 2].to_vec()),
        ("not a whole zip archive", whole[..whole.len() - 1].to_vec()),
        ("format of PyTorch before 1.6", [&[0x80, 2][..], &integer(0x1950a86a20f9469c)[..], b"."].concat()),
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
