//! What has the name of a file that Sconce makes but is none is neither followed, written, nor waited for;
//! and outputs replace no file that a run reads.
#![cfg(unix)]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::packed_weights::large_model;
use crate::support::server::{Hub, Site};
use crate::support::{assert_fails, copy_folder, fixture, sconce, stderr};

/// A user that no test runs as.
const OTHER_USER: u32 = 12_345;
/// A run that takes longer waits for a pipe or reads without an end.
const LIMIT: Duration = Duration::from_secs(60);
/// The content of files of others: of a kind that Sconce takes for a ledger, and for metadata.
const CONTENT: &str =
    "{\"index\":0,\"file\":\"a\",\"event\":\"failed\",\"reason\":\"\",\"release\":\"none\"}\n";

/// What may have the name of a file that Sconce makes.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Planted {
    Link,
    DanglingLink,
    Device,
    HardLink,
    Pipe,
    FileOfAnotherUser,
}

const ALL: [Planted; 6] = [
    Planted::Link,
    Planted::DanglingLink,
    Planted::Device,
    Planted::HardLink,
    Planted::Pipe,
    Planted::FileOfAnotherUser,
];

/// A planted file, and what it could be used to write to.
struct Plant {
    victim: PathBuf,
    /// The victim, whatever has its name after the run.
    open: Option<File>,
    missing: PathBuf,
}

impl Plant {
    /// Plants a file; `None` if only root could.
    fn new(kind: Planted, path: &Path, folder: &Path) -> Option<Self> {
        let [victim, missing] = ["victim", "missing"].map(|name| folder.join(name));
        let _ = fs::remove_file(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&victim, CONTENT).unwrap();
        let mut open = Some(File::open(&victim).unwrap());
        match kind {
            Planted::Link => symlink(&victim, path).unwrap(),
            Planted::DanglingLink => symlink(&missing, path).unwrap(),
            Planted::Device => symlink("/dev/zero", path).unwrap(),
            Planted::HardLink => fs::hard_link(&victim, path).unwrap(),
            Planted::Pipe => assert!(Command::new("mkfifo").arg(path).status().unwrap().success()),
            Planted::FileOfAnotherUser => {
                fs::write(path, CONTENT).unwrap();
                open = Some(File::open(path).unwrap());
                if chown(path, Some(OTHER_USER), None).is_err() {
                    return None;
                }
            }
        }
        Some(Plant { victim, open, missing })
    }

    /// Asserts that nothing was written through the planted file.
    fn assert_untouched(mut self, what: &str) {
        let mut content = String::new();
        self.open.take().unwrap().read_to_string(&mut content).unwrap();
        assert_eq!(content, CONTENT, "{what}");
        assert_eq!(fs::read_to_string(&self.victim).unwrap(), CONTENT, "{what}");
        assert!(!self.missing.exists(), "{what}: a file was made where a dangling link leads");
    }
}

/// Runs a command, which must end by itself, with success or one sentence.
fn run(command: &mut Command, what: &str) -> Output {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            panic!("{what}: the run does not end");
        }
        thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    match output.status.code() {
        Some(0 | 3) => {}
        Some(code) => assert_fails(&output, code, &[]),
        None => panic!("{what}: {}", stderr(&output)),
    }
    output
}

/// A folder with an input, one of whose records cannot be read.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("in.jsonl"), "{\"text\": \"the lamp\"}\n7\n{\"text\": \"the wick\"}\n")
        .unwrap();
    folder
}

fn embed(folder: &Path, output: &str, args: &[&str]) -> Command {
    let mut command = sconce();
    command.current_dir(folder).args(["embed", "-q", "-i", "in.jsonl", "--on-error", "skip", "-o", output]);
    command.arg("-m").arg(fixture("bert-tiny")).args(args);
    command
}

/// Every file beside an output, with an output that uses it.
const BESIDE_OUTPUTS: &[(&str, &str)] = &[
    ("out.npy", ".out.npy.partial.lock"),
    ("out.npy", ".out.npy.partial"),
    ("out.parquet", ".out.parquet.partial.whole"),
    ("out.npy", ".out.npy.partial.json"),
    ("out.npy", ".out.npy.partial.json.new"),
    ("out.npy", ".out.npy.partial.ledger"),
    ("out.npy", "out.npy.ledger.jsonl"),
    ("out.npy", "out.npy.meta.json"),
    ("out.npy", ".out.npy.meta.json.new"),
    ("out.npy", ".out.npy.done.json"),
    ("out.npy", ".out.npy.done.json.new"),
];

