//! `sconce search` in texts: the places are those of embedded chunks, whatever a cache holds, and what is not
//! text is left out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{assert_fails, embed, fixture, rows, sconce, stderr, stdout};

const MODEL: &str = "bert-tiny";

/// A folder with texts, and a cache beside it.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Folder(tempfile::tempdir().unwrap());
        folder
            .write("docs/lamp.md", "The lamp is on.\n\nA wick burns in the lamp.\n\n\tThe flame is light.\n");
        folder.write("docs/deep/key.rs", "the key of the query is a value\n".repeat(20));
        folder.write("docs/candle.txt", "candle\r\nattention head\r\n\r\nthe candle is burned");
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), bytes).unwrap();
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = sconce();
        command.current_dir(self.0.path()).env("SCONCE_CACHE", self.path("cache"));
        command.args(["search", "-m"]).arg(fixture(MODEL)).args(args);
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// All places in `docs`, and what is said on standard error.
    #[track_caller]
    fn places(&self, args: &[&str]) -> (Vec<Value>, String) {
        let common = ["docs", "a lamp", "-k", "1000", "-v", "--output-format", "jsonl"];
        let output = self.run(&[&common[..], args].concat());
        (rows(&output), stderr(&output))
    }

    /// The number of chunks, and of those from the cache.
    #[track_caller]
    fn counts(&self, args: &[&str]) -> (usize, usize) {
        let (places, messages) = self.places(args);
        let counted = messages.lines().find(|line| line.ends_with("of them from the cache")).unwrap();
        let numbers = counted.split_whitespace().filter_map(|word| word.parse().ok());
        let [chunks, cached] = numbers.collect::<Vec<usize>>()[..] else { panic!("{counted}") };
        assert_eq!(chunks, places.len());
        (chunks, cached)
    }
}

