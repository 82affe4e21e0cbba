//! JSON lines: an object a line, one of whose fields is the text.

use std::fmt;
use std::mem;

use anyhow::{Result, anyhow};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::error::Error as JsonError;
use serde_json::value::RawValue;

use super::bytes::Bytes;
use super::lines::Lines;
use super::record::own_field;
use super::{EXACT, Entry, Fields, Format, ReadLimit, Record, Source, said};
use crate::field::FieldValue;

/// The objects of an input; lines without anything are passed over.
pub struct JsonLines {
    lines: Lines,
    fields: Fields,
    limit: ReadLimit,
    unseen: Unseen,
}

/// The fields of [`Fields::keep`] that no record has had so far.
#[derive(Debug, Clone)]
struct Unseen {
    fields: Vec<String>,
    /// The first fields of the first record, and how many more it has; empty before that record.
    names: Vec<String>,
    more: usize,
}

impl Unseen {
    fn new(fields: &Fields) -> Self {
        let fields = fields.keep.iter().filter(|field| !Fields::is_own(field)).cloned().collect();
        Unseen { fields, names: Vec::new(), more: 0 }
    }

    /// Takes the field names of a record into account.
    fn see(&mut self, line: &str) {
        const SHOWN: usize = 20;
        if self.fields.is_empty() {
            return;
        }
        let is_first = self.names.is_empty();
        let mut take = |name: &str| {
            self.fields.retain(|field| field != name);
            match is_first {
                true if self.names.len() < SHOWN => self.names.push(name.to_owned()),
                true => self.more += 1,
                false => {}
            }
        };
        // What is not an object has no names.
        let _ = each_field(line, &mut take, &[]);
    }

    /// One sentence on the first of them; none if every field was seen, or no record was.
    fn error(&self, shown: &str) -> Option<anyhow::Error> {
        let field = self.fields.first().filter(|_| !self.names.is_empty())?;
        let more = if self.more == 0 { String::new() } else { format!(" and {} more", self.more) };
        Some(anyhow!(
            "{shown}: no record has the field {field:?} (fields: {}{more}); choose another with --keep",
            said(&self.names.join(", "))
        ))
    }
}

/// Checks that every field of [`Fields::keep`] is in some record of the sources. Only files are read: a stream can be
/// read once. What cannot be read here is reported when it is read for its texts.
///
/// # Errors
/// If no record has one of the fields.
pub fn check_kept(sources: &[Source], fields: &Fields) -> Result<()> {
    let mut unseen = Unseen::new(fields);
    let is_file = |source: &&Source| source.format == Format::Jsonl && source.size().is_some();
    let files: Vec<&Source> = sources.iter().filter(is_file).collect();
    if unseen.fields.is_empty() || files.is_empty() || files.len() < sources.len() {
        return Ok(());
    }
    for source in &files {
        let Ok(bytes) = Bytes::open(source) else { return Ok(()) };
        let mut lines = Lines::new(bytes, Vec::new(), ReadLimit::default());
        while let Some(entry) = lines.read().ok().flatten() {
            let Entry::Record(line) = entry else { continue };
            if serde_json::from_str::<IgnoredAny>(&line.text).is_ok() {
                unseen.see(&line.text);
            }
            if unseen.fields.is_empty() {
                return Ok(());
            }
        }
    }
    let shown = match &files[..] {
        [one] => one.place.to_string(),
        several => format!("{} input files", several.len()),
    };
    unseen.error(&shown).map_or(Ok(()), Err)
}

impl JsonLines {
    /// Objects of these bytes.
    pub fn new(bytes: Bytes, fields: Fields, limit: ReadLimit) -> Self {
        let unseen = Unseen::new(&fields);
        JsonLines { lines: Lines::new(bytes, Vec::new(), limit), fields, limit, unseen }
    }

    /// Bytes behind the objects so far.
    pub fn behind(&self) -> u64 {
        self.lines.behind()
    }

