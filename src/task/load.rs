//! Loads a model: locates its files, resolves config, modules and options, reads tokenizer and weights.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Error, Result, bail};
use bytesize::ByteSize;
use serde_json::Value;

use super::device::{backends, post_pooling_backend};
use super::options::ModelOptions;
use crate::error::UsageError;
use crate::model::adapter::{Adapters, ChosenAdapter};
use crate::model::config::Config;
use crate::model::directory::ModelDir;
use crate::model::families::{Family, STATIC_EMBEDDING};
use crate::model::layout::{COLBERT_LINEAR, SPARSE_LINEAR, optional_files_beside};
use crate::model::modules::{
    Modules, PoolingModule, PostPoolingModule, QueryWeights, TokenLimit, output_dimensions, parent_model,
    post_pooling, unified,
};
use crate::model::packed_weights::PackedWeights;
use crate::model::purpose::{self, Purpose};
use crate::model::static_embedding::{self, StaticLayout};
use crate::model::weights::{Checkpoint, TensorReport, read_index};
use crate::nn::{
    Backend, Encoder, EncoderSpec, F32_SIGNIFICAND_BITS, HeadKind, HeadSpec, OutputKind, ParameterCount,
    Pooling, PostPooling, RandomWeights, TaskHead, TokenHeadSpec, WeightSource,
};
use crate::sys::console::Console;
use crate::text::{PairTruncation, Tokenizer, TokenizerOptions, TruncationSide};

/// A projection of token vectors, its modules, and the dimensions of its vectors.
pub(super) type Projection<Module> = (Vec<Module>, usize);

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

/// The source of the weights.
pub(super) enum Weights {
    /// A checkpoint: one file, or the index of its shards.
    File(PathBuf),
    /// A seed.
    Random(u64),
}

/// The maximum length of a text, and where it is set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MaxLength {
    /// Tokens, including special tokens.
    pub tokens: usize,
    /// The option or the field.
    pub key: String,
    /// The file of the field.
    pub file: Option<PathBuf>,
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::File(path) => write!(f, "{}", path.display()),
            Weights::Random(seed) => write!(f, "random, seed {seed}"),
        }
    }
}

/// Maximum size of random weights, in bytes. A larger size is most likely a mistake in a config.
const MAX_RANDOM_BYTES: usize = 1 << 34;

/// What a model is loaded for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// To be shown, whatever its purpose.
    Inspection,
    /// Vectors: an embedding model.
    Vectors,
    /// Its task head, of this kind.
    Head(HeadKind),
    /// Scores of pairs: a sequence-classification head, or vectors or sparse weights of a model without one.
    PairScores,
    /// Vectors, or the sparse weights of a model with a SpladePooling module or with `--pooling splade`.
    VectorsOrWeights,
}

/// Loads a model for dense embedding. Prints what was loaded, and which pooling is used if the model's files do not configure one.
///
/// # Errors
/// If a file is missing or malformed, contradicts another file, or the model is not an embedding model.
pub fn load(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::Vectors, options, console)
}

/// [`load`] of a model that may be a sparse encoder, which is loaded with its masked-LM head.
///
/// # Errors
/// As [`load`].
pub fn load_embedding_or_sparse(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::VectorsOrWeights, options, console)
}

/// Loads a model with its task head, of this kind.
///
/// # Errors
/// If a file is missing or malformed, contradicts another file, or the model has no such head.
pub fn load_head(kind: HeadKind, options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::Head(kind), options, console)
}

/// Loads a model that scores texts by a query: a cross-encoder with its head, or an embedding model.
///
/// # Errors
/// If a file is missing or malformed, contradicts another file, or the model is neither.
pub fn load_reranker(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    load_for(Wanted::PairScores, options, console)
}

