//! The comparison of vectors with their references, as numbers.

use rayon::prelude::*;

use crate::neighbours::Similarity;

/// Nearest neighbours of a row that are compared.
const NEIGHBOURS: usize = 10;
/// Maximum number of rows whose neighbours are compared: evenly spaced ones, if there are more. All rows are
/// candidates.
const MAX_QUERIES: usize = 1000;
/// Relative difference below which two similarities are a tie: that of f32 sums of a different order.
const TIE: f64 = 1e-6;

/// A value and the row that has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AtRow {
    /// The value.
    pub value: f64,
    /// The index of the row, from 0.
    pub row: usize,
}

/// How much vectors differ from their references.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// The largest absolute difference of two elements.
    pub max_difference: AtRow,
    /// The least cosine of a vector with its reference.
    pub min_cosine: AtRow,
    /// The mean cosine.
    pub mean_cosine: f64,
    /// The share of the nearest neighbours that are the same. `None` if every row is a neighbour of every
    /// other one.
    pub neighbours: Option<f64>,
}

impl Comparison {
    /// Compares vectors, of which there is at least one. Nearest neighbours are the rows with the greatest
    /// similarity.
    pub fn new(found: &[Vec<f32>], reference: &[Vec<f32>], function: Similarity) -> Self {
        let mut comparison = Comparison {
            max_difference: AtRow { value: 0.0, row: 0 },
            min_cosine: AtRow { value: f64::INFINITY, row: 0 },
            mean_cosine: 0.0,
            neighbours: common_neighbours(found, reference, function),
        };
        for (row, (found, reference)) in found.iter().zip(reference).enumerate() {
            let differences = found.iter().zip(reference).map(|(x, y)| (f64::from(*x) - f64::from(*y)).abs());
            let difference = differences.fold(0.0, f64::max);
            // Also for vectors of zeros, whose cosine is 0.
            let cosine =
                if found == reference { 1.0 } else { Similarity::Cosine.of_vectors(found, reference) };
            if difference > comparison.max_difference.value {
                comparison.max_difference = AtRow { value: difference, row };
            }
            if cosine < comparison.min_cosine.value {
                comparison.min_cosine = AtRow { value: cosine, row };
            }
            comparison.mean_cosine += cosine;
        }
        comparison.mean_cosine /= found.len() as f64;
        comparison
    }
}

/// The mean share of a row's nearest neighbours by `found` that are among its nearest neighbours by
/// `reference`. Rows that are as near as the last neighbour count as neighbours, so that equal texts do not
/// matter.
fn common_neighbours(found: &[Vec<f32>], reference: &[Vec<f32>], function: Similarity) -> Option<f64> {
    let rows = reference.len();
    if rows <= NEIGHBOURS + 1 {
        return None;
    }
    let queries = rows.min(MAX_QUERIES);
    let common = |query: usize| {
        let query = query * rows / queries;
        let scores = |vectors: &[Vec<f32>]| -> Vec<f64> {
            vectors.iter().map(|other| function.of_vectors(&vectors[query], other)).collect()
        };
        let by_reference = scores(reference);
        let last = by_reference[nearest(&by_reference, query)[NEIGHBOURS - 1]];
        let least = last - TIE * last.abs().max(1.0);
        nearest(&scores(found), query).iter().filter(|row| by_reference[**row] >= least).count()
    };
    let common: usize = (0..queries).into_par_iter().map(common).sum();
    Some(common as f64 / (NEIGHBOURS * queries) as f64)
}

/// The rows with the greatest scores but for the query itself, the nearest one first.
fn nearest(scores: &[f64], query: usize) -> Vec<usize> {
    let mut rows: Vec<usize> = (0..scores.len()).filter(|row| *row != query).collect();
    let by_score = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
    rows.select_nth_unstable_by(NEIGHBOURS - 1, by_score);
    rows.truncate(NEIGHBOURS);
    rows.sort_unstable_by(by_score);
    rows
}

#[cfg(test)]
mod tests {
    use super::{AtRow, Comparison};
    use crate::neighbours::Similarity;

    /// Points on a half circle, all of whose neighbours are known.
    fn arc(rows: usize, step: f32) -> Vec<Vec<f32>> {
        (0..rows).map(|row| (row as f32 * step).sin_cos()).map(|(y, x)| vec![x, y]).collect()
    }

    #[test]
    fn equal_vectors_do_not_differ() {
        let vectors = [arc(30, 0.1), vec![vec![0.0; 2]]].concat();
        let found = Comparison::new(&vectors, &vectors, Similarity::Cosine);
        assert_eq!(found.max_difference.value, 0.0);
        assert_eq!((found.min_cosine.value, found.mean_cosine, found.neighbours), (1.0, 1.0, Some(1.0)));
    }

    #[test]
    fn the_row_that_differs_most_is_named() {
        let (reference, mut found) = (arc(30, 0.1), arc(30, 0.1));
        found[7][1] += 0.25;
        found[9] = vec![-found[9][0], -found[9][1]];
        let compared = Comparison::new(&found, &reference, Similarity::Cosine);
        assert_eq!(compared.min_cosine.row, 9);
        assert!((compared.min_cosine.value + 1.0).abs() < 1e-6);
        assert_eq!(compared.max_difference.row, 9);
        found[9] = reference[9].clone();
        let compared = Comparison::new(&found, &reference, Similarity::Cosine);
        assert_eq!(compared.max_difference.row, 7);
        assert!((compared.max_difference.value - 0.25).abs() < 1e-6);
    }

    #[test]
    fn other_neighbours_are_counted_and_ties_are_not() {
        let reference = arc(40, 0.05);
        let mut reversed = reference.clone();
        // The neighbours of a row are now those of its mirror image: the same rows only in the middle.
        reversed[..20].rotate_left(10);
        let share = Comparison::new(&reversed, &reference, Similarity::Dot).neighbours.unwrap();
        assert!(share < 0.9, "{share}");
        let equal = vec![vec![1.0, 2.0]; 30];
        assert_eq!(Comparison::new(&equal, &equal, Similarity::Dot).neighbours, Some(1.0));
        let few = arc(11, 0.1);
        let compared = Comparison::new(&few, &few, Similarity::Dot);
        assert_eq!(compared.neighbours, None);
        assert_eq!(compared.max_difference, AtRow { value: 0.0, row: 0 });
    }
}
