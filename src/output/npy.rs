//! A NumPy array of `(N, D)`, little-endian, in C order (NEP 1).

use super::array::Header;
use super::{About, Dtype};

/// Room for any number of rows, and a multiple of 64 as the format asks.
const SIZE: usize = 128;

/// The header of a NumPy array.
pub static HEADER: Header = Header { size: SIZE, text: header };

fn header(rows: u64, width: usize, dtype: Dtype, _about: &About) -> Vec<u8> {
    let descr = match dtype {
        Dtype::F32 => "<f4",
        Dtype::F16 => "<f2",
        Dtype::Int8 | Dtype::Binary => "|i1",
    };
    let array = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let mut header = b"\x93NUMPY\x01\x00".to_vec();
    header.extend_from_slice(&(SIZE as u16 - 10).to_le_bytes());
    header.extend_from_slice(array.as_bytes());
    header.resize(SIZE - 1, b' ');
    header.push(b'\n');
    header
}
