//! Damaged files of a model, damaged remains of an interrupted run, and damaged answers of a hub: whatever they hold, there is a
//! result or one sentence, in bounded memory. `SCONCE_FUZZ_CASES` sets the number of cases, `SCONCE_FUZZ_SEED` the first.

#[path = "support/damage.rs"]
mod damage;
#[path = "hub/server.rs"]
#[allow(dead_code, reason = "nothing is asked but its files")]
mod server;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;

use damage::{UNPRINTABLE, cases, damaged, damaged_file, damaged_json, run_case};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::SafeTensors;
use sconce::input::{At, Record, Spot};
use sconce::model::Source;
use sconce::model::config::Config;
use sconce::model::families::Family;
use sconce::output::Dtype;
use sconce::run::{Choices, Console, ModelOptions, OnLong, Verbosity, load};
use sconce::text::{Tokenizer, TokenizerOptions};
use serde_json::{Value, json};
use server::{Hub, Site};
use support::{copy_folder, fixture, sconce, stderr};

/// Cases of a target.
const CASES: u64 = 400;
/// Memory that the process may take, in KiB: reading none of these models takes a tenth of it.
const MAX_MEMORY: u64 = 1 << 20;

/// Asserts that a message is one sentence for a person; what a file has put into it is escaped when it is shown.
#[track_caller]
fn check_sentence(message: &str) {
    let message = message.replace(UNPRINTABLE, "");
    assert!(!message.is_empty() && !message.contains('\n'), "{message:?}");
    assert!(!message.contains("panicked") && !message.contains("report this as a bug"), "{message:?}");
}

/// Asserts that the process has never taken more memory than it may, where the system says it.
fn check_memory() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0);
    assert!(peak < MAX_MEMORY, "{peak} KiB of memory");
}

/// What stops a model from giving vectors, if anything does: loads it, and encodes a short and a long text.
fn try_model(folder: &Path) -> Result<(), String> {
    let source = Source {
        model: folder.display().to_string(),
        revision: "main".into(),
        offline: true,
        progress: false,
    };
    let console = Console::new(Verbosity::Quiet, false);
    let loaded = load(&ModelOptions::of(source), &console).map_err(|error| format!("{error:#}"))?;
    let choices = Choices {
        normalize: None,
        dimensions: None,
        prompt: None,
        dtype: Dtype::F32,
        on_long: OnLong::Mean,
        chunking: None,
        batch_tokens: Some(64),
    };
    let embedder = choices.embedder(loaded, &console).map_err(|error| format!("{error:#}"))?;
    for text in ["a lamp".to_owned(), "The wick burns, ünd 日本 [MASK]. ".repeat(20)] {
        let place = Spot { source: "here".into(), at: At::Whole };
        let record = Record { place, id: None, text, pair: None, kept: vec![] };
        match embedder.tokenize(&record) {
            Ok(tokens) => {
                let rows = embedder.embed(&[tokens], &embedder.encoders[0]);
                assert_eq!(rows.map_err(|error| format!("{error:#}"))?.len(), 1);
            }
            Err(unfit) => {
                let message = format!("{unfit:?}");
                assert!(!message.contains("panicked"), "{message}");
            }
        }
    }
    Ok(())
}

/// Damages one file of one of the models in each case.
fn fuzz_models(
    what: &str,
    share: u64,
    models: &[PathBuf],
    pick: fn(&str) -> bool,
    damage: fn(&mut ChaCha8Rng, &[u8]) -> Vec<u8>,
) {
    let (mut usable, mut refused) = (0, 0);
    let copies: Vec<_> = models.iter().map(|model| (tempfile::tempdir().unwrap(), model)).collect();
    let mut files = Vec::new();
    for (folder, model) in &copies {
        copy_folder(model, folder.path());
        try_model(folder.path()).unwrap();
        let names = names(folder.path());
        files.extend(names.into_iter().filter(|name| pick(name)).map(|name| (folder.path(), name)));
    }
    assert!(!files.is_empty());
    for case in cases(CASES, share) {
        run_case(what, case, |rng| {
            let (folder, name) = &files[rng.random_range(0..files.len())];
            let path = folder.join(name);
            let whole = fs::read(&path).unwrap();
            fs::write(&path, damage(rng, &whole)).unwrap();
            let result = try_model(folder);
            fs::write(&path, whole).unwrap();
            match result {
                Ok(()) => usable += 1,
                Err(message) => {
                    check_sentence(&message);
                    refused += 1;
                }
            }
            check_memory();
        });
    }
    eprintln!("{what}: {usable} models can be used, {refused} cannot");
}

/// The files of a folder, and of those in it, in order.
fn names(folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let (name, path) =
            entry.map(|entry| (entry.file_name().into_string().unwrap(), entry.path())).unwrap();
        match path.is_dir() {
            true => names.extend(self::names(&path).into_iter().map(|inner| format!("{name}/{inner}"))),
            false => names.push(name),
        }
    }
    names.sort();
    names
}

/// A safetensors file with a damaged header, whose length is right in most cases.
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

