//! What the commands share that turn records into rows with a task: prepare, run, report.

mod checks;
mod hints;
mod identity;
mod options;
mod plan;
pub(super) mod resolved;

use anyhow::Result;

pub use options::{Append, Input, RecordOptions, TaskOptions};
pub(super) use resolved::{ResolvedOptions, of_chunks, of_scores};

use crate::job::{ExitStatus, OpenedJob, Queries, QueryColumns};
use crate::load::Loaded;
use crate::store::print;
use crate::sys::console::Console;
use crate::task::ModelTask;

/// The task of a command, with the resolved options that only this command has.
pub(super) struct Setup<T> {
    /// The task.
    pub task: T,
    /// The resolved options that rows depend on.
    pub resolved: ResolvedOptions,
    /// Sort rows by their scores and write only this many of the best of each query.
    pub top_k: Option<usize>,
    /// What records are read for.
    pub queries: Queries,
    /// The columns that tell the query of a row, if there are several queries.
    pub query_columns: QueryColumns,
}

impl<T> Setup<T> {
    /// A task whose rows are in the order of the input.
    pub(super) fn in_order(task: T, resolved: ResolvedOptions) -> Self {
        let (queries, query_columns) = (Queries::default(), QueryColumns::default());
        Setup { task, resolved, top_k: None, queries, query_columns }
    }
}

/// Prints what a run has done, writes its summary, and returns its exit status.
pub(super) type Report<'a> = Box<dyn FnOnce() -> Result<ExitStatus> + 'a>;

/// Runs a command: `load` loads the model, and `set_up` makes its task.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub(super) fn run<T: ModelTask>(
    options: &RecordOptions,
    load: impl FnOnce(&Console) -> Result<Loaded>,
    set_up: impl FnOnce(Loaded, &Console) -> Result<Setup<T>>,
) -> Result<ExitStatus> {
    write_rows(options, load, set_up)?()
}

/// [`run`], up to the report.
pub(super) fn write_rows<'a, T: ModelTask + 'a>(
    options: &'a RecordOptions,
    load: impl FnOnce(&Console) -> Result<Loaded>,
    set_up: impl FnOnce(Loaded, &Console) -> Result<Setup<T>>,
) -> Result<Report<'a>> {
    let summary = options.stats.as_deref();
    let plan = plan::make(options, load, set_up)?;
    let mut job = match plan.open(|| options.open_input(false))? {
        OpenedJob::Unfinished(job) => job,
        OpenedJob::UpToDate(job) => return Ok(Box::new(move || job.report(summary))),
    };
    if options.hints {
        hints::of_records(&options.input, &mut job.source, &options.console);
    }
    if options.input.keeps_fields() {
        job.source.check_kept()?;
    }
    if options.dry_run {
        let estimate = job.estimate()?;
        return Ok(Box::new(move || {
            print(estimate.report().as_bytes())?;
            estimate.status()
        }));
    }
    let job = job.start()?.run()?;
    Ok(Box::new(move || job.report(options.appended()?.as_ref(), summary)))
}
