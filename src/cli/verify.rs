//! `sconce verify`: its arguments, and the options that they become.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use super::args::{ModelArgs, VectorArgs, number};
use super::fields::text_fields;
use super::resolve::{console, embedding_model, inputs, vectors};
use crate::error::UsageError;
use crate::input::{Fields, Filter};
use crate::run::verify::VerifyOptions;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce verify -m BAAI/bge-small-en-v1.5                         which --dtype is safe for a model
  sconce verify --dtype int8 -i texts.txt                         one of them, on your texts
  sconce verify --against reference.jsonl                         rows with text and embedding
  sconce verify --against reference.npy -i texts.txt              an array, and its texts one per line
  sconce verify --against reference.jsonl --dtype int8 --json     a report as JSON
  sconce verify --against reference.jsonl --max-difference 1e-6   a stricter bound";

#[derive(Debug, Args)]
pub(super) struct VerifyArgs {
    /// File of reference vectors [default: the model's own in f32, for its other data types]
    ///
    /// Vectors in f32 or f16, in jsonl, csv, parquet or arrow with the columns text and embedding, or in npy
    /// or safetensors with --input
    #[arg(long, value_name = "FILE", help_heading = "Input")]
    pub against: Option<PathBuf>,

    /// Column or field of the vectors [default: embedding]
    ///
    /// In npz an array, in safetensors a tensor. Without embedding, the only one with vectors is taken
    #[arg(long, value_name = "NAME", requires = "against")]
    pub vector_field: Option<String>,

    /// File of the texts [default: the file of the vectors]
    ///
    /// With --against, the texts are in the order of the reference vectors; without it, the default is 32
    /// texts of many kinds
    #[arg(id = "reference_texts", short = 'i', long = "input", value_name = "FILE", help_heading = "Input")]
    pub texts: Option<PathBuf>,

    /// Fields or columns of the text [default: text]
    ///
    /// Several are separated by commas or spaces, and their values are joined
    #[arg(long, value_name = "NAME", num_args = 1.., value_delimiter = ',', help_heading = "Input")]
    pub text_field: Vec<String>,

    /// What to put between the values of several fields of the text that are not blank [default: a newline]
    #[arg(long, value_name = "SEPARATOR", allow_hyphen_values = true, help_heading = "Input")]
    pub text_separator: Option<String>,

    /// Maximum absolute difference of an element
    ///
    /// [default: 1e-5 for f32, 1e-4 for bf16x3, each times the largest element if that exceeds 1; no limit
    /// for other data types]
    #[arg(long, value_name = "X", value_parser = difference, help_heading = "Bounds")]
    pub max_difference: Option<f64>,

    /// Minimum cosine of a vector with its reference
    ///
    /// [default: 0.99999 for f32 and bf16x3, 0.999 for bf16 and f16, 0.99 for int8]
    #[arg(long, value_name = "X", value_parser = cosine, allow_negative_numbers = true, help_heading = "Bounds")]
    pub min_cosine: Option<f64>,

    /// Minimum share of the same nearest neighbours
    ///
    /// The ten nearest neighbours among the rows are compared [default: 0.99 for f32 and bf16x3, 0.95 for
    /// bf16 and f16, 0.9 for int8]
    #[arg(long, value_name = "SHARE", value_parser = share, help_heading = "Bounds")]
    pub min_neighbours: Option<f64>,

    /// Print JSON
    #[arg(long, long_help)]
    pub json: bool,

    #[command(flatten)]
    pub vectors: VectorArgs,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `verify`.
///
/// # Errors
/// As [`model`]; [`UsageError`] if the texts cannot be found.
pub(super) fn options(args: VerifyArgs) -> Result<VerifyOptions> {
    let find = |path: &PathBuf, option| {
        inputs(std::slice::from_ref(path), None, &Filter::default(), option, &args.model.verbosity)
    };
    let sources = match (&args.texts, &args.against) {
        (Some(path), _) => find(path, "--input")?,
        (None, Some(path)) => {
            let sources = find(path, "--against")?;
            if !sources.iter().all(|source| source.format.has_fields()) {
                bail!(UsageError(format!(
                    "--against {}: a file of this format has no texts; pass --input FILE with the texts",
                    path.display()
                )));
            }
            sources
        }
        (None, None) if !args.text_field.is_empty() => {
            bail!(UsageError("--text-field needs the file of the texts; pass --input FILE".into()))
        }
        (None, None) => Vec::new(),
    };
    let text = text_fields(&args.text_field, args.text_separator.as_deref())?;
    Ok(VerifyOptions {
        model: embedding_model(&args.model, &args.vectors)?,
        vectors: vectors(&args.vectors),
        against: args.against,
        vector_field: args.vector_field,
        texts: sources,
        fields: Fields { text, ..Fields::default() },
        max_difference: args.max_difference,
        min_cosine: args.min_cosine,
        min_neighbours: args.min_neighbours,
        json: args.json,
        console: console(&args.model.verbosity),
    })
}

fn difference(value: &str) -> Result<f64, String> {
    number(value, 0.0, f64::MAX).ok_or_else(|| "expected a number of at least 0, for example 1e-5".into())
}

fn cosine(value: &str) -> Result<f64, String> {
    number(value, -1.0, 1.0).ok_or_else(|| "expected a number from -1 to 1, for example 0.999".into())
}

fn share(value: &str) -> Result<f64, String> {
    number(value, 0.0, 1.0).ok_or_else(|| "expected a number from 0 to 1, for example 0.95".into())
}
