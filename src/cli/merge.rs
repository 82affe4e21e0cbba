//! `sconce merge`: its arguments, and the options that they become.

use std::path::PathBuf;

use clap::Args;

use super::args::VerbosityArgs;
use super::resolve::{console, target};
use crate::run::merge::MergeOptions;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce embed -i corpus.jsonl --shard 1/2 -o part-1.parquet   the first half, on one machine
  sconce embed -i corpus.jsonl --shard 2/2 -o part-2.parquet   the second half, on another
  sconce merge corpus.parquet part-1.parquet part-2.parquet    what one run would have written";

#[derive(Debug, Args)]
pub(super) struct MergeArgs {
    /// Output file; - is standard output
    ///
    /// It has the format of the files that are merged, as its extension must say, is written atomically and
    /// replaces an existing file
    #[arg(id = "merged_output", value_name = "OUT")]
    pub output: PathBuf,

    /// Files of one format, in order
    ///
    /// Files that embed or another command wrote, with the same model and options, or patterns such as
    /// 'part-*.parquet', which give them by name. Shards must be complete and in order. Their ledgers are
    /// merged, too
    #[arg(id = "merged_files", value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// The options of `merge`.
pub(super) fn options(args: MergeArgs) -> MergeOptions {
    MergeOptions { output: target(Some(args.output)), inputs: args.inputs, console: console(&args.verbosity) }
}
