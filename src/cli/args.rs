//! The grammar of the command line.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::nn::Wanted;

/// The model where none is named.
pub const DEFAULT_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";

/// Text into vectors with BERT-style encoders.
#[derive(Debug, Parser)]
#[command(name = "sconce", version, about, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Turn texts into vectors, one a text
    Embed(Box<EmbedArgs>),
    /// Show a model's configuration and how its tensors are used
    Inspect(InspectArgs),
    /// Bring a model into the cache and print its folder
    Download(DownloadArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub struct EmbedArgs {
    /// Texts to embed; without any, without --input, or with - alone, texts are read from standard input, one per line
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub texts: Vec<String>,

    /// Files of texts, folders of them (with what is below, but hidden files and what .gitignore names), or patterns like 'docs/*.txt'; a file
    /// may be packed (.gz, .zst); - is standard input
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub input: Vec<PathBuf>,

    /// Of folders and patterns take the files that match only, for example '*.md'
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// Of folders and patterns leave out the files and folders that match
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// Take what .gitignore and .ignore name, too
    #[arg(long)]
    pub no_ignore: bool,

    /// How texts stand in the input; auto goes by the name's suffix; files: each file is one text
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub input_format: InputFormat,

    /// The field of the text in jsonl, csv, tsv, parquet and arrow [default: text]
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,

    /// The field of the second text of a pair
    #[arg(long, value_name = "NAME")]
    pub pair_field: Option<String>,

    /// The field of the id [default: id, where there is one]
    #[arg(long, value_name = "NAME")]
    pub id_field: Option<String>,

    /// Fields that are carried through to the output, separated by commas or spaces; text, file and line are there for any
    /// input. In parquet and arrow, columns of such inputs keep their type; for others the first records say what they hold
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub keep: Vec<String>,

    /// Where vectors go [default: standard output]; a file appears when it is whole, in place of one that was there. Records
    /// that are out of the ordinary are listed beside it, in FILE.ledger.jsonl
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How vectors are written; auto goes by the name's suffix, and is jsonl on standard output
    #[arg(long, value_name = "FORMAT", default_value = "auto")]
    pub output_format: OutputFormat,

    /// How the numbers of vectors are stored; int8: vector ≈ scale · numbers, with a scale for each vector (in npy and
    /// safetensors the length of 1 says it); binary: eight dimensions an int8, packbits(x > 0) − 128
    #[arg(long, value_name = "TYPE", default_value = "f32")]
    pub output_dtype: OutputDtype,

    /// Resume an interrupted run into the same output; start from the beginning if there is none, and do nothing if the output
    /// is up to date
    #[arg(long)]
    pub resume: bool,

    /// Start from the beginning, dropping the rows that an interrupted run has left
    #[arg(long, conflicts_with = "resume")]
    pub restart: bool,

    /// Leave out records whose text is empty or white space
    #[arg(long)]
    pub skip_empty: bool,

    /// Take the first N records only
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Write a summary as JSON: rows, tokens, seconds, memory …
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// How tokens become a vector; auto: as the model's own files say; none: one vector a token
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub pooling: PoolingMode,

    /// Scale vectors to unit length [default: as the model's own files say]
    #[arg(long, overrides_with = "no_normalize")]
    pub normalize: bool,

    /// Leave vectors as they are
    #[arg(long, overrides_with = "normalize")]
    pub no_normalize: bool,

    /// Keep the first N dimensions of vectors, before they are scaled [default: as the model's own files say]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub dimensions: Option<u32>,

    /// Put this before each text [default: as the model's own files say]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name")]
    pub prompt: Option<String>,

    /// Put the prompt that has this name in the model's own files before each text
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,

    /// The longest text in tokens, specials included [default: the model's own limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_length: Option<u32>,

    /// Which end of a longer text is cut [default: as the model's own files say, else right]
    #[arg(long, value_name = "SIDE")]
    pub truncation_side: Option<TruncationSide>,

    /// What to do with texts longer than the limit; error: stop; mean: encode them in windows and take the mean of their
    /// vectors, weighted by tokens
    #[arg(long, value_name = "WHAT", default_value = "truncate")]
    pub on_long: LongText,

    /// Cut texts into chunks of at most this many tokens, including the special tokens and the prompt, and write one row per chunk: at the
    /// last paragraph that fits, else the last sentence, else the last word
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,

    /// Let each chunk repeat up to N tokens from the end of the one before it, from a sentence or a word on [default: 0]
    #[arg(long, value_name = "N")]
    pub chunk_overlap: Option<u32>,

    /// Late chunking: encode the whole text at once, then pool the tokens of each chunk, for models with mean pooling; a text over
    /// the limit is encoded in windows that overlap by a quarter
    #[arg(long)]
    pub chunk_late: bool,

    /// What becomes of records that cannot be read; skip: they are left out, listed, and the exit code is 3
    #[arg(long, value_name = "WHAT", default_value = "stop")]
    pub on_error: Unreadable,

    /// Tokens a batch, all texts together [default: 2048 on the CPU, 512 with AMX; what a GPU's memory holds, up to 32768]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch_tokens: Option<u32>,

    /// The most memory that the process may take, weights included, for example 2GB: batches are made to fit
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Machine")]
    pub max_memory: Option<ByteSize>,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub struct InspectArgs {
    /// The model, as --model takes it: a folder with config.json, or an id on the Hugging Face hub
    #[arg(value_name = "MODEL")]
    pub model_or_id: Option<String>,

    /// Print a JSON object
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub struct ModelArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Build the stack of this config.json in place of the model's own
    #[arg(long, value_name = "FILE", requires = "random_weights", help_heading = "Model")]
    pub config: Option<PathBuf>,

    /// Draw the weights at random in place of reading a checkpoint
    #[arg(long, value_name = "SEED", help_heading = "Model")]
    pub random_weights: Option<u64>,

    /// A tokenizer.json, vocab.txt or vocab.json in place of the model's own
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub tokenizer: Option<PathBuf>,

    /// What the encoder runs on; auto: on a GPU if there is one that this build can use; cuda:0,1: on several at once
    #[arg(long, value_name = "auto|cpu|cuda[:N,…]", default_value = "auto", value_parser = device, help_heading = "Machine")]
    pub device: Wanted,

    /// Precision of matrix products; accumulation is always f32. Faster than f32 where the processor has such products: bf16 and int8
    /// with AVX-512 or AMX, bf16x3 (two bf16 parts of each value) with AMX; on a GPU f16 and bf16
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = "Machine")]
    pub dtype: ComputeType,

    /// CPU threads [default: what the machine grants the process]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Machine")]
    pub threads: Option<usize>,

    #[command(flatten)]
    pub talk: TalkArgs,
}

