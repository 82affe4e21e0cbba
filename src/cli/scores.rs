//! The arguments of the commands that score texts or pairs, and the options that they become.

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::TypedValueParser;

use super::args::{LimitArgs, ModelArgs};
use super::choice::{choices, named, one_of};
use super::records::{RecordArgs, records};
use super::resolve::model;
use crate::error::UsageError;
use crate::load::ModelOptions;
use crate::named::Named;
use crate::run::classify::BestOptions;
use crate::run::records::TaskOptions;
use crate::task::{OnLong, ScoreOptions};
use crate::text::PairTruncation;

/// How texts or pairs get scores.
#[derive(Debug, Args)]
pub(super) struct ScoreArgs {
    /// Write logits instead of scores
    ///
    /// The model's activation is not applied
    #[arg(long, help_heading = "Scores")]
    pub raw: bool,

    #[command(flatten)]
    pub limit: LimitArgs,

    /// Which text of a pair over the limit is truncated. longest_first: the longer one, until both are of
    /// equal length
    #[arg(long, value_name = "STRATEGY", default_value = "longest_first", value_parser = named::<PairTruncation>(), help_heading = "Scores")]
    pub truncation: PairTruncation,

    /// Longer texts: truncate, error, skip
    ///
    /// The limit is --max-length. error: stop; skip: write no row and exit with code 3
    #[arg(id = "on_long_pair", long = "on-long", value_name = "ACTION", default_value = "truncate", value_parser = on_long_pair(), help_heading = "Scores")]
    pub on_long: OnLong,
}

/// The options of a command that scores texts or pairs.
///
/// # Errors
/// [`UsageError`] if an option would have no effect.
pub(super) fn scoring(args: &ModelArgs, scores: &ScoreArgs) -> Result<(ModelOptions, ScoreOptions)> {
    let ScoreArgs { raw, limit, truncation, on_long } = scores;
    let truncating = [
        ("--truncation-side", limit.truncation_side.is_some()),
        ("--truncation", *truncation != PairTruncation::default()),
    ];
    let given = truncating.into_iter().find(|(_, is_given)| *is_given);
    if let Some((option, _)) = given.filter(|_| *on_long != OnLong::Truncate) {
        bail!(needs_truncation(option, *on_long));
    }
    let model = ModelOptions {
        max_length: limit.max_length.map(|n| n as usize),
        truncation_side: limit.truncation_side,
        pair_truncation: *truncation,
        ..model(args)?
    };
    Ok((model, ScoreOptions { on_long: *on_long, raw: *raw, chunking: None }))
}

/// The options of a command that writes the best of what a head scores for a text, or for a pair with
/// `pair_field`.
///
/// # Errors
/// [`UsageError`] if arguments contradict each other.
pub(super) fn best(
    texts: RecordArgs,
    pair_field: Option<String>,
    scores: &ScoreArgs,
    top_k: u32,
    model: &ModelArgs,
) -> Result<TaskOptions<BestOptions>> {
    let (options, of_scores) = scoring(model, scores)?;
    if pair_field.is_none() && scores.truncation != PairTruncation::default() {
        bail!(UsageError(format!(
            "--truncation {} needs pairs; pass --pair-field, or remove it",
            scores.truncation.name()
        )));
    }
    let records = records(texts, options, ("--pair-field", pair_field), &model.verbosity)?;
    Ok(TaskOptions { records, task: BestOptions { scores: of_scores, top_k: top_k as usize } })
}

/// The error for an option of truncation if texts are not truncated.
pub(super) fn needs_truncation(option: &str, on_long: OnLong) -> UsageError {
    let action = on_long.name();
    UsageError(format!("{option} needs --on-long truncate, found --on-long {action}; remove one of them"))
}

/// A parser for the values of `--on-long` that pairs support.
pub(super) fn on_long_pair() -> impl TypedValueParser<Value = OnLong> {
    one_of(choices(|value| value).into_iter().filter(|(_, value)| *value != OnLong::Mean).collect())
}
