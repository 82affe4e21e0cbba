//! What is loaded of a model: the decisions that depend only on options, config and modules, before its
//! tokenizer and weights are read.

use std::path::PathBuf;

use anyhow::{Error, Result, bail};
use serde_json::Value;

use super::heads::{Case, Decision, Wanted};
use super::options::ModelOptions;
use super::weights::Parts;
use crate::error::UsageError;
use crate::hub::ModelDir;
use crate::model::adapter;
use crate::model::config::Config;
use crate::model::families::{Family, STATIC_EMBEDDING};
use crate::model::layout::COLBERT_LINEAR;
use crate::model::modules::{
    LogitScore, Modules, PoolingModule, PostPoolingModule, output_dimensions, unified,
};
use crate::model::purpose::{self, Purpose};
use crate::model::static_embedding;
use crate::nn::{EncoderSpec, HeadKind, HeadSpec, OutputKind, Pooling, TokenHeadSpec};
use crate::text::{PairTruncation, Tokenizer, TokenizerOptions, TruncationSide};

/// A projection of token vectors, its modules, and the dimensions of its vectors.
pub(super) type Projection<Module> = (Vec<Module>, usize);

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
    /// Whether the model is a checkpoint without a Pooling module: its task is known from config and tensors
    /// only.
    pub is_bare_checkpoint: bool,
    /// The task, if it is not embedding.
    pub purpose: Option<Purpose>,
}

impl Plan {
    /// The parts with weights.
    pub(super) fn parts<'a>(&'a self, modules: &'a Modules) -> Parts<'a> {
        let is_lexical = self.head.as_ref().is_some_and(|head| head.kind() == HeadKind::LexicalWeights);
        let head_file = modules.lexical_layer.as_deref().filter(|_| is_lexical);
        let has_masked_lm = purpose::has_masked_lm(&self.config);
        Parts { spec: &self.spec, pooling: &self.pooling, head: self.head.as_ref(), head_file, has_masked_lm }
    }

    /// The post-pooling modules that run: none if there is a task head alone.
    pub(super) fn applied_modules<'a>(&self, modules: &'a Modules) -> &'a [PostPoolingModule] {
        if self.has_vectors { modules.applied(&self.pooling) } else { &[] }
    }
}