#[test]
fn files_beside_an_output_are_not_followed() {
    let reference = folder();
    for output in ["out.npy", "out.parquet"] {
        assert_eq!(run(&mut embed(reference.path(), output, &[]), output).status.code(), Some(3));
    }
    for (output, name) in BESIDE_OUTPUTS {
        for kind in ALL {
            for start in ["--resume", "--restart"] {
                let what = format!("{kind:?} {name} {start}");
                let folder = folder();
                let Some(plant) = Plant::new(kind, &folder.path().join(name), folder.path()) else {
                    continue;
                };
                let done = run(&mut embed(folder.path(), output, &[start]), &what);
                plant.assert_untouched(&what);
                let written = fs::read(folder.path().join(output)).ok();
                if done.status.success() || done.status.code() == Some(3) {
                    assert!(written == fs::read(reference.path().join(output)).ok(), "{what}: other rows");
                } else {
                    assert!(stderr(&done).contains(name), "{what}: {}", stderr(&done));
                    assert!(written.is_none(), "{what}");
                }
            }
        }
    }
}

/// The files of an interrupted run: a run that is resumed reads them, and writes on.
#[test]
fn an_interrupted_run_is_resumed_from_own_files_only() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let text = "{\"text\": \"the wick burns in the lamp\"}\n7\n".repeat(40_000);
    fs::write(at("in.jsonl"), text).unwrap();
    let mut child = embed(folder.path(), "out.jsonl", &["--threads", "1"]).spawn().unwrap();
    let start = Instant::now();
    while fs::read_to_string(at(".out.jsonl.partial.json"))
        .is_ok_and(|manifest| manifest.contains("\"rows\": 0,"))
        || !at(".out.jsonl.partial.json").exists()
    {
        assert!(start.elapsed() < LIMIT && child.try_wait().unwrap().is_none(), "the run saves rows");
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    for name in [".out.jsonl.partial", ".out.jsonl.partial.json", ".out.jsonl.partial.ledger"] {
        for kind in [Planted::Link, Planted::HardLink, Planted::FileOfAnotherUser] {
            let what = format!("{kind:?} {name}");
            let saved = fs::read(at(name)).unwrap();
            fs::rename(at(name), at("saved")).unwrap();
            match kind {
                Planted::Link => symlink("saved", at(name)).unwrap(),
                Planted::HardLink => fs::hard_link(at("saved"), at(name)).unwrap(),
                _ => {
                    fs::copy(at("saved"), at(name)).unwrap();
                    if chown(at(name), Some(OTHER_USER), None).is_err() {
                        fs::rename(at("saved"), at(name)).unwrap();
                        continue;
                    }
                }
            }
            let output = run(&mut embed(folder.path(), "out.jsonl", &["--resume"]), &what);
            assert_fails(&output, 1, &[name]);
            assert!(fs::read(at("saved")).unwrap() == saved, "{what}");
            fs::rename(at("saved"), at(name)).unwrap();
            // Renaming a hard link to the other name of its file does nothing.
            let _ = fs::remove_file(at("saved"));
        }
    }
    let resumed = run(&mut embed(folder.path(), "out.jsonl", &["--resume"]), "resumed");
    assert_eq!(resumed.status.code(), Some(3), "{}", stderr(&resumed));
}

