//! From options to a model that is ready to run.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, bail};
use bytesize::ByteSize;

use super::{Console, WrongUsage, heads};
use crate::model::Source;
use crate::model::config::Config;
use crate::model::families::Family;
use crate::model::files::ModelFiles;
use crate::model::pipeline::{HeadModule, Pipeline, PoolingModule, whole_model};
use crate::model::purpose::Purpose;
use crate::model::weights::{Checkpoint, Report, read_index};
use crate::nn::{
    Count, Encoder, EncoderSpec, Engine, Head, Pooling, Precision, Random, Refusal, Wanted, keep_memory,
    spare_memory,
};
use crate::text::{Tokenizer, TokenizerOptions};

/// Which model, and what stands in for its parts.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// Where the model is.
    pub source: Source,
    /// A config that takes the place of the model's own.
    pub config: Option<PathBuf>,
    /// A seed for weights that take the place of the checkpoint's.
    pub random_weights: Option<u64>,
    /// A tokenizer that takes the place of the model's own.
    pub tokenizer: Option<PathBuf>,
    /// The longest text in tokens, in place of the model's own limit.
    pub max_length: Option<usize>,
    /// Whether longer texts lose their beginning, in place of what the model's files say.
    pub cut_left: Option<bool>,
    /// How tokens become a vector, in place of the model's own way.
    pub pooling: Option<Pooling>,
    /// The most memory that the process may take, in bytes.
    pub max_memory: Option<u64>,
    /// What the encoder is to run on.
    pub device: Wanted,
    /// What it is to compute in.
    pub precision: Precision,
}

impl ModelOptions {
    /// A model as its own files have it.
    pub fn of(source: Source) -> Self {
        ModelOptions {
            source,
            config: None,
            random_weights: None,
            tokenizer: None,
            max_length: None,
            cut_left: None,
            pooling: None,
            max_memory: None,
            device: Wanted::Cpu,
            precision: Precision::F32,
        }
    }
}

impl ModelOptions {
    /// Whether both the config and the weights are the model's own.
    fn reads_checkpoint(&self) -> bool {
        self.config.is_none() && self.random_weights.is_none()
    }

    /// Whether texts are to become vectors as the model's own files say.
    fn wants_own_way(&self) -> bool {
        self.reads_checkpoint() && self.pooling.is_none()
    }
}

/// A model and all that was decided about it.
pub struct Loaded {
    /// The config that the stack follows.
    pub config: Config,
    /// Its row of the family table.
    pub family: &'static Family,
    /// Where the weights came from.
    pub weights: String,
    /// What became of the checkpoint's tensors; none for random weights.
    pub report: Option<Report>,
    /// Numbers in the stack.
    pub parameters: usize,
    /// The stack, once for each device that it runs on.
    pub encoders: Vec<Encoder>,
    /// The model's own way from hidden states to a vector.
    pub pipeline: Pipeline,
    /// What the model is, where its files say that it is no embedding model.
    pub purpose: Option<Purpose>,
    /// How tokens become a vector: as the user says, else the model's files, else its family's custom.
    pub pooling: Pooling,
    /// What is done to the vector then; nothing without pooling.
    pub heads: Vec<Head>,
    /// Numbers in a vector after the last head.
    pub dimensions: usize,
    /// All files that make a vector what it is.
    pub files: Vec<PathBuf>,
    /// The file of the tokenizer.
    pub tokenizer_file: PathBuf,
    /// The tokenizer, with the limit in force.
    pub tokenizer: Tokenizer,
}

/// Where weights come from.
enum Weights {
    File(PathBuf),
    Random(u64),
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::File(path) => write!(f, "{}", path.display()),
            Weights::Random(seed) => write!(f, "random, seed {seed}"),
        }
    }
}

/// Random weights past this many bytes are a slip in the config, not a model.
const MOST_RANDOM_BYTES: usize = 1 << 34;

/// Loads a model that is ready to run.
///
/// # Errors
/// If a file is missing, broken, or contradicts another; the sentence names it.
pub fn load(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    let loaded = build(options, console, true)?;
    if let Some(purpose) = loaded.purpose.as_ref().filter(|_| options.wants_own_way()) {
        return Err(refuse(options, purpose));
    }
    let problems = loaded.report.as_ref().map_or(&[][..], |report| &report.problems);
    if let Some(first) = problems.first() {
        let more = match problems.len() {
            1 => String::new(),
            n => format!(" (and {} more; sconce inspect lists them all)", n - 1),
        };
        let config = loaded.config.path().display();
        bail!("{}: {first}{more}; the weights do not belong to {config}", loaded.weights);
    }
    Ok(loaded)
}

