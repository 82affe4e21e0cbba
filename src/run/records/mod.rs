//! What the commands share that turn records into rows with a task: prepare, run, report.

mod checks;
mod hints;
mod identity;
pub(super) mod metadata;
mod options;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};

pub(super) use identity::of_scores;
pub use options::{Append, Input, RecordOptions};

use crate::engine::{Engine, MemoryBudget, RowCache, Utilization};
use crate::error::UsageError;
use crate::input::ReadLimit;
use crate::job::{
    Collector, EarlierRun, ExitStatus, FileDigests, FileRecords, Journal, KnownRecords, Manifest, OpenInput,
    Policy, QueryColumns, RecordSource, RunIdentity, Stats, Timings, exit_on_signal, identity_digest, listen,
    start_stages, weights_metadata, write_summary,
};
use crate::output::{
    self, ColumnType, ContentType, HASH_COLUMN, KeptColumn, OutputFormat, OutputLock, OutputMetadata,
    OutputSchema, Target, UncheckedOutput,
};
use crate::sys::console::{Console, counted};
use crate::task::{Loaded, ModelTask, OnLong, workload};

/// The task of a command, with the resolved options that only this command has.
pub(super) struct Setup<T> {
    /// The task.
    pub task: T,
    /// The resolved options that affect rows, by the names of the options.
    pub identity: RunIdentity,
    /// The resolved options that affect rows, for the metadata of the output.
    pub metadata: OutputMetadata,
    /// Sort rows by their scores and write only this many of the best of each query.
    pub top_k: Option<usize>,
    /// The columns that tell the query of a row, if there are several queries.
    pub queries: QueryColumns,
}

impl<T> Setup<T> {
    /// A task whose rows are in the order of the input.
    pub(super) fn in_order(task: T, identity: RunIdentity, metadata: OutputMetadata) -> Self {
        Setup { task, identity, metadata, top_k: None, queries: QueryColumns::default() }
    }
}

/// A run that is ready to start.
struct Prepared<T> {
    engine: Engine<T>,
    source: RecordSource,
    collector: Collector,
    timings: Timings,
    /// Whether rows go to a terminal or a pipe, where they cannot be resumed.
    output_is_stream: bool,
    /// Whether an interrupted run had already written all rows.
    is_complete: bool,
}

/// Runs a command: `load` loads the model, and `set_up` makes its task.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::job::Interrupted`] if the user interrupts the run.
pub(super) fn run<T: ModelTask>(
    options: &RecordOptions,
    load: impl FnOnce(&Console) -> Result<Loaded>,
    set_up: impl FnOnce(Loaded, &Console) -> Result<Setup<T>>,
) -> Result<ExitStatus> {
    let mut run = match prepare(options, load, set_up)? {
        ControlFlow::Continue(run) => run,
        ControlFlow::Break(status) => return Ok(status),
    };
    let device = device_names(&**run.engine.task());
    if !run.is_complete {
        let interrupts = listen()?;
        if run.output_is_stream {
            // A stream cannot be resumed, so there is nothing to save.
            exit_on_signal();
        }
        let cursor = run.collector.cursor().clone();
        let waves = start_stages(run.source, cursor, !run.output_is_stream, &run.engine)?;
        run.collector.run(&waves, &interrupts)?;
    }
    run.collector.report(&run.timings, options.appended()?.as_ref());
    let (cached, repeated) = (run.engine.cached(), run.engine.repeated());
    let stats = Stats { cached, repeated, ..*run.collector.stats() };
    options.console.detail(format!(
        "{} texts, {} tokens, {:.2?} in all",
        stats.texts,
        stats.tokens,
        run.timings.start.elapsed()
    ));
    if cached > 0 {
        options.console.detail(format!("{} from the cache", counted(cached, "row")));
    }
    if repeated > 0 {
        options
            .console
            .detail(format!("{} of equal texts, which were encoded once", counted(repeated, "row")));
    }
    if let Some(path) = &options.stats {
        let metadata = run.collector.metadata()?;
        write_summary(
            path,
            &stats,
            &run.timings,
            run.engine.utilization(),
            run.engine.budget(),
            &device,
            &metadata,
        )?;
    }
    Ok(stats.exit_status())
}

