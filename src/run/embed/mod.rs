//! `sconce embed`: texts → vectors.

mod checks;
mod hints;
mod identity;
pub(super) mod metadata;
mod options;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;

pub use options::{EmbedOptions, Input};

use crate::error::UsageError;
use crate::output::{
    self, ColumnType, KeptColumn, OutputFormat, OutputLock, OutputMetadata, OutputSchema, Target,
};
use crate::pipeline::{
    Collector, EarlierRun, ExitStatus, FileDigests, Journal, Manifest, MemoryBudget, Policy, RecordSource,
    RunIdentity, Timings, Utilization, exit_on_signal, listen, start_stages, write_summary,
};
use crate::sys::console::{Console, counted};
use crate::task::{Embedder, OnLong, load, workload};

/// A run that is ready to start.
struct Prepared {
    embedder: Arc<Embedder>,
    budget: MemoryBudget,
    source: RecordSource,
    collector: Collector,
    timings: Timings,
    /// Whether rows go to a terminal or a pipe, where they cannot be resumed.
    output_is_stream: bool,
    /// Whether an interrupted run had already written all rows.
    is_complete: bool,
}

/// Runs `sconce embed`.
///
/// # Errors
/// If the input, the model or the output fails. [`crate::pipeline::Interrupted`] if the user interrupts the run.
pub fn embed(options: EmbedOptions) -> Result<ExitStatus> {
    let mut run = match prepare(&options)? {
        ControlFlow::Continue(run) => run,
        ControlFlow::Break(status) => return Ok(status),
    };
    let utilization = Arc::new(Utilization::new(run.budget.threads));
    let backends: Vec<String> =
        run.embedder.encoders.iter().map(|encoder| encoder.backend().to_string()).collect();
    if !run.is_complete {
        let interrupts = listen()?;
        if run.output_is_stream {
            // A stream cannot be resumed, so there is nothing to save.
            exit_on_signal();
        }
        let cursor = run.collector.cursor().clone();
        let waves = start_stages(run.source, cursor, run.embedder, run.budget, utilization.clone())?;
        run.collector.run(&waves, &interrupts)?;
    }
    run.collector.report(&run.timings);
    let stats = *run.collector.stats();
    options.console.detail(format!(
        "{} texts, {} tokens, {:.2?} in all",
        stats.texts,
        stats.tokens,
        run.timings.start.elapsed()
    ));
    if let Some(path) = &options.stats {
        let metadata = run.collector.metadata()?;
        let device = backends.join("; ");
        write_summary(path, &stats, &run.timings, &utilization, &run.budget, &device, &metadata)?;
    }
    Ok(stats.exit_status())
}