#[test]
fn append_replaces_no_file_of_the_user() {
    for format in ["jsonl", "parquet"] {
        let output = format!("out.{format}");
        let append = |folder: &TempDir, text: &str| {
            let input = format!("{}{{\"text\": \"{text}\"}}\n", "{\"text\": \"the lamp\"}\n");
            fs::write(folder.path().join("in.jsonl"), input).unwrap();
            run(&mut embed(folder.path(), &output, &["--append"]), text)
        };
        // A file of the user beside the output has any other name.
        let folder = folder();
        assert!(append(&folder, "one").status.success());
        let name = format!("{output}.append");
        fs::write(folder.path().join(&name), "mine").unwrap();
        assert!(append(&folder, "two").status.success());
        assert_eq!(fs::read_to_string(folder.path().join(&name)).unwrap(), "mine");
        // The output is no file for anything else.
        let before = fs::read(folder.path().join(&output)).unwrap();
        for (args, reason) in
            [(["--append", "--stats", &output], "--stats"), (["--append", "--input", &output], "--output")]
        {
            let mut command = sconce();
            command.current_dir(&folder).args(["embed", "-q", "-o", &output]).args(args);
            command.args(if reason == "--stats" { ["-i", "in.jsonl"] } else { ["--text-field", "id"] });
            let refused = run(command.arg("-m").arg(fixture("bert-tiny")), reason);
            assert_fails(&refused, 2, &[reason, &output, "is also the"]);
            assert!(fs::read(folder.path().join(&output)).unwrap() == before, "{reason}");
        }
        // Nothing that is not of an interrupted run is replaced, under the name of the new rows either.
        let hidden = format!(".{name}");
        for kind in ALL {
            let Some(plant) = Plant::new(kind, &folder.path().join(&hidden), folder.path()) else { continue };
            let refused = append(&folder, "three");
            assert_fails(&refused, 1, &["--append writes new rows to", &hidden, "move it"]);
            plant.assert_untouched(&hidden);
            assert!(fs::read(folder.path().join(&output)).unwrap() == before);
        }
        fs::remove_file(folder.path().join(&hidden)).unwrap();
        fs::write(folder.path().join(&hidden), "mine").unwrap();
        assert_fails(&append(&folder, "three"), 1, &[&hidden, "is not that of an interrupted run"]);
        fs::remove_file(folder.path().join(&hidden)).unwrap();
        assert!(append(&folder, "three").status.success());
    }
}

/// The warning names the ledger that is there after the run, and records without rows are in it.
#[test]
fn append_names_the_ledger_of_the_output() {
    let folder = folder();
    let ledger = folder.path().join("out.jsonl.ledger.jsonl");
    let append = |line: &str| {
        let mut input = File::options().append(true).open(folder.path().join("in.jsonl")).unwrap();
        std::io::Write::write_all(&mut input, line.as_bytes()).unwrap();
        let mut command = sconce();
        command.current_dir(&folder).args(["embed", "-i", "in.jsonl", "--on-error", "skip", "--append"]);
        command.args(["-o", "out.jsonl", "-m"]).arg(fixture("bert-tiny"));
        run(&mut command, line)
    };
    for (line, entries) in [("", 1), ("{\"text\": \"new\"}\n8\n", 2), ("9\n", 3)] {
        let output = append(line);
        assert_eq!(output.status.code(), Some(3));
        let message = stderr(&output);
        assert!(message.contains("out.jsonl.ledger.jsonl") && !message.contains(".append"), "{message}");
        assert_eq!(fs::read_to_string(&ledger).unwrap().lines().count(), entries, "{line}");
    }
}

#[test]
fn rows_of_a_cache_are_not_followed() {
    let rows = |cache: &Path| -> PathBuf { fs::read_dir(cache).unwrap().next().unwrap().unwrap().path() };
    for kind in ALL {
        let folder = folder();
        let cache = folder.path().join("cache");
        assert_eq!(
            run(&mut embed(folder.path(), "a.npy", &["--cache", "cache"]), "first").status.code(),
            Some(3)
        );
        for name in ["0.rows", "1.rows"] {
            let path = rows(&cache).join(name);
            let Some(plant) = Plant::new(kind, &path, folder.path()) else { continue };
            let output = run(&mut embed(folder.path(), "b.npy", &["--cache", "cache"]), name);
            assert_fails(&output, 1, &["cannot use the cache", name, "--cache"]);
            plant.assert_untouched(name);
            fs::remove_file(&path).unwrap();
            embed(folder.path(), "a.npy", &["--cache", "cache", "--restart"]).output().unwrap();
        }
    }
}

/// Files of so many processes that not all can be open at a time.
#[test]
fn a_cache_of_many_files_needs_few_descriptors() {
    let folder = folder();
    let first = embed(folder.path(), "a.npy", &["--cache", "cache"]).output().unwrap();
    assert_eq!(first.status.code(), Some(3), "{}", stderr(&first));
    let rows = fs::read_dir(folder.path().join("cache")).unwrap().next().unwrap().unwrap().path();
    let [mut entries, empty] = [fs::read(rows.join("0.rows")).unwrap(), Vec::new()];
    for index in 1..300 {
        fs::write(rows.join(format!("{index}.rows")), &empty).unwrap();
    }
    // The rows are in the last file.
    fs::write(rows.join("299.rows"), &entries).unwrap();
    entries.clear();
    fs::write(rows.join("0.rows"), &entries).unwrap();
    let mut limited = Command::new("bash");
    limited
        .current_dir(&folder)
        .args(["-c", "ulimit -n 256 && exec \"$@\"", "-"])
        .arg(env!("CARGO_BIN_EXE_sconce"));
    limited.args(["embed", "-q", "-i", "in.jsonl", "--on-error", "skip", "-o", "b.npy", "--cache", "cache"]);
    limited.args(["--stats", "stats.json", "-m"]).arg(fixture("bert-tiny"));
    assert_eq!(run(&mut limited, "limited").status.code(), Some(3));
    let stats = fs::read_to_string(folder.path().join("stats.json")).unwrap();
    assert!(stats.contains("\"cached\": 2"), "{stats}");
    assert!(fs::read(folder.path().join("a.npy")).unwrap() == fs::read(folder.path().join("b.npy")).unwrap());
}

