//! A safetensors file with one tensor, `embeddings`, of `(N, D)`.

use serde_json::json;

use super::Dtype;
use super::array::Header;

/// Room for any number of rows, and a multiple of 8 as the numbers after it ask.
const SIZE: usize = 256;

/// The header of a safetensors file: its length in 8 bytes, then JSON that spaces fill up.
pub static HEADER: Header = Header { size: SIZE, text: header };

fn header(rows: u64, width: usize, dtype: Dtype) -> Vec<u8> {
    let name = match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Int8 | Dtype::Binary => "I8",
    };
    let end = rows * (width * dtype.size()) as u64;
    let tensors = json!({
        "__metadata__": {"format": "sconce", "output_dtype": dtype},
        "embeddings": {"dtype": name, "shape": [rows, width], "data_offsets": [0, end]},
    });
    let mut header = (SIZE as u64 - 8).to_le_bytes().to_vec();
    header.extend_from_slice(tensors.to_string().as_bytes());
    header.resize(SIZE, b' ');
    header
}
