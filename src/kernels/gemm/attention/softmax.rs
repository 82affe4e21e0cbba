//! The softmax of a query block over blocks of keys, and what is added to the scores before.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::head::{HeadAttention, QueryRow, Tile};
use crate::gemm::blocking::{TILE_NR, TILES_PER_PANEL};
use crate::gemm::convert::BF16_PER_TILE_ROW;
use crate::math::{exp2, exp2_weight};
use crate::simd::Simd;
use crate::tiles::TILE_ROWS;

/// A bound of the scores from below, in place of −∞: multiplied by a scale it stays finite.
const LOWEST_SCORE: f32 = -1e30;

/// An unnormalised softmax over blocks of keys, one after the other.
pub(super) struct OnlineSoftmax<'a> {
    /// The maximum of the scores of every query.
    pub maxima: &'a mut QueryRow,
    /// The sum of the weights of every query.
    pub sums: &'a mut QueryRow,
}

impl OnlineSoftmax<'_> {
    /// Begins with no keys.
    pub(super) fn begin(&mut self) {
        self.maxima.fill(LOWEST_SCORE);
        self.sums.fill(0.0);
    }

    /// Writes the weights of more keys as a panel, and rescales the sums and the results of the keys before
    /// to the new maxima. `scores` has a row per key, of which `count` columns are queries.
    #[inline(always)]
    pub(super) fn extend<S: Simd, const P: usize>(
        &mut self,
        s: S,
        (scores, count): (&[QueryRow], usize),
        scale: f32,
        weights: &mut [Tile],
        results: &mut [QueryRow],
    ) {
        for column in (0..count).step_by(S::LANES) {
            let before = s.load_at(self.maxima, column, 0.0);
            let max = s.max(before, max_over_keys(s, scores, column));
            let before = Weight::<S, P>::new(s, before, scale);
            let weight = Weight::<S, P>::new(s, max, scale);
            // 1 if the maximum is the same; 0 before the first keys.
            let factor = exp2(s, s.sub(weight.offset, before.offset));
            for row in &mut *results {
                let y = s.mul(s.load_at(row, column, 0.0), factor);
                s.store_at(row, column, y);
            }
            let mut sum = s.mul(s.load_at(self.sums, column, 0.0), factor);
            let (tile, lane) = (column / TILE_ROWS, column % TILE_ROWS);
            for (scores, parts) in
                scores.chunks(BF16_PER_TILE_ROW).zip(weights.chunks_exact_mut(P * TILES_PER_PANEL))
            {
                let mut partial_sums = [s.splat(0.0); 2];
                for pair in 0..TILE_ROWS {
                    let mut values = [s.splat(0.0); 2];
                    for (i, value) in values.iter_mut().enumerate() {
                        if let Some(row) = scores.get(2 * pair + i) {
                            *value = weight.eval(s, scores_at(s, row, column));
                            partial_sums[i] = s.add(partial_sums[i], *value);
                        }
                    }
                    for (part, tiles) in parts.chunks_exact_mut(TILES_PER_PANEL).enumerate() {
                        let [low, high] = values;
                        // SAFETY: a tile row has 16 u32, and `lane` is a multiple of `LANES` below 16.
                        let rounded = unsafe {
                            s.store_bf16_pairs(tiles[tile][pair].as_mut_ptr().add(lane), low, high)
                        };
                        if part + 1 < P {
                            values = [s.sub(low, rounded[0]), s.sub(high, rounded[1])];
                        }
                    }
                }
                sum = s.add(sum, s.add(partial_sums[0], partial_sums[1]));
            }
            s.store_at(self.sums, column, sum);
            s.store_at(self.maxima, column, max);
        }
    }
}

/// The maximum over the keys for `LANES` queries.
#[inline(always)]
fn max_over_keys<S: Simd>(s: S, scores: &[QueryRow], column: usize) -> S::F {
    let mut maxima = [s.splat(f32::NEG_INFINITY); 4];
    let (fours, rest) = scores.as_chunks::<4>();
    for rows in fours {
        for (max, row) in maxima.iter_mut().zip(rows) {
            *max = s.max(*max, scores_at(s, row, column));
        }
    }
    for (max, row) in maxima.iter_mut().zip(rest) {
        *max = s.max(*max, scores_at(s, row, column));
    }
    let [a, b, c, d] = maxima;
    s.max(s.max(a, b), s.max(c, d))
}

