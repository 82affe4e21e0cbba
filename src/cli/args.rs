//! The arguments that several commands share, as clap parses them. The doc comments of fields are the text of
//! `-h` and `--help`.

use std::path::PathBuf;

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Args;
use clap::builder::{PossibleValue, TypedValueParser};

use super::choice::{OrAuto, choices, named, named_or_auto, one_of};
use crate::error::UsageError;
use crate::formats::TableFormat;
use crate::hub::is_revision;
use crate::model::modules::Role;
use crate::nn::{ComputeDtype, DeviceRequest, LEXICAL, MULTI_VECTOR, Pool, Pooling, SPLADE};
use crate::text::{Chunking, TruncationSide};

/// The default of `--model`.
pub(super) const DEFAULT_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";

/// Where a table is written.
#[derive(Debug, Args)]
pub(super) struct TableArgs {
    /// Output file [default: standard output]
    ///
    /// It is written atomically and replaces an existing file
    #[arg(id = "table_output", short = 'o', long = "output", value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// text, jsonl, csv or parquet [default: by file extension, else text]
    ///
    /// Output format. auto: the default, which is text on standard output
    #[arg(id = "auto_table_format", long = "output-format", value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<TableFormat>(), hide_default_value = true, help_heading = "Output")]
    pub output_format: OrAuto<TableFormat>,
}

/// How a text becomes a vector.
#[derive(Debug, Args)]
pub(super) struct VectorArgs {
    /// cls, mean, max, none, … [default: from the model's files]
    ///
    /// How to pool token vectors. auto: the default; multi-vector: one projected vector per token, of a model
    /// like ColBERT; none: one hidden state per token; splade: weights of the vocabulary, from the logits of
    /// the model's masked-LM head; lexical: weights of the tokens of a text, of a model like BGE-M3
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = pooling(), hide_default_value = true, help_heading = "Vectors")]
    pub pooling: OrAuto<Pooling>,

    /// Normalize vectors to unit length [default: from the model's files]
    #[arg(long, overrides_with = "no_normalize", help_heading = "Vectors")]
    pub normalize: bool,

    /// Do not normalize vectors
    #[arg(long, overrides_with = "normalize", help_heading = "Vectors")]
    pub no_normalize: bool,

    /// Truncate vectors to their first N dimensions, before normalization, or use the model's Dense layer
    /// with N outputs if it has several to choose from [default: from the model's files]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Vectors")]
    pub dimensions: Option<u32>,

    /// Prompt to put before each text [default: from the model's files]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name", help_heading = "Vectors")]
    pub prompt: Option<String>,

    /// Name of a prompt in the model's files to put before each text
    #[arg(long, value_name = "NAME", long_help, help_heading = "Vectors")]
    pub prompt_name: Option<String>,

    /// What the texts are, as encode_query and encode_document of sentence-transformers: chooses the prompt,
    /// and in a multi-vector model the length of texts and the expansion of queries [default: document for a
    /// multi-vector model]
    #[arg(long, value_name = "ROLE", value_parser = named::<Role>(), help_heading = "Vectors")]
    pub role: Option<Role>,

    #[command(flatten)]
    pub limit: LimitArgs,
}

/// The limit of a text in tokens.
#[derive(Debug, Args)]
pub(super) struct LimitArgs {
    /// Maximum tokens per text [default: the model's limit]
    ///
    /// The maximum includes special tokens; that of a pair is for both texts together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Vectors")]
    pub max_length: Option<u32>,

    /// Side at which longer texts are truncated [default: from the model's files, else right]
    #[arg(long, value_name = "SIDE", value_parser = named::<TruncationSide>(), help_heading = "Vectors")]
    pub truncation_side: Option<TruncationSide>,
}

#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Build the encoder from this config.json instead of the model's own. Needs --random-weights, except to
    /// inspect it
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub config: Option<PathBuf>,

    /// Initialize the weights at random instead of reading a checkpoint
    #[arg(long, value_name = "SEED", help_heading = "Model")]
    pub random_weights: Option<u64>,

    /// Merge the adapter (LoRA) of this task into the weights, in a model that has several [default: none]
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub task: Option<String>,

    /// Use this tokenizer.json, vocab.txt, vocab.json or SentencePiece model instead of the model's own
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub tokenizer: Option<PathBuf>,

    #[command(flatten)]
    pub hardware: HardwareArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// What a model runs on.
#[derive(Debug, Args)]
pub(super) struct HardwareArgs {
    /// Neither map packed weights from the cache directory (SCONCE_CACHE, by default ~/.cache/sconce) nor
    /// write them there. With them processes on one machine share the memory of a model's weights, and start
    /// without packing them
    #[arg(long, help_heading = "Model")]
    pub no_weight_cache: bool,

    /// Device to run on
    ///
    /// auto: a GPU, if this build supports GPUs and one is available, else the CPU; cuda:0,1: several GPUs
    #[arg(long, value_name = "auto|cpu|cuda[:N,…]", default_value = "auto", value_parser = device, help_heading = "Hardware")]
    pub device: DeviceRequest,

    /// Matrix products in f32, bf16, f16 or int8
    ///
    /// Accumulation is always f32. Faster than f32: int8 on any CPU; bf16 on a CPU with AVX-512 BF16 or AMX,
    /// bf16x3 (each value as two bf16 values) with AMX; f16 and bf16 on a GPU. Elsewhere bf16 takes the time
    /// of f32
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = named::<ComputeDtype>(), help_heading = "Hardware")]
    pub dtype: ComputeDtype,

    /// Number of CPU threads [default: all available cores]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Hardware")]
    pub threads: Option<usize>,
}

