//! The rows of a block in f32.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;

use super::block::{Block, Elements};
use crate::kernels::isa::Isa;
use crate::kernels::quantized::{dequantize, unpack_signs};

/// Rows of a block as f32, `(rows, dimensions)`; those of other types are converted into `buffer`. f16 is
/// widened, int8 becomes `scale · q` rounded to f32, and signs become ±1.
///
/// # Panics
/// If the block does not have these rows, or its rows are sparse.
pub fn rows_f32<'a>(block: &Block<'a>, rows: Range<usize>, buffer: &'a mut Vec<f32>) -> &'a [f32] {
    let (isa, dimensions) = (Isa::selected(), block.dimensions);
    let elements = rows.start * dimensions..rows.end * dimensions;
    if let Elements::F32(x) = block.elements {
        return &x[elements];
    }
    buffer.resize(elements.len(), 0.0);
    match block.elements {
        Elements::F32(_) => unreachable!("f32 rows are not converted"),
        Elements::Sparse { .. } => panic!("sparse rows have no dense elements"),
        Elements::F16(x) => x[elements].convert_to_f32_slice(buffer),
        Elements::Int8 { values, scales } => dequantize(isa, &values[elements], &scales[rows], buffer),
        Elements::Binary(signs) => {
            let bytes = dimensions.div_ceil(8);
            unpack_signs(isa, &signs[rows.start * bytes..rows.end * bytes], dimensions, buffer);
        }
    }
    buffer
}
