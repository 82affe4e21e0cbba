//! The best rows of a run, which are written in the order of their scores at its end.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde_json::Value;

use crate::job::manifest::SavedScore;
use crate::neighbours::descending;
use crate::rows::{Content, FieldValue, Row, Span};

/// The best rows so far.
pub(super) struct Ranking {
    /// Maximum number of rows of a query.
    limit: usize,
    /// The rows of each query, best first.
    queries: BTreeMap<usize, BTreeMap<Key, RankedRow>>,
}

/// The order of rows: by score, the highest first, then by the index of the record, then by that of the
/// chunk.
type Key = (Reverse<u32>, u64, u64);

/// A row that is kept until the end of the run.
pub(super) struct RankedRow {
    index: u64,
    id: Option<Value>,
    chunk: Option<Span>,
    tokens: usize,
    truncated: bool,
    kept: Vec<FieldValue>,
    content: Content,
}

impl Ranking {
    /// No rows yet, of at most `limit` per query.
    pub(super) fn new(limit: usize) -> Self {
        Ranking { limit, queries: BTreeMap::new() }
    }

    /// Adds a row with a score if it is among the best of its query.
    pub(super) fn push(&mut self, query: usize, row: &Row) {
        let Content::Score { score, .. } = *row.content else { return };
        let rows = self.queries.entry(query).or_default();
        let key = (descending(score), row.index, row.chunk.map_or(0, |span| span.chunk));
        let is_full = rows.len() >= self.limit;
        if is_full && rows.last_key_value().is_none_or(|(worst, _)| *worst < key) {
            return;
        }
        let row = RankedRow {
            index: row.index,
            id: row.id.cloned(),
            chunk: row.chunk,
            tokens: row.tokens,
            truncated: row.truncated,
            kept: row.kept.to_vec(),
            content: row.content.clone(),
        };
        rows.insert(key, row);
        if is_full {
            rows.pop_last();
        }
    }

    /// The rows for the manifest.
    pub(super) fn saved(&self) -> Vec<SavedScore> {
        let rows = self.queries.iter().flat_map(|(query, rows)| rows.values().map(|row| (*query, row)));
        let saved = rows.filter_map(|(query, row)| {
            let RankedRow { index, chunk, tokens, truncated, content: Content::Score { score, .. }, .. } =
                *row
            else {
                return None;
            };
            Some(SavedScore { query, index, chunk, score: score.to_bits(), tokens, truncated })
        });
        saved.collect()
    }

    /// Adds a row of a manifest, with the columns of its record.
    pub(super) fn restore(&mut self, saved: &SavedScore, id: Option<&Value>, kept: &[FieldValue]) {
        let SavedScore { query, index, chunk, score, tokens, truncated } = *saved;
        let content = Content::Score { score: f32::from_bits(score), rank: None };
        let row = Row { index, id, chunk, tokens, truncated, kept, content: &content };
        self.push(query, &row);
    }

    /// The rows with their ranks, best first, query by query, each with the index of its query.
    pub(super) fn into_rows(self) -> impl Iterator<Item = (usize, RankedRow)> {
        let of_query = |(query, rows): (usize, BTreeMap<Key, RankedRow>)| {
            rows.into_values().zip(0..).map(move |(mut row, place)| {
                if let Content::Score { rank, .. } = &mut row.content {
                    *rank = Some(place);
                }
                (query, row)
            })
        };
        self.queries.into_iter().flat_map(of_query)
    }
}

impl RankedRow {
    /// The row to write.
    pub(super) fn as_row(&self) -> Row<'_> {
        Row {
            index: self.index,
            id: self.id.as_ref(),
            chunk: self.chunk,
            tokens: self.tokens,
            truncated: self.truncated,
            kept: &self.kept,
            content: &self.content,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Ranking;
    use crate::rows::{Content, Row};

    #[test]
    fn the_best_rows_are_kept_and_equal_scores_stay_in_the_order_of_input() {
        for (limit, expected) in [(0, &[][..]), (1, &[3]), (3, &[3, 1, 4]), (9, &[3, 1, 4, 0, 2])] {
            let mut ranking = Ranking::new(limit);
            for (score, index) in [0.5, 2.0, f32::NAN, 7.0, 2.0].into_iter().zip(0..) {
                let content = Content::Score { score, rank: None };
                let content = &content;
                let row =
                    Row { index, id: None, chunk: None, tokens: 1, truncated: false, kept: &[], content };
                ranking.push(7, &row);
            }
            let rows: Vec<_> = ranking.into_rows().map(|(_, row)| row).collect();
            assert_eq!(rows.iter().map(|row| row.index).collect::<Vec<_>>(), expected);
            let ranks = rows.iter().map(|row| match row.content {
                Content::Score { rank, .. } => rank,
                _ => None,
            });
            assert!(ranks.eq((0..expected.len() as u64).map(Some)));
        }
    }
}
