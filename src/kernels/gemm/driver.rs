//! The entry point of a GEMM: checks the operands and runs the micro-kernel of their format.

use std::ops::Range;

use super::epilogue::Epilogue;
use super::layout::OperandFormat;
use super::lhs::{Lhs, LhsBuffer};
use super::output::OutputBlock;
use super::packed_matrix::PackedMatrix;
use super::tile_kernel::{self, Output};
use super::vector_kernel::VectorGemm;
use crate::tiles::{TILE_BYTES, TILE_ROWS};

/// `output = epilogue(x Wᵀ)` for the given panels of `weights`. Every element of the result is written. If
/// the block has more columns, those up to the end of the last panel may be overwritten by arbitrary values,
/// which is faster than to leave them. The epilogue counts rows from the first row of `x`, and columns from
/// the first output of the whole matrix.
///
/// # Panics
/// If the block has other rows than the result or fewer columns, `x` has a different operand format, or the
/// shapes of the epilogue do not match.
pub fn gemm(
    x: Lhs,
    weights: &PackedMatrix,
    panels: Range<usize>,
    epilogue: &Epilogue,
    output: &mut OutputBlock,
) {
    let columns = weights.columns(panels.clone());
    assert!(panels.end <= weights.panels(), "the matrix has these panels");
    assert_eq!(output.rows, x.rows, "the block has the rows of the result");
    assert!(output.columns >= columns.len(), "the block has the columns of the result");
    if x.rows == 0 {
        return;
    }
    check_lhs(x, weights);
    match weights.layout.format {
        OperandFormat::Bf16Tiles { .. } | OperandFormat::Int8Tiles => {
            tile_kernel::gemm(x, weights, panels, epilogue, Output::Block(output));
        }
        OperandFormat::F32 { .. } => {
            weights.isa.run(VectorGemm::<false> { x, weights, panels, epilogue, output });
        }
        OperandFormat::Bf16 | OperandFormat::Int8 => {
            weights.isa.run(VectorGemm::<true> { x, weights, panels, epilogue, output });
        }
    }
}

/// `epilogue(x Wᵀ)` for the given panels in the operand format of `next`, which the result of all panels is
/// multiplied with: written to `buffer`, and returned. After several calls [`LhsBuffer::converted`] returns
/// the columns of all panels.
///
/// # Panics
/// If [`PackedMatrix::chains_with`] is false, `x` has a different operand format, or the shapes of the
/// epilogue do not match.
pub fn gemm_into_lhs<'a>(
    x: Lhs,
    weights: &PackedMatrix,
    panels: Range<usize>,
    epilogue: &Epilogue,
    next: &PackedMatrix,
    buffer: &'a mut LhsBuffer,
) -> Lhs<'a> {
    assert!(panels.end <= weights.panels(), "the matrix has these panels");
    assert!(weights.chains_with(next), "the result is a left operand of the next matrix");
    let OperandFormat::Bf16Tiles { parts, .. } = next.layout.format else {
        unreachable!("only bf16 tiles are chained")
    };
    let row = next.layout.lhs_row;
    let elements = buffer.reserve(next.layout, x.rows);
    if x.rows > 0 {
        check_lhs(x, weights);
        let group = TILE_ROWS * row * size_of::<u32>() / size_of::<u16>();
        // A panel is a K step of `next`, whose first tile is within the reserved elements.
        let first = panels.start * parts * TILE_BYTES / size_of::<u16>();
        let to = elements.as_mut_ptr().cast::<u16>().wrapping_add(first);
        tile_kernel::gemm(x, weights, panels, epilogue, Output::Tiles { to, group, parts });
    }
    buffer.converted(next, x.rows)
}

/// Checks that `x` has the operand format of `weights`, and all rows that the micro-kernel reads.
fn check_lhs(x: Lhs, weights: &PackedMatrix) {
    let layout = weights.layout;
    assert_eq!(x.groups, layout.groups, "x has the operand format of the weights");
    assert!(x.scales.len() >= x.rows * x.groups, "x has a scale for every row and group");
    let rows = layout.format.padded_rows(x.rows);
    let end = (rows - 1).checked_mul(x.stride).and_then(|last| last.checked_add(layout.lhs_row));
    assert!(end.is_some_and(|end| end <= x.elements.len()), "x has all its rows");
}
