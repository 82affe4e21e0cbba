//! Conversions between Arrow types that keep every value. `arrow_cast::cast` also rounds, parses and formats,
//! between any two types.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::timezone::Tz;
use arrow_array::types::{
    ArrowPrimitiveType, Float16Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type,
    UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrayRef, BooleanArray, Float32Array, Int64Array, StructArray, TimestampNanosecondArray,
    UInt32Array, make_array, new_null_array,
};
use arrow_cast::cast;
use arrow_cast::parse::{string_to_datetime, string_to_time_nanoseconds, string_to_timestamp_nanos};
use arrow_schema::{DataType, FieldRef, Fields, TimeUnit};
use arrow_select::nullif::nullif;
use arrow_select::take::take;

/// An array with the values of `array` in another type: numbers as other numbers, instants and durations in
/// another unit, strings and bytes with other offsets, values of a dictionary without it, and lists, maps and
/// structs of all these; null as any type. `None` if the type cannot hold one of them exactly, or is another
/// kind of type.
pub(crate) fn exact(array: &ArrayRef, data_type: &DataType) -> Option<ArrayRef> {
    let from = array.data_type();
    if from == data_type {
        return Some(array.clone());
    }
    if array.logical_null_count() == array.len() {
        return Some(new_null_array(data_type, array.len()));
    }
    if let DataType::Dictionary(..) = from {
        let dictionary = array.as_any_dictionary();
        return exact(&take(dictionary.values(), dictionary.keys(), None).ok()?, data_type);
    }
    let has_bytes = || from.is_binary() || matches!(from, DataType::FixedSizeBinary(_));
    let converted = match data_type {
        _ if from.is_nested() => nested(array, data_type)?,
        _ if from.is_decimal() || data_type.is_decimal() => decimals(array, data_type)?,
        DataType::Utf8 | DataType::LargeUtf8 if from.is_string() => cast(array, data_type).ok()?,
        DataType::Binary | DataType::LargeBinary if has_bytes() => cast(array, data_type).ok()?,
        _ if data_type.is_temporal() => temporal(array, data_type)?,
        _ => numbers(array, data_type)?,
    };
    (converted.logical_null_count() == array.logical_null_count()).then_some(converted)
}

/// A list, map or struct with converted children.
fn nested(array: &ArrayRef, data_type: &DataType) -> Option<ArrayRef> {
    if let (Some(array), DataType::Struct(fields)) = (array.as_struct_opt(), data_type) {
        return structs(array, fields);
    }
    let (layout, child) = match (array.data_type(), data_type) {
        (DataType::Map(..), DataType::Map(child, _)) => (array.data_type().clone(), child),
        (from, _) => {
            let ((from, _), (child, size)) = (list_item(from)?, list_item(data_type)?);
            let layout = match (data_type, size) {
                (_, Some(size)) => DataType::FixedSizeList(from.clone(), size),
                (DataType::LargeList(_), _) => DataType::LargeList(from.clone()),
                _ => DataType::List(from.clone()),
            };
            (layout, child)
        }
    };
    // Without the elements of other rows, which a slice still has.
    let rows = UInt32Array::from_iter_values(0..u32::try_from(array.len()).ok()?);
    let data = cast(&take(array, &rows, None).ok()?, &layout).ok()?.to_data();
    let children = exact(&make_array(data.child_data().first()?.clone()), child.data_type())?;
    let data = data.into_builder().data_type(data_type.clone()).child_data(vec![children.to_data()]);
    data.build().ok().map(make_array)
}

/// The items of a list of any layout, and its size if that is fixed.
pub(super) fn list_item(data_type: &DataType) -> Option<(&FieldRef, Option<i32>)> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) => Some((item, None)),
        DataType::FixedSizeList(item, size) => Some((item, Some(*size))),
        _ => None,
    }
}

