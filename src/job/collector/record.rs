//! The rows of a record, and its entry in the ledger.

use std::sync::Arc;

use anyhow::{Result, bail};
use serde_json::Value;
use thiserror::Error;

use super::Collector;
use crate::engine::TaskRow;
use crate::input::{Location, Position};
use crate::job::columns::null_misfits;
use crate::job::known_records::hash_text;
use crate::job::messages::{Outcome, RecordMeta};
use crate::job::source::OnNull;
use crate::rows::{Content, FieldValue, Row, Span};
use crate::store::{Event, LedgerEntry};

/// The error of a record that ends the run.
#[derive(Debug, Error)]
#[error("{message}")]
pub(super) struct StoppedAtRecord {
    /// One sentence that names the record and the reason.
    pub message: String,
    /// The options with which a resumed run would skip the record.
    pub options: &'static str,
}

/// An entry for the ledger, before its location is split into file, line and row.
struct PendingEntry<'a> {
    index: u64,
    location: &'a Location,
    event: Event,
    reason: String,
    tokens: Option<usize>,
    truncated_tokens: Option<usize>,
}

impl<'a> PendingEntry<'a> {
    fn new(index: u64, location: &'a Location, event: Event, reason: impl Into<String>) -> Self {
        PendingEntry { index, location, event, reason: reason.into(), tokens: None, truncated_tokens: None }
    }
}

impl Collector {
    /// Writes the rows of a record, or adds the reason why it has none to the ledger.
    pub(super) fn take_record(&mut self, record: RecordMeta, rows: Option<&Vec<TaskRow>>) -> Result<()> {
        self.stats.empty += u64::from(record.is_empty && record.is_last);
        let (index, is_fatal) = (self.place.cursor.entries, record.outcome.is_fatal(&self.policy));
        let (location, reason) = (&record.location, record.outcome.reason().unwrap_or_default());
        match &record.outcome {
            Outcome::Encoded { .. } => match rows {
                Some(rows) => self.write_rows(record, rows),
                None => bail!("{location} has no row; please report this as a bug"),
            },
            Outcome::SkippedEmpty => {
                self.stats.skipped_empty += 1;
                self.open()
            }
            Outcome::Null if self.policy.on_null == OnNull::Null => self.write_null_row(record),
            Outcome::Null => {
                self.stop_or_open(location, reason, is_fatal, "--on-null skip or null")?;
                self.stats.skipped_null += 1;
                self.warn(PendingEntry::new(index, location, Event::Skipped, reason))
            }
            Outcome::Unchanged => {
                self.stats.unchanged += 1;
                self.open()
            }
            Outcome::NoTokens => {
                self.stats.failed += 1;
                self.warn(PendingEntry {
                    tokens: Some(0),
                    ..PendingEntry::new(index, location, Event::Skipped, reason)
                })
            }
            Outcome::TooLong { tokens, .. } => {
                self.stop_or_open(location, reason, is_fatal, "--on-long truncate, skip or mean")?;
                self.stats.skipped += 1;
                let entry = PendingEntry::new(index, location, Event::Skipped, reason);
                self.warn(PendingEntry { tokens: Some(*tokens), ..entry })
            }
            Outcome::Failed(_) => {
                self.stop_or_open(location, reason, is_fatal, "--on-error skip")?;
                self.stats.failed += 1;
                self.warn(PendingEntry::new(index, location, Event::Failed, reason))
            }
        }
    }

