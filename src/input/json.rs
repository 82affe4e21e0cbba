//! JSON lines: one object per line, one of whose fields is the text.

use std::borrow::Cow;
use std::fmt;
use std::mem;

use anyhow::{Result, anyhow};
use memchr::memchr2;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::error::Error as JsonError;
use serde_json::value::RawValue;

use super::error::{MAX_LISTED_NAMES, list_names};
use super::limit::ReadLimit;
use super::lines::Lines;
use super::reader::InputReader;
use super::record::{Entry, Fields, KeptName, MAX_EXACT_INTEGER, Record, TextFields, built_in_field};
use super::source::{Format, Source};
use crate::rows::FieldValue;

/// The objects of an input. Lines of white space are skipped.
pub(super) struct JsonLines {
    lines: Lines,
    fields: Fields,
    limit: ReadLimit,
    missing: MissingFields,
}

/// Fields that no record has had so far, of those that not every record needs to have.
#[derive(Debug, Clone)]
struct MissingFields {
    /// The fields that are missing, and the options that name them.
    names: Vec<(String, &'static str)>,
    /// The first field names of the first record, for the error; empty until there is a record.
    found: Vec<String>,
    /// The number of other fields of the first record.
    more: usize,
}

impl MissingFields {
    /// The fields that `--keep` names.
    fn kept(fields: &Fields) -> Self {
        let id = fields.keeps_id.then(|| fields.id_name());
        let kept =
            fields.keep.iter().map(|kept| kept.field.as_str()).filter(|name| !Fields::is_built_in(name));
        let names = id.into_iter().chain(kept).map(|name| (name.to_owned(), "--keep")).collect();
        MissingFields { names, found: Vec::new(), more: 0 }
    }

    /// The fields that `--keep` names, and those of a text that is made of several fields.
    fn all(fields: &Fields) -> Self {
        let mut missing = MissingFields::kept(fields);
        if fields.text.is_several() {
            missing.names.extend(fields.text.names.iter().map(|name| (name.clone(), "--text-field")));
        }
        missing
    }

    /// Removes the fields that the record of a line has.
    fn remove_fields_of(&mut self, line: &str) {
        if self.names.is_empty() {
            return;
        }
        let is_first = self.found.is_empty();
        let mut on_name = |name: &str| {
            if is_first && self.found.len() < MAX_LISTED_NAMES {
                self.found.push(name.to_owned());
            } else if is_first {
                self.more += 1;
            }
        };
        let names: Vec<&str> = self.names.iter().map(|(name, _)| name.as_str()).collect();
        // A line that is not an object has no fields; its error is reported when it is read as a record.
        let Ok(found) = find_fields(line, &mut on_name, &names) else { return };
        let mut found = found.into_iter();
        self.names.retain(|_| found.next().flatten().is_none());
    }

    /// The error for the first missing field. `None` if no field is missing, or there was no record.
    fn error(&self, input: &str) -> Option<anyhow::Error> {
        let (name, option) = self.names.first().filter(|_| !self.found.is_empty())?;
        let found = list_names(&self.found, self.more);
        Some(anyhow!(
            "{input}: no record has the field {name:?} (fields: {found}); choose another with {option}"
        ))
    }
}

/// Checks that at least one record of the sources has each field of [`Fields::keep`], and of a text that is made of
/// several fields.
///
/// Reads the files, and so checks nothing unless all sources are JSON lines files. Lines that cannot be read are not
/// reported.
pub(super) fn check_optional_fields(sources: &[Source], fields: &Fields) -> Result<()> {
    let mut missing = MissingFields::all(fields);
    let is_file = |source: &&Source| source.format == Format::Jsonl && source.size().is_some();
    let files: Vec<&Source> = sources.iter().filter(is_file).collect();
    if missing.names.is_empty() || files.is_empty() || files.len() < sources.len() {
        return Ok(());
    }
    for source in &files {
        let Ok(input) = InputReader::open(source) else { return Ok(()) };
        let mut lines = Lines::new(input, Vec::new(), ReadLimit::default());
        while let Some(entry) = lines.read().ok().flatten() {
            let Entry::Record(line) = entry else { continue };
            let json = parseable(&line.text);
            if serde_json::from_str::<IgnoredAny>(&json).is_ok() {
                missing.remove_fields_of(&json);
            }
            if missing.names.is_empty() {
                return Ok(());
            }
        }
    }
    let input = match &files[..] {
        [file] => file.path.to_string(),
        files => format!("{} input files", files.len()),
    };
    missing.error(&input).map_or(Ok(()), Err)
}

impl JsonLines {
    /// The objects of `input`.
    pub(super) fn new(input: InputReader, fields: Fields, limit: ReadLimit) -> Self {
        let missing = MissingFields::kept(&fields);
        JsonLines { lines: Lines::new(input, Vec::new(), limit), fields, limit, missing }
    }

