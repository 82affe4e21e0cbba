//! Ctrl-C and SIGTERM: an interrupted run keeps its rows.

use std::fmt;
use std::io::{self, Write};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use crossbeam_channel::{Receiver, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::sys::console::counted;
use crate::sys::threads::spawn;

/// The exit code of an interrupted run.
pub const EXIT_INTERRUPTED: u8 = 130;

/// The user has interrupted the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    /// Rows that the next run can resume after, if any.
    pub saved_rows: Option<u64>,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.saved_rows {
            Some(rows) => {
                write!(f, "interrupted: {} saved; rerun with --resume to continue", counted(rows, "row"))
            }
            None => f.write_str("interrupted before any row was saved"),
        }
    }
}

impl std::error::Error for Interrupted {}

/// Where the signals of a process arrive.
pub(super) struct Interrupts {
    /// Receives the first SIGINT or SIGTERM; the second one ends the process.
    pub first: Receiver<()>,
    /// Whether the first one ends the process, too.
    end_process: Arc<AtomicBool>,
}

impl Interrupts {
    /// Makes the next signal end the process at once, for the time when nothing is left to save.
    pub(super) fn end_process(&self) {
        self.end_process.store(true, Ordering::Relaxed);
    }
}

/// Starts to handle SIGINT and SIGTERM, unless the parent process has set them to be ignored.
pub(super) fn listen() -> Result<Interrupts> {
    let handled = [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = match Signals::new(handled) {
        Ok(signals) => signals,
        Err(error) => bail!("cannot handle Ctrl-C ({error})"),
    };
    let (to_run, first) = bounded(1);
    let interrupts = Interrupts { first, end_process: Arc::default() };
    let end_process = interrupts.end_process.clone();
    let listen = move || {
        for _ in signals.forever() {
            // The channel is full while the first signal has not been received.
            if end_process.load(Ordering::Relaxed) || to_run.try_send(()).is_err() {
                let _ = writeln!(io::stderr(), "sconce: error: interrupted");
                process::exit(EXIT_INTERRUPTED.into());
            }
        }
    };
    spawn("signals", listen)?;
    Ok(interrupts)
}

/// Whether a signal was ignored when the process started, as in a background job.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}
