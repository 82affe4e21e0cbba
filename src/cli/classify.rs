//! `sconce classify`: its arguments, and the options that they become.

use anyhow::Result;
use clap::Args;

use super::args::ModelArgs;
use super::records::RecordArgs;
use super::scores::{ScoreArgs, best};
use crate::run::classify::BestOptions;
use crate::run::records::TaskOptions;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce classify -m distilbert/distilbert-base-uncased-finetuned-sst-2-english \"What a day\"
  sconce classify -m ./model -i reviews.jsonl -o labels.parquet --top-k 0    all labels
  sconce classify -m ./model -i pairs.csv --pair-field hypothesis            pairs of texts";

#[derive(Debug, Args)]
pub(super) struct ClassifyArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Field or column of the second text of a pair
    #[arg(long, value_name = "NAME", help_heading = "Input")]
    pub pair_field: Option<String>,

    /// Write the K best labels; 0: all
    #[arg(
        id = "top_labels",
        long = "top-k",
        value_name = "K",
        default_value_t = 1,
        long_help,
        help_heading = "Scores"
    )]
    pub top_k: u32,

    #[command(flatten)]
    pub scores: ScoreArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `classify`.
///
/// # Errors
/// [`UsageError`](crate::error::UsageError) if arguments contradict each other.
pub(super) fn options(args: ClassifyArgs) -> Result<TaskOptions<BestOptions>> {
    best(args.records, args.pair_field, &args.scores, args.top_k, &args.model)
}
