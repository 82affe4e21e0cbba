//! One file per subcommand: prepare, run, report. `records`: what the commands share that turn records into
//! rows. `query_texts`: the queries of `search` and `rerank`.

pub mod answer;
mod append;
pub mod attend;
pub mod classify;
pub mod download;
pub mod embed;
pub mod fill;
pub mod inspect;
pub mod merge;
pub mod pairs;
mod query_texts;
pub mod records;
pub mod rerank;
pub mod search;
pub mod similarity;
pub mod tag;
pub mod verify;

/// A flag as `inspect` prints it and manifests store it.
fn yes_or_no(value: bool) -> String {
    if value { "yes" } else { "no" }.into()
}
