//! The files of an output: its rows and its ledger.

use anyhow::{Result, bail};

use crate::formats::Writer;
use crate::job::manifest::Manifest;
use crate::rows::{FileMetadata, OutputFormat, OutputSchema, Row};
use crate::store::{self, Digest, DurableRows, Ledger, LedgerEntry, OutputLock};

/// A locked output and its ledger. They are opened with the first row: until then, the rows of an earlier run
/// stay on the disk.
pub(super) struct OutputFiles {
    pub lock: OutputLock,
    writer: Option<Writer>,
    ledger: Option<Ledger>,
    /// Whether a write has failed: the files may end in the middle of a row.
    pub is_write_failed: bool,
}

/// What is durable of an output.
pub(super) struct Durable {
    pub rows: DurableRows,
    /// Bytes of the ledger.
    pub ledger: u64,
    pub ledger_sha256: Option<Digest>,
}

impl OutputFiles {
    /// The files of a locked output, none of which is open.
    pub(super) fn new(lock: OutputLock) -> Self {
        OutputFiles { lock, writer: None, ledger: None, is_write_failed: false }
    }

    /// Whether rows can be written.
    pub(super) fn is_open(&self) -> bool {
        self.writer.is_some()
    }

    /// Whether there is a ledger to write to.
    pub(super) fn has_ledger(&self) -> bool {
        self.ledger.is_some()
    }

    /// Opens the files, and deletes the rows of an earlier run.
    pub(super) fn open(&mut self, schema: &OutputSchema) -> Result<()> {
        if let Some(sidecars) = self.lock.sidecars() {
            // The manifest is removed first, because it describes rows that are deleted next.
            store::remove(&sidecars.manifest)?;
            self.ledger = Some(Ledger::open(&sidecars.ledger, &sidecars.output, None)?);
        }
        self.writer = Some(Writer::open(&self.lock, schema, None)?);
        Ok(())
    }

    /// Opens the files of an interrupted run after its rows. Returns true if that run had renamed its output,
    /// which is not opened then.
    pub(super) fn resume(&mut self, schema: &OutputSchema, manifest: &Manifest) -> Result<bool> {
        let Some(sidecars) = self.lock.sidecars() else { return Ok(false) };
        // Other formats are converted at the end: the file has another length than the rows.
        let is_rows = match schema.format {
            OutputFormat::Jsonl | OutputFormat::Csv => true,
            OutputFormat::Npy
            | OutputFormat::Npz
            | OutputFormat::Parquet
            | OutputFormat::Arrow
            | OutputFormat::Safetensors => false,
        };
        let is_renamed =
            manifest.complete && sidecars.output_is_final(is_rows.then_some(manifest.output.bytes));
        if sidecars.ledger.exists() || !is_renamed {
            let ledger = Ledger::open(&sidecars.ledger, &sidecars.output, Some(manifest.ledger))?;
            if manifest.ledger_sha256.as_ref().is_some_and(|written| *written != ledger.digest()) {
                bail!(
                    "cannot resume: {} was changed since the interrupted run; pass --restart to start over",
                    sidecars.ledger.display()
                );
            }
            self.ledger = Some(ledger);
        }
        if !is_renamed {
            self.writer = Some(Writer::open(&self.lock, schema, Some(manifest.output.clone()))?);
        }
        Ok(is_renamed)
    }

    /// Writes a row.
    pub(super) fn write(&mut self, row: &Row) -> Result<()> {
        let written = self.writer()?.write(row);
        self.check_write(written)
    }

    /// Writes an entry of the ledger, if there is one.
    pub(super) fn write_entry(&mut self, entry: &LedgerEntry) -> Result<()> {
        let written = self.ledger.as_mut().map_or(Ok(()), |ledger| ledger.write(entry));
        self.check_write(written)
    }

    /// Makes rows and ledger durable. `rows` is the number of rows.
    pub(super) fn checkpoint(&mut self, rows: u64) -> Result<Durable> {
        let bytes = self.writer()?.checkpoint();
        let bytes = self.check_write(bytes)?;
        let blocks = self.writer()?.blocks(rows);
        let ledger = self.ledger.as_mut().map_or(Ok(0), Ledger::checkpoint);
        let ledger = self.check_write(ledger)?;
        let ledger_sha256 = self.ledger.as_ref().map(Ledger::digest);
        Ok(Durable { rows: DurableRows { rows, bytes, blocks }, ledger, ledger_sha256 })
    }

    /// Gives the rows so far to the reader of the output, as far as the format allows.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), |writer| writer.checkpoint().map(drop))
    }

    /// Ends a record batch of an output that follows the batches of its input.
    pub(super) fn end_batch(&mut self) -> Result<()> {
        self.writer.as_mut().map_or(Ok(()), Writer::end_batch)
    }

    /// Completes the output and renames it.
    pub(super) fn finish_rows(&mut self, metadata: &FileMetadata) -> Result<()> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        writer.set_metadata(metadata);
        writer.finish()
    }

    /// Completes the ledger and renames it, if it is open.
    pub(super) fn finish_ledger(&mut self) -> Result<()> {
        match (self.ledger.take(), self.lock.sidecars()) {
            (Some(ledger), Some(sidecars)) => ledger.finish(&sidecars.final_ledger),
            _ => Ok(()),
        }
    }

    /// Deletes the rows and the ledger.
    pub(super) fn discard(&mut self) {
        (self.writer, self.ledger) = (None, None);
        // The next run replaces files that cannot be removed now.
        let _ = self.lock.discard();
    }

    fn writer(&mut self) -> Result<&mut Writer> {
        match &mut self.writer {
            Some(writer) => Ok(writer),
            None => bail!("the output is not open; please report this as a bug"),
        }
    }

    /// Returns `written`, and records whether the write failed.
    fn check_write<T>(&mut self, written: Result<T>) -> Result<T> {
        self.is_write_failed |= written.is_err();
        written
    }
}
