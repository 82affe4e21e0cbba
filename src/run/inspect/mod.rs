//! `sconce inspect`: shows the configuration of a model, what it costs, and how its tensors are used.

mod cost;
mod describe;
mod files;
mod json;
mod multi_vector;
mod page;

use anyhow::{Error, Result, bail};

use crate::load::{Examined, ModelOptions, examine};
use crate::store::print;
use crate::sys::console::Console;
use cost::Cost;
use files::model_files;

/// The options of `inspect`.
pub struct InspectOptions {
    /// The model, or a config alone.
    pub model: ModelOptions,
    /// Tokens of the text whose cost is shown. `None`: the model's limit.
    pub tokens: Option<usize>,
    /// Whether to print JSON.
    pub json: bool,
    /// Whether the page lists all tensors.
    pub tensors: bool,
    /// Messages.
    pub console: Console,
}

/// Prints the report on a model, as a page or as a JSON object. A model that cannot be run is reported as far
/// as it can be read.
pub fn inspect(options: &InspectOptions) -> Result<()> {
    let examined = examine(&options.model, &options.console)?;
    let cost = Cost::of(&examined, options.tokens.unwrap_or(examined.max_length.tokens))?;
    // Hashing takes more time than everything else: about a second per GB.
    let files = model_files(&examined, options.json || options.console.is_verbose())?;
    let report = if options.json {
        format!("{:#}\n", json::object(&examined, &cost, &files)?)
    } else {
        page::page(&examined, &cost, &files, options.tensors)?
    };
    print(report.as_bytes())?;
    check_runnable(examined)
}

/// Fails if the model cannot be run.
fn check_runnable(examined: Examined) -> Result<()> {
    let mut problems = examined.problems;
    match problems.len() {
        0 => {}
        1 => return Err(problems.remove(0)),
        n => return Err(Error::msg(format!("{:#} (and {} more; see the report)", problems[0], n - 1))),
    }
    match examined.report.map_or(0, |report| report.problems.len()) {
        0 => Ok(()),
        1 => {
            bail!("the model cannot be run: 1 tensor is missing or does not match the config; see the report")
        }
        n => bail!(
            "the model cannot be run: {n} tensors are missing or do not match the config; see the report"
        ),
    }
}