/// Loads a model as far as it goes: where the report has problems, the stack is not to be run.
///
/// # Errors
/// As [`load`], but for tensors that are missing or have the wrong shape or type, and models that give no embeddings.
pub fn examine(options: &ModelOptions, console: &Console) -> Result<Loaded> {
    build(options, console, false)
}

/// One sentence on a model that gives no embeddings.
fn refuse(options: &ModelOptions, purpose: &Purpose) -> Error {
    Error::msg(format!(
        "{} is {purpose}, and has no embeddings of texts; choose an embedding model, or pass --pooling to pool its hidden \
         states anyway",
        options.source.model
    ))
}

/// Loads a model; `embeds` if it is to give embeddings, so that another is refused before its weights are read.
fn build(options: &ModelOptions, console: &Console, embeds: bool) -> Result<Loaded> {
    let engines = choose_engines(options, console)?;
    let (files, pipeline) = find(options, console)?;
    let Plan { config, family, spec, pooling, dimensions, bare, mut purpose } =
        plan(options, files.as_ref(), &pipeline, embeds)?;
    let tokenizer_file = match &options.tokenizer {
        Some(path) => path.clone(),
        None => own(files.as_ref())?.tokenizer()?,
    };
    let limits = TokenizerOptions {
        max_length: limit(options, &pipeline, &spec)?,
        cut_left: options.cut_left.unwrap_or(pipeline.cut_left),
        lowercase: pipeline.lowercase,
    };
    let modules = if pooling == Pooling::None { &[] } else { &pipeline.heads[..] };
    let count = count(options, &engines, &spec, &pooling, modules)?;
    let weights = match options.random_weights {
        None => Weights::File(own(files.as_ref())?.weights()?),
        Some(seed) => Weights::Random(seed),
    };
    // The tokenizer and the weights are of no use to each other, and each takes a while.
    let (tokenizer, stacks) = rayon::join(
        || read_tokenizer(&tokenizer_file, &limits),
        || match &weights {
            Weights::File(path) => from_checkpoint(path, family, &spec, &pooling, &engines),
            Weights::Random(seed) => random(&config, &spec, &pooling, &count, *seed, &engines),
        },
    );
    let ((encoders, pooler, mut report), tokenizer) = (stacks?, tokenizer?);
    let own_heads = heads::load(modules, options.random_weights, &mut report)?;
    let heads = pooler.into_iter().chain(own_heads).collect();
    if let Some(report) = &report {
        warn(report, &config, console);
        if bare && purpose.is_none() {
            purpose = Purpose::of_tensors(&report.unused);
        }
    }
    let files = read_files(&config, &tokenizer_file, &weights, &pipeline, modules)?;
    let (weights, parameters) = (weights.to_string(), count.parameters);
    Ok(Loaded {
        config,
        family,
        weights,
        report,
        parameters,
        encoders,
        pipeline,
        purpose,
        pooling,
        heads,
        dimensions,
        files,
        tokenizer_file,
        tokenizer,
    })
}

/// What the stack is to run on.
fn choose_engines(options: &ModelOptions, console: &Console) -> Result<Vec<Engine>> {
    let (engines, note) =
        Engine::choose(&options.device, options.precision).map_err(|refusal| match refusal {
            Refusal::Usage(sentence) => Error::new(WrongUsage(sentence)),
            Refusal::Missing(sentence) => Error::msg(sentence),
        })?;
    if let Some(note) = note {
        console.note(note);
    }
    for engine in &engines {
        console.detail(format!("computes in {} on {engine}", engine.dtype()));
    }
    Ok(engines)
}

/// The files of the model's encoder, where it has files, and what its pipeline is.
fn find(options: &ModelOptions, console: &Console) -> Result<(Option<ModelFiles>, Pipeline)> {
    let stands_alone = options.config.is_some() && options.tokenizer.is_some();
    let files = match stands_alone {
        true => None,
        false => Some(ModelFiles::locate(&options.source)?),
    };
    if let Some(warning) = files.as_ref().and_then(|files| files.warning.as_ref()) {
        console.warn(warning);
    }
    // A config of the user's own has no pipeline, whoever lends it the tokenizer.
    let pipeline = match (&files, &options.config) {
        (Some(files), None) => Pipeline::read(&files.folder, options.pooling.as_ref())?,
        _ => Pipeline::default(),
    };
    if let Some(whole) = files.as_ref().and_then(|files| whole_model(&files.folder)) {
        console.warn(format!(
            "{} is only the encoder of the model in {}: its pooling and what follows it are not applied; pass --model {1}",
            options.source.model,
            whole.display()
        ));
    }
    Ok((files.map(|files| files.inside(&pipeline.encoder)), pipeline))
}