/// Digests and packed weights: what is not a file of this user alone is not read, and the run does without.
#[test]
fn digests_and_packed_weights_are_own_files() {
    let folder = tempfile::tempdir().unwrap();
    let model = large_model(folder.path());
    let embed = |cache: &Path| {
        let mut command = sconce();
        command.args(["embed", "-q", "a lamp", "-m"]).arg(&model).env("SCONCE_CACHE", cache);
        run(&mut command, "embed").stdout
    };
    let entries = |cache: &Path, folder: &str| -> Vec<PathBuf> {
        fs::read_dir(cache.join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    let cache = folder.path().join("cache");
    // Files are kept once their time of change is a few seconds ago.
    thread::sleep(Duration::from_secs(4));
    let expected = embed(&cache);
    for kind in ALL {
        for files in ["digests", "weights"] {
            for path in entries(&cache, files) {
                let what = format!("{kind:?} {files}");
                let Some(plant) = Plant::new(kind, &path, folder.path()) else { continue };
                assert!(embed(&cache) == expected, "{what}");
                plant.assert_untouched(&what);
                assert!(
                    fs::symlink_metadata(&path).unwrap().is_file(),
                    "{what}: replaced by a file of its own"
                );
            }
        }
    }
    // A file that others may write to could have other matrices, with their checksum.
    let [weights] = &entries(&cache, "weights")[..] else { panic!("one file") };
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let [before, permissions] = [inode(weights), 0o666];
    assert!(embed(&cache) == expected && inode(weights) == before, "an own file is not written again");
    fs::set_permissions(weights, std::os::unix::fs::PermissionsExt::from_mode(permissions as u32)).unwrap();
    assert!(embed(&cache) == expected);
    assert_ne!(inode(weights), before, "written again");
}

/// Every file that a download makes in the cache of the hub.
#[test]
fn files_of_a_download_are_not_followed() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let names =
        ["config.json", "model.safetensors", "modules.json", "1_Pooling/config.json", "tokenizer.json"];
    let read = |name: &&str| ((*name).to_owned(), fs::read(fixture("bert-tiny").join(name)).unwrap());
    let hub = Hub::start(Site {
        model: "sconce-tests/tiny".into(),
        files: names.iter().map(read).collect(),
        branches: BTreeMap::from([("main".to_owned(), COMMIT.to_owned())]),
        token: None,
        moved: None,
        faults: BTreeMap::new(),
    });
    let download = |home: &Path| {
        let mut command = sconce();
        command.args(["download", "sconce-tests/tiny"]).env("HF_HOME", home).env("HF_ENDPOINT", &hub.url);
        command.env_remove("HF_HUB_OFFLINE");
        run(&mut command, "download")
    };
    let model = Path::new("hub/models--sconce-tests--tiny");
    let clean = tempfile::tempdir().unwrap();
    assert!(download(clean.path()).status.success());
    let files = |folder: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(clean.path().join(model).join(folder)).unwrap();
        entries.map(|entry| Path::new(folder).join(entry.unwrap().file_name())).collect()
    };
    let blobs = files("blobs");
    let weights = blobs.iter().find(|name| name.as_os_str().len() == 6 + 64).unwrap();
    let absent = files(&format!(".no_exist/{COMMIT}"));
    let paths = [
        weights.clone(),
        weights.with_extension("part"),
        weights.with_extension("lock"),
        "refs/main".into(),
        format!("snapshots/{COMMIT}/config.json").into(),
        absent[0].clone(),
    ];
    for kind in ALL {
        for path in &paths {
            let what = format!("{kind:?} {}", path.display());
            let home = tempfile::tempdir().unwrap();
            let Some(plant) = Plant::new(kind, &home.path().join(model).join(path), home.path()) else {
                continue;
            };
            let done = download(home.path());
            plant.assert_untouched(&what);
            if done.status.success() && !path.starts_with("snapshots") {
                let blob = fs::read(home.path().join(model).join(weights)).unwrap();
                assert!(blob == fs::read(fixture("bert-tiny/model.safetensors")).unwrap(), "{what}");
            }
        }
    }
}

