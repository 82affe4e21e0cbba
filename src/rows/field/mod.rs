//! Values of carried-through columns: the columns that `--keep` copies from the input to the output.
//!
//! Values of Parquet and Arrow inputs keep their Arrow data type, so that a typed output has the same column;
//! values of other inputs are JSON.

mod compare;
pub(crate) mod convert;

use std::borrow::Cow;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date64Type, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    RunEndIndexType, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Float32Array, Float64Array, Int64Array, RunArray,
    StringArray, StructArray, UInt32Array, UInt64Array, new_null_array,
};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_data::ArrayData;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, IntervalUnit, TimeUnit};
use arrow_select::take::take;
use serde_json::{Map, Value};

const MILLISECONDS_PER_DAY: i64 = 86_400_000;

/// The key of the extension type in the metadata of a field.
pub const EXTENSION_NAME: &str = "ARROW:extension:name";
/// The extension type of UUIDs.
pub const UUID: &str = "arrow.uuid";

/// A value of a carried-through column.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// A value of JSON lines; a string for CSV and lines.
    Json(Value),
    /// A value of an Arrow column: an array of length 1, of a type that [`carried_type`] returns.
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

impl From<f64> for FieldValue {
    fn from(value: f64) -> Self {
        FieldValue::Arrow(Arc::new(Float64Array::from(vec![value])))
    }
}

impl From<f32> for FieldValue {
    fn from(value: f32) -> Self {
        FieldValue::Arrow(Arc::new(Float32Array::from(vec![value])))
    }
}

impl FieldValue {
    /// The value in row `row` of a column, converted to `data_type`, the [`carried_type`] of the column.
    pub fn from_row(column: &ArrayRef, row: usize, data_type: &DataType) -> Result<Self, ArrowError> {
        let row = u32::try_from(row).map_err(|error| ArrowError::InvalidArgumentError(error.to_string()))?;
        // A slice would keep the buffers of the whole column in memory; `take` copies the value.
        let value = take(column, &UInt32Array::from(vec![row]), None)?;
        let value = convert::exact(&value, data_type).ok_or_else(|| {
            let [from, to] = [value.data_type(), data_type].map(type_noun);
            ArrowError::CastError(format!("{from} are not exact as {to}"))
        })?;
        Ok(FieldValue::Arrow(value))
    }

    /// The value, if it is a 64-bit float that JSON does not have: NaN or infinity.
    pub fn not_finite(&self) -> Option<f64> {
        match self {
            FieldValue::Arrow(array) if array.is_valid(0) => {
                let float = array.as_primitive_opt::<Float64Type>()?.value(0);
                (!float.is_finite()).then_some(float)
            }
            _ => None,
        }
    }

    /// Whether the value is null.
    pub fn is_null(&self) -> bool {
        match self {
            FieldValue::Json(value) => value.is_null(),
            FieldValue::Arrow(array) => array.is_null(0),
        }
    }

