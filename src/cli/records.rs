//! The arguments of the commands that turn records into rows, and the options that they become.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use bytesize::ByteSize;
use clap::Args;

use super::args::{VerbosityArgs, size};
use super::choice::{OrAuto, named, named_or_auto};
use super::fields::{keep_fields, kept_name, text_fields};
use super::resolve::{console, format_of, inputs, target};
use crate::error::UsageError;
use crate::formats::csv::FieldSyntax;
use crate::input::{self, ALL_FIELDS, FieldOptions, Fields, Filter, HEADER, KeptName, Partitions};
use crate::job::{OnNull, Selection, Shard, StartMode};
use crate::load::ModelOptions;
use crate::named::names;
use crate::rows::OutputFormat;
use crate::run::records::{Input, RecordOptions};
use crate::task::{AMX_TOKENS, CAUSAL_TOKENS, CPU_F32_TOKENS, CPU_TOKENS, MAX_GPU_TOKENS};

/// What stands for the shard in the name of a file.
const SHARD_PART: &str = "{shard}";

/// The texts, the output and the run of a command that turns records into rows.
#[derive(Debug, Args)]
pub(super) struct RecordArgs {
    /// Texts [default: lines of standard input]
    ///
    /// Without TEXT and --input, or if TEXT is a single -, texts are read from standard input, one per line
    #[arg(value_name = "TEXT", conflicts_with = "input")]
    pub texts: Vec<String>,

    /// Files, directories or glob patterns; - is standard input
    ///
    /// A pattern is, for example, 'docs/*.txt'. Directories are searched recursively, without hidden files
    /// and files that .gitignore excludes; if some files have fields (jsonl, csv, tsv, parquet, arrow) or are
    /// FASTA, only those are read. Files may be compressed (.gz, .zst)
    #[arg(short, long, value_name = "FILE", num_args = 1.., help_heading = "Input")]
    pub input: Vec<PathBuf>,

    /// In directories and patterns, include all files that match GLOB, for example '*.md', and no others
    #[arg(long, value_name = "GLOB", help_heading = "Input")]
    pub include: Vec<String>,

    /// In directories and patterns, exclude files and directories that match GLOB
    #[arg(long, value_name = "GLOB", help_heading = "Input")]
    pub exclude: Vec<String>,

    /// Do not respect .gitignore and .ignore files
    #[arg(long, help_heading = "Input")]
    pub no_ignore: bool,

    /// Input format [default: by file extension]
    ///
    /// auto: the default; lines: one text per line; fasta: sequences below headers; files: one text per file
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<input::Format>(), hide_default_value = true, help_heading = "Input")]
    pub input_format: OrAuto<input::Format>,

    /// Delimiter of the fields in csv and tsv, one ASCII character; '\t' is a tab [default: a comma, in tsv a
    /// tab]
    #[arg(long, value_name = "CHAR", value_parser = delimiter, help_heading = "Input")]
    pub delimiter: Option<u8>,

    /// Quote around fields of csv and tsv, one ASCII character, or none: quotes are plain text [default: \",
    /// in tsv none]
    #[arg(long, value_name = "CHAR|none", value_parser = quote, help_heading = "Input")]
    pub quote: Option<Quote>,

    /// Fields or columns of the text [default: text]
    ///
    /// For jsonl, csv, tsv, parquet and arrow. Several are separated by commas or spaces, and their values
    /// are joined. meta.text is the field text in the object or struct meta, here and in the other options
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', help_heading = "Input")]
    pub text_field: Vec<String>,

    /// What to put between the values of several fields of the text that are not blank [default: a newline]
    #[arg(long, value_name = "SEPARATOR", allow_hyphen_values = true, help_heading = "Input")]
    pub text_separator: Option<String>,

    /// Field or column of the id [default: id, if the input has one]
    #[arg(long, value_name = "NAME", help_heading = "Input")]
    pub id_field: Option<String>,

    /// Fields or columns to copy to the output
    ///
    /// Several are separated by commas or spaces; NAME=AS copies NAME under the name AS; '*' is all but the
    /// text and the id. Every input has text, file and line, FASTA header, files below year=2025 year.
    /// Columns of parquet and arrow inputs keep their type; other types are inferred from the first records
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', value_parser = kept_name, help_heading = "Input")]
    pub keep: Vec<KeptName>,

    /// Output file [default: standard output]
    ///
    /// It is written atomically and replaces an existing file; its directory is made if there is none.
    /// Skipped, failed and truncated records are listed in FILE.ledger.jsonl
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Output format [default: by file extension, else jsonl]
    ///
    /// auto: the default, which is jsonl on standard output
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = named_or_auto::<OutputFormat>(), hide_default_value = true, help_heading = "Output")]
    pub output_format: OrAuto<OutputFormat>,

    /// Resume an interrupted run
    ///
    /// Starts from the beginning if no run into the same output was interrupted, and does nothing if the
    /// output is up to date
    #[arg(long, help_heading = "Output")]
    pub resume: bool,

    /// Discard the rows of an interrupted run
    ///
    /// The run starts from the beginning
    #[arg(long, conflicts_with = "resume", help_heading = "Output")]
    pub restart: bool,

    /// Skip records whose text is empty or white space
    #[arg(long, help_heading = "Input")]
    pub skip_empty: bool,

    /// What to do with a text that is null. skip: list it in the ledger, write no row and exit with code 3;
    /// null: write a row with null in place of its vector, in jsonl, csv, parquet or arrow
    #[arg(long, value_name = "ACTION", default_value = "error", value_parser = named::<OnNull>(), help_heading = "Input")]
    pub on_null: OnNull,

    /// Read only the first N records
    #[arg(long, value_name = "N", help_heading = "Input")]
    pub limit: Option<u64>,

    /// Process only part I of N of the records, in contiguous parts of equal size, numbered from 1: -o
    /// 'part-{shard}.parquet' --shard 2/8 writes part-2-of-8.parquet. The input is read once more to count
    /// its records. sconce merge joins the outputs
    #[arg(long, value_name = "I/N", help_heading = "Input")]
    pub shard: Option<Shard>,

    /// Write a summary to FILE as JSON: rows, tokens, seconds, peak memory and more
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub stats: Option<PathBuf>,

    /// Records that cannot be read: stop or skip
    ///
    /// skip: list them in the ledger and exit with code 3
    #[arg(long, value_name = "ACTION", default_value = "stop", value_parser = named::<OnError>(), help_heading = "Input")]
    pub on_error: OnError,

    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help = batch_tokens_help(), help_heading = "Hardware")]
    pub batch_tokens: Option<u32>,

    /// Maximum memory of the process, including weights, for example 2GB. Batches are made small enough to
    /// fit
    #[arg(long, value_name = "SIZE", value_parser = size, help_heading = "Hardware")]
    pub max_memory: Option<ByteSize>,
}

