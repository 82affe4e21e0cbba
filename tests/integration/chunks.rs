//! `--chunk`: chunks end at the best boundary, cover the whole text, and have the vectors of their parts of
//! the text.

use crate::support;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::{
    assert_close, assert_fails, copy_folder, embed, embedding, fixture, numbers, rows, sconce, stderr,
};
use arrow_array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use safetensors::SafeTensors;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Texts that are hard to split.
fn texts() -> Vec<String> {
    let prose = "The lamp burns in the window. Its wick is dry, and the flame is small! Who lit it?\n\nNobody knows. A \
                 candle stood there before; its light was poor.\n\nThe end.\n";
    let mut texts: Vec<String> = [
        "",
        " \t\r\n \u{3000}",
        "lamp",
        "  the lamp  ",
        prose,
        "one\r\n\r\ntwo three four five six seven eight nine ten eleven\r\ntwelve. Thirteen\r\n \r\nfourteen\r",
        "灯火が窓辺で燃える。その芯は乾いている。誰が灯したのか、誰も知らない。蝋燭が一本、そこに立っていた。",
        "Ünïcödé 灯 key — naïve façade; 😀 emoji 👩‍👩‍👧‍👦 family 🇩🇪🇫🇷 flags é̂̄ marks.",
        "a\u{200b}b \u{0} c\u{7f} \u{feff} d \u{200b}\u{200b} \u{200b}\n\n\u{200b}\n\nthe lamp and the wick of a burning candle",
        "https://example.org/a/very/long/path?with=many&parts=of&it=and-more#fragment, see there.",
        "[CLS] the [SEP] lamp [MASK] [PAD] burns",
    ]
    .map(String::from)
    .into();
    texts.push("x".repeat(95));
    texts.push(format!("the {} burns", "lampwick".repeat(40)));
    texts.push("😀👩‍👩‍👧‍👦é".repeat(30));
    texts.push("the lamp,wick;flame:burning".repeat(20));
    texts.push(prose.repeat(9));
    texts.push(format!("{}\n\n{}", prose.replace(' ', "   "), "the lamp ".repeat(50)));
    texts.push("a".repeat(60) + &" ".repeat(300) + &"b c d e f g ".repeat(9));
    texts
}

fn jsonl(texts: &[String]) -> String {
    texts.iter().map(|text| format!("{}\n", json!({ "text": text }))).collect()
}

/// `sconce embed` over texts that may contain line breaks.
fn run(model: &dyn Fn(&mut Command), texts: &[String], args: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("texts.jsonl");
    fs::write(&input, jsonl(texts)).unwrap();
    let mut command = sconce();
    command.args(["embed", "--quiet", "-i"]).arg(&input);
    model(&mut command);
    command.args(args).output().unwrap()
}

fn fixture_model(name: &'static str) -> impl Fn(&mut Command) {
    move |command| {
        command.arg("--model").arg(fixture(name));
    }
}

