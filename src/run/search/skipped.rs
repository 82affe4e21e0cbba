//! What is not searched, with the reasons.

use std::collections::BTreeMap;

use crate::sys::console::{Console, counted};

/// Why something is not searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Reason {
    /// A file cannot be read, or not as text.
    NotText,
    /// A file of a directory is too large.
    TooLarge,
    /// The vector of a chunk has a value that is not finite.
    NotFinite,
}

/// What is not searched: a sentence for each, by reason.
#[derive(Debug, Default)]
pub(super) struct Skipped(BTreeMap<Reason, Vec<String>>);

impl Skipped {
    /// Adds something, with a sentence that says what it is.
    pub(super) fn add(&mut self, reason: Reason, sentence: String) {
        self.0.entry(reason).or_default().push(sentence);
    }

    /// Prints how many there are: as a note, and as a warning where the model is at fault.
    pub(super) fn report(&self, console: &Console) {
        self.0.values().flatten().for_each(|sentence| console.detail(format!("not searched: {sentence}")));
        let counts = self.0.iter().map(|(reason, found)| (*reason, found.len() as u64));
        let sentences = counts.map(|(reason, count)| match reason {
            Reason::NotText => format!("{} cannot be read as UTF-8 text", counted(count, "file")),
            Reason::TooLarge => format!("{} above 1 MiB", counted(count, "file")),
            Reason::NotFinite => format!("{} with NaN or infinite values", counted(count, "chunk")),
        });
        let sentences = sentences.collect::<Vec<_>>().join(", ");
        if self.0.contains_key(&Reason::NotFinite) {
            console.warn(format!("not searched: {sentences}; check the model"));
        } else if !sentences.is_empty() && !console.is_verbose() {
            console.note(format!("not searched: {sentences}; -v names them"));
        }
    }
}
