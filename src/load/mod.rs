//! Loads a model: locates its files, resolves config, modules and options, reads tokenizer and weights.
//!
//! * `options`: which model, and how. `device`: the backends for `--device` and `--dtype`.
//! * `kernel_check`: which CUDA kernels compute on a GPU. `outcome_file`: what a check has found, in the
//!   cache directory.
//! * `prepare`: from files and options to a model without weights, with `plan`: what of it is loaded.
//! * `heads`: which head, as a table.
//! * `weights`: from a checkpoint or a seed to encoder, pooler and head, with `adapter`: the tensors of an
//!   adapter.
//! * `modules`: the weights of the modules after the encoder.
//! * `tokenizer`: the tokenizers of texts and of queries. `loaded`: what a task takes.
//! * `examine`: the same for inspection, with all faults.

mod adapter;
mod device;
mod examine;
mod heads;
mod kernel_check;
mod loaded;
mod modules;
mod options;
mod outcome_file;
mod plan;
mod prepare;
mod tokenizer;
mod weights;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::checkpoint::{Checkpoint, TensorReport};
use crate::model::adapter::{Adapters, ChosenAdapter};
use crate::model::config::Config;
use crate::model::families::Family;
use crate::model::layout::optional_files_beside;
use crate::model::modules::{Modules, PostPoolingModule};
use crate::model::purpose::Purpose;
use crate::nn::{HeadKind, HeadSpec, Pooling, PostPooling, return_freed_memory};
use crate::sys::console::Console;

use heads::{Wanted, check_pairs};
use modules::load_modules;
use plan::{Plan, Projection, default_sizes, tokenizer_file};
use prepare::{Prepared, prepare};
use tokenizer::{add_markers_and_padding, read_tokenizer, static_queries};
use weights::{LoadedWeights, Weights, draw_random, load_checkpoint, without_weights};

pub use examine::{Examined, ExaminedHead, examine};
pub use loaded::{Loaded, LoadedHead, Origin, StaticQueries, Steps};
pub use options::ModelOptions;
pub use outcome_file::OutcomeFile;
pub use prepare::MaxLength;
pub use weights::{Parts, count_parameters};

/// Loads a model for dense embedding. Prints what was loaded, and which pooling is used if the model's files
/// do not configure one.
pub fn load(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::Vectors, options, console)
}

/// [`load`] of a model that may be a sparse encoder, which is loaded with its masked-LM head.
pub fn load_embedding_or_sparse(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::VectorsOrWeights, options, console)
}

/// Loads a model with its task head, of this kind.
pub fn load_head(kind: HeadKind, options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::Head(kind), options, console)
}

/// Loads a model that scores texts by a query: a cross-encoder with its head, or an embedding model.
pub fn load_reranker(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::PairScores, options, console)
}

/// Loads a model for what its files say that it is for: with its task head, or for vectors or sparse weights.
/// A checkpoint of a masked language model has its head, unless a pooling is configured or chosen.
pub fn load_for_own_task(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::OwnTask, options, console)
}

fn load_for(wanted: Wanted, options: &ModelOptions, console: &Console) -> Result<Loaded> {
    let start = Instant::now();
    let (loaded, findings) = build(options, console, wanted)?;
    if let Some(purpose) = findings.purpose.as_ref().filter(|_| loaded.head.is_none()) {
        check_pairs(wanted, options, purpose)?;
    }
    check_tensors(&loaded.origin, &findings)?;
    let Origin { config, weights, parameters, .. } = &loaded.origin;
    console.detail(format!(
        "loaded {} ({:.1} M parameters) in {:.0} ms: {weights}",
        config.path().display(),
        *parameters as f64 / 1e6,
        1e3 * start.elapsed().as_secs_f64(),
    ));
    note_defaults(&loaded, &findings, options, console);
    return_freed_memory();
    Ok(loaded)
}

