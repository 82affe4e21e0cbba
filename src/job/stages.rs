//! A run over files in its stages, each of which is complete when it exists: a plan, a run with records that
//! have no rows yet, a run with its engine and its output, and the end of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;

use super::collector::{Collector, RunOutput};
use super::digests::add_weights_digest;
use super::dry_run::Estimate;
use super::journal::{EarlierRun, Journal, StartMode};
use super::known_records::{ChangeCounts, FileRecords, KnownRecords};
use super::manifest::Manifest;
use super::queries::Queries;
use super::reader::start_stages;
use super::signals::listen;
use super::source::{OpenInput, RecordSource};
use super::stats::{ExitStatus, Stats};
use super::summary::{EngineStats, write_summary};
use crate::engine::{Engine, MemoryBudget, RowCache, Task};
use crate::input::ReadLimit;
use crate::store::SidecarPaths;
use crate::sys::console::{Console, counted};

/// What a run is to do. No record has been read, and no earlier run looked for.
pub struct JobPlan<T> {
    /// What makes the rows.
    pub engine: EnginePlan<T>,
    /// The records.
    pub input: OpenInput,
    /// What they are read for.
    pub queries: Queries,
    /// Where the rows go.
    pub output: RunOutput,
    /// Where to start if an earlier run has left rows.
    pub start: StartMode,
    /// The records of the file that the rows are added to (`--append`).
    pub appended: Option<Arc<FileRecords>>,
}

/// What makes the rows of a run.
pub struct EnginePlan<T> {
    /// The task.
    pub task: T,
    /// The limits of the engine.
    pub budget: MemoryBudget,
    /// The devices of the encoders.
    pub device: String,
    /// The directory with rows of earlier runs (`--cache`).
    pub cache: Option<PathBuf>,
}

/// What is left to do.
pub enum OpenedJob<T> {
    /// Records without rows.
    Unfinished(Box<UnfinishedJob<T>>),
    /// The summary: a complete run has a row for every record of the input. It may have been killed before it
    /// wrote its own.
    UpToDate(Box<UpToDateJob>),
}

/// A run with records that have no rows yet.
pub struct UnfinishedJob<T> {
    /// All records of the input.
    pub source: RecordSource,
    queries: Queries,
    engine: EnginePlan<T>,
    output: RunOutput,
    journal: Option<Journal>,
    appended: Option<Arc<FileRecords>>,
    /// The run to resume.
    interrupted: Option<Manifest>,
}

/// A complete run that wrote the output.
pub struct UpToDateJob {
    output: RunOutput,
    appended: Option<Arc<FileRecords>>,
    engine: EngineStats,
}

impl<T: Task> JobPlan<T> {
    /// Finds the earlier run with the same output. `reopen` opens the input again, if that run was complete,
    /// but had other records.
    pub fn open(self, reopen: impl FnOnce() -> Result<OpenInput>) -> Result<OpenedJob<T>> {
        let JobPlan { engine, input, queries, mut output, start, appended } = self;
        let (journal, earlier) = match output.lock.sidecars() {
            Some(sidecars) => {
                let identity = || output.identity.whole();
                let (journal, earlier) = Journal::open(sidecars, start, &output.console, identity)?;
                (Some(journal), earlier)
            }
            None => (None, EarlierRun::None),
        };
        let known = match appended.clone() {
            Some(records) => {
                Some(KnownRecords::new(output.identity.digest_of_options()?, records, output.schema.format)?)
            }
            None => None,
        };
        let limit = engine.budget.reading_bytes.map_or_else(ReadLimit::default, ReadLimit::new);
        let mut source = input.read(limit, known.clone());
        let mut interrupted = None;
        match earlier {
            EarlierRun::None => {}
            EarlierRun::Interrupted(manifest) => interrupted = Some(manifest),
            // A stream cannot be read twice.
            EarlierRun::Complete(_) if source.is_stream() => {}
            EarlierRun::Complete(run) => {
                let (target, console) = (output.lock.target(), &output.console);
                if source.skip_to(&run.cursor, |_, _| {}).is_ok() && source.next().is_none() {
                    console.note(format!("{target} is up to date: {}", counted(run.stats.rows, "row")));
                    output.timings.resumed = run.stats;
                    let engine = EngineStats::of_idle(&engine.budget, engine.device);
                    return Ok(OpenedJob::UpToDate(Box::new(UpToDateJob { output, appended, engine })));
                }
                console.note(format!(
                    "{target} is complete, but the input has changed; starting from the beginning"
                ));
                source = reopen()?.read(limit, known);
            }
        }
        let job = UnfinishedJob { source, queries, engine, output, journal, appended, interrupted };
        Ok(OpenedJob::Unfinished(Box::new(job)))
    }
}

