//! JSON files of a model, read as Python's `json` reads them: with NaN and infinite numbers and with halves
//! of surrogate pairs, which other readers refuse. Of a key that an object has twice the last value counts.
//! Errors name the file.

use std::path::Path;

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::regular_file;

/// The key of an object that stands for a number that JSON has not, with its name as the value: `NaN`,
/// `Infinity` or `-Infinity`. It is the one that `transformers` writes into a config.
const NUMBER: &str = "__float__";
/// The key of an object that stands for a string with halves of surrogate pairs, with their escapes as the
/// value. Where a string is expected, the object is an error, because no text can have them.
const SURROGATES: &str = "__surrogates__";

/// Reads a JSON file.
pub fn read_json(path: &Path) -> Result<Value> {
    let bytes = regular_file::read_model_file(path, regular_file::MAX_CONFIG_BYTES)?;
    match parse(&bytes) {
        Ok(value) => Ok(value),
        Err(why) => bail!("{} is not valid JSON ({why}); fix the file or download it again", path.display()),
    }
}

/// Reads a JSON file that holds an object.
pub fn read_json_object(path: &Path) -> Result<Map<String, Value>> {
    match read_json(path)? {
        Value::Object(fields) => Ok(fields),
        _ => bail!("{} does not hold a JSON object; fix the file", path.display()),
    }
}

/// The number that a value is, NaN and infinite ones included.
pub fn as_f64(value: &Value) -> Option<f64> {
    let name = || match value.as_object()?.get(NUMBER)?.as_str()? {
        "NaN" => Some(f64::NAN),
        "Infinity" => Some(f64::INFINITY),
        "-Infinity" => Some(f64::NEG_INFINITY),
        _ => None,
    };
    value.as_f64().or_else(name)
}

/// A value for a message, as the file has it.
pub fn shown(value: &str) -> &str {
    let inner = |key: &str| value.strip_prefix(&format!("{{\"{key}\":"))?.strip_suffix('}');
    inner(NUMBER).map(|name| name.trim_matches('"')).or_else(|| inner(SURROGATES)).unwrap_or(value)
}

/// Parses JSON as Python does.
fn parse(bytes: &[u8]) -> Result<Value, String> {
    let error = match serde_json::from_slice(bytes) {
        Ok(value) => return Ok(value),
        Err(error) => error,
    };
    let Some(json) = without_extensions(bytes) else { return Err(error.to_string()) };
    serde_json::from_slice(&json).map_err(|error| {
        // The columns are those of the changed text.
        let message = error.to_string();
        message.rsplit_once(" column ").map_or(message.as_str(), |(start, _)| start).to_owned()
    })
}

/// The JSON with objects in place of what only Python reads; `None` if it has nothing of the kind. Line
/// breaks stay where they are.
fn without_extensions(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut json = Vec::with_capacity(bytes.len() + 64);
    let mut is_changed = false;
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let (token, after) = rest.split_at(match first {
            b'"' => string_length(rest),
            b'-' | b'+' | b'.' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
                rest.iter().position(|byte| !is_part(byte)).unwrap_or(rest.len())
            }
            _ => 1,
        });
        rest = after;
        let is_key = || after.trim_ascii_start().first() == Some(&b':');
        let changed = match first {
            b'"' => without_surrogates(token, is_key),
            _ => extended_number(token).map(|name| format!("{{\"{NUMBER}\":\"{name}\"}}").into_bytes()),
        };
        is_changed |= changed.is_some();
        json.extend_from_slice(changed.as_deref().unwrap_or(token));
    }
    is_changed.then_some(json)
}

/// The name of a number that JSON has not: one that is named, or one that is too large, which Python reads as
/// infinite.
fn extended_number(token: &[u8]) -> Option<&'static str> {
    match token {
        b"NaN" => Some("NaN"),
        b"Infinity" => Some("Infinity"),
        b"-Infinity" => Some("-Infinity"),
        [b'-' | b'0'..=b'9', ..] => match std::str::from_utf8(token).ok()?.parse::<f64>() {
            Ok(f64::INFINITY) => Some("Infinity"),
            Ok(f64::NEG_INFINITY) => Some("-Infinity"),
            _ => None,
        },
        _ => None,
    }
}

