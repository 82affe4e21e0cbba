//! The fields of a JSON object as they are written, without building the others, and what Python writes that
//! JSON does not have.

use std::borrow::Cow;
use std::fmt;

use memchr::memchr2;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::error::Error as JsonError;
use serde_json::value::RawValue;

/// JSON without the white space between its tokens.
pub fn without_white_space(json: &str) -> String {
    let (mut is_string, mut is_escaped) = (false, false);
    let is_kept = |c: &char| {
        let is_kept = is_string || !c.is_ascii_whitespace();
        if *c == '"' && !is_escaped {
            is_string = !is_string;
        }
        is_escaped = *c == '\\' && !is_escaped;
        is_kept
    };
    json.chars().filter(is_kept).collect()
}

/// The numbers that Python writes and JSON does not have.
const NOT_FINITE: [(&str, f64); 3] =
    [("NaN", f64::NAN), ("-Infinity", f64::NEG_INFINITY), ("Infinity", f64::INFINITY)];

/// `NaN`, `Infinity` or `-Infinity` with its value; `None` for other JSON.
pub fn not_finite(json: &str) -> Option<(&'static str, f64)> {
    NOT_FINITE.into_iter().find(|(number, _)| *number == json)
}

/// A line in which numbers that JSON does not have are replaced by others of the same length, so that offsets
/// are the same. A line that is valid JSON is as it was.
pub fn parseable(line: &str) -> Cow<'_, str> {
    // Most lines are not searched further: no other letter of JSON's literals is an upper-case one.
    if memchr2(b'N', b'I', line.as_bytes()).is_none() {
        return line.into();
    }
    replace_not_finite(line, |number| match number.len() {
        3 => "0.0",
        8 => "0.000000",
        _ => "-0.000000",
    })
}

/// Replaces `NaN`, `Infinity` and `-Infinity` outside of strings.
pub fn replace_not_finite(json: &str, replacement: impl Fn(&str) -> &'static str) -> Cow<'_, str> {
    let (mut replaced, mut copied) = (String::new(), 0);
    let (mut rest, mut is_string) = (0, false);
    let is_special: fn(char) -> bool = |c| matches!(c, '"' | '\\' | 'N' | 'I' | '-');
    while let Some(at) = json[rest..].find(is_special).map(|at| rest + at) {
        rest = at + 1;
        let number = NOT_FINITE.iter().find(|(number, _)| !is_string && json[at..].starts_with(number));
        match (json.as_bytes()[at], number) {
            (b'"', _) => is_string = !is_string,
            // An escaped character, which may have several bytes.
            (b'\\', _) if is_string => rest += json[rest..].chars().next().map_or(0, char::len_utf8),
            (_, Some((number, _))) => {
                replaced.push_str(&json[copied..at]);
                replaced.push_str(replacement(number));
                rest = at + number.len();
                copied = rest;
            }
            _ => {}
        }
    }
    if copied == 0 {
        return json.into();
    }
    replaced.push_str(&json[copied..]);
    replaced.into()
}

/// The first escape of half of a UTF-16 surrogate pair without its other half, as it is written. JSON has
/// these, but strings of Unicode characters do not.
pub fn lone_surrogate(json: &str) -> Option<&str> {
    let unit = |at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(digits, 16).ok()
    };
    let mut at = 0;
    loop {
        at += json[at..].find('\\')?;
        at += match (unit(at), unit(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => return json.get(at..at + 6),
            (Some(_), _) => 6,
            (None, _) => 1 + json[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
    }
}

/// The type of a JSON value, with an article.
pub fn json_type(json: &str) -> &'static str {
    match json.as_bytes().first() {
        Some(b'n') => "null",
        Some(b't' | b'f') => "a boolean",
        Some(b'"') => "a string",
        Some(b'[') => "an array",
        Some(b'{') => "an object",
        _ => "a number",
    }
}

/// Calls `on_name` with each field name of a JSON object, and returns the values of the `wanted` fields as
/// they are written; the last one if a name is repeated. No other value is built, so memory does not grow
/// with the other fields. A field that the object does not have is looked for in its objects, if its name has
/// dots: `meta.text` is the field `text` of the object `meta`.
pub fn find_fields<'a>(
    object: &'a str,
    on_name: &mut dyn FnMut(&str),
    wanted: &[&str],
) -> Result<Vec<Option<&'a RawValue>>, JsonError> {
    let outer = wanted.iter().flat_map(|name| name.rmatch_indices('.').map(|(dot, _)| &name[..dot]));
    let names: Vec<&str> = wanted.iter().copied().chain(outer).collect();
    let mut json = serde_json::Deserializer::from_str(object);
    let found = json.deserialize_map(FieldVisitor { on_name, wanted: &names });
    let mut found = found.and_then(|found| json.end().map(|()| found))?;
    let mut outer = found.split_off(wanted.len()).into_iter();
    for (name, value) in wanted.iter().zip(&mut found) {
        for (dot, _) in name.rmatch_indices('.') {
            let object_in = outer.next().flatten().map(RawValue::get).filter(|json| json.starts_with('{'));
            let (None, Some(inner)) = (&value, object_in) else { continue };
            *value = find_fields(inner, &mut |_| {}, &[&name[dot + 1..]])?[0];
        }
    }
    Ok(found)
}

