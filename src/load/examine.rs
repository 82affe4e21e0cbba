//! Loads a model for inspection: every fault is collected, and what could be read is shown beside it.

use std::path::PathBuf;

use anyhow::{Error, Result};

use super::adapter::read_adapter;
use super::heads::Wanted;
use super::modules::load_modules;
use super::options::ModelOptions;
use super::plan::{Plan, head_spec, tokenizer_file};
use super::prepare::{MaxLength, Prepared, prepare};
use super::tokenizer::read_tokenizer;
use super::weights::{Parts, Weights, count_parameters, load_checkpoint};
use super::{files_that_affect_vectors, warn_about_tensors};
use crate::checkpoint::TensorReport;
use crate::model::adapter::{Adapters, ChosenAdapter};
use crate::model::classification::{
    ScoreFunction, label_function, labels, next_sentence_labels, pair_function,
};
use crate::model::config::Config;
use crate::model::families::Family;
use crate::model::modules::{LogitScore, Modules, PostPoolingModule};
use crate::model::purpose::{self, Purpose};
use crate::nn::cost::head_work;
use crate::nn::{Backend, EncoderSpec, Formula, HeadKind, ParameterCount, Pooling, PostPoolingSpec};
use crate::sys::console::Console;
use crate::text::{Tokenizer, TruncationSide};

/// A task head that the config describes and the checkpoint has.
pub struct ExaminedHead {
    /// Its kind.
    pub kind: HeadKind,
    /// The names of its logits; none for the vocabulary.
    pub labels: Vec<String>,
    /// Logits per sequence, or per token.
    pub outputs: usize,
    /// What scores are: the function of the logits.
    pub scores: String,
    /// The command that runs it.
    pub command: &'static str,
    /// Parameters that the encoder does not have.
    pub parameters: usize,
    /// Multiply-adds for one text, or one token.
    pub work: Formula,
    /// Whether the multiply-adds are those of a token.
    pub is_per_token: bool,
}

/// A model as its files and the options describe it.
pub struct Examined {
    /// The config of the encoder.
    pub config: Config,
    /// The row of the family table for its model type.
    pub family: &'static Family,
    /// The encoder.
    pub spec: EncoderSpec,
    /// The devices and types of the encoder.
    pub backends: Vec<Backend>,
    /// The origin of the weights: a path, or the seed of random weights. `None` if there are none.
    pub weights: Option<String>,
    /// Which tensors of the checkpoint are used, missing or wrong. `None` without a readable checkpoint.
    pub report: Option<TensorReport>,
    /// Parameters of the encoder, pooler and post-pooling modules.
    pub count: ParameterCount,
    /// The modules of the model: pooling and what follows it, prompts, limits.
    pub modules: Modules,
    /// The task of the model, if its files say that it is not an embedding model.
    pub purpose: Option<Purpose>,
    /// The adapters of the model.
    pub adapters: Adapters,
    /// The adapter that is merged into the weights.
    pub adapter: Option<ChosenAdapter>,
    /// The task head.
    pub head: Option<ExaminedHead>,
    /// The pooling: the model's, else the default for the model family.
    pub pooling: Pooling,
    /// Dimensions of a vector after the last module.
    pub dimensions: usize,
    /// The maximum length of a text.
    pub max_length: MaxLength,
    /// The side at which texts are truncated.
    pub truncation_side: TruncationSide,
    /// The tokenizer file. `None` if there is none.
    pub tokenizer_file: Option<PathBuf>,
    /// The tokenizer. `None` if it cannot be read.
    pub tokenizer: Option<Tokenizer>,
    /// All files that affect vectors and exist.
    pub files: Vec<PathBuf>,
    /// Faults of tokenizer, weights and modules: one sentence each. Faults of single tensors are in the
    /// report.
    pub problems: Vec<Error>,
}

impl Examined {
    /// The post-pooling modules that run.
    pub fn applied_modules(&self) -> &[PostPoolingModule] {
        self.modules.applied(&self.pooling)
    }

    /// Whether vectors have unit length: the last module normalizes.
    pub fn is_normalized(&self) -> bool {
        self.applied_modules().last().is_some_and(|module| module.spec == PostPoolingSpec::Normalize)
    }
}

