//! The collector: takes waves in order, writes their rows to the output, lists skipped, failed and truncated records in the
//! ledger, and from time to time makes both durable, so that an interrupted run can be resumed.

mod ranking;
mod record;
mod save;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, bail};
use crossbeam_channel::{Receiver, select};
use indicatif::ProgressBar;

use self::ranking::Ranking;
use super::columns;
use super::cursor::Cursor;
use super::digests::FileDigests;
use super::journal::Journal;
use super::manifest::{Manifest, SavedScore};
use super::messages::RecordMeta;
use super::signals::Interrupted;
use super::source::RecordSource;
use super::stats::Stats;
use super::summary::Timings;
use crate::engine::{Outgoing, Wave};
use crate::field::FieldValue;
use crate::output::{self, KeptColumn, Ledger, OutputFormat, OutputLock, OutputSchema, SidecarPaths, Writer};
use crate::sys::console::{Console, QUIET_PERIOD, counted, thousands};
use crate::sys::threads::thread_panicked;

/// What to do with records that have no row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// Skip records that cannot be read (`--on-error skip`); otherwise they end the run.
    pub skip_unreadable: bool,
    /// End the run at a text over the limit (`--on-long error`); otherwise it is skipped.
    pub stop_at_long: bool,
    /// Maximum tokens of a text.
    pub max_length: usize,
}

/// The columns that tell the query of a row.
#[derive(Debug, Clone, Default)]
pub struct QueryColumns {
    /// The columns, which follow those that are copied from the input.
    pub columns: Vec<KeptColumn>,
    /// Their values for each query.
    pub values: Vec<Vec<FieldValue>>,
}

/// Writes the rows of a run in the order of input.
pub struct Collector {
    lock: OutputLock,
    schema: OutputSchema,
    policy: Policy,
    console: Console,
    bar: ProgressBar,
    /// Opened with the first row: until then, the rows of an earlier run stay on the disk.
    writer: Option<Writer>,
    ledger: Option<Ledger>,
    /// Present if the output is a file: only then the run can be resumed.
    journal: Option<Journal>,
    /// The digests of the model's files, if there is no journal.
    digests: Option<FileDigests>,
    /// The position after the last record whose rows are all written.
    cursor: Cursor,
    /// The index of the first record of this run, or of its shard.
    first_record: u64,
    /// Whether some but not all rows of the record after the cursor are written. A checkpoint is not possible then.
    is_inside_record: bool,
    /// Rows per record, for formats whose rows have no record index.
    rows_per_record: Option<Vec<u64>>,
    /// The best rows, if rows are sorted by their scores.
    ranking: Option<Ranking>,
    /// The values of the columns of each query; empty if rows have no such columns.
    queries: Vec<Vec<FieldValue>>,
    stats: Stats,
    /// The counts of the runs that this one resumes.
    resumed: Stats,
    /// When the command started.
    started: Instant,
    /// The last manifest, once the run is complete.
    complete: Option<Manifest>,
    /// Rows in the last saved manifest, which the next run could resume after.
    saved_rows: Option<u64>,
    /// Whether a write has failed: the files may end in the middle of a row.
    is_write_failed: bool,
}

impl Collector {
    /// A collector for a run from the beginning. With a journal, the run can be resumed.
    pub fn new(
        lock: OutputLock,
        schema: OutputSchema,
        policy: Policy,
        journal: Option<Journal>,
        digests: Option<FileDigests>,
        console: Console,
        bar: ProgressBar,
    ) -> Self {
        let rows_per_record = (schema.chunks && schema.format == OutputFormat::Npy).then(Vec::new);
        Collector {
            lock,
            schema,
            policy,
            console,
            bar,
            writer: None,
            ledger: None,
            journal,
            digests,
            cursor: Cursor::default(),
            first_record: 0,
            is_inside_record: false,
            rows_per_record,
            ranking: None,
            queries: Vec::new(),
            stats: Stats::default(),
            resumed: Stats::default(),
            started: Instant::now(),
            complete: None,
            saved_rows: None,
            is_write_failed: false,
        }
    }

    /// The position after the last record whose rows are all written.
    pub fn cursor(&self) -> &Cursor {
        &self.cursor
    }

    /// The counts so far.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Sorts rows by their scores and writes only the best `top_k` of each query, at the end of the run. Call it before
    /// [`Collector::resume`].
    pub fn rank(&mut self, top_k: usize) {
        self.ranking = Some(Ranking::new(top_k));
    }

    /// Adds the columns of the query to each row. Call it after the types of the other columns are known.
    pub fn add_queries(&mut self, queries: QueryColumns) {
        let QueryColumns { columns, values } = queries;
        // A run that is resumed has the columns of its manifest.
        if !columns.iter().all(|column| self.schema.kept.contains(column)) {
            self.schema.kept.extend(columns);
        }
        self.queries = values;
    }

