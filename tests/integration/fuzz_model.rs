//! Fuzzes the parsers of model files and of the files beside an output, and whole commands, with damaged
//! files and responses of a hub: each case gives a result or an error of one line, in bounded memory. See
//! `support/damage.rs` for the number of cases.

use crate::support;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;

use crate::support::damage::{
    cases, check_memory, damaged, damaged_file, damaged_json, damaged_seed, fuzz, run_case,
};
use crate::support::fuzz_targets::{TARGETS, check_sentence, encode_with};
use crate::support::server::{Hub, Site};
use crate::support::{copy_folder, fixture, sconce, stderr};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::SafeTensors;
use sconce::engine::{RowOptions, Task, TaskInput};
use sconce::hub::Source;
use sconce::load::{ModelOptions, examine, load};
use sconce::model::layout::tokenizer_in;
use sconce::named::Named;
use sconce::sys::console::{Console, Verbosity};
use sconce::task::{Embedder, OnLong, VectorOptions};
use sconce::text::{PairTruncation, TokenizerOptions, TruncationSide};
use serde_json::{Value, json};

/// Default number of cases per test.
const CASES: u64 = 400;

/// Loads a model and encodes a short and a long text.
///
/// # Errors
/// The error message, if one of these steps fails.
fn try_model(folder: &Path) -> Result<(), String> {
    let source = Source {
        model: folder.display().to_string(),
        revision: "main".into(),
        dimensions: None,
        offline: true,
        cache: None,
        progress: false,
        silent: false,
    };
    let console = Console::new(Verbosity::Quiet, false);
    let model = ModelOptions::of(source);
    // Inspection reads a model further than its first fault.
    examine(&model, &console).map_err(|error| format!("{error:#}"))?;
    let loaded = load(&model, &console).map_err(|error| format!("{error:#}"))?;
    let options = VectorOptions::new(OnLong::Mean);
    let embedder = Embedder::new(loaded, &options, &console).map_err(|error| format!("{error:#}"))?;
    for text in ["a lamp".to_owned(), "The wick burns, ünd 日本 [MASK]. ".repeat(20)] {
        match embedder.tokenize(&TaskInput::new(&text)) {
            Ok(tokens) => {
                let outputs = embedder.encode(std::slice::from_ref(&tokens), 64, 0);
                let output = outputs.map_err(|error| format!("{error:#}"))?.remove(0);
                assert_eq!(embedder.finish(&tokens, output, &RowOptions::default()).len(), 1);
            }
            Err(error) => {
                let message = format!("{error:?}");
                assert!(!message.contains("panicked"), "{message}");
            }
        }
    }
    Ok(())
}

/// Loads and runs models with a damaged file: in each case, one of the files whose names `is_damaged`
/// accepts. Runs one `share`-th of the cases.
fn fuzz_models(
    name: &str,
    share: u64,
    models: &[PathBuf],
    is_damaged: fn(&str) -> bool,
    damage: fn(&mut ChaCha8Rng, &[u8]) -> Vec<u8>,
) {
    let (mut accepted, mut refused) = (0, 0);
    let copies: Vec<_> = models.iter().map(|model| (tempfile::tempdir().unwrap(), model)).collect();
    let mut files = Vec::new();
    for (folder, model) in &copies {
        copy_folder(model, folder.path());
        try_model(folder.path()).unwrap();
        let names = names(folder.path());
        files.extend(names.into_iter().filter(|name| is_damaged(name)).map(|name| (folder.path(), name)));
    }
    assert!(!files.is_empty());
    for case in cases(CASES, share) {
        run_case(name, case, |rng| {
            let (folder, file) = &files[rng.random_range(0..files.len())];
            let path = folder.join(file);
            let intact = fs::read(&path).unwrap();
            let bytes = damage(rng, &intact);
            fs::write(&path, &bytes).unwrap();
            let result = try_model(folder);
            fs::write(&path, intact).unwrap();
            match result {
                Ok(()) => accepted += 1,
                Err(message) => {
                    check_sentence(&message, &bytes);
                    refused += 1;
                }
            }
            check_memory();
        });
    }
    eprintln!("{name}: {accepted} models accepted, {refused} refused");
}

/// The paths of all files in a folder and its subfolders, relative to it and sorted.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let (name, path) =
            entry.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).unwrap();
        if path.is_dir() {
            names.extend(self::names(&path).into_iter().map(|inner| format!("{name}/{inner}")));
        } else {
            names.push(name);
        }
    }
    names.sort();
    names
}

