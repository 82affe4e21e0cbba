//! JSON lines: an object a line, one of whose fields is the text.

use std::collections::BTreeMap;

use anyhow::{Result, anyhow};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::bytes::Bytes;
use super::lines::Lines;
use super::record::own_field;
use super::{EXACT, Entry, Fields, Format, Record, Source, said};

/// The objects of an input; lines without anything are passed over.
pub struct JsonLines {
    lines: Lines,
    fields: Fields,
    unseen: Unseen,
}

/// The fields of [`Fields::keep`] that no record has had so far.
#[derive(Debug, Clone)]
struct Unseen {
    fields: Vec<String>,
    /// The fields of the first record.
    names: Option<String>,
}

impl Unseen {
    fn new(fields: &Fields) -> Self {
        let fields = fields.keep.iter().filter(|field| !Fields::is_own(field)).cloned().collect();
        Unseen { fields, names: None }
    }

    /// Takes the field names of a record into account.
    fn see<'a>(&mut self, names: impl Iterator<Item = &'a String> + Clone) {
        if self.fields.is_empty() {
            return;
        }
        self.fields.retain(|field| !names.clone().any(|name| name == field));
        self.names.get_or_insert_with(|| names.map(String::as_str).collect::<Vec<_>>().join(", "));
    }

    /// One sentence on the first of them; none if every field was seen, or no record was.
    fn error(&self, shown: &str) -> Option<anyhow::Error> {
        let (field, names) = (self.fields.first()?, self.names.as_ref()?);
        Some(anyhow!(
            "{shown}: no record has the field {field:?} (fields: {}); choose another with --keep",
            said(names)
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
        let mut lines = Lines::new(bytes, Vec::new());
        while let Some(entry) = lines.read().ok().flatten() {
            let Entry::Record(line) = entry else { continue };
            let Ok(object) = serde_json::from_str::<BTreeMap<String, IgnoredAny>>(&line.text) else {
                continue;
            };
            unseen.see(object.keys());
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
    pub fn new(bytes: Bytes, fields: Fields) -> Self {
        let unseen = Unseen::new(&fields);
        JsonLines { lines: Lines::new(bytes, Vec::new()), fields, unseen }
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
        let mut object: Map<String, Value> = match serde_json::from_str(&line.text) {
            Ok(Value::Object(object)) => object,
            Ok(_) => {
                return Err("is not a JSON object; write one a line, or pass --input-format lines".into());
            }
            Err(error) => {
                return Err(format!(
                    "is not valid JSON (column {}); mend the line, or pass --input-format lines",
                    error.column()
                ));
            }
        };
        self.unseen.see(object.keys());
        for (field, value) in self.fields.keep.iter().filter_map(|field| Some((field, object.get(field)?))) {
            if is_rounded(value, &line.text) {
                return Err(format!(
                    "cannot be used: field {field:?} has an integer of more than 64 bits, which would be rounded; write \
                     it in quotes, or leave the field out of --keep"
                ));
            }
        }
        let kept: Vec<_> = self.fields.keep.iter().map(|field| object.get(field).cloned()).collect();
        let id = self.id(&object)?;
        // The pair may be the text once more.
        let pair = self.fields.pair.as_ref().map(|field| text(object.get(field), field, "--pair-field"));
        let pair = pair.transpose()?;
        let text = text(object.remove(&self.fields.text).as_ref(), &self.fields.text, "--text-field")?;
        let kept = kept
            .into_iter()
            .zip(&self.fields.keep)
            .map(|(value, field)| value.or_else(|| own_field(field, &line.place, &text)).unwrap_or_default());
        let kept = kept.collect();
        Ok(Record { place: line.place, id, text, pair, kept })
    }

    fn id(&self, object: &Map<String, Value>) -> Result<Option<Value>, String> {
        match (object.get(self.fields.id()), &self.fields.id) {
            (Some(id @ Value::String(_)), _) => Ok(Some(id.clone())),
            (Some(Value::Number(id)), _) => match id.as_f64() {
                Some(float) if id.is_f64() && float.abs() >= EXACT => Err(format!(
                    "cannot be used: field {:?} is a number that is too large to be kept as it is; write it in quotes",
                    self.fields.id()
                )),
                _ if id.is_f64() => Ok(Some(id.to_string().into())),
                _ => Ok(Some(id.clone().into())),
            },
            (_, None) => Ok(None),
            (Some(other), Some(field)) => Err(format!(
                "cannot be used: field {field:?} is {}, but has to be a string or a number; name another with --id-field",
                kind(other)
            )),
            (None, Some(field)) => Err(format!("has no field {field:?}; name another with --id-field")),
        }
    }
}

/// The string of a field.
fn text(value: Option<&Value>, field: &str, option: &str) -> Result<String, String> {
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(other) => Err(format!(
            "cannot be used: field {field:?} is {}, but has to be a string; name another with {option}",
            kind(other)
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

/// What a value is, as a person says it.
fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