    /// Bytes of the lines read so far, after decompression.
    pub(super) fn bytes_read(&self) -> u64 {
        self.lines.bytes_read()
    }

    /// The error for a field of [`Fields::keep`] that none of the records so far has, if there is one.
    pub(super) fn missing_field_error(&self) -> Option<anyhow::Error> {
        self.missing.error(self.lines.name())
    }

    /// Reads the next object; `None` at the end of the input.
    pub(super) fn read(&mut self) -> Result<Option<Entry>> {
        while let Some(entry) = self.lines.read()? {
            match entry {
                Entry::Record(line) if line.text.trim().is_empty() => {}
                Entry::Record(line) => {
                    let location = line.location.clone();
                    let entry = self.record(line);
                    return Ok(Some(
                        entry.map_or_else(|reason| Entry::unreadable(location, reason), Entry::Record),
                    ));
                }
                unreadable => return Ok(Some(unreadable)),
            }
        }
        Ok(None)
    }

    /// The record of a line, or why it cannot be read.
    fn record(&mut self, line: Record) -> Result<Record, String> {
        let Fields { text, pair, keep, .. } = &self.fields;
        let wanted: Vec<&str> = (text.names.iter().map(String::as_str))
            .chain([self.fields.id_name()])
            .chain(pair.as_deref())
            .chain(keep.iter().map(|kept| kept.field.as_str()))
            .collect();
        let json = parseable(&line.text);
        let found =
            find_fields(&json, &mut |_| {}, &wanted).map_err(|error| object_error(&line.text, &error))?;
        self.missing.remove_fields_of(&json);
        let field = |name: &str| {
            let index = wanted.iter().position(|wanted| *wanted == name)?;
            found[index].map(|raw| {
                let offset = raw.get().as_ptr().addr() - json.as_ptr().addr();
                RawField { json: &line.text[offset..offset + raw.get().len()], offset }
            })
        };
        let kept = keep.iter().map(|KeptName { field: name, .. }| {
            field(name).map(|raw| raw.kept(name, self.limit)).transpose()
        });
        let kept = kept.collect::<Result<Vec<_>, String>>()?;
        let id = self.id(field(self.fields.id_name()))?;
        let pair = pair.as_ref().map(|name| string(field(name), name, "--pair-field")).transpose()?;
        let text = join(text, field)?;
        let kept = (kept.into_iter().zip(keep))
            .map(|(value, kept)| {
                value.or_else(|| built_in_field(&kept.field, &line.location, &text)).unwrap_or_default()
            })
            .collect();
        Ok(Record { location: line.location, id, text, pair, kept })
    }

    /// The id of a record whose id field is `raw`: a string or an integer, or the JSON text of another value. Null is no id.
    fn id(&self, raw: Option<RawField>) -> Result<Option<Value>, String> {
        let name = self.fields.id_name();
        let raw = match raw {
            Some(raw) if raw.not_finite().is_some() => {
                return Err(format!(
                    "cannot be used: field {name:?} is {}, expected a string or an integer; choose another with --id-field",
                    raw.json
                ));
            }
            Some(raw) if raw.is_string() || raw.is_number() => raw,
            Some(raw) if raw.is_null() => return Ok(None),
            Some(raw) => return Ok(Some(without_white_space(raw.json).into())),
            None if self.fields.id.is_some() => {
                return Err(format!("has no field {name:?}; choose another with --id-field"));
            }
            None => return Ok(None),
        };
        match raw.value(name)? {
            Value::Number(id) => match id.as_f64() {
                Some(float) if id.is_f64() && float.abs() >= MAX_EXACT_INTEGER => Err(format!(
                    "cannot be used: field {name:?} is a number that 64 bits cannot hold exactly; write it in quotes"
                )),
                _ if id.is_f64() => Ok(Some(id.to_string().into())),
                _ => Ok(Some(id.into())),
            },
            id => Ok(Some(id)),
        }
    }
}

/// The text of a record: the string of its only field, or of several fields. Null is as good as none of these.
fn join<'a>(fields: &TextFields, field: impl Fn(&str) -> Option<RawField<'a>>) -> Result<String, String> {
    fields.join(|i| {
        let name = &fields.names[i];
        match field(name) {
            raw if fields.is_several() && raw.is_none_or(RawField::is_null) => Ok(None),
            raw => string(raw, name, "--text-field").map(Some),
        }
    })
}

