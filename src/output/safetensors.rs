//! A safetensors file with one tensor, `embeddings`, of `(N, D)`.

use serde_json::json;

use super::array::Header;
use super::{About, Dtype};

/// Room for any number of rows and for what the file says of itself, and a multiple of 8 as the numbers after it ask.
const SIZE: usize = 4096;

/// The header of a safetensors file: its length in 8 bytes, then JSON that spaces fill up.
pub static HEADER: Header = Header { size: SIZE, text: header };

fn header(rows: u64, width: usize, dtype: Dtype, about: &About) -> Vec<u8> {
    let name = match dtype {
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::Int8 | Dtype::Binary => "I8",
    };
    let end = rows * (width * dtype.size()) as u64;
    let mut metadata = about.clone();
    metadata.extend(
        [("format", "sconce"), ("output_dtype", dtype.name())].map(|(key, value)| (key.into(), value.into())),
    );
    let mut text = String::new();
    // Values that are too long for the header, as a long prompt, are left out, the longest first.
    while text.is_empty() || text.len() > SIZE - 8 {
        let longest = metadata.iter().max_by_key(|(_, value)| value.len()).map(|(key, _)| key.clone());
        if let Some(key) = longest.filter(|_| !text.is_empty()) {
            metadata.remove(&key);
        }
        let array = json!({"dtype": name, "shape": [rows, width], "data_offsets": [0, end]});
        text = json!({"__metadata__": metadata, "embeddings": array}).to_string();
    }
    let mut header = (SIZE as u64 - 8).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header.resize(SIZE, b' ');
    header
}