/// A model with random weights and another tokenizer.
fn with_tokenizer(folder: &TempDir, name: &str) -> impl Fn(&mut Command) {
    let config = fs::read_to_string(fixture("bert-tiny").join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    (config["vocab_size"], config["max_position_embeddings"]) = (300.into(), 64.into());
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let tokenizer = fixture("tokenizers").join(name).join("tokenizer.json");
    move |command| {
        command.args(["--random-weights", "7", "--max-length", "64", "--config"]).arg(&path);
        command.arg("--tokenizer").arg(&tokenizer);
    }
}

fn number(row: &Value, name: &str) -> usize {
    row[name].as_u64().unwrap_or_else(|| panic!("no {name} in {row}")) as usize
}

/// The characters of a chunk.
fn slice(text: &str, row: &Value) -> String {
    let (start, end) = (number(row, "start"), number(row, "end"));
    assert!(start <= end && end <= text.chars().count(), "{row}");
    text.chars().skip(start).take(end - start).collect()
}

/// Asserts what every text in chunks satisfies, and returns the rows of the chunks of each text.
fn check(
    model: &dyn Fn(&mut Command),
    texts: &[String],
    tokens: usize,
    overlap: usize,
    args: &[&str],
) -> Vec<Vec<Value>> {
    let (limit, repeated) = (tokens.to_string(), overlap.to_string());
    let chunked = [&["--chunk", &limit, "--chunk-overlap", &repeated], args].concat();
    let all = rows(&run(model, texts, &chunked));
    let by_text: Vec<Vec<Value>> = (0..texts.len())
        .map(|i| all.iter().filter(|row| number(row, "index") == i).cloned().collect())
        .collect();
    assert!(all.is_sorted_by_key(|row| (number(row, "index"), number(row, "chunk"))));
    for (text, rows) in texts.iter().zip(&by_text) {
        let characters: Vec<char> = text.chars().collect();
        let mut covered = vec![false; characters.len()];
        assert!(!rows.is_empty(), "{text:?} has no row");
        for (i, row) in rows.iter().enumerate() {
            assert_eq!(number(row, "chunk"), i);
            assert!(number(row, "tokens") <= tokens, "{row}");
            assert_eq!(row["truncated"], false);
            let part = slice(text, row);
            assert_eq!(part, part.trim(), "{text:?}");
            let line = 1 + characters[..number(row, "start")].iter().filter(|c| **c == '\n').count();
            let end_line = line + part.matches('\n').count();
            assert_eq!((number(row, "line"), number(row, "end_line")), (line, end_line), "{text:?} {row}");
            covered[number(row, "start")..number(row, "end")].fill(true);
            if let Some(before) = i.checked_sub(1).map(|i| &rows[i]) {
                assert!(number(row, "end") > number(before, "end"), "{row} has nothing new after {before}");
                assert!(
                    overlap > 0 || number(row, "start") >= number(before, "end"),
                    "{row} repeats {before}"
                );
            }
        }
        for (character, covered) in characters.iter().zip(covered) {
            assert!(covered || character.is_whitespace(), "{character:?} of {text:?} is in no chunk");
        }
    }
    by_text
}

/// The rows of the chunks when each is embedded as a text.
fn embed_separately(
    model: &dyn Fn(&mut Command),
    texts: &[String],
    by_text: &[Vec<Value>],
    args: &[&str],
) -> Vec<Value> {
    let parts: Vec<String> =
        texts.iter().zip(by_text).flat_map(|(text, rows)| rows.iter().map(|row| slice(text, row))).collect();
    rows(&run(model, &parts, args))
}

/// Asserts that every chunk has, to the last bit, the vector of its part of the text when that is embedded as
/// a text.
fn check_vectors(model: &dyn Fn(&mut Command), tokens: usize, overlap: usize, args: &[&str]) {
    let texts = texts();
    let by_text = check(model, &texts, tokens, overlap, args);
    let separate = embed_separately(model, &texts, &by_text, args);
    for (chunk, alone) in by_text.iter().flatten().zip(&separate) {
        assert_eq!(chunk["tokens"], alone["tokens"], "{chunk}");
        assert_close(&embedding(chunk), &embedding(alone), 0.0, 0.0);
    }
    assert_eq!(by_text.iter().flatten().count(), separate.len());
}

#[test]
fn a_chunk_has_the_vector_of_its_part_of_the_text() {
    for (tokens, overlap) in [(24, 0), (24, 9), (7, 0), (7, 6), (4, 1), (3, 0), (3, 2)] {
        check_vectors(&fixture_model("bert-tiny"), tokens, overlap, &[]);
    }
    check_vectors(&fixture_model("bert-tiny"), 12, 3, &["--prompt", "the lamp of "]);
    check_vectors(
        &fixture_model("bert-tiny"),
        12,
        3,
        &["--pooling", "cls", "--no-normalize", "--batch-tokens", "30"],
    );
    check_vectors(&fixture_model("pipelines/dense"), 10, 0, &[]);
}

/// These tokenizers have tokens that include spaces, parts of characters, or several words.
#[test]
fn chunks_have_the_vectors_of_their_parts_with_any_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["json-roberta", "json-gpt2-ends", "json-xlm-roberta", "json-albert", "json-deberta-v2"] {
        for (tokens, overlap) in [(64, 0), (13, 0), (13, 5)] {
            check_vectors(&with_tokenizer(&folder, name), tokens, overlap, &[]);
        }
    }
}

/// The chunks of one text, for the tiny BERT, which adds two special tokens.
fn chunks(text: &str, args: &[&str]) -> Vec<String> {
    let rows = rows(&embed("bert-tiny", [&[text][..], args].concat()));
    rows.iter().map(|row| slice(text, row)).collect()
}

