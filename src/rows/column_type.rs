//! The types of the `id` column and of the columns copied from the input.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use arrow_schema::{DataType, Field, TimeUnit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field::{FieldValue, complete, map_leaf_types, type_noun};
use super::format::OutputFormat;

/// A column copied from the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptColumn {
    /// Its name in the output.
    pub name: String,
    /// Its type.
    #[serde(rename = "kind")]
    pub column_type: ColumnType,
    /// The metadata of the Arrow field, such as its extension type.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

impl KeptColumn {
    /// A column of this name and type.
    pub fn new(name: impl Into<String>, column_type: ColumnType) -> Self {
        KeptColumn { name: name.into(), column_type, metadata: BTreeMap::new() }
    }

    /// The column of an Arrow field.
    pub(crate) fn of_arrow(field: &Field) -> Self {
        let metadata = field.metadata().iter().map(|(key, value)| (key.clone(), value.clone()));
        let column_type = ColumnType::of_arrow(field.data_type());
        KeptColumn { metadata: metadata.collect(), ..KeptColumn::new(field.name(), column_type) }
    }

    /// The column of this name in files of which one has this column and another one `other`: the parts of
    /// its type that are text, as those without values, are as in `other`.
    pub fn completed(&self, other: &KeptColumn) -> KeptColumn {
        let (data_type, of_other) = (self.column_type.data_type(), other.column_type.data_type());
        match complete(&data_type, &of_other) {
            completed if completed == data_type => self.clone(),
            completed if completed == of_other => other.clone(),
            completed => KeptColumn { column_type: ColumnType::Arrow(completed), ..self.clone() },
        }
    }

    /// The Arrow field of the column.
    pub(crate) fn field(&self) -> Field {
        Field::new(&self.name, self.column_type.data_type(), true).with_metadata(self.metadata.clone())
    }
}

/// The type of a nullable column. The manifest of an interrupted run holds it as JSON.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ColumnType {
    /// Booleans.
    Boolean,
    /// 64-bit integers.
    Integer,
    /// 64-bit floats.
    Float,
    /// Strings; other JSON values are written as JSON text.
    Text,
    /// The Arrow type of a column of a Parquet or Arrow input.
    Arrow(DataType),
}

impl ColumnType {
    /// The type of a column with this Arrow type: one of JSON values, if it is the Arrow type of one.
    pub(crate) fn of_arrow(data_type: &DataType) -> ColumnType {
        match data_type {
            DataType::Boolean => ColumnType::Boolean,
            DataType::Int64 => ColumnType::Integer,
            DataType::Float64 => ColumnType::Float,
            DataType::Utf8 => ColumnType::Text,
            other => ColumnType::Arrow(other.clone()),
        }
    }

