//! Values of the fields that are carried through from the input, between the reader that has them and the writer that takes
//! them: of JSON, or of an Arrow column with its type.

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, StringArray, UInt32Array,
    UInt64Array, new_null_array,
};
use arrow::compute::{CastOptions, cast, cast_with_options, take};
use arrow::datatypes::{
    DataType, FieldRef, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    IntervalUnit, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::{Map, Value};

/// A value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// A value of JSON; text of inputs whose values have no type.
    Json(Value),
    /// A value of an Arrow column: an array of one element, of a type that [`column_type`] gives.
    Arrow(ArrayRef),
}

impl Default for FieldValue {
    fn default() -> Self {
        FieldValue::Json(Value::Null)
    }
}

impl From<Value> for FieldValue {
    fn from(value: Value) -> Self {
        FieldValue::Json(value)
    }
}

impl FieldValue {
    /// The value of a row of a column, which [`column_type`] gives the type of.
    ///
    /// # Errors
    /// If it cannot be read as that type.
    pub fn of_row(column: &ArrayRef, row: usize, kind: &DataType) -> Result<Self, ArrowError> {
        let row = u32::try_from(row).map_err(|error| ArrowError::InvalidArgumentError(error.to_string()))?;
        // Not a slice, which would keep all of the column in memory.
        let one = take(column, &UInt32Array::from(vec![row]), None)?;
        Ok(FieldValue::Arrow(if one.data_type() == kind { one } else { convert(&one, kind)? }))
    }

    /// Whether there is none.
    pub fn is_null(&self) -> bool {
        match self {
            FieldValue::Json(value) => value.is_null(),
            FieldValue::Arrow(array) => array.is_null(0),
        }
    }

    /// The value as JSON; null where Arrow cannot format it.
    pub fn json(&self) -> Cow<'_, Value> {
        match self {
            FieldValue::Json(value) => Cow::Borrowed(value),
            FieldValue::Arrow(array) => Cow::Owned(json(array, 0).unwrap_or_default()),
        }
    }

    /// The value as an array of one element of a type, where it is the same value in that type.
    pub fn array(&self, kind: &DataType) -> Option<ArrayRef> {
        if self.is_null() {
            return Some(new_null_array(kind, 1));
        }
        let array: ArrayRef = match self {
            FieldValue::Arrow(array) => array.clone(),
            FieldValue::Json(Value::Bool(value)) => Arc::new(BooleanArray::from(vec![*value])),
            FieldValue::Json(Value::String(value)) => Arc::new(StringArray::from(vec![value.as_str()])),
            FieldValue::Json(Value::Number(number)) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Arc::new(Int64Array::from(vec![value])),
                (None, Some(value)) => Arc::new(UInt64Array::from(vec![value])),
                (None, None) => Arc::new(Float64Array::from(vec![number.as_f64()?])),
            },
            FieldValue::Json(_) => return None,
        };
        if array.data_type() == kind {
            return Some(array);
        }
        let converted = convert(&array, kind).ok()?;
        let back = convert(&converted, array.data_type()).ok()?;
        (back == array).then_some(converted)
    }

    /// Bytes of memory that it takes, roughly. They follow from the value alone.
    pub fn bytes(&self) -> usize {
        match self {
            FieldValue::Json(value) => json_bytes(value),
            FieldValue::Arrow(array) => size_of::<ArrayData>() + array_bytes(&array.to_data()),
        }
    }
}

