//! JSON lines: one object per line, one of whose fields is the text.

use std::mem;

use anyhow::{Result, anyhow};
use serde::de::IgnoredAny;
use serde_json::Value;
use serde_json::error::Error as JsonError;

use super::error::{MAX_LISTED_NAMES, list_names};
use super::limit::ReadLimit;
use super::lines::Lines;
use super::reader::InputReader;
use super::record::{Entry, Fields, KeptName, MAX_EXACT_INTEGER, Record, built_in_field};
use super::source::{Format, Source};
use crate::formats::jsonl::{
    find_fields, has_rounded_integer, json_type, lone_surrogate, not_finite, parseable, replace_not_finite,
    without_white_space,
};
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

/// Checks that at least one record of the sources has each field of [`Fields::keep`], and of a text that is
/// made of several fields.
///
/// Reads the files, and so checks nothing unless all sources are JSON lines files. Lines that cannot be read
/// are not reported.
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
        let Fields { text, pair, keep, null_texts, options, .. } = &self.fields;
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
        let value = |name: &str, option: &str| match field(name) {
            Some(raw) if raw.is_null() && *null_texts => Ok(None),
            Some(raw) if raw.is_null() => Err(options.null_text(name)),
            raw => string(raw, name, option).map(Some),
        };
        let pair = pair.as_ref().map(|name| value(name, options.pair)).transpose()?;
        let found = text.join(|i| match &text.names[i] {
            // Null is as good as no value of one of several fields.
            name if text.is_several() && field(name).is_none_or(RawField::is_null) => Ok(None),
            name => value(name, "--text-field"),
        })?;
        if found.is_none() && !null_texts {
            return Err(options.no_text(text));
        }
        let is_null = found.is_none() || pair == Some(None);
        let (text, pair) = (found.unwrap_or_default(), pair.map(Option::unwrap_or_default));
        let kept = (kept.into_iter().zip(keep))
            .map(|(value, kept)| {
                value.or_else(|| built_in_field(&kept.field, &line.location, &text)).unwrap_or_default()
            })
            .collect();
        Ok(Record { location: line.location, id, text, pair, is_null, kept })
    }

    /// The id of a record whose id field is `raw`: a string or an integer, or the JSON text of another value.
    /// Null is no id.
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

    /// The value, if it is a number that JSON does not have.
    fn not_finite(self) -> Option<f64> {
        not_finite(self.json).map(|(_, value)| value)
    }

    /// The JSON type, with an article; `NaN` and the infinities as they are written.
    fn type_name(self) -> &'static str {
        not_finite(self.json).map_or_else(|| json_type(self.json), |(number, _)| number)
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

    /// Parses the value of the carried-through field `name`. Numbers that JSON does not have are floats, and
    /// null inside of lists and objects.
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
