//! Records from the rows of Arrow record batches, for Parquet and Arrow IPC.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, LargeStringArray, RecordBatch, StringArray, StringViewArray};
use arrow_schema::{DataType, Schema};
use serde_json::Value;

use super::error::{missing_column, one_line};
use super::limit::{MAX_TEXT_BYTES, MAX_TEXT_MIB, ReadLimit};
use super::record::{
    Entry, Fields, KeptField, Location, MAX_EXACT_INTEGER, Position, Record, built_in_field,
};
use crate::field::{FieldValue, carried_type, dictionary_key, to_json};

/// The columns of a schema that are read.
pub(super) struct Columns {
    /// The indices of the columns in the schema, ascending, without duplicates.
    pub projection: Vec<usize>,
    text: Column,
    pair: Option<Column>,
    id: Option<Column>,
    keep: Vec<KeptField<Column>>,
    limit: ReadLimit,
}

/// A column that is read.
#[derive(Clone)]
struct Column {
    /// The index in [`Columns::projection`].
    index: usize,
    name: String,
}

impl Columns {
    /// Finds the fields in the schema of the input `input`.
    ///
    /// # Errors
    /// If a column is missing, or has a data type that the field cannot have.
    pub(super) fn new(input: &str, schema: &Schema, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let require = |name: &str, option: &str| {
            let columns = schema.fields().iter().map(|field| field.name().as_str());
            find(schema, name).ok_or_else(|| missing_column(input, name, columns, option))
        };
        let require_type = |name: &str, option: &str, fits: fn(&DataType) -> bool, expected: &str| {
            let column = require(name, option)?;
            let found = schema.field(column).data_type();
            if !fits(found) {
                let found = one_line(found);
                return Err(anyhow!(
                    "{input}: column {name:?} has type {found}, expected {expected}; choose another with {option}"
                ));
            }
            Ok(column)
        };
        let text = require_type(&fields.text, "--text-field", is_text, "strings")?;
        let pair = fields.pair.as_ref().map(|name| require_type(name, "--pair-field", is_text, "strings"));
        let id = match &fields.id {
            Some(name) => Some(require_type(name, "--id-field", is_id, "strings, numbers or dates")?),
            None => {
                let mut columns = schema.fields().iter();
                columns.position(|field| field.name() == fields.id_name() && is_id(field.data_type()))
            }
        };
        let pair = pair.transpose()?;
        let keep = fields.keep.iter().map(|name| match find(schema, name) {
            None if Fields::is_built_in(name) => Ok(KeptField::BuiltIn(name.clone())),
            _ => require(name, "--keep").map(KeptField::Column),
        });
        let keep = keep.collect::<Result<Vec<_>>>()?;

        let kept_columns = keep.iter().filter_map(|kept| match kept {
            KeptField::Column(column) => Some(*column),
            KeptField::BuiltIn(_) => None,
        });
        let mut projection: Vec<usize> =
            [text].into_iter().chain(pair).chain(id).chain(kept_columns).collect();
        projection.sort_unstable();
        projection.dedup();
        let column = |column: usize| Column {
            index: projection.partition_point(|other| *other < column),
            name: schema.field(column).name().clone(),
        };
        let keep = keep.into_iter().map(|kept| match kept {
            KeptField::Column(index) => KeptField::Column(column(index)),
            KeptField::BuiltIn(name) => KeptField::BuiltIn(name),
        });
        let keep = keep.collect();
        let (text, pair, id) = (column(text), pair.map(column), id.map(column));
        Ok(Columns { text, pair, id, keep, projection, limit })
    }
}

/// The index of the first column with this name.
fn find(schema: &Schema, name: &str) -> Option<usize> {
    schema.fields().iter().position(|field| field.name() == name)
}

/// Whether a column of this type has strings.
fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Whether a column of this type can be the id.
fn is_id(data_type: &DataType) -> bool {
    is_text(data_type) || data_type.is_numeric() || data_type.is_temporal() || *data_type == DataType::Boolean
}

