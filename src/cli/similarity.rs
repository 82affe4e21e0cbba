//! `sconce similarity`: its arguments, and the options that they become.

use anyhow::Result;
use clap::Args;

use super::args::{ModelArgs, VectorArgs};
use super::choice::{choices_of, named, one_of};
use super::resolve::{console, embedding_model, vectors};
use crate::formats::TableFormat;
use crate::neighbours::Similarity;
use crate::run::similarity::{SimilarityOptions, Style};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce similarity \"A lamp in the window\" \"A light by the pane\"     one number
  sconce similarity \"a lamp\" \"a light\" \"a key\"                    a matrix
  sconce similarity --output-format csv \"a lamp\" \"a light\" \"a key\"  one row per pair";

#[derive(Debug, Args)]
pub(super) struct SimilarityArgs {
    /// Texts to compare, each with all others
    #[arg(id = "compared_texts", value_name = "TEXT", num_args = 2.., required = true, long_help)]
    pub texts: Vec<String>,

    /// cosine, dot, euclidean or manhattan [default: from the model's files]
    ///
    /// Similarity of two vectors; euclidean and manhattan are negative distances. If the model's files name
    /// none: cosine
    #[arg(long, value_name = "METRIC", value_parser = one_of(choices_of(Similarity::OF_VECTORS, |value| value)))]
    pub metric: Option<Similarity>,

    /// Print JSON
    ///
    /// The object has the matrix of all similarities
    #[arg(long, conflicts_with = "table_format")]
    pub json: bool,

    /// Output format
    ///
    /// text: a number for two texts, else a matrix; others: one row per pair of texts
    #[arg(id = "table_format", long = "output-format", value_name = "FORMAT", default_value = "text", value_parser = named::<TableFormat>(), help_heading = "Output")]
    pub format: TableFormat,

    #[command(flatten)]
    pub vectors: VectorArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `similarity`.
pub(super) fn options(args: SimilarityArgs) -> Result<SimilarityOptions> {
    Ok(SimilarityOptions {
        model: embedding_model(&args.model, &args.vectors)?,
        vectors: vectors(&args.vectors),
        texts: args.texts,
        metric: args.metric,
        style: if args.json { Style::Json } else { Style::Table(args.format) },
        console: console(&args.model.verbosity),
    })
}
