//! Vectors stored as int8 or as signs.

use super::isa::{Isa, Kernel, define_runners};
use super::simd::Simd;

/// `x = scale · q` in f32, for rows of int8 with a scale each.
///
/// # Panics
/// If `values` and `x` differ in length, or do not have a row of equal length for every scale.
pub fn dequantize(isa: Isa, values: &[i8], scales: &[f32], x: &mut [f32]) {
    assert_eq!(values.len(), x.len(), "there is an element for every value");
    assert!(x.len().is_multiple_of(scales.len().max(1)), "every scale has a row of equal length");
    isa.run(Dequantize { values, scales, x });
}

struct Dequantize<'a> {
    values: &'a [i8],
    scales: &'a [f32],
    x: &'a mut [f32],
}

impl Kernel for Dequantize<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let dimensions = (self.x.len() / self.scales.len().max(1)).max(1);
        let rows = self.x.chunks_exact_mut(dimensions).zip(self.values.chunks_exact(dimensions));
        for ((x, values), scale) in rows.zip(self.scales) {
            for (x, value) in x.iter_mut().zip(values) {
                *x = scale * f32::from(*value);
            }
        }
    }
}

/// The byte of eight signs, the first in the most significant bit, as `np.packbits(x > 0) - 128` stores it.
fn stored(bits: u8) -> i8 {
    (bits ^ 0x80).cast_signed()
}

/// The signs of a vector, as `np.packbits(x > 0) - 128`: a set bit for every element above 0.
pub fn pack_signs(x: &[f32]) -> Vec<i8> {
    let byte = |x: &[f32]| {
        let bits = x.iter().enumerate().map(|(i, x)| u8::from(*x > 0.0) << (7 - i));
        stored(bits.sum())
    };
    x.chunks(8).map(byte).collect()
}

/// `x = ±1` for packed signs of rows of `dimensions` elements; each row begins at a byte.
///
/// # Panics
/// If `x` does not have a row for every row of `signs`.
pub fn unpack_signs(isa: Isa, signs: &[i8], dimensions: usize, x: &mut [f32]) {
    assert_eq!(signs.len() * dimensions, x.len() * dimensions.div_ceil(8), "the rows are as many");
    isa.run(UnpackSigns { signs, dimensions, x });
}

struct UnpackSigns<'a> {
    signs: &'a [i8],
    dimensions: usize,
    x: &'a mut [f32],
}

impl Kernel for UnpackSigns<'_> {
    type Output = ();

    define_runners!(f32 only);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let rows = self.signs.chunks_exact(self.dimensions.div_ceil(8));
        for (signs, x) in rows.zip(self.x.chunks_exact_mut(self.dimensions)) {
            for (signs, x) in signs.iter().zip(x.chunks_mut(8)) {
                let bits = signs.cast_unsigned() ^ 0x80;
                for (i, x) in x.iter_mut().enumerate() {
                    *x = if bits << i & 0x80 == 0 { -1.0 } else { 1.0 };
                }
            }
        }
    }
}

/// `dots[r] = D − 2h` for rows of packed signs: the dot product of two vectors of ±1 that differ in `h` of
/// `D` signs. Exact below 2²⁴ dimensions.
///
/// # Panics
/// If `signs` does not have a row as long as `query` for every dot product.
pub fn dot_signs(isa: Isa, signs: &[i8], query: &[i8], dimensions: usize, dots: &mut [f32]) {
    assert_eq!(signs.len(), dots.len() * query.len(), "there is a row for every dot product");
    isa.run(DotSigns { signs, query, dimensions, dots });
}

struct DotSigns<'a> {
    signs: &'a [i8],
    query: &'a [i8],
    dimensions: usize,
    dots: &'a mut [f32],
}

impl Kernel for DotSigns<'_> {
    type Output = ();

    define_runners!();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (query, last_query) = self.query.as_chunks::<8>();
        for (row, dot) in self.signs.chunks_exact(self.query.len()).zip(self.dots) {
            let (row, last) = row.as_chunks::<8>();
            let word = |bytes: &[i8; 8]| u64::from_ne_bytes(bytes.map(i8::cast_unsigned));
            let words = row.iter().zip(query).map(|(a, b)| (word(a) ^ word(b)).count_ones());
            let bytes = last.iter().zip(last_query).map(|(a, b)| (a ^ b).cast_unsigned().count_ones());
            let differing = words.sum::<u32>() + bytes.sum::<u32>();
            *dot = self.dimensions as f32 - 2.0 * differing as f32;
        }
    }
}