    /// The type of a column with these fields: their Arrow type if they all have the same one; otherwise the
    /// narrowest JSON type, or the first Arrow type in place of text if it holds them all.
    pub fn infer_from_fields<'a>(fields: impl Iterator<Item = &'a FieldValue> + Clone) -> ColumnType {
        let types = fields.clone().map(|field| match field {
            FieldValue::Arrow(array) => Some(array.data_type()),
            FieldValue::Json(_) => None,
        });
        let first = types.clone().try_fold(None, |first, other| {
            let other = other?;
            Some(Some(first.map_or_else(|| other.clone(), |first| complete(&first, other))))
        });
        let first = first.flatten();
        let is_same = |first: &DataType| {
            types.zip(fields.clone()).all(|(other, field)| other == Some(first) || field.is_null())
        };
        match first.clone().filter(is_same) {
            Some(data_type) => ColumnType::Arrow(data_type),
            None => {
                // NaN and infinity are null in JSON, but only floats hold them.
                let value = |field: &'a FieldValue| match field.not_finite() {
                    Some(_) => Cow::Owned(Value::from(0.5)),
                    None => field.json(),
                };
                let values: Vec<_> = fields.clone().map(value).collect();
                let inferred = ColumnType::infer(values.iter().map(AsRef::as_ref));
                let first = first.filter(|_| inferred == ColumnType::Text).map(ColumnType::Arrow);
                first.filter(|first| fields.clone().all(|field| first.accepts(field))).unwrap_or(inferred)
            }
        }
    }

    /// The narrowest type that holds all of these values; `Text` if all are null.
    pub fn infer<'a>(values: impl Iterator<Item = &'a Value>) -> ColumnType {
        let mut types = vec![ColumnType::Boolean, ColumnType::Integer, ColumnType::Float];
        let mut all_null = true;
        for value in values {
            all_null &= value.is_null();
            types.retain(|column_type| column_type.accepts_json(value));
        }
        if all_null { ColumnType::Text } else { types.into_iter().next().unwrap_or(ColumnType::Text) }
    }

    /// Whether a column of this type holds a JSON value without loss. Every type holds null.
    pub fn accepts_json(&self, value: &Value) -> bool {
        value.is_null()
            || match self {
                ColumnType::Boolean => value.is_boolean(),
                ColumnType::Integer => value.is_i64(),
                ColumnType::Float => exact_f64(value).is_some(),
                ColumnType::Text => true,
                ColumnType::Arrow(_) => self.accepts(&value.clone().into()),
            }
    }

    /// Whether a column of this type holds the value of a field without loss. Every type holds null.
    pub fn accepts(&self, value: &FieldValue) -> bool {
        match (self, value) {
            (ColumnType::Arrow(data_type), _) => value.array(data_type).is_some(),
            (_, FieldValue::Json(value)) => self.accepts_json(value),
            (_, FieldValue::Arrow(_)) => self.accepts_json(&value.json()),
        }
    }

    /// The type of the column in a format. Parquet has neither dates in milliseconds nor timestamps in
    /// seconds: it stores days and milliseconds.
    pub fn for_format(self, format: OutputFormat) -> ColumnType {
        match self {
            ColumnType::Arrow(data_type) if format == OutputFormat::Parquet => {
                let in_parquet = map_leaf_types(&data_type, &|leaf| {
                    Some(match leaf {
                        DataType::Date64 => DataType::Date32,
                        DataType::Timestamp(TimeUnit::Second, zone) => {
                            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
                        }
                        other => other.clone(),
                    })
                });
                ColumnType::Arrow(in_parquet.unwrap_or(data_type))
            }
            other => other,
        }
    }

    /// The Arrow type of the column.
    pub(crate) fn data_type(&self) -> DataType {
        match self {
            ColumnType::Boolean => DataType::Boolean,
            ColumnType::Integer => DataType::Int64,
            ColumnType::Float => DataType::Float64,
            ColumnType::Text => DataType::Utf8,
            ColumnType::Arrow(data_type) => data_type.clone(),
        }
    }
}

/// The values of the column, as a plural noun for messages.
impl fmt::Display for ColumnType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&type_noun(&self.data_type()))
    }
}

/// The value as an `f64` if that is exact: above 2⁵³ not every integer is an `f64`.
pub(crate) fn exact_f64(value: &Value) -> Option<f64> {
    let number = value.as_f64()?;
    let integer = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    integer.is_none_or(|integer| number as i128 == integer).then_some(number)
}

/// The first 60 characters of a value, for messages.
pub(crate) fn abbreviated(value: &Value) -> String {
    value.to_string().chars().take(60).collect()
}

/// The value as text: a string as it is, null as `None`, any other value as JSON.
pub(crate) fn to_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(Cow::Borrowed(text)),
        other => Some(Cow::Owned(other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use arrow_schema::{DataType, TimeUnit};
    use serde_json::{Value, json};

    use super::{ColumnType, exact_f64, to_text};
    use crate::rows::OutputFormat;

    #[test]
    fn integers_that_are_no_f64_are_refused() {
        let found = [json!(1), json!(1i64 << 53), json!((1i64 << 53) + 1), json!(u64::MAX), json!(0.5)];
        let exact = found.map(|value| exact_f64(&value));
        assert_eq!(exact, [Some(1.0), Some((1i64 << 53) as f64), None, None, Some(0.5)]);
    }

    #[test]
    fn strings_are_text_and_other_values_json() {
        assert_eq!(to_text(&Value::Null), None);
        assert_eq!(to_text(&json!("a\"b")).as_deref(), Some("a\"b"));
        assert_eq!(to_text(&json!([1, "x"])).as_deref(), Some("[1,\"x\"]"));
    }

    #[test]
    fn parquet_has_no_seconds_and_no_date64() {
        let seconds = ColumnType::Arrow(DataType::Timestamp(TimeUnit::Second, None));
        let in_parquet = seconds.clone().for_format(OutputFormat::Parquet);
        assert_eq!(in_parquet, ColumnType::Arrow(DataType::Timestamp(TimeUnit::Millisecond, None)));
        assert_eq!(seconds.clone().for_format(OutputFormat::Arrow), seconds);
        let date = ColumnType::Arrow(DataType::Date64).for_format(OutputFormat::Parquet);
        assert_eq!(date, ColumnType::Arrow(DataType::Date32));
    }

    #[test]
    fn the_manifest_names_types_in_lowercase() {
        assert_eq!(serde_json::to_value(ColumnType::Integer).unwrap(), json!("integer"));
    }
}
