//! `sconce fill`: its arguments, and the options that they become.

use anyhow::Result;
use clap::Args;

use super::args::ModelArgs;
use super::records::RecordArgs;
use super::scores::{ScoreArgs, best};
use crate::run::classify::BestOptions;
use crate::run::records::TaskOptions;
use crate::task::MaskFiller;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce fill -m google-bert/bert-base-uncased \"A [MASK] in the window\"
  sconce fill -m FacebookAI/roberta-base \"A <mask> in the <mask>\" --top-k 1
  sconce fill -m ./model -i texts.jsonl -o tokens.parquet --on-error skip";

#[derive(Debug, Args)]
pub(super) struct FillArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Field or column of the second text of a pair
    #[arg(long, value_name = "NAME", help_heading = "Input")]
    pub pair_field: Option<String>,

    /// Write the K best tokens for each mask; 0: all
    #[arg(id = "top_tokens", long = "top-k", value_name = "K", default_value_t = MaskFiller::TOP_K as u32, long_help, help_heading = "Scores")]
    pub top_k: u32,

    #[command(flatten)]
    pub scores: ScoreArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `fill`.
///
/// # Errors
/// [`UsageError`](crate::error::UsageError) if arguments contradict each other.
pub(super) fn options(args: FillArgs) -> Result<TaskOptions<BestOptions>> {
    best(args.records, args.pair_field, &args.scores, args.top_k, &args.model)
}