    /// Infers the types of the columns from the first records of the whole input, and starts at the first record of `source`. The
    /// command started at `started`.
    ///
    /// # Errors
    /// If the records before it cannot be read.
    pub fn start(&mut self, source: &mut RecordSource, started: Instant) -> Result<()> {
        self.started = started;
        if self.schema.format.has_fixed_columns() {
            columns::infer(&mut self.schema, source);
        }
        self.start_at(source)
    }

    /// Starts at the first record of `source`.
    fn start_at(&mut self, source: &mut RecordSource) -> Result<()> {
        self.cursor = source.start()?.clone();
        self.first_record = self.cursor.entries;
        self.bar.set_position(self.cursor.position);
        self.bar.reset_eta();
        Ok(())
    }

    /// Resumes an interrupted run after the records that it has read from `source`. Returns true if that run had written all rows, so
    /// that nothing is left to do.
    ///
    /// # Errors
    /// If the records differ, or the files contain less than the manifest says.
    pub fn resume(
        &mut self,
        manifest: Manifest,
        source: &mut RecordSource,
        started: Instant,
    ) -> Result<bool> {
        self.started = started;
        let complete = manifest.clone();
        self.start_at(source)?;
        self.skip_records(&manifest, source)?;
        (self.schema.ids, self.schema.kept) = (manifest.ids, manifest.kept);
        (self.cursor, self.stats, self.resumed) = (manifest.cursor, manifest.stats, manifest.stats);
        self.rows_per_record = manifest.rows_per_record;
        self.saved_rows = Some(manifest.stats.rows);
        self.bar.set_position(self.cursor.position);
        self.bar.reset_eta();
        let Some(sidecars) = self.lock.sidecars() else { return Ok(false) };
        // Other formats are converted at the end: the file has another length than the rows.
        let is_rows = matches!(self.schema.format, OutputFormat::Jsonl | OutputFormat::Csv);
        let is_renamed =
            manifest.complete && sidecars.output_is_final(is_rows.then_some(manifest.output.bytes));
        if sidecars.ledger.exists() || !is_renamed {
            let ledger = Ledger::open(&sidecars.ledger, &sidecars.output, Some(manifest.ledger))?;
            if manifest.ledger_sha256.is_some_and(|written| written != ledger.digest()) {
                bail!(
                    "cannot resume: {} was changed since the interrupted run; pass --restart to start over",
                    sidecars.ledger.display()
                );
            }
            self.ledger = Some(ledger);
        }
        if is_renamed {
            self.complete = Some(complete);
            self.clean_up()?;
        } else {
            self.writer = Some(output::Writer::open(&self.lock, &self.schema, Some(manifest.output))?);
        }
        Ok(is_renamed)
    }

    /// Skips the records of an interrupted run, and adds the best rows of that run to the ranking, with the columns of their records.
    fn skip_records(&mut self, manifest: &Manifest, source: &mut RecordSource) -> Result<()> {
        // A complete run has written its best rows.
        self.ranking.take_if(|_| manifest.complete);
        let Some(ranking) = &mut self.ranking else { return source.skip_to(&manifest.cursor, |_, _| {}) };
        let mut schema = self.schema.clone();
        (schema.ids, schema.kept) = (manifest.ids.clone(), manifest.kept.clone());
        let mut saved: BTreeMap<u64, Vec<SavedScore>> = BTreeMap::new();
        for row in &manifest.ranking {
            saved.entry(row.index).or_default().push(*row);
        }
        source.skip_to(&manifest.cursor, |index, record| {
            let Some(rows) = saved.get(&index) else { return };
            let (mut id, mut kept) = (record.id, Arc::new(record.kept));
            columns::null_misfits(&schema, &mut id, &mut kept);
            rows.iter().for_each(|row| ranking.restore(row, id.as_ref(), &kept));
        })
    }

    /// Opens the output, if it is not open yet, and deletes the rows of an earlier run.
    fn open(&mut self) -> Result<()> {
        if self.writer.is_some() {
            return Ok(());
        }
        if let Some(sidecars) = self.lock.sidecars() {
            // The manifest is removed first, because it describes rows that are deleted next.
            output::manifest::remove(&sidecars.manifest)?;
            self.ledger = Some(Ledger::open(&sidecars.ledger, &sidecars.output, None)?);
        }
        if let Some(rows) = self.journal.as_mut().and_then(Journal::take_dropped_rows) {
            self.console
                .note(format!("starting over: dropped {} of an interrupted run", counted(rows, "row")));
        }
        if self.journal.is_none() && self.schema.format == OutputFormat::Arrow {
            // The metadata of an Arrow stream precede its rows.
            self.metadata()?;
        }
        self.writer = Some(output::Writer::open(&self.lock, &self.schema, None)?);
        Ok(())
    }

