//! How much vectors may differ from their references.

use super::comparison::Comparison;
use super::options::VerifyOptions;
use super::reference::Reference;
use crate::nn::ComputeDtype;

/// Largest relative rounding error of f16.
const F16_ROUNDING: f64 = 1.0 / 2048.0;

/// How much vectors may differ from their references.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Bounds {
    /// Maximum absolute difference of an element. `None`: no limit.
    pub max_difference: Option<f64>,
    /// Minimum cosine of a vector with its reference.
    pub min_cosine: f64,
    /// Minimum share of common nearest neighbours.
    pub min_neighbours: f64,
}

impl Bounds {
    /// The bounds that the user gives, and the defaults for the compute dtype.
    pub(super) fn new(options: &VerifyOptions, reference: &Reference) -> Self {
        let (difference, cosine, neighbours) = defaults(options.model.compute_dtype);
        let elements = reference.vectors.iter().flatten();
        let largest = f64::from(elements.fold(1f32, |largest, x| largest.max(x.abs())));
        let rounding = if reference.is_f16 { F16_ROUNDING } else { 0.0 };
        Bounds {
            max_difference: options.max_difference.or(difference.map(|x| (x + rounding) * largest)),
            min_cosine: options.min_cosine.unwrap_or(cosine),
            min_neighbours: options.min_neighbours.unwrap_or(neighbours),
        }
    }

    /// What exceeds the bounds, as clauses.
    pub(super) fn failures(&self, comparison: &Comparison) -> Vec<String> {
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

/// The default bounds on difference, cosine and neighbours. The help of the options states them.
fn defaults(dtype: ComputeDtype) -> (Option<f64>, f64, f64) {
    match dtype {
        ComputeDtype::F32 => (Some(1e-5), 0.99999, 0.99),
        ComputeDtype::Bf16x3 => (Some(1e-4), 0.99999, 0.99),
        ComputeDtype::Bf16 | ComputeDtype::F16 => (None, 0.999, 0.95),
        ComputeDtype::Int8 => (None, 0.99, 0.9),
    }
}
