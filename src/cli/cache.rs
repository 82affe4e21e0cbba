//! `sconce cache` and `sconce models`: their arguments, and the options that they become.

use std::time::Duration;

use clap::Args;

use super::choice::named;
use crate::formats::TableFormat;
use crate::run::cache::{CacheKind, CacheOptions};

/// The examples at the end of the help of `cache`.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce cache                                       what the caches have
  sconce cache --clear                               remove what Sconce has made; it is made again when needed
  sconce cache --clear models --older-than 90        remove models that were not used for 90 days";

/// The examples at the end of the help of `models`.
pub(super) const MODELS_EXAMPLES: &str = "\
Examples:
  sconce models                                      the models that run with --offline";

#[derive(Debug, Args)]
pub(super) struct CacheArgs {
    /// Remove weights, texts, digests, kernels, types, models [default: all but models]
    ///
    /// What was removed is printed. Sconce makes all but the models again. Other tools may use the models
    #[arg(long, value_name = "KIND", num_args = 0.., value_delimiter = ',', value_parser = named::<CacheKind>())]
    pub clear: Option<Vec<CacheKind>>,

    /// Only entries that were not used for this number of days
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u32), long_help)]
    pub older_than: Option<u32>,

    #[command(flatten)]
    pub table: CacheTableArgs,
}

/// How a table is printed.
#[derive(Debug, Args)]
pub(super) struct CacheTableArgs {
    /// Output format
    #[arg(id = "table_format", long = "output-format", value_name = "FORMAT", default_value = "text", value_parser = named::<TableFormat>(), long_help, help_heading = "Output")]
    pub format: TableFormat,
}

/// The options of `cache`.
pub(super) fn options(args: CacheArgs) -> CacheOptions {
    let clear = args.clear.map(|kinds| if kinds.is_empty() { CacheKind::OWN.to_vec() } else { kinds });
    CacheOptions {
        clear,
        unused_for: args.older_than.map_or(Duration::ZERO, |days| DAY * days),
        format: args.table.format,
    }
}

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
