//! The types that vectors are stored in, and the conversion to them.

use std::fmt;
use std::ops::Range;

use half::f16;
use serde::{Deserialize, Serialize, Serializer};

use crate::named::{Named, names};

/// Type of stored vector elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OutputDtype {
    /// `f32`, as computed.
    F32,
    /// `f16`, rounded to nearest.
    F16,
    /// `i8` in −127..=127 with one scale per vector: x ≈ scale · q.
    Int8,
    /// One bit per dimension, set where the element is above zero. Eight bits are one `i8`, as in
    /// sentence-transformers' `quantize_embeddings(…, "binary")`.
    Binary,
    /// The same bits as `u8`, as in `quantize_embeddings(…, "ubinary")`.
    Ubinary,
}

names!(OutputDtype {
    F32 => "f32" | "float32",
    F16 => "f16" | "float16",
    Int8 => "int8",
    Binary => "binary",
    Ubinary => "ubinary",
});

impl OutputDtype {
    /// Number of stored elements per vector of `dimensions`.
    pub fn width(self, dimensions: usize) -> usize {
        match self {
            OutputDtype::F32 | OutputDtype::F16 | OutputDtype::Int8 => dimensions,
            OutputDtype::Binary | OutputDtype::Ubinary => dimensions / 8,
        }
    }

    /// Size of a stored element in bytes.
    pub fn element_bytes(self) -> usize {
        match self {
            OutputDtype::F32 => 4,
            OutputDtype::F16 => 2,
            OutputDtype::Int8 | OutputDtype::Binary | OutputDtype::Ubinary => 1,
        }
    }

    /// Refuses dimensions that do not fill whole bytes. `dimensions_option` is what callers choose them with.
    ///
    /// # Errors
    /// What is wrong and what to do about it: the predicate of a sentence whose subject is the option of the
    /// type.
    pub fn check(self, dimensions: usize, dimensions_option: &str) -> Result<(), String> {
        if !matches!(self, OutputDtype::Binary | OutputDtype::Ubinary) || dimensions.is_multiple_of(8) {
            return Ok(());
        }
        let remedy = match dimensions / 8 * 8 {
            0 => "choose another type".into(),
            n => format!("pass {dimensions_option} {n}"),
        };
        Err(format!("{self} packs 8 dimensions into a byte, but vectors have {dimensions}; {remedy}"))
    }

    /// Converts the vectors of a row, `(N, dimensions)`, to this type. For `Int8` the row must be one vector,
    /// since it has one scale.
    pub fn quantize(self, values: Vec<f32>, dimensions: usize) -> StoredVector {
        match self {
            OutputDtype::F32 => StoredVector { values: VectorValues::F32(values), scale: None },
            OutputDtype::F16 => {
                let values = values.into_iter().map(f16::from_f32).collect();
                StoredVector { values: VectorValues::F16(values), scale: None }
            }
            OutputDtype::Int8 => quantize_int8(&values),
            OutputDtype::Binary => {
                let signs = packed_signs(&values, dimensions).map(|bits| offset_signs(bits).cast_signed());
                StoredVector { values: VectorValues::Int8(signs.collect()), scale: None }
            }
            OutputDtype::Ubinary => {
                let values = VectorValues::Uint8(packed_signs(&values, dimensions).collect());
                StoredVector { values, scale: None }
            }
        }
    }
}

impl fmt::Display for OutputDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Symmetric quantization: scale = max|x| / 127 and q = round(x / scale), ties to even. A vector with NaN or
/// infinite elements becomes zeros with a NaN scale.
fn quantize_int8(values: &[f32]) -> StoredVector {
    let stored = |values, scale| StoredVector { values: VectorValues::Int8(values), scale: Some(scale) };
    if values.iter().any(|x| !x.is_finite()) {
        return stored(vec![0; values.len()], f32::NAN);
    }
    let scale = values.iter().fold(0.0, |max: f32, x| max.max(x.abs())) / 127.0;
    if scale == 0.0 {
        return stored(vec![0; values.len()], 0.0);
    }
    // A subnormal scale has few bits, so that x / scale may exceed 127.
    let quantize = |x: &f32| (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8;
    stored(values.iter().map(quantize).collect(), scale)
}

/// The signs of vectors, eight dimensions in a byte.
fn packed_signs(values: &[f32], dimensions: usize) -> impl Iterator<Item = u8> {
    values.chunks(dimensions).flat_map(|vector| vector.chunks(8).map(pack_signs))
}

/// The signs of eight dimensions, the first in the most significant bit: `np.packbits(x > 0)`.
fn pack_signs(dimensions: &[f32]) -> u8 {
    dimensions.iter().enumerate().fold(0, |bits, (i, x)| bits | (u8::from(*x > 0.0) << (7 - i)))
}

/// A byte of `ubinary` as one of `binary`, which is less by 128, or one of `binary` as one of `ubinary`.
pub(crate) fn offset_signs(byte: u8) -> u8 {
    byte ^ 0x80
}

/// The vector of a row as it is stored, or its vectors, `(tokens, D)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredVector {
    /// The stored elements.
    pub values: VectorValues,
    /// For `int8`, the factor of its elements: x ≈ scale · q. NaN where the vector had NaN or infinite
    /// elements.
    pub scale: Option<f32>,
}