#[test]
fn a_chunk_ends_at_the_best_boundary_that_fits() {
    let text = "The lamp. The wick.\n\nA flame. A lamp. The wick.\nThe lamp the wick, the flame";
    assert_eq!(chunks(text, &["--chunk", "24"]), [text]);
    assert_eq!(chunks(text, &["--chunk", "23"]), ["The lamp. The wick.", &text[21..]]);
    let parts = ["The lamp. The wick.", "A flame. A lamp. The wick.", "The lamp the wick, the flame"];
    assert_eq!(chunks(text, &["--chunk", "13"]), parts);
    // Two sentences fit; if no sentence fits, words.
    let parts = ["The lamp. The wick.", "A flame. A lamp.", "The wick.", "The lamp the wick, the", "flame"];
    assert_eq!(chunks(text, &["--chunk", "8"]), parts);
    let parts = [
        "The", "lamp.", "The", "wick.", "A", "flame.", "A", "lamp.", "The", "wick.", "The lamp", "the",
        "wick,",
    ];
    assert_eq!(chunks(text, &["--chunk", "4"])[..13], parts);
    // A blank line with spaces and with Windows line ends.
    assert_eq!(chunks("the lamp\r\n \t\r\nthe wick", &["--chunk", "5"]), ["the lamp", "the wick"]);
    // A word that exceeds the limit is split between tokens; a grapheme is not, if it fits.
    assert_eq!(chunks("xyzxyz the", &["--chunk", "5"]), ["xyz", "xyz", "the"]);
    let folder = tempfile::tempdir().unwrap();
    let (model, family) = (with_tokenizer(&folder, "json-roberta"), "👩‍👩‍👧‍👦".to_owned());
    let found = check(&model, &[family.repeat(3)], 40, 0, &[]);
    let parts: Vec<String> = found[0].iter().map(|row| slice(&family.repeat(3), row)).collect();
    assert_eq!(parts, [family.clone(), family.clone(), family]);
}

#[test]
fn an_overlap_repeats_whole_sentences_or_words() {
    let text = "The lamp. The wick. A flame. A lamp. The wick.";
    // Sentences have 3 tokens each.
    let parts = ["The lamp. The wick. A flame.", "A flame. A lamp. The wick."];
    assert_eq!(chunks(text, &["--chunk", "12", "--chunk-overlap", "5"]), parts);
    let parts = ["The lamp. The wick. A flame.", "flame. A lamp. The wick."];
    assert_eq!(chunks(text, &["--chunk", "12", "--chunk-overlap", "2"]), parts);
    assert_eq!(
        chunks("the lamp the wick the", &["--chunk", "5", "--chunk-overlap", "1"]),
        ["the lamp the", "the wick the"]
    );
    // The overlap has at most `overlap` tokens.
    for overlap in [1, 4, 10] {
        let texts = texts();
        let by_text = check(&fixture_model("bert-tiny"), &texts, 16, overlap, &[]);
        let mut repeated = Vec::new();
        for (text, rows) in texts.iter().zip(&by_text) {
            for pair in rows.windows(2) {
                let part = json!({ "start": pair[1]["start"], "end": pair[0]["end"] });
                if number(&part, "start") < number(&part, "end") {
                    repeated.push(slice(text, &part));
                }
            }
        }
        assert!(repeated.len() > 20, "{} overlaps", repeated.len());
        for row in rows(&run(&fixture_model("bert-tiny"), &repeated, &[])) {
            assert!(number(&row, "tokens") <= overlap + 2, "{row}");
        }
    }
}

#[test]
fn rows_do_not_depend_on_batches_threads_or_memory() {
    let texts = texts();
    for late in [&["--chunk", "9", "--chunk-overlap", "2"][..], &["--chunk", "9", "--chunk-late"]] {
        let rows = |args: &[&str]| run(&fixture_model("bert-tiny"), &texts, &[late, args].concat()).stdout;
        let expected = rows(&[]);
        assert!(expected.len() > 10_000);
        for args in [
            &["--batch-tokens", "1"][..],
            &["--batch-tokens", "20", "--threads", "1"],
            &["--batch-tokens", "50", "--threads", "3"],
            &["--max-memory", "150MB"],
        ] {
            assert!(rows(args) == expected, "{args:?}");
        }
    }
}

