//! `sconce pairs`: its arguments, and the options that they become.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;

use super::args::{TableArgs, VerbosityArgs, finite, threads};
use super::choice::named;
use super::resolve::{console, table};
use crate::error::UsageError;
use crate::neighbours::Metric;
use crate::nn::Isa;
use crate::run::pairs::{Found, PairsOptions};

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce pairs corpus.parquet --keep text                       the most similar pairs, best first
  sconce pairs corpus.npy --threshold 0.95 -o pairs.jsonl       near-duplicates
  sconce pairs corpus.npy --threshold 0.95 --clusters -o clusters.csv";

#[derive(Debug, Args)]
pub(super) struct PairsArgs {
    /// Vector file, of embed or other software
    ///
    /// The format is npy, npz, safetensors, parquet, arrow, jsonl or csv
    #[arg(id = "searched_vectors", value_name = "VECTORS")]
    pub file: PathBuf,

    /// Column or field of the vectors [default: embedding]
    ///
    /// In npz an array, in safetensors a tensor. Without embedding, the only one with vectors is taken
    #[arg(long, value_name = "NAME")]
    pub vector_field: Option<String>,

    /// Minimum score of a neighbour
    ///
    /// A pair is a row and its neighbour
    #[arg(id = "least_score", long = "threshold", value_name = "SCORE", value_parser = finite, allow_negative_numbers = true, help_heading = "Neighbours")]
    pub threshold: Option<f64>,

    /// cosine, dot or euclidean
    ///
    /// Score of a pair; euclidean is the negative distance
    #[arg(id = "pairs_metric", long = "metric", value_name = "METRIC", default_value = "cosine", value_parser = named::<Metric>(), help_heading = "Neighbours")]
    pub metric: Metric,

    /// Nearest neighbours of a row that are considered. A pair is found if either row is a neighbour of the
    /// other
    #[arg(short = 'k', long, value_name = "K", default_value = "100", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Neighbours")]
    pub top_k: u32,

    /// Write only the N best pairs
    #[arg(long, value_name = "N", default_value = "500000", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Neighbours")]
    pub max_pairs: u32,

    /// Write the cluster of every row, and which row to keep
    ///
    /// No pairs are written. A cluster is rows that are connected by pairs of at least --threshold. keep is
    /// true for the first row of each cluster
    #[arg(long, requires = "least_score", conflicts_with_all = ["top_k", "max_pairs"], help_heading = "Neighbours")]
    pub clusters: bool,

    /// Columns of the vector file to copy to the output
    ///
    /// Several are separated by commas or spaces. With pairs, they are copied as NAME_a and NAME_b
    #[arg(id = "columns", long = "keep", value_name = "NAME", num_args = 1.., value_delimiter = ',', help_heading = "Neighbours")]
    pub keep: Vec<String>,

    #[command(flatten)]
    pub table: TableArgs,

    /// Number of CPU threads [default: all available cores]
    #[arg(long, value_name = "N", value_parser = threads, help_heading = "Hardware")]
    pub threads: Option<usize>,

    #[command(flatten)]
    pub verbosity: VerbosityArgs,
}

/// The options of `pairs`.
///
/// # Errors
/// [`UsageError`] if `SCONCE_ISA` names an instruction set that the processor does not have, or the extension
/// of the output is not known.
pub(super) fn options(args: PairsArgs) -> Result<PairsOptions> {
    Isa::check().map_err(UsageError)?;
    let (format, output) = table(&args.table)?;
    let (top_k, max_pairs) = (args.top_k as usize, args.max_pairs as usize);
    Ok(PairsOptions {
        vectors: args.file,
        vector_field: args.vector_field,
        metric: args.metric,
        threshold: args.threshold.map(|threshold| threshold as f32),
        found: if args.clusters { Found::Clusters } else { Found::Pairs { top_k, max_pairs } },
        keep: args.keep,
        format,
        output,
        console: console(&args.verbosity),
    })
}
