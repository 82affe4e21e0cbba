//! Records from the rows of Arrow record batches, for Parquet and Arrow IPC.

use std::collections::BTreeMap;
use std::str::{self, Utf8Error};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch, new_null_array};
use arrow_buffer::NullBuffer;
use arrow_schema::{DataType, Field, Fields as ColumnFields, Schema};
use serde_json::Value;

use super::error::{missing_column, one_line, several_columns};
use super::limit::{MAX_TEXT_BYTES, MAX_TEXT_MIB, ReadLimit};
use super::record::{
    Entry, FieldOptions, Fields, KeptField, KeptName, Location, MAX_EXACT_INTEGER, Position, Record,
    TextFields, built_in_field,
};
use crate::rows::field::{
    FieldValue, carried_type, dictionary_key, infinity, is_uuid, to_json, type_noun, uuid_text,
};

/// The key of the number of a column in the metadata of Parquet.
const FIELD_ID: &str = "PARQUET:field_id";
/// How the keys of an extension type begin.
const EXTENSION: &str = "ARROW:extension:";

/// The columns of a schema that are read.
pub(super) struct Columns {
    /// The indices of the columns in the schema, ascending, without duplicates.
    pub projection: Vec<usize>,
    text: TextFields,
    /// The columns of the text.
    text_columns: Vec<Column>,
    pair: Option<Column>,
    null_texts: bool,
    options: FieldOptions,
    id: Option<Column>,
    keep: Vec<KeptField<Column>>,
    limit: ReadLimit,
}

/// A column that is read, or a field of the structs in one.
#[derive(Clone)]
struct Column {
    /// The index of the column in [`Columns::projection`].
    index: usize,
    /// The indices of the fields that lead through its structs.
    path: Vec<usize>,
    name: String,
    is_uuid: bool,
    metadata: FieldMetadata,
}

/// The metadata of an Arrow field.
pub(super) type FieldMetadata = BTreeMap<String, String>;

/// What a field that is carried through keeps of its metadata: not its number in the schema, and the
/// extension type only of a column that keeps its type.
fn carried_metadata(field: &Field) -> FieldMetadata {
    let keeps_type = carried_type(field.data_type()).as_ref() == Some(field.data_type());
    let is_kept = |key: &str| key != FIELD_ID && (keeps_type || !key.starts_with(EXTENSION));
    let metadata = field.metadata().iter().filter(|(key, _)| is_kept(key));
    metadata.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// A field that was found in a schema: its path, from the index of its column on, and its type.
type Found<'a> = (Vec<usize>, &'a Field);

