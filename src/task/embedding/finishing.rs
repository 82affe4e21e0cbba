//! What becomes of a vector after the model's modules: truncation and normalization, as the options of its
//! row ask for.

use super::VectorOptions;
use crate::engine::{RowOptionError, RowOptions};
use crate::nn::{PostPooling, VectorStep, is_normalized};

/// The end of a model's modules, from which the steps for a row follow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Finishing {
    /// Dimensions of a vector before the steps.
    inputs: usize,
    /// Whether the model's modules end with a normalization.
    normalizes: bool,
    /// Dimensions that the model's own files keep.
    truncate_dim: Option<usize>,
    /// The dimensions of rows without options of their own (`--dimensions`).
    dimensions: Option<usize>,
    /// Whether those rows have unit length (`--normalize`). `None`: as the modules do.
    normalize: Option<bool>,
}

/// The steps for a row, in order.
type Steps = [Option<VectorStep>; 3];

impl Finishing {
    /// Takes a normalization at the end of `modules`, whose vectors have `inputs` dimensions, which then is a
    /// step.
    pub(super) fn new(
        modules: &mut Vec<PostPooling>,
        inputs: usize,
        truncate_dim: Option<usize>,
        options: &VectorOptions,
    ) -> Self {
        let normalizes = is_normalized(modules);
        if normalizes {
            modules.pop();
        }
        let truncate_dim = truncate_dim.filter(|dimensions| *dimensions < inputs);
        let VectorOptions { dimensions, normalize, .. } = *options;
        Finishing { inputs, normalizes, truncate_dim, dimensions, normalize }
    }

    /// Refuses more dimensions than there are.
    pub(super) fn check(&self, dimensions: Option<usize>) -> Result<(), RowOptionError> {
        match dimensions.filter(|dimensions| *dimensions == 0 || *dimensions > self.inputs) {
            Some(0) => {
                let dimensions = self.inputs;
                let reason = format!(
                    "is 0, but the model's vectors have {dimensions} dimensions; pass a number from 1 to {dimensions}"
                );
                Err(RowOptionError { option: "dimensions", reason })
            }
            Some(dimensions) => {
                let reason = format!(
                    "{dimensions} exceeds the {} dimensions of the model's vectors; pass a smaller number",
                    self.inputs
                );
                Err(RowOptionError { option: "dimensions", reason })
            }
            None => Ok(()),
        }
    }

    /// Dimensions of a vector after the steps.
    pub(super) fn dimensions(&self, options: &RowOptions) -> usize {
        options.dimensions.or(self.dimensions).or(self.truncate_dim).unwrap_or(self.inputs)
    }

    /// Whether vectors have unit length after the steps.
    pub(super) fn is_normalized(&self, options: &RowOptions) -> bool {
        matches!(self.steps(options).into_iter().flatten().last(), Some(VectorStep::Normalize))
    }

    fn steps(&self, options: &RowOptions) -> Steps {
        let normalize = options.normalize.or(self.normalize);
        let step = |is_wanted: bool| is_wanted.then_some(VectorStep::Normalize);
        let normalizes = self.normalizes && normalize != Some(false);
        match (options.dimensions.or(self.dimensions), self.truncate_dim) {
            (Some(n), _) => {
                [Some(VectorStep::Truncate(n)), step(normalizes || normalize == Some(true)), None]
            }
            // sentence-transformers truncates after normalization, and does not normalize again.
            (None, Some(n)) => {
                [step(normalizes), Some(VectorStep::Truncate(n)), step(normalize == Some(true))]
            }
            (None, None) => [step(normalizes || normalize == Some(true)), None, None],
        }
    }

    /// The vectors of a row after the steps; both concatenated.
    pub(super) fn apply(&self, mut vectors: Vec<f32>, options: &RowOptions) -> Vec<f32> {
        let mut width = self.inputs;
        for step in self.steps(options).into_iter().flatten() {
            width = step.apply(&mut vectors, width);
        }
        vectors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::OnLong;

    #[test]
    fn dimensions_are_truncated_before_normalization_and_those_of_the_model_after() {
        let (long, unit) = (vec![3.0, 4.0, 12.0], vec![0.6, 0.8]);
        let options = |dimensions, normalize| RowOptions { dimensions, normalize, ..RowOptions::default() };
        let finishing = |normalizes: bool, truncate_dim| {
            let mut modules: Vec<_> = normalizes.then_some(PostPooling::Normalize).into_iter().collect();
            let finishing =
                Finishing::new(&mut modules, 3, truncate_dim, &VectorOptions::new(OnLong::Truncate));
            assert!(modules.is_empty());
            finishing
        };
        for (model, options, expected) in [
            (finishing(true, None), options(Some(2), None), unit.clone()),
            (finishing(false, None), options(Some(2), None), vec![3.0, 4.0]),
            (finishing(false, None), options(Some(2), Some(true)), unit.clone()),
            (finishing(true, None), options(None, Some(false)), long.clone()),
            (finishing(true, Some(2)), options(None, None), vec![3.0 / 13.0, 4.0 / 13.0]),
            (finishing(true, Some(2)), options(None, Some(true)), unit.clone()),
            (finishing(true, Some(2)), options(Some(1), None), vec![1.0]),
        ] {
            let vector = model.apply(long.clone(), &options);
            assert_eq!(vector.len(), model.dimensions(&options));
            let is_close = vector.iter().zip(&expected).all(|(x, y)| (x - y).abs() < 1e-6);
            assert!(is_close && vector.len() == expected.len(), "{model:?} {options:?}: {vector:?}");
        }
    }

    #[test]
    fn each_vector_of_a_row_is_truncated() {
        let mut vectors = vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        assert_eq!(VectorStep::Truncate(2).apply(&mut vectors, 3), 2);
        assert_eq!(vectors, [1.0, 2.0, 4.0, 5.0]);
    }
}