    /// One sentence on a field of [`Fields::keep`] that none of the objects so far has, if there is one.
    pub fn absent(&self) -> Option<anyhow::Error> {
        self.unseen.error(self.lines.shown())
    }

    /// The next object; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on.
    pub fn read(&mut self) -> Result<Option<Entry>> {
        while let Some(entry) = self.lines.read()? {
            match entry {
                Entry::Record(line) if line.text.trim().is_empty() => {}
                Entry::Record(line) => {
                    let place = line.place.clone();
                    let entry = self.record(line);
                    return Ok(Some(
                        entry.map_or_else(|reason| Entry::unreadable(place, reason), Entry::Record),
                    ));
                }
                unreadable => return Ok(Some(unreadable)),
            }
        }
        Ok(None)
    }

    /// The record of a line, or why there is none.
    fn record(&mut self, line: Record) -> Result<Record, String> {
        let Fields { text, pair, id: _, keep } = &self.fields;
        let wanted: Vec<&str> = [text.as_str(), self.fields.id()]
            .into_iter()
            .chain(pair.as_deref())
            .chain(keep.iter().map(String::as_str))
            .collect();
        let found = each_field(&line.text, &mut |_| {}, &wanted).map_err(|error| match error.is_data() {
            true => match serde_json::from_str::<IgnoredAny>(&line.text) {
                Ok(_) => "is not a JSON object; write one a line, or pass --input-format lines".into(),
                Err(error) => invalid(error.column()),
            },
            false => invalid(error.column()),
        })?;
        self.unseen.see(&line.text);
        let field = |name: &str| {
            let at = wanted.iter().position(|wanted| *wanted == name)?;
            found[at].map(|raw| Raw {
                text: raw.get(),
                column: raw.get().as_ptr().addr() - line.text.as_ptr().addr(),
            })
        };
        let kept = keep.iter().map(|name| field(name).map(|raw| raw.kept(name, self.limit)).transpose());
        let kept = kept.collect::<Result<Vec<_>, String>>()?;
        let id = self.id(field(self.fields.id()))?;
        let pair = pair.as_ref().map(|name| string(field(name), name, "--pair-field")).transpose()?;
        let text = string(field(text), text, "--text-field")?;
        let kept = (kept.into_iter().zip(keep))
            .map(|(value, name)| {
                value
                    .map(FieldValue::Json)
                    .or_else(|| own_field(name, &line.place, &text))
                    .unwrap_or_default()
            })
            .collect();
        Ok(Record { place: line.place, id, text, pair, kept })
    }

    fn id(&self, raw: Option<Raw>) -> Result<Option<Value>, String> {
        let name = self.fields.id();
        let Some(raw) = raw else {
            return match &self.fields.id {
                None => Ok(None),
                Some(_) => Err(format!("has no field {name:?}; name another with --id-field")),
            };
        };
        if !raw.is_string() && !raw.is_number() {
            return match &self.fields.id {
                None => Ok(None),
                Some(_) => Err(format!(
                    "cannot be used: field {name:?} is {}, but has to be a string or a number; name another with --id-field",
                    raw.kind()
                )),
            };
        }
        match raw.value()? {
            Value::Number(id) => match id.as_f64() {
                Some(float) if id.is_f64() && float.abs() >= EXACT => Err(format!(
                    "cannot be used: field {name:?} is a number that is too large to be kept as it is; write it in quotes"
                )),
                _ if id.is_f64() => Ok(Some(id.to_string().into())),
                _ => Ok(Some(id.into())),
            },
            id => Ok(Some(id)),
        }
    }
}

fn invalid(column: usize) -> String {
    format!("is not valid JSON (column {column}); mend the line, or pass --input-format lines")
}

/// Names each field of the object that a line is, and gives the values of those that are wanted, as they are written; of
/// several with one name, the last. Nothing else is built, however large it is.
fn each_field<'a>(
    line: &'a str,
    name: &mut dyn FnMut(&str),
    wanted: &[&str],
) -> Result<Vec<Option<&'a RawValue>>, JsonError> {
    let mut json = serde_json::Deserializer::from_str(line);
    let found = json.deserialize_map(Object { name, wanted })?;
    json.end()?;
    Ok(found)
}

