//! The parts of a model that have weights, read from a checkpoint, counted or drawn at random.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Error, Result, bail};

use super::adapter::read_adapter;
use super::device::post_pooling_backend;
use super::modules::load_lexical_layer;
use crate::checkpoint::{Checkpoint, PackedWeights, TensorReport};
use crate::model::adapter::ChosenAdapter;
use crate::model::config::Config;
use crate::model::families::Family;
use crate::model::layout::SPARSE_LINEAR;
use crate::model::modules::PostPoolingModule;
use crate::model::purpose;
use crate::nn::{
    Backend, Encoder, EncoderSpec, F32_SIGNIFICAND_BITS, HeadKind, HeadSpec, ParameterCount, Pooling,
    PostPooling, RandomWeights, TaskHead, WeightSource,
};

/// The source of the weights.
pub(super) enum Weights {
    /// A checkpoint.
    File(CheckpointFile),
    /// A seed.
    Random(u64),
}

/// A checkpoint, which is opened once.
pub(super) struct CheckpointFile {
    /// One file, or the index of its shards.
    pub path: PathBuf,
    /// The open checkpoint, or why it cannot be read.
    opened: Result<Checkpoint, String>,
}

impl CheckpointFile {
    /// Opens the checkpoint of an encoder of this family.
    pub(super) fn open(path: PathBuf, family: &'static Family) -> Self {
        let opened = Checkpoint::open_encoder(&path, family.names).map_err(|error| error.to_string());
        CheckpointFile { path, opened }
    }

    /// The open checkpoint.
    pub(super) fn get(&self) -> Result<&Checkpoint> {
        self.opened.as_ref().map_err(|fault| Error::msg(fault.clone()))
    }
}

impl fmt::Display for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Weights::File(file) => write!(f, "{}", file.path.display()),
            Weights::Random(seed) => write!(f, "random, seed {seed}"),
        }
    }
}

/// Maximum size of random weights, in bytes. A larger size is most likely a mistake in a config.
pub(super) const MAX_RANDOM_BYTES: usize = 1 << 34;

/// The parts of a model that have weights.
pub struct Parts<'a> {
    pub spec: &'a EncoderSpec,
    pub pooling: &'a Pooling,
    pub head: Option<&'a HeadSpec>,
    /// The file of the head, if it is not in the checkpoint.
    pub head_file: Option<&'a Path>,
    /// Whether the class of the model in the config has a masked-LM head.
    pub has_masked_lm: bool,
}

impl<'a> Parts<'a> {
    /// An encoder and its pooler, if `pooling` needs it.
    pub fn without_head(spec: &'a EncoderSpec, pooling: &'a Pooling) -> Self {
        Parts { spec, pooling, head: None, head_file: None, has_masked_lm: false }
    }

    fn load_pooler(&self, source: &mut dyn WeightSource) -> Result<Option<PostPooling>> {
        PostPooling::load_pooler(source, self.pooling, self.spec)
    }

    fn load_head(&self, source: &mut dyn WeightSource) -> Result<Option<TaskHead>> {
        self.head.map(|head| TaskHead::load(source, head, self.spec.hidden_size)).transpose()
    }
}

/// The weights of a model.
pub(super) struct LoadedWeights {
    /// The encoder once per backend.
    pub encoders: Vec<Encoder>,
    /// The pooler, if it is needed.
    pub pooler: Option<PostPooling>,
    /// The task head, if it is wanted; in f32 on the CPU.
    pub head: Option<TaskHead>,
    /// The report on the tensors of a checkpoint.
    pub report: Option<TensorReport>,
}

/// Reads the weights of a checkpoint.
pub(super) fn load_checkpoint(
    checkpoint: &Checkpoint,
    family: &'static Family,
    parts: &Parts,
    backends: &[Backend],
    adapter: Option<&ChosenAdapter>,
    uses_cache: bool,
) -> Result<LoadedWeights> {
    let path = checkpoint.path();
    if adapter.is_none() {
        checkpoint.check_has_no_adapter()?;
    }
    let mut reader = checkpoint.reader(family.names, parts.spec.heads)?;
    reader.set_adapter(adapter.map(|adapter| read_adapter(adapter, checkpoint)).transpose()?)?;
    let cpu = backends.iter().find(|backend| uses_cache && matches!(backend, Backend::Cpu(_)));
    reader.set_packed_weights(cpu.and_then(|cpu| PackedWeights::open(&checkpoint.files(), cpu.gemm_type())));
    let mut encoders = Vec::new();
    for backend in backends {
        reader.set_backend(backend.clone());
        encoders.push(Encoder::load(parts.spec, &mut reader)?);
    }
    if parts.pooling.needs_pooler()
        && parts.spec.pooler.dense.is_some()
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
        bail!("{} has no tensor {name}{}", path.display(), lacks_head(kind, parts.has_masked_lm))
    }
    if parts.head.is_some_and(|head| head.kind() == HeadKind::LexicalWeights) && parts.head_file.is_none() {
        check_one_logit(checkpoint, &reader.resolve("head.token_classifier.weight"), path)?;
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
    // Packed weights are those of a checkpoint of this digest, which was whole.
    match packed.as_ref().and_then(PackedWeights::file) {
        Some(_) => checkpoint.check_files_unchanged()?,
        None => checkpoint.check_unchanged()?,
    }
    if let Some(packed) = packed {
        packed.finish()?;
    }
    if let (Some(spec), Some(file)) = (parts.head, parts.head_file) {
        head = Some(load_lexical_layer(file, spec, parts.spec.hidden_size, &mut report)?);
    }
    Ok(LoadedWeights { encoders, pooler, head, report: Some(report) })
}

/// The end of a sentence about a checkpoint without the head of this kind.
fn lacks_head(kind: HeadKind, has_masked_lm: bool) -> String {
    match kind {
        HeadKind::LexicalWeights => format!(
            ", and there is no {SPARSE_LINEAR} beside it: the model has no lexical weights; choose a model such as BAAI/bge-m3"
        ),
        kind => {
            let noun = purpose::noun(kind);
            let (own, command) = match has_masked_lm && kind != HeadKind::MaskedLm {
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
pub(super) fn without_weights(parts: &Parts) -> Result<LoadedWeights> {
    let mut source = ParameterCount::new(Backend::default(), F32_SIGNIFICAND_BITS);
    let encoders = vec![Encoder::load(parts.spec, &mut source)?];
    let head = parts.load_head(&mut source)?;
    Ok(LoadedWeights { encoders, pooler: None, head, report: None })
}

/// Draws random weights.
///
/// # Errors
/// If they exceed [`MAX_RANDOM_BYTES`].
pub(super) fn draw_random(
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

/// Counts the parameters of an encoder, of its pooler and head if there are any, and of post-pooling
/// `modules`.
pub fn count_parameters(
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
