//! The operands of a head, and their units in tiles.

use std::ops::Range;

use crate::gemm::blocking::TILE_NR;
use crate::gemm::convert::{BF16_PER_TILE_ROW, TileRow};
use crate::tiles::TILE_ROWS;

/// A tile of packed elements.
pub(super) type Tile = [TileRow; TILE_ROWS];
/// A row of scores or of results, one value per query of a block.
pub(super) type QueryRow = [f32; TILE_NR];

/// The queries, keys or values of one head, as rows of f32.
#[derive(Debug, Clone, Copy)]
pub struct HeadRows<'a> {
    /// The values, from the first row on.
    pub data: &'a [f32],
    /// Values from the start of one row to the start of the next.
    pub stride: usize,
    /// Number of rows.
    pub rows: usize,
    /// The head dim.
    pub dim: usize,
}

impl<'a> HeadRows<'a> {
    /// A row; empty after the last.
    #[inline(always)]
    pub(super) fn row(&self, index: usize) -> &'a [f32] {
        if index < self.rows { &self.data[index * self.stride..][..self.dim] } else { &[] }
    }

    /// Some of the rows.
    pub(super) fn slice(&self, rows: &Range<usize>) -> Self {
        HeadRows { data: &self.data[rows.start * self.stride..], rows: rows.len(), ..*self }
    }

    /// K steps of a row.
    pub(super) fn steps(&self) -> usize {
        self.dim.div_ceil(BF16_PER_TILE_ROW)
    }
}

/// The operands of [`attend_head`].
#[derive(Debug, Clone, Copy)]
pub struct HeadAttention<'a> {
    /// `(queries, qk_head_dim)`.
    pub queries: HeadRows<'a>,
    /// `(keys, qk_head_dim)`.
    pub keys: HeadRows<'a>,
    /// `(keys, v_head_dim)`.
    pub values: HeadRows<'a>,
    /// The positive factor of the scores.
    pub scale: f32,
    /// The position of the first query. That of the first key is 0.
    pub first_query: usize,
    /// Keys before its own position that a query sees; `usize::MAX` is unlimited.
    pub left: usize,
    /// Keys after its own position that a query sees; `usize::MAX` is unlimited.
    pub right: usize,
    /// Added to the scaled scores: element `j − i + (bias.len() − 1) / 2` for the query at position `i` and key `j`. Empty: nothing.
    pub bias: &'a [f32],
}

impl HeadAttention<'_> {
    /// The keys that some of the queries see, given by their indexes: from the first one of the first query to the last one of
    /// the last.
    pub(super) fn visible(&self, queries: &Range<usize>) -> Range<usize> {
        let (first, last) = (self.first_query + queries.start, self.first_query + queries.end - 1);
        let end = last.saturating_add(self.right).saturating_add(1).min(self.keys.rows);
        first.saturating_sub(self.left).min(end)..end
    }

    /// Whether each of the queries sees all of the keys, given by their indexes.
    pub(super) fn sees_all(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let (first, last) = (self.first_query + queries.start, self.first_query + queries.end - 1);
        last.saturating_sub(self.left) <= keys.start
            && first.saturating_add(self.right).saturating_add(1) >= keys.end
    }

    /// Whether a query sees no key.
    pub(super) fn sees_none(&self, query: usize) -> bool {
        (self.first_query + query).saturating_sub(self.left) >= self.keys.rows
    }
}