#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    /// Model directory, or model id on the Hugging Face Hub
    ///
    /// A model directory has a config.json
    #[arg(
        short,
        long,
        value_name = "DIR or HUB_ID",
        env = "SCONCE_MODEL",
        default_value = DEFAULT_MODEL,
        help_heading = "Model"
    )]
    pub model: String,

    #[command(flatten)]
    pub hub: HubArgs,
}

#[derive(Debug, Args)]
pub(super) struct HubArgs {
    /// Branch, tag or commit on the Hub
    #[arg(long, value_name = "REV", default_value = "main", value_parser = revision, help_heading = "Model")]
    pub revision: String,

    /// Do not use the network: the same as HF_HUB_OFFLINE=1
    #[arg(long, help_heading = "Model")]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub(super) struct VerbosityArgs {
    /// Print only warnings and errors
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Messages", long_help)]
    pub quiet: bool,

    /// Print every decision and timing
    #[arg(short, long, help_heading = "Messages")]
    pub verbose: bool,

    /// Hide the progress bar
    #[arg(long, help_heading = "Messages")]
    pub no_progress: bool,
}

/// A parser for `auto`, one pooling of [`Pool`], `multi-vector`, `splade`, `lexical`, and `none`.
pub(super) fn pooling() -> impl TypedValueParser<Value = OrAuto<Pooling>> {
    let auto = (PossibleValue::new("auto"), OrAuto(None));
    let pools = choices(|pool: Pool| OrAuto(Some(Pooling::Text(vec![pool]))));
    let splade = (PossibleValue::new(SPLADE), OrAuto(Some(Pooling::Splade)));
    let none = (PossibleValue::new("none"), OrAuto(Some(Pooling::None)));
    let multi_vector = (PossibleValue::new(MULTI_VECTOR), OrAuto(Some(Pooling::MultiVector)));
    let lexical = (PossibleValue::new(LEXICAL), OrAuto(Some(Pooling::Lexical)));
    one_of([vec![auto], pools, vec![multi_vector, splade, lexical, none]].concat())
}

fn device(value: &str) -> Result<DeviceRequest, String> {
    let ordinals = match value {
        "auto" => return Ok(DeviceRequest::Auto),
        "cpu" => return Ok(DeviceRequest::Cpu),
        "cuda" => "0",
        other => other.strip_prefix("cuda:").unwrap_or_default(),
    };
    let mut gpus: Vec<usize> = Vec::new();
    for ordinal in ordinals.split(',') {
        match ordinal.parse() {
            Ok(ordinal) if !gpus.contains(&ordinal) => gpus.push(ordinal),
            _ => {
                return Err(
                    "expected auto, cpu, cuda, or cuda: and different GPU numbers, for example cuda:0 or cuda:0,1"
                        .into(),
                );
            }
        }
    }
    Ok(DeviceRequest::Cuda(gpus))
}

pub(super) fn finite(value: &str) -> Result<f64, String> {
    number(value, f64::MIN, f64::MAX).ok_or_else(|| "expected a number, for example 0.5".into())
}

pub(super) fn temperature(value: &str) -> Result<f64, String> {
    number(value, f64::MIN_POSITIVE, f64::MAX)
        .ok_or_else(|| "expected a number above 0, for example 0.05".into())
}

pub(super) fn threads(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("expected a number from 1 to 1024".into()),
    }
}

pub(super) fn size(value: &str) -> Result<ByteSize, String> {
    value.parse().map_err(|_| "expected a size, for example 512MB or 2GiB".into())
}

fn revision(value: &str) -> Result<String, String> {
    if is_revision(value) { Ok(value.into()) } else { Err("expected a branch, a tag or a commit".into()) }
}

/// A number between two others.
pub(super) fn number(value: &str, min: f64, max: f64) -> Option<f64> {
    value.parse().ok().filter(|number| (min..=max).contains(number))
}

/// How texts are split into chunks.
#[derive(Debug, Args)]
pub(super) struct ChunkArgs {
    /// One row per chunk of at most TOKENS tokens
    ///
    /// TOKENS includes special tokens and the prompt. A chunk ends at the last paragraph that fits, else at
    /// the last sentence, else at the last word. start, end, line and end_line locate it in the text; --keep
    /// text copies its own text
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Vectors")]
    pub chunk: Option<u32>,

    /// Repeat up to N tokens from the end of the previous chunk, beginning with a whole sentence or word
    /// [default: 0]
    #[arg(long, value_name = "N", help_heading = "Vectors")]
    pub chunk_overlap: Option<u32>,
}

impl ChunkArgs {
    /// How texts are split, if they are; `late`: the whole text is encoded.
    ///
    /// # Errors
    /// [`UsageError`] if an option has no effect without `--chunk`, or chunks would repeat each other.
    pub(super) fn chunking(&self, late: bool) -> Result<Option<Chunking>> {
        let ChunkArgs { chunk, chunk_overlap } = self;
        let overlap = chunk_overlap.unwrap_or(0);
        let Some(tokens) = *chunk else {
            let dependent = [("--chunk-overlap", chunk_overlap.is_some()), ("--chunk-late", late)];
            if let Some((option, _)) = dependent.into_iter().find(|(_, is_given)| *is_given) {
                bail!(UsageError(format!("{option} needs --chunk TOKENS")));
            }
            return Ok(None);
        };
        if overlap >= tokens {
            bail!(UsageError(format!("--chunk-overlap {overlap} must be less than --chunk {tokens}")));
        }
        Ok(Some(Chunking { tokens: tokens as usize, overlap: overlap as usize, late }))
    }
}
