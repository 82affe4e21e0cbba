//! Connected components of the rows whose scores reach a threshold.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::sink::{Neighbour, Sink};

/// The component of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Membership {
    /// Number of the component, counted from 0 in the order of their first rows.
    pub component: usize,
    /// Whether the row is the first of its component.
    pub is_first: bool,
}

/// Components of rows that are connected by pairs with scores of at least a threshold: a union-find forest
/// that several threads join trees of. The queries are consecutive rows of the file.
#[derive(Debug)]
pub struct Components {
    threshold: f32,
    first_query_row: usize,
    /// A lower row of the same component, or the row itself.
    parents: Vec<AtomicUsize>,
}

impl Components {
    /// Every row alone.
    pub fn new(rows: usize, threshold: f32) -> Self {
        let parents = (0..rows).map(AtomicUsize::new).collect();
        Components { threshold, first_query_row: 0, parents }
    }

    /// Sets the row that the first query is.
    pub fn set_queries(&mut self, first_row: usize) {
        self.first_query_row = first_row;
    }

    /// The root of the tree of a row, which is its lowest row so far. Halves the path on the way.
    fn root(&self, mut row: usize) -> usize {
        loop {
            let parent = self.parents[row].load(Relaxed);
            if parent == row {
                return row;
            }
            let above = self.parents[parent].load(Relaxed);
            // Another thread may have changed the parent, but only to an ancestor of it.
            let _ = self.parents[row].compare_exchange(parent, above, Relaxed, Relaxed);
            row = above;
        }
    }

    fn join(&self, a: usize, b: usize) {
        let (mut a, mut b) = (self.root(a), self.root(b));
        while a != b {
            let (low, high) = (a.min(b), a.max(b));
            // Fails if another thread has joined the tree of `high` to another one meanwhile.
            if self.parents[high].compare_exchange(high, low, Relaxed, Relaxed).is_ok() {
                return;
            }
            (a, b) = (self.root(low), self.root(high));
        }
    }

    /// The component of every row.
    pub fn memberships(&self) -> Vec<Membership> {
        let mut components: Vec<Membership> = Vec::with_capacity(self.parents.len());
        let mut count = 0;
        for row in 0..self.parents.len() {
            let root = self.root(row);
            let is_first = root == row;
            components.push(Membership {
                component: if is_first { count } else { components[root].component },
                is_first,
            });
            count += usize::from(is_first);
        }
        components
    }
}

impl Sink for Components {
    fn least_score(&self, _: usize) -> f32 {
        self.threshold
    }

    fn wants(&self, query: usize, row: usize) -> bool {
        self.root(self.first_query_row + query) != self.root(row)
    }

    fn offer(&self, query: usize, neighbour: Neighbour) {
        if neighbour.score >= self.threshold {
            self.join(self.first_query_row + query, neighbour.index);
        }
    }
}
