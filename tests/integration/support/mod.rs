//! What the integration tests share.

pub mod arrow;
pub mod damage;
pub mod emulator;
pub mod fuzz_targets;
pub mod operands;
pub mod server;
pub mod serving;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

pub use sconce::ops::self_check::first_difference;

/// A folder under `tests/fixtures`.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The tiny models of `scripts/fixtures/make_fixtures.py`.
pub const MODELS: &[&str] = &[
    "bert-tiny",
    "bert-masked-lm",
    "bert-relu",
    "bert-prelu",
    "bert-xielu",
    "roberta",
    "xlm-roberta",
    "camembert",
    "data2vec-text",
    "ernie",
    "electra",
    "electra-same-size",
    "albert",
    "albert-groups",
    "mpnet",
    "distilbert",
    "megatron-bert",
    "roberta-prelayernorm",
    "esm",
    "esm-absolute",
    "xlm-roberta-xl",
    "rembert",
    "roformer",
    "roformer-values",
    "nomic-bert",
    "modernbert",
    "modernbert-biases",
    "eurobert",
    "eurobert-yarn",
    "jina-embeddings-v3",
    "gte",
    "llama",
    "llama-bidirectional",
    "mistral",
    "qwen2",
    "qwen2-bidirectional",
    "qwen3",
    "qwen3-biases",
    "gemma3",
    "gemma3-causal",
    "gemma",
    "gemma2",
    "gemma2-bidirectional",
    "granite",
    "lfm2",
    "lfm2-bidirectional",
    "ministral",
    "ministral3",
    "nomic-bert-first-code",
    "nomic-bert-native",
    "nomic-bert-moe",
    "nomic-bert-moe-biases",
    "jina-bert-v2-qk-norm",
    "gte-native",
    "jina-embeddings-v3-native",
    "new",
    "ibert",
    "longformer",
    "big-bird",
    "mobilebert",
    "mobilebert-layer-norm",
    "deberta",
    "deberta-talking-heads",
    "deberta-v2",
    "deberta-v2-c2p",
    "deberta-v2-p2c",
    "enlarged-keys",
    "talking-heads-before",
    "talking-heads-after",
    "talking-heads-both",
    "pre-norm",
    "pre-norm-final",
    "norm-without-bias",
    "rms-norm",
    "sinusoidal",
    "no-positions",
    "causal",
    "rotary",
    "alibi",
    "jina-bert-v2",
    "jina-bert-v2-reglu",
];

/// Copies a folder and all that is in it.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &to.join(entry.file_name())),
            false => drop(fs::copy(entry.path(), to.join(entry.file_name())).unwrap()),
        }
    }
}

/// The built command, shielded from the environment of whoever runs the tests, but for the instruction set
/// that they choose.
pub fn sconce() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        let shielded =
            name.starts_with("HF_") || name.starts_with("SCONCE_") || name == "TRANSFORMERS_OFFLINE";
        if shielded && name != "SCONCE_ISA" {
            command.env_remove(name);
        }
    }
    command.env("HF_HUB_OFFLINE", "1").env("HF_HOME", "/nonexistent");
    command.env("SCONCE_CACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"));
    command
}

/// `sconce embed` with a fixture as its model.
pub fn embed<S: AsRef<OsStr>>(model: &str, args: impl IntoIterator<Item = S>) -> Output {
    sconce().arg("embed").arg("--model").arg(fixture(model)).args(args).output().expect("sconce starts")
}

/// `sconce COMMAND` with a model and other arguments, without notes.
pub fn model_command(command: &str, model: &Path, args: &[&str]) -> Command {
    let mut run = sconce();
    run.arg(command).arg("-m").arg(model).arg("--quiet").args(args);
    run
}

/// The `goldens.json` of a model.
pub fn goldens(model: &Path) -> serde_json::Value {
    serde_json::from_slice(&fs::read(model.join("goldens.json")).unwrap()).unwrap()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("standard output is UTF-8")
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("standard error is UTF-8")
}

/// The rows that a successful `embed` wrote as JSON lines.
pub fn rows(output: &Output) -> Vec<serde_json::Value> {
    assert!(output.status.success(), "{}", stderr(output));
    stdout(output).lines().map(|line| serde_json::from_str(line).expect("a row is JSON")).collect()
}

