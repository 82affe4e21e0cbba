//! Checked writing to standard output.

use std::io::{self, Write};

use anyhow::{Result, bail};

use super::target::Target;
use super::write_error::write_error;
use crate::sys;

/// Rejects a standard output that was closed at start-up, because the rows would be lost.
pub(super) fn check_stdout() -> Result<()> {
    if sys::stdout::was_closed() {
        bail!("cannot write standard output: it is closed; redirect it to a file or a pipe");
    }
    Ok(())
}

/// Writes a page of text to standard output.
///
/// # Errors
/// If it is closed or cannot be written; [`ClosedPipe`](super::ClosedPipe) if it is a pipe whose reader closed it.
pub fn print(page: &[u8]) -> Result<()> {
    print_with(|| io::stdout().write_all(page))
}

/// Calls `print`, which writes to standard output, and flushes that.
pub fn print_with(print: impl FnOnce() -> io::Result<()>) -> Result<()> {
    check_stdout()?;
    let printed = print().and_then(|()| io::stdout().flush());
    printed.map_err(|error| write_error(&Target::Stdout, false, error))
}
