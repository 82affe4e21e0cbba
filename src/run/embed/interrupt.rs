//! Ctrl-C and the like: a run that is asked to stop keeps what it has done.

use std::fmt;
use std::io::{self, Write};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use crossbeam_channel::{Receiver, bounded};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::run::counted;
use crate::run::threads::spawn;

/// The exit code of a run that was asked to stop.
pub const INTERRUPTED: u8 = 130;

/// The user has stopped the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interrupted {
    /// Rows that the next run can go on after, if any.
    pub kept: Option<u64>,
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept {
            Some(rows) => {
                write!(f, "interrupted: {} saved; rerun with --resume to continue", counted(rows, "row"))
            }
            None => f.write_str("interrupted before any row was saved"),
        }
    }
}

impl std::error::Error for Interrupted {}

/// Whether the process ends with the first signal: it has nothing to put in order.
static AT_ONCE: AtomicBool = AtomicBool::new(false);

/// From now on the first signal ends the process: all that is to be kept is on the disk.
pub fn leave_at_once() {
    AT_ONCE.store(true, Ordering::Relaxed);
}

/// Hears of the first request to stop; a second ends the process at once. What whoever started the process has it ignore
/// stays ignored.
///
/// # Errors
/// If the system grants no handler.
pub fn listen() -> Result<Receiver<()>> {
    let wanted = [SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = match Signals::new(wanted) {
        Ok(signals) => signals,
        Err(error) => bail!("cannot listen for Ctrl-C ({error})"),
    };
    let (heard, interrupts) = bounded(1);
    let listen = move || {
        for _ in signals.forever() {
            // Where nobody takes the first, this is the second.
            if AT_ONCE.load(Ordering::Relaxed) || heard.try_send(()).is_err() {
                let _ = writeln!(io::stderr(), "sconce: error: interrupted");
                process::exit(INTERRUPTED.into());
            }
        }
    };
    spawn("signals", listen)?;
    Ok(interrupts)
}

/// Whether a signal was ignored when the process began, as in a job in the background.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 1
}
