//! `sconce rerank`: its arguments, and the options that they become.

use anyhow::Result;
use clap::Args;

use super::args::ModelArgs;
use super::records::{RecordArgs, records};
use super::scores::{ScoreArgs, scoring};
use crate::run::rerank::RerankOptions;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce rerank -m cross-encoder/ms-marco-MiniLM-L6-v2 --query \"a lamp\" \"a light\" \"a key\"
  sconce rerank -m ./model --query \"a lamp\" -i passages.jsonl --top-k 10       the ten best, sorted
  sconce rerank -m ./model --query-field query -i pairs.parquet -o scores.parquet
  sconce rerank --query \"a lamp\" \"a light\" \"a key\"                           by the similarity of vectors";

#[derive(Debug, Args)]
pub(super) struct RerankArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Query that all texts are scored for
    #[arg(long, value_name = "QUERY", required_unless_present = "record_query_field")]
    pub query: Option<String>,

    /// Field or column of the query of each record
    #[arg(id = "record_query_field", long = "query-field", value_name = "NAME", conflicts_with = "query")]
    pub query_field: Option<String>,

    /// Sort rows by their scores, best first, and write only K of them, each with its rank; 0: all. Rows are written at the
    /// end, so the run cannot be resumed [default: all rows in the order of the input]
    #[arg(id = "top_rows", long = "top-k", value_name = "K", requires = "query")]
    pub top_k: Option<u32>,

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
    let query_field = ("--query-field", args.query_field);
    Ok(RerankOptions {
        records: records(args.records, model, query_field, &args.model.verbosity)?,
        query: args.query,
        scores,
        top_k: args.top_k.map(|k| if k == 0 { usize::MAX } else { k as usize }),
    })
}