struct FieldVisitor<'a> {
    on_name: &'a mut dyn FnMut(&str),
    wanted: &'a [&'a str],
}

impl<'de> Visitor<'de> for FieldVisitor<'_> {
    type Value = Vec<Option<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = vec![None; self.wanted.len()];
        while let Some(Name(name)) = map.next_key()? {
            (self.on_name)(&String::from_utf8_lossy(&name));
            let is_wanted = |wanted: &&str| wanted.as_bytes() == &*name;
            if self.wanted.iter().any(is_wanted) {
                let value = map.next_value()?;
                let slots = found.iter_mut().zip(self.wanted).filter(|(_, wanted)| is_wanted(wanted));
                slots.for_each(|(slot, _)| *slot = Some(value));
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}

/// The name of a field. A lone surrogate in it, which UTF-8 does not have, is three bytes.
struct Name<'a>(Cow<'a, [u8]>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_bytes(NameVisitor)
    }
}

struct NameVisitor;

impl<'de> Visitor<'de> for NameVisitor {
    type Value = Name<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_bytes<E>(self, name: &'de [u8]) -> Result<Self::Value, E> {
        Ok(Name(name.into()))
    }

    fn visit_bytes<E>(self, name: &[u8]) -> Result<Self::Value, E> {
        Ok(Name(name.to_vec().into()))
    }
}

/// Whether `value`, which was parsed from `json`, has a float that was written as an integer: `serde_json`
/// rounds integers of more than 64 bits to floats.
pub fn has_rounded_integer(value: &Value, json: &str) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            let large = number.as_f64().filter(|float| float.abs() >= 2f64.powi(63));
            large.is_some_and(|float| integers(json).any(|digits| digits.parse() == Ok(float)))
        }
        Value::Array(list) => list.iter().any(|value| has_rounded_integer(value, json)),
        Value::Object(map) => map.values().any(|value| has_rounded_integer(value, json)),
        _ => false,
    }
}

