//! What is said on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use bytesize::ByteSize;
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::terminal::say;

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verbosity {
    /// Warnings and errors.
    Quiet,
    /// Choices that were made for the user, too.
    Normal,
    /// Every choice and what things took.
    Verbose,
}

/// No progress is shown for what takes less than this, nor a line on what it has done.
pub const MOMENT: Duration = Duration::from_secs(1);

/// A number with separators between its thousands.
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

/// A number with its noun, in the singular or with an s.
pub fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", thousands(number))
}

/// Standard error, as much of it as was asked for.
#[derive(Debug, Clone, Copy)]
pub struct Console {
    verbosity: Verbosity,
    progress: bool,
}

impl Console {
    /// A console; `progress` may be drawn only where standard error is a terminal.
    pub fn new(verbosity: Verbosity, progress: bool) -> Self {
        let progress = progress && verbosity > Verbosity::Quiet && std::io::stderr().is_terminal();
        Console { verbosity, progress }
    }

    /// Whether progress is drawn.
    pub fn progress(&self) -> bool {
        self.progress
    }

    /// Something that may make the result other than the user expects. Never silenced.
    pub fn warn(&self, message: impl AsRef<str>) {
        say(&format!("warning: {}", message.as_ref()));
    }

    /// Something that was decided for the user.
    pub fn note(&self, message: impl AsRef<str>) {
        if self.verbosity >= Verbosity::Normal {
            say(message.as_ref());
        }
    }

    /// Something for the curious.
    pub fn detail(&self, message: impl AsRef<str>) {
        if self.verbosity >= Verbosity::Verbose {
            say(message.as_ref());
        }
    }

    /// A bar over `total` bytes of input, or a counter where the size is not known. It is hidden until [`Console::draw`].
    pub fn bar(&self, total: Option<u64>) -> ProgressBar {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        // What is wide is cut to the width of the terminal.
        let template = if total.is_some() { "{bar:10} {wide_msg}" } else { "{spinner} {wide_msg}" };
        bar.with_style(ProgressStyle::with_template(template).expect("the template is valid"))
    }

    /// Draws a bar once its work has taken a while: what is done in a moment needs none. What matters most comes first, for
    /// terminals of few columns; `work` is what has been done.
    pub fn draw(&self, bar: &ProgressBar, work: &str) {
        if !self.progress || bar.elapsed() < MOMENT {
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

    /// The same console without progress, for rows that go where a person reads them.
    pub fn without_progress(self) -> Self {
        Console { progress: false, ..self }
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
