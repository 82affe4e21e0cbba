//! Damaged inputs of every format: whatever stands in a file, reading it gives entries, and an error is one sentence that
//! names the file. `SCONCE_FUZZ_CASES` sets the number of cases a format, `SCONCE_FUZZ_SEED` where they begin.

#[path = "support/damage.rs"]
mod damage;
mod support;

use std::fs;
use std::io::Write;
use std::path::Path;

use damage::{cases, damaged, run_case};
use rand::Rng;
use sconce::input::{Entries, Entry, Fields, Format, sources};
use support::fixture;

/// Entries after which a case has shown enough: a damaged count may stand for billions of equal rows.
const ENOUGH: usize = 20_000;

/// The fixtures with one of these suffixes, with what else is given.
fn seeds(suffixes: &[&str], more: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        fs::read_dir(fixture("input")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let is_one = |path: &Path| path.extension().is_some_and(|found| suffixes.iter().any(|s| found == *s));
    let files = names.iter().filter(|path| is_one(path)).map(|path| fs::read(path).unwrap());
    files.chain(more.iter().map(|bytes| bytes.to_vec())).collect()
}

fn packed(suffix: &str, bytes: &[u8]) -> Vec<u8> {
    match suffix {
        "gz" => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        _ => zstd::encode_all(bytes, 1).unwrap(),
    }
}

/// Asserts that a sentence is one, and about the file.
#[track_caller]
fn check_sentence(sentence: &str, path: &Path) {
    assert!(!sentence.contains('\n'), "{sentence:?}");
    assert!(sentence.contains(&*path.to_string_lossy()), "{sentence:?} does not name {}", path.display());
    assert!(sentence.contains("; "), "{sentence:?} has no remedy");
}

/// Reads a file as far as it can be read; how many records there are, and whether there is an error.
fn drain(path: &Path, format: Option<Format>, fields: Fields) -> (usize, bool) {
    let opened = sources(&[path.to_owned()], format).and_then(|sources| Entries::open(sources, fields));
    let mut entries = match opened {
        Ok(entries) => entries,
        Err(error) => {
            check_sentence(&error.to_string(), path);
            return (0, true);
        }
    };
    let mut records = 0;
    for _ in 0..ENOUGH {
        match entries.next() {
            Some(Ok(Entry::Record(record))) => {
                let place = record.place.to_string();
                assert!(place.starts_with(&*path.to_string_lossy()), "{place}");
                records += 1;
            }
            Some(Ok(Entry::Unreadable(unreadable))) => check_sentence(&unreadable.to_string(), path),
            Some(Err(error)) => {
                check_sentence(&error.to_string(), path);
                assert!(entries.next().is_none());
                return (records, true);
            }
            None => {
                assert_eq!(Some(entries.position()), entries.size());
                return (records, false);
            }
        }
    }
    (records, false)
}

/// The fields that a case asks for: in some cases columns of every kind, which the larger ones of the tables have.
fn fields(suffix: &str, case: u64) -> Fields {
    let keep = ["number", "double", "flag", "day", "time", "price", "kind", "nested", "before"];
    Fields {
        text: "text".into(),
        pair: None,
        id: None,
        keep: match suffix {
            "parquet" | "arrow" | "jsonl" if case.is_multiple_of(3) => keep.map(String::from).to_vec(),
            _ => Vec::new(),
        },
    }
}

fn fuzz(suffix: &str, packings: &[&str], seeds: &[Vec<u8>]) {
    let folder = tempfile::tempdir().unwrap();
    let format = (suffix == "text").then_some(Format::Files);
    let (mut whole, mut broken, mut records) = (0, 0, 0);
    for seed in seeds {
        let path = folder.path().join(format!("whole.{suffix}"));
        fs::write(&path, seed).unwrap();
        records += drain(&path, format, fields(suffix, 1)).0;
    }
    assert!(records > 0, "the seeds can be read");
    for case in cases(1500, 1) {
        let is_broken = run_case(suffix, case, |rng| {
            let mut name = format!("case.{suffix}");
            let mut bytes = damaged(rng, seeds);
            if !packings.is_empty() && rng.random_ratio(1, 4) {
                let packing = packings[rng.random_range(0..packings.len())];
                name = format!("{name}.{packing}");
                bytes = packed(packing, &bytes);
                if rng.random() {
                    bytes = damaged(rng, &[bytes]);
                }
            }
            let path = folder.path().join(name);
            fs::write(&path, &bytes).unwrap();
            drain(&path, format, fields(suffix, case)).1
        });
        *if is_broken { &mut broken } else { &mut whole } += 1;
    }
    eprintln!("{suffix}: {whole} read to their end, {broken} not");
}

const PACKINGS: &[&str] = &["gz", "zst"];

#[test]
fn lines() {
    fuzz("txt", PACKINGS, &seeds(&["txt"], &[b"\xef\xbb\xbfa\r\n\r\n\xffb\nc"]));
}

#[test]
fn files() {
    fuzz("text", PACKINGS, &seeds(&["txt"], &["\u{feff}a lamp\nünïcode".as_bytes()]));
}

#[test]
fn json() {
    let deep = [&b"{\"text\": "[..], &b"[".repeat(300), b"\n{\"text\": \"a\"}"].concat();
    let seeds: [&[u8]; 3] = [
        b"{\"id\": \"a\", \"text\": \"a lamp\", \"number\": 1e9}\n\n{\"text\": \"\\ud83d\\udd25\", \"kind\": [1, {}]}\r\n",
        b"{\"text\": \"a\"}\n{\"text\": null}\n[]\n{\"text\": \"b\", \"id\": 18446744073709551616}",
        &deep,
    ];
    fuzz("jsonl", PACKINGS, &seeds.map(<[u8]>::to_vec));
}

const TABLE: &[&[u8]] = &[
    b"id,text,number\na,a lamp,1\n7,\"the \"\"wick\"\", burning\nlight\",2\n,,3\n",
    b"text\r\n\"a\"\r\nb\"c\r\n\r\nd",
    b"\xef\xbb\xbftext\tid\na\t1\n\"b\t\"\t2\n",
];

#[test]
fn csv() {
    fuzz("csv", PACKINGS, &seeds(&[], TABLE));
}

#[test]
fn tsv() {
    fuzz("tsv", PACKINGS, &seeds(&[], TABLE));
}

#[test]
fn parquet() {
    fuzz("parquet", &[], &seeds(&["parquet"], &[]));
}

#[test]
fn arrow() {
    fuzz("arrow", PACKINGS, &seeds(&["arrow", "arrows", "feather"], &[]));
}
