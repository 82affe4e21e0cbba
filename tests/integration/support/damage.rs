//! Runs fuzz targets on damaged files, without cargo-fuzz. A case is a seed of a random number generator, so
//! its damage is the same in every run. `SCONCE_FUZZ_CASES` sets the number of cases, `SCONCE_FUZZ_SEED` the
//! first one; with `SCONCE_FUZZ_CORPUS=DIR`, the intact files are written to `DIR/TARGET/`, where cargo-fuzz
//! reads its corpus.

use std::env;
use std::fs;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use rand::{Rng, RngCore, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::fuzz_targets::TARGETS;

/// Boundary values of integer types, which replace counts, lengths and offsets.
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

/// The number in an environment variable.
fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The cases of a test: one `share`-th of the number that the environment sets, or of `default`.
pub fn cases(default: u64, share: u64) -> Range<u64> {
    let first = number("SCONCE_FUZZ_SEED", 0);
    first..first + number("SCONCE_FUZZ_CASES", default).div_ceil(share)
}

/// Runs a case.
///
/// # Panics
/// If `run` panics; the message tells how to run the case alone.
pub fn run_case<T>(what: &str, case: u64, run: impl FnOnce(&mut ChaCha8Rng) -> T) -> T {
    let mut rng = ChaCha8Rng::seed_from_u64(case);
    panic::catch_unwind(AssertUnwindSafe(|| run(&mut rng))).unwrap_or_else(|_| {
        panic!("case {case} of {what}: SCONCE_FUZZ_SEED={case} SCONCE_FUZZ_CASES=1 shows it alone")
    })
}

/// Runs the fuzz target `name` on `seeds`, one of which must be accepted, and on `default` cases of `damage`
/// to them.
pub fn fuzz(
    name: &str,
    seeds: &[Vec<u8>],
    default: u64,
    damage: impl Fn(&mut ChaCha8Rng, &[Vec<u8>]) -> Vec<u8>,
) {
    let (_, target) = TARGETS.iter().find(|(known, _)| *known == name).expect("a fuzz target");
    if let Some(folder) = env::var_os("SCONCE_FUZZ_CORPUS") {
        write_corpus(&Path::new(&folder).join(name), seeds);
    }
    let intact: Vec<bool> = seeds.iter().map(|seed| target(seed)).collect();
    assert!(intact.contains(&true), "{name}: none of {} intact files is accepted", seeds.len());
    let (mut accepted, mut refused) = (0, 0);
    for case in cases(default, 1) {
        let is_accepted = run_case(name, case, |rng| {
            let is_accepted = target(&damage(rng, seeds));
            check_memory();
            is_accepted
        });
        *if is_accepted { &mut accepted } else { &mut refused } += 1;
    }
    eprintln!("{name}: {accepted} accepted, {refused} refused");
}

/// Writes the seeds of a target as files.
fn write_corpus(folder: &Path, seeds: &[Vec<u8>]) {
    fs::create_dir_all(folder).expect("the folder of the corpus is created");
    for (i, seed) in seeds.iter().enumerate() {
        fs::write(folder.join(format!("seed-{i:03}")), seed).expect("a seed is written");
    }
}

/// Maximum memory of the process in KiB; the tests take less than a tenth of it.
const MAX_MEMORY: u64 = 1 << 20;

/// Asserts that the peak memory of the process is within the limit, on systems that report it.
pub fn check_memory() {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0);
    assert!(peak < MAX_MEMORY, "{peak} KiB of memory");
}

