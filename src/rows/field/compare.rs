//! Values beside literals that a user writes, and members of structs.

use std::cmp::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::Decimal256Type;
use arrow_cast::parse::parse_decimal;
use arrow_schema::{DECIMAL256_MAX_PRECISION, DataType};

use super::{FieldValue, convert, format, type_noun, uuid_text};

/// Characters of a UUID in its canonical form.
const UUID_CHARS: usize = 36;

impl FieldValue {
    /// The member of a struct, object or map; null where an object or map has none of this name. `None` if
    /// the value is none of these, or the structs of the column have no such member.
    pub fn member(&self, name: &str) -> Option<FieldValue> {
        if let FieldValue::Arrow(array) = self
            && let Some(array) = array.as_struct_opt()
        {
            return array.column_by_name(name).cloned().map(FieldValue::Arrow);
        }
        let json = self.json();
        json.as_object().map(|object| object.get(name).cloned().unwrap_or_default().into())
    }

    /// How a decimal, date, time or timestamp compares with a literal, or 16 bytes with a UUID in its
    /// canonical form; `None` if the value or the literal is another. A literal without an offset is in UTC.
    ///
    /// # Errors
    /// What the column holds and what to write instead, if the literal is nothing of that kind.
    pub fn order(&self, literal: &str) -> Option<Result<Ordering, String>> {
        let FieldValue::Arrow(array) = self else { return None };
        let data_type = array.data_type();
        if *data_type == DataType::FixedSizeBinary(16) {
            let is_uuid = literal.len() == UUID_CHARS && literal.contains('-');
            let text = uuid_text(array, 0).filter(|_| is_uuid)?;
            return Some(Ok(text.cmp(&literal.to_lowercase())));
        }
        let (order, remedy) = match data_type {
            _ if data_type.is_decimal() => {
                (decimal_order(&format(array, 0).ok()?, literal), "write a number, such as 12.50")
            }
            DataType::Duration(_) | DataType::Interval(_) => (None, "compare another column"),
            _ => {
                let found = convert::nanoseconds(array)?;
                let order = convert::parse_nanoseconds(literal, data_type).map(|literal| found.cmp(&literal));
                let remedy =
                    "write a date as 2025-01-31, a time as 12:30:00 or both as 2025-01-31T12:30:00+01:00";
                (order, remedy)
            }
        };
        Some(order.ok_or_else(|| {
            format!("{}, which cannot be compared with {literal:?}; {remedy}", type_noun(data_type))
        }))
    }
}

/// The order of two numbers in decimal digits: exact, unless the literal has an exponent or either has too
/// many digits; then that of the nearest f64.
fn decimal_order(found: &str, literal: &str) -> Option<Ordering> {
    let digits = |text: &str| text.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let scale =
        i8::try_from(digits(found).max(digits(literal))).ok().filter(|_| !literal.contains(['e', 'E']));
    let exact = |text| parse_decimal::<Decimal256Type>(text, DECIMAL256_MAX_PRECISION, scale?).ok();
    match (exact(found), exact(literal)) {
        (Some(found), Some(literal)) => Some(found.cmp(&literal)),
        _ => found.parse::<f64>().ok()?.partial_cmp(&literal.parse::<f64>().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Ordering;

    use super::decimal_order;

    #[test]
    fn decimals_are_compared_exactly() {
        let long = "12345678901234567890123456789012345.67";
        for (found, literal, order) in [
            ("9.50", "10", Some(Ordering::Less)),
            ("-9.50", "-10", Some(Ordering::Greater)),
            ("1.01", "1.005", Some(Ordering::Greater)),
            ("0.10", ".1", Some(Ordering::Equal)),
            ("0.01", "1e-2", Some(Ordering::Equal)),
            (long, "12345678901234567890123456789012345.671", Some(Ordering::Less)),
            (long, "1e300", Some(Ordering::Less)),
            (long, &"9".repeat(100), Some(Ordering::Less)),
            ("1.00", "one", None),
            ("1.00", "", None),
            ("1.00", "nan", None),
        ] {
            assert_eq!(decimal_order(found, literal), order, "{found} and {literal}");
        }
    }
}
