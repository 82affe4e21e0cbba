//! The entry point of a GEMM: checks the operands and runs the micro-kernel of their format.

use std::ops::Range;

use super::epilogue::Epilogue;
use super::lhs::Lhs;
use super::output::OutputBlock;
use super::packed_matrix::PackedMatrix;
use super::tile_kernel;
use super::vector_kernel::VectorGemm;

/// `output = epilogue(x Wᵀ)` for the given panels of `weights`. Every element of the block is written. The epilogue
/// counts rows from the first row of `x`, and columns from the first output of the whole matrix.
///
/// # Panics
/// If the block does not have the shape of the result, `x` has a different operand format, or the shapes of the
/// epilogue do not match.
pub fn gemm(
    x: Lhs,
    weights: &PackedMatrix,
    panels: Range<usize>,
    epilogue: &Epilogue,
    output: &mut OutputBlock,
) {
    let columns = weights.columns(panels.clone());
    assert!(panels.end <= weights.panels(), "the matrix has these panels");
    assert_eq!(
        (output.rows, output.columns),
        (x.rows, columns.len()),
        "the block has the shape of the result"
    );
    if x.rows == 0 {
        return;
    }
    let layout = weights.layout;
    assert_eq!(x.groups, layout.groups(), "x has the operand format of the weights");
    assert!(x.scales.len() >= x.rows * x.groups, "x has a scale for every row and group");
    let rows = layout.format.padded_rows(x.rows);
    let end = (rows - 1).checked_mul(x.stride).and_then(|last| last.checked_add(layout.lhs_row));
    assert!(end.is_some_and(|end| end <= x.elements.len()), "x has all its rows");
    if layout.format.is_tiles() {
        tile_kernel::gemm(x, weights, panels, epilogue, output);
    } else {
        weights.isa.run(VectorGemm { x, weights, panels, epilogue, output });
    }
}