    /// Writes the rows of an encoded record, or of a part of it.
    fn write_rows(&mut self, record: RecordMeta, rows: &[TaskRow]) -> Result<()> {
        let RecordMeta { location, mut id, mut kept, chunk_texts, hash, outcome, query, is_last, .. } =
            record;
        let Outcome::Encoded { tokens, truncated_tokens, sequences, has_chunks } = outcome else {
            return Ok(());
        };
        let index = self.place.cursor.entries;
        self.complete_columns(&location, &mut id, &mut kept, hash)?;
        let rows_before = self.stats.rows;
        let first = rows.first().and_then(|row| row.span).map_or(0, |span| span.chunk);
        for row in rows {
            // Every chunk may have a row for each query.
            let text = row.span.and_then(|span| chunk_texts.texts.get((span.chunk - first) as usize));
            if let Some(text) = text {
                let kept = Arc::make_mut(&mut kept);
                chunk_texts.fields.iter().for_each(|field| kept[*field] = text.clone());
            }
            let kept_row = Row {
                index,
                id: id.as_ref(),
                chunk: row.span,
                tokens: row.tokens,
                truncated: truncated_tokens > 0,
                kept: &kept,
                content: &row.content,
            };
            let query = row.query.unwrap_or(query);
            if row.is_finite {
                self.take_row(query, &kept_row)?;
            } else {
                self.take_not_finite(query, &kept_row, &location)?;
            }
        }
        let written = self.stats.rows - rows_before;
        if is_last && self.place.is_inside_record {
            self.count_text(hash);
        }
        if written > 0 {
            self.stats.tokens += tokens as u64;
        }
        self.stats.chunks += if has_chunks { written } else { 0 };
        if has_chunks || written == 0 {
            return Ok(());
        }
        let entry = PendingEntry::new(index, &location, Event::Truncated, "");
        self.count_long(PendingEntry { tokens: Some(tokens), ..entry }, truncated_tokens, sequences)
    }

    /// Makes the values of a record fit the columns, and adds its hash.
    fn complete_columns(
        &mut self,
        location: &Location,
        id: &mut Option<Value>,
        kept: &mut Arc<Vec<FieldValue>>,
        hash: Option<u128>,
    ) -> Result<()> {
        if let Some(reason) = null_misfits(&self.schema, id, kept)
            && !self.place.is_inside_record
        {
            self.stop_or_open(location, &reason, !self.policy.skip_unreadable, "--on-error skip")?;
            self.stats.nulled += 1;
            self.warn(PendingEntry::new(self.place.cursor.entries, location, Event::Nulled, reason))?;
        }
        if let Some(hash) = hash {
            Arc::make_mut(kept).push(Value::from(hash_text(hash)).into());
        }
        Ok(())
    }

    /// Writes the row of a record whose text is null.
    fn write_null_row(&mut self, record: RecordMeta) -> Result<()> {
        let RecordMeta { location, mut id, mut kept, hash, query, .. } = record;
        self.complete_columns(&location, &mut id, &mut kept, hash)?;
        let row = Row {
            index: self.place.cursor.entries,
            id: id.as_ref(),
            chunk: self.schema.chunks.then(Span::default),
            tokens: 0,
            truncated: false,
            kept: &kept,
            content: &Content::Null,
        };
        self.take_row(query, &row)?;
        self.count_text(hash);
        self.stats.null_rows += 1;
        Ok(())
    }

    /// Counts a text that has all of its rows.
    fn count_text(&mut self, hash: Option<u128>) {
        self.stats.texts += 1;
        self.stats.added += u64::from(hash.is_some());
    }

    /// Writes a row with NaN or infinite values, unless its format cannot tell them from others.
    fn take_not_finite(&mut self, query: usize, row: &Row, location: &Location) -> Result<()> {
        let mut reason = self.schema.content.not_finite();
        if let Some(span) = row.chunk {
            reason = format!("chunk {} {reason}", span.chunk);
        }
        if !self.schema.preserves_non_finite() {
            let dtype = self.schema.content.dtype();
            reason += &format!(", which {dtype} cannot represent; check the model");
            self.stop_or_open(location, &reason, !self.policy.skip_unreadable, "--on-error skip")?;
            self.stats.failed += 1;
            return self.warn(PendingEntry::new(row.index, location, Event::Failed, reason));
        }
        self.take_row(query, row)?;
        self.stats.not_finite += 1;
        let entry = PendingEntry::new(row.index, location, Event::NotFinite, reason);
        self.warn(PendingEntry { tokens: Some(row.tokens), ..entry })
    }

