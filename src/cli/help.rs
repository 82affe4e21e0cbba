//! The pages of `-h` and `--help`. `-h` has the most used options, on one screen; `--help` has all options in
//! groups, examples, the environment and the exit codes.
//!
//! What both say of an argument is its doc comment, and its group on `--help` is its `help_heading`. An
//! argument is on the page of `-h` if and only if clap gives it a long help: if its comment has several
//! paragraphs, of which `-h` prints the first, or if it has the attribute `long_help`, for which one
//! paragraph is enough.

#[cfg(feature = "serve")]
use super::serve;
use super::{
    answer, attend, cache, classify, download, embed, fill, inspect, merge, pairs, rerank, search,
    similarity, tag, verify,
};
use clap::{Arg, ArgAction, Command};

const ENVIRONMENT: &str = "\
Environment:
  SCONCE_MODEL             default of --model
  SCONCE_ISA               CPU instruction set: portable, avx2, avx512, avx512-vnni, avx512-bf16, amx,
                           neon, neon-dotprod
  SCONCE_CACHE             directory of packed weights, digests and vectors [default: ~/.cache/sconce]
  HF_HOME, HF_HUB_CACHE    location of the model cache
  HF_ENDPOINT              URL of the Hub or of a mirror
  HF_TOKEN, HF_TOKEN_PATH  token for private and gated models
  HF_HUB_OFFLINE           1: do not use the network; TRANSFORMERS_OFFLINE, too
  HTTPS_PROXY, NO_PROXY    proxy of downloads, and hosts without it
  SSL_CERT_FILE            certificate authorities, for a hub or a proxy with one of your own
  NO_COLOR                 disable colors";

const EXIT_CODES: &str = "\
Exit codes:
  0 success    1 error    2 wrong usage    3 success, but records were skipped    130 interrupted";

/// Sets the help of a command and its subcommands: the page of `-h` if `is_short`, else that of `--help`.
pub(super) fn with_help(command: Command, is_short: bool) -> Command {
    let command = command.after_help("Run 'sconce COMMAND -h' for the options of a command.");
    let command = command.after_long_help(format!("{ENVIRONMENT}\n\n{EXIT_CODES}"));
    let pages = [
        ("embed", embed::EXAMPLES),
        ("rerank", rerank::EXAMPLES),
        ("classify", classify::EXAMPLES),
        ("fill", fill::EXAMPLES),
        ("tag", tag::EXAMPLES),
        ("answer", answer::EXAMPLES),
        ("search", search::EXAMPLES),
        #[cfg(feature = "serve")]
        ("serve", serve::EXAMPLES),
        ("pairs", pairs::EXAMPLES),
        ("similarity", similarity::EXAMPLES),
        ("attend", attend::EXAMPLES),
        ("inspect", inspect::EXAMPLES),
        ("merge", merge::EXAMPLES),
        ("verify", verify::EXAMPLES),
        ("download", download::EXAMPLES),
        ("cache", cache::EXAMPLES),
        ("models", cache::MODELS_EXAMPLES),
        ("completions", ""),
    ];
    pages.into_iter().fold(command, |command, (name, examples)| {
        command.mut_subcommand(name, |page| {
            let page = page.disable_help_flag(true).arg(help_flag());
            let long_help = format!("{examples}\n\n{ENVIRONMENT}\n\n{EXIT_CODES}");
            let page = page.after_long_help(long_help.trim_start().to_owned());
            if is_short { page.mut_args(shorten) } else { page }
        })
    })
}

/// Replaces clap's own help flag, whose description does not mention the two pages.
fn help_flag() -> Arg {
    Arg::new("help")
        .short('h')
        .long("help")
        .action(ArgAction::Help)
        .help("Print this page; --help has all options and examples")
        .long_help("Print help; -h prints only the most used options")
}

/// Reduces an argument to its short help and its default on the page of `-h`, or hides it there. The default
/// of an option with an environment variable is on `--help` only, as the variable is.
fn shorten(arg: Arg) -> Arg {
    if arg.get_long_help().is_none() {
        return arg.hide_short_help(true);
    }
    let arg = arg.help_heading(None::<&'static str>);
    if !arg.get_action().takes_values() {
        return arg;
    }
    let hides_default = arg.is_hide_default_value_set() || arg.get_env().is_some();
    arg.hide_default_value(hides_default).hide_possible_values(true).hide_env(true)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::with_help;
    use crate::cli::command::Cli;

    #[test]
    fn both_pages_are_valid_and_complete() {
        for is_short in [true, false] {
            with_help(Cli::command(), is_short).debug_assert();
        }
        let command = with_help(Cli::command(), false);
        let mut headings = BTreeSet::new();
        for page in command.get_subcommands().filter(|page| !page.is_hide_set()) {
            assert!(page.get_after_long_help().is_some(), "no examples of {}", page.get_name());
            for arg in page.get_arguments() {
                assert!(arg.get_help().is_some(), "{}: no help of {}", page.get_name(), arg.get_id());
                headings.extend(arg.get_help_heading());
            }
        }
        let known = "Bounds Hardware Input Messages Model Neighbours Output Scores Server Spans Vectors";
        let unknown = headings.into_iter().find(|heading| known.split(' ').all(|known| known != *heading));
        assert_eq!(unknown, None);
    }

    #[test]
    fn the_short_page_has_the_first_paragraphs_of_long_comments() {
        let command = with_help(Cli::command(), true);
        for page in command.get_subcommands().filter(|page| !page.is_hide_set()) {
            for arg in page.get_arguments() {
                let (name, help) = (page.get_name(), arg.get_help().unwrap().to_string());
                assert_eq!(arg.is_hide_short_help_set(), arg.get_long_help().is_none(), "{name}: {help}");
                assert!(arg.is_hide_short_help_set() || help.chars().count() <= 85, "too long: {help}");
            }
        }
        let page =
            command.find_subcommand("embed").unwrap().clone().term_width(120).render_help().to_string();
        for (part, is_on_page) in [
            ("One row per chunk of at most TOKENS tokens\n", true),
            ("Records that cannot be read: stop or skip [default: stop]\n", true),
            ("Input format [default: by file extension]\n", true),
            ("Model directory, or model id on the Hugging Face Hub\n", true),
            ("Print this page", true),
            ("A chunk ends", false),
            ("--batch-tokens", false),
            ("[possible values", false),
            ("Output:", false),
        ] {
            assert_eq!(page.contains(part), is_on_page, "{part}: {page}");
        }
    }
}