    /// The value as JSON, see [`to_json`]; null if Arrow cannot format it.
    pub fn json(&self) -> Cow<'_, Value> {
        match self {
            FieldValue::Json(value) => Cow::Borrowed(value),
            FieldValue::Arrow(array) => Cow::Owned(to_json(array, 0).unwrap_or_default()),
        }
    }

    /// The value in another Arrow type, if it has one and the other holds it exactly; otherwise as it is.
    pub fn retyped(&self, data_type: &DataType) -> FieldValue {
        match self {
            FieldValue::Arrow(array) => {
                convert::exact(array, data_type).map_or_else(|| self.clone(), FieldValue::Arrow)
            }
            FieldValue::Json(_) => self.clone(),
        }
    }

    /// The value as an array of length 1 of the given type; `None` if the type cannot hold it exactly.
    /// Numbers and booleans are also held by strings, and strings that [`to_json`] gives for dates and
    /// timestamps by those.
    pub fn array(&self, data_type: &DataType) -> Option<ArrayRef> {
        if self.is_null() {
            return Some(new_null_array(data_type, 1));
        }
        if let FieldValue::Arrow(array) = self
            && let Some(converted) = convert::exact(array, data_type)
        {
            return Some(converted);
        }
        let json = self.json();
        let array: ArrayRef = match &*json {
            Value::Bool(value) => Arc::new(BooleanArray::from(vec![*value])),
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(value), _) => Arc::new(Int64Array::from(vec![value])),
                (None, Some(value)) => Arc::new(UInt64Array::from(vec![value])),
                (None, None) => Arc::new(Float64Array::from(vec![number.as_f64()?])),
            },
            Value::String(text) if data_type.is_temporal() => {
                let instant = convert::parse_instant(text, data_type)?;
                return (to_json(&instant, 0).as_ref() == Ok(&*json)).then_some(instant);
            }
            Value::String(text) => Arc::new(StringArray::from(vec![text.as_str()])),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        let array = match data_type {
            DataType::Utf8 | DataType::LargeUtf8 if !json.is_string() => {
                Arc::new(StringArray::from(vec![json.to_string()]))
            }
            _ => array,
        };
        convert::exact(&array, data_type)
    }

    /// The approximate size of the value in memory, in bytes. It depends on the value alone.
    pub fn bytes(&self) -> usize {
        match self {
            FieldValue::Json(value) => json_bytes(value),
            FieldValue::Arrow(array) => size_of::<ArrayData>() + buffer_bytes(&array.to_data()),
        }
    }
}