/// Checks that the tensors are those that the config describes.
fn check_tensors(origin: &Origin, findings: &Findings) -> Result<()> {
    let config = &origin.config;
    let Some(report) = &findings.report else { return Ok(()) };
    if let Some(first) = report.problems.first() {
        let more = match report.problems.len() {
            1 => String::new(),
            n => format!(" (and {} more; sconce inspect lists them all)", n - 1),
        };
        let (shown, defaults) = (config.path().display(), default_sizes(config));
        bail!("{}: {first}{more}; the weights do not match {shown}{defaults}", origin.weights);
    }
    // A number of layers that is a default: other layers of the checkpoint would be left out.
    let key = findings.family.keys.layers;
    match (config.defaults().find(|(name, _)| *name == key), report.unexpected_tensors.first()) {
        (Some((_, layers)), Some(tensor)) => bail!(
            "{} has no field \"{key}\", and {layers}, the default of transformers, leaves tensor {tensor} of the checkpoint without a \
             layer; add the field",
            config.path().display()
        ),
        _ => Ok(()),
    }
}

/// Prints what neither the files of the model nor the options choose.
fn note_defaults(loaded: &Loaded, findings: &Findings, options: &ModelOptions, console: &Console) {
    let model = &options.source.model;
    if loaded.origin.adapter.is_none() && !findings.adapters.tasks.is_empty() {
        let tasks = findings.adapters.names();
        console.note(format!(
            "the model has adapters for tasks ({tasks}); using none of them: choose one with --task"
        ));
    }
    if let Some(purpose) =
        findings.purpose.as_ref().filter(|_| findings.has_vectors && options.reads_checkpoint())
        && let Some(command) = purpose.command()
    {
        console.note(format!(
            "{model} is {purpose}; its hidden states are used without its head, which {command} uses"
        ));
    }
    if loaded.head_kind() == Some(HeadKind::CausalLm) && loaded.modules.logit_score.is_none() {
        console.note(format!(
            "{model} is a causal language model without a LogitScore module; its score is logit(yes) - logit(no), as in \
             sentence-transformers"
        ));
    }
    if findings.has_vectors && options.pooling.is_none() && !loaded.modules.configures_pooling() {
        let pooling = &loaded.steps.pooling;
        console.note(format!("no pooling configured; using {pooling}, the default for this model family"));
    }
}

/// What loading finds out and no task needs.
struct Findings {
    /// The row of the family table for the type of the model.
    family: &'static Family,
    /// Which tensors of the checkpoint are used, missing or wrong. `None` for random weights.
    report: Option<TensorReport>,
    /// Whether there are vectors of the pooling, with or without a head beside them.
    has_vectors: bool,
    /// The task of the model, if its files say that it is not an embedding model.
    purpose: Option<Purpose>,
    /// The adapters of the model.
    adapters: Adapters,
}

/// Loads a model. A model for another task than the wanted one is refused before its weights are read.
fn build(options: &ModelOptions, console: &Console, wanted: Wanted) -> Result<(Loaded, Findings)> {
    let prepared = prepare(options, console, wanted)?;
    let tokenizer_file = tokenizer_file(options, prepared.files.as_ref())?;
    let limits = prepared.tokenizer_options();
    let Prepared { backends, weights, modules, plan, count, max_length, adapters, adapter, .. } = prepared;
    adapters.check_chosen(adapter.as_ref())?;
    let applied = plan.applied_modules(&modules);
    let projected = plan.token_projection.as_ref();
    let parts = plan.parts(&modules);
    let (config, family, pooling) = (&plan.config, plan.family, &plan.pooling);
    let weights = weights?;
    let own_weights = modules.query_weights.as_ref();
    let own_weights = own_weights.filter(|_| *pooling == Pooling::Splade && options.reads_checkpoint());
    let uses_cache = options.weight_cache;
    let skips_encoder = own_weights.is_some() && options.only_queries;
    // In parallel: both take long, and they are independent.
    let (tokenizer, weights_loaded) = rayon::join(
        || read_tokenizer(&tokenizer_file, options, limits, &modules),
        || match &weights {
            Weights::File(_) if skips_encoder => without_weights(&parts),
            Weights::File(file) => {
                load_checkpoint(file.get()?, family, &parts, &backends, adapter.as_ref(), uses_cache)
            }
            Weights::Random(seed) => draw_random(config, &parts, &count, *seed, &backends),
        },
    );
    let (LoadedWeights { encoders, pooler, head, mut report }, mut tokenizer) = (weights_loaded?, tokenizer?);
    add_markers_and_padding(&mut tokenizer, &modules, plan.spec.padding)?;
    let static_queries =
        own_weights.map(|module| static_queries(options, module, plan.dimensions)).transpose()?;
    let (mut token_modules, token_projection) = load_applied(options, applied, projected, &mut report)?;
    let before = if plan.has_vectors { modules.applied_before(pooling) } else { 0 };
    let after = token_modules.split_off(before);
    let post_pooling = pooler.into_iter().chain(after).collect();
    let purpose = warn_about_tensors(report.as_ref(), &plan, console);
    let run_modules = applied.iter().chain(projected.iter().flat_map(|(modules, _)| modules));
    let mut files =
        files_that_affect_vectors(config, Some(&tokenizer_file), Some(&weights), &modules, run_modules)?;
    files.extend(parts.head_file.map(Path::to_owned));
    files.extend(adapter.iter().flat_map(ChosenAdapter::files));
    let max_length = max_length.of_tokenizer(&tokenizer, &tokenizer_file);
    let (weights, parameters) = (weights.to_string(), count.parameters);
    let kind = plan.head.as_ref().map(HeadSpec::kind);
    let head = kind.zip(head).map(|(kind, layers)| LoadedHead { kind, layers });
    let Plan { config, family, pooling, dimensions, has_vectors, .. } = plan;
    let origin = Origin { config, tokenizer: tokenizer_file, weights, parameters, adapter, files };
    let steps = Steps { token_modules, pooling, post_pooling, dimensions, token_projection };
    let loaded = Loaded { origin, modules, tokenizer, max_length, encoders, steps, head, static_queries };
    Ok((loaded, Findings { family, report, has_vectors, purpose, adapters }))
}

