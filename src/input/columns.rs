//! Rows of Arrow's record batches: which columns are what, and the records in them.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use arrow::array::{Array, ArrayRef, AsArray, LargeStringArray, RecordBatch, StringArray, StringViewArray};
use arrow::datatypes::{DataType, Schema};
use serde_json::Value;

use super::record::own_field;
use super::{At, EXACT, Entry, Fields, MOST_BYTES, MOST_MIB, ReadLimit, Record, Spot, said};
use crate::field::{FieldValue, column_type, json, key};
use crate::guard::guard;

/// The columns that are read.
pub struct Columns {
    /// Their places in the file, ascending. All other fields are places in this list.
    pub projection: Vec<usize>,
    text: Column,
    pair: Option<Column>,
    id: Option<Column>,
    keep: Vec<Kept>,
    limit: ReadLimit,
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
    pub fn new(shown: &str, schema: &Schema, fields: &Fields, limit: ReadLimit) -> Result<Self> {
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
            limit,
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
    const SHOWN: usize = 20;
    let mut names = names.peekable();
    match names.peek().is_none() {
        true => {
            anyhow!("{shown} has no column {name:?}, nor any other; give it a header that names its columns")
        }
        false => {
            let first = said(&names.by_ref().take(SHOWN).collect::<Vec<_>>().join(", "));
            let more = match names.count() {
                0 => String::new(),
                count => format!(" and {count} more"),
            };
            anyhow!("{shown} has no column {name:?} but {first}{more}; name another with {option}")
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
    keep: Vec<(Option<KeptColumn>, String)>,
    limit: ReadLimit,
}

/// A column that goes along, and the type that its values are carried through in; none for those that become text.
struct KeptColumn {
    array: ArrayRef,
    kind: Option<DataType>,
}

impl KeptColumn {
    fn new(array: ArrayRef) -> Self {
        KeptColumn { kind: column_type(array.data_type()), array }
    }

    /// The value of a row, or why it cannot be carried through.
    fn value(&self, row: usize, limit: ReadLimit) -> Result<FieldValue, String> {
        let value = match &self.kind {
            Some(kind) => FieldValue::of_row(&self.array, row, kind).map_err(|error| said(&error))?,
            None => json(&self.array, row)?.into(),
        };
        let (bytes, most) = (value.bytes() as u64, limit.nested_bytes());
        if self.array.data_type().is_nested() && bytes > most {
            return Err(format!(
                "it has {bytes} bytes, but {most} are all that --max-memory leaves for a list"
            ));
        }
        Ok(value)
    }
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
            limit: columns.limit,
            keep: (columns.keep.iter())
                .map(|kept| match kept {
                    Kept::Column(column) => (Some(KeptColumn::new(array(column))), column.name.clone()),
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
        let id = match self.id.as_ref().map(|ids| json(ids, row)).transpose()? {
            None | Some(Value::Null) => None,
            // Integers among which one is missing are floats to some writers.
            Some(Value::Number(id)) if id.is_f64() => Some(match id.as_f64() {
                Some(float) if float.fract() == 0.0 && float.abs() < EXACT => (float as i64).into(),
                _ => id.to_string().into(),
            }),
            Some(id @ (Value::String(_) | Value::Number(_))) => Some(id),
            Some(other) => Some(other.to_string().into()),
        };
        let kept = self.keep.iter().map(|(column, name)| {
            let Some(column) = column else {
                return Ok(own_field(name, &place, &text).unwrap_or_default());
            };
            column.value(row, self.limit).map_err(|why| {
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
