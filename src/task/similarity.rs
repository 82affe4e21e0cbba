//! Similarities of two vectors.

use crate::model::modules::Similarity;

/// The similarity of two vectors of the same dimensions, as sentence-transformers defines it: distances are negative, and the cosine with
/// a vector of zeros is 0. Sums are f64.
pub fn similarity(function: Similarity, a: &[f32], b: &[f32]) -> f64 {
    let sum = |term: fn(f64, f64) -> f64| sum(a, b, term);
    match function {
        Similarity::Dot => sum(|x, y| x * y),
        // Of zero, not negated: equal vectors have a distance of 0, not −0.
        Similarity::Euclidean => 0.0 - sum(|x, y| (x - y) * (x - y)).sqrt(),
        Similarity::Manhattan => 0.0 - sum(|x, y| (x - y).abs()),
        Similarity::Cosine => {
            let norms = (sum(|x, _| x * x) * sum(|_, y| y * y)).sqrt();
            if norms > 0.0 { (sum(|x, y| x * y) / norms).clamp(-1.0, 1.0) } else { 0.0 }
        }
    }
}

/// The sum of a term over the pairs of elements, in several accumulators.
fn sum(a: &[f32], b: &[f32], term: impl Fn(f64, f64) -> f64) -> f64 {
    const ACCUMULATORS: usize = 8;
    let mut sums = [0.0; ACCUMULATORS];
    for (a, b) in a.chunks(ACCUMULATORS).zip(b.chunks(ACCUMULATORS)) {
        for (sum, (x, y)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += term(f64::from(*x), f64::from(*y));
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::similarity;
    use crate::model::modules::Similarity::{Cosine, Dot, Euclidean, Manhattan};

    #[test]
    fn all_elements_are_counted() {
        let (a, b): (Vec<f32>, Vec<f32>) = ((0..19).map(|i| i as f32).collect(), vec![2.0; 19]);
        assert_eq!(similarity(Dot, &a, &b), 342.0);
        assert_eq!(similarity(Manhattan, &a, &b), -139.0);
        assert_eq!(similarity(Euclidean, &[3.0, 0.0], &[0.0, 4.0]), -5.0);
        assert!((similarity(Cosine, &[1.0, 1.0], &[5.0, 0.0]) - 0.5f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn zeros_have_a_cosine_of_zero_and_equal_vectors_a_distance_of_zero() {
        assert_eq!(similarity(Cosine, &[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!(similarity(Euclidean, &[1.0], &[1.0]).is_sign_positive());
        assert!(similarity(Manhattan, &[1.0], &[1.0]).is_sign_positive());
    }
}