struct Object<'a> {
    name: &'a mut dyn FnMut(&str),
    wanted: &'a [&'a str],
}

impl<'de> Visitor<'de> for Object<'_> {
    type Value = Vec<Option<&'de RawValue>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = vec![None; self.wanted.len()];
        while let Some(name) = map.next_key::<String>()? {
            (self.name)(&name);
            match self.wanted.contains(&name.as_str()) {
                true => {
                    let value = map.next_value()?;
                    let slots = found.iter_mut().zip(self.wanted).filter(|(_, wanted)| **wanted == name);
                    slots.for_each(|(slot, _)| *slot = Some(value));
                }
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }
}

/// A value as it is written.
#[derive(Clone, Copy)]
struct Raw<'a> {
    text: &'a str,
    /// Bytes of the line before it.
    column: usize,
}

impl Raw<'_> {
    fn is_string(self) -> bool {
        self.text.starts_with('"')
    }

    fn is_number(self) -> bool {
        self.text.starts_with(|c: char| c == '-' || c.is_ascii_digit())
    }

    /// What it is, as a person says it.
    fn kind(self) -> &'static str {
        match self.text.as_bytes().first() {
            Some(b'n') => "null",
            Some(b't' | b'f') => "true or false",
            Some(b'"') => "a string",
            Some(b'[') => "a list",
            Some(b'{') => "an object",
            _ => "a number",
        }
    }

    /// The value itself.
    fn value(self) -> Result<Value, String> {
        serde_json::from_str(self.text).map_err(|error| invalid(self.column + error.column()))
    }

    /// The value of a field that is carried through.
    fn kept(self, name: &str, limit: ReadLimit) -> Result<Value, String> {
        // Each element has a comma or a bracket before it, and takes the memory of a value with its name.
        let elements = self.text.bytes().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
        let bytes = (elements as u64).saturating_mul((2 * mem::size_of::<Value>()) as u64);
        if !self.is_string() && bytes > limit.value_bytes() {
            return Err(format!(
                "cannot be used: field {name:?} has about {elements} values, more than fit into memory; leave it out of \
                 --keep, or pass a larger --max-memory"
            ));
        }
        let value = self.value()?;
        if is_rounded(&value, self.text) {
            return Err(format!(
                "cannot be used: field {name:?} has an integer of more than 64 bits, which would be rounded; write it in \
                 quotes, or leave the field out of --keep"
            ));
        }
        Ok(value)
    }
}

/// The string of a field.
fn string(raw: Option<Raw>, field: &str, option: &str) -> Result<String, String> {
    match raw {
        Some(raw) if raw.is_string() => {
            serde_json::from_str(raw.text).map_err(|error| invalid(raw.column + error.column()))
        }
        Some(other) => Err(format!(
            "cannot be used: field {field:?} is {}, but has to be a string; name another with {option}",
            other.kind()
        )),
        None => Err(format!("has no field {field:?}; name the field of the text with {option}")),
    }
}

/// Whether a value of this line, or one inside of it, was written as an integer that a float has rounded.
fn is_rounded(value: &Value, line: &str) -> bool {
    match value {
        Value::Number(number) if number.is_f64() => {
            let rounded = number.as_f64().filter(|float| float.abs() >= 2f64.powi(63));
            rounded.is_some_and(|float| integers(line).any(|digits| digits.parse() == Ok(float)))
        }
        Value::Array(list) => list.iter().any(|value| is_rounded(value, line)),
        Value::Object(map) => map.values().any(|value| is_rounded(value, line)),
        _ => false,
    }
}

/// The integers of a line of JSON as they are written, and perhaps words of its strings that look like them.
fn integers(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| !(c.is_ascii_alphanumeric() || "+-.".contains(c)));
    words.filter(|word| word.trim_start_matches('-').bytes().all(|byte| byte.is_ascii_digit()))
}