impl UpToDateJob {
    /// Writes the summary.
    pub fn report(mut self, summary: Option<&Path>) -> Result<ExitStatus> {
        let RunOutput { timings, schema, identity, .. } = &mut self.output;
        count_changes(&mut timings.resumed, self.appended.as_deref());
        if let Some(path) = summary {
            add_weights_digest(&mut schema.metadata, &identity.files.wait()?);
            write_summary(path, &timings.resumed, timings, &self.engine, &schema.metadata)?;
        }
        Ok(timings.resumed.exit_status())
    }
}

/// Counts how the file changes that rows are added to. Where there is none, all records are added.
fn count_changes(stats: &mut Stats, appended: Option<&FileRecords>) {
    if let Some(ChangeCounts { added, updated, deleted }) = appended.and_then(FileRecords::counts) {
        (stats.added, stats.updated, stats.deleted) = (added, updated, deleted);
    }
}

/// A run that is ready: its records are those that have no rows yet.
pub struct Job<T> {
    engine: Engine<T>,
    device: String,
    source: RecordSource,
    queries: Queries,
    collector: Collector,
    appended: Option<Arc<FileRecords>>,
    console: Console,
    /// Whether an interrupted run had already written all rows.
    is_complete: bool,
}

impl<T: Task> UnfinishedJob<T> {
    /// What the run would take: reads and tokenizes all records, and writes no row.
    ///
    /// # Errors
    /// If the input or the model fails.
    pub fn estimate(self) -> Result<Estimate> {
        let UnfinishedJob { source, queries, engine, output: RunOutput { policy, schema, .. }, .. } = self;
        let engine = Engine::new(Arc::new(engine.task), engine.budget, None);
        Estimate::of(source, queries, &engine, policy, &schema)
    }

    /// Continues the interrupted run, if there is one, or starts at the first record.
    pub fn start(self) -> Result<Job<T>> {
        let UnfinishedJob { mut source, queries, engine, mut output, journal, appended, interrupted } = self;
        let EnginePlan { task, budget, device, cache } = engine;
        let cache = match cache {
            Some(directory) => Some(RowCache::open(&directory, output.identity.digest_of_rows()?)?),
            None => None,
        };
        let console = output.console.clone();
        let (collector, is_complete) = match (journal, interrupted) {
            (Some(journal), Some(run)) => Collector::resume(output, journal, run, &mut source)?,
            (journal, _) => (Collector::start(output, journal, &mut source)?, false),
        };
        let engine = Engine::new(Arc::new(task), budget, cache);
        Ok(Job { engine, device, source, queries, collector, appended, console, is_complete })
    }
}

/// A run whose rows are all written.
pub struct FinishedJob<T> {
    engine: Engine<T>,
    device: String,
    collector: Collector,
    appended: Option<Arc<FileRecords>>,
    console: Console,
}

impl<T: Task> Job<T> {
    /// Writes the rows of all records.
    ///
    /// # Errors
    /// If the input, the model or the output fails. [`super::Interrupted`] if the user interrupts the run.
    pub fn run(self) -> Result<FinishedJob<T>> {
        let Job { engine, device, source, queries, mut collector, appended, console, is_complete } = self;
        if !is_complete {
            let interrupts = listen()?;
            if !collector.is_resumable() {
                // There is nothing to save.
                interrupts.end_process();
            }
            let cursor = collector.cursor().clone();
            let waves = start_stages(source, cursor, collector.is_resumable(), queries, &engine)?;
            collector.run(&waves, &interrupts)?;
        }
        Ok(FinishedJob { engine, device, collector, appended, console })
    }
}

impl<T: Task> FinishedJob<T> {
    /// Prints what the run has done, and writes the summary. `appended` is the file that the rows are added
    /// to.
    pub fn report(mut self, appended: Option<&SidecarPaths>, summary: Option<&Path>) -> Result<ExitStatus> {
        self.collector.report(appended);
        let mut stats = *self.collector.stats();
        count_changes(&mut stats, self.appended.as_deref());
        let engine = EngineStats::of(&self.engine, self.device);
        let detail = |message: String| self.console.detail(message);
        let elapsed = self.collector.timings().start.elapsed();
        detail(format!("{} texts, {} tokens, {elapsed:.2?} in all", stats.texts, stats.tokens));
        if engine.cached > 0 {
            detail(format!("{} from the cache", counted(engine.cached, "row")));
        }
        if engine.repeated > 0 {
            let rows = counted(engine.repeated, "row");
            detail(format!("{rows} of equal texts, which were encoded once"));
        }
        if let Some(path) = summary {
            let metadata = self.collector.metadata()?;
            write_summary(path, &stats, self.collector.timings(), &engine, &metadata)?;
        }
        Ok(stats.exit_status())
    }
}
