//! The Hugging Face cache and the hub: downloads from a hub on 127.0.0.1 that injects the faults of networks
//! and servers.

use crate::support;
use crate::support::arrow;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::server::{Fault, Hub, LIST, Request, Site, sha256, small_etag};
use crate::support::{assert_fails, embed, embedding, fixture, rows, stderr, stdout};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use tempfile::TempDir;

pub const MODEL: &str = "sconce-tests/bert-tiny";
const FOLDER: &str = "models--sconce-tests--bert-tiny";
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
pub const WEIGHTS: &str = "model.safetensors";
pub const TEXT: &str = "a lamp on the wall";

/// The files of the fixture that are downloaded.
const NEEDED: &[&str] = &[
    "1_Pooling/config.json",
    "2_Normalize/config.json",
    "config.json",
    "config_sentence_transformers.json",
    WEIGHTS,
    "modules.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The tiny BERT as a repository, with files that must not be downloaded.
fn site() -> Site {
    let read =
        |name: &&str| ((*name).to_owned(), fs::read(fixture("bert-tiny").join(name)).expect("a fixture"));
    let mut files: BTreeMap<String, Vec<u8>> = NEEDED.iter().map(read).collect();
    for name in ["README.md", "pytorch_model.bin", "onnx/model.onnx", "onnx/config.json"] {
        files.insert(name.into(), format!("not for sconce: {name}").into_bytes());
    }
    let branches = BTreeMap::from([("main".to_owned(), COMMIT.to_owned())]);
    Site { model: MODEL.into(), files, branches, token: None, moved: None, faults: BTreeMap::new() }
}

/// A hub with files changed by `change`.
pub fn hub_with(change: impl FnOnce(&mut Site)) -> Hub {
    let mut site = site();
    change(&mut site);
    Hub::start(site)
}

pub fn hub() -> Hub {
    hub_with(|_| {})
}

/// A user's home directory, and the hub of the user's HF_ENDPOINT.
pub struct User {
    pub home: TempDir,
    endpoint: String,
}

impl User {
    pub fn of(hub: &Hub) -> Self {
        Self::at(&hub.url)
    }

    pub fn at(endpoint: &str) -> Self {
        User { home: TempDir::new().expect("a temporary folder"), endpoint: endpoint.into() }
    }

    /// `sconce` with an empty environment except for this user's home and hub.
    pub fn sconce(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sconce"));
        // The vectors are compared with those of commands that use the same instruction set.
        let isa = std::env::var_os("SCONCE_ISA").map(|isa| ("SCONCE_ISA", isa));
        command.args(args).env_clear().envs(isa).env("HOME", self.home.path());
        command.env("HF_HOME", self.home.path().join("hf")).env("HF_ENDPOINT", &self.endpoint);
        command
    }

    pub fn run(&self, args: &[&str]) -> Output {
        output(&mut self.sconce(args))
    }

    pub fn embed(&self) -> Output {
        self.run(&["embed", "--model", MODEL, TEXT])
    }

    pub fn download(&self) -> Output {
        self.run(&["download", MODEL])
    }

    pub fn cache(&self) -> PathBuf {
        self.home.path().join("hf/hub")
    }

    /// The model's directory in the cache.
    pub fn folder(&self) -> PathBuf {
        self.cache().join(FOLDER)
    }

    pub fn snapshot(&self) -> PathBuf {
        self.folder().join("snapshots").join(COMMIT)
    }

    /// The path of a file's partial download.
    fn part(&self, hub: &Hub, name: &str) -> PathBuf {
        let content = hub.site().files[name].clone();
        let id = if name == WEIGHTS { sha256(&content) } else { small_etag(&content) };
        self.folder().join("blobs").join(format!("{id}.part"))
    }

    /// Writes a partial download as an earlier run would have left it.
    fn leave_part(&self, hub: &Hub, name: &str, content: &[u8]) {
        let part = self.part(hub, name);
        fs::create_dir_all(part.parent().expect("a folder")).expect("a folder");
        fs::write(part, content).expect("a part");
    }
}

pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().expect("sconce starts")
}

/// The paths under a folder, sorted.
pub fn tree(folder: &Path) -> Vec<String> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("UTF-8");
        match entry.file_type().expect("a type").is_dir() {
            true => paths.extend(tree(&entry.path()).into_iter().map(|inner| format!("{name}/{inner}"))),
            false => paths.push(name),
        }
    }
    paths.sort();
    paths
}

/// Asserts that the cache has the model in the layout of Hugging Face tools, and nothing else.
#[track_caller]
fn assert_cached(folder: &Path, hub: &Hub, branch: &str) {
    let files = hub.site().files.clone();
    let mut expected = vec![format!("refs/{branch}")];
    for name in NEEDED.iter().filter(|name| files.contains_key(**name)) {
        let content = &files[*name];
        let id = if *name == WEIGHTS { sha256(content) } else { small_etag(content) };
        expected.push(format!("snapshots/{COMMIT}/{name}"));
        expected.push(format!("blobs/{id}"));
        let pointer = folder.join("snapshots").join(COMMIT).join(name);
        assert_eq!(fs::read(&pointer).expect(name), *content, "{name}");
        let target = fs::read_link(&pointer).expect("a link");
        assert!(target.is_relative() && target.ends_with(format!("blobs/{id}")), "{target:?}");
    }
    if !files.contains_key("modules.json") {
        expected.push(format!(".no_exist/{COMMIT}/modules.json"));
    }
    expected.sort();
    expected.dedup();
    // Lock files stay, as with hf-hub.
    let mut found = tree(folder);
    found.retain(|path| !path.ends_with(".lock"));
    assert_eq!(found, expected);
    assert_eq!(fs::read_to_string(folder.join("refs").join(branch)).expect("a reference"), COMMIT);
}

/// Asserts that a failed run left only complete files and partial downloads, and that no later run uses them
/// as a model.
#[track_caller]
fn assert_incomplete(user: &User, hub: &Hub) {
    let files = hub.site().files.clone();
    for name in tree(&user.snapshot()) {
        assert_eq!(fs::read(user.snapshot().join(&name)).expect("a file"), files[&name], "{name}");
    }
    assert_eq!(tree(&user.folder().join("refs")), [""; 0]);
    let offline = user.run(&["embed", "--model", MODEL, "--offline", TEXT]);
    assert_fails(&offline, 1, &[MODEL, "in the cache", "sconce download"]);
    for commit in ["main", COMMIT] {
        let offline = user.run(&["embed", "--model", MODEL, "--revision", commit, "--offline", TEXT]);
        assert_fails(&offline, 1, &[MODEL, commit]);
    }
}

/// Asserts a failure before any large file was requested.
#[track_caller]
fn assert_refused_early(user: &User, hub: &Hub, parts: &[&str]) {
    assert_fails(&user.embed(), 1, parts);
    let requests = hub.requests();
    assert!(!requests.iter().any(|request| of(WEIGHTS)(request)), "{requests:?}");
    assert_incomplete(user, hub);
}

#[track_caller]
pub fn assert_vector(output: &Output) {
    let found = rows(output);
    let directory = support::embed("bert-tiny", [TEXT]);
    assert_eq!(embedding(&found[0]), embedding(&rows(&directory)[0]));
}

/// Whether a request is for a file, at the hub or at its storage.
fn of(name: &str) -> impl Fn(&Request) -> bool + '_ {
    let storage =
        format!("/storage/{}", sha256(&fs::read(fixture("bert-tiny").join(name)).unwrap_or_default()));
    move |request| request.path.ends_with(&format!("/{name}")) || request.path == storage
}