#[test]
fn weights() {
    let models = ["bert-tiny", "albert", "gte"].map(fixture);
    fuzz_models("weights", 1, &models, |name| name == "model.safetensors", damaged_header);
}

#[test]
fn weights_in_shards() {
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
fn configs() {
    let models =
        ["bert-tiny", "roberta", "deberta-v2", "modernbert", "gte", "nomic-bert", "jina-embeddings-v3"];
    fuzz_models("config", 1, &models.map(fixture), |name| name == "config.json", damaged_file);
}

/// Every config there is, without weights to compare its sizes with.
#[test]
fn specs_of_configs() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let (mut paths, mut valid) = (names(&configs), 0);
    paths.retain(|name| name.ends_with(".json"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for case in cases(10 * CASES, 1) {
        run_case("specs", case, |rng| {
            let whole = fs::read(configs.join(&paths[rng.random_range(0..paths.len())])).unwrap();
            fs::write(&path, damaged_file(rng, &whole)).unwrap();
            let spec = Config::read(&path).and_then(|config| Family::of(&config)?.spec(&config));
            match spec {
                Ok(_) => valid += 1,
                Err(error) => check_sentence(&format!("{error:#}")),
            }
            check_memory();
        });
    }
    eprintln!("specs: {valid} are valid");
}

#[test]
fn modules() {
    let mut models: Vec<_> = names(&fixture("pipelines"))
        .iter()
        .filter_map(|name| name.strip_suffix("/modules.json"))
        .map(|name| fixture("pipelines").join(name))
        .collect();
    models.push(fixture("bert-tiny"));
    let is_of_modules = |name: &str| {
        name.ends_with(".json")
            && (name.contains('/') || name == "modules.json" || name.contains("sentence_"))
    };
    fuzz_models("modules", 1, &models, is_of_modules, damaged_file);
    let is_of_head = |name: &str| name.contains('/') && name.ends_with(".safetensors");
    fuzz_models("weights of modules", 4, &models, is_of_head, damaged_header);
}

/// The files of every tokenizer there is: `tokenizer.json`, or a vocabulary with what stands beside it.
#[test]
fn tokenizers() {
    let folder = tempfile::tempdir().unwrap();
    copy_folder(&fixture("tokenizers"), folder.path());
    let mut files = names(folder.path());
    files.retain(|name| name.contains('/') && !name.ends_with("goldens.json"));
    let (mut usable, mut refused) = (0, 0);
    for case in cases(4 * CASES, 1) {
        run_case("tokenizers", case, |rng| {
            let path = folder.path().join(&files[rng.random_range(0..files.len())]);
            let whole = fs::read(&path).unwrap();
            fs::write(&path, damaged_file(rng, &whole)).unwrap();
            let entry = ["tokenizer.json", "vocab.txt", "vocab.json"]
                .map(|name| path.with_file_name(name))
                .into_iter()
                .find(|path| path.exists())
                .unwrap();
            let options =
                TokenizerOptions { max_length: 16, cut_left: rng.random(), lowercase: rng.random() };
            match Tokenizer::read(&entry, &options) {
                Ok(tokenizer) => {
                    usable += 1;
                    for (text, pair) in [("", None), ("a lamp, ünd 日本 [MASK] <s>", Some("b ".repeat(40)))]
                    {
                        match tokenizer.encode(text, pair.as_deref()) {
                            Ok(tokens) => assert_eq!(tokens.ids.len(), tokens.type_ids.len()),
                            Err(error) => check_sentence(&format!("{error:#}")),
                        }
                        let _ = tokenizer.prompt_length(text);
                    }
                }
                Err(error) => {
                    refused += 1;
                    let message = format!("{error:#}");
                    check_sentence(&message);
                    assert!(message.contains(&*folder.path().to_string_lossy()), "{message:?} names no file");
                }
            }
            fs::write(&path, whole).unwrap();
            check_memory();
        });
    }
    eprintln!("tokenizers: {usable} can be used, {refused} cannot");
}

/// Asserts that a command has ended as it may, with one sentence if it failed.
fn check_end(output: &Output) {
    let message = stderr(output);
    assert!(matches!(output.status.code(), Some(0..=3)), "{:?}: {message}", output.status);
    assert!(!message.contains("panicked") && !message.contains("report this as a bug"), "{message}");
    let errors = message.lines().filter(|line| line.starts_with("sconce: error: ")).count();
    assert_eq!(errors, usize::from(matches!(output.status.code(), Some(1 | 2))), "{message}");
}

/// What an interrupted run has left, with damage: the next run refuses it, or ends in the very bytes of a run that was never
/// interrupted.
#[test]
fn remains_of_an_interrupted_run() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut texts: String =
        (0..60).map(|i| format!("{{\"text\": \"{} {i}\"}}\n", "the wick ".repeat(i % 20))).collect();
    texts += "{\"text\": 7}\n{\"text\": \"burns\"}\n";
    fs::write(path("texts.jsonl"), texts).unwrap();
    let run = |output: &str, args: &[&str]| {
        let mut command = sconce();
        command.args(["embed", "--quiet", "--threads", "1", "-m"]).arg(fixture("bert-tiny")).arg("-i");
        command.arg(path("texts.jsonl")).arg("-o").arg(path(output)).args(args).output().unwrap()
    };
    let (mut resumed, mut refused) = (0, 0);
    for format in ["jsonl", "npy", "parquet"] {
        let (whole, broken) = (format!("whole.{format}"), format!("broken.{format}"));
        assert_eq!(run(&whole, &["--on-error", "skip"]).status.code(), Some(3));
        assert_eq!(run(&broken, &["--on-error", "stop"]).status.code(), Some(1));
        let expected = fs::read(path(&whole)).unwrap();
        let remains = ["", ".json", ".ledger"].map(|suffix| path(&format!(".{broken}.partial{suffix}")));
        let remains: Vec<_> =
            remains.into_iter().filter_map(|path| Some((fs::read(&path).ok()?, path))).collect();
        assert_eq!(remains.len(), 3, "rows, manifest and ledger");
        for case in cases(CASES, 20) {
            run_case(&format!("remains in {format}"), case, |rng| {
                remains.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
                let (bytes, damaged_path) = &remains[rng.random_range(0..remains.len())];
                let is_manifest = damaged_path.extension().is_some_and(|suffix| suffix == "json");
                let mut vouched = true;
                let bytes = match serde_json::from_slice::<Value>(bytes) {
                    // Without the checksum, what the manifest says is believed.
                    Ok(mut manifest) if is_manifest && rng.random() => {
                        manifest.as_object_mut().unwrap().shift_remove("checksum");
                        vouched = false;
                        damaged_json(rng, manifest).to_string().into_bytes()
                    }
                    _ => damaged(rng, std::slice::from_ref(bytes)),
                };
                fs::write(damaged_path, bytes).unwrap();
                let output = run(&broken, &["--resume", "--on-error", "skip"]);
                check_end(&output);
                if output.status.code() == Some(3) {
                    resumed += 1;
                    assert!(!vouched || fs::read(path(&broken)).unwrap() == expected, "{}", stderr(&output));
                } else {
                    refused += 1;
                    assert!(!path(&broken).exists(), "nothing is left under the final name");
                }
                let _ = fs::remove_file(path(&broken));
                let _ = fs::remove_file(path(&format!(".{broken}.done.json")));
            });
        }
    }
    eprintln!("remains: {resumed} were resumed, {refused} were refused");
}

/// Passes requests on to a hub, and damages some of its answers. Each request has damage of its own.
fn damaging_proxy(hub: &str, seed: u64) -> String {
    let hub = hub.strip_prefix("http://").unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (request, client) in listener.incoming().flatten().enumerate() {
            let mut rng = ChaCha8Rng::seed_from_u64(1000 * seed + request as u64);
            let hub = hub.clone();
            // A client that goes away is no fault of the proxy.
            thread::spawn(move || pass(client, &hub, &mut rng));
        }
    });
    url
}

