//! What was typed. Arguments are parsed into raw values by clap and resolved here into the plain options that
//! [`crate::run`] takes; no other room knows clap.

mod args;
mod help;
mod resolve;

use anyhow::{Result, bail};
use clap::parser::ValueSource;
use clap::{CommandFactory, FromArgMatches};

use crate::output;
use crate::run;
use crate::run::WrongUsage;
use crate::run::embed::Ended;
use args::{Cli, Command, InspectArgs};

/// Parses the process's arguments and runs what they ask for. Wrong usage ends the process here, with a
/// sentence and exit code 2; so do `--help` and `--version`, with 0.
///
/// # Errors
/// Whatever [`crate::run`] fails with.
pub fn main() -> Result<Ended> {
    let whole = |()| Ended::Whole;
    let short = std::env::args_os().any(|arg| arg == "-h");
    let matches = help::with_help(Cli::command(), short).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Embed(args) => {
            run::use_threads(args.model.threads)?;
            run::embed::embed(resolve::embed(*args)?)
        }
        Command::Inspect(InspectArgs { model_or_id, json, mut model }) => {
            if let Some(named) = model_or_id {
                let inner = matches.subcommand_matches("inspect");
                if inner.and_then(|inner| inner.value_source("model")) == Some(ValueSource::CommandLine) {
                    bail!(WrongUsage(format!(
                        "inspect {named}: --model names another; leave one of them out"
                    )));
                }
                model.source.model = named;
            }
            run::use_threads(model.threads)?;
            run::inspect::inspect(&resolve::model(&model)?, json, &resolve::console(&model.talk)).map(whole)
        }
        Command::Download(args) => run::download::download(&resolve::download(args)).map(whole),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(
                shell,
                &mut help::with_help(Cli::command(), false),
                "sconce",
                &mut script,
            );
            output::print(&script).map(whole)
        }
    }
}