/// Structs with the members of another type, in its order. A member that only one of both types has is null.
fn structs(array: &StructArray, fields: &Fields) -> Option<ArrayRef> {
    let mut members = array.fields().iter().zip(array.columns());
    if !members.all(|(field, member)| {
        fields.find(field.name()).is_some() || member.logical_null_count() == member.len()
    }) {
        return None;
    }
    let members = fields.iter().map(|field| match array.column_by_name(field.name()) {
        Some(member) => exact(member, field.data_type()),
        None => Some(new_null_array(field.data_type(), array.len())),
    });
    let members = members.collect::<Option<_>>()?;
    Some(Arc::new(StructArray::try_new(fields.clone(), members, array.nulls().cloned()).ok()?))
}

/// Decimals with another number of digits, whole numbers as decimals, and back. Casts round, which the cast
/// back shows.
fn decimals(array: &ArrayRef, data_type: &DataType) -> Option<ArrayRef> {
    let is_exact = |data_type: &DataType| data_type.is_decimal() || data_type.is_integer();
    if !is_exact(array.data_type()) || !is_exact(data_type) {
        return None;
    }
    let converted = cast(array, data_type).ok()?;
    (&cast(&converted, array.data_type()).ok()? == array).then_some(converted)
}

/// Dates, times, instants or durations in another unit, and local times at midnight as dates; null where the
/// unit does not divide the value.
fn temporal(array: &ArrayRef, data_type: &DataType) -> Option<ArrayRef> {
    let (from, to) = (tick(array.data_type())?, tick(data_type)?);
    if from.0 != to.0 && (from.0, &to.0) != (Counts::LocalTimes, &Counts::Dates) {
        return None;
    }
    let ticks = read_ticks(array)?.into_iter().map(|ticks| match ticks? {
        Number::Integer(ticks) if ticks * from.1 % to.1 == 0 => i64::try_from(ticks * from.1 / to.1).ok(),
        _ => None,
    });
    let ticks: ArrayRef = Arc::new(ticks.collect::<Int64Array>());
    retyped(&numbers(&ticks, &physical(data_type))?, data_type.clone())
}

/// The integers of which values of a temporal type are made.
fn physical(data_type: &DataType) -> DataType {
    match data_type.primitive_width() {
        Some(4) => DataType::Int32,
        _ => DataType::Int64,
    }
}

/// An array with the same buffers in another type.
fn retyped(array: &dyn Array, data_type: DataType) -> Option<ArrayRef> {
    array.to_data().into_builder().data_type(data_type).build().ok().map(make_array)
}

/// What values of a temporal type count, each in its unit.
fn read_ticks(array: &dyn Array) -> Option<Vec<Option<Number>>> {
    read_numbers(&retyped(array, physical(array.data_type()))?)
}

/// The date, time or timestamp of an array of length 1 in nanoseconds; `None` if it is another value.
pub(super) fn nanoseconds(array: &ArrayRef) -> Option<i128> {
    let (_, unit) = tick(array.data_type())?;
    match read_ticks(array)?.first()?.as_ref()? {
        Number::Integer(ticks) => Some(ticks * unit),
        Number::Float(_) => None,
    }
}

/// A text in nanoseconds, as [`nanoseconds`] of values of a type; `None` if Arrow does not parse it.
pub(super) fn parse_nanoseconds(text: &str, data_type: &DataType) -> Option<i128> {
    match tick(data_type)?.0 {
        Counts::Durations => None,
        Counts::TimesOfDay => Some(string_to_time_nanoseconds(text).ok()?.into()),
        Counts::Dates | Counts::LocalTimes | Counts::Instants => {
            // As nanoseconds in 64 bits, instants would end in 2262.
            let instant = string_to_datetime(&"+00:00".parse::<Tz>().ok()?, text).ok()?;
            Some(
                i128::from(instant.timestamp()) * 1_000_000_000
                    + i128::from(instant.timestamp_subsec_nanos()),
            )
        }
    }
}

/// A date or timestamp that Arrow parses, as an array of length 1; `None` if it is none, or the type holds
/// others.
pub(crate) fn parse_instant(text: &str, data_type: &DataType) -> Option<ArrayRef> {
    let zone = match tick(data_type)?.0 {
        Counts::Dates | Counts::LocalTimes => None,
        Counts::Instants => Some("+00:00"),
        Counts::TimesOfDay | Counts::Durations => return None,
    };
    let instant = TimestampNanosecondArray::from(vec![string_to_timestamp_nanos(text).ok()?]);
    let instant: ArrayRef = Arc::new(instant.with_timezone_opt(zone));
    exact(&instant, data_type)
}

