//! Weights of the neighbours of a query, and means with these weights.

use anyhow::{Result, bail};

use crate::named::names;
use crate::rows::FieldValue;

/// How the neighbours of a query are weighted. Weights sum to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NeighbourWeights {
    /// All alike.
    Uniform,
    /// exp(score / temperature) divided by its sum: the weights of attention.
    Softmax {
        /// The temperature, above 0.
        temperature: f64,
    },
}

/// The name of [`NeighbourWeights`] as an option value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightKind {
    /// [`NeighbourWeights::Uniform`].
    Uniform,
    /// [`NeighbourWeights::Softmax`].
    Softmax,
}

names!(WeightKind { Uniform => "uniform", Softmax => "softmax" });

impl NeighbourWeights {
    /// The weights of neighbours with these scores, computed in f64.
    pub fn of_scores(self, scores: &[f32]) -> Vec<f64> {
        let unnormalised: Vec<f64> = match self {
            NeighbourWeights::Uniform => vec![1.0; scores.len()],
            NeighbourWeights::Softmax { temperature } => {
                let greatest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let exponent = |score: &f32| (f64::from(*score) - f64::from(greatest)) / temperature;
                scores.iter().map(|score| exponent(score).exp()).collect()
            }
        };
        let sum: f64 = unnormalised.iter().sum();
        unnormalised.into_iter().map(|weight| weight / sum).collect()
    }
}

/// Σ wᵢ vᵢ / Σ wᵢ over the neighbours that have a value: the estimator of Nadaraya and Watson. `None` if none
/// has one.
pub(super) fn weighted_mean(weights: &[f64], values: &[Option<f64>]) -> Option<f64> {
    let present =
        || weights.iter().zip(values).filter_map(|(weight, value)| value.map(|value| (*weight, value)));
    let sum: f64 = present().map(|(weight, _)| weight).sum();
    (sum > 0.0).then(|| present().map(|(weight, value)| weight * value).sum::<f64>() / sum)
}

/// A value as a number; `None` for null and empty text.
pub(super) fn number(field: &str, row: usize, value: &FieldValue) -> Result<Option<f64>> {
    let json = value.json();
    let text = json.as_str().map(str::trim);
    let number = json.as_f64().or_else(|| text.and_then(|text| text.parse().ok()));
    if json.is_null() || text == Some("") {
        return Ok(None);
    }
    match number {
        Some(number) if number.is_finite() => Ok(Some(number)),
        _ => {
            bail!("--value-field {field}: {field} of row {row} is {json}, not a number; choose another field")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{NeighbourWeights, number, weighted_mean};

    #[test]
    fn weights_sum_to_one_for_scores_of_any_size() {
        for temperature in [0.01, 1.0, 100.0] {
            let weights = NeighbourWeights::Softmax { temperature }.of_scores(&[900.0, 899.5, -900.0]);
            assert!((weights.iter().sum::<f64>() - 1.0).abs() < 1e-15);
            assert!((weights[1] / weights[0] - (-0.5 / temperature).exp()).abs() < 1e-12);
        }
        assert_eq!(NeighbourWeights::Uniform.of_scores(&[0.9, 0.1]), [0.5, 0.5]);
        assert!(NeighbourWeights::Uniform.of_scores(&[]).is_empty());
    }

    #[test]
    fn rows_without_a_value_are_left_out_of_the_mean() {
        assert_eq!(weighted_mean(&[0.5, 0.25, 0.25], &[Some(2.0), None, Some(5.0)]), Some(3.0));
        assert_eq!(weighted_mean(&[1.0], &[None]), None);
    }

    #[test]
    fn values_of_csv_are_numbers_in_text() {
        let values = [json!(null), json!(""), json!("1.5"), json!(7)].map(Into::into);
        let found = values.map(|value| number("x", 0, &value).unwrap());
        assert_eq!(found, [None, None, Some(1.5), Some(7.0)]);
        assert!(number("x", 0, &json!("NaN").into()).is_err());
        assert!(number("x", 0, &json!([1]).into()).is_err());
    }
}