/// The integers of `json` as they are written. Words inside strings that look like integers may be among
/// them.
fn integers(json: &str) -> impl Iterator<Item = &str> {
    let words = json.split(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    words.filter(|word| word.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{
        find_fields, has_rounded_integer, lone_surrogate, parseable, replace_not_finite, without_white_space,
    };

    #[test]
    fn the_last_of_repeated_fields_is_found() {
        let mut names = Vec::new();
        let object = r#"{"a": 1, "b": [{"a": 2}], "a": "x"}"#;
        let found = find_fields(object, &mut |name| names.push(name.to_owned()), &["a", "c"]).unwrap();
        assert_eq!(
            found.iter().map(|raw| raw.map(|raw| raw.get())).collect::<Vec<_>>(),
            [Some("\"x\""), None]
        );
        assert_eq!(names, ["a", "b", "a"]);
        assert!(find_fields("[1]", &mut |_| {}, &[]).is_err_and(|error| error.is_data()));
        assert!(find_fields("{} {}", &mut |_| {}, &[]).is_err());
    }

    #[test]
    fn names_with_dots_are_those_of_nested_fields() {
        let object = r#"{"a": {"b": {"c": 1}, "b.c": 2, "d": null, "e": {}}, "a.b": {"c": 3, "x.y": 4}, "a.d": 5, "n": null}"#;
        for (name, expected) in [
            ("a.d", Some("5")),
            ("a.b.c", Some("3")),
            ("a.b.x.y", Some("4")),
            ("a.b", Some(r#"{"c": 3, "x.y": 4}"#)),
            ("a.e", Some("{}")),
            ("a.e.f", None),
            ("a.d.e", None),
            ("n.a", None),
            ("a.", None),
            (".a", None),
        ] {
            let found = find_fields(object, &mut |_| {}, &["n", name, "a.e"]).unwrap();
            assert_eq!(found[1].map(|raw| raw.get()), expected, "{name}");
            assert_eq!([found[0], found[2]].map(|raw| raw.map(|raw| raw.get())), [Some("null"), Some("{}")]);
        }
        let repeated = find_fields(r#"{"a": {"b": 1}, "a": {"b": 2}}"#, &mut |_| {}, &["a.b"]).unwrap();
        assert_eq!(repeated[0].map(|raw| raw.get()), Some("2"));
    }

    #[test]
    fn white_space_inside_strings_is_kept() {
        let json = "{ \"a b\": [1,\t\"x \\\" y\" , \"\\\\\" ] }";
        assert_eq!(without_white_space(json), r#"{"a b":[1,"x \" y","\\"]}"#);
    }

    #[test]
    fn numbers_that_json_does_not_have_are_replaced_outside_of_strings() {
        for (json, parsed, nulls) in [
            (r#"{"a": NaN}"#, r#"{"a": 0.0}"#, r#"{"a": null}"#),
            ("[-Infinity,Infinity]", "[-0.000000,0.000000]", "[null,null]"),
            (
                r#"{"NaN": "\"NaN", "b": [NaN]}"#,
                r#"{"NaN": "\"NaN", "b": [0.0]}"#,
                r#"{"NaN": "\"NaN", "b": [null]}"#,
            ),
            (
                r#"["\火", "Infinity\\", -1, "I"]"#,
                r#"["\火", "Infinity\\", -1, "I"]"#,
                r#"["\火", "Infinity\\", -1, "I"]"#,
            ),
        ] {
            assert_eq!(parseable(json), parsed);
            assert_eq!(replace_not_finite(json, |_| "null"), nulls);
        }
    }

    #[test]
    fn halves_of_surrogate_pairs_are_found() {
        for (json, expected) in [
            (r#""a \ud83d""#, Some(r"\ud83d")),
            (r#""\ud83d\udd25 \uDD25""#, Some(r"\uDD25")),
            (r#""\ud83d\ud83d\udd25""#, Some(r"\ud83d")),
            (r#""\\ud83d \n \u0041 \ud83d\udd25 火""#, None),
            (r#""\ud83d火火""#, Some(r"\ud83d")),
        ] {
            assert_eq!(lone_surrogate(json), expected, "{json}");
        }
        let found = find_fields(r#"{"\ud83d": 1, "a": 2}"#, &mut |_| {}, &["a"]).unwrap();
        assert_eq!(found[0].map(|raw| raw.get()), Some("2"));
    }

    #[test]
    fn integers_of_more_than_64_bits_are_rounded() {
        let is_rounded = |json: &str| has_rounded_integer(&serde_json::from_str(json).unwrap(), json);
        assert!(is_rounded("[1, {\"y\": 18446744073709551616}]"));
        assert!(is_rounded("-9223372036854775809"));
        assert!(!is_rounded("18446744073709551615"));
        assert!(!is_rounded("[1e300, 0.5, \"18446744073709551616\"]"));
    }
}
