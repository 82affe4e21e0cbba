//! The counts of a run, and the report at its end.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::sys::console::{Console, counted, thousands};

/// Counts over all runs that wrote to one output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Stats {
    /// Rows written.
    pub rows: u64,
    /// Texts with at least one row.
    pub texts: u64,
    /// Rows that are a chunk of a text.
    pub chunks: u64,
    /// Tokens encoded.
    pub tokens: u64,
    /// Truncated texts.
    pub truncated: u64,
    /// Tokens that truncation removed.
    pub truncated_tokens: u64,
    /// Texts that were encoded in several sequences (`--on-long mean`).
    pub multi_sequence: u64,
    /// The sequences of those texts.
    pub sequences: u64,
    /// Texts over the limit that were skipped.
    pub skipped: u64,
    /// Records that could not be read or tokenized and were skipped.
    pub failed: u64,
    /// Rows with null where a field did not fit the type of its column.
    pub nulled: u64,
    /// Rows with NaN or infinite values.
    pub not_finite: u64,
    /// Records whose text is empty or white space, whether embedded or skipped.
    pub empty: u64,
    /// Records with such a text that `--skip-empty` skipped.
    pub skipped_empty: u64,
    /// Rows with null in place of a vector, because their text is null (`--on-null null`).
    pub null_rows: u64,
    /// Records whose text is null, and which have no row (`--on-null skip`).
    pub skipped_null: u64,
    /// Records that the output had rows of already (`--append`): they are not encoded.
    pub unchanged: u64,
    /// Records that the output had no rows of (`--append`), and now has, but not in place of another.
    pub added: u64,
    /// Records whose rows take the place of those of another record with the same id, one for one
    /// (`--update`).
    pub updated: u64,
    /// Records whose rows were removed without others in their place (`--update`, `--delete`).
    pub deleted: u64,
    /// Milliseconds of all runs, up to the last checkpoint.
    pub milliseconds: u64,
}

/// The outcome of a run that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExitStatus {
    /// Every record has a row.
    Complete,
    /// Records were skipped, or have vectors that are not finite. The exit code is 3.
    RecordsSkipped,
}

/// Minimum number of empty texts that a note reports.
const MIN_EMPTY_FOR_NOTE: u64 = 10;

impl Stats {
    /// Records that have no row, although they were selected.
    pub fn skipped_records(&self) -> u64 {
        self.skipped + self.skipped_null + self.failed
    }

    /// The exit status of a run with these counts. A nulled field does not count, because the record has its
    /// row.
    pub fn exit_status(&self) -> ExitStatus {
        if self.skipped_records() > 0 || self.not_finite > 0 {
            ExitStatus::RecordsSkipped
        } else {
            ExitStatus::Complete
        }
    }

    /// Texts over the limit.
    pub fn long_texts(&self) -> u64 {
        self.truncated + self.multi_sequence + self.skipped
    }

    /// Prints warnings and notes. `limit` is the maximum of tokens per text, `ledger` the file with the
    /// details.
    pub fn report(&self, console: &Console, limit: usize, ledger: Option<&Path>) {
        let details = ledger.map(|path| format!("; see {}", path.display())).unwrap_or_default();
        self.report_long_texts(console, limit, &details);
        if self.failed > 0 {
            let they = if self.failed == 1 { "it" } else { "they" };
            console
                .warn(format!("{} skipped because {they} could not be used{details}", records(self.failed)));
        }
        if self.skipped_null > 0 {
            let their = if self.skipped_null == 1 { "its text is" } else { "their texts are" };
            console.warn(format!("{} skipped because {their} null{details}", records(self.skipped_null)));
        }
        if self.null_rows > 0 {
            let rows = counted(self.null_rows, "row");
            let (have, texts) =
                if self.null_rows == 1 { ("has", "its text is") } else { ("have", "their texts are") };
            console.note(format!("{rows} {have} null in place of a vector, because {texts} null"));
        }
        if self.nulled > 0 {
            let records = records(self.nulled);
            console.warn(format!(
                "{records} written with null for fields that do not fit their column{details}"
            ));
        }
        if self.not_finite > 0 {
            console.warn(format!(
                "{} of {} {} NaN or infinite values{details}",
                thousands(self.not_finite),
                counted(self.rows, "row"),
                if self.not_finite == 1 { "contains" } else { "contain" }
            ));
        }
        let embedded_empty = self.empty - self.skipped_empty;
        if embedded_empty >= MIN_EMPTY_FOR_NOTE {
            console.note(format!(
                "{} of {} texts are empty; pass --skip-empty to skip them",
                thousands(embedded_empty),
                thousands(self.texts + self.skipped)
            ));
        }
    }

    fn report_long_texts(&self, console: &Console, limit: usize, details: &str) {
        let texts = self.texts + self.skipped;
        let long = |count: u64| {
            let (noun, verb) = if texts == 1 { ("text", "was") } else { ("texts", "were") };
            let (count, texts) = (thousands(count), thousands(texts));
            (format!("{count} of {texts} {noun} {verb} longer than {limit} tokens"), verb)
        };
        if self.truncated > 0 {
            let (texts, verb) = long(self.truncated);
            let removed = thousands(self.truncated_tokens);
            console.warn(format!("{texts} and {verb} truncated; {removed} tokens were removed{details}"));
        }
        if self.multi_sequence > 0 {
            let (texts, _) = long(self.multi_sequence);
            console.note(format!("{texts}; each is encoded in chunks, {} in all", thousands(self.sequences)));
        }
        if self.skipped > 0 {
            let (texts, verb) = long(self.skipped);
            console.warn(format!("{texts} and {verb} skipped{details}"));
        }
    }
}

/// A count of records with its verb.
fn records(count: u64) -> String {
    if count == 1 { "1 record was".into() } else { format!("{} records were", thousands(count)) }
}
