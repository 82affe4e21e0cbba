//! Fields in the names of directories, as Hive and Spark write them: `year=2025/part-0.parquet`.

use std::path::{Component, Path};

use serde_json::Value;

use super::record::KeptName;
use super::source::{InputPath, Source};
use crate::rows::FieldValue;

/// The value of a directory that stands for null.
const NULL: &str = "__HIVE_DEFAULT_PARTITION__";

/// The keys of the directories of inputs, in the order in which they first occur.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Partitions(Vec<Key>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    name: String,
    /// Whether all of its values are integers or null; otherwise they are text.
    has_integers: bool,
    /// The inputs that have it.
    inputs: usize,
    /// Whether all inputs have it.
    is_common: bool,
}

impl Partitions {
    /// Those of the paths of all inputs.
    pub fn of(sources: &[Source]) -> Self {
        let mut keys: Vec<Key> = Vec::new();
        for source in sources {
            for (name, value) in directories(&source.path) {
                let is_integer = value.is_none_or(|value| value.parse::<i64>().is_ok());
                match keys.iter_mut().find(|key| key.name == name) {
                    Some(key) => {
                        key.has_integers &= is_integer;
                        key.inputs += 1;
                    }
                    None => keys.push(Key { name, has_integers: is_integer, inputs: 1, is_common: false }),
                }
            }
        }
        keys.iter_mut().for_each(|key| key.is_common = key.inputs == sources.len());
        Partitions(keys)
    }

    /// Whether an input has the key.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|key| key.name == name)
    }

    /// The keys that all inputs have.
    pub(super) fn common(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|key| key.is_common).map(|key| key.name.as_str())
    }

    /// The values of those of the fields `keep` that the path of an input has, with their indices.
    pub(super) fn values(&self, path: &InputPath, keep: &[KeptName]) -> Vec<(usize, FieldValue)> {
        let directories = directories(path);
        let value = |name: &str| {
            let (_, value) = directories.iter().find(|(key, _)| key == name)?;
            let has_integers = self.0.iter().any(|key| key.name == name && key.has_integers);
            Some(match value {
                None => Value::Null,
                Some(value) if has_integers => value.parse::<i64>().map_or(Value::Null, Value::from),
                Some(value) => value.as_str().into(),
            })
        };
        let values = keep.iter().enumerate().filter_map(|(i, kept)| Some((i, value(&kept.field)?.into())));
        values.collect()
    }
}

/// The keys and values of the directories of a path, without repeating a key: the last one counts.
fn directories(path: &InputPath) -> Vec<(String, Option<String>)> {
    let InputPath::File(path) = path else { return Vec::new() };
    let mut found: Vec<(String, Option<String>)> = Vec::new();
    for component in path.parent().unwrap_or(Path::new("")).components() {
        let Component::Normal(name) = component else { continue };
        let Some((key, value)) = name.to_str().and_then(|name| name.split_once('=')) else { continue };
        if key.is_empty() {
            continue;
        }
        let (key, value) = (decoded(key), (value != NULL).then(|| decoded(value)));
        found.retain(|(other, _)| *other != key);
        found.push((key, value));
    }
    found
}

/// A name in which `%20` and the like stand for bytes, unless it is not UTF-8 then.
fn decoded(name: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), name.as_bytes());
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits.filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| name.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::input::find::source_of_file;

    fn values(paths: &[&str], name: &str) -> Vec<Option<Value>> {
        let sources: Vec<Source> = paths.iter().map(|path| source_of_file(path.into(), None)).collect();
        let partitions = Partitions::of(&sources);
        let value = |source: &Source| {
            let values = partitions.values(&source.path, &["file".into(), name.into()]);
            values.into_iter().next().map(|(i, value)| {
                assert_eq!(i, 1);
                value.json().into_owned()
            })
        };
        sources.iter().map(value).collect()
    }

    #[test]
    fn values_are_integers_if_all_are() {
        let [null, missing] = [Some(json!(null)), None];
        for (paths, expected) in [
            (["a/year=2025/x.csv", "a/year=007/x.csv"], [Some(json!(2025)), Some(json!(7))]),
            (["year=2025/x.csv", "year=old/x.csv"], [Some(json!("2025")), Some(json!("old"))]),
            (["year=-1/x.csv", "year=__HIVE_DEFAULT_PARTITION__/x.csv"], [Some(json!(-1)), null]),
            (["year=a%20%C3%A4%/x.csv", "year=%ff/x.csv"], [Some(json!("a ä%")), Some(json!("%ff"))]),
            (["year=1/year=2/x.csv", "day=3/year.csv"], [Some(json!(2)), missing]),
            (["=2/x.csv", "a/year=2.csv"], [None, None]),
        ] {
            assert_eq!(values(&paths, "year"), expected, "{paths:?}");
        }
    }

    #[test]
    fn common_keys_are_those_of_all_inputs() {
        let of = |paths: &[&str]| {
            let sources: Vec<Source> = paths.iter().map(|path| source_of_file(path.into(), None)).collect();
            Partitions::of(&sources).common().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(of(&["b=1/a=2/x.csv", "a=3/b=4/x.csv"]), ["b", "a"]);
        assert_eq!(of(&["b=1/a=2/x.csv", "a=3/x.csv"]), ["a"]);
        assert!(of(&[]).is_empty());
    }
}