/// The files in a folder and its subfolders whose relative path `is_seed` accepts.
fn seeds(folder: &Path, is_seed: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let names = names(folder).into_iter().filter(|name| is_seed(name));
    names.map(|name| fs::read(folder.join(name)).unwrap()).collect()
}

/// The target of each parser is fuzzed by a test, and cargo-fuzz has a file for it.
#[test]
fn every_target_has_a_test_and_a_file_for_cargo_fuzz() {
    let tests = [include_str!("fuzz_input.rs"), include_str!("fuzz_model.rs")].concat();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz");
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    for (name, _) in TARGETS {
        assert!(tests.contains(&format!("(\"{name}\", ")), "no test of the target {name}");
        let binary = format!("{{ name = \"{name}\", path = \"fuzz_targets/{name}.rs\" }},");
        assert!(manifest.contains(&binary), "{binary} is missing");
        let source = fs::read_to_string(folder.join(format!("fuzz_targets/{name}.rs"))).unwrap();
        assert_eq!(source, format!("#![no_main]\nsconce_fuzz::fuzz_target!(\"{name}\");\n"));
    }
    assert_eq!(names(&folder.join("fuzz_targets")).len(), TARGETS.len());
}

/// A safetensors file with a damaged header; in three of four cases, the length of the header is correct.
fn damaged_header(rng: &mut ChaCha8Rng, bytes: &[u8]) -> Vec<u8> {
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().unwrap()) as usize;
    if rng.random_ratio(1, 4) {
        let mut damaged = damaged(rng, &[bytes[..8 + length].to_vec()]);
        damaged.extend(&rest[length..]);
        return damaged;
    }
    let header = serde_json::from_slice(&rest[..length]).unwrap();
    let header = damaged_json(rng, header).to_string();
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &rest[length..]].concat()
}

/// The `damage` of a target whose seeds are safetensors files.
fn damaged_header_of_seed(rng: &mut ChaCha8Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let i = rng.random_range(0..seeds.len());
    damaged_header(rng, &seeds[i])
}

#[test]
fn damaged_safetensors_headers_are_parsed_or_refused() {
    let seeds = ["bert-tiny", "albert", "gte"].map(|model| {
        let path = fixture(model).join("model.safetensors");
        fs::read(path).unwrap()
    });
    fuzz("safetensors_header", &seeds, CASES, damaged_header_of_seed);
}

#[test]
fn damaged_pytorch_checkpoints_are_parsed_or_refused() {
    // Most of a checkpoint is weights: those of the dtypes are mostly pickles and the archive's directory.
    // The older format has a reader of its own.
    let seeds = ["dtypes.bin", "legacy-dtypes.bin", "strided.bin"];
    let seeds = seeds.map(|name| fs::read(fixture("pytorch").join(name)).unwrap());
    fuzz("pytorch_checkpoint", &seeds, CASES, damaged_seed);
}

#[test]
fn models_with_damaged_weights_run_or_are_refused() {
    let models = ["bert-tiny", "albert", "gte"].map(fixture);
    fuzz_models("weights", 1, &models, |name| name == "model.safetensors", damaged_header);
}

#[test]
fn damaged_safetensors_indexes_are_parsed_or_refused() {
    let index =
        |map: Value| json!({"metadata": {"total_size": 12}, "weight_map": map}).to_string().into_bytes();
    let (first, second) = ("first.safetensors", "second.safetensors");
    let seeds = [json!({"a": first, "b": first, "c": second}), json!({"c": second}), json!({})].map(index);
    fuzz("safetensors_index", &seeds, CASES, damaged_seed);
}

#[test]
fn models_with_a_damaged_safetensors_index_run_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("bert-tiny"), folder.path());
    let weights = fs::read(folder.path().join("model.safetensors")).unwrap();
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&weights).unwrap().tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let mut map = BTreeMap::new();
    for (i, part) in tensors.chunks(tensors.len() / 2 + 1).enumerate() {
        let name = format!("model-{:05}-of-00002.safetensors", i + 1);
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.clone())));
        fs::write(folder.path().join(name), safetensors::serialize(part.to_vec(), None).unwrap()).unwrap();
    }
    let index = json!({"metadata": {"total_size": weights.len()}, "weight_map": map});
    fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    let models = [folder.path().to_owned()];
    fuzz_models("index", 2, &models, |name| name.ends_with(".index.json"), damaged_file);
}

