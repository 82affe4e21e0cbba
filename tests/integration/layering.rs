//! Imports run downward only: `main → cli → run → {job, task}`, `lib → api → {task, vectors}`, `task → {engine, text, model, nn}`,
//! `job → {engine, input, output}`, `engine → {text, output}`, `{input, output, vectors} → formats`, `model → nn → ops → kernels`.

use std::fs;
use std::path::{Path, PathBuf};

/// Each room with the rooms that it may name.
const ALLOWED: &[(&str, &[&str])] = &[
    ("main", &["cli", "error", "job", "output", "nn"]),
    (
        "lib",
        &[
            "api",
            "cli",
            "engine",
            "error",
            "field",
            "figure",
            "formats",
            "input",
            "job",
            "kernels",
            "model",
            "named",
            "neighbours",
            "nn",
            "ops",
            "output",
            "run",
            "serve",
            "task",
            "text",
            "vectors",
        ],
    ),
    // A door like the command line; `api/engine.rs` alone runs tasks.
    ("api", &["engine", "task", "vectors", "text", "model", "neighbours", "nn", "output", "field"]),
    ("cli", &["run", "job", "task", "vectors", "input", "text", "model", "neighbours", "nn", "output"]),
    (
        "run",
        &[
            "job",
            "engine",
            "task",
            "vectors",
            "figure",
            "input",
            "text",
            "model",
            "neighbours",
            "nn",
            "output",
            "field",
        ],
    ),
    // What requests ask for, in the types of tasks and texts; sentences about JSON are those of `input`.
    ("serve", &["task", "input", "text", "output"]),
    // A task implements `engine::Task`; the engine itself knows no task and no file.
    ("task", &["engine", "text", "model", "neighbours", "nn", "output"]),
    ("job", &["engine", "input", "text", "output", "field"]),
    ("engine", &["text", "output"]),
    ("input", &["field", "formats"]),
    ("text", &[]),
    ("output", &["field", "formats"]),
    ("formats", &["field"]),
    ("field", &[]),
    ("figure", &[]),
    ("model", &["nn", "text"]),
    ("error", &[]),
    ("named", &[]),
    ("sys", &[]),
    ("vectors", &["neighbours", "formats", "output", "field"]),
    ("neighbours", &["kernels"]),
    ("nn", &["ops", "kernels"]),
    ("ops", &["kernels"]),
    ("kernels", &[]),
];

