//! The fuzz targets: one function per parser, which parses bytes through the public API and panics only on a
//! defect. A refused input is no defect; a panic, or an error message that is not one line or does not name
//! the file, is one.
//!
//! `tests/integration/fuzz_input.rs` and `fuzz_model.rs` run all targets on damaged files; cargo-fuzz runs
//! one at a time (`tests/fuzz/`, which includes this file, so nothing here depends on the rest of the tests).

use std::fmt::Display;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use sconce::checkpoint::Checkpoint;
use sconce::formats::{HashedRows, for_each_record_hash};
use sconce::input::{Entries, Entry, Fields, Filter, Format, KeptName, find};
use sconce::job::{EarlierRun, Journal, Manifest, RunIdentity, StartMode, refuse_interrupted};
use sconce::model::classification::{label_function, labels, next_sentence_labels, pair_function};
use sconce::model::config::Config;
use sconce::model::families::Family;
use sconce::model::modules::Modules;
use sconce::model::purpose::Purpose;
use sconce::named::Named;
use sconce::neighbours::Representation;
use sconce::nn::HeadKind;
use sconce::rows::OutputFormat;
use sconce::run::merge::{MergeOptions, merge};
use sconce::serve::schema::{Fault, Schema, ignored_header, ollama, openai, rerank, tasks, tei};
use sconce::store::{self, Ledger, SidecarPaths};
use sconce::sys::console::{Console, Verbosity};
use sconce::text::{ChatTemplate, Message, PairTruncation, Tokenizer, TokenizerOptions, TruncationSide};
use sconce::vectors::{VectorField, VectorFile};
use serde_json::{Map, Value};

/// A fuzz target: parses bytes, and returns whether they were accepted.
pub type Target = fn(&[u8]) -> bool;

/// Makes the list of targets from the names of their functions.
macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        /// All targets, by name.
        pub const TARGETS: &[(&str, Target)] = &[$((stringify!($name), $name)),*];
    };
}

targets! {
    // Inputs.
    lines, fasta, files, jsonl, csv, tsv, parquet, arrow, gzip, zstd,
    // Files of a model.
    config, safetensors_header, safetensors_index, pytorch_checkpoint,
    modules, model_settings, transformer_config, pooling_config, dense_config, layer_norm_config, normalize_config,
    // Files of a tokenizer.
    tokenizer_json, vocab_txt, vocab_json, merges_txt, sentence_piece, tokenizer_config, special_tokens_map, added_tokens,
    chat_template,
    // Files beside an output.
    manifest, completed_run, ledger, output_metadata,
    // Vector files.
    vectors, sparse_vectors,
    // Files of rows.
    merged_rows, record_hashes,
    // Bodies of requests.
    requests,
}

/// Maximum number of entries read from an input: a damaged row count may declare billions of rows.
const MAX_ENTRIES: usize = 20_000;

/// A new folder for the files of one call.
fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// Asserts that a message is one line and not that of a panic. `bytes` is the file that it is about: a
/// message may quote its strings, and their line breaks are escaped when it is printed.
#[track_caller]
pub fn check_sentence(message: &str, bytes: &[u8]) {
    assert!(!message.is_empty());
    assert!(!message.contains("panicked") && !message.contains("report this as a bug"), "{message:?}");
    if !message.contains('\n') {
        return;
    }
    let strings = json_strings(bytes);
    // A line break of the message with the character before or after it.
    let chars: Vec<char> = message.chars().collect();
    for i in (0..chars.len()).filter(|i| chars[*i] == '\n') {
        let is_quoted = |part: &[char]| {
            let part: String = part.iter().collect();
            part.len() > 1 && strings.iter().any(|string| string.contains(&part))
        };
        let (with_previous, with_next) = (&chars[i.saturating_sub(1)..=i], &chars[i..chars.len().min(i + 2)]);
        assert!(is_quoted(with_previous) || is_quoted(with_next), "{message:?}");
    }
}

