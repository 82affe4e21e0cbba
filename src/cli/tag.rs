//! `sconce tag`: its arguments, and the options that they become.

use anyhow::{Result, bail};
use clap::Args;

use super::args::{LimitArgs, ModelArgs};
use super::choice::named;
use super::records::{RecordArgs, records};
use super::resolve::model;
use super::scores::{needs_truncation, on_long_pair};
use crate::error::UsageError;
use crate::load::ModelOptions;
use crate::named::Named;
use crate::run::records::TaskOptions;
use crate::task::{Aggregation, OnLong, TagOptions};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce tag -m dslim/bert-base-NER \"Ada Lovelace was born in London\"
  sconce tag -m ./model -i articles.jsonl -o entities.parquet --stride 64    long texts, too
  sconce tag -m ./model --aggregation none \"the label of each token\"";

#[derive(Debug, Args)]
pub(super) struct TagArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Join tokens: none, simple, first, average, max
    ///
    /// How tokens are joined to entities. none: each token has its label; simple: consecutive tokens with the
    /// same label; first, average, max: words have the label of their first token, of the highest mean score
    /// or of the highest score
    #[arg(long, value_name = "STRATEGY", default_value = Aggregation::default().name(), value_parser = named::<Aggregation>(), help_heading = "Spans")]
    pub aggregation: Aggregation,

    /// Write logits instead of scores
    ///
    /// Scores are probabilities. Labels and means are those of the logits
    #[arg(long, help_heading = "Scores")]
    pub raw: bool,

    #[command(flatten)]
    pub limit: LimitArgs,

    /// Longer texts: truncate, error, skip
    ///
    /// The limit is --max-length. error: stop; skip: write no row and exit with code 3
    #[arg(id = "on_long_pair", long = "on-long", value_name = "ACTION", default_value = "truncate", value_parser = on_long_pair(), help_heading = "Scores")]
    pub on_long: OnLong,

    /// Tag longer texts in windows that share N tokens
    ///
    /// The limit is --max-length. Of entities that overlap, the longest is kept
    #[arg(id = "window_stride", long = "stride", value_name = "N", help_heading = "Spans")]
    pub stride: Option<u32>,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `tag`.
///
/// # Errors
/// [`UsageError`] if arguments contradict each other.
pub(super) fn options(args: TagArgs) -> Result<TaskOptions<TagOptions>> {
    let TagArgs { records: record_args, aggregation, raw, limit, on_long, stride, model: model_args } = args;
    let truncation_side = limit.truncation_side.map(|_| "--truncation-side");
    if let Some(option) =
        truncation_side.or(stride.map(|_| "--stride")).filter(|_| on_long != OnLong::Truncate)
    {
        bail!(needs_truncation(option, on_long));
    }
    if stride.is_some() && truncation_side.is_some() {
        let message =
            "--stride: windows have the whole text, so --truncation-side has no effect; remove one of them";
        bail!(UsageError(message.into()));
    }
    if stride.is_some() && aggregation == Aggregation::None {
        let message = "--stride joins the entities of windows, but with --aggregation none there are only tokens; choose \
                       another --aggregation, or remove --stride";
        bail!(UsageError(message.into()));
    }
    let model = ModelOptions {
        max_length: limit.max_length.map(|n| n as usize),
        truncation_side: limit.truncation_side,
        ..model(&model_args)?
    };
    Ok(TaskOptions {
        records: records(record_args, model, ("--pair-field", None), &model_args.verbosity)?,
        task: TagOptions { aggregation, raw, on_long, stride: stride.map(|n| n as usize) },
    })
}
