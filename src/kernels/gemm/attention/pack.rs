//! Packing the operands of a head into tiles.

use std::array;
use std::ops::Range;

use super::head::{HeadRows, Tile};
use crate::gemm::blocking::TILES_PER_PANEL;
use crate::gemm::convert::{BF16_PER_TILE_ROW, TileRow, split_bf16, split_bf16_pairs};
use crate::simd::Simd;
use crate::tiles::TILE_ROWS;

/// Packs rows as a left operand.
#[inline(always)]
pub(super) fn pack_rows<S: Simd, const P: usize>(s: S, from: HeadRows, to: &mut [Tile]) {
    for (group, tiles) in to.chunks_mut(from.steps() * P).enumerate() {
        for (step, parts) in tiles.chunks_mut(P).enumerate() {
            for i in 0..TILE_ROWS.min(from.rows - group * TILE_ROWS) {
                let row = from.row(group * TILE_ROWS + i);
                let row = &row[step * BF16_PER_TILE_ROW..from.dim.min((step + 1) * BF16_PER_TILE_ROW)];
                split_bf16::<S, P>(s, row, part_rows(parts, i));
            }
        }
    }
}

/// Row `i` of the tile of each part.
#[inline(always)]
fn part_rows<const P: usize>(parts: &mut [Tile], i: usize) -> [&mut TileRow; P] {
    let parts: &mut [Tile; P] = parts.try_into().expect("there is a tile for every part");
    parts.each_mut().map(|part| &mut part[i])
}

/// Packs columns as a left operand whose inputs are the rows. Inputs after the last row are 0.
#[inline(always)]
pub(super) fn pack_columns<S: Simd, const P: usize>(s: S, from: HeadRows, to: &mut [Tile]) {
    let steps = from.rows.div_ceil(BF16_PER_TILE_ROW);
    for (group, tiles) in to.chunks_mut(steps * P).enumerate() {
        let columns = group * TILE_ROWS..from.dim.min((group + 1) * TILE_ROWS);
        for (step, parts) in tiles.chunks_mut(P).enumerate() {
            for pair in 0..TILE_ROWS {
                let row = step * BF16_PER_TILE_ROW + 2 * pair;
                let [low, high] =
                    [row, row + 1].map(|row| from.row(row).get(columns.clone()).unwrap_or_default());
                split_bf16_pairs::<S, P>(s, low, high, part_rows(parts, pair));
            }
            for part in parts {
                s.transpose_u32(part);
            }
        }
    }
}

/// Packs up to 32 queries as a panel. Columns after the last query are arbitrary.
#[inline(always)]
pub(super) fn pack_queries<S: Simd, const P: usize>(
    s: S,
    from: HeadRows,
    rows: Range<usize>,
    to: &mut [Tile],
) {
    for (step, parts) in to.chunks_mut(P * TILES_PER_PANEL).enumerate() {
        let inputs = step * BF16_PER_TILE_ROW..from.dim.min((step + 1) * BF16_PER_TILE_ROW);
        let mut parts = parts.chunks_exact_mut(TILES_PER_PANEL);
        let mut parts: [&mut [Tile]; P] =
            array::from_fn(|_| parts.next().expect("there is a tile for every part"));
        for (i, row) in rows.clone().enumerate() {
            let to = parts.each_mut().map(|part| &mut part[i / TILE_ROWS][i % TILE_ROWS]);
            split_bf16::<S, P>(s, &from.row(row)[inputs.clone()], to);
        }
        let tiles = rows.len().div_ceil(TILE_ROWS);
        for part in parts {
            for tile in &mut part[..tiles] {
                s.transpose_u32(tile);
            }
        }
    }
}