/// The strings and keys in a JSON file, or in the header of a safetensors file.
fn json_strings(bytes: &[u8]) -> Vec<String> {
    fn collect(value: Value, strings: &mut Vec<String>) {
        match value {
            Value::String(string) => strings.push(string),
            Value::Array(list) => list.into_iter().for_each(|value| collect(value, strings)),
            Value::Object(fields) => fields.into_iter().for_each(|(key, value)| {
                strings.push(key);
                collect(value, strings);
            }),
            _ => {}
        }
    }
    let header = || {
        let length = u64::from_le_bytes(*bytes.first_chunk()?);
        serde_json::from_slice(bytes[8..].get(..usize::try_from(length).ok()?)?).ok()
    };
    let mut strings = Vec::new();
    if let Some(value) = serde_json::from_slice(bytes).ok().or_else(header) {
        collect(value, &mut strings);
    }
    strings
}

/// Whether a parser accepted a file in `folder`; otherwise its error is checked.
#[track_caller]
fn accepted<T>(result: Result<T, impl Display>, folder: &Path, bytes: &[u8]) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let message = format!("{error:#}");
            check_sentence(&message, bytes);
            assert!(message.contains(&*folder.to_string_lossy()), "{message:?} names no file");
            None
        }
    }
}

// ---- Inputs ----

fn lines(bytes: &[u8]) -> bool {
    read_input("case.txt", bytes)
}

fn fasta(bytes: &[u8]) -> bool {
    read_input("case.fasta", bytes)
}

/// A text that is a whole file (`--format files`).
fn files(bytes: &[u8]) -> bool {
    read_input("case.text", bytes)
}

fn jsonl(bytes: &[u8]) -> bool {
    read_input("case.jsonl", bytes)
}

fn csv(bytes: &[u8]) -> bool {
    read_input("case.csv", bytes)
}

fn tsv(bytes: &[u8]) -> bool {
    read_input("case.tsv", bytes)
}

fn parquet(bytes: &[u8]) -> bool {
    read_input("case.parquet", bytes)
}

/// Arrow files, Arrow streams and Feather files.
fn arrow(bytes: &[u8]) -> bool {
    read_input("case.arrow", bytes)
}

fn gzip(bytes: &[u8]) -> bool {
    read_compressed("gz", bytes)
}

fn zstd(bytes: &[u8]) -> bool {
    read_compressed("zst", bytes)
}

/// Reads compressed bytes as each of the formats that can be compressed; true if one of them accepts the
/// bytes.
fn read_compressed(extension: &str, bytes: &[u8]) -> bool {
    let formats = ["txt", "text", "jsonl", "csv", "tsv", "arrow"];
    formats
        .into_iter()
        .fold(false, |any, format| read_input(&format!("case.{format}.{extension}"), bytes) | any)
}

/// Reads an input, without kept fields and, if its format has typed values, with kept fields of every type.
fn read_input(name: &str, bytes: &[u8]) -> bool {
    let folder = scratch();
    let path = folder.path().join(name);
    fs::write(&path, bytes).expect("the file is written");
    let is_typed =
        ["jsonl", "parquet", "arrow"].iter().any(|format| name.starts_with(&format!("case.{format}")));
    if is_typed {
        let keep = ["number", "double", "flag", "day", "time", "price", "kind", "nested", "before"];
        read_entries(&path, keep.map(KeptName::from).to_vec());
    }
    read_entries(&path, Vec::new())
}

/// Reads the entries of an input up to its end or an error. True if there was no error, and at least one
/// record.
fn read_entries(path: &Path, keep: Vec<KeptName>) -> bool {
    let is_file_per_text = path.to_string_lossy().contains("case.text");
    let fields = Fields { keep, ..Fields::default() };
    let format = is_file_per_text.then_some(Format::Files);
    let found = find(&[path.to_owned()], format, &Filter::default());
    let opened = found.and_then(|found| Entries::open(found.sources, fields));
    let mut entries = match opened {
        Ok(entries) => entries,
        Err(error) => {
            check_input_message(&error.to_string(), path);
            return false;
        }
    };
    let mut has_record = false;
    for _ in 0..MAX_ENTRIES {
        match entries.next() {
            Some(Ok(Entry::Record(record))) => {
                let location = record.location.to_string();
                assert!(location.starts_with(&*path.to_string_lossy()), "{location}");
                has_record = true;
            }
            Some(Ok(Entry::Unreadable(unreadable))) => check_input_message(&unreadable.to_string(), path),
            Some(Err(error)) => {
                check_input_message(&error.to_string(), path);
                assert!(entries.next().is_none(), "an error is the last entry");
                return false;
            }
            None => {
                assert_eq!(Some(entries.bytes_read()), entries.total_bytes());
                return has_record;
            }
        }
    }
    has_record
}