/// What a value of a temporal type counts.
#[derive(PartialEq)]
enum Counts {
    Dates,
    TimesOfDay,
    LocalTimes,
    Instants,
    Durations,
}

/// What values of a type count, and in which unit, in nanoseconds.
fn tick(data_type: &DataType) -> Option<(Counts, i128)> {
    let nanoseconds = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 1_000_000_000,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    Some(match data_type {
        DataType::Date32 => (Counts::Dates, 86_400_000_000_000),
        DataType::Date64 => (Counts::Dates, 1_000_000),
        DataType::Time32(unit) | DataType::Time64(unit) => (Counts::TimesOfDay, nanoseconds(unit)),
        DataType::Timestamp(unit, None) => (Counts::LocalTimes, nanoseconds(unit)),
        DataType::Timestamp(unit, Some(_)) => (Counts::Instants, nanoseconds(unit)),
        DataType::Duration(unit) => (Counts::Durations, nanoseconds(unit)),
        _ => return None,
    })
}

/// Numbers as another type of numbers; null where it cannot hold one exactly. `None` if either type has no
/// numbers.
pub(crate) fn numbers(array: &ArrayRef, data_type: &DataType) -> Option<ArrayRef> {
    if array.data_type() == data_type {
        return Some(array.clone());
    }
    if !is_numeric(array.data_type()) || !is_numeric(data_type) {
        return None;
    }
    let converted = cast(array, data_type).ok()?;
    let pairs = read_numbers(array)?.into_iter().zip(read_numbers(&converted)?);
    let is_other = pairs.map(|(from, to)| Some(from.zip(to).is_none_or(|(from, to)| !from.equals(to))));
    nullif(&converted, &is_other.collect::<BooleanArray>()).ok()
}

/// Whether a type is one of the integers and floats.
fn is_numeric(data_type: &DataType) -> bool {
    data_type.is_integer() || data_type.is_floating()
}

/// The nearest f32 of the numbers of an array; `None` if they are no numbers.
pub(crate) fn rounded_to_f32(array: &dyn Array) -> Option<Float32Array> {
    let rounded = is_numeric(array.data_type()).then(|| cast(array, &DataType::Float32))?.ok()?;
    Some(rounded.as_primitive().clone())
}

/// A number of any type.
#[derive(Clone, Copy)]
enum Number {
    Integer(i128),
    Float(f64),
}

impl Number {
    /// Whether both are the same number, or both NaN.
    fn equals(self, other: Number) -> bool {
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => a == b,
            (Number::Float(a), Number::Float(b)) => a == b || a.is_nan() && b.is_nan(),
            // The cast saturates, far outside of every type of integers.
            (Number::Integer(integer), Number::Float(float))
            | (Number::Float(float), Number::Integer(integer)) => {
                float.fract() == 0.0 && float as i128 == integer
            }
        }
    }
}

