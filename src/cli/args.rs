//! The arguments of each command, as clap parses them. The doc comments of fields are the text of `--help`.

use std::path::PathBuf;

use bytesize::ByteSize;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use super::choice::{OrAuto, choices, named, named_or_auto, one_of};
use crate::input;
use crate::model::modules::Similarity;
use crate::named::Named;
use crate::neighbours::Metric;
use crate::nn::{ComputeDtype, DeviceRequest, Pool, Pooling};
use crate::output::{self, OutputDtype, TableFormat};
use crate::run::attend::AttentionFormat;
use crate::run::search::WeightKind;
use crate::task::{CPU_F32_TOKENS, CPU_TOKENS, MAX_GPU_TOKENS};
use crate::task::{Mixing, OnLong};
use crate::text::TruncationSide;

/// The default of `--model`.
pub(super) const DEFAULT_MODEL: &str = "sentence-transformers/all-MiniLM-L6-v2";

/// Turn text into vectors with BERT-style encoders.
#[derive(Debug, Parser)]
#[command(name = "sconce", version, propagate_version = true)]
pub(super) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Turn texts into vectors, one per text
    Embed(Box<EmbedArgs>),
    /// Show what the tokens of a text attend to, as a picture, a page or an array
    Attend(Box<AttendArgs>),
    /// Find the nearest neighbours of queries in a vector file
    Search(Box<SearchArgs>),
    /// Print the similarities of a few texts
    Similarity(Box<SimilarityArgs>),
    /// Compare a model's vectors on this machine with reference vectors
    Verify(Box<VerifyArgs>),
    /// Show a model's configuration, its cost, and how its tensors are used
    Inspect(InspectArgs),
    /// Find the most similar pairs of rows in a vector file, or near-duplicates
    Pairs(PairsArgs),
    /// Download a model and print its path
    Download(DownloadArgs),
    /// Print a completion script for a shell
    Completions {
        /// Shell to complete for
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub(super) struct EmbedArgs {
    /// Texts to embed. Without TEXT and --input, or if TEXT is a single -, texts are read from standard input, one per line
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub texts: Vec<String>,

    /// Files, directories or glob patterns such as 'docs/*.txt'. Directories are searched recursively, without hidden files and
    /// files that .gitignore excludes. Files may be compressed (.gz, .zst). - is standard input
    #[arg(short, long, value_name = "FILE", num_args = 1..)]
    pub input: Vec<PathBuf>,

    /// In directories and patterns, include only files that match GLOB, for example '*.md'
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// In directories and patterns, exclude files and directories that match GLOB
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// Do not respect .gitignore and .ignore files
    #[arg(long)]
    pub no_ignore: bool,

    /// Input format. auto: by file extension; lines: one text per line; files: one text per file
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<input::Format>())]
    pub input_format: OrAuto<input::Format>,

    /// Field or column of the text, in jsonl, csv, tsv, parquet and arrow [default: text]
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,

    /// Field or column of the second text of a pair
    #[arg(long, value_name = "NAME")]
    pub pair_field: Option<String>,

    /// Field or column of the id [default: id, if the input has one]
    #[arg(long, value_name = "NAME")]
    pub id_field: Option<String>,

    /// Fields or columns to copy to the output, separated by commas or spaces. Every input has text, file and line. Columns of
    /// parquet and arrow inputs keep their type; other types are inferred from the first records
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub keep: Vec<String>,

    /// Output file [default: standard output]. It is written atomically and replaces an existing file. Skipped, failed and
    /// truncated records are listed in FILE.ledger.jsonl
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Output format. auto: by file extension, jsonl on standard output
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<output::OutputFormat>())]
    pub output_format: OrAuto<output::OutputFormat>,

    /// Data type of the stored vectors. int8: vector ≈ scale · values, with one scale per vector (npy and safetensors: unit
    /// vectors, so no scale is stored); binary: eight dimensions per int8, packbits(x > 0) − 128
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = named::<OutputDtype>())]
    pub output_dtype: OutputDtype,

    /// Resume an interrupted run into the same output. Starts from the beginning if there is none, and does nothing if the
    /// output is up to date
    #[arg(long)]
    pub resume: bool,

    /// Start from the beginning and discard the rows of an interrupted run
    #[arg(long, conflicts_with = "resume")]
    pub restart: bool,

    /// Skip records whose text is empty or white space
    #[arg(long)]
    pub skip_empty: bool,

    /// Read only the first N records
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,

    /// Write a summary to FILE as JSON: rows, tokens, seconds, peak memory and more
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    #[command(flatten)]
    pub vectors: VectorArgs,

    /// What to do with texts longer than the limit. error: stop; skip: write no row and exit with code 3; mean: encode the text
    /// in chunks and take the mean of their vectors, weighted by tokens
    #[arg(long, value_name = "ACTION", default_value = "truncate", value_parser = on_long())]
    pub on_long: OnLongArg,

    /// Split texts into chunks of at most TOKENS tokens, including special tokens and the prompt, and write one row per chunk.
    /// A chunk ends at the last paragraph that fits, else at the last sentence, else at the last word
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk: Option<u32>,

    /// Repeat up to N tokens from the end of the previous chunk, beginning with a whole sentence or word [default: 0]
    #[arg(long, value_name = "N")]
    pub chunk_overlap: Option<u32>,

    /// Late chunking, for models with mean pooling: encode the whole text, then pool the tokens of each chunk. Texts over the
    /// limit are encoded in parts, each with up to a quarter of the limit as context before its first chunk
    #[arg(long)]
    pub chunk_late: bool,

    /// What to do with records that cannot be read. skip: list them in the ledger and exit with code 3
    #[arg(long, value_name = "ACTION", default_value = "stop", value_parser = named::<OnError>())]
    pub on_error: OnError,

    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help = batch_tokens_help())]
    pub batch_tokens: Option<u32>,

    /// Maximum memory of the process, including weights, for example 2GB. Batches are made small enough to fit
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Hardware")]
    pub max_memory: Option<ByteSize>,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// How a text becomes a vector.
