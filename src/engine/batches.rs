//! Groups sequences into ragged batches by their lengths. Pure: lengths in, batches out.
//!
//! A ragged batch has no padding, so sequences of different lengths share one at no cost.

use std::cmp::Reverse;

/// Groups sequences of these `lengths`, in tokens, into batches of at most `max_tokens` tokens. A sequence of
/// `max_tokens` or more is a batch of its own. The others are divided into batches with about the same number
/// of tokens, and into a multiple of the workers that are left, as long as there are enough sequences: all of
/// `workers` are then busy for about the same time.
///
/// Returns the indices of the sequences in each batch, in ascending order. The longest sequences are assigned
/// first, each to the batch with the fewest tokens so far (Graham 1969).
pub fn balanced_batches(lengths: &[usize], max_tokens: usize, workers: usize) -> Vec<Vec<usize>> {
    let mut longest_first: Vec<usize> = (0..lengths.len()).collect();
    longest_first.sort_by_key(|&sequence| Reverse(lengths[sequence]));
    let long_count = longest_first.partition_point(|&sequence| lengths[sequence] >= max_tokens);
    let (long, rest) = longest_first.split_at(long_count);
    let rest_tokens: usize = rest.iter().map(|&sequence| lengths[sequence]).sum();
    let workers = workers.saturating_sub(long.len()).max(1);
    let mut count = rest_tokens.div_ceil(max_tokens).next_multiple_of(workers).min(rest.len());
    let batches = loop {
        match assign(rest, lengths, count, max_tokens) {
            Some(batches) => break batches,
            None => count += 1,
        }
    };
    long.iter().map(|&sequence| vec![sequence]).chain(batches).collect()
}

/// Assigns sequences, the longest first, to `count` batches. Returns `None` if a batch would exceed
/// `max_tokens`.
fn assign(
    longest_first: &[usize],
    lengths: &[usize],
    count: usize,
    max_tokens: usize,
) -> Option<Vec<Vec<usize>>> {
    let mut batches = vec![(0, Vec::new()); count];
    for &sequence in longest_first {
        let (tokens, batch) = batches.iter_mut().min_by_key(|(tokens, _)| *tokens)?;
        *tokens += lengths[sequence];
        if *tokens > max_tokens {
            return None;
        }
        batch.push(sequence);
    }
    Some(
        batches
            .into_iter()
            .map(|(_, mut batch)| {
                batch.sort_unstable();
                batch
            })
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::balanced_batches;

    #[test]
    fn batches_are_balanced_and_within_the_limit() {
        let lengths: Vec<usize> = (0..500).map(|i| 3 + i * 37 % 90).collect();
        let total: usize = lengths.iter().sum();
        let batches = balanced_batches(&lengths, 1000, 1);
        assert_eq!(batches.len(), total.div_ceil(1000));
        let tokens = |batch: &Vec<usize>| batch.iter().map(|&sequence| lengths[sequence]).sum::<usize>();
        let sizes: Vec<usize> = batches.iter().map(tokens).collect();
        let (min, max) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*max <= 1000 && max - min <= 10, "{sizes:?}");
        let mut sequences = batches.concat();
        sequences.sort_unstable();
        assert!(sequences.into_iter().eq(0..500), "every sequence is in one batch");
        assert!(batches.iter().all(|batch| batch.is_sorted()));
    }

    #[test]
    fn sequences_that_cannot_be_balanced_take_one_more_batch() {
        assert_eq!(balanced_batches(&[6, 6, 6], 9, 1), [[0], [1], [2]]);
    }

    #[test]
    fn a_sequence_over_the_limit_is_a_batch_of_its_own() {
        assert_eq!(balanced_batches(&[2, 9, 2], 4, 2), [vec![1], vec![0, 2]]);
    }

    #[test]
    fn every_worker_gets_the_same_number_of_batches_if_there_are_enough_sequences() {
        assert_eq!(balanced_batches(&[2; 21], 10, 4).len(), 8);
        assert_eq!(balanced_batches(&[3, 5, 3], 100, 2), [vec![1], vec![0, 2]]);
        assert_eq!(balanced_batches(&[3], 100, 2), [[0]]);
        assert_eq!(balanced_batches(&[300, 3, 3], 100, 3), [[0], [1], [2]]);
    }

    #[test]
    fn no_sequences_make_no_batches() {
        assert!(balanced_batches(&[], 4, 2).is_empty());
    }
}
