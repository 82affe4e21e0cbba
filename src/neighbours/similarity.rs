//! The similarity of two texts by what represents them.

use std::cmp::Ordering;

use super::max_sim::{MaxSim, MaxSimBuffer};
use super::metric::Metric;
use super::representation::{Encoded, SparseVector};
use crate::named::names;

/// How texts are compared, by the names of sentence-transformers. Greater is more similar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Similarity {
    /// The cosine of the angle between two vectors.
    #[default]
    Cosine,
    /// The dot product.
    Dot,
    /// The negative Euclidean distance.
    Euclidean,
    /// The negative Manhattan distance.
    Manhattan,
    /// For each token of a query the greatest dot product with a token of the document, summed.
    MaxSim,
    /// The same, divided by the number of query tokens.
    MeanMaxSim,
}

names!(Similarity {
    Cosine => "cosine",
    Dot => "dot",
    Euclidean => "euclidean",
    Manhattan => "manhattan",
    MaxSim => "maxsim",
    MeanMaxSim => "meanmaxsim",
});

impl Similarity {
    /// Those of two vectors. The others are for one vector per token.
    pub const OF_VECTORS: &[Similarity] =
        &[Similarity::Cosine, Similarity::Dot, Similarity::Euclidean, Similarity::Manhattan];

    /// The same as the metric of nearest neighbours, if it is one.
    pub fn metric(self) -> Option<Metric> {
        match self {
            Similarity::Cosine => Some(Metric::Cosine),
            Similarity::Dot => Some(Metric::Dot),
            Similarity::Euclidean => Some(Metric::Euclidean),
            Similarity::Manhattan | Similarity::MaxSim | Similarity::MeanMaxSim => None,
        }
    }

    /// The similarity of two vectors of the same dimensions, as sentence-transformers defines it: distances
    /// are negative, and the cosine with a vector of zeros is 0. Sums are f64.
    pub fn of_vectors(self, a: &[f32], b: &[f32]) -> f64 {
        self.of_sums(|term| sum(a, b, term))
    }

    /// The similarity of two sparse vectors: that of the same vectors with their zeros.
    fn of_sparse(self, a: &SparseVector, b: &SparseVector) -> f64 {
        self.of_sums(|term| sparse_sum(a, b, term))
    }

    /// The similarity of two vectors, given the sum of a term over the pairs of their elements.
    fn of_sums(self, sum: impl Fn(fn(f64, f64) -> f64) -> f64) -> f64 {
        match self {
            // The maximum over one token is its dot product.
            Similarity::Dot | Similarity::MaxSim | Similarity::MeanMaxSim => sum(|x, y| x * y),
            // Of zero, not negated: equal vectors have a distance of 0, not −0.
            Similarity::Euclidean => 0.0 - sum(|x, y| (x - y) * (x - y)).sqrt(),
            Similarity::Manhattan => 0.0 - sum(|x, y| (x - y).abs()),
            Similarity::Cosine => {
                let norms = (sum(|x, _| x * x) * sum(|_, y| y * y)).sqrt();
                if norms > 0.0 { (sum(|x, y| x * y) / norms).clamp(-1.0, 1.0) } else { 0.0 }
            }
        }
    }
}

impl From<Metric> for Similarity {
    fn from(metric: Metric) -> Self {
        match metric {
            Metric::Cosine => Similarity::Cosine,
            Metric::Dot => Similarity::Dot,
            Metric::Euclidean => Similarity::Euclidean,
        }
    }
}

/// A text that others are compared with.
#[derive(Debug)]
pub struct Compared {
    similarity: Similarity,
    text: Prepared,
}

#[derive(Debug)]
enum Prepared {
    Dense(Vec<f32>),
    PerToken(MaxSim),
    Sparse(SparseVector),
}