/// JSON without the white space between its tokens.
fn without_white_space(json: &str) -> String {
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

/// A line in which numbers that JSON does not have are replaced by others of the same length, so that offsets are the
/// same. A line that is valid JSON is as it was.
fn parseable(line: &str) -> Cow<'_, str> {
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

/// Replaces the numbers of [`NOT_FINITE`] outside of strings.
fn replace_not_finite(json: &str, replacement: impl Fn(&str) -> &'static str) -> Cow<'_, str> {
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

/// The predicate of an error about a line that [`find_fields`] rejects.
fn object_error(line: &str, error: &JsonError) -> String {
    let is_object = line.trim_start().starts_with('{');
    if line.trim_start().starts_with("{'") {
        return "is a Python dict, not JSON; write it with json.dumps".into();
    }
    let invalid = |error: &JsonError| {
        let remedy = if is_object { "" } else { ", or pass --input-format lines" };
        format!("{}{remedy}", invalid_json(error.column()))
    };
    if !error.is_data() {
        return invalid(error);
    }
    // A data error is a value that is not an object, and may come before a syntax error.
    match serde_json::from_str::<IgnoredAny>(line) {
        Ok(_) => "is not a JSON object; write one per line, or pass --input-format lines".into(),
        Err(error) => invalid(&error),
    }
}

fn invalid_json(column: usize) -> String {
    format!("is not valid JSON (column {column}); fix the line")
}

/// The first escape of half of a UTF-16 surrogate pair without its other half, as it is written. JSON has these, but
/// strings of Unicode characters do not.
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

/// Calls `on_name` with each field name of a JSON object, and returns the values of the `wanted` fields as they are
/// written; the last one if a name is repeated. No other value is built, so memory does not grow with the other fields.
/// A field that the object does not have is looked for in its objects, if its name has dots: see [`Fields`].
fn find_fields<'a>(
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

/// A field value as it is written in a line.
#[derive(Clone, Copy)]
struct RawField<'a> {
    json: &'a str,
    /// The offset of the value in the line, in bytes.
    offset: usize,
}

impl RawField<'_> {
    fn is_string(self) -> bool {
        self.json.starts_with('"')
    }

    fn is_null(self) -> bool {
        self.json.starts_with('n')
    }

    fn is_number(self) -> bool {
        self.json.starts_with(|c: char| c == '-' || c.is_ascii_digit())
    }

    /// The value, if it is one of [`NOT_FINITE`].
    fn not_finite(self) -> Option<f64> {
        NOT_FINITE.iter().find(|(number, _)| *number == self.json).map(|(_, value)| *value)
    }

    /// The JSON type, with an article; a number of [`NOT_FINITE`] itself.
    fn type_name(self) -> &'static str {
        if let Some((number, _)) = NOT_FINITE.iter().find(|(number, _)| *number == self.json) {
            return number;
        }
        json_type(self.json)
    }

    /// Parses the value of the field `name`.
    fn value(self, name: &str) -> Result<Value, String> {
        serde_json::from_str(self.json).map_err(|error| self.invalid(name, &error))
    }

    /// The error about the value of the field `name`, which cannot be parsed.
    fn invalid(self, name: &str, error: &JsonError) -> String {
        match lone_surrogate(self.json) {
            Some(escape) => format!(
                "cannot be used: field {name:?} has a lone surrogate, {escape}, which is half of a character; write the \
                 whole character, or remove the escape"
            ),
            None => invalid_json(self.offset + error.column()),
        }
    }

    /// Parses the value of the carried-through field `name`. Numbers that JSON does not have are floats, and null inside
    /// of lists and objects.
    fn kept(self, name: &str, limit: ReadLimit) -> Result<FieldValue, String> {
        if let Some(float) = self.not_finite() {
            return Ok(float.into());
        }
        // Each element follows a comma or a bracket, and takes the memory of a key and a value.
        let elements = self.json.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
        let bytes = (elements as u64).saturating_mul((2 * mem::size_of::<Value>()) as u64);
        if !self.is_string() && bytes > limit.value_bytes() {
            return Err(format!(
                "cannot be used: field {name:?} has about {elements} values, more than fit into memory; leave it out of \
                 --keep, or pass a larger --max-memory"
            ));
        }
        let json =
            if self.is_string() { self.json.into() } else { replace_not_finite(self.json, |_| "null") };
        let value = RawField { json: &json, ..self }.value(name)?;
        if has_rounded_integer(&value, self.json) {
            return Err(format!(
                "cannot be used: field {name:?} has an integer of more than 64 bits, which would be rounded; write it in \
                 quotes, or leave the field out of --keep"
            ));
        }
        Ok(value.into())
    }
}

/// The string of the field `name`, which `option` chooses.
fn string(raw: Option<RawField>, name: &str, option: &str) -> Result<String, String> {
    match raw {
        Some(raw) if raw.is_string() => {
            serde_json::from_str(raw.json).map_err(|error| raw.invalid(name, &error))
        }
        Some(other) => Err(format!(
            "cannot be used: field {name:?} is {}, expected a string; choose another with {option}",
            other.type_name()
        )),
        None => Err(format!("has no field {name:?}; choose another with {option}")),
    }
}

/// Whether `value`, which was parsed from `json`, has a float that was written as an integer: `serde_json` rounds
/// integers of more than 64 bits to floats.
fn has_rounded_integer(value: &Value, json: &str) -> bool {
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

/// The integers of `json` as they are written. Words inside strings that look like integers may be among them.
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