/// The files of a model that has files.
fn own(files: Option<&ModelFiles>) -> Result<&ModelFiles> {
    files.ok_or_else(|| Error::msg("the model has no files of its own"))
}

/// What is decided about a model from its config and pipeline, before weights and tokenizer are read.
struct Plan {
    config: Config,
    family: &'static Family,
    spec: EncoderSpec,
    pooling: Pooling,
    dimensions: usize,
    /// Whether nothing but the config says what the checkpoint is for.
    bare: bool,
    purpose: Option<Purpose>,
}

fn plan(
    options: &ModelOptions,
    files: Option<&ModelFiles>,
    pipeline: &Pipeline,
    embeds: bool,
) -> Result<Plan> {
    let config = Config::read(&match &options.config {
        Some(path) => path.clone(),
        None => own(files)?.config(),
    })?;
    let bare = pipeline.pooling.is_none() && options.reads_checkpoint();
    let purpose = pipeline.purpose.clone().or_else(|| Purpose::of_config(&config).filter(|_| bare));
    if let Some(purpose) = purpose.as_ref().filter(|_| embeds && options.wants_own_way()) {
        return Err(refuse(options, purpose));
    }
    let family = Family::of(&config)?;
    let spec = family.spec(&config)?;
    let pooling = match (&options.pooling, &pipeline.pooling) {
        (Some(pooling), _) | (None, Some(PoolingModule { pooling, .. })) => pooling.clone(),
        (None, None) => Pooling::Text(vec![family.pool]),
    };
    if heads::asks_for_pooler(&pooling) && !family.names.iter().any(|names| names.has("pooler")) {
        let model_type = config.string("model_type")?.unwrap_or_default();
        bail!(WrongUsage(format!(
            "--pooling pooler: models of type {model_type} have no pooler; choose another pooling"
        )));
    }
    let dimensions = heads::dimensions(options, pipeline, &pooling, spec.hidden_size)?;
    Ok(Plan { config, family, spec, pooling, dimensions, bare, purpose })
}

/// Counts the weights, refuses those that do not fit into memory, and tells the allocator what is coming.
fn count(
    options: &ModelOptions,
    engines: &[Engine],
    spec: &EncoderSpec,
    pooling: &Pooling,
    modules: &[HeadModule],
) -> Result<Count> {
    let mut count = Count::new(engines.first().cloned().unwrap_or_default());
    Encoder::load(spec, &mut count)?;
    heads::pooler(&mut count, pooling, spec.hidden_size)?;
    let is_random = options.random_weights.is_some();
    heads::count(modules, is_random, MOST_RANDOM_BYTES, &mut count)?;
    if !engines.iter().any(Engine::is_gpu) {
        // Tables of a checkpoint are read from the file row by row, in whatever type they are stored.
        let tables = if is_random { count.table_bytes } else { 0 };
        check_weights(options.max_memory, count.held_bytes.saturating_add(tables))?;
    }
    if count.held_bytes < LARGE_WEIGHTS {
        keep_memory()
    } else {
        spare_memory()
    }
    Ok(count)
}

/// Reads the tokenizer, whose limit has to leave room for a text.
fn read_tokenizer(file: &Path, options: &TokenizerOptions) -> Result<Tokenizer> {
    let tokenizer = Tokenizer::read(file, options)?;
    let (most, specials) = (tokenizer.max_length(), tokenizer.specials(false));
    if most <= specials {
        bail!(WrongUsage(format!(
            "a limit of {most} tokens leaves no room for a text beside {specials} special tokens; pass a larger \
             --max-length"
        )));
    }
    Ok(tokenizer)
}

/// Warns of what a checkpoint has that makes vectors other than the user expects.
fn warn(report: &Report, config: &Config, console: &Console) {
    if let Some((first, more)) = report.left_out.split_first() {
        let more = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
        console.warn(format!(
            "{} leaves out what tensor {first}{more} of the checkpoint are for; vectors are those of a model without",
            config.path().display()
        ));
    }
    for (name, count) in &report.not_finite {
        console.warn(format!(
            "tensor {name} holds {count} numbers that are NaN or infinite; vectors that depend on them will be NaN"
        ));
    }
}

/// Bytes of weights beside which the allocator's own habits show.
const LARGE_WEIGHTS: usize = 32 << 20;