    /// Writes a row, or keeps it until the end of the run if rows are sorted.
    fn take_row(&mut self, query: usize, row: &Row) -> Result<()> {
        self.place.is_inside_record = true;
        self.open()?;
        match &mut self.ranking {
            Some(ranking) => {
                ranking.push(query, row);
                self.stats.rows += 1;
                Ok(())
            }
            None => self.write_row(query, row),
        }
    }

    /// Writes a row, with the columns of its query if rows have those.
    fn write_row(&mut self, query: usize, row: &Row) -> Result<()> {
        let written = match self.query_values.get(query).map(|columns| [row.kept, columns].concat()) {
            Some(kept) => self.files.write(&Row { kept: &kept, ..*row }),
            None => self.files.write(row),
        };
        written?;
        self.stats.rows += 1;
        if let Some(counts) = &mut self.place.rows_per_record {
            let record = (row.index - self.place.first_record) as usize;
            counts.resize(record + 1, 0);
            counts[record] += 1;
        }
        Ok(())
    }

    /// Writes the best rows in order, if rows are sorted.
    pub(super) fn write_ranking(&mut self) -> Result<()> {
        let Some(ranking) = self.ranking.take() else { return Ok(()) };
        self.stats.rows = 0;
        // A run that is interrupted from here on resumes from the last ranking that was saved, not from some
        // of its rows.
        self.place.is_inside_record = true;
        ranking.into_rows().try_for_each(|(query, row)| self.write_row(query, &row.as_row()))
    }

    /// Returns the error that ends the run if `is_fatal`, with the `options` that would skip the record.
    /// Otherwise opens the output and the ledger.
    fn stop_or_open(
        &mut self,
        location: &Location,
        reason: &str,
        is_fatal: bool,
        options: &'static str,
    ) -> Result<()> {
        if is_fatal {
            bail!(StoppedAtRecord { message: format!("{location} {reason}"), options });
        }
        self.open()
    }

    /// Counts a text that was truncated or encoded in chunks, and adds it to the ledger.
    fn count_long(&mut self, entry: PendingEntry, truncated_tokens: usize, sequences: usize) -> Result<()> {
        let limit = self.policy.max_length;
        if truncated_tokens > 0 {
            self.stats.truncated += 1;
            self.stats.truncated_tokens += truncated_tokens as u64;
            let tokens = entry.tokens.unwrap_or_default() + truncated_tokens;
            let reason = format!("has {tokens} tokens, over the limit of {limit}");
            self.add_to_ledger(PendingEntry { reason, truncated_tokens: Some(truncated_tokens), ..entry })
        } else if sequences > 1 {
            self.stats.multi_sequence += 1;
            self.stats.sequences += sequences as u64;
            let reason = format!("is encoded in {sequences} chunks of at most {limit} tokens");
            self.add_to_ledger(PendingEntry { event: Event::Chunked, reason, ..entry })
        } else {
            Ok(())
        }
    }

    /// Adds a record that was skipped or changed to the ledger, or prints a warning if there is no ledger.
    fn warn(&mut self, entry: PendingEntry) -> Result<()> {
        if !self.files.has_ledger() {
            let event = match entry.event {
                Event::Nulled => "null in",
                Event::NotFinite => "not finite",
                Event::Failed | Event::Skipped | Event::Truncated | Event::Chunked => "skipped",
            };
            let (location, reason) = (entry.location, &entry.reason);
            self.bar.suspend(|| self.console.warn(format!("{event}: {location} {reason}")));
        }
        self.add_to_ledger(entry)
    }

    /// Adds a record to the ledger, if there is one.
    fn add_to_ledger(&mut self, entry: PendingEntry) -> Result<()> {
        let PendingEntry { index, location, event, reason, tokens, truncated_tokens } = entry;
        let (line, row) = match location.position {
            Position::Line(line) => (Some(line), None),
            Position::Row(row) | Position::Argument(row) => (None, Some(row)),
            Position::File => (None, None),
        };
        let (file, reason) = (&*location.source, reason.into());
        self.files.write_entry(&LedgerEntry {
            index,
            file,
            line,
            row,
            event,
            reason,
            tokens,
            truncated_tokens,
        })
    }
}
