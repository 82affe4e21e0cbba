//! `sconce embed`: its arguments, and the options that they become.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Args;
use clap::builder::{PossibleValue, TypedValueParser};

use super::args::{ModelArgs, VectorArgs};
use super::choice::{OrAuto, choices, named, named_or_auto, one_of};
use super::resolve::{console, embedding_model, is_stdout, target, vectors};
use crate::error::UsageError;
use crate::input::{self, Fields, Filter};
use crate::named::Named;
use crate::nn::Pooling;
use crate::output::{self, OutputDtype};
use crate::pipeline::{Selection, StartMode};
use crate::run::embed::{EmbedOptions, Input};
use crate::task::{CPU_F32_TOKENS, CPU_TOKENS, MAX_GPU_TOKENS, ModelOptions, OnLong, VectorOptions};
use crate::text::Chunking;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce embed \"A lamp in the window\"                       one text as a line of JSON
  sconce embed -i corpus.jsonl -o corpus.parquet            a file
  sconce embed -i docs --input-format files -o docs.npy     a directory, one vector per file
  sconce embed -i docs --input-format files --chunk 128     a directory, one row per chunk
  sconce embed -m BAAI/bge-small-en-v1.5 < lines.txt        another model, one text per line
  sconce embed -i corpus.jsonl -o corpus.parquet --resume   the rest of an interrupted run";

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

/// The options of `embed`.
///
/// # Errors
/// [`UsageError`] if arguments contradict each other.
pub(super) fn options(args: EmbedArgs) -> Result<EmbedOptions> {
    check_long_text_options(&args)?;
    let chunking = chunking(&args)?;
    Ok(EmbedOptions {
        model: ModelOptions {
            max_memory: args.max_memory.map(|size| size.as_u64()),
            ..embedding_model(&args.model, &args.vectors)?
        },
        input: input(&args)?,
        format: output_format(args.output_format, args.output.as_deref())?,
        output: target(args.output),
        vectors: VectorOptions {
            dtype: args.output_dtype,
            on_long: args.on_long.value,
            chunking,
            ..vectors(&args.vectors)
        },
        batch_tokens: args.batch_tokens.map(|n| n as usize),
        skip_unreadable: args.on_error == OnError::Skip,
        start: match (args.resume, args.restart) {
            (true, _) => StartMode::Resume,
            (_, true) => StartMode::Restart,
            _ => StartMode::Fresh,
        },
        selection: Selection { skip_empty: args.skip_empty, limit: args.limit },
        // A user who names the format needs no hint that the input looks like another one.
        hints: args.input_format.0.is_none(),
        stats: args.stats,
        console: console(&args.model.verbosity),
    })
}

/// The texts, or the files that hold them.
fn input(args: &EmbedArgs) -> Result<Input> {
    let EmbedArgs { texts, input: files, text_field, pair_field, id_field, keep, .. } = args;
    let stdin = [PathBuf::from("-")];
    // A single - is standard input. Among other texts, it is a text.
    let texts = if matches!(&texts[..], [text] if text == "-") { &[][..] } else { &texts[..] };
    let paths = match (files.is_empty(), texts.is_empty()) {
        (true, false) => &[][..],
        (true, true) => &stdin,
        (false, _) => files,
    };
    if paths.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!(UsageError("--input names standard input twice, but it can be read only once".into()));
    }
    let filter = Filter {
        include: args.include.clone(),
        exclude: args.exclude.clone(),
        no_ignore: args.no_ignore,
        is_lenient: args.on_error == OnError::Skip,
    };
    let sources = input::filtered_sources(paths, args.input_format.0, &filter);
    let sources = sources.map_err(|error| UsageError(error.to_string()))?;
    let field_options =
        [("--text-field", text_field), ("--pair-field", pair_field), ("--id-field", id_field)];
    let field_option = field_options.into_iter().find(|(_, name)| name.is_some()).map(|(option, _)| option);
    // Records of any format have a text, a file and a line, which --keep may name.
    let is_own = |name: &String| texts.is_empty() && Fields::is_built_in(name);
    if let Some(option) = field_option.or((!keep.iter().all(is_own)).then_some("--keep"))
        && !sources.iter().any(|source| source.format.has_fields())
    {
        bail!(UsageError(format!(
            "{option} needs an input with fields (jsonl, csv, tsv, parquet or arrow); pass --input FILE, and \
             --input-format if the file extension does not tell the format"
        )));
    }
    if !texts.is_empty() {
        if args.input_format.0.is_some() {
            bail!(UsageError("--input-format needs --input FILE; remove it, or the TEXT arguments".into()));
        }
        return Ok(Input::Texts(texts.to_vec()));
    }
    let text = text_field.clone().unwrap_or_else(|| "text".into());
    let fields = Fields { text, pair: pair_field.clone(), id: id_field.clone(), keep: keep.clone() };
    Ok(Input::Files(sources, fields))
}