/// The length of the string that JSON begins with, with its quotes.
fn string_length(json: &[u8]) -> usize {
    let mut i = 1;
    while i < json.len() {
        match json[i] {
            b'"' => return i + 1,
            b'\\' => i += 2,
            _ => i += 1,
        }
    }
    json.len()
}

/// A string that has halves of surrogate pairs: an object in its place, or a key with the replacement
/// character for each of them. `None` for any other string.
fn without_surrogates(string: &[u8], is_key: impl Fn() -> bool) -> Option<Vec<u8>> {
    let unit = |i: usize| -> Option<u16> {
        let digits = string.get(i..i + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut halves = Vec::new();
    let mut i = 0;
    while i < string.len() {
        i += match (string[i], unit(i)) {
            (b'\\', Some(0xd800..=0xdbff)) if matches!(unit(i + 6), Some(0xdc00..=0xdfff)) => 12,
            (b'\\', Some(0xd800..=0xdfff)) => {
                halves.push(i);
                6
            }
            (b'\\', _) => 2,
            _ => 1,
        };
    }
    let first = *halves.first()?;
    let is_key = is_key();
    let mut changed = if is_key { Vec::new() } else { format!("{{\"{SURROGATES}\":").into_bytes() };
    changed.extend_from_slice(&string[..first]);
    for (k, i) in halves.iter().enumerate() {
        match is_key {
            true => changed.extend_from_slice(b"\\ufffd"),
            false => changed.extend([&b"\\"[..], &string[*i..i + 6]].concat()),
        }
        changed.extend_from_slice(&string[i + 6..halves.get(k + 1).copied().unwrap_or(string.len())]);
    }
    if !is_key {
        changed.push(b'}');
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn special(name: &str) -> Value {
        json!({ NUMBER: name })
    }

    /// The values are those of Python's `json.loads`.
    #[test]
    fn what_python_writes_is_read() {
        for (text, expected) in [
            ("[NaN, -Infinity,Infinity]", json!([special("NaN"), special("-Infinity"), special("Infinity")])),
            (r#"{"a":NaN,"b":{"c":[1e999,-1e999]}}"#, {
                json!({"a": special("NaN"), "b": {"c": [special("Infinity"), special("-Infinity")]}})
            }),
            // What looks like it inside strings is text.
            (r#"[Infinity, "NaN", "\"Infinity", "\\"]"#, {
                json!([special("Infinity"), "NaN", "\"Infinity", "\\"])
            }),
            (r#"{"a": 1, "a": 2}"#, json!({"a": 2})),
            (r#"["\ud83d\ude00"]"#, json!(["😀"])),
            (r#"["\ud83d", "\ude00x"]"#, json!([{SURROGATES: "\\ud83d"}, {SURROGATES: "\\ude00x"}])),
            (r#"["\\ud83d", "\ud83d\ud83d\ude00"]"#, json!(["\\ud83d", {SURROGATES: "\\ud83d😀"}])),
            (r#"{"\ud83d" : 1}"#, json!({"\u{fffd}": 1})),
        ] {
            assert_eq!(parse(text.as_bytes()), Ok(expected), "{text}");
        }
        assert!(as_f64(&special("NaN")).is_some_and(f64::is_nan) && as_f64(&json!("NaN")).is_none());
        assert_eq!(as_f64(&special("-Infinity")), Some(f64::NEG_INFINITY));
        assert_eq!(shown(&special("Infinity").to_string()), "Infinity");
        assert_eq!(shown(&json!({SURROGATES: "\\ud83d"}).to_string()), r#""\\ud83d""#);
        assert_eq!(shown("{\"a\":1}"), "{\"a\":1}");
    }

    #[test]
    fn what_python_refuses_is_an_error_with_its_line() {
        for (text, line) in [
            ("{\"a\": nan}", "line 1 column 8"),
            ("[+Infinity]", "line 1 column 2"),
            ("[-NaN]", "line 1 column 3"),
            ("[Infinity,\n\n oops]", "line 3"),
            ("[\"\\ud800\", \"open", "line 1"),
            ("[\"\\ud8\"]", "line 1"),
            ("NaN NaN", "line 1"),
            ("\"\\", "line 1"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(line), "{text}: {error}");
        }
    }
}