#[test]
fn damaged_configs_are_parsed_or_refused() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    fuzz("config", &seeds(&configs, |name| name.ends_with(".json")), 10 * CASES, damaged_seed);
}

#[test]
fn models_with_a_damaged_config_run_or_are_refused() {
    let models =
        ["bert-tiny", "roberta", "deberta-v2", "modernbert", "gte", "nomic-bert", "jina-embeddings-v3"];
    fuzz_models("config", 1, &models.map(fixture), |name| name == "config.json", damaged_file);
}

#[test]
fn damaged_files_of_modules_are_parsed_or_refused() {
    let fuzz_files = |(name, end): (&str, &str)| {
        fuzz(name, &seeds(&fixture("pipelines"), |path| path.ends_with(end)), CASES, damaged_seed)
    };
    [
        ("modules", "/modules.json"),
        ("model_settings", "/config_sentence_transformers.json"),
        ("transformer_config", "/sentence_bert_config.json"),
        ("pooling_config", "_Pooling/config.json"),
        ("dense_config", "_Dense/config.json"),
        ("layer_norm_config", "_LayerNorm/config.json"),
        ("normalize_config", "_Normalize/config.json"),
    ]
    .into_iter()
    .for_each(fuzz_files);
}

#[test]
fn models_with_damaged_modules_run_or_are_refused() {
    let mut models: Vec<_> = names(&fixture("pipelines"))
        .iter()
        .filter_map(|name| name.strip_suffix("/modules.json"))
        .map(|name| fixture("pipelines").join(name))
        .collect();
    models.push(fixture("bert-tiny"));
    let is_config = |name: &str| {
        name.ends_with(".json")
            && (name.contains('/') || name == "modules.json" || name.contains("sentence_"))
    };
    fuzz_models("modules", 1, &models, is_config, damaged_file);
    let is_weights = |name: &str| name.contains('/') && name.ends_with(".safetensors");
    fuzz_models("weights of modules", 4, &models, is_weights, damaged_header);
}

#[test]
fn damaged_files_of_a_tokenizer_are_parsed_or_refused() {
    let fuzz_files = |(name, end): (&str, &str)| {
        fuzz(name, &seeds(&fixture("tokenizers"), |path| path.ends_with(end)), CASES, damaged_seed)
    };
    [
        ("tokenizer_json", "/tokenizer.json"),
        ("vocab_txt", "/vocab.txt"),
        ("vocab_json", "/vocab.json"),
        ("merges_txt", "/merges.txt"),
        ("sentence_piece", ".model"),
        ("tokenizer_config", "/tokenizer_config.json"),
        ("special_tokens_map", "/special_tokens_map.json"),
        ("added_tokens", "/added_tokens.json"),
    ]
    .into_iter()
    .for_each(fuzz_files);
}

#[test]
fn damaged_chat_templates_render_or_are_refused() {
    let mut templates = seeds(&fixture("causal-rerankers"), |path| path.ends_with("/chat_template.jinja"));
    // Chains and nested expressions. What takes memory without end is rendered in processes of its own:
    // causal_rerankers.
    templates.extend(
        ["+1", "~a", ".a", "|e", "()", "**a", " and a"]
            .map(|link| format!("{{{{ a{} }}}}", link.repeat(999)).into_bytes()),
    );
    templates
        .extend(["not ", "-", "(", "["].map(|open| format!("{{{{ {}a }}}}", open.repeat(999)).into_bytes()));
    templates.push(format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(9_999)).into_bytes());
    fuzz("chat_template", &templates, 4 * CASES, damaged_seed);
}

/// Any file of any tokenizer, beside the other files of that tokenizer.
#[test]
fn damaged_tokenizers_encode_or_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("tokenizers"), folder.path());
    let mut files = names(folder.path());
    files.retain(|name| name.contains('/') && !name.ends_with("goldens.json"));
    let (mut accepted, mut refused) = (0, 0);
    for case in cases(4 * CASES, 1) {
        run_case("tokenizers", case, |rng| {
            let path = folder.path().join(&files[rng.random_range(0..files.len())]);
            let intact = fs::read(&path).unwrap();
            let bytes = damaged_file(rng, &intact);
            fs::write(&path, &bytes).unwrap();
            let entry = tokenizer_in(path.parent().unwrap()).unwrap();
            let options = TokenizerOptions {
                max_length: 16,
                truncation_side: if rng.random() { TruncationSide::Left } else { TruncationSide::Right },
                pair_truncation: PairTruncation::ALL[rng.random_range(0..3)],
                lowercase: rng.random(),
            };
            *if encode_with(&entry, &options, &bytes) { &mut accepted } else { &mut refused } += 1;
            fs::write(&path, intact).unwrap();
            check_memory();
        });
    }
    eprintln!("tokenizers: {accepted} accepted, {refused} refused");
}

