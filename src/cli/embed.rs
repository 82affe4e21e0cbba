//! `sconce embed`: its arguments, and the options that they become.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValue, TypedValueParser};

use super::args::{ChunkArgs, ModelArgs, VectorArgs, number};
use super::choice::{choices, named, one_of};
use super::records::{OnError, RecordArgs, records};
use super::resolve::{console, embedding_model, vectors};
use super::scores::needs_truncation;
use crate::error::UsageError;
use crate::job::Changes;
use crate::load::ModelOptions;
use crate::named::Named;
use crate::nn::{OutputKind, Pooling};
use crate::rows::OutputDtype;
use crate::run::embed::EmbedOptions;
use crate::run::records::{Append, RecordOptions};
use crate::task::{OnLong, VectorOptions};
use crate::text::Chunking;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce embed \"A lamp in the window\"                       one text as a line of JSON
  sconce embed -i corpus.jsonl -o corpus.parquet            a file
  sconce embed -i docs --input-format files -o docs.npy     a directory, one vector per file
  sconce embed -i docs --input-format files --chunk 128     a directory, one row per chunk
  sconce embed -m BAAI/bge-small-en-v1.5 < lines.txt        another model, one text per line
  sconce embed -m BAAI/bge-m3 --outputs dense,lexical -i corpus.jsonl -o corpus.parquet
  sconce embed -i corpus.jsonl -o corpus.parquet --resume   the rest of an interrupted run";

#[derive(Debug, Args)]
pub(super) struct EmbedArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Add rows to the output file for the records that it has none of yet, in jsonl, csv, parquet or arrow.
    /// The column record_hash tells which; the first run with --append writes it, too. Rows of records that
    /// are no longer in the input stay
    #[arg(long, requires = "output", help_heading = "Output")]
    pub append: bool,

    /// With --append, encode records anew whose text or kept fields have changed since, by id, in place of
    /// the rows that the output has of them
    #[arg(long, conflicts_with = "shard", requires = "append", help_heading = "Output")]
    pub update: bool,

    /// With --append, remove the rows of records whose id is no longer in the input
    #[arg(long, conflicts_with = "shard", requires = "append", help_heading = "Output")]
    pub delete: bool,

    /// Keep rows in the directory DIR, and take those of texts that an earlier run with --cache has encoded
    /// with the same model and options from there. Processes can share it
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,

    /// Write what a run would take to standard output: rows, tokens, truncated texts, time; all records are
    /// read and tokenized, a few are encoded, and no file is written. With --append, of new and changed
    /// records only
    #[arg(long, help_heading = "Output")]
    pub dry_run: bool,

    /// Field or column of the second text of a pair
    #[arg(long, value_name = "NAME", help_heading = "Input")]
    pub pair_field: Option<String>,

    /// Name of the column of vectors, in jsonl, parquet and arrow [default: embedding, or embeddings]; in csv
    /// a column of this name has the whole vector, [0.1,0.2,…], in place of a column for each element
    #[arg(long, value_name = "NAME", conflicts_with = "outputs", value_parser = NonEmptyStringValueParser::new(), help_heading = "Output")]
    pub vector_column: Option<String>,

    /// Name of the column of ids, in jsonl, csv, parquet and arrow [default: id]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), help_heading = "Output")]
    pub id_column: Option<String>,

    /// Data type of the stored vectors. int8: vector ≈ scale · values, with one scale per vector (npy and
    /// safetensors: unit vectors, so no scale is stored); binary: eight dimensions per int8, packbits(x > 0)
    /// − 128; ubinary: per uint8, packbits(x > 0)
    #[arg(long, value_name = "TYPE", default_value = "f32", value_parser = named::<OutputDtype>(), help_heading = "Output")]
    pub output_dtype: OutputDtype,

    #[command(flatten)]
    pub vectors: VectorArgs,

    /// Several outputs of one forward pass, of a model like BGE-M3, as columns of a row: dense (embedding),
    /// lexical (weights), multi-vector (embeddings)
    #[arg(long, value_name = "KINDS", value_delimiter = ',', num_args = 1, conflicts_with = "pooling", value_parser = named::<OutputKind>())]
    pub outputs: Vec<OutputKind>,

    /// Hierarchical token pooling of a multi-vector model: cluster the vectors of a text, about N in a
    /// cluster, and keep the mean of each, normalized [default: from the model's files]
    #[arg(long, value_name = "N", value_parser = factor, help_heading = "Vectors")]
    pub token_pooling: Option<f64>,

    /// Longer texts: truncate, error, skip, mean
    ///
    /// The limit is --max-length. error: stop; skip: write no row and exit with code 3; mean: encode the text
    /// in chunks and take the mean of their vectors, weighted by tokens
    #[arg(long, value_name = "ACTION", default_value = "truncate", value_parser = on_long(), help_heading = "Vectors")]
    pub on_long: OnLongArg,

    #[command(flatten)]
    pub chunks: ChunkArgs,

    /// Late chunking, for models with mean pooling: encode the whole text, then pool the tokens of each
    /// chunk. Texts over the limit are encoded in parts, each with up to a quarter of the limit as context
    /// before its first chunk
    #[arg(long, help_heading = "Vectors")]
    pub chunk_late: bool,

    #[command(flatten)]
    pub model: ModelArgs,
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
    let leaves_out = [
        ("--limit", args.records.limit.is_some()),
        ("--on-error skip", args.records.on_error == OnError::Skip),
    ];
    if let Some((option, _)) = leaves_out.into_iter().find(|(_, is_given)| args.delete && *is_given) {
        bail!(UsageError(format!(
            "--delete removes the rows of records that are not in the input, and {option} leaves records out; remove one of them"
        )));
    }
    let chunking = chunking(&args)?;
    let outputs = outputs(&args.outputs)?;
    let model = ModelOptions { outputs, ..embedding_model(&args.model, &args.vectors)? };
    let verbosity = &args.model.verbosity;
    let records = records(args.records, model, ("--pair-field", args.pair_field), verbosity)?;
    let records = RecordOptions {
        chunks: chunking.is_some(),
        append: args.append.then(|| Append::new(Changes { update: args.update, delete: args.delete })),
        cache: args.cache,
        dry_run: args.dry_run,
        vector_column: args.vector_column,
        id_column: args.id_column,
        ..records
    };
    Ok(EmbedOptions {
        records,
        task: VectorOptions {
            dtype: args.output_dtype,
            on_long: args.on_long.value,
            chunking,
            token_pooling: args.token_pooling,
            ..vectors(&args.vectors)
        },
    })
}

