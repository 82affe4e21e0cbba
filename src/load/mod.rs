//! Loads a model: locates its files, resolves config, modules and options, reads tokenizer and weights.
//!
//! * `options`: which model, and how. `device`: the backends for `--device` and `--dtype`.
//! * `prepare`: from files and options to a model without weights, with `plan`: what of it is loaded.
//! * `heads`: which head, as a table.
//! * `weights`: from a checkpoint or a seed to encoder, pooler and head, with `adapter`: the tensors of an adapter.
//! * `modules`: the weights of the modules after the encoder.
//! * `examine`: the same for inspection, with all faults.

mod adapter;
mod device;
mod examine;
mod heads;
mod modules;
mod options;
mod plan;
mod prepare;
mod weights;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::checkpoint::{TensorReport, read_index};
use crate::error::UsageError;
use crate::model::adapter::{Adapters, ChosenAdapter};
use crate::model::config::Config;
use crate::model::families::Family;
use crate::model::layout::{is_model_file, optional_files_beside};
use crate::model::modules::{Modules, PostPoolingModule, QueryWeights, TokenLimit};
use crate::model::purpose::Purpose;
use crate::model::static_embedding::StaticLayout;
use crate::nn::{
    Encoder, HeadKind, HeadSpec, OutputKind, Pooling, PostPooling, TaskHead, return_freed_memory,
};
use crate::store::{ReadFiles, parent_dir};
use crate::sys::console::Console;
use crate::text::{Tokenizer, TokenizerOptions, TruncationSide};

use heads::{Wanted, check_pairs};
use modules::load_modules;
use plan::{Plan, Projection, default_sizes, tokenizer_file};
use prepare::{Prepared, find_weights, prepare};
use weights::{LoadedWeights, Weights, draw_random, load_checkpoint, without_weights};

pub use examine::{Examined, ExaminedHead, examine};
pub use options::ModelOptions;
pub use prepare::MaxLength;
pub use weights::{Parts, count_parameters};

/// A loaded model, with all resolved options.
pub struct Loaded {
    /// The config of the encoder.
    pub config: Config,
    /// The row of the family table for its model type.
    pub family: &'static Family,
    /// The origin of the weights: a path, or the seed of random weights.
    pub weights: String,
    /// Which tensors of the checkpoint are used, missing or wrong. `None` for random weights.
    pub report: Option<TensorReport>,
    /// Parameters of the encoder, pooler and post-pooling modules.
    pub parameters: usize,
    /// The encoder, once per device.
    pub encoders: Vec<Encoder>,
    /// The modules of the model: pooling and what follows it, prompts, limits.
    pub modules: Modules,
    /// The task of the model, if its files say that it is not an embedding model.
    pub purpose: Option<Purpose>,
    /// The pooling: the option, else the model's files, else the default for the model family.
    pub pooling: Pooling,
    /// The modules before pooling, which run on the vector of each token.
    pub token_modules: Vec<PostPooling>,
    /// The post-pooling modules. Empty without pooling.
    pub post_pooling: Vec<PostPooling>,
    /// Dimensions of a vector after the last module; with a head, the number of its logits.
    pub dimensions: usize,
    /// The projection of token vectors, if it is an output beside others, and the dimensions of its vectors.
    pub token_projection: Option<Projection<PostPooling>>,
    /// All files that affect vectors.
    pub files: Vec<PathBuf>,
    /// The task head, if one was asked for.
    pub head: Option<TaskHead>,
    /// The kind of the head.
    pub head_kind: Option<HeadKind>,
    /// What the queries of a sparse encoder become without its encoder, if it is loaded as one and its files say so.
    pub static_queries: Option<StaticQueries>,
    /// The tokenizer file.
    pub tokenizer_file: PathBuf,
    /// The tokenizer, with its maximum length set.
    pub tokenizer: Tokenizer,
    /// The maximum length of a text, and where it is set.
    pub max_length: MaxLength,
    /// The adapters of the model.
    pub adapters: Adapters,
    /// The adapter that is merged into the weights.
    pub adapter: Option<ChosenAdapter>,
}

impl Loaded {
    /// The maximum tokens of a text of a role with this limit of its own: `--max-length` if it is given, else its own, at most the number of
    /// positions that have a table; without one, that of all texts.
    pub fn role_length(&self, own: Option<&TokenLimit>) -> usize {
        let positions = self.encoders[0].spec().position_limit().unwrap_or(usize::MAX);
        match own.filter(|_| self.max_length.file.is_some()) {
            Some(own) => own.tokens.min(positions),
            None => self.max_length.tokens,
        }
    }

    /// The maximum tokens of a query and of a document, in the order of [`Role`](crate::model::modules::Role), if one of them has its own.
    pub fn role_lengths(&self) -> Option<[usize; 2]> {
        let own = &self.modules.role_lengths;
        own.iter().any(Option::is_some).then(|| own.each_ref().map(|own| self.role_length(own.as_ref())))
    }