#[derive(Debug, Args)]
pub(super) struct VectorArgs {
    /// How to pool token vectors. auto: from the model's files; none: one vector per token
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = pooling())]
    pub pooling: OrAuto<Pooling>,

    /// Normalize vectors to unit length [default: from the model's files]
    #[arg(long, overrides_with = "no_normalize")]
    pub normalize: bool,

    /// Do not normalize vectors
    #[arg(long, overrides_with = "normalize")]
    pub no_normalize: bool,

    /// Truncate vectors to their first N dimensions, before normalization [default: from the model's files]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub dimensions: Option<u32>,

    /// Prompt to put before each text [default: from the model's files]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name")]
    pub prompt: Option<String>,

    /// Name of a prompt in the model's files to put before each text
    #[arg(long, value_name = "NAME")]
    pub prompt_name: Option<String>,

    /// Maximum tokens per text, including special tokens [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_length: Option<u32>,

    /// Side at which longer texts are truncated [default: from the model's files, else right]
    #[arg(long, value_name = "SIDE", value_parser = named::<TruncationSide>())]
    pub truncation_side: Option<TruncationSide>,
}

#[derive(Debug, Args)]
pub(super) struct SearchArgs {
    /// Vector file: npy, safetensors, parquet, arrow, jsonl or csv, as embed writes them
    #[arg(id = "searched_vectors", value_name = "VECTORS")]
    pub file: PathBuf,

    /// Texts to search for. Without QUERY, --queries and --query-vectors, queries are read from standard input, one per line
    #[arg(id = "query_texts", value_name = "QUERY", conflicts_with_all = ["queries", "query_vectors"])]
    pub texts: Vec<String>,

    /// File of queries, in the input formats of embed; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with = "query_vectors")]
    pub queries: Option<PathBuf>,

    /// Vector file of queries. No model is loaded
    #[arg(long, value_name = "FILE")]
    pub query_vectors: Option<PathBuf>,

