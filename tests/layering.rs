//! Imports run downward only: `main → cli → run → {input, text, model, nn, output}`, `model → nn → ops → kernels`.

use std::fs;
use std::path::{Path, PathBuf};

/// Each room with the rooms that it may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("main", &["cli", "run", "output", "terminal"]),
    (
        "lib",
        &[
            "cli", "disk", "field", "guard", "input", "kernels", "model", "nn", "ops", "output", "run",
            "terminal", "text",
        ],
    ),
    ("cli", &["run", "input", "model", "nn", "output"]),
    ("run", &["input", "text", "model", "nn", "output", "disk", "field", "terminal"]),
    ("input", &["guard", "field"]),
    ("text", &["guard", "disk"]),
    ("output", &["field"]),
    ("field", &[]),
    ("model", &["nn", "guard", "disk", "terminal"]),
    ("guard", &[]),
    ("disk", &[]),
    ("terminal", &[]),
    ("nn", &["ops", "kernels"]),
    ("ops", &["kernels"]),
    ("kernels", &[]),
];

const ROOMS: &[&str] = &[
    "cli", "run", "input", "text", "model", "nn", "ops", "kernels", "output", "guard", "disk", "field",
    "terminal",
];

/// Crates that only one room may name.
const OWNED: &[(&str, &[&str])] = &[
    ("clap", &["cli"]),
    ("tokenizers", &["text"]),
    ("unicode_segmentation", &["text"]),
    ("safetensors", &["model"]),
    ("hf_hub", &["model"]),
    ("ureq", &["model"]),
    ("memmap2", &["model"]),
    ("arrow", &["input", "output", "field"]),
    ("bytes", &["input"]),
    ("csv", &["input", "output"]),
    ("flate2", &["input"]),
    ("glob", &["input"]),
    ("ignore", &["input"]),
    ("parquet", &["input", "output"]),
    ("zstd", &["input"]),
    ("candle_core", &["nn", "ops", "model"]),
    ("candle_nn", &["ops"]),
];

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("src is there") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => files.extend(sources(&path)),
            false if path.extension().is_some_and(|e| e == "rs") => files.push(path),
            false => {}
        }
    }
    files
}

/// The room of a file: its first folder under `src`, or its own name.
fn room(src: &Path, file: &Path) -> String {
    let inside = file.strip_prefix(src).expect("under src").with_extension("");
    inside.components().next().expect("a name").as_os_str().to_string_lossy().into_owned()
}

/// Whether a line of code names `name::`, not as the tail of a longer path or word.
fn names(line: &str, name: &str) -> bool {
    let needle = format!("{name}::");
    line.match_indices(&needle).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':')
    })
}

/// Faults of one file, as `line: what`.
fn faults(room: &str, code: &str) -> Vec<String> {
    let (_, allowed) =
        ALLOWED.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("no room {room}"));
    let mut faults = Vec::new();
    for (number, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for other in ROOMS.iter().filter(|other| **other != room && !allowed.contains(other)) {
            if line.contains(&format!("crate::{other}")) || line.contains(&format!("sconce::{other}")) {
                faults.push(format!("{}: {room} names {other}", number + 1));
            }
        }
        // Ways to another room that the lines above do not see.
        for hidden in ["crate::{", "super::super", "crate::*", "crate as "] {
            if room != "lib" && line.contains(hidden) {
                faults.push(format!("{}: {room} writes {hidden}; name one room a line", number + 1));
            }
        }
        for (library, owners) in OWNED.iter().filter(|(_, owners)| !owners.contains(&room)) {
            if names(line, library) {
                faults.push(format!("{}: {room} names {library}, which is for {owners:?}", number + 1));
            }
        }
    }
    faults
}

#[test]
fn imports_run_downward() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources(&src);
    assert!(files.len() > 20, "the sources were found");
    let found: Vec<String> = files
        .iter()
        .flat_map(|file| {
            let code = fs::read_to_string(file).expect("a readable file");
            let faults = faults(&room(&src, file), &code);
            faults.into_iter().map(|fault| format!("{}:{fault}", file.display())).collect::<Vec<_>>()
        })
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// The maths knows no model by name, in code or in comments.
#[test]
fn the_maths_names_no_model_type() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    // Two of the names are words or a paper's own.
    let types = sconce::model::families::FAMILIES.iter().flat_map(|family| family.model_types);
    let types: Vec<_> = types.filter(|name| !["new", "bert"].contains(name)).collect();
    for file in ["nn", "ops", "kernels"].iter().flat_map(|room| sources(&src.join(room))) {
        let code = fs::read_to_string(&file).expect("a readable file").to_lowercase();
        for name in &types {
            assert!(!code.contains(**name), "{} names {name}", file.display());
        }
    }
}

#[test]
fn the_rule_catches_what_it_forbids() {
    assert_eq!(faults("nn", "use crate::ops::linear;").len(), 0);
    assert_eq!(faults("nn", "use crate::model::config::Config;").len(), 1);
    assert_eq!(faults("ops", "let x = crate::nn::Stage::Embeddings;").len(), 1);
    assert_eq!(faults("run", "use clap::Parser;").len(), 1);
    assert_eq!(faults("kernels", "use candle_core::Tensor;").len(), 1);
    assert_eq!(faults("nn", "use crate::{model::names::Names, ops};").len(), 1);
    assert_eq!(faults("ops", "use super::super::model;").len(), 1);
    assert_eq!(faults("text", "use tokenizers::Tokenizer;").len(), 0);
}

/// `unsafe` stands where the project allows it, each with its reason beside it.
#[test]
fn unsafe_is_kept_in_its_rooms() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&src) {
        let code = fs::read_to_string(&file).expect("a readable file");
        let lines: Vec<&str> = code.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if line.trim_start().starts_with("//") || !line.contains("unsafe ") {
                continue;
            }
            let room = room(&src, &file);
            let allowed = room == "kernels" || room == "ops" || file.ends_with("model/weights.rs");
            assert!(allowed, "{}:{}: unsafe outside of its rooms", file.display(), i + 1);
            // What a trait asks for stands at the trait.
            let begins = |line: &&&str| line.starts_with("impl") || line.starts_with("macro_rules!");
            let inside = lines[..i].iter().rfind(begins).is_some_and(|line| line.contains(" for "));
            if line.contains("unsafe fn") && line.starts_with("    ") && inside {
                continue;
            }
            // A function states what it asks for; a block, why it may.
            let word = if line.contains("unsafe fn") { "/// # Safety" } else { "// SAFETY:" };
            let reason = lines[i.saturating_sub(4)..i].iter().any(|line| line.contains(word));
            assert!(reason, "{}:{}: unsafe without {word}", file.display(), i + 1);
        }
    }
}

/// `thread::spawn` panics where the system grants no thread, as under `ulimit -u`; what is in `run/threads.rs` gives an error.
#[test]
fn threads_are_started_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&src) {
        let code = fs::read_to_string(&file).expect("a readable file");
        if file.ends_with("run/threads.rs") {
            continue;
        }
        for way in ["thread::spawn(", "thread::Builder", "thread::{", "ThreadPoolBuilder", "rayon::spawn"] {
            assert!(!code.contains(way), "{}: {way}", file.display());
        }
    }
}