/// Examines a model. Tokenizer and weights that are missing or cannot be read are [`Examined::problems`].
/// With a config alone there are no weights, and no tokenizer unless the options name one.
pub fn examine(options: &ModelOptions, console: &Console) -> Result<Examined> {
    let prepared = prepare(options, console, Wanted::Inspection)?;
    let (tokenizer, report) =
        rayon::join(|| examine_tokenizer(options, &prepared), || examine_checkpoint(options, &prepared));
    let ((tokenizer_file, tokenizer), mut problems) = (tokenizer, Vec::new());
    let tokenizer = or_problem(tokenizer, &mut problems);
    let mut report = or_problem(report, &mut problems);
    let weights = prepared.weights.as_ref().ok().filter(|_| !options.is_config_alone());
    let head = or_problem(examine_head(&prepared, weights, tokenizer.as_ref()), &mut problems);
    let Prepared { modules, plan, adapter, .. } = &prepared;
    let applied = modules.applied(&plan.pooling);
    if options.random_weights.is_none() {
        problems.extend(load_modules(applied, None, &mut report).err());
    }
    let purpose = warn_about_tensors(report.as_ref(), plan, console);
    let tokenizer_path = tokenizer_file.as_deref();
    // A fault of a list of files was found when the files were read.
    let files = files_that_affect_vectors(&plan.config, tokenizer_path, weights, modules, applied.iter());
    let files = files
        .or_else(|_| files_that_affect_vectors(&plan.config, tokenizer_path, None, modules, [].iter()))?;
    let files = files.into_iter().chain(adapter.iter().flat_map(ChosenAdapter::files));
    let files = files.filter(|file| file.is_file()).collect();
    let weights = weights.map(ToString::to_string);
    let Prepared { backends, modules, plan, count, max_length, truncation_side, adapters, adapter, .. } =
        prepared;
    let max_length = match (&tokenizer, &tokenizer_file) {
        (Some(tokenizer), Some(file)) => max_length.of_tokenizer(tokenizer, file),
        _ => max_length,
    };
    let Plan { config, family, spec, pooling, dimensions, .. } = plan;
    Ok(Examined {
        config,
        family,
        spec,
        backends,
        weights,
        report,
        adapters,
        adapter,
        count,
        modules,
        purpose,
        head,
        pooling,
        dimensions,
        max_length,
        truncation_side,
        tokenizer_file,
        tokenizer,
        files,
        problems,
    })
}

/// What was found, if anything; a fault is added to `problems`, once if several parts have it.
fn or_problem<T>(found: Result<Option<T>>, problems: &mut Vec<Error>) -> Option<T> {
    found.unwrap_or_else(|problem| {
        let is_known = problems.iter().any(|known| known.to_string() == problem.to_string());
        problems.extend(Some(problem).filter(|_| !is_known));
        None
    })
}

/// The task head; `None` if the model has none that a command runs.
fn examine_head(
    prepared: &Prepared,
    weights: Option<&Weights>,
    tokenizer: Option<&Tokenizer>,
) -> Result<Option<ExaminedHead>> {
    let Prepared { modules, plan: Plan { config, family, spec, pooling, purpose, .. }, .. } = prepared;
    let is_masked_lm = modules.splade.is_some() || purpose.is_none() && purpose::has_masked_lm(config);
    let of_purpose = purpose.as_ref().and_then(|purpose| modules.head(purpose));
    let is_lexical =
        modules.lexical_layer.is_some() || purpose.is_none() && purpose::has_token_weights(config);
    let lexical = is_lexical.then_some(HeadKind::LexicalWeights);
    let of_vocabulary = lexical.or(is_masked_lm.then_some(HeadKind::MaskedLm));
    let Some(kind) = of_purpose.or(of_vocabulary) else { return Ok(None) };
    // Not every family has every head: a model that is loaded for vectors alone needs none.
    let Ok(head) = head_spec(kind, false, modules, family, config, spec) else { return Ok(None) };
    if let Some(Weights::File(file)) = weights
        && !(is_lexical && modules.lexical_layer.is_some())
    {
        let checkpoint = file.get()?;
        let mut reader = checkpoint.reader(family.names, spec.heads)?;
        let adapter = prepared.adapter.as_ref();
        reader.set_adapter(adapter.map(|adapter| read_adapter(adapter, checkpoint)).transpose()?)?;
        if head.missing(&reader).is_some() {
            return Ok(None);
        }
    }
    let bits = prepared.count.significand_bits;
    let parts = Parts::without_head(spec, pooling);
    let without = count_parameters(Backend::default(), bits, &parts, &[])?.parameters;
    let with =
        count_parameters(Backend::default(), bits, &Parts { head: Some(&head), ..parts }, &[])?.parameters;
    let named_command = purpose.as_ref().and_then(Purpose::command);
    let vocabulary_command = match kind {
        HeadKind::LexicalWeights => "sconce embed --pooling lexical",
        _ if modules.splade.is_some() => "sconce embed",
        _ => "sconce fill",
    };
    let command = named_command.unwrap_or(vocabulary_command);
    let (labels, scores) = head_scores(kind, config, modules, command, tokenizer)?;
    Ok(Some(ExaminedHead {
        kind,
        labels,
        outputs: head.outputs(),
        scores,
        command,
        parameters: with - without,
        work: head_work(&head, spec.hidden_size),
        is_per_token: head.is_per_token(),
    }))
}