/// Reads the config and resolves the options against config and modules. A model for another task than the
/// wanted one is an error.
pub(super) fn plan(
    options: &ModelOptions,
    files: Option<&ModelDir>,
    modules: &Modules,
    wanted: Wanted,
) -> Result<Plan> {
    let mut config = read_config(options, files, modules)?;
    let trained = trained_purpose(&mut config, options, files, modules)?;
    let is_bare_checkpoint = !modules.configures_pooling() && options.reads_checkpoint();
    // Random weights have the head that the config describes; for vectors, any config is good.
    let is_described = is_bare_checkpoint || wanted == Wanted::PairScores && !options.reads_checkpoint();
    let of_config = || trained.or_else(|| Purpose::of_config(&config)).filter(|_| is_described);
    let purpose = modules.purpose.clone().or_else(of_config);
    let is_masked_lm = purpose::is_masked_lm(&config);
    let decision = Case { wanted, options, modules, purpose: purpose.as_ref(), is_masked_lm }.decide()?;
    let family = family_of(&config, modules)?;
    let mut spec = match modules.static_embedding {
        Some(_) => static_embedding::spec(&config)?,
        None => family.spec(&config)?,
    };
    let config = family.encoder_config(&config)?;
    let is_pretrained = purpose.is_none() && purpose::is_pretrained(&config);
    let head = match decision.head() {
        Some(HeadKind::CausalLm) if modules.logit_score.is_none() => {
            Some(family.causal_lm(&yes_and_no(options, files)?, &config, &spec)?)
        }
        Some(kind) => Some(head_spec(kind, is_pretrained, modules, family, &config, &spec)?),
        None => None,
    };
    if let Some(head) = &head {
        spec.global_tokens = family.global_tokens(head.kind(), &config)?;
    }
    let token_projection = token_projection(options, modules, spec.hidden_size)?;
    let has_vectors = head.is_none() || options.gives(OutputKind::Dense);
    let (pooling, dimensions) = match head.as_ref().filter(|_| !has_vectors) {
        Some(head) => of_head(head, decision, &spec),
        None => of_vectors(options, modules, family, &config, &spec)?,
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

/// The config: the option, else the model's own, with the fields that its modules replace.
fn read_config(options: &ModelOptions, files: Option<&ModelDir>, modules: &Modules) -> Result<Config> {
    let mut config = match &options.config {
        Some(path) => Config::read(path)?,
        None if modules.static_embedding.is_some() => {
            let files = require_files(files)?;
            static_embedding::config(&files.folder, &files.weights()?)?
        }
        None => Config::read(&require_files(files)?.config())?,
    };
    for (key, value) in &modules.config_overrides {
        config.set(key, value.clone());
    }
    Ok(config)
}

/// The row of the family table.
fn family_of(config: &Config, modules: &Modules) -> Result<&'static Family> {
    match modules.static_embedding {
        Some(_) => Ok(&STATIC_EMBEDDING),
        None => Family::of(config),
    }
}

/// The purpose that the adapter of a checkpoint was trained for, with its labels in the config.
fn trained_purpose(
    config: &mut Config,
    options: &ModelOptions,
    files: Option<&ModelDir>,
    modules: &Modules,
) -> Result<Option<Purpose>> {
    let has_own_config = options.config.is_none() && options.reads_checkpoint();
    let Some(files) = files.filter(|_| has_own_config) else { return Ok(None) };
    // A type that is not supported is an error later, unless the model is refused for what it is.
    let Ok(family) = family_of(config, modules) else { return Ok(None) };
    adapter::trained_purpose(config, family, &files.folder)
}

/// The pooling and the dimensions of a model whose rows are those of its head.
fn of_head(head: &HeadSpec, decision: Decision, spec: &EncoderSpec) -> (Pooling, usize) {
    match head {
        HeadSpec::MaskedLm(_) if decision == Decision::Splade => (Pooling::Splade, spec.vocab_size),
        HeadSpec::LexicalWeights(_) => (Pooling::Lexical, spec.vocab_size),
        head => (head.pooling(), head.outputs()),
    }
}

/// The pooling and the dimensions of a model that gives vectors.
fn of_vectors(
    options: &ModelOptions,
    modules: &Modules,
    family: &'static Family,
    config: &Config,
    spec: &EncoderSpec,
) -> Result<(Pooling, usize)> {
    let pooling = own_pooling(options, modules, family, config)?;
    let check = modules.check_hidden_size(spec.hidden_size);
    check.map_err(|error| Error::msg(format!("{error}{}", default_sizes(config))))?;
    let dimensions = dimensions(options, modules, &pooling, spec)?;
    Ok((pooling, dimensions))
}

/// The files of the model, which exist unless `--config` and `--tokenizer` replace all of them.
pub(super) fn require_files(files: Option<&ModelDir>) -> Result<&ModelDir> {
    files.ok_or_else(|| {
        Error::msg("--config and --tokenizer replace the files of the model; please report this as a bug")
    })
}

/// The tokens `yes` and `no`, whose logits sentence-transformers takes from a causal language model without a
/// LogitScore module.
fn yes_and_no(options: &ModelOptions, files: Option<&ModelDir>) -> Result<LogitScore> {
    let file = tokenizer_file(options, files)?;
    let limits = TokenizerOptions {
        max_length: usize::MAX,
        truncation_side: TruncationSide::Right,
        pair_truncation: PairTruncation::default(),
        lowercase: false,
    };
    let tokenizer = Tokenizer::read(&file, &limits)?;
    match ["yes", "no"].map(|token| tokenizer.token_id(token)) {
        [Some(true_token), Some(no)] => Ok(LogitScore { true_token, false_token: Some(no), file }),
        _ => bail!(
            "{} has no tokens \"yes\" and \"no\", whose logits are the score of a causal language model; choose a reranker",
            file.display()
        ),
    }
}

/// The tokenizer: the option, else the model's own.
pub(super) fn tokenizer_file(options: &ModelOptions, files: Option<&ModelDir>) -> Result<PathBuf> {
    match &options.tokenizer {
        Some(path) => Ok(path.clone()),
        None => require_files(files)?.tokenizer(),
    }
}

/// The sizes that the config lacks, as the end of an error about tensors: the default of one of them may be
/// wrong.
pub(super) fn default_sizes(config: &Config) -> String {
    let size = |(key, value): (&str, &Value)| value.is_u64().then(|| format!("\"{key}\": {value}"));
    let sizes: Vec<String> = config.defaults().filter_map(size).collect();
    if sizes.is_empty() {
        return String::new();
    }
    let path = config.path().display();
    format!("; {path} lacks fields and so has the defaults of transformers: {}", sizes.join(", "))
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
        kind => match &modules.logit_score {
            Some(tokens) if kind == HeadKind::CausalLm => family.causal_lm(tokens, config, spec),
            _ => family.head(kind, config, spec),
        },
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

/// The projection of token vectors as an output beside others, and the dimensions of its vectors, if it is
/// asked for.
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
    spec: &EncoderSpec,
) -> Result<usize> {
    modules.output_dimensions(pooling, spec).map_err(|mismatch| match &options.pooling {
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
