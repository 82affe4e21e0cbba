//! `sconce classify`: texts or pairs → labels.

use anyhow::Result;

use super::records::{RecordOptions, Setup, of_scores, run};
use crate::job::ExitStatus;
use crate::nn::HeadKind;
use crate::output::OutputMetadata;
use crate::task::{Classifier, ScoreOptions, load_head};

/// The options of `sconce classify`.
pub struct ClassifyOptions {
    /// The model, the texts and the output.
    pub records: RecordOptions,
    /// How texts are classified.
    pub scores: ScoreOptions,
    /// Maximum number of labels per row; 0: all.
    pub top_k: usize,
}

/// Runs `sconce classify`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn classify(options: &ClassifyOptions) -> Result<ExitStatus> {
    let ClassifyOptions { records, scores, top_k } = options;
    run(
        records,
        |console| load_head(HeadKind::SequenceClassification, &records.model, console),
        |loaded, _| {
            let task = Classifier::new(loaded, *scores, *top_k)?;
            let mut identity = of_scores(&task, scores.raw);
            identity.insert("--top-k".into(), top_k.to_string());
            let metadata = OutputMetadata::from([("scores".into(), task.function().to_string())]);
            Ok(Setup::in_order(task, identity, metadata))
        },
    )
}
