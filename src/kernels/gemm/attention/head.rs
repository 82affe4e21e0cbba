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

/// The tokens before (`left`) and after (`right`) its own position that a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionWindow {
    /// Tokens before the query; `usize::MAX` is unlimited.
    pub left: usize,
    /// Tokens after the query; `usize::MAX` is unlimited, 0 is a causal mask.
    pub right: usize,
}

impl AttentionWindow {
    /// Every token of the sequence.
    pub const FULL: AttentionWindow = AttentionWindow { left: usize::MAX, right: usize::MAX };

    /// The keys that query `i` of a sequence with `n` keys sees.
    pub fn keys(self, i: usize, n: usize) -> Range<usize> {
        let end = i.saturating_add(self.right).saturating_add(1).min(n);
        i.saturating_sub(self.left).min(end)..end
    }
}

/// The operands of attention in one head.
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
    /// The keys that each query sees.
    pub window: AttentionWindow,
    /// Added to the scaled scores: element `j − i + (bias.len() − 1) / 2` for the query at position `i` and
    /// key `j`. Empty: nothing.
    pub bias: &'a [f32],
}

impl HeadAttention<'_> {
    /// The keys that some of the queries see, given by their indexes: from the first one of the first query
    /// to the last one of the last.
    pub(super) fn visible(&self, queries: &Range<usize>) -> Range<usize> {
        let keys = |query: usize| self.window.keys(self.first_query + query, self.keys.rows);
        keys(queries.start).start..keys(queries.end - 1).end
    }

    /// Whether something is added to the scores of these queries and keys, given by their indexes: a bias, or
    /// −∞ where a query does not see a key.
    pub(super) fn adds_to_scores(&self, queries: &Range<usize>, keys: &Range<usize>) -> bool {
        let seen = |query: usize| self.window.keys(self.first_query + query, self.keys.rows);
        let is_masked = seen(queries.end - 1).start > keys.start || seen(queries.start).end < keys.end;
        is_masked || !self.bias.is_empty()
    }
}
