//! What takes the neighbours that a scan finds.

use std::collections::HashSet;

use super::order::descending;

/// A stored vector with its score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbour {
    /// Index of its row in the file.
    pub index: usize,
    /// Its score by the metric.
    pub score: f32,
}

impl Neighbour {
    /// Its place among others: greater scores first, equal scores by lower index.
    pub fn rank(&self) -> impl Ord + use<> {
        (descending(self.score), self.index)
    }
}

/// Takes the neighbours that a [`Scorer`](super::Scorer) finds, from several threads.
pub trait Sink: Sync {
    /// The least score that matters for a query. It may rise in the course of a scan, but never fall.
    fn least_score(&self, query: usize) -> f32;
    /// Whether the score of a query and a row of the file is needed.
    fn wants(&self, query: usize, row: usize) -> bool;
    /// Takes a score. It may be below the least one.
    fn offer(&self, query: usize, neighbour: Neighbour);
}

/// A sink that takes no neighbours of some queries, such as rows without a vector.
pub struct Except<'a, S> {
    /// Takes the neighbours of the other queries.
    pub sink: &'a S,
    /// The queries without neighbours.
    pub queries: &'a HashSet<usize>,
}

impl<S: Sink> Sink for Except<'_, S> {
    fn least_score(&self, query: usize) -> f32 {
        if self.queries.contains(&query) { f32::INFINITY } else { self.sink.least_score(query) }
    }

    fn wants(&self, query: usize, row: usize) -> bool {
        !self.queries.contains(&query) && self.sink.wants(query, row)
    }

    fn offer(&self, query: usize, neighbour: Neighbour) {
        self.sink.offer(query, neighbour);
    }
}