/// The labels of a head and the function from its logits to scores.
fn head_scores(
    kind: HeadKind,
    config: &Config,
    modules: &Modules,
    command: &str,
    tokenizer: Option<&Tokenizer>,
) -> Result<(Vec<String>, String)> {
    let softmax = ScoreFunction::Softmax.to_string();
    Ok(match kind {
        HeadKind::SequenceClassification => {
            let labels = labels(config)?;
            let function = match command {
                "sconce rerank" => pair_function(config, modules.activation.as_deref())?,
                _ => label_function(config, labels.len())?,
            };
            (labels, function.to_string())
        }
        HeadKind::CausalLm => {
            let function = pair_function(config, modules.activation.as_deref())?;
            let names = modules.logit_score.iter().map(|tokens| logit_name(tokens, tokenizer));
            (names.collect(), function.to_string())
        }
        HeadKind::NextSentence => (next_sentence_labels(config)?, softmax),
        HeadKind::TokenClassification => (labels(config)?, softmax),
        HeadKind::LexicalWeights => (Vec::new(), "maximum of relu(x) per token id".into()),
        HeadKind::QuestionAnswering => (["start", "end"].map(str::to_owned).into(), softmax),
        HeadKind::MaskedLm => {
            (Vec::new(), modules.splade.map_or(softmax, |splade| splade.describe().to_owned()))
        }
    })
}

/// The logit of a causal language model that is a score: `logit(yes) - logit(no)`.
fn logit_name(tokens: &LogitScore, tokenizer: Option<&Tokenizer>) -> String {
    let logit = |id: u32| {
        format!("logit({})", tokenizer.map_or_else(|| format!("#{id}"), |tokenizer| tokenizer.label(id)))
    };
    match tokens.false_token {
        Some(other) => format!("{} - {}", logit(tokens.true_token), logit(other)),
        None => logit(tokens.true_token),
    }
}

/// The tokenizer file, and the tokenizer or its fault; neither for a config alone.
fn examine_tokenizer(
    options: &ModelOptions,
    prepared: &Prepared,
) -> (Option<PathBuf>, Result<Option<Tokenizer>>) {
    if options.is_config_alone() && options.tokenizer.is_none() {
        return (None, Ok(None));
    }
    match tokenizer_file(options, prepared.files.as_ref()) {
        Ok(file) => {
            let tokenizer =
                read_tokenizer(&file, options, prepared.tokenizer_options(), &prepared.modules).map(Some);
            (Some(file), tokenizer)
        }
        Err(problem) => (None, Err(problem)),
    }
}

/// Reads the tensors of a checkpoint as for running it; `None` without a checkpoint. Random weights are not
/// drawn.
fn examine_checkpoint(options: &ModelOptions, prepared: &Prepared) -> Result<Option<TensorReport>> {
    let Prepared { backends, weights, modules, plan, adapter, .. } = prepared;
    match weights {
        _ if options.is_config_alone() => Ok(None),
        Ok(Weights::Random(_)) => Ok(None),
        Ok(Weights::File(file)) => {
            let (checkpoint, parts) = (file.get()?, plan.parts(modules));
            let loaded = load_checkpoint(checkpoint, plan.family, &parts, backends, adapter.as_ref(), false)?;
            Ok(loaded.report)
        }
        Err(problem) => Err(Error::msg(problem.to_string())),
    }
}
