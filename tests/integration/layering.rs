//! Imports run downward only: `main → cli → run → {job, task}`, `lib → api → {task, vectors}`,
//! `task → {load, engine, text, nn}`, `load → {hub, text}`, `hub → model → checkpoint → nn → ops → kernels`,
//! `job → {engine, input}`, `engine → {text, rows}`, `{input, vectors, job} → formats → rows`,
//! `{job, formats, engine, hub, checkpoint} → store`.

use std::fs;
use std::path::{Path, PathBuf};

/// The rooms from top to bottom. Each may name those of its list, which are below it, and the [`SHARED`]
/// ones.
const ROOMS: &[(&str, &str)] = &[
    ("main", "cli error job nn store"),
    (
        "lib",
        "api cli run serve job task load engine vectors input text hub model checkpoint neighbours nn ops kernels formats rows store figure error named",
    ),
    // A door like the command line; `api/engine.rs` alone runs tasks.
    ("api", "engine task load vectors text hub model neighbours nn rows"),
    ("cli", "run serve job task load vectors input text hub model neighbours nn formats rows store"),
    (
        "run",
        "job engine task load vectors figure input text hub model checkpoint neighbours nn formats rows store",
    ),
    // A door like the command line: `serve/schema` knows no HTTP, and nothing below knows the server.
    ("serve", "task load engine input text model neighbours nn formats rows"),
    ("job", "engine input text neighbours formats rows store"),
    // A task implements `engine::Task`; the engine itself knows no task and no file.
    ("task", "load engine text model neighbours nn rows"),
    // From the files of a model to its encoder, head and tokenizer, for any task.
    ("load", "hub model checkpoint nn text store"),
    ("engine", "text rows store"),
    ("vectors", "neighbours formats rows store"),
    ("input", "formats rows"),
    ("formats", "neighbours rows store"),
    ("rows", "neighbours"),
    // What a model's files are called is in `model/layout.rs`, for the hub, too.
    ("hub", "model checkpoint store"),
    ("model", "checkpoint neighbours nn text"),
    // It knows names of tensors, and no config and no family.
    ("checkpoint", "nn store"),
    ("text", ""),
    ("store", ""),
    ("figure", ""),
    ("nn", "ops kernels"),
    ("neighbours", "kernels"),
    ("ops", "kernels"),
    ("kernels", ""),
    ("error", ""),
    ("named", ""),
    ("sys", ""),
];

/// Rooms that every room may name.
const SHARED: &[&str] = &["error", "named", "sys"];

/// Crates that only one room may name.
const OWNED: &[(&str, &[&str])] = &[
    ("clap", &["cli"]),
    ("minijinja", &["text"]),
    ("minijinja_contrib", &["text"]),
    ("tokenizers", &["text"]),
    ("resvg", &["figure"]),
    ("dejavu", &["figure"]),
    ("chrono", &["serve"]),
    ("http_body_util", &["serve"]),
    ("hyper", &["serve"]),
    ("hyper_util", &["serve"]),
    ("tokio", &["serve"]),
    ("tokio_rustls", &["serve"]),
    ("base64", &["figure", "text", "serve"]),
    ("unicode_width", &["figure", "run"]),
    ("unicode_segmentation", &["text"]),
    ("safetensors", &["checkpoint", "formats"]),
    ("hf_hub", &["hub"]),
    ("ureq", &["hub"]),
    ("rustls", &["hub", "serve"]),
    ("rustls_native_certs", &["hub"]),
    ("zip", &["checkpoint", "formats"]),
    ("memmap2", &["sys"]),
    // Beside the digests, those of the keys of clients.
    ("sha2", &["store", "serve"]),
    ("arrow_array", &["formats", "input", "rows", "vectors"]),
    ("arrow_buffer", &["formats", "input"]),
    ("arrow_cast", &["rows"]),
    ("arrow_data", &["rows"]),
    ("arrow_ipc", &["formats"]),
    ("arrow_select", &["formats", "rows", "vectors"]),
    ("clap_mangen", &["cli"]),
    ("bytes", &["formats"]),
    ("csv", &["formats"]),
    ("flate2", &["input"]),
    ("glob", &["input"]),
    ("ignore", &["input"]),
    ("parquet", &["formats"]),
    ("zstd", &["input"]),
    ("candle_core", &["nn", "ops", "checkpoint", "task"]),
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
        ROOMS.iter().find(|(name, _)| *name == room).unwrap_or_else(|| panic!("no room {room}"));
    let may_name =
        |other| other == room || SHARED.contains(&other) || allowed.split(' ').any(|name| name == other);
    let mut faults = Vec::new();
    for (number, line) in code.lines().enumerate() {
        if line.trim_start().starts_with("//") {
            continue;
        }
        for other in ROOMS.iter().map(|(name, _)| *name).filter(|other| !may_name(other)) {
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

/// No room names one above it, so that there are no circles.
#[test]
fn rooms_are_in_order() {
    let position = |name: &str| ROOMS.iter().position(|(room, _)| *room == name).expect(name);
    for (room, allowed) in ROOMS {
        for other in allowed.split_terminator(' ') {
            assert!(position(other) > position(room), "{room} names {other}, which is above it");
        }
    }
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
    // Three of the names are words or papers' own.
    let types = sconce::model::families::FAMILIES.iter().flat_map(|family| family.model_types);
    let types: Vec<_> = types.filter(|name| !["new", "bert", "deberta"].contains(name)).collect();
    for file in ["nn", "ops", "kernels"].iter().flat_map(|room| sources(&src.join(room))) {
        let code = fs::read_to_string(&file).expect("a readable file").to_lowercase();
        for name in &types {
            assert!(!has_word(&code, name), "{} names {name}", file.display());
        }
    }
}

/// Whether a text has a word, not only as a part of another one: `clippy` and `clipped` have no `clip`.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let is_letter = |character: Option<char>| character.is_some_and(char::is_alphabetic);
        !is_letter(text[..at].chars().next_back()) && !is_letter(text[at + word.len()..].chars().next())
    })
}

