//! The command line: clap parses the arguments, and each command gets the plain options that [`crate::run`] takes. No other
//! module uses clap.

mod args;
mod choice;
mod help;
mod resolve;

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches};

use crate::error::UsageError;
use crate::nn::avoid_huge_pages;
use crate::output;
use crate::pipeline::ExitStatus;
use crate::run;
use crate::sys::threads::build_global_pool;
use args::{Cli, Command, InspectArgs};

/// Parses the arguments of the process and runs the command that they name. Ends the process for wrong usage with a message and exit
/// code 2, and for `--help` and `--version` with exit code 0.
///
/// # Errors
/// If the command fails.
pub fn main() -> Result<ExitStatus> {
    avoid_huge_pages();
    let complete = |()| ExitStatus::Complete;
    let is_short = std::env::args_os().any(|arg| arg == "-h");
    let matches = help::with_help(Cli::command(), is_short).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Embed(args) => {
            build_global_pool(args.model.threads)?;
            run::embed::embed(resolve::embed(*args)?)
        }
        Command::Search(args) => {
            build_global_pool(args.model.threads)?;
            run::search::search(&resolve::search(*args)?).map(complete)
        }
        Command::Similarity(args) => {
            build_global_pool(args.model.threads)?;
            run::similarity::similarity(&resolve::similarity(*args)?).map(complete)
        }
        Command::Verify(args) => {
            build_global_pool(args.model.threads)?;
            run::verify::verify(&resolve::verify(*args)?).map(complete)
        }
        Command::Attend(args) => {
            build_global_pool(args.model.threads)?;
            run::attend::attend(&resolve::attend(*args)?).map(complete)
        }
        Command::Inspect(args) => inspect(args, &matches).map(complete),
        Command::Pairs(args) => {
            build_global_pool(args.threads)?;
            run::pairs::pairs(&resolve::pairs(args)?).map(complete)
        }
        Command::Download(args) => run::download::download(&resolve::download(args)).map(complete),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut command = help::with_help(Cli::command(), false);
            clap_complete::generate(shell, &mut command, "sconce", &mut script);
            output::print(&script).map(complete)
        }
    }
}

/// Runs `inspect`, whose model is an argument or an option.
fn inspect(mut args: InspectArgs, matches: &ArgMatches) -> Result<()> {
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
    build_global_pool(args.model.threads)?;
    run::inspect::inspect(&resolve::inspect(&args)?)
}
