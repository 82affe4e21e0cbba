//! The command line: clap parses the arguments, and each command gets the plain options that [`crate::run`]
//! takes. No other module uses clap.

mod answer;
mod args;
mod attend;
mod cache;
mod choice;
mod classify;
mod command;
mod download;
mod embed;
mod fields;
mod fill;
mod help;
mod inspect;
mod merge;
mod pairs;
mod records;
mod rerank;
mod resolve;
mod scores;
mod search;
#[cfg(feature = "serve")]
mod serve;
mod similarity;
mod tag;
mod verify;

use anyhow::{Result, anyhow};
use clap::{CommandFactory, FromArgMatches};

use crate::job::ExitStatus;
use crate::nn::{Isa, configure_allocator};
use crate::run;
use crate::store;
use crate::sys::file_size_limit::report_size_limits;
use crate::sys::threads::build_global_pool;
use command::{Cli, Command};

/// What `--version` prints after the name, to tell builds and machines apart; `-V` prints the version alone.
fn version() -> &'static str {
    let features = if cfg!(feature = "cuda") { "cuda" } else { "none" };
    let version = env!("CARGO_PKG_VERSION");
    let (commit, build) = (env!("SCONCE_COMMIT"), env!("SCONCE_BUILD"));
    let isa = Isa::check().map_or("unknown", |()| Isa::selected().name());
    format!("{version}\ncommit: {commit}\nbuild: {build}\nISA: {isa}\nfeatures: {features}").leak()
}

/// Parses the arguments of the process and runs the command that they name. Ends the process for wrong usage
/// with a message and exit code 2.
pub fn main() -> Result<ExitStatus> {
    configure_allocator();
    report_size_limits()?;
    let complete = |()| ExitStatus::Complete;
    let is_short = std::env::args_os().any(|arg| arg == "-h");
    let command = help::with_help(Cli::command(), is_short).long_version(version());
    let matches = match command.try_get_matches() {
        Ok(matches) => matches,
        Err(error) if error.use_stderr() => error.exit(),
        Err(page) => return store::print_with(|| page.print()).map(complete),
    };
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match cli.command {
        Command::Embed(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::embed::embed(embed::options(*args)?)
        }
        Command::Rerank(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::rerank::rerank(&rerank::options(*args)?)
        }
        Command::Classify(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::classify::classify(&classify::options(*args)?)
        }
        Command::Fill(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::fill::fill(&fill::options(*args)?)
        }
        Command::Tag(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::tag::tag(&tag::options(*args)?)
        }
        Command::Answer(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::answer::answer(&answer::options(*args)?)
        }
        Command::Search(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::search::search(&search::options(*args)?).map(complete)
        }
        Command::Pairs(args) => {
            build_global_pool(args.threads)?;
            run::pairs::pairs(&pairs::options(args)?).map(complete)
        }
        #[cfg(feature = "serve")]
        Command::Serve(args) if args.probe => {
            crate::serve::probe(&serve::address(&args), serve::tls(&args).is_some()).map(complete)
        }
        #[cfg(feature = "serve")]
        Command::Serve(args) => {
            build_global_pool(args.hardware.threads)?;
            let console = resolve::console(&args.verbosity);
            crate::serve::serve(&serve::options(*args)?, &console).map(complete)
        }
        Command::Merge(args) => run::merge::merge(&merge::options(args)).map(complete),
        Command::Similarity(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::similarity::similarity(&similarity::options(*args)?).map(complete)
        }
        Command::Attend(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::attend::attend(&attend::options(*args)?).map(complete)
        }
        Command::Inspect(args) => inspect::run(args, &matches).map(complete),
        Command::Verify(args) => {
            build_global_pool(args.model.hardware.threads)?;
            run::verify::verify(&verify::options(*args)?).map(complete)
        }
        Command::Download(args) => run::download::download(&download::options(args)?).map(complete),
        Command::Cache(args) => run::cache::cache(&cache::options(args)).map(complete),
        Command::Models(args) => run::cache::models(args.format).map(complete),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            let mut command = help::with_help(Cli::command(), false);
            clap_complete::generate(shell, &mut command, "sconce", &mut script);
            store::print(&script).map(complete)
        }
        Command::Man { directory } => {
            let pages = clap_mangen::generate_to(help::with_help(Cli::command(), false), &directory);
            let failed = |error| {
                anyhow!("cannot write man pages to {} ({error}); check the path", directory.display())
            };
            pages.map_err(failed).map(complete)
        }
    }
}