#[test]
fn chunk_options_that_contradict_others_are_wrong_usage() {
    let fails = |args: &[&str], parts: &[&str]| {
        assert_fails(&embed("bert-tiny", [&["the lamp"][..], args].concat()), 2, parts);
    };
    fails(&["--chunk", "25"], &["--chunk 25", "24 tokens", "--chunk 24"]);
    fails(&["--chunk", "11", "--max-length", "10"], &["--chunk 11", "10 tokens"]);
    fails(&["--chunk", "2"], &["--chunk 2", "no room", "2 special and prompt tokens"]);
    fails(
        &["--chunk", "5", "--prompt", "the lamp of "],
        &["--chunk 5", "no room", "5 special and prompt tokens"],
    );
    fails(&["--chunk", "9", "--chunk-overlap", "9"], &["--chunk-overlap 9", "less than --chunk 9"]);
    fails(&["--chunk-overlap", "2"], &["--chunk-overlap", "--chunk TOKENS"]);
    fails(&["--chunk-late"], &["--chunk-late", "--chunk TOKENS"]);
    fails(&["--chunk", "9", "--pooling", "none"], &["--chunk", "--pooling none"]);
    for on_long in ["mean", "skip", "error"] {
        fails(&["--chunk", "9", "--on-long", on_long], &["--on-long", "no chunk exceeds the limit"]);
    }
    fails(
        &["--chunk", "9", "--truncation-side", "left"],
        &["--truncation-side", "no chunk exceeds the limit"],
    );
    fails(&["--chunk", "9", "--chunk-late", "--pooling", "cls"], &["--chunk-late", "mean pooling", "cls"]);
    fails(&["--chunk", "9", "--output-format", "npy"], &["npy", "standard output", "--output FILE"]);
    let pairs = embed("bert-tiny", ["-i", "a.jsonl", "--pair-field", "b", "--chunk", "9"]);
    assert_fails(&pairs, 2, &["--chunk", "--pair-field"]);
}

#[test]
fn a_character_with_more_tokens_than_a_chunk_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let texts = ["the lamp".to_owned(), "a 😀 b".to_owned(), "the wick".to_owned()];
    let model = with_tokenizer(&folder, "json-roberta");
    assert_fails(
        &run(&model, &texts, &["--chunk", "4"]),
        1,
        &["line 2", "'😀'", "more tokens than --chunk 4", "pass a larger"],
    );
    let output = run(&model, &texts, &["--chunk", "4", "--on-error", "skip"]);
    assert_eq!(output.status.code(), Some(3));
}

/// Writes an input with ids and other fields, and with long and short texts.
fn corpus(folder: &Path, records: usize) {
    let mut lines = String::new();
    for i in 0..records {
        let text = match i % 5 {
            3 => String::new(),
            4 => "The lamp burns in the window. Its wick is dry.\n\n".repeat(1 + i % 7),
            n => "the wick ".repeat(n * 9),
        };
        lines +=
            &format!("{}\n", json!({ "id": format!("doc {i}"), "text": text, "year": 1900 + i, "start": 7 }));
    }
    fs::write(folder.join("corpus.jsonl"), lines).unwrap();
}

fn command(folder: &Path, output: &str, args: &[&str]) -> Output {
    let mut command = sconce();
    command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(folder.join("corpus.jsonl"));
    command
        .args(["--chunk", "12", "--chunk-overlap", "3", "-o"])
        .arg(folder.join(output))
        .args(args)
        .output()
        .unwrap()
}

fn written(folder: &Path, output: &str, args: &[&str]) -> Vec<u8> {
    let done = command(folder, output, args);
    assert!(done.status.success(), "{}", stderr(&done));
    fs::read(folder.join(output)).unwrap()
}

