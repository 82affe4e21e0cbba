//! A NumPy array `(N, D)` (NEP 1, format version 1.0).

use anyhow::Result;

use super::array::ArrayEncoder;
use super::dtype::OutputDtype;
use super::schema::OutputSchema;

/// Size of the header in bytes: room for any number of rows, and a multiple of 64, as the format requires.
const HEADER_BYTES: usize = 128;

/// An encoder for a NumPy array.
///
/// # Errors
/// If rows are no vectors.
pub(super) fn encoder(schema: &OutputSchema) -> Result<ArrayEncoder> {
    ArrayEncoder::new(schema, HEADER_BYTES, |_, vectors, rows| {
        header(&[rows, vectors.width() as u64], vectors.dtype)
    })
}

/// A file with an f32 array of up to four axes, in C order.
pub(super) fn file(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
    let mut bytes = header(&shape, OutputDtype::F32);
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// The header of an array of this shape.
fn header(shape: &[u64], dtype: OutputDtype) -> Vec<u8> {
    let descr = match dtype {
        OutputDtype::F32 => "<f4",
        OutputDtype::F16 => "<f2",
        OutputDtype::Int8 | OutputDtype::Binary => "|i1",
    };
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    let sizes = sizes.join(", ");
    let array = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}");
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(HEADER_BYTES as u16 - 10).to_le_bytes());
    header.extend_from_slice(array.as_bytes());
    header.resize(HEADER_BYTES - 1, b' ');
    header.push(b'\n');
    header
}

#[cfg(test)]
mod tests {
    use super::{HEADER_BYTES, OutputDtype, header};

    #[test]
    fn the_header_has_room_for_any_shape() {
        for dtype in [OutputDtype::F32, OutputDtype::F16, OutputDtype::Int8, OutputDtype::Binary] {
            let header = header(&[u64::MAX, usize::MAX as u64], dtype);
            assert_eq!((header.len(), header.last()), (HEADER_BYTES, Some(&b'\n')));
            assert!(String::from_utf8_lossy(&header).contains(&format!(
                "({}, {}), }}",
                u64::MAX,
                usize::MAX
            )));
        }
    }
}