    /// Format of the queries. auto: by file extension; lines: one query per line; files: one query per file
    #[arg(id = "queries_format", long = "input-format", value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<input::Format>())]
    pub input_format: OrAuto<input::Format>,

    /// Field or column of the query, in jsonl, csv, tsv, parquet and arrow [default: text]
    #[arg(id = "query_field", long = "text-field", value_name = "NAME")]
    pub text_field: Option<String>,

    /// Field or column of the query's id [default: id, if the input has one]
    #[arg(id = "query_id_field", long = "id-field", value_name = "NAME")]
    pub id_field: Option<String>,

    /// Maximum neighbours per query
    #[arg(short = 'k', long = "top-k", value_name = "K", default_value = "10", value_parser = clap::value_parser!(u32).range(1..))]
    pub k: u32,

    /// Minimum score of a neighbour
    #[arg(id = "least_score", long = "threshold", value_name = "SCORE", value_parser = finite, allow_negative_numbers = true)]
    pub threshold: Option<f64>,

    /// Score of two vectors; euclidean is the negative distance. Equal scores rank by row [default: the model's similarity function]
    #[arg(id = "search_metric", long = "metric", value_name = "METRIC", value_parser = named::<Metric>())]
    pub metric: Option<Metric>,

    /// The vectors of VECTORS in f32 or f16, by which the best candidates are ranked again, for int8 and binary vectors
    #[arg(long, value_name = "FILE")]
    pub rescore: Option<PathBuf>,

    /// Candidates per neighbour that --rescore ranks again
    #[arg(long, value_name = "N", default_value = "4", value_parser = clap::value_parser!(u32).range(1..), requires = "rescore")]
    pub rescore_multiplier: u32,

    /// Weights of the neighbours of a query, which sum to 1. softmax: exp(score / temperature)
    #[arg(long, value_name = "KIND", value_parser = named::<WeightKind>())]
    pub weights: Option<WeightKind>,

    /// Temperature of --weights softmax [default: 1]
    #[arg(long, value_name = "T", value_parser = temperature, requires = "weights")]
    pub temperature: Option<f64>,

    /// Write the weighted mean of this numeric column over the neighbours, one row per query. Rows without a value are left out
    #[arg(long, value_name = "NAME", requires = "weights")]
    pub value_field: Option<String>,

    /// Columns of VECTORS to show, separated by commas or spaces [default: all]
    #[arg(id = "shown_columns", long = "keep", value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub keep: Option<Vec<String>>,

    /// Output file [default: standard output]. It is written atomically and replaces an existing file
    #[arg(id = "table_output", short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Output format. auto: by file extension, text on standard output
    #[arg(id = "auto_table_format", long = "output-format", value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<TableFormat>())]
    pub output_format: OrAuto<TableFormat>,

    /// What to do with queries longer than the limit. error: stop; truncate: take their first tokens; mean: encode the query in chunks
    /// and take the mean of their vectors, weighted by tokens
    #[arg(id = "on_long_query", long = "on-long", value_name = "ACTION", default_value = "error", value_parser = on_long_query())]
    pub on_long: OnLong,