/// The numbers of an array; `None` if they are no numbers.
fn read_numbers(array: &dyn Array) -> Option<Vec<Option<Number>>> {
    fn read<T: ArrowPrimitiveType>(
        array: &dyn Array,
        number: fn(T::Native) -> Number,
    ) -> Vec<Option<Number>> {
        array.as_primitive::<T>().iter().map(|value| value.map(number)).collect()
    }
    Some(match array.data_type() {
        DataType::Int8 => read::<Int8Type>(array, |value| Number::Integer(value.into())),
        DataType::Int16 => read::<Int16Type>(array, |value| Number::Integer(value.into())),
        DataType::Int32 => read::<Int32Type>(array, |value| Number::Integer(value.into())),
        DataType::Int64 => read::<Int64Type>(array, |value| Number::Integer(value.into())),
        DataType::UInt8 => read::<UInt8Type>(array, |value| Number::Integer(value.into())),
        DataType::UInt16 => read::<UInt16Type>(array, |value| Number::Integer(value.into())),
        DataType::UInt32 => read::<UInt32Type>(array, |value| Number::Integer(value.into())),
        DataType::UInt64 => read::<UInt64Type>(array, |value| Number::Integer(value.into())),
        DataType::Float16 => read::<Float16Type>(array, |value| Number::Float(value.into())),
        DataType::Float32 => read::<Float32Type>(array, |value| Number::Float(value.into())),
        DataType::Float64 => read::<Float64Type>(array, Number::Float),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{
        Decimal128Array, DictionaryArray, FixedSizeListArray, Float64Array, ListArray, StringArray,
        StringViewArray, StructArray, TimestampMillisecondArray, UInt64Array,
    };
    use arrow_cast::{CastOptions, cast_with_options};
    use arrow_schema::Field;

    use super::*;

    fn checked_cast(array: &ArrayRef, data_type: &DataType) -> Option<ArrayRef> {
        cast_with_options(array, data_type, &CastOptions { safe: false, ..CastOptions::default() }).ok()
    }

    /// Compares with `arrow_cast`: a conversion there and back that changes nothing is exact.
    fn assert_as_cast(array: &ArrayRef, data_type: &DataType) {
        let there = checked_cast(array, data_type);
        let expected = there.filter(|there| checked_cast(there, array.data_type()).as_ref() == Some(array));
        let found = exact(array, data_type);
        let from = array.data_type();
        assert_eq!(found, expected, "{array:?} ({from}) as {data_type}");
    }

    #[test]
    fn numbers_are_converted_as_arrow_casts_them() {
        let types = [
            DataType::Int8,
            DataType::Int16,
            DataType::Int32,
            DataType::Int64,
            DataType::UInt8,
            DataType::UInt16,
            DataType::UInt32,
            DataType::UInt64,
            DataType::Float16,
            DataType::Float32,
            DataType::Float64,
        ];
        let integers =
            [0, 1, -1, 127, 128, 255, 256, 2048, 2049, 65_504, 65_536, 1 << 24, (1 << 24) + 1, 1 << 40];
        let floats = [0.0, 0.5, 0.1, -3.0, 1e10, f64::INFINITY, 65_504.0, 1e300];
        let mut arrays: Vec<ArrayRef> = vec![];
        for value in integers {
            arrays.push(Arc::new(Int64Array::from(vec![Some(value), None])));
        }
        for value in floats {
            arrays.push(Arc::new(Float64Array::from(vec![Some(value), None])));
        }
        let mut compared = 0;
        for array in &arrays {
            for from in &types {
                let Some(array) = checked_cast(array, from) else { continue };
                for to in &types {
                    assert_as_cast(&array, to);
                    compared += 1;
                }
            }
        }
        assert!(compared > 1000, "{compared}");
        // Arrow casts these to the nearest float and back to the same integer, by saturation.
        let large: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
        assert_eq!(exact(&large, &DataType::Float64), None);
        assert_eq!(exact(&large, &DataType::Float32), None);
        let nan: ArrayRef = Arc::new(Float64Array::from(vec![f64::NAN]));
        assert!(exact(&nan, &DataType::Float32).unwrap().as_primitive::<Float32Type>().value(0).is_nan());
        assert_eq!(exact(&nan, &DataType::Int64), None);
        let zero: ArrayRef = Arc::new(Float64Array::from(vec![-0.0]));
        assert_eq!(exact(&zero, &DataType::Int64), Some(Arc::new(Int64Array::from(vec![0])) as ArrayRef));
    }

    #[test]
    fn temporal_values_are_converted_as_arrow_casts_them() {
        let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
        let zone = Some(Arc::from("+02:00"));
        let timestamps = |zone: Option<Arc<str>>| units.map(|unit| DataType::Timestamp(unit, zone.clone()));
        let dates = [DataType::Date32, DataType::Date64];
        let times = [
            DataType::Time32(TimeUnit::Second),
            DataType::Time32(TimeUnit::Millisecond),
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Time64(TimeUnit::Nanosecond),
        ];
        let durations = units.map(DataType::Duration);
        let groups = [&timestamps(None)[..], &timestamps(zone), &dates, &times, &durations];
        for types in groups {
            for (from, to) in types.iter().flat_map(|from| types.iter().map(move |to| (from, to))) {
                for value in [0, 1, 999, 1_000, 86_400_000, 3_000_000, i32::MAX.into()] {
                    let ticks: ArrayRef = Arc::new(Int64Array::from(vec![Some(value), None]));
                    let physical =
                        if from.primitive_width() == Some(4) { DataType::Int32 } else { DataType::Int64 };
                    let ticks = cast(&ticks, &physical).unwrap();
                    assert_as_cast(&cast(&ticks, from).unwrap(), to);
                }
            }
        }
        // Of other groups, only midnights are dates.
        let midnights: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![86_400_000]));
        assert_eq!(exact(&midnights, &DataType::Date32), checked_cast(&midnights, &DataType::Date32));
        assert_eq!(exact(&midnights, &DataType::Duration(TimeUnit::Second)), None);
        assert_eq!(exact(&midnights, &DataType::Timestamp(TimeUnit::Second, Some("+00:00".into()))), None);
    }

    #[test]
    fn strings_and_bytes_change_their_layout() {
        let long = "longer than a view holds inline";
        let strings: ArrayRef = Arc::new(StringViewArray::from(vec![Some("a"), None, Some(long)]));
        for data_type in [DataType::Utf8, DataType::LargeUtf8] {
            assert_as_cast(&strings, &data_type);
        }
        let bytes = cast(&strings, &DataType::BinaryView).unwrap();
        for data_type in [DataType::Binary, DataType::LargeBinary] {
            assert_as_cast(&bytes, &data_type);
        }
        assert_eq!(exact(&strings, &DataType::Binary), None);
        assert_eq!(exact(&strings, &DataType::Int8), None);
    }

    #[test]
    fn nested_values_and_dictionaries_are_converted() {
        let dictionary: DictionaryArray<Int32Type> = [Some("a"), None, Some("a")].into_iter().collect();
        let dictionary: ArrayRef = Arc::new(dictionary);
        assert_as_cast(&dictionary, &DataType::Utf8);
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![Some(300)]),
        ]);
        let lists: ArrayRef = Arc::new(lists);
        for lists in [lists.clone(), lists.slice(1, 2), lists.slice(0, 1)] {
            assert_as_cast(&lists, &list(DataType::Int64));
            assert_as_cast(&lists, &list(DataType::Int8));
        }
        let pairs =
            FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), Some(2)]), None], 2);
        let pairs: ArrayRef = Arc::new(pairs);
        let pair =
            |size| DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Float32, true)), size);
        assert_as_cast(&pairs, &pair(2));
        assert_eq!(exact(&pairs, &pair(3)), None);
        let fields = |a, b| DataType::Struct(vec![Field::new("a", a, true), Field::new("b", b, true)].into());
        let columns = vec![dictionary, lists];
        let DataType::Struct(from) = fields(columns[0].data_type().clone(), columns[1].data_type().clone())
        else {
            unreachable!()
        };
        let structs: ArrayRef = Arc::new(StructArray::new(from, columns, None));
        assert_as_cast(&structs, &fields(DataType::Utf8, list(DataType::UInt16)));
        assert_eq!(exact(&structs, &fields(DataType::Utf8, DataType::Utf8)), None);
    }

    fn list(item: DataType) -> DataType {
        DataType::List(Arc::new(Field::new_list_field(item, true)))
    }

    #[test]
    fn decimals_are_converted_if_none_is_rounded() {
        let cents = Decimal128Array::from(vec![Some(155), None, Some(9_999)]);
        let prices: ArrayRef = Arc::new(cents.with_precision_and_scale(10, 2).unwrap());
        for (data_type, fits) in [
            (DataType::Decimal128(12, 4), true),
            (DataType::Decimal64(4, 2), true),
            (DataType::Decimal256(40, 2), true),
            (DataType::Decimal128(10, 1), false),
            (DataType::Decimal32(3, 2), false),
            (DataType::Int32, false),
            (DataType::Float64, false),
            (DataType::Utf8, false),
        ] {
            let found = exact(&prices, &data_type);
            assert_eq!(found.is_some(), fits, "{data_type}");
            if let Some(found) = found {
                assert_eq!(exact(&found, prices.data_type()).as_ref(), Some(&prices), "{data_type}");
            }
        }
        let whole: ArrayRef = Arc::new(Int64Array::from(vec![Some(99), None]));
        assert_eq!(
            exact(&exact(&whole, &DataType::Decimal128(4, 2)).unwrap(), &DataType::Int64),
            Some(whole)
        );
        let large: ArrayRef = Arc::new(Int64Array::from(vec![100]));
        assert_eq!(exact(&large, &DataType::Decimal128(4, 2)), None);
    }

    #[test]
    fn lists_and_structs_of_other_layouts_hold_the_same_values() {
        let large = |item| DataType::LargeList(Arc::new(Field::new("element", item, true)));
        let pair = DataType::FixedSizeList(Arc::new(Field::new_list_field(DataType::Int32, true)), 2);
        let lists = ListArray::from_iter_primitive::<Int32Type, _, _>([
            Some(vec![Some(1), None]),
            None,
            Some(vec![Some(3), Some(4)]),
        ]);
        let lists: ArrayRef = Arc::new(lists);
        for lists in [lists.clone(), lists.slice(1, 2)] {
            for data_type in [large(DataType::Int32), large(DataType::UInt64), pair.clone()] {
                let found = exact(&lists, &data_type).unwrap();
                assert_eq!(found.data_type(), &data_type);
                assert_eq!(exact(&found, lists.data_type()).as_ref(), Some(&lists), "{data_type}");
            }
        }
        let uneven = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)])]);
        assert_eq!(exact(&(Arc::new(uneven) as ArrayRef), &pair), None);
        // Lists without items, and null, are of any type.
        let empty = ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![]), None]);
        let empty: ArrayRef = Arc::new(empty);
        for item in [DataType::Utf8, DataType::Null, large(DataType::Utf8)] {
            let found = exact(&empty, &large(item)).unwrap();
            assert_eq!((found.is_null(0), found.is_null(1)), (false, true));
            assert!(exact(&found, &list(DataType::Date32)).is_some());
        }
        let field = |name: &str, data_type| Arc::new(Field::new(name, data_type, true));
        let a: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let b: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None]));
        let structs =
            StructArray::from(vec![(field("a", DataType::Int64), a), (field("b", DataType::Utf8), b)]);
        let structs: ArrayRef = Arc::new(structs);
        let other =
            vec![field("c", DataType::Date32), field("b", DataType::LargeUtf8), field("a", DataType::Int8)];
        let found = exact(&structs, &DataType::Struct(other.into())).unwrap();
        assert!(found.as_struct().column(0).null_count() == 2);
        assert_eq!(exact(&found, structs.data_type()).as_ref(), Some(&structs));
        assert_eq!(exact(&structs, &DataType::Struct(vec![field("a", DataType::Int64)].into())), None);
    }

    #[test]
    fn numbers_are_rounded_to_f32() {
        let doubles: ArrayRef = Arc::new(Float64Array::from(vec![Some(0.1), None, Some(1e300)]));
        let floats = rounded_to_f32(&doubles).unwrap();
        assert_eq!(floats.iter().collect::<Vec<_>>(), [Some(0.1f32), None, Some(f32::INFINITY)]);
        let integers: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None]));
        assert_eq!(rounded_to_f32(&integers).unwrap().iter().collect::<Vec<_>>(), [Some(3.0), None]);
        assert!(rounded_to_f32(&StringArray::from(vec!["3"])).is_none());
        let indices: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), Some(-1)]));
        let indices = numbers(&indices, &DataType::UInt32).unwrap();
        assert_eq!((indices.is_null(0), indices.is_null(1)), (false, true));
    }
}
