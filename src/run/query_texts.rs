//! The texts of queries that are read from files.

use anyhow::{Error, Result, bail};
use serde_json::Value;

use crate::error::UsageError;
use crate::input::{Entries, Entry, Fields, Source};

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
    /// Reads all texts of the files of `--queries`. `field_option` is the name of the option for the field of their text.
    ///
    /// # Errors
    /// If a file or one of its records cannot be read.
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