impl StoredVector {
    /// Whether all elements are finite. Conversion to `f16` makes large elements infinite.
    pub fn is_finite(&self) -> bool {
        let values = match &self.values {
            VectorValues::F32(values) => values.iter().all(|x| x.is_finite()),
            VectorValues::F16(values) => values.iter().all(|x| x.is_finite()),
            VectorValues::Int8(_) | VectorValues::Uint8(_) => true,
        };
        values && self.scale.is_none_or(f32::is_finite)
    }
}

/// Stored elements of one type.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum VectorValues {
    /// Elements of `f32` vectors.
    F32(Vec<f32>),
    /// Elements of `f16` vectors.
    F16(Vec<f16>),
    /// Elements of `int8` and `binary` vectors.
    Int8(Vec<i8>),
    /// Elements of `ubinary` vectors.
    Uint8(Vec<u8>),
}

impl VectorValues {
    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            VectorValues::F32(values) => values.len(),
            VectorValues::F16(values) => values.len(),
            VectorValues::Int8(values) => values.len(),
            VectorValues::Uint8(values) => values.len(),
        }
    }

    /// Appends the elements to `bytes`, little-endian.
    pub(crate) fn write_le_bytes(&self, bytes: &mut Vec<u8>) {
        match self {
            VectorValues::F32(values) => bytes.extend(values.iter().flat_map(|x| x.to_le_bytes())),
            VectorValues::F16(values) => bytes.extend(values.iter().flat_map(|x| x.to_le_bytes())),
            VectorValues::Int8(values) => bytes.extend(values.iter().map(|x| x.cast_unsigned())),
            VectorValues::Uint8(values) => bytes.extend_from_slice(values),
        }
    }

    /// The elements as decimal text with the fewest digits that read back as the same number.
    pub(crate) fn to_strings(&self) -> Vec<String> {
        match self {
            VectorValues::F32(values) => values.iter().map(f32::to_string).collect(),
            VectorValues::F16(values) => values.iter().map(|x| x.to_f32().to_string()).collect(),
            VectorValues::Int8(values) => values.iter().map(i8::to_string).collect(),
            VectorValues::Uint8(values) => values.iter().map(u8::to_string).collect(),
        }
    }

    /// A range of elements, which serialises as a list.
    pub(crate) fn slice(&self, range: Range<usize>) -> ValuesSlice<'_> {
        ValuesSlice { values: self, range }
    }
}

/// A range of stored elements, which serialises as a list.
pub(crate) struct ValuesSlice<'a> {
    values: &'a VectorValues,
    range: Range<usize>,
}

impl Serialize for ValuesSlice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let range = self.range.clone();
        match self.values {
            VectorValues::F32(values) => serializer.collect_seq(&values[range]),
            VectorValues::F16(values) => serializer.collect_seq(values[range].iter().map(|x| x.to_f32())),
            VectorValues::Int8(values) => serializer.collect_seq(&values[range]),
            VectorValues::Uint8(values) => serializer.collect_seq(&values[range]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{OutputDtype, VectorValues};

    #[test]
    fn signs_are_packed_as_numpy_packs_them() {
        let mixed = [1.0, -1.0, 0.0, -0.0, -1.0, -1.0, f32::NAN, 0.1];
        let vectors = [mixed, [-1.0; 8], [1.0; 8]].concat();
        for (dtype, expected) in [
            (OutputDtype::Ubinary, VectorValues::Uint8(vec![129, 0, 255])),
            (OutputDtype::Binary, VectorValues::Int8(vec![1, -128, 127])),
        ] {
            assert_eq!(dtype.quantize(vectors.clone(), 24).values, expected);
        }
    }

    #[test]
    fn elements_are_stored_little_endian() {
        let bytes = |dtype: OutputDtype| {
            let mut bytes = Vec::new();
            dtype.quantize(vec![1.0, -2.0], 2).values.write_le_bytes(&mut bytes);
            bytes
        };
        assert_eq!(bytes(OutputDtype::F32), [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]);
        assert_eq!(bytes(OutputDtype::F16), [0, 0x3c, 0, 0xc0]);
        assert_eq!(bytes(OutputDtype::Int8), [64, 129]);
    }

    #[test]
    fn text_has_the_fewest_digits() {
        let values = VectorValues::F32(vec![0.1, 3.0, 1e-9, f32::NAN]);
        assert_eq!(values.to_strings(), ["0.1", "3", "0.000000001", "NaN"]);
        assert_eq!(serde_json::to_string(&values.slice(0..2)).unwrap(), "[0.1,3.0]");
    }
}