/// The outputs in their order in a row.
///
/// # Errors
/// [`UsageError`] if there is one, or one twice.
fn outputs(given: &[OutputKind]) -> Result<Vec<OutputKind>> {
    let distinct: BTreeSet<OutputKind> = given.iter().copied().collect();
    if distinct.len() != given.len() {
        bail!(UsageError("--outputs names an output twice; name it once".into()));
    }
    if let [only] = given {
        let remedy = match only {
            OutputKind::Dense => "leave it out".into(),
            _ => format!("pass --pooling {}", only.name()),
        };
        bail!(UsageError(format!("--outputs {} is a single output; {remedy}", only.name())));
    }
    Ok(distinct.into_iter().collect())
}

/// Refuses options for long texts that would have no effect, and chunks of pairs, which are not supported.
fn check_long_text_options(args: &EmbedArgs) -> Result<()> {
    let on_long = args.on_long.value;
    if args.vectors.limit.truncation_side.is_some() && on_long != OnLong::Truncate {
        bail!(needs_truncation("--truncation-side", on_long));
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
    let Some(chunking) = args.chunks.chunking(args.chunk_late)? else { return Ok(None) };
    if args.vectors.pooling.0 == Some(Pooling::None) {
        bail!(UsageError(
            "--chunk writes one vector per chunk, --pooling none one per token; remove one of them".into()
        ));
    }
    if args.pair_field.is_some() {
        bail!(UsageError("--chunk does not support pairs; remove --pair-field or --chunk".into()));
    }
    if args.on_long.value != OnLong::Truncate || args.vectors.limit.truncation_side.is_some() {
        let option =
            if args.vectors.limit.truncation_side.is_some() { "--truncation-side" } else { "--on-long" };
        bail!(UsageError(format!(
            "{option} has no effect with --chunk, since no chunk exceeds the limit; remove one of them"
        )));
    }
    Ok(Some(chunking))
}

/// A number of vectors, from 1 on.
fn factor(value: &str) -> Result<f64, String> {
    number(value, 1.0, f64::from(u16::MAX)).ok_or_else(|| "expected a number from 1 on, for example 2".into())
}

/// A parser for the values of `--on-long`, and for `chunk`, the former name of `mean`.
fn on_long() -> impl TypedValueParser<Value = OnLongArg> {
    let chunk = PossibleValue::new("chunk").hide(true);
    let deprecated = OnLongArg { value: OnLong::Mean, is_deprecated: true };
    let current = choices(|value| OnLongArg { value, is_deprecated: false });
    one_of([current, vec![(chunk, deprecated)]].concat())
}
