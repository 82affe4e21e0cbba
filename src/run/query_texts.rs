//! The texts of queries: those that are read from files, and what is said about long ones.

use anyhow::{Error, Result, bail};
use serde_json::Value;

use crate::error::UsageError;
use crate::input::{Entries, Entry, Fields, Source};
use crate::job::Stats;
use crate::sys::console::Console;
use crate::task::{EmbeddedTexts, TextError};

/// The queries of `search` or `rerank`.
pub(super) struct QueryTexts {
    /// The texts.
    pub texts: Vec<String>,
    /// The name of each, for messages.
    pub names: Vec<String>,
    /// Their ids, if they have any.
    pub ids: Option<Vec<Value>>,
}

impl QueryTexts {
    /// Reads all texts of the files of `--queries`. `field_option` is the name of the option for the field of
    /// their text.
    pub(super) fn read(sources: &[Source], fields: &Fields, field_option: &str) -> Result<Self> {
        Self::read_all(sources, fields).map_err(|error| {
            let message = format!("{error:#}").replace("--input", "--queries");
            let message = message.replace("--text-field", field_option);
            if error.is::<UsageError>() { UsageError(message).into() } else { Error::msg(message) }
        })
    }

    fn read_all(sources: &[Source], fields: &Fields) -> Result<Self> {
        let (mut texts, mut names, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        for entry in Entries::open(sources.to_vec(), fields.clone())? {
            match entry? {
                Entry::Record(record) => {
                    names.push(record.location.to_string());
                    texts.push(record.text);
                    ids.push(record.id.unwrap_or_default());
                }
                Entry::Unreadable(unreadable) => bail!("{unreadable}"),
            }
        }
        let has_ids = ids.iter().any(|id| !id.is_null());
        Ok(QueryTexts { texts, names, ids: has_ids.then_some(ids) })
    }
}

/// The error of texts that cannot be encoded: `describe` makes a sentence of the index of the first one and
/// the reason.
pub(super) fn of_text(error: Error, describe: impl FnOnce(usize, String) -> String) -> Error {
    match error.downcast::<TextError>() {
        Ok(TextError { index, reason, .. }) => Error::msg(describe(index, reason)),
        Err(error) => error,
    }
}

/// Prints the warnings of `sconce embed` about texts that are longer than `limit` tokens.
pub(super) fn report(embedded: &EmbeddedTexts, limit: usize, console: &Console) {
    let sequences = || embedded.sequences.iter().filter(|count| **count > 1);
    let stats = Stats {
        texts: embedded.tokens.len() as u64,
        truncated: embedded.truncated_tokens.iter().filter(|removed| **removed > 0).count() as u64,
        truncated_tokens: embedded.truncated_tokens.iter().sum::<usize>() as u64,
        multi_sequence: sequences().count() as u64,
        sequences: sequences().sum::<usize>() as u64,
        ..Stats::default()
    };
    stats.report(console, limit, None);
}
