//! What was typed. Arguments are parsed into raw values by clap and resolved here into the plain options that
//! [`crate::run`] takes; no other room knows clap.

mod args;
mod resolve;

use anyhow::Result;
use clap::{CommandFactory, Parser};

use crate::output;
use crate::run;
use crate::run::embed::Ended;
use args::{Cli, Command};

/// Parses the process's arguments and runs what they ask for. Wrong usage ends the process here, with a
/// sentence and exit code 2; so do `--help` and `--version`, with 0.
///
/// # Errors
/// Whatever [`crate::run`] fails with.
pub fn main() -> Result<Ended> {
    let whole = |()| Ended::Whole;
    match Cli::parse().command {
        Command::Embed(args) => {
            run::use_threads(args.model.threads)?;
            run::embed::embed(resolve::embed(*args)?)
        }
        Command::Inspect(args) => {
            run::use_threads(args.threads)?;
            run::inspect::inspect(&resolve::model(&args)?, &resolve::console(&args.talk)).map(whole)
        }
        Command::Download(args) => run::download::download(&resolve::download(args)).map(whole),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "sconce", &mut script);
            output::print(&script).map(whole)
        }
    }
}
