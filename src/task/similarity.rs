//! Similarities of two vectors.

use std::cmp::Ordering;

use crate::model::modules::Similarity;
use crate::named::Named;
use crate::neighbours::{MaxSim, MaxSimBuffer};
use crate::output::SparseVector;

/// The vector of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum TextVector {
    /// A dense vector, or those of the tokens of the text in a multi-vector model, concatenated.
    Dense(Vec<f32>),
    /// A sparse vector.
    Sparse(SparseVector),
}

impl TextVector {
    /// The elements, unless it is sparse.
    pub fn dense(&self) -> Option<&Vec<f32>> {
        match self {
            TextVector::Dense(vector) => Some(vector),
            TextVector::Sparse(_) => None,
        }
    }

    /// The elements, if it is sparse.
    pub fn sparse(&self) -> Option<&SparseVector> {
        match self {
            TextVector::Dense(_) => None,
            TextVector::Sparse(vector) => Some(vector),
        }
    }
}

/// A text or query that others are compared with.
#[derive(Debug)]
pub enum Compared {
    /// The vector of a text.
    Vector(Similarity, Vec<f32>),
    /// The vectors of a query's tokens.
    Tokens(MaxSim),
    /// The sparse vector of a text.
    Sparse(SparseVector),
}

impl Compared {
    /// The similarity of a text with this vector, or with these vectors of tokens.
    ///
    /// # Panics
    /// If one is sparse and the other is not.
    pub fn similarity(&self, vector: &TextVector) -> f32 {
        match (self, vector) {
            (Compared::Vector(function, own), TextVector::Dense(vector)) => {
                similarity(*function, own, vector) as f32
            }
            (Compared::Tokens(query), TextVector::Dense(vector)) => {
                query.score(vector, &mut MaxSimBuffer::default())
            }
            (Compared::Sparse(own), TextVector::Sparse(vector)) => sparse_dot(own, vector) as f32,
            _ => panic!("the vectors are of different models"),
        }
    }
}

/// The name of the similarity function of sparse vectors, which sentence-transformers' `SparseEncoder` has by default.
pub fn sparse_similarity_name() -> &'static str {
    Similarity::Dot.name()
}

/// The dot product of two sparse vectors: the sum over their common dimensions, ascending, in f64.
fn sparse_dot(a: &SparseVector, b: &SparseVector) -> f64 {
    let (mut i, mut j, mut sum) = (0, 0, 0.0);
    while let (Some(left), Some(right)) = (a.indices.get(i), b.indices.get(j)) {
        match left.cmp(right) {
            Ordering::Less => i += 1,
            Ordering::Greater => j += 1,
            Ordering::Equal => {
                sum += f64::from(a.values[i]) * f64::from(b.values[j]);
                (i, j) = (i + 1, j + 1);
            }
        }
    }
    sum
}

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
    use super::{similarity, sparse_dot};
    use crate::model::modules::Similarity::{Cosine, Dot, Euclidean, Manhattan};
    use crate::output::SparseVector;

    #[test]
    fn all_elements_are_counted() {
        let (a, b): (Vec<f32>, Vec<f32>) = ((0..19).map(|i| i as f32).collect(), vec![2.0; 19]);
        assert_eq!(similarity(Dot, &a, &b), 342.0);
        assert_eq!(similarity(Manhattan, &a, &b), -139.0);
        assert_eq!(similarity(Euclidean, &[3.0, 0.0], &[0.0, 4.0]), -5.0);
        assert!((similarity(Cosine, &[1.0, 1.0], &[5.0, 0.0]) - 0.5f64.sqrt()).abs() < 1e-15);
    }

    #[test]
    fn common_dimensions_of_sparse_vectors_are_multiplied() {
        let vector = |indices: &[u32], values: &[f32]| SparseVector {
            indices: indices.into(),
            values: values.into(),
            tokens: Vec::new(),
        };
        let (a, b) = (vector(&[1, 4, 9], &[2.0, 3.0, 5.0]), vector(&[0, 4, 8, 9], &[1.0, 0.5, 1.0, 2.0]));
        assert_eq!((sparse_dot(&a, &b), sparse_dot(&b, &a)), (11.5, 11.5));
        assert_eq!(sparse_dot(&a, &vector(&[], &[])), 0.0);
    }

    #[test]
    fn zeros_have_a_cosine_of_zero_and_equal_vectors_a_distance_of_zero() {
        assert_eq!(similarity(Cosine, &[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!(similarity(Euclidean, &[1.0], &[1.0]).is_sign_positive());
        assert!(similarity(Manhattan, &[1.0], &[1.0]).is_sign_positive());
    }
}
