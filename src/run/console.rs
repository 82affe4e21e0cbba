//! What is said on standard error.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

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

    /// A bar over `total` bytes of input, or a counter where the size is not known.
    pub fn bar(&self, total: Option<u64>) -> ProgressBar {
        if !self.progress {
            return ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        }
        let (bar, template) = match total {
            Some(total) => (ProgressBar::new(total), "{bar:30} {percent}% {msg}, {eta} left"),
            None => (ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}"),
        };
        bar.with_style(ProgressStyle::with_template(template).expect("the template is valid"))
    }
}
