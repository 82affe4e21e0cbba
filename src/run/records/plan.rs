//! The plan of a run: the locked output, the open input and the loaded model, which fit together.

use std::mem;
use std::ops::Range;
use std::time::Instant;

use anyhow::{Result, bail};

use super::{RecordOptions, Setup, checks, identity, resolved};
use crate::engine::MemoryBudget;
use crate::error::UsageError;
use crate::formats;
use crate::job::{
    EnginePlan, FileDigests, Identity, JobPlan, OnNull, OpenInput, Policy, RunOutput, Stats, Timings,
};
use crate::load::Loaded;
use crate::rows::columns::RECORD_HASH;
use crate::rows::metadata::Key;
use crate::rows::{
    ColumnType, ContentType, FileMetadata, KeptColumn, OutputFormat, OutputSchema, VectorType,
};
use crate::store::{Target, UncheckedOutput};
use crate::sys::console::Console;
use crate::task::{ModelTask, OnLong, workload};

/// Locks the output, opens the input, loads the model, and makes the plan.
pub(super) fn make<T: ModelTask>(
    options: &RecordOptions,
    load: impl FnOnce(&Console) -> Result<Loaded>,
    set_up: impl FnOnce(Loaded, &Console) -> Result<Setup<T>>,
) -> Result<JobPlan<T>> {
    let start = Instant::now();
    let lock = checks::lock_output(options)?;
    let console =
        if shows_progress(&lock) { options.console.clone() } else { options.console.without_progress() };
    let output_is_stream = lock.sidecars().is_none();
    let input = options.open_input(output_is_stream)?;
    let loaded = load(&console)?;
    let timings = Timings { start, loading: start.elapsed().as_secs_f64(), resumed: Stats::default() };
    let lock = checks::check_model_files(options, lock, &loaded)?;
    let mut resolved = resolved::of_model(&options.model, &loaded);
    let files = loaded.origin.files.clone();
    let mut setup = set_up(loaded, &console)?;
    resolved.extend(resolved::of_task(&setup.task));
    resolved.extend(mem::take(&mut setup.resolved));
    if let Some(name) = &options.vector_column {
        resolved.name("--vector-column", Key::VectorColumn, name);
    }
    if let Some(name) = &options.id_column {
        resolved.name("--id-column", Key::IdColumn, name);
    }
    let metadata = output_metadata(resolved.metadata(), options, setup.top_k, &input)?;
    let appended = options.append.as_ref().map(|append| append.records.clone());
    let budget = MemoryBudget::new(&workload(&setup.task, options.batch_tokens), options.model.max_memory)?;
    let schema = schema(options, &setup, metadata, &input)?;
    formats::check(&schema).map_err(|error| UsageError(error.to_string()))?;
    let identity = Identity {
        of_input: identity::of_run(options, appended.as_deref()),
        choices: resolved.identity(),
        files: if needs_digests(options, output_is_stream) {
            FileDigests::start(files)
        } else {
            FileDigests::Deferred(Vec::new())
        },
    };
    let task = setup.task;
    let policy = policy(options, &task);
    let (query_values, top_k) = (setup.query_columns.values, setup.top_k);
    let output = RunOutput { lock, schema, query_values, top_k, policy, identity, timings, console };
    let engine = EnginePlan { device: device_names(&task), task, budget, cache: options.cache.clone() };
    Ok(JobPlan { engine, input, queries: setup.queries, output, start: options.start, appended })
}

/// Whether to draw a progress bar: not if rows are written to a terminal or a pipe.
fn shows_progress(output: &UncheckedOutput) -> bool {
    output.sidecars().is_some() || *output.target() == Target::Stdout && crate::sys::stdout::is_regular_file()
}

/// The metadata of the output: those of the resolved options, and the shard with its records.
fn output_metadata(
    mut metadata: FileMetadata,
    options: &RecordOptions,
    top_k: Option<usize>,
    input: &OpenInput,
) -> Result<FileMetadata> {
    let Some(shard) = options.selection.shard else { return Ok(metadata) };
    if top_k.is_some() {
        bail!(UsageError(
            "--shard: the best rows of a shard are not the best rows of all records; leave out --top-k"
                .into()
        ));
    }
    let Range { start, end } = input.range();
    metadata.insert(Key::Shard, shard.to_string());
    metadata.insert(Key::ShardRecords, format!("{start}..{end}"));
    Ok(metadata)
}

/// The schema of the output, before the types of the columns of fields are inferred from the first records.
fn schema<T: ModelTask>(
    options: &RecordOptions,
    setup: &Setup<T>,
    metadata: FileMetadata,
    input: &OpenInput,
) -> Result<OutputSchema> {
    let text = |name: &str| KeptColumn::new(name, ColumnType::Text);
    let fields = options.input.keep().iter().map(|kept| text(&kept.output));
    let hash = options.append.iter().map(|_| text(RECORD_HASH));
    let is_arrow = options.format == OutputFormat::Arrow;
    Ok(OutputSchema {
        format: options.format,
        content: content(options, setup)?,
        chunks: options.chunks,
        ids: (options.input.has_ids() || options.id_column.is_some()).then_some(ColumnType::Text),
        kept: fields.chain(hash).chain(setup.query_columns.columns.iter().cloned()).collect(),
        metadata,
        // An output batch for each input batch takes memory that `--max-memory` does not count.
        follows_batches: is_arrow
            && input.has_batches()
            && options.model.max_memory.is_none()
            && setup.top_k.is_none(),
    })
}

/// The content of rows, which with `--on-null null` may be null.
fn content<T: ModelTask>(options: &RecordOptions, setup: &Setup<T>) -> Result<ContentType> {
    Ok(match setup.task.content() {
        content if options.on_null != OnNull::Null => content,
        ContentType::Vectors(vectors) if !vectors.per_token => {
            ContentType::Vectors(VectorType { nullable: true, ..vectors })
        }
        content => bail!(UsageError(format!(
            "--on-null null leaves out the vector of a row, but a row has {}; pass --on-null skip",
            content.noun()
        ))),
    })
}

/// Whether the digests of the model's files are used: in the manifest, in `--stats`, in the metadata of an
/// Arrow stream, for a cache, or for the hashes of records.
fn needs_digests(options: &RecordOptions, output_is_stream: bool) -> bool {
    let is_in_output = options.stats.is_some() || options.format == OutputFormat::Arrow;
    !output_is_stream || is_in_output || options.cache.is_some() || options.append.is_some()
}

/// The policy for records without a row.
fn policy(options: &RecordOptions, task: &impl ModelTask) -> Policy {
    Policy {
        skip_unreadable: options.skip_unreadable,
        on_null: options.on_null,
        stop_at_long: task.model().on_long == OnLong::Error,
        max_length: task.model().tokenizer.max_length(),
    }
}

/// The devices of the encoders, for the summary.
fn device_names(task: &impl ModelTask) -> String {
    let backends = task.model().encoders.iter().map(|encoder| encoder.backend().to_string());
    backends.collect::<Vec<_>>().join("; ")
}
