//! Locates the files of a model and resolves config, modules and options: the limit of a text, the adapter,
//! the memory of the weights.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bytesize::ByteSize;

use super::device::backends;
use super::heads::Wanted;
use super::modules::check_sizes;
use super::options::ModelOptions;
use super::plan::{Plan, plan, require_files};
use super::weights::{CheckpointFile, MAX_RANDOM_BYTES, Parts, Weights, count_parameters};
use crate::checkpoint::Checkpoint;
use crate::error::UsageError;
use crate::hub::ModelDir;
use crate::model::adapter::{Adapters, ChosenAdapter};
use crate::model::families::Family;
use crate::model::modules::{Modules, PostPoolingModule, TokenLimit, parent_model};
use crate::nn::{Backend, F32_SIGNIFICAND_BITS, ParameterCount, Positions, ScoreBias};
use crate::sys::console::Console;
use crate::text::{PairTruncation, Tokenizer, TokenizerOptions, TruncationSide};

/// A model whose config, modules and options are resolved, before its tokenizer and weights are read.
pub(super) struct Prepared {
    pub backends: Vec<Backend>,
    /// The source of the weights, or why there is none.
    pub weights: Result<Weights>,
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

impl Prepared {
    /// How texts are tokenized.
    pub(super) fn tokenizer_options(&self) -> TokenizerOptions {
        TokenizerOptions {
            max_length: self.max_length.tokens,
            truncation_side: self.truncation_side,
            pair_truncation: self.pair_truncation,
            lowercase: self.modules.lowercase || self.plan.family.lowercases,
        }
    }
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
    let truncation_side = options.truncation_side.or(modules.truncation_side).unwrap_or_default();
    let weights = find_weights(options, files.as_ref(), plan.family);
    let bits = match &weights {
        Ok(Weights::File(file)) => file.get().map_or(F32_SIGNIFICAND_BITS, Checkpoint::significand_bits),
        Ok(Weights::Random(_)) | Err(_) => F32_SIGNIFICAND_BITS,
    };
    let parts = plan.parts(&modules);
    let count = count_checked(options, &backends, bits, &parts, plan.applied_modules(&modules))?;
    let pair_truncation = options.pair_truncation;
    Ok(Prepared {
        backends,
        weights,
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

impl MaxLength {
    /// The maximum length of a text with a tokenizer, whose own file may set another one.
    pub(super) fn of_tokenizer(self, tokenizer: &Tokenizer, file: &Path) -> Self {
        match tokenizer.max_length() {
            tokens if tokens == self.tokens => self,
            tokens => MaxLength { tokens, key: "truncation.max_length".into(), file: Some(file.to_owned()) },
        }
    }
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
    let mut modules = match (&files, &options.config) {
        (Some(files), None) => {
            Modules::read(&files.folder, options.pooling.as_ref(), options.source.dimensions)?
        }
        _ => Modules::default(),
    };
    modules.complete(&options.source.model);
    if let Some(parent) = files.as_ref().and_then(|files| parent_model(&files.folder)) {
        console.warn(format!(
            "{} is the encoder of the model in {}: the pooling and later modules of that model are not applied; pass --model {1}",
            options.source.model,
            parent.display()
        ));
    }
    let files = files.map(|files| files.subdirectory(&modules.encoder_folder));
    let files = match files {
        Some(files) if options.config.is_none() => {
            let files = files.with_base(&options.source)?;
            if let Some(warning) = &files.warning {
                console.warn(warning);
            }
            if files.tokenizer_folder() != files.folder {
                modules.read_base_tokenizer(files.tokenizer_folder())?;
            }
            Some(files)
        }
        files => files,
    };
    Ok((files, modules))
}

/// The source of the weights: the seed of the option, else the model's checkpoint.
fn find_weights(
    options: &ModelOptions,
    files: Option<&ModelDir>,
    family: &'static Family,
) -> Result<Weights> {
    Ok(match options.random_weights {
        None => Weights::File(CheckpointFile::open(require_files(files)?.weights()?, family)),
        Some(seed) => Weights::Random(seed),
    })
}

/// Maximum tokens of a text: the option, else the model's own limit. Where positions have a table, at most
/// their number; without one, the number of positions that the model was made for only limits what no option
/// and no module sets, as in sentence-transformers.
fn max_length(options: &ModelOptions, modules: &Modules, plan: &Plan) -> Result<MaxLength> {
    let (positions, position_limit) = (plan.spec.max_length(), plan.spec.position_limit());
    if let Some(tokens) = options.max_length {
        if position_limit.is_some_and(|limit| tokens > limit) {
            let limit = match plan.spec.sequence_limit {
                Some(limit) if limit == positions => {
                    format!("{limit} tokens, up to which the model's attention is supported")
                }
                _ => format!("the model's {positions} positions"),
            };
            bail!(UsageError(format!("--max-length {tokens} exceeds {limit}")))
        }
        return Ok(MaxLength { tokens, key: "--max-length".into(), file: None });
    }
    // The configs of T5 have no field that sentence-transformers compares the limit of a tokenizer with.
    let is_t5 =
        plan.spec.positions == Positions::None && matches!(plan.spec.score_bias, ScoreBias::Bucketed { .. });
    let has_positions = |limit: &TokenLimit| {
        limit.tokens <= positions || position_limit.is_none() && (is_t5 || !limit.of_tokenizer)
    };
    Ok(match modules.max_length.as_ref().filter(|limit| has_positions(limit)) {
        Some(TokenLimit { tokens, key, file, .. }) => {
            MaxLength { tokens: *tokens, key: key.clone(), file: Some(file.clone()) }
        }
        _ => {
            let (key, file) = (plan.family.keys.max_positions.to_owned(), plan.config.path().to_owned());
            MaxLength { tokens: positions, key, file: Some(file) }
        }
    })
}

/// Counts the parameters, rejects weights that do not fit into `--max-memory`.
fn count_checked(
    options: &ModelOptions,
    backends: &[Backend],
    significand_bits: u32,
    parts: &Parts,
    modules: &[PostPoolingModule],
) -> Result<ParameterCount> {
    let count =
        count_parameters(backends.first().cloned().unwrap_or_default(), significand_bits, parts, modules)?;
    let is_random = options.random_weights.is_some();
    if is_random {
        check_sizes(modules, MAX_RANDOM_BYTES)?;
    }
    if !backends.iter().any(Backend::is_gpu) {
        // Embedding tables of a checkpoint stay in the mapped file and are read row by row.
        let tables = if is_random { count.table_bytes } else { 0 };
        check_weights(options.max_memory, count.held_bytes.saturating_add(tables))?;
    }
    Ok(count)
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
