//! Tables by position, which batches share.

use std::sync::{Mutex, PoisonError};

use anyhow::Result;

/// A table whose entries depend on nothing but the position: it is computed again only for a longer sequence
/// than any before.
pub(super) struct GrownTable<T> {
    /// The length that the table is kept up to.
    max_length: usize,
    /// The longest table so far, with its length. The lock is taken once a batch.
    kept: Mutex<Option<(usize, T)>>,
}

/// Elements of the largest table that is kept.
const MAX_ELEMENTS: usize = 1 << 20;

impl<T: Clone> GrownTable<T> {
    /// An empty table with this number of `elements` for each position.
    pub(super) fn new(elements: usize) -> Self {
        GrownTable { max_length: MAX_ELEMENTS / elements.max(1), kept: Mutex::new(None) }
    }

    /// A table for sequences of up to `length` tokens, or for longer ones. `compute` makes one for a length.
    ///
    /// # Errors
    /// Those of `compute`.
    pub(super) fn get(&self, length: usize, compute: impl FnOnce(usize) -> Result<T>) -> Result<T> {
        if length > self.max_length {
            return compute(length);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, table)) = kept.as_ref().filter(|(kept, _)| *kept >= length) {
            return Ok(table.clone());
        }
        // Twice as long, so that batches that grow slowly do not compute it each time.
        let grown = length.next_power_of_two().min(self.max_length);
        let table = compute(grown)?;
        *kept = Some((grown, table.clone()));
        Ok(table)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_table_is_computed_once_until_a_sequence_is_longer() {
        let (table, computed) = (GrownTable::new(MAX_ELEMENTS / 100), Cell::new(0));
        let length_of = |length| {
            let compute = |length| {
                computed.set(computed.get() + 1);
                Ok(length)
            };
            (table.get(length, compute).unwrap(), computed.get())
        };
        let asked = [5, 8, 1, 9, 16, 3, 70, 100, 101, 300, 100];
        let found = asked.map(length_of);
        let expected = [
            (8, 1),
            (8, 1),
            (8, 1),
            (16, 2),
            (16, 2),
            (16, 2),
            (100, 3),
            (100, 3),
            (101, 4),
            (300, 5),
            (100, 5),
        ];
        assert_eq!(found, expected);
    }
}
