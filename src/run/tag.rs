//! `sconce tag`: texts → entities.

use anyhow::Result;

use super::records::{ResolvedOptions, Setup, TaskOptions, run};
use super::yes_or_no;
use crate::job::ExitStatus;
use crate::load::load_head;
use crate::named::Named;
use crate::nn::HeadKind;
use crate::rows::metadata::Key;
use crate::task::{TagOptions, Tagger};

/// Runs `sconce tag`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn tag(options: &TaskOptions<TagOptions>) -> Result<ExitStatus> {
    let TaskOptions { records, task: tag } = options;
    run(
        records,
        |console| load_head(HeadKind::TokenClassification, &records.model, console),
        |loaded, _| {
            let task = Tagger::new(loaded, *tag)?;
            let mut resolved = ResolvedOptions::default();
            resolved.name("--aggregation", Key::Aggregation, tag.aggregation.name());
            resolved.identity_only("--raw", yes_or_no(tag.raw));
            resolved.identity_only("--stride", format_args!("{:?}", tag.stride));
            resolved.metadata_only(Key::Scores, if tag.raw { "logits" } else { "softmax" });
            Ok(Setup::in_order(task, resolved))
        },
    )
}