impl Columns {
    /// Finds the fields in the schema of the input `input`.
    pub(super) fn new(input: &str, schema: &Schema, fields: &Fields, limit: ReadLimit) -> Result<Self> {
        let find = |name: &str| find(schema.fields(), name);
        let require = |name: &str, option: &str| {
            let columns = schema.fields().iter().map(|field| field.name().as_str());
            let named = columns.clone().filter(|column| *column == name).count();
            if named > 1 {
                return Err(several_columns(input, "schema", named, name, option));
            }
            find(name).ok_or_else(|| missing_column(input, name, columns, option))
        };
        let require_text = |name: &str, option: &str| {
            let (path, field) = require(name, option)?;
            if is_text(field) {
                return Ok((path, field));
            }
            let found = if is_uuid(field) { "UUIDs".into() } else { type_noun(field.data_type()) };
            let another = match field.data_type() {
                DataType::Struct(fields) => match fields.iter().find(|field| is_text(field)) {
                    Some(field) => format!("one of its fields, such as {name}.{},", field.name()),
                    None => "another".into(),
                },
                _ => "another".into(),
            };
            Err(anyhow!(
                "{input}: column {name:?} holds {found}, expected text; choose {another} with {option}"
            ))
        };
        let text = fields.text.names.iter().map(|name| require_text(name, "--text-field"));
        let text: Vec<Found> = text.collect::<Result<_>>()?;
        let pair = fields.pair.as_ref().map(|name| require_text(name, fields.options.pair)).transpose()?;
        let id = match fields.id_option() {
            Some(option) => Some(require(fields.id_name(), option)?),
            None => find(fields.id_name()).map(|_| require(fields.id_name(), "--id-field")).transpose()?,
        };
        let keep = fields.keep.iter().map(|KeptName { field, .. }| match find(field) {
            None if Fields::is_built_in(field) => Ok(KeptField::BuiltIn(field.clone())),
            _ => Ok(KeptField::Column((require(field, "--keep")?, field))),
        });
        let keep = keep.collect::<Result<Vec<_>>>()?;

        let kept_columns = keep.iter().filter_map(|kept| match kept {
            KeptField::Column((found, _)) => Some(found),
            KeptField::BuiltIn(_) => None,
        });
        let found = text.iter().chain(&pair).chain(&id).chain(kept_columns);
        let mut projection: Vec<usize> = found.map(|(path, _)| path[0]).collect();
        projection.sort_unstable();
        projection.dedup();
        let column = |(path, field): Found, name: &String| Column {
            index: projection.partition_point(|other| *other < path[0]),
            path: path[1..].to_vec(),
            name: name.clone(),
            is_uuid: is_uuid(field),
            metadata: carried_metadata(field),
        };
        let keep = keep.into_iter().map(|kept| match kept {
            KeptField::Column((found, name)) => KeptField::Column(column(found, name)),
            KeptField::BuiltIn(name) => KeptField::BuiltIn(name),
        });
        let keep = keep.collect();
        let text_columns = text.into_iter().zip(&fields.text.names);
        let text_columns = text_columns.map(|(found, name)| column(found, name)).collect();
        let pair = pair.zip(fields.pair.as_ref()).map(|(found, name)| column(found, name));
        let id = id.map(|found| column(found, &fields.id_name().to_owned()));
        let Fields { text, null_texts, options, .. } = fields.clone();
        Ok(Columns { text, text_columns, pair, null_texts, options, id, keep, projection, limit })
    }

    /// The metadata of each carried-through field.
    pub(super) fn kept_metadata(&self) -> Vec<FieldMetadata> {
        let metadata = |kept: &KeptField<Column>| match kept {
            KeptField::Column(column) => column.metadata.clone(),
            KeptField::BuiltIn(_) => FieldMetadata::new(),
        };
        self.keep.iter().map(metadata).collect()
    }
}

/// The first column of this name, or else the nested field: see [`Fields`].
fn find<'a>(fields: &'a ColumnFields, name: &str) -> Option<Found<'a>> {
    if let Some((index, field)) = fields.find(name) {
        return Some((vec![index], field));
    }
    name.rmatch_indices('.').find_map(|(dot, _)| {
        let (index, outer) = fields.find(&name[..dot])?;
        let DataType::Struct(fields) = outer.data_type() else { return None };
        let (mut path, field) = find(fields, &name[dot + 1..])?;
        path.insert(0, index);
        Some((path, field))
    })
}

/// Whether a column has strings, or bytes that may be strings.
fn is_text(field: &Field) -> bool {
    has_strings(field.data_type()) && !is_uuid(field)
}

/// Whether arrays of a type have strings, or bytes that may be strings.
fn has_strings(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => true,
        DataType::FixedSizeBinary(_) => true,
        DataType::Dictionary(_, values) => has_strings(values),
        _ => false,
    }
}

/// A column of a record batch, or a field of the structs in one.
struct ColumnArray {
    array: ArrayRef,
    /// The rows whose structs are not null.
    parents: Option<NullBuffer>,
}

impl ColumnArray {
    /// The array of a column.
    fn new(batch: &RecordBatch, column: &Column) -> Result<Self, String> {
        let (mut array, mut parents) = (batch.column(column.index).clone(), None);
        for child in &column.path {
            let structs = array.as_struct_opt();
            let (field, nulls) = structs
                .and_then(|structs| Some((structs.columns().get(*child)?.clone(), structs.nulls())))
                .ok_or_else(|| {
                    format!("column {:?} does not have the structs that its schema declares", column.name)
                })?;
            parents = NullBuffer::union(parents.as_ref(), nulls);
            array = field;
        }
        Ok(ColumnArray { array, parents })
    }
}

/// Whether a row has a null struct.
fn has_null_parent(parents: &Option<NullBuffer>, row: usize) -> bool {
    parents.as_ref().is_some_and(|parents| parents.is_null(row))
}