/// Locks the output, loads the model and finds the earlier run with the same output. Breaks if the output is up to date.
fn prepare<T: ModelTask>(
    options: &RecordOptions,
    load: impl FnOnce(&Console) -> Result<Loaded>,
    set_up: impl FnOnce(Loaded, &Console) -> Result<Setup<T>>,
) -> Result<ControlFlow<ExitStatus, Prepared<T>>> {
    let start = Instant::now();
    let lock = checks::lock_output(options)?;
    let console = if shows_progress(&lock) { options.console } else { options.console.without_progress() };
    let output_is_stream = lock.sidecars().is_none();
    let input = options.open_input(output_is_stream)?;
    let loaded = load(&console)?;
    let loading = start.elapsed();
    let lock = checks::check_model_files(options, lock, &loaded)?;
    let mut output_metadata = metadata::of_model(&options.model, &loaded);
    let mut identity = identity::of_run(options);
    let weights = identity::of_weights(options, &loaded);
    let files = loaded.files.clone();
    let setup = set_up(loaded, &console)?;
    let task = setup.task;
    output_metadata.extend(shard_metadata(options, setup.top_k, &input)?);
    output_metadata.extend(metadata::of_task(&task).into_iter().chain(setup.metadata));
    let choices: RunIdentity =
        weights.into_iter().chain(identity::of_task(&task)).chain(setup.identity).collect();
    identity.extend(choices.clone());
    let file_records = file_records(options)?;
    identity.extend(file_records.as_ref().map(identity::of_file));
    let budget = MemoryBudget::new(&workload(&task, options.batch_tokens), options.model.max_memory)?;
    let follows_batches = setup.top_k.is_none() && follows_batches(options, &input);
    let schema = OutputSchema { follows_batches, ..schema(options, task.content(), output_metadata) };
    output::check(&schema).map_err(|error| UsageError(error.to_string()))?;
    let digests = needs_digests(options, output_is_stream).then(|| FileDigests::start(files));
    let (mut journal, earlier, mut digests) = open_journal(options, &lock, identity, digests, &console)?;
    let known = file_records.map(|records| known_records(&choices, journal.as_mut(), records)).transpose()?;
    let (mut source, interrupted) = match check_earlier_run(options, earlier, input, &budget, known)? {
        ControlFlow::Continue(unfinished) => unfinished,
        ControlFlow::Break(complete) => {
            let timings = Timings { start, loading: loading.as_secs_f64(), resumed: complete.stats };
            summarize_complete(options, &complete, schema.metadata, &timings, &budget, &device_names(&task))?;
            return Ok(ControlFlow::Break(complete.stats.exit_status()));
        }
    };
    if options.hints {
        hints::of_records(&options.input, &mut source, &options.console);
    }
    if options.input.keeps_fields() {
        source.check_kept()?;
    }
    let cache = open_cache(options, choices, journal.as_mut(), digests.as_mut())?;
    let bar = console.bar(source.size());
    let mut collector = Collector::new(lock, schema, policy(options, &task), journal, digests, console, bar);
    if let Some(top_k) = setup.top_k {
        collector.rank(top_k);
    }
    let is_complete = match interrupted {
        Some(manifest) => collector.resume(manifest, &mut source, start)?,
        None => collector.start(&mut source, start).map(|()| false)?,
    };
    collector.add_queries(setup.queries);
    let timings = Timings { start, loading: loading.as_secs_f64(), resumed: *collector.stats() };
    let engine = Engine::new(Arc::new(task), budget, cache);
    let run = Prepared { engine, source, collector, timings, output_is_stream, is_complete };
    Ok(ControlFlow::Continue(run))
}

/// The memory limit of the readers.
fn read_limit(budget: &MemoryBudget) -> ReadLimit {
    budget.reading_bytes.map_or_else(ReadLimit::default, ReadLimit::new)
}

/// Whether an output batch can be made of each input batch. It takes memory that `--max-memory` does not count.
fn follows_batches(options: &RecordOptions, input: &OpenInput) -> bool {
    input.has_batches() && options.format == OutputFormat::Arrow && options.model.max_memory.is_none()
}

/// Whether the digests of the model's files are used: in the manifest, in `--stats`, in the metadata of an Arrow stream, or for a cache.
fn needs_digests(options: &RecordOptions, output_is_stream: bool) -> bool {
    let is_in_output = options.stats.is_some() || options.format == OutputFormat::Arrow;
    !output_is_stream || is_in_output || options.cache.is_some()
}

/// The metadata of a shard; none without `--shard`.
fn shard_metadata(
    options: &RecordOptions,
    top_k: Option<usize>,
    input: &OpenInput,
) -> Result<OutputMetadata> {
    let Some(shard) = options.selection.shard else { return Ok(OutputMetadata::new()) };
    if top_k.is_some() {
        bail!(UsageError(
            "--shard: the best rows of a shard are not the best rows of all records; leave out --top-k"
                .into()
        ));
    }
    Ok(metadata::of_shard(shard, input.range()))
}

/// The journal and the earlier run, if the output is a file; otherwise returns the digests.
fn open_journal(
    options: &RecordOptions,
    lock: &OutputLock,
    identity: RunIdentity,
    digests: Option<FileDigests>,
    console: &Console,
) -> Result<(Option<Journal>, EarlierRun, Option<FileDigests>)> {
    match (lock.sidecars(), digests) {
        (Some(sidecars), Some(digests)) => {
            let (journal, earlier) = Journal::open(sidecars, identity, digests, options.start, console)?;
            Ok((Some(journal), earlier, None))
        }
        (_, digests) => Ok((None, EarlierRun::None, digests)),
    }
}