    /// Takes all waves and completes the output.
    ///
    /// # Errors
    /// If any stage fails, or the user interrupts the run. The rows before the failure are saved if the run can be resumed.
    pub fn run(
        &mut self,
        waves: &Receiver<Result<Outgoing<RecordMeta>>>,
        interrupts: &Receiver<()>,
    ) -> Result<()> {
        let done = self.take_waves(waves, interrupts).and_then(|()| self.finish());
        self.bar.finish_and_clear();
        done.map_err(|error| self.abort(error))
    }

    /// Prints the warnings and totals of the run. `output` names the file that the rows are appended to, if it is not that of the run.
    pub fn report(&self, timings: &Timings, output: Option<&SidecarPaths>) {
        let sidecars = output.or_else(|| self.lock.sidecars());
        let ledger = sidecars.map(|sidecars| sidecars.final_ledger.as_path());
        self.stats.report(&self.console, self.policy.max_length, ledger);
        // On a terminal or a pipe, the rows themselves are visible.
        if self.lock.sidecars().is_some() && timings.start.elapsed() >= QUIET_PERIOD {
            self.console.note(format!(
                "{}, {} in {:.1} s: {}",
                counted(self.stats.rows, "row"),
                counted(self.stats.tokens, "token"),
                timings.start.elapsed().as_secs_f64(),
                output.map_or(self.lock.target().to_string(), |output| output.output.display().to_string())
            ));
        }
    }

    fn take_waves(
        &mut self,
        waves: &Receiver<Result<Outgoing<RecordMeta>>>,
        interrupts: &Receiver<()>,
    ) -> Result<()> {
        loop {
            let message = select! {
                recv(waves) -> message => message,
                recv(interrupts) -> _ => bail!(Interrupted { saved_rows: None }),
            };
            match message.map_err(thread_panicked)?? {
                Outgoing::Wave(wave) => self.take_wave(wave, interrupts)?,
                Outgoing::End => return self.open(),
            }
        }
    }

    fn take_wave(&mut self, wave: Wave<RecordMeta>, interrupts: &Receiver<()>) -> Result<()> {
        let Wave { items, batches, done } = wave;
        let from = self.cursor.position;
        let last = items.iter().rfind(|(record, _)| record.is_last);
        let to = last.map_or(from, |(record, _)| record.end.position);
        for finished in 1..=batches {
            let batch = select! {
                recv(done) -> batch => batch,
                recv(interrupts) -> _ => bail!(Interrupted { saved_rows: None }),
            };
            batch.map_err(thread_panicked)??;
            self.bar.set_position(from + to.saturating_sub(from) * finished as u64 / batches as u64);
            self.draw_progress();
        }
        let count = items.len();
        for (i, (record, rows)) in items.into_iter().enumerate() {
            let (end, is_last, ends_batch) = (record.end.clone(), record.is_last, record.ends_batch);
            self.take_record(record, rows.as_ref().and_then(|rows| rows.get()))?;
            if !is_last {
                continue;
            }
            (self.cursor, self.is_inside_record) = (end, false);
            if ends_batch && self.schema.follows_batches {
                self.writer.as_mut().map_or(Ok(()), Writer::end_batch)?;
            }
            // With chunks, a wave often ends inside of a record: save after any record.
            let may_save = i + 1 == count || self.schema.chunks;
            if may_save && self.journal.as_ref().is_some_and(Journal::is_due) {
                self.save(false)?;
            }
        }
        self.bar.set_position(self.cursor.position);
        // A wave of texts that were encoded before has no batches.
        self.draw_progress();
        match &self.journal {
            Some(_) => Ok(()),
            None if self.schema.follows_batches => Ok(()),
            // Without a file, the reader of the output gets the rows of each wave at once.
            None => self.writer.as_mut().map_or(Ok(()), |writer| writer.checkpoint().map(drop)),
        }
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

    fn draw_progress(&self) {
        let seconds = self.bar.elapsed().as_secs_f64();
        let rows = (self.stats.rows - self.resumed.rows) as f64 / seconds;
        let tokens = (self.stats.tokens - self.resumed.tokens) as f64 / seconds;
        let (rows, tokens) = (thousands(rows as u64), thousands(tokens as u64));
        let work = format!("{}, {rows} rows/s, {tokens} tokens/s", counted(self.stats.rows, "row"));
        self.console.draw(&self.bar, &work);
    }
}