fn pass(mut client: TcpStream, hub: &str, rng: &mut ChaCha8Rng) -> std::io::Result<()> {
    let (mut request, mut byte) = (Vec::new(), [0]);
    while !request.ends_with(b"\r\n\r\n") && client.read(&mut byte)? == 1 {
        request.push(byte[0]);
    }
    let mut server = TcpStream::connect(hub)?;
    server.write_all(&request)?;
    let mut answer = Vec::new();
    server.read_to_end(&mut answer)?;
    if rng.random_ratio(1, 4) {
        let body = answer.windows(4).position(|end| end == b"\r\n\r\n").map_or(answer.len(), |end| end + 4);
        let (head, body) = answer.split_at(body);
        answer = match rng.random_range(0..3) {
            0 => [&damaged(rng, &[head.to_vec()]), body].concat(),
            // As JSON, with a length that is right.
            1 if serde_json::from_slice::<Value>(body).is_ok() => {
                let body = damaged_file(rng, body);
                let head =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
                [head.as_bytes(), &body].concat()
            }
            _ => [head, &damaged(rng, &[body.to_vec()])].concat(),
        };
    }
    client.write_all(&answer)
}

#[test]
fn answers_of_a_hub() {
    const MODEL: &str = "sconce-tests/bert-tiny";
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for name in names(&fixture("bert-tiny")) {
        if !name.starts_with("goldens") {
            files.insert(name.clone(), fs::read(fixture("bert-tiny").join(name)).unwrap());
        }
    }
    let commit = "0123456789abcdef0123456789abcdef01234567".to_owned();
    let branches = BTreeMap::from([("main".to_owned(), commit)]);
    let whole_weights = files["model.safetensors"].clone();
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
                // The weights are known by their checksum, wherever they come from.
                if let Ok(weights) = fs::read(folder.join("model.safetensors")) {
                    assert!(weights == whole_weights);
                }
            } else {
                failed += 1;
            }
            let outside: Vec<_> =
                names(home.path()).into_iter().filter(|name| !name.starts_with("hub/")).collect();
            assert!(outside.is_empty(), "{outside:?}");
        });
    }
    eprintln!("hub: {complete} downloads are complete, {failed} have failed");
}
