//! What a column that is carried through from the input holds.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A column that is carried through from the input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its name there and here.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
}

/// What a column holds; any may hold nulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl Kind {
    /// The narrowest kind that fits all of these values; `Text` if all are null.
    pub fn of<'a>(values: impl Iterator<Item = &'a Value>) -> Kind {
        let mut kinds = vec![Kind::Boolean, Kind::Integer, Kind::Float];
        let mut null = true;
        for value in values {
            null &= value.is_null();
            kinds.retain(|kind| kind.fits(value));
        }
        if null { Kind::Text } else { kinds.first().copied().unwrap_or(Kind::Text) }
    }

    /// Whether a column of this kind can hold a value as it is.
    pub fn fits(self, value: &Value) -> bool {
        value.is_null()
            || match self {
                Kind::Boolean => value.is_boolean(),
                Kind::Integer => value.is_i64(),
                Kind::Float => float(value).is_some(),
                Kind::Text => true,
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
