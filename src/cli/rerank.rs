//! `sconce rerank`: its arguments, and the options that they become.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::args::{ChunkArgs, ModelArgs, pooling};
use super::choice::OrAuto;
use super::records::{RecordArgs, is_stdin, records};
use super::resolve::inputs;
use super::scores::{ScoreArgs, scoring};
use crate::error::UsageError;
use crate::input::{Fields, Filter, TextFields};
use crate::load::ModelOptions;
use crate::nn::Pooling;
use crate::run::records::RecordOptions;
use crate::run::rerank::{RerankOptions, RerankQueries};
use crate::task::{PromptChoice, ScoreOptions};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 --query \"a lamp\" \"a light\" \"a key\"
  sconce rerank -m ./model --query \"a lamp\" -i passages.jsonl --top-k 10       the ten best, sorted
  sconce rerank -m ./model --queries queries.jsonl -i passages.parquet --top-k 10 -o best.parquet
  sconce rerank -m ./model --query-field query -i pairs.parquet -o scores.parquet
  sconce rerank -m ./model --query-field query_text -i hits.jsonl --keep query_id --top-k 10    of search --query-text
  sconce rerank --query \"a lamp\" -i notes --input-format files --chunk 128 --keep text --top-k 10    the ten best chunks
  sconce rerank --query \"a lamp\" \"a light\" \"a key\"                           by the similarity of vectors";

#[derive(Debug, Args)]
pub(super) struct RerankArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Query that all texts are scored for
    #[arg(long, value_name = "QUERY", required_unless_present_any = ["record_query_field", "rerank_queries"], long_help, help_heading = "Input")]
    pub query: Option<String>,

    /// File of queries; rows tell their query
    ///
    /// The input formats are those of embed; - is standard input. All texts are scored for each query. Rows
    /// have the query's index as query and its id, if it has one, as query_id
    #[arg(
        id = "rerank_queries",
        long = "queries",
        value_name = "FILE",
        conflicts_with = "query",
        help_heading = "Input"
    )]
    pub queries: Option<PathBuf>,

    /// Field or column of the query
    ///
    /// Each record has it, or with --queries each query [default with --queries: text]. With --top-k, records
    /// with the same query are ranked together
    #[arg(
        id = "record_query_field",
        long = "query-field",
        value_name = "NAME",
        conflicts_with = "query",
        help_heading = "Input"
    )]
    pub query_field: Option<String>,

    /// Write the K best rows per query, sorted; 0: all
    ///
    /// Rows are written at the end, the best first, each with its rank [default: all rows in the order of the
    /// input]
    #[arg(id = "top_rows", long = "top-k", value_name = "K", help_heading = "Scores")]
    pub top_k: Option<u32>,

    /// Prompt of a cross-encoder: put before each query, or the instruction in a chat template [default: from
    /// the model's files]
    #[arg(long, value_name = "TEXT", conflicts_with = "prompt_name", help_heading = "Vectors")]
    pub prompt: Option<String>,

    /// Name of a prompt in the files of a cross-encoder
    #[arg(long, value_name = "NAME", long_help, help_heading = "Vectors")]
    pub prompt_name: Option<String>,

    /// cls, mean, max, none, … [default: from the model's files]
    ///
    /// How to pool token vectors, in place of a cross-encoder's head or an embedding model's own pooling; see
    /// embed
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = pooling(), hide_default_value = true, help_heading = "Vectors")]
    pub pooling: OrAuto<Pooling>,

    #[command(flatten)]
    pub chunks: ChunkArgs,

    #[command(flatten)]
    pub scores: ScoreArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `rerank`.
///
/// # Errors
/// [`UsageError`] if arguments contradict each other.
pub(super) fn options(args: RerankArgs) -> Result<RerankOptions> {
    let (model, scores) = scoring(&args.model, &args.scores)?;
    let model = ModelOptions { pooling: args.pooling.0.clone(), ..model };
    let queries = match (&args.query, &args.queries) {
        (Some(query), _) => RerankQueries::One(query.clone()),
        (None, Some(path)) => query_files(path, args.query_field.clone(), &args)?,
        (None, None) => RerankQueries::OfRecords,
    };
    let query_field = args.query_field.filter(|_| args.queries.is_none());
    let chunking = args.chunks.chunking(false)?;
    let mut records = records(args.records, model, ("--query-field", query_field), &args.model.verbosity)?;
    // The records of each of their queries are ranked among themselves.
    records.selection.numbers_queries = args.top_k.is_some() && matches!(queries, RerankQueries::OfRecords);
    Ok(RerankOptions {
        records: RecordOptions { chunks: chunking.is_some(), ..records },
        queries,
        prompt: args.prompt.map(PromptChoice::Text).or(args.prompt_name.map(PromptChoice::Name)),
        scores: ScoreOptions { chunking, ..scores },
        top_k: args.top_k.map(|k| if k == 0 { usize::MAX } else { k as usize }),
    })
}

/// The file of `--queries`.
fn query_files(path: &PathBuf, field: Option<String>, args: &RerankArgs) -> Result<RerankQueries> {
    if is_stdin(path) && args.records.reads_stdin() {
        bail!(UsageError(
            "--queries - and the texts are both read from standard input; pass the texts with --input FILE"
                .into()
        ));
    }
    let paths = std::slice::from_ref(path);
    let sources = inputs(paths, None, &Filter::default(), "--queries", &args.model.verbosity)?;
    if field.is_some() && !sources.iter().any(|source| source.format.has_fields()) {
        bail!(UsageError(format!(
            "--query-field needs queries with fields (jsonl, csv, tsv, parquet or arrow), but --queries {} has lines; remove it",
            path.display()
        )));
    }
    let text = field.map_or_else(TextFields::default, TextFields::from);
    Ok(RerankQueries::Files(sources, Fields { text, ..Fields::default() }))
}