/// The approximate size of a JSON value in memory, in bytes.
pub fn json_bytes(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::String(text) => text.len(),
            Value::Array(list) => list.iter().map(json_bytes).sum(),
            Value::Object(map) => map.iter().map(|(key, value)| key.len() + json_bytes(value)).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// The size of the buffers of an array and its children, in bytes, without validity bitmaps.
fn buffer_bytes(data: &ArrayData) -> usize {
    let own: usize = data.buffers().iter().map(|buffer| buffer.len()).sum();
    own + data.child_data().iter().map(buffer_bytes).sum::<usize>()
}

/// The data type in which the values of a column are carried through: that of the column, with dictionaries
/// and views replaced by the type of their values, and nulls by strings. `None` if Parquet or Arrow output
/// does not support the type: its values are carried through as JSON.
pub fn carried_type(data_type: &DataType) -> Option<DataType> {
    map_leaf_types(data_type, &|leaf| match leaf {
        DataType::Dictionary(_, values) => carried_type(values),
        DataType::Utf8View | DataType::Null => Some(DataType::Utf8),
        DataType::BinaryView => Some(DataType::Binary),
        DataType::Struct(_)
        | DataType::Union(..)
        | DataType::RunEndEncoded(..)
        | DataType::ListView(_)
        | DataType::LargeListView(_)
        | DataType::Interval(IntervalUnit::MonthDayNano) => None,
        other => Some(other.clone()),
    })
}

/// A data type with each leaf replaced by `map` of it; `None` if `map` returns `None` for one. A leaf is a
/// type that is not a list, a map or a struct with fields.
pub fn map_leaf_types(data_type: &DataType, map: &dyn Fn(&DataType) -> Option<DataType>) -> Option<DataType> {
    let child = |field: &FieldRef| -> Option<FieldRef> {
        let mapped = map_leaf_types(field.data_type(), map)?;
        let is_same = mapped == *field.data_type();
        Some(if is_same { field.clone() } else { Arc::new(field.as_ref().clone().with_data_type(mapped)) })
    };
    Some(match data_type {
        DataType::List(item) => DataType::List(child(item)?),
        DataType::LargeList(item) => DataType::LargeList(child(item)?),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(child(item)?, *size),
        DataType::Map(entries, is_sorted) => DataType::Map(child(entries)?, *is_sorted),
        DataType::Struct(fields) if !fields.is_empty() => {
            DataType::Struct(fields.iter().map(child).collect::<Option<Vec<_>>>()?.into())
        }
        leaf => map(leaf)?,
    })
}

/// A data type whose parts that are strings have the type that they have in `other`: strings are the type of
/// a part without values.
pub(crate) fn complete(data_type: &DataType, other: &DataType) -> DataType {
    let child = |field: &FieldRef, other: &FieldRef| -> FieldRef {
        let data_type = complete(field.data_type(), other.data_type());
        Arc::new(field.as_ref().clone().with_data_type(data_type))
    };
    match (data_type, other) {
        (DataType::Utf8, other) if !other.is_string() => other.clone(),
        (DataType::Map(entries, is_sorted), DataType::Map(other, _)) => {
            DataType::Map(child(entries, other), *is_sorted)
        }
        (DataType::Struct(fields), DataType::Struct(others)) => {
            let member = |field: &FieldRef| {
                others.find(field.name()).map_or_else(|| field.clone(), |(_, other)| child(field, other))
            };
            DataType::Struct(fields.iter().map(member).collect())
        }
        _ => match (data_type, convert::list_item(other)) {
            (DataType::List(item), Some((other, _))) => DataType::List(child(item, other)),
            (DataType::LargeList(item), Some((other, _))) => DataType::LargeList(child(item, other)),
            (DataType::FixedSizeList(item, size), Some((other, _))) => {
                DataType::FixedSizeList(child(item, other), *size)
            }
            _ => data_type.clone(),
        },
    }
}

/// The values of a data type, as a plural noun for messages.
pub fn type_noun(data_type: &DataType) -> String {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "seconds",
        TimeUnit::Millisecond => "milliseconds",
        TimeUnit::Microsecond => "microseconds",
        TimeUnit::Nanosecond => "nanoseconds",
    };
    let bits = 8 * data_type.primitive_width().unwrap_or_default();
    match data_type {
        DataType::Null => "null".into(),
        DataType::Boolean => "booleans".into(),
        _ if data_type.is_signed_integer() => format!("{bits}-bit integers"),
        _ if data_type.is_integer() => format!("unsigned {bits}-bit integers"),
        _ if data_type.is_floating() => format!("{bits}-bit floats"),
        _ if data_type.is_string() => "text".into(),
        DataType::FixedSizeBinary(size) => format!("values of {size} bytes"),
        _ if data_type.is_binary() => "bytes".into(),
        DataType::Date32 | DataType::Date64 => "dates".into(),
        DataType::Time32(of) | DataType::Time64(of) => format!("times of day in {}", unit(of)),
        DataType::Timestamp(of, None) => format!("timestamps in {}", unit(of)),
        DataType::Timestamp(of, Some(zone)) => format!("timestamps in {} ({zone:?})", unit(of)),
        DataType::Duration(of) => format!("durations in {}", unit(of)),
        DataType::Decimal32(digits, scale)
        | DataType::Decimal64(digits, scale)
        | DataType::Decimal128(digits, scale)
        | DataType::Decimal256(digits, scale) => format!("decimal({digits}, {scale})"),
        DataType::Dictionary(_, values) => type_noun(values),
        DataType::RunEndEncoded(_, values) => type_noun(values.data_type()),
        DataType::ListView(item) | DataType::LargeListView(item) => {
            format!("lists of {}", type_noun(item.data_type()))
        }
        DataType::Struct(fields) => {
            let fields =
                fields.iter().map(|field| format!("{:?}: {}", field.name(), type_noun(field.data_type())));
            format!("structs of {}", fields.collect::<Vec<_>>().join(", "))
        }
        DataType::Map(entries, _) => format!("maps as {}", type_noun(entries.data_type())),
        _ => match convert::list_item(data_type) {
            Some((item, None)) => format!("lists of {}", type_noun(item.data_type())),
            Some((item, Some(size))) => format!("lists of {size} {}", type_noun(item.data_type())),
            None => data_type.to_string(),
        },
    }
}