/// Asserts a documented exit code, and one error line if the command failed.
fn check_end(output: &Output) {
    let message = stderr(output);
    assert!(matches!(output.status.code(), Some(0..=3)), "{:?}: {message}", output.status);
    assert!(!message.contains("panicked") && !message.contains("report this as a bug"), "{message}");
    let errors = message.lines().filter(|line| line.starts_with("sconce: error: ")).count();
    assert_eq!(errors, usize::from(matches!(output.status.code(), Some(1 | 2))), "{message}");
}

/// Embeds 62 texts, one of which cannot be read, to a file in `folder`.
fn embed_texts(folder: &Path, output: &str, args: &[&str]) -> Output {
    let mut texts: String =
        (0..60).map(|i| format!("{{\"text\": \"{} {i}\"}}\n", "the wick ".repeat(i % 20))).collect();
    texts += "{\"text\": 7}\n{\"text\": \"burns\"}\n";
    let input = folder.join("texts.jsonl");
    fs::write(&input, texts).unwrap();
    let mut command = sconce();
    command.args(["embed", "--quiet", "--threads", "1", "-m"]).arg(fixture("bert-tiny")).arg("-i").arg(input);
    command.arg("-o").arg(folder.join(output)).args(args).output().unwrap()
}

/// A damaged file beside an output, and whether the damage is detected. In half of the cases, a manifest
/// loses its checksum, and damage is not detected.
fn damaged_sidecar(rng: &mut ChaCha8Rng, bytes: &[u8]) -> (Vec<u8>, bool) {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(mut manifest)) if manifest.contains_key("checksum") && rng.random() => {
            manifest.shift_remove("checksum");
            (damaged_json(rng, manifest.into()).to_string().into_bytes(), false)
        }
        _ => (damaged(rng, &[bytes.to_vec()]), true),
    }
}

#[test]
fn damaged_files_beside_an_output_are_parsed_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    for format in ["jsonl", "npy", "parquet"] {
        let (finished, stopped) = (format!("finished.{format}"), format!("stopped.{format}"));
        assert_eq!(embed_texts(folder.path(), &finished, &["--on-error", "skip"]).status.code(), Some(3));
        assert_eq!(embed_texts(folder.path(), &stopped, &["--on-error", "stop"]).status.code(), Some(1));
    }
    let seeds = |end: &str| seeds(folder.path(), |name| name.ends_with(end));
    let damage = |rng: &mut ChaCha8Rng, seeds: &[Vec<u8>]| {
        let i = rng.random_range(0..seeds.len());
        damaged_sidecar(rng, &seeds[i]).0
    };
    fuzz("manifest", &seeds(".partial.json"), CASES, damage);
    fuzz("completed_run", &seeds(".done.json"), CASES, damage);
    fuzz("ledger", &seeds(".ledger.jsonl"), CASES, damage);
    fuzz("output_metadata", &seeds(".meta.json"), CASES, damage);
}

/// A run with `--resume` refuses the damaged files of an interrupted run, or its output has the same bytes as
/// that of a run without an interruption.
#[test]
fn damaged_partial_outputs_are_resumed_to_the_same_bytes_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let run = |output: &str, args: &[&str]| embed_texts(folder.path(), output, args);
    let (mut resumed, mut refused) = (0, 0);
    for format in ["jsonl", "npy", "parquet"] {
        let (finished, stopped) = (format!("finished.{format}"), format!("stopped.{format}"));
        assert_eq!(run(&finished, &["--on-error", "skip"]).status.code(), Some(3));
        assert_eq!(run(&stopped, &["--on-error", "stop"]).status.code(), Some(1));
        let expected = fs::read(path(&finished)).unwrap();
        let partial = ["", ".json", ".ledger"].map(|suffix| path(&format!(".{stopped}.partial{suffix}")));
        let partial: Vec<_> =
            partial.into_iter().filter_map(|path| Some((fs::read(&path).ok()?, path))).collect();
        assert_eq!(partial.len(), 3, "rows, manifest and ledger");
        for case in cases(CASES, 20) {
            run_case(&format!("partial {format}"), case, |rng| {
                partial.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
                let (bytes, damaged_path) = &partial[rng.random_range(0..partial.len())];
                let (bytes, is_detected) = damaged_sidecar(rng, bytes);
                fs::write(damaged_path, bytes).unwrap();
                let output = run(&stopped, &["--resume", "--on-error", "skip"]);
                check_end(&output);
                if output.status.code() == Some(3) {
                    resumed += 1;
                    assert!(
                        !is_detected || fs::read(path(&stopped)).unwrap() == expected,
                        "{}",
                        stderr(&output)
                    );
                } else {
                    refused += 1;
                    assert!(!path(&stopped).exists(), "no output under the final name");
                }
                let _ = fs::remove_file(path(&stopped));
                let _ = fs::remove_file(path(&format!(".{stopped}.done.json")));
            });
        }
    }
    eprintln!("partial outputs: {resumed} resumed, {refused} refused");
}

