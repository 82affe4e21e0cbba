//! `sconce download`: its arguments, and the options that they become.

use anyhow::Result;
use clap::Args;

use super::args::{HubArgs, VerbosityArgs};
use super::resolve::source;
use crate::hub::Source;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce download BAAI/bge-small-en-v1.5
  sconce download intfloat/e5-small-v2 --revision main";

#[derive(Debug, Args)]
pub(super) struct DownloadArgs {
    /// Model id on the Hugging Face Hub
    #[arg(id = "download_id", value_name = "ID", long_help)]
    pub model: String,

    #[command(flatten)]
    pub hub: HubArgs,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// The model that `download` downloads.
///
/// # Errors
/// As [`source`].
pub(super) fn options(args: DownloadArgs) -> Result<Source> {
    source(args.model, &args.hub, &args.verbosity)
}
