//! Packing of rows of `x` into micro-panels, which the vector micro-kernel reads with one pointer.

use std::ops::Range;

use super::lhs::Lhs;
use crate::simd::{MAX_LANES, Simd};

/// The heights of the micro-tiles that cover some rows. The last two share the remaining rows: low tiles have
/// too few accumulators to hide the latency of FMA.
#[derive(Debug, Clone, Copy)]
pub(super) struct MicroTiles {
    /// Height, and number of tiles.
    tiles: [(usize, usize); 3],
}

impl MicroTiles {
    /// Micro-tiles of at most `mr` rows.
    pub(super) fn new(rows: usize, mr: usize) -> Self {
        let tiles = match (rows / mr, rows % mr) {
            (0, left) => [(left, 1), (0, 0), (0, 0)],
            (full, 0) => [(mr, full), (0, 0), (0, 0)],
            (full, left) => {
                let first = (mr + left).div_ceil(2);
                [(mr, full - 1), (first, 1), (mr + left - first, 1)]
            }
        };
        MicroTiles { tiles }
    }

    /// Number of micro-tiles.
    pub(super) fn count(self) -> usize {
        self.tiles.iter().map(|(_, count)| count).sum()
    }

    /// Each height, with the rows of its tiles.
    #[inline(always)]
    pub(super) fn segments(self) -> impl Iterator<Item = (usize, Range<usize>)> {
        let mut row = 0;
        self.tiles.into_iter().filter(|(_, count)| *count > 0).map(move |(height, count)| {
            let rows = row..row + height * count;
            row = rows.end;
            (height, rows)
        })
    }
}

/// Packs the elements `elements` of all rows of `x`, a micro-panel for each micro-tile. A micro-panel of `R`
/// rows holds an element of each row, then the next element of each; that of the rows from `row` on begins at
/// `row · elements.len()`.
#[inline(always)]
pub(super) fn pack_micro_panels<S: Simd>(
    s: S,
    x: Lhs,
    elements: Range<usize>,
    tiles: MicroTiles,
    packed: &mut Vec<u32>,
) {
    let (count, stride) = (elements.len(), x.stride);
    // A block of the last micro-panel may be followed by up to a vector.
    let length = x.rows * count + MAX_LANES;
    if packed.len() < length {
        packed.resize(length, 0);
    }
    for (height, rows) in tiles.segments() {
        for row in rows.step_by(height) {
            let x = &x.elements[row * x.stride + elements.start..][..(height - 1) * x.stride + count];
            let to = &mut packed[row * count..][..height * count + MAX_LANES];
            let whole = count / S::LANES * S::LANES;
            for k in (0..whole).step_by(S::LANES) {
                // SAFETY: `x` has `LANES` elements from `k` on in each of `height` rows, at most MR, and `to`
                // has place for them and a vector more.
                unsafe {
                    s.interleave(x.as_ptr().add(k), stride, height, to.as_mut_ptr().add(k * height), height);
                }
            }
            for k in whole..count {
                for r in 0..height {
                    to[k * height + r] = x[r * stride + k];
                }
            }
        }
    }
}