/// The rows of a record batch, read one by one.
pub(super) struct Rows {
    next: usize,
    rows: usize,
    text: TextFields,
    /// The columns of the text.
    text_columns: Vec<TextColumn>,
    pair: Option<TextColumn>,
    null_texts: bool,
    options: FieldOptions,
    id: Option<IdColumn>,
    /// The carried-through fields and their names.
    keep: Vec<(KeptField<KeptColumn>, String)>,
    limit: ReadLimit,
}

impl Rows {
    /// The rows of a batch whose columns are those of [`Columns::projection`].
    pub(super) fn new(batch: &RecordBatch, columns: &Columns) -> Result<Self, String> {
        let text_columns = columns.text_columns.iter().map(|column| TextColumn::new(batch, column));
        let keep = columns.keep.iter().map(|kept| match kept {
            KeptField::Column(column) => {
                Ok((KeptField::Column(KeptColumn::new(batch, column)?), column.name.clone()))
            }
            KeptField::BuiltIn(name) => Ok((KeptField::BuiltIn(name.clone()), name.clone())),
        });
        Ok(Rows {
            next: 0,
            rows: batch.num_rows(),
            text: columns.text.clone(),
            text_columns: text_columns.collect::<Result<_, String>>()?,
            pair: columns.pair.as_ref().map(|pair| TextColumn::new(batch, pair)).transpose()?,
            null_texts: columns.null_texts,
            options: columns.options,
            id: columns.id.as_ref().map(|id| IdColumn::new(batch, id)).transpose()?,
            limit: columns.limit,
            keep: keep.collect::<Result<_, String>>()?,
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
        let text = self.text.join(|i| self.text_columns[i].get(row))?;
        let pair = self.pair.as_ref().map(|pair| pair.get(row)).transpose()?;
        let is_null = text.is_none() || pair == Some(None);
        if is_null && !self.null_texts {
            return Err(match (&text, &self.pair) {
                (None, _) if self.text.is_several() => self.options.no_text(&self.text),
                (Some(_), Some(pair)) => self.options.null_text(&pair.name),
                _ => self.options.null_text(&self.text_columns[0].name),
            });
        }
        let (text, pair) = (text.unwrap_or_default(), pair.map(Option::unwrap_or_default));
        let id = self.id.as_ref().map(|ids| ids.get(row, self.limit)).transpose()?.flatten();
        let kept = self.keep.iter().map(|(kept, name)| match kept {
            KeptField::BuiltIn(name) => Ok(built_in_field(name, &location, &text).unwrap_or_default()),
            KeptField::Column(column) => column
                .value(row, self.limit)
                .map_err(|reason| format!("cannot be used: field {name:?} {reason}; leave it out of --keep")),
        });
        let kept = kept.collect::<Result<_, _>>()?;
        Ok(Record { location, id, text, pair, is_null, kept })
    }
}

/// The column of the ids.
struct IdColumn {
    values: KeptColumn,
    name: String,
    is_uuid: bool,
}

impl IdColumn {
    fn new(batch: &RecordBatch, column: &Column) -> Result<Self, String> {
        let values = KeptColumn::new(batch, column)?;
        Ok(IdColumn { values, name: column.name.clone(), is_uuid: column.is_uuid })
    }

    /// The id of a row: an integer or a string, which is the JSON text of a list or struct; `None` for null.
    fn get(&self, row: usize, limit: ReadLimit) -> Result<Option<Value>, String> {
        let KeptColumn { array, parents, .. } = &self.values;
        if has_null_parent(parents, row) {
            return Ok(None);
        }
        if self.is_uuid {
            return Ok(uuid_text(array, row).map(Value::from));
        }
        let json = if array.data_type().is_nested() {
            self.values.value(row, limit).map(|value| value.json().into_owned())
        } else {
            to_json(array, row).map_err(|reason| format!("cannot be converted ({reason})"))
        };
        let json = json.map_err(|reason| {
            format!("cannot be used: field {:?} {reason}; choose another with --id-field", self.name)
        })?;
        Ok(match json {
            // A float that is NaN is how pandas writes null.
            Value::Null => infinity(array, row).map(Value::from),
            // Some writers, among them pandas, write a column of integers and nulls as floats.
            Value::Number(id) if id.is_f64() => Some(match id.as_f64() {
                Some(float) if float.fract() == 0.0 && float.abs() < MAX_EXACT_INTEGER => {
                    (float as i64).into()
                }
                _ => id.to_string().into(),
            }),
            id @ (Value::String(_) | Value::Number(_)) => Some(id),
            other => Some(other.to_string().into()),
        })
    }
}

/// A carried-through column.
struct KeptColumn {
    array: ArrayRef,
    /// The rows whose structs are not null.
    parents: Option<NullBuffer>,
    /// The type that the values are carried through in; `None` if they are carried through as JSON.
    carried_type: Option<DataType>,
}

impl KeptColumn {
    fn new(batch: &RecordBatch, column: &Column) -> Result<Self, String> {
        let ColumnArray { array, parents } = ColumnArray::new(batch, column)?;
        Ok(KeptColumn { carried_type: carried_type(array.data_type()), array, parents })
    }

    /// The value of a row.
    ///
    /// # Errors
    /// If it cannot be converted, or is nested and takes more memory than `limit` allows; as a predicate.
    fn value(&self, row: usize, limit: ReadLimit) -> Result<FieldValue, String> {
        let value = match &self.carried_type {
            Some(data_type) if has_null_parent(&self.parents, row) => {
                return Ok(FieldValue::Arrow(new_null_array(data_type, 1)));
            }
            None if has_null_parent(&self.parents, row) => return Ok(FieldValue::default()),
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
    array: ArrayRef,
    /// The rows whose structs are not null.
    parents: Option<NullBuffer>,
    name: String,
}

impl TextColumn {
    fn new(batch: &RecordBatch, column: &Column) -> Result<Self, String> {
        let ColumnArray { array, parents } = ColumnArray::new(batch, column)?;
        if !has_strings(array.data_type()) {
            return Err(format!(
                "column {:?} does not have the strings that its schema declares",
                column.name
            ));
        }
        Ok(TextColumn { array, parents, name: column.name.clone() })
    }

    /// The text of a row, `None` for null, or why it cannot be used.
    fn get(&self, row: usize) -> Result<Option<String>, String> {
        if has_null_parent(&self.parents, row) {
            return Ok(None);
        }
        match string(&self.array, row) {
            Ok(Some(text)) if text.len() as u64 > MAX_TEXT_BYTES => Err(format!(
                "cannot be used: field {:?} is longer than {MAX_TEXT_MIB} MiB; split the text",
                self.name
            )),
            Ok(text) => Ok(text.map(str::to_owned)),
            Err(error) => Err(format!(
                "cannot be used: field {:?} is not valid UTF-8 (byte {} of the value); write it as UTF-8, or remove the row",
                self.name,
                error.valid_up_to() + 1
            )),
        }
    }
}

/// The string in a row of an array of strings, or of bytes that are strings, in any of Arrow's layouts;
/// `None` if it is null.
fn string(array: &dyn Array, row: usize) -> Result<Option<&str>, Utf8Error> {
    if array.is_null(row) {
        return Ok(None);
    }
    let bytes = match array.data_type() {
        DataType::Utf8 => return Ok(Some(array.as_string::<i32>().value(row))),
        DataType::LargeUtf8 => return Ok(Some(array.as_string::<i64>().value(row))),
        DataType::Utf8View => return Ok(Some(array.as_string_view().value(row))),
        DataType::Binary => array.as_binary::<i32>().value(row),
        DataType::LargeBinary => array.as_binary::<i64>().value(row),
        DataType::BinaryView => array.as_binary_view().value(row),
        DataType::FixedSizeBinary(_) => array.as_fixed_size_binary().value(row),
        _ => {
            let dictionary = array.as_any_dictionary();
            let key = dictionary_key(dictionary.keys(), row);
            return key.map_or(Ok(None), |key| string(dictionary.values(), key));
        }
    };
    str::from_utf8(bytes).map(Some)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int8Type;
    use arrow_array::{
        ArrayRef, BinaryArray, BinaryViewArray, DictionaryArray, FixedSizeBinaryArray, Float64Array,
        Int8Array, LargeBinaryArray, LargeStringArray, StringArray, StringViewArray, StructArray,
    };
    use arrow_schema::Schema;
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_of_every_layout() {
        let texts = [Some("a"), None, Some("b")];
        let bytes = texts.map(|text| text.map(str::as_bytes)).to_vec();
        let keys = Int8Array::from(vec![Some(0), None, Some(1)]);
        let dictionary =
            |values: ArrayRef| Arc::new(DictionaryArray::<Int8Type>::new(keys.clone(), values)) as ArrayRef;
        let fixed = FixedSizeBinaryArray::try_from_sparse_iter_with_size(bytes.iter().copied(), 1).unwrap();
        let arrays: [ArrayRef; 9] = [
            Arc::new(StringArray::from(texts.to_vec())),
            Arc::new(LargeStringArray::from(texts.to_vec())),
            Arc::new(StringViewArray::from(texts.to_vec())),
            Arc::new(BinaryArray::from(bytes.clone())),
            Arc::new(LargeBinaryArray::from(bytes.clone())),
            Arc::new(BinaryViewArray::from(bytes)),
            Arc::new(fixed),
            dictionary(Arc::new(StringArray::from(vec!["a", "b"]))),
            dictionary(Arc::new(BinaryArray::from(vec![&b"a"[..], b"b"]))),
        ];
        for array in arrays {
            assert_eq!([0, 1, 2].map(|row| string(&array, row).unwrap()), texts, "{}", array.data_type());
            assert!(is_text(&Field::new("a", array.data_type().clone(), true)));
        }
        assert!(!has_strings(&DataType::Int8));
        let damaged: ArrayRef = Arc::new(BinaryArray::from(vec![&b"ab\xff"[..]]));
        assert_eq!(string(&damaged, 0).unwrap_err().valid_up_to(), 2);
    }

    #[test]
    fn ids_that_are_floats() {
        let floats = [Some(7.0), Some(0.5), None, Some(1e300), Some(f64::NAN), Some(f64::NEG_INFINITY)];
        let array: ArrayRef = Arc::new(Float64Array::from(floats.to_vec()));
        let values = KeptColumn { carried_type: None, array, parents: None };
        let ids = IdColumn { values, name: "id".into(), is_uuid: false };
        let found = [0, 1, 2, 3, 4, 5].map(|row| ids.get(row, ReadLimit::default()).unwrap());
        assert_eq!(
            found,
            [Some(json!(7)), Some(json!("0.5")), None, Some(json!("1e+300")), None, Some(json!("-inf"))]
        );
    }

    /// A field of a null struct is null, whatever value is stored for it.
    #[test]
    fn fields_of_null_structs_are_null() {
        let inner = Arc::new(Field::new("b.c", DataType::Utf8, true));
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["x", "hidden", "z"]));
        let structs = StructArray::new(vec![inner].into(), vec![texts], Some(vec![true, false, true].into()));
        let a = Field::new("a", structs.data_type().clone(), true);
        let schema = Schema::new(vec![a]);
        let batch = RecordBatch::try_new(Arc::new(schema.clone()), vec![Arc::new(structs)]).unwrap();
        let name = || "a.b.c".to_owned();
        let fields =
            Fields { text: name().into(), id: Some(name()), keep: vec![name().into()], ..Fields::default() };
        let columns = Columns::new("a.arrow", &schema, &fields, ReadLimit::default()).unwrap();
        let rows = Rows::new(&batch.slice(1, 2), &columns).unwrap();
        assert_eq!(rows.text_columns[0].get(0), Ok(None));
        assert_eq!(rows.text_columns[0].get(1), Ok(Some("z".into())));
        let id = |row| rows.id.as_ref().unwrap().get(row, ReadLimit::default()).unwrap();
        assert_eq!([id(0), id(1)], [None, Some(json!("z"))]);
        let KeptField::Column(kept) = &rows.keep[0].0 else { panic!("a column is kept") };
        let kept = [0, 1].map(|row| kept.value(row, ReadLimit::default()).unwrap());
        let expected = [new_null_array(&DataType::Utf8, 1), Arc::new(StringArray::from(vec!["z"]))];
        assert_eq!(kept, expected.map(FieldValue::Arrow));
    }
}