#[test]
fn every_format_has_the_chunk_of_each_row() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    corpus(folder, 40);
    let stats = folder.join("stats.json");
    let keep = ["--keep", "year"];
    let lines = written(folder, "out.jsonl", &["--keep", "year", "--stats", stats.to_str().unwrap()]);
    let rows: Vec<Value> = std::str::from_utf8(&lines)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let names: Vec<&String> = rows[0].as_object().unwrap().keys().collect();
    let span = ["chunk", "start", "end", "line", "end_line"];
    let expected = [&["index", "id"], &span[..], &["tokens", "truncated", "year", "embedding"]].concat();
    assert_eq!(names, expected);
    let stats: Value = serde_json::from_slice(&fs::read(stats).unwrap()).unwrap();
    let tokens: usize = rows.iter().map(|row| number(row, "tokens")).sum();
    assert_eq!((number(&stats, "rows"), number(&stats, "chunks")), (rows.len(), rows.len()));
    assert_eq!((number(&stats, "texts"), number(&stats, "tokens")), (40, tokens));
    assert_eq!((&stats["chunk_tokens"], &stats["chunk_overlap"]), (&json!("12"), &json!("3")));
    assert!(rows.iter().all(|row| row["id"] == format!("doc {}", row["index"]) && row["year"].is_u64()));

    let table = written(folder, "out.csv", &keep);
    let mut table = csv::Reader::from_reader(&table[..]);
    let header: Vec<String> = table.headers().unwrap().iter().take(10).map(String::from).collect();
    assert_eq!(header, expected[..10]);
    for (row, line) in rows.iter().zip(table.records()) {
        let line = line.unwrap();
        for (i, name) in expected.iter().enumerate().filter(|(_, name)| row[**name].is_u64()) {
            assert_eq!(line[i].parse::<usize>().unwrap(), number(row, name));
        }
    }

    // Parquet and arrow outputs are inputs, too.
    for name in ["out.parquet", "out.arrow"] {
        written(folder, name, &keep);
        let mut command = sconce();
        command.arg("embed").arg("-m").arg(fixture("bert-tiny")).arg("-i").arg(folder.join(name));
        let again =
            support::rows(&command.args(["--text-field", "id", "--keep", &span.join(",")]).output().unwrap());
        assert_eq!(again.len(), rows.len());
        for (row, again) in rows.iter().zip(&again) {
            assert!(span.iter().all(|name| row[name] == again[name]), "{again}");
        }
    }

    for (dtype, size) in [("f32", 4), ("binary", 1)] {
        let args = ["--output-dtype", dtype, "--dimensions", "32"];
        let bytes = written(folder, "out.safetensors", &args);
        let file = SafeTensors::deserialize(&bytes).unwrap();
        for name in ["index"].into_iter().chain(span) {
            let tensor = file.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::I64, &[rows.len()][..]));
            let found = tensor.data().chunks(8).map(|x| i64::from_le_bytes(x.try_into().unwrap()) as usize);
            assert!(found.eq(rows.iter().map(|row| number(row, name))), "{name}");
        }
        let npy = written(folder, "out.npy", &args);
        let vectors = file.tensor("embeddings").unwrap();
        assert_eq!(vectors.shape(), [rows.len(), if size == 4 { 32 } else { 4 }]);
        assert!(vectors.data() == &npy[128..], "npy and safetensors differ");
    }
    let meta: Value = serde_json::from_slice(&fs::read(folder.join("out.npy.meta.json")).unwrap()).unwrap();
    let counts: Vec<usize> =
        (0..40).map(|i| rows.iter().filter(|row| number(row, "index") == i).count()).collect();
    assert_eq!(meta["chunks"], json!(counts));
    assert!(counts.contains(&1) && counts.iter().any(|count| *count > 5));

    assert_fails(
        &command(folder, "own.csv", &["--keep", "start"]),
        2,
        &["--keep start", "start is already an output column"],
    );
    assert_fails(
        &command(folder, "own.csv", &["--keep", "line"]),
        2,
        &["--keep line: line is already an output column", "--keep NAME=AS"],
    );

    // Skipped records have no chunks.
    written(folder, "few.npy", &["--skip-empty", "--limit", "4"]);
    let meta: Value = serde_json::from_slice(&fs::read(folder.join("few.npy.meta.json")).unwrap()).unwrap();
    assert_eq!(meta["chunks"], json!([0, counts[1], counts[2], 0, counts[4], 0, counts[6]]));
}

