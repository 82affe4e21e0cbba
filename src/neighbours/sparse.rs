//! The dot products of sparse queries and rows.
//!
//! The queries are an inverted index: for each dimension the queries that have an element there. A row adds
//! the products of its elements, in their order, to the sums of these queries in f64, and each sum is rounded
//! to f32 once. So a score does not depend on the other queries, on blocks or threads.

use std::ops::Range;

use super::block::{Block, Elements};
use super::scorer::NotFinite;
use super::sink::{Neighbour, Sink};

/// The elements of a sparse vector: dimensions and values.
#[derive(Debug, Clone, Copy)]
pub struct SparseRow<'a> {
    /// The dimension of each element.
    pub indices: &'a [u32],
    /// The elements.
    pub values: &'a [f32],
}

/// Sparse queries that are scored against sparse rows by dot product.
#[derive(Debug)]
pub struct SparseScorer {
    queries: usize,
    /// The end of the elements of each dimension in `elements`, up to the greatest dimension of a query.
    ends: Vec<usize>,
    /// Queries and their elements, by dimension.
    elements: Vec<(u32, f32)>,
}

impl SparseScorer {
    /// For these queries.
    pub fn new(queries: &[SparseRow]) -> Result<Self, NotFinite> {
        if let Some(row) = queries.iter().position(|query| query.values.iter().any(|x| !x.is_finite())) {
            return Err(NotFinite { row });
        }
        let indices = || queries.iter().flat_map(|query| query.indices);
        let dimensions = indices().max().map_or(0, |index| *index as usize + 1);
        let mut next = vec![0; dimensions + 1];
        indices().for_each(|index| next[*index as usize + 1] += 1);
        (0..dimensions).for_each(|i| next[i + 1] += next[i]);
        let mut elements = vec![(0, 0.0); next[dimensions]];
        for (query, row) in (0..).zip(queries) {
            for (index, value) in row.indices.iter().zip(row.values) {
                let next = &mut next[*index as usize];
                elements[*next] = (query, *value);
                *next += 1;
            }
        }
        next.truncate(dimensions);
        Ok(SparseScorer { queries: queries.len(), ends: next, elements })
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.queries
    }

    /// Scores the rows of a block and offers those that reach the least score of a query. Rows without a
    /// common element have the score 0.
    ///
    /// # Panics
    /// If the rows are not sparse.
    pub fn scan(&self, block: &Block, sink: &impl Sink) -> Result<(), NotFinite> {
        let Elements::Sparse { mut indices, mut values } = block.elements else { panic!("sparse rows") };
        let mut sums = vec![0.0; self.queries];
        for (index, length) in (block.first_row..).zip(block.lengths) {
            let row = SparseRow { indices: &indices[..*length], values: &values[..*length] };
            (indices, values) = (&indices[*length..], &values[*length..]);
            if row.values.iter().any(|x| !x.is_finite()) {
                return Err(NotFinite { row: index });
            }
            self.add_products(row, &mut sums);
            for (query, sum) in sums.iter_mut().enumerate() {
                // −0 would rank below 0.
                let score = std::mem::take(sum) as f32 + 0.0;
                if score >= sink.least_score(query) && sink.wants(query, index) {
                    sink.offer(query, Neighbour { index, score });
                }
            }
        }
        Ok(())
    }

    /// Adds the dot products of a row and each query to `sums`.
    fn add_products(&self, row: SparseRow, sums: &mut [f64]) {
        for (index, value) in row.indices.iter().zip(row.values) {
            for (query, element) in &self.elements[self.elements_of(*index as usize)] {
                sums[*query as usize] += f64::from(*element) * f64::from(*value);
            }
        }
    }

    /// The range of the elements of a dimension.
    fn elements_of(&self, dimension: usize) -> Range<usize> {
        let end = |dimension: usize| self.ends[dimension];
        match dimension {
            _ if dimension >= self.ends.len() => 0..0,
            0 => 0..end(0),
            _ => end(dimension - 1)..end(dimension),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SparseRow, SparseScorer};
    use crate::neighbours::{Block, Elements, Nearest};

    #[test]
    fn common_dimensions_are_multiplied() {
        let queries = [
            SparseRow { indices: &[0, 7], values: &[2.0, 0.5] },
            SparseRow { indices: &[], values: &[] },
            SparseRow { indices: &[3], values: &[-1.0] },
        ];
        let scorer = SparseScorer::new(&queries).unwrap();
        let elements = Elements::Sparse { indices: &[7, 9, 0, 3, 7], values: &[4.0, 1.0, 1.0, 5.0, 2.0] };
        let block = Block { first_row: 10, rows: 3, lengths: &[2, 0, 3], dimensions: 0, elements };
        let nearest = Nearest::new(3, 3, None);
        scorer.scan(&block, &nearest).unwrap();
        let found: Vec<Vec<(usize, f32)>> = (nearest.into_sorted().iter())
            .map(|found| found.iter().map(|neighbour| (neighbour.index, neighbour.score)).collect())
            .collect();
        assert_eq!(found[0], [(12, 3.0), (10, 2.0), (11, 0.0)]);
        assert_eq!(found[1], [(10, 0.0), (11, 0.0), (12, 0.0)]);
        assert_eq!(found[2], [(10, 0.0), (11, 0.0), (12, -5.0)]);
    }

    #[test]
    fn values_that_are_not_finite_are_named() {
        let nan = [SparseRow { indices: &[1], values: &[f32::NAN] }];
        assert_eq!(SparseScorer::new(&nan).unwrap_err().row, 0);
        let scorer = SparseScorer::new(&[SparseRow { indices: &[1], values: &[1.0] }]).unwrap();
        let elements = Elements::Sparse { indices: &[1, 5], values: &[1.0, f32::INFINITY] };
        let block = Block { first_row: 4, rows: 2, lengths: &[1, 1], dimensions: 9, elements };
        assert_eq!(scorer.scan(&block, &Nearest::new(1, 1, None)).unwrap_err().row, 5);
    }
}