    /// The files of the model, none of which an output may replace.
    pub fn read_files(&self) -> ReadFiles {
        const WHAT: &str = "a file of the model";
        let mut files = ReadFiles::new(&self.files, WHAT);
        files.add_folder(parent_dir(self.config.path()).to_owned(), is_model_file, WHAT);
        files
    }
}

/// Tokens and their weights for the queries of a sparse encoder without an encoder.
pub struct StaticQueries {
    /// The tokenizer of queries, without special tokens.
    pub tokenizer: Tokenizer,
    /// The weight of each token of the vocabulary.
    pub weights: Vec<f32>,
}

/// Loads a model for dense embedding. Prints what was loaded, and which pooling is used if the model's files do not configure one.
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

/// Loads a model for what its files say that it is for: with its task head, or for vectors or sparse weights. A checkpoint of a masked
/// language model has its head, unless a pooling is configured or chosen.
pub fn load_for_own_task(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::OwnTask, options, console)
}

fn load_for(wanted: Wanted, options: &ModelOptions, console: &Console) -> Result<Loaded> {
    let start = Instant::now();
    let loaded = build(options, console, wanted)?;
    if let Some(purpose) = loaded.purpose.as_ref().filter(|_| loaded.head.is_none()) {
        check_pairs(wanted, options, purpose)?;
    }
    let problems = loaded.report.as_ref().map_or(&[][..], |report| &report.problems);
    if let Some(first) = problems.first() {
        let more = match problems.len() {
            1 => String::new(),
            n => format!(" (and {} more; sconce inspect lists them all)", n - 1),
        };
        let config = loaded.config.path().display();
        let defaults = default_sizes(&loaded.config);
        bail!("{}: {first}{more}; the weights do not match {config}{defaults}", loaded.weights);
    }
    check_default_layers(&loaded)?;
    console.detail(format!(
        "loaded {} ({:.1} M parameters) in {:.0} ms: {}",
        loaded.config.path().display(),
        loaded.parameters as f64 / 1e6,
        1e3 * start.elapsed().as_secs_f64(),
        loaded.weights
    ));
    if loaded.adapter.is_none() && !loaded.adapters.tasks.is_empty() {
        let tasks = loaded.adapters.names();
        console.note(format!(
            "the model has adapters for tasks ({tasks}); using none of them: choose one with --task"
        ));
    }
    let has_own_vectors = loaded.head.is_none() || options.gives(OutputKind::Dense);
    if let Some(purpose) = loaded.purpose.as_ref().filter(|_| has_own_vectors && options.reads_checkpoint())
        && let Some(command) = purpose.command()
    {
        let model = &options.source.model;
        console.note(format!(
            "{model} is {purpose}; its hidden states are pooled without its head, which {command} uses"
        ));
    }
    if loaded.head_kind == Some(HeadKind::CausalLm) && loaded.modules.logit_score.is_none() {
        let model = &options.source.model;
        console.note(format!(
            "{model} is a causal language model without a LogitScore module; its score is logit(yes) - logit(no), as in \
             sentence-transformers"
        ));
    }
    if has_own_vectors && options.pooling.is_none() && !loaded.modules.configures_pooling() {
        let pooling = &loaded.pooling;
        console.note(format!("no pooling configured; using {pooling}, the default for this model family"));
    }
    return_freed_memory();
    Ok(loaded)
}

/// Checks that a number of layers that is a default is that of the checkpoint, whose other layers would be left out.
fn check_default_layers(loaded: &Loaded) -> Result<()> {
    let key = loaded.family.keys.layers;
    let unexpected = loaded.report.as_ref().and_then(|report| report.unexpected_tensors.first());
    match (loaded.config.defaults().find(|(name, _)| *name == key), unexpected) {
        (Some((_, layers)), Some(tensor)) => bail!(
            "{} has no field \"{key}\", and {layers}, the default of transformers, leaves tensor {tensor} of the checkpoint without a \
             layer; add the field",
            loaded.config.path().display()
        ),
        _ => Ok(()),
    }
}

