//! `sconce answer`: its arguments, and the options that they become.

use anyhow::Result;
use clap::Args;

use super::args::ModelArgs;
use super::records::{RecordArgs, records};
use super::resolve::model;
use crate::load::ModelOptions;
use crate::run::records::TaskOptions;
use crate::task::AnswerOptions;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce answer -m deepset/roberta-base-squad2 --question \"What burns?\" --context \"The wick burns in the lamp\"
  sconce answer -m ./model --question \"Who wrote it?\" -i articles.jsonl --top-k 3
  sconce answer -m ./model --question-field question --text-field context -i squad.parquet -o answers.jsonl";

#[derive(Debug, Args)]
pub(super) struct AnswerArgs {
    #[command(flatten)]
    pub records: RecordArgs,

    /// Question that is answered from each text
    #[arg(
        long,
        value_name = "QUESTION",
        required_unless_present = "record_question_field",
        long_help,
        help_heading = "Input"
    )]
    pub question: Option<String>,

    /// Field or column of the question of each record
    #[arg(
        id = "record_question_field",
        long = "question-field",
        value_name = "NAME",
        conflicts_with = "question",
        long_help,
        help_heading = "Input"
    )]
    pub question_field: Option<String>,

    /// Text with the answer
    ///
    /// The same as TEXT
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["texts", "input"], help_heading = "Input")]
    pub context: Option<String>,

    /// Write the K best answers
    #[arg(id = "top_answers", long = "top-k", value_name = "K", default_value_t = AnswerOptions::default().top_k as u32, value_parser = clap::value_parser!(u32).range(1..), long_help, help_heading = "Spans")]
    pub top_k: u32,

    /// Write logits instead of scores
    ///
    /// The score of an answer is the sum of the logits of its start and end instead of the product of their
    /// probabilities; of answers with the same words, the one with the highest sum is written
    #[arg(long, help_heading = "Scores")]
    pub raw: bool,

    /// Maximum tokens of an answer
    ///
    /// The answer is then extended to whole words
    #[arg(long, value_name = "N", default_value_t = AnswerOptions::default().max_answer_length as u32, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Spans")]
    pub max_answer_length: u32,

    /// Maximum tokens per question and text [default: the model's limit]
    ///
    /// They include special tokens. Longer texts are read in windows
    #[arg(id = "window_length", long = "max-length", value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Spans")]
    pub max_length: Option<u32>,

    /// Tokens that windows of longer texts share [default: 128]
    ///
    /// The default is at most half of the limit
    #[arg(id = "answer_stride", long = "stride", value_name = "N", help_heading = "Spans")]
    pub stride: Option<u32>,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `answer`.
///
/// # Errors
/// [`crate::error::UsageError`] if arguments contradict each other.
pub(super) fn options(args: AnswerArgs) -> Result<TaskOptions<AnswerOptions>> {
    let model = ModelOptions { max_length: args.max_length.map(|n| n as usize), ..model(&args.model)? };
    let texts =
        RecordArgs { texts: args.context.map_or(args.records.texts, |text| vec![text]), ..args.records };
    let question_field = ("--question-field", args.question_field);
    Ok(TaskOptions {
        records: records(texts, model, question_field, &args.model.verbosity)?,
        task: AnswerOptions {
            question: args.question,
            top_k: args.top_k as usize,
            raw: args.raw,
            max_answer_length: args.max_answer_length as usize,
            stride: args.stride.map(|n| n as usize),
        },
    })
}