const ROOMS: &[&str] = &[
    "api",
    "cli",
    "run",
    "serve",
    "task",
    "job",
    "engine",
    "input",
    "text",
    "model",
    "nn",
    "ops",
    "kernels",
    "output",
    "field",
    "figure",
    "formats",
    "neighbours",
    "vectors",
    "error",
    "named",
    "sys",
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
    ("base64", &["figure", "serve", "text"]),
    ("unicode_width", &["figure"]),
    ("unicode_segmentation", &["text"]),
    ("safetensors", &["model", "vectors"]),
    ("hf_hub", &["model"]),
    ("ureq", &["model"]),
    ("rustls", &["model"]),
    ("rustls_native_certs", &["model"]),
    ("zip", &["model", "output", "vectors"]),
    ("memmap2", &["sys"]),
    ("arrow_array", &["formats", "input", "output", "field", "vectors"]),
    ("arrow_buffer", &["formats", "input", "output"]),
    ("arrow_cast", &["field", "vectors"]),
    ("arrow_data", &["field"]),
    ("arrow_ipc", &["formats", "output"]),
    ("arrow_select", &["output", "field", "vectors"]),
    ("clap_mangen", &["cli"]),
    ("bytes", &["formats"]),
    ("csv", &["input", "output", "vectors"]),
    ("flate2", &["input"]),
    ("glob", &["input"]),
    ("ignore", &["input"]),
    ("parquet", &["formats", "output"]),
    ("zstd", &["input"]),
    ("candle_core", &["nn", "ops", "model", "task"]),
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
        for other in ROOMS
            .iter()
            .filter(|other| **other != room && !allowed.contains(other) && !SHARED.contains(other))
        {
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

/// A module of the crate: its path below `crate`, its code without tests and comments, and what it imports.
struct Module {
    path: Vec<String>,
    code: String,
    /// Imported names with their full paths; `true` if the import is a re-export.
    uses: Vec<(String, Vec<String>, bool)>,
}

impl Module {
    fn parse(src: &Path, file: &Path) -> Self {
        let inside = file.strip_prefix(src).expect("under src").with_extension("");
        let mut path: Vec<String> =
            inside.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        if ["mod", "lib", "main"].contains(&path.last().map_or("", String::as_str)) {
            path.pop();
        }
        let code = fs::read_to_string(file).expect("a readable file");
        let code = code.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let code = code.lines().map(|line| line.split("//").next().unwrap_or_default());
        let code = code.collect::<Vec<_>>().join("\n");
        Module { path, code, uses: Vec::new() }
    }

    /// Reads the `use` declarations, with paths relative to `crate`. Imports of other crates are left out.
    fn read_uses(&mut self, children: &[String]) {
        let mut uses = Vec::new();
        for (at, _) in self.code.match_indices("use ") {
            let before = self.code[..at].rsplit('\n').next().unwrap_or_default().trim();
            let is_declaration = before.is_empty() || before.starts_with("pub") && before.len() < 12;
            let Some(tree) = self.code[at + 4..].split(';').next().filter(|_| is_declaration) else {
                continue;
            };
            for leaf in leaves(&tree.split_whitespace().collect::<String>().replace("as_", "as _")) {
                if let Some(path) = self.absolute(&leaf, children) {
                    uses.push((path.last().cloned().unwrap_or_default(), path, before.starts_with("pub")));
                }
            }
        }
        self.uses = uses;
    }

    /// A path as it is written here, relative to `crate`; `None` for another crate.
    fn absolute(&self, path: &str, children: &[String]) -> Option<Vec<String>> {
        let mut parts: Vec<String> = path.split("::").map(String::from).collect();
        let mut base = match parts[0].as_str() {
            // The kernels are a crate of their own.
            "crate" => self.path.iter().take(1).filter(|room| *room == "kernels").cloned().collect(),
            "self" | "super" => self.path.clone(),
            child if children.iter().any(|name| name == child) => {
                return Some([self.path.clone(), parts].concat());
            }
            _ => return None,
        };
        while parts.first().is_some_and(|part| ["crate", "self", "super"].contains(&part.as_str())) {
            if parts.remove(0) == "super" {
                base.pop();
            }
        }
        Some([base, parts].concat())
    }
}

/// The paths of a use tree without white space: `a::{b,c::d}` → `a::b`, `a::c::d`; `a::{self}` → `a`.
fn leaves(tree: &str) -> Vec<String> {
    let Some(open) = tree.find('{') else { return vec![tree.to_owned()] };
    let (prefix, inside) = (&tree[..open], &tree[open + 1..tree.rfind('}').expect("a closing brace")]);
    let (mut depth, mut start, mut parts) = (0, 0, Vec::new());
    for (at, letter) in inside.char_indices() {
        match letter {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&inside[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&inside[start..]);
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    parts
        .flat_map(leaves)
        .map(
            |leaf| {
                if leaf == "self" { prefix.trim_end_matches("::").into() } else { format!("{prefix}{leaf}") }
            },
        )
        .collect()
}

/// The modules of a source tree.
fn modules(src: &Path) -> Vec<Module> {
    let mut modules: Vec<Module> = sources(src).iter().map(|file| Module::parse(src, file)).collect();
    modules.retain(|module| !(module.path.is_empty() && module.code.contains("fn main()")));
    let paths: Vec<Vec<String>> = modules.iter().map(|module| module.path.clone()).collect();
    for module in &mut modules {
        let depth = module.path.len();
        let children = paths.iter().filter(|path| path.len() == depth + 1 && path.starts_with(&module.path));
        let children: Vec<String> = children.map(|path| path[depth].clone()).collect();
        module.read_uses(&children);
    }
    modules
}

/// The module in which a path is defined. Re-exports are followed.
fn definition(modules: &[Module], path: &[String]) -> Option<usize> {
    for length in (0..=path.len()).rev() {
        let Some(found) = modules.iter().position(|module| module.path == path[..length]) else { continue };
        let Some(name) = path.get(length) else { return Some(found) };
        let exported = modules[found].uses.iter().find(|(exported, target, is_exported)| {
            *is_exported && exported == name && target.as_slice() != path
        });
        return match exported {
            Some((_, target, _)) => definition(modules, &[target, &path[length + 1..]].concat()),
            None => Some(found),
        };
    }
    None
}

/// Each module with the modules that it imports, including paths that are written out in the code.
fn imports(modules: &[Module]) -> Vec<Vec<usize>> {
    let written = |module: &Module| -> Vec<Vec<String>> {
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        let words = module.code.split(|c| !is_path(c)).map(|word| word.trim_matches(':'));
        let words = words.filter(|word| word.starts_with("crate::") || word.starts_with("super::"));
        words.filter_map(|word| module.absolute(word, &[])).collect()
    };
    let all = |(index, module): (usize, &Module)| {
        let uses =
            module.uses.iter().filter(|(_, _, is_exported)| !is_exported).map(|(_, path, _)| path.clone());
        let exported: Vec<_> = module.uses.iter().filter(|(.., is_exported)| *is_exported).collect();
        let paths =
            uses.chain(written(module)).filter(|path| !exported.iter().any(|(_, target, _)| target == path));
        let mut found: Vec<usize> = paths.filter_map(|path| definition(modules, &path)).collect();
        found.retain(|other| *other != index);
        found.sort_unstable();
        found.dedup();
        found
    };
    modules.iter().enumerate().map(all).collect()
}

/// The shortest circle through a module, as module paths; empty if there is none.
fn circle(modules: &[Module], imports: &[Vec<usize>], start: usize) -> Vec<String> {
    let mut from: Vec<Option<usize>> = vec![None; modules.len()];
    let mut queue = std::collections::VecDeque::from([start]);
    while let Some(at) = queue.pop_front() {
        for &next in &imports[at] {
            if next == start {
                let name = |index: usize| modules[index].path.join("::");
                let back = std::iter::successors(Some(at), |at| from[*at].filter(|_| *at != start));
                let mut names: Vec<String> = back.map(name).collect();
                names.reverse();
                return names;
            }
            if from[next].is_none() {
                from[next] = Some(at);
                queue.push_back(next);
            }
        }
    }
    Vec::new()
}

/// No file imports another that imports it, directly or through others, within a room or across rooms.
#[test]
fn imports_form_no_circles() {
    let modules = modules(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let imports = imports(&modules);
    assert!(imports.iter().map(Vec::len).sum::<usize>() > 200, "the imports were found");
    let circles = (0..modules.len()).map(|start| circle(&modules, &imports, start));
    let mut circles: Vec<String> = circles
        .filter(|circle| !circle.is_empty())
        .map(|mut circle| {
            let first = (0..circle.len()).min_by_key(|at| &circle[*at]).unwrap_or(0);
            circle.rotate_left(first);
            circle.join(" → ")
        })
        .collect();
    circles.sort();
    circles.dedup();
    assert!(circles.is_empty(), "{} circles:\n{}", circles.len(), circles.join("\n"));
}

#[test]
fn a_circle_through_a_re_export_is_found() {
    let module = |path: &str, uses: &[(&str, bool)]| {
        let split = |path: &str| path.split("::").map(String::from).collect::<Vec<_>>();
        let uses = uses.iter().map(|(path, is_exported)| {
            (path.rsplit("::").next().unwrap().to_owned(), split(path), *is_exported)
        });
        Module { path: split(path), code: String::new(), uses: uses.collect() }
    };
    let facade = module("a", &[("a::b::B", true), ("a::c::C", true)]);
    let (b, c) = (module("a::b", &[("a::C", false)]), module("a::c", &[("a::B", false)]));
    let found = [facade, b, c];
    let found_imports = imports(&found);
    assert_eq!(found_imports, [vec![], vec![2], vec![1]]);
    assert_eq!(circle(&found, &found_imports, 1), ["a::b", "a::c"]);
    assert_eq!(leaves("a::{b,c::{d,self}}"), ["a::b", "a::c::d", "a::c"]);
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
    assert_eq!(faults("nn", "use crate::{model::names::TensorNames, ops};").len(), 1);
    assert_eq!(faults("ops", "use super::super::model;").len(), 1);
    assert_eq!(faults("text", "use tokenizers::Tokenizer;").len(), 0);
}

/// Modules that may contain `unsafe`, by the file that declares them. Everywhere else in the crate the lint `unsafe_code` denies it; the
/// kernels are a crate of their own.
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

/// The lints `missing_safety_doc` and `undocumented_unsafe_blocks` require the same of all code that clippy compiles on the machine that
/// runs it; this test covers code for aarch64.
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

/// `thread::spawn` panics where the system grants no thread, as under `ulimit -u`; what is in `sys/threads.rs` returns an error.
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