/// Loads a model. A model for another task than the wanted one is refused before its weights are read.
fn build(options: &ModelOptions, console: &Console, wanted: Wanted) -> Result<Loaded> {
    let prepared = prepare(options, console, wanted)?;
    let tokenizer_file = tokenizer_file(options, prepared.files.as_ref())?;
    let limits = prepared.tokenizer_options();
    let Prepared { backends, files, modules, plan, count, max_length, adapters, adapter, .. } = prepared;
    adapters.check_chosen(adapter.as_ref())?;
    let applied = plan.applied_modules(&modules);
    let (projected, head_kind) = (plan.token_projection.as_ref(), plan.head.as_ref().map(HeadSpec::kind));
    let parts = plan.parts(&modules);
    let (config, family, pooling) = (&plan.config, plan.family, &plan.pooling);
    let weights = find_weights(options, files.as_ref())?;
    let own_weights = modules.query_weights.as_ref();
    let own_weights = own_weights.filter(|_| *pooling == Pooling::Splade && options.reads_checkpoint());
    let skips_encoder = own_weights.is_some() && options.only_queries;
    // In parallel: both take long, and they are independent.
    let (tokenizer, weights_loaded) = rayon::join(
        || read_tokenizer(&tokenizer_file, options, limits, &modules),
        || match &weights {
            Weights::File(_) if skips_encoder => without_weights(&parts),
            Weights::File(path) => {
                load_checkpoint(path, family, &parts, &backends, adapter.as_ref(), options.weight_cache)
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
    let mut files = read_files(config, Some(&tokenizer_file), Some(&weights), &modules, run_modules)?;
    files.extend(parts.head_file.map(Path::to_owned));
    files.extend(adapter.iter().flat_map(ChosenAdapter::files));
    let max_length = max_length.of_tokenizer(&tokenizer, &tokenizer_file);
    let (weights, parameters) = (weights.to_string(), count.parameters);
    let Plan { config, family, pooling, dimensions, .. } = plan;
    Ok(Loaded {
        config,
        family,
        weights,
        report,
        parameters,
        encoders,
        modules,
        purpose,
        pooling,
        token_modules,
        post_pooling,
        dimensions,
        token_projection,
        files,
        head,
        head_kind,
        static_queries,
        tokenizer_file,
        tokenizer,
        max_length,
        adapters,
        adapter,
    })
}

/// Has the tokenizer keep the markers of a multi-vector model whole, and pad sequences if the encoder attends to `padding`.
fn add_markers_and_padding(tokenizer: &mut Tokenizer, modules: &Modules, padding: Option<u32>) -> Result<()> {
    let mut markers = modules.multi_vector.iter().flat_map(|multi_vector| &multi_vector.markers);
    markers.try_for_each(|marker| tokenizer.add_marker(marker))?;
    if let Some(default) = padding {
        tokenizer.pad_to_max_length(default);
    }
    Ok(())
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

/// Reads the weights of queries of a sparse encoder with `dimensions`, and their tokenizer.
fn static_queries(options: &ModelOptions, module: &QueryWeights, dimensions: usize) -> Result<StaticQueries> {
    let weights = module.weights()?;
    if weights.len() != dimensions {
        bail!(
            "{} weights {} tokens, but the vocabulary of the model has {dimensions}; use the files of one model",
            module.folder.display(),
            weights.len()
        );
    }
    let own_side = if module.truncate_left { TruncationSide::Left } else { TruncationSide::Right };
    let own_limit = module.max_length.as_ref().map(|limit| limit.tokens);
    let limits = TokenizerOptions {
        max_length: options.max_length.or(own_limit).unwrap_or(usize::MAX),
        truncation_side: options.truncation_side.unwrap_or(own_side),
        pair_truncation: options.pair_truncation,
        lowercase: false,
    };
    let tokenizer = Tokenizer::read(&module.tokenizer()?, &limits)?.without_special_tokens();
    Ok(StaticQueries { tokenizer, weights })
}

/// Reads the tokenizer, and checks that its limit leaves room for a text.
fn read_tokenizer(
    file: &Path,
    options: &ModelOptions,
    limits: TokenizerOptions,
    modules: &Modules,
) -> Result<Tokenizer> {
    let mut tokenizer = match modules.static_embedding {
        Some(StaticLayout::SentenceTransformers) => Tokenizer::read_static(file, |own| match own {
            Some((max_length, side)) => TokenizerOptions {
                max_length: options.max_length.unwrap_or(max_length),
                truncation_side: options.truncation_side.unwrap_or(side),
                ..limits
            },
            None => limits,
        })?,
        // Its limit is in the config.
        Some(StaticLayout::Model2Vec) => Tokenizer::read_static(file, |_| limits)?,
        None => Tokenizer::read(file, &limits)?,
    };
    if modules.static_embedding == Some(StaticLayout::Model2Vec) {
        tokenizer.cut_characters();
    }
    if modules.no_special_tokens {
        tokenizer = tokenizer.without_special_tokens();
    }
    let (max_length, special_tokens) = (tokenizer.max_length(), tokenizer.num_special_tokens(false));
    if max_length <= special_tokens {
        bail!(UsageError(format!(
            "a limit of {max_length} tokens leaves no room for a text beside {special_tokens} special tokens; pass a larger \
             --max-length"
        )));
    }
    Ok(tokenizer)
}

/// Warns about layers of the checkpoint that the config does not have, and about values that are not finite. Returns the purpose of the
/// model, which the tensors of a bare checkpoint may tell.
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
fn read_files<'a>(
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
    if let Some(Weights::File(path)) = weights {
        files.insert(path.clone());
        if path.extension().is_some_and(|suffix| suffix == "json") {
            files.extend(read_index(path)?.values().map(|shard| path.with_file_name(shard)));
        }
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
