//! Messages and the progress bar on standard error.

use std::io::IsTerminal;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::sys::terminal::eprint_message;

/// Which messages are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// Also notes: decisions made for the user, hints, totals.
    Normal,
    /// Also details: every decision and timing.
    Verbose,
}

/// Runs shorter than this show no progress bar and no totals.
pub const QUIET_PERIOD: Duration = Duration::from_secs(1);

/// Formats an integer with thousands separators: `1,234,567`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut text = digits[..first].to_owned();
    for group in digits.as_bytes()[first..].chunks(3) {
        if !text.is_empty() {
            text.push(',');
        }
        text.extend(group.iter().map(|digit| char::from(*digit)));
    }
    text
}

/// Formats a count with its noun: `1 row`, `2,000 rows`.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number))
}

/// Prints messages to standard error, filtered by [`Verbosity`].
#[derive(Debug, Clone)]
pub struct Console {
    verbosity: Verbosity,
    progress: bool,
    /// Where warnings are kept that are not printed.
    warnings: Option<Arc<Mutex<Vec<String>>>>,
}

impl Console {
    /// A console. `progress` allows progress bars; they are drawn only if standard error is a terminal.
    pub fn new(verbosity: Verbosity, progress: bool) -> Self {
        let progress = progress && verbosity > Verbosity::Quiet && std::io::stderr().is_terminal();
        Console { verbosity, progress, warnings: None }
    }

    /// A console that prints nothing and keeps warnings for [`Console::take_warnings`].
    pub fn silent() -> Self {
        Console { warnings: Some(Arc::default()), ..Console::new(Verbosity::Quiet, false) }
    }

    /// The warnings that a silent console has kept since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        let kept = self.warnings.as_ref();
        kept.map(|kept| std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner)))
            .unwrap_or_default()
    }

    /// Whether progress bars are drawn.
    pub fn progress(&self) -> bool {
        self.progress
    }

    /// Whether details are printed.
    pub fn is_verbose(&self) -> bool {
        self.verbosity >= Verbosity::Verbose
    }

    /// Prints a warning: the result may differ from what the user expects. Printed at every verbosity.
    pub fn warn(&self, message: impl AsRef<str>) {
        match &self.warnings {
            Some(kept) => kept.lock().unwrap_or_else(PoisonError::into_inner).push(message.as_ref().into()),
            None => eprint_message(&format!("warning: {}", message.as_ref())),
        }
    }

    /// Prints a note, unless [`Verbosity::Quiet`].
    pub fn note(&self, message: impl AsRef<str>) {
        if self.verbosity >= Verbosity::Normal {
            eprint_message(message.as_ref());
        }
    }

    /// Prints a detail, if [`Verbosity::Verbose`].
    pub fn detail(&self, message: impl AsRef<str>) {
        if self.verbosity >= Verbosity::Verbose {
            eprint_message(message.as_ref());
        }
    }

    /// A progress bar over `total` bytes of input, or a spinner if the total is unknown. Hidden until
    /// [`Console::draw`].
    pub fn bar(&self, total: Option<u64>) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        // indicatif truncates `wide_msg` to the width of the terminal.
        let template = if total.is_some() { "{bar:10} {wide_msg}" } else { "{spinner} {wide_msg}" };
        bar.with_style(ProgressStyle::with_template(template).expect("the template is valid"))
    }

    /// Redraws a progress bar with the message `work`, once the run is longer than [`QUIET_PERIOD`]. The most
    /// important values come first, because narrow terminals cut the line.
    pub fn draw(&self, bar: &ProgressBar, work: &str) {
        if !self.progress || bar.elapsed() < QUIET_PERIOD {
            return;
        }
        let elapsed = HumanDuration(bar.elapsed());
        bar.set_message(match bar.length() {
            Some(total) => {
                let percent = 100 * bar.position().min(total) / total.max(1);
                let total = ByteSize(total).display().si();
                format!(
                    "{percent}% of {total}, {elapsed:#} elapsed, {:#} left, {work}",
                    HumanDuration(bar.eta())
                )
            }
            None => format!("{elapsed:#} elapsed, {work}"),
        });
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// The same console without progress bars, for runs whose rows go to a terminal.
    pub fn without_progress(&self) -> Self {
        Console { progress: false, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::{counted, thousands};

    #[test]
    fn thousands_are_separated() {
        let found = [0, 7, 999, 1000, 12345, 1_234_567].map(thousands);
        assert_eq!(found, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn one_is_singular() {
        let found = [0, 1, 2, 1000].map(|number| counted(number, "row"));
        assert_eq!(found, ["0 rows", "1 row", "2 rows", "1,000 rows"]);
    }
}
