//! Which texts go together into a batch. Pure: lengths in, batches out.

use std::ops::Range;

/// Deals texts of these lengths out to batches of at most `batch_tokens` tokens each, all about as large: so many that each
/// of `workers` gets as many as the others, where there are so many texts. A text that is longer by itself makes a batch of its
/// own. Batches are ragged, so texts of unlike lengths cost nothing when they share one; even batches keep workers equally
/// busy.
///
/// Gives the texts of each batch in input order. The longest come first, each into the batch with the fewest tokens
/// so far (Graham 1969).
pub fn plan(lengths: &[usize], batch_tokens: usize, workers: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&text| std::cmp::Reverse(lengths[text]));
    let alone = order.partition_point(|&text| lengths[text] >= batch_tokens);
    let (long, rest) = order.split_at(alone);
    let total: usize = rest.iter().map(|&text| lengths[text]).sum();
    let workers = workers.saturating_sub(long.len()).max(1);
    let mut count = total.div_ceil(batch_tokens).next_multiple_of(workers).min(rest.len());
    let dealt = loop {
        match deal(rest, lengths, count, batch_tokens) {
            Some(batches) => break batches,
            None => count += 1,
        }
    };
    long.iter().map(|&text| vec![text]).chain(dealt).collect()
}

/// Deals texts, the longest first, to `count` batches; nothing if one would have more than `batch_tokens`.
fn deal(texts: &[usize], lengths: &[usize], count: usize, batch_tokens: usize) -> Option<Vec<Vec<usize>>> {
    let mut batches = vec![(0, Vec::new()); count];
    for &text in texts {
        let (tokens, batch) = batches.iter_mut().min_by_key(|(tokens, _)| *tokens)?;
        *tokens += lengths[text];
        if *tokens > batch_tokens {
            return None;
        }
        batch.push(text);
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

/// Cuts sequences of these lengths, in their order, into runs of at most `batch_tokens` tokens in all. A sequence that
/// is longer by itself makes a run of its own.
pub fn runs(lengths: &[usize], batch_tokens: usize) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, &length) in lengths.iter().enumerate() {
        if i > start && tokens + length > batch_tokens {
            runs.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += length;
    }
    if start < lengths.len() {
        runs.push(start..lengths.len());
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::{plan, runs};

    #[test]
    fn batches_are_even_and_within_the_budget() {
        let lengths: Vec<usize> = (0..500).map(|i| 3 + i * 37 % 90).collect();
        let total: usize = lengths.iter().sum();
        let batches = plan(&lengths, 1000, 1);
        assert_eq!(batches.len(), total.div_ceil(1000));
        let tokens = |batch: &Vec<usize>| batch.iter().map(|&text| lengths[text]).sum::<usize>();
        let sizes: Vec<usize> = batches.iter().map(tokens).collect();
        let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
        assert!(*most <= 1000 && most - least <= 10, "{sizes:?}");
        let mut texts = batches.concat();
        texts.sort_unstable();
        assert!(texts.into_iter().eq(0..500), "every text once");
        assert!(batches.iter().all(|batch| batch.is_sorted()));
    }

    #[test]
    fn what_does_not_fit_evenly_takes_one_more() {
        assert_eq!(plan(&[6, 6, 6], 9, 1), [[0], [1], [2]]);
    }

    #[test]
    fn a_text_over_the_budget_stands_alone() {
        assert_eq!(plan(&[2, 9, 2], 4, 2), [vec![1], vec![0, 2]]);
        assert_eq!(runs(&[2, 9, 2], 4), [0..1, 1..2, 2..3]);
        assert_eq!(runs(&[9], 4).len(), 1);
    }

    #[test]
    fn every_worker_gets_as_many_batches_where_there_are_texts() {
        assert_eq!(plan(&[2; 21], 10, 4).len(), 8);
        assert_eq!(plan(&[3, 5, 3], 100, 2), [vec![1], vec![0, 2]]);
        assert_eq!(plan(&[3], 100, 2), [[0]]);
        assert_eq!(plan(&[300, 3, 3], 100, 3), [[0], [1], [2]]);
    }

    #[test]
    fn runs_keep_their_order() {
        assert_eq!(runs(&[3, 4, 5, 1, 1], 7), [0..2, 2..5]);
    }

    #[test]
    fn no_texts_no_batches() {
        assert!(plan(&[], 4, 2).is_empty());
        assert!(runs(&[], 4).is_empty());
    }
}