/// Asserts that a message about an input is one line, names the file, and has a remedy.
#[track_caller]
fn check_input_message(message: &str, path: &Path) {
    assert!(!message.contains('\n'), "{message:?}");
    assert!(message.contains(&*path.to_string_lossy()), "{message:?} does not name {}", path.display());
    assert!(message.contains("; "), "{message:?} has no remedy");
}

/// A file of dense vectors in any format: all vectors, and the columns of the first and the last row.
fn vectors(bytes: &[u8]) -> bool {
    read_vectors(bytes, false)
}

/// A file of sparse vectors, or of vectors of tokens, in any format.
fn sparse_vectors(bytes: &[u8]) -> bool {
    read_vectors(bytes, true)
}

/// Reads a file of vectors, of `any` kind or one dense vector per row.
fn read_vectors(bytes: &[u8], any: bool) -> bool {
    let folder = scratch();
    let path = folder.path().join("case.vectors");
    fs::write(&path, bytes).expect("the file is written");
    let read = |file: VectorFile| {
        // Rows with a vector: their number, the first, and the end of the last.
        let is_dense = file.representation() == Representation::Dense;
        let (mut rows, mut first, mut end) = (0, 0, 0);
        file.for_each_block(0, 64, |block| {
            assert!(block.first_row >= end, "blocks are in order");
            assert!(!is_dense || block.dimensions == file.dimensions());
            if rows == 0 {
                first = block.first_row;
            }
            // Of vectors of tokens, a row of the block is a vector.
            let held = if block.lengths.is_empty() { block.rows } else { block.lengths.len() };
            (rows, end) = (rows + held, block.first_row + held);
            Ok(if end < MAX_ENTRIES { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        if rows == 0 || end >= MAX_ENTRIES {
            return Ok(rows);
        }
        assert!(end <= file.rows());
        let columns: Vec<usize> = (0..file.columns().len()).collect();
        let ends = if first + 1 == end { vec![first] } else { vec![first, end - 1] };
        assert_eq!(file.values(&ends, &columns)?.len(), ends.len());
        if is_dense {
            file.read_rows(&ends, |block| {
                assert_eq!(block.rows, ends.len());
                Ok(())
            })?;
        }
        Ok(rows)
    };
    let opened = if any {
        VectorFile::open_any(&path, VectorField::Auto)
    } else {
        VectorFile::open(&path, VectorField::Auto)
    };
    match opened.and_then(read) {
        Ok(rows) => rows > 0,
        Err(error) => {
            check_input_message(&error.to_string(), &path);
            false
        }
    }
}

/// A file that Sconce wrote, in any format, merged with itself. True if it has rows.
fn merged_rows(bytes: &[u8]) -> bool {
    let folder = scratch();
    let (path, output) = (folder.path().join("case.rows"), folder.path().join("merged"));
    fs::write(&path, bytes).expect("the file is written");
    let options = MergeOptions {
        output: store::Target::File(output.clone()),
        inputs: vec![path.clone(), path.clone()],
        console: Console::new(Verbosity::Quiet, false),
    };
    match merge(&options) {
        Ok(()) => fs::metadata(&output).expect("the output is written").len() > 0,
        Err(error) => {
            check_input_message(&format!("{error:#}"), &path);
            assert!(!output.exists(), "nothing is written under the final name");
            false
        }
    }
}

/// A file that `embed --append` wrote: the ids and hashes of its records. True if it has any.
fn record_hashes(bytes: &[u8]) -> bool {
    let format = match bytes.first() {
        Some(b'P') => OutputFormat::Parquet,
        Some(b'A' | 0xff) => OutputFormat::Arrow,
        Some(b'{') => OutputFormat::Jsonl,
        _ => OutputFormat::Csv,
    };
    let folder = scratch();
    let path = folder.path().join("case.rows");
    fs::write(&path, bytes).expect("the file is written");
    let mut records = 0;
    let read = for_each_record_hash(&path, HashedRows { format, chunks: true, id_column: "id" }, |_| {
        records += 1;
        Ok(())
    });
    match read {
        Ok(()) => records > 0,
        Err(error) => {
            check_input_message(&format!("{error:#}"), &path);
            false
        }
    }
}

// ---- Files of a model ----

/// `config.json`, up to the spec of the encoder: there are no weights that would bound its sizes.
fn config(bytes: &[u8]) -> bool {
    let folder = scratch();
    let path = folder.path().join("config.json");
    fs::write(&path, bytes).expect("the file is written");
    let spec = Config::read(&path).and_then(|config| {
        let _ = Purpose::of_config(&config).map(|purpose| check_sentence(&purpose.to_string(), bytes));
        let family = Family::of(&config)?;
        let spec = family.spec(&config)?;
        for kind in HeadKind::ALL {
            let _ = family
                .head(*kind, &config, &spec)
                .map_err(|error| check_sentence(&format!("{error:#}"), bytes));
        }
        check_scores(&config, bytes);
        Ok(spec)
    });
    accepted(spec, folder.path(), bytes).is_some()
}

/// The labels and the functions of a head.
fn check_scores(config: &Config, bytes: &[u8]) {
    let labels = labels(config);
    let count = labels.as_ref().map_or(2, Vec::len);
    let functions = [label_function(config, count), pair_function(config, None)];
    let names = next_sentence_labels(config);
    let errors = functions.into_iter().filter_map(Result::err).chain(labels.err()).chain(names.err());
    errors.for_each(|error| check_sentence(&format!("{error:#}"), bytes));
}

/// The header of a safetensors file.
fn safetensors_header(bytes: &[u8]) -> bool {
    let folder = scratch();
    let path = folder.path().join("model.safetensors");
    fs::write(&path, bytes).expect("the file is written");
    let checkpoint = accepted(Checkpoint::open(&path), folder.path(), bytes);
    checkpoint.inspect(|checkpoint| checkpoint.check_unchanged().expect("the file is unchanged")).is_some()
}

/// A PyTorch checkpoint: a zip archive with a pickle, or the pickles of the older format.
fn pytorch_checkpoint(bytes: &[u8]) -> bool {
    let folder = scratch();
    let path = folder.path().join("pytorch_model.bin");
    fs::write(&path, bytes).expect("the file is written");
    let checkpoint = accepted(Checkpoint::open(&path), folder.path(), bytes);
    let whole = checkpoint.and_then(|checkpoint| {
        for name in checkpoint.names() {
            let _ = checkpoint.part(name, 0, 1);
        }
        accepted(checkpoint.check_unchanged(), folder.path(), bytes)
    });
    whole.is_some()
}

/// A safetensors file with one element in each of its F32 tensors.
fn shard(names: &[&str]) -> Vec<u8> {
    let tensor = |(i, name): (usize, &&str)| {
        format!("{name:?}:{{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[{},{}]}}", 4 * i, 4 * i + 4)
    };
    let header = format!("{{{}}}", names.iter().enumerate().map(tensor).collect::<Vec<_>>().join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; 4 * names.len()]].concat()
}

/// `model.safetensors.index.json`, beside the shards `first.safetensors` with tensors `a` and `b` and
/// `second.safetensors` with `c`.
fn safetensors_index(bytes: &[u8]) -> bool {
    let folder = scratch();
    let index = folder.path().join("model.safetensors.index.json");
    fs::write(folder.path().join("first.safetensors"), shard(&["a", "b"])).expect("the file is written");
    fs::write(folder.path().join("second.safetensors"), shard(&["c"])).expect("the file is written");
    fs::write(&index, bytes).expect("the file is written");
    accepted(Checkpoint::open(&index), folder.path(), bytes).is_some()
}

/// The files of a sentence-transformers model with every kind of module.
const MODULE_FILES: &[(&str, &[u8])] = &[
    ("modules.json", MODULES),
    (
        "config_sentence_transformers.json",
        br#"{"prompts": {"query": "query: "}, "default_prompt_name": null}"#,
    ),
    ("sentence_bert_config.json", br#"{"max_seq_length": 64, "do_lower_case": false}"#),
    ("tokenizer_config.json", br#"{"model_max_length": 512, "truncation_side": "right"}"#),
    ("1_Pooling/config.json", br#"{"word_embedding_dimension": 8, "pooling_mode_mean_tokens": true}"#),
    ("2_Dense/config.json", br#"{"in_features": 8, "out_features": 4, "bias": true}"#),
    ("3_LayerNorm/config.json", br#"{"dimension": 4}"#),
    ("4_Normalize/config.json", b"{}"),
];

const MODULES: &[u8] = br#"[
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"},
    {"idx": 3, "name": "3", "path": "3_LayerNorm", "type": "sentence_transformers.models.LayerNorm"},
    {"idx": 4, "name": "4", "path": "4_Normalize", "type": "sentence_transformers.models.Normalize"}
]"#;

/// Reads the modules of a model whose file `name` has the given bytes.
fn read_modules(name: &str, bytes: &[u8]) -> bool {
    let folder = scratch();
    write_files(folder.path(), MODULE_FILES, name, bytes);
    accepted(Modules::read(folder.path(), None, None), folder.path(), bytes).is_some()
}

/// Writes files to a folder, the one called `name` with other bytes.
fn write_files(folder: &Path, files: &[(&str, &[u8])], name: &str, bytes: &[u8]) {
    for (file, content) in files.iter().filter(|(file, _)| *file != name).chain(&[(name, bytes)]) {
        let path = folder.join(file);
        fs::create_dir_all(path.parent().expect("a folder")).expect("the folder is created");
        fs::write(path, content).expect("the file is written");
    }
}

/// `modules.json`.
fn modules(bytes: &[u8]) -> bool {
    read_modules("modules.json", bytes)
}

/// `config_sentence_transformers.json`.
fn model_settings(bytes: &[u8]) -> bool {
    read_modules("config_sentence_transformers.json", bytes)
}

/// `sentence_bert_config.json`.
fn transformer_config(bytes: &[u8]) -> bool {
    read_modules("sentence_bert_config.json", bytes)
}

/// The `config.json` of a Pooling module.
fn pooling_config(bytes: &[u8]) -> bool {
    read_modules("1_Pooling/config.json", bytes)
}

/// The `config.json` of a Dense module.
fn dense_config(bytes: &[u8]) -> bool {
    read_modules("2_Dense/config.json", bytes)
}

/// The `config.json` of a LayerNorm module.
fn layer_norm_config(bytes: &[u8]) -> bool {
    read_modules("3_LayerNorm/config.json", bytes)
}

/// The `config.json` of a Normalize module.
fn normalize_config(bytes: &[u8]) -> bool {
    read_modules("4_Normalize/config.json", bytes)
}

// ---- Files of a tokenizer ----

/// A WordPiece vocabulary with files of older releases of transformers.
const WORD_PIECE: &[(&str, &[u8])] = &[
    ("vocab.txt", include_bytes!("../../fixtures/tokenizers/bert-added/vocab.txt")),
    ("tokenizer_config.json", include_bytes!("../../fixtures/tokenizers/bert-added/tokenizer_config.json")),
    (
        "special_tokens_map.json",
        include_bytes!("../../fixtures/tokenizers/bert-added/special_tokens_map.json"),
    ),
    ("added_tokens.json", include_bytes!("../../fixtures/tokenizers/bert-added/added_tokens.json")),
];

/// A byte-level BPE vocabulary.
const BYTE_PAIRS: &[(&str, &[u8])] = &[
    ("vocab.json", include_bytes!("../../fixtures/tokenizers/roberta-plain/vocab.json")),
    ("merges.txt", include_bytes!("../../fixtures/tokenizers/roberta-plain/merges.txt")),
    ("config.json", include_bytes!("../../fixtures/tokenizers/roberta-plain/config.json")),
];

/// A SentencePiece model with Unigram probabilities.
const PIECES: &[(&str, &[u8])] = &[
    ("spiece.model", include_bytes!("../../fixtures/tokenizers/spm-albert-cased/spiece.model")),
    (
        "tokenizer_config.json",
        include_bytes!("../../fixtures/tokenizers/spm-albert-cased/tokenizer_config.json"),
    ),
];

/// A SentencePiece model of a BPE.
const PIECE_PAIRS: &[(&str, &[u8])] = &[
    ("tokenizer.model", include_bytes!("../../fixtures/tokenizers/spm-llama/tokenizer.model")),
    ("tokenizer_config.json", include_bytes!("../../fixtures/tokenizers/spm-llama/tokenizer_config.json")),
];

/// A `tokenizer.json` and its settings.
const COMPLETE_TOKENIZER: &[(&str, &[u8])] = &[
    ("tokenizer.json", include_bytes!("../../fixtures/tokenizers/json-bert-special-map/tokenizer.json")),
    (
        "tokenizer_config.json",
        include_bytes!("../../fixtures/tokenizers/json-bert-special-map/tokenizer_config.json"),
    ),
    ("config.json", include_bytes!("../../fixtures/tokenizers/json-bert-special-map/config.json")),
];

/// Reads a tokenizer whose file `name` has the given bytes; `files[0]` is its entry.
fn read_tokenizer(files: &[(&str, &[u8])], name: &str, bytes: &[u8]) -> bool {
    let folder = scratch();
    write_files(folder.path(), files, name, bytes);
    let options = TokenizerOptions {
        max_length: 16,
        truncation_side: TruncationSide::Left,
        pair_truncation: PairTruncation::LongestFirst,
        lowercase: true,
    };
    encode_with(&folder.path().join(files[0].0), &options, bytes)
}

/// Reads a tokenizer and encodes some texts. `bytes` is the damaged file in its folder.
pub fn encode_with(entry: &Path, options: &TokenizerOptions, bytes: &[u8]) -> bool {
    let folder = entry.parent().expect("a folder");
    let Some(tokenizer) = accepted(Tokenizer::read(entry, options), folder, bytes) else { return false };
    for (text, pair) in [("", None), ("a lamp, ünd 日本 [MASK] <s>", Some("b ".repeat(40)))] {
        match tokenizer.encode(text, pair.as_deref()) {
            Ok(tokens) => assert_eq!(tokens.ids.len(), tokens.token_type_ids.len()),
            Err(error) => check_sentence(&format!("{error:#}"), bytes),
        }
        let _ = tokenizer.prompt_length(text);
    }
    true
}

/// `chat_template.jinja`.
fn chat_template(bytes: &[u8]) -> bool {
    let folder = scratch();
    fs::write(folder.path().join("chat_template.jinja"), bytes).expect("the file is written");
    let entry = folder.path().join("tokenizer.json");
    let Some(template) = accepted(ChatTemplate::read(&entry, &Map::new()), folder.path(), bytes) else {
        return false;
    };
    let template = template.expect("the folder has a template");
    let messages = [("system", "find"), ("query", ""), ("document", "a lamp, ünd 日本\n")];
    let messages = messages.map(|(role, content)| Message { role, content });
    for has_parts in [false, true] {
        if let Err(error) = template.render(&messages, has_parts) {
            check_sentence(&error, bytes);
        }
    }
    true
}

/// `tokenizer.json`. One whose regular expression backtracks can take very long: see
/// `sconce::text::tokenizer`.
fn tokenizer_json(bytes: &[u8]) -> bool {
    read_tokenizer(COMPLETE_TOKENIZER, "tokenizer.json", bytes)
}

/// `vocab.txt`, alone and beside files that need some of its tokens.
fn vocab_txt(bytes: &[u8]) -> bool {
    read_tokenizer(WORD_PIECE, "vocab.txt", bytes);
    read_tokenizer(&WORD_PIECE[..1], "vocab.txt", bytes)
}

fn vocab_json(bytes: &[u8]) -> bool {
    read_tokenizer(BYTE_PAIRS, "vocab.json", bytes)
}

fn merges_txt(bytes: &[u8]) -> bool {
    read_tokenizer(BYTE_PAIRS, "merges.txt", bytes)
}

/// A SentencePiece model, for classes with models of both kinds.
fn sentence_piece(bytes: &[u8]) -> bool {
    let kinds = [PIECES, PIECE_PAIRS];
    kinds.into_iter().fold(false, |any, files| read_tokenizer(files, files[0].0, bytes) | any)
}

/// `tokenizer_config.json`, beside each kind of tokenizer.
fn tokenizer_config(bytes: &[u8]) -> bool {
    let kinds = [WORD_PIECE, BYTE_PAIRS, PIECES, COMPLETE_TOKENIZER];
    kinds.into_iter().fold(false, |any, files| read_tokenizer(files, "tokenizer_config.json", bytes) | any)
}

/// `special_tokens_map.json`, beside each kind of tokenizer.
fn special_tokens_map(bytes: &[u8]) -> bool {
    let kinds = [WORD_PIECE, BYTE_PAIRS, PIECES, COMPLETE_TOKENIZER];
    kinds.into_iter().fold(false, |any, files| read_tokenizer(files, "special_tokens_map.json", bytes) | any)
}

/// `added_tokens.json`.
fn added_tokens(bytes: &[u8]) -> bool {
    read_tokenizer(WORD_PIECE, "added_tokens.json", bytes)
}

// ---- Files beside an output ----

/// The paths of an output and of the files beside it.
fn sidecars(folder: &Path) -> SidecarPaths {
    let path = |name: &str| -> PathBuf { folder.join(name) };
    SidecarPaths {
        output: path("out.npy"),
        lock: path(".out.npy.partial.lock"),
        partial: path(".out.npy.partial"),
        converted: path(".out.npy.partial.whole"),
        manifest: path(".out.npy.partial.json"),
        ledger: path(".out.npy.partial.ledger"),
        final_ledger: path("out.npy.ledger.jsonl"),
        meta: path("out.npy.meta.json"),
        done: path(".out.npy.done.json"),
        added: path(".out.npy.append"),
    }
}

/// Opens the journal of a run with `--resume`.
fn resume(beside: &SidecarPaths, identity: RunIdentity) -> Result<EarlierRun, String> {
    let console = Console::new(Verbosity::Quiet, false);
    match Journal::open(beside, StartMode::Resume, &console, || Ok(identity)) {
        Ok((_, earlier)) => Ok(earlier),
        Err(error) => Err(format!("{error:#}")),
    }
}

/// The manifest of an interrupted run: it is refused, or resumed by a run with its identity and saved again
/// unchanged.
fn manifest(bytes: &[u8]) -> bool {
    let folder = scratch();
    let beside = sidecars(folder.path());
    fs::write(&beside.manifest, bytes).expect("the file is written");
    let loaded = store::manifest::load::<Manifest>(&beside.manifest);
    let Some(manifest) = accepted(loaded, folder.path(), bytes) else { return false };
    let manifest = manifest.expect("the file exists");
    accepted(refuse_interrupted(&beside), folder.path(), bytes);
    if let Err(message) = resume(&beside, RunIdentity::new()) {
        check_sentence(&message, bytes);
    }
    let resumed = resume(&beside, manifest.identity.clone());
    assert!(matches!(resumed, Ok(EarlierRun::Interrupted(_))), "a run of the same identity resumes it");
    store::manifest::save(&beside.manifest, &beside.output, &manifest).expect("the manifest is saved");
    let saved = store::manifest::load::<Manifest>(&beside.manifest);
    let saved = saved.expect("the saved manifest is valid").expect("the file exists");
    assert_eq!(serde_json::to_value(saved).unwrap(), serde_json::to_value(manifest).unwrap());
    true
}

/// The manifest of a complete run. An invalid one counts as absent.
fn completed_run(bytes: &[u8]) -> bool {
    let folder = scratch();
    let beside = sidecars(folder.path());
    fs::write(&beside.output, "rows").expect("the file is written");
    fs::write(&beside.done, bytes).expect("the file is written");
    let found = resume(&beside, RunIdentity::new());
    assert!(matches!(found, Ok(EarlierRun::None | EarlierRun::Complete(_))), "an invalid file is no error");
    true
}

/// The ledger of a finished run, which the next run may replace, and that of an interrupted run, which it
/// continues.
fn ledger(bytes: &[u8]) -> bool {
    let folder = scratch();
    let beside = sidecars(folder.path());
    for path in [&beside.ledger, &beside.final_ledger] {
        fs::write(path, bytes).expect("the file is written");
    }
    let length = bytes.len() as u64;
    let too_long = Ledger::open(&beside.ledger, &beside.output, Some(length + 1));
    assert!(accepted(too_long.map(drop), folder.path(), bytes).is_none(), "the ledger is too short");
    let durable = length.div_ceil(2);
    let mut ledger =
        Ledger::open(&beside.ledger, &beside.output, Some(durable)).expect("the ledger is continued");
    assert_eq!(ledger.checkpoint().expect("the ledger is written"), durable);
    accepted(Ledger::check_replaceable(&beside.final_ledger), folder.path(), bytes).is_some()
}

/// The metadata of an npy file of an earlier run, which the next run may replace.
fn output_metadata(bytes: &[u8]) -> bool {
    let folder = scratch();
    let path = sidecars(folder.path()).meta;
    fs::write(&path, bytes).expect("the file is written");
    accepted(store::manifest::check_replaceable(&path, "release"), folder.path(), bytes).is_some()
}

/// The body of a request, as each route reads it. A fault is a sentence, and its bodies are JSON.
fn requests(bytes: &[u8]) -> bool {
    /// Maximum texts of a request.
    const MAX_TEXTS: usize = 100;
    let default_tasks = [
        tei::DefaultTask::Embed,
        tei::DefaultTask::EmbedSparse,
        tei::DefaultTask::Predict,
        tei::DefaultTask::Rerank,
    ];
    let root = default_tasks.map(|task| tei::root(bytes, |_| task, MAX_TEXTS).err());
    let routes = [
        tasks::TaskRoute::Embed,
        tasks::TaskRoute::Rerank,
        tasks::TaskRoute::Classify,
        tasks::TaskRoute::Tag,
        tasks::TaskRoute::Fill,
        tasks::TaskRoute::Answer,
    ];
    let tasks = routes.into_iter().map(|route| tasks::task(bytes, route, MAX_TEXTS).err());
    let routes = [
        tei::embed(bytes, MAX_TEXTS).map(|call| drop(ignored_header(&call.ignored))).err(),
        tei::tokenize(bytes, MAX_TEXTS).err(),
        tei::decode(bytes, MAX_TEXTS).err(),
        openai::embeddings(bytes, MAX_TEXTS).err(),
        rerank::rerank(bytes, Schema::Cohere, MAX_TEXTS).map_err(|(fault, _)| fault).err(),
        ollama::embed(bytes, MAX_TEXTS).err(),
        ollama::embeddings(bytes).err(),
        ollama::show(bytes).err(),
    ];
    let faults: Vec<Option<Fault>> = root.into_iter().chain(tasks).chain(routes).collect();
    for fault in faults.iter().flatten() {
        check_sentence(&fault.message, bytes);
        for schema in [Schema::Tei, Schema::OpenAi, Schema::Cohere, Schema::Ollama, Schema::Plain] {
            assert!((400..600).contains(&fault.status(schema)));
            assert!(serde_json::from_slice::<Map<String, Value>>(&fault.body(schema)).is_ok());
        }
    }
    faults.iter().any(Option::is_none)
}