#[test]
fn the_rule_catches_what_it_forbids() {
    assert_eq!(
        ["// clip", "clip_", "2clip3", "clippy", "eclipse"].map(|text| has_word(text, "clip")),
        [true, true, true, false, false]
    );
    assert_eq!(faults("nn", "use crate::ops::linear;").len(), 0);
    assert_eq!(faults("nn", "use crate::model::config::Config;").len(), 1);
    assert_eq!(faults("ops", "let x = crate::nn::Stage::Embeddings;").len(), 1);
    assert_eq!(faults("run", "use clap::Parser;").len(), 1);
    assert_eq!(faults("kernels", "use candle_core::Tensor;").len(), 1);
    assert_eq!(faults("nn", "use crate::{checkpoint::names::TensorNames, ops};").len(), 1);
    assert_eq!(faults("ops", "use super::super::model;").len(), 1);
    assert_eq!(faults("text", "use tokenizers::Tokenizer;").len(), 0);
}

/// Modules that may contain `unsafe`, by the file that declares them. Everywhere else in the crate the lint
/// `unsafe_code` denies it; the kernels are a crate of their own.
const UNSAFE: &[(&str, &str)] = &[("lib.rs", "pub mod ops;"), ("sys/mod.rs", "pub mod mapped_file;")];

#[test]
fn only_two_modules_allow_unsafe_code() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    for path in sources(&src) {
        let code = fs::read_to_string(&path).expect("a readable file");
        let lines: Vec<&str> = code.lines().collect();
        for (i, _) in lines.iter().enumerate().filter(|(_, line)| line.contains("unsafe_code")) {
            assert_eq!(lines[i], "#[allow(unsafe_code)]", "{}:{}", path.display(), i + 1);
            let file = path.strip_prefix(&src).expect("under src").to_string_lossy().replace('\\', "/");
            found.push((file, lines[i + 1].to_owned()));
        }
    }
    found.sort();
    let expected: Vec<(String, String)> =
        UNSAFE.iter().map(|(file, line)| ((*file).into(), (*line).into())).collect();
    assert_eq!(found, expected);
}

