//! Rows of Arrow's record batches: which columns are what, and the records in them.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, RecordBatch, StringArray, StringViewArray};
use arrow::compute::cast;
use arrow::datatypes::{
    DataType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, Schema,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::Value;

use super::record::own_field;
use super::{At, EXACT, Entry, Fields, MOST_BYTES, MOST_MIB, Record, Spot, said};
use crate::guard::guard;

/// The columns that are read.
pub struct Columns {
    /// Their places in the file, ascending. All other fields are places in this list.
    pub projection: Vec<usize>,
    text: Column,
    pair: Option<Column>,
    id: Option<Column>,
    keep: Vec<Kept>,
}

/// A field that goes along: a column, or one that every record has.
#[derive(Clone)]
enum Kept {
    Column(Column),
    Own(String),
}

/// A column by its place and its name.
#[derive(Clone)]
struct Column {
    at: usize,
    name: String,
}

impl Columns {
    /// Looks for the fields in a schema.
    ///
    /// # Errors
    /// If a column is missing, or its values cannot be what they are asked to be.
    pub fn new(shown: &str, schema: &Schema, fields: &Fields) -> Result<Self> {
        let find = |name: &str, option: &str| {
            let at = schema.fields().iter().position(|field| field.name() == name);
            let names = schema.fields().iter().map(|field| field.name().as_str());
            at.ok_or_else(|| missing(shown, name, names, option))
        };
        let typed = |name: &str, option: &str, fits: fn(&DataType) -> bool, what: &str| {
            let at = find(name, option)?;
            let found = schema.field(at).data_type();
            if !fits(found) {
                return Err(anyhow!(
                    "{shown}: column {name:?} holds {}, but has to hold {what}; name another with {option}",
                    said(found)
                ));
            }
            Ok(at)
        };
        let text = typed(&fields.text, "--text-field", is_text, "strings")?;
        let pair = fields.pair.as_ref().map(|name| typed(name, "--pair-field", is_text, "strings"));
        let id = match &fields.id {
            Some(name) => Some(typed(name, "--id-field", is_id, "strings, numbers or dates")?),
            None => {
                let mut columns = schema.fields().iter();
                columns.position(|field| field.name() == fields.id() && is_id(field.data_type()))
            }
        };
        let pair = pair.transpose()?;
        let keep = fields.keep.iter().map(|name| match find(name, "--keep") {
            Err(_) if Fields::is_own(name) => Ok(Err(name.clone())),
            found => found.map(Ok),
        });
        let keep = keep.collect::<Result<Vec<Result<usize, String>>>>()?;

        let mut projection: Vec<usize> =
            [text].into_iter().chain(pair).chain(id).chain(keep.iter().flatten().copied()).collect();
        projection.sort_unstable();
        projection.dedup();
        let column = |at: usize| Column {
            at: projection.partition_point(|other| *other < at),
            name: schema.field(at).name().clone(),
        };
        Ok(Columns {
            text: column(text),
            pair: pair.map(column),
            id: id.map(column),
            keep: (keep.into_iter())
                .map(|kept| kept.map_or_else(Kept::Own, |at| Kept::Column(column(at))))
                .collect(),
            projection,
        })
    }
}

fn is_text(kind: &DataType) -> bool {
    match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Whether a value of this type names a record when it is written out.
fn is_id(kind: &DataType) -> bool {
    is_text(kind) || kind.is_numeric() || kind.is_temporal() || *kind == DataType::Boolean
}

/// One sentence on a column that is not there.
pub fn missing<'a>(
    shown: &str,
    name: &str,
    names: impl Iterator<Item = &'a str>,
    option: &str,
) -> anyhow::Error {
    let names: Vec<&str> = names.collect();
    match names.is_empty() {
        true => {
            anyhow!("{shown} has no column {name:?}, nor any other; give it a header that names its columns")
        }
        false => {
            let names = said(&names.join(", "));
            anyhow!("{shown} has no column {name:?} but {names}; name another with {option}")
        }
    }
}

/// The rows of a record batch that are still to be given.
pub struct Rows {
    next: usize,
    rows: usize,
    text: Texts,
    pair: Option<Texts>,
    id: Option<ArrayRef>,
    keep: Vec<(Option<ArrayRef>, String)>,
}

impl Rows {
    /// The rows of a batch that has the columns of the projection and no others.
    ///
    /// # Errors
    /// If a column is not what the schema says, which libraries let pass in some damaged files.
    pub fn new(batch: &RecordBatch, columns: &Columns) -> Result<Self, String> {
        let array = |column: &Column| batch.column(column.at).clone();
        let texts = |column: &Column| {
            let strings = Strings::new(&array(column));
            let damaged = || format!("column {:?} does not hold the strings that it should", column.name);
            Ok::<_, String>(Texts { strings: strings.ok_or_else(damaged)?, name: column.name.clone() })
        };
        Ok(Rows {
            next: 0,
            rows: batch.num_rows(),
            text: texts(&columns.text)?,
            pair: columns.pair.as_ref().map(texts).transpose()?,
            id: columns.id.as_ref().map(array),
            keep: (columns.keep.iter())
                .map(|kept| match kept {
                    Kept::Column(column) => (Some(in_utc(array(column))), column.name.clone()),
                    Kept::Own(name) => (None, name.clone()),
                })
                .collect(),
        })
    }

    /// How many rows have been given.
    pub fn given(&self) -> usize {
        self.next
    }

    /// How many rows there are in all.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// The next row, which is this one of the file; none at the end of the batch.
    pub fn read(&mut self, source: &Arc<str>, row: u64) -> Option<Entry> {
        if self.next == self.rows {
            return None;
        }
        let at = self.next;
        self.next += 1;
        let place = Spot { source: source.clone(), at: At::Row(row) };
        Some(match guard(|| self.record(at, place.clone())) {
            Some(Ok(record)) => Entry::Record(record),
            Some(Err(reason)) => Entry::unreadable(place, reason),
            None => Entry::unreadable(place, "cannot be used: it is damaged; fetch or write the file again"),
        })
    }

    fn record(&self, row: usize, place: Spot) -> Result<Record, String> {
        let text = self.text.get(row)?;
        let pair = self.pair.as_ref().map(|pair| pair.get(row)).transpose()?;
        let id = match self.id.as_ref().map(|ids| value(ids, row)).transpose()? {
            None | Some(Value::Null) => None,
            // Integers among which one is missing are floats to some writers.
            Some(Value::Number(id)) if id.is_f64() => Some(match id.as_f64() {
                Some(float) if float.fract() == 0.0 && float.abs() < EXACT => (float as i64).into(),
                _ => id.to_string().into(),
            }),
            Some(id @ (Value::String(_) | Value::Number(_))) => Some(id),
            Some(other) => Some(other.to_string().into()),
        };
        let kept = self.keep.iter().map(|(array, name)| {
            let Some(array) = array else {
                return Ok(own_field(name, &place, &text).unwrap_or_default());
            };
            value(array, row).map_err(|why| {
                format!("cannot be used: field {name:?} cannot be written ({why}); leave it out of --keep")
            })
        });
        let kept = kept.collect::<Result<_, String>>()?;
        Ok(Record { place, id, text, pair, kept })
    }
}

/// A column of texts.
struct Texts {
    strings: Strings,
    name: String,
}

impl Texts {
    /// The text of a row, or why there is none.
    fn get(&self, row: usize) -> Result<String, String> {
        match self.strings.get(row) {
            Some(text) if text.len() as u64 > MOST_BYTES => Err(format!(
                "cannot be used: field {:?} is longer than {MOST_MIB} MiB; cut the text",
                self.name
            )),
            Some(text) => Ok(text.to_owned()),
            None => Err(format!(
                "cannot be used: field {:?} is null, but has to be a string; write an empty one, or leave the row out",
                self.name
            )),
        }
    }
}

/// Strings, however Arrow keeps them.
enum Strings {
    Small(StringArray),
    Large(LargeStringArray),
    Views(StringViewArray),
    Dictionary { keys: ArrayRef, values: Box<Strings> },
}

impl Strings {
    /// The strings of an array; none if they are something else.
    fn new(array: &ArrayRef) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Utf8 => Strings::Small(array.as_string().clone()),
            DataType::LargeUtf8 => Strings::Large(array.as_string().clone()),
            DataType::Utf8View => Strings::Views(array.as_string_view().clone()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let keys = dictionary.keys().slice(0, dictionary.len());
                Strings::Dictionary { keys, values: Box::new(Strings::new(dictionary.values())?) }
            }
            _ => return None,
        })
    }

    fn get(&self, row: usize) -> Option<&str> {
        match self {
            Strings::Small(array) => array.is_valid(row).then(|| array.value(row)),
            Strings::Large(array) => array.is_valid(row).then(|| array.value(row)),
            Strings::Views(array) => array.is_valid(row).then(|| array.value(row)),
            Strings::Dictionary { keys, values } => values.get(key(keys, row)?),
        }
    }
}

