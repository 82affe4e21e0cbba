//! How the numbers of a vector are stored.

use std::fmt;
use std::ops::Range;

use half::f16;
use serde::{Deserialize, Serialize, Serializer};

/// How vectors are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// As they are computed.
    F32,
    /// The nearest number of half the size.
    F16,
    /// Whole numbers from -127 to 127 and a scale a vector.
    Int8,
    /// A bit a dimension, whether it is above zero; eight to a number, as sentence-transformers has them.
    Binary,
}

impl Dtype {
    /// Its name, as typed.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "f32",
            Dtype::F16 => "f16",
            Dtype::Int8 => "int8",
            Dtype::Binary => "binary",
        }
    }

    /// Numbers that a vector of `dimensions` is stored in.
    pub fn width(self, dimensions: usize) -> usize {
        match self {
            Dtype::F32 | Dtype::F16 | Dtype::Int8 => dimensions,
            Dtype::Binary => dimensions / 8,
        }
    }

    /// Bytes of a stored number.
    pub(super) fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 => 2,
            Dtype::Int8 | Dtype::Binary => 1,
        }
    }

    /// Narrows the values of a row: one vector, or one a token, one after another, each `dimensions` long. `Int8` has
    /// one scale for all of them, and is for one vector.
    pub fn store(self, values: Vec<f32>, dimensions: usize) -> Vector {
        match self {
            Dtype::F32 => Vector { numbers: Numbers::F32(values), scale: None },
            Dtype::F16 => {
                let numbers = values.into_iter().map(f16::from_f32).collect();
                Vector { numbers: Numbers::F16(numbers), scale: None }
            }
            Dtype::Int8 => int8(&values),
            Dtype::Binary => {
                let numbers =
                    values.chunks(dimensions).flat_map(|vector| vector.chunks(8).map(byte)).collect();
                Vector { numbers: Numbers::Int8(numbers), scale: None }
            }
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The largest number becomes ±127, zero stays zero.
fn int8(values: &[f32]) -> Vector {
    let stored = |numbers, scale| Vector { numbers: Numbers::Int8(numbers), scale: Some(scale) };
    if values.iter().any(|x| !x.is_finite()) {
        return stored(vec![0; values.len()], f32::NAN);
    }
    let scale = values.iter().fold(0.0, |most: f32, x| most.max(x.abs())) / 127.0;
    if scale == 0.0 {
        return stored(vec![0; values.len()], 0.0);
    }
    // A scale that is rounded hard because it is tiny may leave more than 127 times itself.
    let number = |x: &f32| (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    stored(values.iter().map(number).collect(), scale)
}

/// Eight dimensions, the first in the highest bit: what `np.packbits(x > 0) - 128` has as `int8`.
fn byte(dimensions: &[f32]) -> i8 {
    let bits = dimensions.iter().enumerate().fold(0u8, |bits, (i, x)| bits | (u8::from(*x > 0.0) << (7 - i)));
    (bits ^ 0x80) as i8
}

/// The stored vector of a row, or its vectors one after another.
#[derive(Debug, Clone, PartialEq)]
pub struct Vector {
    /// The stored numbers.
    pub numbers: Numbers,
    /// For `int8` what its numbers are to be multiplied by: x ≈ scale · number. NaN where the vector held a number that
    /// was not finite.
    pub scale: Option<f32>,
}

impl Vector {
    /// Whether no number is NaN or infinite; a large one may have become so as `f16`.
    pub fn is_finite(&self) -> bool {
        let numbers = match &self.numbers {
            Numbers::F32(numbers) => numbers.iter().all(|x| x.is_finite()),
            Numbers::F16(numbers) => numbers.iter().all(|x| x.is_finite()),
            Numbers::Int8(_) => true,
        };
        numbers && self.scale.is_none_or(f32::is_finite)
    }
}

/// Numbers of one type.
#[derive(Debug, Clone, PartialEq)]
pub enum Numbers {
    /// Of `f32`.
    F32(Vec<f32>),
    /// Of `f16`.
    F16(Vec<f16>),
    /// Of `int8` and `binary`.
    Int8(Vec<i8>),
}

impl Numbers {
    /// None yet, of the type that `dtype` stores.
    pub(super) fn none(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Numbers::F32(Vec::new()),
            Dtype::F16 => Numbers::F16(Vec::new()),
            Dtype::Int8 | Dtype::Binary => Numbers::Int8(Vec::new()),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Numbers::F32(numbers) => numbers.len(),
            Numbers::F16(numbers) => numbers.len(),
            Numbers::Int8(numbers) => numbers.len(),
        }
    }

    /// Adds more of the same type.
    pub(super) fn append(&mut self, more: &Numbers) {
        match (self, more) {
            (Numbers::F32(numbers), Numbers::F32(more)) => numbers.extend_from_slice(more),
            (Numbers::F16(numbers), Numbers::F16(more)) => numbers.extend_from_slice(more),
            (Numbers::Int8(numbers), Numbers::Int8(more)) => numbers.extend_from_slice(more),
            _ => unreachable!("all rows are stored by the output's own dtype"),
        }
    }

    /// Adds them to `bytes`, little-endian.
    pub(super) fn write_to(&self, bytes: &mut Vec<u8>) {
        match self {
            Numbers::F32(numbers) => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            Numbers::F16(numbers) => bytes.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
            Numbers::Int8(numbers) => bytes.extend(numbers.iter().map(|x| x.cast_unsigned())),
        }
    }

    /// They as text, with the fewest digits that read back as the same number.
    pub(super) fn to_strings(&self) -> Vec<String> {
        match self {
            Numbers::F32(numbers) => numbers.iter().map(f32::to_string).collect(),
            Numbers::F16(numbers) => numbers.iter().map(|x| x.to_f32().to_string()).collect(),
            Numbers::Int8(numbers) => numbers.iter().map(i8::to_string).collect(),
        }
    }

    /// Some of them, as a list to be serialised.
    pub(super) fn part(&self, range: Range<usize>) -> Part<'_> {
        Part(self, range)
    }
}

/// Some of the numbers of a row.
pub(super) struct Part<'a>(&'a Numbers, Range<usize>);

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Part(numbers, range) = self;
        let range = range.clone();
        match numbers {
            Numbers::F32(numbers) => serializer.collect_seq(&numbers[range]),
            Numbers::F16(numbers) => serializer.collect_seq(numbers[range].iter().map(|x| x.to_f32())),
            Numbers::Int8(numbers) => serializer.collect_seq(&numbers[range]),
        }
    }
}
