//! `sconce inspect`: its arguments, and the options that they become.

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args};

use super::args::ModelArgs;
use super::resolve::{console, model_or_config};
use crate::error::UsageError;
use crate::run;
use crate::run::inspect::InspectOptions;
use crate::sys::threads::build_global_pool;

/// The examples at the end of the command's help.
pub(super) const EXAMPLES: &str = "\
Examples:
  sconce inspect                           the default model
  sconce inspect BAAI/bge-small-en-v1.5    a model on the Hub
  sconce inspect ./model --json            a local model, as JSON
  sconce inspect --config config.json      the cost of a design without weights";

#[derive(Debug, Args)]
pub(super) struct InspectArgs {
    /// Model directory, or model id on the Hugging Face Hub
    ///
    /// The same as --model
    #[arg(value_name = "MODEL")]
    pub model_or_id: Option<String>,

    /// Print JSON
    #[arg(long, long_help)]
    pub json: bool,

    /// Show the cost of a text of N tokens [default: the model's limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), long_help)]
    pub tokens: Option<u32>,

    /// List all tensors of the checkpoint
    ///
    /// The list says which of them are used
    #[arg(long)]
    pub tensors: bool,

    #[command(flatten)]
    pub model: ModelArgs,
}

/// The options of `inspect`, which a config alone suffices for.
pub(super) fn options(args: &InspectArgs) -> Result<InspectOptions> {
    Ok(InspectOptions {
        model: model_or_config(&args.model)?,
        tokens: args.tokens.map(|n| n as usize),
        json: args.json,
        tensors: args.tensors,
        console: console(&args.model.verbosity),
    })
}

/// Runs `inspect`, whose model is an argument or an option.
pub(super) fn run(mut args: InspectArgs, matches: &ArgMatches) -> Result<()> {
    let inspect = matches.subcommand_matches("inspect");
    let source = inspect.and_then(|matches| matches.value_source("model"));
    let option = (source == Some(ValueSource::CommandLine)).then(|| args.model.source.model.clone());
    if let (Some(argument), Some(option)) = (&args.model_or_id, &option) {
        bail!(UsageError(format!(
            "inspect: two models, {argument} and --model {option}; remove one of them"
        )));
    }
    let model = args.model_or_id.take().or(option);
    if let (Some(model), Some(config), None) = (&model, &args.model.config, args.model.random_weights) {
        bail!(UsageError(format!(
            "inspect: --config {} describes a model without weights, so {model} is not used; remove one of them",
            config.display()
        )));
    }
    args.model.source.model = model.unwrap_or(args.model.source.model);
    build_global_pool(args.model.hardware.threads)?;
    run::inspect::inspect(&options(&args)?)
}