/// Refuses a model whose weights alone do not fit; tables are read from the file row by row.
///
/// # Errors
/// If they do not: wrong usage.
fn check_weights(max_memory: Option<u64>, bytes: usize) -> Result<()> {
    match max_memory {
        Some(most) if bytes as u64 > most => bail!(WrongUsage(format!(
            "--max-memory {}: the weights of the model alone take {}; pass more, or choose a smaller model",
            ByteSize(most).display().si(),
            ByteSize(bytes as u64).display().si()
        ))),
        _ => Ok(()),
    }
}

/// Small files that a tokenizer or a pipeline reads where they are there.
const SMALL_FILES: &[&str] = &[
    "added_tokens.json",
    "config_sentence_transformers.json",
    "merges.txt",
    "modules.json",
    "sentence_albert_config.json",
    "sentence_bert_config.json",
    "sentence_camembert_config.json",
    "sentence_distilbert_config.json",
    "sentence_roberta_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
    "special_tokens_map.json",
    "tokenizer_config.json",
];

/// The files that were read.
fn read_files(
    config: &Config,
    tokenizer: &Path,
    weights: &Weights,
    pipeline: &Pipeline,
    heads: &[HeadModule],
) -> Result<Vec<PathBuf>> {
    let mut files = BTreeSet::from([config.path().to_owned(), tokenizer.to_owned()]);
    if let Weights::File(path) = weights {
        files.insert(path.clone());
        if path.extension().is_some_and(|suffix| suffix == "json") {
            files.extend(read_index(path)?.values().map(|shard| path.with_file_name(shard)));
        }
    }
    files.extend(pipeline.pooling.iter().map(|pooling| pooling.file.clone()));
    for head in heads {
        files.extend([head.config()].into_iter().filter(|file| file.is_file()).chain(head.weights()?));
    }
    for path in [config.path(), tokenizer] {
        let beside = SMALL_FILES.iter().map(|name| path.with_file_name(name));
        files.extend(beside.filter(|file| file.is_file()));
    }
    Ok(files.into_iter().collect())
}

/// The longest text: what the user says, else what the model's files say, within what the positions reach.
fn limit(options: &ModelOptions, pipeline: &Pipeline, spec: &EncoderSpec) -> Result<usize> {
    let longest = spec.longest();
    match options.max_length {
        Some(limit) if limit > longest => {
            bail!(WrongUsage(format!("--max-length {limit} is past the {longest} positions of the model")))
        }
        Some(limit) => Ok(limit),
        None => Ok(pipeline.max_length.unwrap_or(longest).min(longest)),
    }
}

/// The stack once for each engine, the pooler if it is asked for, and what became of the checkpoint's tensors.
type Stacks = (Vec<Encoder>, Option<Head>, Option<Report>);

fn from_checkpoint(
    path: &Path,
    family: &'static Family,
    spec: &EncoderSpec,
    pooling: &Pooling,
    engines: &[Engine],
) -> Result<Stacks> {
    let checkpoint = Checkpoint::open(path)?;
    let mut reader = checkpoint.reader(family.names)?;
    let mut encoders = Vec::new();
    for engine in engines {
        reader.turn_to(engine.clone());
        encoders.push(Encoder::load(spec, &mut reader)?);
    }
    if heads::asks_for_pooler(pooling)
        && let Some(name) = reader.lacks("pooler.weight")
    {
        bail!(
            "{} has no tensor {name}: the model was saved without its pooler; choose another --pooling",
            path.display()
        )
    }
    reader.turn_to(beside(engines));
    let pooler = heads::pooler(&mut reader, pooling, spec.hidden_size)?;
    let report = reader.finish();
    checkpoint.check_unchanged()?;
    Ok((encoders, pooler, Some(report)))
}

fn random(
    config: &Config,
    spec: &EncoderSpec,
    pooling: &Pooling,
    count: &Count,
    seed: u64,
    engines: &[Engine],
) -> Result<Stacks> {
    if count.parameters.saturating_mul(size_of::<f32>()) > MOST_RANDOM_BYTES {
        bail!("{} describes {} parameters; check its sizes", config.path().display(), count.parameters);
    }
    let encoders = (engines.iter())
        .map(|engine| Encoder::load(spec, &mut Random::new(seed, engine.clone())))
        .collect::<Result<_>>()?;
    let pooler = heads::pooler(&mut Random::new(seed, beside(engines)), pooling, spec.hidden_size)?;
    Ok((encoders, pooler, None))
}

/// What pooled vectors are worked on with: there are few of them, so they have been fetched to the CPU.
fn beside(engines: &[Engine]) -> Engine {
    engines.first().map(Engine::beside).unwrap_or_default()
}