/// The row of a dictionary that a row of its keys stands for.
fn key(keys: &dyn Array, row: usize) -> Option<usize> {
    value(keys, row).ok()?.as_u64()?.try_into().ok()
}

/// A value as JSON: booleans, numbers and strings as they are, a number that JSON does not have as null, and
/// anything else as Arrow writes it; or why it cannot be written.
fn value(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).into(),
        DataType::Float16 => short(array.as_primitive::<Float16Type>().value(row)),
        DataType::Float32 => short(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(row).into(),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).into(),
        DataType::Utf8View => array.as_string_view().value(row).into(),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = key(dictionary.keys(), row).ok_or("its key is damaged")?;
            return value(dictionary.values(), key);
        }
        _ => written(array, row).map_err(|error| said(&error))?.into(),
    })
}

/// Times with a zone, whose instants are kept in UTC whatever the zone, by the one zone that needs no list of them.
fn in_utc(array: ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Timestamp(unit, Some(_)) => {
            let utc = DataType::Timestamp(*unit, Some("+00:00".into()));
            cast(&array, &utc).unwrap_or(array)
        }
        _ => array,
    }
}

/// A float of few bits as the shortest number that reads back as the same float: 0.1 and not 0.10000000149.
fn short(float: impl ToString) -> Value {
    float.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn written(array: &dyn Array, row: usize) -> Result<String, ArrowError> {
    ArrayFormatter::try_new(array, &FormatOptions::default())?.value(row).try_to_string()
}