/// Each run stops at a record that cannot be read. After the record is fixed, the output has the bytes of an
/// uninterrupted run.
#[test]
fn a_run_with_chunks_is_resumed() {
    let whole = tempfile::tempdir().unwrap();
    corpus(whole.path(), 60);
    let text = fs::read_to_string(whole.path().join("corpus.jsonl")).unwrap();
    for output in ["out.jsonl", "out.csv", "out.npy", "out.parquet", "out.arrow", "out.safetensors"] {
        let args = ["--batch-tokens", "30", "--threads", "2"];
        let expected = written(whole.path(), output, &args);
        let folder = tempfile::tempdir().unwrap();
        for stop in [7, 24, 40] {
            let broken: Vec<&str> =
                text.lines().enumerate().map(|(i, line)| if i == stop { "{" } else { line }).collect();
            fs::write(folder.path().join("corpus.jsonl"), broken.join("\n")).unwrap();
            let failed = command(folder.path(), output, &[&args[..], &["--resume"]].concat());
            assert_fails_after(&failed, &["corpus.jsonl line", "saved"]);
        }
        // A run with other chunk options is not a continuation.
        let other = command(folder.path(), output, &[&args[..], &["--resume", "--chunk-late"]].concat());
        assert_eq!(other.status.code(), Some(2));
        assert!(
            stderr(&other).contains("--chunk-late has changed since that run, from no to yes"),
            "{}",
            stderr(&other)
        );
        fs::write(folder.path().join("corpus.jsonl"), &text).unwrap();
        let found = written(folder.path(), output, &[&args[..], &["--resume"]].concat());
        assert!(found == expected, "{output}");
        if output == "out.npy" {
            let meta = |folder: &TempDir| fs::read(folder.path().join("out.npy.meta.json")).unwrap();
            assert_eq!(meta(&folder), meta(&whole));
        }
    }
}

fn assert_fails_after(output: &Output, parts: &[&str]) {
    assert_eq!(output.status.code(), Some(1), "{}", stderr(output));
    parts.iter().for_each(|part| assert!(stderr(output).contains(part), "no {part:?} in {}", stderr(output)));
}

#[test]
fn a_run_that_is_killed_within_a_record_resumes_at_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let long = "The lamp burns in the window. Its wick is dry.\n\n".repeat(6000);
    let texts: Vec<String> = ["the lamp", &long, "the wick", &long, "the flame"].map(String::from).into();
    fs::write(folder.path().join("corpus.jsonl"), jsonl(&texts)).unwrap();
    let args = ["--quiet", "--batch-tokens", "200", "--threads", "1"];
    let expected = written(folder.path(), "whole.jsonl", &args);
    let mut kills = 0;
    for attempt in 0..6 {
        let mut command = sconce();
        command
            .arg("embed")
            .arg("-m")
            .arg(fixture("bert-tiny"))
            .arg("-i")
            .arg(folder.path().join("corpus.jsonl"));
        command
            .args(["--chunk", "12", "--chunk-overlap", "3", "--resume", "-o"])
            .arg(folder.path().join("out.jsonl"));
        let mut child = command.args(args).spawn().unwrap();
        let partial = folder.path().join(".out.jsonl.partial");
        let before = fs::metadata(&partial).map_or(0, |there| there.len());
        // Wait for more rows than the last attempt left.
        while child.try_wait().unwrap().is_none()
            && fs::metadata(&partial).map_or(0, |there| there.len())
                <= before.max(attempt * expected.len() as u64 / 8)
        {
            thread::sleep(Duration::from_millis(1));
        }
        kills += u32::from(child.try_wait().unwrap().is_none());
        let _ = child.kill();
        child.wait().unwrap();
    }
    assert!(kills > 0, "no run was killed");
    assert!(written(folder.path(), "out.jsonl", &[&args[..], &["--resume"]].concat()) == expected);
}

#[test]
fn memory_does_not_grow_with_the_number_of_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let peak = |repeats: usize, chunk: &str| {
        let stats = folder.path().join("stats.json");
        let input = folder.path().join("long.txt");
        fs::write(&input, "The lamp burns in the window. Its wick is dry.\n\n".repeat(repeats)).unwrap();
        let mut command = sconce();
        command.args(["embed", "--quiet", "--input-format", "files", "-m"]).arg(fixture("bert-tiny"));
        command.arg("-i").arg(&input).arg("-o").arg(folder.path().join("out.npy")).arg("--stats").arg(&stats);
        let output = command.args(["--chunk", chunk]).output().unwrap();
        assert!(output.status.success(), "{}", stderr(&output));
        let stats: Value = serde_json::from_slice(&fs::read(&stats).unwrap()).unwrap();
        (number(&stats, "peak_memory_bytes"), number(&stats, "rows"))
    };
    // 0.5 MB and 4 MB of text. To tokenize 4 MB at once would take 540 MB.
    let (small, _) = peak(10_000, "13");
    let (large, rows) = peak(80_000, "13");
    assert!(rows >= 80_000);
    assert!(large < small + (100 << 20), "{small} and {large} bytes");
}