/// Refuses options for long texts that would have no effect, and chunks of pairs, which are not supported.
fn check_long_text_options(args: &EmbedArgs) -> Result<()> {
    let on_long = args.on_long.value;
    if args.vectors.truncation_side.is_some() && on_long != OnLong::Truncate {
        bail!(UsageError(format!(
            "--truncation-side needs --on-long truncate, found --on-long {}; remove one of them",
            on_long.name()
        )));
    }
    if args.pair_field.is_some() && on_long == OnLong::Mean {
        bail!(UsageError(
            "--on-long mean does not support pairs; pass --on-long truncate, skip or error".into()
        ));
    }
    if args.on_long.is_deprecated {
        console(&args.model.verbosity)
            .note("--on-long chunk is deprecated; pass --on-long mean, which does the same");
    }
    Ok(())
}

/// How texts are split into chunks, if they are.
///
/// # Errors
/// [`UsageError`] if an option contradicts `--chunk`, or has no effect with or without it.
fn chunking(args: &EmbedArgs) -> Result<Option<Chunking>> {
    let overlap = args.chunk_overlap.unwrap_or(0);
    let Some(tokens) = args.chunk else {
        let dependent =
            [("--chunk-overlap", args.chunk_overlap.is_some()), ("--chunk-late", args.chunk_late)];
        if let Some((option, _)) = dependent.into_iter().find(|(_, is_given)| *is_given) {
            bail!(UsageError(format!("{option} needs --chunk TOKENS")));
        }
        return Ok(None);
    };
    if overlap >= tokens {
        bail!(UsageError(format!("--chunk-overlap {overlap} must be less than --chunk {tokens}")));
    }
    if args.vectors.pooling.0 == Some(Pooling::None) {
        bail!(UsageError(
            "--chunk writes one vector per chunk, --pooling none one per token; remove one of them".into()
        ));
    }
    if args.pair_field.is_some() {
        bail!(UsageError("--chunk does not support pairs; remove --pair-field or --chunk".into()));
    }
    if args.on_long.value != OnLong::Truncate || args.vectors.truncation_side.is_some() {
        let option = if args.vectors.truncation_side.is_some() { "--truncation-side" } else { "--on-long" };
        bail!(UsageError(format!(
            "{option} has no effect with --chunk, since no chunk exceeds the limit; remove one of them"
        )));
    }
    Ok(Some(Chunking { tokens: tokens as usize, overlap: overlap as usize, late: args.chunk_late }))
}

/// The output format: as the option says, else by the extension of the output file, else jsonl.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
fn output_format(
    format: OrAuto<output::OutputFormat>,
    output: Option<&Path>,
) -> Result<output::OutputFormat> {
    use output::OutputFormat::{Arrow, Csv, Jsonl, Npy, Parquet, Safetensors};
    if let Some(format) = format.0 {
        return Ok(format);
    }
    let Some(path) = output.filter(|path| !is_stdout(path)) else { return Ok(Jsonl) };
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    Ok(match extension.as_deref().unwrap_or_default() {
        "jsonl" | "ndjson" | "" => Jsonl,
        "csv" => Csv,
        "npy" => Npy,
        "parquet" | "pq" => Parquet,
        "arrow" | "feather" | "ipc" => Arrow,
        "safetensors" => Safetensors,
        unknown => {
            let names: Vec<&str> = output::OutputFormat::ALL.iter().map(|format| format.name()).collect();
            bail!(UsageError(format!(
                "--output {}: no output format has the extension .{unknown}; pass --output-format with one of {}",
                path.display(),
                names.join(", ")
            )))
        }
    })
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

/// A parser for the values of `--on-long`, and for `chunk`, the former name of `mean`.
fn on_long() -> impl TypedValueParser<Value = OnLongArg> {
    let chunk = PossibleValue::new("chunk").hide(true);
    let deprecated = OnLongArg { value: OnLong::Mean, is_deprecated: true };
    let current = choices(|value| OnLongArg { value, is_deprecated: false });
    one_of([current, vec![(chunk, deprecated)]].concat())
}

fn batch_tokens_help() -> String {
    format!(
        "Tokens per batch, over all of its texts [default: {CPU_F32_TOKENS} for f32 on a CPU without AMX, \
         {CPU_TOKENS} otherwise on a CPU; on a GPU as many as fit in its memory, up to {MAX_GPU_TOKENS}]"
    )
}

fn size(value: &str) -> Result<ByteSize, String> {
    value.parse().map_err(|_| "expected a size, for example 512MB or 2GiB".into())
}