/// The scores of one key and `LANES` queries.
#[inline(always)]
fn scores_at<S: Simd>(s: S, row: &QueryRow, column: usize) -> S::F {
    let row = &row[column..column + S::LANES];
    // SAFETY: `row` has `LANES` values.
    unsafe { s.load(row.as_ptr()) }
}

/// `exp(scale · (score − max))`, as accurate as `P` bf16 parts need: `2ˣ` of
/// `x = scale · log₂e · score + offset`. All weights of a query have the rounding error of the offset in
/// common, so that it cancels in the quotient with their sum.
struct Weight<S: Simd, const P: usize> {
    /// `scale · log₂e`.
    scale: S::F,
    /// `−scale · log₂e · max`.
    offset: S::F,
}

impl<S: Simd, const P: usize> Weight<S, P> {
    #[inline(always)]
    fn new(s: S, max: S::F, scale: f32) -> Self {
        let scale = s.splat(scale * LOG2_E);
        Weight { scale, offset: s.sub(s.splat(0.0), s.mul(scale, max)) }
    }

    #[inline(always)]
    fn eval(&self, s: S, score: S::F) -> S::F {
        let x = s.fma(score, self.scale, self.offset);
        if P == 1 { exp2_weight(s, x) } else { exp2(s, x) }
    }
}

/// What is added to the scores by relative position: the bias, and −∞ outside the window.
pub(super) struct RelativeTable<'a> {
    /// Element `i + keys − 1 − j` belongs to query `i` and key `j`: those of consecutive queries follow each
    /// other. Empty if nothing is added.
    values: &'a [f32],
    keys: usize,
    /// The factor of the scores before the addition.
    factor: f32,
    /// The factor that is left for the softmax.
    pub scale: f32,
}

impl<'a> RelativeTable<'a> {
    /// Rows of memory for the table of a head.
    pub(super) fn rows(head: &HeadAttention) -> usize {
        let (queries, keys) = (head.queries.rows, head.keys.rows);
        if !head.adds_to_scores(&(0..queries), &(0..keys)) {
            return 0;
        }
        // Whole query blocks are read.
        queries.div_ceil(TILE_NR) + (keys - 1).div_ceil(TILE_NR)
    }

    /// Writes the table of a head to `rows`.
    pub(super) fn new(head: &HeadAttention, rows: &'a mut [QueryRow]) -> Self {
        let keys = head.keys.rows;
        let middle = head.bias.len() / 2;
        let values = rows.as_flattened_mut();
        for (at, value) in values.iter_mut().enumerate() {
            // `j − i`, if it is negative as `i − j`.
            let (before, after) = (
                (at + head.first_query + 1).saturating_sub(keys),
                (keys - 1).saturating_sub(at + head.first_query),
            );
            *value = if before > head.window.left || after > head.window.right {
                f32::NEG_INFINITY
            } else {
                // Only queries past the last are beyond the bias.
                head.bias.get((middle + after).wrapping_sub(before)).copied().unwrap_or(0.0)
            };
        }
        let (factor, scale) = if head.bias.is_empty() { (1.0, head.scale) } else { (head.scale, 1.0) };
        RelativeTable { values, keys, factor, scale }
    }

    /// Adds the table to the scores of some queries, a row per key from `first_key` on.
    #[inline(always)]
    pub(super) fn add_to<S: Simd>(
        &self,
        s: S,
        scores: &mut [QueryRow],
        queries: &Range<usize>,
        first_key: usize,
    ) {
        let factor = s.splat(self.factor);
        for (i, row) in scores.iter_mut().enumerate() {
            let values = &self.values[queries.start + self.keys - 1 - (first_key + i)..][..TILE_NR];
            for column in (0..queries.len()).step_by(S::LANES) {
                let y = s.fma(scores_at(s, row, column), factor, s.load_at(values, column, 0.0));
                s.store_at(row, column, y);
            }
        }
    }
}