/// Starts a proxy of a hub that damages one response in four; returns its URL. Each request has its own seed.
fn damaging_proxy(hub: &str, seed: u64) -> String {
    let hub = hub.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (request, client) in listener.incoming().flatten().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(1000 * seed + request as u64);
            let hub = hub.clone();
            // An error means that the client has closed the connection.
            thread::spawn(move || forward(client, &hub, &mut rng));
        }
    });
    url
}

/// Answers one request of `client` with the response of `hub`, which may be damaged.
fn forward(mut client: TcpStream, hub: &str, rng: &mut ChaCha8Rng) -> std::io::Result<()> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") && client.read(&mut byte)? == 1 {
        request.push(byte[0]);
    }
    let mut server = TcpStream::connect(hub)?;
    server.write_all(&request)?;
    let mut response = Vec::new();
    server.read_to_end(&mut response)?;
    if rng.random_ratio(1, 4) {
        let body =
            response.windows(4).position(|end| end == b"\r\n\r\n").map_or(response.len(), |end| end + 4);
        let (head, body) = response.split_at(body);
        response = match rng.random_range(0..3) {
            0 => [&damaged(rng, &[head.to_vec()]), body].concat(),
            // JSON with the right Content-Length.
            1 if serde_json::from_slice::<Value>(body).is_ok() => {
                let body = damaged_file(rng, body);
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                [head.as_bytes(), &body].concat()
            }
            _ => [head, &damaged(rng, &[body.to_vec()])].concat(),
        };
    }
    client.write_all(&response)
}

#[test]
fn downloads_from_a_damaged_hub_are_complete_or_fail() {
    const MODEL: &str = "sconce-tests/bert-tiny";
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for name in names(&fixture("bert-tiny")) {
        if !name.starts_with("goldens") {
            files.insert(name.clone(), fs::read(fixture("bert-tiny").join(name)).unwrap());
        }
    }
    let commit = "0123456789abcdef0123456789abcdef01234567".to_owned();
    let branches = BTreeMap::from([("main".to_owned(), commit)]);
    let intact_weights = files["model.safetensors"].clone();
    let (mut complete, mut failed) = (0, 0);
    for case in cases(CASES, 8) {
        run_case("hub", case, |_| {
            let (files, branches, faults) = (files.clone(), branches.clone(), BTreeMap::new());
            let hub =
                Hub::start(Site { model: MODEL.into(), files, branches, token: None, moved: None, faults });
            let endpoint = damaging_proxy(&hub.url, case);
            let home = tempfile::tempdir().unwrap();
            let mut command = sconce();
            command.args(["download", MODEL]).env_remove("HF_HUB_OFFLINE").env("HF_HOME", home.path());
            command.env("HF_ENDPOINT", &endpoint).env("HF_HUB_DOWNLOAD_TIMEOUT", "2");
            let output = command.output().unwrap();
            check_end(&output);
            if output.status.success() {
                complete += 1;
                let folder = PathBuf::from(support::stdout(&output).trim_end());
                assert!(folder.starts_with(home.path()), "{}", folder.display());
                // Damage to the weights is detected by their checksum.
                if let Ok(weights) = fs::read(folder.join("model.safetensors")) {
                    assert!(weights == intact_weights);
                }
            } else {
                failed += 1;
            }
            let outside: Vec<_> =
                names(home.path()).into_iter().filter(|name| !name.starts_with("hub/")).collect();
            assert!(outside.is_empty(), "{outside:?}");
        });
    }
    eprintln!("hub: {complete} downloads complete, {failed} failed");
}
