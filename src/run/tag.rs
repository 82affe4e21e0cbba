//! `sconce tag`: texts → entities.

use anyhow::Result;

use super::records::{Setup, TaskOptions, run};
use super::yes_or_no;
use crate::job::{ExitStatus, RunIdentity};
use crate::load::load_head;
use crate::named::Named;
use crate::nn::HeadKind;
use crate::output::OutputMetadata;
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
            let aggregation = tag.aggregation.name().to_owned();
            let identity = RunIdentity::from([
                ("--aggregation".into(), aggregation.clone()),
                ("--raw".into(), yes_or_no(tag.raw)),
                ("--stride".into(), format!("{:?}", tag.stride)),
            ]);
            let metadata = OutputMetadata::from([
                ("aggregation".into(), aggregation),
                ("scores".into(), if tag.raw { "logits" } else { "softmax" }.into()),
            ]);
            Ok(Setup::in_order(task, identity, metadata))
        },
    )
}