    #[command(flatten)]
    pub vectors: VectorArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub(super) struct SimilarityArgs {
    /// Texts to compare, each with all others
    #[arg(id = "compared_texts", value_name = "TEXT", num_args = 2.., required = true)]
    pub texts: Vec<String>,

    /// Similarity of two vectors; euclidean and manhattan are negative distances [default: from the model's files, else cosine]
    #[arg(long, value_name = "METRIC", value_parser = named::<Similarity>())]
    pub metric: Option<Similarity>,

    /// Print a JSON object with the matrix of all similarities
    #[arg(long, conflicts_with = "table_format")]
    pub json: bool,

    /// Output format. text: a number for two texts, else a matrix; others: one row per pair of texts
    #[arg(id = "table_format", long = "output-format", value_name = "FORMAT", default_value = "text", value_parser = named::<TableFormat>())]
    pub format: TableFormat,

    #[command(flatten)]
    pub vectors: VectorArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// File of reference vectors in f32 or f16: jsonl, csv, parquet or arrow with the columns text and embedding, or npy or
    /// safetensors with --input
    #[arg(long, value_name = "FILE")]
    pub against: PathBuf,

    /// File of the texts, in the order of the reference vectors [default: the file of the vectors]
    #[arg(id = "reference_texts", short = 'i', long = "input", value_name = "FILE")]
    pub texts: Option<PathBuf>,

    /// Field or column of the text [default: text]
    #[arg(long, value_name = "NAME")]
    pub text_field: Option<String>,

    /// Maximum absolute difference of an element [default: 1e-5 for f32, 1e-4 for bf16x3, each times the largest element if that
    /// exceeds 1; no limit for other data types]
    #[arg(long, value_name = "X", value_parser = difference)]
    pub max_difference: Option<f64>,

    /// Minimum cosine of a vector with its reference [default: 0.99999 for f32 and bf16x3, 0.999 for bf16 and f16, 0.99 for int8]
    #[arg(long, value_name = "X", value_parser = cosine, allow_negative_numbers = true)]
    pub min_cosine: Option<f64>,

    /// Minimum share of the ten nearest neighbours among the rows that are the same [default: 0.99 for f32 and bf16x3, 0.95 for bf16
    /// and f16, 0.9 for int8]
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub min_neighbours: Option<f64>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub vectors: VectorArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub(super) struct AttendArgs {
    /// Text to encode
    #[arg(id = "attended_text", value_name = "TEXT")]
    pub text: String,

    /// Second text of a pair
    #[arg(value_name = "PAIR")]
    pub pair: Option<String>,

    /// Output file: svg, png, html, npy, safetensors, json or txt by its extension [default: a picture on standard output]. It is
    /// written atomically and replaces an existing file
    #[arg(id = "attention_output", short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Output format. auto: by file extension, text on standard output; text: a picture in 256 colors, or in plain characters with
    /// NO_COLOR or if standard output is not a terminal
    #[arg(
        id = "attention_format",
        long = "output-format",
        value_name = "FORMAT",
        default_value = "auto",
        value_parser = named_or_auto::<AttentionFormat>()
    )]
    pub format: OrAuto<AttentionFormat>,

    /// Layer, counted from 0 as in output_attentions of transformers [default: all, or with --rollout the last; without --output
    /// the last]
    #[arg(long, value_name = "N")]
    pub layer: Option<usize>,

    /// Head, counted from 0 [default: all; without --output their mean]
    #[arg(long, value_name = "N", conflicts_with_all = ["mean", "rollout"])]
    pub head: Option<usize>,

    /// The mean over the heads of each layer
    #[arg(long, conflicts_with = "rollout")]
    pub mean: bool,

    /// Attention rollout up to the layer (Abnar & Zuidema 2020): the product over all layers of 0.5 times the mean over the heads plus
    /// 0.5 times the identity
    #[arg(long, conflicts_with = "mixing")]
    pub rollout: bool,

    /// For models with talking heads: the probabilities of the softmax before heads are mixed, or the weights after that, by which
    /// values are summed [default: after]
    #[arg(long, value_name = "WHEN", value_parser = named::<Mixing>())]
    pub mixing: Option<Mixing>,

    /// Prompt to put before the text [default: from the model's files]
    #[arg(
        id = "attention_prompt",
        long = "prompt",
        value_name = "TEXT",
        conflicts_with = "attention_prompt_name"
    )]
    pub prompt: Option<String>,

    /// Name of a prompt in the model's files to put before the text
    #[arg(id = "attention_prompt_name", long = "prompt-name", value_name = "NAME")]
    pub prompt_name: Option<String>,

    /// Maximum tokens, including special tokens; a longer text is an error [default: the model's limit]
    #[arg(
        id = "attention_max_length",
        long = "max-length",
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub max_length: Option<u32>,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// Model directory, or model id on the Hugging Face Hub: the same as --model
    #[arg(value_name = "MODEL")]
    pub model_or_id: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// Show the cost of a text of N tokens [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub tokens: Option<u32>,

    /// List all tensors of the checkpoint, and which of them are used
    #[arg(long)]
    pub tensors: bool,

    #[command(flatten)]
    pub model: ModelArgs,
}

