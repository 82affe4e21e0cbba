//! A NumPy array `(N, D)` (NEP 1, format version 1.0).

use anyhow::Result;

use crate::formats::array::ArrayEncoder;
use crate::rows::{OutputDtype, OutputSchema};

/// Size of the header in bytes: room for any number of rows, and a multiple of 64, as the format requires.
const HEADER_BYTES: usize = 128;

/// An encoder for a NumPy array.
pub(crate) fn encoder(schema: &OutputSchema) -> Result<ArrayEncoder> {
    ArrayEncoder::new(schema, HEADER_BYTES, |_, vectors, rows, _| {
        Ok(header(&[rows, vectors.width() as u64], descr(vectors.dtype)))
    })
}

/// A file with an f32 array of up to four axes, in C order.
pub(crate) fn file(shape: &[usize], values: &[f32]) -> Vec<u8> {
    let shape: Vec<u64> = shape.iter().map(|&size| size as u64).collect();
    let mut bytes = header(&shape, descr(OutputDtype::F32));
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

/// NumPy's name of a type of elements.
fn descr(dtype: OutputDtype) -> &'static str {
    match dtype {
        OutputDtype::F32 => "<f4",
        OutputDtype::F16 => "<f2",
        OutputDtype::Int8 | OutputDtype::Binary => "|i1",
        OutputDtype::Ubinary => "|u1",
    }
}

/// The header of an array of this shape with elements of the type `descr`.
pub(crate) fn header(shape: &[u64], descr: &str) -> Vec<u8> {
    let sizes: Vec<String> = shape.iter().map(u64::to_string).collect();
    // Python's tuple of one number has a comma at its end.
    let sizes = if let [size] = &sizes[..] { format!("{size},") } else { sizes.join(", ") };
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
    use super::{HEADER_BYTES, OutputDtype, descr, header};

    #[test]
    fn the_header_has_room_for_any_shape() {
        for dtype in [OutputDtype::F32, OutputDtype::F16, OutputDtype::Int8, OutputDtype::Binary] {
            let header = header(&[u64::MAX, usize::MAX as u64], descr(dtype));
            assert_eq!((header.len(), header.last()), (HEADER_BYTES, Some(&b'\n')));
            assert!(String::from_utf8_lossy(&header).contains(&format!(
                "({}, {}), }}",
                u64::MAX,
                usize::MAX
            )));
        }
    }
}