/// The rows that earlier runs of the same build, model and options have made on such a device, if there is a directory for them.
fn open_cache(
    options: &RecordOptions,
    choices: RunIdentity,
    journal: Option<&mut Journal>,
    digests: Option<&mut FileDigests>,
) -> Result<Option<RowCache>> {
    let Some(directory) = &options.cache else { return Ok(None) };
    let files = match (journal, digests) {
        (Some(journal), _) => model_files(journal)?,
        (None, Some(digests)) => digests.wait()?,
        (None, None) => RunIdentity::new(),
    };
    let identity: RunIdentity = choices.into_iter().chain(files).chain([identity::of_build()]).collect();
    RowCache::open(directory, identity_digest(&identity)).map(Some)
}

/// The digests of the model's files.
fn model_files(journal: &mut Journal) -> Result<RunIdentity> {
    let files = journal.identity()?.iter().filter(|(key, _)| key.starts_with("the model's "));
    Ok(files.map(|(key, value)| (key.clone(), value.clone())).collect())
}

/// The records of the file that the run appends to; no records if there is no file yet. `None` without `--append`.
fn file_records(options: &RecordOptions) -> Result<Option<FileRecords>> {
    let read = |append: &Append| match &append.file {
        Some(path) => FileRecords::read(path, options.format),
        None => Ok(FileRecords::default()),
    };
    options.append.as_ref().map(read).transpose()
}

/// The records of the file, which must have been made by the same model and options. Devices and builds may differ.
fn known_records(
    choices: &RunIdentity,
    journal: Option<&mut Journal>,
    records: FileRecords,
) -> Result<KnownRecords> {
    let mut choices = choices.clone();
    choices.remove("the device");
    if let Some(journal) = journal {
        choices.extend(model_files(journal)?);
    }
    KnownRecords::new(&choices, records)
}

/// The records, and the interrupted run to resume, if any. Breaks if a complete run has a row for every record of the input.
fn check_earlier_run(
    options: &RecordOptions,
    earlier: EarlierRun,
    input: OpenInput,
    budget: &MemoryBudget,
    known: Option<KnownRecords>,
) -> Result<ControlFlow<Manifest, (RecordSource, Option<Manifest>)>> {
    let (console, output) = (&options.console, &options.output);
    let limit = read_limit(budget);
    let mut source = input.read(limit, known.clone());
    let complete = match earlier {
        EarlierRun::Interrupted(manifest) => return Ok(ControlFlow::Continue((source, Some(manifest)))),
        EarlierRun::Complete(manifest) if !source.is_stream() => manifest,
        // A stream cannot be read twice.
        EarlierRun::None | EarlierRun::Complete(_) => return Ok(ControlFlow::Continue((source, None))),
    };
    if source.skip_to(&complete.cursor, |_, _| {}).is_ok() && source.next().is_none() {
        console.note(format!("{output} is up to date: {}", counted(complete.stats.rows, "row")));
        return Ok(ControlFlow::Break(complete));
    }
    console.note(format!("{output} is complete, but the input has changed; starting from the beginning"));
    Ok(ControlFlow::Continue((options.open_input(false)?.read(limit, known), None)))
}

/// Writes the summary of a complete run that has nothing left to do. It may have been killed before it wrote its own.
fn summarize_complete(
    options: &RecordOptions,
    complete: &Manifest,
    mut metadata: OutputMetadata,
    timings: &Timings,
    budget: &MemoryBudget,
    device: &str,
) -> Result<()> {
    let Some(path) = &options.stats else { return Ok(()) };
    metadata.extend(weights_metadata(&complete.identity));
    let utilization = Utilization::new(budget.threads);
    write_summary(path, &complete.stats, timings, &utilization, budget, device, &metadata)
}

/// The devices of the encoders, for the summary.
fn device_names(task: &impl ModelTask) -> String {
    let backends = task.model().encoders.iter().map(|encoder| encoder.backend().to_string());
    backends.collect::<Vec<_>>().join("; ")
}

/// Whether to draw a progress bar: not if rows are written to a terminal or a pipe.
fn shows_progress(output: &UncheckedOutput) -> bool {
    output.sidecars().is_some() || *output.target() == Target::Stdout && crate::sys::stdout::is_regular_file()
}

/// The schema of the output, before the types of its columns are inferred from the first records.
fn schema(options: &RecordOptions, content: ContentType, metadata: OutputMetadata) -> OutputSchema {
    let hash = options.append.as_ref().map(|_| HASH_COLUMN.to_owned());
    let keep = options.input.keep().iter().map(|kept| kept.output.clone()).chain(hash);
    OutputSchema {
        format: options.format,
        content,
        chunks: options.chunks,
        ids: options.input.has_ids().then_some(ColumnType::Text),
        kept: keep.map(|name| KeptColumn { name, column_type: ColumnType::Text }).collect(),
        metadata,
        follows_batches: false,
    }
}

/// The policy for records without a row.
fn policy(options: &RecordOptions, task: &impl ModelTask) -> Policy {
    Policy {
        skip_unreadable: options.skip_unreadable,
        stop_at_long: task.model().on_long == OnLong::Error,
        max_length: task.model().tokenizer.max_length(),
    }
}

/// A flag in the metadata of an output.
pub(super) fn true_or_false(value: bool) -> String {
    if value { "true" } else { "false" }.into()
}