#[derive(Debug, Args)]
pub(super) struct PairsArgs {
    /// Vector file: npy, safetensors, parquet, arrow, jsonl or csv, as embed writes them
    #[arg(id = "searched_vectors", value_name = "VECTORS")]
    pub file: PathBuf,

    /// Minimum score of a pair
    #[arg(id = "least_score", long = "threshold", value_name = "SCORE", value_parser = finite, allow_negative_numbers = true)]
    pub threshold: Option<f64>,

    /// What scores pairs. euclidean: the negative distance
    #[arg(id = "pairs_metric", long = "metric", value_name = "METRIC", default_value = "cosine", value_parser = named::<Metric>())]
    pub metric: Metric,

    /// Nearest neighbours of a row that are considered. A pair is found if either row is a neighbour of the other
    #[arg(short = 'k', long, value_name = "K", default_value = "100", value_parser = clap::value_parser!(u32).range(1..))]
    pub top_k: u32,

    /// Write only the N best pairs
    #[arg(long, value_name = "N", default_value = "500000", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_pairs: u32,

    /// Write the cluster of every row instead of pairs: rows that are connected by pairs of at least --threshold. keep is true for
    /// the first row of each cluster
    #[arg(long, requires = "least_score", conflicts_with_all = ["top_k", "max_pairs"])]
    pub clusters: bool,

    /// Columns of VECTORS to copy to the output, separated by commas or spaces; of pairs, as NAME_a and NAME_b
    #[arg(id = "columns", long = "keep", value_name = "NAME", num_args = 1.., value_delimiter = ',')]
    pub keep: Vec<String>,

    /// Output file [default: standard output]. It is written atomically and replaces an existing file
    #[arg(id = "table_output", short = 'o', long = "output", value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Output format. auto: by file extension, text on standard output
    #[arg(id = "auto_table_format", long = "output-format", value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<TableFormat>())]
    pub output_format: OrAuto<TableFormat>,

    /// Number of CPU threads [default: all available cores]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Hardware")]
    pub threads: Option<usize>,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    #[command(flatten)]
    pub source: SourceArgs,

    /// Build the encoder from this config.json instead of the model's own. Needs --random-weights, except to inspect it
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub config: Option<PathBuf>,

    /// Initialize the weights at random instead of reading a checkpoint
    #[arg(long, value_name = "SEED", help_heading = "Model")]
    pub random_weights: Option<u64>,

    /// Use this tokenizer.json, vocab.txt or vocab.json instead of the model's own
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub tokenizer: Option<PathBuf>,

    /// Device to run on. auto: a GPU, if this build supports GPUs and one is available, else the CPU; cuda:0,1: several GPUs
    #[arg(long, value_name = "auto|cpu|cuda[:N,…]", default_value = "auto", value_parser = device, help_heading = "Hardware")]
    pub device: DeviceRequest,

    /// Data type of matrix products (accumulation is always f32). Faster than f32 where the hardware supports it: bf16 and int8
    /// with AVX-512 or AMX, bf16x3 (each value as two bf16 values) with AMX, f16 and bf16 on a GPU
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = named::<ComputeDtype>(), help_heading = "Hardware")]
    pub dtype: ComputeDtype,

    /// Number of CPU threads [default: all available cores]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Hardware")]
    pub threads: Option<usize>,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    /// Model directory with a config.json, or model id on the Hugging Face Hub
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
pub(super) struct DownloadArgs {
    /// Model id on the Hugging Face Hub
    #[arg(id = "download_id", value_name = "ID")]
    pub model: String,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

#[derive(Debug, Args)]
pub(super) struct VerbosityArgs {
    /// Print only warnings and errors
    #[arg(short, long, conflicts_with = "verbose", help_heading = "Messages")]
    pub quiet: bool,

    /// Print every decision and timing
    #[arg(short, long, help_heading = "Messages")]
    pub verbose: bool,

