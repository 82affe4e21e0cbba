//! `embed --cache` takes the rows of texts that were encoded before from a directory, and no state of that
//! directory changes a row.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{assert_fails, fixture, sconce, stderr};

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes the records of these numbers; records of one number have the same text.
    fn write(&self, name: &str, numbers: impl IntoIterator<Item = usize>) {
        let lines = numbers.into_iter().map(|i| {
            // Each digit is a token.
            let digits: String = i.to_string().chars().flat_map(|digit| [digit, ' ']).collect();
            format!("{}\n", json!({"id": i, "text": digits + &"the wick ".repeat(1 + i % 23)}))
        });
        let lines: String = lines.collect();
        fs::write(self.path(name), lines).unwrap();
    }

    fn command(&self, model: &str, input: &str, output: &str, args: &[&str]) -> Command {
        let mut command = sconce();
        command.args(["embed", "-q", "-m"]).arg(fixture(model)).arg("-i").arg(self.path(input));
        command.arg("-o").arg(self.path(output)).arg("--stats").arg(self.path("stats.json")).args(args);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs with the cache, compares the output with that of a run without it, and returns the numbers of
    /// texts and of those whose rows came from the cache.
    #[track_caller]
    fn check(&self, model: &str, input: &str, args: &[&str]) -> (u64, u64) {
        let cache = self.path("cache");
        let with_cache = [args, &["--cache", cache.to_str().unwrap()]].concat();
        let run = self.command(model, input, "without.parquet", args).output().unwrap();
        assert!(run.status.success(), "{}", stderr(&run));
        let run = self.command(model, input, "with.parquet", &with_cache).output().unwrap();
        assert!(run.status.success(), "{}", stderr(&run));
        let read = |name| fs::read(self.path(name)).unwrap();
        assert!(read("without.parquet") == read("with.parquet"), "the rows differ");
        let stats: Value = serde_json::from_slice(&read("stats.json")).unwrap();
        let count = |key| stats[key].as_u64().unwrap();
        (count("rows") - count("repeated"), count("cached"))
    }
}

/// The files of rows below a directory.
fn files(cache: &Path) -> Vec<PathBuf> {
    let entries = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    };
    entries(cache).iter().flat_map(|folder| entries(folder)).collect()
}

#[test]
fn texts_that_any_input_had_before_are_not_encoded_again() {
    let folder = Folder::new();
    folder.write("first.jsonl", 0..300);
    folder.write("second.jsonl", (200..400).rev().chain([7]));
    assert_eq!(folder.check("bert-tiny", "first.jsonl", &[]), (300, 0));
    assert_eq!(folder.check("bert-tiny", "first.jsonl", &[]), (300, 300));
    assert_eq!(folder.check("bert-tiny", "second.jsonl", &[]), (201, 101));
    assert_eq!(folder.check("bert-tiny", "second.jsonl", &["--batch-tokens", "64"]), (201, 201));
}

#[test]
fn every_kind_of_row_is_kept() {
    let folder = Folder::new();
    folder.write("texts.jsonl", 0..60);
    let kinds: [(&str, &[&str]); 8] = [
        ("bert-tiny", &["--output-dtype", "f16"]),
        ("bert-tiny", &["--output-dtype", "int8"]),
        ("bert-tiny", &["--pooling", "none"]),
        ("bert-tiny", &["--chunk", "16", "--chunk-overlap", "3"]),
        ("bert-tiny", &["--pooling", "mean", "--chunk", "16", "--chunk-late"]),
        ("bert-tiny", &["--on-long", "mean", "--max-length", "16"]),
        ("unified/m3", &["--outputs", "dense,lexical,multi-vector"]),
        ("sparse/bert-max", &[]),
    ];
    for (model, args) in kinds {
        let (texts, cached) = folder.check(model, "texts.jsonl", args);
        // Texts of equal tokens share a row within a run, too.
        let expected = if model == "bert-tiny" { cached == 0 } else { cached < texts };
        assert!(expected, "{model} {args:?}: {cached} of {texts}, of another model or other options");
        let (_, cached) = folder.check(model, "texts.jsonl", args);
        assert!(cached == texts && texts > 0, "{model} {args:?}: {cached} of {texts}");
    }
}

