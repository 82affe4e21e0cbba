//! Similarities of two vectors.

use std::cmp::Ordering;

use crate::model::modules::Similarity;
use crate::neighbours::{MaxSim, MaxSimBuffer};
use crate::output::{Content, SparseVector, StoredVector, VectorValues};

/// The vector of a text.
#[derive(Debug, Clone, PartialEq)]
pub enum TextVector {
    /// A dense vector, or those of the tokens of the text in a multi-vector model, concatenated.
    Dense(Vec<f32>),
    /// A sparse vector.
    Sparse(SparseVector),
}

impl TextVector {
    /// A copy of the vector of a row, which holds it as it was computed.
    pub fn of(content: &Content) -> Option<Self> {
        match content {
            Content::Vector(StoredVector { values: VectorValues::F32(values), .. }) => {
                Some(TextVector::Dense(values.clone()))
            }
            Content::Sparse(vector) => Some(TextVector::Sparse((**vector).clone())),
            _ => None,
        }
    }

    /// The elements, unless it is sparse.
    pub fn dense(&self) -> Option<&Vec<f32>> {
        match self {
            TextVector::Dense(vector) => Some(vector),
            TextVector::Sparse(_) => None,
        }
    }

    /// The elements, unless it is sparse.
    pub fn into_dense(self) -> Option<Vec<f32>> {
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
    Sparse(Similarity, SparseVector),
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
            (Compared::Sparse(function, own), TextVector::Sparse(vector)) => {
                sparse_similarity(*function, own, vector) as f32
            }
            _ => panic!("the vectors are of different models"),
        }
    }
}

/// The similarity of two sparse vectors, as [`similarity`] of the same vectors with their zeros.
fn sparse_similarity(function: Similarity, a: &SparseVector, b: &SparseVector) -> f64 {
    let sum = |term: fn(f64, f64) -> f64| sparse_sum(a, b, term);
    of_sums(function, sum)
}

/// The sum of a term over the dimensions of which one of two sparse vectors has an element, ascending, in f64. The term of two zeros is 0.
fn sparse_sum(a: &SparseVector, b: &SparseVector, term: fn(f64, f64) -> f64) -> f64 {
    let (mut i, mut j, mut sum) = (0, 0, 0.0);
    loop {
        let (left, right) = (a.indices.get(i), b.indices.get(j));
        let order = match (left, right) {
            (None, None) => return sum,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(left), Some(right)) => left.cmp(right),
        };
        let (has_left, has_right) = (order.is_le(), order.is_ge());
        let value = |vector: &SparseVector, i: usize, is_there: bool| {
            if is_there { f64::from(vector.values[i]) } else { 0.0 }
        };
        sum += term(value(a, i, has_left), value(b, j, has_right));
        (i, j) = (i + usize::from(has_left), j + usize::from(has_right));
    }
}

/// The similarity of two vectors of the same dimensions, as sentence-transformers defines it: distances are negative, and the cosine with
/// a vector of zeros is 0. Sums are f64.
pub fn similarity(function: Similarity, a: &[f32], b: &[f32]) -> f64 {
    of_sums(function, |term| sum(a, b, term))
}

/// The similarity of two vectors, given the sum of a term over the pairs of their elements.
fn of_sums(function: Similarity, sum: impl Fn(fn(f64, f64) -> f64) -> f64) -> f64 {
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
    use super::{similarity, sparse_similarity};
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
    fn sparse_vectors_are_compared_like_dense_ones() {
        let vector = |indices: &[u32], values: &[f32]| SparseVector {
            indices: indices.into(),
            values: values.into(),
            tokens: Vec::new(),
        };
        let (a, b) = (vector(&[1, 4, 9], &[2.0, 3.0, 5.0]), vector(&[0, 4, 8, 9], &[1.0, 0.5, 1.0, 2.0]));
        let dense = |vector: &SparseVector| {
            let mut dense = vec![0.0; 10];
            let elements = vector.indices.iter().zip(&vector.values);
            elements.for_each(|(index, value)| dense[*index as usize] = *value);
            dense
        };
        for function in [Cosine, Dot, Euclidean, Manhattan] {
            let expected = similarity(function, &dense(&a), &dense(&b));
            assert!((sparse_similarity(function, &a, &b) - expected).abs() < 1e-12, "{function:?}");
            assert!((sparse_similarity(function, &b, &a) - expected).abs() < 1e-12, "{function:?}");
        }
        assert_eq!(sparse_similarity(Dot, &a, &b), 11.5);
        assert_eq!(sparse_similarity(Dot, &a, &vector(&[], &[])), 0.0);
        assert_eq!(sparse_similarity(Cosine, &a, &vector(&[], &[])), 0.0);
        assert_eq!(sparse_similarity(Manhattan, &a, &vector(&[], &[])), -10.0);
    }

    #[test]
    fn zeros_have_a_cosine_of_zero_and_equal_vectors_a_distance_of_zero() {
        assert_eq!(similarity(Cosine, &[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!(similarity(Euclidean, &[1.0], &[1.0]).is_sign_positive());
        assert!(similarity(Manhattan, &[1.0], &[1.0]).is_sign_positive());
    }
}