/// The lints `missing_safety_doc` and `undocumented_unsafe_blocks` require the same of all code that clippy
/// compiles on the machine that runs it; this test covers code for aarch64.
#[test]
fn unsafe_code_for_other_processors_is_documented() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = ["kernels/isa.rs", "kernels/simd/neon.rs"].map(|file| src.join(file));
    for file in files {
        let code = fs::read_to_string(&file).expect("a readable file");
        let lines: Vec<&str> = code.lines().collect();
        for (i, line) in lines.iter().enumerate() {
            if line.trim_start().starts_with("//") || !line.contains("unsafe ") {
                continue;
            }
            // The trait documents the contract of its functions.
            let is_item = |line: &&&str| line.starts_with("impl") || line.starts_with("macro_rules!");
            let in_trait_impl = lines[..i].iter().rfind(is_item).is_some_and(|line| line.contains(" for "));
            if line.contains("unsafe fn") && line.starts_with("    ") && in_trait_impl {
                continue;
            }
            let word = if line.contains("unsafe fn") { "# Safety" } else { "// SAFETY:" };
            let documented = lines[i.saturating_sub(4)..i].iter().any(|line| line.contains(word));
            assert!(documented, "{}:{}: unsafe without {word}", file.display(), i + 1);
        }
    }
}

/// The readers of the `parquet` and `arrow` crates trust what a file declares; `formats/` guards them.
/// [`OWNED`] keeps the crates of csv, zip and safetensors there, so that merge, append, search, inspect and
/// the input have no other way to a file.
#[test]
fn parquet_and_arrow_are_read_in_one_place() {
    let readers = [
        "arrow_ipc::reader",
        "arrow_ipc::convert",
        "arrow_ipc::root_as",
        "arrow_reader",
        "async_reader",
        "parquet::file::reader",
        "parquet::file::serialized_reader",
        "ParquetRecordBatchReader",
        "SerializedFileReader",
        "StreamReader",
        "FileReader",
        "StreamDecoder",
    ];
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let (mut guarded, mut found) = (0, Vec::new());
    for file in sources(&src) {
        let code = fs::read_to_string(&file).expect("a readable file");
        let named = readers.iter().filter(|reader| code.contains(**reader)).count();
        match room(&src, &file).as_str() {
            "formats" => guarded += named,
            _ if named > 0 => found.push(file),
            _ => {}
        }
    }
    assert!(guarded > 3, "the readers were found");
    assert!(found.is_empty(), "read Parquet and Arrow through crate::formats: {found:?}");
}

/// `thread::spawn` panics where the system grants no thread, as under `ulimit -u`; what is in
/// `sys/threads.rs` returns an error.
#[test]
fn threads_are_started_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&src) {
        let code = fs::read_to_string(&file).expect("a readable file");
        if file.ends_with("sys/threads.rs") {
            continue;
        }
        for way in ["thread::spawn(", "thread::Builder", "thread::{", "ThreadPoolBuilder", "rayon::spawn"] {
            assert!(!code.contains(way), "{}: {way}", file.display());
        }
    }
}

/// A file takes the place of another in one way only, so that no place forgets what makes it atomic and
/// durable.
#[test]
fn files_are_replaced_in_one_place() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for file in sources(&src) {
        let code = fs::read_to_string(&file).expect("a readable file");
        if file.ends_with("store/replace.rs") {
            continue;
        }
        for way in ["fs::rename", ".persist(", "persist_noclobber", "rustix::fs::rename"] {
            assert!(!code.contains(way), "{}: {way}; use crate::store::replace", file.display());
        }
    }
}

/// The lines of comments outside tables and blocks of code that are wider than rustfmt's `max_width`, which
/// counts for code alone.
fn wide_comments(source: &str) -> Vec<&str> {
    let mut is_in_code = false;
    let comments = source.lines().filter(|line| line.trim_start().starts_with("//"));
    let prose = comments.filter(|line| {
        let text = line.trim_start().trim_start_matches(['/', '!']).trim_start();
        is_in_code ^= text.starts_with("```");
        !is_in_code && !text.starts_with('|')
    });
    prose.filter(|line| line.chars().count() > 110).collect()
}

#[test]
fn comments_are_as_narrow_as_code() {
    let wide = format!("// {}\n", "x".repeat(108));
    let source = format!("// short\n{wide}/// | {wide}/// ```\n{wide}/// ```\n{wide}");
    assert_eq!(wide_comments(&source).len(), 2);
    for folder in ["src", "tests", "benches", "examples"] {
        for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)) {
            let source = fs::read_to_string(&path).unwrap();
            assert_eq!(wide_comments(&source), Vec::<&str>::new(), "{}", path.display());
        }
    }
}