#[test]
fn other_options_weights_and_instruction_sets_have_rows_of_their_own() {
    let folder = Folder::new();
    folder.write("texts.jsonl", 0..20);
    folder.check("bert-tiny", "texts.jsonl", &[]);
    let options: [&[&str]; 6] = [
        &["--pooling", "max"],
        &["--prompt", "lamp: "],
        &["--no-normalize"],
        &["--dimensions", "8"],
        &["--dtype", "bf16"],
        &["--random-weights", "7"],
    ];
    for options in options {
        assert_eq!(folder.check("bert-tiny", "texts.jsonl", options), (20, 0), "{options:?}");
    }
    assert_eq!(folder.check("bert-tiny", "texts.jsonl", &["--random-weights", "8"]), (20, 0));
    let cache = folder.path("cache");
    let mut portable =
        folder.command("bert-tiny", "texts.jsonl", "rows.parquet", &["--cache", cache.to_str().unwrap()]);
    let output = portable.env("SCONCE_ISA", "portable").output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let stats: Value = serde_json::from_slice(&fs::read(folder.path("stats.json")).unwrap()).unwrap();
    // All tests may run with this instruction set.
    let expected = if std::env::var("SCONCE_ISA").as_deref() == Ok("portable") { 20 } else { 0 };
    assert_eq!(stats["cached"], expected);
}

#[test]
fn a_damaged_or_foreign_file_changes_no_row() {
    let folder = Folder::new();
    folder.write("texts.jsonl", 0..40);
    folder.check("bert-tiny", "texts.jsonl", &[]);
    let [file] = &files(&folder.path("cache"))[..] else { panic!("one file") };
    let intact = fs::read(file).unwrap();
    // The key, the checksum, the length and the content of the first entry, and bytes of others.
    for at in [0, 16, 24, 27, 28, 100, intact.len() / 2, intact.len() - 1] {
        let mut damaged = intact.clone();
        damaged[at] ^= 0x81;
        fs::write(file, damaged).unwrap();
        let (_, cached) = folder.check("bert-tiny", "texts.jsonl", &[]);
        assert!(cached < 40, "byte {at}");
        assert_eq!(folder.check("bert-tiny", "texts.jsonl", &[]), (40, 40), "made again after byte {at}");
    }
    for length in [1, 27, 28, intact.len() / 2, intact.len() - 1] {
        fs::write(file, &intact[..length]).unwrap();
        let (_, cached) = folder.check("bert-tiny", "texts.jsonl", &[]);
        assert!(cached < 40, "{length} bytes");
        assert_eq!(
            folder.check("bert-tiny", "texts.jsonl", &[]),
            (40, 40),
            "made again after {length} bytes"
        );
    }
    fs::write(file, vec![0xff; 10_000]).unwrap();
    assert_eq!(folder.check("bert-tiny", "texts.jsonl", &[]), (40, 0), "a foreign file");
    assert_eq!(folder.check("bert-tiny", "texts.jsonl", &[]), (40, 40));
}

#[test]
fn rows_of_a_killed_run_are_found() {
    let folder = Folder::new();
    folder.write("texts.jsonl", 0..40_000);
    let cache = folder.path("cache");
    let args = ["--cache", cache.to_str().unwrap(), "--restart"];
    let mut run = folder.command("bert-tiny", "texts.jsonl", "rows.parquet", &args).spawn().unwrap();
    let start = Instant::now();
    let size = |cache: &Path| -> u64 {
        if !cache.exists() {
            return 0;
        }
        files(cache).iter().map(|file| fs::metadata(file).unwrap().len()).sum()
    };
    while size(&cache) < 100_000 {
        assert!(start.elapsed() < Duration::from_secs(60), "the run keeps rows");
        thread::sleep(Duration::from_millis(2));
    }
    run.kill().unwrap();
    run.wait().unwrap();
    let (texts, cached) = folder.check("bert-tiny", "texts.jsonl", &[]);
    assert!(cached > 0 && cached < texts, "{cached} of {texts}");
}

#[test]
fn processes_share_a_directory() {
    let folder = Folder::new();
    let cache = folder.path("cache");
    let cache = cache.to_str().unwrap();
    let outputs = ["0.jsonl", "1.jsonl", "2.jsonl", "3.jsonl"];
    folder.write("texts.jsonl", 0..1000);
    let runs = outputs.map(|output| {
        folder.command("bert-tiny", "texts.jsonl", output, &["--cache", cache]).spawn().unwrap()
    });
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let made = outputs.map(|output| fs::read(folder.path(output)).unwrap());
    assert!(made.iter().all(|rows| *rows == made[0]));
    assert!(files(Path::new(cache)).len() <= outputs.len());
    assert_eq!(folder.check("bert-tiny", "texts.jsonl", &[]), (1000, 1000));
}

#[test]
fn a_cache_that_cannot_be_used_is_refused() {
    let folder = Folder::new();
    folder.write("texts.jsonl", 0..2);
    fs::write(folder.path("file"), "").unwrap();
    let cache = folder.path("file");
    let run = folder
        .command("bert-tiny", "texts.jsonl", "rows.jsonl", &["--cache", cache.to_str().unwrap()])
        .output();
    assert_fails(&run.unwrap(), 1, &["--cache", "cannot use the cache"]);
    assert!(!folder.path("rows.jsonl").exists());
}