    /// Hide the progress bar
    #[arg(long, help_heading = "Messages")]
    pub no_progress: bool,
}

/// What to do with records that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnError {
    Stop,
    Skip,
}

impl Named for OnError {
    const ALL: &'static [Self] = &[OnError::Stop, OnError::Skip];

    fn name(self) -> &'static str {
        match self {
            OnError::Stop => "stop",
            OnError::Skip => "skip",
        }
    }
}

/// A value of `--on-long`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OnLongArg {
    /// The value, under its present name.
    pub value: OnLong,
    /// Whether `mean` was typed by its former name, `chunk`.
    pub is_deprecated: bool,
}

/// A parser for the values of `--on-long`, and for `chunk`, the former name of `mean`.
fn on_long() -> impl TypedValueParser<Value = OnLongArg> {
    let chunk = PossibleValue::new("chunk").hide(true);
    let deprecated = OnLongArg { value: OnLong::Mean, is_deprecated: true };
    let current = choices(|value| OnLongArg { value, is_deprecated: false });
    one_of([current, vec![(chunk, deprecated)]].concat())
}

/// A parser for the values of `--on-long` of queries, each of which has a result.
fn on_long_query() -> impl TypedValueParser<Value = OnLong> {
    let values = [OnLong::Error, OnLong::Truncate, OnLong::Mean];
    one_of(values.map(|value| (PossibleValue::new(value.name()), value)).into())
}

/// A parser for `auto`, one pooling of [`Pool`], and `none`.
fn pooling() -> impl TypedValueParser<Value = OrAuto<Pooling>> {
    let auto = (PossibleValue::new("auto"), OrAuto(None));
    let pools = choices(|pool: Pool| OrAuto(Some(Pooling::Text(vec![pool]))));
    let none = (PossibleValue::new("none"), OrAuto(Some(Pooling::None)));
    one_of([vec![auto], pools, vec![none]].concat())
}

fn batch_tokens_help() -> String {
    format!(
        "Tokens per batch, over all of its texts [default: {CPU_F32_TOKENS} for f32 on a CPU without AMX, \
         {CPU_TOKENS} otherwise on a CPU; on a GPU as many as fit in its memory, up to {MAX_GPU_TOKENS}]"
    )
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

fn finite(value: &str) -> Result<f64, String> {
    number(value, f64::MIN, f64::MAX).ok_or_else(|| "expected a number, for example 0.5".into())
}

fn temperature(value: &str) -> Result<f64, String> {
    number(value, f64::MIN_POSITIVE, f64::MAX)
        .ok_or_else(|| "expected a number above 0, for example 0.05".into())
}

fn difference(value: &str) -> Result<f64, String> {
    number(value, 0.0, f64::MAX).ok_or_else(|| "expected a number of at least 0, for example 1e-5".into())
}

fn cosine(value: &str) -> Result<f64, String> {
    number(value, -1.0, 1.0).ok_or_else(|| "expected a number from -1 to 1, for example 0.999".into())
}

fn share(value: &str) -> Result<f64, String> {
    number(value, 0.0, 1.0).ok_or_else(|| "expected a number from 0 to 1, for example 0.95".into())
}

/// A number between two others.
fn number(value: &str, min: f64, max: f64) -> Option<f64> {
    value.parse().ok().filter(|number| (min..=max).contains(number))
}

fn size(value: &str) -> Result<ByteSize, String> {
    value.parse().map_err(|_| "expected a size, for example 512MB or 2GiB".into())
}

fn threads(value: &str) -> Result<usize, String> {
    match value.parse() {
        Ok(n @ 1..=1024) => Ok(n),
        _ => Err("expected a number from 1 to 1024".into()),
    }
}

/// Parses a revision, which becomes a part of a path in the cache: a component such as `..` is refused.
fn revision(value: &str) -> Result<String, String> {
    let is_plain = |part: &str| {
        let has_plain_characters = part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        has_plain_characters && !part.is_empty() && part != "." && part != ".."
    };
    if value.split('/').all(is_plain) {
        Ok(value.into())
    } else {
        Err("expected a branch, a tag or a commit".into())
    }
}