/// Each command that writes a file, with the options that name it.
#[test]
fn no_output_replaces_a_file_of_the_model_or_an_input() {
    let folder = folder();
    let model = folder.path().join("model");
    copy_folder(&fixture("bert-tiny"), &model);
    fs::write(folder.path().join("vectors.npy"), fs::read(fixture("search/f32.npy")).unwrap()).unwrap();
    let made = embed(folder.path(), "rows.jsonl", &[]).output().unwrap();
    assert_eq!(made.status.code(), Some(3), "{}", stderr(&made));
    let made = embed(folder.path(), "rows.npy", &[]).output().unwrap();
    assert_eq!(made.status.code(), Some(3), "{}", stderr(&made));
    let contents = || -> Vec<Vec<u8>> {
        ["model/config.json", "model/tokenizer.json", "vectors.npy", "rows.jsonl", "in.jsonl"]
            .iter()
            .map(|name| fs::read(folder.path().join(name)).unwrap())
            .collect()
    };
    let before = contents();
    symlink("model/config.json", folder.path().join("link.json")).unwrap();
    let of_model = "is also a file of the model";
    let cases: &[(&[&str], &str)] = &[
        (&["attend", "a lamp", "--output-format", "json", "-m", "model", "-o"], of_model),
        (&["search", "rows.npy", "a lamp", "--output-format", "jsonl", "-m", "model", "-o"], of_model),
        (&["embed", "a", "--output-format", "jsonl", "-m", "model", "-o"], of_model),
        (&["embed", "a", "-m", "model", "--stats"], of_model),
        (&["classify", "a", "--output-format", "jsonl", "-m", "model", "-o"], ""),
    ];
    for (args, reason) in cases {
        for path in ["model/config.json", "model/tokenizer.json", "model/vocab.txt", "link.json"] {
            let output = run(sconce().current_dir(&folder).args(*args).arg(path), path);
            assert!(!output.status.success(), "{args:?} {path}");
            if !reason.is_empty() {
                assert_fails(
                    &output,
                    2,
                    &[path.rsplit('/').next().unwrap().trim_start_matches("link"), reason],
                );
            }
            assert!(
                contents() == before && !folder.path().join("model/vocab.txt").exists(),
                "{args:?} {path}"
            );
        }
    }
    for args in [
        &[
            "search",
            "vectors.npy",
            "--queries",
            "vectors.npy",
            "--output-format",
            "jsonl",
            "-o",
            "vectors.npy",
        ][..],
        &["pairs", "vectors.npy", "--output-format", "jsonl", "-o", "vectors.npy"],
        &["merge", "rows.jsonl", "rows.jsonl"],
    ] {
        let output = run(sconce().current_dir(&folder).args(args), args[0]);
        assert_fails(&output, 2, &["is also", "input", "choose another path"]);
        assert!(contents() == before, "{args:?}");
    }
}

/// Lists of ignored files are read before any file of a directory.
#[test]
fn lists_of_ignored_files_are_regular_files() {
    for name in [".gitignore", ".ignore", "below/.gitignore", ".git/info/exclude"] {
        for kind in [Planted::Device, Planted::Pipe] {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir(folder.path().join("below")).unwrap();
            for text in ["a.txt", "below/b.txt"] {
                fs::write(folder.path().join(text), "the lamp\n").unwrap();
            }
            let _plant = Plant::new(kind, &folder.path().join(name), folder.path()).unwrap();
            fs::remove_file(folder.path().join("victim")).unwrap();
            let embed = |args: &[&str]| {
                let mut command = sconce();
                command.args(["embed", "-q", "-i"]).arg(folder.path()).args(args).arg("-m");
                run(command.arg(fixture("bert-tiny")), name)
            };
            assert_fails(&embed(&[]), 2, &[name, "is not a regular file", "--no-ignore"]);
            assert!(embed(&["--no-ignore"]).status.success());
        }
    }
}

