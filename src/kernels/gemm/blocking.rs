//! Blocking parameters of the micro-kernels: MR, NR, KC and MC.

use crate::simd::MAX_LANES;
use crate::tiles::{TILE_ROW_BYTES, TILE_ROWS};

/// KC of the vector micro-kernel, in packed elements. One K block of a panel stays in L1 while the rows of
/// `x` pass. The rounding error of a sum grows with the length of its K blocks.
pub(super) const VECTOR_KC: usize = 192;
/// Packed elements of a row of `x` that are multiplied with all panels before the next ones: those of MC rows
/// stay in L2. With more, MC would be smaller, and the weights read more often; with fewer, the partial sums.
pub(super) const VECTOR_L2_KC: usize = 384;

/// Maximum NR of any micro-kernel; a multiple of all.
pub const MAX_NR: usize = 2 * MAX_LANES;

/// Tiles side by side in a panel.
pub(super) const TILES_PER_PANEL: usize = 2;
/// NR of the tile micro-kernel: outputs of a panel.
pub(super) const TILE_NR: usize = TILES_PER_PANEL * TILE_ROWS;
/// MR of the tile micro-kernel.
pub(super) const TILE_MR: usize = 2 * TILE_ROWS;
/// Maximum number of bf16 parts that an f32 value is split into.
pub(super) const MAX_PARTS: usize = 3;
/// KC of the tile micro-kernel in steps of 32 inputs. The K block of a panel stays in L1 while the rows pass,
/// which do not displace it ([`crate::tiles::Tiles::load_streamed`]): it takes half of L1 for weights of 1
/// and 3 parts, two thirds for 2.
pub(super) const fn tile_kc(weight_parts: usize) -> usize {
    match weight_parts {
        0 | 1 => 12,
        2 => 8,
        _ => 4,
    }
}

/// Bytes of L2 for the rows of `x` that a tile micro-kernel reads again.
const TILE_L2_BYTES: usize = 5 << 18;

/// Whether `rows` of `steps` steps of inputs in `parts` parts stay in L2 from panel to panel.
pub(super) fn stays_in_l2(rows: usize, steps: usize, parts: usize) -> bool {
    rows * steps * parts * TILE_ROW_BYTES <= TILE_L2_BYTES
}

/// KC of attention on tiles: keys whose packed operands and scores stay in L2 while all queries pass. A
/// multiple of the inputs of a K step.
pub(super) const ATTENTION_KC: usize = 512;

/// MC of the vector micro-kernel for rows of `row_elements` packed elements and panels of `nr` outputs: as
/// many rows as stay in L2 while all panels pass, at most [`VECTOR_L2_KC`] elements at a time.
pub(super) fn vector_mc(row_elements: usize, nr: usize) -> usize {
    // Processors with AVX-512 have an L2 of 1 MiB or more, others also of 512 KiB.
    let l2_bytes = if nr == MAX_NR { 384 << 10 } else { 192 << 10 };
    // 12 is a multiple of MR on every ISA.
    (l2_bytes / (row_elements.clamp(1, VECTOR_L2_KC) * size_of::<u32>())).clamp(48, 512) / 12 * 12
}

/// MC of the tile micro-kernel: as many rows as stay in L2 while all panels pass, with more than one part
/// those of a K block. Rows have `steps` steps of inputs in each of `parts` parts, their weights have
/// `weight_parts` parts; 0 parts means int8.
pub(super) fn tile_mc(steps: usize, parts: usize, weight_parts: usize, row_elements: usize) -> usize {
    let row_bytes = if parts > 1 {
        TILE_ROW_BYTES * parts * steps.clamp(1, tile_kc(weight_parts))
    } else {
        row_elements * size_of::<u32>()
    };
    (TILE_L2_BYTES / row_bytes.max(1)).clamp(4 * TILE_MR, 16 * TILE_MR) / TILE_MR * TILE_MR
}