/// The files of places.
fn files(places: &[Value]) -> BTreeSet<String> {
    places.iter().map(|place| place["file"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn places_are_those_of_embedded_chunks() {
    let folder = Folder::new();
    let vectors = folder.path("chunks.parquet");
    let docs = folder.path("docs");
    let args = ["--input-format", "files", "--chunk", "16", "--chunk-overlap", "3", "--keep", "text", "-i"];
    let embedded = embed(MODEL, args.iter().map(Path::new).chain([&*docs, Path::new("-o"), &*vectors]));
    assert!(embedded.status.success(), "{}", stderr(&embedded));
    let mut expected =
        rows(&folder.run(&["chunks.parquet", "a lamp", "-k", "1000", "--output-format", "jsonl"]));
    for row in &mut expected {
        let row = row.as_object_mut().unwrap();
        let file = row["id"].as_str().unwrap().strip_prefix(folder.0.path().to_str().unwrap()).unwrap();
        row.insert("file".into(), file.trim_start_matches('/').into());
        ["index", "id", "chunk", "start", "end", "tokens", "truncated"].iter().for_each(|name| {
            row.shift_remove(*name);
        });
    }
    let (places, messages) = folder.places(&["--chunk", "16", "--chunk-overlap", "3"]);
    assert_eq!(places, expected);
    assert!(places.len() > 10 && messages.contains("docs is searched as texts"), "{messages}");
    let names: Vec<&String> = places[0].as_object().unwrap().keys().collect();
    assert_eq!(names, ["query", "rank", "file", "line", "end_line", "score", "text"]);
    // Files, directories and globs of them, and queries from a file.
    folder.write("queries.txt", "a lamp\n");
    let several = ["docs/deep", "docs/lamp.md", "docs/candle.txt", "docs/lamp.md"];
    let (common, chunks) =
        (["-q", "-k", "1000", "--output-format", "jsonl"], ["--chunk", "16", "--chunk-overlap", "3"]);
    for args in [&[&several[..], &["--queries", "queries.txt"]].concat()[..], &["docs/*", "a lamp"]] {
        let mut found = rows(&folder.run(&[&common[..], &chunks, args].concat()));
        found.sort_by_key(|place| (place["file"].to_string(), place["line"].as_u64()));
        let mut expected = expected.clone();
        expected.sort_by_key(|place| (place["file"].to_string(), place["line"].as_u64()));
        let without_rank = |places: Vec<Value>| -> Vec<Value> {
            let place = |mut place: Value| {
                place.as_object_mut().unwrap().shift_remove("rank");
                place
            };
            places.into_iter().map(place).collect()
        };
        assert_eq!(without_rank(found), without_rank(expected), "{args:?}");
    }
}

#[test]
fn a_change_costs_its_file_only_and_a_file_that_is_gone_is_not_found() {
    let folder = Folder::new();
    let (all, cached) = folder.counts(&[]);
    assert!(all > 3 && cached == 0, "{all}");
    let (first, _) = folder.places(&[]);
    assert_eq!(folder.counts(&[]), (all, all));
    assert_eq!(folder.places(&[]).0, first);
    // A copy has no chunks of its own, and a renamed file is not embedded again.
    fs::rename(folder.path("docs/candle.txt"), folder.path("docs/wick.txt")).unwrap();
    assert_eq!(folder.counts(&[]), (all, all));
    let files_now = files(&folder.places(&[]).0);
    assert!(files_now.contains("docs/wick.txt") && !files_now.contains("docs/candle.txt"));
    folder.write("docs/wick.txt", "The wick is new");
    let (changed, cached) = folder.counts(&[]);
    assert_eq!(cached + 1, changed);
    let (places, _) = folder.places(&[]);
    assert!(places.iter().any(|place| place["text"] == "The wick is new"));
    assert!(places.iter().all(|place| place["text"] != "the candle is burned"));
    fs::remove_file(folder.path("docs/lamp.md")).unwrap();
    let (left, cached) = folder.counts(&[]);
    assert!(left < changed && left == cached);
    assert!(!files(&folder.places(&[]).0).contains("docs/lamp.md"));
    // Other chunks are others.
    assert_eq!(folder.counts(&["--chunk", "12"]).1, 0);
}

#[test]
fn what_is_not_text_is_left_out_and_counted() {
    let folder = Folder::new();
    let expected = folder.places(&["--no-cache"]).0;
    assert!(!folder.path("cache/texts").exists(), "--no-cache keeps nothing");
    folder.write("docs/empty.txt", "");
    folder.write("docs/blank.txt", " \n\n");
    folder.write("docs/.hidden", "a lamp");
    folder.write("docs/ignored.txt", "a lamp");
    folder.write("docs/.gitignore", "ignored.txt\n");
    folder.write("docs/sub/excluded.log", "a lamp");
    let args = ["--exclude", "*.log"];
    assert_eq!(folder.places(&args).0, expected);
    folder.write("docs/binary.txt", b"a lamp\0and a wick");
    folder.write("docs/picture.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR");
    folder.write("docs/latin.txt", b"caf\xe9 and a lamp");
    folder.write("docs/data.npy", fs::read(fixture("search").join("f32.npy")).unwrap());
    folder.write("docs/packed.txt.gz", b"\x1f\x8b\x08\0");
    folder.write("docs/large.txt", "a lamp ".repeat(160_000));
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path("missing"), folder.path("docs/broken.txt")).unwrap();
    let (found, messages) = folder.places(&args);
    assert_eq!(found, expected);
    for name in [
        "binary.txt is binary",
        "picture.png is",
        "latin.txt is not valid UTF-8",
        "data.npy is",
        "packed.txt.gz is compressed",
        "large.txt has",
    ] {
        assert!(messages.contains(&format!("not searched: docs/{name}")), "{name}: {messages}");
    }
    let counted = stderr(&folder.run(&["docs", "a lamp", "--exclude", "*.log"]));
    let files = if cfg!(unix) { 6 } else { 5 };
    let note = format!(
        "not searched: {files} files cannot be read as UTF-8 text, 1 file above 1 MiB; -v names them"
    );
    assert!(counted.contains(&note), "{counted}");
    assert!(messages.contains("docs has vector files beside other files, and is searched"), "{messages}");
    // UTF-16 and compressed files are texts, and a file that is named may be large.
    let utf16: Vec<u8> = "\u{feff}the lamp\nis on".encode_utf16().flat_map(u16::to_le_bytes).collect();
    folder.write("wide.txt", utf16);
    let found = rows(&folder.run(&[
        "-q",
        "wide.txt",
        "docs/large.txt",
        "lamp",
        "-k",
        "100000",
        "--output-format",
        "jsonl",
    ]));
    assert_eq!(files_of_both(&found), ["docs/large.txt", "wide.txt"]);
    assert_fails(
        &folder.run(&["docs/picture.png", "lamp", "-q"]),
        1,
        &["docs/picture.png has no text to search"],
    );
    assert_fails(
        &folder.run(&["docs", "lamp", "--include", "*.none"]),
        2,
        &["docs: --include and --exclude leave no files"],
    );
}

/// Paths that name a file more than once count it once.
#[test]
fn a_file_of_several_paths_is_searched_once() {
    let folder = Folder::new();
    let expected = folder.places(&[]).0;
    for paths in [&["docs", "./docs"][..], &["docs", "docs/deep", "docs/../docs/lamp.md"]] {
        let args = ["a lamp", "-k", "1000", "--output-format", "jsonl"];
        let found = rows(&folder.run(&[paths, &args].concat()));
        assert_eq!(found, expected, "{paths:?}");
    }
}

fn files_of_both(found: &[Value]) -> Vec<String> {
    files(found).into_iter().collect()
}

#[cfg(unix)]
#[test]
fn a_directory_that_cannot_be_read_is_left_out() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let expected = folder.places(&[]).0;
    folder.write("docs/closed/lamp.txt", "a lamp");
    let set_mode =
        |mode| fs::set_permissions(folder.path("docs/closed"), PermissionsExt::from_mode(mode)).unwrap();
    set_mode(0o000);
    let is_closed = fs::read_dir(folder.path("docs/closed")).is_err();
    let (found, messages) = folder.places(&[]);
    set_mode(0o755);
    // Nothing is closed to root.
    if is_closed {
        assert_eq!(found, expected);
        assert!(messages.contains("not searched: docs/closed cannot be read"), "{messages}");
    }
}

#[test]
fn vectors_are_told_from_texts() {
    let folder = Folder::new();
    let embedded = |name: &str| {
        let output = folder.path(name);
        let found = embed(MODEL, [Path::new("a lamp"), Path::new("the wick"), Path::new("-o"), &*output]);
        assert!(found.status.success(), "{}", stderr(&found));
    };
    fs::create_dir(folder.path("shards")).unwrap();
    ["shards/a.npy", "shards/b.npy", "vectors.jsonl", "vectors.txt.csv"]
        .iter()
        .for_each(|name| embedded(name));
    fs::rename(folder.path("vectors.txt.csv"), folder.path("vectors.txt")).unwrap();
    let kind = |args: &[&str]| {
        let output = folder.run(&[args, &["-v"]].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        let messages = stderr(&output);
        let found = ["texts", "vectors"]
            .into_iter()
            .find(|kind| messages.contains(&format!("is searched as {kind}")));
        found.unwrap_or_else(|| panic!("{messages}"))
    };
    for (path, expected) in [
        ("shards", "vectors"),
        ("vectors.jsonl", "vectors"),
        ("vectors.txt", "vectors"),
        ("docs", "texts"),
        (".", "texts"),
    ] {
        assert_eq!(kind(&[path, "a lamp"]), expected, "{path}");
    }
    assert_eq!(kind(&["vectors.jsonl", "a lamp", "--texts"]), "texts");
    // JSON beside vectors is that of the run that wrote them; beside other tables, it may be a text.
    folder.write("shards/stats.json", "{\"rows\": 2}");
    assert_eq!(kind(&["shards", "a lamp"]), "vectors");
    folder.write("shards/_SUCCESS", "");
    assert_eq!(kind(&["shards", "a lamp"]), "vectors");
    // Globs that a shell has not expanded, and those that it has.
    assert_eq!(kind(&["shards/*.npy", "a lamp"]), "vectors");
    assert_eq!(kind(&["docs/*.md", "docs/*.txt", "a lamp"]), "texts");
    let both = rows(&folder.run(&["shards/a.npy", "shards/b.npy", "a lamp", "--output-format", "jsonl"]));
    for paths in [
        &["shards/*.*"][..],
        &["shards/a.npy", "shards/b.npy", "shards/stats.json"],
        &["shards/a*", "shards/b*"],
    ] {
        let args = ["a lamp", "--output-format", "jsonl"];
        assert_eq!(rows(&folder.run(&[paths, &args].concat())), both, "{paths:?}");
    }
    folder.write("shards/0.json", "{}");
    assert_eq!(rows(&folder.run(&["shards/*.*", "a lamp", "--output-format", "jsonl"])), both);
    folder.write("tables/a.csv", "name,value\nlamp,2\n");
    folder.write("tables/b.json", "{\"lamp\": 2}");
    assert_eq!(kind(&["tables", "a lamp"]), "texts");
    // Text that may be vectors is an error, which names the option.
    folder.write("texts.jsonl", "{\"text\": \"a lamp\"}\n");
    assert_fails(
        &folder.run(&["texts.jsonl", "a lamp"]),
        1,
        &["texts.jsonl", "--texts to search the file as a text"],
    );
    assert_eq!(kind(&["texts.jsonl", "a lamp", "--texts"]), "texts");
    for (args, sentence) in [
        (
            &["shards", "lamp", "--context", "2"][..],
            "--context needs texts, but shards is searched as vectors",
        ),
        (&["shards", "lamp", "--chunk", "9"], "--chunk needs texts"),
        (&["shards", "lamp", "--no-cache"], "--no-cache needs texts"),
        (
            &["docs", "lamp", "--rescore", "shards/a.npy"],
            "--rescore needs vectors, but docs is searched as texts",
        ),
        (
            &["docs", "lamp", "--context", "2", "--output-format", "jsonl"],
            "--context prints lines with places",
        ),
        (
            &["docs", "lamp", "--chunk", "9", "--chunk-overlap", "9"],
            "--chunk-overlap 9 must be less than --chunk 9",
        ),
        (&["docs", "lamp", "--vector-field", "x"], "--vector-field needs vectors, but docs"),
        (&["docs", "lamp", "--chunk", "900"], "--chunk 900 exceeds the limit of 24 tokens"),
    ] {
        assert_fails(&folder.run(args), 2, &[sentence]);
    }
    assert_fails(&folder.run(&["nowhere", "a lamp"]), 1, &["cannot read nowhere", "check the path"]);
    let swapped = folder.run(&["a lamp", "docs"]);
    assert_fails(&swapped, 2, &["write the path before the query: sconce search docs \"a lamp\""]);
    let hinted = folder.run(&["docs", "docs/none.md", "a lamp"]);
    assert!(stderr(&hinted).contains("hint: there is no file docs/none.md"), "{}", stderr(&hinted));
    let none = folder.run(&["docs", "shards"]);
    assert!(none.status.success() && stderr(&none).contains("no queries: pass one after the paths"));
    let mut sparse = sconce();
    sparse
        .current_dir(folder.0.path())
        .args(["search", "docs", "lamp", "-m"])
        .arg(fixture("sparse/bert-max"));
    assert_fails(
        &sparse.output().unwrap(),
        2,
        &["gives sparse vectors, but texts are searched by dense ones"],
    );
    let mut missing = sconce();
    missing.current_dir(folder.0.path()).args([
        "search",
        "docs",
        "lamp",
        "--offline",
        "-m",
        "none/of-the-hub",
    ]);
    assert_fails(&missing.output().unwrap(), 1, &["none/of-the-hub"]);
    assert_eq!(kind(&["docs", "a lamp", "--offline"]), "texts");
}

#[test]
fn people_get_the_place_and_the_first_words() {
    let folder = Folder::new();
    let page = |args: &[&str]| {
        let output = folder.run(&[&["-q", "docs/lamp.md", "the flame"], args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let places = |page: &str| -> Vec<String> {
        let place = |line: &str| line.split_once("  ").unwrap().1.to_owned();
        let mut places: Vec<String> = page.lines().map(place).collect();
        places.sort();
        places
    };
    let chunks = ["--chunk", "10"];
    let expected = [
        "docs/lamp.md:1: The lamp is on.",
        "docs/lamp.md:3: A wick burns in the lamp.",
        "docs/lamp.md:5: The flame is light.",
    ];
    let found = page(&chunks);
    assert_eq!(places(&found), expected);
    assert!(found.lines().all(|line| line.split_once("  ").unwrap().0.parse::<f32>().is_ok()), "{found}");
    // The words are one line of at most 100 characters.
    let whole = page(&["--chunk", "24"]);
    assert_eq!(
        places(&whole),
        ["docs/lamp.md:1: The lamp is on. A wick burns in the lamp. The flame is light."]
    );
    folder.write("long.txt", "attention candle ".repeat(30));
    let long = stdout(&folder.run(&["-q", "long.txt", "key", "-k", "1"]));
    let (_, words) = long.trim_end().split_once(": ").unwrap();
    assert!(words.chars().count() <= 100 && words.ends_with('…'), "{words}");
    // The lines of the chunk with those around it.
    let context = page(&["--chunk", "10", "--context", "1", "-k", "3"]);
    let lines: Vec<&str> =
        context.split("\n\n").find(|place| place.contains(":3: ")).unwrap().lines().skip(1).collect();
    assert_eq!(lines, ["2-", "3: A wick burns in the lamp.", "4-"]);
    let around = page(&["--chunk", "10", "--context", "0", "-k", "3"]);
    assert!(around.contains(":5: The flame is light.\n5:     The flame is light.\n\n"), "{around}");
    // Several queries have numbers.
    let several = stdout(&folder.run(&["-q", "docs/lamp.md", "lamp", "wick", "-k", "1"]));
    let numbers: Vec<&str> = several.lines().map(|line| line.split_once("  ").unwrap().0).collect();
    assert_eq!(numbers, ["0", "1"]);
    let weighted = page(&["--chunk", "10", "--weights", "uniform", "-k", "2"]);
    assert!(weighted.lines().all(|line| line.contains("  0.5000  docs/lamp.md:")), "{weighted}");
}

#[test]
fn the_output_of_an_earlier_search_is_not_searched() {
    let folder = Folder::new();
    let run = || folder.run(&["-q", "docs", "a lamp", "-o", "docs/hits.jsonl"]);
    for _ in 0..2 {
        let output = run();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let hits = fs::read_to_string(folder.path("docs/hits.jsonl")).unwrap();
    assert!(!hits.is_empty() && !hits.contains("hits.jsonl"), "{hits}");
}

/// The files of rows in a directory and below it.
fn cache_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { cache_files(&path) } else { vec![path] }).collect()
}

#[test]
fn no_state_of_the_cache_changes_what_is_found() {
    let folder = Folder::new();
    let expected = folder.places(&["--no-cache"]).0;
    let (all, _) = folder.counts(&[]);
    let files = cache_files(&folder.path("cache/texts"));
    assert_eq!(files.len(), 1);
    let whole = fs::read(&files[0]).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 7) {
        for damaged in [whole[..at].to_vec(), [&whole[..at], &[whole[at] ^ 0x10], &whole[at + 1..]].concat()]
        {
            fs::write(&files[0], damaged).unwrap();
            assert_eq!(folder.places(&[]).0, expected, "damaged at {at}");
            assert_eq!(folder.counts(&[]), (all, all), "what is damaged is embedded again");
        }
    }
    // Several processes at once.
    fs::remove_dir_all(folder.path("cache/texts")).unwrap();
    let common = ["docs", "a lamp", "-q", "-k", "1000", "--output-format", "jsonl"];
    let run = |_| folder.command(&common).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let processes: Vec<_> = (0..4).map(run).collect();
    for process in processes {
        assert_eq!(rows(&process.wait_with_output().unwrap()), expected);
    }
    // A cache that cannot be used is no error, unless the user has named it.
    fs::remove_dir_all(folder.path("cache/texts")).unwrap();
    folder.write("cache/texts", "no directory");
    let (found, messages) = folder.places(&[]);
    assert_eq!(found, expected);
    assert!(messages.contains("without a cache: cannot use the cache"), "{messages}");
    let named = folder.run(&["docs", "a lamp", "--cache", "cache/texts"]);
    assert_fails(&named, 1, &["cannot use the cache cache/texts"]);
    // embed --cache has the same rows.
    let embed_with = |output: &str| {
        let mut command = sconce();
        command.current_dir(folder.0.path()).args(["embed", "-q", "-m"]).arg(fixture(MODEL));
        command.args([
            "-i",
            "docs",
            "--input-format",
            "files",
            "--chunk",
            "16",
            "--cache",
            "rows",
            "-o",
            output,
        ]);
        let done = command.args(["--stats", "stats.json"]).output().unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        let stats: Value = serde_json::from_slice(&fs::read(folder.path("stats.json")).unwrap()).unwrap();
        (stats["rows"].as_u64().unwrap() as usize, stats["cached"].as_u64().unwrap() as usize)
    };
    let (chunks, _) = folder.counts(&["--chunk", "16", "--cache", "rows"]);
    assert_eq!(embed_with("first.parquet"), (chunks, chunks));
    fs::remove_dir_all(folder.path("rows")).unwrap();
    embed_with("second.parquet");
    assert_eq!(folder.counts(&["--chunk", "16", "--cache", "rows"]), (chunks, chunks));
    let read = |name| fs::read(folder.path(name)).unwrap();
    assert!(read("first.parquet") == read("second.parquet"));
}

/// A multi-vector model has a vector per token of a chunk.
#[test]
fn texts_are_searched_by_tokens() {
    let folder = Folder::new();
    let mut command = sconce();
    command.current_dir(folder.0.path()).env("SCONCE_CACHE", folder.path("cache"));
    command.args(["search", "-q", "docs", "a lamp", "--output-format", "jsonl", "-m"]);
    command.arg(fixture("multi-vector").join("pylate"));
    let first = rows(&command.output().unwrap());
    assert!(!first.is_empty());
    assert_eq!(rows(&command.output().unwrap()), first);
}
