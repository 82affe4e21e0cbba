//! Checks before a run: it must not overwrite an input, a file of the model, or the rows of another run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{RecordOptions, hints};
use crate::error::UsageError;
use crate::input::InputPath;
use crate::job::{StartMode, check_writable, refuse_interrupted};
use crate::load::Loaded;
use crate::rows::OutputFormat;
use crate::store::{self, Ledger, OutputLock, ReadFiles, UncheckedOutput};

/// Locks the output, after checking that it can be written.
pub(super) fn lock_output(options: &RecordOptions) -> Result<UncheckedOutput> {
    if options.input.is_terminal() {
        options.console.note("reading texts from the terminal, one per line; press Ctrl-D to end");
    }
    if options.hints {
        hints::of_arguments(&options.input, &options.console);
    }
    options.stats.as_deref().map_or(Ok(()), check_writable)?;
    let lock = OutputLock::acquire(&options.output)?;
    check_paths(options, &lock)?;
    match lock.sidecars() {
        Some(sidecars) => {
            Ledger::check_replaceable(&sidecars.final_ledger)?;
            if options.format == OutputFormat::Npy {
                store::manifest::check_replaceable(&sidecars.meta, "release")?;
            }
            if options.start == StartMode::Fresh {
                refuse_interrupted(sidecars)?;
            }
        }
        None if options.start != StartMode::Fresh => bail!(UsageError(format!(
            "{}: {} cannot be resumed, because it is not a file; leave the option out",
            if options.start == StartMode::Resume { "--resume" } else { "--restart" },
            options.output
        ))),
        None if options.chunks && options.format == OutputFormat::Npy => {
            bail!(UsageError(format!(
                "--chunk: npy output needs a second file for the number of rows per text, but {} is not a file; pass --output FILE, \
                 or another --output-format",
                options.output
            )))
        }
        None => {}
    }
    Ok(lock)
}

/// Rejects output paths that are files of the model.
///
/// # Errors
/// If an output or the summary would overwrite such a file: a usage error.
pub(super) fn check_model_files(
    options: &RecordOptions,
    output: UncheckedOutput,
    loaded: &Loaded,
) -> Result<OutputLock> {
    let read = loaded.origin.read_files();
    options.stats.as_deref().map_or(Ok(()), |path| read.refuse("--stats", path))?;
    options.appended()?.map_or(Ok(()), |appended| read.refuse_output("--output", &appended))?;
    output.check("--output", &read)
}

/// Rejects paths that are given for two files, one of which would overwrite the other.
fn check_paths(options: &RecordOptions, output: &UncheckedOutput) -> Result<()> {
    let stats = options.stats.as_deref().map(canonical);
    // With --append, the file that rows are appended to is an output, too.
    let appended = options.appended()?;
    let outputs = || output.sidecars().into_iter().chain(&appended);
    for sidecars in outputs() {
        for (path, what) in
            [(&sidecars.output, "the output"), (&sidecars.final_ledger, "the ledger of the output")]
        {
            if let Some(stats) = stats.as_ref().filter(|stats| **stats == canonical(path)) {
                return store::refuse("--stats", stats, what);
            }
        }
    }
    let paths = options.input.sources().iter().filter_map(|source| match &source.path {
        InputPath::File(path) => Some(path),
        InputPath::Stdin => None,
    });
    let read = ReadFiles::new(paths, "the input");
    stats.map_or(Ok(()), |stats| read.refuse("--stats", &stats))?;
    outputs().try_for_each(|sidecars| read.refuse_output("--output", sidecars))
}

/// The canonical path of a file, which need not exist.
fn canonical(path: &Path) -> PathBuf {
    let file = store::regular_file(path).ok().flatten().unwrap_or_else(|| path.to_owned());
    let directory = fs::canonicalize(store::parent_dir(&file));
    match (directory, file.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => file,
    }
}