/// One of the seeds with some damage, or, in one of 40 cases, random bytes.
pub fn damaged(rng: &mut ChaCha8Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    if rng.random_ratio(1, 40) {
        let mut bytes = vec![0; rng.random_range(0..2000)];
        rng.fill_bytes(&mut bytes);
        return bytes;
    }
    let pick = |rng: &mut ChaCha8Rng| seeds[rng.random_range(0..seeds.len())].clone();
    let mut bytes = pick(rng);
    for _ in 0..rng.random_range(1..=4) {
        let length = bytes.len();
        // Half of the damage is near the ends of the file, in its header or footer.
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
                // The same as a varint of Thrift.
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

/// Parquet files that lead the `parquet` crate to abort the process or to panic, and others without a footer;
/// each with its fault, as a clause.
pub fn malformed_parquet() -> Vec<(Vec<u8>, &'static str)> {
    // A footer whose first schema element declares 2³¹ − 1 children, and one whose schema is 10,000 levels
    // deep.
    let column = |children: &[u8]| [&[0x48, 1, b'a', 0x15][..], children, &[0x00]].concat();
    let footer = |columns: Vec<Vec<u8>>| {
        let mut schema =
            vec![0x15, 0x02, 0x19, 0xfc, (columns.len() & 127) as u8 | 128, (columns.len() >> 7) as u8];
        schema.extend(columns.concat());
        schema.extend([0x16, 0x02, 0x19, 0x0c, 0x00]);
        let length = (schema.len() as u32).to_le_bytes();
        [b"PAR1", &schema[..], &length, b"PAR1"].concat()
    };
    // A root that is annotated as a list, on which the `parquet` crate panics, and its only column.
    let list_root = vec![0x48, 1, b'a', 0x15, 2, 0x15, 6, 0x00];
    let list_item = vec![0x15, 12, 0x25, 4, 0x18, 1, b'b', 0x00];
    vec![
        (footer(vec![column(&[0xfe, 0xff, 0xff, 0xff, 0x0f])]), "its schema is malformed"),
        (footer(vec![column(&[2]); 10_000]), "its schema is nested more than 64 levels deep"),
        (footer(vec![list_root, list_item]), "its metadata is damaged"),
        (b"PAR1 no footer".to_vec(), "it does not end with the magic number of Parquet"),
        (
            b"PAR1\xff\xff\xff\x7fPAR1".to_vec(),
            "its footer has a length of 2147483647 bytes, but the file has 12",
        ),
        (b"PAR".to_vec(), "it has only 3 bytes"),
    ]
}

/// A file with damage. In four of five cases, a JSON file stays JSON, with other values.
pub fn damaged_file(rng: &mut ChaCha8Rng, bytes: &[u8]) -> Vec<u8> {
    match serde_json::from_slice(bytes) {
        Ok(value) if rng.random_ratio(4, 5) => damaged_json(rng, value).to_string().into_bytes(),
        _ => damaged(rng, &[bytes.to_vec()]),
    }
}

/// One of the seeds, damaged as by [`damaged_file`].
pub fn damaged_seed(rng: &mut ChaCha8Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let i = rng.random_range(0..seeds.len());
    damaged_file(rng, &seeds[i])
}

/// JSON with some of its values removed, replaced, moved or repeated.
pub fn damaged_json(rng: &mut ChaCha8Rng, mut value: Value) -> Value {
    for _ in 0..rng.random_range(1..=3) {
        let mut paths = Vec::new();
        list(&value, String::new(), &mut paths);
        let path = paths[rng.random_range(0..paths.len())].clone();
        let other = value.pointer(&paths[rng.random_range(0..paths.len())]).cloned().unwrap_or_default();
        let (parent, _) = path.rsplit_once('/').unwrap_or_default();
        let odd = odd_value(rng);
        let count = rng.random_range(1..50);
        match rng.random_range(0..7) {
            0 => match value.pointer_mut(parent) {
                Some(Value::Object(fields)) if !fields.is_empty() => {
                    let key = fields.keys().nth(rng.random_range(0..fields.len())).cloned();
                    key.map(|key| fields.shift_remove(&key));
                }
                Some(Value::Array(list)) => drop(list.pop()),
                _ => {}
            },
            1 => match value.pointer_mut(parent) {
                Some(Value::Object(fields)) => drop(fields.insert(format!("x{count}"), other)),
                Some(Value::Array(list)) => list.extend(std::iter::repeat_n(other, count)),
                _ => {}
            },
            2 => {
                if let Some(found) = value.pointer_mut(&path)
                    && let Some(number) = found.as_i64()
                {
                    let others = [
                        number.wrapping_sub(1),
                        number.wrapping_add(1),
                        number.wrapping_neg(),
                        number.wrapping_mul(2),
                        number.wrapping_mul(1000),
                    ];
                    *found = others[rng.random_range(0..others.len())].into();
                }
            }
            3 => value.pointer_mut(&path).into_iter().for_each(|found| *found = other.clone()),
            _ => value.pointer_mut(&path).into_iter().for_each(|found| *found = odd.clone()),
        }
    }
    value
}

/// Appends the JSON pointers of all values to `paths`; `path` is that of `value`.
fn list(value: &Value, path: String, paths: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                list(value, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), paths);
            }
        }
        Value::Array(elements) => {
            for (i, value) in elements.iter().enumerate() {
                list(value, format!("{path}/{i}"), paths);
            }
        }
        _ => {}
    }
    paths.push(path);
}

/// Control and formatting characters, which are escaped when they are printed.
const UNPRINTABLE: &str = "\u{0}\u{1b}[31m\n\u{202e}";

/// A value that a reader may not expect: of an unusual type, size, length or depth.
fn odd_value(rng: &mut ChaCha8Rng) -> Value {
    match rng.random_range(0..14) {
        0 => Value::Null,
        1 => rng.random::<bool>().into(),
        2 => NUMBERS[rng.random_range(0..NUMBERS.len())].into(),
        3 => (-(NUMBERS[rng.random_range(0..NUMBERS.len() - 2)] as i64)).into(),
        4 => json!(0.5),
        5 => json!(1e308),
        6 => "".into(),
        7 => "x".into(),
        8 => "../../../etc/passwd".into(),
        9 => UNPRINTABLE.into(),
        10 => "ab ".repeat(rng.random_range(1..5000)).into(),
        11 => json!([]),
        12 => json!({}),
        _ => (0..rng.random_range(1..110)).fold(json!(1), |inner, _| json!([inner])),
    }
}
