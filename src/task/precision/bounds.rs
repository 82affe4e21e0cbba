//! How much vectors may differ from their references.

use serde_json::{Value, json};

use super::comparison::Comparison;
use crate::nn::ComputeDtype;

/// How much vectors may differ from their references.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bounds {
    /// Maximum absolute difference of an element. `None`: no limit.
    pub max_difference: Option<f64>,
    /// Minimum cosine of a vector with its reference.
    pub min_cosine: f64,
    /// Minimum share of common nearest neighbours.
    pub min_neighbours: f64,
}

impl Bounds {
    /// The bounds for a compute dtype and reference vectors, which have a relative rounding error of
    /// `rounding`.
    pub fn of(dtype: ComputeDtype, reference: &[Vec<f32>], rounding: f64) -> Self {
        let (max_difference, min_cosine, min_neighbours) = defaults(dtype);
        let elements = reference.iter().flatten();
        let largest = f64::from(elements.fold(1f32, |largest, x| largest.max(x.abs())));
        let max_difference = max_difference.map(|difference| (difference + rounding) * largest);
        Bounds { max_difference, min_cosine, min_neighbours }
    }

    /// The bounds as a JSON object.
    pub fn json(&self) -> Value {
        let Bounds { max_difference, min_cosine, min_neighbours } = self;
        json!({ "max_difference": max_difference, "min_cosine": min_cosine, "min_neighbours": min_neighbours })
    }

    /// What exceeds the bounds, as clauses.
    pub fn failures(&self, comparison: &Comparison) -> Vec<String> {
        let difference = self.max_difference.filter(|bound| comparison.max_difference.value > *bound);
        let difference = difference.map(|bound| {
            format!("the largest difference {:.1e} exceeds {bound:.1e}", comparison.max_difference.value)
        });
        let cosine = (comparison.min_cosine.value < self.min_cosine).then(|| {
            format!("the least cosine {:.7} is below {}", comparison.min_cosine.value, self.min_cosine)
        });
        let share = comparison.neighbours.filter(|share| *share < self.min_neighbours);
        let share = share.map(|share| {
            format!(
                "{:.2} % of the nearest neighbours are the same, fewer than {} %",
                100.0 * share,
                100.0 * self.min_neighbours
            )
        });
        [difference, cosine, share].into_iter().flatten().collect()
    }
}

/// The default bounds on difference, cosine and neighbours. The help of `sconce verify` states them.
fn defaults(dtype: ComputeDtype) -> (Option<f64>, f64, f64) {
    match dtype {
        ComputeDtype::F32 => (Some(1e-5), 0.99999, 0.99),
        ComputeDtype::Bf16x3 => (Some(1e-4), 0.99999, 0.99),
        ComputeDtype::Bf16 | ComputeDtype::F16 => (None, 0.999, 0.95),
        ComputeDtype::Int8 => (None, 0.99, 0.9),
    }
}
