//! `sconce answer`: a question and texts → the parts of the texts that answer it.

use anyhow::Result;

use super::records::{ResolvedOptions, Setup, TaskOptions, run};
use super::yes_or_no;
use crate::job::{ExitStatus, Queries};
use crate::load::load_head;
use crate::nn::HeadKind;
use crate::rows::metadata::Key;
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
            let mut resolved = ResolvedOptions::default();
            resolved.identity_only("--question", format_args!("{:?}", answer.question));
            if let Some(question) = &answer.question {
                resolved.metadata_only(Key::Question, question);
            }
            resolved.identity_only("--top-k", answer.top_k);
            resolved.identity_only("--raw", yes_or_no(answer.raw));
            resolved.identity_only("--max-answer-length", answer.max_answer_length);
            resolved.identity_only("--stride", task.stride());
            resolved.metadata_only(Key::Scores, if answer.raw { "logits" } else { "softmax" });
            let queries = Queries { of_records: true, ..Queries::default() };
            Ok(Setup { queries, ..Setup::in_order(task, resolved) })
        },
    )
}
