//! JSON lines: an object a line, one of whose fields is the text.

use anyhow::Result;
use serde_json::{Map, Value};

use super::bytes::Bytes;
use super::lines::Lines;
use super::{EXACT, Entry, Fields, Record};

/// The objects of an input; lines without anything are passed over.
pub struct JsonLines {
    lines: Lines,
    fields: Fields,
}

impl JsonLines {
    /// Objects of these bytes.
    pub fn new(bytes: Bytes, fields: Fields) -> Self {
        JsonLines { lines: Lines::new(bytes, 0), fields }
    }

    /// Bytes behind the objects so far.
    pub fn behind(&self) -> u64 {
        self.lines.behind()
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
    fn record(&self, line: Record) -> Result<Record, String> {
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
        let kept = self.fields.keep.iter().map(|field| object.get(field).cloned().unwrap_or_default());
        let kept = kept.collect();
        let id = self.id(&object)?;
        // The pair may be the text once more.
        let pair = self.fields.pair.as_ref().map(|field| text(object.get(field), field, "--pair-field"));
        let pair = pair.transpose()?;
        let text = text(object.remove(&self.fields.text).as_ref(), &self.fields.text, "--text-field")?;
        Ok(Record { place: line.place, id, text, pair, kept })
    }

    fn id(&self, object: &Map<String, Value>) -> Result<Option<String>, String> {
        match (object.get(self.fields.id()), &self.fields.id) {
            (Some(Value::String(id)), _) => Ok(Some(id.clone())),
            (Some(Value::Number(id)), _) => match id.as_f64() {
                Some(float) if id.is_f64() && float.abs() >= EXACT => Err(format!(
                    "cannot be used: field {:?} is a number that is too large to be kept as it is; write it in quotes",
                    self.fields.id()
                )),
                _ => Ok(Some(id.to_string())),
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