/// The reference is the mean over the tokens of each chunk of the hidden states of the whole text, computed
/// with PyTorch.
#[test]
fn late_chunks_match_the_reference() {
    let folder = fixture("late-chunks");
    let cases: Value = serde_json::from_slice(&fs::read(folder.join("goldens.json")).unwrap()).unwrap();
    let bytes = fs::read(folder.join("goldens.safetensors")).unwrap();
    let goldens = SafeTensors::deserialize(&bytes).unwrap();
    for case in cases.as_array().unwrap() {
        let string = |name: &str| case[name].as_str().unwrap().to_owned();
        let mut args = vec![string("text"), "--chunk-late".into()];
        args.extend(case["options"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()));
        let rows = rows(&embed(&string("model"), &args));
        let spans: Vec<Value> =
            rows.iter().map(|row| json!([row["start"], row["end"], row["tokens"]])).collect();
        assert_eq!(json!(spans), case["spans"], "{case}");
        let expected = goldens.tensor(&string("vectors")).unwrap();
        let expected: Vec<f32> =
            expected.data().chunks(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        let found: Vec<f32> = rows.iter().flat_map(|row| numbers(&row["embedding"])).collect();
        assert_close(&found, &expected, 1e-5, 1e-5);
    }
    assert!(cases.as_array().unwrap().len() > 8);
}

#[test]
fn a_text_of_one_late_chunk_has_the_vector_of_the_text() {
    let texts = ["the lamp burns", "", "A lamp, a wick.\n\nAnd a flame.", "灯 naïve 😀"].map(String::from);
    for (model, args) in
        [("bert-tiny", &[][..]), ("bert-tiny", &["--prompt", "the wick "]), ("pipelines/dense", &[])]
    {
        let late =
            rows(&run(&fixture_model(model), &texts, &[&["--chunk", "24", "--chunk-late"], args].concat()));
        let plain = rows(&run(&fixture_model(model), &texts, args));
        assert_eq!(late.len(), texts.len());
        for (late, plain) in late.iter().zip(&plain) {
            assert_close(&embedding(late), &embedding(plain), 0.0, 0.0);
            assert_eq!(late["tokens"], plain["tokens"]);
        }
    }
}

#[test]
fn late_chunks_have_the_boundaries_of_other_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let spans = |by_text: Vec<Vec<Value>>| -> Vec<Value> {
        by_text
            .iter()
            .flatten()
            .map(|row| json!([row["index"], row["chunk"], row["start"], row["end"]]))
            .collect()
    };
    let texts = texts();
    for (tokens, overlap) in [(24, 0), (9, 3), (3, 0)] {
        let of = |args: &[&str]| spans(check(&fixture_model("bert-tiny"), &texts, tokens, overlap, args));
        assert_eq!(of(&["--chunk-late"]), of(&[]));
    }
    for name in ["json-roberta", "json-xlm-roberta", "json-gpt2-ends"] {
        let model = with_tokenizer(&folder, name);
        let of = |args: &[&str]| spans(check(&model, &texts, 20, 0, args));
        assert_eq!(of(&["--chunk-late", "--pooling", "mean"]), of(&[]));
    }
    // If the prompt is not pooled, a chunk still has a token to pool.
    let prompts = tempfile::tempdir().unwrap();
    copy_folder(&fixture("pipelines/prompts"), prompts.path());
    let pooling = prompts.path().join("1_Pooling/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&pooling).unwrap()).unwrap();
    config["include_prompt"] = false.into();
    fs::write(&pooling, config.to_string()).unwrap();
    let output =
        embed(prompts.path().to_str().unwrap(), ["", "the lamp. the wick.", "--chunk", "10", "--chunk-late"]);
    assert!(rows(&output).iter().all(|row| embedding(row).iter().all(|x| x.is_finite())));
}

/// `--keep text` copies the text of the chunk, under any name, and from any type of column.
#[test]
fn a_row_keeps_the_text_of_its_chunk() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    corpus(folder, 10);
    let input = fs::read_to_string(folder.join("corpus.jsonl")).unwrap();
    let texts: Vec<String> = input
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["text"].as_str().unwrap().to_owned())
        .collect();
    // Parts of a text that are encoded one by one continue it, and so do rows of a parquet input.
    for args in [&[][..], &["--chunk-late", "--pooling", "mean"], &["--batch-tokens", "24"]] {
        let args = [&["--keep", "text,text=copy,year"], args].concat();
        let lines = written(folder, "out.jsonl", &args);
        let rows: Vec<Value> =
            lines.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        for row in &rows {
            assert_eq!(row["text"], slice(&texts[number(row, "index")], row), "{args:?}");
            assert_eq!((&row["copy"], row["year"].is_u64()), (&row["text"], true));
        }
        assert!(rows.iter().any(|row| number(row, "chunk") > 5));
    }
    let embed = |args: &[&str]| {
        let mut command = sconce();
        command.current_dir(folder).args(["embed", "-q", "-m"]).arg(fixture("bert-tiny")).args(args);
        let done = command.output().unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        done
    };
    embed(&["-i", "corpus.jsonl", "--keep", "text=body", "-o", "whole.parquet"]);
    let common = ["-i", "whole.parquet", "--text-field", "body", "--chunk", "12", "--output-format"];
    let keep = ["jsonl", "--keep", "text,body"];
    for row in support::rows(&embed(&[&common[..], &keep].concat())) {
        let text = &texts[number(&row, "index")];
        assert_eq!((&row["text"], &row["body"]), (&json!(slice(text, &row)), &json!(text)));
    }
}

