//! What a column that is carried through from the input holds.

use std::borrow::Cow;
use std::fmt;

use arrow::datatypes::{DataType, TimeUnit};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Format;
use crate::field::{FieldValue, map_type};

/// A column that is carried through from the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name there and here.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds; any may hold nulls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// True or false.
    Boolean,
    /// Whole numbers of 64 bits.
    Integer,
    /// Numbers of 64 bits.
    Float,
    /// Strings; what is no string stands as JSON text.
    Text,
    /// What a column of a Parquet or Arrow input holds.
    Arrow(DataType),
}

impl Kind {
    /// What these fields have in common: the type of the Arrow columns that they are all from, or the kind of their values.
    pub fn of_fields<'a>(fields: impl Iterator<Item = &'a FieldValue> + Clone) -> Kind {
        let mut types = fields.clone().map(|field| match field {
            FieldValue::Arrow(array) => Some(array.data_type()),
            FieldValue::Json(_) => None,
        });
        let first = types.next().flatten().cloned();
        match first.filter(|first| types.all(|kind| kind == Some(first))) {
            Some(kind) => Kind::Arrow(kind),
            None => {
                let values: Vec<_> = fields.map(FieldValue::json).collect();
                Kind::of(values.iter().map(AsRef::as_ref))
            }
        }
    }

    /// The narrowest kind that fits all of these values; `Text` if all are null.
    pub fn of<'a>(values: impl Iterator<Item = &'a Value>) -> Kind {
        let mut kinds = vec![Kind::Boolean, Kind::Integer, Kind::Float];
        let mut null = true;
        for value in values {
            null &= value.is_null();
            kinds.retain(|kind| kind.fits(value));
        }
        if null { Kind::Text } else { kinds.into_iter().next().unwrap_or(Kind::Text) }
    }

    /// Whether a column of this kind can hold a value as it is.
    pub fn fits(&self, value: &Value) -> bool {
        value.is_null()
            || match self {
                Kind::Boolean => value.is_boolean(),
                Kind::Integer => value.is_i64(),
                Kind::Float => float(value).is_some(),
                Kind::Text => true,
                Kind::Arrow(_) => self.holds(&value.clone().into()),
            }
    }

    /// Whether a column of this kind can hold the value of a field as it is.
    pub fn holds(&self, value: &FieldValue) -> bool {
        match (self, value) {
            (Kind::Arrow(kind), _) => value.array(kind).is_some(),
            (_, FieldValue::Json(value)) => self.fits(value),
            (_, FieldValue::Arrow(_)) => self.fits(&value.json()),
        }
    }

    /// The kind of a column in a format: Parquet has dates as days only, and no timestamps in seconds.
    pub fn in_format(self, format: Format) -> Kind {
        match self {
            Kind::Arrow(kind) if format == Format::Parquet => {
                let in_parquet = map_type(&kind, &|kind| {
                    Some(match kind {
                        DataType::Date64 => DataType::Date32,
                        DataType::Timestamp(TimeUnit::Second, zone) => {
                            DataType::Timestamp(TimeUnit::Millisecond, zone.clone())
                        }
                        other => other.clone(),
                    })
                });
                Kind::Arrow(in_parquet.unwrap_or(kind))
            }
            other => other,
        }
    }

    /// The type of a column of this kind.
    pub(super) fn column_type(&self) -> DataType {
        match self {
            Kind::Boolean => DataType::Boolean,
            Kind::Integer => DataType::Int64,
            Kind::Float => DataType::Float64,
            Kind::Text => DataType::Utf8,
            Kind::Arrow(kind) => kind.clone(),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Boolean => "true or false",
            Kind::Integer => "whole numbers of 64 bits",
            Kind::Float => "numbers",
            Kind::Text => "text",
            Kind::Arrow(kind) => return write!(f, "{kind}"),
        })
    }
}

/// A number as an `f64`, where that is the same number: past 2^53 not every whole number is.
pub(super) fn float(value: &Value) -> Option<f64> {
    let number = value.as_f64()?;
    let whole = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    whole.is_none_or(|whole| number as i128 == whole).then_some(number)
}

/// A value as text; none for null.
pub(super) fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(Cow::Borrowed(text)),
        other => Some(Cow::Owned(other.to_string())),
    }
}
