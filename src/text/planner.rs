//! Which texts go together into a batch. Pure: lengths in, ranges out.

use std::ops::Range;

/// Cuts texts of these lengths, in their order, into runs of at most `batch_tokens` tokens in all. A text that
/// is longer by itself makes a batch of its own. Batches are ragged, so texts of unlike lengths cost nothing
/// when they share one and the order of input can stay.
pub fn plan(lengths: &[usize], batch_tokens: usize) -> Vec<Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (i, &length) in lengths.iter().enumerate() {
        if i > start && tokens + length > batch_tokens {
            batches.push(start..i);
            (start, tokens) = (i, 0);
        }
        tokens += length;
    }
    if start < lengths.len() {
        batches.push(start..lengths.len());
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::plan;

    #[test]
    fn fills_batches_in_order() {
        assert_eq!(plan(&[3, 4, 5, 1, 1], 7), [0..2, 2..5]);
    }

    #[test]
    fn a_text_over_the_budget_stands_alone() {
        assert_eq!(plan(&[2, 9, 2], 4), [0..1, 1..2, 2..3]);
        assert_eq!(plan(&[9], 4).len(), 1);
    }

    #[test]
    fn no_texts_no_batches() {
        assert!(plan(&[], 4).is_empty());
    }
}