/// The value in row `row` of an array as JSON:
///
/// - lists are arrays; structs and maps with string keys are objects; other maps are arrays of pairs;
/// - dates and times are ISO 8601 strings, instants in UTC;
/// - numbers that JSON does not have (NaN, infinity) are null;
/// - values of other types are the strings that Arrow formats them as.
pub fn to_json(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::Null);
    }
    Ok(match array.data_type() {
        DataType::Null => Value::Null,
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::LargeUtf8 => array.as_string::<i64>().value(row).into(),
        DataType::Utf8View => array.as_string_view().value(row).into(),
        DataType::Dictionary(..) => {
            let dictionary = array.as_any_dictionary();
            let key = dictionary_key(dictionary.keys(), row).ok_or("a dictionary key is out of range")?;
            return to_json(dictionary.values(), key);
        }
        DataType::RunEndEncoded(..) => {
            let run = run_value::<Int16Type>(array, row).or_else(|| run_value::<Int32Type>(array, row));
            let (values, run) =
                run.or_else(|| run_value::<Int64Type>(array, row)).ok_or("a run has no value")?;
            return to_json(values, run);
        }
        DataType::List(_) => list_to_json(&array.as_list::<i32>().value(row))?,
        DataType::LargeList(_) => list_to_json(&array.as_list::<i64>().value(row))?,
        DataType::FixedSizeList(..) => list_to_json(&array.as_fixed_size_list().value(row))?,
        DataType::ListView(_) => list_to_json(&array.as_list_view::<i32>().value(row))?,
        DataType::LargeListView(_) => list_to_json(&array.as_list_view::<i64>().value(row))?,
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let values = columns.map(|(field, column)| Ok((field.name().clone(), to_json(column, row)?)));
            Value::Object(values.collect::<Result<Map<_, _>, String>>()?)
        }
        DataType::Map(..) => map_to_json(&array.as_map().value(row))?,
        // Only the date: Arrow formats the time, too.
        DataType::Date64 => {
            let milliseconds = array.as_primitive::<Date64Type>().value(row);
            let days = i32::try_from(milliseconds.div_euclid(MILLISECONDS_PER_DAY));
            return to_json(&Date32Array::from(vec![days.map_err(|error| error.to_string())?]), 0);
        }
        // Arrow formats an instant in its own time zone, and "+00:00" is the only one that needs no time zone
        // database.
        DataType::Timestamp(unit, Some(zone)) if **zone != *"+00:00" => {
            let in_utc = DataType::Timestamp(*unit, Some("+00:00".into()));
            let instant =
                convert::exact(&array.slice(row, 1), &in_utc).ok_or("an instant has no UTC time")?;
            return to_json(&instant, 0);
        }
        data_type => match number_to_json(array, row, data_type) {
            Some(number) => number,
            None => format(array, row).map_err(|error| error.to_string())?.into(),
        },
    })
}

/// The number in row `row`; `None` if the type of the array is not a JSON number.
fn number_to_json(array: &dyn Array, row: usize, data_type: &DataType) -> Option<Value> {
    Some(match data_type {
        DataType::Int8 => array.as_primitive::<Int8Type>().value(row).into(),
        DataType::Int16 => array.as_primitive::<Int16Type>().value(row).into(),
        DataType::Int32 => array.as_primitive::<Int32Type>().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::UInt8 => array.as_primitive::<UInt8Type>().value(row).into(),
        DataType::UInt16 => array.as_primitive::<UInt16Type>().value(row).into(),
        DataType::UInt32 => array.as_primitive::<UInt32Type>().value(row).into(),
        DataType::UInt64 => array.as_primitive::<UInt64Type>().value(row).into(),
        DataType::Float16 => shortest_float(array.as_primitive::<Float16Type>().value(row)),
        DataType::Float32 => shortest_float(array.as_primitive::<Float32Type>().value(row)),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(row).into(),
        _ => return None,
    })
}