/// The first byte of each request for a file's content.
fn starts(requests: &[Request], name: &str) -> Vec<usize> {
    // Requests for the first byte alone ask for size and hash.
    let content = |request: &&Request| request.header("range") != Some("bytes=0-0") && of(name)(request);
    let start = |request: &Request| {
        let range = request.header("range").unwrap_or("bytes=0-");
        let (start, _) = range.strip_prefix("bytes=").and_then(|r| r.split_once('-')).expect("a range");
        start.parse().expect("a number")
    };
    let mut starts: Vec<usize> = requests.iter().filter(content).map(start).collect();
    if name == WEIGHTS {
        // Each is redirected once.
        starts = starts.chunks(2).map(|pair| pair[0]).collect();
    }
    starts
}

#[test]
fn the_first_run_downloads_and_embeds() {
    let hub = hub();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
    let requests = hub.requests();
    for name in ["README.md", "pytorch_model.bin", "model.onnx", "onnx/config.json"] {
        assert!(!requests.iter().any(|request| request.path.contains(name)), "{name} is of no use");
    }
    assert!(requests.iter().all(|request| request.header("authorization").is_none()));
    assert!(requests.iter().all(|r| r.header("user-agent").is_some_and(|agent| agent.contains("sconce/"))));
}

#[test]
fn later_runs_send_no_requests() {
    let mut hub = hub();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    hub.requests();
    assert_vector(&user.embed());
    assert_vector(&user.run(&["embed", "--model", MODEL, "--offline", TEXT]));
    assert_vector(&user.run(&["embed", "--model", MODEL, "--revision", COMMIT, TEXT]));
    assert_eq!(hub.requests().len(), 0);
    hub.stop();
    assert_vector(&user.embed());
}