impl RecordArgs {
    /// Whether the texts are read from standard input.
    pub(super) fn reads_stdin(&self) -> bool {
        let has_texts = !self.texts.is_empty() && self.texts != ["-"];
        !has_texts && (self.input.is_empty() || self.input.iter().any(|path| is_stdin(path)))
    }
}

/// What to do with records that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnError {
    Stop,
    Skip,
}

names!(OnError { Stop => "stop", Skip => "skip" });

/// The options of every command that turns records into rows. `pair` is the field of the second text, with
/// the name of its option.
pub(super) fn records(
    args: RecordArgs,
    model: ModelOptions,
    pair: (&'static str, Option<String>),
    verbosity: &VerbosityArgs,
) -> Result<RecordOptions> {
    Ok(RecordOptions {
        model: ModelOptions { max_memory: args.max_memory.map(|size| size.as_u64()), ..model },
        input: input(&args, pair, verbosity)?,
        format: output_format(args.output_format, args.output.as_deref())?,
        output: target(args.output.map(|path| with_shard(path, "--output", args.shard)).transpose()?),
        chunks: false,
        batch_tokens: args.batch_tokens.map(|n| n as usize),
        skip_unreadable: args.on_error == OnError::Skip,
        on_null: args.on_null,
        start: match (args.resume, args.restart) {
            (true, _) => StartMode::Resume,
            (_, true) => StartMode::Restart,
            _ => StartMode::Fresh,
        },
        selection: Selection {
            skip_empty: args.skip_empty,
            limit: args.limit,
            shard: args.shard,
            numbers_queries: false,
        },
        append: None,
        dry_run: false,
        cache: None,
        vector_column: None,
        id_column: None,
        // A user who names the format needs no hint that the input looks like another one.
        hints: args.input_format.0.is_none(),
        stats: args.stats.map(|path| with_shard(path, "--stats", args.shard)).transpose()?,
        console: console(verbosity),
    })
}

/// A path in which `{shard}` stands for the shard.
///
/// # Errors
/// [`UsageError`] if it does, but there is no shard.
fn with_shard(path: PathBuf, option: &str, shard: Option<Shard>) -> Result<PathBuf> {
    let Some(text) = path.to_str().filter(|text| text.contains(SHARD_PART)) else { return Ok(path) };
    match shard {
        Some(shard) => Ok(text.replace(SHARD_PART, &shard.file_name_part()).into()),
        None => bail!(UsageError(format!(
            "{option} {text}: {SHARD_PART} needs --shard I/N; pass it, or another name"
        ))),
    }
}

/// The texts, or the files that hold them.
fn input(
    args: &RecordArgs,
    pair: (&'static str, Option<String>),
    verbosity: &VerbosityArgs,
) -> Result<Input> {
    let RecordArgs { texts, input: files, text_field, id_field, keep, .. } = args;
    let (pair_option, pair_field) = pair;
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
    let mut sources = inputs(paths, args.input_format.0, &filter, "--input", verbosity)?;
    set_syntax(&mut sources, args)?;
    let field_options = [
        ("--text-field", !text_field.is_empty()),
        (pair_option, pair_field.is_some()),
        ("--id-field", id_field.is_some()),
    ];
    let field_option = field_options.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option);
    // Records of any format have a text, a file and a line, which --keep may name, and the names of
    // directories.
    let partitions = Partitions::of(&sources);
    let are_fasta = sources.iter().all(|source| source.format == input::Format::Fasta);
    let is_own = |kept: &KeptName| {
        let name = kept.field.as_str();
        let is_in_path = partitions.has(name) || name == ALL_FIELDS && partitions != Partitions::default();
        texts.is_empty() && (Fields::is_built_in(name) || is_in_path || are_fasta && name == HEADER)
    };
    if let Some(option) = field_option.or((!keep.iter().all(is_own)).then_some("--keep"))
        && !sources.iter().any(|source| source.format.has_fields())
    {
        bail!(UsageError(format!(
            "{option} needs an input with fields (jsonl, csv, tsv, parquet or arrow); pass --input FILE, and \
             --input-format if the file extension does not tell the format"
        )));
    }
    let text_field = match text_field.split_last() {
        // A single - after the names is the TEXT that stands for standard input.
        Some((last, names)) if last == "-" && !names.is_empty() && files.is_empty() => names,
        _ => text_field,
    };
    let text = text_fields(text_field, args.text_separator.as_deref())?;
    if !texts.is_empty() {
        if args.input_format.0.is_some() {
            bail!(UsageError("--input-format needs --input FILE; remove it, or the TEXT arguments".into()));
        }
        return Ok(Input::Texts(texts.to_vec()));
    }
    let mut fields = Fields {
        text,
        pair: pair_field,
        id: id_field.clone(),
        keeps_id: false,
        // Null is a text without characters to --skip-empty.
        null_texts: args.on_null != OnNull::Error || args.skip_empty,
        keep: keep.clone(),
        options: FieldOptions { pair: pair_option, has_on_null: true },
    };
    keep_fields(&mut fields, &sources)?;
    Ok(Input::Files(sources, fields))
}

/// Sets the delimiter and the quote of csv and tsv files.
///
/// # Errors
/// [`UsageError`] if there is no such file, or both are the same.
fn set_syntax(sources: &mut [input::Source], args: &RecordArgs) -> Result<()> {
    let options = [("--delimiter", args.delimiter.is_some()), ("--quote", args.quote.is_some())];
    let Some((option, _)) = options.into_iter().find(|(_, is_given)| *is_given) else { return Ok(()) };
    let mut is_used = false;
    for source in sources.iter_mut().filter(|source| source.format.is_delimited()) {
        let FieldSyntax { delimiter, quote } = &mut source.syntax;
        *delimiter = args.delimiter.unwrap_or(*delimiter);
        *quote = args.quote.map_or(*quote, |Quote(quote)| quote);
        if *quote == Some(*delimiter) {
            bail!(UsageError(format!("{option}: the delimiter and the quote are the same; choose another")));
        }
        is_used = true;
    }
    if !is_used {
        bail!(UsageError(format!(
            "{option} needs an input in csv or tsv; pass --input FILE, and --input-format csv if the file extension does \
             not tell the format"
        )));
    }
    Ok(())
}

/// The output format: as the option says, else by the extension of the output file, else jsonl.
///
/// # Errors
/// [`UsageError`] if the extension is not known.
fn output_format(format: OrAuto<OutputFormat>, output: Option<&Path>) -> Result<OutputFormat> {
    format_of(format, output, OutputFormat::Jsonl, |extension| match extension {
        "" => Some(OutputFormat::Jsonl),
        extension => OutputFormat::from_extension(extension),
    })
}

pub(super) fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn batch_tokens_help() -> String {
    format!(
        "Tokens per batch, over all of its texts [default: {CPU_F32_TOKENS} for f32 on a CPU, {CPU_TOKENS} for \
         other types, {AMX_TOKENS} with AMX, {CAUSAL_TOKENS} for decoder language models; on a GPU as many as fit in its memory, up to {MAX_GPU_TOKENS}]"
    )
}

/// The value of `--quote`; `None` if quotes are plain text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quote(Option<u8>);

fn delimiter(value: &str) -> Result<u8, String> {
    let value = if value == "\\t" { "\t" } else { value };
    match value.as_bytes() {
        [byte] if byte.is_ascii() && !b"\r\n".contains(byte) => Ok(*byte),
        _ => Err("expected one ASCII character, for example ; or '\\t'".into()),
    }
}

fn quote(value: &str) -> Result<Quote, String> {
    match value {
        "none" => Ok(Quote(None)),
        _ => delimiter(value)
            .map(|byte| Quote(Some(byte)))
            .map_err(|_| "expected one ASCII character, or none".into()),
    }
}