fn load_for(wanted: Wanted, options: &ModelOptions, console: &Console) -> Result<Loaded> {
    let start = Instant::now();
    let loaded = build(options, console, wanted)?;
    if loaded.head.is_none()
        && let Some(purpose) = &loaded.purpose
    {
        check_gives_vectors(wanted, options, purpose)?;
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
    if has_own_vectors && options.pooling.is_none() && !loaded.modules.configures_pooling() {
        let pooling = &loaded.pooling;
        console.note(format!("no pooling configured; using {pooling}, the default for this model family"));
    }
    Ok(loaded)
}

/// The sizes that the config lacks, as the end of an error about tensors: the default of one of them may be wrong.
fn default_sizes(config: &Config) -> String {
    let size = |(key, value): (&str, &Value)| value.is_u64().then(|| format!("\"{key}\": {value}"));
    let sizes: Vec<String> = config.defaults().filter_map(size).collect();
    if sizes.is_empty() {
        return String::new();
    }
    let path = config.path().display();
    format!("; {path} lacks fields and so has the defaults of transformers: {}", sizes.join(", "))
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

/// Checks that a model of this purpose may give vectors: it is an embedding model, the user chose a pooling, or another command uses its
/// head, which [`load_for`] notes.
fn check_gives_vectors(wanted: Wanted, options: &ModelOptions, purpose: &Purpose) -> Result<()> {
    let command = purpose.command();
    if !options.uses_own_pooling() || command.is_some() && wanted != Wanted::PairScores {
        return Ok(());
    }
    let command = command.map(|command| format!("use {command}, ")).unwrap_or_default();
    bail!(
        "{} is {purpose}, not an embedding model; {command}choose an embedding model, or pass --pooling to pool its hidden \
         states anyway",
        options.source.model
    )
}

/// The kind of the head that a model of this purpose is loaded with, if any.
///
/// # Errors
/// If it has another purpose than the wanted one.
fn head_kind(
    wanted: Wanted,
    options: &ModelOptions,
    modules: &Modules,
    purpose: Option<&Purpose>,
) -> Result<Option<HeadKind>> {
    const OF_PAIRS: HeadKind = HeadKind::SequenceClassification;
    let model = &options.source.model;
    match (wanted, purpose) {
        (Wanted::Inspection, _) => Ok(None),
        (Wanted::VectorsOrWeights | Wanted::PairScores, _) if gives_weights(options, modules) => {
            Ok(Some(HeadKind::MaskedLm))
        }
        (Wanted::VectorsOrWeights | Wanted::PairScores, purpose) if options.gives(OutputKind::Lexical) => {
            match purpose.filter(|purpose| purpose.head() != Some(HeadKind::TokenClassification)) {
                Some(purpose) if modules.lexical_layer.is_none() => {
                    bail!("{model} is {purpose}, without lexical weights; choose a model such as BAAI/bge-m3")
                }
                _ => Ok(Some(HeadKind::LexicalWeights)),
            }
        }
        (Wanted::Vectors, _) if options.pooling.as_ref().is_some_and(Pooling::is_sparse) => {
            let pooling = options.pooling.as_ref().map(Pooling::to_string).unwrap_or_default();
            bail!(UsageError(format!(
                "--pooling {pooling} gives sparse vectors, but this command needs dense ones; choose another --pooling"
            )))
        }
        (Wanted::Head(OF_PAIRS), Some(purpose)) if purpose.head() == Some(HeadKind::NextSentence) => {
            Ok(Some(HeadKind::NextSentence))
        }
        (Wanted::Head(kind), Some(purpose)) if purpose.head() == Some(kind) => Ok(Some(kind)),
        (Wanted::PairScores, Some(purpose))
            if purpose.head() == Some(OF_PAIRS) && options.pooling.is_none() =>
        {
            Ok(Some(OF_PAIRS))
        }
        (Wanted::Head(kind), Some(purpose)) => {
            let (noun, command) = (purpose::noun(kind), use_command(purpose));
            bail!("{model} is {purpose}, not a {noun}; {command}choose a {noun}")
        }
        (Wanted::Head(kind), None) if modules.configures_pooling() => {
            let noun = purpose::noun(kind);
            bail!("{model} is an embedding model, not a {noun}; use sconce embed, or choose a {noun}")
        }
        // The tensors decide.
        (Wanted::Head(kind), None) => Ok(Some(kind)),
        (Wanted::Vectors | Wanted::PairScores | Wanted::VectorsOrWeights, Some(purpose)) => {
            check_gives_vectors(wanted, options, purpose).map(|()| None)
        }
        (Wanted::Vectors | Wanted::PairScores | Wanted::VectorsOrWeights, None) => Ok(None),
    }
}

/// Whether the model is loaded for SPLADE.
fn gives_weights(options: &ModelOptions, modules: &Modules) -> bool {
    match &options.pooling {
        Some(pooling) => *pooling == Pooling::Splade,
        None => modules.splade.is_some() && options.outputs.is_empty(),
    }
}

/// The remedy for a model of another purpose than the wanted one, as the beginning of a list.
fn use_command(purpose: &Purpose) -> String {
    purpose.command().map(|command| format!("use {command}, or ")).unwrap_or_default()
}

/// Loads a model. A model for another task than the wanted one is refused before its weights are read.
fn build(options: &ModelOptions, console: &Console, wanted: Wanted) -> Result<Loaded> {
    let prepared = prepare(options, console, wanted)?;
    let tokenizer_file = tokenizer_file(options, prepared.files.as_ref())?;
    let limits = prepared.tokenizer_options();
    let Prepared { backends, files, modules, plan, count, max_length, adapters, adapter, .. } = prepared;
    let applied = plan.applied_modules(&modules);
    let (projected, head_kind) = (plan.token_projection.as_ref(), plan.head.as_ref().map(HeadSpec::kind));
    let parts = plan.parts(&modules);
    let (config, family, pooling) = (&plan.config, plan.family, &plan.pooling);
    let weights = weights(options, files.as_ref())?;
    let own_weights = modules.query_weights.as_ref();
    let own_weights = own_weights.filter(|_| *pooling == Pooling::Splade && options.reads_checkpoint());
    let skips_encoder = own_weights.is_some() && options.only_queries;
    // In parallel: both take long, and they are independent.
    let (tokenizer, weights_loaded) = rayon::join(
        || read_tokenizer(&tokenizer_file, &limits, modules.static_embedding),
        || match &weights {
            Weights::File(_) if skips_encoder => without_weights(&parts),
            Weights::File(path) => {
                load_checkpoint(path, family, &parts, &backends, adapter.as_ref(), options.weight_cache)
            }
            Weights::Random(seed) => draw_random(config, &parts, &count, *seed, &backends),
        },
    );
    let (LoadedWeights { encoders, pooler, head, mut report }, mut tokenizer) = (weights_loaded?, tokenizer?);
    let mut markers = modules.multi_vector.iter().flat_map(|multi_vector| &multi_vector.markers);
    markers.try_for_each(|marker| tokenizer.add_marker(marker))?;
    let static_queries =
        own_weights.map(|module| static_queries(options, module, plan.dimensions)).transpose()?;
    let (loaded, token_projection) = load_modules(options, applied, projected, &mut report)?;
    let post_pooling = pooler.into_iter().chain(loaded).collect();
    let purpose = warn_about_tensors(report.as_ref(), &plan, console);
    let run_modules = applied.iter().chain(projected.iter().flat_map(|(modules, _)| modules));
    let mut files = read_files(config, Some(&tokenizer_file), Some(&weights), &modules, run_modules)?;
    files.extend(parts.head_file.map(Path::to_owned));
    files.extend(adapter.iter().flat_map(ChosenAdapter::files));
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

/// Loads the post-pooling modules, and the projection of token vectors if there is one.
fn load_modules(
    options: &ModelOptions,
    applied: &[PostPoolingModule],
    projected: Option<&Projection<PostPoolingModule>>,
    report: &mut Option<TensorReport>,
) -> Result<(Vec<PostPooling>, Option<Projection<PostPooling>>)> {
    let post_pooling = post_pooling::load(applied, options.random_weights, report)?;
    let projection = match projected {
        Some((modules, dimensions)) => {
            Some((post_pooling::load(modules, options.random_weights, report)?, *dimensions))
        }
        None => None,
    };
    Ok((post_pooling, projection))
}

/// Tokens and their weights for the queries of a sparse encoder without an encoder.
pub struct StaticQueries {
    /// The tokenizer of queries, without special tokens.
    pub tokenizer: Tokenizer,
    /// The weight of each token of the vocabulary.
    pub weights: Vec<f32>,
}

/// Reads the weights of queries of a sparse encoder with `dimensions`, and their tokenizer.
///
/// # Errors
/// If a file cannot be read, or the weights have other dimensions.
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

/// A model whose config, modules and options are resolved, before its tokenizer and weights are read.
pub(super) struct Prepared {
    pub backends: Vec<Backend>,
    /// The files of the encoder; `None` if options replace all of them.
    pub files: Option<ModelDir>,
    pub modules: Modules,
    pub plan: Plan,
    /// Parameters of the encoder, pooler and applied modules, and the memory of the weights.
    pub count: ParameterCount,
    pub max_length: MaxLength,
    pub truncation_side: TruncationSide,
    pub pair_truncation: PairTruncation,
    /// The adapters of the model.
    pub adapters: Adapters,
    /// The adapter to merge into the weights.
    pub adapter: Option<ChosenAdapter>,
}

/// Resolves the options against config and modules. A model for another task than the wanted one is an error.
pub(super) fn prepare(options: &ModelOptions, console: &Console, wanted: Wanted) -> Result<Prepared> {
    let (files, mut modules) = locate(options, console)?;
    // Static embeddings are looked up on the CPU.
    let backends = if modules.static_embedding.is_some() {
        vec![Backend::default()]
    } else {
        backends(options, console)?
    };
    let plan = plan(options, files.as_ref(), &modules, wanted)?;
    let adapters = match &files {
        Some(files) if options.reads_checkpoint() => Adapters::of(&plan.config, &files.folder)?,
        _ => Adapters::default(),
    };
    let adapter = adapters.choose(options.task.as_deref())?;
    if let Some((task, instruction)) = adapters.instruction(adapter.as_ref()) {
        modules.prompts.set_default(task, instruction);
    }
    let max_length = max_length(options, &modules, &plan)?;
    let own_side = if modules.truncate_left { TruncationSide::Left } else { TruncationSide::Right };
    let truncation_side = options.truncation_side.unwrap_or(own_side);
    let bits = significand_bits(options, files.as_ref());
    let parts = plan.parts(&modules);
    let count = count_parameters(options, &backends, bits, &parts, plan.applied_modules(&modules))?;
    let pair_truncation = options.pair_truncation;
    Ok(Prepared {
        backends,
        files,
        modules,
        plan,
        count,
        max_length,
        truncation_side,
        pair_truncation,
        adapters,
        adapter,
    })
}

impl Prepared {
    /// How texts are tokenized.
    pub(super) fn tokenizer_options(&self) -> TokenizerOptions {
        TokenizerOptions {
            max_length: self.max_length.tokens,
            truncation_side: self.truncation_side,
            pair_truncation: self.pair_truncation,
            lowercase: self.modules.lowercase,
        }
    }
}

/// The tokenizer: the option, else the model's own.
pub(super) fn tokenizer_file(options: &ModelOptions, files: Option<&ModelDir>) -> Result<PathBuf> {
    match &options.tokenizer {
        Some(path) => Ok(path.clone()),
        None => require_files(files)?.tokenizer(),
    }
}

/// The source of the weights: the seed of the option, else the model's checkpoint.
pub(super) fn weights(options: &ModelOptions, files: Option<&ModelDir>) -> Result<Weights> {
    Ok(match options.random_weights {
        None => Weights::File(require_files(files)?.weights()?),
        Some(seed) => Weights::Random(seed),
    })
}

/// Locates the files of the encoder and reads the modules of the model.
fn locate(options: &ModelOptions, console: &Console) -> Result<(Option<ModelDir>, Modules)> {
    let is_replaced = options.is_config_alone() || options.config.is_some() && options.tokenizer.is_some();
    let files =
        if is_replaced { None } else { Some(ModelDir::locate(&options.source, &options.output_files())?) };
    if let Some(warning) = files.as_ref().and_then(|files| files.warning.as_ref()) {
        console.warn(warning);
    }
    // With --config, the model only supplies its tokenizer: its modules do not apply.
    let modules = match (&files, &options.config) {
        (Some(files), None) => {
            Modules::read(&files.folder, options.pooling.as_ref(), options.source.dimensions)?
        }
        _ => Modules::default(),
    };
    if let Some(parent) = files.as_ref().and_then(|files| parent_model(&files.folder)) {
        console.warn(format!(
            "{} is the encoder of the model in {}: the pooling and later modules of that model are not applied; pass --model {1}",
            options.source.model,
            parent.display()
        ));
    }
    Ok((files.map(|files| files.subdirectory(&modules.encoder_folder)), modules))
}

/// The files of the model, which exist unless `--config` and `--tokenizer` replace all of them.
fn require_files(files: Option<&ModelDir>) -> Result<&ModelDir> {
    files.ok_or_else(|| {
        Error::msg("--config and --tokenizer replace the files of the model; please report this as a bug")
    })
}

/// The decisions that depend only on options, config and modules, before weights and tokenizer are read.
pub(super) struct Plan {
    pub config: Config,
    pub family: &'static Family,
    pub spec: EncoderSpec,
    pub pooling: Pooling,
    /// Dimensions of a vector after the last module.
    pub dimensions: usize,
    /// The head to load.
    pub head: Option<HeadSpec>,
    /// The projection of token vectors as an output beside others, and the dimensions of its vectors.
    pub token_projection: Option<Projection<PostPoolingModule>>,
    /// Whether there are vectors of the pooling, with or without a head beside them.
    pub has_vectors: bool,
    /// Whether the model is a checkpoint without a Pooling module: its task is known from config and tensors only.
    pub is_bare_checkpoint: bool,
    /// The task, if it is not embedding.
    pub purpose: Option<Purpose>,
}

impl Plan {
    /// The parts with weights.
    pub(super) fn parts<'a>(&'a self, modules: &'a Modules) -> Parts<'a> {
        let is_lexical = self.head.as_ref().is_some_and(|head| head.kind() == HeadKind::LexicalWeights);
        let head_file = modules.lexical_layer.as_deref().filter(|_| is_lexical);
        let is_masked_lm = purpose::has_masked_lm(&self.config);
        Parts { spec: &self.spec, pooling: &self.pooling, head: self.head.as_ref(), head_file, is_masked_lm }
    }

    /// The post-pooling modules that run: none if there is a task head alone.
    fn applied_modules<'a>(&self, modules: &'a Modules) -> &'a [PostPoolingModule] {
        if self.has_vectors { modules.applied(&self.pooling) } else { &[] }
    }
}

/// Reads the config and resolves the options against config and modules. A model for another task than the wanted one is an error.
fn plan(options: &ModelOptions, files: Option<&ModelDir>, modules: &Modules, wanted: Wanted) -> Result<Plan> {
    let config = match &options.config {
        Some(path) => Config::read(path)?,
        None if modules.static_embedding.is_some() => {
            let files = require_files(files)?;
            static_embedding::config(&files.folder, &files.weights()?)?
        }
        None => Config::read(&require_files(files)?.config())?,
    };
    let is_bare_checkpoint = !modules.configures_pooling() && options.reads_checkpoint();
    // Random weights have the head that the config describes; for vectors, any config is good.
    let is_described = is_bare_checkpoint || wanted == Wanted::PairScores && !options.reads_checkpoint();
    let purpose = modules.purpose.clone().or_else(|| Purpose::of_config(&config).filter(|_| is_described));
    let head = head_kind(wanted, options, modules, purpose.as_ref())?;
    let (family, spec) = match modules.static_embedding {
        Some(_) => (&STATIC_EMBEDDING, static_embedding::spec(&config)?),
        None => Family::of(&config).and_then(|family| Ok((family, family.spec(&config)?)))?,
    };
    let config = family.config_defaults.complete(&config)?;
    let is_pretrained = purpose.is_none() && purpose::is_pretrained(&config);
    let head =
        head.map(|kind| head_spec(kind, is_pretrained, modules, family, &config, &spec)).transpose()?;
    let token_projection = token_projection(options, modules, spec.hidden_size)?;
    let has_vectors = head.is_none() || options.gives(OutputKind::Dense);
    let (pooling, dimensions) = match &head {
        Some(head) if !has_vectors => match head {
            HeadSpec::MaskedLm(_) if wanted != Wanted::Head(HeadKind::MaskedLm) => {
                (Pooling::Splade, spec.vocab_size)
            }
            HeadSpec::LexicalWeights(_) => (Pooling::Lexical, spec.vocab_size),
            head => (head.pooling(), head.outputs()),
        },
        _ => {
            let pooling = own_pooling(options, modules, family, &config)?;
            let check = modules.check_hidden_size(spec.hidden_size);
            check.map_err(|error| Error::msg(format!("{error}{}", default_sizes(&config))))?;
            let dimensions = dimensions(options, modules, &pooling, spec.hidden_size)?;
            (pooling, dimensions)
        }
    };
    Ok(Plan {
        config,
        family,
        spec,
        pooling,
        dimensions,
        head,
        token_projection,
        has_vectors,
        is_bare_checkpoint,
        purpose,
    })
}

/// The task head of this kind, or that of pretraining for pairs if the checkpoint has no other.
pub(super) fn head_spec(
    kind: HeadKind,
    is_pretrained: bool,
    modules: &Modules,
    family: &'static Family,
    config: &Config,
    spec: &EncoderSpec,
) -> Result<HeadSpec> {
    match kind {
        HeadKind::SequenceClassification if is_pretrained => {
            family.head(HeadKind::NextSentence, config, spec)
        }
        HeadKind::LexicalWeights if modules.lexical_layer.is_some() => {
            Ok(HeadSpec::LexicalWeights(TokenHeadSpec { transform: None, outputs: 1 }))
        }
        kind => family.head(kind, config, spec),
    }
}

/// The pooling of hidden states: the option, else the model's files, else the default for the model family.
fn own_pooling(
    options: &ModelOptions,
    modules: &Modules,
    family: &'static Family,
    config: &Config,
) -> Result<Pooling> {
    let pooling = match (&options.pooling, &modules.pooling) {
        (Some(Pooling::MultiVector), _) if modules.multi_vector.is_none() => bail!(UsageError(format!(
            "--pooling multi-vector: {} is not a multi-vector model like ColBERT, so nothing projects its token vectors; choose \
             another model, or pass --pooling none",
            options.source.model
        ))),
        (Some(pooling), _) | (None, Some(PoolingModule { pooling, .. })) => pooling.clone(),
        (None, None) if modules.multi_vector.is_some() => Pooling::MultiVector,
        (None, None) => Pooling::Text(vec![family.pool]),
    };
    if pooling.needs_pooler() && !family.names.iter().any(|names| names.has_module("pooler")) {
        let model_type = config.string("model_type")?.unwrap_or_default();
        bail!(UsageError(format!(
            "--pooling pooler: models of type {model_type} have no pooler; choose another --pooling"
        )));
    }
    Ok(pooling)
}

/// The projection of token vectors as an output beside others, and the dimensions of its vectors, if it is asked for.
fn token_projection(
    options: &ModelOptions,
    modules: &Modules,
    hidden_size: usize,
) -> Result<Option<Projection<PostPoolingModule>>> {
    if !options.outputs.contains(&OutputKind::MultiVector) {
        return Ok(None);
    }
    let Some(file) = &modules.token_projection else {
        bail!(UsageError(format!(
            "--outputs multi-vector: {} has no {COLBERT_LINEAR}, so nothing projects its token vectors; leave that output out, or \
             choose a model such as BAAI/bge-m3",
            options.source.model
        )))
    };
    let modules = unified::token_projection(file)?;
    let dimensions = output_dimensions(&modules, hidden_size)?;
    Ok(Some((modules, dimensions)))
}

/// The dimensions of vectors after all post-pooling modules.
fn dimensions(
    options: &ModelOptions,
    modules: &Modules,
    pooling: &Pooling,
    hidden_size: usize,
) -> Result<usize> {
    modules.output_dimensions(pooling, hidden_size).map_err(|mismatch| match &options.pooling {
        Some(chosen) => UsageError(format!(
            "--pooling {chosen} returns {} dimensions, but {} takes vectors of {} dimensions; leave the option out, or pass \
             --pooling none",
            mismatch.found,
            mismatch.file.display(),
            mismatch.expected
        ))
        .into(),
        None => mismatch.into(),
    })
}

/// Counts the parameters, rejects weights that do not fit into `--max-memory`.
fn count_parameters(
    options: &ModelOptions,
    backends: &[Backend],
    significand_bits: u32,
    parts: &Parts,
    modules: &[PostPoolingModule],
) -> Result<ParameterCount> {
    let count = count(backends.first().cloned().unwrap_or_default(), significand_bits, parts, modules)?;
    let is_random = options.random_weights.is_some();
    if is_random {
        post_pooling::check_sizes(modules, MAX_RANDOM_BYTES)?;
    }
    if !backends.iter().any(Backend::is_gpu) {
        // Embedding tables of a checkpoint stay in the mapped file and are read row by row.
        let tables = if is_random { count.table_bytes } else { 0 };
        check_weights(options.max_memory, count.held_bytes.saturating_add(tables))?;
    }
    Ok(count)
}

/// Significant bits of the matrices of a checkpoint. Faults of its files are found when they are loaded.
fn significand_bits(options: &ModelOptions, files: Option<&ModelDir>) -> u32 {
    match weights(options, files) {
        Ok(Weights::File(path)) => {
            Checkpoint::open(&path).map_or(F32_SIGNIFICAND_BITS, |file| file.significand_bits())
        }
        _ => F32_SIGNIFICAND_BITS,
    }
}

/// Counts the parameters of an encoder, of its pooler and head if there are any, and of post-pooling `modules`.
pub(super) fn count(
    backend: Backend,
    significand_bits: u32,
    parts: &Parts,
    modules: &[PostPoolingModule],
) -> Result<ParameterCount> {
    let mut count = ParameterCount::new(backend, significand_bits);
    Encoder::load(parts.spec, &mut count)?;
    parts.load_pooler(&mut count)?;
    parts.load_head(&mut count)?;
    for module in modules {
        PostPooling::load(&mut count, "module", &module.spec)?;
    }
    Ok(count)
}

/// Reads the tokenizer, and checks that its limit leaves room for a text.
pub(super) fn read_tokenizer(
    file: &Path,
    options: &TokenizerOptions,
    static_embedding: Option<StaticLayout>,
) -> Result<Tokenizer> {
    let mut tokenizer = match static_embedding {
        Some(_) => Tokenizer::read_static(file, options)?,
        None => Tokenizer::read(file, options)?,
    };
    if static_embedding == Some(StaticLayout::Model2Vec) {
        tokenizer.cut_characters();
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
pub(super) fn warn_about_tensors(
    report: Option<&TensorReport>,
    plan: &Plan,
    console: &Console,
) -> Option<Purpose> {
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

/// Checks that the weights fit into `--max-memory`.
///
/// # Errors
/// If they do not: a usage error.
fn check_weights(max_memory: Option<u64>, bytes: usize) -> Result<()> {
    match max_memory {
        Some(max_bytes) if bytes as u64 > max_bytes => bail!(UsageError(format!(
            "--max-memory {}: the weights of the model need {}; pass a larger --max-memory, or choose a smaller model",
            ByteSize(max_bytes).display().si(),
            ByteSize(bytes as u64).display().si()
        ))),
        _ => Ok(()),
    }
}

/// All files that affect vectors.
pub(super) fn read_files<'a>(
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
    if let Some(weights) = &modules.query_weights {
        files.extend(weights.files()?);
    }
    for module in post_pooling {
        files.extend([module.config()].into_iter().filter(|file| file.is_file()).chain(module.weights()?));
    }
    Ok(files.into_iter().collect())
}

/// Maximum tokens of a text: the option, else the model's own limit, at most the number of positions.
fn max_length(options: &ModelOptions, modules: &Modules, plan: &Plan) -> Result<MaxLength> {
    let positions = plan.spec.max_length();
    if let Some(tokens) = options.max_length {
        if tokens > positions {
            bail!(UsageError(format!("--max-length {tokens} exceeds the model's {positions} positions")))
        }
        return Ok(MaxLength { tokens, key: "--max-length".into(), file: None });
    }
    Ok(match &modules.max_length {
        Some(TokenLimit { tokens, key, file }) if *tokens <= positions => {
            MaxLength { tokens: *tokens, key: key.clone(), file: Some(file.clone()) }
        }
        _ => {
            let (key, file) = (plan.family.keys.max_positions.to_owned(), plan.config.path().to_owned());
            MaxLength { tokens: positions, key, file: Some(file) }
        }
    })
}

/// The parts of a model that have weights.
pub(super) struct Parts<'a> {
    pub spec: &'a EncoderSpec,
    pub pooling: &'a Pooling,
    pub head: Option<&'a HeadSpec>,
    /// The file of the head, if it is not in the checkpoint.
    pub head_file: Option<&'a Path>,
    /// Whether the config names the class of a masked language model.
    pub is_masked_lm: bool,
}

impl<'a> Parts<'a> {
    /// An encoder and its pooler, if `pooling` needs it.
    pub(super) fn without_head(spec: &'a EncoderSpec, pooling: &'a Pooling) -> Self {
        Parts { spec, pooling, head: None, head_file: None, is_masked_lm: false }
    }

    fn load_pooler(&self, source: &mut dyn WeightSource) -> Result<Option<PostPooling>> {
        PostPooling::load_pooler(source, self.pooling, self.spec.hidden_size)
    }

    fn load_head(&self, source: &mut dyn WeightSource) -> Result<Option<TaskHead>> {
        self.head.map(|head| TaskHead::load(source, head, self.spec.hidden_size)).transpose()
    }
}

/// The weights of a model.
pub(super) struct LoadedWeights {
    /// The encoder once per backend.
    encoders: Vec<Encoder>,
    /// The pooler, if it is needed.
    pooler: Option<PostPooling>,
    /// The task head, if it is wanted; in f32 on the CPU.
    head: Option<TaskHead>,
    /// The report on the tensors of a checkpoint.
    pub report: Option<TensorReport>,
}

/// Reads the weights of a checkpoint.
///
/// # Errors
/// If the checkpoint or the adapter cannot be read, or lacks the pooler or the head. Other missing tensors are in the report.
pub(super) fn load_checkpoint(
    path: &Path,
    family: &'static Family,
    parts: &Parts,
    backends: &[Backend],
    adapter: Option<&ChosenAdapter>,
    uses_cache: bool,
) -> Result<LoadedWeights> {
    let checkpoint = Checkpoint::open(path)?;
    let mut reader = checkpoint.reader(family.names)?;
    reader.set_adapter(adapter.map(|adapter| adapter.read(&checkpoint)).transpose()?);
    let cpu = backends.iter().find(|backend| uses_cache && matches!(backend, Backend::Cpu(_)));
    reader.set_packed_weights(cpu.and_then(|cpu| PackedWeights::open(&checkpoint.files(), cpu.gemm_type())));
    let mut encoders = Vec::new();
    for backend in backends {
        reader.set_backend(backend.clone());
        encoders.push(Encoder::load(parts.spec, &mut reader)?);
    }
    if parts.pooling.needs_pooler()
        && let Some(name) = reader.missing("pooler.weight")
    {
        bail!(
            "{} has no tensor {name}: the model was saved without its pooler; choose another --pooling",
            path.display()
        )
    }
    let own_head = parts.head.filter(|_| parts.head_file.is_none());
    if let Some(kind) = own_head.map(HeadSpec::kind)
        && let Some(name) = own_head.and_then(|head| head.missing(&reader)).map(|name| reader.resolve(&name))
    {
        bail!("{} has no tensor {name}{}", path.display(), lacks_head(kind, parts.is_masked_lm))
    }
    if parts.head.is_some_and(|head| head.kind() == HeadKind::LexicalWeights) && parts.head_file.is_none() {
        check_one_logit(&checkpoint, &reader.resolve("head.token_classifier.weight"), path)?;
    }
    reader.set_backend(post_pooling_backend(backends));
    let pooler = parts.load_pooler(&mut reader)?;
    reader.set_backend(Backend::default());
    let mut head = match parts.head_file {
        None => parts.load_head(&mut reader)?,
        Some(_) => None,
    };
    reader.finish_adapter()?;
    let packed = reader.take_packed_weights();
    let mut report = reader.into_report();
    checkpoint.check_unchanged()?;
    if let Some(packed) = packed {
        packed.finish()?;
    }
    if let (Some(spec), Some(file)) = (parts.head, parts.head_file) {
        head = Some(unified::load_lexical_layer(file, spec, parts.spec.hidden_size, &mut report)?);
    }
    Ok(LoadedWeights { encoders, pooler, head, report: Some(report) })
}

/// The end of a sentence about a checkpoint without the head of this kind.
fn lacks_head(kind: HeadKind, is_masked_lm: bool) -> String {
    match kind {
        HeadKind::LexicalWeights => format!(
            ", and there is no {SPARSE_LINEAR} beside it: the model has no lexical weights; choose a model such as BAAI/bge-m3"
        ),
        kind => {
            let noun = purpose::noun(kind);
            let (own, command) = match is_masked_lm && kind != HeadKind::MaskedLm {
                true => ("a masked language model, ", "sconce fill"),
                false => ("", "sconce embed"),
            };
            format!(": the model is {own}not a {noun}; use {command}, or choose a {noun}")
        }
    }
}

/// Checks that a head of lexical weights, whose matrix is the tensor `name`, has one logit per token.
fn check_one_logit(checkpoint: &Checkpoint, name: &str, path: &Path) -> Result<()> {
    match checkpoint.shape(name) {
        Some(&[logits, _]) if logits != 1 => bail!(
            "{}: tensor {name} gives {logits} logits per token, but a lexical weight is one; choose a model such as BAAI/bge-m3",
            path.display()
        ),
        _ => Ok(()),
    }
}

/// An encoder and a head without weights, for texts that they do not run on.
fn without_weights(parts: &Parts) -> Result<LoadedWeights> {
    let mut source = ParameterCount::new(Backend::default(), F32_SIGNIFICAND_BITS);
    let encoders = vec![Encoder::load(parts.spec, &mut source)?];
    let head = parts.load_head(&mut source)?;
    Ok(LoadedWeights { encoders, pooler: None, head, report: None })
}

/// Draws random weights.
///
/// # Errors
/// If they exceed [`MAX_RANDOM_BYTES`].
fn draw_random(
    config: &Config,
    parts: &Parts,
    count: &ParameterCount,
    seed: u64,
    backends: &[Backend],
) -> Result<LoadedWeights> {
    if count.parameters.saturating_mul(size_of::<f32>()) > MAX_RANDOM_BYTES {
        bail!(
            "{} describes {} parameters, too many for random weights; check its sizes",
            config.path().display(),
            count.parameters
        );
    }
    let encoders = (backends.iter())
        .map(|backend| Encoder::load(parts.spec, &mut RandomWeights::new(seed, backend.clone())))
        .collect::<Result<_>>()?;
    let pooler = parts.load_pooler(&mut RandomWeights::new(seed, post_pooling_backend(backends)))?;
    let head = parts.load_head(&mut RandomWeights::new(seed, Backend::default()))?;
    Ok(LoadedWeights { encoders, pooler, head, report: None })
}