/// Bytes of memory that a value of JSON takes, roughly.
pub fn json_bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(json_bytes).sum(),
            Value::Object(map) => map.iter().map(|(key, value)| key.len() + json_bytes(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Bytes of the buffers of an array, but for those that say what is null.
fn array_bytes(data: &ArrayData) -> usize {
    let own: usize = data.buffers().iter().map(|buffer| buffer.len()).sum();
    own + data.child_data().iter().map(array_bytes).sum::<usize>()
}

fn convert(array: &dyn Array, kind: &DataType) -> Result<ArrayRef, ArrowError> {
    cast_with_options(array, kind, &CastOptions { safe: false, ..CastOptions::default() })
}

/// The type that values of a column are carried through in: its own, but for dictionaries and views, whose values are
/// written as they are. None for types that not every format of columns has; those are carried through as text.
pub fn column_type(kind: &DataType) -> Option<DataType> {
    map_type(kind, &|kind| match kind {
        DataType::Dictionary(_, values) => column_type(values),
        DataType::Utf8View => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        DataType::Null
        | DataType::Struct(_)
        | DataType::Union(..)
        | DataType::RunEndEncoded(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Interval(IntervalUnit::MonthDayNano) => None,
        other => Some(other.clone()),
    })
}

/// A type in which those that are not lists, structs or maps are what `leaf` makes of them.
pub fn map_type(kind: &DataType, leaf: &dyn Fn(&DataType) -> Option<DataType>) -> Option<DataType> {
    let item = |field: &FieldRef| -> Option<FieldRef> {
        let kind = map_type(field.data_type(), leaf)?;
        let same = kind == *field.data_type();
        Some(if same { field.clone() } else { Arc::new(field.as_ref().clone().with_data_type(kind)) })
    };
    Some(match kind {
        DataType::List(field) => DataType::List(item(field)?),
        DataType::LargeList(field) => DataType::LargeList(item(field)?),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(item(field)?, *size),
        DataType::Map(field, sorted) => DataType::Map(item(field)?, *sorted),
        DataType::Struct(fields) if !fields.is_empty() => {
            DataType::Struct(fields.iter().map(item).collect::<Option<Vec<_>>>()?.into())
        }
        other => leaf(other)?,
    })
}

/// A value of an array as JSON: lists as lists, structs and maps with names for keys as objects, dates and times as ISO 8601
/// says, instants in UTC; a number that JSON does not have as null, and anything else as the text that Arrow makes of it.
///
/// # Errors
/// Why it cannot be written.
pub fn json(array: &dyn Array, row: usize) -> Result<Value, String> {
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
            return json(dictionary.values(), key);
        }
        DataType::List(_) => list(&array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => list(&array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(..) => list(&array.as_fixed_size_list().value(row))?,
        DataType::ListView(_) => list(&array.as_list_view::<i32>().value(row))?,
        DataType::LargeListView(_) => list(&array.as_list_view::<i64>().value(row))?,
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let values = columns.map(|(field, column)| Ok((field.name().clone(), json(column, row)?)));
            Value::Object(values.collect::<Result<Map<_, _>, String>>()?)
        }
        DataType::Map(..) => {
            let entries = array.as_map().value(row);
            let [keys, values] = [0, 1].map(|i| list(entries.column(i)));
            let (Value::Array(keys), Value::Array(values)) = (keys?, values?) else { return Ok(Value::Null) };
            match entries.column(0).data_type().is_string() {
                true => {
                    let keys = keys.into_iter().map(|key| key.as_str().unwrap_or_default().to_owned());
                    Value::Object(keys.zip(values).collect())
                }
                false => keys.into_iter().zip(values).map(|(key, value)| vec![key, value]).collect(),
            }
        }
        DataType::Date64 => {
            let day = cast(&array.slice(row, 1), &DataType::Date32).map_err(|error| error.to_string())?;
            return json(&day, 0);
        }
        // The one zone that takes no list of zones. An instant is the same in every zone.
        DataType::Timestamp(unit, Some(zone)) if **zone != *"+00:00" => {
            let utc = DataType::Timestamp(*unit, Some("+00:00".into()));
            let one = cast(&array.slice(row, 1), &utc).map_err(|error| error.to_string())?;
            return json(&one, 0);
        }
        _ => text(array, row).map_err(|error| error.to_string())?.into(),
    })
}

fn list(values: &dyn Array) -> Result<Value, String> {
    (0..values.len()).map(|i| json(values, i)).collect()
}

/// The row of a dictionary that a row of its keys stands for.
pub fn key(keys: &dyn Array, row: usize) -> Option<usize> {
    json(keys, row).ok()?.as_u64()?.try_into().ok()
}

/// A float of few bits as the shortest number that reads back as the same float: 0.1 and not 0.10000000149.
fn short(float: impl ToString) -> Value {
    float.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

fn text(array: &dyn Array, row: usize) -> Result<String, ArrowError> {
    ArrayFormatter::try_new(array, &FormatOptions::default())?.value(row).try_to_string()
}
