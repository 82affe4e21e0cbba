//! The best pairs of rows.

use super::order::descending;
use super::sink::Neighbour;

/// Two rows with their score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pair {
    /// The lower row index.
    pub a: usize,
    /// The greater row index.
    pub b: usize,
    /// Their score by the metric.
    pub score: f32,
}

impl Pair {
    /// The order of rank: greater scores first, equal scores by lower rows.
    fn rank(&self) -> impl Ord + use<> {
        (descending(self.score), self.a, self.b)
    }
}

/// The best pairs among the neighbours of rows, each pair once.
#[derive(Debug)]
pub struct TopPairs {
    max_pairs: usize,
    /// Up to twice `max_pairs` pairs, some of them twice: both rows of a pair may be a neighbour of the
    /// other.
    pairs: Vec<Pair>,
    least: Option<f32>,
}

impl TopPairs {
    /// Keeps up to `max_pairs` pairs.
    pub fn new(max_pairs: usize) -> Self {
        TopPairs { max_pairs, pairs: Vec::new(), least: None }
    }

    /// The least score of a pair that is still taken, once there are `max_pairs`.
    pub fn least_score(&self) -> Option<f32> {
        self.least
    }

    /// Adds the neighbours of consecutive rows.
    pub fn add(&mut self, first_row: usize, neighbours: Vec<Vec<Neighbour>>) {
        for (row, neighbours) in (first_row..).zip(neighbours) {
            let taken = neighbours.iter().filter(|found| self.least.is_none_or(|least| found.score >= least));
            let pair = |found: &Neighbour| {
                let (a, b) = (row.min(found.index), row.max(found.index));
                Pair { a, b, score: found.score }
            };
            self.pairs.extend(taken.map(pair));
            if self.pairs.len() / 2 > self.max_pairs {
                self.drop_worst();
            }
        }
        self.drop_worst();
    }

    /// Drops pairs that are there twice, and the worst beyond `max_pairs`.
    fn drop_worst(&mut self) {
        // A score has the same bits whichever row is the query, so that equal pairs are neighbours here.
        self.pairs.sort_unstable_by_key(Pair::rank);
        self.pairs.dedup();
        self.pairs.truncate(self.max_pairs);
        if self.pairs.len() == self.max_pairs {
            self.least = self.pairs.last().map(|last| last.score);
        }
    }

    /// The pairs, best first; equal scores by lower rows.
    pub fn into_sorted(mut self) -> Vec<Pair> {
        self.drop_worst();
        self.pairs
    }
}
