//! Checkpoints, and the end of a run.

use std::time::Instant;

use anyhow::{Error, Result, anyhow};

use super::Collector;
use super::ranking::Ranking;
use super::record::StoppedAtRecord;
use crate::job::digests::weights_metadata;
use crate::job::journal::Journal;
use crate::job::manifest::{CompletedRun, Manifest};
use crate::job::signals::{self, Interrupted};
use crate::output::{self, ClosedPipe, DurableRows, Ledger, OutputFormat, OutputMetadata};
use crate::sys::console::counted;

impl Collector {
    /// Makes rows and ledger durable and saves the manifest.
    pub(super) fn save(&mut self, complete: bool) -> Result<()> {
        let since = Instant::now();
        let bytes = self.writer()?.checkpoint();
        let bytes = self.check_write(bytes)?;
        // Rows that are sorted are not in the output before the end.
        let rows = if self.ranking.is_some() { 0 } else { self.stats.rows };
        let blocks = self.writer()?.blocks(rows);
        let ledger = self.ledger.as_mut().map_or(Ok(0), Ledger::checkpoint);
        let ledger = self.check_write(ledger)?;
        let ledger_sha256 = self.ledger.as_ref().map(Ledger::digest);
        self.stats.milliseconds = self.resumed.milliseconds + self.started.elapsed().as_millis() as u64;
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let saved = journal.save(since, |identity| Manifest {
            identity,
            ids: self.schema.ids.clone(),
            kept: self.schema.kept.clone(),
            cursor: self.cursor.clone(),
            stats: self.stats,
            rows_per_record: self.rows_per_record.clone(),
            output: DurableRows { rows, bytes, blocks },
            ledger,
            ledger_sha256,
            ranking: self.ranking.as_ref().map(Ranking::saved).unwrap_or_default(),
            complete,
        })?;
        self.complete = complete.then_some(saved);
        self.saved_rows = Some(self.stats.rows);
        Ok(())
    }

    /// Completes the output and renames it. If the process is killed in between, the next run finds a complete run.
    pub(super) fn finish(&mut self) -> Result<()> {
        self.write_ranking()?;
        self.save(true)?;
        signals::exit_on_signal();
        let metadata = self.metadata()?;
        if let Some(mut writer) = self.writer.take() {
            writer.set_metadata(&metadata);
            writer.finish()?;
        }
        self.clean_up()
    }

    /// Renames the ledger, writes the metadata file of npy, and replaces the manifest by that of a complete run.
    pub(super) fn clean_up(&mut self) -> Result<()> {
        let Some(sidecars) = self.lock.sidecars() else { return Ok(()) };
        if let Some(ledger) = self.ledger.take() {
            ledger.finish(&sidecars.final_ledger)?;
        }
        if self.schema.format == OutputFormat::Npy {
            let mut meta = serde_json::to_value(&self.schema.metadata)?;
            if let Some(counts) = &mut self.rows_per_record {
                // The last records may have no rows.
                counts.resize((self.cursor.entries - self.first_record) as usize, 0);
                meta["chunks"] = counts.as_slice().into();
            }
            output::manifest::save(&sidecars.meta, &sidecars.output, &meta)?;
        }
        if let Some(run) = self.complete.take() {
            CompletedRun::save(run, &self.schema.metadata, sidecars)?;
        }
        output::manifest::remove(&sidecars.manifest)
    }

    /// The metadata of the output, with the digest of the weights if the model's files are hashed.
    ///
    /// # Errors
    /// If one of the files cannot be read.
    pub fn metadata(&mut self) -> Result<OutputMetadata> {
        let digest = match (&mut self.journal, self.digests.take()) {
            (Some(journal), _) => weights_metadata(journal.identity()?),
            (None, Some(digests)) => weights_metadata(&digests.finish()?),
            (None, None) => None,
        };
        self.schema.metadata.extend(digest);
        Ok(self.schema.metadata.clone())
    }

    /// Deletes the rows and the ledger of this run.
    fn discard(&mut self) {
        (self.writer, self.ledger) = (None, None);
        // The next run replaces files that cannot be removed now.
        let _ = self.lock.discard();
    }

    /// Saves the complete records after an error, and adds to the error how to resume.
    pub(super) fn abort(&mut self, error: Error) -> Error {
        if error.is::<ClosedPipe>() {
            return error;
        }
        if self.journal.is_none() {
            self.discard();
            return error;
        }
        // This run has not opened the output: the rows of an earlier run are unchanged.
        if self.writer.is_none() && self.saved_rows.is_none() {
            let saved_rows = self.journal.as_ref().and_then(Journal::earlier_rows);
            return if error.is::<Interrupted>() { Interrupted { saved_rows }.into() } else { error };
        }
        let has_rows = self.writer.is_some() && self.cursor.entries > self.first_record;
        if has_rows && !self.is_write_failed && !self.is_inside_record {
            // If this fails, the previous manifest is still valid.
            let _ = self.save(false);
        }
        let Some(rows) = self.saved_rows else {
            self.discard();
            return error;
        };
        if error.is::<Interrupted>() {
            return Interrupted { saved_rows: Some(rows) }.into();
        }
        let saved = format!("{} {} saved", counted(rows, "row"), if rows == 1 { "is" } else { "are" });
        match error.downcast::<StoppedAtRecord>() {
            Ok(StoppedAtRecord { message, options }) => {
                anyhow!("{message}; {saved}; rerun with --resume and {options} to continue after the record")
            }
            Err(error) => anyhow!("{error:#}; {saved}; rerun with --resume to continue"),
        }
    }
}
