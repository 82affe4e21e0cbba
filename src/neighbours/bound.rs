//! Bounds of scores: which rows of a block can reach a threshold, by approximate dot products.
//!
//! An approximate product `s` of a query and a row `x` is within `ε ‖query‖ ‖x‖` of the exact one, by the
//! inequality of Cauchy and Schwarz: `ε` is what the GEMM rounds of each product, relative to its magnitude.
//! So a row can reach a score only if `s · scale + offset` is not below a limit, with a scale and an offset
//! of the row and a limit of the query. For cosine and dot the queries are of unit length in the products:
//!
//! | metric | scale | offset | limit for the score `t` |
//! |---|---|---|---|
//! | cosine | 1 / ‖x‖ | ε | t |
//! | dot | 1 | ε ‖x‖ | t / ‖q‖ |
//! | euclidean | 1 | ε max‖q‖ ‖x‖ − ‖x‖² / 2 | (‖q‖² − t²) / 2 |
//!
//! The last one is −‖q − x‖² / 2 ≥ −t² / 2.

use super::metric::Metric;

/// Norms for which squares and quotients are normal numbers. Where a norm is outside, every row is scored
/// exactly.
const NORMAL: std::ops::RangeInclusive<f32> = 1e-15..=1e15;

/// Scale and offset of a row of this norm.
#[inline]
fn where_normal(norm: f32, bound: impl Fn(f32) -> (f32, f32)) -> (f32, f32) {
    let is_normal = NORMAL.contains(&norm);
    let (scale, offset) = bound(norm);
    (if is_normal { scale } else { 0.0 }, if is_normal { offset } else { f32::INFINITY })
}

/// The error of approximate products.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound {
    metric: Metric,
    /// ε.
    error: f32,
    /// Relative error of what is computed in f32 of norms and thresholds.
    rounding: f32,
    /// The greatest norm of a query.
    query_norm: f32,
}

impl Bound {
    /// For products of vectors of `dimensions` elements, each rounded by at most `unit` before the products
    /// are summed in f32.
    pub(super) fn new(metric: Metric, dimensions: usize, unit: f32, query_norm: f32) -> Self {
        // A sum in f32 is within K · 2⁻²⁴ of the magnitudes of its terms, in any order; twice that covers
        // higher orders.
        let rounding = dimensions as f32 * (-23f32).exp2() + (-19f32).exp2();
        // The second one is for the norms, quotients and sums that a product is compared with.
        Bound { metric, error: 2.0 * unit + unit * unit + 2.0 * rounding, rounding, query_norm }
    }

    /// Whether the queries of the products have unit length.
    pub(super) fn takes_unit_queries(metric: Metric) -> bool {
        metric != Metric::Euclidean
    }

    /// Scales and offsets of rows with these squared norms.
    pub(super) fn of_rows(&self, squared_norms: &[f32], scales: &mut Vec<f32>, offsets: &mut Vec<f32>) {
        scales.resize(squared_norms.len(), 0.0);
        offsets.resize(squared_norms.len(), 0.0);
        let rows = squared_norms.iter().zip(scales).zip(offsets);
        // Matched outside of the loops, so that they are vectorized.
        match self.metric {
            Metric::Cosine => rows.for_each(|((squared, scale), offset)| {
                (*scale, *offset) = where_normal(squared.sqrt(), |norm| (norm.recip(), self.error));
            }),
            Metric::Dot => rows.for_each(|((squared, scale), offset)| {
                (*scale, *offset) = where_normal(squared.sqrt(), |norm| (1.0, self.error * norm));
            }),
            Metric::Euclidean => rows.for_each(|((squared, scale), offset)| {
                let slack = self.rounding * (squared + self.query_norm * self.query_norm);
                let offset_of = |norm| self.error * self.query_norm * norm + slack - squared / 2.0;
                (*scale, *offset) = where_normal(squared.sqrt(), |norm| (1.0, offset_of(norm)));
            }),
        }
    }

    /// The limit of a query whose score has to reach `least`.
    #[inline]
    pub(super) fn of_query(&self, norm: f32, least: f32) -> f32 {
        if least == f32::NEG_INFINITY || !NORMAL.contains(&norm) {
            return f32::NEG_INFINITY;
        }
        let limit = match self.metric {
            Metric::Cosine => least,
            Metric::Dot => least / norm,
            Metric::Euclidean if least > 0.0 => f32::INFINITY,
            Metric::Euclidean => (norm * norm - least * least) / 2.0,
        };
        // A quotient or square that overflows bounds nothing.
        if limit.is_finite() || limit > 0.0 && least > 0.0 { limit } else { f32::NEG_INFINITY }
    }
}

#[cfg(test)]
mod tests {
    use super::Bound;
    use crate::neighbours::Metric;

    fn of_row(bound: Bound, squared_norm: f32) -> (f32, f32) {
        let (mut scales, mut offsets) = (Vec::new(), Vec::new());
        bound.of_rows(&[squared_norm], &mut scales, &mut offsets);
        (scales[0], offsets[0])
    }

    #[test]
    fn a_row_on_the_threshold_reaches_its_limit() {
        for metric in [Metric::Cosine, Metric::Dot, Metric::Euclidean] {
            let (q, x) = ([3.0f32, 4.0], [8.0f32, 6.0]);
            let score = match metric {
                Metric::Cosine => 0.96,
                Metric::Dot => 48.0,
                Metric::Euclidean => -29f32.sqrt(),
            };
            let bound = Bound::new(metric, 2, 0.0, 5.0);
            let unit = if Bound::takes_unit_queries(metric) { 5.0 } else { 1.0 };
            let product = (q[0] * x[0] + q[1] * x[1]) / unit;
            let (scale, offset) = of_row(bound, 100.0);
            assert!(product * scale + offset >= bound.of_query(5.0, score), "{metric:?}");
            assert!(product * scale + offset < bound.of_query(5.0, score + 0.01), "{metric:?}");
        }
    }

    #[test]
    fn norms_whose_squares_are_not_normal_bound_nothing() {
        let bound = Bound::new(Metric::Dot, 2, 0.0, 1.0);
        for squared in [0.0, 1e-38, f32::INFINITY] {
            assert_eq!(of_row(bound, squared).1, f32::INFINITY);
        }
        for norm in [0.0, 1e-30, 1e30, f32::INFINITY] {
            assert_eq!(bound.of_query(norm, 0.5), f32::NEG_INFINITY);
        }
    }
}
