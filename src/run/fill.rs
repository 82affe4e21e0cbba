//! `sconce fill`: texts with masks → tokens.

use anyhow::Result;

use super::classify::{BestOptions, run_best};
use super::records::TaskOptions;
use crate::job::ExitStatus;
use crate::nn::HeadKind;
use crate::task::MaskFiller;

/// Runs `sconce fill`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn fill(options: &TaskOptions<BestOptions>) -> Result<ExitStatus> {
    run_best(options, HeadKind::MaskedLm, MaskFiller::new, MaskFiller::function)
}
