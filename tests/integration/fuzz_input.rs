//! Fuzzes the readers of all input formats with damaged files: reading one gives entries, and an error is one
//! line that names the file and a remedy. See `support/damage.rs` for the number of cases.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::support::damage::{damaged, fuzz};
use crate::support::{fixture, model_command};
use rand::Rng;

/// Default number of cases per target.
const CASES: u64 = 1500;

/// The input fixtures with one of these extensions, and the contents in `more`.
fn seeds(extensions: &[&str], more: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        fs::read_dir(fixture("input")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let matches = |path: &Path| path.extension().is_some_and(|found| extensions.iter().any(|s| found == *s));
    let files = names.iter().filter(|path| matches(path)).map(|path| fs::read(path).unwrap());
    files.chain(more.iter().map(|bytes| bytes.to_vec())).collect()
}

fn line_seeds() -> Vec<Vec<u8>> {
    seeds(&["txt"], &[b"\xef\xbb\xbfa\r\n\r\n\xffb\nc"])
}

fn file_seeds() -> Vec<Vec<u8>> {
    seeds(&["txt"], &["\u{feff}a lamp\nünïcode".as_bytes()])
}

fn jsonl_seeds() -> Vec<Vec<u8>> {
    let deep = [&b"{\"text\": "[..], &b"[".repeat(300), b"\n{\"text\": \"a\"}"].concat();
    let lines: [&[u8]; 3] = [
        b"{\"id\": \"a\", \"text\": \"a lamp\", \"number\": 1e9}\n\n{\"text\": \"\\ud83d\\udd25\", \"kind\": [1, {}]}\r\n",
        b"{\"text\": \"a\"}\n{\"text\": null}\n[]\n{\"text\": \"b\", \"id\": 18446744073709551616}",
        &deep,
    ];
    seeds(&[], &lines)
}

/// Tables with commas and with tabs; both formats get both.
fn table_seeds() -> Vec<Vec<u8>> {
    let tables: [&[u8]; 3] = [
        b"id,text,number\na,a lamp,1\n7,\"the \"\"wick\"\", burning\nlight\",2\n,,3\n",
        b"text\r\n\"a\"\r\nb\"c\r\n\r\nd",
        b"\xef\xbb\xbftext\tid\na\t1\n\"b\t\"\t2\n",
    ];
    seeds(&[], &tables)
}

/// A request of each schema.
fn request_seeds() -> Vec<Vec<u8>> {
    let requests: [&[u8]; 9] = [
        br#"{"inputs": ["a", "b"], "truncate": true, "truncation_direction": "Left", "dimensions": 8, "normalize": null}"#,
        br#"{"inputs": {"source_sentence": "a", "sentences": ["b", "\ud83d\udd25"]}, "parameters": {"truncate": false}}"#,
        br#"{"inputs": [["a", "b"], ["c"]], "raw_scores": true, "add_special_tokens": false}"#,
        "{\"input\": [\"灯\", \"\"], \"model\": \"m:latest\", \"encoding_format\": \"base64\", \"user\": \"u\"}".as_bytes(),
        br#"{"query": "q", "documents": [{"text": "a", "title": 1}, "b"], "top_n": 1, "instruction": "i"}"#,
        br#"{"query": "q", "texts": ["a"], "return_text": true, "options": {"top_k": 0, "on_long": "error"}}"#,
        br#"{"ids": [[101, 102], [3]], "skip_special_tokens": false}"#,
        br#"{"prompt": "x", "model": "y", "keep_alive": "5m", "options": {"a": [1, {"b": 1e9}]}}"#,
        br#"{"pairs": [["a", "b"]], "options": {"prompt": "p", "role": "query", "aggregation": "first", "stride": 3}}"#,
    ];
    requests.map(<[u8]>::to_vec).to_vec()
}

fn arrow_seeds() -> Vec<Vec<u8>> {
    seeds(&["arrow", "arrows", "feather"], &[])
}

#[test]
fn damaged_lines_give_entries_or_an_error() {
    fuzz("lines", &line_seeds(), CASES, damaged);
}

#[test]
fn damaged_fasta_gives_entries_or_an_error() {
    fuzz("fasta", &seeds(&[], &[b">a b\nMKT\nLLA\n>\n;c\nM\xffK\r\n>c\n"]), CASES, damaged);
}

#[test]
fn damaged_text_files_give_entries_or_an_error() {
    fuzz("files", &file_seeds(), CASES, damaged);
}

#[test]
fn damaged_jsonl_gives_entries_or_an_error() {
    fuzz("jsonl", &jsonl_seeds(), CASES, damaged);
}

#[test]
fn damaged_csv_gives_entries_or_an_error() {
    fuzz("csv", &table_seeds(), CASES, damaged);
}

#[test]
fn damaged_tsv_gives_entries_or_an_error() {
    fuzz("tsv", &table_seeds(), CASES, damaged);
}

#[test]
fn damaged_parquet_gives_entries_or_an_error() {
    fuzz("parquet", &seeds(&["parquet"], &[]), CASES, damaged);
}

#[test]
fn damaged_arrow_gives_entries_or_an_error() {
    fuzz("arrow", &arrow_seeds(), CASES, damaged);
}

#[test]
fn damaged_requests_give_a_call_or_a_fault() {
    fuzz("requests", &request_seeds(), CASES, damaged);
}

/// The vector files of the search fixtures, and small ones of the formats that are text.
#[test]
fn damaged_vector_files_give_vectors_or_an_error() {
    let mut names: Vec<_> =
        fs::read_dir(fixture("search")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let is_vectors = |path: &Path| path.extension().is_some_and(|extension| extension != "json");
    let mut files: Vec<Vec<u8>> =
        names.iter().filter(|path| is_vectors(path)).map(|path| fs::read(path).unwrap()).collect();
    let more: [&[u8]; 3] = [
        b"{\"index\":0,\"scale\":0.5,\"embedding\":[1,-2,3]}\n\n{\"index\":1,\"scale\":0.1,\"embedding\":[0,127,3]}\n",
        b"index,note,scale,e0,e1\n0,\"a \"\"b\"\"\nc\",0.5,1,-2\n1,,0.1,0,127\n",
        b"\x59\x00\x00\x00\x00\x00\x00\x00{\"embeddings\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}                        \x00\x00\x80\x3f\x00\x00\x80\x3f",
    ];
    files.extend(more.iter().map(|bytes| bytes.to_vec()));
    fuzz("vectors", &files, CASES, damaged);
}

/// What `embed` writes of sparse vectors in every format that is read, and of vectors of tokens.
#[test]
fn damaged_files_of_sparse_vectors_give_vectors_or_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let written = |extension: &str, args: &[&str]| {
        let path = folder.path().join(format!("vectors.{extension}"));
        let texts = ["-o", path.to_str().unwrap(), "the lamp", "a", "the wick burns"];
        let output = model_command("embed", &fixture("sparse/bert-max"), &[args, &texts].concat()).output();
        assert!(output.unwrap().status.success());
        fs::read(path).unwrap()
    };
    let mut files: Vec<Vec<u8>> =
        ["npz", "parquet", "arrow", "jsonl"].iter().map(|extension| written(extension, &[])).collect();
    files.push(written("tokens.jsonl", &["--pooling", "none"]));
    fuzz("sparse_vectors", &files, CASES, damaged);
}

/// Files of rows of every kind of content, small ones, with a hash of each record where their format has
/// columns.
fn row_seeds(formats: &[&str]) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().unwrap();
    let input = folder.path().join("texts.jsonl");
    fs::write(&input, "{\"id\":1,\"text\":\"the lamp\",\"year\":7}\n{\"id\":2,\"text\":\"a wick burns\"}\n")
        .unwrap();
    let append: &[&str] = &["--append", "--keep", "year"];
    let kinds: [(&str, &str, &[&str]); 8] = [
        ("embed", "bert-tiny", append),
        ("embed", "bert-tiny", &["--append", "--chunk", "4", "--output-dtype", "int8"]),
        ("embed", "unified/m3", &["--append", "--outputs", "dense,lexical,multi-vector"]),
        ("embed", "sparse/bert-max", append),
        ("embed", "bert-tiny", &["--chunk", "4"]),
        ("embed", "sparse/bert-max", &[]),
        ("classify", "heads/bert", &["--keep", "year"]),
        ("tag", "token-heads/ner-unigram", &[]),
    ];
    let mut seeds = Vec::new();
    for (i, format) in formats.iter().enumerate() {
        for (j, (command, model, args)) in kinds.iter().enumerate() {
            let output = folder.path().join(format!("{i}-{j}.{format}"));
            let paths = ["-i", input.to_str().unwrap(), "-o", output.to_str().unwrap()];
            // Not every format holds every content.
            if model_command(command, &fixture(model), &[*args, &paths].concat())
                .output()
                .unwrap()
                .status
                .success()
            {
                seeds.push(fs::read(output).unwrap());
            }
        }
    }
    seeds
}