/// The values of a run-end encoded array, and the index of that of row `row`; `None` if its run ends are of
/// another type.
fn run_value<R: RunEndIndexType>(array: &dyn Array, row: usize) -> Option<(&ArrayRef, usize)> {
    let runs = array.as_any().downcast_ref::<RunArray<R>>()?;
    Some((runs.values(), runs.get_physical_index(row)))
}

/// All elements of an array.
fn list_to_json(values: &dyn Array) -> Result<Value, String> {
    (0..values.len()).map(|i| to_json(values, i)).collect()
}

/// The entries of a map: an object if the keys are strings, and an array of pairs otherwise.
fn map_to_json(entries: &StructArray) -> Result<Value, String> {
    let (keys, values) = (entries.column(0), entries.column(1));
    let pairs = (0..entries.len()).map(|i| Ok((to_json(keys, i)?, to_json(values, i)?)));
    let pairs = pairs.collect::<Result<Vec<_>, String>>()?;
    Ok(if keys.data_type().is_string() {
        let entry = |(key, value): (Value, _)| (key.as_str().unwrap_or_default().to_owned(), value);
        Value::Object(pairs.into_iter().map(entry).collect())
    } else {
        pairs.into_iter().map(|(key, value)| vec![key, value]).collect()
    })
}

/// The key in row `row` of the keys of a dictionary array; `None` if it is null or negative.
pub fn dictionary_key(keys: &dyn Array, row: usize) -> Option<usize> {
    to_json(keys, row).ok()?.as_u64()?.try_into().ok()
}

/// Whether the values of a field are UUIDs.
pub fn is_uuid(field: &Field) -> bool {
    let name = field.metadata().get(EXTENSION_NAME);
    *field.data_type() == DataType::FixedSizeBinary(16) && name.is_some_and(|name| name == UUID)
}

/// The UUID in row `row` of an array in its canonical form: 8-4-4-4-12 hexadecimal digits. `None` if it is
/// null.
pub fn uuid_text(array: &dyn Array, row: usize) -> Option<String> {
    let bytes = array.as_fixed_size_binary_opt().filter(|array| array.is_valid(row))?.value(row);
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| digits.get(range).unwrap_or_default());
    Some(parts.join("-"))
}

/// The infinite float in row `row` as text; `None` if the value is another.
pub fn infinity(array: &dyn Array, row: usize) -> Option<String> {
    let is_valid_float = array.data_type().is_floating() && array.is_valid(row);
    is_valid_float.then(|| format(array, row).ok())?.filter(|text| text.ends_with("inf"))
}