/// A token or a reference that is a pipe or a device is not waited for.
#[test]
fn tokens_and_references_are_regular_files() {
    for kind in [Planted::Device, Planted::Pipe] {
        let home = tempfile::tempdir().unwrap();
        for name in ["token", "hub/models--a--b/refs/main"] {
            let _plant = Plant::new(kind, &home.path().join(name), home.path()).unwrap();
        }
        let output = run(sconce().args(["embed", "a", "-m", "a/b"]).env("HF_HOME", home.path()), "embed");
        assert_fails(&output, 1, &["model a/b", "in the cache at"]);
    }
}

#[test]
fn a_name_that_is_too_long_for_sidecars_is_refused_at_the_start() {
    let folder = folder();
    for (length, is_accepted) in [(230, true), (245, false), (255, false)] {
        let name = format!("{}.npy", "n".repeat(length - 4));
        let output = run(&mut embed(folder.path(), &name, &[]), &name);
        assert_eq!(output.status.code() == Some(3), is_accepted, "{}", stderr(&output));
        if !is_accepted {
            assert_fails(&output, 1, &[&format!("its name has {length} bytes"), "choose a shorter name"]);
        }
    }
}

/// Limits of the process end a run with a sentence.
#[test]
#[cfg(target_os = "linux")]
fn limits_of_the_process_are_errors() {
    let folder = folder();
    fs::write(folder.path().join("in.jsonl"), "{\"text\": \"the lamp\"}\n".repeat(3000)).unwrap();
    let limited = |limit: &str, args: &[&str]| {
        let mut command = Command::new("bash");
        command.current_dir(&folder).args(["-c", &format!("ulimit {limit} && exec \"$@\""), "-"]);
        command.arg(env!("CARGO_BIN_EXE_sconce")).args(args).env("SCONCE_MODEL", fixture("bert-tiny"));
        run(&mut command, limit)
    };
    let output = limited("-f 16", &["embed", "-i", "in.jsonl", "-o", "out.npy"]);
    assert_fails(&output, 1, &["out.npy", "the limit of file sizes", "ulimit -f"]);
    assert!(!folder.path().join("out.npy").exists());
    for page in [&["--help"][..], &["-h"], &["embed", "--help"], &["--version"]] {
        let mut command = Command::new("bash");
        command.args(["-c", "exec \"$@\" >/dev/full", "-"]).arg(env!("CARGO_BIN_EXE_sconce")).args(page);
        assert_fails(&run(&mut command, "help"), 1, &["cannot write standard output"]);
    }
    let empty =
        run(sconce().args(["embed", "a", "-m"]).arg(fixture("bert-tiny")).env("SCONCE_ISA", ""), "ISA");
    assert!(empty.status.success(), "as if it were not set: {}", stderr(&empty));
    let mut refusals = 0;
    for kilobytes in [80_000, 100_000, 120_000, 150_000, 200_000, 300_000] {
        let output = limited(&format!("-v {kilobytes}"), &["embed", "a", "--threads", "1"]);
        if !output.status.success() {
            assert_fails(&output, 1, &["ulimit -v"]);
            refusals += 1;
        }
    }
    assert!(refusals > 0, "some limit is too low");
}

/// Threads that the system refuses: never "a thread has panicked". Root has no such limit, and others share
/// theirs with all that they run.
#[test]
#[cfg(target_os = "linux")]
fn refused_threads_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let shared = |path: &Path| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    };
    shared(folder.path());
    let binary = folder.path().join("sconce");
    fs::copy(env!("CARGO_BIN_EXE_sconce"), &binary).unwrap();
    shared(&binary);
    copy_folder(&fixture("bert-tiny"), &folder.path().join("model"));
    fs::write(folder.path().join("in.txt"), "a lamp\n".repeat(2000)).unwrap();
    for limit in 5..12 {
        let mut command = Command::new("setpriv");
        let user = OTHER_USER.to_string();
        command.current_dir(&folder).args([
            "--reuid",
            &user,
            "--regid",
            &user,
            "--clear-groups",
            "bash",
            "-c",
        ]);
        command.args([&format!("ulimit -u {limit} && exec \"$@\""), "-", "./sconce", "embed", "-m", "model"]);
        command.args(["-i", "in.txt", "-o", "out.npy", "--restart", "--threads", "2"]).env_remove("HOME");
        let Ok(output) = command.output() else { return };
        if stderr(&output).contains("setpriv:") {
            return;
        }
        if !output.status.success() {
            assert_fails(&output, 1, &["--threads", "ulimit -u"]);
        }
    }
}