/// The rows of a record batch, read one by one.
pub(super) struct Rows {
    next: usize,
    rows: usize,
    text: TextColumn,
    pair: Option<TextColumn>,
    id: Option<ArrayRef>,
    /// The carried-through fields and their names.
    keep: Vec<(KeptField<KeptColumn>, String)>,
    limit: ReadLimit,
}

impl Rows {
    /// The rows of a batch whose columns are those of [`Columns::projection`].
    ///
    /// # Errors
    /// If the type of a column is not that of the schema. The `parquet` and `arrow` crates do not check this in all
    /// damaged files.
    pub(super) fn new(batch: &RecordBatch, columns: &Columns) -> Result<Self, String> {
        let array = |column: &Column| batch.column(column.index).clone();
        let texts = |column: &Column| match Strings::new(&array(column)) {
            Some(strings) => Ok(TextColumn { strings, name: column.name.clone() }),
            None => {
                Err(format!("column {:?} does not have the strings that its schema declares", column.name))
            }
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
                    KeptField::Column(column) => {
                        (KeptField::Column(KeptColumn::new(array(column))), column.name.clone())
                    }
                    KeptField::BuiltIn(name) => (KeptField::BuiltIn(name.clone()), name.clone()),
                })
                .collect(),
        })
    }

    /// The number of rows read so far.
    pub(super) fn rows_read(&self) -> usize {
        self.next
    }

    /// The number of rows of the batch.
    pub(super) fn len(&self) -> usize {
        self.rows
    }

    /// Reads the next row, which is row number `row` of the input `source`; `None` at the end of the batch.
    pub(super) fn read(&mut self, source: &Arc<str>, row: u64) -> Option<Entry> {
        if self.next == self.rows {
            return None;
        }
        let index = self.next;
        self.next += 1;
        let location = Location { source: source.clone(), position: Position::Row(row) };
        Some(match self.record(index, location.clone()) {
            Ok(record) => Entry::Record(record),
            Err(reason) => Entry::unreadable(location, reason),
        })
    }

    /// The record of a row of the batch, or why it cannot be read.
    fn record(&self, row: usize, location: Location) -> Result<Record, String> {
        let text = self.text.get(row)?;
        let pair = self.pair.as_ref().map(|pair| pair.get(row)).transpose()?;
        let id = self.id.as_ref().map(|ids| id(ids, row)).transpose()?.flatten();
        let kept = self.keep.iter().map(|(kept, name)| match kept {
            KeptField::BuiltIn(name) => Ok(built_in_field(name, &location, &text).unwrap_or_default()),
            KeptField::Column(column) => column
                .value(row, self.limit)
                .map_err(|reason| format!("cannot be used: field {name:?} {reason}; leave it out of --keep")),
        });
        let kept = kept.collect::<Result<_, _>>()?;
        Ok(Record { location, id, text, pair, kept })
    }
}

/// The id of a row: an integer or a string; `None` for null.
fn id(ids: &dyn Array, row: usize) -> Result<Option<Value>, String> {
    Ok(match to_json(ids, row)? {
        Value::Null => None,
        // Some writers, among them pandas, write a column of integers and nulls as floats.
        Value::Number(id) if id.is_f64() => Some(match id.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < MAX_EXACT_INTEGER => (float as i64).into(),
            _ => id.to_string().into(),
        }),
        id @ (Value::String(_) | Value::Number(_)) => Some(id),
        other => Some(other.to_string().into()),
    })
}

/// A carried-through column.
struct KeptColumn {
    array: ArrayRef,
    /// The type that the values are carried through in; `None` if they are carried through as JSON.
    carried_type: Option<DataType>,
}

impl KeptColumn {
    fn new(array: ArrayRef) -> Self {
        KeptColumn { carried_type: carried_type(array.data_type()), array }
    }