/// A float of 16 or 32 bits as the shortest number that parses to the same float: 0.1, not 0.10000000149.
fn shortest_float(float: impl ToString) -> Value {
    float.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// The value in row `row` as Arrow formats it.
fn format(array: &dyn Array, row: usize) -> Result<String, ArrowError> {
    ArrayFormatter::try_new(array, &FormatOptions::default())?.value(row).try_to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Date64Array, Float32Array, Int8Array, StringArray, TimestampMillisecondArray};
    use arrow_schema::Field;
    use serde_json::json;

    use super::*;

    #[test]
    fn types_that_outputs_do_not_have_are_replaced() {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8View));
        assert_eq!(carried_type(&dictionary), Some(DataType::Utf8));
        let list = |item| DataType::List(Arc::new(Field::new("item", item, true)));
        assert_eq!(carried_type(&list(dictionary)), Some(list(DataType::Utf8)));
        assert_eq!(carried_type(&list(DataType::Null)), Some(list(DataType::Utf8)));
        assert_eq!(carried_type(&DataType::Date64), Some(DataType::Date64));
    }

    #[test]
    fn values_as_json() {
        let floats = Float32Array::from(vec![0.1, f32::NAN]);
        assert_eq!(to_json(&floats, 0), Ok(json!(0.1)));
        assert_eq!(to_json(&floats, 1), Ok(Value::Null));
        assert_eq!(to_json(&Date64Array::from(vec![86_400_000]), 0), Ok(json!("1970-01-02")));
        let instants = TimestampMillisecondArray::from(vec![0]).with_timezone("Europe/Berlin");
        assert_eq!(to_json(&instants, 0), Ok(json!("1970-01-01T00:00:00Z")));
        assert_eq!(dictionary_key(&Int8Array::from(vec![-1]), 0), None);
        let values = Int8Array::from(vec![Some(7), None, Some(9)]);
        let runs = RunArray::<Int16Type>::try_new(&vec![2, 3, 4].into(), &values).unwrap();
        let found = [0, 1, 2, 3].map(|row| to_json(&runs, row));
        assert_eq!(found, [json!(7), json!(7), Value::Null, json!(9)].map(Ok));
        assert_eq!(to_json(&runs.slice(2, 2), 1), Ok(json!(9)));
    }

    #[test]
    fn only_conversions_without_loss_are_made() {
        let value = FieldValue::Json(json!(300));
        assert!(value.array(&DataType::Int16).is_some());
        assert!(value.array(&DataType::Int8).is_none());
        assert!(FieldValue::Json(json!([1])).array(&DataType::Utf8).is_none());
        let null = FieldValue::default().array(&DataType::Utf8).unwrap();
        assert!(null.is_null(0) && null.len() == 1);
    }

    #[test]
    fn strings_hold_scalars_and_temporal_types_what_is_printed_for_them() {
        let text = |value: Value| {
            FieldValue::Json(value).array(&DataType::LargeUtf8).map(|array| to_json(&array, 0))
        };
        assert_eq!(text(json!(5)), Some(Ok(json!("5"))));
        assert_eq!(text(json!(true)), Some(Ok(json!("true"))));
        let number = FieldValue::Arrow(Arc::new(Int8Array::from(vec![7])));
        assert_eq!(to_json(&number.array(&DataType::Utf8).unwrap(), 0), Ok(json!("7")));
        assert!(FieldValue::Json(json!("7")).array(&DataType::Int8).is_none());

        let local = DataType::Timestamp(TimeUnit::Microsecond, None);
        let zoned = DataType::Timestamp(TimeUnit::Second, Some("Europe/Berlin".into()));
        for (text, data_type) in [
            ("2026-11-21", &DataType::Date32),
            ("2026-11-21", &DataType::Date64),
            ("2026-11-21T06:02:17.250001", &local),
            ("2026-11-21T06:02:17Z", &zoned),
        ] {
            let array = FieldValue::Json(json!(text)).array(data_type).expect(text);
            assert_eq!(array.data_type(), data_type);
            assert_eq!(to_json(&array, 0), Ok(json!(text)));
        }
        for (text, data_type) in [
            ("2026-11-21T06:00:00", &DataType::Date32),
            ("2026-11-21T06:02:17.2500015", &local),
            ("2026-11-21T06:02:17", &zoned),
            ("2026-11-21T07:02:17+01:00", &zoned),
            ("yesterday", &local),
            ("06:02:17", &DataType::Time32(TimeUnit::Second)),
        ] {
            assert!(FieldValue::Json(json!(text)).array(data_type).is_none(), "{text}");
        }
    }

    #[test]
    fn a_value_does_not_hold_its_column() {
        let column: ArrayRef = Arc::new(StringArray::from(vec!["a".repeat(1000), "b".into()]));
        let value = FieldValue::from_row(&column, 1, &DataType::Utf8).unwrap();
        assert_eq!(*value.json(), json!("b"));
        assert!(value.bytes() < 1000);
    }
}
