//! `sconce answer`: a question and texts → the parts of the texts that answer it.

use anyhow::Result;

use super::records::{Setup, TaskOptions, run};
use super::yes_or_no;
use crate::job::{ExitStatus, Queries, RunIdentity};
use crate::load::load_head;
use crate::nn::HeadKind;
use crate::output::OutputMetadata;
use crate::task::{AnswerOptions, Answerer};

/// Runs `sconce answer`. The second text of a pair is the question of its record.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub fn answer(options: &TaskOptions<AnswerOptions>) -> Result<ExitStatus> {
    let TaskOptions { records, task: answer } = options;
    run(
        records,
        |console| load_head(HeadKind::QuestionAnswering, &records.model, console),
        |loaded, _| {
            let task = Answerer::new(loaded, answer.clone())?;
            let identity = RunIdentity::from([
                ("--question".into(), format!("{:?}", answer.question)),
                ("--top-k".into(), answer.top_k.to_string()),
                ("--raw".into(), yes_or_no(answer.raw)),
                ("--max-answer-length".into(), answer.max_answer_length.to_string()),
                ("--stride".into(), task.stride().to_string()),
            ]);
            let question = answer.question.as_ref().map(|question| ("question".into(), question.clone()));
            let scores = if answer.raw { "logits" } else { "softmax" };
            let scores = ("scores".into(), scores.into());
            let metadata = OutputMetadata::from_iter(question.into_iter().chain([scores]));
            let queries = Queries { of_records: true, ..Queries::default() };
            Ok(Setup { queries, ..Setup::in_order(task, identity, metadata) })
        },
    )
}