    /// The value of a row.
    ///
    /// # Errors
    /// If it cannot be converted, or is nested and takes more memory than `limit` allows; as a predicate.
    fn value(&self, row: usize, limit: ReadLimit) -> Result<FieldValue, String> {
        let value = match &self.carried_type {
            Some(data_type) => {
                FieldValue::from_row(&self.array, row, data_type).map_err(|error| one_line(&error))
            }
            None => to_json(&self.array, row).map(FieldValue::from),
        };
        let value = value.map_err(|reason| format!("cannot be converted ({reason})"))?;
        let (bytes, max_bytes) = (value.bytes() as u64, limit.nested_bytes());
        if self.array.data_type().is_nested() && bytes > max_bytes {
            return Err(format!(
                "takes {bytes} bytes, but --max-memory leaves {max_bytes} for a nested value"
            ));
        }
        Ok(value)
    }
}

/// A column of texts.
struct TextColumn {
    strings: Strings,
    name: String,
}

impl TextColumn {
    /// The text of a row, or why it cannot be used.
    fn get(&self, row: usize) -> Result<String, String> {
        match self.strings.get(row) {
            Some(text) if text.len() as u64 > MAX_TEXT_BYTES => Err(format!(
                "cannot be used: field {:?} is longer than {MAX_TEXT_MIB} MiB; split the text",
                self.name
            )),
            Some(text) => Ok(text.to_owned()),
            None => Err(format!(
                "cannot be used: field {:?} is null, expected a string; write an empty string, or remove the row",
                self.name
            )),
        }
    }
}

/// A string array, in any of Arrow's layouts.
enum Strings {
    Utf8(StringArray),
    LargeUtf8(LargeStringArray),
    Utf8View(StringViewArray),
    Dictionary { keys: ArrayRef, values: Box<Strings> },
}

impl Strings {
    /// The strings of an array; `None` if its type is another.
    fn new(array: &ArrayRef) -> Option<Self> {
        Some(match array.data_type() {
            DataType::Utf8 => Strings::Utf8(array.as_string().clone()),
            DataType::LargeUtf8 => Strings::LargeUtf8(array.as_string().clone()),
            DataType::Utf8View => Strings::Utf8View(array.as_string_view().clone()),
            DataType::Dictionary(..) => {
                let dictionary = array.as_any_dictionary();
                let keys = dictionary.keys().slice(0, dictionary.len());
                Strings::Dictionary { keys, values: Box::new(Strings::new(dictionary.values())?) }
            }
            _ => return None,
        })
    }

    /// The string of a row; `None` if it is null.
    fn get(&self, row: usize) -> Option<&str> {
        match self {
            Strings::Utf8(array) => array.is_valid(row).then(|| array.value(row)),
            Strings::LargeUtf8(array) => array.is_valid(row).then(|| array.value(row)),
            Strings::Utf8View(array) => array.is_valid(row).then(|| array.value(row)),
            Strings::Dictionary { keys, values } => values.get(dictionary_key(keys, row)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int8Type;
    use arrow_array::{ArrayRef, DictionaryArray, Float64Array, Int8Array, StringArray, StringViewArray};
    use serde_json::json;

    use super::{Strings, id};

    #[test]
    fn strings_of_every_layout() {
        let texts = [Some("a"), None, Some("b")];
        let keys = Int8Array::from(vec![Some(0), None, Some(1)]);
        let dictionary = DictionaryArray::<Int8Type>::new(keys, Arc::new(StringArray::from(vec!["a", "b"])));
        let arrays: [ArrayRef; 3] = [
            Arc::new(StringArray::from(texts.to_vec())),
            Arc::new(StringViewArray::from(texts.to_vec())),
            Arc::new(dictionary),
        ];
        for array in arrays {
            let strings = Strings::new(&array).unwrap();
            assert_eq!([0, 1, 2].map(|row| strings.get(row)), texts, "{}", array.data_type());
        }
        assert!(Strings::new(&(Arc::new(Int8Array::from(vec![1])) as ArrayRef)).is_none());
    }

    #[test]
    fn ids_that_are_floats() {
        let ids = Float64Array::from(vec![Some(7.0), Some(0.5), None, Some(1e300)]);
        let found = [0, 1, 2, 3].map(|row| id(&ids, row).unwrap());
        assert_eq!(found, [Some(json!(7)), Some(json!("0.5")), None, Some(json!("1e+300"))]);
    }
}
