//! Checkpoints, and the end of a run.

use std::time::Instant;

use anyhow::{Error, Result, anyhow};

use super::Collector;
use super::ranking::Ranking;
use super::record::StoppedAtRecord;
use crate::job::digests::add_weights_digest;
use crate::job::journal::Journal;
use crate::job::manifest::{CompletedRun, Manifest};
use crate::job::signals::{Interrupted, Interrupts};
use crate::rows::{FileMetadata, OutputFormat};
use crate::store::{self, ClosedPipe};
use crate::sys::console::counted;

impl Collector {
    /// Makes rows and ledger durable and saves the manifest, which is returned. Without a journal there is
    /// none.
    pub(super) fn save(&mut self, complete: bool) -> Result<Option<Manifest>> {
        let since = Instant::now();
        // Rows that are sorted are not in the output before the end.
        let rows = if self.ranking.is_some() { 0 } else { self.stats.rows };
        let durable = self.files.checkpoint(rows)?;
        let elapsed = self.timings.start.elapsed();
        self.stats.milliseconds = self.timings.resumed.milliseconds + elapsed.as_millis() as u64;
        let Some(journal) = &mut self.journal else { return Ok(None) };
        let manifest = Manifest {
            identity: self.identity.whole()?,
            ids: self.schema.ids.clone(),
            kept: self.schema.kept.clone(),
            cursor: self.place.cursor.clone(),
            stats: self.stats,
            rows_per_record: self.place.rows_per_record.clone(),
            output: durable.rows,
            ledger: durable.ledger,
            ledger_sha256: durable.ledger_sha256,
            ranking: self.ranking.as_ref().map(Ranking::saved).unwrap_or_default(),
            complete,
        };
        journal.save(since, &manifest)?;
        self.saved_rows = Some(self.stats.rows);
        Ok(Some(manifest))
    }

    /// Completes the output and renames it. If the process is killed in between, the next run finds a
    /// complete run.
    pub(super) fn finish(&mut self, interrupts: &Interrupts) -> Result<()> {
        self.write_ranking()?;
        let run = self.save(true)?;
        interrupts.end_process();
        let metadata = self.metadata()?;
        self.files.finish_rows(&metadata)?;
        self.clean_up(run)
    }

    /// Renames the ledger, writes the metadata file of npy, and replaces the manifest by that of the complete
    /// `run`.
    pub(super) fn clean_up(&mut self, run: Option<Manifest>) -> Result<()> {
        self.files.finish_ledger()?;
        let Some(sidecars) = self.files.lock.sidecars() else { return Ok(()) };
        if self.schema.format == OutputFormat::Npy {
            let mut meta = serde_json::to_value(&self.schema.metadata)?;
            if let Some(counts) = &mut self.place.rows_per_record {
                // The last records may have no rows.
                counts.resize((self.place.cursor.entries - self.place.first_record) as usize, 0);
                meta["chunks"] = counts.as_slice().into();
            }
            store::manifest::save(&sidecars.meta, &sidecars.output, &meta)?;
        }
        if let Some(run) = run {
            CompletedRun::save(run, &self.schema.metadata, sidecars)?;
        }
        store::remove(&sidecars.manifest)
    }

    /// The metadata of the output, with the digest of the weights if the model's files are hashed.
    pub(in crate::job) fn metadata(&mut self) -> Result<FileMetadata> {
        add_weights_digest(&mut self.schema.metadata, &self.identity.files.wait()?);
        Ok(self.schema.metadata.clone())
    }

    /// Saves the complete records after an error, and adds to the error how to resume.
    pub(super) fn abort(&mut self, error: Error) -> Error {
        if error.is::<ClosedPipe>() {
            return error;
        }
        if self.journal.is_none() {
            self.files.discard();
            return error;
        }
        // This run has not opened the output: the rows of an earlier run are unchanged.
        if !self.files.is_open() && self.saved_rows.is_none() {
            let saved_rows = self.journal.as_ref().and_then(Journal::earlier_rows);
            return if error.is::<Interrupted>() { Interrupted { saved_rows }.into() } else { error };
        }
        let has_rows = self.files.is_open() && self.place.cursor.entries > self.place.first_record;
        if has_rows && !self.files.is_write_failed && !self.place.is_inside_record {
            // If this fails, the previous manifest is still valid.
            let _ = self.save(false);
        }
        let Some(rows) = self.saved_rows else {
            self.files.discard();
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