impl Compared {
    /// A text whose vectors have so many dimensions. One with a vector per token has at least one token, and
    /// is compared by MaxSim or its mean.
    pub fn new(similarity: Similarity, dimensions: usize, text: Encoded) -> Self {
        let mean = similarity == Similarity::MeanMaxSim;
        let text = match text {
            Encoded::Dense(vector) => Prepared::Dense(vector),
            Encoded::PerToken(vectors) => Prepared::PerToken(MaxSim::new(&vectors, dimensions, mean)),
            Encoded::Sparse(vector) => Prepared::Sparse(vector),
        };
        Compared { similarity, text }
    }

    /// The similarity of a text with this one; `None` if it is represented otherwise.
    pub fn score(&self, other: &Encoded) -> Option<f32> {
        match (&self.text, other) {
            (Prepared::Dense(own), Encoded::Dense(vector)) => {
                Some(self.similarity.of_vectors(own, vector) as f32)
            }
            (Prepared::PerToken(own), Encoded::PerToken(vectors)) => {
                Some(own.score(vectors, &mut MaxSimBuffer::default()))
            }
            (Prepared::Sparse(own), Encoded::Sparse(vector)) => {
                Some(self.similarity.of_sparse(own, vector) as f32)
            }
            _ => None,
        }
    }
}

/// The sum of a term over the dimensions of which one of two sparse vectors has an element, ascending, in
/// f64. The term of two zeros is 0.
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
    use super::Similarity::{self, Cosine, Dot, Euclidean, Manhattan, MaxSim, MeanMaxSim};
    use super::{Compared, Encoded, SparseVector};

    #[test]
    fn all_elements_are_counted() {
        let (a, b): (Vec<f32>, Vec<f32>) = ((0..19).map(|i| i as f32).collect(), vec![2.0; 19]);
        assert_eq!(Dot.of_vectors(&a, &b), 342.0);
        assert_eq!(Manhattan.of_vectors(&a, &b), -139.0);
        assert_eq!(Euclidean.of_vectors(&[3.0, 0.0], &[0.0, 4.0]), -5.0);
        assert!((Cosine.of_vectors(&[1.0, 1.0], &[5.0, 0.0]) - 0.5f64.sqrt()).abs() < 1e-15);
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
            let expected = function.of_vectors(&dense(&a), &dense(&b));
            assert!((function.of_sparse(&a, &b) - expected).abs() < 1e-12, "{function:?}");
            assert!((function.of_sparse(&b, &a) - expected).abs() < 1e-12, "{function:?}");
        }
        assert_eq!(Dot.of_sparse(&a, &b), 11.5);
        assert_eq!(Dot.of_sparse(&a, &vector(&[], &[])), 0.0);
        assert_eq!(Cosine.of_sparse(&a, &vector(&[], &[])), 0.0);
        assert_eq!(Manhattan.of_sparse(&a, &vector(&[], &[])), -10.0);
    }

    #[test]
    fn zeros_have_a_cosine_of_zero_and_equal_vectors_a_distance_of_zero() {
        assert_eq!(Cosine.of_vectors(&[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!(Euclidean.of_vectors(&[1.0], &[1.0]).is_sign_positive());
        assert!(Manhattan.of_vectors(&[1.0], &[1.0]).is_sign_positive());
    }

    #[test]
    fn texts_are_compared_by_what_represents_them() {
        let sparse = SparseVector { indices: vec![1], values: vec![2.0], tokens: Vec::new() };
        let texts = [
            Encoded::Dense(vec![1.0, 2.0]),
            Encoded::PerToken(vec![1.0, 2.0, 0.0, 1.0]),
            Encoded::Sparse(sparse),
        ];
        let scores = |similarity: Similarity, text: &Encoded| {
            let compared = Compared::new(similarity, 2, text.clone());
            texts.each_ref().map(|other| compared.score(other))
        };
        assert_eq!(scores(Dot, &texts[0]), [Some(5.0), None, None]);
        assert_eq!(scores(MaxSim, &texts[1]), [None, Some(7.0), None]);
        assert_eq!(scores(MeanMaxSim, &texts[1]), [None, Some(3.5), None]);
        assert_eq!(scores(Euclidean, &texts[2]), [None, None, Some(0.0)]);
    }
}