#[test]
fn download_prints_the_directory() {
    let hub = hub();
    let user = User::of(&hub);
    for _ in 0..2 {
        let output = user.download();
        assert_eq!(output.status.code(), Some(0), "{}", support::stderr(&output));
        assert_eq!(stdout(&output), format!("{}\n", user.snapshot().display()));
    }
    hub.requests();
    assert_vector(&user.embed());
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn absent_files_are_recorded() {
    let hub = hub_with(|site| {
        site.files.retain(|name, _| name != "modules.json" && !name.contains('/'));
    });
    let user = User::of(&hub);
    let args = ["embed", "--model", MODEL, "--pooling", "mean", "--normalize", TEXT];
    assert_vector(&user.run(&args));
    assert_cached(&user.folder(), &hub, "main");
    hub.requests();
    assert_vector(&user.run(&args));
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn a_snapshot_with_only_weights_is_completed() {
    let hub = hub();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    for name in ["modules.json", "1_Pooling/config.json"] {
        fs::remove_file(user.snapshot().join(name)).expect("a file");
    }
    hub.requests();
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
    let requests = hub.requests();
    assert!(!requests.iter().any(|request| of(WEIGHTS)(request)), "the weights were there");
}

#[test]
fn a_snapshot_without_the_pooling_config_is_completed() {
    let hub = hub();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    fs::remove_file(user.snapshot().join("1_Pooling/config.json")).expect("a file");
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
}

/// These files set maximum length, casing and prompts.
#[test]
fn optional_files_of_unknown_absence_are_downloaded_or_warned_about() {
    for name in ["sentence_bert_config.json", "config_sentence_transformers.json", "tokenizer_config.json"] {
        let hub = hub();
        let user = User::of(&hub);
        assert_vector(&user.embed());
        let remove = || fs::remove_file(user.snapshot().join(name)).expect("a file");
        remove();
        let warns = |output: &Output| {
            let messages = support::stderr(output);
            assert!(output.status.success(), "{messages}");
            assert!(
                messages.contains("warning") && messages.contains(MODEL) && messages.contains(name),
                "{messages}"
            );
        };
        warns(&user.run(&["embed", "--offline", "--model", MODEL, TEXT]));
        let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
        warns(&output(command.env("HF_ENDPOINT", "http://127.0.0.1:1")));
        let mut command = user.sconce(&["download", MODEL]);
        assert_fails(
            &output(command.env("HF_ENDPOINT", "http://127.0.0.1:1")),
            1,
            &[name, "cannot be reached"],
        );
        let again = user.embed();
        assert_vector(&again);
        assert_eq!(support::stderr(&again), "");
        assert_cached(&user.folder(), &hub, "main");
    }
    // If the hub has none of them, their absence is recorded.
    let hub = hub_with(|site| {
        site.files.retain(|name, _| !name.contains("sentence") && name != "tokenizer_config.json");
    });
    let user = User::of(&hub);
    assert!(user.embed().status.success());
    hub.requests();
    let again = user.run(&["embed", "--offline", "--model", MODEL, TEXT]);
    assert_eq!(support::stderr(&again), "");
    assert_eq!(hub.requests().len(), 0);
}

/// Other tools download models like BGE-M3 without the layers that FlagEmbedding saves beside the encoder.
#[test]
fn the_layer_of_an_output_is_downloaded_once_it_is_asked_for() {
    let file = "sparse_linear.pt";
    let hub = hub_with(|site| {
        let folder = fixture("unified/m3");
        let names = [
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
            "modules.json",
            "1_Pooling/config.json",
            "colbert_linear.pt",
            file,
        ];
        let read = |name: &str| (name.to_owned(), fs::read(folder.join(name)).expect("a fixture"));
        site.files = names.into_iter().map(read).collect();
    });
    let user = User::of(&hub);
    let lexical = ["embed", "--model", MODEL, "--pooling", "lexical", TEXT];
    assert!(user.embed().status.success());
    for name in [file, "colbert_linear.pt"] {
        assert!(user.snapshot().join(name).exists(), "{name} is downloaded with the model");
    }
    hub.requests();
    fs::remove_file(user.snapshot().join(file)).expect("a file");
    assert!(user.embed().status.success());
    assert_eq!(hub.requests().len(), 0, "other outputs do not need it");
    let offline = user.run(&[&lexical[..], &["--offline"]].concat());
    assert_fails(&offline, 1, &[file, "offline mode forbids a request", "no lexical weights"]);
    let found = user.run(&lexical);
    assert!(found.status.success(), "{}", support::stderr(&found));
    assert!(!hub.requests().is_empty() && user.snapshot().join(file).exists());
    // A model without it: its absence is recorded.
    hub.site().files.remove(file);
    fs::remove_file(user.snapshot().join(file)).expect("a file");
    assert_fails(&user.run(&lexical), 1, &["no sparse_linear.pt"]);
    assert!(!hub.requests().is_empty());
    assert_fails(&user.run(&lexical), 1, &["no sparse_linear.pt"]);
    assert_eq!(hub.requests().len(), 0);
}

/// The files of an adapter whose base model is `base`.
fn adapter(base: &str) -> BTreeMap<String, Vec<u8>> {
    let folder = fixture("adapters/peft-alone");
    let names = [
        "1_Pooling/config.json",
        "adapter_config.json",
        "adapter_model.safetensors",
        "modules.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ];
    let read = |name: &str| (name.to_owned(), fs::read(folder.join(name)).expect("a fixture"));
    let mut files: BTreeMap<String, Vec<u8>> = names.into_iter().map(read).collect();
    let mut config: Value = serde_json::from_slice(&files["adapter_config.json"]).expect("JSON");
    config["base_model_name_or_path"] = json!(base);
    files.insert("adapter_config.json".into(), config.to_string().into_bytes());
    files
}

#[test]
fn an_adapter_without_config_and_weights_is_downloaded_once() {
    let hub = hub_with(|site| site.files = adapter(&fixture("bert-tiny").display().to_string()));
    let user = User::of(&hub);
    let found = user.embed();
    assert!(found.status.success(), "{}", stderr(&found));
    let expected = embed("adapters/peft-alone", [TEXT]);
    support::assert_close(&embedding(&rows(&found)[0]), &embedding(&rows(&expected)[0]), 1e-6, 0.0);
    assert!(!hub.requests().is_empty());
    assert_eq!(user.embed().stdout, found.stdout);
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn the_base_model_of_an_adapter_is_downloaded() {
    let hub = hub();
    let user = User::of(&hub);
    let folder = user.home.path().join("adapter");
    for (name, content) in adapter(MODEL) {
        fs::create_dir_all(folder.join(&name).parent().expect("a folder")).expect("a folder");
        fs::write(folder.join(name), content).expect("a file");
    }
    let embed_here = || user.run(&["embed", "--model", folder.to_str().expect("UTF-8"), TEXT]);
    let found = embed_here();
    assert!(found.status.success(), "{}", stderr(&found));
    let expected = embed("adapters/peft-alone", [TEXT]);
    support::assert_close(&embedding(&rows(&found)[0]), &embedding(&rows(&expected)[0]), 1e-6, 0.0);
    assert!(user.snapshot().join(WEIGHTS).exists());
    hub.requests();
    assert_eq!(embed_here().stdout, found.stdout);
    assert_eq!(hub.requests().len(), 0);
}

/// The Transformer config under the name of another architecture, and the encoder in a folder of its own.
#[test]
fn layouts_of_the_first_releases_of_sentence_transformers() {
    let hub = hub_with(|site| {
        let config = site.files.remove("sentence_bert_config.json").expect("a file");
        site.files.insert("sentence_roberta_config.json".into(), config);
    });
    let user = User::of(&hub);
    assert_vector(&user.embed());
    assert!(user.snapshot().join("sentence_roberta_config.json").exists());

    // added_tokens.json adds tokens to tokenizer.json.
    let hub = hub_with(|site| {
        site.files.insert("added_tokens.json".into(), br#"{"the wall": 200}"#.to_vec());
    });
    let user = User::of(&hub);
    assert_fails(&user.embed(), 1, &["\"the wall\"", "use the model's own tokenizer"]);
    assert!(user.snapshot().join("added_tokens.json").exists());

    let hub = hub_with(|site| {
        for name in
            ["config.json", WEIGHTS, "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]
        {
            let content = site.files.remove(name).expect("a file");
            site.files.insert(format!("0_Transformer/{name}"), content);
        }
        let modules = String::from_utf8(site.files["modules.json"].clone()).expect("UTF-8");
        let modules = modules.replacen("\"path\": \"\"", "\"path\": \"0_Transformer\"", 1);
        site.files.insert("modules.json".into(), modules.into_bytes());
    });
    let user = User::of(&hub);
    assert_vector(&user.embed());
    hub.requests();
    assert_vector(&user.embed());
    assert_eq!(hub.requests().len(), 0);
}

/// A hub with a model that has a Dense module, and the model's vector.
fn hub_with_a_dense_layer() -> (Hub, Vec<f32>) {
    let folder = fixture("pipelines/dense");
    let hub = hub_with(|site| {
        for name in tree(&folder) {
            site.files.insert(name.clone(), fs::read(folder.join(&name)).expect("a file"));
        }
    });
    let expected = support::embed("pipelines/dense", [TEXT]);
    (hub, embedding(&rows(&expected)[0]))
}

#[test]
fn weights_of_modules_are_downloaded() {
    let (hub, expected) = hub_with_a_dense_layer();
    let user = User::of(&hub);
    let vector = || embedding(&rows(&user.embed())[0]);
    assert_eq!(vector(), expected);
    hub.requests();
    assert_eq!(vector(), expected);
    assert_eq!(hub.requests().len(), 0);
    for name in ["2_Dense/config.json", "2_Dense/model.safetensors", "1_Pooling/config.json"] {
        fs::remove_file(user.snapshot().join(name)).expect("a file");
        let offline = user.run(&["embed", "--model", MODEL, "--offline", TEXT]);
        assert_fails(&offline, 1, &[MODEL, "incomplete in the cache"]);
        assert_eq!(vector(), expected, "{name} is fetched again");
    }
}

/// Weights of Dense modules are large: only those of the folder for `--dimensions` are downloaded, or of the
/// one in `modules.json`.
#[test]
fn only_the_dense_folder_that_is_needed_is_downloaded() {
    let folder = fixture("pipelines/dense-sizes");
    let hub = hub_with(|site| {
        for name in tree(&folder) {
            site.files.insert(name.clone(), fs::read(folder.join(&name)).expect("a file"));
        }
    });
    let user = User::of(&hub);
    let sizes = || {
        let has_weights =
            |size: &&usize| user.snapshot().join(format!("2_Dense_{size}")).join(WEIGHTS).exists();
        [4, 12, 256].iter().filter(has_weights).copied().collect::<Vec<usize>>()
    };
    let dimensions = |args: &[&str]| {
        let output = user.run(&[&["embed", "--model", MODEL, TEXT], args].concat());
        embedding(&rows(&output)[0]).len()
    };
    assert_eq!((dimensions(&[]), sizes()), (12, vec![12]));
    hub.requests();
    assert_eq!((dimensions(&["--dimensions", "5"]), sizes()), (5, vec![12]));
    assert_eq!(hub.requests().len(), 0);
    let offline = user.run(&["embed", "--model", MODEL, "--offline", "--dimensions", "256", TEXT]);
    assert_fails(&offline, 1, &[MODEL, "incomplete in the cache"]);
    assert_eq!((dimensions(&["--dimensions", "256"]), sizes()), (256, vec![12, 256]));
    assert_eq!(dimensions(&["--dimensions", "256", "--offline"]), 256);
    // Another tool downloaded one folder, so that it is unknown whether there are others.
    for other in ["2_Dense_4", "2_Dense_256"] {
        fs::remove_dir_all(user.snapshot().join(other)).expect("a folder");
    }
    assert_eq!((dimensions(&["--dimensions", "4"]), sizes()), (4, vec![4, 12]));
}

/// A number without a folder is looked for once.
#[test]
fn the_absence_of_a_dense_folder_is_recorded() {
    let folder = fixture("pipelines/dense-sizes");
    let hub = hub_with(|site| {
        for name in
            tree(&folder).into_iter().filter(|name| !name.contains("Dense_4") && !name.contains("Dense_256"))
        {
            site.files.insert(name.clone(), fs::read(folder.join(&name)).expect("a file"));
        }
    });
    let user = User::of(&hub);
    assert_eq!(embedding(&rows(&user.embed())[0]).len(), 12);
    let args = ["embed", "--model", MODEL, "--dimensions", "4", TEXT];
    assert_eq!(embedding(&rows(&user.run(&args))[0]).len(), 4);
    hub.requests();
    assert_eq!(embedding(&rows(&user.run(&args))[0]).len(), 4);
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn pytorch_checkpoints_are_downloaded_where_there_are_no_safetensors() {
    let hub = hub_with(|site| {
        site.files.remove(WEIGHTS);
        let weights = fixture("pytorch").join("bert-tiny.bin");
        site.files.insert("pytorch_model.bin".into(), fs::read(weights).expect("a fixture"));
    });
    let user = User::of(&hub);
    let downloaded = user.run(&["embed", "--model", MODEL, TEXT]);
    assert_eq!(embedding(&rows(&downloaded)[0]), embedding(&rows(&embed("bert-tiny", [TEXT]))[0]));
    let offline = user.run(&["embed", "--model", MODEL, "--offline", TEXT]);
    assert_eq!(stdout(&offline), stdout(&downloaded));
}

#[test]
fn a_broken_connection_is_resumed() {
    let hub = hub();
    hub.fail(WEIGHTS, Fault::Break { at: 40_000, times: 1 });
    hub.fail("tokenizer.json", Fault::Break { at: 1_000, times: 1 });
    let user = User::of(&hub);
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
    let requests = hub.requests();
    assert_eq!(starts(&requests, WEIGHTS), [0, 40_000]);
    assert_eq!(starts(&requests, "tokenizer.json"), [0, 1_000]);
}

#[test]
fn a_connection_that_keeps_breaking_is_resumed_by_the_next_run() {
    for (name, at) in [(WEIGHTS, 70_000), ("tokenizer.json", 3_000)] {
        let hub = hub();
        hub.fail(name, Fault::Break { at, times: usize::MAX });
        let user = User::of(&hub);
        assert_fails(&user.embed(), 1, &[name, MODEL, "was interrupted", "run the command again to resume"]);
        assert_eq!(fs::read(user.part(&hub, name)).expect("a part"), hub.site().files[name][..at]);
        assert_incomplete(&user, &hub);

        hub.heal();
        hub.requests();
        assert_vector(&user.embed());
        assert_eq!(starts(&hub.requests(), name), [at]);
        assert_cached(&user.folder(), &hub, "main");
    }
}

#[test]
fn a_killed_download_is_resumed_by_the_next_run() {
    // An unused tensor makes the file larger than the client's buffer.
    let hub = hub_with(|site| {
        let weights = &site.files[WEIGHTS];
        let zeros = vec![0; 1 << 20];
        let zeros = TensorView::new(Dtype::F32, vec![1 << 18], &zeros).expect("a tensor");
        let mut tensors = SafeTensors::deserialize(weights).expect("a checkpoint").tensors();
        tensors.push(("zeros".into(), zeros));
        let larger = safetensors::serialize(tensors, None).expect("a checkpoint");
        site.files.insert(WEIGHTS.into(), larger);
    });
    hub.fail(WEIGHTS, Fault::Hold { at: 900_000 });
    let user = User::of(&hub);
    let mut run =
        user.sconce(&["embed", "--model", MODEL, TEXT]).stdout(Stdio::null()).spawn().expect("a start");
    let arrived = || fs::metadata(user.part(&hub, WEIGHTS)).map_or(0, |part| part.len());
    for _ in 0..2000 {
        if arrived() > 500_000 {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    run.kill().expect("it was running");
    run.wait().expect("an end");
    let at = arrived();
    assert!((500_000..=900_000).contains(&at), "{at} bytes arrived");
    assert_incomplete(&user, &hub);

    hub.heal();
    hub.requests();
    assert_vector(&user.embed());
    let ranges: Vec<_> = hub
        .requests()
        .iter()
        .filter(|request| request.path.starts_with("/storage/"))
        .filter_map(|request| request.header("range").map(String::from))
        .filter(|range| range != "bytes=0-0")
        .collect();
    assert_eq!(ranges, [format!("bytes={at}-")]);
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
fn an_interrupted_download_is_no_model_for_an_offline_run() {
    let hub = hub();
    hub.fail(WEIGHTS, Fault::Break { at: 0, times: usize::MAX });
    let user = User::of(&hub);
    assert_fails(&user.download(), 1, &[WEIGHTS, "run the command again"]);
    assert!(user.snapshot().join("tokenizer.json").exists());
    let offline = user.run(&["embed", "--model", MODEL, "--offline", TEXT]);
    let cache = user.cache().display().to_string();
    assert_fails(&offline, 1, &[MODEL, "incomplete in the cache", &cache, "--offline", "sconce download"]);
}

#[test]
fn a_truncated_answer_is_detected_by_size() {
    let hub = hub();
    let user = User::of(&hub);
    // Without Content-Length and SHA-256, only the size from the first request detects it.
    hub.fail("tokenizer.json", Fault::Short { at: 2_000 });
    assert_fails(&user.embed(), 1, &["tokenizer.json", "was damaged in the download"]);
    assert_incomplete(&user, &hub);
    hub.heal();
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
fn a_server_without_ranges_sends_the_file_from_the_beginning() {
    for (name, at) in [(WEIGHTS, 50_000), ("tokenizer.json", 2_000)] {
        let hub = hub();
        hub.fail(name, Fault::Break { at, times: usize::MAX });
        let user = User::of(&hub);
        assert_fails(&user.embed(), 1, &[name, "was interrupted"]);
        // The answer has the complete file.
        hub.fail(name, Fault::NoRange);
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
    }
}

/// Each attempt starts from the beginning, so that the next run cannot resume it either.
#[test]
fn a_broken_download_from_a_server_without_ranges_ends_and_says_so() {
    for (name, at) in [(WEIGHTS, 50_000), ("tokenizer.json", 2_000)] {
        let hub = hub();
        let user = User::of(&hub);
        hub.fail(name, Fault::NoRangeBreak { at });
        let parts = [name, MODEL, "cannot resume it", "the whole file in place of the rest", "HF_ENDPOINT"];
        assert_fails(&user.embed(), 1, &parts);
        assert_eq!(starts(&hub.requests(), name), [0, at, at]);
        assert_incomplete(&user, &hub);
    }
}

/// Without checksums an ETag is the name of a content among those of one URL only.
#[test]
fn files_with_one_etag_are_kept_apart() {
    let hub = hub();
    let names = ["config.json", "tokenizer.json", "1_Pooling/config.json", "2_Normalize/config.json"];
    for name in names {
        hub.fail(name, Fault::Etag("v1".into()));
    }
    let user = User::of(&hub);
    assert_vector(&user.embed());
    for name in names {
        assert_eq!(fs::read(user.snapshot().join(name)).expect("a file"), hub.site().files[name], "{name}");
    }
    hub.requests();
    assert_vector(&user.embed());
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn a_partial_download_larger_than_the_file_is_dropped() {
    for name in [WEIGHTS, "tokenizer.json"] {
        let hub = hub();
        let user = User::of(&hub);
        let mut longer = hub.site().files[name].clone();
        longer.extend(b"and more");
        user.leave_part(&hub, name, &longer);
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
    }
}

#[test]
fn a_partial_download_of_another_file_is_dropped() {
    let hub = hub();
    let user = User::of(&hub);
    let whole = hub.site().files[WEIGHTS].len();
    for length in [30_000, whole] {
        user.leave_part(&hub, WEIGHTS, &vec![7; length]);
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
        fs::remove_dir_all(user.folder()).expect("the cache goes");
    }
}

#[test]
fn a_complete_partial_download_is_used() {
    for name in [WEIGHTS, "tokenizer.json"] {
        let hub = hub();
        let user = User::of(&hub);
        let content = hub.site().files[name].clone();
        user.leave_part(&hub, name, &content);
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
    }
}

#[test]
fn damaged_weights_are_refused_and_removed() {
    let hub = hub();
    hub.fail(WEIGHTS, Fault::Damaged);
    let user = User::of(&hub);
    assert_fails(&user.embed(), 1, &[WEIGHTS, MODEL, "damaged", "SHA-256", "run the command again"]);
    assert!(!user.part(&hub, WEIGHTS).exists());
    assert_incomplete(&user, &hub);
    hub.heal();
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
fn a_truncated_blob_is_downloaded_again() {
    let hub = hub();
    let user = User::of(&hub);
    let part = user.part(&hub, WEIGHTS);
    user.leave_part(&hub, WEIGHTS, &[]);
    fs::write(part.with_extension(""), b"the beginning").expect("a blob");
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
fn two_runs_at_once_do_not_disturb_each_other() {
    let hub = hub();
    hub.fail(WEIGHTS, Fault::Hold { at: 10 });
    let user = User::of(&hub);
    let start = || {
        let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("sconce starts")
    };
    let runs = [start(), start()];
    for run in runs {
        assert_vector(&run.wait_with_output().expect("an end"));
    }
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
fn a_missing_token_is_named() {
    let hub = hub_with(|site| site.token = Some("hf_right".into()));
    let user = User::of(&hub);
    assert_fails(&user.embed(), 1, &[MODEL, "401", "private or gated", "HF_TOKEN", &hub.url]);
    let wrong = output(user.sconce(&["embed", "--model", MODEL, TEXT]).env("HF_TOKEN", "hf_wrong"));
    assert_fails(&wrong, 1, &[MODEL, "401", "your token", "HF_TOKEN"]);
    assert!(!support::stderr(&wrong).contains("hf_wrong"), "a token is a secret");
    assert_incomplete(&user, &hub);
}

#[test]
fn a_token_is_read_from_where_hugging_face_tools_store_it() {
    let hub = hub_with(|site| site.token = Some("hf_right".into()));
    for location in ["HF_TOKEN", "HF_TOKEN_PATH", "the token file"] {
        let user = User::of(&hub);
        let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
        let file = user.home.path().join(if location == "HF_TOKEN_PATH" { "elsewhere" } else { "hf/token" });
        fs::create_dir_all(user.home.path().join("hf")).expect("a folder");
        match location {
            "HF_TOKEN" => {
                // The variable takes precedence over the file; line breaks around it are ignored.
                fs::write(file, "hf_wrong").expect("a file");
                command.env("HF_TOKEN", " hf_right\n");
            }
            "HF_TOKEN_PATH" => {
                fs::write(&file, "hf_right\n").expect("a file");
                command.env("HF_TOKEN_PATH", &file);
            }
            _ => fs::write(&file, "hf_right\n").expect("a file"),
        }
        hub.requests();
        assert_vector(&output(&mut command));
        for request in hub.requests().iter().filter(|request| !request.path.starts_with("/storage/")) {
            assert_eq!(
                request.header("authorization"),
                Some("Bearer hf_right"),
                "{location}: {}",
                request.path
            );
        }
    }
}

#[test]
fn a_malformed_token_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    let broken = output(user.sconce(&["download", MODEL]).env("HF_TOKEN", "hf_\u{e9} secret"));
    assert_fails(&broken, 1, &["HF_TOKEN"]);
    assert!(!support::stderr(&broken).contains("secret"), "a token is a secret");
    // It is not needed if the model is in the cache.
    assert_vector(&user.embed());
    let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
    assert_vector(&output(command.env("HF_TOKEN", "hf_\u{e9} secret")));
}

#[test]
fn a_model_without_required_files_is_refused_before_the_download() {
    for name in ["config.json", "tokenizer.json"] {
        let hub = hub_with(|site| drop(site.files.remove(name)));
        let parts = [MODEL, "has no", name, "choose another model"];
        assert_refused_early(&User::of(&hub), &hub, &parts);
    }
    let hub = hub_with(|site| site.files.retain(|name, _| !name.ends_with("n") || name == "config.json"));
    assert_refused_early(&User::of(&hub), &hub, &[MODEL, "has no"]);
}

/// The tiny BERT with a vocabulary in place of tokenizer.json, as older releases save it.
fn hub_with_vocabulary() -> Hub {
    hub_with(|site| {
        let tokenizer = site.files.remove("tokenizer.json").expect("a tokenizer");
        let tokenizer: serde_json::Value = serde_json::from_slice(&tokenizer).expect("JSON");
        let vocabulary = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
        let tokens: BTreeMap<_, _> = vocabulary.iter().map(|(token, id)| (id.as_u64(), &**token)).collect();
        let lines: Vec<&str> = tokens.into_values().collect();
        site.files.insert("vocab.txt".into(), lines.join("\n").into_bytes());
        site.files.insert("added_tokens.json".into(), b"{}".into());
    })
}

#[test]
fn a_vocabulary_is_downloaded_with_its_settings() {
    let hub = hub_with_vocabulary();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    let found = tree(&user.snapshot());
    for name in ["vocab.txt", "tokenizer_config.json", "added_tokens.json"] {
        assert!(found.iter().any(|file| file == name), "{name} of {found:?}");
    }
    let absent = tree(&user.folder().join(".no_exist"));
    let expected = ["special_tokens_map.json", "tokenizer.json"].map(|name| format!("{COMMIT}/{name}"));
    assert_eq!(absent, expected);
    hub.requests();
    assert_vector(&user.embed());
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn a_snapshot_with_only_a_vocabulary_is_completed() {
    let hub = hub_with_vocabulary();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    let absent = user.folder().join(".no_exist").join(COMMIT);
    // Without these it is unknown whether the hub has a file that changes the tokens.
    for file in [user.snapshot().join("added_tokens.json"), absent.join("tokenizer.json")] {
        fs::remove_file(&file).expect("a file");
        let offline = user.run(&["embed", "--model", MODEL, "--offline", TEXT]);
        assert_fails(&offline, 1, &[MODEL, "incomplete in the cache"]);
        hub.requests();
        assert_vector(&user.embed());
        assert!(file.exists());
        let requests = hub.requests();
        assert!(!requests.iter().any(|request| of(WEIGHTS)(request)), "the weights were there");
    }
}

#[test]
fn a_vocabulary_is_downloaded_with_its_merges() {
    let hub = hub_with(|site| {
        site.files.remove("tokenizer.json");
        for name in ["vocab.json", "merges.txt", "special_tokens_map.json"] {
            site.files.insert(name.into(), b"{}".into());
        }
    });
    let user = User::of(&hub);
    assert_eq!(user.download().status.code(), Some(0));
    let found = tree(&user.snapshot());
    for name in ["vocab.json", "merges.txt", "special_tokens_map.json", "tokenizer_config.json"] {
        assert!(found.iter().any(|file| file == name), "{name} of {found:?}");
    }
    // Beside a tokenizer.json, a vocabulary is not downloaded.
    let hub = hub_with(|site| {
        for name in ["vocab.txt", "vocab.json", "merges.txt"] {
            site.files.insert(name.into(), b"{}".into());
        }
    });
    let user = User::of(&hub);
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
fn a_sentence_piece_model_is_downloaded_without_another_tokenizer() {
    let model = fs::read(fixture("tokenizers/spm-albert/spiece.model")).expect("a fixture");
    let hub = hub_with(|site| {
        site.files.remove("tokenizer.json");
        for name in ["spiece.model", "spm.model"] {
            site.files.insert(name.into(), model.clone());
        }
        site.files
            .insert("tokenizer_config.json".into(), br#"{"tokenizer_class": "AlbertTokenizer"}"#.into());
    });
    let user = User::of(&hub);
    let first = user.run(&["embed", "--model", MODEL, "a lamp"]);
    assert_eq!(first.status.code(), Some(0), "{}", stderr(&first));
    let found = tree(&user.snapshot());
    assert!(found.iter().any(|file| file == "spiece.model"), "{found:?}");
    assert!(!found.iter().any(|file| file == "spm.model"), "{found:?}");
    hub.requests();
    let offline = user.run(&["embed", "--model", MODEL, "--offline", "a lamp"]);
    assert_eq!(offline.status.code(), Some(0));
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn a_model_without_a_tokenizer_is_refused_before_the_download() {
    let parts = [
        MODEL,
        "has no tokenizer.json",
        "vocab.json with merges.txt",
        "spiece.model",
        "choose another model",
    ];
    let hub = hub_with(|site| {
        site.files.remove("tokenizer.json");
        site.files.insert("vocab.json".into(), b"{}".into());
    });
    assert_refused_early(&User::of(&hub), &hub, &parts);
}

#[test]
fn unsupported_weights_are_named_with_a_remedy() {
    let hub = hub_with(|site| {
        site.files.remove(WEIGHTS);
        site.files.remove("pytorch_model.bin");
    });
    let exported = "choose the model that this was exported from";
    assert_refused_early(&User::of(&hub), &hub, &[MODEL, "only as onnx/model.onnx", exported]);

    let hub = hub_with(|site| site.files.retain(|name, _| name != WEIGHTS && !name.contains("model.")));
    assert_refused_early(&User::of(&hub), &hub, &[MODEL, "has no", WEIGHTS, "choose another model"]);
}

/// The tiny BERT with its weights in two shards.
fn hub_with_shards() -> Hub {
    const INDEX: &str = "model.safetensors.index.json";
    hub_with(|site| {
        let weights = site.files.remove(WEIGHTS).expect("weights");
        let tensors = SafeTensors::deserialize(&weights).expect("a checkpoint").tensors();
        let mut map = BTreeMap::new();
        for (i, part) in tensors.chunks(tensors.len() / 2 + 1).enumerate() {
            let name = format!("model-0000{}-of-00002.safetensors", i + 1);
            map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
            let shard = safetensors::serialize(part.iter().cloned(), None).expect("a shard");
            site.files.insert(name, shard);
        }
        let index = serde_json::json!({ "weight_map": map });
        site.files.insert(INDEX.into(), index.to_string().into_bytes());
    })
}

#[test]
fn all_shards_are_downloaded() {
    let hub = hub_with_shards();
    let user = User::of(&hub);
    assert_vector(&user.embed());
    hub.requests();
    assert_vector(&user.embed());
    assert_eq!(hub.requests().len(), 0);
    fs::remove_file(user.snapshot().join("model-00002-of-00002.safetensors")).expect("a shard");
    assert_vector(&user.embed());
    assert!(!hub.requests().is_empty());
}

#[test]
fn a_download_without_files_that_others_need_fails_with_their_names() {
    let shard = "model-00002-of-00002.safetensors";
    let without_shard = hub_with_shards();
    without_shard.site().files.remove(shard);
    let without_pooling = hub_with(|site| drop(site.files.remove("1_Pooling/config.json")));
    for (hub, name) in [(without_shard, shard), (without_pooling, "1_Pooling/config.json")] {
        let user = User::of(&hub);
        let parts = ["does not have", name, MODEL, &hub.url, "choose another --revision or another model"];
        assert_fails(&user.download(), 1, &parts);
        assert_eq!(tree(&user.folder().join("refs")), [""; 0]);
        let offline = user.run(&["embed", "--model", MODEL, "--revision", COMMIT, "--offline", TEXT]);
        assert_fails(&offline, 1, &[MODEL, &format!("forbids a download of {name}")]);
        // The same files in a directory of the user.
        let folder = user.snapshot().display().to_string();
        assert_fails(&user.run(&["download", &folder]), 1, &[&folder, "does not have", name]);
    }
}

#[test]
fn a_listed_file_that_is_missing_is_named() {
    for name in ["tokenizer.json", WEIGHTS] {
        let hub = hub();
        let gone = "HTTP/1.1 404 Not Found\r\nX-Error-Code: EntryNotFound\r\nContent-Length: 0\r\n\r\n";
        hub.fail(name, Fault::Raw(gone.into()));
        let user = User::of(&hub);
        assert_fails(&user.embed(), 1, &[name, MODEL, &hub.url, "not found", "--revision"]);
        assert_incomplete(&user, &hub);
        hub.heal();
        assert_vector(&user.embed());
    }
}

#[test]
fn a_server_error_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    let busy = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
    for name in [LIST, "config.json", WEIGHTS] {
        hub.fail(name, Fault::Raw(busy.into()));
        assert_fails(&user.embed(), 1, &["503", MODEL, &hub.url, "try again later"]);
        assert_incomplete(&user, &hub);
        hub.heal();
    }
}

#[test]
fn an_unknown_revision_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    for revision in ["v9", "feature/none", "89abcdef0123456789abcdef0123456789abcdef"] {
        let output = user.run(&["embed", "--model", MODEL, "--revision", revision, TEXT]);
        assert_fails(&output, 1, &[MODEL, &format!("{revision:?}"), "--revision", &hub.url]);
    }
    assert_incomplete(&user, &hub);
}

#[test]
fn an_unknown_model_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    for revision in ["main", "v2"] {
        let output = user.run(&["embed", "--model", "nobody/nothing", "--revision", revision, TEXT]);
        assert_fails(&output, 1, &["nobody/nothing", &hub.url, "check the id"]);
    }
}

#[test]
fn a_branch_may_have_a_slash() {
    let hub = hub_with(|site| {
        site.branches.insert("feature/shorter-names".into(), COMMIT.into());
    });
    let user = User::of(&hub);
    let args = ["embed", "--model", MODEL, "--revision", "feature/shorter-names", TEXT];
    assert_vector(&user.run(&args));
    assert_cached(&user.folder(), &hub, "feature/shorter-names");
    hub.requests();
    assert_vector(&user.run(&args));
    assert_eq!(hub.requests().len(), 0);
}

#[test]
fn a_commit_is_a_revision_without_a_reference() {
    let hub = hub();
    let user = User::of(&hub);
    let args = ["embed", "--model", MODEL, "--revision", COMMIT, TEXT];
    assert_vector(&user.run(&args));
    assert_eq!(tree(&user.folder().join("refs")), [""; 0]);
    assert!(user.snapshot().join(WEIGHTS).exists());
    hub.requests();
    assert_vector(&user.run(&args));
    assert_eq!(hub.requests().len(), 0);
    // For the default branch only the list of files is requested now.
    assert_vector(&user.embed());
    assert_cached(&user.folder(), &hub, "main");
    assert_eq!(hub.requests().len(), 1);
}

#[test]
fn offline_sends_no_requests() {
    let hub = hub();
    let user = User::of(&hub);
    let plain = ["embed", "--model", MODEL, TEXT];
    let cache = user.cache().display().to_string();
    let remedy =
        [MODEL, "main", "not in the cache", &cache, "sconce download sconce-tests/bert-tiny", "--model DIR"];
    assert_fails(&user.run(&["embed", "--model", MODEL, "--offline", TEXT]), 1, &remedy);
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        for value in ["1", "true", "ON"] {
            assert_fails(&output(user.sconce(&plain).env(variable, value)), 1, &remedy);
        }
    }
    let revision = user.run(&["embed", "--model", MODEL, "--revision", "v2", "--offline", TEXT]);
    assert_fails(&revision, 1, &["sconce download sconce-tests/bert-tiny --revision v2"]);
    assert_eq!(hub.requests().len(), 0);
    assert_eq!(tree(user.home.path()), [""; 0]);
    for variable in ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"] {
        assert_vector(&output(user.sconce(&plain).env(variable, "0")));
    }
}

#[test]
fn an_unreachable_hub_is_named() {
    let mut hub = hub();
    let user = User::of(&hub);
    hub.stop();
    let parts = [MODEL, &hub.url, "cannot be reached", "refused", "HF_ENDPOINT", "--model DIR"];
    assert_fails(&user.embed(), 1, &parts);
    for endpoint in ["not an address", "127.0.0.1", "ftp://127.0.0.1"] {
        assert_fails(&User::at(endpoint).embed(), 1, &[MODEL, endpoint, "cannot be reached", "HF_ENDPOINT"]);
    }
}

#[test]
fn the_environment_sets_the_cache_directory() {
    let hub = hub();
    let user = User::of(&hub);
    let run = |variables: &[(&str, &str)], cache: &str| {
        let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
        command.env_remove("HF_HOME");
        for (name, folder) in variables {
            // An empty variable counts as unset.
            let folder = if folder.is_empty() { PathBuf::new() } else { user.home.path().join(folder) };
            command.env(name, folder);
        }
        assert_vector(&output(&mut command));
        let folder = user.home.path().join(cache);
        assert_cached(&folder.join(FOLDER), &hub, "main");
        fs::remove_dir_all(folder).expect("the cache goes");
        let left: Vec<_> = tree(user.home.path());
        assert_eq!(left, [""; 0], "no file elsewhere");
    };
    run(&[("HF_HUB_CACHE", "a"), ("HF_HOME", "b"), ("XDG_CACHE_HOME", "c")], "a");
    run(&[("HF_HOME", "b"), ("XDG_CACHE_HOME", "c")], "b/hub");
    run(&[("XDG_CACHE_HOME", "c")], "c/huggingface/hub");
    run(&[], ".cache/huggingface/hub");
    run(&[("HF_HUB_CACHE", ""), ("HF_HOME", ""), ("XDG_CACHE_HOME", "")], ".cache/huggingface/hub");
}

#[test]
fn a_relative_cache_directory_works() {
    let hub = hub();
    let user = User::of(&hub);
    let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
    command.current_dir(user.home.path()).env("HF_HOME", "relative");
    assert_vector(&output(&mut command));
    assert_cached(&user.home.path().join("relative/hub").join(FOLDER), &hub, "main");
}

#[test]
fn an_unwritable_cache_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    fs::write(user.home.path().join("hf"), "a file, not a folder").expect("a file");
    let cache = user.cache().display().to_string();
    assert_fails(&user.embed(), 1, &["cannot use the cache", &cache, "HF_HOME"]);
}

#[test]
fn malformed_lists_are_named() {
    let html = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>";
    let json = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let bodies = [
        html.to_owned(),
        json(""),
        json("[]"),
        json("{\"sha\":\"0123\"}"),
        json("{\"sha\":7,\"siblings\":[]}"),
        json("{\"sha\":\"../../..\",\"siblings\":[{\"rfilename\":\"config.json\"}]}"),
        json("{\"sha\":\"\",\"siblings\":[]}"),
        json("{\"sha\":\"0123\",\"siblings\":[{\"name\":\"config.json\"}]}"),
    ];
    let hub = hub();
    let user = User::of(&hub);
    for answer in bodies {
        hub.fail(LIST, Fault::Raw(answer.clone().into()));
        assert_fails(&user.embed(), 1, &[&hub.url, "not that of a Hugging Face hub", "HF_ENDPOINT"]);
        assert_eq!(tree(user.home.path()), [""; 0], "{answer}");
    }
    for garbage in ["\0\u{1}garbage\r\n\r\n", "", "HTTP/1.1 200 OK\r\nContent-Len"] {
        hub.fail(LIST, Fault::Raw(garbage.into()));
        assert_fails(&user.embed(), 1, &[&hub.url, "cannot be reached", "HF_ENDPOINT"]);
    }
}

#[test]
fn malformed_file_answers_are_named() {
    let hub = hub();
    let user = User::of(&hub);
    let evil =
        "HTTP/1.1 200 OK\r\nETag: \"../../../evil\"\r\nX-Repo-Commit: x\r\nContent-Length: 2\r\n\r\nhi";
    let answers = [
        "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>",
        "HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
        evil,
    ];
    for name in ["config.json", WEIGHTS] {
        for answer in answers {
            hub.fail(name, Fault::Raw(answer.into()));
            let parts = [name, MODEL, hub.url.as_str(), "not that of a Hugging Face hub"];
            assert_fails(&user.embed(), 1, &parts);
            assert_incomplete(&user, &hub);
        }
        hub.fail(name, Fault::Raw(b"\0\x01garbage\r\n\r\n".into()));
        assert_fails(&user.embed(), 1, &[MODEL, &hub.url]);
        assert_incomplete(&user, &hub);
        hub.heal();
    }
    assert!(tree(user.home.path()).iter().all(|path| !path.contains("evil")));
}

#[test]
fn a_directory_without_config_with_the_name_of_a_model_is_named() {
    let hub = hub();
    let user = User::of(&hub);
    fs::create_dir_all(user.home.path().join(MODEL)).expect("a folder");
    let mut command = user.sconce(&["embed", "--model", MODEL, TEXT]);
    command.current_dir(user.home.path());
    assert_fails(&output(command.arg("--offline")), 1, &[MODEL, "has no config.json"]);
}

#[test]
fn redirects_are_followed_up_to_a_limit() {
    let hub = hub_with(|site| site.token = Some("hf_right".into()));
    let user = User::of(&hub);
    let run =
        |model: &str| output(user.sconce(&["embed", "--model", model, TEXT]).env("HF_TOKEN", "hf_right"));
    // A renamed model redirects from its old name, as bert-base-uncased does.
    hub.site().moved = Some(("old-name".into(), MODEL.into()));
    assert_vector(&run("old-name"));
    assert_cached(&user.cache().join("models--old-name"), &hub, "main");

    hub.site().moved = Some(("round".into(), "round".into()));
    hub.requests();
    assert_fails(&run("round"), 1, &["round", &hub.url, "cannot be reached", "redirects"]);
    assert!(hub.requests().len() <= 20);
}

/// Runs `sconce` with a timeout of one second.
fn with_short_timeout(user: &User, args: &[&str]) -> Output {
    output(user.sconce(args).env("HF_HUB_DOWNLOAD_TIMEOUT", "1"))
}

#[test]
fn a_silent_or_stalled_server_times_out() {
    let silence = ["no data for 1 s", "HF_HUB_DOWNLOAD_TIMEOUT"];
    let trickle = ["less than 1 KiB/s for 1 s", "HF_HUB_DOWNLOAD_TIMEOUT"];
    for (name, fault, reason) in [
        (LIST, Fault::Silent, silence),
        ("config.json", Fault::Silent, silence),
        (WEIGHTS, Fault::Silent, silence),
        ("tokenizer.json", Fault::Stall { at: 2_000 }, silence),
        (WEIGHTS, Fault::Stall { at: 0 }, silence),
        (WEIGHTS, Fault::Drip { at: 50_000 }, trickle),
    ] {
        let hub = hub();
        hub.fail(name, fault);
        let user = User::of(&hub);
        let start = Instant::now();
        assert_fails(&with_short_timeout(&user, &["download", MODEL]), 1, &[&[MODEL], &reason[..]].concat());
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
        assert_incomplete(&user, &hub);
        hub.heal();
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
    }
}

#[test]
fn malformed_redirects_are_named() {
    let redirect = |location: &str| {
        format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nETag: \"abc\"\r\nContent-Length: 0\r\n\r\n")
    };
    for name in ["config.json", WEIGHTS] {
        let hub = hub();
        let user = User::of(&hub);
        let own = format!("{}/{MODEL}/resolve/{COMMIT}/{name}", hub.url);
        for (location, part) in [
            (own.as_str(), "redirects"),
            ("file:///etc/passwd", "redirects (status 302) to no URL"),
            ("", "redirects (status 302) to no URL"),
            ("http://[", "redirects (status 302) to no URL"),
        ] {
            hub.fail(name, Fault::Raw(redirect(location).into()));
            hub.requests();
            assert_fails(&user.embed(), 1, &[MODEL, &hub.url, part]);
            assert!(hub.requests().len() <= 30, "{location}");
            assert_incomplete(&user, &hub);
        }
    }
}

#[test]
fn a_token_is_sent_to_the_hub_alone() {
    let hub = hub_with(|site| site.token = Some("hf_right".into()));
    let user = User::of(&hub);
    let run = |args: &[&str]| output(user.sconce(args).env("HF_TOKEN", "hf_right"));
    assert_vector(&run(&["embed", "--model", MODEL, TEXT]));
    let requests = hub.requests();
    let (storage, own): (Vec<_>, Vec<_>) = requests.iter().partition(|r| r.path.starts_with("/storage/"));
    assert!(!storage.is_empty() && !own.is_empty());
    assert!(storage.iter().all(|request| request.header("authorization").is_none()), "{storage:?}");
    assert!(own.iter().all(|request| request.header("authorization") == Some("Bearer hf_right")), "{own:?}");

    // Another hub, as the target of a redirect, does not get it either.
    let other = self::hub();
    for name in [LIST, "config.json"] {
        let path = match name {
            LIST => format!("/api/models/{MODEL}/revision/main"),
            name => format!("/{MODEL}/resolve/{COMMIT}/{name}"),
        };
        let location = format!("{}{path}", other.url);
        let head =
            format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nETag: \"x\"\r\nContent-Length: 0\r\n\r\n");
        hub.fail(name, Fault::Raw(head.into()));
        fs::remove_dir_all(user.folder()).expect("the cache goes");
        assert_vector(&run(&["embed", "--model", MODEL, TEXT]));
        let requests = other.requests();
        assert!(!requests.is_empty(), "{name} was redirected");
        assert!(requests.iter().all(|request| request.header("authorization").is_none()), "{requests:?}");
        hub.heal();
    }
}

#[test]
fn a_password_in_the_endpoint_is_sent_but_not_shown() {
    let mut hub = hub_with(|site| site.token = Some("hf_right".into()));
    let address = hub.url.replace("http://", "http://me:pa55word@");
    let user = User::at(&address);
    let refused = user.embed();
    assert_fails(&refused, 1, &[MODEL, &hub.url, "401"]);
    // "me:pa55word" in base64
    let requests = hub.requests();
    assert!(
        requests.iter().all(|r| r.header("authorization") == Some("Basic bWU6cGE1NXdvcmQ=")),
        "{requests:?}"
    );
    hub.fail(LIST, Fault::Raw(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]".into()));
    let malformed = user.embed();
    hub.stop();
    let mut outputs = vec![refused, malformed, user.embed()];
    for broken in [
        "http://me:pa55word@ a b",
        "me:pa55word@hub",
        "ftp://me:pa55word@hub",
        "http://me:pa55word@127.0.0.1:x",
    ] {
        outputs.push(User::at(broken).embed());
    }
    for output in outputs {
        let message = support::stderr(&output);
        assert_fails(&output, 1, &[MODEL]);
        assert!(!message.contains("pa55word") && !message.contains("me:"), "{message}");
    }
}

#[test]
fn no_answer_writes_outside_the_cache() {
    let evil = "HTTP/1.1 206 Partial Content\r\nETag: \"../../../../../evil\"\r\nX-Repo-Commit: ../../..\r\n\
                Content-Range: bytes 0-1/2\r\nContent-Length: 2\r\n\r\nhi";
    for name in ["config.json", WEIGHTS] {
        let hub = hub();
        let user = User::of(&hub);
        hub.fail(name, Fault::Later(evil.into()));
        assert_fails(&user.embed(), 1, &[name, MODEL, "not that of a Hugging Face hub"]);
        assert_incomplete(&user, &hub);
        let outside: Vec<_> =
            tree(user.home.path()).into_iter().filter(|path| !path.starts_with("hf/hub/")).collect();
        assert_eq!(outside, [""; 0]);
        assert!(tree(user.home.path()).iter().all(|path| !path.contains("evil")));
    }
    for name in [
        "model-/../../../../x.safetensors",
        "1_/../../config.json",
        "/etc/passwd",
        "a//b",
        "model-\\..\\x.safetensors",
        "..",
    ] {
        let hub = hub_with(|site| drop(site.files.insert(name.into(), b"evil".into())));
        let parts = ["the list of files", MODEL, "outside the model's directory", "HF_ENDPOINT"];
        assert_refused_early(&User::of(&hub), &hub, &parts);
    }
}

#[test]
fn bytes_past_the_end_of_a_file_are_not_written() {
    for name in ["tokenizer.json", WEIGHTS] {
        let hub = hub();
        hub.fail(name, Fault::Endless);
        let user = User::of(&hub);
        let size = hub.site().files[name].len();
        let parts = [name, MODEL, &format!("more than the {size} bytes"), "HF_ENDPOINT"];
        assert_fails(&user.embed(), 1, &parts);
        assert!(!user.part(&hub, name).exists());
        assert_incomplete(&user, &hub);
        hub.heal();
        assert_vector(&user.embed());
    }
}

#[test]
fn damaged_small_files_are_refused_and_removed() {
    for name in ["tokenizer.json", "config.json", "1_Pooling/config.json"] {
        let hub = hub();
        hub.fail(name, Fault::Damaged);
        let user = User::of(&hub);
        assert_fails(&user.embed(), 1, &[name, MODEL, "damaged", "SHA-1", "run the command again"]);
        assert!(!user.part(&hub, name).exists());
        assert_incomplete(&user, &hub);
        hub.heal();
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
    }
}

#[test]
fn a_held_lock_is_waited_for_with_a_warning_and_a_timeout() {
    let hub = hub();
    let user = User::of(&hub);
    user.leave_part(&hub, WEIGHTS, &[]);
    let path = user.part(&hub, WEIGHTS).with_extension("lock");
    let lock = fs::File::create(&path).expect("a file");
    lock.lock().expect("a lock");
    let held = with_short_timeout(&user, &["download", MODEL]);
    let shown = path.display().to_string();
    assert_fails(&held, 1, &["another process", &shown, WEIGHTS, MODEL, "run the command again"]);
    assert!(support::stderr(&held).contains("warning: waiting for another process"), "{held:?}");
    assert_incomplete(&user, &hub);

    // The wait is extended while the other download grows.
    let run = thread::scope(|scope| {
        let run = scope.spawn(|| with_short_timeout(&user, &["embed", "--model", MODEL, TEXT]));
        for bytes in 1..=14 {
            user.leave_part(&hub, WEIGHTS, &vec![0; bytes]);
            thread::sleep(Duration::from_millis(500));
        }
        lock.unlock().expect("it was locked");
        run.join().expect("no panic")
    });
    assert_vector(&run);
    assert_cached(&user.folder(), &hub, "main");
}

#[test]
#[cfg(unix)]
fn dangling_links_of_a_pruned_cache_are_repaired() {
    for name in [
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer_config.json",
        "2_Normalize/config.json",
    ] {
        let hub = hub();
        let user = User::of(&hub);
        assert_vector(&user.embed());
        fs::remove_file(fs::canonicalize(user.snapshot().join(name)).expect("a blob")).expect("a file");
        let offline = user.run(&["embed", "--model", MODEL, "--offline", TEXT]);
        assert_fails(&offline, 1, &[MODEL, "incomplete in the cache", "sconce download"]);
        assert_vector(&user.embed());
        assert_cached(&user.folder(), &hub, "main");
    }
}

/// Output files have the commit of the model's snapshot, whatever the name of the revision.
#[test]
fn outputs_name_the_commit_of_the_model() {
    let hub = hub_with(|site| {
        site.branches.insert("v1.5".into(), COMMIT.into());
    });
    let user = User::of(&hub);
    let hash = sha256(&hub.site().files[WEIGHTS]);
    let at = |name: &str| user.home.path().join(name).display().to_string();
    for revision in [None, Some("v1.5"), Some(COMMIT)] {
        let revision: Vec<&str> = revision.map(|name| ["--revision", name]).into_iter().flatten().collect();
        for name in ["out.npy", "out.parquet", "out.arrow"] {
            let (output, stats) = (at(name), at("stats.json"));
            let args = ["embed", "--model", MODEL, "-o", &output, "--stats", &stats, "--restart", TEXT];
            let done = user.run(&[&args[..], &revision].concat());
            assert!(done.status.success(), "{}", stderr(&done));
            let stats: Value = serde_json::from_slice(&fs::read(stats).expect("stats")).expect("JSON");
            assert_eq!((&stats["model"], &stats["revision"]), (&json!(MODEL), &json!(COMMIT)));
            assert_eq!(stats["weights_sha256"], json!(hash));
        }
        let beside = fs::read(at("out.npy.meta.json")).expect("a description");
        assert_eq!(serde_json::from_slice::<Value>(&beside).expect("JSON")["revision"], COMMIT);
        let file = fs::File::open(at("out.arrow")).expect("a file");
        let schema = arrow::ipc::reader::FileReader::try_new(file, None).expect("Arrow").schema();
        let args = ["embed", "--model", MODEL, "--output-format", "arrow", TEXT];
        let piped = user.run(&[&args[..], &revision].concat());
        let stream = arrow::ipc::reader::StreamReader::try_new(&piped.stdout[..], None).expect("a stream");
        let file = fs::File::open(at("out.parquet")).expect("a file");
        let file =
            parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
        for schema in [schema, stream.schema(), file.schema().clone()] {
            for (key, value) in
                [("sconce.model", MODEL), ("sconce.revision", COMMIT), ("sconce.weights_sha256", &hash)]
            {
                assert_eq!(schema.metadata().get(key).map(String::as_str), Some(value), "{key}");
            }
        }
    }
    // A local directory has no commit.
    let (model, output) = (fixture("bert-tiny").display().to_string(), at("local.npy"));
    assert!(user.run(&["embed", "--model", &model, "-o", &output, TEXT]).status.success());
    let beside = fs::read(at("local.npy.meta.json")).expect("a description");
    assert_eq!(serde_json::from_slice::<Value>(&beside).expect("JSON").get("revision"), None);
}
