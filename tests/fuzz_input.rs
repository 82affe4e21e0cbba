//! Damaged inputs of every format: whatever stands in a file, reading it gives entries, and an error is one sentence that
//! names the file. `SCONCE_FUZZ_CASES` sets the number of cases a format, `SCONCE_FUZZ_SEED` where they begin.

mod support;

use std::env;
use std::fs;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use sconce::input::{Entries, Entry, Fields, Format, sources};
use support::fixture;

/// Entries after which a case has shown enough: a damaged count may stand for billions of equal rows.
const ENOUGH: usize = 20_000;

/// Numbers that readers stumble over.
const NUMBERS: &[u64] = &[
    0,
    1,
    0x7f,
    0x80,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    1 << 40,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The fixtures with one of these suffixes, with what else is given.
fn seeds(suffixes: &[&str], more: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        fs::read_dir(fixture("input")).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    let is_one = |path: &Path| path.extension().is_some_and(|found| suffixes.iter().any(|s| found == *s));
    let files = names.iter().filter(|path| is_one(path)).map(|path| fs::read(path).unwrap());
    files.chain(more.iter().map(|bytes| bytes.to_vec())).collect()
}

/// One of the seeds with some damage.
fn damaged(rng: &mut ChaCha8Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    if rng.random_ratio(1, 40) {
        let mut bytes = vec![0; rng.random_range(0..2000)];
        rng.fill_bytes(&mut bytes);
        return bytes;
    }
    let pick = |rng: &mut ChaCha8Rng| seeds[rng.random_range(0..seeds.len())].clone();
    let mut bytes = pick(rng);
    for _ in 0..rng.random_range(1..=4) {
        let length = bytes.len();
        // The ends of files hold their headers and footers.
        let at = match rng.random_range(0..4) {
            0 => rng.random_range(0..=length.min(64)),
            1 => length - rng.random_range(0..=length.min(64)),
            _ => rng.random_range(0..=length),
        };
        let end = length.min(at + rng.random_range(0..=64));
        match rng.random_range(0..9) {
            0 if at < length => bytes[at] ^= 1 << rng.random_range(0..8),
            1 if at < length => bytes[at] = rng.random(),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            5 => bytes[at..end].fill(if rng.random() { 0xff } else { 0 }),
            6 => {
                let number = NUMBERS[rng.random_range(0..NUMBERS.len())].to_le_bytes();
                let width = [2, 4, 8][rng.random_range(0..3)].min(length - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            7 => {
                // The same as Thrift writes it.
                let mut number = NUMBERS[rng.random_range(0..NUMBERS.len())];
                let mut written = Vec::new();
                while number >= 128 {
                    written.push(number as u8 | 128);
                    number >>= 7;
                }
                written.push(number as u8);
                let width = if rng.random() { written.len().min(length - at) } else { 1.min(length - at) };
                bytes.splice(at..at + width, written);
            }
            _ => {
                let other = pick(rng);
                let from = rng.random_range(0..=other.len());
                bytes.truncate(at);
                bytes.extend(&other[from..]);
            }
        }
    }
    bytes
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
    let first = number("SCONCE_FUZZ_SEED", 0);
    let (mut whole, mut broken, mut records) = (0, 0, 0);
    for seed in seeds {
        let path = folder.path().join(format!("whole.{suffix}"));
        fs::write(&path, seed).unwrap();
        records += drain(&path, format, fields(suffix, 1)).0;
    }
    assert!(records > 0, "the seeds can be read");
    for case in first..first + number("SCONCE_FUZZ_CASES", 1500) {
        let mut rng = ChaCha8Rng::seed_from_u64(case);
        let mut name = format!("case.{suffix}");
        let mut bytes = damaged(&mut rng, seeds);
        if !packings.is_empty() && rng.random_ratio(1, 4) {
            let packing = packings[rng.random_range(0..packings.len())];
            name = format!("{name}.{packing}");
            bytes = packed(packing, &bytes);
            if rng.random() {
                bytes = damaged(&mut rng, &[bytes]);
            }
        }
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        match panic::catch_unwind(AssertUnwindSafe(|| drain(&path, format, fields(suffix, case)))) {
            Ok((_, true)) => broken += 1,
            Ok(_) => whole += 1,
            Err(_) => {
                panic!("case {case} of {suffix}: SCONCE_FUZZ_SEED={case} SCONCE_FUZZ_CASES=1 shows it alone")
            }
        }
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