#[derive(Debug, Args)]
pub struct SourceArgs {
    /// A folder with config.json, or an id on the Hugging Face hub
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
pub struct HubArgs {
    /// Branch, tag or commit on the hub
    #[arg(long, value_name = "REV", default_value = "main", value_parser = revision, help_heading = "Model")]
    pub revision: String,

    /// Never touch the network; HF_HUB_OFFLINE=1 means the same
    #[arg(long, help_heading = "Model")]
    pub offline: bool,
}

#[derive(Debug, Args)]
pub struct DownloadArgs {
    /// An id on the Hugging Face hub
    #[arg(id = "download_id", value_name = "ID")]
    pub model: String,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub talk: TalkArgs,
}

#[derive(Debug, Args)]
pub struct TalkArgs {
    /// Say only warnings and errors
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Output on standard error")]
    pub quiet: bool,

    /// Say every choice and what things took
    #[arg(short, long, help_heading = "Output on standard error")]
    pub verbose: bool,

    /// Draw no progress bar
    #[arg(long, help_heading = "Output on standard error")]
    pub no_progress: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum InputFormat {
    Auto,
    Lines,
    Jsonl,
    Csv,
    Tsv,
    Parquet,
    Arrow,
    Files,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    Auto,
    Jsonl,
    Csv,
    Npy,
    Parquet,
    Arrow,
    Safetensors,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OutputDtype {
    #[value(alias = "float32")]
    F32,
    #[value(alias = "float16")]
    F16,
    Int8,
    Binary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ComputeType {
    #[value(alias = "float32")]
    F32,
    Bf16x3,
    #[value(alias = "bfloat16")]
    Bf16,
    #[value(alias = "float16")]
    F16,
    Int8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LongText {
    Truncate,
    Error,
    Skip,
    Mean,
    /// What `mean` was called.
    #[value(hide = true)]
    Chunk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Unreadable {
    Stop,
    Skip,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PoolingMode {
    Auto,
    Cls,
    Mean,
    Max,
    MeanSqrtLen,
    WeightedMean,
    Last,
    Pooler,
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TruncationSide {
    Left,
    Right,
}

fn device(value: &str) -> Result<Wanted, String> {
    let numbers = match value {
        "auto" => return Ok(Wanted::Auto),
        "cpu" => return Ok(Wanted::Cpu),
        "cuda" => "0",
        other => other.strip_prefix("cuda:").unwrap_or_default(),
    };
    let mut all: Vec<usize> = Vec::new();
    for number in numbers.split(',') {
        match number.parse() {
            Ok(number) if !all.contains(&number) => all.push(number),
            _ => {
                return Err(
                    "has to be auto, cpu, cuda, or cuda: and numbers of GPUs, as cuda:0 or cuda:0,1".into()
                );
            }
        }
    }
    Ok(Wanted::Cuda(all))
}

fn size(value: &str) -> Result<ByteSize, String> {
    value.parse().map_err(|_| "has to be a size, for example 512MB or 2GiB".into())
}

fn threads(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("has to be a number of threads from 1 to 1024".into()),
    }
}

/// A revision becomes part of a path in the cache.
fn revision(value: &str) -> Result<String, String> {
    let part = |part: &str| {
        let plain = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        plain && !part.is_empty() && part != "." && part != ".."
    };
    match value.split('/').all(part) {
        true => Ok(value.into()),
        false => Err("has to be a branch, a tag or a commit".into()),
    }
}