/// Loads the modules after the encoder, and the projection of token vectors if there is one.
fn load_applied(
    options: &ModelOptions,
    applied: &[PostPoolingModule],
    projected: Option<&Projection<PostPoolingModule>>,
    report: &mut Option<TensorReport>,
) -> Result<(Vec<PostPooling>, Option<Projection<PostPooling>>)> {
    let post_pooling = load_modules(applied, options.random_weights, report)?;
    let projection = match projected {
        Some((modules, dimensions)) => {
            Some((load_modules(modules, options.random_weights, report)?, *dimensions))
        }
        None => None,
    };
    Ok((post_pooling, projection))
}

/// Warns about layers of the checkpoint that the config does not have, and about values that are not finite.
/// Returns the purpose of the model, which the tensors of a bare checkpoint may tell.
fn warn_about_tensors(report: Option<&TensorReport>, plan: &Plan, console: &Console) -> Option<Purpose> {
    let Some(report) = report else { return plan.purpose.clone() };
    if let Some((first, more)) = report.unexpected_tensors.split_first() {
        let (more, verb) = match more.len() {
            0 => (String::new(), "is"),
            n => (format!(" and {n} more"), "are"),
        };
        console.warn(format!(
            "tensor {first}{more} of the checkpoint {verb} not used, because {} has no such layer",
            plan.config.path().display()
        ));
    }
    for (name, count) in &report.not_finite {
        console.warn(format!(
            "tensor {name} contains {count} values that are NaN or infinite; vectors that depend on them will be NaN"
        ));
    }
    let by_tensors = || Purpose::of_tensors(&report.unused).filter(|_| plan.is_bare_checkpoint);
    plan.purpose.clone().or_else(by_tensors)
}

/// All files that affect vectors.
fn files_that_affect_vectors<'a>(
    config: &Config,
    tokenizer: Option<&Path>,
    weights: Option<&Weights>,
    modules: &Modules,
    post_pooling: impl Iterator<Item = &'a PostPoolingModule>,
) -> Result<Vec<PathBuf>> {
    let mut files: BTreeSet<PathBuf> =
        [config.path()].into_iter().chain(tokenizer).map(Path::to_owned).collect();
    let optional: Vec<PathBuf> = files.iter().flat_map(|file| optional_files_beside(file)).collect();
    files.extend(optional);
    if let Some(Weights::File(file)) = weights {
        files.insert(file.path.clone());
        let mapped = file.get().map(Checkpoint::files).unwrap_or_default();
        files.extend(mapped.iter().map(|file| file.path().to_owned()));
    }
    files.extend(modules.pooling.iter().map(|pooling| pooling.file.clone()));
    files.extend(modules.logit_score.iter().map(|module| module.file.clone()));
    if let Some(weights) = &modules.query_weights {
        files.extend(weights.files()?);
    }
    for module in post_pooling {
        files.extend([module.config()].into_iter().filter(|file| file.is_file()).chain(module.weights()?));
    }
    Ok(files.into_iter().collect())
}