/// The rows of a file without the lines of its chunks, as earlier releases wrote it.
fn without_lines(folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(format!("old-{name}"));
    let file = File::open(folder.join(name)).unwrap();
    if name.ends_with("parquet") {
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap();
        let batches: Vec<RecordBatch> = reader.map(Result::unwrap).collect();
        let fields = batches[0].schema_ref().fields().clone();
        let kept: Vec<usize> = (0..fields.len())
            .filter(|i| !["line", "end_line"].contains(&fields[*i].name().as_str()))
            .collect();
        let schema = Arc::new(batches[0].schema_ref().project(&kept).unwrap());
        let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), schema, None).unwrap();
        batches.iter().for_each(|batch| writer.write(&batch.project(&kept).unwrap()).unwrap());
        writer.close().unwrap();
        return path;
    }
    let rows = std::io::read_to_string(file).unwrap();
    let rows: String = rows
        .lines()
        .map(|line| {
            let mut row: Value = serde_json::from_str(line).unwrap();
            ["line", "end_line"]
                .iter()
                .for_each(|name| drop(row.as_object_mut().unwrap().shift_remove(*name)));
            format!("{row}\n")
        })
        .collect();
    fs::write(&path, rows).unwrap();
    path
}

#[test]
fn files_without_lines_are_searched_and_otherwise_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    corpus(folder, 6);
    let sentence =
        ["has chunks without their lines (line, end_line)", "embed the texts again into a new file"];
    for name in ["out.jsonl", "out.parquet"] {
        written(folder, name, &["--append"]);
        let old = without_lines(folder, name);
        let old = old.file_name().unwrap().to_str().unwrap();
        assert_fails(&command(folder, old, &["--append"]), 1, &sentence);
        let search = |name: &str| {
            let mut command = sconce();
            command.current_dir(folder).args([
                "search",
                "-q",
                name,
                "lamp",
                "--output-format",
                "jsonl",
                "-m",
            ]);
            support::rows(&command.arg(fixture("bert-tiny")).output().unwrap())
        };
        let mut expected = search(name);
        assert!(expected.iter().all(|row| row["line"].is_u64() && row["end_line"].is_u64()));
        for row in &mut expected {
            ["line", "end_line"]
                .iter()
                .for_each(|name| drop(row.as_object_mut().unwrap().shift_remove(*name)));
        }
        assert_eq!(search(old), expected, "{name}");
        let mut merge = sconce();
        merge.current_dir(folder).args(["merge", &format!("all-{name}"), old, old]);
        if name == "out.parquet" {
            assert_fails(&merge.output().unwrap(), 1, &sentence);
        }
    }
}