/// The embedding of a row.
pub fn embedding(row: &serde_json::Value) -> Vec<f32> {
    numbers(&row["embedding"])
}

/// The vectors of all tokens of a row, one after the other.
pub fn states(row: &serde_json::Value) -> Vec<f32> {
    row["embeddings"].as_array().expect("a list of vectors").iter().flat_map(numbers).collect()
}

/// Sets fields of a JSON file, which is made if it is missing; null removes one.
pub fn set_fields(file: &Path, fields: &serde_json::Value) {
    let old = fs::read(file).unwrap_or_else(|_| b"{}".to_vec());
    let mut content: serde_json::Value = serde_json::from_slice(&old).expect("JSON");
    let content_fields = content.as_object_mut().expect("an object");
    for (key, value) in fields.as_object().expect("an object") {
        match value {
            serde_json::Value::Null => drop(content_fields.remove(key)),
            value => drop(content_fields.insert(key.clone(), value.clone())),
        }
    }
    fs::write(file, content.to_string()).expect("the file is written");
}

/// A JSON list of numbers, read as `f32`.
pub fn numbers(list: &serde_json::Value) -> Vec<f32> {
    list.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// Asserts that two lists are equal within `atol + rtol · |expected|`, element by element.
#[track_caller]
pub fn assert_close(found: &[f32], expected: &[f32], atol: f32, rtol: f32) {
    if let Some(difference) = first_difference(found, expected, atol, rtol) {
        panic!("{difference}");
    }
}

/// Asserts a failure with this exit code whose error is one sentence that contains all of `parts`.
#[track_caller]
pub fn assert_fails(output: &Output, code: i32, parts: &[&str]) {
    let message = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{message}");
    let errors: Vec<&str> = message.lines().filter(|line| !line.starts_with("sconce: warning: ")).collect();
    assert_eq!(errors.len(), 1, "one line, not {message:?}");
    assert!(errors[0].starts_with("sconce: error: "), "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in {message}");
    }
}

/// Lets a command find the real model: the cache of whoever runs the tests, filled by
/// `scripts/fetch_model.sh`.
pub fn real_model(command: &mut Command) {
    command.env_remove("HF_HOME");
    for name in ["HF_HOME", "HF_HUB_CACHE"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
}

/// A run over a file, which is killed.
pub struct KilledRun<'a> {
    /// The command with its model and options, but without input and output.
    pub command: &'a dyn Fn() -> Command,
    pub input: &'a Path,
    pub formats: &'a [&'a str],
    /// The exit code of the whole run.
    pub code: i32,
    /// Options that change the output, and what is said if a run with them shall go on where this one was.
    pub changed: (&'a [&'a str], &'a [&'a str]),
}

/// Checks that a killed run goes on where it was, and only with the same options: output and ledger have the
/// bytes of an uninterrupted run.
pub fn assert_resumes(run: &KilledRun) {
    let folder = tempfile::tempdir().unwrap();
    for format in run.formats {
        let path = |name: &str| folder.path().join(format!("{name}.{format}"));
        let command = |name: &str, args: &[&str]| {
            let mut command = (run.command)();
            command.arg("-i").arg(run.input).arg("-o").arg(path(name)).args(args);
            command
        };
        assert_eq!(command("whole", &[]).output().unwrap().status.code(), Some(run.code));
        kill_after_first_save(&mut command("killed", &[]), &path("killed"));
        let (options, messages) = run.changed;
        let changed = command("killed", &[&["--resume"], options].concat()).output().unwrap();
        assert_fails(&changed, 2, messages);
        let resumed = command("killed", &["--resume"]).output().unwrap();
        assert_eq!(resumed.status.code(), Some(run.code), "{}", stderr(&resumed));
        let read = |name: &str| fs::read(path(name)).unwrap();
        assert!(read("whole") == read("killed"), "{format}");
        let ledger = |name: &str| fs::read(folder.path().join(format!("{name}.{format}.ledger.jsonl"))).ok();
        assert!(ledger("whole") == ledger("killed"), "{format}");
    }
}

/// Starts a run into the file `output`, kills it once it has saved rows, and checks that it was not complete.
pub fn kill_after_first_save(command: &mut Command, output: &Path) {
    let name = output.file_name().unwrap().to_str().unwrap();
    let manifest = output.with_file_name(format!(".{name}.partial.json"));
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    while !manifest.exists() && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!output.exists(), "killed before the end");
}
