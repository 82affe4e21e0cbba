//! `sconce rerank`: a query and texts → scores.

use anyhow::Result;

use super::records::{RecordOptions, Setup, of_scores, run};
use crate::error::UsageError;
use crate::output::OutputMetadata;
use crate::pipeline::{ExitStatus, StartMode};
use crate::task::{Reranker, ScoreOptions, load_reranker};

/// The options of `sconce rerank`.
pub struct RerankOptions {
    /// The model, the texts and the output. The second text of a pair is the query of its record.
    pub records: RecordOptions,
    /// The query of all texts. `None`: each record has its own.
    pub query: Option<String>,
    /// How texts are scored.
    pub scores: ScoreOptions,
    /// Sort rows by their scores and write only this many of the best. `None`: in the order of the input.
    pub top_k: Option<usize>,
}

/// Runs `sconce rerank`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::pipeline::Interrupted`] if the user interrupts the run.
pub fn rerank(options: &RerankOptions) -> Result<ExitStatus> {
    let RerankOptions { records, query, scores, top_k } = options;
    if top_k.is_some() && records.start == StartMode::Resume {
        return Err(UsageError(
            "--resume: with --top-k rows are sorted and written at the end, so there is nothing to resume; remove one of \
             the options"
                .into(),
        )
        .into());
    }
    run(
        records,
        |console| load_reranker(&records.model, console),
        |loaded, console| {
            let task = Reranker::new(loaded, *scores, query.as_deref(), top_k.is_some(), console)?;
            let mut identity = of_scores(&task, scores.raw);
            identity.insert("--query".into(), format!("{query:?}"));
            let mut metadata = OutputMetadata::from([("scores".into(), task.score_name())]);
            metadata.extend(query.as_ref().map(|query| ("query".into(), query.clone())));
            Ok(Setup { task, identity, metadata, top_k: *top_k })
        },
    )
}
