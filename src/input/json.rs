//! JSON lines: an object a line, one of whose fields is the text.

use anyhow::{Result, bail};
use serde_json::{Map, Value};

use super::{Fields, Lines, Place, Record};

/// The objects of a file or of standard input; lines without anything are passed over.
pub struct JsonLines {
    lines: Lines,
    fields: Fields,
}

impl JsonLines {
    /// Opens a place for reading.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open(place: Place, fields: Fields) -> Result<Self> {
        Ok(JsonLines { lines: Lines::open(place)?, fields })
    }

    /// The next object; none at the end.
    ///
    /// # Errors
    /// If the file cannot be read on, or a line is no object with the fields.
    pub fn read(&mut self) -> Result<Option<Record>> {
        while let Some(line) = self.lines.read()? {
            if !line.text.trim().is_empty() {
                return self.record(line).map(Some);
            }
        }
        Ok(None)
    }

    fn record(&self, line: Record) -> Result<Record> {
        let place = line.place;
        let object: Map<String, Value> = match serde_json::from_str(&line.text) {
            Ok(Value::Object(object)) => object,
            Ok(_) => bail!("{place} is not a JSON object; write one a line, or pass --input-format lines"),
            Err(error) => bail!(
                "{place} is not valid JSON (column {}); mend the line, or pass --input-format lines",
                error.column()
            ),
        };
        let text = |field: &str, option: &str| match object.get(field) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(other) => bail!(
                "{place}: field {field:?} is {}, but has to be a string; name another with {option}",
                kind(other)
            ),
            None => bail!("{place} has no field {field:?}; name the field of the text with {option}"),
        };
        let id = match (object.get(self.fields.id()), &self.fields.id) {
            (Some(Value::String(id)), _) => Some(id.clone()),
            (Some(Value::Number(id)), _) => Some(id.to_string()),
            (_, None) => None,
            (Some(other), Some(field)) => {
                bail!("{place}: field {field:?} is {}, but has to be a string or a number", kind(other))
            }
            (None, Some(field)) => bail!("{place} has no field {field:?}; name another with --id-field"),
        };
        Ok(Record {
            id,
            text: text(&self.fields.text, "--text-field")?,
            pair: self.fields.pair.as_ref().map(|field| text(field, "--pair-field")).transpose()?,
            place,
        })
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
