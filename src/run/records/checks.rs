//! Checks before a run: it must not overwrite an input, a file of the model, or the rows of another run.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{RecordOptions, hints};
use crate::error::UsageError;
use crate::input::InputPath;
use crate::model::layout::is_model_file;
use crate::output::{self, Ledger, OutputLock};
use crate::pipeline::{StartMode, check_writable, refuse_interrupted};
use crate::sys::regular_file::is_same_file;
use crate::task::Loaded;

/// Locks the output, after checking that it can be written.
///
/// # Errors
/// If the output is locked, or writing it would overwrite another file.
pub(super) fn lock_output(options: &RecordOptions) -> Result<OutputLock> {
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
            if options.format == output::OutputFormat::Npy {
                output::manifest::check_replaceable(&sidecars.meta, "release")?;
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
        None if options.chunks && options.format == output::OutputFormat::Npy => {
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
/// If the output, its ledger or the summary would overwrite such a file: a usage error.
pub(super) fn check_model_files(options: &RecordOptions, lock: &OutputLock, loaded: &Loaded) -> Result<()> {
    let folder = loaded.config.path().parent().unwrap_or(Path::new(""));
    let is_of_model = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let in_folder = folder.join(&*name);
        loaded.files.iter().any(|file| is_same_file(file, path))
            || is_model_file(&name) && is_same_file(&in_folder, path)
    };
    let outputs = lock.sidecars().into_iter().flat_map(|sidecars| {
        [("--output", &*sidecars.output), ("the ledger of the output,", &*sidecars.final_ledger)]
    });
    let stats = options.stats.as_deref().map(|path| ("--stats", path));
    match outputs.chain(stats).find(|(_, path)| is_of_model(path)) {
        Some((option, path)) => refuse(option, path, "a file of the model"),
        None => Ok(()),
    }
}

/// The error for a path that has two uses.
///
/// # Errors
/// Always: a usage error.
fn refuse(option: &str, path: &Path, what: &str) -> Result<()> {
    bail!(UsageError(format!("{option} {} is also {what}; choose another path", path.display())))
}

/// Rejects paths that are given for two files, one of which would overwrite the other.
fn check_paths(options: &RecordOptions, lock: &OutputLock) -> Result<()> {
    let sidecars = lock.sidecars();
    let stats = options.stats.as_deref().map(canonical);
    if let (Some(stats), Some(sidecars)) = (&stats, sidecars) {
        for (path, what) in
            [(&sidecars.output, "the output"), (&sidecars.final_ledger, "the ledger of the output")]
        {
            if *stats == canonical(path) {
                return refuse("--stats", stats, what);
            }
        }
    }
    for source in options.input.sources() {
        let InputPath::File(path) = &source.path else { continue };
        if stats.as_ref().is_some_and(|stats| is_same_file(stats, path)) {
            return refuse("--stats", path, "the input");
        }
        if let Some(sidecars) = sidecars {
            if is_same_file(path, &sidecars.output) {
                return refuse("--output", path, "the input");
            }
            if canonical(path) == canonical(&sidecars.final_ledger) {
                return refuse("the ledger of the output,", path, "the input");
            }
        }
    }
    Ok(())
}

/// The canonical path of a file, which need not exist.
fn canonical(path: &Path) -> PathBuf {
    let file = output::regular_file(path).ok().flatten().unwrap_or_else(|| path.to_owned());
    let directory = fs::canonicalize(output::parent_dir(&file));
    match (directory, file.file_name()) {
        (Ok(directory), Some(name)) => directory.join(name),
        _ => file,
    }
}
