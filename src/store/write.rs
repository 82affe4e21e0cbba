//! Outputs that are written at once: a page on standard output, or a file, from complete bytes to its final
//! name.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, bail};

use super::read_files::ReadFiles;
use super::replace::{Durability, copy_permissions, mode_beside, replace};
use super::sidecars::regular_file;
use super::target::Target;
use super::write_error::write_error;
use crate::sys::stdout;

/// Writes a complete output, given by `--output`. A regular file is written to a temporary file beside it,
/// which is then renamed; a pipe or device is written to directly.
///
/// # Errors
/// If it is one of the files that the run reads, or cannot be written; [`ClosedPipe`](super::ClosedPipe) if
/// it is a pipe whose reader closed it.
pub fn write(target: &Target, bytes: &[u8], read: &ReadFiles) -> Result<()> {
    match target {
        Target::Stdout => print(bytes),
        Target::File(path) => {
            read.refuse("--output", path)?;
            write_file(path, bytes).map_err(|error| write_error(target, false, error))
        }
    }
}

/// [`write()`] for a path: a regular file has all of its old bytes or all of the new ones at each moment.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let Some(output) = regular_file(path)? else {
        return fs::OpenOptions::new().write(true).open(path)?.write_all(bytes);
    };
    replace(&output, mode_beside(&output), Durability::Synced, |file| {
        file.write_all(bytes)?;
        copy_permissions(&output, file)
    })
}

/// Rejects a standard output that was closed at start-up, because the rows would be lost.
pub(super) fn check_stdout() -> Result<()> {
    if stdout::was_closed() {
        bail!("cannot write standard output: it is closed; redirect it to a file or a pipe");
    }
    Ok(())
}

/// Writes a page of text to standard output.
///
/// # Errors
/// If it is closed or cannot be written; [`ClosedPipe`](super::ClosedPipe) if it is a pipe whose reader
/// closed it.
pub fn print(page: &[u8]) -> Result<()> {
    print_with(|| io::stdout().write_all(page))
}

/// Calls `print`, which writes to standard output, and flushes that.
pub fn print_with(print: impl FnOnce() -> io::Result<()>) -> Result<()> {
    check_stdout()?;
    let printed = print().and_then(|()| io::stdout().flush());
    printed.map_err(|error| write_error(&Target::Stdout, false, error))
}