/// Each case writes a file durably, so there are fewer of them.
#[test]
fn damaged_files_of_rows_are_merged_or_an_error() {
    let seeds = row_seeds(&["parquet", "arrow", "npy", "npz", "safetensors", "jsonl", "csv"]);
    assert!(seeds.len() > 30, "{} files", seeds.len());
    fuzz("merged_rows", &seeds, CASES / 5, damaged);
}

#[test]
fn damaged_files_of_rows_give_hashes_or_an_error() {
    fuzz("record_hashes", &row_seeds(&["parquet", "arrow", "jsonl", "csv"]), CASES, damaged);
}

/// Fuzzes a compression over all formats that can be compressed: the content is damaged, in half of the cases
/// the compressed file, too.
fn fuzz_compression(name: &str, fixture: &str, compress: fn(&[u8]) -> Vec<u8>) {
    let contents = [line_seeds(), file_seeds(), jsonl_seeds(), table_seeds(), arrow_seeds()].concat();
    let mut files: Vec<_> = contents.iter().map(|bytes| compress(bytes)).collect();
    files.extend(seeds(&[fixture], &[]));
    fuzz(name, &files, CASES, |rng, files| {
        let bytes = if rng.random_ratio(1, 8) {
            files[rng.random_range(0..files.len())].clone()
        } else {
            compress(&damaged(rng, &contents))
        };
        if rng.random() { damaged(rng, &[bytes]) } else { bytes }
    });
}

#[test]
fn damaged_gzip_gives_entries_or_an_error() {
    fuzz_compression("gzip", "gz", |bytes| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    });
}

#[test]
fn damaged_zstd_gives_entries_or_an_error() {
    fuzz_compression("zstd", "zst", |bytes| zstd::encode_all(bytes, 1).unwrap());
}