/// Locks the output, loads the model and finds the earlier run with the same output. Breaks if the output is up to date.
fn prepare(options: &EmbedOptions) -> Result<ControlFlow<ExitStatus, Prepared>> {
    let start = Instant::now();
    let lock = checks::lock_output(options)?;
    let console = if shows_progress(&lock) { options.console } else { options.console.without_progress() };
    let output_is_stream = lock.sidecars().is_none();
    let mut source = options.open_input(output_is_stream)?;
    let loaded = load(&options.model, &console)?;
    let loading = start.elapsed();
    checks::check_model_files(options, &lock, &loaded)?;
    let mut output_metadata = metadata::of_model(&options.model, &loaded);
    let mut identity = identity::of_run(options, &loaded);
    let files = loaded.files.clone();
    let embedder = Embedder::new(loaded, &options.vectors, &console)?;
    output_metadata.extend(metadata::of_vectors(&embedder));
    identity.extend(identity::of_vectors(&embedder));
    let budget = MemoryBudget::new(&workload(&embedder, options.batch_tokens), options.model.max_memory)?;
    source.set_limit(budget.reading);
    let schema = schema(options, &embedder, output_metadata);
    output::check(&schema).map_err(|error| UsageError(error.to_string()))?;
    // The digest of the weights is in the manifest, in --stats, and in the metadata of an Arrow stream.
    let is_hashed = !output_is_stream || options.stats.is_some() || options.format == OutputFormat::Arrow;
    let digests = is_hashed.then(|| FileDigests::start(files));
    let (journal, earlier, digests) = open_journal(options, &lock, identity, digests, &console)?;
    let interrupted = match check_earlier_run(options, earlier, &mut source, &budget)? {
        ControlFlow::Continue(interrupted) => interrupted,
        ControlFlow::Break(status) => return Ok(ControlFlow::Break(status)),
    };
    if options.hints {
        hints::of_records(&options.input, &mut source, &options.console);
    }
    if !schema.kept.is_empty() {
        source.check_kept()?;
    }
    let bar = console.bar(source.size());
    let policy = policy(options, &embedder);
    let mut collector = Collector::new(lock, schema, policy, journal, digests, console, bar);
    let mut is_complete = false;
    if let Some(manifest) = interrupted {
        source.skip_to(&manifest.cursor)?;
        is_complete = collector.resume(manifest)?;
    } else if options.format.has_fixed_columns() {
        collector.infer_columns(&mut source);
    }
    let timings = Timings { start, loading: loading.as_secs_f64(), resumed: *collector.stats() };
    Ok(ControlFlow::Continue(Prepared {
        embedder: Arc::new(embedder),
        budget,
        source,
        collector,
        timings,
        output_is_stream,
        is_complete,
    }))
}

/// The journal and the earlier run, if the output is a file; otherwise returns the digests.
fn open_journal(
    options: &EmbedOptions,
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

/// The interrupted run to resume, if any. Breaks if a complete run has a row for every record of the input.
fn check_earlier_run(
    options: &EmbedOptions,
    earlier: EarlierRun,
    source: &mut RecordSource,
    budget: &MemoryBudget,
) -> Result<ControlFlow<ExitStatus, Option<Manifest>>> {
    let (console, output) = (&options.console, &options.output);
    let complete = match earlier {
        EarlierRun::Interrupted(manifest) => return Ok(ControlFlow::Continue(Some(manifest))),
        EarlierRun::Complete(manifest) if !source.is_stream() => manifest,
        // A stream cannot be read twice.
        EarlierRun::None | EarlierRun::Complete(_) => return Ok(ControlFlow::Continue(None)),
    };
    if source.skip_to(&complete.cursor).is_ok() && source.next().is_none() {
        console.note(format!("{output} is up to date: {}", counted(complete.stats.rows, "row")));
        return Ok(ControlFlow::Break(complete.stats.exit_status()));
    }
    console.note(format!("{output} is complete, but the input has changed; starting from the beginning"));
    *source = options.open_input(false)?;
    source.set_limit(budget.reading);
    Ok(ControlFlow::Continue(None))
}

/// Whether to draw a progress bar: not if rows are written to a terminal or a pipe.
fn shows_progress(lock: &OutputLock) -> bool {
    lock.sidecars().is_some() || *lock.target() == Target::Stdout && crate::sys::stdout::is_regular_file()
}

/// The schema of the output, before the types of its columns are inferred from the first records.
fn schema(options: &EmbedOptions, embedder: &Embedder, metadata: OutputMetadata) -> OutputSchema {
    let keep = options.input.keep().iter().cloned();
    OutputSchema {
        format: options.format,
        dtype: embedder.dtype,
        dimensions: embedder.dimensions,
        per_token: embedder.pooling == crate::nn::Pooling::None,
        normalized: embedder.is_normalized(),
        chunks: embedder.chunking.is_some(),
        ids: options.input.has_ids().then_some(ColumnType::Text),
        kept: keep.map(|name| KeptColumn { name, column_type: ColumnType::Text }).collect(),
        metadata,
    }
}

/// The policy for records without a row.
fn policy(options: &EmbedOptions, embedder: &Embedder) -> Policy {
    Policy {
        skip_unreadable: options.skip_unreadable,
        stop_at_long: embedder.on_long == OnLong::Error,
        max_length: embedder.tokenizer.max_length(),
    }
}
