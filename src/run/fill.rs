//! `sconce fill`: texts with masks → tokens.

use anyhow::Result;

use super::records::{RecordOptions, Setup, of_scores, run};
use crate::job::ExitStatus;
use crate::nn::HeadKind;
use crate::output::OutputMetadata;
use crate::task::{MaskFiller, ScoreOptions, load_head};

/// The options of `sconce fill`.
pub struct FillOptions {
    /// The model, the texts and the output.
    pub records: RecordOptions,
    /// How tokens are scored.
    pub scores: ScoreOptions,
    /// Maximum number of tokens per mask; 0: all.
    pub top_k: usize,
}

/// Runs `sconce fill`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn fill(options: &FillOptions) -> Result<ExitStatus> {
    let FillOptions { records, scores, top_k } = options;
    run(
        records,
        |console| load_head(HeadKind::MaskedLm, &records.model, console),
        |loaded, _| {
            let task = MaskFiller::new(loaded, *scores, *top_k)?;
            let mut identity = of_scores(&task, scores.raw);
            identity.insert("--top-k".into(), top_k.to_string());
            let metadata = OutputMetadata::from([("scores".into(), task.function().to_string())]);
            Ok(Setup::in_order(task, identity, metadata))
        },
    )
}
