//! `sconce classify`: texts or pairs → labels; and what `sconce fill` has in common with it.

use anyhow::Result;

use super::records::{Setup, TaskOptions, of_scores, run};
use crate::job::ExitStatus;
use crate::load::{Loaded, load_head};
use crate::model::classification::ScoreFunction;
use crate::nn::HeadKind;
use crate::rows::metadata::Key;
use crate::task::{Classifier, ModelTask, ScoreOptions};

/// Which of the labels or tokens that a head scores are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BestOptions {
    /// How they are scored.
    pub scores: ScoreOptions,
    /// Maximum number of labels per row, or of tokens per mask; 0: all.
    pub top_k: usize,
}

/// Runs `sconce classify`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn classify(options: &TaskOptions<BestOptions>) -> Result<ExitStatus> {
    run_best(options, HeadKind::SequenceClassification, Classifier::new, Classifier::function)
}

/// Runs a command that writes the best of what a head scores: `new` makes its task, and `function` is that of
/// the scores.
pub(super) fn run_best<T: ModelTask>(
    options: &TaskOptions<BestOptions>,
    head: HeadKind,
    new: impl FnOnce(Loaded, ScoreOptions, usize) -> Result<T>,
    function: impl FnOnce(&T) -> ScoreFunction,
) -> Result<ExitStatus> {
    let TaskOptions { records, task: BestOptions { scores, top_k } } = options;
    run(
        records,
        |console| load_head(head, &records.model, console),
        |loaded, _| {
            let task = new(loaded, *scores, *top_k)?;
            let mut resolved = of_scores(&task, scores.raw);
            resolved.identity_only("--top-k", top_k);
            resolved.metadata_only(Key::Scores, function(&task));
            Ok(Setup::in_order(task, resolved))
        },
    )
}
