//! The best neighbours of each query.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use super::sink::{Neighbour, Sink};

/// A neighbour in the order of rank.
#[derive(Debug)]
struct Ranked(Neighbour);

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.rank().cmp(&other.0.rank())
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The `k` nearest neighbours of every query that reach a threshold. The result does not depend on the order
/// in which rows are offered, so not on blocks or threads.
#[derive(Debug)]
pub struct Nearest {
    k: usize,
    /// The last in rank on top.
    heaps: Vec<Mutex<BinaryHeap<Ranked>>>,
    /// The least score that a query still takes, as bits: read without the lock, and at most too low.
    least: Vec<AtomicU32>,
    /// The row that the first query is, if the queries are rows of the file.
    first_query_row: Option<usize>,
    /// Whether each row can be a neighbour; `None` if all can.
    among: Option<Arc<[bool]>>,
}

impl Nearest {
    /// For `queries` queries: up to `k` neighbours each (`usize::MAX`: all), with scores of at least
    /// `threshold`.
    pub fn new(queries: usize, k: usize, threshold: Option<f32>) -> Self {
        let least = if k == 0 { f32::INFINITY } else { threshold.unwrap_or(f32::NEG_INFINITY) };
        Nearest {
            k,
            heaps: (0..queries).map(|_| Mutex::new(BinaryHeap::new())).collect(),
            least: (0..queries).map(|_| AtomicU32::new(least.to_bits())).collect(),
            first_query_row: None,
            among: None,
        }
    }

    /// Declares that the queries are consecutive rows of the searched file: a row is no neighbour of itself.
    pub fn excluding_rows_from(mut self, first_row: usize) -> Self {
        self.first_query_row = Some(first_row);
        self
    }

    /// Declares that only those rows are neighbours that `rows` has `true` for.
    pub fn among(mut self, rows: Arc<[bool]>) -> Self {
        self.among = Some(rows);
        self
    }

    /// The neighbours of every query, best first; equal scores by lower index.
    pub fn into_sorted(self) -> Vec<Vec<Neighbour>> {
        let sorted = |heap: Mutex<BinaryHeap<Ranked>>| {
            let heap = heap.into_inner().unwrap_or_else(PoisonError::into_inner);
            heap.into_sorted_vec().into_iter().map(|Ranked(neighbour)| neighbour).collect()
        };
        self.heaps.into_iter().map(sorted).collect()
    }
}

impl Sink for Nearest {
    fn least_score(&self, query: usize) -> f32 {
        f32::from_bits(self.least[query].load(Relaxed))
    }

    fn wants(&self, query: usize, row: usize) -> bool {
        self.first_query_row.is_none_or(|first| first + query != row)
            && self.among.as_ref().is_none_or(|rows| rows.get(row) == Some(&true))
    }

    fn offer(&self, query: usize, neighbour: Neighbour) {
        // Also false if the score is below the threshold, which `least` never falls below.
        if neighbour.score < self.least_score(query) || self.k == 0 || !self.wants(query, neighbour.index) {
            return;
        }
        let mut heap = self.heaps[query].lock().unwrap_or_else(PoisonError::into_inner);
        if heap.len() < self.k {
            heap.push(Ranked(neighbour));
        } else if let Some(mut last) = heap.peek_mut()
            && Ranked(neighbour) < *last
        {
            *last = Ranked(neighbour);
        }
        if heap.len() == self.k {
            let last = heap.peek().map_or(f32::NEG_INFINITY, |last| last.0.score);
            self.least[query].store(last.to_bits(), Relaxed);
        }
    }
}
